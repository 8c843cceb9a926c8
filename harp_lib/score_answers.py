"""The answers of notebook 05 as tidy frames: how long they are, what another metric says, and one of each to read."""

import numpy as np
import pandas as pd

from .baseline_frames import ORDER, ordered
from .benchmarks import BENCHMARKS
from .results import Cells
from .score_kept import compared, is_above_chance
from .statistics import score_estimate


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
    rows = []
    for model in dict.fromkeys(model for model, *_ in cells):
        dense = {
            task: cell["result"]
            for (name, method, task), cell in cells.items()
            if name == model and method == "dense" and "answers" in cell["result"]
        }
        above = [task for task in dense if is_above_chance(compared(cells, model, "dense", [BENCHMARKS[task].title]))]
        if not dense:
            continue
        task = max(above or dense, key=lambda task: np.mean(dense[task]["answer_tokens"]))
        number = int(np.argmax(dense[task]["scores"]))
        for method in ORDER:
            result = cells.get((model, method, task), {}).get("result", {})
            if "answers" in result:
                found = (result[key][number] for key in ("scores", "answer_tokens", "answers"))
                rows.append((model, BENCHMARKS[task].title, number + 1, method, *found))
    return pd.DataFrame(rows, columns=["model", "task", "question", "method", "score", "tokens", "answer"])
