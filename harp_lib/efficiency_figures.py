"""Figures of notebook 08."""

from collections.abc import Iterator, Sequence

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator, PercentFormatter

from harp_lib import colours
from harp_lib.efficiency_frames import (
    MIB,
    PAPER_MODEL,
    TITLE,
    counted,
    decode_frame,
    is_the_papers,
    memory_frame,
    model_title,
    prefill_frame,
    published_frame,
    published_saved,
    share_frame,
    split_frame,
    variants_of,
)
from harp_lib.experiments.efficiency_variants import DENSE, FOLDED, HARP, THINNED, VARIANTS
from harp_lib.measure.models import slug
from harp_lib.results import Cells

COLOUR = colours.METHOD | {FOLDED: colours.HARP_FOLDED, THINNED: colours.THINNED}
MARK = dict(zip(VARIANTS, "os^D", strict=True))
SHIFT = dict(zip(VARIANTS, (0.93, 0.98, 1.03, 1.08), strict=True))  # of points at one length, so that all are seen
SIZE = dict(zip(VARIANTS, (5, 9, 7, 4), strict=True))  # where points may lie upon each other, unshifted
EDGE = {"causal": (":", "x"), "full": ("--", "+")}  # of the band of counted operations: line, mark of a lone length
PAPER_MARK = {DENSE: "P", HARP: "X"}
PART_COLOUR = {"attention": colours.FIRST, "projections": colours.SECOND, "ffn": "#e2e2e2"}
PART_TITLE = {"attention": "attention (QKᵀ and AV)", "projections": "Q, K, V and O projections", "ffn": "FFN"}
PAIRS_TITLE = {"full": "all N² query-key pairs counted", "causal": "visible query-key pairs counted"}
LEAST = 0.3  # of the axis of time saved: intervals may be far wider than what there is to see


def all_figures(cells: Cells) -> Iterator[tuple[str, Figure]]:
    """Every figure of the experiment, with its file name."""
    for model in counted(cells):
        yield f"prefill_time_{slug(model)}", prefill_time(cells, model)
        yield f"saved_vs_counted_{slug(model)}", saved_vs_counted(cells, model)
        yield f"attention_share_{slug(model)}", attention_share(cells, model)
        yield f"decode_speed_{slug(model)}", decode_speed(cells, model)
        yield f"memory_{slug(model)}", memory(cells, model)


def prefill_time(cells: Cells, model: str) -> Figure:
    """Seconds of a prefill against its length, and the share of the dense model's time that each variant saves."""
    frame = _of(prefill_frame(cells), model)
    if frame.empty:
        return _not_measured(cells, model, "prefill")
    figure, (left, right) = plt.subplots(1, 2, figsize=(12, 4.8))
    for variant, line in frame.groupby("variant", sort=False):
        _line(left, line, variant, "seconds", "low", "high", shifted=False)
        if variant != DENSE:
            _line(right, line, variant, "saved", "saved_low", "saved_high")
    seconds = frame["seconds"]
    if is_the_papers(cells, model):
        seconds = pd.concat([seconds, published_frame()["seconds"]])
        for row in published_frame().itertuples():
            left.errorbar(row.tokens, row.seconds, yerr=row.half_width, **_grey(row.variant))
    saved = published_saved()
    right.plot(saved.index, saved, **_grey(HARP))
    left.set(yscale="log", title="time t of a prefill", ylabel="seconds (log scale)")
    left.set_ylim(0.5 * seconds.min(), 2 * seconds.max())
    left.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    left.yaxis.set_minor_locator(NullLocator())
    left.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    _saved_axis(right, frame)
    right.set(title="time saved: 1 − t / t(dense);  speed-up: t(dense) / t", ylabel="time saved")
    speed = right.secondary_yaxis("right", functions=(_speed_up, _time_saved))
    speed.set_ylabel("speed-up")
    speed.yaxis.set_major_locator(MaxNLocator(6))
    speed.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.2f}×"))
    for axis in (left, right):
        _length_axis(axis, "tokens of the prefill (log scale)")
    handles = [*_handles(variants_of(cells, model)), _handle("HARP, the paper: H100", **_grey(HARP))]
    if is_the_papers(cells, model):
        handles.append(_handle("dense, the paper: H100", **_grey(DENSE)))
    else:
        handles[-1].set_label(f"HARP, the paper: {PAPER_MODEL}, H100")
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles))
    _title(figure, cells, model, frame, "prefill")
    return figure


