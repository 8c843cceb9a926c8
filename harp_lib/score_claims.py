"""What the paper says about its main tables: how each claim is judged here, and by the paper's own numbers."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from harp_lib.accounting import PAPER_MODELS
from harp_lib.baseline_frames import EQUAL_HEADS, TITLE
from harp_lib.baseline_verdict import FAILS, HOLDS, OPEN
from harp_lib.measure.benchmarks import BENCHMARKS, GENERATION, Benchmark
from harp_lib.methods import BASELINES, METHODS
from harp_lib.published import published_scores
from harp_lib.results import Cells
from harp_lib.score_frames import AVERAGE, difference
from harp_lib.score_kept import (
    KIND,
    by_length,
    compared,
    independent_difference,
    is_above_chance,
    length_correlation,
    length_tasks,
    published_kept,
    share_kept,
)
from harp_lib.statistics import Interval

FLOOR, NO_SCORE = "at the floor", "missing"
SHORT_TASK, LONG_TASK = "TriviaQA", "GSM8K"  # the two that the paper compares
LIKELY = 0.025  # of a rank correlation: the side of a 95 % interval that lies beyond zero


class Finding(NamedTuple):
    """What was measured about a claim, what follows, and what the paper's own tables say of the same."""

    evidence: str
    verdict: str
    paper: str


def outcome(interval: Interval) -> str:
    """Of what the claim needs to be positive."""
    return HOLDS if interval.low > 0 else FAILS if interval.high < 0 else OPEN


def points(interval: Interval) -> str:
    """A difference of scores with its 95 % interval, in points."""
    return f"{interval.value:+.1f} [{interval.low:+.1f}, {interval.high:+.1f}]"


def share(kept: Interval) -> str:
    """A share of the dense score with its 95 % interval, which there is none of at the floor."""
    if np.isnan(kept.value):
        return FLOOR
    return f"{100 * kept.value:.0f} % [{100 * kept.low:.0f}, {100 * kept.high:.0f}]"


def highest(cells: Cells, model: str, method: str, tasks: list[str]) -> Finding:
    """Does ``method`` score higher than every baseline, on the average of ``tasks``?"""
    kind, name = KIND[tasks[0]], tasks[0] if len(tasks) == 1 else AVERAGE
    wins = []
    for paper in PAPER_MODELS:
        scores = published_scores(kind, paper)[name]
        wins.append(all(scores[method] > scores[other] for other in BASELINES if other in scores))
    printed = f"so on {sum(wins)} of {len(wins)} models"
    return Finding(*ahead_of(cells, model, method, BASELINES, tasks), printed)


def ahead_of(
    cells: Cells,
    model: str,
    method: str,
    others: Sequence[str],
    tasks: Sequence[str],
    benchmarks: Mapping[str, Benchmark] = BENCHMARKS,
) -> tuple[str, str]:
    """By how many points ``method`` is ahead of each other one, and whether it is ahead of all: evidence, verdict."""
    ahead = {other: difference(cells, model, method, other, tasks, benchmarks) for other in others}
    known = {other: found for other, found in ahead.items() if found is not None}
    evidence = "points ahead of " + "; ".join(f"{TITLE[other]} {points(found)}" for other, found in known.items())
    outcomes = {outcome(found) for found in known.values()}
    dense = compared(cells, model, "dense", tasks, benchmarks)
    if not known or not dense:
        return "", NO_SCORE
    if not is_above_chance(dense):
        return evidence, FLOOR
    if FAILS in outcomes:
        return evidence, FAILS
    return evidence, NO_SCORE if len(known) < len(ahead) else OPEN if OPEN in outcomes else HOLDS


