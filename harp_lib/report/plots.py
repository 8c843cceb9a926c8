"""The kinds of plot: dots with intervals, lines and bars, each of a long frame.

Each row of a frame is a mark. Its interval is in the columns ``low`` and ``high``, or its standard
error in ``error``. Each value of the column ``panel`` has a panel of its own; by default these are
the models. A colour has one meaning in all figures.
"""

import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.figure import Figure
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


class Marks(NamedTuple):
    """The marks of one look in one panel."""

    axis: plt.Axes
    rows: pd.DataFrame  # in the order in which they stand along the axis
    look: Look
    at: pd.Series  # where they stand along the axis
    aside: float  # how many steps from the middle of all looks of the panel
    num_looks: int  # of the panel


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


def panels(
    frame: pd.DataFrame, panel="model", *, size=(4.4, 3.4), wrap=4, share=(True, True), x="", y=""
) -> Figure:
    """Draw an empty panel for each value of ``panel``, named if there are several.

    Where panels differ in their number of documents, each one names its own.

    Parameters
    ----------
    frame : DataFrame
        The rows that are drawn.
    panel : str or list of str
        The column, or the columns, whose values have a panel each.
    size : (float, float)
        Width and height of a panel in inches.
    wrap : int
        How many panels stand side by side.
    share : (bool, bool)
        Whether the panels share their x axis, and their y axis.
    x, y : str
        What the axes show, with units.

    Returns
    -------
    Figure
        Its attribute ``panels`` is a list of (axis, rows), ``numbers`` is the whole frame.
    """
    keys = [panel] if isinstance(panel, str) else panel
    parts = [part for _, part in frame.groupby(keys, sort=False, dropna=False)]
    columns = min(wrap, len(parts))
    rows = -(-len(parts) // columns)  # rounded up
    width, height = size
    if len(parts) == 1:
        width = width * 1.6
    drawn, axes = plt.subplots(
        rows,
        columns,
        squeeze=False,
        figsize=(width * columns, height * rows + 0.5),
        sharex=share[0],
        sharey=share[1],
    )
    drawn.numbers = frame
    drawn.panels = list(zip(axes.flat, parts, strict=False))
    names = _panel_names(frame, parts, keys)
    for place, (axis, _) in enumerate(drawn.panels):
        lines_of_title = names[place].splitlines()
        axis.set_title("\n".join(textwrap.fill(line, int(8.5 * width)) for line in lines_of_title))
        if place % columns == 0:
            axis.set_ylabel(y)
        if place + columns >= len(parts):
            axis.set_xlabel(x)
            axis.tick_params(labelbottom=True)
    for axis in axes.flat[len(parts) :]:
        axis.remove()
    return drawn


def _panel_names(frame: pd.DataFrame, parts: list[pd.DataFrame], keys: list[str]) -> list[str]:
    """What tells each panel from the others: its keys, and its number of documents."""
    varying_keys = [key for key in keys if len(frame[key].unique()) > 1]
    counts = [_documents(part) for part in parts]
    counts_differ = len(set(filter(None, counts))) > 1
    names = []
    for part, count in zip(parts, counts, strict=True):
        words = []
        for key in varying_keys:
            value = part[key].iloc[0]
            words.append(short(value) if key == "model" else str(value))
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
    drawn = panels(frame, **layout)
    several = any(part.groupby(by)[hue].nunique().max() > 1 for _, part in drawn.panels)
    for marks in _marks(drawn, by, hue, looks, "y"):
        look = marks.look
        at = marks.at
        if several:
            at = at + 0.15 * marks.aside
        else:
            look = look._replace(label=None)
        reach = _reach(marks.rows, value)
        style = _style(look)
        marks.axis.errorbar(marks.rows[value], at, xerr=reach, linestyle="none", **style)
    return drawn


def lines(
    frame: pd.DataFrame, by: str, hue: str, looks=LOOKS, *, bars=False, **layout: Any
) -> Figure:
    """Draw a line for each ``hue`` along a numeric ``by``, its interval as a band or as bars."""
    drawn = panels(frame, **layout)
    for marks in _marks(drawn, by, hue, looks, "x"):
        axis = marks.axis
        rows = marks.rows
        look = marks.look
        reach = _reach(rows, "value") if bars else None
        axis.errorbar(marks.at, rows["value"], reach, linestyle=look.line, **_style(look))
        if "low" in rows and not bars:
            band = {"color": look.colour, "alpha": 0.2, "linewidth": 0}
            axis.fill_between(marks.at, rows["low"], rows["high"], **band)
    return drawn


def bars(frame: pd.DataFrame, by: str, hue: str, looks=LOOKS, **layout: Any) -> Figure:
    """Draw bars for each value of ``by``, one for each ``hue`` side by side; hollow is white."""
    drawn = panels(frame, **layout)
    for marks in _marks(drawn, by, hue, looks, "x"):
        look = marks.look
        width = 0.8 / marks.num_looks
        marks.axis.bar(
            marks.at + marks.aside * width,
            marks.rows["value"],
            width,
            label=look.label,
            facecolor=look.face,
            edgecolor=look.colour,
            linewidth=1.2,
            yerr=_reach(marks.rows, "value"),
            error_kw={"elinewidth": 1, "capsize": 2},
        )
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
    """Put one legend beneath the panels, if a panel has several looks."""
    marks_by_name = {}
    several = False
    for axis, _ in drawn.panels:
        marks, names = axis.get_legend_handles_labels()
        several = several or len(names) > 1
        marks_by_name.update(zip(names, marks, strict=True))
    if not several:
        return
    longest = max(len(name) for name in marks_by_name)
    fitting = max(1, int(drawn.get_size_inches()[0] / (0.08 * longest + 0.6)))
    drawn.legend(
        marks_by_name.values(),
        marks_by_name,
        loc="outside lower center",
        ncols=min(fitting, len(marks_by_name)),
    )


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
        steps = (1, 3)
    elif high > 8 * low:
        steps = (1, 2, 5)
    else:
        steps = (1, 1.5, 2, 3, 4, 5, 6, 8)
    locator = LogLocator(subs=steps, numticks=9) if high > 2 * low else MaxNLocator(5)
    ticks = getattr(axis, f"{which}axis")
    ticks.set_major_locator(locator)
    ticks.set_major_formatter(lambda value, _: f"{value:g}")
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


def short(model: str) -> str:
    """What a panel calls a model: its name without the format that its weights were stored in."""
    return re.sub(r" \([^()]*dequantized\)$", "", display_name(model))


def _marks(drawn: Figure, by: str, hue: str, looks: Mapping, along: str) -> Iterator[Marks]:
    """The marks of every look in every panel.

    After the marks of a panel are drawn, its axis ``along`` (x or y) gets its ticks.
    """
    frame = drawn.numbers
    unknown = set(frame[hue]) - set(looks)
    if unknown:
        names = ", ".join(map(str, unknown))
        raise ValueError(f"no look for {names}; looks: {', '.join(map(str, looks))}")
    numeric = pd.api.types.is_numeric_dtype(frame[by])
    for axis, part in drawn.panels:
        sharing_axes = getattr(axis, f"get_shared_{along}_axes")().get_siblings(axis)
        rows = frame if len(sharing_axes) > 1 else part
        values = list(rows[by].unique())
        if numeric:
            places = {value: value for value in values}
        else:
            places = {value: place for place, value in enumerate(values)}
        yield from _marks_of_panel(axis, part, by, hue, looks, places)
        if not numeric:
            _name_ticks(axis, along, places)
        elif (part[by] % 1 == 0).all():
            getattr(axis, f"{along}axis").set_major_locator(MaxNLocator(9, integer=True))


def _marks_of_panel(
    axis: plt.Axes, part: pd.DataFrame, by: str, hue: str, looks: Mapping, places: dict
) -> Iterator[Marks]:
    """The marks of every look in one panel; ``places`` is where the values of ``by`` stand."""
    present = [key for key in looks if (part[hue] == key).any()]
    for i, key in enumerate(present):
        rows = part[part[hue] == key].sort_values(by, key=lambda values: values.map(places))
        at = rows[by].map(places).astype(float)
        yield Marks(axis, rows, looks[key], at, i - (len(present) - 1) / 2, len(present))


def _name_ticks(axis: plt.Axes, along: str, places: dict) -> None:
    """Write the names of the places beside an axis; down y the first one is at the top."""
    getattr(axis, f"set_{along}ticks")(list(places.values()), list(places))
    if along == "y":
        axis.grid(axis="y", linewidth=0.4)
        axis.set_ylim(len(places) - 0.5, -0.5)
    else:
        axis.grid(axis="x", linewidth=0)


def _reach(frame: pd.DataFrame, value: str) -> list[pd.Series] | None:
    """How far each interval reaches below and above its value; nan draws nothing."""
    if "low" in frame and frame["low"].notna().any():
        return [frame[value] - frame["low"], frame["high"] - frame[value]]
    if "error" in frame:
        return [frame["error"], frame["error"]]
    return None


def _style(look: Look) -> dict[str, Any]:
    """A look as the arguments of matplotlib's ``errorbar``."""
    return {
        "color": look.colour,
        "marker": look.marker,
        "markersize": 5.5,
        "markerfacecolor": look.face,
        "label": look.label,
        "capsize": 2,
        "elinewidth": 1.2,
    }
