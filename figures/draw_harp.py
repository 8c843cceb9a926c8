"""Draw what HARP does to a decoder.

    python figures/draw_harp.py [FILE]

The picture is an SVG file, by default harp.svg beside this script.
"""

import sys
from pathlib import Path

import matplotlib.pyplot as plt
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Circle, FancyArrowPatch, FancyBboxPatch, Polygon

INK = "#333333"
STAYS = "#ffffff"  # what the pruned layer keeps
GOES = "#e6dff0"  # queries, keys and what only they need
GHOST = "#6b6b6b"  # outlines of what is gone
DENSE_COLOUR = "#4d4d4d"  # as in every figure
HARP_COLOUR = "#0173b2"

# All lengths are in the picture's units. Boxes:
HEIGHT = 4.6
WIDE = 27
NARROW = 7.6
# Values, keys and queries, to the left and right of the middle of a layer:
VALUES = -9.7
KEYS = 0
QUERIES = 9.7
# Heights of what is in a layer:
NORM = 9.5
PROJECTIONS = 16.7
CACHE = 23.9
ATTENTION = 31.1
OUTPUT = 38.3
SUM_1 = 43.6
FFN = 51.2
SUM_2 = 56.5


def draw(file: Path) -> None:
    """Draw the picture as SVG, the same bytes each time and on every machine."""
    plt.rcdefaults()
    own = {"font.sans-serif": ["DejaVu Sans"], "svg.hashsalt": "harp"}
    sns.set_theme(context="notebook", style="ticks", palette="colorblind", font_scale=0.9, rc=own)
    figure = harp_in_a_picture()
    figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None})
    plt.close(figure)


def harp_in_a_picture() -> Figure:
    """A dense layer, the pruned model, and a value-only layer side by side (paper, Section 2.3)."""
    figure = plt.figure(figsize=(11.8, 6.9), layout="none")
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, 118), ylim=(0, 69), aspect="equal")
    axes.set_axis_off()
    _model(axes, 59, (2, 42.5), (75.5, 116))
    _dense_layer(axes, 18.5, 39)
    _value_only_layer(axes, 92, 112.5)
    return figure


def _model(
    axes: Axes, middle: float, left: tuple[float, float], right: tuple[float, float]
) -> None:
    """The decoder's layers between two frames, in which one layer of each kind is enlarged."""
    _frame(axes, left, DENSE_COLOUR)
    _frame(axes, right, HARP_COLOUR)
    bottoms = [8 + 5.8 * number for number in range(8)]
    for number, bottom in enumerate(bottoms):
        is_pruned = number >= 5
        text = "attention"
        colour = DENSE_COLOUR
        if is_pruned:
            text = "value-only, α"
            colour = HARP_COLOUR
        if number == 1:
            _enlarge(axes, middle - 9, bottom, left[1], colour)
        if number == 6:
            _enlarge(axes, middle + 9, bottom, right[0], colour)
        _box(axes, middle, bottom + HEIGHT / 2, text, 18, face=colour, ink="white")
    _arrow(axes, (middle, 4.2), (middle, bottoms[0]))
    _arrow(axes, (middle, bottoms[-1] + HEIGHT), (middle, 57.6))
    axes.text(middle, 1.6, "tokens", ha="center", color=INK, fontsize=10)
    axes.text(middle, 58.6, "next token", ha="center", color=INK, fontsize=10)
    _title(axes, middle, "The pruned model", "the top layers lose queries and keys")


def _frame(axes: Axes, span: tuple[float, float], colour: str) -> None:
    """The frame around an enlarged layer."""
    left, right = span
    box = FancyBboxPatch((left, 2), right - left, 59.2, boxstyle="round,pad=0,rounding_size=1.2")
    box.set(facecolor=_pale(colour), edgecolor=colour, linewidth=1)
    axes.add_patch(box)


def _enlarge(axes: Axes, edge: float, bottom: float, frame: float, colour: str) -> None:
    """A pale wedge from the edge of a layer in the model to the frame that shows it enlarged."""
    corners = [(edge, bottom), (edge, bottom + HEIGHT), (frame, 60.6), (frame, 2.6)]
    axes.add_patch(Polygon(corners, facecolor=_pale(colour), edgecolor="none", zorder=0))


