"""Runs of the notebooks: Snakemake schedules (see Snakefile), and each of its jobs is this module
as a program.

``python -m harp_lib.batch FLAG BEGAN WHAT …`` works in the folder of a profile's results: BEGAN is
when its run began, WHAT is ``cells UNIT MODEL [PART PARTS]``, ``notebook NAME`` or ``figures``.
"""

import hashlib
import itertools
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import traceback
from argparse import Namespace
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil
import yaml
from filelock import FileLock, Timeout

from harp_lib import __version__, config, report
from harp_lib.experiments import IN_PARTS, NOTEBOOKS, UNITS, compute, models_of
from harp_lib.results import BEGAN, digest, read_results, write_json

RUN_FILE = (
    ".run.json"  # in the folder of a profile's results: what Snakefile and jobs know of a run
)
KILLED = "its process was killed: as a rule the machine ran out of memory"
Made = tuple[list[Path], list[str]]  # files, and the cells that failed
_held: list[FileLock] = []  # one that nobody refers to is let go


def run(options: Namespace) -> int:
    """``./run_all.sh run``: one run of Snakemake; returns the exit code."""
    try:
        settings = _settings(options)
    except ValueError as error:
        print(f"run_all.sh: error: {error}", file=sys.stderr)
        return 2
    folder = config.RESULTS / options.profile
    if options.dry_run:
        _drop_stale(folder)
        code = subprocess.run(_command(folder, settings, options)).returncode
        if (hours := config.DATA / "costs" / f"{options.profile}_hours.csv").is_file():
            print(hours.read_text(encoding="utf-8"), end="")
        return code
    lock = FileLock(config.RESULTS / ".run.lock")
    with suppress(Timeout):
        lock.acquire(timeout=0)
    if not lock.is_locked:
        print("another run of this checkout is at work: waiting for it", flush=True)
    with lock:
        for old in folder.glob(".flags/**/*.error"):
            old.unlink()
        _drop_stale(folder)
        code = _snakemake(_command(folder, settings, options), folder)
        return _conclude(folder, settings, code)


