"""Runs the notebooks and the jobs before them as one graph, and says at the end how each one fared."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tabulate import tabulate

from harp_lib import paths
from harp_lib.graph import Job, build
from harp_lib.locks import exclusive
from harp_lib.notebooks import RefusedError, parameters_of, select
from harp_lib.profiles import load_profile
from harp_lib.results import write_json

CHECKOUT = Path(__file__).resolve().parents[1]
LOCAL, SLURM = "local", "slurm"
_OPTIONS = ("models", "datasets", "limit", "seed")  # that cells depend on
_NO_SPACE = 2**20  # bytes; less is a full disk


class Run:
    """One call of ``run_all.sh run``.

    Parameters
    ----------
    profile : str
        Passed to every notebook.
    only : sequence of str, optional
        Numbers of the notebooks to run, with two digits; all of them when not given.
    shared : mapping, optional
        Parameters that go to the notebooks that have them; at least one must.
    explicit : mapping, optional
        Parameters that every notebook must have.
    at_once : int, optional
        Jobs at once: here 1 if not given, on a cluster as many as its file says.
    executor : str
        ``local``, or ``slurm``: then ``data/slurm/config.yaml`` says what each job may use.

    Raises
    ------
    RefusedError
        Before anything runs, if there is no notebook, or one has not the parameters it should have.
    """

    def __init__(
        self,
        profile: str,
        only: Sequence[str] | None = None,
        shared: Mapping[str, Any] | None = None,
        explicit: Mapping[str, Any] | None = None,
        *,
        at_once: int | None = None,
        executor: str = LOCAL,
    ) -> None:
        self.given = {**(shared or {}), **(explicit or {})}
        sources = select(paths.NOTEBOOKS, only)
        if not sources:
            raise RefusedError(f"no notebook to run: there is no notebooks/NN_*.ipynb{_numbered(only)}")
        self.parameters = parameters_of(sources, {"profile": profile}, shared or {}, explicit or {})
        self.profile = load_profile(profile, *(self.given.get(name) for name in ("models", "datasets", "limit")))
        self.whole, self.at_once, self.here = not only, at_once, executor == LOCAL
        self.live = self.here and at_once in (None, 1)  # one job at a time shows itself what it does
        self.threads = int(os.environ.get("OMP_NUM_THREADS") or max(1, _cores() // (at_once or 1)))
        self.results = paths.RESULTS / profile
        self.options = {name: self.given.get(name) for name in _OPTIONS}

    def jobs(self) -> dict[str, Job]:
        """The jobs of the run, as things stand."""
        file = self.results / ".options.json"
        before = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else self.options
        changed = ", ".join(name for name in _OPTIONS if before.get(name) != self.options[name])
        return build(
            self.profile,
            self.parameters,
            at_once=(self.at_once or 1) if self.here else None,
            figures=self.whole,
            outdated=f"other {changed} than last time" if changed else "",
            force=bool(self.given.get("force")),
        )

    def __call__(self) -> int:
        """Run everything, one job after the other or side by side, also when one of them fails.

        Returns
        -------
        int
            Exit code: 0, 1 if a job failed, 130 if the user interrupted.
        """
        self.results.mkdir(parents=True, exist_ok=True)
        waiting = "another run of this checkout is at work: waiting for it"
        with exclusive(paths.RESULTS / ".run.lock", waiting):
            for left in self.results.glob(".run-*"):  # of a run that was killed
                shutil.rmtree(left, ignore_errors=True)
            folder = self.results / f".run-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
            folder.mkdir()
            jobs = self.jobs()
            write_json(folder / "run.json", self._configuration(jobs))
            write_json(self.results / ".options.json", self.options)
            interrupted = self._schedule(folder, list(jobs))
            outcomes = {name: _outcome(folder, name, interrupted) for name in jobs}
            _report(outcomes)
            _explain(folder, outcomes, interrupted)
            if all(outcome["result"] == "done" for outcome in outcomes.values()):
                shutil.rmtree(folder)
                return 0
            return 130 if interrupted else 1

    def _configuration(self, jobs: Mapping[str, Job]) -> dict[str, Any]:
        """What Snakefile and jobs read."""
        return {
            "profile": self.profile,
            "seed": self.given.get("seed", 0),
            "threads": self.threads,
            "cores": self.threads * (self.at_once or 1),
            "live": self.live,
            "runner": os.getpid() if self.here else None,
            "jobs": {name: asdict(job) for name, job in jobs.items()},
        }

    def _command(self, folder: Path) -> list[str]:
        command = [sys.executable, "-P", "-m", "snakemake", "--snakefile", str(CHECKOUT / "Snakefile")]
        command += ["--directory", str(folder), "--configfile", str(folder / "run.json")]
        command += ["--keep-going", "--nolock", "--rerun-incomplete", "--scheduler", "greedy"]
        if self.here:
            return [*command, "--cores", str(self.threads * (self.at_once or 1))]
        command += ["--executor", SLURM, "--workflow-profile", str(paths.DATA / "slurm")]
        command += ["--slurm-logdir", str(folder / "slurm_logs")]
        return command + (["--jobs", str(self.at_once)] if self.at_once else [])

    def _schedule(self, folder: Path, names: Sequence[str]) -> bool:
        """Let the engine run the jobs, and show those that are done where they do not show themselves."""
        shown: set[str] = set()
        with (folder / "snakemake.log").open("w") as log, _interruptible():
            # A session of its own, so that Ctrl-C reaches the jobs once, and by our hand.
            engine = subprocess.Popen(
                self._command(folder), stdin=subprocess.DEVNULL, stderr=log, start_new_session=True
            )
            interrupted = False
            while engine.poll() is None:
                try:
                    time.sleep(0.2)
                    if not self.live:
                        _show_new(folder, names, shown)
                except KeyboardInterrupt:
                    if not interrupted:
                        print("\ninterrupted: ending what is under way", flush=True)
                    os.killpg(engine.pid, signal.SIGKILL if interrupted else signal.SIGINT)
                    interrupted = True
            if not self.live:
                _show_new(folder, names, shown)
        return interrupted


def _numbered(only: Sequence[str] | None) -> str:
    return f" numbered {', '.join(only)}" if only else ""


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def _interruptible() -> Iterator[None]:
    """Take a request to terminate, as a batch system sends it, for Ctrl-C."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _show_new(folder: Path, names: Sequence[str], shown: set[str]) -> None:
    for name in names:
        if name not in shown and (folder / f"{name}.json").is_file():
            shown.add(name)
            outcome = _outcome(folder, name, interrupted=False)
            print(f"[{len(shown)}/{len(names)}] {name}: {outcome['result']}, {outcome['seconds']:.0f} s", flush=True)


