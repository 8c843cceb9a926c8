"""Cells of notebooks 05, 06 and 07 as tidy frames: one row for each model, method and task. Scores are in per cent."""

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from harp_lib.baseline_frames import ORDER
from harp_lib.measure.benchmarks import BENCHMARKS, Benchmark
from harp_lib.results import Cells
from harp_lib.statistics import Interval, average_estimate, paired_difference, score_estimate

AVERAGE = "Average"


def score_frame(
    cells: Cells, order: Sequence[str] = ORDER, benchmarks: Mapping[str, Benchmark] = BENCHMARKS
) -> pd.DataFrame:
    """Score of every method on every task of some benchmarks.

    Columns: model, method, task (as the paper prints it), kind, score, error (standard error), questions, chance,
    answer_tokens (mean length of the answers), removed_fraction and head_ratio of the method (fractions of 1), and
    ``failed``: why there is no score, or None. Rows are in the order of models, of the paper's tasks and of ``order``.
    """
    rows = []
    for (model, method, task), cell in cells.items():
        if task not in benchmarks or method not in order:
            continue
        benchmark, result = benchmarks[task], cell["result"]
        row = {"model": model, "method": method, "task": benchmark.title, "kind": benchmark.kind}
        if not result.get("failed"):
            value, error = score_estimate(result["scores"])
            row |= {"score": 100 * value, "error": 100 * error, "questions": len(result["scores"])}
            row |= {name: result[name] for name in ("removed_fraction", "head_ratio")}
            if "answer_tokens" in result:
                row["answer_tokens"] = sum(result["answer_tokens"]) / len(result["answer_tokens"])
        chance = 100 / benchmark.choices if benchmark.choices else 0.0
        rows.append(row | {"chance": chance, "failed": result.get("failed")})
    columns = ["model", "method", "task", "kind", "score", "error", "questions", "chance", "answer_tokens"]
    ratios = ["removed_fraction", "head_ratio"]
    frame = pd.DataFrame(rows, columns=[*columns, *ratios, "failed"])
    frame[ratios] = frame.groupby(["model", "method"])[ratios].transform("first")  # a failed cell does not know them
    titles = [benchmark.title for benchmark in benchmarks.values()]
    ranks = pd.DataFrame({"model": pd.factorize(frame["model"])[0], "task": frame["task"].map(titles.index)})
    ranks["method"] = frame["method"].map(list(order).index)
    return frame.loc[ranks.sort_values(["model", "task", "method"]).index].reset_index(drop=True)


def complete_tasks(scores: pd.DataFrame) -> list[str]:
    """The tasks that no method lacks a score on: averages are of these, so that all are of the same tasks."""
    return [task for task, part in scores.groupby("task", sort=False) if part["failed"].isna().all()]


def result_of(cells: Cells, model: str, method: str, task: str) -> dict[str, Any]:
    """The result of a cell, or ``{"failed": reason}`` if there is none."""
    return cells.get((model, method, task), {}).get("result", {"failed": "not run"})


def average_frame(scores: pd.DataFrame) -> pd.DataFrame:
    """Unweighted mean over the complete tasks of a kind: model, method, kind, score, error, tasks (how many)."""
    rows = []
    for (model, kind), part in scores.groupby(["model", "kind"], sort=False):
        part = part[part["task"].isin(complete_tasks(part))]
        for method, mine in part.groupby("method", sort=False):
            value, error = average_estimate(list(zip(mine["score"], mine["error"], strict=True)))
            rows.append((model, method, kind, value, error, len(mine)))
    return pd.DataFrame(rows, columns=["model", "method", "kind", "score", "error", "tasks"])


def difference(
    cells: Cells,
    model: str,
    first: str,
    second: str,
    tasks: Sequence[str],
    benchmarks: Mapping[str, Benchmark] = BENCHMARKS,
) -> Interval | None:
    """By how many points ``first`` scores higher than ``second``, averaged over tasks, with 95 % interval.

    Paired by question. Tasks (as the paper prints them) that one of the two has no score on are left out; None if none
    is left.
    """
    names = [name for name, benchmark in benchmarks.items() if benchmark.title in tasks]
    pairs = []
    for name in names:
        results = [result_of(cells, model, method, name) for method in (first, second)]
        if not any("failed" in result for result in results):
            pairs.append(tuple(result["scores"] for result in results))
    return Interval(*(100 * value for value in paired_difference(pairs))) if pairs else None


def difference_frame(cells: Cells, scores: pd.DataFrame, reference: str = "harp") -> pd.DataFrame:
    """Paired difference of every other method to ``reference``, for each task and the average of each kind.

    Columns: model, method, kind, task (or "Average"), change (points; positive where the method scores higher), low,
    high, questions.
    """
    rows = []
    for (model, kind), part in scores.groupby(["model", "kind"], sort=False):
        whole = complete_tasks(part)
        for method in part["method"].unique():
            for task in [] if method == reference else [*part["task"].unique(), AVERAGE]:
                tasks = whole if task == AVERAGE else [task]
                if (found := difference(cells, model, method, reference, tasks)) is not None:
                    asked = part[(part["method"] == method) & part["task"].isin(tasks)]["questions"].sum()
                    rows.append((model, method, kind, task, *found, int(asked)))
    return pd.DataFrame(rows, columns=["model", "method", "kind", "task", "change", "low", "high", "questions"])
