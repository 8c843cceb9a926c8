"""Figures of notebook 02 that show a model."""

from collections.abc import Iterator

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, ScalarFormatter

from harp_lib import colours
from harp_lib.alpha_figures import logarithmic_perplexity
from harp_lib.experiments.norm_study import PLANS, branch_frame, plan_frame, ratio_frame, stream_frame
from harp_lib.measure.corpora import TITLES
from harp_lib.measure.models import display_name, slug
from harp_lib.results import Cells
from harp_lib.statistics import perplexity_estimate

# One colour for each method: the variants of HARP are told apart by line and marker.
MARKERS = {"dense": "s", "alpha-1": "v", "searched": "o", "norm-matching": "^", "reconstructing": "D", "constant": "x"}
STYLES = {"dense": "-", "alpha-1": ":", "searched": "-", "norm-matching": "--", "reconstructing": "-.", "constant": ":"}


def all_figures(cells: Cells) -> Iterator[tuple[str, Figure]]:
    """Every figure of the experiment, with its file name."""
    ratios, branches, streams, plans = ratio_frame(cells), branch_frame(cells), stream_frame(cells), plan_frame(cells)
    for model in ratios["model"].unique():
        yield f"value_norms_{slug(model)}", value_norms(ratios, model)
        yield f"branch_norms_{slug(model)}", branch_norms(branches, model)
        yield f"stream_norms_{slug(model)}", stream_norms(streams, plans, model)
        yield f"rescaling_alphas_{slug(model)}", rescaling_alphas(plans, cells, model)


def value_norms(ratios: pd.DataFrame, model: str) -> Figure:
    """‖ÂV‖/‖V‖ of every head and layer, mean over documents, as a map."""
    ratios = ratios[(ratios["model"] == model) & (ratios["tokens"] == "all tokens")]
    corpora = list(ratios["corpus"].unique())
    figure, axes = plt.subplots(1, len(corpora), figsize=(4.2 * len(corpora) + 1.2, 5.2), sharey=True, squeeze=False)
    for axis, corpus in zip(axes[0], corpora, strict=True):
        table = ratios[ratios["corpus"] == corpus].pivot_table(index="layer", columns="head", values="ratio")
        image = axis.imshow(table, origin="lower", aspect="auto", cmap="cividis", norm=LogNorm(0.05, 2))
        axis.set(title=TITLES[corpus], xlabel="head")
        axis.xaxis.set_major_locator(MaxNLocator(9, integer=True))
    axes[0, 0].set_ylabel("layer index")
    bar = figure.colorbar(image, ax=axes[0, -1], label="‖ÂV‖ / ‖V‖ (log scale)", extend="both")
    bar.locator, bar.formatter = plt.FixedLocator([0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1, 1.5, 2]), ScalarFormatter()
    bar.update_ticks()
    bar.minorticks_off()
    figure.suptitle(f"{display_name(model)}: what averaging does to the values of each head", x=0.01, ha="left")
    return figure


def branch_norms(branches: pd.DataFrame, model: str) -> Figure:
    """The attention branch with aggregation against without: its norm, and how much of it is the same."""
    branches = branches[branches["model"] == model]
    corpora = list(branches["corpus"].unique())
    figure, axes = plt.subplots(1, len(corpora), figsize=(4.6 * len(corpora) + 1, 4.2), sharey=True, squeeze=False)
    for axis, corpus in zip(axes[0], corpora, strict=True):
        part = branches[branches["corpus"] == corpus].groupby("layer")
        for column, colour, style, label in (
            ("ratio", colours.METHOD["dense"], "-", "norm with aggregation / norm without"),
            ("cosine", colours.FIRST, "--", "cosine between the two"),
        ):
            mean, error = part[column].mean(), part[column].sem().fillna(0)
            axis.plot(mean.index, mean, style, color=colour, marker=".", label=label)
            axis.fill_between(mean.index, mean - error, mean + error, color=colour, alpha=0.2, linewidth=0)
        axis.axhline(1, color="black", linewidth=0.8)
        axis.set(title=TITLES[corpus], xlabel="layer index", ylim=(min(0, branches["cosine"].min()), None))
        axis.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    axes[0, 0].set_ylabel("ratio or cosine, over all tokens but the first")
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
    figure.suptitle(f"{display_name(model)}: the attention branch with its aggregation and without", x=0.01, ha="left")
    return figure


