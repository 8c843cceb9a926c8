"""Runs the smoke profile through a real Slurm, and kills and interrupts some of it: ``python tests/slurm_smoke.py``.

Uses the Slurm that answers; otherwise, as root and with Debian's ``slurm-wlm`` and ``munge`` installed, sets one up on
one node for as long as it runs. ``data/slurm/config.yaml`` is used as it is. What it prints is kept in
``tests/slurm_smoke.log``: ``python tests/slurm_smoke.py | tee tests/slurm_smoke.log``. Exit code 0 if all went as it
should.
"""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import yaml
from slurm_node import answers, slurm_node, why_not
from tabulate import tabulate

ROOT = Path(__file__).resolve().parents[1]
WORK = ROOT / "data" / "results" / ".slurm_smoke"  # not in /tmp: the nodes of a cluster see the checkout
NOTEBOOK = "03"  # a short one, with a job before it
OVER = {"COMPLETED", "CANCELLED", "FAILED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY"}
FIELDS = {
    "Slurm job": "JobID",
    "rule and what": "Comment",
    "state": "State",
    "partition": "Partition",
    "cores": "NumCPUs",
    "memory": "MinMemory",
    "GPUs": "tres-per-job",
    "start": "StartTime",
    "end": "EndTime",
}
failures = []


@dataclass
class Outcome:
    """What a run left: exit code, what it printed, its jobs of Slurm by number, each a row of FIELDS."""

    code: int
    printed: str
    jobs: dict[str, dict[str, str]]

    def counted(self, what: str) -> int:
        """Cells that the final table counts in all."""
        return sum(int(number) for number in re.findall(rf"(\d+) {what}", self.printed))

    def states(self) -> list[str]:
        return sorted(job["state"] for job in self.jobs.values())


def say(text: str = "") -> None:
    """Print without what only this machine is called."""
    names = [
        (WORK, "<checkout>"),
        (ROOT, "<code>"),
        (Path(sys.prefix), "<environment>"),
        (socket.gethostname(), "<node>"),
    ]
    for name, shown in names:
        text = re.sub(rf"(?<![\w.-]){re.escape(str(name))}(?![\w-])", shown, text)
    print(text, flush=True)


def check(claim: str, holds: bool) -> None:
    """Say whether something holds, and remember if not."""
    say(f"{'ok  ' if holds else 'FAIL'} {claim}")
    if not holds:
        failures.append(claim)


def queue() -> dict[str, dict[str, str]]:
    """Our jobs that Slurm knows of, also those that ended some minutes ago."""
    wanted = ",".join(f"{field}:|" for field in FIELDS.values())
    command = ["squeue", "--me", "-h", "--states=all", "-O", wanted]
    for _ in range(6):
        shown = subprocess.run(command, capture_output=True, text=True, timeout=60)
        if shown.returncode == 0:
            break
        time.sleep(5)  # on a busy machine Slurm may be late to answer
    shown.check_returncode()
    rows = [line.split("|")[:-1] for line in shown.stdout.splitlines()]
    return {row[0]: dict(zip(FIELDS, row, strict=True)) for row in rows}


def checkout(name: str) -> Path:
    """A checkout without results, whose code and data are this one's."""
    folder = WORK / name
    (folder / "data").mkdir(parents=True)
    (folder / "notebooks").mkdir()
    for path in (ROOT / "data").iterdir():
        if path.name != "results":
            (folder / "data" / path.name).symlink_to(path)
    for path in (ROOT / "notebooks").glob("*.ipynb"):
        (folder / "notebooks" / path.name).symlink_to(path)
    return folder


def run(folder: Path, *arguments: str, on_running: Callable[[dict, subprocess.Popen], None] | None = None) -> Outcome:
    """Run the smoke profile on Slurm, show what it prints and what jobs it had.

    ``on_running`` is called with each job that begins to run, and the process of the run.
    """
    command = ["./run_all.sh", "--profile", "smoke", "--executor", "slurm", *arguments]
    say(f"\n$ {' '.join(command)}")
    before, printed, begun = set(queue()), [], time.monotonic()
    environment = os.environ | {"HARP_ROOT": str(folder), "HARP_PYTHON": sys.executable, "PYTHONWARNINGS": "ignore"}
    process = subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )

    def show() -> None:
        for line in process.stdout:
            printed.append(line)
            say(line.rstrip("\n"))

    reader = threading.Thread(target=show, daemon=True)
    reader.start()
    jobs, running = {}, set()
    while process.poll() is None:
        time.sleep(1)
        jobs = jobs | {number: job for number, job in queue().items() if number not in before}
        for number, job in jobs.items():
            if on_running and job["state"] == "RUNNING" and number not in running and process.poll() is None:
                running.add(number)
                on_running(job, process)
    jobs = jobs | {number: job for number, job in queue().items() if number not in before}
    reader.join(timeout=10)  # what a killed run leaves behind keeps the pipe open
    say(f"\nexit code {process.returncode} after {time.monotonic() - begun:.0f} s; jobs of Slurm:\n")
    if jobs:
        say(tabulate([job.values() for job in jobs.values()], list(FIELDS), disable_numparse=True))
    say()
    return Outcome(process.returncode, "".join(printed), jobs)


def cells(folder: Path) -> list[Path]:
    """Stored cells: ``<experiment>/<model>/<method>/<task>.json``."""
    return [path for path in (folder / "data/results/smoke").glob("*/*/*/*.json") if not path.parts[-4].startswith(".")]


