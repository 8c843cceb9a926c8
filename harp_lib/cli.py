"""The command line behind ``run_all.sh``; the standard library only at import, because it also runs before set-up.

``python -m harp_lib.cli --check ARGUMENTS`` only judges the arguments: exit code 0 (go on), 2 (refused) or 3 (help
was shown, nothing is left to do).
"""

import argparse
import difflib
import errno
import keyword
import os
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from harp_lib import paths

COMMANDS = ("setup", "run", "test", "figures", "book")
EXECUTORS = ("local", "slurm")
HELP_SHOWN = 3
_SIZES = ("smoke", "mini", "paper")  # messages list profiles from small to large
_SHARED = ("models", "datasets", "limit", "force")  # parameters of notebooks that have an option of their own
_OWN_OPTION = {name: f"--{name}" for name in ("profile", *_SHARED)}
_OF_RUN = {"--only": "only", **{f"--{name}": name for name in _SHARED}, "-p": "parameters"}
_OF_RUN |= {"--jobs": "jobs", "--executor": "executor", "--dry-run": "dry_run"}
_HUB_ID = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")

_DESCRIPTION = """\
Reproduces the paper: sets itself up, then does what COMMAND says.

  run      run the notebooks (default); outputs go to notebooks/executed/<profile>
  figures  redraw every figure and table from stored results: no model, under a minute
  book     make an HTML book of the executed notebooks, to read without a network
  test     run the tests; what follows goes to pytest: ./run_all.sh test -k plan
  setup    set up and stop there
"""
_EPILOG = """\
Exit codes: 0 all well, 1 something failed, 2 an argument was refused, 130 interrupted.
HARP_PYTHON names an interpreter to use in place of .venv."""


def known_profiles() -> list[str]:
    """Profiles in ``data/profiles``, from small to large."""
    names = sorted(path.stem for path in paths.PROFILES.glob("*.yaml"))
    return sorted(names, key=lambda name: _SIZES.index(name) if name in _SIZES else len(_SIZES))


def known_notebooks() -> list[str]:
    """Numbers of the notebooks, with two digits."""
    return sorted({path.name[:2] for path in paths.NOTEBOOKS.glob("[0-9][0-9]_*.ipynb")})


def known_models() -> tuple[str, ...]:
    """Models that the companion brings along."""
    from harp_lib.model_names import MODEL_NAMES

    return MODEL_NAMES


