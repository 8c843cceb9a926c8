"""The kinds of plot: dots with intervals, lines and bars, each of a long frame.

Each row of a frame is a mark. Its interval is in the columns ``low`` and ``high``, or its standard
error in ``error``. Each value of the column ``panel`` has a panel of its own; by default these are
the models. A colour has one meaning in all figures.
"""

import math
import textwrap
import warnings
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn as sns
import seaborn.objects as so
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator

from harp_lib.names import CATALOGUE, display_name


class Look(NamedTuple):
    """How one kind of mark differs from the others.

    Hollow marks are HARP with an α that was not searched.
    """

    label: str
    colour: str
    marker: str = "o"
    line: str = "-"
    hollow: bool = False

    @property
    def face(self) -> str:
        """The colour inside a mark."""
        return "white" if self.hollow else self.colour


DENSE = "#4d4d4d"
HARP = CATALOGUE["harp"].colour
PAPER = "#949494"  # printed in the paper, beside ours
RANDOM = "#ca9161"  # an untrained twin
FIRST = "#3b1f6b"  # the first of two things that are neither methods nor models
SECOND = "#a58ac9"  # and the second
LOOKS = {
    "dense": Look("dense", DENSE, "s"),
    **{
        name: Look(method.title, method.colour, method.marker) for name, method in CATALOGUE.items()
    },
    "alpha-1": Look("HARP, α = 1", HARP, "o", "--", hollow=True),
    "alpha-0": Look("HARP, α = 0", HARP, "v", ":", hollow=True),
    "paper": Look("paper", PAPER),
}
"""The looks of the methods, of HARP without search, and of the paper's numbers."""

TITLE_SIZE = 10  # points
NOTE_SIZE = 9
WIDEST = 10  # inches: ticks of a wider figure are too small on a page
IN_FRONT = {"zorder": 3, "capstyle": "butt"}
MARK = so.Dots(pointsize=5.5, stroke=1, fillalpha=1, artist_kws=IN_FRONT)
INTERVAL = so.Range(linewidth=1.2)
INTERVAL_OF_BAR = so.Range(linewidth=1, color="black", artist_kws=IN_FRONT)
TOP_OF_BAR = so.Dash(linewidth=1.5, artist_kws=IN_FRONT | {"clip_on": False})
ASIDE = so.Dodge(by=["color"], empty="fill")  # looks that share a place


def use_style() -> None:
    """Set the look that all figures share."""
    rc = {
        "axes.spines.right": False,
        "axes.spines.top": False,
        "axes.titlelocation": "left",
        "axes.titlesize": "medium",
        "figure.constrained_layout.use": True,
        "lines.linewidth": 1.5,
        "legend.frameon": False,
        "savefig.dpi": 160,
        "svg.hashsalt": "harp",  # equal figures are equal files
    }
    sns.set_theme(context="notebook", style="ticks", palette="colorblind", font_scale=0.85, rc=rc)
    so.Plot.config.theme.update(plt.rcParams)


