"""Figures of notebook 01 that show a model."""

from collections.abc import Iterator

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from harp_lib import colours
from harp_lib.experiments.similarity_study import (
    RANDOM,
    TRAINED,
    bound_frame,
    contraction_frame,
    growth_frame,
    head_frame,
    layer_frame,
)
from harp_lib.measure.corpora import TITLES
from harp_lib.measure.models import display_name, slug
from harp_lib.results import Cells

COLOURS = {TRAINED: colours.METHOD["dense"], RANDOM: colours.RANDOM}
LABELS = {TRAINED: "trained", RANDOM: "random weights"}


def all_figures(cells: Cells) -> Iterator[tuple[str, Figure]]:
    """Every figure of the experiment, with its file name."""
    layers, heads, factors, bounds = layer_frame(cells), head_frame(cells), contraction_frame(cells), bound_frame(cells)
    for model in layers["model"].unique():
        yield f"similarity_by_layer_{slug(model)}", similarity_by_layer(layers, model)
        yield f"block_influence_{slug(model)}", block_influence_by_layer(layers, model)
        yield f"attention_entropy_{slug(model)}", attention_entropy(heads, model)
        yield f"consensus_{slug(model)}", consensus(layers, heads, factors, bounds, model)
        yield f"value_gap_{slug(model)}", value_gap(layers, model)


def similarity_by_layer(layers: pd.DataFrame, model: str) -> Figure:
    """Sim(H) of what enters each layer, with and without the first token, trained and untrained."""
    figure, axes = _panels(layers, model)
    for axis, corpus in axes.items():
        for method in (TRAINED, RANDOM):
            part = _part(layers, model, corpus, method, "similarity")
            _line(axis, part, COLOURS[method], "-", f"{LABELS[method]}, all tokens")
            rest = _part(layers, model, corpus, method, "similarity without first").groupby("layer")["value"].mean()
            label = f"{LABELS[method]}, without the first token"
            axis.plot(rest.index, rest, "o", color=COLOURS[method], markerfacecolor="none", markersize=7, label=label)
        axis.axhline(1, color="black", linewidth=0.8)
        axis.set(ylim=(min(0, axis.get_ylim()[0]), 1.05), xlabel="layer index (the last point: what leaves the top)")
    next(iter(axes)).set_ylabel("Sim(H), average pairwise cosine")
    _legend(figure, axes)
    figure.suptitle(f"{display_name(model)}: are tokens more alike in higher layers?", x=0.01, ha="left")
    return figure


def block_influence_by_layer(layers: pd.DataFrame, model: str) -> Figure:
    """BI of each layer, trained and untrained, on a logarithmic axis."""
    figure, axes = _panels(layers, model)
    for axis, corpus in axes.items():
        for method in (TRAINED, RANDOM):
            part = _part(layers, model, corpus, method, "block influence")
            _line(axis, part, COLOURS[method], "-", f"{LABELS[method]}, whole layer")
            part = _part(layers, model, corpus, method, "attention influence")
            _line(axis, part, COLOURS[method], ":", f"{LABELS[method]}, attention alone")
        axis.set(yscale="log", xlabel="layer index")
    next(iter(axes)).set_ylabel("BI = 1 − cosine of a layer's\ninput and output (log scale)")
    _legend(figure, axes)
    figure.suptitle(f"{display_name(model)}: how far does each layer turn its tokens?", x=0.01, ha="left")
    return figure


def attention_entropy(heads: pd.DataFrame, model: str) -> Figure:
    """Normalised entropy of every head against Sim of its normalised input, one point a head, coloured by layer."""
    heads = heads[heads["model"] == model]
    means = (
        heads.groupby(["method", "corpus", "layer", "head"], sort=False)[["similarity", "entropy"]].mean().reset_index()
    )
    corpora = list(means["corpus"].unique())
    figure, axes = plt.subplots(1, len(corpora), figsize=(4.7 * len(corpora) + 1, 4.3), sharey=True, squeeze=False)
    for axis, corpus in zip(axes[0], corpora, strict=True):
        twin = means[(means["corpus"] == corpus) & (means["method"] == RANDOM)]
        own = means[(means["corpus"] == corpus) & (means["method"] == TRAINED)]
        axis.scatter(
            twin["similarity"],
            twin["entropy"],
            s=14,
            color=colours.RANDOM,
            marker="x",
            linewidth=0.8,
            label="random weights",
        )
        points = axis.scatter(own["similarity"], own["entropy"], s=18, c=own["layer"], cmap="viridis", label="trained")
        axis.axhline(1, color="black", linewidth=0.8)
        axis.set(title=TITLES[corpus], xlabel="Sim of the normalised input of the layer's heads", ylim=(-0.03, 1.05))
    axes[0, 0].set_ylabel("normalised entropy of attention")
    axes[0, 0].legend(loc="lower left", handlelength=1)
    bar = figure.colorbar(points, ax=axes[0, -1], label="layer index (trained)")
    bar.locator = MaxNLocator(6, integer=True)
    bar.update_ticks()
    figure.suptitle(f"{display_name(model)}: is attention more uniform where tokens are more alike?", x=0.01, ha="left")
    return figure


