"""Runs of the notebooks: Snakemake schedules (see Snakefile), and each of its jobs is one of ``harp_lib.jobs``.

A job's output is a flag, ``data/results/<profile>/.flags/….done``: what the job made, how long it took, and which cells
failed. Results go to the result store, where a job that runs again finds what it had.
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

from filelock import FileLock, Timeout

from harp_lib import __version__, config
from harp_lib.experiments import IN_PARTS, UNITS, models_of
from harp_lib.results import digest, write_json

RUN_FILE = ".run.json"  # in the folder of a profile's results: what Snakefile and jobs know of a run
KILLED = "its process was killed: as a rule the machine ran out of memory"


def run(options: Namespace) -> int:
    """``./run_all.sh run``: one run of Snakemake; returns the exit code."""
    try:
        settings = _settings(options)
    except ValueError as error:
        print(f"run_all.sh: error: {error}", file=sys.stderr)
        return 2
    folder = config.RESULTS / options.profile
    folder.mkdir(parents=True, exist_ok=True)
    if options.dry_run:
        return _dry_run(folder, settings, options)
    lock = FileLock(config.RESULTS / ".run.lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        print("another run of this checkout is at work: waiting for it", flush=True)
        lock.acquire()
    with lock:
        for old in folder.glob(".flags/**/*.error"):
            old.unlink()
        _drop_stale(folder)
        write_json(folder / RUN_FILE, settings)
        code = _snakemake(_command(folder / RUN_FILE, settings, options), folder)
        return _conclude(folder, settings, code)


def _settings(options: Namespace) -> dict[str, Any]:
    """What Snakefile and jobs read of a run; ValueError for one that cannot be, before anything is written."""
    given = {name: getattr(options, name) for name in ("models", "datasets", "limit") if getattr(options, name)}
    parameters = _parameters(options, given)
    if options.datasets not in (None, "embedded", "hub"):
        from harp_lib.measure.evaluation import check_rows

        check_rows(options.datasets)
    seed = max(values.get("seed", 0) for values in parameters.values())
    profile = config.load_profile(options.profile, **given, as_written=True)
    local, jobs = options.executor == "local", options.jobs or 1
    asked = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0]
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    threads = int(asked) if asked.isdecimal() else max(1, cores // jobs)
    tasks = {unit: len(profile["longbench" if unit == "longbench" else "evaluation"]["tasks"]) for unit in IN_PARTS}
    return {
        "began": datetime.now(UTC).isoformat(timespec="seconds"),
        "runner": os.getpid() if local else None,
        "alone": local and jobs == 1,  # one job at a time: notebooks compute their own cells, and show how
        "whole": not options.only,
        "force": options.force,
        "profile": options.profile,
        "given": given,
        "seed": seed,
        "notebooks": parameters,
        "models": {unit: models_of(profile, unit) for unit in UNITS},
        "parts": {unit: min(jobs, number) if local else number for unit, number in tasks.items()},
        "threads": threads,
        "cores": threads * jobs,
        "gpus": _gpus() if local and jobs > 1 else [],
        # Another value lets jobs run again, to see what they find stored.
        "settings": digest({**profile, "models": None, "seed": seed, "version": __version__}),
    }


def _parameters(options: Namespace, given: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Parameters to run each chosen notebook with; ValueError for one that none of them has."""
    import yaml
    from papermill import inspect_notebook

    values = {"profile": options.profile, **given}
    for name, value in options.parameters:
        try:
            values[name] = yaml.safe_load(value)
        except yaml.YAMLError as error:
            raise ValueError(f"malformed parameter {name}={value!r}: not YAML ({error.args[0]})") from error
    if type(values.get("seed", 0)) is not int:
        raise ValueError(f"seed is a whole number, not {values['seed']!r}")
    sources = sorted(config.NOTEBOOKS.glob("[0-9][0-9]_*.ipynb"))
    asked = [source for source in sources if not options.only or source.name[:2] in options.only]
    have = {source.stem: inspect_notebook(source) for source in asked}
    for name in values:
        if not any(name in names for names in have.values()):
            raise ValueError(f"no parameter {name!r} in {', '.join(have)}")
    return {stem: {name: values[name] for name in values if name in names} for stem, names in have.items()}


def _gpus() -> list[str]:
    """The GPUs among which the jobs of a run choose, as CUDA_VISIBLE_DEVICES names them."""
    import torch

    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return visible.split(",") if visible else [str(number) for number in range(torch.cuda.device_count())]


