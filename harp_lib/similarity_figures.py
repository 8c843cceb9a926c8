"""Figures of notebook 01 that show a model."""

from collections.abc import Iterator

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from . import colours
from .corpora import TITLES
from .models import display_name, slug
from .results import Cells
from .similarity_study import RANDOM, TRAINED, bound_frame, contraction_frame, head_frame, layer_frame

COLOURS = {TRAINED: colours.METHOD["dense"], RANDOM: colours.RANDOM}
LABELS = {TRAINED: "trained", RANDOM: "random weights"}


def all_figures(cells: Cells) -> Iterator[tuple[str, Figure]]:
    """Every figure of the experiment, with its file name."""
    layers, heads, factors, bounds = layer_frame(cells), head_frame(cells), contraction_frame(cells), bound_frame(cells)
    for model in layers["model"].unique():
        yield f"similarity_by_layer_{slug(model)}", similarity_by_layer(layers, model)
        yield f"block_influence_{slug(model)}", block_influence_by_layer(layers, model)
        yield f"attention_entropy_{slug(model)}", attention_entropy(heads, model)
        yield f"consensus_{slug(model)}", consensus(layers, factors, bounds, model)
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
            _line(axis, part, COLOURS[method], "-", LABELS[method], marker="o")
        axis.set(yscale="log", xlabel="layer index")
    next(iter(axes)).set_ylabel("BI = 1 − cosine of a layer's\ninput and output (log scale)")
    _legend(figure, axes)
    figure.suptitle(f"{display_name(model)}: how far does each layer turn its tokens?", x=0.01, ha="left")
    return figure


def attention_entropy(heads: pd.DataFrame, model: str) -> Figure:
    """Relative entropy of every head against Sim of its normalised input, one point a head, coloured by layer."""
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
    axes[0, 0].set_ylabel("attention entropy relative to uniform")
    axes[0, 0].legend(loc="lower left", handlelength=1)
    bar = figure.colorbar(points, ax=axes[0, -1], label="layer index (trained)")
    bar.locator = MaxNLocator(6, integer=True)
    bar.update_ticks()
    figure.suptitle(f"{display_name(model)}: is attention more uniform where tokens are more alike?", x=0.01, ha="left")
    return figure


def consensus(layers: pd.DataFrame, factors: pd.DataFrame, bounds: pd.DataFrame, model: str) -> Figure:
    """d_M through the layers; how far each head's attention may spread tokens; Lemma 2's v and what is measured."""
    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(12.5, 4.1))
    corpus = layers["corpus"].iloc[0]
    grey = COLOURS[TRAINED]
    for quantity, base, style, name in (
        ("distance", "norm", "-", "all tokens"),
        ("distance without first", "norm without first", ":", "without the first token"),
    ):
        for method in (TRAINED, RANDOM):
            distance, norm = (_part(layers, model, corpus, method, q) for q in (quantity, base))
            _line(
                left,
                distance.assign(value=distance["value"] / norm["value"].to_numpy()),
                COLOURS[method],
                style,
                f"{LABELS[method]}, {name}",
            )
    left.set(xlabel="layer index", ylabel="$d_M(H)$ / ‖H‖", ylim=(0, 1.05), title="Distance to identical rows")
    left.legend(fontsize="x-small")
    own = factors[(factors["model"] == model) & (factors["corpus"] == corpus)]
    means = own.groupby(["layer", "head"])["factor"].mean().reset_index()
    middle.scatter(means["layer"], means["factor"], s=10, color=grey, label="one head")
    middle.axhline(1, color="black", linewidth=0.8)
    middle.set(xlabel="layer index", ylabel="√λ, largest $d_M(ÂH)$ / $d_M(H)$", title="What attention can do to it")
    middle.legend(fontsize="x-small")
    own = bounds[bounds["model"] == model]
    right.plot(own["layer"], own["v"], color=colours.FULL, marker=".", label="bound v of Lemma 2")
    right.plot(own["layer"], own["growth"], color=grey, marker=".", label="measured, one text")
    right.axhline(1, color="black", linewidth=0.8)
    right.set(
        yscale="log",
        xlabel="layer index",
        ylabel="$d_M$ after / $d_M$ before (log scale)",
        title="What a whole layer does",
    )
    right.legend(fontsize="x-small")
    for axis in (left, middle, right):
        axis.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    figure.suptitle(f"{display_name(model)}, {TITLES[corpus]}: do layers bring tokens together?", x=0.01, ha="left")
    return figure


def value_gap(layers: pd.DataFrame, model: str) -> Figure:
    """How far ÂV is from V, and how far V is from identical rows, relative to ‖V‖."""
    figure, axes = _panels(layers, model)
    for axis, corpus in axes.items():
        for method in (TRAINED, RANDOM):
            for quantity, style, name in (
                ("value gap", "-", "‖ÂV − V‖ / ‖V‖"),
                ("value distance", ":", "$d_M(V)$ / ‖V‖"),
            ):
                part = _part(layers, model, corpus, method, quantity)
                _line(axis, part, COLOURS[method], style, f"{LABELS[method]}, {name}")
        axis.set(ylim=(0, None), xlabel="layer index")
    next(iter(axes)).set_ylabel("relative to the norm of the values")
    _legend(figure, axes)
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
