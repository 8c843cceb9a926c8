"""Does one job of a run, as the batch engine starts it: ``python -m harp_lib.job FOLDER NAME``.

``FOLDER/run.json`` says what the job is. How it fared goes to ``FOLDER/NAME.json``; a job that failed says so there and
ends well, so that what comes after gets its turn. What it prints goes to ``FOLDER/NAME.log``, or to stdout where jobs
run one at a time.
"""

import json
import os
import re
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from typing import Any

import psutil

from harp_lib import paths
from harp_lib.console import KernelText
from harp_lib.results import BEGAN, FORCED, ResultStore, write_json

_SUMMARY = re.compile(r"(\d+) cells computed, (\d+) read from the result store(?:, (\d+) failed)?")
_COUNTS = ("computed", "read", "failed")


def main(folder: Path, name: str) -> int:
    """Do a job and say how it fared: result (done, failed, interrupted, not run), error, seconds, output and cells."""
    run = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    os.environ |= {BEGAN: run["began"], FORCED: " ".join(run["forced"])}
    if run["asked_threads"]:  # the engine has set what the job occupies, which for a timed one is all
        os.environ |= dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), str(run["asked_threads"]))
    number = os.environ.get("SLURM_JOB_ID", "")
    if run["runner"] or number:
        _end_with(run["runner"], folder / "run.json")
    (folder / f"{name}.begun").write_text(number)
    outcome: dict[str, Any] = {"result": "done", "error": "", "output": ""}
    begin = time.monotonic()
    with _shown(folder / f"{name}.log", run["live"], name) as text:
        try:
            failed = [before for before in run["jobs"][name]["needs"] if _result(folder, before) != "done"]
            if failed and not name.startswith(("notebook/", "figures/", "last/")):
                outcome |= {"result": "not run", "error": f"{failed[0]} did not end well"}
            else:
                outcome |= _do(name, run, text)
        except KeyboardInterrupt:
            outcome["result"] = "interrupted"
        except Exception as error:
            traceback.print_exc()
            outcome |= {"result": "failed", "error": f"{type(error).__name__}: {error}".strip()}
    outcome["seconds"] = time.monotonic() - begin
    try:
        write_json(folder / f"{name}.json", outcome)
    except OSError as error:
        print(f"{name}: {outcome['error'] or outcome['result']}; and that could not be written: {error}")
        return 1
    return 130 if outcome["result"] == "interrupted" else 0


def _result(folder: Path, name: str) -> str:
    return json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))["result"]


def _do(name: str, run: dict[str, Any], text: KernelText) -> dict[str, Any]:
    kind, arguments, profile = name.partition("/")[0], run["jobs"][name]["arguments"], run["profile"]
    if kind in ("notebook", "last"):
        return _notebook(arguments["notebook"], arguments["parameters"], profile["name"], text)
    if kind == "figures":
        from harp_lib import figures

        written = figures.redraw(profile["name"])
        print(f"{len(written)} files")
        return {"output": os.path.relpath(paths.FIGURES / profile["name"], paths.ROOT)}
    from harp_lib.experiments.computing import JOBS

    JOBS[kind.partition("-")[0]](profile, run["seed"], **arguments)
    return {count: ResultStore.all_counts[count] for count in _COUNTS}


def _notebook(file: str, parameters: dict[str, Any], profile: str, text: KernelText) -> dict[str, Any]:
    import nbformat

    from harp_lib.notebooks import execute

    output = paths.NOTEBOOKS / "executed" / profile / file
    outcome = execute(paths.NOTEBOOKS / file, output, parameters, text)
    outcome["output"] = os.path.relpath(output, paths.ROOT)
    cells = []
    with suppress(OSError, ValueError):  # it was not written, or half, on a full disk
        cells = nbformat.read(output, as_version=4).cells
    printed = "".join(shown.get("text", "") for cell in cells for shown in cell.get("outputs", []))
    found = [[int(number or 0) for number in counts] for counts in _SUMMARY.findall(printed)]
    return outcome | dict(zip(_COUNTS, map(sum, zip(*found, strict=True)), strict=False))


@contextmanager
def _shown(log: Path, live: bool, name: str) -> Iterator[KernelText]:
    """Send what is printed to stdout, under a heading, or to a log."""
    if live:
        stream = sys.stdout
        print(f"── {name.removeprefix('notebook/').removeprefix('last/')}", flush=True)
    else:
        stream = log.open("w", encoding="utf-8")
    text = KernelText(stream)
    try:
        with redirect_stdout(text), redirect_stderr(text):
            yield text
    finally:
        text.close()


def _end_with(runner: int | None, run: Path) -> None:
    """Die with the run: who started it again would not want the old one's jobs beside the new.

    On a cluster the runner is a process elsewhere; that the next run removes the old one's files is seen there too.
    """

    def watch() -> None:
        with suppress(psutil.NoSuchProcess):
            process = psutil.Process(runner)  # of this process where there is no runner to see
            while run.is_file() and process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                time.sleep(1)
        for child in psutil.Process().children(recursive=True):
            child.kill()  # a kernel is in a group of its own
        os.killpg(0, signal.SIGKILL)  # the engine too, which would go on to the next job

    threading.Thread(target=watch, daemon=True).start()


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2]))
