"""Stored cells, and the paper's printed numbers, as long frames: one row for each number."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any

import pandas as pd

from harp_lib import config
from harp_lib.report.comparisons import FEW, FLOOR, floor
from harp_lib.results import Cells, read_results

_QUANTITIES = {
    ("document",): "nll, tokens",
    ("layer",): "alphas, 1, 0, v, explained",  # 1 and 0: one layer value-only, at that α
    ("layer", "alpha"): "perplexities",
    (
        "document",
        "layer",
    ): "similarity, projected similarity, block influence, attention influence, value gap, "
    "branch gap, without first",
    ("document", "layer", "head"): "entropy, ratios",
    ("item",): "layers",
}
AXES = {name: axes for axes, names in _QUANTITIES.items() for name in names.split(", ")}
"""What each index of a stored quantity counts, from the outside in, or fewer; one that is not here
is a single number.

A list counts from 0 and a dictionary has its keys, as numbers where they are numbers. Of hidden
states, as in ``similarity``, layer i is what enters layer i, and one more is what leaves the last.
"""

_OTHERWISE = {  # tasks whose cells mean something else by the same name
    "selection": {"scores": ("layer",)},
    "document": {"nll": ("plan",)},
    "repeated-tokens": {
        "tokens": ("token",),
        "logit difference": ("token",),
        "similarity": ("token", "layer"),
    }
    | {"entropy": ("token", "layer", "head")},
}
_TASKS = (  # what the names of cells say: columns of their own
    r"document-(?P<document>\d+)",
    r"search-(?P<corpus>.+)",
    r"(?P<corpus>.+)-(?P<split>train|test|validation)",
)


def cells(profile: str, experiment: str) -> Cells:
    """The cells of an experiment: this checkout's, or the committed reference, or none."""
    with suppress(FileNotFoundError):
        return read_results(profile, experiment)
    return {}


def tidy(profile: str, experiment: str, *quantities: str) -> pd.DataFrame:
    """Stored quantities of an experiment as one long frame; ``inputs.`` leads into what a cell was
    computed from.

    Columns: model, method, task, quantity, the axes of the quantities (``AXES``), what the task's
    name says (document, corpus, split), and value. Cells that failed have the quantity ``failed``,
    with the reason.
    """
    rows = []
    for (model, method, task), cell in cells(profile, experiment).items():
        said = next(filter(None, (re.fullmatch(pattern, task) for pattern in _TASKS)), None)
        about = {name: _number(value) for name, value in said.groupdict().items()} if said else {}
        for quantity in quantities:
            name = quantity.removeprefix("inputs.")
            found = cell["result" if name == quantity else "inputs"].get(name)
            axes = _OTHERWISE.get(re.sub(r"-\d+$", "", task), {}).get(name) or AXES.get(name, ())
            if quantity == "alphas" and found:  # stored top-down
                found = {
                    cell["result"]["num_model_layers"] - 1 - i: alpha
                    for i, alpha in enumerate(found)
                }
            fixed = {"model": model, "method": method, "task": task, "quantity": quantity} | about
            for index, value in _leaves(found):
                if len(index) > len(axes):
                    raise ValueError(
                        f"{quantity} of {task} has {len(index)} axes; AXES names {len(axes)}"
                    )
                rows.append(fixed | dict(zip(axes, index, strict=False)) | {"value": value})
    frame = pd.DataFrame(
        rows, columns=None if rows else ["model", "method", "task", "quantity", "value"]
    )
    return frame[[*frame.columns.drop("value"), "value"]]


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
        with suppress(ValueError):
            return kind(key)
    return key


def table(profile: str, experiment: str, task: str) -> pd.DataFrame:
    """Cells that are tables column by column (those of ``theory``), one beneath the other, with
    model and method.
    """
    parts = [
        pd.DataFrame(cell["result"]).assign(model=model, method=method)
        for (model, method, name), cell in cells(profile, experiment).items()
        if name == task
    ]
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame()


