"""Stored cells, and the paper's printed numbers, as long frames: one row for each number."""

import re
from collections.abc import Iterable, Iterator
from typing import Any

import pandas as pd

from harp_lib import config
from harp_lib.measure.evaluation import ALL_BENCHMARKS
from harp_lib.report.comparisons import Compared, floor
from harp_lib.results import Cells, read_results

_QUANTITIES = {
    ("question",): "scores, beside, answers, answer_tokens, prompt_tokens",
    ("document",): "nll, tokens, words, texts",
    ("document", "position"): "ids",
    ("layer",): "alphas, 1, 0, v, s, largest λ, beta 1, beta 2",  # 1 and 0: one layer value-only, at that α
    ("layer", "alpha"): "perplexities",
    ("document", "layer"): "similarity, distance, norm, similarity without first, distance without first, norm without "
    "first, projected similarity, block influence, attention influence, value distance, value gap, branch gap, "
    "all tokens, without first",
    ("document", "layer", "head"): "entropy, value contraction, contraction, ratios, ratios without first",
    ("document", "layer", "product"): "products",
    ("variant", "repetition", "part"): "seconds",
    ("variant",): "bytes, cache_bytes, peak_bytes, plans",
    ("variant", "count"): "variants",
    ("pairs", "variant"): "flops",
    ("pairs", "part"): "overtaking",
    ("item",): "layers, subtasks, lengths",
    ("item", "layer and group"): "only_printed, only_squared",
}
AXES = {name: axes for axes, names in _QUANTITIES.items() for name in names.split(", ")}
"""What each index of a stored quantity counts, from the outside in; a quantity that is not here is a single number.

A list counts from 0 and a dictionary has its keys, as numbers where they are numbers. A quantity may have fewer axes
than are named here (``seconds`` of a plan is one number). Where a quantity belongs to the hidden states, as
``similarity`` and ``all tokens``, layer i is what enters layer i, and one more is what leaves the last.
"""

_OTHERWISE = {  # tasks whose cells mean something else by the same name
    "counted": {"flops": ("pairs", "item", "part")},
    "selection": {"scores": ("layer",)},
    "document": {"nll": ("plan",)},
    "repeated-tokens": dict.fromkeys(("tokens", "logit difference"), ("token",))
    | dict.fromkeys(("similarity", "relative distance"), ("token", "layer"))
    | {"entropy": ("token", "layer", "head")},
}
_TASKS = (  # what the names of cells say: columns of their own
    r"document-(?P<document>\d+)",
    r"range-(?P<start>\d+)-(?P<end>\d+)",
    r"(prefill|decode|split)-(?P<length>\d+)",
    r"(search|contraction)-(?P<corpus>.+)",
    r"((?P<corpus>.+)-validation|.+)-seed-(?P<seed>\d+)",
    r"(?P<corpus>.+)-(?P<split>train|test|validation)",
)


def cells(profile: str, experiment: str) -> Cells:
    """The cells of an experiment: this checkout's, or the committed reference, or none."""
    try:
        return read_results(profile, experiment)
    except FileNotFoundError:
        return {}


def tidy(profile: str, experiment: str, *quantities: str) -> pd.DataFrame:
    """Stored quantities of an experiment as one long frame.

    Parameters
    ----------
    profile, experiment : str
        Name the stored results.
    *quantities : str
        Names in the cells' results; a dot leads into a dictionary (``reused.seconds``), and ``inputs.`` and ``cell.``
        into what a cell was computed from and what is recorded of it.

    Returns
    -------
    DataFrame
        Columns model, method, task, quantity, the axes of the quantities (``AXES``), what the task's name says
        (document; start and end of a range; length; corpus and split), and value. Cells without a quantity have no
        rows of it; those that failed have the quantity ``failed``, with the reason.
    """
    return tidy_cells(cells(profile, experiment), *quantities)


def tidy_cells(stored: Cells, *quantities: str) -> pd.DataFrame:
    """The same of cells at hand."""
    rows, columns = [], dict.fromkeys(["model", "method", "task", "quantity"])
    for (model, method, task), cell in stored.items():
        for quantity in quantities:
            named, found = _axes(task, quantity), _find(cell, quantity)
            if quantity.endswith("alphas") and isinstance(found, list):  # stored top-down
                count = _find(cell, quantity.removesuffix("alphas") + "num_model_layers") or 0
                found = {count - 1 - i: alpha for i, alpha in enumerate(found)}
            fixed = {"model": model, "method": method, "task": task, "quantity": quantity} | _said(task)
            for index, value in _leaves(found):
                if len(index) > len(named):
                    raise ValueError(f"{quantity} of {task} has {len(index)} axes; AXES names {len(named)}")
                rows.append(fixed | dict(zip(named, index, strict=False)) | {"value": value})
            columns |= dict.fromkeys(rows[-1] if found not in (None, [], {}) else ())
    columns = [name for name in columns if name != "value"]
    return pd.DataFrame(rows, columns=[*columns, "value"])


