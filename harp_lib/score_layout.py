"""The paper's two tables in its own layout, with standard errors: each model of ours, then the paper's block."""

from collections.abc import Mapping, Sequence
from fractions import Fraction

import numpy as np
import pandas as pd

from harp_lib.baseline_frames import EQUAL_PARAMETERS, TITLE
from harp_lib.measure.benchmarks import BENCHMARKS, DISCRIMINATIVE, GENERATION, Benchmark
from harp_lib.measure.models import display_name
from harp_lib.methods import BASELINES
from harp_lib.published import published, published_ratios, published_scores
from harp_lib.results import Cells
from harp_lib.score_frames import AVERAGE, average_frame, complete_tasks
from harp_lib.score_kept import Compared, compared, counterparts, is_above_chance
from harp_lib.statistics import average_estimate, score_estimate
from harp_lib.tables import with_error

COMPETING = (*BASELINES, EQUAL_PARAMETERS)  # these remove as many parameters; the best of them is bold
MISSING = "–"


def main_table(cells: Cells, scores: pd.DataFrame, kind: str) -> pd.DataFrame:
    """A table of the paper: methods by tasks, our models and then the paper's.

    Of the methods that remove as many parameters the best is bold: in our blocks where :func:`leader` finds one, in the
    paper's where the printed score is the highest.
    """
    part = scores[scores["kind"] == kind]
    rows = [row for model in part["model"].unique() for row in _our_block(cells, part[part["model"] == model], model)]
    rows += [row for model in counterparts(part["model"].unique()) for row in _published_block(model, kind)]
    return pd.DataFrame(rows).fillna("")


def leader(
    cells: Cells,
    model: str,
    methods: Sequence[str],
    tasks: Sequence[str],
    benchmarks: Mapping[str, Benchmark] = BENCHMARKS,
) -> str | None:
    """The method with the highest average over tasks, if its lead over the next exceeds the lead's standard error.

    The lead is paired by question.
    """
    pairs = {method: compared(cells, model, method, tasks, benchmarks) for method in methods}
    pairs = {method: found for method, found in pairs.items() if tasks and len(found) == len(tasks)}
    means = {method: np.mean([np.mean(scores) for scores, *_ in found]) for method, found in pairs.items()}
    best = sorted(means, key=means.get, reverse=True)[:2]
    if len(best) < 2:
        return None
    first, second = ([scores for scores, *_ in pairs[method]] for method in best)
    lead = average_estimate([score_estimate(np.subtract(*both)) for both in zip(first, second, strict=True)])
    return best[0] if lead.value - lead.error > 1e-9 else None  # a lead of one question is as large as its error


def score_block(
    cells: Cells,
    model: str,
    part: pd.DataFrame,
    methods: Sequence[str],
    competing: Sequence[str],
    benchmarks: Mapping[str, Benchmark] = BENCHMARKS,
    bold_at_floor: bool = True,
) -> dict[str, dict[str, str]]:
    """Rows of one model by method, with two more: how many questions, and whether the dense model is at the floor.

    Parameters
    ----------
    cells : dict
    model : str
    part : DataFrame
        The model's rows of :func:`.score_frame`, of one kind of task.
    methods, competing : sequence of str
        Which rows; and of which the best is bold, where :func:`leader` finds one.
    benchmarks : dict
        That the tasks belong to.
    bold_at_floor : bool
        Whether the best is bold also where the dense model is at the floor.
    """
    complete = complete_tasks(part)
    tasks = {task: [task] for task in part["task"].unique()} | {AVERAGE: complete}
    frames = part, average_frame(part).assign(task=AVERAGE)
    whole = pd.concat([frame.dropna(subset="score") for frame in frames])
    known = {(row.method, row.task): with_error(row.score, row.error) for row in whole.itertuples()}
    floor = {task: _floor(compared(cells, model, "dense", of, benchmarks)) for task, of in tasks.items()}
    judged = [task for task in tasks if bold_at_floor or floor[task] != "yes"]
    bold = {task: leader(cells, model, competing, tasks[task], benchmarks) for task in judged}
    rows = {}
    for method in methods:
        shown = {task: known.get((method, task), MISSING) for task in tasks}
        rows[method] = {task: in_bold(text) if bold.get(task) == method else text for task, text in shown.items()}
    asked = part.groupby("task")["questions"].max()
    rows["questions"] = {task: f"{asked[of].sum():.0f}" for task, of in tasks.items()}
    if len(complete) < len(tasks) - 1:
        rows["questions"][AVERAGE] += f" in {len(complete)} tasks"
    return rows | {"at the floor": floor}


