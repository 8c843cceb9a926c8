"""Stored cells, and the paper's printed numbers, as long frames: one row for each number."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Any

import pandas as pd

from harp_lib import config
from harp_lib.report.comparisons import FEW, FLOOR, floor
from harp_lib.results import Cells, read_results

KEY = ["model", "method", "task"]  # the columns that name a cell


_recorded: ContextVar[dict[str, Cells] | None] = ContextVar("recorded", default=None)


@contextmanager
def recording() -> Iterator[dict[str, Cells]]:
    """Context that yields a dict and gathers in it, by experiment, the cells that are read."""
    recorded: dict[str, Cells] = {}
    token = _recorded.set(recorded)
    try:
        yield recorded
    finally:
        _recorded.reset(token)


def cells(profile: str, experiment: str) -> Cells:
    """The cells of an experiment: this checkout's, or the committed reference, or none."""
    stored: Cells = {}
    with suppress(FileNotFoundError):
        stored = read_results(profile, experiment)
    recorded = _recorded.get()
    if recorded is not None and stored:
        recorded[experiment] = stored
    return stored


def rows(stored: Cells) -> pd.DataFrame:
    """The rows of stored cells beneath each other.

    Columns: model, method and task of the cell (``task`` is its name), its coordinates (corpus,
    split, layers, …), and the columns of its rows. Of columns with the same name the later one
    counts: the cells of ``harp-06`` say by a coordinate that their method is ``harp``.
    """
    frame: dict[str, list[Any]] = {}  # one frame in the end: thousands of small ones take longer
    total = 0
    for (model, method, task), cell in stored.items():
        columns = cell["result"].get("rows")
        if not columns:
            continue
        length = len(next(iter(columns.values())))
        key = {"model": model, "method": method, "task": task}
        constants = key | cell.get("coordinates", {})
        of_cell = {name: [value] * length for name, value in constants.items()} | columns
        for name in of_cell:
            frame.setdefault(name, [float("nan")] * total)
        for name, values in frame.items():
            values.extend(of_cell.get(name, [float("nan")] * length))
        total += length
    if not frame:
        return pd.DataFrame(columns=KEY)
    return pd.DataFrame(frame, dtype=object)


def tidy(profile: str, experiment: str, *quantities: str) -> pd.DataFrame:
    """Some quantities of an experiment as one long frame.

    Parameters
    ----------
    profile, experiment : str
        Which stored cells are read.
    *quantities : str
        The quantities that are kept.

    Returns
    -------
    DataFrame
        Columns: model, method, task, quantity, the coordinates that these quantities have, and
        value. Without such rows it is empty.
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
    """The likelihood of every document, one row each.

    Columns: model, method, task, the coordinates of the cells, document, nll (nats) and tokens.
    """
    frame = tidy(profile, experiment, "nll", "tokens")
    if frame.empty:
        return frame.assign(document=None, nll=None, tokens=None)
    frame = frame.dropna(subset="document")
    keys = [name for name in frame if name not in ("quantity", "value")]
    nll = frame[frame["quantity"] == "nll"].rename(columns={"value": "nll"})
    tokens = frame[frame["quantity"] == "tokens"].rename(columns={"value": "tokens"})
    return nll[[*keys, "nll"]].merge(tokens[[*keys, "tokens"]], on=keys, how="left")


def in_order(frame: pd.DataFrame, column: str, order: Iterable[str]) -> pd.DataFrame:
    """The rows of a frame sorted by the place of a column's values in a list; ties stay as is."""
    places = {value: place for place, value in enumerate(order)}
    return frame.sort_values(column, key=lambda values: values.map(places), kind="stable")


def table(profile: str, experiment: str, task: str) -> pd.DataFrame:
    """The cells of one name, whose rows are those of a table, beneath each other (``theory``)."""
    stored = cells(profile, experiment)
    frame = rows({key: cell for key, cell in stored.items() if key[-1] == task})
    return frame.drop(columns=["task", "table"], errors="ignore").infer_objects()


def paper(name: str) -> pd.DataFrame:
    """The printed numbers of a table or figure of the paper, as a long frame.

    Scores are in per cent, and "all" stands where there is no single model, method or task.
    """
    return pd.read_csv(config.PAPER / f"{name}.csv")


def questions(stored: Cells) -> pd.DataFrame:
    """Every question that was asked in stored cells, one row each.

    Columns: model, method, task, subtask, question (its number in the subtask), and what was
    measured: ``score``, ``margin``, ``choice``, ``bits_per_byte`` and so on
    (:meth:`harp_lib.evaluation.evaluator.Evaluator.evaluate`).
    """
    asked = rows(stored)
    return asked.where(asked.notna(), float("nan")).infer_objects()


def answered(result: Mapping[str, Any], quantity: str = "score") -> list[float] | None:
    """A quantity of every question of a cell of scores or likelihoods, in order.

    None if the cell does not have the quantity.
    """
    return result.get("rows", {}).get(quantity)


class Missing(Exception):
    """Results that a test needs are not stored; the message says which."""


class Source:
    """The stored results of one model.

    ``read`` returns the cells of a store, as :func:`cells` does.
    """

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
        """The result of one cell; Missing if there is none, or if it failed."""
        cell = self.cells(self.store).get((method, task))
        if cell is None or "failed" in cell["result"]:
            raise Missing(f"needs {method}/{task} of {self.store}")
        return cell["result"]

    def rows(self, *quantities: str, method: str | None = None, store: str = "") -> pd.DataFrame:
        """The model's rows of some quantities, as :func:`tidy` has them; Missing without any."""
        store = store or self.store
        of_model = {(self.model, *key): cell for key, cell in self.cells(store).items()}
        frame = of_quantities(rows(of_model), *quantities)
        if method is not None:
            frame = frame[frame["method"] == method]
            frame = frame.dropna(axis="columns", how="all")
        if frame.empty:
            needed = ", ".join(quantities)
            if method is not None:
                needed = f"{needed} of {method}"
            raise Missing(f"needs {needed} in {store}")
        return frame

    def answers(self, methods: Iterable[str], tasks: Iterable[str]) -> dict[str, pd.DataFrame]:
        """The scores of each task, a frame of question × method.

        Averages are over the tasks that the dense model and all methods have, so other tasks are
        left out. The column ``chance`` is what a guess in the right format scores.
        """
        # The scores of HARP and the dense model that ablations compare with are in main_tables.
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
    """Why the dense model has nothing to lose on a task, or None (see :func:`floor`)."""
    return floor(scores["dense"], scores["chance"])


def above(answers: Mapping[str, pd.DataFrame]) -> dict[str, pd.DataFrame]:
    """The tasks on which the dense model is above chance."""
    return {task: scores for task, scores in answers.items() if not lacking(scores)}


def lacking_all(answers: Mapping[str, pd.DataFrame]) -> str:
    """Why the dense model has nothing to lose on any of some tasks.

    It is at the floor on all of them, or one of them has too few questions.
    """
    reasons = {lacking(scores) for scores in answers.values()}
    if reasons == {FLOOR}:
        return FLOOR
    return FEW
