"""How much of the dense model's score a pruned one keeps, ours and the paper's, and whether long answers keep less.

The share that is kept is ``(score − chance) / (dense − chance)``: 1 is the dense model, 0 is guessing. It says nothing
at the floor, where the dense model is not above chance by more than two standard errors: there is nothing to lose.
Written answers count as having no chance level, though some of BBH's questions can be guessed.
"""

from collections.abc import Mapping, Sequence
from itertools import permutations

import numpy as np
import pandas as pd
from scipy import stats

from harp_lib.accounting import PAPER_MODELS
from harp_lib.measure.benchmarks import (
    ALL_BENCHMARKS,
    BENCHMARKS,
    DISCRIMINATIVE,
    GENERATION,
    GENERATION_TASKS,
    Benchmark,
)
from harp_lib.measure.models import display_name
from harp_lib.published import published_scores
from harp_lib.results import Cells
from harp_lib.score_frames import AVERAGE, complete_tasks, result_of
from harp_lib.statistics import Interval, average_estimate, score_estimate

ABOVE = 2  # standard errors that the dense model has to be above chance
KINDS = (GENERATION, DISCRIMINATIVE)  # also the names of the paper's tables
CHANCE = {task.title: 1 / task.choices if task.choices else 0.0 for task in ALL_BENCHMARKS.values()}
KIND = {benchmark.title: benchmark.kind for benchmark in BENCHMARKS.values()}

Compared = tuple[Sequence[float], Sequence[float], float]  # scores of the pruned and the dense model, and chance


def paper_model(name: str) -> str | None:
    """A model's spelling in the paper, None if it is not one of the paper's."""
    return {hub: model for model, hub in PAPER_MODELS.items()}.get(display_name(name))


def counterparts(models: Sequence[str]) -> list[str]:
    """The paper's models that ours are shown beside: themselves, or the paper's first where there is none."""
    return list(dict.fromkeys(filter(None, map(paper_model, models)))) or [next(iter(PAPER_MODELS))]


def is_above_chance(tasks: Sequence[Compared]) -> bool:
    """Whether the dense model's average over tasks is above the floor.

    A task's standard error is at least that of guessing, so that a few lucky guesses in a row are not taken for skill.
    """
    estimates = []
    for _, dense, chance in tasks:
        value, error = score_estimate(dense)
        estimates.append((value - chance, np.maximum(error, np.sqrt(chance * (1 - chance) / len(dense)))))
    ahead = average_estimate(estimates)
    return bool(ahead.value > ABOVE * ahead.error)


def share_kept(tasks: Sequence[Compared]) -> Interval:
    """The share of the dense score above chance that is kept over some tasks, with its 95 % interval.

    The interval is that of a ratio of sums (delta method), paired by question, after adding half an observation to each
    of the four outcomes of a pair, shared by the tasks, as :func:`harp_lib.statistics.paired_difference` does. Without
    these it has no width where the pruned model is always wrong.
    """
    added = np.array([(0, 0), (0, 1), (1, 0), (1, 1)])
    weights = [np.r_[np.ones(len(first)), np.full(len(added), 0.5 / len(tasks))] for first, _, _ in tasks]
    pairs = [np.vstack([np.c_[first, second], added]) - chance for first, second, chance in tasks]
    kept, dense = np.sum([w @ pair / w.sum() for w, pair in zip(weights, pairs, strict=True)], axis=0)
    variance = 0.0
    for w, pair in zip(weights, pairs, strict=True):
        residuals = pair[:, 0] - kept / dense * pair[:, 1]
        variance += (w @ residuals**2 - (w @ residuals) ** 2 / w.sum()) / w.sum() ** 2
    reach = stats.norm.ppf(0.975) * np.sqrt(variance) / dense
    own = sum(np.mean(first) - chance for first, _, chance in tasks)
    whole = sum(np.mean(second) - chance for _, second, chance in tasks)
    return Interval(float(own / whole), float(kept / dense - reach), float(kept / dense + reach))


def independent_difference(first: Interval, second: Interval) -> Interval:
    """The first minus the second of two quantities that come from different questions."""
    centre = (first.low + first.high - second.low - second.high) / 2
    reach = float(np.hypot(first.high - first.low, second.high - second.low)) / 2
    return Interval(first.value - second.value, centre - reach, centre + reach)


