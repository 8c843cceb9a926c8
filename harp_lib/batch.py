"""Runs of the notebooks, behind ``./run_all.sh run``.

A run writes its settings to a file and starts Snakemake. Snakefile reads the settings and says
which jobs there are: they make lists of results and executed notebooks, and each of them is a call
of ``harp_lib.jobs``. At the end the run says how each notebook fared.
"""

import json
import os
import signal
import subprocess
import sys
from argparse import Namespace
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from filelock import Timeout

from harp_lib import config, gpus, hub, locks, notebooks
from harp_lib.circumstances import versions
from harp_lib.config import slug
from harp_lib.contents import contents_of_models, contents_of_rows
from harp_lib.experiments import models_of
from harp_lib.jobs import LOGS, RUN_FILE
from harp_lib.notebooks import KILLED
from harp_lib.results import digest, incomplete_lists, list_file, read_lines, write_json
from harp_lib.units import UNITS, units_of

INTERRUPTED = 130  # the exit code
ENGINE = """\
from harp_lib.streams import make_steady
make_steady()
from snakemake.cli import main
main()
"""


def run(options: Namespace) -> int:
    """Run the chosen notebooks, as ``./run_all.sh run`` does, and return the exit code."""
    try:
        try:
            settings = _settings(options)
        except ValueError as error:
            print(f"run_all.sh: error: {error}", file=sys.stderr)
            return 2
        return _run(settings, options)
    except OSError as error:  # a folder that is not this user's, a disk that is full
        print(f"run_all.sh: error: {error}", file=sys.stderr)
        return 1


def _run(settings: dict[str, Any], options: Namespace) -> int:
    folder = config.RESULTS / options.profile
    if options.dry_run:
        return _dry_run(folder, settings, options)
    lock_file = config.RESULTS / ".run.lock"
    try:
        lock = locks.take(lock_file, timeout=0)
    except Timeout:
        print("another run of this checkout is at work: waiting for it", flush=True)
        lock = locks.take(lock_file)
    with lock:
        write_json(folder / RUN_FILE, settings)
        for name in notebooks.copy_prose(options.profile):
            print(f"{name:20} has the prose of its source", flush=True)
        code = _snakemake(_command(folder, RUN_FILE, settings, options), folder)
        return _conclude(folder, settings, code)


def _dry_run(folder: Path, settings: dict[str, Any], options: Namespace) -> int:
    """Let Snakemake show what would run, and print the counted hours of the profile."""
    run_file = ".dry-run.json"  # another one, since a run may be at work
    write_json(folder / run_file, settings)
    code = subprocess.run(_command(folder, run_file, settings, options)).returncode
    hours = config.DATA / "costs" / f"{options.profile}_hours.csv"
    if hours.is_file():
        print(hours.read_text(encoding="utf-8"), end="")
    return code


def _settings(options: Namespace) -> dict[str, Any]:
    """What Snakefile and jobs need to know of a run.

    If the run cannot be, a ValueError is raised before anything is written.
    """
    overrides = {}
    for name in ("models", "datasets", "limit"):
        value = getattr(options, name)
        if value:
            overrides[name] = value
    parameters = _parameters(options, overrides)
    if options.datasets:
        from harp_lib.evaluation.benchmarks import check_rows

        check_rows(options.datasets)
    profile = config.read_profile(options.profile, **overrides)
    left_out = {} if options.dry_run else hub.prepare(profile)
    if left_out:
        os.environ[config.LEFT_OUT] = ",".join(left_out)
        profile = config.read_profile(options.profile, **overrides)
        print(*_left_out_lines(left_out), sep="\n", flush=True)
    seed = options.seed or 0
    others = {
        "rows": contents_of_rows(profile),
        "commits": [str(entry.commit) for entry in hub.datasets_of_hub(profile)],
        "seed": seed,
        "versions": versions(),
    }
    jobs = options.jobs or 1
    threads = _threads_per_job(jobs)
    settings = {
        "profile": options.profile,
        "overrides": overrides,
        "force": options.force,
        "began": datetime.now(UTC).isoformat(timespec="seconds"),
        "runner": None,  # its process, if that is on the machine of the jobs
        "notebooks": parameters,
        "seed": seed,
        "one_at_a_time": False,
        # With another digest jobs run again, to see whether the stored cells still fit.
        "digest": digest({**profile, "models": None, **others}),
        "contents": {slug(model): found for model, found in contents_of_models(profile).items()},
        "models": {unit: models_of(profile, unit) for unit in UNITS},
        "left_out": left_out,
        "parts": {
            name: _number_of_tasks(profile, name) for name, unit in UNITS.items() if unit.section
        },
        "threads": threads,
        "cores": threads * jobs,
        "gpus": [],
    }
    if options.executor == "local":
        settings["runner"] = os.getpid()
        settings["one_at_a_time"] = jobs == 1
        settings["parts"] = {unit: min(jobs, tasks) for unit, tasks in settings["parts"].items()}
        if jobs > 1:
            settings["gpus"] = _visible_gpus()
        units = [unit for name in parameters for unit in units_of(name)]
        models = dict.fromkeys(model for unit in units for model in settings["models"][unit])
        gpus.check_usable(profile)
        for warning in gpus.warnings_of(profile, models, jobs):
            print(warning, flush=True)
    return settings


