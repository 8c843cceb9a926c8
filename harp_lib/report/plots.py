"""Dots with intervals, lines and bars of long frames: every figure is one of these, each colour
with one meaning.

A row is a mark, its interval in ``low`` and ``high`` or its standard ``error``; each ``panel`` has
a model, by default.
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
    """How one kind of mark is told from the others; hollow marks are HARP whose α was not searched."""

    label: str
    colour: str
    marker: str = "o"
    line: str = "-"
    hollow: bool = False


DENSE, HARP = "#4d4d4d", CATALOGUE["harp"].colour
PAPER = "#949494"  # printed in the paper, beside ours
RANDOM = "#ca9161"  # an untrained twin
FIRST, SECOND = "#3b1f6b", "#a58ac9"  # two of anything that is neither a method nor a model
LOOKS = {
    "dense": Look("dense", DENSE, "s"),
    **{
        name: Look(method.title, method.colour, method.marker) for name, method in CATALOGUE.items()
    },
    "alpha-1": Look("HARP, α = 1", HARP, "o", "--", hollow=True),
    "alpha-0": Look("HARP, α = 0", HARP, "v", ":", hollow=True),
    "paper": Look("paper", PAPER),
}
"""Of the methods, of HARP without search, and of the paper's numbers."""


def use_style() -> None:
    """Set the look that all figures share."""
    rc = {"axes.spines.right": False, "axes.spines.top": False, "axes.titlelocation": "left"}
    rc |= {
        "axes.titlesize": "medium",
        "figure.constrained_layout.use": True,
        "lines.linewidth": 1.5,
    }
    rc |= {
        "legend.frameon": False,
        "savefig.dpi": 160,
        "svg.hashsalt": "harp",
    }  # salted: equal figures are equal files
    sns.set_theme(context="notebook", style="ticks", palette="colorblind", font_scale=0.85, rc=rc)