def panels(
    plot: so.Plot,
    frame: pd.DataFrame,
    panel="model",
    *,
    size=(4.4, 3.4),
    wrap=4,
    share=(True, True),
    x="",
    y="",
) -> Figure:
    """Draw a plot in a panel for each value of ``panel``, named if there are several.

    Where panels differ in their number of documents, each one names its own.

    Parameters
    ----------
    plot : seaborn.objects.Plot
        What is drawn in every panel.
    frame : DataFrame
        The rows that the plot draws, each with an index of its own.
    panel : str or list of str
        The column, or the columns, whose values have a panel each.
    size : (float, float)
        Width and height of a panel in inches; together they are as wide as ``WIDEST`` at most.
    wrap : int
        How many panels stand side by side.
    share : (bool, bool)
        Whether the panels share their x axis, and their y axis.
    x, y : str
        What the axes show, with units.

    Returns
    -------
    Figure
        Its attribute ``panels`` is a list of (axis, rows), ``numbers`` is the whole frame, and
        ``looks`` are those in the legend.
    """
    keys = [panel] if isinstance(panel, str) else panel
    groups = frame.groupby(keys, sort=False, dropna=False)
    parts = [part for _, part in groups]
    columns = min(wrap, len(parts))
    width, height = size
    if len(parts) == 1:
        width = width * 1.6
    width = min(width, WIDEST / columns)
    names = {}
    for number, name in enumerate(_panel_names(frame, parts, keys)):
        names[str(number)] = "\n".join(_wrapped(line, 9 * width) for line in name.splitlines())
    plot = plot.facet(groups.ngroup().astype(str), wrap=columns)
    plot = plot.share(x=share[0], y=share[1])
    plot = plot.label(x=_wrapped(x, 10.5 * width), y=y, title=names.get)
    num_rows = math.ceil(len(parts) / columns)
    drawn = plt.figure(figsize=(width * columns, height * num_rows + 0.5))
    with warnings.catch_warnings():
        # seaborn 0.13 passes a keyword that pandas 4 will not have.
        warnings.filterwarnings("ignore", "The copy keyword is deprecated")
        plot.on(drawn).plot()
    drawn.legends.clear()  # each layer has one; finish() adds one for all
    drawn.looks = []
    drawn.numbers = frame
    drawn.panels = list(zip(drawn.axes, parts, strict=True))
    return drawn


def _wrapped(text: str, length: float) -> str:
    """A text in lines of so many characters at most."""
    return textwrap.fill(text, int(length))


def _panel_names(frame: pd.DataFrame, parts: list[pd.DataFrame], keys: list[str]) -> list[str]:
    """What tells each panel from the others: its keys, and its number of documents."""
    varying_keys = [key for key in keys if len(frame[key].unique()) > 1]
    counts = [_documents(part) for part in parts]
    counts_differ = len(set(filter(None, counts))) > 1
    names = []
    for part, count in zip(parts, counts, strict=True):
        values = part.iloc[0]
        words = []
        for key in varying_keys:
            words.append(display_name(values[key]) if key == "model" else str(values[key]))
        name = ", ".join(words)
        if counts_differ and count:
            name += f" ({count} documents)"
        names.append(name)
    return names


def dots(
    frame: pd.DataFrame, by: str, hue: str, looks=LOOKS, *, value="value", **layout: Any
) -> Figure:
    """Draw a dot and its interval for each row, with the values of ``by`` from top to bottom.

    Where several looks share a place, they stand aside of each other and have a legend.
    """
    rows = _with_looks(frame, hue, looks, value)
    plot = (
        so.Plot(rows, x=value, y=by, color="look")
        .add(INTERVAL, ASIDE, xmin="low", xmax="high", orient="y")
        .add(MARK, ASIDE, fillcolor="look", marker="look", orient="y")
        .scale(y=so.Nominal())
    )
    drawn = _draw(plot, frame, rows, by, looks, layout, line="none")
    for axis, _ in drawn.panels:
        axis.grid(axis="y", linewidth=0.4)
    if not any(part.groupby(by)["look"].nunique().max() > 1 for _, part in drawn.panels):
        drawn.looks = []  # the name of its place says what a dot is
    return drawn


def points(frame: pd.DataFrame, by: str, hue: str, looks=LOOKS, **layout: Any) -> Figure:
    """Draw a point for each row along a numeric ``by``, without intervals."""
    rows = _with_looks(frame, hue, looks)
    plot = so.Plot(rows, x=by, y="value", color="look")
    plot = plot.add(MARK, fillcolor="look", marker="look")
    return _draw(plot, frame, rows, by, looks, layout, line="none")


def lines(
    frame: pd.DataFrame, by: str, hue: str, looks=LOOKS, *, bars=False, **layout: Any
) -> Figure:
    """Draw a line for each ``hue`` along a numeric ``by``, its interval as a band or as bars."""
    rows = _with_looks(frame, hue, looks)
    plot = (
        so.Plot(rows, x=by, y="value", color="look")
        .add(INTERVAL if bars else so.Band(), ymin="low", ymax="high", orient="x")
        .add(so.Line(), linestyle="look", orient="x")
        .add(MARK, fillcolor="look", marker="look")
    )
    return _draw(plot, frame, rows, by, looks, layout)