def _settings(options: Namespace) -> dict[str, Any]:
    """What Snakefile and jobs read of a run; ValueError for one that cannot be, before anything is
    written.
    """
    given = {
        name: getattr(options, name)
        for name in ("models", "datasets", "limit")
        if getattr(options, name)
    }
    parameters = _parameters(options, given)
    if options.datasets not in (None, "embedded", "hub"):
        from harp_lib.evaluation.benchmarks import check_rows

        check_rows(options.datasets)
    profile = config.load_profile(options.profile, **given, as_written=True)
    local, jobs = options.executor == "local", options.jobs or 1
    settings = {
        "profile": options.profile,
        "given": given,
        "force": options.force,
        "whole": not options.only,
    }
    settings |= {
        "began": datetime.now(UTC).isoformat(timespec="seconds"),
        "runner": os.getpid() if local else None,
    }
    settings |= {
        "notebooks": parameters,
        "seed": max(values.get("seed", 0) for values in parameters.values()),
    }
    settings["alone"] = (
        local and jobs == 1
    )  # one job at a time: notebooks compute their own cells, and show how
    # Another value lets jobs run again, to see what they find stored.
    settings["settings"] = digest(
        {**profile, "models": None, "seed": settings["seed"], "version": __version__}
    )
    settings["models"] = {unit: models_of(profile, unit) for unit in UNITS}
    tasks = {unit: len(profile[UNITS[unit].section]["tasks"]) for unit in IN_PARTS}
    settings["parts"] = {
        unit: min(jobs, number) if local else number for unit, number in tasks.items()
    }
    asked = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0]
    cores = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    threads = int(asked) if asked.isdecimal() else max(1, cores // jobs)
    settings |= {"threads": threads, "cores": threads * jobs, "gpus": []}
    if local and jobs > 1:  # which share the GPUs, as CUDA_VISIBLE_DEVICES names them
        from torch import cuda

        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        settings["gpus"] = (
            visible.split(",") if visible else [str(gpu) for gpu in range(cuda.device_count())]
        )
    return settings


def _parameters(options: Namespace, given: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Parameters to run each chosen notebook with; ValueError for one that none of them has."""
    from papermill import inspect_notebook

    values = {"profile": options.profile, **given}
    for name, value in options.parameters:
        try:
            values[name] = yaml.safe_load(value)
        except yaml.YAMLError as error:
            raise ValueError(
                f"malformed parameter {name}={value!r}: not YAML ({error.args[0]})"
            ) from error
    if type(values.get("seed", 0)) is not int:
        raise ValueError(f"seed is a whole number, not {values['seed']!r}")
    files = sorted(config.NOTEBOOKS.glob("[0-9][0-9]_*.ipynb"))
    have = {
        file.stem: inspect_notebook(file)
        for file in files
        if not options.only or file.name[:2] in options.only
    }
    if unknown := values.keys() - set().union(*have.values()):
        raise ValueError(f"no parameter {min(unknown)!r} in {', '.join(have)}")
    return {
        stem: {name: values[name] for name in values if name in names}
        for stem, names in have.items()
    }


def _command(folder: Path, settings: dict[str, Any], options: Namespace) -> list[str | Path]:
    """Write what Snakefile reads of a run; the command that starts Snakemake on it."""
    run_file = folder / (".dry-run.json" if options.dry_run else RUN_FILE)
    write_json(run_file, settings)
    command = [
        sys.executable,
        "-P",
        "-m",
        "snakemake",
        "--snakefile",
        config.CHECKOUT / "Snakefile",
    ]
    command += ["--directory", folder, "--configfile", run_file, "--scheduler", "greedy"]
    # The lock is ours; what a job computes is told by its parameters, not by what Snakefile says of
    # others.
    command += [
        "--keep-going",
        "--nolock",
        "--rerun-incomplete",
        "--rerun-triggers",
        "mtime",
        "params",
    ]
    command += ["--forceall"] * options.force + ["--dry-run"] * options.dry_run
    if options.executor == "local" or options.dry_run:
        gpus = ["--resources", f"gpu={len(settings['gpus'])}"] * bool(settings["gpus"])
        return [*command, "--cores", str(settings["cores"]), *gpus]
    command += [
        "--executor",
        "slurm",
        "--workflow-profile",
        config.DATA / "slurm",
        "--slurm-logdir",
        folder / ".slurm",
    ]
    return command + ["--jobs", str(options.jobs)] * bool(options.jobs)


def _drop_stale(folder: Path) -> None:
    """Remove flags under which a cell failed, or of which something is gone or was changed since."""
    for file in folder.glob(".flags/**/*.done"):
        with suppress(OSError, ValueError):
            flag = json.loads(file.read_bytes())
            changed = max(
                ((config.ROOT / made).stat().st_mtime_ns for made in flag["made"]), default=0
            )
            if not flag["failed"] and changed <= file.stat().st_mtime_ns:
                continue
        file.unlink()


def _snakemake(command: list[str], folder: Path) -> int:
    """Run the engine to its end; 130 if the user interrupted it, or a batch system by SIGTERM."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with (folder / ".snakemake.log").open("w") as log:
        stderr = (
            None if "slurm" in command else log
        )  # jobs on other machines do not speak for themselves
        # A session of its own, so that Ctrl-C reaches engine and jobs once, and by our hand.
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
    return 130 if interrupted else engine.returncode


def _conclude(folder: Path, settings: dict[str, Any], code: int) -> int:
    """Say how each notebook fared, and what failed; returns the exit code."""
    names = [f"notebooks/{name}" for name in settings["notebooks"]] + ["figures"] * settings[
        "whole"
    ]
    flags, failed = folder / ".flags", []
    errors = {
        str(file.relative_to(flags))[:-6]: file.read_text("utf-8")
        for file in sorted(flags.rglob("*.error"))
    }
    print()
    for name in dict.fromkeys([*names, *errors]):
        outcome = "not run"
        if name in errors:
            outcome = (
                "interrupted"
                if (code, errors[name]) == (130, KILLED)
                else f"failed: {errors[name]}"
            )
        elif (flags / f"{name}.done").is_file():
            flag = json.loads((flags / f"{name}.done").read_bytes())
            outcome = (
                f"done, {flag['seconds']:.0f} s"
                if flag["began"] == settings["began"]
                else "up to date"
            )
            failed += flag["failed"]
        print(f"{name.removeprefix('notebooks/'):20} {outcome}")
    if failed:
        print(f"failed cells, dashes in the tables: {len(failed)}", *failed, sep="\n  ")
    if code not in (0, 130) and not errors:
        print(
            "the batch engine stopped:",
            (folder / ".snakemake.log").read_text(errors="replace")[-3000:],
            sep="\n",
        )
    places = f"notebooks/executed/{settings['profile']} and figures/{settings['profile']}"
    print("the same command continues" if code or failed else places)
    return code if code == 130 else int(bool(code or failed))


def main(arguments: list[str]) -> int:
    """Do a job. Its flag says what it made, how long it took and which cells failed; ``.error``
    beside it, why not.
    """
    (name, began, what, *names), run_file = (
        arguments,
        Path(RUN_FILE).absolute(),
    )  # papermill changes the folder
    settings = json.loads(run_file.read_bytes())
    if settings["began"] != began:
        return 1  # of a run that was killed, and another has begun
    threading.Thread(target=_end_with, args=(settings, run_file), daemon=True).start()
    flag, begin = Path(name).absolute(), time.monotonic()
    error = flag.with_suffix(".error")
    error.write_text(KILLED, encoding="utf-8")  # true until something else is written
    os.environ[BEGAN] = began  # cells that failed in this run are not tried again in it
    if not os.isatty(1):
        os.environ["TQDM_MININTERVAL"] = "30"  # a line each time
    print("──", *(names or [what]), flush=True)
    try:
        _take_gpu(settings["gpus"])
        made, failed = {"cells": _cells, "notebook": _notebook, "figures": _figures}[what](
            settings, *names
        )
        paths = [os.path.relpath(file, config.ROOT) for file in made]
        write_json(
            flag,
            {"began": began, "seconds": time.monotonic() - begin, "failed": failed, "made": paths},
        )
        error.unlink()
        return 0
    except KeyboardInterrupt:
        return 130
    except SystemExit as problem:  # a notebook that did not come to its end
        error.write_text(str(problem), encoding="utf-8")
    except Exception as problem:
        traceback.print_exc()
        error.write_text(f"{type(problem).__name__}: {problem}".strip(), encoding="utf-8")
    return 1


def _cells(
    settings: dict[str, Any], unit: str, model: str, part: str = "1", parts: str = "1"
) -> Made:
    """Cells of one unit for one model, or of one group of its tasks."""
    profile = config.load_profile(settings["profile"], **settings["given"])
    (model,) = (known for known in models_of(profile, unit) if config.slug(known) == model)
    force = settings["force"] and any(
        unit in NOTEBOOKS.get(name[:2], ()) for name in settings["notebooks"]
    )
    counts = compute(unit, profile, model, settings["seed"], force, (int(part) - 1, int(parts)))
    print(", ".join(f"{number} {what}" for what, number in counts.items()))
    cells = (config.RESULTS / settings["profile"] / UNITS[unit].store / config.slug(model)).glob(
        "*/[!.]*.json"
    )
    return list(cells), [f"{unit} of {model}: {counts['failed']}"] if counts.get("failed") else []


def _notebook(settings: dict[str, Any], name: str) -> Made:
    """An executed notebook, and the cells that it shows."""
    source, profile = config.NOTEBOOKS / f"{name}.ipynb", settings["profile"]
    output = config.NOTEBOOKS / "executed" / profile / source.name
    execute(
        source, output, settings["notebooks"][name] | ({"force": True} if settings["force"] else {})
    )
    made, failed = [output], []
    for store in dict.fromkeys(UNITS[unit].store for unit in NOTEBOOKS.get(name[:2], ())):
        folder = config.RESULTS / profile / store
        for (model, method, task), cell in (
            read_results(profile, store).items() if folder.is_dir() else ()
        ):
            made.append(folder / config.slug(model) / method / f"{task}.json")
            if "failed" in cell["result"]:
                failed.append(f"{store}/{model}/{method}/{task}: {cell['result']['failed']}")
    return made, failed


def _figures(settings: dict[str, Any]) -> Made:
    """Every figure and table that has stored results."""
    return report.redraw(config.load_profile(settings["profile"], **settings["given"])), []


def execute(source: Path, output: Path, parameters: dict[str, Any]) -> None:
    """Run a notebook in its folder; one that fails is left beside ``output``, as
    ``….unfinished.ipynb``.
    """
    import nbformat
    import papermill
    from nbclient.exceptions import DeadKernelError
    from traitlets.config import Config

    papermill.log.logger.setLevel("CRITICAL")  # what goes wrong is said once, and by us
    output.parent.mkdir(parents=True, exist_ok=True)
    beside = output.with_suffix(".unfinished.ipynb")
    how: dict[str, Any] = {"kernel_name": "python3", "cwd": source.parent, "coalesce_streams": True}
    how |= {
        "stdout_file": sys.stdout,
        "stderr_file": sys.stdout,
        "progress_bar": False,
    }  # a notebook has its own
    how["config"] = Config(
        {"KernelManager": {"transport_encryption": "auto"}}
    )  # or each kernel warns
    try:
        notebook = papermill.execute_notebook(source, beside, parameters, **how)
    except DeadKernelError as error:
        raise SystemExit(
            f"the kernel died: {KILLED}; choose a smaller model (--models) or profile"
        ) from error
    except papermill.exceptions.PapermillExecutionError as error:
        where = f"cell [{error.exec_count}] raised {error.ename}: {error.evalue}"
        raise SystemExit(f"{where}; see {os.path.relpath(beside, config.ROOT)}") from error
    notebook.metadata.pop("papermill", None)  # times, and paths of this machine
    notebook.metadata["harp"] = {"source_sha256": hashlib.sha256(source.read_bytes()).hexdigest()}
    text = nbformat.writes(notebook)
    rows = Path(parameters.get("datasets") or "")
    known = [(config.ROOT, "."), (Path(sys.prefix), "<environment>"), (Path.home(), "~")]
    for folder, name in [(rows, rows.name)] * rows.is_absolute() + known:
        text = re.sub(rf"(?<![\w./-]){re.escape(str(folder))}(?![\w-])", name, text)
    beside.write_text(text, encoding="utf-8")
    beside.replace(output)


def _take_gpu(gpus: list[str]) -> None:
    """Choose a GPU for this job, where jobs share the machine's, and hold it until the process
    ends.
    """
    for gpu in itertools.cycle(gpus):
        with suppress(Timeout):
            lock = FileLock(config.RESULTS / f".gpu-{gpu}.lock")
            lock.acquire(timeout=0.2)
            os.environ["CUDA_VISIBLE_DEVICES"] = gpu
            return _held.append(lock)


def _end_with(settings: dict[str, Any], run_file: Path) -> None:
    """Die, and the engine too that would start the next job, when the run was killed or another has
    begun.
    """
    with suppress(OSError, ValueError, psutil.Error):
        while json.loads(run_file.read_bytes())["began"] == settings["began"]:
            if (
                settings["runner"]
                and psutil.Process(settings["runner"]).status() == psutil.STATUS_ZOMBIE
            ):
                break
            time.sleep(1)
    os.killpg(0, signal.SIGKILL)  # a kernel follows by itself


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