def panels(
    frame: pd.DataFrame, panel="model", *, size=(4.4, 3.4), wrap=4, share=(True, True), x="", y=""
) -> Figure:
    """An empty panel for each value of ``panel`` (or of several columns), named if there are
    several.

    Where panels differ in their number of documents, each names its own. The figure has the panels,
    with their rows, as ``panels``. ``x`` and ``y`` are what axes show, with units.
    """
    keys = [panel] if isinstance(panel, str) else panel
    parts = [part for _, part in frame.groupby(keys, sort=False, dropna=False)]
    columns = min(wrap, len(parts))
    rows, width = -(-len(parts) // columns), size[0] * (1.6 if len(parts) == 1 else 1)
    grid = {
        "figsize": (width * columns, size[1] * rows + 0.5),
        "sharex": share[0],
        "sharey": share[1],
    }
    drawn, axes = plt.subplots(rows, columns, squeeze=False, **grid)
    drawn.numbers, drawn.panels = (
        frame,
        list(zip(axes.flat, parts, strict=False)),
    )  # the numbers are written beside it
    named = [key for key in keys if len(frame[key].unique()) > 1]
    counts = [_documents(part) for part in parts]
    counts_differ = len(set(filter(None, counts))) > 1
    for place, (axis, part) in enumerate(drawn.panels):
        name = ", ".join((short if key == "model" else str)(part[key].iloc[0]) for key in named)
        if counts_differ and counts[place]:
            name += f" ({counts[place]} documents)"
        axis.set_title(
            "\n".join(textwrap.fill(line, int(8.5 * width)) for line in name.splitlines())
        )
        axis.set_ylabel(y if place % columns == 0 else "")
        if place + columns >= len(parts):
            axis.set_xlabel(x)
            axis.tick_params(labelbottom=True)
    for axis in axes.flat[len(parts) :]:
        axis.remove()
    return drawn


def dots(
    frame: pd.DataFrame, by: str, hue: str, looks=LOOKS, *, value="value", **layout: Any
) -> Figure:
    """A dot and its interval for each row, ``by`` down y; several at one place stand aside, and
    have a legend.
    """
    drawn = panels(frame, **layout)
    several = any(part.groupby(by)[hue].nunique().max() > 1 for _, part in drawn.panels)
    for axis, mine, look, at, aside, _ in _each(drawn, by, hue, looks, "y"):
        marks = _marks(look if several else look._replace(label=None))
        axis.errorbar(
            mine[value],
            at + 0.15 * several * aside,
            xerr=_reach(mine, value),
            linestyle="none",
            **marks,
        )
    return drawn


def lines(
    frame: pd.DataFrame, by: str, hue: str, looks=LOOKS, *, bars=False, **layout: Any
) -> Figure:
    """A line for each ``hue`` along a numeric ``by``, its interval as a band or as bars."""
    drawn = panels(frame, **layout)
    for axis, mine, look, at, *_ in _each(drawn, by, hue, looks, "x"):
        reach = _reach(mine, "value") if bars else None
        axis.errorbar(at, mine["value"], reach, linestyle=look.line, **_marks(look))
        if "low" in mine and not bars:
            axis.fill_between(
                at, mine["low"], mine["high"], color=look.colour, alpha=0.2, linewidth=0
            )
    return drawn


def bars(frame: pd.DataFrame, by: str, hue: str, looks=LOOKS, **layout: Any) -> Figure:
    """Bars for each value of ``by``, one for each ``hue`` side by side; hollow ones are white
    inside.
    """
    drawn = panels(frame, **layout)
    for axis, mine, look, at, aside, count in _each(drawn, by, hue, looks, "x"):
        face = {
            "facecolor": "white" if look.hollow else look.colour,
            "edgecolor": look.colour,
            "linewidth": 1.2,
        }
        reach = {"yerr": _reach(mine, "value"), "error_kw": {"elinewidth": 1, "capsize": 2}}
        axis.bar(
            at + aside * (0.8 / count),
            mine["value"],
            0.8 / count,
            label=look.label,
            **face,
            **reach,
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
    """Title (what is seen), note (:func:`about`), which axis is logarithmic, a line across, and one
    legend.
    """
    for axis, _ in drawn.panels if log else ():
        _log_axis(axis, log)
    for axis, _ in drawn.panels:
        if level is not None:
            axis.axhline(level, color="black", linewidth=0.8)
        if ylim:
            axis.set_ylim(*ylim)
    width, height = drawn.get_size_inches()
    legends = [axis.get_legend_handles_labels() for axis, _ in drawn.panels]
    if any(len(names) > 1 for _, names in legends):
        found = {
            name: mark for marks, names in legends for mark, name in zip(marks, names, strict=True)
        }
        fit = max(1, int(width / (0.08 * max(map(len, found)) + 0.6)))
        drawn.legend(found.values(), found, loc="outside lower center", ncols=min(fit, len(found)))
    head, body = (
        textwrap.wrap(title, int(11.5 * width)),
        textwrap.wrap(about(drawn.numbers, note), int(14 * width)),
    )
    under = 0.08 + 0.2 * len(head)  # inches from the top, where the note begins
    top = height + (0.2 * len(head) + 0.18 * len(body) + 0.08)
    drawn.set_size_inches(width, top)
    drawn.text(0.08 / width, 1 - 0.06 / top, "\n".join(head), va="top", weight="bold", size=10)
    drawn.text(0.08 / width, 1 - under / top, "\n".join(body), va="top", size=9, color="#444444")
    drawn.get_layout_engine().set(rect=(0, 0, 1, height / top))
    return drawn


def _log_axis(axis: plt.Axes, which: str) -> None:
    """A logarithmic axis whose ticks are plain numbers."""
    axis.set(**{f"{which}scale": "log"})
    low, high = getattr(axis, f"get_{which}lim")()
    along = getattr(axis, f"{which}axis")
    steps = (
        (1, 3) if high > 60 * low else (1, 2, 5) if high > 8 * low else (1, 1.5, 2, 3, 4, 5, 6, 8)
    )
    along.set_major_locator(
        LogLocator(subs=steps, numticks=9) if high > 2 * low else MaxNLocator(5)
    )
    along.set_major_formatter(lambda value, _: f"{value:g}")
    along.set_minor_locator(NullLocator())


def with_paper(ours: pd.DataFrame, printed: pd.DataFrame) -> pd.DataFrame:
    """The paper's rows, then ours: ``source`` says which, and the paper's models are called so."""
    printed = printed.assign(model=printed["model"] + " (paper)", source="paper")
    return pd.concat([printed, ours.assign(source="ours")], ignore_index=True)


def about(frame: pd.DataFrame, note: str) -> str:
    """A note with how many ``{documents}`` there are, and the ``{model}`` where there is one and no
    panel names it.
    """
    models = set(frame.get("model", ()))
    model = f"{display_name(*models)}; " if len(models) == 1 else ""
    return note.format(model=model, documents=_documents(frame)).removesuffix("; ")


def _documents(frame: pd.DataFrame) -> str:
    """How many documents the rows are over: one number, or the lowest and the highest; empty
    without any.
    """
    if "documents" not in frame or frame["documents"].isna().all():
        return ""
    return span(frame["documents"], ".0f")


def span(values: Iterable[float], form: str = ".2f") -> str:
    """One number, or the lowest and the highest of several, for a title or a sentence."""
    sign = "+" if form.startswith("+") else ""
    form = f"{sign}z{form.removeprefix('+')}"  # z: what is rounded to zero has no minus
    finite = sorted(value for value in values if np.isfinite(value))
    shown = [format(value, form).replace("-", "−") for value in finite] or ["–"]
    return shown[0] if shown[0] == shown[-1] else f"{shown[0]} to {shown[-1]}"


def in_lines(methods: str) -> str:
    """The joined titles of equal plans, each in a line of its own, for the side of a panel."""
    return methods.replace(" = ", " =\n")


def short(model: str) -> str:
    """What a panel calls a model: without what its weights were stored in."""
    return re.sub(r" \([^()]*dequantized\)$", "", display_name(model))


def _each(drawn: Figure, by: str, hue: str, looks: Mapping, along: str) -> Iterator[tuple]:
    """Every panel and look: axis, rows in order, the look, where they stand, how far aside, and of
    how many looks.
    """
    frame = drawn.numbers
    if unknown := set(frame[hue]) - set(looks):
        raise ValueError(
            f"no look for {', '.join(map(str, unknown))}; looks: {', '.join(map(str, looks))}"
        )
    numeric = pd.api.types.is_numeric_dtype(frame[by])
    for axis, part in drawn.panels:
        shared = len(getattr(axis, f"get_shared_{along}_axes")().get_siblings(axis)) > 1
        names = list((frame if shared else part)[by].unique())
        places = dict(zip(names, names if numeric else range(len(names)), strict=True))
        kinds = [key for key in looks if (part[hue] == key).any()]
        for i, key in enumerate(kinds):
            mine = part[part[hue] == key].sort_values(by, key=lambda values: values.map(places))
            at = mine[by].map(places).astype(float)
            yield axis, mine, looks[key], at, i - (len(kinds) - 1) / 2, len(kinds)
        if not numeric:
            getattr(axis, f"set_{along}ticks")(list(places.values()), names)
            axis.grid(axis=along, linewidth=0.4 * (along == "y"))
            if along == "y":
                axis.set_ylim(len(names) - 0.5, -0.5)
        elif (part[by] % 1 == 0).all():
            getattr(axis, f"{along}axis").set_major_locator(MaxNLocator(9, integer=True))


def _reach(frame: pd.DataFrame, value: str) -> list[pd.Series] | None:
    """How far each interval reaches below and above; nan draws nothing."""
    if "low" in frame and frame["low"].notna().any():
        return [frame[value] - frame["low"], frame["high"] - frame[value]]
    return [frame["error"]] * 2 if "error" in frame else None


def _marks(look: Look) -> dict[str, Any]:
    face = "white" if look.hollow else look.colour
    marks = {
        "color": look.colour,
        "marker": look.marker,
        "markersize": 5.5,
        "markerfacecolor": face,
    }
    return marks | {"label": look.label, "capsize": 2, "elinewidth": 1.2}