def saved_vs_counted(cells: Cells, model: str) -> Figure:
    """The time that each variant saves beside the operations that it saves, a panel each."""
    frame = _of(prefill_frame(cells), model)
    if frame.empty:
        return _not_measured(cells, model, "time saved beside operations saved")
    pruned = [variant for variant in variants_of(cells, model) if variant != DENSE]
    figure, axes = plt.subplots(1, len(pruned), figsize=(12, 4.4), sharex=True, sharey=True, squeeze=False)
    lone = len(set(frame["tokens"])) == 1  # without a line to see
    for axis, variant in zip(axes[0], pruned, strict=True):
        line = frame[frame["variant"] == variant]
        band = {"color": COLOUR[variant], "alpha": 0.25, "linewidth": 0}
        axis.fill_between(line["tokens"], line["counted_causal"], line["counted_full"], **band)
        for pairs in EDGE:
            axis.plot(line["tokens"], line[f"counted_{pairs}"], color=COLOUR[variant], **_edge(pairs, lone))
        _line(axis, line, variant, "saved", "saved_low", "saved_high", joined=False, shifted=False)
        axis.set_title(TITLE[variant])
        _length_axis(axis, "tokens of the prefill (log scale)")
        _saved_axis(axis, frame)
    axes[0, 0].set_ylabel("saved, share of the dense model's")
    handles = [
        Line2D([], [], color="black", marker="o", linestyle="none", label="time, measured, 95 % interval"),
        _handle(f"operations, {PAIRS_TITLE['full']}", color="black", **_edge("full", lone)),
        _handle(f"operations, {PAIRS_TITLE['causal']}", color="black", **_edge("causal", lone)),
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles))
    _title(figure, cells, model, frame, "time saved beside operations saved")
    return figure


def attention_share(cells: Cells, model: str) -> Figure:
    """The counted share of each part of the dense layers against length, with the measured share of attention."""
    shares, split, shape = _of(share_frame(cells), model), _of(split_frame(cells), model), counted(cells)[model]
    measured = split[(split["variant"] == DENSE) & (split["part"] == "attention")]
    own = split[(split["variant"] == DENSE) & (split["part"] == "ffn")]
    figure, axes = plt.subplots(1, 2, figsize=(12, 4.8), sharex=True, sharey=True)
    for axis, (pairs, title) in zip(axes, PAIRS_TITLE.items(), strict=True):
        table = shares[shares["pairs"] == pairs].pivot_table(index="tokens", columns="part", values="share")
        axis.stackplot(table.index, [table[part] for part in PART_COLOUR], colors=PART_COLOUR.values())
        reach = _reach(measured["share"], measured["share_low"], measured["share_high"])
        look = {"color": "black", "markerfacecolor": "white", "marker": "o", "linestyle": "none", "capsize": 3}
        axis.errorbar(measured["tokens"], measured["share"], yerr=reach, **look)
        edge = {"color": "black", "markerfacecolor": "white", "marker": "^", "linestyle": "none", "capsize": 3}
        reach = _reach(own["share"], own["share_low"], own["share_high"])[::-1]
        axis.errorbar(own["tokens"], 1 - own["share"], yerr=reach, **edge)
        paper = shape["intermediate_size"]
        axis.axvline(paper, color=colours.PUBLISHED, linestyle="--", linewidth=2)
        if meeting := shape["overtaking"][pairs]["attention"]:
            axis.axvline(meeting, color="black", linewidth=1.5)
        axis.set_title(title)
        axis.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
        _length_axis(axis, "tokens of the prefill (log scale)")
        axis.set(xlim=(table.index.min(), table.index.max()), ylim=(0, 1))
    axes[0].set_ylabel("share of operations, or of time")
    handles = [Patch(facecolor=PART_COLOUR[part], label=PART_TITLE[part]) for part in reversed(PART_COLOUR)]
    handles += [
        Line2D([], [], color="black", linewidth=1.5, label="counted: QKᵀ and AV overtake the FFN"),
        Line2D([], [], color=colours.PUBLISHED, linestyle="--", linewidth=2, label="the paper: at $N = d_{ff}$"),
        _handle("time measured in attention", **look),
        _handle("time measured in attention and projections", **edge),
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=3)
    _title(figure, cells, model, measured, "dense model, where operations and time go")
    return figure


