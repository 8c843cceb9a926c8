"""What the results of notebook 06 say, in words that follow the numbers."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from scipy import stats

from harp_lib.ablation_frames import (
    ALL,
    ALONE,
    MISSED,
    ORDER,
    PAPER_MODEL,
    STEP,
    gain_frame,
    height_correlation,
    picked_layers,
    published_picks,
    single_layer_frame,
    strategy_title,
)
from harp_lib.baseline_verdict import FAILS, HOLDS, OPEN
from harp_lib.experiments.ablation_study import STRATEGIES
from harp_lib.measure.benchmarks import DISCRIMINATIVE
from harp_lib.measure.models import display_name
from harp_lib.published import published_scores
from harp_lib.results import Cells
from harp_lib.score_claims import FLOOR, LIKELY, NO_SCORE, Finding, outcome, points
from harp_lib.score_frames import AVERAGE, average_frame, difference, score_frame
from harp_lib.score_kept import KIND, KINDS, compared, is_above_chance
from harp_lib.score_verdict import tasks_at_floor
from harp_lib.statistics import Interval
from harp_lib.tables import with_error

TASKS = {kind: [task for task in KIND if KIND[task] == kind] for kind in KINDS}
EVERY_TASK = "searching α beats leaving it at 1 on every task"
SIMILARITY = "most layers that the similarity metric picks are among those that HARP prunes"
LOWER = "searching α lowers perplexity on held-out text"
EVERY_LAYER = "every searched layer adds to the gain"
HIGH = {
    1.0: "the higher a layer, the less it costs to remove its queries and keys",
    0.0: "the higher a layer, the less it costs to remove its attention",
}


def verdict(cells: Cells) -> pd.DataFrame:
    """Each claim with what was measured, what follows, and what the paper's tables say of the same."""
    rows: list[tuple[str, str, Finding]] = []
    for model in dict.fromkeys(model for model, _, task in cells if task == "selection"):
        found = {_top_claim(other): top_against(cells, model, other) for other in STRATEGIES if other != "top"}
        found[LOWER] = lower_perplexity(cells, model)
        found |= {_alpha_claim(kind): searched_against_one(cells, model, kind) for kind in KINDS}
        found[EVERY_TASK] = on_every_task(cells, model)
        found |= {claim: height(cells, model, alpha) for alpha, claim in HIGH.items()}
        found[SIMILARITY] = similar_layers(cells, model)
        found[EVERY_LAYER] = every_layer(cells, model)
        rows += [(claim, display_name(model), *finding) for claim, finding in found.items()]
    return pd.DataFrame(rows, columns=["claim", "model", "evidence", "verdict", "in the paper"])


def _top_claim(other: str) -> str:
    return f"Top beats {other.capitalize()} on discriminative tasks, at α = 1"


def _alpha_claim(kind: str) -> str:
    return f"searching α beats leaving it at 1 on {kind} tasks"


def judge(cells: Cells, model: str, first: str, second: str, tasks: Sequence[str]) -> tuple[str, str]:
    """Does ``first`` score higher than ``second`` on the average of tasks? Evidence and verdict."""
    tasks = [task for task in tasks if all(compared(cells, model, method, [task]) for method in (first, second))]
    if not tasks:
        return "", NO_SCORE
    found, dense = difference(cells, model, first, second, tasks), compared(cells, model, "dense", tasks)
    questions = sum(len(scores) for scores, *_ in dense)
    evidence = f"{points(found)} points, {questions} questions in {len(tasks)} tasks"
    return evidence, outcome(found) if is_above_chance(dense) else FLOOR


def top_against(cells: Cells, model: str, other: str) -> Finding:
    """Do the top layers cost less than those of another strategy, over the paper's six tasks?"""
    scores = published_scores("layer_selection", PAPER_MODEL)[AVERAGE]
    printed = f"{scores['top'] - scores[other]:+.2f} points ({scores['top']:.2f} and {scores[other]:.2f})"
    return Finding(*judge(cells, model, "top", other, TASKS[DISCRIMINATIVE]), printed)


