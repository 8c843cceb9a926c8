"""What the results of notebook 05 say, in words that follow the numbers."""

from collections.abc import Sequence

import pandas as pd

from harp_lib.baseline_frames import EQUAL_HEADS, EQUAL_PARAMETERS, TITLE
from harp_lib.measure.benchmarks import DISCRIMINATIVE, GENERATION
from harp_lib.measure.models import display_name
from harp_lib.methods import BASELINES
from harp_lib.results import Cells
from harp_lib.score_claims import (
    LONG_TASK,
    NO_SCORE,
    SHORT_TASK,
    Finding,
    highest,
    keeps_more,
    length_over_tasks,
    length_within_tasks,
    share,
)
from harp_lib.score_frames import AVERAGE, average_frame, complete_tasks, score_frame
from harp_lib.score_kept import KINDS, compared, is_above_chance, kept_frame, published_kept
from harp_lib.score_layout import COMPETING, leader
from harp_lib.statistics import Interval
from harp_lib.tables import with_error

LOSES_LESS = "discriminative tasks lose less than generation tasks"
LOSES_MORE = f"{LONG_TASK} loses more than {SHORT_TASK}"
LONGER_TASKS = "tasks with longer answers lose more"
LONGER_ANSWERS = "within a task, questions with longer answers lose more"
QUESTIONS = {EQUAL_PARAMETERS: "as many parameters removed", EQUAL_HEADS: "as many heads removed"}


def verdict(cells: Cells) -> pd.DataFrame:
    """Each claim with what was measured and what follows: claim, model, evidence, verdict, in the paper's tables."""
    scores = score_frame(cells)
    kept = kept_frame(cells, scores)
    rows: list[tuple[str, str, Finding]] = []
    for model, part in scores.groupby("model", sort=False):
        tasks = {kind: list(mine["task"].unique()) for kind, mine in part.groupby("kind", sort=False)}
        whole = {kind: complete_tasks(mine) for kind, mine in part.groupby("kind", sort=False)}
        found: dict[str, Finding] = {}
        for kind, of in whole.items():
            for method in QUESTIONS if of else ():
                found[_highest_claim(method, kind)] = highest(cells, model, method, of)
        for task in tasks.get(GENERATION, ()):
            claim = f"{TITLE[EQUAL_PARAMETERS]} scores highest on {task}, {QUESTIONS[EQUAL_PARAMETERS]}"
            found[claim] = highest(cells, model, EQUAL_PARAMETERS, [task])
        found |= {
            LOSES_LESS: keeps_more(kept, model, (DISCRIMINATIVE, AVERAGE), (GENERATION, AVERAGE)),
            LOSES_MORE: keeps_more(kept, model, (GENERATION, SHORT_TASK), (GENERATION, LONG_TASK)),
            LONGER_TASKS: length_over_tasks(kept, model),
            LONGER_ANSWERS: length_within_tasks(cells, kept, model),
        }
        rows += [(claim, display_name(model), *finding) for claim, finding in found.items()]
    columns = ["claim", "model", "evidence", "verdict", "in the paper's tables"]
    return pd.DataFrame(rows, columns=columns)


def answer(cells: Cells) -> str:
    """What holds here: a few sentences for each model."""
    lines = []
    for model, part in verdict(cells).groupby("model", sort=False):
        by_claim = part.set_index("claim")["verdict"]
        found = {kind: by_claim.get(_highest_claim(EQUAL_PARAMETERS, kind), NO_SCORE) for kind in KINDS}
        counts = ", ".join(f"{judged} {count}" for judged, count in by_claim.value_counts(sort=False).items())
        lines.append(
            f"- **{model}.** {TITLE[EQUAL_PARAMETERS]} has the highest average of the methods that remove as many "
            f"parameters: {'; '.join(f'on {kind} tasks, {judged}' for kind, judged in found.items())}. "
            f"Of the {len(part)} claims of the table below: {counts}."
        )
    return "\n".join(lines)


def read_setting(cells: Cells) -> str:
    """How the scores were computed."""
    inputs = [cell["inputs"] for cell in cells.values() if "batch_size" in cell["inputs"]]
    sources, versions, dtypes, sizes, seeds = (
        ", ".join(dict.fromkeys(str(found[name]) for found in inputs))
        for name in ("source", "lm_eval", "dtype", "batch_size", "shots_seed")
    )
    return (
        f"Rows: {sources}. Scored by lm-eval {versions} on models in {dtypes}, in batches of {sizes}; the examples in "
        f"the prompts are drawn with seed {seeds}."
    )