def stream_norms(streams: pd.DataFrame, plans: pd.DataFrame, model: str) -> Figure:
    """Norm of the residual stream relative to the dense model, from the first pruned layer up."""
    streams, plans = streams[streams["model"] == model], plans[plans["model"] == model]
    pruned, corpus = plans["layer"].min(), plans["corpus"].iloc[0]
    figure, axes = plt.subplots(1, 2, figsize=(10.2, 4.3), sharey=True)
    for axis, tokens, title in zip(
        axes, ("all tokens", "without first"), ("all tokens", "all tokens but the first"), strict=True
    ):
        for plan in list(PLANS)[1:]:
            part = streams[(streams["plan"] == plan) & (streams["tokens"] == tokens) & (streams["depth"] >= pruned)]
            grouped = part.groupby("depth")["ratio"]
            axis.errorbar(
                grouped.mean().index,
                grouped.mean(),
                yerr=grouped.sem().fillna(0),
                color=colours.METHOD["harp"],
                linestyle=STYLES[plan],
                marker=MARKERS[plan],
                markersize=5,
                capsize=2,
                label=PLANS[plan],
            )
        axis.axhline(1, color=colours.METHOD["dense"], label=PLANS["dense"])
        axis.set(title=title, xlabel="depth: what enters this layer, or leaves the top")
        axis.xaxis.set_major_locator(MaxNLocator(8, integer=True))
    axes[0].set_ylabel("‖H‖ relative to the dense model")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    documents = streams["document"].nunique()
    title = (
        f"does α bring the norm back?\nMean ± standard error over {documents} held-out documents of {TITLES[corpus]}"
    )
    figure.suptitle(f"{display_name(model)}: {title}", x=0.01, ha="left")
    return figure


def rescaling_alphas(plans: pd.DataFrame, cells: Cells, model: str) -> Figure:
    """Each plan's alpha by layer, and the perplexity on held-out text that it leads to."""
    plans = plans[plans["model"] == model]
    figure, (left, right) = plt.subplots(1, 2, figsize=(10.5, 4.2), width_ratios=(1.3, 1))
    names = list(PLANS)
    for plan in names[1:]:
        part = plans[plans["plan"] == plan].sort_values("layer")
        left.plot(
            part["layer"],
            part["alpha"],
            color=colours.METHOD["harp"],
            linestyle=STYLES[plan],
            marker=MARKERS[plan],
            label=PLANS[plan],
        )
    left.set(xlabel="layer index", ylabel="α", ylim=(-0.03, 1.06), title="α by layer")
    left.xaxis.set_major_locator(MaxNLocator(8, integer=True))
    for row, plan in enumerate(names):
        result = cells[model, plan, "reading"]["result"]
        estimate = perplexity_estimate(result["nll"], result["tokens"])
        colour = colours.METHOD["dense" if plan == "dense" else "harp"]
        right.errorbar(
            estimate.value, row, xerr=np.nan_to_num(estimate.error), color=colour, marker=MARKERS[plan], capsize=2
        )
    right.set_yticks(range(len(names)), [PLANS[plan] for plan in names])
    right.invert_yaxis()
    right.grid(axis="y", linewidth=0.4)
    right.set(
        xlabel="perplexity per token (log scale)",
        title=f"{TITLES[result['corpus']]},\n{len(result['nll'])} held-out documents",
    )
    logarithmic_perplexity(right, "x")
    figure.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=5)
    figure.suptitle(
        f"{display_name(model)}: α that is searched, that keeps the norm, that keeps the branch", x=0.01, ha="left"
    )
    return figure