def published_ablation() -> pd.DataFrame:
    """The paper's table "ablation": alpha ("1" or "searched") by task, in percent."""
    names = {"harp, alpha 1.0": "1", "harp, alpha searched": "searched"}
    return published_scores("alpha_ablation", PAPER_MODEL).rename(index=names)


def searched_against_one(cells: Cells, model: str, kind: str) -> Finding:
    """Does searching alpha raise the average over the tasks of a kind?"""
    scores = published_ablation()[f"Average ({kind})"]
    printed = f"{scores['searched'] - scores['1']:+.2f} points ({scores['searched']:.2f} and {scores['1']:.2f})"
    return Finding(*judge(cells, model, "harp", "top", TASKS[kind]), printed)


def on_every_task(cells: Cells, model: str) -> Finding:
    """Does searching alpha raise the score on each task by itself?"""
    change = published_ablation().loc["searched"] - published_ablation().loc["1"]
    change = change[list(KIND)]
    lower = ", ".join(f"{change[task]:+.2f} on {task}" for task in change.index[change < 0])
    printed = f"higher on {(change > 0).sum()} of {len(change)} tasks; {lower}"
    tasks: dict[str, list[str]] = {}
    for task in KIND:
        tasks.setdefault(judge(cells, model, "harp", "top", [task])[1], []).append(task)
    words = {HOLDS: "higher on", FAILS: "lower on", OPEN: f"{OPEN} on", FLOOR: f"{FLOOR} on", NO_SCORE: "missing:"}
    evidence = "; ".join(f"{words[found]} {', '.join(tasks[found])}" for found in words if found in tasks)
    found = set(tasks)
    judged = FAILS if FAILS in found else next(iter(found)) if len(found) == 1 else OPEN
    return Finding(evidence, NO_SCORE if NO_SCORE in found and judged == OPEN else judged, printed)


def height(cells: Cells, model: str, alpha: float) -> Finding:
    """Does the cost of a single value-only layer fall with its index?

    It does if the documents agree about it, and if layers in a random order would seldom fall as much.
    """
    singles = single_layer_frame(cells)
    part = singles[(singles["model"] == model) & (singles["alpha"] == alpha)]
    within = height_correlation(cells, model, alpha)
    whole, low, high = against_random_order(part["rise"])
    p = min(1.0, 2 * min(low, high))
    by_chance = "p < 0.001" if p < 0.001 else f"p = {p:.2g}"
    pruned, others = (part.loc[part["pruned"] == which, "rise"].mean() for which in (True, False))
    count = part["pruned"].sum()
    cheapest = part.nsmallest(count, "rise")["pruned"].sum()
    evidence = (
        f"rank correlation of cost and index {whole:+.2f} over {len(part)} layers ({by_chance} against a random "
        f"order), {_plain(within)} within single documents; on average {pruned:+.3f} nats a token for one of the "
        f"{count} layers that HARP prunes, {others:+.3f} for one of the others; {cheapest} of the {count} cheapest "
        f"layers are among those that HARP prunes"
    )
    falls, rises = within.high < 0 and low < LIKELY, within.low > 0 and high < LIKELY
    return Finding(evidence, HOLDS if falls else FAILS if rises else OPEN, "not measured one layer at a time")


def against_random_order(costs: Sequence[float], draws: int = 20_000) -> tuple[float, float, float]:
    """Spearman's ρ of costs with their index, and the shares of random orders with as low and as high a ρ.

    Counted over seeded draws, because the p of ``scipy.stats.spearmanr`` is only good for many layers.
    """
    ranks, places = (stats.zscore(stats.rankdata(values)) for values in (costs, range(len(costs))))
    random = np.random.default_rng(0).permuted(np.tile(ranks, (draws, 1)), axis=1) @ places / len(ranks)
    rho = float(ranks @ places / len(ranks))
    low, high = np.sum(random <= rho + 1e-9), np.sum(random >= rho - 1e-9)
    return rho, (1 + low) / (1 + draws), (1 + high) / (1 + draws)


