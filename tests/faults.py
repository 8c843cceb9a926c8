"""Kill a smoke run at random moments, by hand: ``python tests/faults.py [--kills 10] [--seed 0]``.

An undisturbed run comes first. Then the runner, the engine, the jobs and the kernels of another run
are killed in turn, at moments that spread over all of the work, and the same command is given
again. No finished cell may be computed twice, and cells and tables have to equal those of the first
run, except for what is measured with a clock.
"""

import argparse
import os
import random
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import psutil
from checkouts import Checkout

VICTIMS = ("harp_lib.cli", "snakemake", "harp_lib.jobs", "ipykernel")
TABLES_WITH_TIMES = ("time", "hours", "passes", "memory", "attention_share", "llama_cpp")
"""Words in the names of tables that depend on a clock."""


def tables(work: Checkout) -> dict[str, bytes]:
    """Tables that do not depend on a clock."""
    contents = {}
    for file in (work.root / "figures" / "smoke" / "tables").glob("*.*"):
        if not any(word in file.name for word in TABLES_WITH_TIMES):
            contents[file.name] = file.read_bytes()
    return contents


def find_victims(runner: psutil.Process, name: str) -> list[psutil.Process]:
    """The runner or those of its descendants that have a name in their command."""
    victims = []
    for process in [runner, *runner.children(recursive=True)]:
        with suppress(psutil.NoSuchProcess):  # it has just ended
            if any(name in argument for argument in process.cmdline()):
                victims.append(process)
    return victims


def kill_at(
    moment: int,
    name: str,
    work: Checkout,
    running: subprocess.Popen,
    generator: random.Random,
) -> subprocess.Popen:
    """Kill a process of that name once ``moment`` cells are finished.

    A run that has ended is started again. Returns the run that was under way.
    """
    victims = []
    while not victims:
        if running.poll() is not None:
            running = work.start()
        if len(work.cell_files()) >= moment:
            time.sleep(generator.uniform(0, 3))
            victims = find_victims(psutil.Process(running.pid), name)
        time.sleep(0.1)
    victims[0].kill()
    time.sleep(2)  # processes that are killed with it write no more
    return running


def cells_computed_twice(work: Checkout, total: int, kills: int, seed: int) -> list[str]:
    """Run, killing a process again and again; the cells that were finished and computed again."""
    generator = random.Random(seed)
    running = work.start()
    finished = {}  # cells, and when they were written
    faults = []
    moments = sorted(generator.randrange(total) for _ in range(kills))
    for number, moment in enumerate(moments):
        name = VICTIMS[number % len(VICTIMS)]
        running = kill_at(moment, name, work, running, generator)
        now_finished = work.cell_files()
        for file, when in finished.items():
            if now_finished.get(file) != when:
                faults.append(f"{file.name} was computed again")
        finished = now_finished
        print(f"{len(finished):4d} of {total} cells: killed {name}", flush=True)
    running.wait()
    return faults


def differences(expected: dict, actual: dict) -> list[str]:
    names = sorted(expected.keys() | actual.keys())
    return [f"{name} differs" for name in names if expected.get(name) != actual.get(name)]


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    folder = Path(tempfile.mkdtemp(prefix="faults-"))
    undisturbed = Checkout(folder / "undisturbed")
    work = Checkout(folder / "killed")
    faults = []

    code, shown = undisturbed.run()
    if code != 0:
        faults.append(shown[-2000:])
    total = len(undisturbed.cell_files())
    print(f"undisturbed: exit code {code}, {total} cells", flush=True)

    faults.extend(cells_computed_twice(work, total, options.kills, options.seed))
    code, shown = work.run()
    if code != 0:
        faults.append(shown[-2000:])
    stored = len(work.cell_files())
    print(f"{stored:4d} of {total} cells: the same command again, exit code {code}", flush=True)

    faults.extend(differences(undisturbed.cells(), work.cells()))
    faults.extend(differences(tables(undisturbed), tables(work)))
    print(*(faults or ["equal in all that is not timed"]), sep="\n")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