def build_parser() -> argparse.ArgumentParser:
    """Parser of everything but ``test``, whose arguments are pytest's."""
    parser = argparse.ArgumentParser(
        prog="run_all.sh",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("command", nargs="?", default="run", metavar="COMMAND")
    parser.add_argument(
        "--profile",
        type=_profile,
        default="mini",
        metavar="NAME",
        help=f"{', '.join(known_profiles())} (default: mini)",
    )
    run = parser.add_argument_group("options of run")
    run.add_argument("--only", type=_numbers, metavar="03,05", help="run these notebooks")
    run.add_argument("--models", type=_models, metavar="A,B", help="models, folders or hub ids, where a notebook can")
    run.add_argument("--datasets", type=_datasets, metavar="FROM", help="embedded, hub, or a folder of benchmarks")
    run.add_argument("--limit", type=_limit, metavar="N", help="ask only the first N questions of each task")
    run.add_argument("--force", action="store_true", help="compute results again that are already stored")
    run.add_argument("--jobs", type=_count_of_jobs, metavar="N", help="jobs at once (default: 1; on a cluster, many)")
    run.add_argument("--executor", type=_executor, metavar="NAME", help="local (default), or slurm: on a cluster")
    run.add_argument("--dry-run", action="store_true", help="show what would run, why, and what it should take")
    run.add_argument(
        "-p",
        dest="parameters",
        type=_assignment,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="any other parameter of the notebooks; the value is read as YAML",
    )
    return parser


def parse(arguments: list[str]) -> argparse.Namespace:
    """Read and judge the arguments.

    Raises
    ------
    SystemExit
        As argparse does: code 2 for what is refused, code 0 after ``--help``.
    """
    if arguments[:1] == ["test"] and arguments[1:] not in (["-h"], ["--help"]):
        return argparse.Namespace(command="test", pytest=arguments[1:])
    parser = build_parser()
    options, unknown = parser.parse_known_args(arguments)
    if unknown:
        near = difflib.get_close_matches(unknown[0].partition("=")[0], ("--profile", "--help", *_OF_RUN), n=1)
        parser.error(f"unknown argument {unknown[0]!r}" + (f" (did you mean {near[0]}?)" if near else ""))
    if options.command not in COMMANDS:
        parser.error(str(_refusal("command", options.command, COMMANDS)))
    given = [flag for flag, name in _OF_RUN.items() if getattr(options, name)]
    if options.command == "test":
        parser.error("'test' goes first; what follows goes to pytest: ./run_all.sh test -k plan")
    if options.command != "run" and given:
        parser.error(f"{given[0]} goes with 'run', not with {options.command!r}")
    return options


def _refusal(kind: str, value: str, choices: Iterable[str], otherwise: str = "") -> argparse.ArgumentTypeError:
    choices = list(choices)
    near = difflib.get_close_matches(value, choices, n=1)
    listed = f"choose from {', '.join(choices)}" if choices else "there is none"
    hint = f" (did you mean {near[0]!r}?)" if near else ""
    return argparse.ArgumentTypeError(f"unknown {kind} {value!r}; {listed}{otherwise}{hint}")


def _profile(value: str) -> str:
    if value not in known_profiles():
        raise _refusal("profile", value, known_profiles())
    return value


def _items(value: str) -> list[str]:
    items = [item.strip() for item in value.split(",")]
    if not all(items):
        raise argparse.ArgumentTypeError(f"empty item in {value!r}; separate items with one comma")
    return list(dict.fromkeys(items))


def _numbers(value: str) -> list[str]:
    numbers = [item.zfill(2) for item in _items(value)]
    for number in numbers:
        if number not in known_notebooks():
            raise _refusal("notebook", number, known_notebooks())
    return list(dict.fromkeys(numbers))


def _models(value: str) -> list[str]:
    return [_model(item) for item in _items(value)]


def _model(value: str) -> str:
    folder = Path(value).expanduser()
    if value in known_models():
        return value
    if (folder / "config.json").is_file():
        return str(folder.absolute())
    if value.startswith((".", "/", "~")):
        problem = "has no config.json" if folder.is_dir() else "does not exist"
        raise argparse.ArgumentTypeError(f"model folder {value!r} {problem}")
    if _HUB_ID.fullmatch(value):
        return value
    raise _refusal("model", value, known_models(), ", a folder with a config.json, or a hub id owner/name")


def _datasets(value: str) -> str:
    if value in ("embedded", "hub"):
        return value
    folder = Path(value).expanduser()
    if not value or not folder.is_dir():
        raise _refusal("datasets", value, ("embedded", "hub"), ", or a folder that exists")
    return str(folder.absolute())


def _limit(value: str) -> int:
    if not value.isdecimal() or int(value) < 1:
        raise argparse.ArgumentTypeError(f"a number of questions, 1 or more, not {value!r}")
    return int(value)


def _count_of_jobs(value: str) -> int:
    if not value.isdecimal() or int(value) < 1:
        raise argparse.ArgumentTypeError(f"a number of jobs, 1 or more, not {value!r}")
    return int(value)


def _executor(value: str) -> str:
    if value not in EXECUTORS:
        raise _refusal("executor", value, EXECUTORS)
    return value


def _assignment(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name.isidentifier() or keyword.iskeyword(name):
        raise argparse.ArgumentTypeError(f"malformed parameter {text!r}; write NAME=VALUE, as in seed=1")
    if name in _OWN_OPTION:
        raise argparse.ArgumentTypeError(f"parameter {name!r} has an option of its own: {_OWN_OPTION[name]}")
    return name, value


def check(arguments: list[str]) -> int:
    """Judge the arguments, and do nothing."""
    try:
        parse(arguments)
    except SystemExit as stop:
        return stop.code or HELP_SHOWN
    return 0


def main(arguments: list[str]) -> int:
    """Do what the arguments say and return the exit code."""
    if arguments[:1] == ["--check"]:
        return check(arguments[1:])
    options = parse(arguments)
    if options.command == "setup":
        print(f"ready: {sys.executable}")
        return 0
    if options.command == "test":
        os.chdir(Path(__file__).resolve().parents[1])
        os.execv(sys.executable, [sys.executable, "-m", "pytest", *options.pytest])
    if options.command == "figures":
        return _figures(options.profile)
    if options.command == "book":
        return _book(options.profile)
    return _run(options)


def _figures(profile: str) -> int:
    from harp_lib import figures

    try:
        written = figures.redraw(profile)
    except FileNotFoundError as error:
        print(error, file=sys.stderr)
        return 1
    for path in written:
        print(os.path.relpath(path, paths.ROOT))
    print(f"{len(written)} files written")
    return 0


def _book(profile: str) -> int:
    from harp_lib import book

    try:
        index = book.build(profile)
    except FileNotFoundError as error:
        print(error, file=sys.stderr)
        return 1
    print(f"open it in a browser: {os.path.relpath(index, paths.ROOT)}")
    return 0


def _run(options: argparse.Namespace) -> int:
    from harp_lib import runner

    given: dict[str, Any] = {name: getattr(options, name) for name in _SHARED}
    shared = {name: value for name, value in given.items() if value}
    try:
        _check_rows(options.datasets)
        explicit = {name: _yaml(name, value) for name, value in options.parameters}
        how = {"at_once": options.jobs, "executor": options.executor or "local"}
        run = runner.Run(options.profile, options.only, shared, explicit, **how)
    except runner.RefusedError as error:
        print(f"run_all.sh: error: {error}", file=sys.stderr)
        return 2
    if options.dry_run:
        from harp_lib.dry_run import show

        print(show(run.jobs()))
        return 0
    try:
        code = run()
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        print(f"run_all.sh: error: no space left on the disk of {paths.RESULTS}", file=sys.stderr)
        return 1
    if (drawn := paths.FIGURES / options.profile).is_dir():
        print(f"\nfigures and tables: {os.path.relpath(drawn, paths.ROOT)}")
    return code


def _check_rows(datasets: str | None) -> None:
    """Refuse a folder without benchmarks, or with a row that no task could use, before anything runs."""
    if datasets not in (None, "embedded", "hub"):
        from harp_lib.benchmarks import MissingTaskError, RowError, check_rows
        from harp_lib.runner import RefusedError

        try:
            check_rows(datasets)
        except (RowError, MissingTaskError) as error:
            raise RefusedError(str(error)) from error


def _yaml(name: str, value: str) -> Any:
    import yaml

    from harp_lib.runner import RefusedError

    try:
        return yaml.safe_load(value)
    except yaml.YAMLError as error:
        raise RefusedError(f"malformed parameter {name}={value!r}: not YAML ({error.args[0]})") from error


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
