"""The command line behind ``run_all.sh``.

The standard library only at import, because this module also runs before set-up.
"""

import argparse
import os
import re
import sys
from importlib import metadata
from pathlib import Path
from typing import NoReturn

from harp_lib import config
from harp_lib.config import CHECKOUT, HUB_ID, NAMED_DATASETS, NAMED_MODELS

COMMANDS = ("run", "lab", "figures", "book", "test", "setup")
PASSED_ON = {"test": "pytest", "lab": "JupyterLab"}
"""Commands whose arguments go to another program."""
HAVE_AN_OPTION = ("profile", "models", "datasets", "limit", "force")
"""Parameters of notebooks that ``-p`` may not set."""
HELP_SHOWN = 3
PROFILE_OF_PAGES = "small"
"""The profile whose marks stand on the front page and in ``docs/claims.md``."""

DESCRIPTION = """\
Reproduces the paper: sets itself up, then does what COMMAND says.

  run      run the notebooks (default); outputs go to notebooks/executed/<profile>
  lab      open the notebooks in JupyterLab; what follows goes to it: ./run_all.sh lab --no-browser
  figures  draw every figure and table from stored results: no model, two minutes; what is in
           notebooks/executed stays
  book     make an HTML book of front page, docs, executed notebooks and API, for any static host
  test     run the tests side by side; what follows goes to pytest: ./run_all.sh test -k plan
  setup    set up and stop there
"""
EPILOG = """\
Exit codes: 0 all well, 1 something failed, 2 an argument was refused, 130 interrupted.
HARP_PYTHON names an interpreter to use in place of .venv."""


def parse(arguments: list[str]) -> argparse.Namespace:
    """Read and check the arguments.

    Raises
    ------
    SystemExit
        As argparse does: with code 2 if an argument is refused, with 0 after ``--help``.
    """
    if arguments and arguments[0] in PASSED_ON:
        return argparse.Namespace(command=arguments[0], rest=arguments[1:])
    parser = _parser()
    options, unknown = parser.parse_known_args(arguments)
    command = options.command
    if unknown:
        parser.error(f"unknown argument {unknown[0]!r}")
    if command not in COMMANDS:
        parser.error(f"unknown command {command!r}; choose from {', '.join(COMMANDS)}")
    if command in PASSED_ON:
        parser.error(f"{command!r} goes first; what follows goes to {PASSED_ON[command]}")
    if command != "run":
        _refuse_options_of_run(parser, options)
    if options.profile is None:
        options.profile = "small" if command == "book" else "mini"
    return options


