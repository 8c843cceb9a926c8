"""What a job of Snakefile runs: ``python -m harp_lib.jobs FLAG WHAT …``, in the folder of a profile's results.

WHAT is ``cells UNIT MODEL [PART PARTS]``, ``notebook NAME`` or ``figures``. Beside the flag lies, until it is written,
what went wrong (``.error``), and where jobs run side by side, what the job printed (``.log``).
"""

import hashlib
import json
import logging
import os
import re
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from harp_lib import config
from harp_lib.batch import KILLED, RUN_FILE, shown
from harp_lib.experiments import NOTEBOOKS, UNITS, compute, models_of
from harp_lib.measure.models import slug
from harp_lib.results import BEGAN, read_results, write_json

Made = tuple[list[Path], list[str]]  # files, and the cells that failed


class NotebookError(RuntimeError):
    """A notebook did not come to its end."""


def main(arguments: list[str]) -> int:
    """Do a job and say in its flag, or beside it, how it fared."""
    (name, what, *names), run_file = arguments, Path(RUN_FILE).absolute()  # papermill changes the folder
    settings = json.loads(run_file.read_text(encoding="utf-8"))
    _end_with(settings, run_file)
    flag = Path(name).absolute()
    error, log = flag.with_suffix(".error"), flag.with_suffix(".log")
    error.parent.mkdir(parents=True, exist_ok=True)
    error.write_text(KILLED, encoding="utf-8")  # true until something else is written
    title = name.removeprefix(".flags/").removeprefix("notebooks/").removesuffix(".done")
    os.environ[BEGAN] = settings["began"][:19] + "+00:00"  # cells that failed in this run are not tried again in it
    begin = time.monotonic()
    try:
        with _output(settings["alone"], log) as say, _gpu(settings["gpus"]):
            if settings["alone"]:
                say(f"── {title}")
            made, failed = {"cells": _cells, "notebook": _notebook, "figures": _figures}[what](settings, *names)
            outcome = {"began": settings["began"], "seconds": time.monotonic() - begin, "failed": failed}
            write_json(flag, {**outcome, "made": [shown(file) for file in made]})
            if not settings["alone"]:
                say(f"{title}: done, {outcome['seconds']:.0f} s")
    except KeyboardInterrupt:
        return 130
    except Exception as problem:
        message = str(problem) if isinstance(problem, NotebookError) else f"{type(problem).__name__}: {problem}"
        error.write_text(message.strip(), encoding="utf-8")
        return 1
    error.unlink()
    return 0


def _cells(settings: dict[str, Any], unit: str, model: str, *part: str) -> Made:
    """Cells of one unit for one model, or of one group of its tasks."""
    profile = config.load_profile(settings["profile"], **settings["given"])
    (model,) = (known for known in models_of(profile, unit) if slug(known) == model)
    counts = compute(unit, profile, model, settings["seed"], (int(part[0]) - 1, int(part[1])) if part else None)
    print(", ".join(f"{number} {what}" for what, number in counts.items()))
    cells = (config.RESULTS / settings["profile"] / UNITS[unit].store / slug(model)).glob("*/[!.]*.json")
    return list(cells), [f"{unit} of {model}: {counts['failed']}"] if counts.get("failed") else []


def _notebook(settings: dict[str, Any], name: str) -> Made:
    """An executed notebook, and the cells that it shows."""
    source, profile = Path(settings["sources"][name]), settings["profile"]
    output = config.NOTEBOOKS / "executed" / profile / source.name
    execute(source, output, settings["notebooks"][name])
    made, failed = [output], []
    for store in dict.fromkeys(UNITS[unit].store for unit in NOTEBOOKS.get(name[:2], ())):
        folder = config.RESULTS / profile / store
        for (model, method, task), cell in read_results(profile, store).items() if folder.is_dir() else ():
            made.append(folder / slug(model) / method / f"{task}.json")
            if "failed" in cell["result"]:
                failed.append(f"{store}/{model}/{method}/{task}: {cell['result']['failed']}")
    return made, failed


