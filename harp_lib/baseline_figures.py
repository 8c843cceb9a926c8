"""Figures of notebook 04."""

from collections.abc import Iterator

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle
from matplotlib.ticker import MaxNLocator, MultipleLocator, PercentFormatter

from harp_lib import colours
from harp_lib.alpha_figures import USE, logarithmic_perplexity
from harp_lib.baseline_frames import (
    EQUAL_HEADS,
    EQUAL_PARAMETERS,
    ORDER,
    TITLE,
    group_frame,
    perplexity_frame,
    range_frame,
    references,
)
from harp_lib.experiments.alpha_study import HELD_OUT, SEARCHED
from harp_lib.measure.corpora import TITLES
from harp_lib.measure.models import display_name, slug
from harp_lib.methods import BASELINES, METHODS
from harp_lib.results import Cells

KEPT = "#ececec"
CEILING = 6  # times the larger reference: perplexities above are drawn there, with their value
LINES = list(zip(("-", "--", ":", "-.", "-", "--", ":"), "os^DvP*", strict=True))  # of ranges, the shortest first


def all_figures(cells: Cells) -> Iterator[tuple[str, Figure]]:
    """Every figure of the experiment, with its file name."""
    ranges, groups, perplexities = range_frame(cells), group_frame(cells), perplexity_frame(cells)
    for model in perplexities["model"].unique():
        yield f"baseline_ranges_{slug(model)}", layer_ranges(ranges, references(cells, model), model)
        yield f"baseline_groups_{slug(model)}", removed_groups(groups, model)
        yield f"baseline_perplexity_{slug(model)}", method_perplexities(perplexities, model)
        yield f"baseline_change_{slug(model)}", paired_changes(perplexities, model)


def layer_ranges(ranges: pd.DataFrame, reference: dict[str, float], model: str) -> Figure:
    """Perplexity against the first layer of the range, a panel for each method, a line for each length."""
    ranges = ranges[ranges["model"] == model]
    ceiling, known = CEILING * max(reference.values()), [*reference.values(), *ranges["perplexity"]]
    figure, axes = plt.subplots(1, len(BASELINES), figsize=(12, 4.4), sharex=True, sharey=True)
    for axis, method in zip(axes, BASELINES, strict=True):
        part, colour = ranges[ranges["method"] == method], colours.METHOD[method]
        for (style, marker), (layers, line) in zip(LINES, part.groupby("layers"), strict=False):
            shown = line["perplexity"].clip(upper=ceiling)
            look = {"linestyle": style, "marker": marker, "markerfacecolor": "white", "label": f"{layers} layers"}
            axis.plot(line["start"], shown, color=colour, **look)
            for row in line[line["perplexity"] > ceiling].itertuples():
                axis.annotate(
                    f"{row.perplexity:.0f} ↑",
                    (row.start, ceiling),
                    (5, -3),
                    textcoords="offset points",
                    fontsize="small",
                )
        best = part[part["tuned"]].iloc[0]
        axis.plot(best["start"], best["perplexity"], "o", color="none", markersize=15, markeredgecolor="black")
        for name, value in reference.items():
            axis.axhline(value, color=colours.METHOD[name], linewidth=1.2, zorder=0)
        axis.set(title=TITLE[method], xlabel="first layer of the range")
        axis.xaxis.set_major_locator(MaxNLocator(5, integer=True))
        axis.legend(loc="upper right", fontsize="small", ncols=2)
        axis.set_ylim(0.85 * min(known), 2 * min(ceiling, max(known)))  # room for the legend
        logarithmic_perplexity(axis, "y")
    axes[0].set_ylabel("perplexity per token (log scale)")
    handles = [Line2D([], [], color=colours.METHOD[name], label=TITLE[name]) for name in reference]
    ring = {"marker": "o", "markerfacecolor": "none", "markeredgecolor": "black", "markersize": 12, "linestyle": "none"}
    handles.append(Line2D([], [], label="tuned range", **ring))
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles))
    documents = ranges["documents"].max()
    title = f"{display_name(model)}: the same number of groups from different ranges, read on {documents} document"
    figure.suptitle(title + ("s" if documents > 1 else ""), x=0.01, ha="left")
    return figure


