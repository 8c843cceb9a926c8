"""The named tests of ``data/paper/claims.yaml``: each turns the cells of one model into findings.

A test is ``(source, model, **arguments) -> list of Finding``: what has to hold, piece by piece; of rivals it is the
closest one only, for who leads it leads them all. What fits none of these is in ``layer_tests``.
"""

from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum
from itertools import chain, product
from math import nan
from typing import NamedTuple

import numpy as np
import pandas as pd

from harp_lib.accounting import PAPER_MODELS
from harp_lib.measure.evaluation import ALL_BENCHMARKS, BENCHMARKS, LONGBENCH
from harp_lib.measure.models import display_name
from harp_lib.measure.text import TITLES as CORPORA
from harp_lib.methods import BASELINES, TITLES
from harp_lib.report import comparisons
from harp_lib.report.comparisons import Interval
from harp_lib.report.data import Missing, paper, tidy_cells

KINDS = ("generation", "discriminative")
TASKS = {kind: [name for name, task in BENCHMARKS.items() if task.kind == kind] for kind in KINDS}
TASKS |= {"all": [*TASKS["generation"], *TASKS["discriminative"]], "longbench": list(LONGBENCH)}
COMPETING = (*BASELINES, "harp+flap")  # these remove as many parameters
CLEAR_TREND = 0.5  # a rank correlation over the layers of a model that is smaller is not called a trend
PAR = 1.0  # points that two averages on par may be apart
NOTHING = Interval(nan, nan, nan)


class Outcome(StrEnum):
    """What follows for a claim."""

    REPRODUCED = "reproduced"
    PARTLY = "partly"
    NOT = "not reproduced"
    INCONCLUSIVE = "inconclusive"
    NOT_RUN = "not run"


class Finding(NamedTuple):
    """One number that decides: it speaks for a claim above ``goal`` (below it with ``less``)."""

    interval: Interval
    unit: str = "points"
    about: str = ""
    goal: float = 0.0
    less: bool = False
    part: float | None = None  # above this, if not above the goal: partly
    reason: str = ""  # why it cannot decide
    paper: tuple[float, ...] = ()  # the same number in the paper, for the model or for each of the paper's

    @property
    def outcome(self) -> Outcome:
        """The one rule: the whole interval has to be on one side."""
        if self.reason:
            return Outcome.NOT_RUN if self.reason.startswith("needs") else Outcome.INCONCLUSIVE
        interval, goal = (-self.interval, -self.goal) if self.less else (self.interval, self.goal)
        if interval.low > goal:
            return Outcome.REPRODUCED
        if self.part is not None and interval.low > self.part:
            return Outcome.PARTLY
        return Outcome.NOT if interval.high < goal else Outcome.INCONCLUSIVE


TESTS: dict[str, tuple[Callable[..., list[Finding]], str]] = {}


def named(store: str = "") -> Callable:
    """Register a test and the store whose models it is asked of; of none if it is about the paper's configs."""
    return lambda function: TESTS.setdefault(function.__name__, (function, store))[0]


def weakest(findings: Iterable[Finding]) -> Finding:
    """What decides where everything has to hold."""
    order = [Outcome.NOT, Outcome.NOT_RUN, Outcome.INCONCLUSIVE, Outcome.PARTLY, Outcome.REPRODUCED]
    return min(findings, key=lambda found: (order.index(found.outcome), found.interval.value * (-1) ** found.less))


def paper_model(model: str) -> str | None:
    """A model's spelling in the paper, if it is one of the paper's."""
    spellings = {hub: name for name, hub in PAPER_MODELS.items()} | {name: name for name in PAPER_MODELS}
    return spellings.get(display_name(model))


def printed(model: str, *tables: str) -> list[pd.DataFrame]:
    """Tables of the paper side by side, method × task in per cent: of the model, or else of each that they have."""
    rows = pd.concat([paper(table).query("quantity == 'score'") for table in tables])
    blocks = {name: part.pivot_table("value", "method", "task") for name, part in rows.groupby("model", sort=False)}
    return [blocks[own]] if (own := paper_model(model)) in blocks else list(blocks.values())


def _tables(store: str, rivals: Sequence[str]) -> tuple[str, ...]:
    if store != "ablations":
        return (store,) if store == "longbench" else KINDS
    return ("layer_selection",) if "bottom" in rivals else ("alpha_ablation",)


def _names(tasks: str | Sequence[str]) -> list[str]:
    return TASKS[tasks] if isinstance(tasks, str) else list(tasks)


def _rivals(right: str | Sequence[str]) -> tuple[str, ...]:
    return BASELINES if right == "baselines" else tuple(right)


