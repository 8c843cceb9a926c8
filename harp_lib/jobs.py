"""What a job of Snakefile runs: ``python -m harp_lib.jobs FLAG BEGAN WHAT …``, in the folder of a profile's results.

BEGAN is when its run began; WHAT is ``cells UNIT MODEL [PART PARTS]``, ``notebook NAME`` or ``figures``. Beside the
flag lies, until it is written, what went wrong (``.error``).
"""

import hashlib
import itertools
import json
import logging
import os
import re
import signal
import sys
import threading
import time
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from harp_lib import config
from harp_lib.batch import KILLED, RUN_FILE, shown
from harp_lib.config import slug
from harp_lib.experiments import NOTEBOOKS, UNITS, compute, models_of
from harp_lib.results import BEGAN, read_results, write_json

_held: list[FileLock] = []  # one that nobody refers to is let go
Made = tuple[list[Path], list[str]]  # files, and the cells that failed


class NotebookError(RuntimeError):
    """A notebook did not come to its end."""


def main(arguments: list[str]) -> int:
    """Do a job and say in its flag, or beside it, how it fared."""
    (name, began, what, *names), run_file = arguments, Path(RUN_FILE).absolute()  # papermill changes the folder
    settings = json.loads(run_file.read_text(encoding="utf-8"))
    if settings["began"] != began:
        return 1  # of a run that was killed, and another has begun
    _end_with(settings, run_file)
    flag, begin = Path(name).absolute(), time.monotonic()
    error = flag.with_suffix(".error")
    error.write_text(KILLED, encoding="utf-8")  # true until something else is written
    os.environ[BEGAN] = began  # cells that failed in this run are not tried again in it
    if not os.isatty(1):
        os.environ["TQDM_MININTERVAL"] = "30"  # a line each time
    print("──", *(names or [what]), flush=True)
    try:
        _take_gpu(settings["gpus"])
        made, failed = {"cells": _cells, "notebook": _notebook, "figures": _figures}[what](settings, *names)
        paths = [shown(file) for file in made]
        write_json(flag, {"began": began, "seconds": time.monotonic() - begin, "failed": failed, "made": paths})
    except KeyboardInterrupt:
        return 130
    except NotebookError as problem:
        error.write_text(str(problem), encoding="utf-8")
        return 1
    except Exception as problem:
        traceback.print_exc()
        error.write_text(f"{type(problem).__name__}: {problem}".strip(), encoding="utf-8")
        return 1
    error.unlink()
    return 0


def _cells(settings: dict[str, Any], unit: str, model: str, part: str = "1", parts: str = "1") -> Made:
    """Cells of one unit for one model, or of one group of its tasks."""
    profile = config.load_profile(settings["profile"], **settings["given"])
    (model,) = (known for known in models_of(profile, unit) if slug(known) == model)
    force = settings["force"] and any(unit in NOTEBOOKS.get(name[:2], ()) for name in settings["notebooks"])
    counts = compute(unit, profile, model, settings["seed"], force, (int(part) - 1, int(parts)))
    print(", ".join(f"{number} {what}" for what, number in counts.items()))
    cells = (config.RESULTS / settings["profile"] / UNITS[unit].store / slug(model)).glob("*/[!.]*.json")
    return list(cells), [f"{unit} of {model}: {counts['failed']}"] if counts.get("failed") else []


def _notebook(settings: dict[str, Any], name: str) -> Made:
    """An executed notebook, and the cells that it shows."""
    source, profile = config.NOTEBOOKS / f"{name}.ipynb", settings["profile"]
    output = config.NOTEBOOKS / "executed" / profile / source.name
    execute(source, output, settings["notebooks"][name] | ({"force": True} if settings["force"] else {}))
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
    rows = Path(parameters.get("datasets") or "")
    known = [(config.ROOT, "."), (Path(sys.prefix), "<environment>"), (Path.home(), "~")]
    for folder, name in [(rows, rows.name)] * rows.is_absolute() + known:
        text = re.sub(rf"(?<![\w./-]){re.escape(str(folder))}(?![\w-])", name, text)
    beside.write_text(text, encoding="utf-8")
    beside.replace(output)


def _take_gpu(gpus: list[str]) -> None:
    """Choose a GPU for this job, where jobs share the machine's, and hold it until the process ends."""
    for gpu in itertools.cycle(gpus):
        with suppress(Timeout):
            lock = FileLock(config.RESULTS / f".gpu-{gpu}.lock")
            lock.acquire(timeout=0.2)
            os.environ["CUDA_VISIBLE_DEVICES"] = gpu
            return _held.append(lock)


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
