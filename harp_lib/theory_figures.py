"""Figures of notebooks 01 and 02 that need no model: synthetic sweeps, and counted FLOPs."""

from collections.abc import Iterator

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from harp_lib import colours
from harp_lib.accounting import paper_configs
from harp_lib.experiments.theory_study import theory_frame
from harp_lib.accounting import layer_flops, overtaking_length
from harp_lib.results import Cells
from harp_lib.theory.synthetic import TOKENS

MASKS = {"full": (colours.FIRST, "-"), "causal": (colours.SECOND, "--")}


def all_figures(cells: Cells) -> Iterator[tuple[str, Figure]]:
    """Every figure that needs no model, with its file name."""
    yield "uniformity", uniformity(theory_frame(cells, "uniformity-sweep"))
    yield "norm_change", norm_change(theory_frame(cells, "norm-sweep"))
    yield "attention_overtakes_ffn", attention_overtakes_ffn()


def uniformity(sweep: pd.DataFrame) -> Figure:
    """Normalised entropy of random heads while Sim(H) → 1: equal and unequal lengths, with and without positions."""
    figure, axes = plt.subplots(1, 2, figsize=(9.5, 4.2), sharey=True)
    for axis, equal in zip(axes, (True, False), strict=True):
        for rotary, colour, style, label in (
            (False, colours.FIRST, "-", "no positions"),
            (True, colours.SECOND, "--", "rotary positions"),
        ):
            part = sweep[(sweep["equal lengths"] == equal) & (sweep["rotary"] == rotary)].groupby("spread")
            x, entropy = 1 - part["similarity"].mean(), part["entropy"]
            axis.plot(x, entropy.mean(), style, color=colour, marker=".", label=label)
            axis.fill_between(x, entropy.quantile(0.05), entropy.quantile(0.95), color=colour, alpha=0.2, linewidth=0)
        axis.axhline(1, color="black", linewidth=0.8, label="uniform")
        axis.set(xscale="log", ylim=(0, 1.05), xlabel="1 − Sim(H) (log scale): tokens more alike to the right")
        axis.invert_xaxis()
        axis.set_title("rows of equal length" if equal else "rows of different length")
    axes[0].set_ylabel("normalised entropy of attention")
    axes[0].legend(loc="lower right")
    draws = sweep["draw"].nunique()
    figure.suptitle(f"Does Sim → 1 make attention uniform? Mean and 90 % of {draws} random heads", x=0.01, ha="left")
    return figure


def norm_change(sweep: pd.DataFrame) -> Figure:
    """‖ÂH‖/‖H‖ from one-hot rows to uniform ones, for three kinds of rows of H."""
    kinds = list(sweep["rows"].unique())
    figure, axes = plt.subplots(1, len(kinds), figsize=(3.9 * len(kinds), 4.3), sharey=True)
    for axis, kind in zip(axes, kinds, strict=True):
        for mask, (colour, style) in MASKS.items():
            part = sweep[(sweep["rows"] == kind) & (sweep["mask"] == mask)].groupby("temperature")
            x, ratio = part["entropy"].mean(), part["ratio"]
            axis.plot(x, ratio.mean(), style, color=colour, marker=".", label=f"{mask} attention")
            axis.fill_between(x, ratio.quantile(0.05), ratio.quantile(0.95), color=colour, alpha=0.2, linewidth=0)
        axis.axhline(1, color="black", linewidth=0.8, label="permutations, whatever H is")
        axis.axhline(TOKENS**-0.5, color="black", linewidth=0.8, linestyle=":", label=f"1/√N, N = {TOKENS}")
        axis.set(xlabel="normalised entropy of attention", title=f"rows of H: {kind}")
    axes[0].set(ylabel="‖ÂH‖ / ‖H‖", ylim=(0, None))
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
    draws = sweep["draw"].nunique()
    title = f"What averaging does to the norm, from one-hot rows to uniform ones: mean and 90 % of {draws} draws"
    figure.suptitle(title, x=0.01, ha="left")
    return figure


def attention_overtakes_ffn() -> Figure:
    """FLOPs a token of one model's attention relative to its FFNs, against length, for the paper's models."""
    configs = paper_configs()
    figure, axes = plt.subplots(1, len(configs), figsize=(12.5, 3.9), sharey=True)
    lengths = np.unique(np.logspace(10, 18, 49, base=2).astype(int))
    for axis, (model, config) in zip(axes, configs.items(), strict=True):
        for mask, (colour, style) in MASKS.items():
            counts = [
                [layer_flops(config, n, layer, mask == "causal") for layer in range(config.num_hidden_layers)]
                for n in lengths.tolist()
            ]
            share = [sum(c.attention for c in layers) / sum(c.ffn for c in layers) for layers in counts]
            axis.plot(lengths, share, style, color=colour, label="full square" if mask == "full" else "visible pairs")
            axis.plot(overtaking_length(config, mask == "causal"), 1, "o", color=colour, markeredgecolor="black")
        axis.axhline(1, color="black", linewidth=0.8)
        axis.axvline(config.intermediate_size, color="black", linewidth=0.8, linestyle=":", label="N = d_ff (paper)")
        axis.axvspan(config.max_position_embeddings, lengths[-1], color="black", alpha=0.08, label="beyond the context")
        axis.set(xscale="log", yscale="log", title=model, xlabel="tokens N (log scale)")
        axis.set_xticks([2**10, 2**12, 2**14, 2**16, 2**18])
        axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value / 1024:.0f}k"))
        axis.xaxis.set_minor_locator(plt.NullLocator())
    axes[0].set_ylabel("FLOPs of attention / FLOPs of the FFN")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
    figure.suptitle(
        "Where attention overtakes the FFN, counted: scores and weighted average, prefill of N tokens",
        x=0.01,
        ha="left",
    )
    return figure
