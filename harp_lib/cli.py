"""The command line behind ``run_all.sh``.

The standard library only at import, because this module also runs before set-up.
"""

import argparse
import getpass
import locale
import os
import pwd
import re
import runpy
import site
import sys
from collections.abc import Callable
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any, NoReturn

from harp_lib import config, streams
from harp_lib.config import CHECKOUT

COMMANDS = {
    "run": "run the notebooks (default); outputs go to notebooks/executed/<profile>",
    "lab": "open the notebooks in JupyterLab; what follows goes to it: "
    "./run_all.sh lab --no-browser",
    "fetch": "bring models and data sets of a profile from the hub, for a run without a network",
    "figures": "draw every figure and table from stored results: no model, two minutes; what is in "
    "notebooks/executed stays",
    "book": "make an HTML book of front page, docs, executed notebooks and API, for any static "
    "host",
    "test": "run the tests side by side; what follows goes to pytest: ./run_all.sh test -k plan",
    "setup": "set up and stop there",
}
DEFAULT_PROFILES = {"run": "mini", "fetch": "paper", "figures": "mini", "book": "small"}
PASSED_ON = ("test", "lab")
"""Commands whose arguments go to another program."""
OF_THE_USER = (
    "BASH_ENV",
    "IPYTHON",
    "JUPYTER_PATH",
    "MATPLOTLIBRC",
    "MPLBACKEND",
    "PANDAS_",
    "PYTHON",
)
"""How environment variables begin that set up other programs of the user."""
HELP_SHOWN = 3
PROFILE_OF_PAGES = "small"
"""The profile whose marks stand on the front page and in ``docs/claims.md``."""

DESCRIPTION = """\
Reproduces the paper: sets itself up, then does what COMMAND says. Options without a command are
those of run."""
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
    first = arguments[0] if arguments else ""
    if first in PASSED_ON:
        return argparse.Namespace(command=first, rest=arguments[1:])
    if not arguments or (first.startswith("-") and first not in ("-h", "--help")):
        arguments = ["run", *arguments]
    parser = _parser()
    options, unknown = parser.parse_known_args(arguments)
    if unknown:
        parser.error(
            f"{options.command!r} takes no {unknown[0]!r}; a command goes first, and --help shows "
            "its options"
        )
    return options


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="run_all.sh",
        usage="run_all.sh [COMMAND] [OPTIONS]",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    subparsers = parser.add_subparsers(
        title="commands", dest="command", metavar="COMMAND", prog="run_all.sh"
    )
    commands = {}
    for name, description in COMMANDS.items():
        commands[name] = subparsers.add_parser(name, help=description, allow_abbrev=False)
    profiles = sorted(path.stem for path in config.PROFILES.glob("*.yaml"))
    for name, default in DEFAULT_PROFILES.items():
        commands[name].add_argument(
            "--profile",
            choices=profiles,
            default=default,
            metavar="NAME",
            help=f"{', '.join(profiles)} (default: {default})",
        )
    for name in ("run", "fetch"):
        _add_sources(commands[name])
    commands["fetch"].add_argument(
        "--rehearse",
        action="store_true",
        help="from the rehearsal's own hub, for a rehearsal without a network",
    )
    _add_options_of_run(commands["run"])
    parser.epilog = f"{commands['run'].format_help()}\n{EPILOG}"
    return parser


def _add_sources(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--models",
        type=_checked(_models),
        metavar="A,B",
        help="models, folders or hub ids, where a notebook can",
    )
    command.add_argument(
        "--datasets",
        type=_checked(config.data_source),
        metavar="FROM",
        help="embedded, hub, or a folder of benchmarks",
    )


def _add_options_of_run(run: argparse.ArgumentParser) -> None:
    run.add_argument(
        "--only", type=_checked(_notebooks), metavar="03,05", help="run these notebooks"
    )
    run.add_argument(
        "--limit",
        type=_checked(_number),
        metavar="N",
        help="ask only the first N questions of each task",
    )
    run.add_argument(
        "--seed",
        type=_checked(partial(_number, least=0)),
        metavar="N",
        help="seed of everything that is drawn, such as calibration samples (default: 0)",
    )
    run.add_argument(
        "--force",
        action="store_true",
        help="compute the stored results of these notebooks again",
    )
    run.add_argument(
        "--jobs",
        type=_checked(_number),
        metavar="N",
        help="jobs at once (default: 1; on a cluster, many)",
    )
    run.add_argument(
        "--executor",
        choices=("local", "slurm"),
        default="local",
        metavar="NAME",
        help="local (default), or slurm: on a cluster",
    )
    run.add_argument("--dry-run", action="store_true", help="show what would run, and why")
    instead = run.add_mutually_exclusive_group()
    instead.add_argument(
        "--rehearse",
        action="store_true",
        help="before a run on GPUs: the same in the folder rehearsal, with tiny random models and "
        "made-up rows in place of the hub's",
    )
    instead.add_argument(
        "--trial",
        action="store_true",
        help="after that: a few rows, documents and ranges of one model of the hub, in the folder "
        "trial",
    )


def _checked(check: Callable[[str], Any]) -> Callable[[str], Any]:
    """``check`` as a type for argparse, which shows the message of its ValueError."""

    def convert(value: str) -> Any:
        try:
            return check(value)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return convert


