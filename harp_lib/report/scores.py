"""Scores of benchmarks as frames: means, and differences that are paired by question."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pandas as pd

from harp_lib.evaluation.benchmarks import BENCHMARKS, task_title
from harp_lib.names import METHOD_TITLES
from harp_lib.report import comparisons, data
from harp_lib.report.plans import one_row_per_plan

FLAPPED = "harp+flap"
PAPER_MODEL = "LLaMA3.1-8B"  # the paper's first
KINDS = ("generation", "discriminative")
AVERAGE = "average"
CELL = ["model", "method", "task"]
FEWEST_QUESTIONS = 10  # of a task: with fewer its score is not shown
RATIOS = {  # quantities of a plan, and the titles of their columns
    "removed_fraction": "parameters removed",
    "head_ratio": "heads removed",
}


def of_kind(kind: str) -> list[str]:
    """The benchmarks of a kind, by lm-eval's names."""
    return [name for name, benchmark in BENCHMARKS.items() if benchmark.kind == kind]


def scores(
    profile: dict, stores: str | tuple, tasks: Iterable[str], methods: Iterable[str] = METHOD_TITLES
) -> pd.DataFrame:
    """Mean score and standard error of each plan on each task, and on average.

    The average is over the tasks that no method lacks. A task with fewer than ``FEWEST_QUESTIONS``
    has no score.

    Parameters
    ----------
    profile : dict
        The profile whose results are read.
    stores : str or tuple of str
        One store, or several together; then only models that all of them have.
    tasks, methods : iterable of str
        Which cells of the stores, and in which order.

    Returns
    -------
    DataFrame
        Columns: model, method, task, value, error (in per cent), questions, reason (why there is no
        score), removed_fraction and head_ratio (fractions of 1), least and most (of an average: its
        range when one task is left out), methods (by :func:`one_row_per_plan`).
    """
    tasks = list(tasks)
    methods = list(methods)
    names = (stores,) if isinstance(stores, str) else stores
    cells_of_stores = [data.cells(profile["name"], name) for name in names]
    models = set.intersection(*({model for model, *_ in cells} for cells in cells_of_stores))
    rows = []
    for cells in cells_of_stores:
        for (model, method, task), cell in cells.items():
            if model in models and method in methods and task in tasks:
                rows.append((model, method, task, *_mean_score(cell["result"])))
    columns = [*CELL, "value", "error", "questions", "reason", *RATIOS]
    frame = pd.DataFrame(rows, columns=columns).drop_duplicates(CELL)  # two stores may have a cell
    averages = [_average(part) for _, part in frame.groupby("model", sort=False)]
    frame = pd.concat([frame, *averages], ignore_index=True)
    frame[list(RATIOS)] = frame.groupby(CELL[:2])[list(RATIOS)].transform("first").astype(float)
    order = [*(model for model, *_ in cells_of_stores[0]), *tasks, AVERAGE, *methods]
    places = {name: place for place, name in enumerate(dict.fromkeys(order))}
    frame = frame.sort_values(CELL, key=lambda part: part.map(places))
    return one_row_per_plan(frame.reset_index(drop=True), data.cells(profile["name"], "baselines"))


def _mean_score(result: Mapping[str, Any]) -> tuple:
    """Value, error, questions and reason of a cell, and what its plan removes."""
    answers = data.answered(result) or []
    ratios = (result.get(name) for name in RATIOS)
    if not answers:
        return (np.nan, np.nan, np.nan, result.get("failed"), *ratios)
    if len(answers) < FEWEST_QUESTIONS:
        return (np.nan, np.nan, len(answers), f"{len(answers)} questions", *ratios)
    error = comparisons.score_error(answers)
    return (100 * np.mean(answers), 100 * error, len(answers), None, *ratios)


