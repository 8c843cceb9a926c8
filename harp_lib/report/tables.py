"""Tables as the paper has them: its block, and ours beneath in the same layout, with counts and standard errors.

A frame is long and unrounded, and is what the csv has; :func:`block` turns it into what people read.
"""

from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import pandas as pd

from harp_lib.measure.evaluation import BENCHMARKS, LONGBENCH, task_title
from harp_lib.measure.models import display_name
from harp_lib.methods import TITLES
from harp_lib.report import data, table
from harp_lib.report.comparisons import average_estimate, score_estimate

ROWS = ("dense", "mag-sp", "llm-pruner", "wanda-sp", "flap", "harp+flap", "harp")  # in the paper's order
COMPETING = ROWS[1:6]  # these remove as many parameters; the paper prints the best of them bold
MISSING = "–"
Table = tuple[pd.DataFrame, pd.DataFrame]  # as people read it, and the numbers


def block(frame: pd.DataFrame, rows: str, columns: str, cell: str = "{value:.2f} ± {error:.2f}") -> pd.DataFrame:
    """A long frame as a table of text.

    Parameters
    ----------
    frame : DataFrame
        A row for each cell of the table: value, and where there are such: error, reason (why there is no value), best.
    rows, columns : str
        The columns that name a line and a column of the table, both in order of appearance.
    cell : str
        How a row is written; what stands from " ±" on is left out where there is no error.

    Returns
    -------
    DataFrame
        Of strings: a dash, and its reason, where there is no value; bold where it is the best.
    """
    texts = frame.assign(text=[_text(row, cell) for row in frame.to_dict("records")])
    wide = texts.pivot_table(index=rows, columns=columns, values="text", aggfunc="first", sort=False)
    return wide.reindex(columns=frame[columns].unique()).fillna(MISSING).rename_axis(columns=None).reset_index()


def _text(row: Mapping[str, Any], cell: str) -> str:
    if pd.isna(row["value"]):
        reason = row.get("reason")
        return f"{MISSING} ({one_line(reason, 80)})" if isinstance(reason, str) else MISSING
    text = (cell if pd.notna(row.get("error", np.nan)) else cell.partition(" ±")[0]).format(**row)
    return f"**{text}**" if row.get("best") is True else text


def stacked(*blocks: pd.DataFrame) -> pd.DataFrame:
    """Blocks beneath each other; a model is named in the first of its lines."""
    whole = pd.concat([part for part in blocks if len(part)], ignore_index=True)
    return whole.assign(model=whole["model"].mask(whole["model"].eq(whole["model"].shift()), "")).fillna("")


def one_line(text: str, most: int) -> str:
    """The beginning of a text in a cell: · stands for line ends and for marks that Markdown would read."""
    kept = "".join(mark if mark.isalnum() or mark in " .,:;!?'()=+-/%−" else "·" for mark in text)
    return kept if len(kept) <= most else kept[: most - 1] + "…"


def scores(profile: dict, store: str, tasks: Iterable[str], methods: Sequence[str] = ROWS) -> pd.DataFrame:
    """Mean score and standard error of each method on each task, and on average of the tasks that no method lacks.

    Columns: model, method, removed_fraction, head_ratio (fractions of 1), task, value, error (in per cent), questions,
    reason (why there is no score).
    """
    quantities, rows = ("removed_fraction", "head_ratio"), []
    found = data.tidy(profile["name"], store, "scores", "failed", *quantities)
    found = found[found["task"].isin(list(tasks)) & found["method"].isin(methods)]
    for model, mine in found.groupby("model", sort=False):
        kept = mine[mine["quantity"] == "scores"].groupby(["method", "task"])["value"]
        kept = {key: values.to_numpy(float) for key, values in kept}
        there, asked = ([one for one in known if one in set(mine[name])] for name, known in _orders(methods, tasks))
        whole = [task for task in asked if all((method, task) in kept for method in there)]
        for method in there:
            own = mine[mine["method"] == method].set_index(["quantity", "task"])["value"]
            about = {"model": model, "method": method}
            about |= {name: own[name].iloc[0] if name in own else np.nan for name in quantities}
            for task in asked:
                values = kept.get((method, task), [])
                value, error = score_estimate(values)[:2] if len(values) else (np.nan, np.nan)
                reason = None if len(values) else own.get(("failed", task), "not run")
                row = {"task": task, "value": 100 * value, "error": 100 * error, "questions": len(values)}
                rows.append(about | row | {"reason": reason})
            if whole:
                value, error = average_estimate([score_estimate(kept[method, task])[:2] for task in whole])[:2]
                count = sum(len(kept[method, task]) for task in whole)
                row = {"task": "average", "value": 100 * value, "error": 100 * error, "questions": count}
                rows.append(about | row)
    columns = ["model", "method", *quantities, "task", "value", "error", "questions", "reason"]
    return pd.DataFrame(rows, columns=columns)


def _orders(methods: Iterable[str], tasks: Iterable[str]) -> tuple:
    return ("method", methods), ("task", tasks)


def score_table(
    profile: dict,
    printed: pd.DataFrame,
    ours: pd.DataFrame,
    ratios: Mapping[str, str] | None = None,
    titles: Mapping[str, str] = TITLES,
) -> Table:
    """The paper's models whole, with the best printed score bold; then ours, with how many questions were asked."""
    paper = printed[printed["quantity"] == "score"]
    shares = printed[printed["task"] == "all"].pivot_table(
        index=["model", "method"], columns="quantity", values="value"
    )
    paper = paper.join(shares, on=["model", "method"])
    highest = paper[paper["method"].isin(COMPETING)].groupby(["model", "task"])["value"].max().rename("highest")
    paper = paper.join(highest, on=["model", "task"])
    paper["best"] = paper["method"].isin(COMPETING) & (paper["value"] == paper["highest"])
    tasks, blocks = list(paper["task"].unique()), []
    official, own = ({task: _title(task, source) for task in tasks} for source in ("hub", profile["datasets"]))
    for (model, part), is_ours in [(part, False) for part in _by_model(paper)] + [(p, True) for p in _by_model(ours)]:
        shown = block(part, "method", "task").reindex(columns=["method", *tasks], fill_value=MISSING)
        first = part.drop_duplicates("method").set_index("method")
        for name, head in (ratios or {}).items():
            shown[head] = [_share(name, first.loc[method], is_ours) for method in shown["method"]]
        shown["method"] = [titles.get(method, method) for method in shown["method"]]
        if is_ours:
            counts = {"method": "questions"} | part.groupby("task")["questions"].max().map("{:.0f}".format).to_dict()
            above = [own] if own != official else []
            shown = pd.concat([pd.DataFrame(above), shown, pd.DataFrame([counts])])
        blocks.append(shown.assign(model=display_name(model) if is_ours else f"{model} (paper)"))
    whole = stacked(*blocks)[["model", "method", *(ratios or {}).values(), *tasks]].rename(columns=official)
    numbers = pd.concat([paper.assign(source="paper"), ours.assign(source="ours")])
    return whole, numbers.drop(columns=["quantity", "best", "highest"])


def _by_model(frame: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    return list(frame.groupby("model", sort=False))


def _title(task: str, source: str) -> str:
    return "Average" if task.startswith("average") else task_title(task, source)


def _share(name: str, row: pd.Series, is_ours: bool) -> str:
    value = row.get(name, np.nan)
    if pd.isna(value):
        return ""
    if name == "head_ratio":
        return str(Fraction(value).limit_denominator(1000))
    return f"{100 * value:.2f} %" if is_ours else f"{value:.1f} %"
