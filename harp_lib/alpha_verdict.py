"""What the results of the alpha search say, in words that follow the numbers."""

import itertools

import numpy as np
import pandas as pd
from scipy.stats import rankdata, spearmanr

from harp_lib.alpha_figures import USE
from harp_lib.experiments.alpha_study import HELD_OUT
from harp_lib.measure.corpora import TITLES
from harp_lib.measure.models import display_name
from harp_lib.methods.alpha_search import is_unimodal
from harp_lib.published import published, published_alphas
from harp_lib.tables import interval


def read_curves(curves: pd.DataFrame) -> str:
    """Do the curves fall and then rise, and which layer costs the most?"""
    lines = []
    for (model, corpus), part in curves.groupby(["model", "corpus"], sort=False):
        layers = [group.sort_values("alpha")["perplexity"].tolist() for _, group in part.groupby("layer")]
        best = part.groupby("layer")["perplexity"].min().sort_index(ascending=False)
        step = (best / best.shift(1)).dropna()
        regular = sum(map(is_unimodal, layers))
        text = (
            f"- **{display_name(model)}, {TITLES[corpus]}.** {regular} of {len(layers)} curves fall and then rise. "
            f"After the top layer the best perplexity is {best.iloc[0]:.2f}, after all {best.iloc[-1]:.2f}"
        )
        if step.max() > 1:
            text += f"; of the layers below the top, layer {step.idxmax()} adds the most, a factor of {step.max():.2f}"
        lines.append(text + ".")
    return "\n".join(lines)


def read_alphas(alphas: pd.DataFrame) -> str:
    """Spearman's correlation of alpha and layer index, the paper's models and ours."""
    found = [(f"{model} (paper)", layers) for model, layers in published_alphas().items()]
    for (model, corpus), part in alphas.groupby(["model", "corpus"], sort=False):
        found.append((f"{display_name(model)}, {TITLES[corpus]}", dict(zip(part["layer"], part["alpha"], strict=True))))
    return "Rank correlation ρ of α with the layer index: " + "; ".join(f"{name} {trend(a)}" for name, a in found) + "."


def trend(alphas: dict[int, float]) -> str:
    """Spearman's ρ of alpha with the layer index, as text."""
    if len(set(alphas.values())) < 2:
        return "undefined (all α equal)"
    return f"{spearmanr(list(alphas), list(alphas.values())).statistic:+.2f}"


def read_transfer() -> str:
    """What the paper's two by two says, as relative changes."""
    word = published("alpha_robustness").set_index(["method", "task"])["value"]
    changes = [
        f"{100 * (word[f'HARP, alpha from {other}', own] / word[f'HARP, alpha from {own}', own] - 1):+.1f} % on {own}"
        for own, other in (("WikiText", "Pile10K"), ("Pile10K", "WikiText"))
    ]
    return f"In the paper, α from the other corpus changes word perplexity by {' and '.join(changes)}."


def verdict(perplexities: pd.DataFrame, alphas: pd.DataFrame, costs: pd.DataFrame) -> pd.DataFrame:
    """Each claim with what was measured and what follows: a table of claim, model, evidence, verdict."""
    rows = []
    for model, part in perplexities.groupby("model", sort=False):
        name = display_name(model)
        rows += _rescaling_rows(name, part, "alpha-1", "searching α beats leaving it at 1")
        rows += _rescaling_rows(name, part, "alpha-0", "searching α beats removing the branch (α = 0)")
        rows += _transfer_rows(name, part)
        rows += _price_rows(name, part)
    for (model, corpus), part in alphas.groupby(["model", "corpus"], sort=False):
        values = dict(zip(part["layer"], part["alpha"], strict=True))
        text = f"ρ = {trend(values)} over {len(values)} layers, searched on {TITLES[corpus]}"
        rows.append(("α increases with the layer index", display_name(model), text, _trend_verdict(values)))
    for cost in costs.dropna(subset="same alphas").to_dict("records"):
        text = f"{cost['times faster']:.1f} times faster, {cost['times fewer passes']:.1f} times fewer layer passes"
        agree = "holds, with the same α" if cost["same alphas"] else "does not hold: other α"
        rows.append(("hidden states can be reused", cost["model"], text, agree))
    return pd.DataFrame(rows, columns=["claim", "model", "evidence", "verdict"])


def _rescaling_rows(name: str, part: pd.DataFrame, plan: str, claim: str) -> list[tuple[str, str, str, str]]:
    rows = []
    for row in part[part["plan"] == plan].itertuples():
        change = interval(row.change, row.low, row.high)
        evidence = f"{TITLES[row.corpus]}, {USE[row.split]}: perplexity {change} against searched α"
        rows.append((claim, name, evidence, _sign(row.low, row.high)))
    return rows


def _transfer_rows(name: str, part: pd.DataFrame) -> list[tuple[str, str, str, str]]:
    """Alpha carries over if, on unseen text, another corpus' alpha costs less than leaving alpha at 1."""
    rows, claim = [], "α carries over to another corpus"
    held_out = part[part["split"] == HELD_OUT]
    unsearched = held_out[held_out["plan"] == "alpha-1"].set_index("corpus")
    for row in held_out[held_out["plan"].str.startswith("searched-on-")].itertuples():
        source = row.plan.removeprefix("searched-on-")
        if source != row.corpus:
            change, bar = interval(row.change, row.low, row.high), unsearched.loc[row.corpus]
            evidence = f"{TITLES[row.corpus]}, held-out text: {change} with α from {TITLES[source]}"
            verdict = "holds: costs less than α = 1" if row.high < bar["low"] else "too small to tell"
            rows.append((claim, name, evidence, "does not hold" if row.low > bar["high"] else verdict))
    return rows


def _price_rows(name: str, part: pd.DataFrame) -> list[tuple[str, str, str, str]]:
    rows, claim = [], "the pruned model keeps the dense perplexity"
    for row in part[(part["plan"] == "dense") & (part["split"] == HELD_OUT)].itertuples():
        # The frame has the dense model against the pruned one; the price is the other way round.
        change, low, high = (-value / (1 + value) for value in (row.change, row.high, row.low))
        evidence = f"{TITLES[row.corpus]}, held-out text: searched α {interval(change, low, high)} against dense"
        wording = {"holds": "does not hold", "does not hold": "holds, and gains"}  # a rise speaks against the claim
        rows.append((claim, name, evidence, wording.get(_sign(low, high), "too small to tell")))
    return rows


def _sign(low: float, high: float) -> str:
    """The 95 % interval of what the claim needs to be positive, as a verdict."""
    return "holds" if low > 0 else "does not hold" if high < 0 else "too small to tell"


def _trend_verdict(alphas: dict[int, float]) -> str:
    if len(set(alphas.values())) < 2:
        return "does not hold: all α are equal"
    layers, values = np.argsort(np.argsort(list(alphas))), rankdata(list(alphas.values()))
    if len(values) > 8:
        rising, falling = (spearmanr(layers, values, alternative=way).pvalue for way in ("greater", "less"))
    else:  # exactly: in how many orders of the same alphas do they rise, or fall, at least as much?
        rises = np.array(list(itertools.permutations(values))) @ layers
        rising, falling = (rises >= values @ layers).mean(), (rises <= values @ layers).mean()
    return "holds" if rising < 0.05 else "does not hold" if falling < 0.05 else "too small to tell"
