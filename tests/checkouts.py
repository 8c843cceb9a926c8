"""Checkouts to run things in, without results of their own, and what two of them should have in common."""

import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import psutil

from harp_lib import paths
from harp_lib.tables import TIMED

PROCESSES = {"runner": "harp_lib.cli", "engine": "snakemake", "kernel": "ipykernel_launcher", "job": "harp_lib.job"}
LEFTOVERS = ("*.tmp", "*.partial", ".*.lock", ".run-*")
MEASURED = {"seconds", "peak_bytes", "time", "device", "versions"}  # of a cell: what two runs need not share


class Checkout:
    """A checkout without results: the notebooks and data of this one.

    Parameters
    ----------
    root : Path
        Its folder.
    options : sequence of str
        Of ``run``, beside the profile.
    """

    def __init__(self, root: Path, options: Sequence[str] = ()) -> None:
        self.root, self.options = root, options
        self.results = root / "data" / "results" / "smoke"
        self.log = root.with_name(f"{root.name}.txt")  # of all that its runs show
        self.command = [sys.executable, "-P", "-m", "harp_lib.cli", "run", "--profile", "smoke", *options]
        (root / "data").mkdir(parents=True, exist_ok=True)
        (root / "notebooks").mkdir(exist_ok=True)
        shared = [paths.DATA / folder for folder in ("configs", "costs", "mini", "paper", "profiles")]
        for source in [*shared, *paths.NOTEBOOKS.glob("[0-9][0-9]_*.ipynb")]:
            if not (link := root / source.relative_to(paths.ROOT)).exists():
                link.symlink_to(source)

    def start(self) -> subprocess.Popen:
        """The command, which goes on while we watch."""
        environment = {"HARP_ROOT": str(self.root), "OMP_NUM_THREADS": "1", "JUPYTER_PREFER_ENV_PATH": "1"}
        environment |= {"TOKENIZERS_PARALLELISM": "false", "PYTHONPATH": str(Path(__file__).resolve().parents[1])}
        with self.log.open("a") as log:
            return subprocess.Popen(self.command, stdout=log, stderr=log, env=os.environ | environment)

    def run(self) -> tuple[int, str]:
        """The command from beginning to end: its exit code, and what it showed."""
        before = self.log.stat().st_size if self.log.is_file() else 0
        code = self.start().wait()
        return code, self.log.read_bytes()[before:].decode()

    def files(self) -> list[Path]:
        """The finished cells."""
        return [file for file in self.results.glob("[!.]*/*/*/*.json") if not file.name.startswith(".")]

    def cells(self) -> dict[str, tuple[str, int]]:
        """What each finished cell holds, and when it was written."""
        found = {}
        for file in self.files():
            digest = hashlib.sha256(file.read_bytes()).hexdigest()
            found[str(file.relative_to(self.results))] = digest, file.stat().st_mtime_ns
        return found

    def outcome(self) -> dict[str, bytes | str]:
        """Tables and results, but for what was measured with a clock."""
        tables = (self.root / "figures" / "smoke" / "tables").glob("*.*")
        found: dict[str, bytes | str] = {file.name: file.read_bytes() for file in tables if file.stem not in TIMED}
        for file in self.files():
            cell = _untimed(json.loads(file.read_text(encoding="utf-8")))
            found[str(file.relative_to(self.results))] = json.dumps(cell, sort_keys=True)
        return found

    def processes(self, of: str = "") -> list[psutil.Process]:
        """Those that work for this checkout, or of them those with something in their command line."""
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                ours = process.environ().get("HARP_ROOT") == str(self.root) and process.cmdline()[0] == sys.executable
                if ours and process.status() != psutil.STATUS_ZOMBIE and any(of in part for part in process.cmdline()):
                    found.append(process)
        return found

    def leftovers(self) -> list[str]:
        """What a run that ended well should not leave behind: files and processes."""
        for _ in range(50):
            if not self.processes():
                break
            time.sleep(0.1)
        files = [file for what in LEFTOVERS for file in self.results.parent.rglob(what)]
        return [str(file.relative_to(self.root)) for file in files] + [title(process) for process in self.processes()]


def _untimed(value):
    if isinstance(value, dict):
        return {key: _untimed(item) for key, item in value.items() if key not in MEASURED}
    return [_untimed(item) for item in value] if isinstance(value, list) else value


def title(process: psutil.Process) -> str:
    """What a process of a run does."""
    with suppress(psutil.Error):
        command = process.cmdline()
        kind = next((kind for kind, part in PROCESSES.items() if any(part in word for word in command)), "process")
        return f"{kind} {command[-1]}" if kind == "job" else kind
    return "process"


def judge(work: Checkout, undisturbed: Checkout, code: int, known: dict[str, tuple[str, int]]) -> list[str]:
    """What is wrong with a run that came to its end.

    Parameters
    ----------
    work, undisturbed : Checkout
        The one to be judged, and one that nothing happened to.
    code : int
        Of the last run.
    known : dict
        The cells that were finished before, which should be the same files still.
    """
    faults = [f"exit code {code}"] if code else []
    faults += [f"{name} differs" for name in differences(work, undisturbed)]
    return faults + rewritten(work, known) + [f"left behind: {name}" for name in work.leftovers()]


def differences(one: Checkout, other: Checkout) -> list[str]:
    """Tables and results that two checkouts have not in common, but for what was measured with a clock."""
    mine, theirs = one.outcome(), other.outcome()
    return [name for name in sorted(mine.keys() | theirs) if mine.get(name) != theirs.get(name)]


def rewritten(work: Checkout, known: dict[str, tuple[str, int]]) -> list[str]:
    """Cells that were finished and are not the same files any more."""
    now = work.cells()
    return [f"{name} was computed again" for name in sorted(known) if now.get(name) != known[name]]
