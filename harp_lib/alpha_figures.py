"""Figures of the alpha search."""

import textwrap
from collections.abc import Iterator

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from harp_lib import colours
from harp_lib.experiments.alpha_study import HELD_OUT, SEARCHED, alpha_frame, curve_frame, perplexity_frame
from harp_lib.measure.corpora import TITLES
from harp_lib.measure.models import display_name, slug
from harp_lib.published import published_alphas
from harp_lib.results import Cells

USE = {SEARCHED: "searched text", HELD_OUT: "held-out text"}


def all_figures(cells: Cells) -> Iterator[tuple[str, Figure]]:
    """Every figure of the experiment, with its file name."""
    curves, perplexities = curve_frame(cells), perplexity_frame(cells)
    for model in curves["model"].unique():
        yield f"alpha_curves_{slug(model)}", alpha_curves(curves, model)
    yield "alpha_by_layer", alpha_by_layer(alpha_frame(cells))
    for model in perplexities["model"].unique():
        yield f"alpha_perplexity_{slug(model)}", alpha_perplexities(perplexities, model)


def plan_label(plan: str) -> str:
    """What a figure or table calls a plan of this experiment."""
    fixed = {"dense": "dense", "alpha-1": "HARP, α = 1", "alpha-0": "HARP, α = 0"}
    return fixed.get(plan) or f"HARP, α from {TITLES[plan.removeprefix('searched-on-')]}"


def alpha_curves(curves: pd.DataFrame, model: str) -> Figure:
    """Perplexity against alpha, one line for each searched layer, one panel for each corpus.

    Layers above a line's layer already have their best alpha, layers below are dense.
    """
    curves = curves[curves["model"] == model]
    corpora, layers = list(curves["corpus"].unique()), sorted(curves["layer"].unique(), reverse=True)
    shades = dict(zip(layers, plt.get_cmap("viridis")(np.linspace(0.05, 0.85, len(layers))), strict=True))
    figure, axes = plt.subplots(1, len(corpora), figsize=(4.6 * len(corpora) + 1, 4.2), sharey=True, squeeze=False)
    for axis, corpus in zip(axes[0], corpora, strict=True):
        for layer in layers:
            curve = curves[(curves["corpus"] == corpus) & (curves["layer"] == layer)].sort_values("alpha")
            if curve.empty:
                continue
            axis.plot(curve["alpha"], curve["perplexity"], color=shades[layer], marker=".", label=str(layer))
            best = curve.loc[curve["perplexity"].idxmin()]
            axis.plot(
                best["alpha"], best["perplexity"], "o", color=shades[layer], markersize=9, markeredgecolor="black"
            )
        axis.set(title=TITLES[corpus], xlabel="α of the layer", xticks=np.linspace(0, 1, 6))
        logarithmic_perplexity(axis, "y")
    axes[0, 0].set_ylabel("perplexity per token (log scale)")
    handles, labels = axes[0, 0].get_legend_handles_labels()
    labels[0] += " (top)"
    figure.legend(handles, labels, title="searched layer", loc="outside right center")
    figure.suptitle(f"{display_name(model)}: perplexity while α is searched, best value circled", x=0.01, ha="left")
    return figure


def alpha_by_layer(alphas: pd.DataFrame) -> Figure:
    """Searched alpha against layer index: the paper's figure, from its numbers, and then ours."""
    panels = [(model, layers, colours.PUBLISHED, "paper: WikiText-2") for model, layers in published_alphas().items()]
    for (model, corpus), part in alphas.groupby(["model", "corpus"], sort=False):
        values = dict(zip(part["layer"], part["alpha"], strict=True))
        panels.append((display_name(model), values, colours.METHOD["harp"], f"ours: {TITLES[corpus]}"))
    columns = 4
    rows = -(-len(panels) // columns)
    figure, axes = plt.subplots(rows, columns, figsize=(11.5, 2.5 * rows + 0.6), sharey=True, squeeze=False)
    for axis, (model, values, colour, source) in zip(axes.flat, panels, strict=False):
        axis.bar(list(values), list(values.values()), color=colour, width=0.75)
        for layer, alpha in values.items():
            axis.annotate(
                f"{alpha:g}", (layer, alpha), (0, 2), textcoords="offset points", ha="center", fontsize="x-small"
            )
        axis.set_title("\n".join([*textwrap.wrap(model, 26), source]), fontsize="small")
        axis.set(ylim=(0, 1.1), xlabel="layer index")
        axis.xaxis.set_major_locator(MaxNLocator(4, integer=True))
    for axis in axes[:, 0]:
        axis.set_ylabel("searched α")
    for axis in axes.flat[len(panels) :]:
        axis.set_visible(False)
    figure.suptitle("Searched α by layer: the paper's numbers in grey, ours in blue", x=0.01, ha="left")
    return figure


def alpha_perplexities(perplexities: pd.DataFrame, model: str) -> Figure:
    """Perplexity of the dense model and of each choice of alpha, on searched and held-out text of both corpora."""
    perplexities = perplexities[perplexities["model"] == model]
    corpora = list(perplexities["corpus"].unique())
    plans = list(perplexities["plan"].unique())
    figure, axes = plt.subplots(
        1,
        len(corpora),
        figsize=(5 * len(corpora) + 1, 0.42 * len(plans) + 1.6),
        sharex=True,
        sharey=True,
        squeeze=False,
    )
    for axis, corpus in zip(axes[0], corpora, strict=True):
        for split, offset in ((SEARCHED, -0.13), (HELD_OUT, 0.13)):
            part = perplexities[(perplexities["corpus"] == corpus) & (perplexities["split"] == split)].set_index("plan")
            for row, plan in enumerate(plans):
                colour = colours.METHOD["dense" if plan == "dense" else "harp"]
                axis.errorbar(
                    part.loc[plan, "perplexity"],
                    row + offset,
                    xerr=part.loc[plan, "error"],
                    color=colour,
                    marker="o" if split == SEARCHED else "D",
                    markerfacecolor=colour if split == SEARCHED else "white",
                    linestyle="none",
                    capsize=2,
                    label=USE[split] if row == 1 else None,
                )
        axis.set(title=TITLES[corpus], xlabel="perplexity per token (log scale)")
        axis.set_yticks(range(len(plans)), [plan_label(plan) for plan in plans])
        axis.grid(axis="y", linewidth=0.4)
        logarithmic_perplexity(axis, "x")
    axes[0, 0].invert_yaxis()
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside lower right", ncols=2)
    documents = "–".join(map(str, sorted({perplexities["documents"].min(), perplexities["documents"].max()})))
    title = f"{display_name(model)}: perplexity ± standard error over {documents} documents a text"
    figure.suptitle(title, x=0.01, ha="left")
    return figure


def logarithmic_perplexity(axis: plt.Axes, which: str) -> None:
    """A logarithmic axis whose ticks are plain numbers."""
    getattr(axis, f"set_{which}scale")("log")
    along = getattr(axis, f"{which}axis")
    low, high = getattr(axis, f"get_{which}lim")()
    steps = (1, 2, 3, 5) if high > 10 * low else (1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8)
    along.set_major_locator(LogLocator(subs=steps, numticks=9))
    along.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    along.set_minor_locator(NullLocator())
