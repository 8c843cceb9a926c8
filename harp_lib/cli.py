"""The command line behind ``run_all.sh``; the standard library only at import, because it also runs
before set-up.
"""

import argparse
import os
import re
import sys
from importlib import metadata
from pathlib import Path

from harp_lib import config
from harp_lib.config import CHECKOUT, HUB_ID, NAMED_MODELS

COMMANDS = ("run", "lab", "figures", "book", "test", "setup")
PASSED_ON = {"test": "pytest", "lab": "JupyterLab"}
OWN_OPTION = (
    "profile",
    "models",
    "datasets",
    "limit",
    "force",
)  # parameters of notebooks that -p may not set
DESCRIPTION = """\
Reproduces the paper: sets itself up, then does what COMMAND says.

  run      run the notebooks (default); outputs go to notebooks/executed/<profile>
  lab      open the notebooks in JupyterLab; what follows goes to it: ./run_all.sh lab --no-browser
  figures  redraw every figure and table from stored results: no model, under a minute
  book     make an HTML book of the executed notebooks, to read without a network
  test     run the tests side by side; what follows goes to pytest: ./run_all.sh test -k plan
  setup    set up and stop there
"""
EPILOG = """\
Exit codes: 0 all well, 1 something failed, 2 an argument was refused, 130 interrupted.
HARP_PYTHON names an interpreter to use in place of .venv."""


def parse(arguments: list[str]) -> argparse.Namespace:
    """Read and judge the arguments; SystemExit as argparse's: code 2 for what is refused, 0 after
    ``--help``.
    """
    if arguments and arguments[0] in PASSED_ON:
        return argparse.Namespace(command=arguments[0], rest=arguments[1:])
    look = {"formatter_class": argparse.RawDescriptionHelpFormatter, "allow_abbrev": False}
    parser = argparse.ArgumentParser(
        prog="run_all.sh", description=DESCRIPTION, epilog=EPILOG, **look
    )
    profiles = sorted(path.stem for path in config.PROFILES.glob("*.yaml"))
    parser.set_defaults(rest=[])
    parser.add_argument("command", nargs="?", default="run", metavar="COMMAND")
    known = f"{', '.join(profiles)} (default: mini)"
    parser.add_argument("--profile", choices=profiles, default="mini", metavar="NAME", help=known)
    add = parser.add_argument_group("options of run").add_argument
    add("--only", type=_notebooks, metavar="03,05", help="run these notebooks")
    add(
        "--models",
        type=_models,
        metavar="A,B",
        help="models, folders or hub ids, where a notebook can",
    )
    add(
        "--datasets",
        type=_datasets,
        metavar="FROM",
        help="embedded, hub, or a folder of benchmarks",
    )
    add("--limit", type=_number, metavar="N", help="ask only the first N questions of each task")
    add("--force", action="store_true", help="compute the stored results of these notebooks again")
    add("--jobs", type=_number, metavar="N", help="jobs at once (default: 1; on a cluster, many)")
    where = "local (default), or slurm: on a cluster"
    add("--executor", choices=("local", "slurm"), default="local", metavar="NAME", help=where)
    add("--dry-run", action="store_true", help="show what would run, and why")
    other = "any other parameter of the notebooks; the value is read as YAML"
    add(
        "-p",
        dest="parameters",
        type=_assignment,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help=other,
    )
    options, unknown = parser.parse_known_args(arguments)
    if unknown:
        parser.error(f"unknown argument {unknown[0]!r}")
    if options.command not in COMMANDS:
        parser.error(f"unknown command {options.command!r}; choose from {', '.join(COMMANDS)}")
    if options.command in PASSED_ON:
        parser.error(
            f"{options.command!r} goes first; what follows goes to {PASSED_ON[options.command]}"
        )
    for name, value in vars(options).items() if options.command != "run" else ():
        if name not in ("command", "profile") and value != parser.get_default(name):
            parser.error(f"--{name} goes with 'run', not with {options.command!r}")
    return options


def _notebooks(value: str) -> list[str]:
    known = sorted({path.name[:2] for path in config.NOTEBOOKS.glob("[0-9][0-9]_*.ipynb")})
    asked = {item.strip().zfill(2) for item in value.split(",")}
    if unknown := asked - set(known):
        raise argparse.ArgumentTypeError(
            f"unknown notebook {min(unknown)!r}; choose from {', '.join(known)}"
        )
    return sorted(asked)


def _models(value: str) -> list[str]:
    found = []
    for model in map(str.strip, value.split(",")):
        folder = Path(model).expanduser()
        if model and (folder / "config.json").is_file():
            found.append(str(folder.absolute()))
        elif model in NAMED_MODELS or HUB_ID.fullmatch(model):
            found.append(model)
        else:
            known = (
                f"{', '.join(NAMED_MODELS)}, a folder with a config.json, or a hub id owner/name"
            )
            raise argparse.ArgumentTypeError(f"unknown model {model!r}; choose from {known}")
    return list(dict.fromkeys(found))


def _datasets(value: str) -> str:
    if value in ("embedded", "hub"):
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
    if name in OWN_OPTION:
        raise argparse.ArgumentTypeError(f"parameter {name!r} has an option of its own: --{name}")
    return name, value


def lacking() -> list[str]:
    """Packages of requirements.lock that this interpreter has not, in whatever version."""
    pins = re.findall(
        r"^([\w.-]+)==", (CHECKOUT / "requirements.lock").read_text(encoding="utf-8"), re.MULTILINE
    )
    return [pin for pin in pins if not any(metadata.distributions(name=pin))]


def main(arguments: list[str]) -> int:
    """Do what the arguments say and return the exit code.

    ``--check`` only judges the arguments that follow: 0 (go on), 2 (refused) or 3 (help was shown).
    ``--lacks`` prints which packages of requirements.lock this interpreter has not: 1 if there are
    any.
    """
    if arguments[:1] == ["--lacks"]:
        print(", ".join(lacks := lacking()))
        return int(bool(lacks))
    if arguments[:1] == ["--check"]:
        try:
            parse(arguments[1:])
        except SystemExit as stop:
            return stop.code or 3
        return 0
    options = parse(arguments)
    if options.command == "setup":
        print(f"ready: {sys.executable}")
        return 0
    if options.command == "run":
        from harp_lib import batch

        return batch.run(options)
    if options.command == "figures":
        from harp_lib import report

        try:
            written = report.redraw(config.load_profile(options.profile))
        except FileNotFoundError as error:
            sys.exit(str(error))
        print(
            *(os.path.relpath(file, config.ROOT) for file in written),
            f"{len(written)} files written",
            sep="\n",
        )
        return 0
    if options.command == "test":
        os.chdir(CHECKOUT)
        os.environ.setdefault("OMP_NUM_THREADS", "1")  # of each process, as they share the cores
        module = [
            "pytest",
            "--numprocesses=logical",
            "--maxprocesses=4",
            "--dist=loadfile",
            "--no-loadscope-reorder",
        ]
    elif options.command == "lab":
        module = ["jupyterlab", f"--ServerApp.root_dir={config.NOTEBOOKS}"]
    else:
        os.environ["HARP_BOOK"], book = options.profile, config.ROOT / "book"
        module = ["sphinx", "-q", "-E", "-c", CHECKOUT / "notebooks" / "book"]
        module += ["-d", book / f".{options.profile}", config.ROOT, book / options.profile]
    os.execv(sys.executable, [sys.executable, "-P", "-m", *module, *options.rest])


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
