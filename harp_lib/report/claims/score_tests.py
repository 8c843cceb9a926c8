"""What a test finds, the rule that says what follows, and the tests of scores and of ranks.

A test takes a :class:`Source` and the arguments that ``data/paper/claims.yaml`` gives it, and yields findings: what has
to hold, piece by piece; of rivals it is the closest one only, for who leads it leads them all.
"""

from collections.abc import Sequence
from enum import StrEnum
from functools import partial
from typing import NamedTuple

import numpy as np
import pandas as pd

from harp_lib.accounting import PAPER_MODELS
from harp_lib.measure.evaluation import ALL_BENCHMARKS, BENCHMARKS, LONGBENCH
from harp_lib.measure.models import display_name
from harp_lib.measure.text import TITLES as CORPORA
from harp_lib.methods import BASELINES, TITLES
from harp_lib.report import comparisons
from harp_lib.report.data import Missing, Source, above, chance, lacking, paper, tidy

KINDS = ("generation", "discriminative")
NAMES = {kind: [name for name, task in BENCHMARKS.items() if task.kind == kind] for kind in KINDS}
NAMES |= {"all": list(BENCHMARKS), "longbench": list(LONGBENCH), "baselines": list(BASELINES)}
PLANS = TITLES | {"top": "α = 1", "alpha-1": "α = 1", "searched-on-{other}": "the other α"}  # and what they are called
PRINTED = {"main_tables": KINDS, "longbench": ("longbench",), "ablations": ("layer_selection", "alpha_ablation")}
SPELLINGS = {hub: name for name, hub in PAPER_MODELS.items()} | {"Llama-3.1-70B": "LLaMA3.1-70B"}
NOTHING = comparisons.Interval(np.nan, np.nan, np.nan)


class Outcome(StrEnum):
    """What follows for a claim."""

    REPRODUCED = "reproduced"
    PARTLY = "partly"
    NOT = "not reproduced"
    INCONCLUSIVE = "inconclusive"
    NOT_RUN = "not run"


class Finding(NamedTuple):
    """One number that decides: it speaks for a claim above ``goal`` (below it with ``less``)."""

    interval: comparisons.Interval
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
        interval, goal = (0 - self.interval, -self.goal) if self.less else (self.interval, self.goal)
        if interval.low > goal:
            return Outcome.REPRODUCED
        if self.part is not None and interval.low > self.part:
            return Outcome.PARTLY
        return Outcome.NOT if interval.high < goal else Outcome.INCONCLUSIVE


def weakest(findings: Sequence[Finding], needs: str = "") -> Finding:
    """What decides where everything has to hold; without findings it raises Missing."""
    if not findings:
        raise Missing(f"needs {needs}")
    order = [Outcome.NOT, Outcome.NOT_RUN, Outcome.INCONCLUSIVE, Outcome.PARTLY, Outcome.REPRODUCED]
    return min(findings, key=lambda found: (order.index(found.outcome), found.interval.value * (-1) ** found.less))


def paper_model(model: str) -> str | None:
    """A model's spelling in the paper, if it is one of the paper's."""
    return SPELLINGS.get(display_name(model))


def printed(source: Source) -> list[pd.DataFrame]:
    """What the paper prints of a store, method × task in per cent: of the model, or else of each of its models."""
    rows = pd.concat([paper(table).query("quantity == 'score'") for table in PRINTED[source.store]])
    blocks = {name: part.pivot_table("value", "method", "task") for name, part in rows.groupby("model", sort=False)}
    return [blocks[own]] if (own := paper_model(source.model)) in blocks else list(blocks.values())


def named_in(names: str | Sequence[str]) -> list[str]:
    """Tasks or methods, listed in a claim or by the name of all of them."""
    return NAMES[names] if isinstance(names, str) else list(names)


def score_lead(source, left, right, tasks, each=False, on_par=()):
    """By how many points ``left`` scores higher than the closest rival, on average over tasks or on each of them."""
    rivals, goal = named_in(right), -1.0 if paper_model(source.model) in on_par else 0.0  # points
    asked = source.answers((left, *rivals), named_in(tasks))
    for group in [[task] for task in asked] if each else [list(asked)]:
        means, pieces = [block[group].mean(axis=1) for block in printed(source)], []
        told = tuple(mean[left] - mean.reindex(rivals).max() for mean in means)
        reason = lacking({task: asked[task] for task in group}) or ""
        for rival in rivals:
            lead = comparisons.paired_difference([(asked[task][left], asked[task][rival]) for task in group])
            about = f"against {PLANS.get(rival, rival.capitalize())}"
            about += f", {ALL_BENCHMARKS[group[0]].title}" if each else ""
            pieces.append(Finding(lead * 100, "points", about, goal, reason=reason, paper=told))
        yield weakest(pieces)


