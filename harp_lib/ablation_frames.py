"""The cells of notebook 06 as tidy frames: which layers, what each searched alpha gains, what one layer costs."""

from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import spearmanr

from harp_lib.experiments.ablation_study import GAIN, SINGLE, SINGLE_ALPHAS, STRATEGIES
from harp_lib.published import published_alphas, published_layers
from harp_lib.results import Cells
from harp_lib.statistics import Interval, mean_interval, paired_change, paired_log_change, perplexity_estimate

ORDER = ("dense", *STRATEGIES, "harp")  # of scores; "top" is HARP at alpha = 1, "harp" has its alpha searched
STEP, ALONE, MISSED, ALL = "step", "alone", "missed", "all"
PAPER_MODEL = "LLaMA3.1-8B"  # of the paper's ablations


def strategy_title(strategy: str, count: int) -> str:
    """As the paper writes it, with the number of layers: Top-8."""
    return f"{strategy.capitalize()}-{count}"


def selection_frame(cells: Cells) -> pd.DataFrame:
    """What each strategy makes of every layer: model, strategy, layer, score (nan where there is none), picked."""
    rows = []
    for (model, strategy, task), cell in cells.items():
        if task == "selection":
            result, total = cell["result"], cell["inputs"]["total"]
            scores = result["scores"] or [np.nan] * total
            rows += [(model, strategy, layer, scores[layer], layer in result["layers"]) for layer in range(total)]
    return pd.DataFrame(rows, columns=["model", "strategy", "layer", "score", "picked"])


def picked_layers(cells: Cells, model: str) -> dict[str, list[int]]:
    """The layers of each strategy, from the bottom up."""
    return {strategy: cells[model, strategy, "selection"]["result"]["layers"] for strategy in STRATEGIES}


def published_picks() -> tuple[dict[str, list[int]], int]:
    """The layers of each strategy in the paper, from the bottom up, and how many layers its model has."""
    top = sorted(published_alphas()[PAPER_MODEL])
    return {"bottom": list(range(len(top))), **published_layers(), "top": top}, max(top) + 1


def documents(cells: Cells, model: str, kind: str) -> list[dict[str, Any]]:
    """The cells of a model's documents, ``gain`` or ``single-layer``, in order."""
    found = [cell for (name, method, _), cell in cells.items() if (name, method) == (model, kind)]
    return sorted(found, key=lambda cell: cell["inputs"]["document"])


def _models(cells: Cells, kind: str) -> list[str]:
    return list(dict.fromkeys(model for model, method, _ in cells if method == kind))


class _Read:
    """Likelihoods of a model's documents by plan."""

    def __init__(self, cells: Cells, model: str) -> None:
        found = documents(cells, model, GAIN)
        self.searched = {int(layer): alpha for layer, alpha in found[0]["inputs"]["alphas"].items()}
        self.tokens = [cell["result"]["tokens"] for cell in found]
        self.nll = {plan: [cell["result"]["nll"][plan] for cell in found] for plan in found[0]["result"]["nll"]}

    def change(self, first: str, second: str) -> Interval:
        """How much higher perplexity is under the second plan, as a fraction."""
        return paired_change(self.nll[first], self.nll[second], self.tokens)

    def gain(self, before: str, after: str) -> Interval:
        """By how much log perplexity falls from one plan to the other."""
        return paired_log_change(self.nll[after], self.nll[before], self.tokens)


def cumulative_frame(cells: Cells) -> pd.DataFrame:
    """Perplexity with alpha searched in the k highest pruned layers and 1 in the others.

    Columns: model, searched (k; -1 is the dense model), layer (the lowest of the k), alpha (its own), perplexity,
    error, change, low, high (against alpha = 1 everywhere, paired by document), documents, tokens.
    """
    rows = []
    for model in _models(cells, GAIN):
        read = _Read(cells, model)
        order = [None, *sorted(read.searched, reverse=True)]
        plans = {-1: "dense"} | {k: f"top-{k}" for k in range(len(order))}
        for k, plan in plans.items():
            layer = order[max(k, 0)]
            estimate = perplexity_estimate(read.nll[plan], read.tokens)
            change = read.change("top-0", plan)
            counts = (len(read.tokens), sum(read.tokens))
            rows.append((model, k, layer, read.searched.get(layer), *estimate, *change, *counts))
    columns = ["model", "searched", "layer", "alpha", "perplexity", "error", "change", "low", "high"]
    return pd.DataFrame(rows, columns=[*columns, "documents", "tokens"])


def gain_frame(cells: Cells) -> pd.DataFrame:
    """What the searched alpha of each layer gains in log perplexity (nats per token), in three ways, and all together.

    ``step``: the layers above have their searched alpha already, those below have 1; these gains add up to that of
    ``all``. ``alone``: all other layers have 1. ``missed``: all other layers have their searched alpha.

    Columns: model, way, layer, alpha, gain, low, high (95 % interval, paired by document), share (of the gain of all),
    documents, tokens.
    """
    rows = []
    for model in _models(cells, GAIN):
        read = _Read(cells, model)
        order = sorted(read.searched, reverse=True)
        last = f"top-{len(order)}"
        together = read.gain("top-0", last)
        gains = [(ALL, None, together)]
        for k, layer in enumerate(order):
            gains.append((STEP, layer, read.gain(f"top-{k}", f"top-{k + 1}")))
            gains.append((ALONE, layer, read.gain("top-0", f"only-{layer}")))
            gains.append((MISSED, layer, read.gain(f"without-{layer}", last)))
        for way, layer, gain in gains:
            share = gain.value / together.value if together.value else np.nan
            counts = (len(read.tokens), sum(read.tokens))
            rows.append((model, way, layer, read.searched.get(layer), *gain, share, *counts))
    columns = ["model", "way", "layer", "alpha", "gain", "low", "high", "share", "documents", "tokens"]
    return pd.DataFrame(rows, columns=columns)


def single_layer_frame(cells: Cells) -> pd.DataFrame:
    """What it costs to make one layer value-only, all others being dense: the rise of log perplexity (nats per token).

    Columns: model, alpha (1 or 0), layer, rise, low, high (95 % interval, paired by document), pruned (whether HARP
    prunes the layer), documents, tokens.
    """
    rows = []
    for model in _models(cells, SINGLE):
        found = documents(cells, model, SINGLE)
        inputs, results = found[0]["inputs"], [cell["result"] for cell in found]
        dense, tokens = ([result[name] for result in results] for name in ("dense", "tokens"))
        for alpha in SINGLE_ALPHAS:
            by_layer = list(zip(*(result[f"{alpha:g}"] for result in results), strict=True))
            for layer, nll in enumerate(by_layer):
                rise = paired_log_change(dense, nll, tokens)
                pruned = layer >= len(by_layer) - inputs["num_layers"]
                rows.append((model, alpha, layer, *rise, pruned, len(tokens), sum(tokens)))
    columns = ["model", "alpha", "layer", "rise", "low", "high", "pruned", "documents", "tokens"]
    return pd.DataFrame(rows, columns=columns)


def height_correlation(cells: Cells, model: str, alpha: float) -> Interval:
    """Spearman's ρ of a single layer's cost with its index: the mean over documents and its 95 % interval."""
    rhos = []
    for cell in documents(cells, model, SINGLE):
        nll = cell["result"][f"{alpha:g}"]
        rhos.append(spearmanr(range(len(nll)), nll).statistic)
    return mean_interval(rhos)