def table(profile: str, experiment: str, task: str) -> pd.DataFrame:
    """Cells that are tables column by column (those of ``theory``), one beneath the other, with model and method."""
    parts = [
        pd.DataFrame(cell["result"]).assign(model=model, method=method)
        for (model, method, name), cell in cells(profile, experiment).items()
        if name == task
    ]
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame()


def paper(name: str) -> pd.DataFrame:
    """A table or figure of the paper: ``data/paper/<name>.csv``.

    Columns model (as the paper spells it), method, task, quantity and value, and axes where it has them. Scores and
    shares are in per cent, as printed; "all" stands where a number belongs to no single model, method or task.
    """
    file = config.PAPER / f"{name}.csv"
    if not file.is_file():
        known = ", ".join(sorted(path.stem for path in config.PAPER.glob("*.csv")))
        raise ValueError(f"unknown table {name!r}; choose from {known}")
    return pd.read_csv(file)


class Missing(Exception):
    """What is asked for is not stored; the message says what it needs."""


class Source:
    """The stored results of a profile, each store read once, and the scores of one model side by side."""

    def __init__(self, profile: str) -> None:
        self.profile, self._stores = profile, {}

    def cells(self, store: str) -> Cells:
        if store not in self._stores:
            self._stores[store] = cells(self.profile, store)
        return self._stores[store]

    def models(self, store: str) -> list[str]:
        return list(dict.fromkeys(model for model, *_ in self.cells(store)))

    def result(self, store: str, model: str, method: str, task: str) -> dict[str, Any]:
        """Of one cell; raises Missing where there is none, or it failed."""
        found = self.cells(store).get((model, method, task), {}).get("result", {"failed": "not run"})
        if "failed" in found:
            raise Missing(f"needs {method}/{task} of {store}")
        return found

    def of(self, store: str, model: str, method: str, prefix: str = "") -> dict[str, dict]:
        """The cells of a method whose tasks begin so, by the rest of its name; raises Missing if there is none."""
        found = {
            task.removeprefix(prefix): cell
            for (name, its, task), cell in self.cells(store).items()
            if (name, its) == (model, method) and task.startswith(prefix) and "failed" not in cell["result"]
        }
        if not found:
            raise Missing(f"needs {method}/{prefix}… of {store}")
        return found

    def scores(self, store: str, model: str, method: str, task: str, seed: int = 0) -> list[float]:
        """By question; those of the ablations that are HARP's and the dense model's are in the main tables.

        With a seed: after calibration on another draw of the text, for the methods that have such scores.
        """
        if seed and (model, method, f"{task}-seed-{seed}") in self.cells("baselines"):
            return self.result("baselines", model, method, f"{task}-seed-{seed}")["scores"]
        shared = store == "ablations" and method in ("dense", "harp")
        return self.result("main_tables" if shared else store, model, method, task)["scores"]

    def compared(self, store: str, model: str, method: str, task: str) -> Compared:
        choices, dense = ALL_BENCHMARKS[task].choices, self.scores(store, model, "dense", task)
        return Compared(self.scores(store, model, method, task), dense, 1 / choices if choices else 0.0)

    def complete(self, store: str, model: str, methods: Iterable[str], tasks: Iterable[str]) -> list[str]:
        """The tasks that the dense model and all the methods have scores on: every average is of these."""
        wanted, found = ["dense", *methods], []
        for task in tasks:
            try:
                for method in wanted:
                    self.scores(store, model, method, task)
                found.append(task)
            except Missing:
                pass
        if not found:
            raise Missing(f"needs scores of {store}")
        return found

    def above(self, store: str, model: str, tasks: Iterable[str]) -> list[str]:
        """Those of some tasks on which the dense model is above chance."""
        return [task for task in tasks if not floor([self.compared(store, model, "dense", task)])]


def _axes(task: str, quantity: str) -> tuple[str, ...]:
    name = quantity.rpartition(".")[2]
    return _OTHERWISE.get(re.sub(r"-\d+$", "", task), {}).get(name) or AXES.get(name, ())


def _find(cell: dict[str, Any], quantity: str) -> Any:
    """What a dotted name leads to, or None."""
    head, *rest = quantity.split(".")
    found = {"cell": cell, "inputs": cell["inputs"]}.get(head) or cell["result"].get(head)
    for key in rest:
        found = found.get(key) if isinstance(found, dict) else None
    return found


def _leaves(value: Any, index: tuple = ()) -> Iterator[tuple[tuple, Any]]:
    """Every number or string in nested lists and dictionaries, with where it stands."""
    if isinstance(value, dict | list):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _leaves(inner, (*index, _number(key)))
    elif value is not None:
        yield index, value


def _number(key: Any) -> Any:
    """A key as a number, where it is one."""
    for kind in (int, float):
        try:
            return kind(key)
        except ValueError:
            pass
    return key


def _said(task: str) -> dict[str, Any]:
    """What the name of a task says."""
    for pattern in _TASKS:
        if found := re.fullmatch(pattern, task):
            return {name: _number(value) for name, value in found.groupdict().items() if value is not None}
    return {}
