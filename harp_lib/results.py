"""The result store: one JSON file per cell, computed once and stored as rows."""

import hashlib
import json
import os
import platform
import subprocess
import time
import uuid
import warnings
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import pandas as pd
import psutil
from filelock import FileLock

from harp_lib import __version__, config

BEGAN = "HARP_RUN_BEGAN"  # in the environment of the processes of one run: when it began
UNKNOWN = "unknown"  # of cells that older versions have written
PACKAGES = ("torch", "transformers", "lm_eval")  # whose versions a cell records

Cells = dict[tuple[str, str, str], dict[str, Any]]  # stored cells by model, method and name
Result = dict[str, Any]  # "rows", and beside them what is no table: a plan, versions


@dataclass(frozen=True)
class Cell:
    """One unit of work that is computed, stored and resumed as a whole.

    Attributes
    ----------
    method : str
        The method whose results it holds; the folder of its file.
    name : str
        The name of its file. It is for people and is never parsed.
    inputs : dict
        Everything that the result depends on, as JSON values.
    compute : callable
        Returns the result: ``rows``, a list of records, and beside them what is no table (a plan,
        versions), as JSON values. A result that is only ``{"failed": reason}`` is shown as missing.
    coordinates : dict
        What the whole cell is about (corpus, split, number of layers, …). Coordinates become
        columns of each row when the store is read.
    resumes : bool
        ``compute`` takes a path, where an interrupted computation may keep what it has.
    """

    method: str
    name: str
    inputs: dict[str, Any]
    compute: Callable[..., Result]
    coordinates: dict[str, Any] = field(default_factory=dict)
    resumes: bool = False


class ResultStore:
    """Cells of one profile and experiment.

    ``force`` computes every cell again, whatever is stored.
    """

    def __init__(self, profile: str, experiment: str, force: bool = False) -> None:
        self.folder = config.RESULTS / profile / experiment
        self.force = force
        self.began = datetime.fromisoformat(os.environ.get(BEGAN) or datetime.now(UTC).isoformat())
        self.counts: Counter[str] = Counter()  # computed, read, failed
        self.cells: Cells = {}

    def result(self, model: str, cell: Cell) -> Result:
        """The result of one cell: read if it was computed from equal inputs, else computed.

        A result that says ``failed``, and why, is stored, but not for the next run, which tries
        anew.
        """
        file = self.file(model, cell.method, cell.name)
        inputs = json.loads(json.dumps(cell.inputs | {"harp_lib": __version__}))
        stored = self._stored(file, inputs)
        how = "read"
        if stored is None:
            # Another process may compute it just now.
            with FileLock(file.with_name(f".{cell.name}.lock")) as lock:
                stored = self._stored(file, inputs)
                if stored is None:
                    stored = self._compute(file, inputs, cell)
                    how = "computed"
                Path(lock.lock_file).unlink(missing_ok=True)  # who waited for it takes a new one
        self.cells[model, cell.method, cell.name] = stored
        if "failed" in stored["result"]:
            how = "failed"
        self.counts[how] += 1
        return stored["result"]

    def file(self, model: str, method: str, name: str) -> Path:
        """Where a cell is kept."""
        return self.folder / config.slug(model) / method / f"{name}.json"

    def _stored(self, file: Path, inputs: dict[str, Any]) -> dict[str, Any] | None:
        """The stored cell, if it is of these inputs and does not have to be computed again."""
        stored = read_cell(file)
        if stored is None or stored["inputs"] != inputs:
            return None
        again = self.force or "failed" in stored["result"]
        if again and datetime.fromisoformat(stored["time"]) < self.began:
            return None
        return stored

    def _compute(self, file: Path, inputs: dict[str, Any], cell: Cell) -> dict[str, Any]:
        """Compute a cell and write its file."""
        partial = file.with_suffix(f".{digest(inputs)}.partial")
        if self.force:
            partial.unlink(missing_ok=True)
        begin = time.perf_counter()
        result = cell.compute(partial) if cell.resumes else cell.compute()
        if isinstance(result.get("rows"), list):  # else it was read from another cell
            result = result | {"rows": columns_of(result["rows"])}
        versions = {"python": platform.python_version(), "harp_lib": __version__}
        for package in PACKAGES:
            with suppress(PackageNotFoundError):  # not every cell needs all of them
                versions[package] = version(package)
        stored = {
            "coordinates": cell.coordinates,
            "inputs": inputs,
            "result": result,
            "seconds": round(time.perf_counter() - begin, 3),
            "device": device_name(),
            "hardware": hardware(),
            "commit": commit(),
            "versions": versions,
            "time": datetime.now(UTC).isoformat(timespec="seconds"),
        }
        stored = json.loads(json.dumps(stored))  # as the next process reads it
        write_json(file, stored)
        leftovers = [*file.parent.glob(f"{file.stem}.*.partial")]
        # What a process that was killed while it wrote has left.
        leftovers += file.parent.glob(f".{file.stem}-????????.tmp")
        for leftover in leftovers:
            leftover.unlink(missing_ok=True)
        return stored

    def finish(self, unit: str, models: Iterable[str] = ()) -> None:
        """List the cells of this run, so that the report reads these and no leftovers of another.

        Of ``models`` that this run had no need of, what was listed stays.
        """
        run = self.folder / f"run-{unit}.json"
        listed = [[*key, digest(stored["inputs"])] for key, stored in self.cells.items()]
        if not listed:
            run.unlink(missing_ok=True)
            return
        others = {*models} - {model for model, *_ in self.cells}
        if run.is_file():
            before = json.loads(run.read_bytes())["cells"]
            listed += [entry for entry in before if entry[0] in others]
        write_json(run, {"cells": listed})


