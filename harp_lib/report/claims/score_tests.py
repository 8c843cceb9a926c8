"""The named tests of ``data/paper/claims.yaml``: each turns the cells of one model into findings.

A test is ``(source, model, **arguments) -> list of Finding``: what has to hold, piece by piece; of rivals it is the
closest one only, for who leads it leads them all. What fits none of these is in ``layer_tests``.
"""

from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum
from itertools import chain
from math import nan
from typing import NamedTuple

import numpy as np
import pandas as pd

from harp_lib.accounting import PAPER_MODELS
from harp_lib.measure.evaluation import ALL_BENCHMARKS, BENCHMARKS, LONGBENCH
from harp_lib.measure.models import display_name
from harp_lib.measure.text import TITLES as CORPORA
from harp_lib.methods import BASELINES, TITLES
from harp_lib.report import comparisons, data
from harp_lib.report.comparisons import Interval
from harp_lib.report.data import Missing, above, compared, paper

KINDS = ("generation", "discriminative")
NAMES = {kind: [name for name, task in BENCHMARKS.items() if task.kind == kind] for kind in KINDS}
NAMES |= {"all": [*chain(*NAMES.values())], "longbench": list(LONGBENCH), "baselines": list(BASELINES)}
PRINTED = {"main_tables": KINDS, "longbench": ("longbench",), "ablations": ("layer_selection", "alpha_ablation")}
SPELLINGS = {hub: name for name, hub in PAPER_MODELS.items()} | {"Llama-3.1-70B": "LLaMA3.1-70B"}
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
    return SPELLINGS.get(display_name(model))


def printed(model: str, store: str) -> list[pd.DataFrame]:
    """What the paper prints of a store, method × task in per cent: of the model, or else of each of its models."""
    rows = pd.concat([paper(table).query("quantity == 'score'") for table in PRINTED[store]])
    blocks = {name: part.pivot_table("value", "method", "task") for name, part in rows.groupby("model", sort=False)}
    return [blocks[own]] if (own := paper_model(model)) in blocks else list(blocks.values())


def named_in(names: str | Sequence[str]) -> list[str]:
    """Tasks or methods, listed in a claim or by the name of all of them."""
    return NAMES[names] if isinstance(names, str) else list(names)


@named("main_tables")
def score_lead(source, model, left, right, tasks, each=False, on_par=(), store="main_tables", seeds=(0,)):
    """By how many points ``left`` scores higher than the closest rival, on average over tasks or on each of them.

    Other seeds are other draws of the calibration text.
    """
    rivals, found = named_in(right), []
    for seed in seeds:
        asked = source.answers(store, model, (left, *rivals), named_in(tasks), seed)
        for group in [[task] for task in asked] if each else [list(asked)]:
            means, pieces = [block[group].mean(axis=1) for block in printed(model, store)], []
            same = {
                "goal": -PAR if paper_model(model) in on_par else 0.0,
                "reason": comparisons.floor([compared(task, asked[task]) for task in group]) or "",
                "paper": tuple(mean[left] - mean.reindex(rivals).max() for mean in means),
            }
            for rival in rivals:
                lead = comparisons.paired_difference([(asked[task][left], asked[task][rival]) for task in group])
                about = "against " + {"top": "α = 1", **TITLES}.get(rival, rival.capitalize())
                about += f", {ALL_BENCHMARKS[group[0]].title}" if each else f", calibration text {seed}" if seed else ""
                pieces.append(Finding(lead * 100, about=about, **same))
            found.append(weakest(pieces))
    return found


@named("main_tables")
def lead_gap(source, model, left, right, tasks, elsewhere, store="main_tables") -> list[Finding]:
    """By how many points more ``left`` leads on some tasks than elsewhere, over the rival with the highest average.

    The best rival of each task by itself would be chosen by luck.
    """
    rivals, there = named_in(right), named_in(tasks)
    others = [task for task in named_in(elsewhere) if task not in there]

    def gap(means: pd.DataFrame, *sides: list[str]) -> tuple[str, float]:
        best = means.reindex(index=rivals, columns=[*sides[0], *sides[1]]).mean(axis=1).idxmax()
        lead = means.loc[left] - means.loc[best]
        return best, float(lead[sides[0]].mean() - lead[sides[1]].mean())

    told = tuple(gap(block, there, others)[1] for block in printed(model, store))
    asked = above(source.answers(store, model, (left, *rivals), [*there, *others]))
    sides = [[task for task in side if task in asked] for side in (there, others)]
    if not all(sides):
        return [Finding(NOTHING, reason=comparisons.FEW, paper=told)]
    best, value = gap(pd.DataFrame({task: scores.mean() for task, scores in asked.items()}), *sides)
    leads = []
    for seed, side in enumerate(sides):
        drawn = comparisons.bootstrap([asked[task][[left, best]].T for task in side], seed)
        leads.append((drawn[:, 0] - drawn[:, 1]).mean(axis=-1))
    found = comparisons.drawn_interval(value, leads[0] - leads[1], sum(map(len, asked.values())))
    return [Finding(found * 100, about=f"against {TITLES[best]}", paper=told)]


