#!/usr/bin/env python3
"""A double of Slurm on one machine, one job at a time, without accounting.

:func:`install` makes the commands. ``FAKE_SLURM`` names a folder: each job is a file ``<id>.state``
there, and ``sbatch.log`` has the calls. ``FAKE_SLURM_FAIL="part of a comment=STATE"`` ends the
first job of that comment so, after 25 seconds at the latest.
"""

import contextlib
import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path

SECONDS_BEFORE_FAULT = 25


def install(folder: Path) -> dict[str, str]:
    """Make the commands in a folder; the variables with which they are found."""
    commands = folder / "bin"
    commands.mkdir(parents=True, exist_ok=True)
    for name in (*COMMANDS, "sacct"):
        command = commands / name
        command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -P "{__file__}" {name} "$@"\n')
        command.chmod(0o755)
    path = f"{commands}{os.pathsep}{os.environ['PATH']}"
    return {"FAKE_SLURM": str(folder / "jobs"), "PATH": path}


def sbatch(home: Path, arguments: list[str]) -> None:
    """Queue a job and print its number."""
    job = _next_number(home)
    with (home / "sbatch.log").open("a") as log:
        log.write(f"{job} {' '.join(arguments)}\n")
    options = {}
    wrap = ""
    folder = "."
    words = iter(arguments)
    for word in words:
        if word.startswith("--wrap="):
            wrap = word.removeprefix("--wrap=")
        elif word == "-D":
            folder = next(words)
        elif word in ("--job-name", "--output", "--comment"):
            options[word] = next(words)
    (home / f"{job}.name").write_text(options["--job-name"])
    (home / f"{job}.state").write_text("PENDING")
    output = options["--output"].replace("%j", str(job))
    command = [sys.executable, "-P", __file__, "work", str(job), output, wrap]
    part_of_comment, _, state = os.environ.get("FAKE_SLURM_FAIL", "").partition("=")
    failed = home / "failed"
    if state and part_of_comment in options["--comment"] and not failed.exists():
        failed.touch()
        command.append(state)
    number = {"SLURM_JOB_ID": str(job), "SLURM_JOBID": str(job), "SLURM_CPUS_PER_TASK": "2"}
    subprocess.Popen(
        command,
        cwd=folder,
        env=os.environ | number,
        start_new_session=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    print(job)


def _next_number(home: Path) -> int:
    with (home / "counter").open("a+") as counter:
        fcntl.flock(counter, fcntl.LOCK_EX)
        counter.seek(0)
        number = 1001 + len(counter.read())
        counter.write("x")
    return number


def work(home: Path, arguments: list[str]) -> None:
    """Run a job once the node is free."""
    job, output, wrap, *end = arguments
    state = home / f"{job}.state"
    with (home / "node").open("a") as node, Path(output).open("w") as log:
        fcntl.flock(node, fcntl.LOCK_EX)
        if state.read_text() == "CANCELLED":
            return
        state.write_text("RUNNING")
        process = subprocess.Popen(
            ["sh", "-c", wrap], stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )
        (home / f"{job}.pid").write_text(str(process.pid))
        if end:  # as if the time limit had come
            try:
                process.wait(SECONDS_BEFORE_FAULT)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
        code = process.wait()
        if state.read_text() == "RUNNING":
            outcome = "COMPLETED" if code == 0 else "FAILED"
            state.write_text(end[0] if end else outcome)


def squeue(home: Path, arguments: list[str]) -> None:
    """Print the number and the state of each job of a name."""
    name = arguments[arguments.index("--name") + 1]
    for file in sorted(home.glob("*.name")):
        if file.read_text() == name:
            print(f"{file.stem}|{file.with_suffix('.state').read_text()}")


def scancel(home: Path, arguments: list[str]) -> None:
    """End jobs by SIGTERM."""
    for job in arguments:
        state = home / f"{job}.state"
        if not job.isdecimal() or not state.exists():
            continue
        state.write_text("CANCELLED")
        process = home / f"{job}.pid"
        if process.exists():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(int(process.read_text()), signal.SIGTERM)


def srun(home: Path, arguments: list[str]) -> None:
    """Become the command."""
    while arguments and arguments[0].startswith("-"):
        arguments = arguments[1:]
    os.execvp(arguments[0], arguments)


def scontrol(home: Path, arguments: list[str]) -> None:
    print("MinJobAge               = 300 sec\nMaxArraySize = 1001")


def sinfo(home: Path, arguments: list[str]) -> None:
    print()


COMMANDS = {
    "sbatch": sbatch,
    "squeue": squeue,
    "scancel": scancel,
    "srun": srun,
    "scontrol": scontrol,
    "sinfo": sinfo,
    "sacctmgr": sinfo,
    "sshare": sinfo,
}


def main(name: str, *arguments: str) -> None:
    home = Path(os.environ["FAKE_SLURM"])
    home.mkdir(parents=True, exist_ok=True)
    if name == "work":
        work(home, list(arguments))
    elif name in COMMANDS:
        COMMANDS[name](home, list(arguments))
    else:
        sys.exit("Slurm accounting storage is disabled")


if __name__ == "__main__":
    main(*sys.argv[1:])
