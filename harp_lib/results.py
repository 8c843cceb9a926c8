"""The result store: one JSON per cell of a table, computed once."""

import hashlib
import json
import os
import platform
import resource
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, ClassVar

import pandas as pd

from harp_lib import __version__, paths
from harp_lib.locks import exclusive
from harp_lib.measure.models import slug

PACKAGES = ("torch", "transformers", "lm_eval")
RUN_FILE = "run.json"  # the cells of the last finished run of an experiment
BEGAN, FORCED = "HARP_RUN_BEGAN", "HARP_FORCED"  # what the processes of one run know: its time, forced experiments

Cells = dict[tuple[str, str, str], dict[str, Any]]  # by model, method and task


class ResultStore:
    """Cells of one profile and experiment, under ``data/results/<profile>/<experiment>/``.

    Parameters
    ----------
    profile, experiment : str
        Name the folder.
    root : Path, optional
        Where results are kept; default ``data/results``.
    force : bool
        Compute every cell again, whatever is stored; in a run of several processes, once in all of them.
    """

    all_counts: ClassVar[Counter[str]] = Counter()  # of all stores of this process

    def __init__(self, profile: str, experiment: str, root: Path | None = None, force: bool = False) -> None:
        self.folder = (root or paths.RESULTS) / profile / experiment
        self.began = os.environ.get(BEGAN, "")
        self.force = force or experiment in os.environ.get(FORCED, "").split()
        self.counts: Counter[str] = Counter()
        self.cells: Cells = {}

    def cell(
        self,
        model: str,
        method: str,
        task: str,
        inputs: dict[str, Any],
        compute: Callable[[Path], dict[str, Any]],
        seconds: float | None = None,
    ) -> dict[str, Any]:
        """The result of one cell: read if it was computed from equal ``inputs``, computed and stored otherwise.

        A result that says ``failed``, and why, is stored, but not for the next run, which tries anew.

        Parameters
        ----------
        model, method, task : str
            Name the file ``<model>/<method>/<task>.json``.
        inputs : dict
            Everything that the result depends on, as JSON values, ``model`` among them.
        compute : callable
            Gets a path beside the cell where an interrupted computation may keep what it has, and returns the result
            as JSON values.
        seconds : float, optional
            That the result took, where it was computed before and ``compute`` only hands it over.

        Returns
        -------
        dict
            What ``compute`` returned, after a round trip through JSON.
        """
        file, inputs = self._file(model, method, task), _complete(inputs)
        stored = self._stored(file, inputs) or self._compute(file, inputs, compute, seconds)
        self.cells[model, method, task] = stored
        return stored["result"]

    def _compute(
        self, file: Path, inputs: dict[str, Any], compute: Callable[[Path], dict[str, Any]], seconds: float | None
    ) -> dict[str, Any]:
        """Compute and store a cell, or read it if another process did so while this one waited for it."""
        partial = file.with_suffix(f".{digest(inputs)}.partial")
        waiting = f"another process computes {file.stem} of {file.parent.name}: waiting for it"
        with exclusive(file.with_name(f".{file.stem}.lock"), waiting):
            if (stored := self._stored(file, inputs)) is not None:
                return stored
            if self.force and partial.is_file() and not self._of_this_run(partial.stat().st_mtime):
                partial.unlink()
            begin = time.perf_counter()
            result = json.loads(json.dumps(compute(partial)))
            took = round(time.perf_counter() - begin if seconds is None else seconds, 3)
            stored = {"inputs": inputs, "result": result, "seconds": took, **provenance()}
            write_json(file, stored)
            killed = file.parent.glob(f".{file.stem}-????????.tmp")  # of who was killed while writing it
            for leftover in [*file.parent.glob(f"{file.stem}.*.partial"), *killed]:
                leftover.unlink()
            self._count("failed" if "failed" in result else "computed")
        return stored

    def _count(self, what: str) -> None:
        self.counts[what] += 1
        ResultStore.all_counts[what] += 1

    def has(self, model: str, method: str, task: str, inputs: dict[str, Any]) -> bool:
        """Whether :meth:`cell` would read."""
        return self._usable(self._file(model, method, task), _complete(inputs)) is not None

    def _file(self, model: str, method: str, task: str) -> Path:
        return self.folder / slug(model) / method / f"{task}.json"

    def _stored(self, file: Path, inputs: dict[str, Any]) -> dict[str, Any] | None:
        stored = self._usable(file, inputs)
        if stored is not None:
            self._count("read")
        return stored

    def _usable(self, file: Path, inputs: dict[str, Any]) -> dict[str, Any] | None:
        stored = read_cell(file)
        if stored is None or stored["inputs"] != inputs:
            return None
        again = self.force or "failed" in stored["result"]
        return None if again and not self._of_this_run(_timestamp(stored.get("time"))) else stored

    def _of_this_run(self, when: float) -> bool:
        return bool(self.began) and when >= _timestamp(self.began)

    def finish(self) -> Cells:
        """All cells of this run. They are also listed on disk, so that ``figures`` draws these and no leftovers."""
        cells = [[*key, digest(cell["inputs"])] for key, cell in self.cells.items()]
        write_json(self.folder / RUN_FILE, {"cells": cells})
        return self.cells

    @property
    def summary(self) -> str:
        """How many cells were computed, how many read and, if any did, how many failed."""
        failed = f", {self.counts['failed']} failed" if self.counts["failed"] else ""
        return f"{self.counts['computed']} cells computed, {self.counts['read']} read from the result store{failed}"


