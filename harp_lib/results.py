"""The result store: a cell is known by what it depends on.

One store holds the results of all profiles and units. A result's file is named by the digest of its
inputs, so whoever asks for the same thing gets the same file, and none is stale as long as whoever
changes what the code computes changes its inputs too. What a result is *about* (method, corpus,
task, …) is not in it, but in the list of each unit that asked for it::

    data/results/cells/<digest>.json              inputs, result, seconds, circumstances
    data/results/<profile>/<unit>/<model>.jsonl   for each cell what it is about, and its digest

Committed results are in ``data/reference/<profile>/<unit>/<model>.jsonl``, whose lines hold both.
``data/reference/pack.py`` makes one form of the other.
"""

import hashlib
import json
import os
import time
import uuid
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pandas as pd
from tqdm import tqdm

from harp_lib import config, locks
from harp_lib.circumstances import circumstances

BEGAN = "HARP_RUN_BEGAN"  # in the environment of the processes of one run: when it began

Row = dict[str, Any]  # a record with a quantity, a value and their coordinates
Result = dict[str, Any]  # "rows", and beside them what is no table: a plan, versions
StoredCell = dict[str, Any]  # "inputs", "result", "seconds", circumstances; in a list also "about"


@dataclass(frozen=True)
class Cell:
    """One result that is computed, stored and resumed as a whole.

    Attributes
    ----------
    inputs : dict
        Everything that the result depends on, as JSON values; ``what`` says what is computed.
    compute : callable
        Returns the result: ``rows``, a list of records, and beside them what is no table (a plan,
        versions), as JSON values. A result that is only ``{"failed": reason}`` is shown as missing.
    about : dict
        Columns that each of its rows gets when the unit is read.
    resumes : bool
        ``compute`` takes a path, where an interrupted computation may keep what it has.
    """

    inputs: dict[str, Any]
    compute: Callable[..., Result]
    about: dict[str, Any] = field(default_factory=dict)
    resumes: bool = False

    @property
    def digest(self) -> str:
        """Names the file of its result."""
        return digest(self.inputs)


class Store:
    """Results by the digest of their inputs.

    Attributes
    ----------
    folder : Path
    began : datetime
        When the run began: what failed before is tried again, what failed since is not.
    counts : Counter
        How many cells were ``computed``, ``read``, or ``failed``, each counted once.
    """

    def __init__(self) -> None:
        self.folder = config.RESULTS / "cells"
        self.began = datetime.fromisoformat(os.environ.get(BEGAN) or datetime.now(UTC).isoformat())
        self._outcomes: dict[str, str] = {}  # by digest

    def get(self, cell: Cell, force: bool = False) -> Result:
        """The result of a cell: read if it is stored, else computed, by one process alone.

        With ``force``, it is computed once in each run, whatever is stored. A result that says
        ``failed``, and why, is stored, but not for the next run, which tries anew.
        """
        file = self.file(cell.digest)
        stored = self._stored(file, force)
        how = "read"
        if stored is None:
            # Another process may compute it just now.
            with locks.take(file.with_suffix(".lock")) as lock:
                stored = self._stored(file, force)
                if stored is None:
                    stored = self._compute(file, cell, force)
                    how = "computed"
                Path(lock.lock_file).unlink(missing_ok=True)  # who waited for it takes a new one
        if "failed" in stored["result"]:
            how = "failed"
        if self._outcomes.get(cell.digest) != "computed":
            self._outcomes[cell.digest] = how
        return stored["result"]

    @property
    def counts(self) -> Counter[str]:
        return Counter(self._outcomes.values())

    def has(self, cell: Cell, force: bool = False) -> bool:
        """Whether :meth:`get` would read this cell."""
        return self._stored(self.file(cell.digest), force) is not None

    def file(self, cell_digest: str) -> Path:
        """Where a result is kept."""
        return self.folder / f"{cell_digest}.json"

    def _stored(self, file: Path, force: bool) -> StoredCell | None:
        """The stored cell, unless it has to be computed again."""
        stored = read_cell(file)
        if stored is None:
            return None
        again = force or "failed" in stored["result"]
        if again and datetime.fromisoformat(stored["time"]) < self.began:
            return None
        return stored

    def _compute(self, file: Path, cell: Cell, force: bool) -> StoredCell:
        """Compute a cell and write its file."""
        partial = file.with_suffix(".partial")
        if force:
            partial.unlink(missing_ok=True)
        begin = time.perf_counter()
        result = cell.compute(partial) if cell.resumes else cell.compute()
        if "rows" in result:
            result = result | {"rows": columns_of(result["rows"])}
        stored = {
            "inputs": cell.inputs,
            "result": result,
            "seconds": round(time.perf_counter() - begin, 3),
            **circumstances(),
            "time": datetime.now(UTC).isoformat(),
        }
        stored = json.loads(json.dumps(stored))  # as the next process reads it
        write_json(file, stored)
        partial.unlink(missing_ok=True)
        for leftover in self.folder.glob(f".{file.stem}-????????.tmp"):  # of a killed process
            leftover.unlink(missing_ok=True)
        return stored