def gap(source, left, right, tasks, elsewhere, kept=False):
    """By how many points more ``left`` leads on some tasks than elsewhere, over the rival with the highest average.

    The best rival of each task by itself would be chosen by luck. With ``kept`` it is by how much the share is larger
    that ``left`` has of the rival's score above chance.
    """
    groups = [named_in(tasks), [task for task in named_in(elsewhere) if task not in named_in(tasks)]]
    rivals, both = named_in(right), groups[0] + groups[1]

    def lead(means: np.ndarray, group: list[str]) -> np.ndarray:  # (…, 2, T) → (…)
        if kept:
            return np.divide(*np.moveaxis(means.sum(axis=-1) - sum(map(chance, group)), -1, 0))
        return means[..., 0, :].mean(axis=-1) - means[..., 1, :].mean(axis=-1)

    told = ()
    for block in printed(source):
        pair = block.loc[[left, block.reindex(rivals, columns=both).mean(axis=1).idxmax()]]
        there, other = (100 * lead(pair[group].to_numpy() / 100, group) for group in groups)
        told += (float(there - other),)
    known = source.answers((left, *rivals), both)
    asked = above(known)
    sides = [[task for task in group if task in asked] for group in groups]
    if all(sides):
        means = pd.DataFrame({task: asked[task].mean() for task in sides[0] + sides[1]})
        rival = means.loc[rivals].mean(axis=1).idxmax()
        pairs = [[asked[task][[left, rival]].to_numpy().T for task in side] for side in sides]
        found = comparisons.resampled(*zip((partial(lead, group=side) for side in sides), pairs, strict=True))
        yield Finding(found * 100, about="of the dense score" if kept else f"against {PLANS[rival]}", paper=told)
    else:
        empty = {task: known[task] for task in groups[bool(sides[0])] if task in known}
        yield Finding(NOTHING, reason=lacking(empty) or comparisons.FEW, paper=told)


def ahead_of_all(source, left, right):
    """In which share of the benchmarks ``left`` is alone ahead: of most it has to be."""
    methods = [*named_in(right), left]

    def ahead(means: np.ndarray) -> np.ndarray:  # (…, M, T) → (…)
        return (means[..., -1, :] > means[..., :-1, :].max(axis=-2) + 1e-9).mean(axis=-1)

    told = tuple(float(ahead(block.reindex(methods).dropna().to_numpy())) for block in printed(source))
    asked = [answers[methods].to_numpy().T for answers in above(source.answers(methods, LONGBENCH)).values()]
    if asked:
        about = f"of {len(asked)} benchmarks above chance"
        yield Finding(comparisons.resampled((ahead, asked)), "share", about, goal=0.5, paper=told)
    else:
        yield Finding(NOTHING, reason=comparisons.FEW, paper=told)


def rank_trend(source, method, quantities, goal=0.0):
    """The rank correlation of a quantity with the layer index, on each text.

    Where documents have it, their mean and what they differ by, for the layers of a model are all there are: it has to
    be a clear trend, beyond the goal. Where there is one number a layer, the interval is over layers.
    """
    frame = tidy(source.profile, source.store, *quantities)
    frame = frame.query("model == @source.model and method == @method and task != 'repeated-tokens'")
    if frame.empty:
        raise Missing(f"needs {method} of {source.store}")
    rows = paper("alpha_search").query("task == 'wikitext'").groupby("model", sort=False)
    alphas = {name: comparisons.rank_correlation(part["layer"], part["value"]).value for name, part in rows}
    removed = {"1": "queries and keys removed", "0": "all attention removed"}
    for (text, quantity), part in frame.groupby([frame["task"].str.replace(r"-\d+$", "", regex=True), "quantity"]):
        about = removed.get(quantity) or f"on {CORPORA.get(text.removeprefix('search-'), text)}"
        if "document" in part:
            rhos = [comparisons.rank_correlation(d["layer"], d["value"]).value for _, d in part.groupby("document")]
            rho = comparisons.mean_interval(rhos).mapped(np.clip, -1, 1)
            yield Finding(rho, "ρ", about, goal, goal < 0)
        else:
            rho, own = comparisons.rank_correlation(part["layer"], part["value"]), alphas.get(paper_model(source.model))
            yield Finding(rho, "ρ", about, paper=(own,) if own else tuple(alphas.values())[:3])