def bars(frame: pd.DataFrame, by: str, hue: str, looks=LOOKS, **layout: Any) -> Figure:
    """Draw bars for each value of ``by``, one for each ``hue`` side by side.

    A hollow look has an empty bar. The top of a bar is a stroke, so that a bar of height 0 shows.
    """
    rows = _with_looks(frame, hue, looks)
    plot = (
        so.Plot(rows, x=by, y="value", color="look")
        .add(so.Bar(alpha=1, edgewidth=1.2), ASIDE, fill="look", orient="x")
        .add(TOP_OF_BAR, ASIDE, orient="x")
        .add(INTERVAL_OF_BAR, ASIDE, ymin="low", ymax="high", orient="x")
    )
    return _draw(plot, frame, rows, by, looks, layout, line="none", marker="s")


def _with_looks(frame: pd.DataFrame, hue: str, looks: Mapping, value="value") -> pd.DataFrame:
    """The rows with the label of their look, and with the ends of their interval, if any."""
    unknown = set(frame[hue]) - set(looks)
    if unknown:
        names = ", ".join(map(str, unknown))
        raise ValueError(f"no look for {names}; looks: {', '.join(map(str, looks))}")
    rows = frame.reset_index(drop=True).astype({value: float})
    rows["look"] = [looks[key].label for key in rows[hue]]
    if "low" not in rows or rows["low"].isna().all():
        error = rows.get("error", np.nan)
        rows["low"] = rows[value] - error
        rows["high"] = rows[value] + error
    return rows.astype({"low": float, "high": float})


def _draw(
    plot: so.Plot,
    frame: pd.DataFrame,
    rows: pd.DataFrame,
    by: str,
    looks: Mapping,
    layout: dict[str, Any],
    **in_legend: str,
) -> Figure:
    """Draw a plot whose colours, marks and lines are those of the looks.

    If all values of ``by`` are whole numbers, so are the ticks of the x axis. ``in_legend`` is
    what the legend shows instead of the line or the marker of a look.
    """
    present = {look.label: look for look in looks.values() if (rows["look"] == look.label).any()}
    properties = {
        "color": {label: look.colour for label, look in present.items()},
        "fillcolor": {label: look.face for label, look in present.items()},
        "fill": {label: not look.hollow for label, look in present.items()},
        "marker": {label: look.marker for label, look in present.items()},
        "linestyle": {label: look.line for label, look in present.items()},
    }
    scales = {name: so.Nominal(values, order=list(present)) for name, values in properties.items()}
    drawn = panels(plot.scale(**scales), rows, **layout)
    drawn.numbers = frame
    drawn.looks = [look._replace(**in_legend) for look in present.values()]
    for axis, part in drawn.panels:
        if pd.api.types.is_numeric_dtype(part[by]) and (part[by] % 1 == 0).all():
            axis.xaxis.set_major_locator(MaxNLocator(9, integer=True, min_n_ticks=1))
    return drawn


def finish(
    drawn: Figure,
    title: str,
    note="{model}95 % intervals over {documents} documents",
    *,
    log="",
    level=None,
    ylim=None,
) -> Figure:
    """Add what stands around the panels: title, note and one legend.

    Parameters
    ----------
    drawn : Figure
        A figure of this module.
    title : str
        What is seen.
    note : str
        What the marks are; its fields are those of :func:`about`.
    log : str
        The axis that is logarithmic: "x", "y" or "".
    level : float, optional
        Where a line crosses the panels.
    ylim : (float, float), optional
        The ends of the y axis.
    """
    for axis, _ in drawn.panels:
        if log:
            _log_axis(axis, log)
    for axis, _ in drawn.panels:
        if level is not None:
            axis.axhline(level, color="black", linewidth=0.8)
        if ylim:
            axis.set_ylim(*ylim)
    _add_legend(drawn)
    _add_heading(drawn, title, about(drawn.numbers, note))
    return drawn