def compared(
    cells: Cells,
    model: str,
    method: str,
    tasks: Sequence[str],
    benchmarks: Mapping[str, Benchmark] = BENCHMARKS,
) -> list[Compared]:
    """Scores of a method beside the dense model's, for those of the tasks (as the paper prints them) that have both."""
    found = []
    for name, benchmark in benchmarks.items():
        results = [result_of(cells, model, which, name) for which in (method, "dense")]
        if benchmark.title in tasks and not any("failed" in result for result in results):
            found.append((*(result["scores"] for result in results), CHANCE[benchmark.title]))
    return found


def kept_frame(cells: Cells, scores: pd.DataFrame) -> pd.DataFrame:
    """The share of the dense score that each method keeps on each task, and on the average of those above the floor.

    Columns: model, method, kind, task (or "Average"), kept, low, high, dense_tokens (mean length of the dense model's
    answers), questions and ``floor``: whether the dense model is at the floor, where kept, low and high are nan.
    """
    rows = []
    for (model, kind), part in scores.groupby(["model", "kind"], sort=False):
        lengths = part[part["method"] == "dense"].set_index("task")["answer_tokens"]
        complete = complete_tasks(part)
        for method in part.loc[part["method"] != "dense", "method"].unique():
            tasks = {task: compared(cells, model, method, [task]) for task in part["task"].unique()}
            tasks = {task: pairs for task, pairs in tasks.items() if pairs}
            whole = [pairs for task, pairs in tasks.items() if task in complete]
            if whole:
                tasks[AVERAGE] = [pair for pairs in whole if is_above_chance(pairs) for pair in pairs]
            for task, pairs in tasks.items():
                floor = not pairs or not is_above_chance(pairs)
                kept = Interval(*[np.nan] * 3) if floor else share_kept(pairs)
                asked = sum(len(dense) for _, dense, _ in pairs)
                rows.append((model, method, kind, task, *kept, lengths.get(task), asked, floor))
    columns = ["model", "method", "kind", "task", "kept", "low", "high", "dense_tokens", "questions", "floor"]
    return pd.DataFrame(rows, columns=columns)


def published_kept() -> pd.DataFrame:
    """The same from the paper's tables: model, method, kind, task, kept."""
    rows = []
    for kind in KINDS:
        tasks = [task for task, kinds in KIND.items() if kinds == kind]
        chance = {task: 100 * CHANCE[task] for task in tasks}
        chance[AVERAGE] = np.mean(list(chance.values()))
        for model in PAPER_MODELS:
            block = published_scores(kind, model)
            for method in block.index.drop("dense"):
                for task in block.columns:
                    dense = block.loc["dense", task] - chance[task]
                    rows.append((model, method, kind, task, (block.loc[method, task] - chance[task]) / dense))
    return pd.DataFrame(rows, columns=["model", "method", "kind", "task", "kept"])


def by_length(cells: Cells, model: str, method: str, tasks: Sequence[str]) -> tuple[list[Compared], list[Compared]]:
    """Questions of generation tasks whose dense answer is short, and those where it is long.

    Each task is parted at its median; one whose dense answers all have the same length is left out.
    """
    halves = [], []
    for benchmark in GENERATION_TASKS:
        results = [result_of(cells, model, which, benchmark.name) for which in (method, "dense")]
        if benchmark.title not in tasks or any("failed" in result for result in results):
            continue
        lengths = np.array(results[1]["answer_tokens"])
        long = lengths > np.median(lengths)
        if long.any():
            for half, members in zip(halves, (~long, long), strict=True):
                half.append((*(np.array(result["scores"])[members] for result in results), CHANCE[benchmark.title]))
    return halves


def length_correlation(kept: Sequence[float], tokens: Sequence[float]) -> tuple[float, float]:
    """Spearman's ρ over tasks of the score kept with the answers' length, and how many of all orders have as low a ρ.

    The second is a share. Both are nan where all tasks keep the same, or all answers are equally long.
    """
    if min(len(set(kept)), len(set(tokens))) < 2:
        return np.nan, np.nan
    ranks = stats.rankdata(tokens)
    found = np.array([np.corrcoef(order, ranks)[0, 1] for order in permutations(stats.rankdata(kept))])
    return float(found[0]), float(np.mean(found <= found[0] + 1e-9))  # the first order is that of the tasks themselves


def length_tasks(kept: pd.DataFrame, model: str, method: str) -> pd.DataFrame:
    """The generation tasks of a method that are above the floor, with the share kept and the dense answer's length."""
    mine = kept[(kept["model"] == model) & (kept["method"] == method) & (kept["kind"] == GENERATION)]
    return mine[(mine["task"] != AVERAGE) & ~mine["floor"]]
