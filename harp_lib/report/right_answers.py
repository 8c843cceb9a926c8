"""How likely the right answer to each question is, as a frame.

In multiple choice the measure is the log-odds margin of the right choice, in written answers the
bits per byte of the reference answer (:mod:`harp_lib.evaluation.likelihood`).
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import pandas as pd

from harp_lib.evaluation.benchmarks import ALL_BENCHMARKS
from harp_lib.report import data
from harp_lib.results import Cells

ITEM = ["subtask", "question"]  # what a question is called within a task


@dataclass(frozen=True)
class Likelihood:
    """A measure of how likely the right answer is."""

    stores: tuple[str, ...]  # a cell of the same name in two stores is the same cell
    quantity: str  # the column of its rows
    unit: str
    sign: int  # 1 where more is better, -1 where less is

    def of(self, questions: pd.DataFrame) -> pd.Series:
        """The measure of each question."""
        if self.quantity == "margin":
            # A guess among n choices has the margin 0, however many choices there are.
            return questions["margin"] + np.log(1 / questions["chance"] - 1)
        return questions[self.quantity]


MARGIN = Likelihood(("ablations", "main_tables"), "margin", "nats", 1)
BITS = Likelihood(("likelihoods",), "bits_per_byte", "bits per byte", -1)


def measure_of(task: str) -> Likelihood:
    """The margin if one of several choices is right, bits per byte if the answer is written."""
    return MARGIN if ALL_BENCHMARKS[task].choices else BITS


def right_answers(
    profile: str, tasks: Iterable[str], read: Callable[[str, str], Cells] | None = None
) -> pd.DataFrame:
    """How likely the right answer to each question is.

    Parameters
    ----------
    profile : str
        The name of the profile.
    tasks : iterable of str
        The benchmarks, by lm-eval's names.
    read : callable, optional
        Returns the cells of a store, like :func:`data.cells`, which is the default.

    Returns
    -------
    DataFrame
        Columns: model, method, task, subtask, question, value (nats of the margin, or bits per
        byte).
    """
    if read is None:
        read = data.cells
    tasks = list(tasks)
    parts = []
    for measure in (MARGIN, BITS):
        measured_tasks = [task for task in tasks if measure_of(task) is measure]
        cells = {}
        for store in measure.stores:
            cells.update(read(profile, store))
        questions = data.questions(cells)
        if not measured_tasks or measure.quantity not in questions:
            continue
        questions = questions[questions["task"].isin(measured_tasks)]
        questions = questions.dropna(subset=measure.quantity)
        names = questions[["model", "method", "task", *ITEM]]
        parts.append(names.assign(value=measure.of(questions)))
    if not parts:
        return pd.DataFrame(columns=["model", "method", "task", *ITEM, "value"])
    return pd.concat(parts, ignore_index=True)


def paired(answers: pd.DataFrame, task: str, methods: Iterable[str]) -> pd.DataFrame:
    """Question × method of one model and task, for the questions that all methods have."""
    of_task = answers[answers["task"] == task]
    wide = of_task.pivot_table("value", ITEM, "method", sort=False)
    return wide.reindex(columns=list(methods)).dropna()