def columns_of(rows: Iterable[dict[str, Any]]) -> dict[str, list]:
    """Records column by column, which is small; what a record lacks is None."""
    records = list(rows)
    names = dict.fromkeys(name for record in records for name in record)
    return {name: [record.get(name) for record in records] for name in names}


def rows_of(result: Result) -> pd.DataFrame:
    """The rows of a stored result, as a frame."""
    return pd.DataFrame(result["rows"])


def values_of(result: Result, quantity: str) -> list[Any]:
    """The values of one quantity of a stored result, in the order of its rows."""
    rows = result["rows"]
    pairs = zip(rows["quantity"], rows["value"], strict=True)
    return [value for name, value in pairs if name == quantity]


def read_cell(file: Path) -> dict[str, Any] | None:
    """A stored cell, or None.

    A file that cannot be read is moved aside and named in a warning. Cells that an older version
    has written, which did not store rows, are left where they are and count as not stored.
    """
    try:
        stored = json.loads(file.read_bytes())
        if {"coordinates", "inputs", "result"} <= set(stored):
            return stored
        if {"inputs", "result"} <= set(stored):
            message = "results of an older version are not rows: computing them again"
            warnings.warn(message, stacklevel=3)  # Python shows equal warnings once
            return None
    except FileNotFoundError:
        return None
    except (ValueError, TypeError):
        pass
    aside = file.with_suffix(f".unreadable-{int(time.time())}")
    with suppress(FileNotFoundError):  # another process was first
        file.rename(aside)
        name = "/".join(file.parts[-3:])  # whole, for Python shows equal warnings once
        message = f"{name} could not be read; moved to {aside.name}, computing it again"
        warnings.warn(message, stacklevel=3)
    return None


def read_results(profile: str, experiment: str) -> Cells:
    """Cells of the last finished run, or else committed ones, in the registry's order of models.

    FileNotFoundError if there are none, or one is gone.
    """
    again = f"run ./run_all.sh --profile {profile} first"
    for root in (config.RESULTS, config.REFERENCE):
        folder = root / profile / experiment
        cells = {}
        for (model, method, name), inputs_digest in _listed(folder).items():
            stored = read_cell(folder / config.slug(model) / method / f"{name}.json")
            if stored is None or digest(stored["inputs"]) != inputs_digest:
                what = f"the result {model}/{method}/{name} of {experiment}"
                raise FileNotFoundError(f"{what} is gone or of an unfinished run; {again}")
            cells[model, method, name] = stored
        if cells:
            return _in_order_of_models(cells)
    raise FileNotFoundError(f"no stored results of {experiment} for the profile {profile}; {again}")