def _average(part: pd.DataFrame) -> pd.DataFrame:
    """A model's rows of the unweighted mean over the tasks that all of its methods have."""
    complete = part.pivot_table("value", "task", "method").dropna().index
    plans = part[part["task"].isin(complete)].groupby(["model", "method"])
    average = plans.agg({"value": "mean", "questions": "sum"})
    average["error"] = plans["error"].agg(_error_of_mean)
    average["task"] = AVERAGE
    average["least"] = plans["value"].agg(lambda values: without_one(values).min())
    average["most"] = plans["value"].agg(lambda values: without_one(values).max())
    return average.reset_index()


def _error_of_mean(errors: pd.Series) -> float:
    """The standard error of an unweighted mean of independent numbers."""
    return np.sqrt((errors.to_numpy() ** 2).sum()) / len(errors)


def without_one(values: pd.Series) -> pd.Series:
    """The average of some tasks when each of them is left out; nan for a single task."""
    if len(values) < 2:
        return values * np.nan
    return (values.sum() - values) / (len(values) - 1)


def differences(
    profile: dict,
    stores: str | tuple,
    groups: Mapping[str, Iterable[str]],
    reference: str,
    methods: Iterable[str] = METHOD_TITLES,
) -> pd.DataFrame:
    """By how many points a reference scores higher than each other plan, paired by question.

    Tasks that one of the two lacks are left out, and groups with fewer than ``FEWEST_QUESTIONS``.

    Parameters
    ----------
    profile : dict
        The profile whose results are read.
    stores : str or tuple of str
        One store of scores, or several together.
    groups : mapping of str to iterable of str
        The tasks of each group, which are averaged.
    reference : str
        The method that the others are compared with.
    methods : iterable of str
        The others.

    Returns
    -------
    DataFrame
        Columns: model, method, group, value, low, high, questions, silent (both scored zero on all
        questions), methods (by :func:`one_row_per_plan`).
    """
    answers = answers_of(profile, stores)
    rows = []
    for model in dict.fromkeys(model for model, *_ in answers):
        for group, tasks in groups.items():
            for method in methods:
                pairs = _answer_pairs(answers, model, tasks, (reference, method))
                num_questions = sum(len(first) for first, _ in pairs)
                if method == reference or num_questions < FEWEST_QUESTIONS:
                    continue
                difference = comparisons.paired_difference(pairs) * 100
                silent = not any(any(scores) for pair in pairs for scores in pair)
                rows.append((model, method, group, *difference, silent))
    columns = ["model", "method", "group", "value", "low", "high", "questions", "silent"]
    frame = pd.DataFrame(rows, columns=columns)
    return one_row_per_plan(frame, data.cells(profile["name"], "baselines"))


def answers_of(profile: dict, stores: str | tuple) -> dict[tuple[str, str, str], list[float]]:
    """The scores of all questions by model, method and task, for the cells that have any."""
    names = (stores,) if isinstance(stores, str) else stores
    answers = {}
    for name in names:
        for key, cell in data.cells(profile["name"], name).items():
            scores_of_questions = data.answered(cell["result"])
            if scores_of_questions:
                answers[key] = scores_of_questions
    return answers


def _answer_pairs(
    answers: Mapping[tuple[str, str, str], list[float]],
    model: str,
    tasks: Iterable[str],
    methods: tuple[str, str],
) -> list[tuple[list[float], list[float]]]:
    """The scores of two methods on the questions of each task that both of them have."""
    first, second = methods
    pairs = []
    for task in tasks:
        if (model, first, task) in answers and (model, second, task) in answers:
            pairs.append((answers[model, first, task], answers[model, second, task]))
    return pairs


def named(task: str, source: str) -> str:
    """What an axis or a column calls a task, or the average."""
    return task.capitalize() if task == AVERAGE else task_title(task, source)


def question_counts(part: pd.DataFrame) -> dict[str, str]:
    """The number of questions of each task of a model, as a table has it in its last line."""
    return part.groupby("task")["questions"].max().map("{:.0f}".format).to_dict()