def read_missing(scores: pd.DataFrame) -> str:
    """Whether there is a score in every cell."""
    missing = scores["failed"].notna().sum()
    if not missing:
        return "Every method has a score on every benchmark."
    return f"{missing} of {len(scores)} scores are missing, shown as a dash; an average is of the tasks without a dash."


def read_scores(cells: Cells, scores: pd.DataFrame, kind: str) -> str:
    """Which method comes out highest, by how clear a lead, and which tasks are at the floor."""
    lines = []
    for model, part in scores[scores["kind"] == kind].groupby("model", sort=False):
        means = average_frame(part).set_index("method")
        if means.empty:
            lines.append(f"- **{display_name(model)}.** No task has a score of every method.")
            continue
        said = {method: with_error(means.loc[method, "score"], means.loc[method, "error"]) for method in means.index}
        competing = means.loc[[method for method in COMPETING if method in means.index], "score"]
        best = competing[competing == competing.max()].index
        more = "more" if leader(cells, model, COMPETING, complete_tasks(part)) else "no more"
        lead = f"is ahead of the next by {more} than the error of its lead"
        floor = tasks_at_floor(cells, model, part["task"].unique())
        lines.append(
            f"- **{display_name(model)}.** The dense model averages {said['dense']} %. Of the methods that remove as "
            f"many parameters, the highest average is {said[best[0]]} %: {_listed([TITLE[name] for name in best])} "
            f"{lead if len(best) == 1 else 'share it'}. {TITLE[EQUAL_PARAMETERS]} averages {said[EQUAL_PARAMETERS]} %; "
            f"{TITLE[EQUAL_HEADS]}, which removes fewer parameters, {said[EQUAL_HEADS]} %. {floor}"
        )
    return "\n".join(lines)


def tasks_at_floor(cells: Cells, model: str, tasks: Sequence[str]) -> str:
    """The tasks of which nothing can be said."""
    dense = {task: compared(cells, model, "dense", [task]) for task in tasks}
    floor = [task for task, pairs in dense.items() if pairs and not is_above_chance(pairs)]
    if not floor:
        return "No task is at the floor."
    return f"At the floor (the dense model is not above chance by two standard errors): {_listed(floor)}."


def read_differences(differences: pd.DataFrame) -> str:
    """How many of the differences of single tasks can be told from none."""
    lines = []
    for (model, reference), part in differences.groupby(["model", "reference"], sort=False):
        part = part[(part["task"] != AVERAGE) & part["method"].isin(BASELINES)]
        lower, higher = (part["high"] < 0).sum(), (part["low"] > 0).sum()
        lines.append(
            f"- **{display_name(model)}, against {TITLE[reference]}.** Of {len(part)} differences between a baseline "
            f"and {TITLE[reference]} on one task, {lower} are below zero with their whole interval "
            f"({TITLE[reference]} is better), {higher} above it, and {len(part) - lower - higher} too small to tell."
        )
    return "\n".join(lines)


def read_kept(kept: pd.DataFrame) -> str:
    """What HARP and HARP+FLAP keep on average, beside what they keep in the paper."""
    printed = published_kept().query("task == @AVERAGE")
    lines = []
    for (model, kind), part in kept[kept["task"] == AVERAGE].groupby(["model", "kind"], sort=False):
        mine = part.set_index("method")
        said = []
        for method in (EQUAL_HEADS, EQUAL_PARAMETERS):
            theirs = printed[(printed["method"] == method) & (printed["kind"] == kind)]["kept"]
            reach = f"{100 * theirs.min():.0f} to {100 * theirs.max():.0f} % in the paper"
            said.append(f"{TITLE[method]} {share(Interval(*mine.loc[method, ['kept', 'low', 'high']]))} ({reach})")
        lines.append(f"- **{display_name(model)}, {kind} tasks.** {_listed(said)}.")
    return "\n".join(lines)


def read_claims(claims: pd.DataFrame, *names: str) -> str:
    """Some claims as a list: what was measured, and the verdict."""
    return "\n".join(
        f"- *{row.claim}* ({row.model}): {row.evidence or 'a score is missing'}. **{row.verdict.capitalize()}.**"
        for row in claims[claims["claim"].isin(names)].itertuples()
    )


def _highest_claim(method: str, kind: str) -> str:
    return f"{TITLE[method]} has the highest average on {kind} tasks, {QUESTIONS[method]}"


def _listed(names: list[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