def _notebooks(value: str) -> list[str]:
    known = sorted({path.name[:2] for path in config.NOTEBOOKS.glob("[0-9][0-9]_*.ipynb")})
    chosen = {item.strip().zfill(2) for item in value.split(",")}
    unknown = chosen - set(known)
    if unknown:
        raise ValueError(f"unknown notebook {min(unknown)!r}; choose from {', '.join(known)}")
    return sorted(chosen)


def _models(value: str) -> list[str]:
    models = [config.model_name(name.strip()) for name in value.split(",")]
    return list(dict.fromkeys(models))  # each once


def _number(value: str, least: int = 1) -> int:
    if not value.isdecimal() or int(value) < least:
        raise ValueError(f"a whole number, {least} or more, not {value!r}")
    return int(value)


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
    if options.command not in PASSED_ON:
        set_environment()
    _name_the_user()
    return _do(options, arguments)


def _do(options: argparse.Namespace, arguments: list[str]) -> int:
    """Do what a command says and return the exit code; some become another program."""
    match options.command:
        case "run":
            return _run(options, arguments)
        case "fetch":
            return _fetch(options, arguments)
        case "figures":
            return _draw_figures(options.profile)
        case "setup":
            print(f"ready: {sys.executable}")
            return 0
        # The others become another program, whose exit code counts.
        case "book":
            _become_sphinx(options.profile)
        case "lab":
            _become("jupyterlab", f"--ServerApp.root_dir={config.NOTEBOOKS}", *options.rest)
        case "test":
            _become_pytest(options.rest)


def _run(options: argparse.Namespace, arguments: list[str]) -> int:
    if options.rehearse or options.trial:
        return _start_elsewhere(options, arguments)
    from harp_lib import batch

    return batch.run(options)


def _fetch(options: argparse.Namespace, arguments: list[str]) -> int:
    if options.rehearse:
        return _start_elsewhere(options, arguments)
    from harp_lib import hub

    return hub.fetch_command(options)


def set_environment() -> None:
    """Drop what the user's shell sets for other programs, because it would reach what is published.

    It holds for this process and those that it starts. Of PYTHONPATH the checkout alone is left.
    """
    for folder in os.environ.get("PYTHONPATH", "").split(os.pathsep):
        path = os.path.abspath(folder)
        if path in sys.path and path not in (str(CHECKOUT), *site.getsitepackages()):
            sys.path.remove(path)
    for name in list(os.environ):
        # The terminal has the encoding that it has here.
        if name.startswith(OF_THE_USER) and name != "PYTHONIOENCODING":
            del os.environ[name]
    os.environ["PYTHONPATH"] = str(CHECKOUT)
    os.environ["PYTHONUTF8"] = "1"  # files are read alike in any locale


def _check(arguments: list[str]) -> int:
    try:
        parse(arguments)
    except SystemExit as stop:
        return stop.code or HELP_SHOWN
    return 0


def _start_elsewhere(options: argparse.Namespace, arguments: list[str]) -> int:
    """Start the same command as a rehearsal or a trial, which has a folder of its own."""
    sys.path.insert(0, str(CHECKOUT / "tests"))  # of this process alone
    from rehearse import start

    arguments = [word for word in arguments if word not in ("--rehearse", "--trial")]
    if options.rehearse:
        return start.rehearse(options, arguments)
    return start.try_out(options, arguments)


def _name_the_user() -> None:
    """Give a user who has none, as in containers and on batch nodes, a home and a name.

    Snakemake asks for both, and does without a home that is only missing or read-only.
    """
    try:
        home = pwd.getpwuid(os.getuid()).pw_dir
    except KeyError:
        home = str(config.RESULTS / ".home")
    if not os.path.isabs(os.environ.get("HOME", "")):
        os.environ["HOME"] = home
    try:
        getpass.getuser()
    except (KeyError, OSError):
        os.environ["LOGNAME"] = str(os.getuid())


def _draw_figures(profile: str) -> int:
    """Execute the notebooks without the cells that load a model, and write what pages show."""
    from harp_lib import notebooks

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
        runpy.run_path(str(CHECKOUT / "docs" / "write_pages.py"), run_name="__main__")
        print("docs/claims.md and the marks in README.md written")
    return code


def _become_pytest(arguments: list[str]) -> NoReturn:
    os.chdir(CHECKOUT)
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # of each process, as they share the cores
    workers = ["--numprocesses=logical", "--maxprocesses=4"]
    order = ["--dist=loadfile", "--no-loadscope-reorder"]
    _become("pytest", *workers, *order, *arguments)


def _become_sphinx(profile: str) -> NoReturn:
    os.environ["HARP_BOOK"] = profile
    configuration = CHECKOUT / "notebooks" / "book"
    book = config.ROOT / "book"
    folders = ["-c", configuration, "-d", book / f".{profile}", config.ROOT, book / profile]
    _become("sphinx", "-q", "-E", *folders)


def _become(module: str, *arguments: str | Path) -> NoReturn:
    """Go on as ``python -m module`` in place of this process."""
    os.execv(sys.executable, [sys.executable, "-P", "-m", module, *arguments])


if __name__ == "__main__":
    streams.make_steady()
    if locale.getpreferredencoding(False).lower() != "utf-8":  # as files and their names are
        os.environ["PYTHONUTF8"] = "1"
        _become("harp_lib.cli", *sys.argv[1:])
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