def consensus(
    layers: pd.DataFrame, heads: pd.DataFrame, factors: pd.DataFrame, bounds: pd.DataFrame, model: str
) -> Figure:
    """d_M through the layers, what attention can do to it and does, what a layer does, and Lemma 2's v."""
    figure, ((relative, attention), (growth, bound)) = plt.subplots(2, 2, figsize=(10.5, 7.4), sharex=True)
    corpus = layers["corpus"].iloc[0]
    grown = growth_frame(layers).rename(columns={"growth": "value"}).assign(quantity="growth")
    for method in (TRAINED, RANDOM):
        for rest, style, name in (("", "-", "all tokens"), (" without first", ":", "without the first token")):
            distance, norm = (_part(layers, model, corpus, method, q + rest) for q in ("distance", "norm"))
            part = distance.assign(value=distance["value"] / norm["value"].to_numpy())
            _line(relative, part, COLOURS[method], style, f"{LABELS[method]}, {name}")
        part = _part(grown, model, corpus, method, "growth")
        _line(growth, part, COLOURS[method], ":", f"{LABELS[method]}, without the first token")
    relative.set(ylabel="$d_M(H)$ / ‖H‖", ylim=(0, 1.05), title="Distance to identical rows")
    growth.axhline(1, color="black", linewidth=0.8)
    growth.set(xlabel="layer index", title="What a whole layer does", yscale="log")
    growth.set_ylabel("$d_M$ after / $d_M$ before (log scale)")

    for frame, column, colour, marker, label in (
        (factors, "factor", colours.FIRST, "x", "√λ: at most, over all H"),
        (heads[heads["method"] == TRAINED], "contraction", COLOURS[TRAINED], "o", "measured on its values"),
    ):
        own = frame[(frame["model"] == model) & (frame["corpus"] == corpus)]
        means = own.groupby(["layer", "head"])[column].mean().reset_index()
        attention.scatter(means["layer"], means[column], s=12, color=colour, marker=marker, linewidth=0.8, label=label)
    attention.axhline(1, color="black", linewidth=0.8)
    attention.set(ylabel="$d_M(ÂV)$ / $d_M(V)$, one point a head", title="What attention does")
    attention.set_ylim(0, 1.25 * attention.get_ylim()[1])  # room for the legend

    own = bounds[bounds["model"] == model]
    bound.plot(own["layer"], own["v"], color=colours.FIRST, marker=".", label="v as printed")
    bound.axhline(1, color="black", linewidth=0.8)
    bound.set(yscale="log", xlabel="layer index", ylabel="v (log scale)", title="Lemma 2's v, evaluated")
    for axis in (relative, attention, growth, bound):
        axis.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        axis.legend(fontsize="x-small")
    figure.suptitle(f"{display_name(model)}, {TITLES[corpus]}: do layers bring tokens together?", x=0.01, ha="left")
    return figure


def value_gap(layers: pd.DataFrame, model: str) -> Figure:
    """How far ÂV is from V, and what the layer's residual stream loses with queries and keys."""
    corpora = list(layers.loc[layers["model"] == model, "corpus"].unique())
    figure, axes = plt.subplots(2, len(corpora), figsize=(4.6 * len(corpora) + 1, 6.6), sharey="row", squeeze=False)
    for (above, below), corpus in zip(axes.T, corpora, strict=True):
        for method in (TRAINED, RANDOM):
            for axis, quantity, style, name in (
                (above, "value gap", "-", "‖ÂV − V‖ / ‖V‖"),
                (above, "value distance", ":", "$d_M(V)$ / ‖V‖"),
                (below, "branch gap", "-", "‖A − B‖ / ‖H‖"),
            ):
                part = _part(layers, model, corpus, method, quantity)
                _line(axis, part, COLOURS[method], style, f"{LABELS[method]}, {name}")
        above.set(title=TITLES[corpus], ylim=(0, None))
        below.set(yscale="log", xlabel="layer index")
        for axis in (above, below):
            axis.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    axes[0, 0].set_ylabel("values, relative to their norm")
    axes[1, 0].set_ylabel("attention branch, relative to\nthe residual stream (log scale)")
    for axis in axes[:, 0]:
        axis.legend(fontsize="x-small")
    figure.suptitle(f"{display_name(model)}: what does a layer lose with its queries and keys?", x=0.01, ha="left")
    return figure


def _panels(layers: pd.DataFrame, model: str) -> tuple[Figure, dict[plt.Axes, str]]:
    corpora = list(layers.loc[layers["model"] == model, "corpus"].unique())
    figure, axes = plt.subplots(1, len(corpora), figsize=(4.6 * len(corpora) + 1, 4.2), sharey=True, squeeze=False)
    for axis, corpus in zip(axes[0], corpora, strict=True):
        axis.set_title(TITLES[corpus])
        axis.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    return figure, dict(zip(axes[0], corpora, strict=True))


def _part(layers: pd.DataFrame, model: str, corpus: str, method: str, quantity: str) -> pd.DataFrame:
    wanted = (layers["model"] == model) & (layers["corpus"] == corpus)
    return layers[wanted & (layers["method"] == method) & (layers["quantity"] == quantity)]


def _line(axis: plt.Axes, part: pd.DataFrame, colour: str, style: str, label: str, marker: str = ".") -> None:
    """Mean over documents with a band of one standard error."""
    grouped = part.groupby("layer")["value"]
    mean, error = grouped.mean(), grouped.sem().fillna(0)
    axis.plot(mean.index, mean, style, color=colour, marker=marker, markersize=4, label=label)
    axis.fill_between(mean.index, mean - error, mean + error, color=colour, alpha=0.2, linewidth=0)


def _legend(figure: Figure, axes: dict[plt.Axes, str]) -> None:
    handles, labels = next(iter(axes)).get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2)
