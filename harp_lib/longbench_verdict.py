"""What the results of notebook 07 say, in words that follow the numbers."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from harp_lib.baseline_frames import EQUAL_HEADS, EQUAL_PARAMETERS, TITLE
from harp_lib.longbench_claims import (
    ALL,
    AS_MANY,
    EVERY,
    MULTI_HOP,
    ONE_QUESTION,
    PRUNED,
    STRONG,
    TABLE,
    above_floor,
    has_no_errors,
    highest_average,
    larger_lead,
    most_benchmarks,
    most_first_places,
    paper_models,
    published_ranks,
    rank_frame,
    strong,
)
from harp_lib.measure.benchmarks import LONGBENCH
from harp_lib.measure.models import display_name
from harp_lib.methods import BASELINES
from harp_lib.published import published_scores
from harp_lib.results import Cells
from harp_lib.score_claims import FLOOR, NO_SCORE, Finding
from harp_lib.score_frames import average_frame, complete_tasks, score_frame
from harp_lib.score_layout import COMPETING, leader
from harp_lib.tables import with_error

UNJUDGED = "not judged"
AVERAGE_CLAIM = f"{TITLE[EQUAL_PARAMETERS]} has the highest average, {AS_MANY} (the paper prints no averages)"
MOST_CLAIM = f"{TITLE[EQUAL_PARAMETERS]} outperforms the baselines in most benchmarks, {AS_MANY}"
FIRST_CLAIM = f"{TITLE[EQUAL_PARAMETERS]} has the highest number of first places, {AS_MANY}"
HARP_CLAIM = f"{TITLE[EQUAL_HEADS]} has the highest number of first places of all pruned models"
LEAD_CLAIM = f"the lead of {TITLE[EQUAL_PARAMETERS]} is larger on {' and '.join(MULTI_HOP)} than elsewhere"
STRONG_CLAIM = f"{TITLE[STRONG[0]]} is the best on {STRONG[1]}, {AS_MANY}"
OURS = {AS_MANY: EQUAL_PARAMETERS, PRUNED: EQUAL_HEADS}  # the paper's own method in each comparison
NOT_BOLD = {"LLaMA3.1-8B": ("MultiNews", "Lcc")}  # columns of the paper's table in which it prints nothing in bold
ODD = "MultiNews"  # on which one dense model of the paper hardly scores


def verdict(cells: Cells) -> pd.DataFrame:
    """Each claim with what was measured and what follows: claim, model, evidence, verdict, in the paper's table."""
    scores = score_frame(cells, benchmarks=LONGBENCH)
    ranks, rows = rank_frame(cells, scores), []
    for model, part in scores.groupby("model", sort=False):
        found: dict[str, Finding] = {
            MOST_CLAIM: most_benchmarks(ranks, model),
            FIRST_CLAIM: most_first_places(ranks, model, AS_MANY, EQUAL_PARAMETERS),
            HARP_CLAIM: most_first_places(ranks, model, PRUNED, EQUAL_HEADS),
            LEAD_CLAIM: larger_lead(cells, scores, model),
            STRONG_CLAIM: strong(cells, model),
            AVERAGE_CLAIM: highest_average(cells, model, complete_tasks(part)),
        }
        if has_no_errors(cells, model, part["task"].unique()):
            found = {claim: _without_error(finding) for claim, finding in found.items()}
        rows += [(claim, display_name(model), *finding) for claim, finding in found.items()]
    return pd.DataFrame(rows, columns=["claim", "model", "evidence", "verdict", "in the paper's table"])


def _without_error(finding: Finding) -> Finding:
    """What looked like the floor, where there is no error to tell it by."""
    return finding._replace(evidence=ONE_QUESTION, verdict=UNJUDGED) if finding.verdict == FLOOR else finding


def answer(cells: Cells) -> str:
    """What holds here: a few sentences for each model."""
    lines = []
    for model, part in verdict(cells).groupby("model", sort=False):
        by_claim = part.set_index("claim")["verdict"]
        counts = ", ".join(f"{judged} {count}" for judged, count in by_claim.value_counts(sort=False).items())
        lines.append(
            f"- **{model}.** That {MOST_CLAIM}: {by_claim[MOST_CLAIM]}. That it has the highest number of first places "
            f"among them: {by_claim[FIRST_CLAIM]}. Of the {len(part)} claims of the table below: {counts}."
        )
    return "\n".join(lines)


