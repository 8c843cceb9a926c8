"""What a test finds, the rule that says what follows, and the tests of scores and of ranks.

A test takes a :class:`Source` and the arguments that ``data/paper/claims.yaml`` gives it, and
yields findings: what has to hold, piece by piece; of rivals it is the closest one only, for who
leads it leads them all.
"""

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from functools import partial
from typing import NamedTuple

import numpy as np
import pandas as pd

from harp_lib.evaluation.benchmarks import ALL_BENCHMARKS, BENCHMARKS, LONGBENCH
from harp_lib.names import BASELINES, CORPUS_TITLES, METHOD_TITLES, PAPER_MODELS, display_name
from harp_lib.report import comparisons
from harp_lib.report.data import Missing, Source, above, lacking_all, paper, tidy
from harp_lib.report.plans import distinct_plans

KINDS = ("generation", "discriminative")
NAMES = {kind: [name for name, task in BENCHMARKS.items() if task.kind == kind] for kind in KINDS}
NAMES |= {"all": list(BENCHMARKS), "longbench": list(LONGBENCH), "baselines": list(BASELINES)}
PLANS = METHOD_TITLES | {
    "top": "α = 1",
    "alpha-1": "α = 1",
    "searched-on-{other}": "the other α",
}  # and what they are called
PLANS["resampled-on-{own}"] = "the α of a second sample"
PLANS |= {"bottom": "Bottom", "hessian": "Hessian", "similarity": "Similarity"}
PRINTED = {
    "main_tables": KINDS,
    "longbench": ("longbench",),
    "ablations": ("layer_selection", "alpha_ablation"),
}
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
    inclusive: bool = False  # the goal itself is enough: for what is counted without error
    reason: str = ""  # why it cannot decide
    paper: tuple[
        float, ...
    ] = ()  # the same number in the paper, for the model or for each of the paper's
    rival: str = ""  # the name of the plan that it is compared with, where there are several

    @property
    def outcome(self) -> Outcome:
        """The one rule: the whole interval has to be on one side."""
        if self.reason:
            return Outcome.NOT_RUN if self.reason.startswith("needs") else Outcome.INCONCLUSIVE
        interval = self.interval
        goal = self.goal
        if self.less:
            interval = 0 - interval
            goal = -goal
        if interval.low > goal:
            return Outcome.REPRODUCED
        if self.inclusive and interval.low == goal:
            return Outcome.REPRODUCED
        if interval.high < goal:
            return Outcome.NOT
        return Outcome.INCONCLUSIVE

    @property
    def threshold(self) -> str:
        """What the number has to be, in words, where ``{}`` is to be the goal."""
        if self.inclusive:
            return "at most {}" if self.less else "at least {}"
        return "below {}" if self.less else "above {}"


def weakest(findings: Sequence[Finding], needs: str = "") -> Finding:
    """What decides where everything has to hold; without findings it raises Missing."""
    if not findings:
        raise Missing(f"needs {needs}")
    order = [Outcome.NOT, Outcome.NOT_RUN, Outcome.INCONCLUSIVE, Outcome.PARTLY, Outcome.REPRODUCED]
    return min(
        findings,
        key=lambda found: (order.index(found.outcome), found.interval.value * (-1) ** found.less),
    )


def paper_model(model: str) -> str | None:
    """A model's spelling in the paper, if it is one of the paper's."""
    return SPELLINGS.get(display_name(model))


def printed(source: Source) -> list[pd.DataFrame]:
    """What the paper prints of a store, method × task in per cent: of the model, or else of each of
    its models.
    """
    rows = pd.concat([paper(table).query("quantity == 'score'") for table in PRINTED[source.store]])
    blocks = {
        name: part.pivot_table("value", "method", "task")
        for name, part in rows.groupby("model", sort=False)
    }
    return [blocks[own]] if (own := paper_model(source.model)) in blocks else list(blocks.values())


def named_in(names: str | Sequence[str]) -> list[str]:
    """Tasks or methods, listed in a claim or by the name of all of them."""
    return NAMES[names] if isinstance(names, str) else list(names)


def rivals_of(source: Source, names: str | Sequence[str]) -> dict[str, str]:
    """One method for each plan among some rivals, with the joined titles of all that made it."""
    return distinct_plans(
        source.read(source.profile, "baselines"), source.model, named_in(names), PLANS
    )


