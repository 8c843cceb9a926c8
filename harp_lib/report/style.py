"""How all figures look: the theme, and colours that mean a method or a model, never both."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib import pyplot as plt
from matplotlib.axes import Axes

from harp_lib import config
from harp_lib.names import CATALOGUE, METHOD_TITLES, short_names

DENSE = "#4d4d4d"  # the dense model, and lines that nothing is measured for
SHADE = "#ececec"  # the layers that HARP prunes
METHOD_COLOURS = {"dense": DENSE} | {
    METHOD_TITLES[name]: method.colour for name, method in CATALOGUE.items()
}
"""A colour for each method's title."""
RULE_COLOURS = {
    "searched α": CATALOGUE["harp"].colour,
    "projection": "#d81b60",
    "keep the norm": "#a0522d",
    "α = 0.5": "#c2c2c2",
    "α = 1": "#949494",
    "α = 0": "#000000",
}
"""A colour for each way to choose α."""
BESIDE = {
    "textcoords": "offset points",
    "va": "center",
    "fontsize": 7,
    "bbox": {"facecolor": "white", "edgecolor": "none", "pad": 0.3},  # hides the line of no effect
}
"""How letters stand beside a point, for ``annotate``."""
_COLOURS_OF_MODELS = ("#482173", "#2e8b8b", "#7ab648", "#c8a415")  # rising with size


def use_style() -> None:
    """Set the look that all figures share, whatever the user's matplotlibrc says."""
    plt.rcdefaults()
    sns.set_theme(
        context="notebook",
        style="ticks",
        palette="colorblind",
        font_scale=0.85,
        rc={
            "axes.spines.right": False,
            "axes.spines.top": False,
            "legend.frameon": False,
            "font.sans-serif": ["DejaVu Sans"],  # matplotlib brings it; not every machine has Arial
            "svg.hashsalt": "harp",  # without it each svg file has other ids
        },
    )


def model_colours(models: Iterable[str]) -> dict[str, Any]:
    """A colour for each model by its short name; the registry's models always have the same one."""
    named = short_names(config.NAMED_MODELS).values()
    known = dict(zip(named, _COLOURS_OF_MODELS, strict=False))
    names = list(dict.fromkeys(models))
    others = [name for name in names if name not in known]
    more = dict(zip(others, sns.color_palette("husl", len(others)), strict=True))
    return {name: (known | more)[name] for name in names}


def dots(
    ax: Axes,
    data: pd.DataFrame,
    y: str,
    hue: str,
    palette: Mapping[str, Any] | None = None,
    no_effect: float | None = None,
    text: str | None = None,
) -> None:
    """Draw a dot and its interval for each row, since seaborn has no plot of given ends.

    Parameters
    ----------
    ax : Axes
        Where to draw.
    data : DataFrame
        Has the columns value, low and high, which are drawn along x.
    y, hue : str
        Columns: what stands in each line of the axis, and what has a colour. The lines are the
        categories of ``y``, or its values in their order.
    palette : mapping, optional
        A colour for each value of ``hue``.
    no_effect : float, optional
        Where there is no difference: a line stands there, and a dot whose interval holds it is
        hollow.
    text : str, optional
        Column: a few letters at the upper end of each interval.
    """
    if no_effect is not None:
        ax.axvline(no_effect, color=DENSE, linestyle=":", linewidth=1, zorder=0)
    lines = _lines(data[y])
    groups = data.groupby(hue, sort=False)
    for number, (name, part) in enumerate(groups):
        shift = 0.6 * ((number + 0.5) / len(groups) - 0.5)
        places = np.array([lines.index(line) for line in part[y]]) + shift
        reach = np.array([part["value"] - part["low"], part["high"] - part["value"]])  # (2, rows)
        colour = palette[name] if palette else f"C{number}"
        ax.errorbar(part["value"], places, xerr=reach, fmt="o", ms=5, color=colour, label=name)
        if no_effect is not None:
            holds_it = (part["low"] <= no_effect) & (part["high"] >= no_effect)
            hollow = {"marker": "o", "s": 12, "color": "white", "zorder": 3}
            ax.scatter(part["value"][holds_it], places[holds_it], **hollow)
        if text is not None:
            for letters, end, place in zip(part[text], part["high"], places, strict=True):
                ax.annotate(letters, (end, place), (3, 0), **BESIDE, color=colour)
    ax.set_yticks(range(len(lines)), lines)
    ax.set_ylim(len(lines) - 0.5, -0.5)


def _lines(column: pd.Series) -> list[str]:
    """The categories of a column, or its values in their order."""
    if isinstance(column.dtype, pd.CategoricalDtype):
        return list(column.cat.categories)
    return list(dict.fromkeys(column))


def dot_panels(
    data: pd.DataFrame,
    y: str,
    hue: str,
    col: str,
    palette: Mapping[str, Any] | None = None,
    height: float = 3.0,
    no_effect: float | None = None,
) -> np.ndarray:
    """Draw :func:`dots` in a panel for each value of a column, side by side, with one legend.

    Parameters
    ----------
    data, y, hue, palette, no_effect
        As :func:`dots` takes them.
    col : str
        Column: what has a panel.
    height : float
        Of the figure, in inches; it is 7.5 wide.

    Returns
    -------
    array of Axes
        The panels, from left to right; an empty one, where there is nothing to draw.
    """
    lines = pd.Categorical(data[y], _lines(data[y]))  # of all panels, since one may lack a line
    data = data.assign(**{y: lines})
    panels = data.groupby(col, sort=False)
    columns = max(1, len(panels))
    figure, axes = plt.subplots(1, columns, figsize=(7.5, height), sharey=True, squeeze=False)
    for ax, (name, part) in zip(axes[0], panels, strict=False):
        dots(ax, part, y, hue, palette, no_effect)
        ax.set_title(name, loc="center")
    handles = {}  # by label; a panel may lack one
    for ax in axes[0]:
        handles |= dict(zip(*reversed(ax.get_legend_handles_labels()), strict=True))
    where = {"loc": "lower center", "bbox_to_anchor": (0.5, 0.98), "ncol": 4}
    figure.legend(list(handles.values()), list(handles), **where)
    return axes[0]


def shade_layers(ax: Axes, lowest: int, num_layers: int) -> None:
    """Shade the layers that HARP prunes, from ``lowest`` up, where x is the layer's index."""
    ax.axvspan(lowest - 0.5, num_layers - 0.5, color=SHADE, zorder=0, linewidth=0)