def _number_of_tasks(profile: dict[str, Any], unit: str) -> int:
    """How many tasks a unit has: those of LongBench, or the others of its section."""
    tasks = profile[UNITS[unit].section]["tasks"]
    of_longbench = sum(task.startswith("longbench") for task in tasks)
    return of_longbench if unit.startswith("longbench") else len(tasks) - of_longbench


def _left_out_lines(left_out: dict[str, str]) -> list[str]:
    return [f"{model} is left out: {reason}" for model, reason in left_out.items()]


def _parameters(options: Namespace, overrides: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Parameters to run each chosen notebook with: those that it has.

    A parameter that none of the chosen notebooks has is a ValueError.
    """
    from papermill import inspect_notebook

    values = {"profile": options.profile, **overrides}
    if options.seed is not None:
        values["seed"] = options.seed
    parameters = {}
    unknown = set(values)
    for notebook in notebooks.names():
        if options.only and notebook[:2] not in options.only:
            continue
        file = notebooks.for_papermill(config.NOTEBOOKS / f"{notebook}.ipynb")
        names = inspect_notebook(file).keys()
        parameters[notebook] = {name: value for name, value in values.items() if name in names}
        unknown.difference_update(names)
    if unknown:
        raise ValueError(f"no parameter {min(unknown)!r} in {', '.join(parameters)}")
    return parameters


def _threads_per_job(jobs: int) -> int:
    """OMP_NUM_THREADS, or an equal share of this process's cores."""
    threads = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0]
    if threads.isdecimal():
        return int(threads)
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    else:
        cores = os.cpu_count() or 1
    return max(1, cores // jobs)


def _visible_gpus() -> list[str]:
    """The GPUs that jobs may share, as CUDA_VISIBLE_DEVICES names them."""
    from torch import cuda

    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible:
        return visible.split(",")
    return [str(gpu) for gpu in range(cuda.device_count())]


def _command(
    folder: Path, run_file: str, settings: dict[str, Any], options: Namespace
) -> list[str | Path]:
    """The command that starts Snakemake on a run."""
    command = [sys.executable, "-P", "-c", ENGINE]
    command += ["--snakefile", config.CHECKOUT / "Snakefile"]
    command += ["--directory", config.ROOT]
    command += ["--configfile", folder / run_file]
    command += ["--scheduler", "greedy"]
    command += ["--keep-going", "--rerun-incomplete"]
    command += ["--nolock"]  # a run has a lock of its own
    command += ["--profile", "none"]  # whatever SNAKEMAKE_PROFILE names
    # All but source-cache, which would be below a home that may be missing or read-only.
    command += ["--shared-fs-usage", "persistence", "input-output", "software-deployment"]
    command += ["sources", "storage-local-copies"]
    # What a job computes is in its parameters; the code of Snakefile also speaks of other jobs.
    command += ["--rerun-triggers", "mtime", "params"]
    if options.force:
        command += ["--forceall"]
    else:
        incomplete = [file.relative_to(config.ROOT) for file in incomplete_lists(options.profile)]
        command += ["--forcerun", *incomplete]
    if options.dry_run:
        command += ["--dry-run"]
    if options.executor == "local" or options.dry_run:
        command += ["--workflow-profile", "none"]
        command += ["--cores", str(settings["cores"])]
        if settings["gpus"]:
            command += ["--resources", f"gpu={len(settings['gpus'])}"]
        return command
    command += ["--executor", options.executor]
    command += ["--workflow-profile", config.DATA / "slurm"]
    command += ["--slurm-logdir", folder / ".slurm"]
    if options.jobs:
        command += ["--jobs", str(options.jobs)]
    return command


def _snakemake(command: list[str | Path], folder: Path) -> int:
    """Run Snakemake to its end and return its exit code, or 130 if the user interrupted it.

    A batch system that ends this process by SIGTERM interrupts it too.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # a script's `&` ignores it
        # Ignored here as before; but what is ignored is so in Snakemake and its jobs too.
        signal.signal(signal.SIGINT, lambda *_: None)
    with (folder / ".snakemake.log").open("w") as log:
        # Jobs on other machines print nothing here, so Snakemake itself has to.
        stderr = None if "slurm" in command else log
        # In a session of its own: Ctrl-C reaches Snakemake and its jobs once, and from here.
        engine = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stderr=stderr, start_new_session=True
        )
        interrupted = False
        while engine.returncode is None:
            try:
                engine.wait()
            except KeyboardInterrupt:
                print("\ninterrupted: ending what is under way", flush=True)
                os.killpg(engine.pid, signal.SIGKILL if interrupted else signal.SIGINT)
                interrupted = True
    with suppress(ProcessLookupError):  # jobs of an engine that was killed
        os.killpg(engine.pid, signal.SIGKILL)
    return INTERRUPTED if interrupted else engine.returncode


def _conclude(folder: Path, settings: dict[str, Any], code: int) -> int:
    """Say how each notebook fared, and what failed; return the exit code."""
    reports = _reports(folder / LOGS, settings["began"])
    failures = {job: report["error"] for job, report in reports.items() if "error" in report}
    print()
    for name in settings["notebooks"]:
        print(f"{name:20} {_outcome(name, settings, reports, code)}")
    for job, failure in failures.items():
        if job.startswith("cells/"):
            print(f"{job:20} {_failed(failure, code)}")
    failed_cells = _failed_cells(folder, settings)
    if failed_cells:
        print(f"failed cells, dashes in the tables: {len(failed_cells)}", *failed_cells, sep="\n  ")
    if code not in (0, INTERRUPTED) and not failures:
        log = (folder / ".snakemake.log").read_text(errors="replace")
        # On a cluster it speaks for itself, and its log is empty.
        print("the batch engine stopped:", log[-3000:] or "what it said is above", sep="\n")
    for line in _left_out_lines(settings["left_out"]):
        print(line)
    if code == 0 and not failed_cells and not settings["left_out"]:
        root = config.ROOT.relative_to(config.SHOWN_FROM)
        profile = settings["profile"]
        print(root / "notebooks" / "executed" / profile, "and", root / "figures" / profile)
        return 0
    print("the same command continues")
    if code == INTERRUPTED:
        return INTERRUPTED
    return 1


def _reports(logs: Path, began: str) -> dict[str, dict[str, Any]]:
    """How the jobs of a run fared, by their names."""
    reports = {}
    for file in sorted(logs.rglob("*.json")):
        report = json.loads(file.read_bytes())
        if report["began"] == began:
            reports[str(file.relative_to(logs).with_suffix(""))] = report
    return reports


def _outcome(name: str, settings: dict[str, Any], reports: dict[str, Any], code: int) -> str:
    """How a notebook fared."""
    report = reports.get(f"notebooks/{name}")
    if report is None:
        parameters = settings["notebooks"][name]
        if code == 0 or notebooks.is_current(name, settings["profile"], parameters):
            return "up to date"
        return "not run"
    if "error" in report:
        return _failed(report["error"], code)
    return f"done, {report['seconds']:.0f} s"


def _failed(error: str, code: int) -> str:
    if code == INTERRUPTED and error == KILLED:
        return "interrupted"
    return f"failed: {error}"


def _failed_cells(folder: Path, settings: dict[str, Any]) -> list[str]:
    """The failed cells of what a run shows, each with the reason."""
    failed = []
    shown = dict.fromkeys(unit for name in settings["notebooks"] for unit in units_of(name))
    for unit in shown:
        for model in settings["models"][unit]:
            listing = list_file(folder / unit, model)
            if not listing.is_file():  # its job did not come to its end
                continue
            for entry in read_lines(listing):
                if "failed" in entry:
                    about = "/".join(map(str, entry["about"].values()))
                    failed.append(f"{unit}/{about}: {entry['failed']}")
    return failed