def _command(run_file: Path, settings: dict[str, Any], options: Namespace) -> list[str]:
    command = [sys.executable, "-P", "-m", "snakemake", "--snakefile", str(config.CHECKOUT / "Snakefile")]
    command += ["--directory", str(run_file.parent), "--configfile", str(run_file), "--scheduler", "greedy"]
    # The lock is ours; what a job computes is told by its parameters, not by what Snakefile says of others.
    command += ["--keep-going", "--nolock", "--rerun-incomplete", "--rerun-triggers", "mtime", "params"]
    command += ["--forceall"] * options.force
    if options.executor == "local" or options.dry_run:
        gpus = ["--resources", f"gpu={len(settings['gpus'])}"] if settings["gpus"] else []
        return [*command, "--cores", str(settings["cores"]), *gpus, *["--dry-run"] * options.dry_run]
    command += ["--executor", "slurm", "--workflow-profile", str(config.DATA / "slurm")]
    command += ["--slurm-logdir", str(run_file.parent / ".slurm")]
    return command + (["--jobs", str(options.jobs)] if options.jobs else [])


def _dry_run(folder: Path, settings: dict[str, Any], options: Namespace) -> int:
    """What Snakemake would run, and why; of the profile paper, also what that may take."""
    _drop_stale(folder)
    write_json(folder / ".dry-run.json", settings)
    code = subprocess.run(_command(folder / ".dry-run.json", settings, options)).returncode
    if (hours := config.DATA / "costs" / f"{options.profile}_hours.csv").is_file():
        print(hours.read_text(encoding="utf-8"), end="")
    return code


def _snakemake(command: list[str], folder: Path) -> int:
    """Run the engine to its end; 130 if the user interrupted it, or a batch system by SIGTERM."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with (folder / ".snakemake.log").open("w") as log:
        shown = None if "slurm" in command else log  # jobs on other machines do not speak for themselves
        # A session of its own, so that Ctrl-C reaches engine and jobs once, and by our hand.
        engine = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=shown, start_new_session=True)
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
    return 130 if interrupted else engine.returncode


def _conclude(folder: Path, settings: dict[str, Any], code: int) -> int:
    """Say how each notebook fared, and what failed; returns the exit code."""
    names = [f"notebooks/{name}" for name in settings["notebooks"]] + ["figures"] * settings["whole"]
    errors = {str(file.relative_to(folder / ".flags"))[:-6]: file for file in sorted(folder.glob(".flags/**/*.error"))}
    failed = []
    print()
    for name in dict.fromkeys([*names, *errors]):
        file = folder / ".flags" / f"{name}.done"
        outcome = "not run"
        if name in errors:
            error = errors[name].read_text(encoding="utf-8")
            outcome = "interrupted" if code == 130 and error == KILLED else f"failed: {error}"
        elif file.is_file():
            flag = json.loads(file.read_text(encoding="utf-8"))
            outcome = f"done, {flag['seconds']:.0f} s" if flag["began"] == settings["began"] else "up to date"
            failed += flag["failed"]
        print(f"{name.removeprefix('notebooks/'):20} {outcome}")
    if failed:
        print(f"failed cells, dashes in the tables: {len(failed)}", *failed, sep="\n  ")
    if code not in (0, 130) and not errors:
        print("the batch engine stopped:", (folder / ".snakemake.log").read_text(errors="replace")[-3000:], sep="\n")
    places = (config.NOTEBOOKS / "executed" / settings["profile"], config.FIGURES / settings["profile"])
    print("the same command continues" if code or failed else " and ".join(map(shown, places)))
    return code if code == 130 else int(bool(code or failed))


def shown(path: Path) -> str:
    """A path as messages give it."""
    return os.path.relpath(path, config.ROOT)


def _drop_stale(folder: Path) -> None:
    """Remove flags under which a cell failed, or of which something is gone or was changed since."""
    for file in folder.glob(".flags/**/*.done"):
        try:
            flag = json.loads(file.read_text(encoding="utf-8"))
            changed = max(((config.ROOT / made).stat().st_mtime_ns for made in flag["made"]), default=0)
            stale = flag["failed"] or changed > file.stat().st_mtime_ns
        except (OSError, ValueError):
            stale = True
        if stale:
            file.unlink()


def figures(options: Namespace) -> int:
    """``./run_all.sh figures``."""
    from harp_lib import report

    try:
        written = report.redraw(config.load_profile(options.profile))
    except FileNotFoundError as error:
        sys.exit(str(error))
    print(*map(shown, written), f"{len(written)} files written", sep="\n")
    return 0
