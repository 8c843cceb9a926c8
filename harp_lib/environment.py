"""Finds or makes the Python environment of the checkout; the standard library only, because it runs before set-up.

``python -m harp_lib.environment`` prints the interpreter to use, and says on stderr what it does on the way.
"""

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

CHECKOUT = Path(__file__).resolve().parents[1]
DISTRIBUTION = "harp-companion"


class SetUpError(RuntimeError):
    """The environment cannot be used or made; the message says why and what to do."""


@dataclass(frozen=True)
class State:
    """What an interpreter has, beside what the lock pins."""

    missing: list[str]
    different: list[str]  # "numpy 2.3.0 (pinned: 2.4.6)"
    broken: list[str]  # unpacked only in part, by an install that was interrupted
    has_pip: bool
    has_checkout: bool  # harp_lib is installed, from this checkout

    @property
    def satisfies_lock(self) -> bool:
        return not (self.missing or self.different or self.broken)


def canonical(name: str) -> str:
    """Name of a distribution as PEP 503 normalizes it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def read_lock(path: Path) -> dict[str, str]:
    """Pinned version by canonical name."""
    pins = re.findall(r"^([\w.-]+)==([^\s;#]+)", path.read_text(encoding="utf-8"), re.MULTILINE)
    return {canonical(name): version for name, version in pins}


def compare(lock: Mapping[str, str], installed: Mapping[str, str]) -> tuple[list[str], list[str]]:
    """Compare what is installed with what is pinned.

    A local version suffix (``2.13.0+cpu``) satisfies a plain pin: it names a build, not another version.

    Returns
    -------
    missing, different : list of str
        Names that are not there; and ``name version (pinned: version)`` for those in another version.
    """
    missing = sorted(name for name in lock if name not in installed)
    different = [
        f"{name} {installed[name]} (pinned: {pin})"
        for name, pin in sorted(lock.items())
        if name in installed and pin not in (installed[name], installed[name].partition("+")[0])
    ]
    return missing, different


def state_here(root: Path) -> State:
    """State of the interpreter that runs this."""
    installed: dict[str, str] = {}
    broken = []
    for distribution in metadata.distributions():
        name = distribution.metadata["Name"]
        if name is None or canonical(name) in installed:  # the first on sys.path is the one that gets imported
            continue
        installed[canonical(name)] = distribution.version
        if distribution.read_text("METADATA") and not distribution.read_text("RECORD"):  # pip writes RECORD last
            broken.append(canonical(name))
    missing, different = compare(read_lock(root / "requirements.lock"), installed)
    return State(missing, different, broken, importlib.util.find_spec("pip") is not None, _has_checkout(root))


def _has_checkout(root: Path) -> bool:
    for distribution in metadata.distributions(name=DISTRIBUTION):
        origin = json.loads(distribution.read_text("direct_url.json") or "{}").get("url", "")
        if origin and Path(url2pathname(urlsplit(origin).path)).resolve() == root.resolve():
            return True
    return False


def state_of(python: Path, root: Path = CHECKOUT) -> State | None:
    """State of another interpreter; None when it does not run or is older than 3.11."""
    command = [python, "-P", __file__, "--state", root]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout
        return State(**json.loads(answer))
    except (OSError, subprocess.SubprocessError, ValueError):
        return None


def set_up(root: Path, environ: Mapping[str, str]) -> Path:
    """Interpreter that satisfies the lock: ``HARP_PYTHON``, the activated environment, or ``.venv``, made if need be.

    Raises
    ------
    SetUpError
        If ``HARP_PYTHON`` lacks packages, or ``.venv`` cannot be made.
    """
    if environ.get("HARP_PYTHON"):
        return _named_python(environ["HARP_PYTHON"], root)
    own = root / ".venv"
    notes = []
    for prefix in filter(None, map(environ.get, ("VIRTUAL_ENV", "CONDA_PREFIX"))):
        if Path(prefix).resolve() == own.resolve():
            continue
        python = Path(prefix) / "bin" / "python"
        state = state_of(python, root)
        if state and state.satisfies_lock:
            return python
        notes.append(f"the activated environment {prefix} does not hold what requirements.lock pins: using .venv")
    return _own_python(own, root, notes)


def _named_python(named: str, root: Path) -> Path:
    python = Path(shutil.which(named) or named).absolute()
    state = state_of(python, root)
    if state is None:
        raise SetUpError(f"HARP_PYTHON={named} is not a Python 3.11 or newer that runs")
    if state.missing:
        raise SetUpError(
            f"HARP_PYTHON={named} lacks {', '.join(state.missing)}; "
            "install requirements.lock there, or unset HARP_PYTHON to let run_all.sh make .venv"
        )
    if state.different:
        say(f"warning: HARP_PYTHON differs from requirements.lock: {', '.join(state.different)}")
    return python


def _own_python(own: Path, root: Path, notes: list[str]) -> Path:
    python = own / "bin" / "python"
    if _ready(state_of(python, root)):
        return python
    for note in notes:
        say(note)
    with _one_at_a_time(root / "requirements.lock"):
        state = state_of(python, root)  # another set-up may have been here while we waited
        if _ready(state):
            return python
        if state is None or state.broken or not state.has_pip:
            _make(own)
            state = state_of(python, root)
            if state is None:
                raise SetUpError(f"{python} does not run, though `python -m venv` made it")
        if not state.satisfies_lock:
            wanted = len(state.missing) + len(state.different)
            first = len(state.missing) > len(read_lock(root / "requirements.lock")) // 2
            say(f"installing {wanted} packages into .venv" + (", a few minutes the first time" if first else ""))
            _pip(python, "-r", str(root / "requirements.lock"))
        if not state.has_checkout:
            say("installing harp_lib into .venv, from this checkout")
            _pip(python, "--no-deps", "--no-build-isolation", "-e", str(root))
        if not _ready(state_of(python, root)):
            raise SetUpError(f"pip ended well, but .venv does not hold what requirements.lock pins; remove {own}")
    return python


def _ready(state: State | None) -> bool:
    return state is not None and state.satisfies_lock and state.has_checkout


def _make(own: Path) -> None:
    say(".venv is not usable: making it anew" if own.exists() else "making .venv")
    # Not sys.executable: that may be the very .venv that is cleared.
    python = getattr(sys, "_base_executable", None) or sys.executable
    _run([python, "-m", "venv", "--clear", str(own)], "making .venv failed")


def _pip(python: Path, *arguments: str) -> None:
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input"]
    _run([*pip, *arguments], "pip could not install what the checkout needs (run again to continue)")


def _run(command: list[str], failure: str) -> None:
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
    if done.returncode:
        raise SetUpError(f"{failure}:\n{done.stdout.strip()}")


@contextmanager
def _one_at_a_time(path: Path) -> Iterator[None]:
    """Hold a lock on a file that outlives ``.venv``; where the system has none, do without."""
    try:
        import fcntl
    except ImportError:
        yield
        return
    with path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("another set-up of this checkout is at work: waiting for it")
            fcntl.flock(file, fcntl.LOCK_EX)
        except OSError:  # a file system without locks
            pass
        yield


def say(text: str) -> None:
    """Tell the user; stdout is for the interpreter's path."""
    print(text, file=sys.stderr, flush=True)


def main(arguments: list[str]) -> int:
    """Set up and print the interpreter; ``--state ROOT`` prints this interpreter's state as JSON instead."""
    if arguments[:1] == ["--state"]:
        print(json.dumps(asdict(state_here(Path(arguments[1])))))
        return 0
    try:
        print(set_up(CHECKOUT, os.environ))
    except SetUpError as error:
        say(f"run_all.sh: {error}")
        return 1
    except KeyboardInterrupt:
        say("set-up interrupted; run again to continue")
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
