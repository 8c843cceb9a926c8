"""Reads the values of the command line's options; the standard library only, because it also runs before set-up."""

import argparse
import difflib
import keyword
import re
from collections.abc import Iterable
from pathlib import Path

from harp_lib import paths

EXECUTORS = ("local", "slurm")
SHARED = ("models", "datasets", "limit", "force")  # parameters of notebooks that have an option of their own
_SIZES = ("smoke", "mini", "paper")  # messages list profiles from small to large
_OWN_OPTION = {name: f"--{name}" for name in ("profile", *SHARED)}
_HUB_ID = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")


def known_profiles() -> list[str]:
    """Profiles in ``data/profiles``, from small to large."""
    names = sorted(path.stem for path in paths.PROFILES.glob("*.yaml"))
    return sorted(names, key=lambda name: _SIZES.index(name) if name in _SIZES else len(_SIZES))


def known_notebooks() -> list[str]:
    """Numbers of the notebooks, with two digits."""
    return sorted({path.name[:2] for path in paths.NOTEBOOKS.glob("[0-9][0-9]_*.ipynb")})


def known_models() -> tuple[str, ...]:
    """Models that the companion brings along."""
    from harp_lib.measure.model_names import MODEL_NAMES

    return MODEL_NAMES


def refusal(kind: str, value: str, choices: Iterable[str], otherwise: str = "") -> argparse.ArgumentTypeError:
    """Say that a value is unknown, and which there are."""
    choices = list(choices)
    near = difflib.get_close_matches(value, choices, n=1)
    listed = f"choose from {', '.join(choices)}" if choices else "there is none"
    hint = f" (did you mean {near[0]!r}?)" if near else ""
    return argparse.ArgumentTypeError(f"unknown {kind} {value!r}; {listed}{otherwise}{hint}")


def profile(value: str) -> str:
    """A profile of ``data/profiles``."""
    if value not in known_profiles():
        raise refusal("profile", value, known_profiles())
    return value


def _items(value: str) -> list[str]:
    items = [item.strip() for item in value.split(",")]
    if not all(items):
        raise argparse.ArgumentTypeError(f"empty item in {value!r}; separate items with one comma")
    return list(dict.fromkeys(items))


def numbers(value: str) -> list[str]:
    """Numbers of notebooks, with two digits."""
    numbers = [item.zfill(2) for item in _items(value)]
    for number in numbers:
        if number not in known_notebooks():
            raise refusal("notebook", number, known_notebooks())
    return list(dict.fromkeys(numbers))


def models(value: str) -> list[str]:
    """Models: names, folders or hub ids."""
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
    raise refusal("model", value, known_models(), ", a folder with a config.json, or a hub id owner/name")


def datasets(value: str) -> str:
    """``embedded``, ``hub`` or a folder."""
    if value in ("embedded", "hub"):
        return value
    folder = Path(value).expanduser()
    if not value or not folder.is_dir():
        raise refusal("datasets", value, ("embedded", "hub"), ", or a folder that exists")
    return str(folder.absolute())


def limit(value: str) -> int:
    """A number of questions."""
    if not value.isdecimal() or int(value) < 1:
        raise argparse.ArgumentTypeError(f"a number of questions, 1 or more, not {value!r}")
    return int(value)


def jobs(value: str) -> int:
    """A number of jobs."""
    if not value.isdecimal() or int(value) < 1:
        raise argparse.ArgumentTypeError(f"a number of jobs, 1 or more, not {value!r}")
    return int(value)


def executor(value: str) -> str:
    """Where jobs run."""
    if value not in EXECUTORS:
        raise refusal("executor", value, EXECUTORS)
    return value


def assignment(text: str) -> tuple[str, str]:
    """A parameter and its value, ``NAME=VALUE``."""
    name, equals, value = text.partition("=")
    if not equals or not name.isidentifier() or keyword.iskeyword(name):
        raise argparse.ArgumentTypeError(f"malformed parameter {text!r}; write NAME=VALUE, as in seed=1")
    if name in _OWN_OPTION:
        raise argparse.ArgumentTypeError(f"parameter {name!r} has an option of its own: {_OWN_OPTION[name]}")
    return name, value