def paper(name: str) -> pd.DataFrame:
    """A table or figure of the paper: scores in per cent, and "all" where there is no single model,
    method or task.
    """
    return pd.read_csv(config.PAPER / f"{name}.csv")


def questions(stored: Cells) -> pd.DataFrame:
    """Every question that stored cells asked, one row each.

    Columns: model, method, task, subtask, question (its number in the subtask), and what was
    measured of it: ``score``, ``margin``, ``choice``, ``bits_per_byte`` and so on
    (:meth:`harp_lib.evaluation.evaluator.Evaluator.evaluate`).
    """
    parts = [
        pd.DataFrame({"model": model, "method": method, "task": task, **cell["result"]["rows"]})
        for (model, method, task), cell in stored.items()
        if cell["result"].get("rows")
    ]
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame()


def answered(result: Mapping[str, Any], quantity: str = "score") -> list[float] | None:
    """A quantity of every question that a cell of scores or likelihoods asked, in order; None if it
    has none.
    """
    return result.get("rows", {}).get(quantity)


class Missing(Exception):
    """What is asked for is not stored; the message says what it needs."""


class Source:
    """What a store holds of one model; ``read`` gives the cells of a store, as :func:`cells`."""

    def __init__(
        self, profile: str, store: str, model: str, read: Callable[[str, str], Cells]
    ) -> None:
        self.profile, self.store, self.model, self.read = profile, store, model, read

    def cells(self, store: str) -> dict[tuple[str, str], dict[str, Any]]:
        """By method and task."""
        return {
            key[1:]: cell
            for key, cell in self.read(self.profile, store).items()
            if key[0] == self.model
        }

    def result(self, method: str, task: str) -> dict[str, Any]:
        """Of one cell; raises Missing where there is none, or it failed."""
        found = self.cells(self.store).get((method, task), {}).get("result", {"failed": "not run"})
        if "failed" in found:
            raise Missing(f"needs {method}/{task} of {self.store}")
        return found

    def of(self, method: str, prefix: str = "") -> dict[str, dict]:
        """The results of a method whose tasks begin so, by the rest of the name; raises Missing if
        there is none.
        """
        found = {
            task.removeprefix(prefix): cell["result"]
            for (name, task), cell in self.cells(self.store).items()
            if name == method and task.startswith(prefix) and "failed" not in cell["result"]
        }
        if not found:
            raise Missing(f"needs {method}/{prefix}… of {self.store}")
        return found

    def answers(self, methods: Iterable[str], tasks: Iterable[str]) -> dict[str, pd.DataFrame]:
        """By task, question × method, of the tasks that the dense model and all methods have:
        averages are of these.

        The column ``chance`` is what a guess in the right format scores.
        """
        known = self.cells("main_tables") | self.cells(
            self.store
        )  # the ablations' HARP and dense model are there
        found = {}
        for task in tasks:
            scores = {}
            for method in ("dense", *methods):
                cell = known.get((method, task), {"result": {}})
                scores[method] = answered(cell["result"])
            if all(scores.values()):
                guesses = answered(known["dense", task]["result"], "chance")
                found[task] = pd.DataFrame(scores).assign(chance=guesses or 0.0)
        if not found:
            raise Missing(f"needs scores of {self.store}")
        return found


def lacking(asked: pd.DataFrame) -> str | None:
    """Why the dense model has nothing to lose on a task, if it has not (:func:`comparisons.floor`)."""
    return floor(asked["dense"], asked["chance"])


def above(answers: Mapping[str, pd.DataFrame]) -> dict[str, pd.DataFrame]:
    """Those of some tasks on which the dense model is above chance."""
    return {task: asked for task, asked in answers.items() if not lacking(asked)}


def lacking_all(answers: Mapping[str, pd.DataFrame]) -> str:
    """Why there is nothing to lose on any of some tasks: at the floor on all, or too few questions
    on one.
    """
    reasons = {lacking(asked) for asked in answers.values()}
    return FLOOR if reasons == {FLOOR} else FEW
