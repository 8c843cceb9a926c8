"""Runs the notebooks and the jobs before them as one graph, and says at the end how each one fared."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil

from harp_lib import batch_report as report
from harp_lib import paths
from harp_lib.expected_cells import NOTEBOOK_OF
from harp_lib.graph import Job, build
from harp_lib.locks import exclusive
from harp_lib.measure.workers import devices_for
from harp_lib.notebooks import RefusedError, parameters_of, select
from harp_lib.profiles import load_profile
from harp_lib.results import digest, write_json

CHECKOUT = Path(__file__).resolve().parents[1]
LOCAL, SLURM = "local", "slurm"
GPUS = "gpus"  # in a profile: as many processes as there are
_OPTIONS_FILE = ".options.json"


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
        self.threads = _threads() or max(1, _cores() // (at_once or 1))
        self.results = paths.RESULTS / profile
        self.seed = self.given.get("seed", 0)
        if type(self.seed) is not int:
            raise RefusedError(f"seed is a whole number, not {self.seed!r}")
        if self.here and (at_once or 1) > 1 and len(self._gpus()) > 1:
            raise RefusedError(
                f"--jobs {at_once}: one job at a time uses all {len(self._gpus())} GPUs; leave --jobs out"
            )
        self.experiments = [
            name for name, number in NOTEBOOK_OF.items() if any(s.name.startswith(number) for s in sources)
        ]
        kept = {key: value for key, value in self.profile.items() if key != "models"}  # cells are of one model each
        self.options = digest(kept | {"seed": self.seed})

    def _gpus(self) -> list[str | None]:
        """The GPUs among which a job divides its cells."""
        sections = [self.profile[section]["workers"] for section in ("evaluation", "longbench")]
        return devices_for(GPUS) if GPUS in sections else []

    def jobs(self) -> dict[str, Job]:
        """The jobs of the run, as things stand."""
        outdated = {
            name: "stored with other options" for name, of in self._stored_options().items() if of != self.options
        }
        if self.given.get("force"):
            outdated |= dict.fromkeys(self.experiments, "computed again by force")
        at_once = (self.at_once or 1) if self.here else None
        return build(self.profile, self.parameters, at_once=at_once, figures=self.whole, outdated=outdated)

    def _stored_options(self) -> dict[str, str]:
        """Digests of profile and options that each experiment was last run through with."""
        try:
            return json.loads((self.results / _OPTIONS_FILE).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}

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
                _end_engine(left)
                shutil.rmtree(left, ignore_errors=True)
            folder = self.results / f".run-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
            folder.mkdir()
            jobs = self.jobs()
            write_json(folder / "run.json", self._configuration(jobs))
            names, shown = list(jobs), set()
            interrupted, ended = self._schedule(folder, names, shown)
            while ended and not interrupted and _bury(folder, names):
                interrupted, ended = self._schedule(folder, names, shown)
            outcomes = {name: report.read_outcome(folder, name, interrupted) for name in jobs}
            self._keep_options(outcomes)
            report.show_table(outcomes)
            report.explain(folder, outcomes, interrupted)
            if all(outcome["result"] == "done" for outcome in outcomes.values()):
                shutil.rmtree(folder)
                return 0
            return 130 if interrupted else 1

    def _keep_options(self, outcomes: Mapping[str, Mapping[str, Any]]) -> None:
        """Remember with which options the experiments of the notebooks that are done were run through."""
        done = {name.partition("/")[2][:2] for name, outcome in outcomes.items() if outcome["result"] == "done"}
        through = {name: self.options for name in self.experiments if NOTEBOOK_OF[name] in done}
        with suppress(OSError):  # on a full disk, what was stored says enough
            write_json(self.results / _OPTIONS_FILE, self._stored_options() | through)

    def _configuration(self, jobs: Mapping[str, Job]) -> dict[str, Any]:
        """What Snakefile and jobs read."""
        return {
            "profile": self.profile,
            "seed": self.seed,
            "began": datetime.now(UTC).isoformat(timespec="seconds"),
            "forced": self.experiments if self.given.get("force") else [],
            "threads": self.threads,
            "cores": self.threads * (self.at_once or 1),
            "asked_threads": _threads(),
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

    def _schedule(self, folder: Path, names: Sequence[str], shown: set[str]) -> tuple[bool, bool]:
        """Let the engine run the jobs, and show those that are done where they do not show themselves.

        Returns
        -------
        interrupted, ended : bool
            By the user; and whether the engine ended by itself, rather than by a signal.
        """
        with (folder / "snakemake.log").open("a") as log, _interruptible():
            # A session of its own, so that Ctrl-C reaches the jobs once, and by our hand.
            engine = subprocess.Popen(
                self._command(folder), stdin=subprocess.DEVNULL, stderr=log, start_new_session=True
            )
            with suppress(OSError):  # the disk is full
                (folder / "engine").write_text(f"{socket.gethostname()} {engine.pid}")
            interrupted = False
            try:
                while engine.poll() is None:
                    try:
                        time.sleep(0.2)
                        if not self.live:
                            report.show_new(folder, names, shown)
                    except KeyboardInterrupt:
                        if not interrupted:
                            print("\ninterrupted: ending what is under way", flush=True)
                        os.killpg(engine.pid, signal.SIGKILL if interrupted else signal.SIGINT)
                        interrupted = True
                if not self.live:
                    report.show_new(folder, names, shown)
            finally:
                if engine.poll() is None:  # we cannot go on: nobody reads what we print, for example
                    os.killpg(engine.pid, signal.SIGKILL)
        return interrupted, engine.returncode >= 0


def _bury(folder: Path, jobs: Sequence[str]) -> bool:
    """Say of jobs that died how they fared, so that those behind them get their turn; whether there are any."""
    begun = {name for name in jobs if (folder / f"{name}.begun").is_file()}
    dead = [name for name in begun if not (folder / f"{name}.json").is_file()]
    try:
        for name in dead:
            write_json(folder / f"{name}.json", report.read_outcome(folder, name, interrupted=False))
    except OSError:  # the disk is full
        return False
    shutil.rmtree(folder / ".snakemake" / "incomplete", ignore_errors=True)  # the engine would do them again
    return bool(dead) and len(begun) < len(jobs)


def _end_engine(folder: Path) -> None:
    """End the engine of a run that was killed, which on a cluster would submit its jobs beside ours."""
    with suppress(OSError, ValueError, psutil.Error):
        host, number = (folder / "engine").read_text().split()
        if host == socket.gethostname() and str(folder) in " ".join(psutil.Process(int(number)).cmdline()):
            os.killpg(int(number), signal.SIGKILL)


def _threads() -> int | None:
    """What ``OMP_NUM_THREADS`` asks for, on the outermost level."""
    first = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0]
    return int(first) if first.isdecimal() else None


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
