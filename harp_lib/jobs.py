"""What one rule of Snakefile runs: cells, or a notebook.

Snakemake starts ``python -m harp_lib.jobs FLAG BEGAN GPUS WHAT …`` in the folder of a profile's
results. FLAG is the file to write at the end, BEGAN is when the run began, GPUS is how many of them
Snakemake reserved, and WHAT is ``cells UNIT MODEL PART PARTS`` or ``notebook NAME``.
"""

import itertools
import json
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import psutil
from filelock import AcquireReturnProxy, Timeout

from harp_lib import config, locks, notebooks, streams
from harp_lib.experiments import compute, models_of
from harp_lib.notebooks import KILLED, NotebookFailed
from harp_lib.results import BEGAN, files_of, list_file, listed, write_json
from harp_lib.units import NOTEBOOKS

RUN_FILE = ".run.json"
"""Settings of a run, for Snakefile and jobs; in the folder of a profile's results."""

_held_locks: list[AcquireReturnProxy] = []  # a lock that nobody refers to is released


class Made(NamedTuple):
    """What a job made."""

    files: list[Path]
    failed_cells: list[str]  # each with the reason, where it is known


def main(arguments: list[str]) -> int:
    """Do a job and return the exit code.

    The flag, a JSON file, says which files the job made, how long it took and which cells failed.
    A job that does not come to its end leaves the reason in a file ``.error`` beside the flag.
    """
    flag_name, began, reserved, what, *names = arguments
    run_file = Path(RUN_FILE).absolute()  # papermill changes the working directory
    settings = json.loads(run_file.read_bytes())
    if settings["began"] != began:
        return 1  # this job's run was killed, and another has begun
    threading.Thread(target=_die_with_run, args=(settings, run_file), daemon=True).start()
    begin = time.monotonic()
    flag = Path(flag_name).absolute()
    error_file = flag.with_suffix(".error")
    error_file.write_text(KILLED, encoding="utf-8")  # true until something else is written
    os.environ[BEGAN] = began  # cells that failed in this run are not tried again in it
    if not os.isatty(1):
        os.environ["TQDM_MININTERVAL"] = "30"  # each update of a progress bar is a line of the log
    try:
        print("──", *(names or [what]), flush=True)
        _take_gpus(settings["gpus"], int(reserved))
        made = JOBS[what](settings, *names)
        contents = {
            "began": began,
            "seconds": time.monotonic() - begin,
            "failed": made.failed_cells,
            "made": [os.path.relpath(file, config.ROOT) for file in made.files],
        }
        write_json(flag, contents)
        error_file.unlink()
        return 0
    except KeyboardInterrupt:
        return 130
    except NotebookFailed as failure:
        error_file.write_text(str(failure), encoding="utf-8")
    except (Exception, SystemExit) as error:
        traceback.print_exc()
        error_file.write_text(f"{type(error).__name__}: {error}".strip(), encoding="utf-8")
    return 1


def _cells(settings: dict[str, Any], unit: str, model_slug: str, part: str, parts: str) -> Made:
    """Compute the cells of one unit for one model, of one of ``parts`` groups of its tasks."""
    profile = config.load_profile(settings["profile"], **settings["overrides"])
    (model,) = (name for name in models_of(profile, unit) if config.slug(name) == model_slug)
    shown = any(unit in NOTEBOOKS.get(name[:2], ()) for name in settings["notebooks"])
    force = settings["force"] and shown
    counts = compute(unit, profile, model, settings["seed"], force, (int(part) - 1, int(parts)))
    print(", ".join(f"{number} {outcome}" for outcome, number in counts.items()))
    made = _made_of(settings, [unit], [model])
    failed = []
    if counts["failed"]:
        failed.append(f"{unit} of {model}: {counts['failed']}")
    return Made(made.files, failed)


def _notebook(settings: dict[str, Any], name: str) -> Made:
    """Execute a notebook; what it made includes the cells that it shows."""
    profile = settings["profile"]
    parameters = dict(settings["notebooks"][name])
    if settings["force"]:
        parameters["force"] = True
    executed = notebooks.execute(name, profile, parameters)
    made = _made_of(settings, NOTEBOOKS.get(name[:2], ()))
    return Made([executed, *made.files], made.failed_cells)


def _made_of(
    settings: dict[str, Any], units: Iterable[str], models: Sequence[str] | None = None
) -> Made:
    """The lists of some units and what these name; all models of the run, or some."""
    made = Made([], [])
    for unit in units:
        folder = config.RESULTS / settings["profile"] / unit
        for model in models or settings["models"][unit]:
            listing = list_file(folder, model)
            if not listing.is_file():  # the notebook has nothing of it, or parts are missing
                continue
            made.files.extend(files_of(listing))
            for cell in listed(listing):
                if "failed" in cell["result"]:
                    about = "/".join(map(str, cell["about"].values()))
                    made.failed_cells.append(f"{unit}/{about}: {cell['result']['failed']}")
    return made


JOBS = {"cells": _cells, "notebook": _notebook}


def _take_gpus(gpus: list[str], number: int) -> None:
    """Wait for so many of the GPUs that the jobs share, and hold them until this process ends.

    A machine with fewer gives all that it has. Snakemake starts no more jobs than there are GPUs
    for, so no two jobs wait for each other.
    """
    if not gpus:
        return
    taken: list[str] = []
    for gpu in itertools.cycle(gpus):
        if len(taken) == min(number, len(gpus)):
            break
        if gpu in taken:
            continue
        try:
            _held_locks.append(locks.take(config.RESULTS / f".gpu-{gpu}.lock", timeout=0.2))
        except Timeout:
            continue  # another job has it
        taken.append(gpu)
    os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(taken)


def _die_with_run(settings: dict[str, Any], run_file: Path) -> None:
    """Once the run is killed or replaced, kill this job and the engine that would start others."""
    with suppress(OSError, ValueError, psutil.Error):
        while _is_under_way(settings, run_file):
            time.sleep(1)
    os.killpg(0, signal.SIGKILL)  # a kernel follows by itself


def _is_under_way(settings: dict[str, Any], run_file: Path) -> bool:
    """Whether the runner lives, where it is on this machine, and no other run has begun."""
    if json.loads(run_file.read_bytes())["began"] != settings["began"]:
        return False
    if settings["runner"] is None:
        return True
    return psutil.Process(settings["runner"]).status() != psutil.STATUS_ZOMBIE


if __name__ == "__main__":
    streams.make_steady()
    sys.exit(main(sys.argv[1:]))