def closest(findings: Sequence[Finding]) -> Finding:
    """Of one finding for each rival the :func:`weakest`, under the names of all rivals that tie
    with it.
    """
    decides = weakest(findings)
    tied = []
    for found in findings:
        if found.outcome == decides.outcome and np.isclose(
            found.interval.value, decides.interval.value
        ):
            tied.append(found.rival)
    return decides._replace(rival=" and ".join(tied))


def score_lead(source, left, right, tasks, each=False, on_par=()):
    """By how many points ``left`` scores higher than the closest rival, on average over tasks or on
    each of them.

    On a task on which the dense model only guesses there is nothing to lose: it is left out of an
    average. What is claimed of each task is corrected for the number of tasks
    (:func:`comparisons.holm`).
    """
    rivals = rivals_of(source, right)
    goal = -1.0 if paper_model(source.model) in on_par else 0.0  # points
    known = source.answers((left, *named_in(right)), named_in(tasks))
    asked = above(known)
    if not asked:
        yield Finding(
            NOTHING,
            goal=goal,
            reason=lacking_all(known),
            paper=_leads_printed(source, left, right, known),
        )
        return
    leads = {}
    for group in [(task,) for task in asked] if each else [tuple(asked)]:
        told = _leads_printed(source, left, right, group)
        leads[group] = closest(
            [
                Finding(
                    _lead(asked, group, left, rival), "points", goal=goal, paper=told, rival=name
                )
                for rival, name in rivals.items()
            ]
        )
    if each:
        intervals = comparisons.holm(
            [found.interval for found in leads.values()], [goal] * len(leads)
        )
        for (task,), found, interval in zip(leads, leads.values(), intervals, strict=True):
            yield found._replace(
                interval=interval, about=f"against {found.rival}, {ALL_BENCHMARKS[task].title}"
            )
        return
    for found in leads.values():
        (rival,) = (
            method for method, name in rivals.items() if found.rival.split(" and ")[0] == name
        )
        parts = [f"against {found.rival}"]
        if len(asked) < len(known):
            parts.append(
                f"on the tasks where the dense model is above chance ({len(asked)} of {len(known)})"
            )
        if (task := _carried_by(asked, found, left, rival)) is not None:
            parts.append(f"carried by {ALL_BENCHMARKS[task].title}")
        yield found._replace(about=", ".join(parts))


def _lead(
    asked: Mapping[str, pd.DataFrame], tasks: Sequence[str], left: str, rival: str
) -> comparisons.Interval:
    """By how many points one method scores higher than another on average of some tasks, paired by
    question.
    """
    pairs = [(asked[task][left], asked[task][rival]) for task in tasks]
    return comparisons.paired_difference(pairs) * 100


def _leads_printed(
    source: Source, left: str, right: str | Sequence[str], tasks: Iterable[str]
) -> tuple[float, ...]:
    """The lead that the paper prints, over the best rival on average of some tasks."""
    means = [block[list(tasks)].mean(axis=1) for block in printed(source)]
    return tuple(mean[left] - mean.reindex(named_in(right)).max() for mean in means)


def _carried_by(
    asked: Mapping[str, pd.DataFrame], found: Finding, left: str, rival: str
) -> str | None:
    """The task without which a lead is no longer one, or None."""
    if found.outcome != Outcome.REPRODUCED:
        return None
    for task in asked:
        others = [other for other in asked if other != task]
        if others and not _lead(asked, others, left, rival).low > found.goal:
            return task
    return None


