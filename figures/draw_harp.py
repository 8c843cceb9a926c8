"""Draws harp.svg beside this file, what HARP does to a decoder: ``python figures/draw_harp.py
[FILE]``.
"""

import sys
from pathlib import Path

import matplotlib.pyplot as plt
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Circle, FancyArrowPatch, FancyBboxPatch, Polygon

INK, STAYS, GHOST = "#333333", "#ffffff", "#6b6b6b"
KEPT, PRUNED = "#4d4d4d", "#0173b2"  # as in every figure: dense, HARP
GOES = "#e6dff0"  # queries, keys and what only they need
HEIGHT, WIDE, NARROW = 4.6, 27, 7.6  # of boxes, in the picture's units
COLUMNS = (-9.7, 0, 9.7)  # values, keys, queries: to the left and right of the middle of a layer
NORM, PROJECTIONS, CACHE, ATTENTION, OUTPUT, FFN = (
    9.5,
    16.7,
    23.9,
    31.1,
    38.3,
    51.2,
)  # heights in the picture
SUM_1, SUM_2 = 43.6, 56.5
FORMULAS = (r"$H + \mathrm{Attention}(H)$", r"$H + \alpha\, H\, W_V W_O$")


def draw(file: Path) -> None:
    """Draw the picture as SVG, the same bytes each time."""
    sns.set_theme(context="notebook", style="ticks", palette="colorblind", font_scale=0.9)
    plt.rcParams["svg.hashsalt"] = "harp"
    figure = harp_in_a_picture()
    figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None})
    plt.close(figure)


def harp_in_a_picture() -> Figure:
    """A layer as it is, the pruned model, and a value-only layer (paper, Section 2.3), side by
    side.
    """
    figure = plt.figure(figsize=(11.8, 6.9), layout="none")
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, 118), ylim=(0, 69), aspect="equal")
    axes.set_axis_off()
    _stack(axes, 59, (2, 42.5), (75.5, 116))
    _layer(axes, 18.5, 39, pruned=False)
    _layer(axes, 92, 112.5, pruned=True)
    return figure


def _stack(
    axes: Axes, middle: float, left: tuple[float, float], right: tuple[float, float]
) -> None:
    """The decoder's layers between two frames that show one of each kind, enlarged."""
    frames = {False: (left, KEPT), True: (right, PRUNED)}
    for span, colour in frames.values():
        box = FancyBboxPatch(
            (span[0], 2), span[1] - span[0], 59.2, boxstyle="round,pad=0,rounding_size=1.2"
        )
        box.set(facecolor=_pale(colour), edgecolor=colour, linewidth=1)
        axes.add_patch(box)
    bottoms = [8 + 5.8 * number for number in range(8)]
    for bottom in bottoms:
        pruned = bottom >= bottoms[-3]
        colour = frames[pruned][1]
        if bottom in (bottoms[1], bottoms[-2]):  # these two are the enlarged ones
            edge, frame = (middle + 9, right[0]) if pruned else (middle - 9, left[1])
            corners = [(edge, bottom), (edge, bottom + HEIGHT), (frame, 60.6), (frame, 2.6)]
            axes.add_patch(Polygon(corners, facecolor=_pale(colour), edgecolor="none", zorder=0))
        text = "value-only, α" if pruned else "attention"
        _box(axes, middle, bottom + HEIGHT / 2, text, 18, face=colour, ink="white")
    _arrow(axes, (middle, 4.2), (middle, bottoms[0]))
    _arrow(axes, (middle, bottoms[-1] + HEIGHT), (middle, 57.6))
    axes.text(middle, 1.6, "tokens", ha="center", color=INK, fontsize=10)
    axes.text(middle, 58.6, "next token", ha="center", color=INK, fontsize=10)
    _title(axes, middle, "The pruned model", "the top layers lose queries and keys")


