"""The result store: one JSON per cell of a table, computed once."""

import hashlib
import json
import os
import platform
import time
import uuid
import warnings
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pandas as pd
from filelock import FileLock

from harp_lib import __version__, config

BEGAN = "HARP_RUN_BEGAN"  # in the environment of the processes of one run: when it began

Cells = dict[tuple[str, str, str], dict[str, Any]]  # by model, method and task


class ResultStore:
    """Cells of one profile and experiment; ``force`` computes every cell again, whatever is stored."""

    def __init__(self, profile: str, experiment: str, force: bool = False) -> None:
        self.folder, self.force = config.RESULTS / profile / experiment, force
        self.began = datetime.fromisoformat(os.environ.get(BEGAN) or datetime.now(UTC).isoformat())
        self.counts: Counter[str] = Counter()  # computed, read, failed
        self.cells: Cells = {}

    def cell(
        self,
        model: str,
        method: str,
        task: str,
        inputs: dict[str, Any],
        compute: Callable[[Path], dict[str, Any]],
    ) -> dict[str, Any]:
        """The result of one cell: read if it was computed from equal ``inputs``, computed and
        stored otherwise.

        ``inputs`` is everything that it depends on. ``compute`` gets a path where an interrupted
        computation may keep what it has. Inputs and result are JSON values; a result that says
        ``failed``, and why, is stored, but not for the next run, which tries anew.
        """
        file = self.file(model, method, task)
        inputs = json.loads(json.dumps(inputs | {"harp_lib": __version__}))
        stored, how = self._stored(file, inputs), "read"
        if stored is None:
            with FileLock(
                file.with_name(f".{task}.lock")
            ) as lock:  # another process may compute it just now
                if (stored := self._stored(file, inputs)) is None:
                    stored, how = self._compute(file, inputs, compute), "computed"
                Path(lock.lock_file).unlink(missing_ok=True)  # who waited for it takes a new one
        self.cells[model, method, task] = stored
        self.counts["failed" if "failed" in stored["result"] else how] += 1
        return stored["result"]

    def file(self, model: str, method: str, task: str) -> Path:
        """Where a cell is kept."""
        return self.folder / config.slug(model) / method / f"{task}.json"

    def _stored(self, file: Path, inputs: dict[str, Any]) -> dict[str, Any] | None:
        stored = read_cell(file)
        if stored is None or stored["inputs"] != inputs:
            return None
        again = self.force or "failed" in stored["result"]
        return None if again and datetime.fromisoformat(stored["time"]) < self.began else stored

    def _compute(
        self, file: Path, inputs: dict[str, Any], compute: Callable[[Path], dict[str, Any]]
    ) -> dict[str, Any]:
        partial = file.with_suffix(f".{digest(inputs)}.partial")
        if self.force:
            partial.unlink(missing_ok=True)
        begin = time.perf_counter()
        result = compute(partial)
        rows = result.get("rows")
        if isinstance(rows, list) and all(
            isinstance(row, dict) for row in rows
        ):  # records, not a column of that name
            result = result | {
                "rows": pd.DataFrame(rows).to_dict("list")
            }  # column by column, which is small
        stored = {"inputs": inputs, "result": json.loads(json.dumps(result))}
        stored |= {"seconds": round(time.perf_counter() - begin, 3), "device": device_name()}
        versions = {name: version(name) for name in ("torch", "transformers", "lm_eval")}
        stored["versions"] = {
            "python": platform.python_version(),
            "harp_lib": __version__,
            **versions,
        }
        stored["time"] = datetime.now(UTC).isoformat(timespec="seconds")
        write_json(file, stored)
        killed = file.parent.glob(
            f".{file.stem}-????????.tmp"
        )  # of who was killed while writing it
        for leftover in [*file.parent.glob(f"{file.stem}.*.partial"), *killed]:
            leftover.unlink(missing_ok=True)
        return stored

    def finish(self, unit: str, models: Iterable[str] = ()) -> None:
        """List the cells of this run, so that the report reads these and no leftovers of another.

        Of ``models`` that this run had no need of, what was listed stays.
        """
        run = self.folder / f"run-{unit}.json"
        listed = [[*key, digest(cell["inputs"])] for key, cell in self.cells.items()]
        if listed:
            others = {*models} - {model for model, *_ in self.cells}
            before = json.loads(run.read_bytes())["cells"] if run.is_file() else []
            write_json(run, {"cells": listed + [cell for cell in before if cell[0] in others]})
        else:
            run.unlink(missing_ok=True)


