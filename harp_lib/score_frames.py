"""The cells of notebooks 05 and 06 as tidy frames: one row for each model, method and task. Scores are in per cent."""

from collections.abc import Sequence

import pandas as pd

from .baseline_frames import ORDER
from .benchmarks import BENCHMARKS
from .results import Cells
from .statistics import Interval, average_estimate, paired_difference, score_estimate

AVERAGE = "Average"


def score_frame(cells: Cells, order: Sequence[str] = ORDER) -> pd.DataFrame:
    """Score of every method on every task.

    Columns: model, method, task (as the paper prints it), kind, score, error (standard error), questions, chance,
    shots, new_tokens, answer_tokens (mean length of the answers), beside (the metric kept beside the paper's),
    removed_fraction and head_ratio of the method (fractions of 1), seconds, and ``failed``: why there is no score, or
    None. Rows are in the order of models, of the paper's tasks and of ``order``.
    """
    rows = []
    for (model, method, task), cell in cells.items():
        if task not in BENCHMARKS or method not in order:
            continue
        benchmark, result, inputs = BENCHMARKS[task], cell["result"], cell["inputs"]
        row = {"model": model, "method": method, "task": benchmark.title, "kind": benchmark.kind}
        if not result.get("failed"):
            value, error = score_estimate(result["scores"])
            row |= {"score": 100 * value, "error": 100 * error, "questions": len(result["scores"])}
            row |= {name: result[name] for name in ("removed_fraction", "head_ratio")}
            if "beside" in result:
                row["beside"] = 100 * sum(result["beside"]) / len(result["beside"])
            if "answer_tokens" in result:
                row["answer_tokens"] = sum(result["answer_tokens"]) / len(result["answer_tokens"])
        row |= {"chance": 100 / benchmark.choices if benchmark.choices else 0.0}
        row |= {name: inputs.get(name) for name in ("shots", "new_tokens")}
        rows.append(row | {"seconds": result.get("seconds"), "failed": result.get("failed")})
    columns = ["model", "method", "task", "kind", "score", "error", "questions", "chance", "shots", "new_tokens"]
    ratios = ["removed_fraction", "head_ratio"]
    frame = pd.DataFrame(rows, columns=[*columns, "answer_tokens", "beside", *ratios, "seconds", "failed"])
    frame[ratios] = frame.groupby(["model", "method"])[ratios].transform("first")  # a failed cell does not know them
    titles = [benchmark.title for benchmark in BENCHMARKS.values()]
    ranks = pd.DataFrame({"model": pd.factorize(frame["model"])[0], "task": frame["task"].map(titles.index)})
    ranks["method"] = frame["method"].map(list(order).index)
    return frame.loc[ranks.sort_values(["model", "task", "method"]).index].reset_index(drop=True)


def average_frame(scores: pd.DataFrame) -> pd.DataFrame:
    """Unweighted mean over the tasks of a kind: model, method, kind, score, error, tasks (how many).

    Only tasks that every method of the model has a score on count, so that all averages are of the same tasks.
    """
    rows = []
    for (model, kind), part in scores.groupby(["model", "kind"], sort=False):
        failed = set(part.loc[part["failed"].notna(), "task"])
        part = part[~part["task"].isin(failed)]
        for method, mine in part.groupby("method", sort=False):
            value, error = average_estimate(list(zip(mine["score"], mine["error"], strict=True)))
            rows.append((model, method, kind, value, error, len(mine)))
    return pd.DataFrame(rows, columns=["model", "method", "kind", "score", "error", "tasks"])


def difference(cells: Cells, model: str, first: str, second: str, tasks: Sequence[str]) -> Interval | None:
    """By how many points ``first`` scores higher than ``second``, averaged over tasks, with 95 % interval.

    Paired by question. Tasks (as the paper prints them) that one of the two has no score on are left out; None if none
    is left.
    """
    names = [name for name, benchmark in BENCHMARKS.items() if benchmark.title in tasks]
    pairs = []
    for name in names:
        results = [
            cells.get((model, method, name), {}).get("result", {"failed": "not run"}) for method in (first, second)
        ]
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
        whole = [task for task, mine in part.groupby("task", sort=False) if mine["failed"].isna().all()]
        for method in part["method"].unique():
            for task in [] if method == reference else [*part["task"].unique(), AVERAGE]:
                tasks = whole if task == AVERAGE else [task]
                if (found := difference(cells, model, method, reference, tasks)) is not None:
                    asked = part[(part["method"] == method) & part["task"].isin(tasks)]["questions"].sum()
                    rows.append((model, method, kind, task, *found, int(asked)))
    return pd.DataFrame(rows, columns=["model", "method", "kind", "task", "change", "low", "high", "questions"])