def _chances(tasks: Iterable[str]) -> float:
    """The sum of what guessing would get."""
    return sum(1 / ALL_BENCHMARKS[task].choices for task in tasks if ALL_BENCHMARKS[task].choices)


@named("main_tables")
def score_lead(source, model, left, right, tasks, each=False, on_par=(), store="main_tables", seeds=(0,)):
    """By how many points ``left`` scores higher than the closest rival, on average over tasks or on each of them.

    Other seeds are other draws of the calibration text.
    """
    rivals, tables, found = _rivals(right), _tables(store, _rivals(right)), []
    tasks = source.complete(store, model, (left, *rivals), _names(tasks))
    drawn = {task for *_, task in source.cells("baselines")}
    if any(seed and f"{tasks[0]}-seed-{seed}" not in drawn for seed in seeds):
        raise Missing("needs scores after other calibration texts")
    for seed, group in product(seeds, [[task] for task in tasks] if each else [tasks]):
        means, pieces = [block[group].mean(axis=1) for block in printed(model, *tables)], []
        same = {
            "goal": -PAR if paper_model(model) in on_par else 0.0,
            "reason": comparisons.floor([source.compared(store, model, "dense", task) for task in group]) or "",
            "paper": tuple(mean[left] - mean.reindex(rivals).max() for mean in means),
        }
        for rival in rivals:
            pairs = [tuple(source.scores(store, model, m, task, seed) for m in (left, rival)) for task in group]
            about = "α = 1" if tables[0] == "alpha_ablation" else TITLES.get(rival, rival.capitalize())
            about += f", {ALL_BENCHMARKS[group[0]].title}" if each else f", calibration text {seed}" if seed else ""
            pieces.append(Finding(comparisons.paired_difference(pairs) * 100, about=f"against {about}", **same))
        found.append(weakest(pieces))
    return found


@named("main_tables")
def lead_gap(source, model, left, right, tasks, elsewhere, store="main_tables") -> list[Finding]:
    """By how many points more ``left`` leads on some tasks than elsewhere, over the rival with the highest average.

    The best rival of each task by itself would be chosen by luck.
    """
    rivals, there = _rivals(right), _names(tasks)
    others = [task for task in _names(elsewhere) if task not in there]

    def gap(means: pd.DataFrame, *sides: list[str]) -> tuple[str, float]:
        best = means.reindex(index=rivals, columns=[*sides[0], *sides[1]]).mean(axis=1).idxmax()
        lead = means.loc[left] - means.loc[best]
        return best, float(lead[sides[0]].mean() - lead[sides[1]].mean())

    same = {"paper": tuple(gap(block, there, others)[1] for block in printed(model, *_tables(store, rivals)))}
    known = source.complete(store, model, (left, *rivals), [*there, *others])
    sides = [source.above(store, model, [task for task in side if task in known]) for side in (there, others)]
    if not all(sides):
        return [Finding(NOTHING, reason=comparisons.FEW, **same)]
    scores = {task: {m: source.scores(store, model, m, task) for m in (left, *rivals)} for task in chain(*sides)}
    best, value = gap(pd.DataFrame(scores).map(np.mean), *sides)
    leads = []
    for seed, side in enumerate(sides):
        drawn = comparisons.bootstrap([np.array([scores[task][left], scores[task][best]]) for task in side], seed)
        leads.append((drawn[:, 0] - drawn[:, 1]).mean(axis=-1))
    found = comparisons.drawn_interval(value, leads[0] - leads[1], sum(len(asked[left]) for asked in scores.values()))
    return [Finding(found * 100, about=f"against {TITLES[best]}", **same)]


@named("main_tables")
def kept_gap(source, model, method, easy, hard) -> list[Finding]:
    """How much more of the dense score above chance a method keeps on easy tasks than on hard ones."""
    sides, shares = [_names(easy), _names(hard)], []
    for block in printed(model, *KINDS):
        left = block[[*sides[0], *sides[1]]].loc[["dense", method]] / 100
        kept = [[left.loc[m, side].sum() - _chances(side) for m in (method, "dense")] for side in sides]
        shares.append(100 * (kept[0][0] / kept[0][1] - kept[1][0] / kept[1][1]))
    known = [source.complete("main_tables", model, [method], side) for side in sides]
    above = [source.above("main_tables", model, side) for side in known]
    groups = [[source.compared("main_tables", model, method, task) for task in side] for side in above]
    if not all(groups):
        low = known[groups.index([])]
        reason = comparisons.floor([source.compared("main_tables", model, method, task) for task in low])
        return [Finding(NOTHING, reason=reason or comparisons.FEW, paper=tuple(shares))]
    return [Finding(comparisons.share_kept(*groups) * 100, about="of the dense score", paper=tuple(shares))]