def within_a_job(path: Path, jobs: dict[str, dict[str, str]]) -> bool:
    """Whether a file was written while some job ran."""
    written = path.stat().st_mtime
    spans = [[datetime.fromisoformat(job[side]).timestamp() for side in ("start", "end")] for job in jobs.values()]
    return any(start <= written <= end + 1 for start, end in spans)


def whole(folder: Path) -> None:
    """Everything from an empty store, and again."""
    outcome = run(folder)
    rows = re.findall(r"^\[\d+/(\d+)\] (\S+): (\w+)", outcome.printed, re.MULTILINE)
    check("exit code 0", outcome.code == 0)
    check("every job is done", bool(rows) and all(result == "done" for *_, result in rows))
    check("each was one job of Slurm, which completed", outcome.states() == ["COMPLETED"] * int(rows[0][0]))
    found = cells(folder)
    check(
        f"all {len(found)} cells were stored while a job of Slurm ran",
        all(within_a_job(c, outcome.jobs) for c in found),
    )
    check("each was computed once", outcome.counted("computed") == len(found))
    outcome = run(folder)
    check("a second run ends well and computes no cell", (outcome.code, outcome.counted("computed")) == (0, 0))
    check("but reads what is stored", outcome.counted("read") >= len(found))


def killed(folder: Path) -> None:
    """One job is cancelled while it runs, once, and then every time."""
    cancelled = []

    def cancel(job: dict, *_) -> None:
        time.sleep(5)  # it is at work
        subprocess.run(["scancel", job["Slurm job"]], check=True)
        cancelled.append(job["Slurm job"])
        say(f"(scancel {job['Slurm job']})")

    def cancel_first(job: dict, *_) -> None:
        if not cancelled:
            cancel(job)

    outcome = run(folder, "--only", NOTEBOOK, on_running=cancel_first)
    check("a job that was cancelled is tried again, and all is done", outcome.code == 0)
    check("it was cancelled in truth", outcome.states().count("CANCELLED") == 1)
    outcome = run(folder, "--only", NOTEBOOK, on_running=cancel)  # all is stored: the notebook's job alone
    named = re.search(rf"^{NOTEBOOK}\w+ +failed", outcome.printed, re.MULTILINE)
    check(
        "one that is cancelled each time is named as failed, with the reason",
        bool(named) and "Slurm ended it: CANCELLED" in outcome.printed,
    )
    check("and the exit code says so", outcome.code == 1)
    often = outcome.states().count("CANCELLED")
    check("it was tried as often as data/slurm/config.yaml says", often == 1 + config()["retries"])
    outcome = run(folder, "--only", NOTEBOOK)
    check("the same command continues, and all is done", outcome.code == 0)


def interrupted(folder: Path) -> None:
    """Ctrl-C, while jobs run and others wait."""

    def interrupt(job: dict, process: subprocess.Popen) -> None:
        time.sleep(3)
        process.send_signal(signal.SIGINT)

    outcome = run(folder, "--only", NOTEBOOK, on_running=interrupt)
    time.sleep(10)  # Slurm gives a job a moment to end
    left = [number for number, job in queue().items() if job["state"] not in OVER]
    check("Ctrl-C ends with exit code 130", outcome.code == 130)
    check("and leaves no job in the queue", bool(outcome.jobs) and not left)


def orphaned(folder: Path) -> None:
    """The runner is killed while a job runs, and started again."""

    def kill(job: dict, process: subprocess.Popen) -> None:
        time.sleep(3)
        process.kill()

    outcome = run(folder, "--only", NOTEBOOK, on_running=kill)
    check(
        "SIGKILL of the runner leaves its jobs at work",
        outcome.code == -signal.SIGKILL and "RUNNING" in outcome.states(),
    )
    again = run(folder, "--only", NOTEBOOK)
    check("the same command ends them and runs through", again.code == 0)
    left = [number for number, job in queue().items() if number in outcome.jobs and job["state"] not in OVER]
    check("nothing of the old run is left in the queue", not left)


def config() -> dict:
    """What the batch engine asks of Slurm."""
    return yaml.safe_load((ROOT / "data/slurm/config.yaml").read_text(encoding="utf-8"))


def node() -> slurm_node:
    """A Slurm on whose node two of the largest jobs fit."""
    asked = [config()["default-resources"], *config()["set-resources"].values()]
    partitions = dict.fromkeys(rule["slurm_partition"] for rule in asked if "slurm_partition" in rule)
    numbers = [int(number) for rule in asked for number in re.findall(r"\d+", str(rule.get("mem_mb", 0)))]
    return slurm_node(list(partitions), 2 * max(config()["set-threads"].values()), 2 * max(numbers), 2)


def main() -> int:
    """Everything, one after the other."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # which a shell's background commands ignore
    there = answers()
    if not there and (reason := why_not()):
        say(f"no Slurm here: {reason}")
        return 1
    shutil.rmtree(WORK, ignore_errors=True)
    with nullcontext() if there else node():
        version = subprocess.run(["sinfo", "--version"], capture_output=True, text=True, check=True).stdout.strip()
        say(f"{version}, {'which was there' if there else 'set up on one node for this script'}")
        whole(checkout("whole"))
        killed(checkout("killed"))
        interrupted(checkout("interrupted"))
        orphaned(checkout("orphaned"))
    shutil.rmtree(WORK)
    say(f"\n{len(failures)} checks failed" if failures else "\nall checks hold")
    return int(bool(failures))


if __name__ == "__main__":
    sys.exit(main())
