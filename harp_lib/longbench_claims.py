"""What is counted on LongBench: category averages, first places, and how the paper's claims are judged by them."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from scipy import stats

from harp_lib.baseline_frames import EQUAL_HEADS, EQUAL_PARAMETERS, TITLE
from harp_lib.baseline_verdict import FAILS, HOLDS, OPEN
from harp_lib.measure.benchmarks import LONGBENCH
from harp_lib.methods import BASELINES, METHODS
from harp_lib.published import published, published_scores
from harp_lib.results import Cells
from harp_lib.score_claims import FLOOR, NO_SCORE, Finding, ahead_of, outcome, points
from harp_lib.score_frames import average_frame, complete_tasks, difference, result_of
from harp_lib.score_kept import Compared, compared, independent_difference, is_above_chance, paper_model
from harp_lib.score_layout import COMPETING, is_single

TABLE = "longbench"  # of the paper
ALL = "All tasks"  # beside the categories
EVERY, ABOVE = "tasks", "tasks above the floor"  # on which first places are counted
AS_MANY, PRUNED = "as many parameters removed", "all pruned models"
AMONG = {AS_MANY: COMPETING, PRUNED: METHODS}  # whose first places are counted
ONE_QUESTION = "one question a task: no error to judge by"
DRAWS = 1000  # of the bootstrap
LIKELY = 0.975  # of its draws: the side of a 95 % interval
MULTI_HOP = ("HotpotQA", "2WikiMQA")  # where the paper sees the largest lead
STRONG = ("mag-sp", "MF-en")  # the baseline, and its task, that the paper calls strong


def paper_models() -> list[str]:
    """The models of the paper's table, as it spells them."""
    return list(published(TABLE)["model"].unique())


def counterpart(model: str) -> str:
    """The paper's model that one of ours is shown beside: itself, or the table's first where it is not in there."""
    known = paper_models()
    return paper_model(model) if paper_model(model) in known else known[0]


def dense_scores(cells: Cells, model: str, tasks: Sequence[str]) -> dict[str, list[Compared]]:
    """The dense model's scores on those of the tasks that it has one on."""
    found = {task: compared(cells, model, "dense", [task], LONGBENCH) for task in tasks}
    return {task: scores for task, scores in found.items() if scores}


def above_floor(cells: Cells, model: str, tasks: Sequence[str]) -> list[str]:
    """Those of the tasks where the dense model is above 0 by two standard errors."""
    return [task for task, scores in dense_scores(cells, model, tasks).items() if is_above_chance(scores)]


def has_no_errors(cells: Cells, model: str, tasks: Sequence[str]) -> bool:
    """Whether each task has one question only, so that nobody can say which are at the floor."""
    found = dense_scores(cells, model, tasks)
    return bool(found) and all(map(is_single, found.values()))


def category_frame(scores: pd.DataFrame) -> pd.DataFrame:
    """Score of each method averaged over the complete tasks of each category, and over all that are complete.

    Columns: model, method, kind (the category), score and error (per cent), tasks, questions, low and high (95 %
    interval by Student's t; nan where each task has one question).
    """
    frames = []
    for part in (scores, scores.assign(kind=ALL)):
        counts = {
            key: mine[mine["task"].isin(complete_tasks(mine))].drop_duplicates("task")["questions"].sum()
            for key, mine in part.groupby(["model", "kind"], sort=False)
        }
        means = average_frame(part)
        frames.append(means.assign(questions=[int(counts[row.model, row.kind]) for row in means.itertuples()]))
    frame = pd.concat(frames, ignore_index=True)
    reach = stats.t.ppf(0.975, frame["questions"] - frame["tasks"]) * frame["error"]
    return frame.assign(low=frame["score"] - reach, high=frame["score"] + reach)