def read_cell(file: Path) -> dict[str, Any] | None:
    """A stored cell, or None; a file that cannot be read is moved aside and named in a warning."""
    try:
        cell = json.loads(file.read_bytes())
        if {"inputs", "result"} <= set(cell):
            return cell
    except FileNotFoundError:
        return None
    except (ValueError, TypeError):
        pass
    aside = file.with_suffix(f".unreadable-{int(time.time())}")
    with suppress(FileNotFoundError):  # another process was first
        file.rename(aside)
        name = "/".join(file.parts[-3:])  # whole, for Python shows equal warnings once
        warnings.warn(
            f"{name} could not be read; moved to {aside.name}, computing it again", stacklevel=3
        )
    return None


def read_results(profile: str, experiment: str) -> Cells:
    """Cells of the last finished run, or else committed ones; FileNotFoundError if there are none
    or one is gone.
    """
    again = f"run ./run_all.sh --profile {profile} first"
    for folder in (root / profile / experiment for root in (config.RESULTS, config.REFERENCE)):
        listed: dict[tuple[str, str, str], str] = {}
        for run in sorted(folder.glob("run*.json"), key=lambda file: file.stat().st_mtime):
            listed |= {tuple(key): inputs for *key, inputs in json.loads(run.read_bytes())["cells"]}
        cells = {}
        for (model, method, task), inputs in listed.items():
            cell = read_cell(folder / config.slug(model) / method / f"{task}.json")
            if cell is None or digest(cell["inputs"]) != inputs:
                what = f"the result {model}/{method}/{task} of {experiment}"
                raise FileNotFoundError(f"{what} is gone or of an unfinished run; {again}")
            cells[model, method, task] = cell
        if cells:
            return cells
    raise FileNotFoundError(f"no stored results of {experiment} for the profile {profile}; {again}")


def digest(inputs: dict[str, Any]) -> str:
    """Eight hexadecimal digits that equal inputs share."""
    return hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()[:8]


def write_json(file: Path, values: dict[str, Any]) -> None:
    """Write a JSON file, an entry a line, so that it is there whole or not at all."""
    file.parent.mkdir(parents=True, exist_ok=True)
    temporary = file.with_name(f".{file.stem}-{uuid.uuid4().hex[:8]}.tmp")
    entries = ",\n".join(
        f" {json.dumps(name)}: {json.dumps(value)}" for name, value in values.items()
    )
    temporary.write_text(f"{{\n{entries}\n}}\n", encoding="utf-8")
    temporary.replace(file)


def device_name() -> str:
    """The accelerator's name, or the processor architecture."""
    import torch  # here, because a process that only reads cells does not need it

    return (
        torch.cuda.get_device_name() if torch.cuda.is_available() else f"CPU ({platform.machine()})"
    )


def provenance_table(profile: dict[str, Any], *experiments: str, seed: int = 0) -> pd.DataFrame:
    """What a notebook records last: from what, where, when and by what the cells of some
    experiments were computed.
    """
    cells = [cell for name in experiments for cell in read_results(profile["name"], name).values()]
    about = pd.DataFrame(
        {
            "dtype": cell["inputs"].get("dtype"),
            "device": cell["device"],
            **cell["versions"],
            "day": cell["time"][:10],
        }
        for cell in cells
    )
    rows = {
        "profile": profile["name"],
        "datasets": Path(profile["datasets"]).name,
        "seed": str(seed),
    }
    rows |= {name: ", ".join(values.dropna().unique()) for name, values in about.items()}
    rows["seconds of the cells"] = f"{sum(cell['seconds'] for cell in cells):.0f}"
    return pd.DataFrame(rows.items(), columns=["what", "value"])