def _add_legend(drawn: Figure) -> None:
    """Put one legend beneath the panels: the looks, and other marks that have a label."""
    handles = {}
    for look in drawn.looks:
        style = {"color": look.colour, "linestyle": look.line, "marker": look.marker}
        handles[look.label] = Line2D([], [], markerfacecolor=look.face, **style)
    for axis, _ in drawn.panels:
        artists, names = axis.get_legend_handles_labels()
        handles.update(zip(names, artists, strict=True))
    if len(handles) < 2:
        return
    longest = max(len(name) for name in handles)
    fitting = max(1, int(drawn.get_size_inches()[0] / (0.08 * longest + 0.6)))
    num_rows = math.ceil(len(handles) / fitting)
    columns = math.ceil(len(handles) / num_rows)
    drawn.legend(handles.values(), handles, loc="outside lower center", ncols=columns)


def _add_heading(drawn: Figure, title: str, note: str) -> None:
    """Make a figure higher, and write title and note above its panels."""
    width, height = drawn.get_size_inches()
    title_lines = textwrap.wrap(title, int(11.5 * width))
    note_lines = textwrap.wrap(note, int(14 * width))
    under_title = 0.08 + 0.2 * len(title_lines)  # inches from the top, where the note begins
    whole = height + (0.2 * len(title_lines) + 0.18 * len(note_lines) + 0.08)
    drawn.set_size_inches(width, whole)
    left = 0.08 / width
    title_text = "\n".join(title_lines)
    note_text = "\n".join(note_lines)
    drawn.text(left, 1 - 0.06 / whole, title_text, va="top", weight="bold", size=TITLE_SIZE)
    drawn.text(left, 1 - under_title / whole, note_text, va="top", size=NOTE_SIZE, color="#444444")
    drawn.get_layout_engine().set(rect=(0, 0, 1, height / whole))


def _log_axis(axis: plt.Axes, which: str) -> None:
    """Make an axis logarithmic, with plain numbers as its ticks."""
    axis.set(**{f"{which}scale": "log"})
    low, high = getattr(axis, f"get_{which}lim")()
    if high > 60 * low:
        locator = LogLocator(subs=(1, 3), numticks=9)
    elif high > 8 * low:
        locator = LogLocator(subs=(1, 2, 5), numticks=9)
    elif high > 2 * low:
        locator = LogLocator(subs=(1, 1.5, 2, 3, 4, 5, 6, 8), numticks=9)
    else:
        locator = MaxNLocator(5)
    ticks = getattr(axis, f"{which}axis")
    ticks.set_major_locator(locator)
    ticks.set_major_formatter("{x:g}")
    ticks.set_minor_locator(NullLocator())


def with_paper(ours: pd.DataFrame, printed: pd.DataFrame) -> pd.DataFrame:
    """The paper's rows, then ours; ``source`` says which, and the paper's models are called so."""
    printed = printed.assign(model=printed["model"] + " (paper)", source="paper")
    return pd.concat([printed, ours.assign(source="ours")], ignore_index=True)


def about(frame: pd.DataFrame, note: str) -> str:
    """Fill in a note: ``{documents}`` is how many there are, ``{model}`` the model if it is one.

    With several models the panels name them, and ``{model}`` is empty.
    """
    models = set(frame.get("model", ()))
    model = f"{display_name(*models)}; " if len(models) == 1 else ""
    return note.format(model=model, documents=_documents(frame)).removesuffix("; ")


def _documents(frame: pd.DataFrame) -> str:
    """How many documents the rows are over: a number, or the lowest to the highest, or ""."""
    if "documents" not in frame or frame["documents"].isna().all():
        return ""
    return span(frame["documents"], ".0f")


def span(values: Iterable[float], form: str = ".2f") -> str:
    """One number, or the lowest and the highest of several, for a title or a sentence."""
    sign = "+" if form.startswith("+") else ""
    form = f"{sign}z{form.removeprefix('+')}"  # z: a number that is rounded to zero has no minus
    finite = sorted(value for value in values if np.isfinite(value))
    if not finite:
        return "–"
    lowest = format(finite[0], form).replace("-", "−")
    highest = format(finite[-1], form).replace("-", "−")
    return lowest if lowest == highest else f"{lowest} to {highest}"


def in_lines(methods: str) -> str:
    """The joined titles of equal plans, one a line, for the side of a panel."""
    return methods.replace(" = ", " =\n")
