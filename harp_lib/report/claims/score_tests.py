"""The tests of claims about scores and about ranks of layers.

Where a method is compared with rivals, a finding is about the closest one only, because who leads
the closest rival leads them all.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

import numpy as np
import pandas as pd

from harp_lib.evaluation.benchmarks import ALL_BENCHMARKS, BENCHMARKS, LONGBENCH
from harp_lib.names import BASELINES, CORPUS_TITLES, METHOD_TITLES, PAPER_MODELS, display_name
from harp_lib.report import comparisons
from harp_lib.report.claims.findings import NOTHING, Finding, Outcome, weakest
from harp_lib.report.claims.registry import claim_test
from harp_lib.report.data import Missing, Source, above, lacking_all, paper
from harp_lib.report.plans import distinct_plans

KINDS = ("generation", "discriminative")
NAMES = {  # how a claim calls several tasks or methods together
    **{kind: [name for name, task in BENCHMARKS.items() if task.kind == kind] for kind in KINDS},
    "all": list(BENCHMARKS),
    "longbench": list(LONGBENCH),
    "baselines": list(BASELINES),
}
PLANS = {  # what findings call a plan
    **METHOD_TITLES,
    "top": "α = 1",
    "alpha-1": "α = 1",
    "searched-on-{other}": "the other α",
    "resampled-on-{own}": "the α of a second sample",
    "bottom": "Bottom",
    "hessian": "Hessian",
    "similarity": "Similarity",
}
PRINTED = {  # the paper's tables that print the scores of a store
    "main_tables": KINDS,
    "longbench": ("longbench",),
    "ablations": ("layer_selection", "alpha_ablation"),
}
SPELLINGS = {  # in the paper's tables, by a model's name on the hub
    **{hub: name for name, hub in PAPER_MODELS.items()},
    "Llama-3.1-70B": "LLaMA3.1-70B",
}
# The paper's models for which it claims that the searched α rises with the layer.
RISING_ALPHAS = ("LLaMA3.1-8B", "Mistral-7B-v0.3", "Qwen2-7B")
REMOVED = {  # what a single layer loses, by its α
    1: "queries and keys removed",
    0: "all attention removed",
}


def paper_model(model: str) -> str | None:
    """A model's spelling in the paper, or None if it is not one of the paper's models."""
    return SPELLINGS.get(display_name(model))


def printed(source: Source) -> list[pd.DataFrame]:
    """The scores that the paper prints of a store, method × task in per cent.

    There is one block for the model, or else one for each of the paper's models.
    """
    tables = [paper(name).query("quantity == 'score'") for name in PRINTED[source.store]]
    blocks = {}
    for name, part in pd.concat(tables).groupby("model", sort=False):
        blocks[name] = part.pivot_table("value", "method", "task")
    model = paper_model(source.model)
    return [blocks[model]] if model in blocks else list(blocks.values())


def named_in(names: str | Sequence[str]) -> list[str]:
    """Tasks or methods that a claim lists, or that it calls by one name (``NAMES``)."""
    return NAMES[names] if isinstance(names, str) else list(names)


def rivals_of(source: Source, names: str | Sequence[str]) -> dict[str, str]:
    """One method for each plan among some rivals, with the joined titles of all that made it."""
    baselines = source.read(source.profile, "baselines")
    return distinct_plans(baselines, source.model, named_in(names), PLANS)


def closest(findings: Sequence[Finding]) -> Finding:
    """The :func:`weakest` of one finding for each rival.

    It has the names of all rivals that tie with it.
    """
    decides = weakest(findings)
    value = decides.interval.value
    tied = []
    for finding in findings:
        if finding.outcome == decides.outcome and np.isclose(finding.interval.value, value):
            tied.append(finding.rival)
    return decides._replace(rival=" and ".join(tied))


@claim_test
def score_lead(source, left, right, tasks, each=False, on_par=()):
    """By how many points ``left`` scores higher than the closest rival.

    It is on average over the tasks, or on ``each`` of them. On a task on which the dense model only
    guesses there is nothing to lose, so that an average leaves it out. What is claimed of each task
    is corrected for the number of tasks (:func:`comparisons.holm`).
    """
    rivals = rivals_of(source, right)
    goal = -1.0 if paper_model(source.model) in on_par else 0.0  # points
    answers = source.answers((left, *named_in(right)), named_in(tasks))
    answers_above_chance = above(answers)

    def closest_lead(group: Sequence[str]) -> Finding:
        leads = []
        paper_leads = _printed_leads(source, left, right, group)
        for rival, name in rivals.items():
            interval = _lead(answers_above_chance, group, left, rival)
            leads.append(Finding(interval, goal=goal, paper=paper_leads, rival=name))
        return closest(leads)

    if not answers_above_chance:
        paper_leads = _printed_leads(source, left, right, answers)
        yield Finding(NOTHING, goal=goal, reason=lacking_all(answers), paper=paper_leads)
    elif each:
        leads = [closest_lead([task]) for task in answers_above_chance]
        intervals = comparisons.holm([lead.interval for lead in leads], [goal] * len(leads))
        for task, lead, interval in zip(answers_above_chance, leads, intervals, strict=True):
            about = f"against {lead.rival}, {ALL_BENCHMARKS[task].title}"
            yield lead._replace(interval=interval, about=about)
    else:
        lead = closest_lead(list(answers_above_chance))
        about = f"against {lead.rival}"
        if len(answers_above_chance) < len(answers):
            about += ", on the tasks where the dense model is above chance "
            about += f"({len(answers_above_chance)} of {len(answers)})"
        task = _carried_by(answers_above_chance, lead, left, rivals)
        if task is not None:
            about += f", carried by {ALL_BENCHMARKS[task].title}"
        yield lead._replace(about=about)


def _lead(
    answers: Mapping[str, pd.DataFrame], tasks: Sequence[str], left: str, rival: str
) -> comparisons.Interval:
    """By how many points a method scores higher than a rival on average over some tasks.

    It is paired by question.
    """
    pairs = [(answers[task][left], answers[task][rival]) for task in tasks]
    return comparisons.paired_difference(pairs) * 100


def _printed_leads(
    source: Source, left: str, right: str | Sequence[str], tasks: Iterable[str]
) -> tuple[float, ...]:
    """The leads over the best rival that the paper prints, on average over some tasks."""
    leads = []
    for block in printed(source):
        means = block[list(tasks)].mean(axis=1)
        leads.append(means[left] - means.reindex(named_in(right)).max())
    return tuple(leads)


def _carried_by(
    answers: Mapping[str, pd.DataFrame], lead: Finding, left: str, rivals: Mapping[str, str]
) -> str | None:
    """The task without which a lead is no longer one, or None.

    Of several the one without which least is left.
    """
    if lead.outcome != Outcome.REPRODUCED:
        return None
    first_name = lead.rival.split(" and ")[0]  # of the rivals that tie
    (rival,) = (method for method, name in rivals.items() if name == first_name)
    carrying = {}
    for task in answers:
        others = [other for other in answers if other != task]
        if not others:
            continue
        without = _lead(answers, others, left, rival)
        if not without.low > lead.goal:
            carrying[task] = without.value
    return min(carrying, key=carrying.get, default=None)


@claim_test
def gap(source, left, right, tasks, elsewhere, kept=False):
    """By how many points more ``left`` leads on some tasks than elsewhere.

    The rival is the one with the highest average, because the best rival of each task by itself
    would be chosen by luck. With ``kept`` the finding compares shares: the score above chance of
    ``left`` divided by that of the rival.
    """
    here = named_in(tasks)
    groups = (here, [task for task in named_in(elsewhere) if task not in here])
    rivals = rivals_of(source, right)
    answers = {}
    for group in groups:  # each by itself, so that a model that lacks one is not judged
        answers.update(source.answers((left, *named_in(right)), group))
    chances = {task: scores["chance"].mean() for task, scores in answers.items()}

    def lead(means: np.ndarray, group: list[str]) -> np.ndarray:  # (…, 2, T) → (…)
        if not kept:
            return means[..., 0, :].mean(axis=-1) - means[..., 1, :].mean(axis=-1)
        guessed = sum(chances.get(task, 0.0) for task in group)
        above_guesses = means.sum(axis=-1) - guessed  # (…, 2)
        return above_guesses[..., 0] / above_guesses[..., 1]

    paper_gaps = _printed_gaps(source, left, right, groups, lead)
    answers_above_chance = above(answers)
    for group in groups:
        if not answers_above_chance.keys() & set(group):
            reason = lacking_all({task: answers[task] for task in group if task in answers})
            yield Finding(NOTHING, reason=reason, paper=paper_gaps)
            return

    groups_above_chance = [
        [task for task in group if task in answers_above_chance] for group in groups
    ]
    rival = _best_rival(
        answers_above_chance, groups_above_chance[0] + groups_above_chance[1], rivals
    )
    sides = []
    for group in groups_above_chance:
        scores = [answers_above_chance[task][[left, rival]].to_numpy().T for task in group]
        sides.append((partial(lead, group=group), scores))
    about = "of the dense score" if kept else f"against {rivals[rival]}"
    yield Finding(comparisons.resampled(*sides) * 100, about=about, paper=paper_gaps)


def _best_rival(
    answers: Mapping[str, pd.DataFrame], tasks: Sequence[str], rivals: Iterable[str]
) -> str:
    """The rival with the highest average over some tasks."""
    means = pd.DataFrame({task: answers[task].mean() for task in tasks})
    return means.loc[list(rivals)].mean(axis=1).idxmax()


def _printed_gaps(
    source: Source,
    left: str,
    right: str | Sequence[str],
    groups: tuple[list[str], list[str]],
    lead: Callable[[np.ndarray, list[str]], np.ndarray],
) -> tuple[float, ...]:
    """The gaps between two groups of tasks that the paper prints, against the best rival."""
    first, second = groups
    gaps = []
    for block in printed(source):
        averages = block.reindex(named_in(right), columns=first + second).mean(axis=1)
        pair = block.loc[[left, averages.idxmax()]]
        lead_here = 100 * lead(pair[first].to_numpy() / 100, first)
        lead_elsewhere = 100 * lead(pair[second].to_numpy() / 100, second)
        gaps.append(float(lead_here - lead_elsewhere))
    return tuple(gaps)


@claim_test
def ahead_of_all(source, left, right):
    """Share of the benchmarks on which ``left`` alone is ahead; it has to be ahead on most."""
    methods = [*named_in(right), left]

    def share_ahead(means: np.ndarray) -> np.ndarray:  # (…, M, T) → (…)
        best_rival = means[..., :-1, :].max(axis=-2)
        return (means[..., -1, :] > best_rival + 1e-9).mean(axis=-1)

    blocks = [block.reindex(methods).dropna() for block in printed(source)]
    paper_shares = tuple(float(share_ahead(block.to_numpy())) for block in blocks)
    answers = above(source.answers(methods, LONGBENCH))
    if answers:
        scores = [of_task[methods].to_numpy().T for of_task in answers.values()]
        interval = comparisons.resampled((share_ahead, scores))
        about = f"of {len(scores)} benchmarks above chance"
        yield Finding(interval, "share", about, goal=0.5, paper=paper_shares)
    else:
        yield Finding(NOTHING, "share", goal=0.5, reason=comparisons.FEW, paper=paper_shares)


@claim_test
def rank_trend(source, method, quantities, goal=0.0, deeper=None):
    """The rank correlation of a quantity with the layer index, on each text.

    Where documents have the quantity, the interval of their mean is over documents, because the
    layers of a model are all there are: the trend has to be clear, beyond the goal. Where there is
    one number for each layer, the interval is over layers. ``deeper`` names a store whose α of the
    same text are of more layers; where it has some, they take the place of those here.
    """
    frame = _by_layer(source, source.store, method, quantities)
    if frame.empty:
        raise Missing(f"needs {method} of {source.store}")
    if deeper:
        of_more_layers = _by_layer(source, deeper, method, quantities)
        if len(of_more_layers):
            is_replaced = frame["corpus"].isin(of_more_layers["corpus"])
            frame = pd.concat([frame[~is_replaced], of_more_layers])
    coordinate = "alpha" if "alpha" in frame else "corpus"  # α of a single pruned layer
    for (where, _), part in frame.groupby([coordinate, "quantity"]):
        about = REMOVED[where] if coordinate == "alpha" else f"on {CORPUS_TITLES[where]}"
        if "document" in part and part["document"].notna().any():
            rhos = []
            for _, document in part.groupby("document"):
                rho = comparisons.rank_correlation(document["layer"], document["value"])
                rhos.append(rho.value)
            mean_rho = comparisons.mean_interval(rhos).mapped(np.clip, -1, 1)
            yield Finding(mean_rho, "ρ", about, goal, less=goal < 0)
        else:
            rho = comparisons.rank_correlation(part["layer"], part["value"])
            about = f"over {len(part)} layers, {about}"
            paper_rhos = _printed_alpha_trends(source.model)
            yield Finding(rho, "ρ", about, goal, less=goal < 0, paper=paper_rhos)


def _by_layer(source: Source, store: str, method: str, quantities: Sequence[str]) -> pd.DataFrame:
    """Quantities that a method has by layer; empty without any."""
    try:
        rows = source.rows(*quantities, method=method, store=store)
    except Missing:
        return pd.DataFrame()
    return rows.dropna(subset="layer").dropna(axis="columns", how="all")


def _printed_alpha_trends(model: str) -> tuple[float, ...]:
    """The rank correlation of the α that the paper prints with the layer index.

    It is of the model, or else of each of the paper's models in ``RISING_ALPHAS``.
    """
    rhos = {}
    rows = paper("alpha_search").query("task == 'wikitext'")
    for name, part in rows.groupby("model", sort=False):
        rhos[name] = comparisons.rank_correlation(part["layer"], part["value"]).value
    rho = rhos.get(paper_model(model))
    return (rho,) if rho else tuple(rhos[name] for name in RISING_ALPHAS)
