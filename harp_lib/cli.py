"""The command line behind ``run_all.sh``; the standard library only at import, because it also runs before set-up.

``python -m harp_lib.cli --check ARGUMENTS`` only judges the arguments: exit code 0 (go on), 2 (refused) or 3 (help
was shown, nothing is left to do).
"""

import argparse
import difflib
import errno
import os
import sys
from pathlib import Path
from typing import Any

from harp_lib import cli_values as values
from harp_lib import paths

COMMANDS = ("setup", "run", "test", "figures", "book")
HELP_SHOWN = 3
_OF_RUN = {"--only": "only", **{f"--{name}": name for name in values.SHARED}, "-p": "parameters"}
_OF_RUN |= {"--jobs": "jobs", "--executor": "executor", "--dry-run": "dry_run"}

_DESCRIPTION = """\
Reproduces the paper: sets itself up, then does what COMMAND says.

  run      run the notebooks (default); outputs go to notebooks/executed/<profile>
  figures  redraw every figure and table from stored results: no model, under a minute
  book     make an HTML book of the executed notebooks, to read without a network
  test     run the tests side by side; what follows goes to pytest: ./run_all.sh test -k plan
  setup    set up and stop there
"""
_EPILOG = """\
Exit codes: 0 all well, 1 something failed, 2 an argument was refused, 130 interrupted.
HARP_PYTHON names an interpreter to use in place of .venv."""


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
        type=values.profile,
        default="mini",
        metavar="NAME",
        help=f"{', '.join(values.known_profiles())} (default: mini)",
    )
    run = parser.add_argument_group("options of run")
    run.add_argument("--only", type=values.numbers, metavar="03,05", help="run these notebooks")
    run.add_argument(
        "--models", type=values.models, metavar="A,B", help="models, folders or hub ids, where a notebook can"
    )
    run.add_argument(
        "--datasets", type=values.datasets, metavar="FROM", help="embedded, hub, or a folder of benchmarks"
    )
    run.add_argument("--limit", type=values.limit, metavar="N", help="ask only the first N questions of each task")
    run.add_argument("--force", action="store_true", help="compute results again that are already stored")
    run.add_argument("--jobs", type=values.jobs, metavar="N", help="jobs at once (default: 1; on a cluster, many)")
    run.add_argument("--executor", type=values.executor, metavar="NAME", help="local (default), or slurm: on a cluster")
    run.add_argument("--dry-run", action="store_true", help="show what would run, why, and what it should take")
    run.add_argument(
        "-p",
        dest="parameters",
        type=values.assignment,
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
        parser.error(str(values.refusal("command", options.command, COMMANDS)))
    given = [flag for flag, name in _OF_RUN.items() if getattr(options, name)]
    if options.command == "test":
        parser.error("'test' goes first; what follows goes to pytest: ./run_all.sh test -k plan")
    if options.command != "run" and given:
        parser.error(f"{given[0]} goes with 'run', not with {options.command!r}")
    return options


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
        os.environ.setdefault("OMP_NUM_THREADS", "1")  # of each process, as they share the cores
        side_by_side = ["--numprocesses=logical", "--maxprocesses=4", "--dist=loadfile", "--no-loadscope-reorder"]
        os.execv(sys.executable, [sys.executable, "-m", "pytest", *side_by_side, *options.pytest])
    if options.command == "run":
        return _run(options)
    try:
        return (_figures if options.command == "figures" else _book)(options.profile)
    except FileNotFoundError as error:
        print(error, file=sys.stderr)
        return 1


def _figures(profile: str) -> int:
    from harp_lib import figures

    written = figures.redraw(profile)
    for path in written:
        print(os.path.relpath(path, paths.ROOT))
    print(f"{len(written)} files written")
    return 0


def _book(profile: str) -> int:
    from harp_lib import book

    print(f"open it in a browser: {os.path.relpath(book.build(profile), paths.ROOT)}")
    return 0


def _run(options: argparse.Namespace) -> int:
    from harp_lib import runner

    given: dict[str, Any] = {name: getattr(options, name) for name in values.SHARED}
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
        from harp_lib.measure.benchmarks import MissingTaskError, RowError, check_rows
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
