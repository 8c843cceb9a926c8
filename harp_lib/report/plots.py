"""Dots with intervals, lines and bars: every figure is one of these, in one look, each colour with one meaning.

Each kind takes a long frame (one row a mark; its interval in ``low`` and ``high``, or its standard ``error``), draws
one panel for each value of ``panel``, the models by default, and returns the figure and its panels as (axis, rows).
"""

import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from harp_lib.measure.models import display_name
from harp_lib.methods import CATALOGUE


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
    **{name: Look(method.title, method.colour, method.marker) for name, method in CATALOGUE.items()},
    "alpha-1": Look("HARP, α = 1", HARP, "o", "--", hollow=True),
    "alpha-0": Look("HARP, α = 0", HARP, "v", ":", hollow=True),
    "paper": Look("paper", PAPER),
}
"""Of the methods, of HARP without search, and of the paper's numbers."""
Panels = list[tuple[plt.Axes, pd.DataFrame]]


def use_style() -> None:
    """Set the look that all figures share."""
    sns.set_theme(context="notebook", style="ticks", palette="colorblind", font_scale=0.85)
    mpl.rcParams |= {
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


def panels(
    frame: pd.DataFrame, panel: str | Sequence[str] = "model", *, size=(4.4, 3.4), wrap=4, share=(True, True)
) -> tuple[Figure, Panels]:
    """An empty panel for each value of ``panel`` (or each pair of values), named if there are several."""
    keys = [panel] if isinstance(panel, str) else list(panel)
    parts = list(frame.groupby(keys, sort=False, dropna=False))
    columns = min(wrap, len(parts))
    rows = -(-len(parts) // columns)
    size = (size[0] * (1.6 if len(parts) == 1 else 1), size[1])
    grid = {"figsize": (size[0] * columns, size[1] * rows + 0.5), "sharex": share[0], "sharey": share[1]}
    figure, axes = plt.subplots(rows, columns, squeeze=False, **grid)
    figure.numbers = frame  # written beside the picture
    named = [i for i, key in enumerate(keys) if len(frame[key].unique()) > 1]
    for axis, (key, _) in zip(axes.flat, parts, strict=False):
        name = ", ".join(short(key[i]) if keys[i] == "model" else str(key[i]) for i in named)
        axis.set_title("\n".join(textwrap.fill(line, int(10 * size[0])) for line in name.splitlines()))
    for axis in axes.flat[len(parts) :]:
        axis.remove()
    return figure, [(axis, part) for axis, (_, part) in zip(axes.flat, parts, strict=False)]


def dots(
    frame: pd.DataFrame, value: str, by: str, hue=None, looks=LOOKS, *, dodge=0.16, **layout: Any
) -> tuple[Figure, Panels]:
    """A dot and its interval for each row: values along x and ``by`` down y."""
    figure, grid = panels(frame, **layout)
    for axis, mine, look, at, _ in _each(grid, (frame, by, hue, looks, "y", layout), lambda count: dodge):
        axis.errorbar(mine[value], at, xerr=_reach(mine, value), linestyle="none", **_marks(look))
    return figure, grid


def lines(
    frame: pd.DataFrame, value: str, by: str, hue=None, looks=LOOKS, *, bars=False, **layout: Any
) -> tuple[Figure, Panels]:
    """A line for each ``hue`` along a numeric ``by``, its interval as a band or as bars."""
    figure, grid = panels(frame, **layout)
    for axis, mine, look, at, _ in _each(grid, (frame, by, hue, looks, "x", layout), lambda count: 0):
        axis.errorbar(at, mine[value], _reach(mine, value) if bars else None, linestyle=look.line, **_marks(look))
        if "low" in mine and not bars:
            axis.fill_between(at, mine["low"], mine["high"], color=look.colour, alpha=0.2, linewidth=0)
    return figure, grid


def bars(frame: pd.DataFrame, value: str, by: str, hue=None, looks=LOOKS, **layout: Any) -> tuple[Figure, Panels]:
    """Bars for each value of ``by``, one for each ``hue`` side by side; hollow ones are white inside."""
    figure, grid = panels(frame, **layout)
    for axis, mine, look, at, width in _each(grid, (frame, by, hue, looks, "x", layout), lambda count: 0.8 / count):
        face = {"facecolor": "white" if look.hollow else look.colour, "edgecolor": look.colour, "linewidth": 1.2}
        reach = {"yerr": _reach(mine, value), "error_kw": {"elinewidth": 1, "capsize": 2}}
        axis.bar(at, mine[value], width, label=look.label, **face, **reach)
    return figure, grid


def finish(
    figure: Figure, grid: Panels, title: str, note="", *, x="", y="", level=None, ylim=None, legend=True
) -> Figure:
    """Title (what is seen), note (of what, on how much), names of the axes with units, a line across, one legend."""
    (width, height), columns = figure.get_size_inches(), grid[0][0].get_gridspec().ncols
    for place, (axis, _) in enumerate(grid):
        if level is not None:
            axis.axhline(level, color="black", linewidth=0.8)
        if ylim:
            axis.set_ylim(*ylim)
        if place + columns >= len(grid):
            axis.set_xlabel(axis.get_xlabel() or x)
            axis.tick_params(labelbottom=True)
        if place % columns == 0:
            axis.set_ylabel(axis.get_ylabel() or y)
    found = {name: mark for axis, _ in grid for mark, name in zip(*axis.get_legend_handles_labels(), strict=True)}
    if legend and len(found) > 1:
        fit = max(1, int(width / (0.08 * max(map(len, found)) + 0.6)))
        figure.legend(found.values(), found, loc="outside lower center", ncols=min(fit, len(found)))
    head, body = textwrap.wrap(title, int(11.5 * width)), textwrap.wrap(note, int(14 * width))
    room = 0.2 * len(head) + 0.18 * len(body) + 0.08  # inches above the panels
    top = height + room
    figure.set_size_inches(width, top)
    figure.text(0.08 / width, 1 - 0.06 / top, "\n".join(head), va="top", weight="bold", size=10)
    below = 1 - (0.08 + 0.2 * len(head)) / top
    figure.text(0.08 / width, below, "\n".join(body), va="top", size=9, color="#444444")
    figure.get_layout_engine().set(rect=(0, 0, 1, height / top))
    return figure


def log_axis(axis: plt.Axes, which: str) -> None:
    """A logarithmic axis whose ticks are plain numbers."""
    getattr(axis, f"set_{which}scale")("log")
    low, high = getattr(axis, f"get_{which}lim")()
    along = getattr(axis, f"{which}axis")
    steps = (1, 3) if high > 60 * low else (1, 2, 5) if high > 8 * low else (1, 1.5, 2, 3, 4, 5, 6, 8)
    along.set_major_locator(LogLocator(subs=steps, numticks=9) if high > 2 * low else MaxNLocator(5))
    along.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    along.set_minor_locator(NullLocator())


def with_paper(ours: pd.DataFrame, printed: pd.DataFrame) -> pd.DataFrame:
    """The paper's rows, then ours: ``source`` says which, and the paper's models are called so."""
    printed = printed.assign(model=printed["model"] + " (paper)", source="paper")
    return pd.concat([printed, ours.assign(source="ours")], ignore_index=True)


def about(frame: pd.DataFrame, note: str = "95 % intervals over {} documents") -> str:
    """A note, with how many documents there are for ``{}``; and the model, where there is one and no panel names it."""
    models, documents = list(frame["model"].unique()), frame["documents"].max() if "documents" in frame else 0
    model = display_name(models[0]) if len(models) == 1 else ""
    return "; ".join(filter(None, [model, note.format(f"{documents:.0f}")]))


def span(values: Iterable[float], form: str = ".2f") -> str:
    """One number, or the lowest and the highest of several, for a title or a sentence."""
    shown = [format(value, form).replace("-", "−") for value in sorted(v for v in values if np.isfinite(v))] or ["–"]
    return shown[0] if shown[0] == shown[-1] else f"{shown[0]} to {shown[-1]}"


def short(model: str) -> str:
    """What a panel calls a model: without what its weights were stored in."""
    return re.sub(r" \([^()]*dequantized\)$", "", display_name(model))


def _each(grid: Panels, where: tuple, step: Callable[[int], float]) -> Iterator[tuple]:
    """Every panel and look: axis, rows in order, the look, where they stand along an axis, and the step to the next."""
    frame, by, hue, looks, along, layout = where
    if unknown := set(frame[hue]) - set(looks) if hue else ():
        raise ValueError(f"no look for {', '.join(map(str, unknown))}; looks: {', '.join(map(str, looks))}")
    shared = layout.get("share", (True, True))["xy".index(along)]
    for axis, part in grid:
        names = list(dict.fromkeys((frame if shared else part)[by]))
        numeric = pd.api.types.is_numeric_dtype(frame[by])
        places = dict(zip(names, names if numeric else range(len(names)), strict=True))
        kinds = [key for key in looks if (part[hue] == key).any()] if hue else [next(iter(looks))]
        for i, key in enumerate(kinds):
            mine = (part[part[hue] == key] if hue else part).sort_values(by, key=lambda values: values.map(places))
            at = mine[by].map(places).astype(float) + (i - (len(kinds) - 1) / 2) * step(len(kinds))
            yield axis, mine, looks[key], at, step(len(kinds))
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
    marks = {"color": look.colour, "marker": look.marker, "markersize": 5.5, "markerfacecolor": face}
    return marks | {"label": look.label, "capsize": 2, "elinewidth": 1.2}
