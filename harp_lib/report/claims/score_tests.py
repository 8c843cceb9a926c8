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
from harp_lib.report.data import Missing, above, chance, lacking, paper

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
def score_lead(source, model, left, right, tasks, each=False, on_par=(), store="main_tables"):
    """By how many points ``left`` scores higher than the closest rival, on average over tasks or on each of them."""
    rivals, found = named_in(right), []
    asked = source.answers(store, model, (left, *rivals), named_in(tasks))
    for group in [[task] for task in asked] if each else [list(asked)]:
        means, pieces = [block[group].mean(axis=1) for block in printed(model, store)], []
        same = {
            "goal": -PAR if paper_model(model) in on_par else 0.0,
            "reason": lacking({task: asked[task] for task in group}) or "",
            "paper": tuple(mean[left] - mean.reindex(rivals).max() for mean in means),
        }
        for rival in rivals:
            lead = comparisons.paired_difference([(asked[task][left], asked[task][rival]) for task in group])
            about = "against " + {"top": "α = 1", **TITLES}.get(rival, rival.capitalize())
            about += f", {ALL_BENCHMARKS[group[0]].title}" if each else ""
            pieces.append(Finding(lead * 100, about=about, **same))
        found.append(weakest(pieces))
    return found


@named("main_tables")
def gap(source, model, left, right, tasks, elsewhere, store="main_tables", kept=False) -> list[Finding]:
    """By how many points more ``left`` leads on some tasks than elsewhere, over the rival with the highest average.

    The best rival of each task by itself would be chosen by luck. With ``kept`` it is by how much the share is larger
    that ``left`` has of the rival's score above chance.
    """
    there = named_in(tasks)
    groups = [there, [task for task in named_in(elsewhere) if task not in there]]
    both = [*chain(*groups)]

    def best(means: pd.DataFrame) -> str:  # method × task
        return means.reindex(named_in(right)).mean(axis=1).idxmax()

    def lead(group: list[str]) -> Callable[[np.ndarray], np.ndarray]:  # (…, 2, T) → (…)
        guessed = sum(map(chance, group))
        if kept:
            return lambda means: np.divide(*np.moveaxis(means.sum(axis=-1) - guessed, -1, 0))
        return lambda means: means[..., 0, :].mean(axis=-1) - means[..., 1, :].mean(axis=-1)

    told = []
    for block in printed(model, store):
        pair = block.loc[[left, best(block.reindex(columns=both))]]
        first, second = (100 * lead(group)(pair[group].to_numpy() / 100) for group in groups)
        told.append(float(first - second))
    known = source.answers(store, model, (left, *named_in(right)), both)
    asked = above(known)
    sides = [[task for task in group if task in asked] for group in groups]
    for group in groups:
        if asked.keys().isdisjoint(group):
            reason = lacking({task: known[task] for task in group if task in known})
            return [Finding(NOTHING, reason=reason or comparisons.FEW, paper=tuple(told))]
    rival = best(pd.DataFrame({task: asked[task].mean() for side in sides for task in side}))
    found = comparisons.resampled(
        *((lead(side), [asked[task][[left, rival]].to_numpy().T for task in side]) for side in sides)
    )
    about = "of the dense score" if kept else f"against {TITLES[rival]}"
    return [Finding(found * 100, about=about, paper=tuple(told))]


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
    found = comparisons.resampled((ahead, [part[methods].to_numpy().T for part in asked.values()]))
    return [Finding(found, "share", f"of {len(asked)} benchmarks above chance", goal=0.5, paper=told)]


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