def similar_layers(cells: Cells, model: str) -> Finding:
    """Are most of the layers that the similarity metric picks among the top ones?"""
    total = cells[model, "similarity", "selection"]["inputs"]["total"]
    said = []
    for picked, layers in ((picked_layers(cells, model), total), published_picks()):
        count, shared = len(picked["top"]), len(set(picked["similarity"]) & set(picked["top"]))
        said.append((shared, count, f"{shared} of {count} layers, {count**2 / layers:.1f} expected of a random choice"))
    (shared, count, ours), (*_, theirs) = said
    return Finding(ours, HOLDS if 2 * shared > count else FAILS, theirs)


def lower_perplexity(cells: Cells, model: str) -> Finding:
    """Do all searched alpha together lower perplexity?"""
    gains = gain_frame(cells)
    together = gains[(gains["model"] == model) & (gains["way"] == ALL)].iloc[0]
    gain = Interval(*together[["gain", "low", "high"]])
    evidence = f"log perplexity falls by {nats(gain)} nats a token over {together['documents']} documents"
    return Finding(evidence, outcome(gain), "not reported")


def every_layer(cells: Cells, model: str) -> Finding:
    """Does each searched alpha lower perplexity once those above it are searched?"""
    gains = gain_frame(cells)
    part = gains[(gains["model"] == model) & (gains["way"] == STEP)]
    changed = part[part["alpha"] != 1]  # where the search leaves alpha at 1, there is nothing to gain
    outcomes = [outcome(Interval(row.gain, row.low, row.high)) for row in changed.itertuples()]
    evidence = f"{outcomes.count(HOLDS)} of {len(part)} layers lower perplexity, {outcomes.count(FAILS)} raise it"
    if len(changed) < len(part):
        evidence += f", {len(part) - len(changed)} keep α = 1"
    judged = FAILS if FAILS in outcomes else HOLDS if set(outcomes) == {HOLDS} else OPEN
    return Finding(evidence, judged, "not reported")


def answer(cells: Cells) -> str:
    """What holds here: a few sentences for each model."""
    claims, lines = verdict(cells), []
    for model, part in claims.groupby("model", sort=False):
        found = part.set_index("claim")["verdict"]
        others = [strategy for strategy in STRATEGIES if strategy != "top"]
        layers = "; ".join(f"{other.capitalize()}, {found[_top_claim(other)]}" for other in others)
        alphas = "; ".join(f"on {kind} tasks, {found[_alpha_claim(kind)]}" for kind in KINDS)
        lines.append(
            f"- **{model}.** That the top layers cost less than those that another strategy picks: {layers}. That "
            f"searching α beats leaving it at 1: in perplexity, {found[LOWER]}; {alphas}; on every task, "
            f"{found[EVERY_TASK]}. That the cost of a single layer falls with its height: queries and keys removed, "
            f"{found[HIGH[1.0]]}; attention removed, {found[HIGH[0.0]]}."
        )
    return "\n".join(lines)


def read_strategies(cells: Cells, scores: pd.DataFrame) -> str:
    """The average of each strategy, and which tasks are at the floor."""
    lines = []
    part = scores[(scores["kind"] == DISCRIMINATIVE) & scores["method"].isin(("dense", *STRATEGIES))]
    for model, mine in part.groupby("model", sort=False):
        means = average_frame(mine).set_index("method")
        said = [
            f"{strategy_title(strategy, len(layers))} {with_error(*means.loc[strategy, ['score', 'error']])} %"
            for strategy, layers in picked_layers(cells, model).items()
            if strategy in means.index
        ]
        text = f"the dense model averages {with_error(*means.loc['dense', ['score', 'error']])} %, " if said else ""
        text = text[:1].upper() + text[1:] + ", ".join(said) if said else "No task has a score of every strategy"
        lines.append(f"- **{display_name(model)}.** {text}. {tasks_at_floor(cells, model, TASKS[DISCRIMINATIVE])}")
    return "\n".join(lines)