def _floor(dense: Sequence[Compared]) -> str:
    """Whether the dense model is at the floor, which one question does not tell."""
    if not dense:
        return MISSING
    return "one question" if is_single(dense) else "no" if is_above_chance(dense) else "yes"


def _our_block(cells: Cells, part: pd.DataFrame, model: str) -> list[dict[str, str]]:
    name, ratios = display_name(model), part.groupby("method")[["removed_fraction", "head_ratio"]].first()
    block, rows = score_block(cells, model, part, _layout(), COMPETING), []
    for method in _layout():
        removed, heads = ratios.loc[method]
        removed = MISSING if np.isnan(removed) else f"{100 * removed:.2f} %"
        rows.append(_row(name, TITLE[method], block[method], removed, heads))
    rows.append(_row(name, "questions", block["questions"]))
    if part["kind"].iloc[0] == DISCRIMINATIVE:
        chance = part.drop_duplicates("task").set_index("task")["chance"]
        chance[AVERAGE] = chance[complete_tasks(part)].mean()
        rows.append(_row(name, "chance", {task: f"{value:.2f}" for task, value in chance.dropna().items()}))
    return [*rows, _row(name, "at the floor", block["at the floor"])]


def _published_block(model: str, kind: str) -> list[dict[str, str]]:
    scores, name = published_scores(kind, model), f"{model} (paper)"
    heads = published(kind).query("metric == 'head_ratio' and model == @model").set_index("method")["value"]
    best = scores.loc[scores.index.isin(COMPETING)].max()
    rows = []
    for method, printed in scores.iterrows():
        shown = {task: f"{score:.2f}" for task, score in printed.items()}
        winner = {task: method in COMPETING and score == best[task] for task, score in printed.items()}
        shown = {task: in_bold(text) if winner[task] else text for task, text in shown.items()}
        rows.append(_row(name, TITLE[method], shown, f"{published_ratios()[model][method]:.1f} %", heads[method]))
    counts = published("dataset_statistics").query("metric == 'documents'").set_index("task")["value"]
    asked = {task: counts[task] for task in scores.columns.drop(AVERAGE)}
    asked[AVERAGE] = sum(asked.values())
    return [*rows, _row(name, "questions", {task: f"{count:,.0f}" for task, count in asked.items()})]


def is_single(tasks: Sequence[Compared]) -> bool:
    """Whether a task has one question only, so that there is no standard error to judge by."""
    return any(len(dense) < 2 for _, dense, _ in tasks)


def in_bold(text: str) -> str:
    """A number in bold, for Markdown and LaTeX alike: formulas are what both of them leave alone."""
    return r"$\mathbf{" + text.replace("±", r"\pm") + "}$"


def _row(model: str, method: str, shown: Mapping[str, str], removed: str = "", heads: float | None = None) -> dict:
    ratio = "" if heads is None or np.isnan(heads) else str(Fraction(heads).limit_denominator(1000))
    return {"model": model, "method": method, "parameters removed": removed, "heads removed": ratio, **shown}


def _layout() -> list[str]:
    """Methods in the order of the paper's rows."""
    return list(published_scores(GENERATION, counterparts([])[0]).index)