def removed_groups(groups: pd.DataFrame, model: str) -> Figure:
    """What each method removes: layers by key/value groups, and the FFN channels beside them."""
    groups = groups[groups["model"] == model]
    layers, width = groups["layer"].max() + 1, groups["group"].max() + 1
    figure, axes = plt.subplots(1, len(METHODS), figsize=(12, max(3.2, 0.13 * layers + 1.6)), sharey=True)
    for axis, method in zip(axes, METHODS, strict=True):
        part, colour = groups[groups["method"] == method], colours.METHOD[method]
        for row in part.itertuples():
            look = {"kept": {"facecolor": KEPT}, "removed": {"facecolor": colour}}.get(
                row.state, {"facecolor": "white", "hatch": "/////", "edgecolor": colour, "linewidth": 0}
            )
            axis.add_patch(Rectangle((row.group - 0.45, row.layer - 0.42), 0.9, 0.84, **look))
        axis.set(xlim=(-0.6, width - 0.4), ylim=(-0.7, layers - 0.3), xlabel="key/value group")
        axis.set_title(TITLE[method], color="black", fontsize="medium")
        axis.xaxis.set_major_locator(MultipleLocator(max(1, width // 4)))
        axis.yaxis.set_major_locator(MaxNLocator(7, integer=True))
        if part["channels"].any():
            _channel_bars(axis, part, width)
    axes[0].set_ylabel("layer index (0 is the bottom)")
    look = [
        Patch(facecolor=KEPT, label="kept"),
        Patch(facecolor="#404040", label="removed: Q, K, V and O"),
        Patch(
            facecolor="white", edgecolor="#404040", hatch="/////", linewidth=0, label="Q and K removed, V and O kept"
        ),
    ]
    figure.legend(handles=look, loc="outside lower center", ncols=len(look))
    gone = ((groups["state"] != "kept") & (groups["method"] == EQUAL_HEADS)).sum()
    title = f"{display_name(model)}: which {gone} of {layers * width} key/value groups each method takes"
    figure.suptitle(title, x=0.01, ha="left")
    return figure


def _channel_bars(axis: plt.Axes, part: pd.DataFrame, width: int) -> None:
    """The share of FFN channels that each layer loses, as bars in a panel of their own at the right."""
    bars = axis.inset_axes((1.04, 0, 0.5, 1), sharey=axis)
    share = part.drop_duplicates("layer")
    bars.barh(share["layer"], share["channels"], height=0.84, color=part["method"].map(colours.METHOD).iloc[0])
    bars.set_title("FFN", fontsize="small")
    bars.xaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    bars.xaxis.set_major_locator(MaxNLocator(2))
    bars.tick_params(axis="y", left=False, labelleft=False)
    bars.tick_params(axis="x", labelsize="x-small")
    bars.set_xlabel("channels\nremoved", fontsize="small")


def method_perplexities(perplexities: pd.DataFrame, model: str) -> Figure:
    """Perplexity of every method on searched and held-out text, with 95 % intervals over documents."""
    perplexities = perplexities[perplexities["model"] == model]
    corpora = list(perplexities["corpus"].unique())
    figure, axes = plt.subplots(1, len(corpora), figsize=(11, 4), sharex=True, sharey=True, squeeze=False)
    for axis, corpus in zip(axes[0], corpora, strict=True):
        for row in perplexities[perplexities["corpus"] == corpus].itertuples():
            _point(axis, (row.perplexity, row.low, row.high), ORDER.index(row.method), row.method, row.split)
        axis.set(title=TITLES[corpus], xlabel="perplexity per token (log scale)")
        axis.set_yticks(range(len(ORDER)), [TITLE[method] for method in ORDER])
        axis.grid(axis="y", linewidth=0.4)
        logarithmic_perplexity(axis, "x")
    axes[0, 0].invert_yaxis()
    _text_legend(figure)
    documents = perplexities["documents"].max()
    title = f"{display_name(model)}: perplexity and 95 % intervals over {documents} documents a text"
    figure.suptitle(title, x=0.01, ha="left")
    return figure


def paired_changes(perplexities: pd.DataFrame, model: str) -> Figure:
    """How many times HARP's perplexity a baseline has, paired by document: equal heads, then equal parameters."""
    perplexities = perplexities[(perplexities["model"] == model) & perplexities["method"].isin(BASELINES)]
    methods, corpora = list(BASELINES), list(perplexities["corpus"].unique())
    figure, axes = plt.subplots(2, len(corpora), figsize=(11, 6), sharex=True, sharey=True, squeeze=False)
    questions = {EQUAL_HEADS: "as many heads removed", EQUAL_PARAMETERS: "as many parameters removed"}
    for row, (reference, question) in zip(axes, questions.items(), strict=True):
        for axis, corpus in zip(row, corpora, strict=True):
            for part in perplexities[perplexities["corpus"] == corpus].to_dict("records"):
                ratio = tuple(1 + part[f"{reference} {end}"] for end in ("change", "low", "high"))
                _point(axis, ratio, methods.index(part["method"]), part["method"], part["split"])
            axis.axvline(1, color=colours.METHOD[reference], linewidth=1.5)
            axis.set_title(f"{TITLES[corpus]}: the reference is {TITLE[reference]},\n{question}", fontsize="small")
            axis.set_yticks(range(len(methods)), [TITLE[method] for method in methods])
            axis.grid(axis="y", linewidth=0.4)
    for axis in axes[-1]:
        logarithmic_perplexity(axis, "x")
        axis.set_xlabel("perplexity of the baseline, as a multiple of the reference's (log scale)", fontsize="small")
    axes[0, 0].invert_yaxis()
    _text_legend(figure)
    title = f"{display_name(model)}: baselines against HARP, paired by document"
    figure.suptitle(f"{title}\n95 % intervals; right of the line, HARP is better", x=0.01, ha="left")
    return figure


def _point(axis: plt.Axes, interval: tuple[float, float, float], row: int, method: str, split: str) -> None:
    """A value with its interval: filled and above its line on searched text, hollow and below it on held-out text."""
    (value, low, high), colour, filled = interval, colours.METHOD[method], split == SEARCHED
    axis.errorbar(
        value,
        row + (-0.15 if filled else 0.15),
        xerr=np.nan_to_num([[value - low], [high - value]]),
        color=colour,
        marker="o" if filled else "D",
        markerfacecolor=colour if filled else "white",
        capsize=2,
    )


def _text_legend(figure: Figure) -> None:
    marks = {SEARCHED: ("o", "black"), HELD_OUT: ("D", "white")}
    handles = [
        Line2D([], [], color="black", marker=marker, markerfacecolor=fill, linestyle="none", label=USE[split])
        for split, (marker, fill) in marks.items()
    ]
    figure.legend(handles=handles, loc="outside lower right", ncols=2)