def read_alphas(cells: Cells, kind: str) -> str:
    """The paired difference of searched alpha and alpha = 1 on the tasks of a kind."""
    lines = []
    for model in dict.fromkeys(model for model, _, task in cells if task == "selection"):
        evidence, judged = judge(cells, model, "harp", "top", TASKS[kind])
        text = f"searched α against α = 1: {evidence} ({judged})" if evidence else "a score is missing"
        lines.append(f"- **{display_name(model)}, {kind} tasks**: {text}. {tasks_at_floor(cells, model, TASKS[kind])}")
    return "\n".join(lines)


def read_missing(cells: Cells) -> str:
    """The scores that there are not, and why."""
    failed = score_frame(cells, ORDER).dropna(subset="failed")
    rows = [f"- {display_name(row.model)}, {row.method} on {row.task}: {row.failed}" for row in failed.itertuples()]
    return "\n".join(["These scores are missing:", "", *rows]) if rows else "No score is missing."


def read_gains(gains: pd.DataFrame) -> str:
    """Which layer brings how much of the gain."""
    lines = []
    for model, part in gains.groupby("model", sort=False):
        together = part[part["way"] == ALL].iloc[0]
        steps = part[part["way"] == STEP].sort_values("gain", ascending=False)
        text = f"all searched α together gain {nats(Interval(*together[['gain', 'low', 'high']]))} nats a token"
        if together["low"] > 0:
            first = " and ".join(f"layer {row.layer:.0f} {100 * row.share:.0f} %" for row in steps[:2].itertuples())
            text += f"; going down from the top, the largest parts come with {first}"
        sums = {way: part.loc[part["way"] == way, "gain"].sum() for way in (ALONE, MISSED)}
        text += (
            f". Gains of the layers alone add up to {sums[ALONE]:+.3f}, gains after all others to {sums[MISSED]:+.3f}"
        )
        lines.append(f"- **{display_name(model)}**: {text}.")
    return "\n".join(lines)


def read_single_layers(cells: Cells) -> str:
    """Which single layers cost most and least, and whether the cost falls with height."""
    lines = []
    singles = single_layer_frame(cells)
    for (model, alpha), part in singles.groupby(["model", "alpha"], sort=False):
        costs = part.set_index("layer")["rise"]
        said = [f"layer {layer} ({costs[layer]:+.3f})" for layer in (costs.idxmax(), costs.idxmin())]
        finding = height(cells, model, alpha)
        removed = "queries and keys removed" if alpha else "the whole attention removed"
        lines.append(
            f"- **{display_name(model)}, {removed} (α = {alpha:g}).** The costliest layer is {said[0]}, the cheapest "
            f"{said[1]}. {finding.evidence[0].upper()}{finding.evidence[1:]}."
        )
    for model, part in singles.groupby("model", sort=False):
        costs = part.pivot_table(index="layer", columns="alpha", values="rise")
        fewer = (costs[0.0] < costs[1.0]).sum()
        lines.append(
            f"- **{display_name(model)}, one beside the other.** In {fewer} of {len(costs)} layers it costs less to "
            f"remove the whole attention than to remove queries and keys and leave α at 1."
        )
    return "\n".join(lines)


def nats(found: Interval) -> str:
    """A difference of log perplexities with its 95 % interval."""
    return f"{found.value:+.3f} [{found.low:+.3f}, {found.high:+.3f}]"


def _plain(rho: Interval) -> str:
    return f"{rho.value:+.2f} [{max(rho.low, -1):+.2f}, {min(rho.high, 1):+.2f}]"