def _figures(settings: dict[str, Any]) -> Made:
    from harp_lib import report

    return report.redraw(config.load_profile(settings["profile"], **settings["given"])), []


def execute(source: Path, output: Path, parameters: dict[str, Any]) -> None:
    """Run a notebook in its folder; one that fails is left beside ``output``, as ``….unfinished.ipynb``."""
    import nbformat
    import papermill
    from nbclient.exceptions import DeadKernelError
    from papermill.exceptions import PapermillExecutionError
    from traitlets.config import Config

    logging.getLogger("papermill").setLevel(logging.CRITICAL + 1)  # what goes wrong is said once, and by us
    output.parent.mkdir(parents=True, exist_ok=True)
    beside = output.with_suffix(".unfinished.ipynb")
    how: dict[str, Any] = {"kernel_name": "python3", "cwd": source.parent, "coalesce_streams": True}
    how |= {"stdout_file": sys.stdout, "stderr_file": sys.stdout, "progress_bar": False}  # a notebook has its own
    how["config"] = Config({"KernelManager": {"transport_encryption": "auto"}})  # or each kernel warns
    try:
        papermill.execute_notebook(source, beside, parameters, **how)
    except DeadKernelError as error:
        raise NotebookError(f"the kernel died: {KILLED}; choose a smaller model (--models) or profile") from error
    except PapermillExecutionError as error:
        where = f"cell [{error.exec_count}] raised {error.ename}: {error.evalue}"
        raise NotebookError(f"{where}; see {shown(beside)}") from error
    notebook = nbformat.read(beside, as_version=4)
    notebook.metadata.pop("papermill", None)  # times, and paths of this machine
    notebook.metadata["harp"] = {"source_sha256": hashlib.sha256(source.read_bytes()).hexdigest()}
    text = nbformat.writes(notebook)
    for folder, name in ((config.ROOT, "."), (Path(sys.prefix), "<environment>"), (Path.home(), "~")):
        text = re.sub(rf"(?<![\w./-]){re.escape(str(folder))}(?![\w-])", name, text)
    beside.write_text(text, encoding="utf-8")
    beside.replace(output)


@contextmanager
def _output(alone: bool, log: Path) -> Iterator[Callable[[str], None]]:
    """Jobs side by side print into their logs; yields what speaks to the terminal all the same."""
    terminal = os.fdopen(os.dup(1), "w", encoding="utf-8")
    if not alone:
        with log.open("w") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
    if not os.isatty(1):
        os.environ["TQDM_MININTERVAL"] = "30"  # a line each time
    try:
        yield lambda text: print(text, file=terminal, flush=True)
    except Exception:
        traceback.print_exc()
        raise
    finally:
        sys.stdout.flush()


@contextmanager
def _gpu(gpus: list[str]) -> Iterator[None]:
    """A GPU for this job, where jobs share the machine's."""
    taken: FileLock | None = None
    while gpus and taken is None:
        for gpu in gpus:
            with suppress(Timeout):
                taken = FileLock(config.RESULTS / f".gpu-{gpu}.lock").acquire(timeout=0).lock
                os.environ["CUDA_VISIBLE_DEVICES"] = gpu
                break
        else:
            time.sleep(1)
    try:
        yield
    finally:
        if taken is not None:
            taken.release()


def _end_with(settings: dict[str, Any], run_file: Path) -> None:
    """Die, and the engine too that would start the next job, when the run was killed or another has begun."""
    import psutil

    def watch() -> None:
        with suppress(OSError, ValueError, psutil.Error):
            while json.loads(run_file.read_text(encoding="utf-8"))["began"] == settings["began"]:
                if settings["runner"] and psutil.Process(settings["runner"]).status() == psutil.STATUS_ZOMBIE:
                    break
                time.sleep(1)
        os.killpg(0, signal.SIGKILL)  # a kernel follows by itself

    threading.Thread(target=watch, daemon=True).start()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