def keeps_more(kept: pd.DataFrame, model: str, easy: tuple[str, str], hard: tuple[str, str]) -> Finding:
    """Does HARP keep more of the dense score on the easy side than on the hard one? Each is a kind and a task."""
    printed = published_kept().query("method == @EQUAL_HEADS").set_index(["kind", "task", "model"])["kept"]
    wins = [printed[(*easy, paper)] > printed[(*hard, paper)] for paper in PAPER_MODELS]
    printed = f"so for HARP on {sum(wins)} of {len(wins)} models"
    rows = kept[kept["model"] == model].set_index(["method", "kind", "task"])
    pairs = {}
    for method in METHODS:
        if {(method, *easy), (method, *hard)} <= set(rows.index):
            sides = [rows.loc[(method, *side)] for side in (easy, hard)]
            pairs[method] = [Interval(side["kept"], side["low"], side["high"]) for side in sides]
    if EQUAL_HEADS not in pairs:
        return Finding("", NO_SCORE, printed)
    names = [f"{kind} tasks" if task == AVERAGE else task for kind, task in (easy, hard)]
    said = " and ".join(f"{share(side)} of {name}" for side, name in zip(pairs[EQUAL_HEADS], names, strict=True))
    if any(np.isnan(side.value) for side in pairs[EQUAL_HEADS]):
        floor = [name for side, name in zip(pairs[EQUAL_HEADS], names, strict=True) if np.isnan(side.value)]
        return Finding(f"the dense model is not above the floor on {' and on '.join(floor)}", FLOOR, printed)
    outcomes = {method: outcome(independent_difference(*sides)) for method, sides in pairs.items()}
    counts = ", ".join(f"{found} for {number}" for found, number in Counter(outcomes.values()).items())
    gap = Interval(*(100 * end for end in independent_difference(*pairs[EQUAL_HEADS])))
    evidence = f"HARP keeps {said}, {points(gap)} points between them; over all {len(pairs)} methods: {counts}"
    return Finding(evidence, outcomes[EQUAL_HEADS], printed)


def length_over_tasks(kept: pd.DataFrame, model: str) -> Finding:
    """Does HARP keep less on the generation tasks with longer answers?"""
    mine = kept[(kept["model"] == model) & (kept["method"] == EQUAL_HEADS) & (kept["kind"] == GENERATION)]
    lengths = mine[mine["task"] != AVERAGE].set_index("task")["dense_tokens"]
    printed = ""
    if len(lengths) > 2:
        block = published_kept().query("method == @EQUAL_HEADS").pivot_table("kept", "model", "task")
        found = [length_correlation(block.loc[paper, lengths.index], lengths)[0] for paper in PAPER_MODELS]
        printed = f"with our answer lengths, rank correlations of {', '.join(_rho(rho) for rho in found)}"
    above = length_tasks(kept, model, EQUAL_HEADS)
    counted = f"{len(above)} of {len(lengths)} generation tasks are above the floor"
    if len(above) < 3:
        return Finding(counted, FLOOR if len(lengths) else NO_SCORE, printed)
    if len(above) < 5:
        counted += ", too few to tell whatever their order"
    rho, low = length_correlation(above["kept"], above["dense_tokens"])
    high = length_correlation(-above["kept"], above["dense_tokens"])[1]
    judged = HOLDS if low <= LIKELY else FAILS if high <= LIKELY else OPEN
    return Finding(f"rank correlation {_rho(rho)}; {counted}", judged, printed)


def length_within_tasks(cells: Cells, kept: pd.DataFrame, model: str) -> Finding:
    """Does HARP keep less of the questions whose dense answer is longer than the median of its task?"""
    printed = "not reported"
    halves = by_length(cells, model, EQUAL_HEADS, list(length_tasks(kept, model, EQUAL_HEADS)["task"]))
    if not compared(cells, model, EQUAL_HEADS, [task for task in KIND if KIND[task] == GENERATION]):
        return Finding("", NO_SCORE, printed)
    if not all(half and is_above_chance(half) for half in halves):
        return Finding("too few right dense answers on one of the two sides", FLOOR, printed)
    short, long = (share_kept(half) for half in halves)
    counts = [sum(len(dense) for _, dense, _ in half) for half in halves]
    gap = independent_difference(short, long)
    evidence = (
        f"HARP keeps {share(short)} of the score on the {counts[0]} questions with short answers and {share(long)} on "
        f"the {counts[1]} with long ones, {points(Interval(*(100 * end for end in gap)))} points between them"
    )
    return Finding(evidence, outcome(gap), printed)


def _rho(rho: float) -> str:
    return "none" if np.isnan(rho) else f"{rho:+.1f}"
