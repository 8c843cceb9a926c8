"""Dots with intervals, lines, bars and tiles: every figure is one of these, in one look, each colour with one meaning.

Each kind takes a long frame (one row a mark, its interval in the columns ``low`` and ``high``), draws one panel for
each value of ``panel``, the models by default, and returns the figure and its panels as (axis, rows of the frame).
"""

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from harp_lib.methods import COLOURS, TITLES


class Look(NamedTuple):
    """How one kind of mark is told from the others; hollow marks are HARP whose α was not searched."""

    label: str
    colour: str
    marker: str = "o"
    line: str = "-"
    hollow: bool = False


DENSE, HARP = COLOURS["dense"], COLOURS["harp"]
PAPER = "#949494"  # printed in the paper, beside ours
RANDOM = "#ca9161"  # an untrained twin
FIRST, SECOND = "#3b1f6b", "#a58ac9"  # two of anything that is neither a method nor a model
_MARKERS = {"dense": "s", "mag-sp": "v", "wanda-sp": "^", "llm-pruner": "D", "flap": "P", "harp": "o", "harp+flap": "X"}
LOOKS = {method: Look(TITLES[method], COLOURS[method], marker) for method, marker in _MARKERS.items()} | {
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
    named = [i for i, key in enumerate(keys) if len(frame[key].unique()) > 1]
    for axis, (key, _) in zip(axes.flat, parts, strict=False):
        name = ", ".join(_title(keys[i], key[i]) for i in named)
        axis.set_title("\n".join(textwrap.fill(line, int(10 * size[0])) for line in name.splitlines()))
    for axis in axes.flat[len(parts) :]:
        axis.remove()
    return figure, [(axis, part) for axis, (_, part) in zip(axes.flat, parts, strict=False)]


def dots(
    frame: pd.DataFrame,
    value: str,
    by: str,
    hue: str | None = None,
    looks: Mapping[Any, Look] = LOOKS,
    *,
    upright: bool = False,
    dodge: float = 0.16,
    **layout: Any,
) -> tuple[Figure, Panels]:
    """A dot and its interval for each row: values along x and ``by`` down y, or, upright, ``by`` along x."""
    figure, grid = panels(frame, **layout)
    shared = layout.get("share", (True, True))[0 if upright else 1]
    kinds = _kinds(frame, hue, looks)
    for axis, part in grid:
        places = _places((frame if shared else part)[by])
        for offset, (key, look) in zip(_spread(len(kinds), dodge), kinds.items(), strict=True):
            mine = part if hue is None else part[part[hue] == key]
            at = mine[by].map(places).astype(float) + offset
            x, y, reach = (at, mine[value], "yerr") if upright else (mine[value], at, "xerr")
            marks = _marks(look) | {"linestyle": "none", "capsize": 2, "elinewidth": 1.2, reach: _reach(mine, value)}
            axis.errorbar(x, y, label=look.label, **marks)
        _name_places(axis, places, "x" if upright else "y", grid=True)
    return figure, grid


def lines(
    frame: pd.DataFrame,
    value: str,
    by: str,
    hue: str | None = None,
    looks: Mapping[Any, Look] = LOOKS,
    *,
    bars: bool = False,
    **layout: Any,
) -> tuple[Figure, Panels]:
    """A line for each ``hue`` along a numeric ``by``, its interval as a band or as bars."""
    figure, grid = panels(frame, **layout)
    for axis, part in grid:
        for key, look in _kinds(frame, hue, looks).items():
            mine = (part if hue is None else part[part[hue] == key]).sort_values(by)
            reach = _reach(mine, value) if bars else None
            marks = _marks(look) | {"linestyle": look.line, "label": look.label, "capsize": 2}
            axis.errorbar(mine[by], mine[value], yerr=reach, **marks)
            if "low" in mine and not bars:
                axis.fill_between(mine[by], mine["low"], mine["high"], color=look.colour, alpha=0.2, linewidth=0)
        if (part[by] % 1 == 0).all():
            axis.xaxis.set_major_locator(MaxNLocator(8, integer=True))
    return figure, grid


def bars(
    frame: pd.DataFrame,
    value: str,
    by: str,
    hue: str | None = None,
    looks: Mapping[Any, Look] = LOOKS,
    *,
    width: float = 0.8,
    **layout: Any,
) -> tuple[Figure, Panels]:
    """Bars for each value of ``by``, one for each ``hue`` side by side; hollow ones are white inside."""
    figure, grid = panels(frame, **layout)
    places = _places(frame[by])
    for axis, part in grid:
        kinds = _kinds(part, hue, looks)
        for offset, (key, look) in zip(_spread(len(kinds), width / len(kinds)), kinds.items(), strict=True):
            mine = part if hue is None else part[part[hue] == key]
            fill = {"facecolor": "white" if look.hollow else look.colour, "edgecolor": look.colour, "linewidth": 1.2}
            reach = {"yerr": _reach(mine, value), "error_kw": {"elinewidth": 1, "capsize": 2}}
            axis.bar(
                mine[by].map(places).astype(float) + offset,
                mine[value],
                width / len(kinds),
                label=look.label,
                **fill,
                **reach,
            )
        _name_places(axis, places, "x")
    return figure, grid


def tiles(
    frame: pd.DataFrame, value: str, x: str, y: str, *, label: str, norm: Normalize, cmap="cividis", **layout: Any
) -> tuple[Figure, Panels]:
    """A map of ``value`` for each panel, all on one scale of colours, ``y`` rising."""
    figure, grid = panels(frame, **layout)
    for axis, part in grid:
        table = part.pivot_table(index=y, columns=x, values=value)
        image = axis.pcolormesh(table.columns, table.index, table.to_numpy(), cmap=cmap, norm=norm, shading="nearest")
        axis.xaxis.set_major_locator(MaxNLocator(9, integer=True))
    values = frame[value]
    ends = {(True, True): "both", (True, False): "min", (False, True): "max", (False, False): "neither"}
    extend = ends[bool(values.min() < norm.vmin), bool(values.max() > norm.vmax)]
    bar = figure.colorbar(image, ax=[axis for axis, _ in grid], label=label, extend=extend)
    bar.outline.set_visible(False)
    return figure, grid


def finish(
    figure: Figure, grid: Panels, title: str, note: str = "", *, x="", y="", legend=True, handles: Sequence[Any] = ()
) -> Figure:
    """Title (what is seen), note (of what, on how much), names of the axes with units, one legend below."""
    width, height = figure.get_size_inches()
    columns = grid[0][0].get_gridspec().ncols
    for place, (axis, _) in enumerate(grid):
        if place + columns >= len(grid):
            axis.set_xlabel(axis.get_xlabel() or x)
            axis.tick_params(labelbottom=True)
        if place % columns == 0:
            axis.set_ylabel(axis.get_ylabel() or y)
    found = {name: mark for axis, _ in grid for mark, name in zip(*axis.get_legend_handles_labels(), strict=True)}
    found |= {mark.get_label(): mark for mark in handles}
    if legend and len(found) > 1:
        longest = max(map(len, found))
        fit = max(1, int(width / (0.08 * longest + 0.6)))
        figure.legend(found.values(), found, loc="outside lower center", ncols=min(fit, len(found)))
    head = textwrap.wrap(title, int(11.5 * width))
    body = textwrap.wrap(note, int(14 * width))
    room = 0.2 * len(head) + 0.18 * len(body) + 0.08
    figure.set_size_inches(width, height + room)
    figure.text(0.08 / width, 1 - 0.06 / (height + room), "\n".join(head), va="top", weight="bold", size=10)
    below = 1 - (0.08 + 0.2 * len(head)) / (height + room)
    figure.text(0.08 / width, below, "\n".join(body), va="top", size=9, color="#444444")
    figure.get_layout_engine().set(rect=(0, 0, 1, height / (height + room)))
    return figure


def log_axis(axis: plt.Axes, which: str) -> None:
    """A logarithmic axis whose ticks are plain numbers."""
    getattr(axis, f"set_{which}scale")("log")
    low, high = getattr(axis, f"get_{which}lim")()
    along = getattr(axis, f"{which}axis")
    steps = (1, 3) if high > 60 * low else (1, 2, 5) if high > 8 * low else (1, 1.5, 2, 3, 4, 5, 6, 8)
    along.set_major_locator(LogLocator(subs=steps, numticks=9))
    along.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    along.set_minor_locator(NullLocator())


def about(frame: pd.DataFrame, note: str = "") -> str:
    """A note that names the model, where there is one and its panel therefore has no title."""
    models = list(frame["model"].unique())
    return "; ".join(filter(None, [_title("model", models[0]) if len(models) == 1 else "", note]))


def span(values: Iterable[float], form: str = ".2f") -> str:
    """One number, or the lowest and the highest of several, for a title or a sentence."""
    shown = [format(value, form).replace("-", "−") for value in sorted(v for v in values if np.isfinite(v))] or ["–"]
    return shown[0] if shown[0] == shown[-1] else f"{shown[0]} to {shown[-1]}"


def _title(column: str, value: Any) -> str:
    from harp_lib.measure.models import display_name  # brings torch along

    return display_name(value) if column == "model" else str(value)


def _places(values: pd.Series) -> dict[Any, float]:
    """Where each value stands: at itself if it is a number, else in order of appearance."""
    found = list(dict.fromkeys(values))
    return {v: v for v in found} if pd.api.types.is_numeric_dtype(values) else {v: i for i, v in enumerate(found)}


def _name_places(axis: plt.Axes, places: dict[Any, float], which: str, *, grid: bool = False) -> None:
    if all(name == place for name, place in places.items()):
        getattr(axis, f"{which}axis").set_major_locator(MaxNLocator(10, integer=True))
        return
    getattr(axis, f"set_{which}ticks")(list(places.values()), list(places))
    if grid:
        axis.grid(axis=which, linewidth=0.4)
    if which == "y":
        axis.set_ylim(max(places.values()) + 0.5, -0.5)


def _kinds(frame: pd.DataFrame, hue: str | None, looks: Mapping[Any, Look]) -> dict[Any, Look]:
    """The looks that occur, in the order of ``looks``."""
    if hue is None:
        return {None: next(iter(looks.values()))}
    if unknown := set(frame[hue]) - set(looks):
        raise ValueError(f"no look for {', '.join(map(str, unknown))}; looks: {', '.join(map(str, looks))}")
    return {key: look for key, look in looks.items() if (frame[hue] == key).any()}


def _spread(count: int, step: float) -> np.ndarray:
    return (np.arange(count) - (count - 1) / 2) * step


def _reach(frame: pd.DataFrame, value: str) -> list[pd.Series] | None:
    """How far each interval reaches below and above; nan draws nothing."""
    return [frame[value] - frame["low"], frame["high"] - frame[value]] if "low" in frame else None


def _marks(look: Look) -> dict[str, Any]:
    face = "white" if look.hollow else look.colour
    return {"color": look.colour, "marker": look.marker, "markersize": 5.5, "markerfacecolor": face}