def read_setting(cells: Cells) -> str:
    """How the scores were computed, and what was cut."""
    found = {
        (model, task): (cell["inputs"], cell["result"])  # the prompts of all methods are the same
        for (model, _, task), cell in cells.items()
        if "failed" not in cell["result"]
    }.values()
    if not found:
        return "There is no score."
    sources, versions, dtypes, sizes = (
        ", ".join(dict.fromkeys(str(inputs[name]) for inputs, _ in found))
        for name in ("source", "lm_eval", "dtype", "batch_size")
    )
    lengths = np.concatenate([result["prompt_tokens"] for _, result in found])
    limits = [cut_to(inputs, result) for inputs, result in found]
    cut = sum(tokens > cut_to(inputs, result) for inputs, result in found for tokens in result["prompt_tokens"])
    shown = f"{min(limits):,}"
    if min(limits) < max(limits):
        shown += f" to {max(limits):,} tokens (fewer where a model cannot read more besides its answer)"
    return (
        f"Rows: {sources}. Run by lm-eval {versions}, scored by the official metrics, models in {dtypes}, batches of "
        f"{sizes}. Prompts have {lengths.min():,} to {lengths.max():,} tokens; {cut} of {len(lengths)} were longer "
        f"than {shown} and were cut to that length."
    )


def cut_to(inputs: dict[str, Any], result: dict[str, Any]) -> int:
    """The length in tokens that a task's prompts were cut to: the profile's, or less with a shorter model."""
    return result.get("context", inputs["context"])  # cells of earlier runs have the profile's only


def read_scores(cells: Cells, scores: pd.DataFrame) -> str:
    """Which method comes out highest on average, by how clear a lead, and which tasks are at the floor."""
    lines = []
    for model, part in scores.groupby("model", sort=False):
        whole = complete_tasks(part)
        means = average_frame(part.assign(kind=ALL)).set_index("method")
        if means.empty:
            lines.append(f"- **{display_name(model)}.** No task has a score of every method.")
            continue
        said = {method: f"{with_error(row['score'], row['error'])} %" for method, row in means.iterrows()}
        competing = means.loc[[method for method in COMPETING if method in means.index], "score"]
        more = "more" if leader(cells, model, COMPETING, whole, LONGBENCH) else "no more"
        lines.append(
            f"- **{display_name(model)}.** On average over {len(whole)} tasks the dense model scores {said['dense']}. "
            f"Of the methods that remove as many parameters, the highest average is that of {_highest(competing)}, "
            f"{said[competing.idxmax()]}, ahead of the next by {more} than the error of its lead. "
            f"{TITLE[EQUAL_HEADS]}, which removes fewer parameters, scores {said[EQUAL_HEADS]}. "
            f"{_floor(cells, model, part)}"
        )
    return "\n".join(lines)


def _floor(cells: Cells, model: str, part: pd.DataFrame) -> str:
    """The tasks of which nothing can be said."""
    tasks = part.loc[(part["method"] == "dense") & part["failed"].isna(), "task"].tolist()
    if has_no_errors(cells, model, tasks):
        return f"Which tasks are at the floor cannot be said ({ONE_QUESTION})."
    above = above_floor(cells, model, tasks)
    floor = [task for task in tasks if task not in above]
    if not floor:
        return "No task is at the floor."
    return f"At the floor, where the dense model is not above 0 by two standard errors: {_listed(floor)}."


def read_paper() -> str:
    """What the paper's own table says that its text does not."""
    lines = []
    for model in paper_models():
        block = published_scores(TABLE, model)
        means = block.mean(axis=1)
        rivals = means[means.index.isin(BASELINES)]
        lines.append(
            f"- **{model} (paper).** Averaged over its {block.shape[1]} tasks, the dense model has "
            f"{means['dense']:.2f} %, {TITLE[EQUAL_PARAMETERS]} {means[EQUAL_PARAMETERS]:.2f} %, the best baseline, "
            f"{TITLE[rivals.idxmax()]}, {rivals.max():.2f} %, and {TITLE[EQUAL_HEADS]} {means[EQUAL_HEADS]:.2f} %."
        )
        for task in NOT_BOLD.get(model, ()):
            column = block.loc[block.index.isin(COMPETING), task]
            lines[-1] += (
                f" No number is bold in the column {task}, where {TITLE[column.idxmax()]} is the highest with "
                f"{column.max():.2f} % and {TITLE[EQUAL_PARAMETERS]} has {column[EQUAL_PARAMETERS]:.2f} %."
            )
    dense = [f"{published_scores(TABLE, model).loc['dense', ODD]:.2f} % on {model}" for model in paper_models()]
    lines.append(f"- **{ODD} of the dense models (paper).** {_listed(dense)}.")
    return "\n".join(lines)


