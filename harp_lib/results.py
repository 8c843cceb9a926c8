"""The result store: a cell is computed once and kept as rows.

What this checkout computes is in ``data/results/<profile>/<experiment>``: a cell in
``<model>/<method>/<name>.json``, and in ``run-<unit>.json`` which cells the last run of a unit
needed, because reports read these and no leftovers of other runs. Committed cells are in
``data/reference/<profile>/<experiment>``: those of a model in ``<model>.jsonl``, one in each line,
beside the same lists. ``data/reference/pack.py`` makes one form of the other.
"""

import hashlib
import json
import os
import time
import uuid
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pandas as pd

from harp_lib import __version__, config, locks
from harp_lib.circumstances import circumstances

BEGAN = "HARP_RUN_BEGAN"  # in the environment of the processes of one run: when it began
VERSION = "harp_lib"  # the input that says which version computed a cell; it is not compared

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

    Parameters
    ----------
    profile, experiment : str
        Which folder of ``data/results`` it is.
    force : bool
        Compute every cell again, whatever is stored.

    Attributes
    ----------
    counts : Counter
        How many cells were computed, read, or failed.
    cells : dict
        The stored cells that :meth:`result` has returned, by model, method and name.
    """

    def __init__(self, profile: str, experiment: str, force: bool = False) -> None:
        self.folder = config.RESULTS / profile / experiment
        self.force = force
        self.began = datetime.fromisoformat(os.environ.get(BEGAN) or datetime.now(UTC).isoformat())
        self.counts: Counter[str] = Counter()
        self.cells: Cells = {}

    def result(self, model: str, cell: Cell) -> Result:
        """The result of one cell: read if it was computed from equal inputs, else computed.

        Which version of the library computed it does not matter. A result that says ``failed``,
        and why, is stored, but not for the next run, which tries anew.
        """
        file = self.file(model, cell.method, cell.name)
        inputs = _as_stored(cell.inputs)
        stored = self._stored(file, inputs)
        how = "read"
        if stored is None:
            # Another process may compute it just now.
            with locks.take(file.with_name(f".{cell.name}.lock")) as lock:
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

    def has(self, model: str, cell: Cell) -> bool:
        """Whether :meth:`result` would read this cell."""
        file = self.file(model, cell.method, cell.name)
        return self._stored(file, _as_stored(cell.inputs)) is not None

    def file(self, model: str, method: str, name: str) -> Path:
        """Where a cell is kept."""
        return self.folder / config.slug(model) / method / f"{name}.json"

    def _stored(self, file: Path, inputs: dict[str, Any]) -> dict[str, Any] | None:
        """The stored cell, if it is of these inputs and does not have to be computed again."""
        stored = read_cell(file)
        if stored is None or _compared(stored["inputs"]) != _compared(inputs):
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
        stored = {
            "coordinates": cell.coordinates,
            "inputs": inputs,
            "result": result,
            "seconds": round(time.perf_counter() - begin, 3),
            **circumstances(),
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
    """A stored cell, or None if there is none.

    A file that cannot be read is moved aside and named in a warning.
    """
    try:
        stored = json.loads(file.read_bytes())
        is_cell = {"coordinates", "inputs", "result"} <= set(stored)
    except FileNotFoundError:
        return None
    except (ValueError, TypeError):
        is_cell = False
    if is_cell:
        return stored
    aside = file.with_suffix(f".unreadable-{int(time.time())}")
    with suppress(FileNotFoundError):  # another process was first
        file.rename(aside)
        name = "/".join(file.parts[-3:])  # whole, for Python shows equal warnings once
        message = f"{name} could not be read; moved to {aside.name}, computing it again"
        warnings.warn(message, stacklevel=3)
    return None


def read_results(profile: str, experiment: str, units: Collection[str] = ()) -> Cells:
    """This checkout's cells of an experiment, or else the committed ones.

    Parameters
    ----------
    profile, experiment : str
        Folders: ``data/results/<profile>/<experiment>``.
    units : collection of str
        The units whose cells are read, if they have filled this store; else all cells are.

    Returns
    -------
    dict
        Stored cells by model, method and name, in the registry's order of models; other models
        come behind these.

    Raises
    ------
    FileNotFoundError
        If there are none, or one that a run has listed is gone.
    """
    computed = computed_cells(profile, experiment, units)
    cells = computed or committed_cells(profile, experiment, units)
    if not cells:
        missing = f"no stored results of {experiment} for the profile {profile}"
        raise FileNotFoundError(f"{missing}; {_advice(profile)}")
    names = list(config.NAMED_MODELS)

    def place(key: tuple[str, str, str]) -> int:
        return names.index(key[0]) if key[0] in names else len(names)

    return {key: cells[key] for key in sorted(cells, key=place)}


def computed_cells(profile: str, experiment: str, units: Collection[str] = ()) -> Cells:
    """The cells that the last run of each unit in this checkout has listed, if there are any.

    Parameters are those of :func:`read_results`.

    Raises
    ------
    FileNotFoundError
        If one is gone, or was computed from other inputs since.
    """
    store = ResultStore(profile, experiment)
    runs = _runs(store.folder)
    by_time = sorted(runs, key=lambda run: run.stat().st_mtime)
    inputs_of = _listed(by_time)  # units share cells: the later run knows the inputs
    own = _listed(_of_units(runs, units))
    cells = {}
    for key in own:
        stored = read_cell(store.file(*key))
        if stored is None or digest(stored["inputs"]) != inputs_of[key]:
            missing = f"the result {'/'.join(key)} of {experiment} is gone or of an unfinished run"
            raise FileNotFoundError(f"{missing}; {_advice(profile)}")
        cells[key] = stored
    return cells


def committed_cells(profile: str, experiment: str, units: Collection[str] = ()) -> Cells:
    """The committed cells of an experiment, if there are any.

    Parameters are those of :func:`read_results`.
    """
    folder = config.REFERENCE / profile / experiment
    cells = {}
    for file in folder.glob("*.jsonl"):
        with file.open(encoding="utf-8") as lines:
            for line in lines:
                stored = json.loads(line)
                key = (stored.pop("model"), stored.pop("method"), stored.pop("name"))
                cells[key] = stored
    return {key: cells[key] for key in _listed(_of_units(_runs(folder), units))}


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
            for key, inputs_digest in _listed([run]).items():
                cells["/".join((run.parent.name, *key))] = inputs_digest
        if cells:
            return cells
    return {}


def stored_models(profile: str) -> set[str]:
    """The models of all results of a profile, of this checkout and committed ones."""
    runs = []
    for root in (config.RESULTS, config.REFERENCE):
        runs += (root / profile).glob("*/run-*.json")
    return {model for model, *_ in _listed(runs)}


def _runs(folder: Path) -> list[Path]:
    """The lists of cells of a store, in the order in which their cells are returned."""
    return sorted(folder.glob("run-*.json"))


def _of_units(runs: list[Path], units: Collection[str]) -> list[Path]:
    """The lists that some units have written, or else all.

    A list is called ``run-UNIT.json``, or ``run-UNIT-….json`` (:func:`listed_cells`).
    """
    return [run for run in runs if run.stem.split("-")[1] in units] or runs


def _listed(runs: Iterable[Path]) -> dict[tuple[str, str, str], str]:
    """The cells that runs have listed, and the digests of their inputs."""
    listed = {}
    for run in runs:
        for *key, inputs_digest in json.loads(run.read_bytes())["cells"]:
            listed[tuple(key)] = inputs_digest
    return listed


def _advice(profile: str) -> str:
    return f"run ./run_all.sh --profile {profile} first"


def _as_stored(inputs: dict[str, Any]) -> dict[str, Any]:
    """The inputs of a cell as its file has them: with the version, and tuples as lists."""
    return json.loads(json.dumps(inputs | {VERSION: __version__}))


def _compared(inputs: dict[str, Any]) -> dict[str, Any]:
    """The inputs that decide whether a stored cell is read."""
    return {name: value for name, value in inputs.items() if name != VERSION}


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