def _dense_layer(axes: Axes, middle: float, stream: float) -> None:
    """A layer with attention; the residual stream runs on the right."""
    values = middle + VALUES
    keys = middle + KEYS
    queries = middle + QUERIES
    _box(axes, middle, NORM, "norm")
    for column, text, face in (
        (values, "$W_V$", STAYS),
        (keys, "$W_K$", GOES),
        (queries, "$W_Q$", GOES),
    ):
        _box(axes, column, PROJECTIONS, text, NARROW, face=face)
        _arrow(axes, (column, NORM + HEIGHT / 2), (column, PROJECTIONS - HEIGHT / 2))
    _box(axes, (values + keys) / 2, CACHE, "KV cache", 17.3, face=GOES)
    for column, box in ((values, CACHE), (keys, CACHE), (queries, ATTENTION)):
        _arrow(axes, (column, PROJECTIONS + HEIGHT / 2), (column, box - HEIGHT / 2))
    for column in (values, keys):
        _arrow(axes, (column, CACHE + HEIGHT / 2), (column, ATTENTION - HEIGHT / 2))
    _box(axes, middle, ATTENTION, "attention over all tokens so far", face=GOES)
    _arrow(axes, (middle, ATTENTION + HEIGHT / 2), (middle, OUTPUT - HEIGHT / 2))
    _output_and_stream(axes, middle, stream)
    _stream_label(axes, stream)
    _title(axes, middle + 3.75, "A layer as it is", r"$H + \mathrm{Attention}(H)$")


def _value_only_layer(axes: Axes, middle: float, stream: float) -> None:
    """A layer without queries, keys and attention, whose branch is scaled by alpha."""
    values = middle + VALUES
    keys = middle + KEYS
    queries = middle + QUERIES
    ghost = {"face": "none", "ink": GHOST, "style": "dashed"}
    _box(axes, middle, NORM, "norm")
    _box(axes, values, PROJECTIONS, "$W_V$", NARROW)
    _arrow(axes, (values, NORM + HEIGHT / 2), (values, PROJECTIONS - HEIGHT / 2))
    _box(axes, keys, PROJECTIONS, "$W_K$", NARROW, **ghost)
    _box(axes, queries, PROJECTIONS, "$W_Q$", NARROW, **ghost)
    _arrow(axes, (values, PROJECTIONS + HEIGHT / 2), (values, OUTPUT - HEIGHT / 2))
    _box(
        axes,
        (keys + queries) / 2,
        (CACHE + ATTENTION) / 2,
        "no attention,\nnothing cached",
        17.3,
        ATTENTION - CACHE + HEIGHT,
        **ghost,
    )
    _output_and_stream(axes, middle, stream)
    _circle(axes, middle + 13, SUM_1, "α", HARP_COLOUR, "white", radius=1.9)
    _stream_label(axes, stream)
    _title(axes, middle + 3.75, "A value-only layer", r"$H + \alpha\, H\, W_V W_O$")


def _output_and_stream(axes: Axes, middle: float, stream: float) -> None:
    """What both kinds of layer have: output projection, FFN, and the stream they are added to."""
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


def _stream_label(axes: Axes, stream: float) -> None:
    axes.text(stream + 1.7, 4.2, "$H$", ha="center", va="center", color=INK, fontsize=11)


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
    edge = ink
    if ink == "white":
        edge = INK
    box.set(facecolor=face, edgecolor=edge, linewidth=1.2, linestyle=style, zorder=2)
    axes.add_patch(box)
    axes.text(x, y, text, ha="center", va="center", color=ink, fontsize=11, zorder=3)


def _circle(
    axes: Axes, x: float, y: float, text: str, face: str, ink: str, radius: float = 1.4
) -> None:
    axes.add_patch(Circle((x, y), radius, facecolor=face, edgecolor=INK, linewidth=1.2, zorder=3))
    axes.text(x, y, text, ha="center", va="center_baseline", color=ink, fontsize=12, zorder=4)


def _line(axes: Axes, start: tuple[float, float], end: tuple[float, float]) -> None:
    x = (start[0], end[0])
    y = (start[1], end[1])
    axes.plot(x, y, color=INK, linewidth=1.3, solid_capstyle="round", zorder=1)


def _arrow(axes: Axes, start: tuple[float, float], end: tuple[float, float]) -> None:
    arrow = FancyArrowPatch(
        start,
        end,
        arrowstyle="-|>",
        mutation_scale=10,
        shrinkA=0,
        shrinkB=0,
        color=INK,
        linewidth=1.3,
        zorder=1,
    )
    axes.add_patch(arrow)


def _pale(colour: str) -> tuple[float, float, float]:
    """A little of a colour on white; no transparency, so that overlapping patches look like one."""
    return tuple(0.92 + 0.08 * part for part in to_rgb(colour))


if __name__ == "__main__":
    svg = Path(__file__).with_name("harp.svg")
    if len(sys.argv) > 1:
        svg = Path(sys.argv[1])
    draw(svg)