def read_ranks(ranks: pd.DataFrame) -> str:
    """Who has most first places, in each of the two comparisons, here and in the paper."""
    lines = []
    for (model, among, of), mine in ranks.groupby(["model", "among", "of"], sort=False):
        number, name = mine["tasks"].iloc[0], f"{display_name(model)}, {among}"
        if number:
            lines.append(f"- **{name}, {number} {of}.** {_most(mine, among)}")
        else:
            lines.append(f"- **{name}.** {no_tasks(ranks, model).capitalize()}.")
    for (model, among), mine in published_ranks().groupby(["model", "among"], sort=False):
        lines.append(f"- **{model} (paper), {among}, {mine['tasks'].iloc[0]} tasks.** {_most(mine, among)}")
    return "\n".join(dict.fromkeys(lines))  # what there is none of is said once


def _most(rows: pd.DataFrame, among: str) -> str:
    counts = (rows["alone"] + rows["tied"]).set_axis(rows["method"])
    if not counts.max():
        return "No method has a first place: on each task all score the same."
    said, own = dict(zip(rows["method"], map(places, rows.to_dict("records")), strict=True)), OURS[among]
    most = [f"{TITLE[method]} with {said[method]}" for method in counts[counts == counts.max()].index]
    other = "" if counts.get(own) == counts.max() else f"; {TITLE[own]} has {said.get(own, NO_SCORE)}"
    return f"Most first places: {_listed(most)}{other}."


def places(row: Mapping) -> str:
    """First places of a method, alone and tied, from its row of a frame of them."""
    return f"{row['alone']} + {row['tied']} tied" if row["tied"] else f"{row['alone']}"


def no_tasks(ranks: pd.DataFrame, model: str) -> str:
    """Why first places are counted on no task above the floor."""
    whole = ranks[(ranks["model"] == model) & (ranks["of"] == EVERY)]
    if not whole["tasks"].any():
        return "no task has a score of every method"
    return ONE_QUESTION if (whole["questions"] == whole["tasks"]).all() else "no task above the floor"


def read_differences(differences: pd.DataFrame) -> str:
    """In which categories a baseline can be told from HARP and from HARP+FLAP."""
    lines = []
    for (model, reference), part in differences.groupby(["model", "reference"], sort=False):
        part = part[(part["kind"] != ALL) & part["method"].isin(BASELINES)]
        lower, higher = part[part["high"] < 0], part[part["low"] > 0]
        name = TITLE[reference]
        lines.append(
            f"- **{display_name(model)}, against {name}.** Of {len(part)} differences between a baseline and {name} in "
            f"one category, {len(part) - len(lower) - len(higher)} are too small to tell, {len(lower)} below zero with "
            f"their whole interval{_told(lower, f'{name} is better')}, and {len(higher)} above "
            f"it{_told(higher, f'{name} is worse')}."
        )
    return "\n".join(lines)


def _told(rows: pd.DataFrame, found: str) -> str:
    """Than which baseline, and in which categories; empty if there is none."""
    than = [
        f"than {TITLE[method]} in {_listed(list(mine['kind']))}" for method, mine in rows.groupby("method", sort=False)
    ]
    return f" ({found} {'; '.join(than)})" if than else ""


def read_lengths(lengths: pd.DataFrame) -> str:
    """Which model stops at once, and which does not stop."""
    lines = []
    for model, part in lengths.groupby("model", sort=False):
        sums = part.groupby("method", sort=False)[["empty", "full", "questions"]].sum()
        said = f"There are up to {sums['questions'].max()} answers of a method, and none of the dense model."
        if "dense" in sums.index:
            own = sums.loc["dense"]
            said = f"Of {own['questions']} answers, the dense model leaves {own['empty']} empty and "
            said += f"writes {own['full']} up to the limit."
        empty = f"{_highest(sums['empty'])} with {sums['empty'].max()}" if sums["empty"].max() else "no method"
        lines.append(
            f"- **{display_name(model)}.** {said} Most empty answers: {empty}. "
            f"Most answers up to the limit: {_highest(sums['full'])} with {sums['full'].max()}."
        )
    return "\n".join(lines)


def _highest(by_method: pd.Series) -> str:
    """The methods with the highest number."""
    return _listed([TITLE[method] for method in by_method[by_method == by_method.max()].index])


def _listed(names: list[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