def _refuse_options_of_run(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Refuse what only goes with ``run``."""
    for name, value in vars(options).items():
        if name in ("command", "profile") or value == parser.get_default(name):
            continue
        option = "-p" if name == "parameters" else f"--{name.replace('_', '-')}"
        parser.error(f"{option} goes with 'run', not with {options.command!r}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="run_all.sh",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.set_defaults(rest=[])
    parser.add_argument("command", nargs="?", default="run", metavar="COMMAND")
    profiles = sorted(path.stem for path in config.PROFILES.glob("*.yaml"))
    parser.add_argument(
        "--profile",
        choices=profiles,
        metavar="NAME",
        help=f"{', '.join(profiles)} (default: mini; small for book)",
    )
    group = parser.add_argument_group("options of run")
    group.add_argument("--only", type=_notebooks, metavar="03,05", help="run these notebooks")
    group.add_argument(
        "--models",
        type=_models,
        metavar="A,B",
        help="models, folders or hub ids, where a notebook can",
    )
    group.add_argument(
        "--datasets",
        type=_datasets,
        metavar="FROM",
        help="embedded, hub, or a folder of benchmarks",
    )
    group.add_argument(
        "--limit",
        type=_number,
        metavar="N",
        help="ask only the first N questions of each task",
    )
    group.add_argument(
        "--force",
        action="store_true",
        help="compute the stored results of these notebooks again",
    )
    group.add_argument(
        "--jobs",
        type=_number,
        metavar="N",
        help="jobs at once (default: 1; on a cluster, many)",
    )
    group.add_argument(
        "--executor",
        choices=("local", "slurm"),
        default="local",
        metavar="NAME",
        help="local (default), or slurm: on a cluster",
    )
    group.add_argument("--dry-run", action="store_true", help="show what would run, and why")
    group.add_argument(
        "-p",
        dest="parameters",
        type=_assignment,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="any other parameter of the notebooks; the value is read as YAML",
    )
    return parser


def _notebooks(value: str) -> list[str]:
    known = sorted({path.name[:2] for path in config.NOTEBOOKS.glob("[0-9][0-9]_*.ipynb")})
    chosen = {item.strip().zfill(2) for item in value.split(",")}
    unknown = chosen - set(known)
    if unknown:
        raise argparse.ArgumentTypeError(
            f"unknown notebook {min(unknown)!r}; choose from {', '.join(known)}"
        )
    return sorted(chosen)


def _models(value: str) -> list[str]:
    models = []
    for name in value.split(","):
        model = _model(name.strip())
        if model not in models:
            models.append(model)
    return models


def _model(name: str) -> str:
    folder = Path(name).expanduser()
    if name and (folder / "config.json").is_file():
        return str(folder.absolute())
    if name in NAMED_MODELS or HUB_ID.fullmatch(name):
        return name
    named = ", ".join(NAMED_MODELS)
    raise argparse.ArgumentTypeError(
        f"unknown model {name!r}; choose from {named}, a folder with a config.json, "
        "or a hub id owner/name"
    )


def _datasets(value: str) -> str:
    if value in NAMED_DATASETS:
        return value
    folder = Path(value).expanduser()
    if not value or not folder.is_dir():
        raise argparse.ArgumentTypeError(
            f"unknown datasets {value!r}; choose from embedded, hub, or a folder"
        )
    return str(folder.absolute())


def _number(value: str) -> int:
    if not value.isdecimal() or int(value) < 1:
        raise argparse.ArgumentTypeError(f"a whole number, 1 or more, not {value!r}")
    return int(value)


def _assignment(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(
            f"malformed parameter {text!r}; write NAME=VALUE, as in seed=1"
        )
    if name in HAVE_AN_OPTION:
        raise argparse.ArgumentTypeError(f"parameter {name!r} has an option of its own: --{name}")
    return name, value


def missing_packages() -> list[str]:
    """Packages of requirements.lock that this interpreter lacks, whatever their version.

    Those that are not for every machine (MLX) may be lacking.
    """
    lock = (CHECKOUT / "requirements.lock").read_text(encoding="utf-8")
    packages = re.findall(r"^([\w.-]+)==[^;\s]+$", lock, re.MULTILINE)
    return [name for name in packages if not any(metadata.distributions(name=name))]


def main(arguments: list[str]) -> int:
    """Do what the arguments say and return the exit code.

    Before set-up, ``run_all.sh`` asks two questions. ``--check`` only checks the arguments that
    follow it: 0 (go on), 2 (refused) or 3 (help was shown). ``--lacks`` prints the packages of
    requirements.lock that this interpreter lacks, and returns 1 if there are any.
    """
    if arguments[:1] == ["--lacks"]:
        missing = missing_packages()
        print(", ".join(missing))
        return 1 if missing else 0
    if arguments[:1] == ["--check"]:
        return _check(arguments[1:])
    options = parse(arguments)
    if options.command == "setup":
        print(f"ready: {sys.executable}")
        return 0
    if options.command == "run":
        from harp_lib import batch

        return batch.run(options)
    if options.command == "figures":
        return _draw_figures(options.profile)
    if options.command == "test":
        _run_tests(options.rest)
    if options.command == "lab":
        _become("jupyterlab", f"--ServerApp.root_dir={config.NOTEBOOKS}", *options.rest)
    _make_book(options.profile)


def _check(arguments: list[str]) -> int:
    try:
        parse(arguments)
    except SystemExit as stop:
        return stop.code or HELP_SHOWN
    return 0


def _draw_figures(profile: str) -> int:
    """Execute the notebooks without the cells that load a model, and write what pages show."""
    from harp_lib import notebooks
    from harp_lib.report import ledger

    if not any((folder / profile).is_dir() for folder in (config.RESULTS, config.REFERENCE)):
        sys.exit(f"nothing is stored for the profile {profile}: run its notebooks first")
    code = 0
    for name, failure in notebooks.draw_all(profile):
        outcome = "drawn"
        if failure:
            outcome = f"failed: {failure}"
            code = 1
        print(f"{name:20} {outcome}", flush=True)
    print(f"figures/{profile}")
    if profile == PROFILE_OF_PAGES and code == 0:
        ledger.write_pages()
        print("docs/claims.md and the marks in README.md written")
    return code


def _run_tests(arguments: list[str]) -> NoReturn:
    os.chdir(CHECKOUT)
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # of each process, as they share the cores
    workers = ["--numprocesses=logical", "--maxprocesses=4"]
    order = ["--dist=loadfile", "--no-loadscope-reorder"]
    _become("pytest", *workers, *order, *arguments)


def _make_book(profile: str) -> NoReturn:
    os.environ["HARP_BOOK"] = profile
    configuration = CHECKOUT / "notebooks" / "book"
    book = config.ROOT / "book"
    folders = ["-c", configuration, "-d", book / f".{profile}", config.ROOT, book / profile]
    _become("sphinx", "-q", "-E", *folders)


def _become(module: str, *arguments: str | Path) -> NoReturn:
    """Go on as ``python -m module`` in place of this process."""
    os.execv(sys.executable, [sys.executable, "-P", "-m", module, *arguments])


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
