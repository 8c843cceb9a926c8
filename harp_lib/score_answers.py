"""The answers of notebook 05 as tidy frames: how long they are, what another metric says, and one of each to read."""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from harp_lib.baseline_frames import ORDER, ordered
from harp_lib.measure.benchmarks import BENCHMARKS, Benchmark
from harp_lib.results import Cells
from harp_lib.score_frames import result_of
from harp_lib.score_kept import compared, is_above_chance
from harp_lib.statistics import score_estimate

EXAMPLE = ["model", "task", "question", "method", "score", "tokens", "answer"]  # columns


def length_frame(cells: Cells) -> pd.DataFrame:
    """Length of the answers.

    Columns: model, method, task, tokens (mean), error, limit (nan: lm-eval's own), questions.
    """
    rows = []
    for (model, method, task), cell in cells.items():
        if tokens := cell["result"].get("answer_tokens"):
            limit = cell["inputs"].get("new_tokens")
            rows.append((model, method, BENCHMARKS[task].title, *score_estimate(tokens), limit, len(tokens)))
    return ordered(pd.DataFrame(rows, columns=["model", "method", "task", "tokens", "error", "limit", "questions"]))


def beside_frame(cells: Cells) -> pd.DataFrame:
    """The metric that is kept beside the paper's, in per cent.

    Columns: model, method, task, metric, score, error, other (its name), other_score, other_error, questions.
    """
    rows = []
    for (model, method, task), cell in cells.items():
        benchmark, result = BENCHMARKS[task], cell["result"]
        if "beside" in result:
            own, other = ([100 * number for number in score_estimate(result[key])] for key in ("scores", "beside"))
            count = len(result["scores"])
            rows.append((model, method, benchmark.title, benchmark.metric, *own, benchmark.beside, *other, count))
    own, other = ["metric", "score", "error"], ["other", "other_score", "other_error"]
    return ordered(pd.DataFrame(rows, columns=["model", "method", "task", *own, *other, "questions"]))


def example_frame(cells: Cells) -> pd.DataFrame:
    """Each method's answer to one question of one generation task.

    The task is the one with the longest dense answers of those above the floor, or of all where none is; the question
    is the first that the dense model gets right, or the first where it gets none.

    Columns: model, task, question (its number), method, score, tokens, answer.
    """
    models = dict.fromkeys(model for model, *_ in cells)
    rows = [row for model in models for row in answers_to(cells, model, BENCHMARKS, "answer_tokens", ORDER)]
    return pd.DataFrame(rows, columns=EXAMPLE)


def answers_to(
    cells: Cells, model: str, benchmarks: Mapping[str, Benchmark], most: str, methods: Sequence[str]
) -> list[tuple]:
    """The answers of some methods to the question that the dense model answers best, as rows of examples.

    Parameters
    ----------
    cells : dict
    model : str
    benchmarks : dict
        The task is one of these: of those above the floor, or of all where none is.
    most : str
        The task's dense results have the highest mean of it: "answer_tokens" or "scores".
    methods : sequence of str

    Returns
    -------
    list of tuple
        With the values of ``EXAMPLE``; empty if the dense model has no answers.
    """
    results = {task: result_of(cells, model, "dense", task) for task in benchmarks}
    dense = {task: result for task, result in results.items() if "answers" in result}
    if not dense:
        return []
    title = {task: benchmarks[task].title for task in dense}
    above = [task for task in dense if is_above_chance(compared(cells, model, "dense", [title[task]], benchmarks))]
    task = max(above or dense, key=lambda task: np.mean(dense[task][most]))
    number, rows = int(np.argmax(dense[task]["scores"])), []
    for method in methods:
        result = result_of(cells, model, method, task)
        if "answers" in result:
            found = (result[key][number] for key in ("scores", "answer_tokens", "answers"))
            rows.append((model, title[task], number + 1, method, *found))
    return rows