def _timestamp(time: str | None) -> float:
    return datetime.fromisoformat(time).timestamp() if time else 0.0


def _complete(inputs: dict[str, Any]) -> dict[str, Any]:
    """Inputs as they are stored."""
    return json.loads(json.dumps(inputs | {"harp_lib": __version__}))


def read_cell(file: Path) -> dict[str, Any] | None:
    """A stored cell, or None; a file that cannot be read is moved aside and named in a warning."""
    try:
        cell = json.loads(file.read_text(encoding="utf-8"))
        if {"inputs", "result"} <= set(cell):
            return cell
    except FileNotFoundError:
        return None
    except (ValueError, TypeError):
        pass
    aside = file.with_suffix(f".unreadable-{int(time.time())}")
    try:
        file.rename(aside)
    except FileNotFoundError:  # another process was first
        return None
    name = "/".join(file.parts[-3:])  # whole, for Python shows equal warnings once
    warnings.warn(f"{name} could not be read; moved to {aside.name}, computing it again", stacklevel=3)
    return None


def is_stored(profile: str, experiment: str, model: str, method: str, task: str) -> bool:
    """Whether this checkout has a result of this version of the library, whatever the other inputs."""
    file = ResultStore(profile, experiment)._file(model, method, task)
    try:
        cell = json.loads(file.read_text(encoding="utf-8"))
        return cell["inputs"]["harp_lib"] == __version__ and "failed" not in cell["result"]
    except (OSError, ValueError, KeyError, TypeError):
        return False


def has_results(profile: str, experiment: str) -> bool:
    """Whether there is a finished run for :func:`read_results`."""
    return any((root / profile / experiment / RUN_FILE).is_file() for root in _roots())


def read_results(profile: str, experiment: str, roots: Sequence[Path] | None = None) -> Cells:
    """Cells of the last finished run of this checkout, or else of the committed reference run.

    Parameters
    ----------
    profile, experiment : str
        As for :class:`ResultStore`.
    roots : sequence of Path, optional
        Where to look; default: this checkout's results, then the reference.

    Raises
    ------
    FileNotFoundError
        If there was none, or a cell of it is gone.
    """
    again = f"run ./run_all.sh --profile {profile} first"
    for root in roots or _roots():
        folder = root / profile / experiment
        if (run := folder / RUN_FILE).is_file():
            cells = {}
            for model, method, task, inputs in json.loads(run.read_text(encoding="utf-8"))["cells"]:
                cell = read_cell(folder / slug(model) / method / f"{task}.json")
                if cell is None or digest(cell["inputs"]) != inputs:
                    raise FileNotFoundError(
                        f"the result {model}/{method}/{task} of {experiment} is gone or of an unfinished run; {again}"
                    )
                cells[model, method, task] = cell
            return cells
    raise FileNotFoundError(f"no stored results of {experiment} for the profile {profile}; {again}")


def _roots() -> tuple[Path, Path]:
    return paths.RESULTS, paths.REFERENCE


def digest(inputs: dict[str, Any]) -> str:
    """Eight hexadecimal digits that equal inputs share."""
    return hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()[:8]


def write_json(file: Path, values: dict[str, Any]) -> None:
    """Write a JSON file so that it is there whole or not at all."""
    file.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=file.parent, prefix=f".{file.stem}-", suffix=".tmp")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            json.dump(values, stream, indent=1)
            stream.write("\n")
        os.chmod(temporary, 0o644)
        os.replace(temporary, file)
    except BaseException:
        os.unlink(temporary)
        raise


def device_name() -> str:
    """The accelerator's name, or the processor architecture."""
    import torch  # here, because a job that runs a notebook needs the store but not torch

    return torch.cuda.get_device_name() if torch.cuda.is_available() else f"CPU ({platform.machine()})"


def provenance() -> dict[str, Any]:
    """Device, versions and time, as every cell records them."""
    versions = {"python": platform.python_version(), "harp_lib": __version__}
    versions |= {name: version(name) for name in PACKAGES}
    return {"device": device_name(), "versions": versions, "time": datetime.now(UTC).isoformat(timespec="seconds")}


def provenance_table(cells: Cells, profile: dict[str, Any], seed: int, seconds: float) -> pd.DataFrame:
    """What a notebook records last: where its cells were computed, and what read them."""
    here = provenance()
    dtypes = (cell["inputs"]["dtype"].removeprefix("torch.") for cell in cells.values() if "dtype" in cell["inputs"])
    rows = {
        "profile": profile["name"],
        "datasets": Path(profile["datasets"]).name,
        "dtype": _distinct(dtypes) or profile["dtype"],
        "seed": seed,
    }
    rows["cells computed on"] = _distinct(cell["device"] for cell in cells.values())
    for name in here["versions"]:
        rows[f"{name} of the cells"] = _distinct(cell["versions"][name] for cell in cells.values())
    rows["cells computed (UTC)"] = " to ".join(sorted({f(cell["time"] for cell in cells.values()) for f in (min, max)}))
    rows["seconds of the cells"] = f"{sum(cell['seconds'] for cell in cells.values()):.0f}"
    unit = 2**30 if sys.platform == "darwin" else 2**20  # bytes there, KiB elsewhere
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit
    rows["this run"] = f"{here['device']}, {seconds:.0f} seconds, {memory:.1f} GiB at most, {here['time']}"
    return pd.DataFrame({"what": rows.keys(), "value": map(str, rows.values())})


def _distinct(values: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(values))
