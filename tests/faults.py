"""Kills a smoke run at random moments, by hand: ``python tests/faults.py [--kills 10] [--seed 0]``;
prints a log.

A run that nothing happens to comes first. Then runner, engine, jobs and kernels of another are
killed in turn, at moments that spread over all of the work, and the same command is given again. No
finished cell may be computed twice, and cells and tables have to be those of the first run, but for
what is measured with a clock.
"""

import argparse
import random
import sys
import tempfile
import time
from pathlib import Path

import psutil
from helpers import Checkout

VICTIMS = ("harp_lib.cli", "snakemake", "harp_lib.jobs", "ipykernel")
TIMED = (
    "time",
    "memory",
    "attention_share",
    "llama_cpp",
    "claims",
    "costs",
)  # in names of tables that a clock wrote


def files(work: Checkout) -> dict[Path, int]:
    """Finished cells, and when they were written."""
    return {file: file.stat().st_mtime_ns for file in work.results.glob("[!.]*/*/*/[!.]*.json")}


def tables(work: Checkout) -> dict[str, bytes]:
    found = (work.root / "figures" / "smoke" / "tables").glob("*.*")
    return {
        file.name: file.read_bytes()
        for file in found
        if not any(word in file.name for word in TIMED)
    }


def victims(process: psutil.Process, what: str) -> list[psutil.Process]:
    family = [process, *process.children(recursive=True)]
    return [
        each
        for each in family
        if each.is_running() and any(what in part for part in each.cmdline())
    ]


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    chance, folder = random.Random(options.seed), Path(tempfile.mkdtemp(prefix="faults-"))
    undisturbed, work = Checkout(folder / "undisturbed"), Checkout(folder / "killed")
    code, shown = undisturbed.run()
    total, written, faults = len(files(undisturbed)), {}, [] if code == 0 else [shown[-2000:]]
    print(f"undisturbed: exit code {code}, {total} cells", flush=True)
    running = work.start()
    for number, moment in enumerate(sorted(chance.randrange(total) for _ in range(options.kills))):
        what, found = VICTIMS[number % len(VICTIMS)], []
        while not found:
            if running.poll() is not None:
                running = work.start()
            if len(files(work)) >= moment:
                time.sleep(chance.uniform(0, 3))
                found = victims(psutil.Process(running.pid), what)
            time.sleep(0.1)
        found[0].kill()
        time.sleep(2)  # what was killed with it writes no more
        faults += [
            f"{file.name} was computed again"
            for file, when in written.items()
            if files(work).get(file) != when
        ]
        written = files(work)
        print(f"{len(written):4d} of {total} cells: killed {what}", flush=True)
    running.wait()
    code, shown = work.run()
    print(
        f"{len(files(work)):4d} of {total} cells: the same command again, exit code {code}",
        flush=True,
    )
    faults += [] if code == 0 else [shown[-2000:]]
    for one, other in ((undisturbed.cells(), work.cells()), (tables(undisturbed), tables(work))):
        faults += [
            f"{name} differs"
            for name in sorted(one.keys() | other)
            if one.get(name) != other.get(name)
        ]
    print(*faults or ["equal in all that is not timed"], sep="\n")
    return int(bool(faults))


if __name__ == "__main__":
    sys.exit(main())