def _outcome(folder: Path, name: str, interrupted: bool) -> dict[str, Any]:
    """How a job fared, also if it could not say so."""
    try:
        return json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        pass
    if not (folder / f"{name}.begun").is_file():
        return {"result": "not run", "error": ""}
    if interrupted:
        return {"result": "interrupted", "error": ""}
    if shutil.disk_usage(folder).free < _NO_SPACE:
        return {"result": "failed", "error": f"no space left on the disk of {folder.parent}"}
    if state := _slurm_state(folder, name):
        return {"result": "failed", "error": f"Slurm ended it: {state}; data/slurm/config.yaml says what it may use"}
    return {"result": "failed", "error": "its process was killed: as a rule the machine ran out of memory"}


def _slurm_state(folder: Path, name: str) -> str:
    """In which state its job of Slurm ended that could not say so itself; empty if that is not known."""
    number = (folder / f"{name}.begun").read_text()
    told = (folder / "snakemake.log").read_text(errors="replace")
    found = re.search(rf"SLURM-job '{number}' failed, SLURM status is: '(\w+)'", told)
    return found[1] if found else ""


def _report(outcomes: Mapping[str, Mapping[str, Any]]) -> None:
    rows = [
        [
            name.removeprefix("notebook/").removeprefix("last/"),
            outcome["result"],
            f"{outcome['seconds']:.0f}" if "seconds" in outcome else "",
            _counted(outcome),
            outcome.get("output", ""),
        ]
        for name, outcome in outcomes.items()
    ]
    headers = ["job", "outcome", "seconds", "cells", "output"]
    align = ("left", "left", "right", "left", "left")
    print(f"\n{tabulate(rows, headers, disable_numparse=True, colalign=align)}")


def _counted(outcome: Mapping[str, Any]) -> str:
    counts = [f"{outcome[what]} {what}" for what in ("computed", "read", "failed") if outcome.get(what)]
    return ", ".join(counts)


def _explain(folder: Path, outcomes: Mapping[str, Mapping[str, Any]], interrupted: bool) -> None:
    """Why not all is done, and what to do."""
    for name, outcome in outcomes.items():
        if outcome["error"]:
            print(f"{name}: {outcome['error']}")
    left = [name for name, outcome in outcomes.items() if outcome["result"] != "done"]
    if left and not interrupted and not any(outcomes[name]["error"] for name in left):
        print("the batch engine stopped:")
        print("\n".join((folder / "snakemake.log").read_text(errors="replace").splitlines()[-20:]))
    if left:
        print(f"the same command continues; logs, until then: {os.path.relpath(folder, paths.ROOT)}")
    sys.stdout.flush()