def category_differences(cells: Cells, scores: pd.DataFrame) -> pd.DataFrame:
    """Paired difference of every method to HARP and to HARP+FLAP, averaged over the complete tasks of each category.

    Columns: model, reference, method, kind (the category), change (points; positive where the method scores higher),
    low, high, questions.
    """
    rows = []
    for part in (scores, scores.assign(kind=ALL)):
        for (model, kind), mine in part.groupby(["model", "kind"], sort=False):
            tasks = complete_tasks(mine)
            asked = mine[mine["task"].isin(tasks)].drop_duplicates("task")["questions"].sum()
            for reference in (EQUAL_HEADS, EQUAL_PARAMETERS):
                for method in mine["method"].unique():
                    found = difference(cells, model, method, reference, tasks, LONGBENCH)
                    if method != reference and found is not None:
                        rows.append((model, reference, method, kind, *found, int(asked)))
    columns = ["model", "reference", "method", "kind", "change", "low", "high", "questions"]
    return pd.DataFrame(rows, columns=columns)


def first_places(means: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """How many tasks a method has the highest score on, alone and with others.

    Parameters
    ----------
    means : array (..., M, T)
        Scores of M methods on T tasks.

    Returns
    -------
    alone, tied : array (..., M)
        A tie of all methods is no first place.
    """
    highest = means >= means.max(axis=-2, keepdims=True) - 1e-9
    sharing = highest.sum(axis=-2, keepdims=True)
    alone, tied = sharing == 1, (sharing > 1) & (sharing < means.shape[-2])
    return (highest & alone).sum(axis=-1), (highest & tied).sum(axis=-1)


def rank_frame(cells: Cells, scores: pd.DataFrame) -> pd.DataFrame:
    """First places of each method among those that it competes with, and what a bootstrap over questions says of them.

    Columns: model, among (a key of ``AMONG``), of ("tasks" or "tasks above the floor"), method, alone, tied, low and
    high (95 % interval of both together), alone_low and alone_high, most and beaten (shares of the draws in which it
    has more first places than every other method, and in which another has more), tasks, questions. What a bootstrap
    says is nan where a task has one question. Without a dense score there are no rows of tasks above the floor.
    """
    rows = []
    for model, part in scores.groupby("model", sort=False):
        has_dense = bool(dense_scores(cells, model, part["task"].unique()))
        for among, competing in AMONG.items():
            mine = part[part["method"].isin(competing)]
            methods, whole = list(mine["method"].unique()), complete_tasks(mine)
            asked = mine.groupby("task")["questions"].max()
            means = mine.pivot_table(index="method", columns="task", values="score")
            drawn = _bootstrap(cells, model, methods, whole)
            above = {ABOVE: above_floor(cells, model, whole)} if has_dense else {}
            for of, tasks in ({EVERY: whole} | above).items():
                counted = first_places(means.reindex(index=methods, columns=tasks).to_numpy())
                known = drawn is not None and len(tasks) > 0
                chosen = [whole.index(task) for task in tasks]
                again = _spread(drawn[..., chosen]) if known else [[np.nan] * 6] * len(methods)
                about = (len(tasks), int(asked[tasks].sum()))
                for method, alone, tied, said in zip(methods, *counted, again, strict=True):
                    rows.append((model, among, of, method, int(alone), int(tied), *said, *about))
    drawn = ["low", "high", "alone_low", "alone_high", "most", "beaten"]
    columns = ["model", "among", "of", "method", "alone", "tied", *drawn, "tasks", "questions"]
    return pd.DataFrame(rows, columns=columns)


def _bootstrap(cells: Cells, model: str, methods: Sequence[str], tasks: Sequence[str]) -> np.ndarray | None:
    """Scores (draws, methods, tasks) on questions drawn with replacement, the same for all methods."""
    random, drawn = np.random.default_rng(0), []
    for name, benchmark in LONGBENCH.items():
        if benchmark.title in tasks:
            asked = np.array([result_of(cells, model, method, name)["scores"] for method in methods])
            number = asked.shape[1]
            if number < 2:
                return None
            drawn.append(random.multinomial(number, [1 / number] * number, size=DRAWS) @ asked.T / number)
    return np.stack(drawn, axis=-1) if drawn else None


def _spread(drawn: np.ndarray) -> list[tuple[float, ...]]:
    """Of draws (D, M, T), for each method: low, high, alone_low, alone_high, most, beaten, as in ``rank_frame``."""
    alone, tied = first_places(drawn)
    both, found = alone + tied, []
    for number in range(both.shape[1]):
        others = np.delete(both, number, axis=1).max(axis=1, initial=0)
        ends = [np.percentile(count[:, number], (2.5, 97.5), method="inverted_cdf") for count in (both, alone)]
        found.append((*ends[0], *ends[1], (both[:, number] > others).mean(), (both[:, number] < others).mean()))
    return found


def published_ranks() -> pd.DataFrame:
    """First places in the paper's table: model, among, method, alone, tied, tasks."""
    rows = []
    for model in paper_models():
        for among, competing in AMONG.items():
            block = published_scores(TABLE, model)
            block = block[block.index.isin(competing)]
            counted = zip(block.index, *first_places(block.to_numpy()), strict=True)
            rows += [(model, among, method, int(alone), int(tied), block.shape[1]) for method, alone, tied in counted]
    return pd.DataFrame(rows, columns=["model", "among", "method", "alone", "tied", "tasks"])


def most_benchmarks(ranks: pd.DataFrame, model: str) -> Finding:
    """Does HARP+FLAP score higher than every baseline on more than half of the tasks?"""
    printed = published_ranks().query("among == @AS_MANY and method == @EQUAL_PARAMETERS")
    counts = ", ".join(f"{row.alone} of {row.tasks} on {row.model}" for row in printed.itertuples())
    said = f"{counts}; more than half on {(printed['alone'] > printed['tasks'] / 2).sum()} of {len(printed)} models"
    row, missing = _counted(ranks, model, AS_MANY, EQUAL_PARAMETERS)
    if row is None:
        return Finding(*missing, said)
    evidence = f"alone at the head on {row['alone']} of {row['tasks']} {ABOVE}{_reach(row, 'alone_low', 'alone_high')}"
    half = row["tasks"] / 2
    return Finding(evidence, HOLDS if row["alone_low"] > half else FAILS if row["alone_high"] <= half else OPEN, said)


def most_first_places(ranks: pd.DataFrame, model: str, among: str, method: str) -> Finding:
    """Has a method more first places than every other one?"""
    wins = []
    for _, part in published_ranks().query("among == @among").groupby("model", sort=False):
        counts = part.set_index("method")[["alone", "tied"]].sum(axis=1)
        wins.append(counts[method] > counts.drop(method).max())
    said = f"so on {sum(wins)} of {len(wins)} models"
    row, missing = _counted(ranks, model, among, method)
    if row is None:
        return Finding(*missing, said)
    part = ranks[(ranks["model"] == model) & (ranks["among"] == among) & (ranks["of"] == ABOVE)]
    said_of = {r["method"]: f"{r['alone'] + r['tied']}{_reach(r, 'low', 'high')}" for r in part.to_dict("records")}
    others = ", ".join(f"{TITLE[other]} {count}" for other, count in said_of.items() if other != method)
    evidence = f"{said_of[method]} first places on {row['tasks']} {ABOVE}; {others}"
    if not np.isnan(row["most"]):
        evidence += f"; more than every other in {100 * row['most']:.0f} % of the draws"
    return Finding(evidence, HOLDS if row["most"] >= LIKELY else FAILS if row["beaten"] >= LIKELY else OPEN, said)


def _counted(
    ranks: pd.DataFrame, model: str, among: str, method: str
) -> tuple[pd.Series | None, tuple[str, str] | None]:
    """A method's row over the tasks above the floor; or evidence and verdict, if nothing can be counted."""
    rows = ranks[(ranks["model"] == model) & (ranks["among"] == among) & (ranks["method"] == method)].set_index("of")
    if rows.empty or not rows.loc[EVERY, "tasks"] or ABOVE not in rows.index:
        return None, ("", NO_SCORE)
    return (rows.loc[ABOVE], None) if rows.loc[ABOVE, "tasks"] else (None, ("no task is above the floor", FLOOR))


def _reach(row: pd.Series | dict, low: str, high: str) -> str:
    """The interval of a count; empty where there is none."""
    return "" if np.isnan(row[low]) else f" [{row[low]:.0f}, {row[high]:.0f}]"


def highest_average(cells: Cells, model: str, tasks: Sequence[str]) -> Finding:
    """Does HARP+FLAP score higher than every baseline, averaged over tasks?"""
    return Finding(*ahead_of(cells, model, EQUAL_PARAMETERS, BASELINES, tasks, LONGBENCH), _wins(EQUAL_PARAMETERS))


def strong(cells: Cells, model: str) -> Finding:
    """Does Mag-sp score higher on MF-en than every other method that removes as many parameters?"""
    method, task = STRONG
    rivals = [other for other in COMPETING if other != method]
    return Finding(*ahead_of(cells, model, method, rivals, [task], LONGBENCH), _wins(method, task))


def _wins(method: str, *tasks: str) -> str:
    """On how many of the paper's models a method is above its rivals, on some tasks or the average of all."""
    wins = []
    for model in paper_models():
        block = published_scores(TABLE, model)
        means = block[block.index.isin(COMPETING)][list(tasks or block.columns)].mean(axis=1)
        wins.append(means[method] > means.drop(method).max())
    return f"so on {sum(wins)} of {len(wins)} models"


def larger_lead(cells: Cells, scores: pd.DataFrame, model: str) -> Finding:
    """Is the lead of HARP+FLAP larger on HotpotQA and 2WikiMQA than on the other tasks?

    It is the lead over one baseline, the one with the highest average: the best of each task would be chosen by luck.
    """
    part = scores[(scores["model"] == model) & scores["method"].isin((*COMPETING, "dense"))]
    whole = complete_tasks(part)
    if not whole:
        return Finding("", NO_SCORE, _published_leads())
    known = above_floor(cells, model, whole)
    there, elsewhere = ([task for task in known if (task in MULTI_HOP) is inside] for inside in (True, False))
    if not there or not elsewhere:
        return Finding(f"{len(there)} of {len(MULTI_HOP)} such tasks are above the floor", FLOOR, _published_leads())
    means = part[part["task"].isin(whole) & part["method"].isin(BASELINES)].groupby("method")["score"].mean()
    best = means.idxmax()
    leads = [difference(cells, model, EQUAL_PARAMETERS, best, tasks, LONGBENCH) for tasks in (there, elsewhere)]
    gap = independent_difference(*leads)
    evidence = (
        f"ahead of {TITLE[best]}, the baseline with the highest average, by {points(leads[0])} points on "
        f"{' and '.join(there)} and by {points(leads[1])} on the {len(elsewhere)} other {ABOVE}, {points(gap)} between"
    )
    return Finding(evidence, outcome(gap), _published_leads())


def _published_leads() -> str:
    """The same two leads in the paper's table, and how many single tasks have a larger one."""
    found, larger = [], 0
    for model in paper_models():
        block = published_scores(TABLE, model)
        best = block[block.index.isin(BASELINES)].mean(axis=1).idxmax()
        lead = block.loc[EQUAL_PARAMETERS] - block.loc[best]
        there, others = lead[list(MULTI_HOP)], lead.drop(list(MULTI_HOP))
        larger += there.mean() > others.mean()
        more = (others > there.mean()).sum()
        found.append(
            f"{model} {there.mean():+.1f} against {others.mean():+.1f} points over {TITLE[best]}, "
            f"more on {more} of the {len(others)} others"
        )
    return f"so on {larger} of {len(found)} models: {'; '.join(found)}"
