"""Stored cells, and the paper's printed numbers, as long frames: one row for each number."""

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any

import pandas as pd

from harp_lib import config
from harp_lib.report.comparisons import FEW, FLOOR, floor
from harp_lib.results import Cells, read_results

KEY = ["model", "method", "task"]  # of a cell


def cells(profile: str, experiment: str) -> Cells:
    """The cells of an experiment: this checkout's, or the committed reference, or none."""
    with suppress(FileNotFoundError):
        return read_results(profile, experiment)
    return {}


def rows(stored: Cells) -> pd.DataFrame:
    """The rows of stored cells beneath each other.

    Columns: model, method and task of the cell (``task`` is its name), its coordinates (corpus,
    split, layers, …), and those of its rows. A coordinate replaces a column of the same name: the
    cells of ``harp-06`` say that their method is ``harp``, with 6 layers.
    """
    parts = []
    for (model, method, task), cell in stored.items():
        columns = cell["result"].get("rows")
        if not columns:
            continue
        key = {"model": model, "method": method, "task": task}
        whole = key | cell.get("coordinates", {})
        length = len(next(iter(columns.values())))
        about = {name: [value] * length for name, value in whole.items()}
        parts.append(pd.DataFrame(about | columns, dtype=object))
    if not parts:
        return pd.DataFrame(columns=KEY)
    return pd.concat(parts, ignore_index=True)


def tidy(profile: str, experiment: str, *quantities: str) -> pd.DataFrame:
    """Some quantities of an experiment as one long frame.

    Columns: model, method, task, quantity, the coordinates that these quantities have, and value.
    """
    return of_quantities(rows(cells(profile, experiment)), *quantities)


def of_quantities(stored_rows: pd.DataFrame, *quantities: str) -> pd.DataFrame:
    """The :func:`rows` of some quantities, without the columns that they do not have."""
    if "quantity" not in stored_rows:
        return pd.DataFrame(columns=[*KEY, "quantity", "value"])
    chosen = stored_rows[stored_rows["quantity"].isin(quantities)]
    chosen = chosen.dropna(axis="columns", how="all")
    chosen = chosen.where(chosen.notna(), float("nan")).infer_objects().reset_index(drop=True)
    coordinates = [name for name in chosen if name not in (*KEY, "quantity", "value")]
    return chosen.reindex(columns=[*KEY, "quantity", *coordinates, "value"])


def documents(profile: str, experiment: str) -> pd.DataFrame:
    """Likelihood of every document, one row each.

    Columns: model, method, task, the coordinates of the cells, document, nll (nats) and tokens.
    """
    found = tidy(profile, experiment, "nll", "tokens")
    if found.empty:
        return found.assign(document=None, nll=None, tokens=None)
    found = found.dropna(subset="document")
    keys = [name for name in found if name not in ("quantity", "value")]
    nll = found[found["quantity"] == "nll"].rename(columns={"value": "nll"})
    tokens = found[found["quantity"] == "tokens"].rename(columns={"value": "tokens"})
    return nll[[*keys, "nll"]].merge(tokens[[*keys, "tokens"]], on=keys, how="left")


def table(profile: str, experiment: str, task: str) -> pd.DataFrame:
    """Cells whose rows are those of one table (as in ``theory``), one beneath the other."""
    stored = cells(profile, experiment)
    found = rows({key: cell for key, cell in stored.items() if key[-1] == task})
    return found.drop(columns=["task", "table"], errors="ignore").infer_objects()


def paper(name: str) -> pd.DataFrame:
    """A table or figure of the paper.

    Scores are in per cent, and "all" stands where there is no single model, method or task.
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
    """A quantity of every question that a cell of scores or likelihoods asked, in order.

    None if the cell has none.
    """
    return result.get("rows", {}).get(quantity)


class Missing(Exception):
    """What is asked for is not stored; the message says what it needs."""


class Source:
    """What the stores hold of one model; ``read`` gives the cells of a store, as :func:`cells`."""

    def __init__(
        self, profile: str, store: str, model: str, read: Callable[[str, str], Cells]
    ) -> None:
        self.profile = profile
        self.store = store
        self.model = model
        self.read = read

    def cells(self, store: str) -> dict[tuple[str, str], dict[str, Any]]:
        """The model's cells of a store, by method and task."""
        return {
            (method, task): cell
            for (model, method, task), cell in self.read(self.profile, store).items()
            if model == self.model
        }

    def result(self, method: str, task: str) -> dict[str, Any]:
        """The result of one cell; raises Missing where there is none, or it failed."""
        cell = self.cells(self.store).get((method, task))
        if cell is None or "failed" in cell["result"]:
            raise Missing(f"needs {method}/{task} of {self.store}")
        return cell["result"]

    def rows(self, *quantities: str, method: str | None = None, store: str = "") -> pd.DataFrame:
        """The model's rows of some quantities, as :func:`tidy`; raises Missing without any."""
        store = store or self.store
        of_model = {(self.model, *key): cell for key, cell in self.cells(store).items()}
        found = of_quantities(rows(of_model), *quantities)
        if method is not None:
            found = found[found["method"] == method]
            found = found.dropna(axis="columns", how="all")
        if found.empty:
            what = f"{', '.join(quantities)} of {method}" if method else ", ".join(quantities)
            raise Missing(f"needs {what} in {store}")
        return found

    def answers(self, methods: Iterable[str], tasks: Iterable[str]) -> dict[str, pd.DataFrame]:
        """Scores by task, question × method.

        Averages are of the tasks that the dense model and all methods have, so the others are left
        out. The column ``chance`` is what a guess in the right format scores.
        """
        # The ablations' HARP and dense model are among the main tables.
        known = self.cells("main_tables") | self.cells(self.store)
        by_task = {}
        for task in tasks:
            scores = {}
            for method in ("dense", *methods):
                cell = known.get((method, task), {"result": {}})
                scores[method] = answered(cell["result"])
            if all(scores.values()):
                guesses = answered(known["dense", task]["result"], "chance")
                by_task[task] = pd.DataFrame(scores).assign(chance=guesses or 0.0)
        if not by_task:
            raise Missing(f"needs scores of {self.store}")
        return by_task


def lacking(scores: pd.DataFrame) -> str | None:
    """Why the dense model has nothing to lose on a task, or None (:func:`comparisons.floor`)."""
    return floor(scores["dense"], scores["chance"])


def above(answers: Mapping[str, pd.DataFrame]) -> dict[str, pd.DataFrame]:
    """The tasks on which the dense model is above chance."""
    return {task: scores for task, scores in answers.items() if not lacking(scores)}


def lacking_all(answers: Mapping[str, pd.DataFrame]) -> str:
    """Why the dense model has nothing to lose on any of some tasks.

    It is at the floor on all of them, or one of them has too few questions.
    """
    reasons = {lacking(scores) for scores in answers.values()}
    return FLOOR if reasons == {FLOOR} else FEW
