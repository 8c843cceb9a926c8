"""What one rule of Snakefile runs: cells, or a notebook.

Snakemake starts ``python -m harp_lib.jobs RUN BEGAN LOG GPUS WHAT …`` in the root of the checkout.
RUN is the file of the run's settings, BEGAN is when the run began, GPUS is how many of them
Snakemake reserved, and WHAT is ``units UNIT …``, ``cells UNIT MODEL [PART PARTS]`` or
``notebook NAME``. How the job fared is said in a JSON file beside LOG.
"""

import itertools
import json
import os
import signal
import sys
import threading
import time
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
from filelock import AcquireReturnProxy, Timeout

from harp_lib import config, gpus, locks, notebooks, streams
from harp_lib.experiments import compute, models_of, run
from harp_lib.notebooks import KILLED, NotebookFailed
from harp_lib.results import BEGAN, write_json
from harp_lib.units import units_of

RUN_FILE = ".run.json"
"""Settings of a run, for Snakefile and jobs; in the folder of a profile's results."""
LOGS = ".jobs"
"""The folder there, of what jobs print and how they fared."""

MOST_FAILURES = 60
"""How often in a row a job may fail to read, once a second, whether its run is under way."""

_held_locks: list[AcquireReturnProxy] = []  # a lock that nobody refers to is released


def main(arguments: list[str]) -> int:
    """Do a job and return the exit code.

    The file beside its log has ``began``, the time of the run, and ``seconds``, or ``error``, the
    reason why the job did not come to its end.
    """
    run_file, began, log, reserved, what, *names = arguments
    run_file = Path(run_file).absolute()  # papermill changes the working directory
    settings = json.loads(run_file.read_bytes())
    if settings["began"] != began:
        return 1  # this job's run was killed, and another has begun
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # of Slurm: locks are released
    threading.Thread(target=_die_with_run, args=(settings, run_file), daemon=True).start()
    begin = time.monotonic()
    report = Path(log).with_suffix(".json").absolute()
    write_json(report, {"began": began, "error": KILLED})  # true until something else is written
    os.environ[BEGAN] = began  # cells that failed in this run are not tried again in it
    try:
        print("──", *(names or [what]), flush=True)
        _take_gpus(settings["gpus"], int(reserved))
        gpus.check_usable(config.read_profile(settings["profile"], **settings["overrides"]))
        JOBS[what](settings, *names)
        write_json(report, {"began": began, "seconds": time.monotonic() - begin})
        return 0
    except KeyboardInterrupt:
        return 130
    except NotebookFailed as failure:
        error = str(failure)
    except (Exception, SystemExit) as failure:
        traceback.print_exc()
        error = f"{type(failure).__name__}: {failure}".strip()
    write_json(report, {"began": began, "error": error})
    return 1


def _units(settings: dict[str, Any], *units: str) -> None:
    """Compute the cells of some units for all their models."""
    profile = config.load_profile(settings["profile"], **settings["overrides"])
    run(*units, profile=profile, seed=settings["seed"], force=settings["force"])


def _cells(
    settings: dict[str, Any], unit: str, model_slug: str, part: str = "1", parts: str = "1"
) -> None:
    """Compute the cells of one unit for one model, of one of ``parts`` groups of its tasks."""
    profile = config.load_profile(settings["profile"], **settings["overrides"])
    (model,) = (name for name in models_of(profile, unit) if config.slug(name) == model_slug)
    shown = any(unit in units_of(name) for name in settings["notebooks"])
    force = settings["force"] and shown
    counts = compute(unit, profile, model, settings["seed"], force, (int(part) - 1, int(parts)))
    print(", ".join(f"{number} {outcome}" for outcome, number in counts.items()))


def _notebook(settings: dict[str, Any], name: str) -> None:
    """Execute a notebook."""
    parameters = dict(settings["notebooks"][name])
    if settings["force"]:
        parameters["force"] = True
    notebooks.execute(name, settings["profile"], parameters)


JOBS = {"units": _units, "cells": _cells, "notebook": _notebook}


def _take_gpus(shared: list[str], number: int) -> None:
    """Wait for so many of the GPUs that the jobs share, and hold them until this process ends.

    A machine with fewer gives all that it has. Snakemake starts no more jobs than there are GPUs
    for, so no two jobs wait for each other.
    """
    if not shared:
        return
    taken: list[str] = []
    for gpu in itertools.cycle(shared):
        if len(taken) == min(number, len(shared)):
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
    failures = 0  # in a row: a shared disk may fail to answer for a while
    with suppress(FileNotFoundError, psutil.Error):
        while failures < MOST_FAILURES:
            try:
                if not _is_under_way(settings, run_file):
                    break
                failures = 0
            except FileNotFoundError:
                raise
            except (OSError, ValueError):
                failures += 1
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