def gap(source, left, right, tasks, elsewhere, kept=False):
    """By how many points more ``left`` leads on some tasks than elsewhere, over the rival with the
    highest average.

    The best rival of each task by itself would be chosen by luck. With ``kept`` it is by how much
    the share is larger that ``left`` has of the rival's score above chance.
    """
    groups = [
        named_in(tasks),
        [task for task in named_in(elsewhere) if task not in named_in(tasks)],
    ]
    rivals, both = rivals_of(source, right), groups[0] + groups[1]

    known = source.answers((left, *named_in(right)), both)
    chances = {task: asked["chance"].mean() for task, asked in known.items()}

    def lead(means: np.ndarray, group: list[str]) -> np.ndarray:  # (…, 2, T) → (…)
        if kept:
            guessed = sum(chances.get(task, 0.0) for task in group)
            return np.divide(*np.moveaxis(means.sum(axis=-1) - guessed, -1, 0))
        return means[..., 0, :].mean(axis=-1) - means[..., 1, :].mean(axis=-1)

    told = ()
    for block in printed(source):
        pair = block.loc[[left, block.reindex(named_in(right), columns=both).mean(axis=1).idxmax()]]
        there, other = (100 * lead(pair[group].to_numpy() / 100, group) for group in groups)
        told += (float(there - other),)
    asked = above(known)
    sides = [[task for task in group if task in asked] for group in groups]
    if all(sides):
        means = pd.DataFrame({task: asked[task].mean() for task in sides[0] + sides[1]})
        rival = means.loc[list(rivals)].mean(axis=1).idxmax()
        pairs = [[asked[task][[left, rival]].to_numpy().T for task in side] for side in sides]
        found = comparisons.resampled(
            *zip((partial(lead, group=side) for side in sides), pairs, strict=True)
        )
        about = "of the dense score" if kept else f"against {rivals[rival]}"
        yield Finding(found * 100, about=about, paper=told)
    else:
        empty = {task: known[task] for task in groups[bool(sides[0])] if task in known}
        yield Finding(NOTHING, reason=lacking_all(empty), paper=told)


def ahead_of_all(source, left, right):
    """In which share of the benchmarks ``left`` is alone ahead: of most it has to be."""
    methods = [*named_in(right), left]

    def ahead(means: np.ndarray) -> np.ndarray:  # (…, M, T) → (…)
        return (means[..., -1, :] > means[..., :-1, :].max(axis=-2) + 1e-9).mean(axis=-1)

    told = tuple(
        float(ahead(block.reindex(methods).dropna().to_numpy())) for block in printed(source)
    )
    asked = [
        answers[methods].to_numpy().T
        for answers in above(source.answers(methods, LONGBENCH)).values()
    ]
    if asked:
        about = f"of {len(asked)} benchmarks above chance"
        yield Finding(comparisons.resampled((ahead, asked)), "share", about, goal=0.5, paper=told)
    else:
        yield Finding(NOTHING, "share", goal=0.5, reason=comparisons.FEW, paper=told)


REMOVED = {
    1.0: "queries and keys removed",
    0.0: "all attention removed",
}  # what a single layer loses, by its α


def rank_trend(source, method, quantities, goal=0.0, deeper=None):
    """The rank correlation of a quantity with the layer index, on each text.

    Where documents have it, their mean and what they differ by, for the layers of a model are all
    there are: it has to be a clear trend, beyond the goal. Where there is one number a layer, the
    interval is over layers. ``deeper`` names a store whose α of the same text, where it has some,
    are of more layers and take the place of those here.
    """
    frame = _by_layer(source, source.store, method, quantities)
    if frame.empty:
        raise Missing(f"needs {method} of {source.store}")
    if deeper:
        more = _by_layer(source, deeper, method, quantities)
        if not more.empty:
            frame = pd.concat([frame[~frame["corpus"].isin(more["corpus"])], more])
    apart = "corpus" if "corpus" in frame else "alpha"  # of single layers: an α each
    printed_rhos = _printed_alpha_trends()
    own = printed_rhos.get(paper_model(source.model))
    told = (own,) if own else tuple(printed_rhos.values())[:3]
    for (group, _), part in frame.groupby([apart, "quantity"]):
        about = REMOVED[group] if apart == "alpha" else f"on {CORPUS_TITLES.get(group, group)}"
        if "document" in part and part["document"].notna().any():
            rhos = [
                comparisons.rank_correlation(d["layer"], d["value"]).value
                for _, d in part.groupby("document")
            ]
            rho = comparisons.mean_interval(rhos).mapped(np.clip, -1, 1)
            yield Finding(rho, "ρ", about, goal, goal < 0)
        else:
            rho = comparisons.rank_correlation(part["layer"], part["value"])
            yield Finding(rho, "ρ", f"over {len(part)} layers, {about}", goal, goal < 0, paper=told)


def _by_layer(source: Source, store: str, method: str, quantities: Sequence[str]) -> pd.DataFrame:
    """Quantities that a method has by layer."""
    frame = tidy(source.profile, store, *quantities)
    return frame.query("model == @source.model and method == @method and task != 'repeated-tokens'")


def _printed_alpha_trends() -> dict[str, float]:
    """The rank correlation of the printed α with the layer, for each model of the paper."""
    rows = paper("alpha_search").query("task == 'wikitext'").groupby("model", sort=False)
    return {
        name: comparisons.rank_correlation(part["layer"], part["value"]).value
        for name, part in rows
    }