def decode_speed(cells: Cells, model: str) -> Figure:
    """New tokens a second against what the cache holds, and the time saved beside the bytes that are not moved."""
    frame = _of(decode_frame(cells), model)
    if frame.empty:
        return _not_measured(cells, model, "decoding")
    figure, (left, right) = plt.subplots(1, 2, figsize=(12, 4.8))
    for variant, line in frame.groupby("variant", sort=False):
        _line(left, line, variant, "speed", "low", "high", shifted=False)
        if variant != DENSE:
            _line(right, line, variant, "saved", "saved_low", "saved_high", joined=False)
            right.plot(line["tokens"], line["bytes_saved"], color=COLOUR[variant], linestyle="--", linewidth=1.2)
    left.set(title="speed of decoding", ylabel="new tokens per second")
    left.set_ylim(0, 1.25 * frame["speed"].max())
    _saved_axis(right, frame)
    right.set(title="time saved for each new token", ylabel="saved, share of the dense model's")
    for axis in (left, right):
        _length_axis(axis, "tokens in the cache (log scale)")
    bytes_line = Line2D(
        [], [], color="black", linestyle="--", linewidth=1.2, label="bytes not moved: weights and cache"
    )
    handles = [*_handles(variants_of(cells, model)), bytes_line]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles))
    _title(figure, cells, model, frame, "decoding")
    return figure


def memory(cells: Cells, model: str) -> Figure:
    """The KV cache, measured and counted, and the peak of a prefill beyond the weights."""
    frame = _of(memory_frame(cells), model)
    if frame.empty:
        return _not_measured(cells, model, "memory")
    figure, (left, right) = plt.subplots(1, 2, figsize=(12, 4.8))
    for variant, line in frame.groupby("variant", sort=False):
        look = {"color": COLOUR[variant], "marker": MARK[variant], "markersize": SIZE[variant]}
        left.plot(line["tokens"], line["cache_counted"] / MIB, color=COLOUR[variant], linewidth=1.2)
        left.plot(line["tokens"], line["cache"] / MIB, linestyle="none", **look)
        right.plot(line["tokens"], line["peak"] / MIB, **look)
    left.set(title="KV cache: points measured, lines counted", ylabel="MiB (log scale)")
    right.set(title="peak of a prefill beyond the weights, cache included", ylabel="MiB (log scale)")
    for axis in (left, right):
        if axis is right and frame["peak"].isna().all():
            axis.text(0.5, 0.5, "not measured", transform=axis.transAxes, ha="center")
            axis.set_axis_off()
            continue
        _length_axis(axis, "tokens of the prefill (log scale)")
        axis.set_yscale("log", base=2)
        axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    handles = _handles(variants_of(cells, model))
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles))
    figure.suptitle(f"{model_title(cells, model)}: memory", x=0.01, ha="left")
    return figure