@named("longbench")
def first_places(source, model, left, count) -> list[Finding]:
    """In which share of the benchmarks ``left`` is alone ahead, or how many more first places it has than any other."""
    alone = count == "most benchmarks"

    def counted(means: np.ndarray, place: int) -> np.ndarray:  # (…, M, T) → (…)
        single, shared = comparisons.first_places(means)
        if alone:
            return single[..., place] / means.shape[-1]
        return (single + shared)[..., place] - np.delete(single + shared, place, axis=-1).max(axis=-1)

    blocks = [block.loc[block.index.isin(COMPETING)] for block in printed(model, "longbench")]
    told = {"paper": tuple(float(counted(block.to_numpy(), block.index.get_loc(left))) for block in blocks)}
    told |= {"unit": "share", "goal": 0.5} if alone else {"unit": "places"}
    tasks = source.above("longbench", model, source.complete("longbench", model, COMPETING, LONGBENCH))
    if not tasks:
        return [Finding(NOTHING, reason=comparisons.FEW, **told)]
    scores = [np.array([source.scores("longbench", model, method, task) for method in COMPETING]) for task in tasks]
    place, own = COMPETING.index(left), np.stack([asked.mean(axis=1) for asked in scores], axis=-1)
    draws, number = counted(comparisons.bootstrap(scores), place), sum(asked.shape[1] for asked in scores)
    found = comparisons.drawn_interval(counted(own, place), draws, number)
    return [Finding(found, about=f"of {len(tasks)} benchmarks above chance", **told)]


@named("alpha_search")
def perplexity_change(source, model, worse, better, splits, at_most=None, store="alpha_search") -> list[Finding]:
    """How much higher perplexity is with one plan than with another, on each text.

    ``own`` are the α searched on the text's corpus, ``other`` those of another one.
    """
    texts = [task for name, method, task in source.cells(store) if (name, method) == (model, "dense")]
    corpora, found = dict.fromkeys(text.rpartition("-")[0] for text in texts), []
    word = paper("alpha_robustness").pivot_table("value", "method", "task").to_numpy()  # searched on × evaluated on
    told = (
        {} if at_most is None else {"goal": at_most, "less": True, "paper": tuple((word[::-1] / word).diagonal() - 1)}
    )
    for text in texts:
        corpus, _, split = text.rpartition("-")
        if split in splits:
            plans = {"own": [f"searched-on-{corpus}"], "baselines": BASELINES}
            plans["other"] = [f"searched-on-{other}" for other in corpora if other != corpus]
            low, pieces = source.result(store, model, plans.get(better, [better])[0], text), []
            for plan in plans.get(worse, [worse]):
                high = source.result(store, model, plan, text)
                about = {"alpha-1": "α = 1", **TITLES}.get(plan, "the other α")
                about = f"with {about}, {CORPORA[corpus]}, {'held out' if split == 'validation' else 'searched'}"
                change = comparisons.change(low["nll"], high["nll"], high["tokens"])
                pieces.append(Finding(change, "%", about, **told))
            found.append(weakest(pieces))
    if not found:
        raise Missing(f"needs texts of {store}")
    return found


@named("similarity")
def rank_trend(source, model, store, method, quantities, falling=False) -> list[Finding]:
    """The rank correlation of a quantity with the layer index, on each text.

    Where documents have it, their mean and what they differ by, for the layers of a model are all there are: it has to
    be a clear trend. Where there is one number a layer, the interval is over layers.
    """
    cells, found = source.cells(store), []
    mine = {key: cell for key, cell in cells.items() if key[:2] == (model, method) and key[2] != "repeated-tokens"}
    frame = tidy_cells(mine, *quantities)
    if frame.empty:
        raise Missing(f"needs {method} of {store}")
    rows = paper("alpha_search").query("task == 'wikitext'").groupby("model", sort=False)
    alphas = {name: comparisons.rank_correlation(part["layer"], part["value"]).value for name, part in rows}
    removed = {"1": "queries and keys removed", "0": "all attention removed"}
    for (text, quantity), part in frame.groupby([frame["task"].str.replace(r"-\d+$", "", regex=True), "quantity"]):
        about = removed.get(quantity) or f"on {CORPORA.get(text.removeprefix('search-'), text)}"
        if "document" in part:
            rhos = [comparisons.rank_correlation(d["layer"], d["value"]).value for _, d in part.groupby("document")]
            rho, goal = comparisons.mean_interval(rhos).within(-1, 1), (-1) ** falling * CLEAR_TREND
            found.append(Finding(rho, "ρ", about, goal, falling))
        else:
            rho, own = comparisons.rank_correlation(part["layer"], part["value"]), alphas.get(paper_model(model))
            found.append(Finding(rho, "ρ", about, paper=(own,) if own else tuple(alphas.values())[:3]))
    return found