def _in_order_of_models(cells: Cells) -> Cells:
    """The cells in the order in which models stand in the registry, others behind them."""
    names = list(config.NAMED_MODELS)

    def place(key: tuple[str, str, str]) -> int:
        return names.index(key[0]) if key[0] in names else len(names)

    return {key: cells[key] for key in sorted(cells, key=place)}


def _listed(folder: Path) -> dict[tuple[str, str, str], str]:
    """The cells that the runs of an experiment have listed, and the digests of their inputs."""
    listed: dict[tuple[str, str, str], str] = {}
    for run in sorted(folder.glob("run*.json"), key=lambda file: file.stat().st_mtime):
        for *key, inputs_digest in json.loads(run.read_bytes())["cells"]:
            listed[tuple(key)] = inputs_digest
    return listed


def listed_cells(profile: str, unit: str) -> dict[str, str]:
    """Digests of the inputs of the cells of a unit, by ``store/model/method/name``.

    They are those of its last run in this checkout, or else of the committed one, or none. Runs on
    other devices, and parts of runs to come, have lists called ``run-UNIT-….json``.
    """
    for root in (config.RESULTS, config.REFERENCE):
        cells = {}
        runs = (root / profile).glob(f"*/run-{unit}.json")
        elsewhere = (root / profile).glob(f"*/run-{unit}-*.json")
        for run in sorted([*runs, *elsewhere]):
            for *key, inputs_digest in json.loads(run.read_bytes())["cells"]:
                cells["/".join((run.parent.name, *key))] = inputs_digest
        if cells:
            return cells
    return {}


def digest(inputs: dict[str, Any]) -> str:
    """Eight hexadecimal digits that equal inputs share."""
    return hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()[:8]


def write_json(file: Path, values: dict[str, Any]) -> None:
    """Write a JSON file, an entry a line, so that it is there whole or not at all."""
    file.parent.mkdir(parents=True, exist_ok=True)
    temporary = file.with_name(f".{file.stem}-{uuid.uuid4().hex[:8]}.tmp")
    entries = (f" {json.dumps(name)}: {json.dumps(value)}" for name, value in values.items())
    text = ",\n".join(entries)
    temporary.write_text(f"{{\n{text}\n}}\n", encoding="utf-8")
    temporary.replace(file)


@cache
def commit() -> str:
    """The git commit of this checkout; "unknown" without git, "… with changes" if files differ."""
    root = config.ROOT
    git = ["git", "--git-dir", str(root / ".git"), "--work-tree", str(root)]
    try:
        head = subprocess.run(
            [*git, "rev-parse", "HEAD"], capture_output=True, check=True, text=True
        )
        changed = subprocess.run([*git, "diff", "--quiet", "HEAD", "--", "harp_lib"], check=False)
    except (OSError, subprocess.CalledProcessError):
        return UNKNOWN
    name = head.stdout.strip()
    if changed.returncode:
        name += " with changes"
    return name


@cache
def hardware() -> str:
    """The processor's name, its number of cores, and the memory of this machine."""
    memory = psutil.virtual_memory().total / 2**30
    return f"{_processor()}, {psutil.cpu_count()} cores, {memory:.0f} GiB"


def _processor() -> str:
    """The processor's name as the system has it."""
    with suppress(OSError):  # Linux
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    if platform.system() == "Darwin":
        asked = ["sysctl", "-n", "machdep.cpu.brand_string"]
        shown = subprocess.run(asked, capture_output=True, check=False, text=True)
        if shown.stdout.strip():
            return shown.stdout.strip()
    return platform.processor() or platform.machine()


def device_name() -> str:
    """The accelerator's name, or the processor architecture."""
    import torch  # here, because a process that only reads cells does not need it

    if torch.cuda.is_available():
        return torch.cuda.get_device_name()
    return f"CPU ({platform.machine()})"