def _of(frame: pd.DataFrame, model: str) -> pd.DataFrame:
    return frame[frame["model"] == model]


def _line(
    axis: plt.Axes,
    line: pd.DataFrame,
    variant: str,
    value: str,
    low: str,
    high: str,
    joined: bool = True,
    shifted: bool = True,
) -> None:
    """Values of a variant with their intervals; hollow where something was timed once and has none.

    On a slope, a shift to the side would look like a lead: there, points lie upon each other and differ in size.
    """
    once = line["repetitions"] == 1
    places = line["tokens"] * (SHIFT[variant] if shifted else 1)
    size = SIZE[variant] if joined and not shifted else 5
    if joined:
        axis.plot(places, line[value], color=COLOUR[variant], linewidth=1)
    for part, fill in ((line[~once], COLOUR[variant]), (line[once], "white")):
        look = {"color": COLOUR[variant], "marker": MARK[variant], "markersize": size, "markerfacecolor": fill}
        reach = _reach(part[value], part[low], part[high])
        axis.errorbar(places[part.index], part[value], yerr=reach, linestyle="none", capsize=2, **look)


def _reach(value: pd.Series, low: pd.Series, high: pd.Series) -> np.ndarray:
    return np.nan_to_num([value - low, high - value])


def _length_axis(axis: plt.Axes, label: str) -> None:
    axis.set_xscale("log", base=2)
    axis.margins(x=0.06)
    axis.xaxis.set_major_locator(LogLocator(base=2, numticks=12))
    axis.xaxis.set_minor_locator(NullLocator())
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axis.tick_params(axis="x", labelsize="small", rotation=30)
    axis.set_xlabel(label)


def _speed_up(saved: np.ndarray) -> np.ndarray:
    return 1 / np.maximum(1 - saved, 1e-9)


def _time_saved(speed_up: np.ndarray) -> np.ndarray:
    return 1 - 1 / np.maximum(speed_up, 1e-9)


def _saved_axis(axis: plt.Axes, frame: pd.DataFrame) -> None:
    """An axis of shares of time around zero; the ends of intervals may be cut off, the points are not."""
    values = frame["saved"].dropna()
    axis.axhline(0, color=COLOUR[DENSE], linewidth=1.2, zorder=0)
    axis.set_ylim(min(-0.05, *(values - 0.05)), min(0.95, max(LEAST, *(values + 0.05))))
    axis.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))


def _edge(pairs: str, lone: bool) -> dict:
    """How an edge of the band is drawn; with a mark where there is one length only."""
    style, mark = EDGE[pairs]
    return {"linestyle": style, "linewidth": 1.2, "marker": mark if lone else "", "markersize": 9}


def _grey(variant: str) -> dict:
    return {"color": colours.PUBLISHED, "marker": PAPER_MARK[variant], "markersize": 8, "linestyle": "none"}


def _handles(variants: Sequence[str]) -> list[Line2D]:
    return [_handle(TITLE[variant], color=COLOUR[variant], marker=MARK[variant]) for variant in variants]


def _handle(label: str, **look: object) -> Line2D:
    look.pop("capsize", None)
    return Line2D([], [], label=label, **look)


def _title(figure: Figure, cells: Cells, model: str, frame: pd.DataFrame, what: str) -> None:
    title, often = f"{model_title(cells, model)}: {what}", sorted(frame["repetitions"].unique())
    if often:
        times = f"{often[0]} to {often[-1]} repetitions" if len(often) > 1 else f"{often[0]} repetitions"
        title += f"\n95 % intervals, {times}" + ("; hollow points were timed once" if often[0] == 1 else "")
    figure.suptitle(title, x=0.01, ha="left")


def _not_measured(cells: Cells, model: str, what: str) -> Figure:
    figure = plt.figure(figsize=(12, 1.5))
    figure.suptitle(f"{model_title(cells, model)}: {what}: not measured", x=0.01, ha="left")
    return figure