def behind_bar(description: str, cells: Sequence[Cell]) -> Iterator[Cell]:
    """The same cells; a progress bar says how many of them are done."""
    with tqdm(cells, desc=description, unit="cell") as bar:
        for cell in bar:
            bar.set_postfix_str(", ".join(map(str, cell.about.values())), refresh=False)
            yield cell


def fill(
    store: Store,
    folder: Path,
    model: str,
    cells: Iterable[Cell],
    force: bool = False,
    part: tuple[int, int] = (0, 1),
) -> None:
    """Compute what is missing of a unit for one model, and list its cells.

    The list is written at the end, so a unit that has one is complete. ``part`` ``(i, n)`` is the
    i-th, from 0, of n parts that several processes compute; each has a list of its own.
    """
    lines = []
    for cell in cells:
        result = store.get(cell, force)
        entry = {"about": {"model": model, **cell.about}, "cell": cell.digest}
        if "failed" in result:
            entry["failed"] = result["failed"]
        lines.append(f"{json.dumps(entry)}\n")
    file = list_file(folder, model)
    number, total = part
    if total > 1:
        file = file.with_suffix(".parts") / f"{number + 1}of{total}.jsonl"
    write_text(file, "".join(dict.fromkeys(lines)))  # a unit may ask for a cell more than once


def list_file(folder: Path, model: str) -> Path:
    """The list of a unit for one model, in the unit's folder."""
    return folder / f"{config.slug(model)}.jsonl"


def drop_others(profile: str, unit: str, models: Sequence[str]) -> None:
    """Remove the lists of a unit for all but some models, which a run is about.

    What is listed as ``MODEL, DEVICE`` was measured on another device, and stays with its model.
    """
    for file in (config.RESULTS / profile / unit).glob("*.jsonl"):
        with suppress(FileNotFoundError):  # another job of the unit has removed it
            for line in read_lines(file)[:1]:
                listed_model = line["about"]["model"]
                if not any(f"{listed_model}, ".startswith(f"{model}, ") for model in models):
                    file.unlink()


# What is stored


def read_unit(profile: str, unit: str) -> list[StoredCell]:
    """The cells of a unit as this checkout has listed them, or else the committed ones.

    They stand in the registry's order of models; other models come behind these. If there are none,
    or one that a list names is gone, a FileNotFoundError is raised.
    """
    for root, read in ((config.RESULTS, listed), (config.REFERENCE, read_lines)):
        files = sorted((root / profile / unit).glob("*.jsonl"), key=_place)
        cells = [cell for file in files for cell in read(file)]
        if cells:
            return cells
    raise FileNotFoundError(
        f"no stored results of {unit} for the profile {profile}; {_advice(profile)}"
    )


def _place(file: Path) -> tuple[int, str]:
    """A model's place in the registry, from its list; others come behind."""
    slugs = [config.slug(name) for name in config.NAMED_MODELS]
    return (slugs.index(file.stem) if file.stem in slugs else len(slugs), file.stem)