@named("main_tables")
def kept_gap(source, model, method, easy, hard) -> list[Finding]:
    """How much more of the dense score above chance a method keeps on easy tasks than on hard ones."""

    def kept(*sides: dict[str, pd.DataFrame]) -> Interval:
        groups = [[compared(task, scores, method) for task, scores in side.items()] for side in sides]
        return comparisons.share_kept(*groups) * 100

    sides = [named_in(easy), named_in(hard)]
    blocks = [block.T / 100 for block in printed(model, "main_tables")]  # one "question" a task: its mean
    told = tuple(kept(*({task: block.loc[[task]] for task in side} for side in sides)).value for block in blocks)
    known = [source.answers("main_tables", model, [method], side) for side in sides]
    for side in known:
        if not above(side):
            reason = comparisons.floor([compared(task, scores) for task, scores in side.items()])
            return [Finding(NOTHING, reason=reason or comparisons.FEW, paper=told)]
    return [Finding(kept(*map(above, known)), about="of the dense score", paper=told)]


@named("longbench")
def ahead_of_all(source, model, left, right) -> list[Finding]:
    """In which share of the benchmarks ``left`` is alone ahead: of most it has to be."""
    methods = [*named_in(right), left]

    def ahead(means: np.ndarray) -> np.ndarray:  # (…, M, T) → (…)
        return (means[..., -1, :] > means[..., :-1, :].max(axis=-2) + 1e-9).mean(axis=-1)

    told = tuple(float(ahead(block.reindex(methods).dropna().to_numpy())) for block in printed(model, "longbench"))
    asked = above(source.answers("longbench", model, methods, LONGBENCH))
    if not asked:
        return [Finding(NOTHING, reason=comparisons.FEW, paper=told)]
    scores = [part[methods].to_numpy().T for part in asked.values()]
    value, draws = ahead(np.stack([part.mean(axis=1) for part in scores], axis=-1)), comparisons.bootstrap(scores)
    found = comparisons.drawn_interval(value, ahead(draws), sum(map(len, asked.values())))
    return [Finding(found, "share", f"of {len(scores)} benchmarks above chance", goal=0.5, paper=told)]


@named("alpha_search")
def perplexity_change(source, model, worse, better, splits, at_most=None, store="alpha_search") -> list[Finding]:
    """How much higher perplexity is with each of some plans than with another, on each text.

    In the plans' names ``{own}`` stands for the text's corpus, ``{other}`` for the other one.
    """
    texts = [task for name, method, task in source.cells(store) if (name, method) == (model, "dense")]
    texts = [text.rpartition("-") for text in texts if text.endswith(tuple(splits))]
    if not texts:
        raise Missing(f"needs texts of {store}")
    word = paper("alpha_robustness").pivot_table("value", "method", "task").to_numpy()  # searched on × evaluated on
    told = {"goal": at_most, "less": True, "paper": tuple((word[::-1] / word).diagonal() - 1)} if at_most else {}
    found = []
    for corpus, _, split in texts:
        names, pieces = {"own": corpus, "other": next((name for name, *_ in texts if name != corpus), corpus)}, []
        low = source.result(store, model, better.format(**names), f"{corpus}-{split}")
        for plan in named_in(worse):
            high = source.result(store, model, plan.format(**names), f"{corpus}-{split}")
            about = f"with {({'alpha-1': 'α = 1'} | TITLES).get(plan, 'the other α')}, {CORPORA[corpus]}, "
            about += "held out" if split == "validation" else "searched"
            change = comparisons.change(low["nll"], high["nll"], high["tokens"])
            pieces.append(Finding(change, "%", about, **told))
        found.append(weakest(pieces))
    return found


@named("similarity")
def rank_trend(source, model, store, method, quantities, falling=False) -> list[Finding]:
    """The rank correlation of a quantity with the layer index, on each text.

    Where documents have it, their mean and what they differ by, for the layers of a model are all there are: it has to
    be a clear trend. Where there is one number a layer, the interval is over layers.
    """
    frame, found = data.tidy(source.profile, store, *quantities), []
    frame = frame.query("model == @model and method == @method and task != 'repeated-tokens'")
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