def _layer(axes: Axes, middle: float, stream: float, pruned: bool) -> None:
    """One decoder layer, from below: the residual stream on the right, what is added to it on the
    left.
    """
    values, keys, queries = (middle + column for column in COLUMNS)
    ghost = {"face": "none", "ink": GHOST, "style": "dashed"} if pruned else {"face": GOES}
    _box(axes, middle, NORM, "norm")
    for column, name, look in ((values, "V", {}), (keys, "K", ghost), (queries, "Q", ghost)):
        _box(axes, column, PROJECTIONS, f"$W_{name}$", NARROW, **look)
        if name == "V" or not pruned:
            _arrow(axes, (column, NORM + HEIGHT / 2), (column, PROJECTIONS - HEIGHT / 2))
    above = PROJECTIONS + HEIGHT / 2
    if pruned:
        _arrow(axes, (values, above), (values, OUTPUT - HEIGHT / 2))
        gone, height = (keys + queries) / 2, ATTENTION - CACHE + HEIGHT
        _box(
            axes,
            gone,
            (CACHE + ATTENTION) / 2,
            "no attention,\nnothing cached",
            17.3,
            height,
            **ghost,
        )
    else:
        _box(axes, (values + keys) / 2, CACHE, "KV cache", 17.3, **ghost)
        for column, top in ((values, CACHE), (keys, CACHE), (queries, ATTENTION)):
            _arrow(axes, (column, above), (column, top - HEIGHT / 2))
        for column in (values, keys):
            _arrow(axes, (column, CACHE + HEIGHT / 2), (column, ATTENTION - HEIGHT / 2))
        _box(axes, middle, ATTENTION, "attention over all tokens so far", **ghost)
        _arrow(axes, (middle, ATTENTION + HEIGHT / 2), (middle, OUTPUT - HEIGHT / 2))
    _box(axes, middle, OUTPUT, "$W_O$")
    _box(axes, middle, FFN, "norm, FFN")
    _arrow(axes, (stream, 4.2), (stream, 60))
    for start, box in ((NORM - 4.2, NORM), (FFN - 4.2, FFN)):  # from the stream to below a box
        _line(axes, (stream, start), (middle, start))
        _arrow(axes, (middle, start), (middle, box - HEIGHT / 2))
    for box, end in ((OUTPUT, SUM_1), (FFN, SUM_2)):  # from the top of a box back to the stream
        _line(axes, (middle, box + HEIGHT / 2), (middle, end))
        _arrow(axes, (middle, end), (stream - 1.4, end))
        _circle(axes, stream, end, "+", STAYS, INK)
    if pruned:
        _circle(axes, middle + 13, SUM_1, "α", PRUNED, "white", radius=1.9)
    axes.text(stream + 1.7, 4.2, "$H$", ha="center", va="center", color=INK, fontsize=11)
    _title(
        axes,
        middle + 3.75,
        "A value-only layer" if pruned else "A layer as it is",
        FORMULAS[pruned],
    )


def _title(axes: Axes, x: float, title: str, below: str) -> None:
    axes.text(x, 66, title, ha="center", color=INK, fontsize=13, weight="bold")
    axes.text(x, 62.7, below, ha="center", color=INK, fontsize=11)


def _box(
    axes: Axes,
    x: float,
    y: float,
    text: str,
    width: float = WIDE,
    height: float = HEIGHT,
    *,
    face: str = STAYS,
    ink: str = INK,
    style: str = "solid",
) -> None:
    """A labelled box around a point."""
    box = FancyBboxPatch(
        (x - width / 2, y - height / 2), width, height, boxstyle="round,pad=0,rounding_size=0.8"
    )
    box.set(
        facecolor=face,
        edgecolor=INK if ink == "white" else ink,
        linewidth=1.2,
        linestyle=style,
        zorder=2,
    )
    axes.add_patch(box)
    axes.text(x, y, text, ha="center", va="center", color=ink, fontsize=11, zorder=3)


def _circle(
    axes: Axes, x: float, y: float, text: str, face: str, ink: str, radius: float = 1.4
) -> None:
    axes.add_patch(Circle((x, y), radius, facecolor=face, edgecolor=INK, linewidth=1.2, zorder=3))
    axes.text(x, y, text, ha="center", va="center_baseline", color=ink, fontsize=12, zorder=4)


def _line(axes: Axes, start: tuple[float, float], end: tuple[float, float]) -> None:
    axes.plot(
        *zip(start, end, strict=True), color=INK, linewidth=1.3, solid_capstyle="round", zorder=1
    )


def _arrow(axes: Axes, start: tuple[float, float], end: tuple[float, float]) -> None:
    look = {
        "arrowstyle": "-|>",
        "mutation_scale": 10,
        "shrinkA": 0,
        "shrinkB": 0,
        "color": INK,
        "linewidth": 1.3,
    }
    axes.add_patch(FancyArrowPatch(start, end, zorder=1, **look))


def _pale(colour: str) -> tuple[float, float, float]:
    """A little of a colour on white; no transparency, so that overlapping patches look like one."""
    return tuple(0.92 + 0.08 * part for part in to_rgb(colour))


if __name__ == "__main__":
    draw(Path(sys.argv[1]) if sys.argv[1:] else Path(__file__).with_name("harp.svg"))