def read_lines(file: Path) -> list[dict[str, Any]]:
    """The lines of a JSON Lines file."""
    with file.open(encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def listed(file: Path) -> list[StoredCell]:
    """The cells that a list of this checkout names."""
    store = Store()
    cells = []
    for entry in read_lines(file):
        stored = read_cell(store.file(entry["cell"]))
        if stored is None:
            unit = file.parent.name
            about = ", ".join(map(str, entry["about"].values()))
            advice = _advice(file.parent.parent.name)
            raise FileNotFoundError(f"a result of {unit} is gone ({about}); {advice}")
        cells.append({"about": entry["about"], **stored})
    return cells


def incomplete_lists(profile: str) -> list[Path]:
    """The lists of a profile that name a cell which failed, is gone or was made anew since."""
    files = sorted((config.RESULTS / profile).glob("*/**/*.jsonl"))
    return [file for file in files if not _is_complete(file)]


def _is_complete(listing: Path) -> bool:
    store = Store()
    written = listing.stat().st_mtime_ns
    try:
        for entry in read_lines(listing):
            if "failed" in entry or store.file(entry["cell"]).stat().st_mtime_ns > written:
                return False
    except (OSError, ValueError):
        return False
    return True


def listed_cells(profile: str, unit: str) -> list[str]:
    """Digests of the cells of a unit, of its last run in this checkout or else committed ones."""
    digests = []
    for file in sorted((config.RESULTS / profile / unit).glob("*.jsonl")):
        digests += [entry["cell"] for entry in read_lines(file)]
    if not digests:
        for file in sorted((config.REFERENCE / profile / unit).glob("*.jsonl")):
            digests += [digest(cell["inputs"]) for cell in read_lines(file)]
    return digests


def stored_models(profile: str) -> set[str]:
    """The models of all results of a profile, of this checkout and committed ones."""
    models = set()
    for root in (config.RESULTS, config.REFERENCE):
        for file in (root / profile).glob("*/*.jsonl"):
            with file.open(encoding="utf-8") as lines:
                first = lines.readline()
            if first:
                models.add(json.loads(first)["about"]["model"])
    return models


def read_cell(file: Path) -> StoredCell | None:
    """A stored cell, or None if there is none.

    A file that cannot be read is moved aside and named in a warning.
    """
    try:
        stored = json.loads(file.read_bytes())
        is_cell = {"inputs", "result", "time"} <= set(stored)
    except FileNotFoundError:
        return None
    except (ValueError, TypeError):
        is_cell = False
    if is_cell:
        return stored
    aside = file.with_suffix(f".unreadable-{int(time.time())}")
    with suppress(FileNotFoundError):  # another process was first
        file.rename(aside)
        name = "/".join(file.parts[-2:])  # whole, for Python shows equal warnings once
        message = f"{name} could not be read; moved to {aside.name}, computing it again"
        warnings.warn(message, stacklevel=3)
    return None


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


def _advice(profile: str) -> str:
    return f"run ./run_all.sh --profile {profile} first"


def digest(values: dict[str, Any]) -> str:
    """Sixteen hexadecimal digits that values share which are equal as JSON."""
    as_stored = json.loads(json.dumps(values))  # keys are strings, and sorted as such
    return hashlib.sha256(json.dumps(as_stored, sort_keys=True).encode()).hexdigest()[:16]


def write_json(file: Path, values: dict[str, Any]) -> None:
    """Write a JSON file, an entry a line, so that it is there whole or not at all."""
    entries = (f" {json.dumps(name)}: {json.dumps(value)}" for name, value in values.items())
    text = ",\n".join(entries)
    write_text(file, f"{{\n{text}\n}}\n")


def write_text(file: Path, text: str) -> None:
    """Write a file so that it is there whole or not at all."""
    file.parent.mkdir(parents=True, exist_ok=True)
    temporary = file.with_name(f".{file.stem}-{uuid.uuid4().hex[:8]}.tmp")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(file)
