"""The figure of notebook 00: all claims at one glance."""

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from harp_lib.paper_claims import MEASUREMENT, NOT, NOT_RUN, OUTCOMES, PARTLY, REPRODUCED, SMALL

# A shape and a colour for each outcome: from blue to red, which all eyes tell apart, and grey for what is open.
MARKS = {
    REPRODUCED: {"marker": "o", "color": "#2c7bb6"},
    PARTLY: {"marker": "o", "color": "#2c7bb6", "fillstyle": "left", "markerfacecoloralt": "white"},
    NOT: {"marker": "X", "color": "#d7191c", "markeredgecolor": "white", "markeredgewidth": 0.6},
    SMALL: {"marker": "s", "color": "#7f7f7f", "markerfacecolor": "white", "markeredgewidth": 1.5},
    NOT_RUN: {"marker": "_", "color": "#7f7f7f", "markeredgewidth": 2},
}
LINE, SIZE = 0.235, 9  # inches for a line of text, its size in points
GAP = 1.6  # lines from the last claim of a topic to the next topic


def verdicts(judged: pd.DataFrame, models: str) -> Figure:
    """Every claim as a line of text under its topic, marked by its outcome, in two columns.

    Parameters
    ----------
    judged : DataFrame
        As :func:`~harp_lib.paper_claims.judge` returns it.
    models : str
        Whose results decide, in words.
    """
    columns = _columns([list(part.itertuples()) for _, part in judged.groupby("topic", sort=False)])
    lines = max(sum(len(topic) + GAP for topic in column) for column in columns)
    figure, axes = plt.subplots(1, 2, figsize=(10, LINE * lines + 0.9))
    for axis, column in zip(axes, columns, strict=True):
        _draw(axis, column, lines)
    counts = judged["outcome"].value_counts()
    handles = [
        Line2D(
            [], [], linestyle="none", markersize=SIZE, label=f"{outcome} ({counts.get(outcome, 0)})", **MARKS[outcome]
        )
        for outcome in OUTCOMES
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), handletextpad=0.2, columnspacing=1.6)
    figure.suptitle(f"What the paper claims, and what was found ({models})", x=0.01, ha="left", fontsize=SIZE + 2)
    return figure


def _columns(topics: list[list]) -> tuple[list[list], list[list]]:
    """The topics in their order, parted where the longer of the two columns is shortest."""
    halves = [(topics[:cut], topics[cut:]) for cut in range(1, len(topics))]
    return min(halves, key=lambda half: max(sum(len(topic) + GAP for topic in column) for column in half))


def _draw(axis: Axes, topics: list[list], lines: int) -> None:
    small = {"fontsize": SIZE - 2, "va": "center", "ha": "right", "color": "#7f7f7f"}
    axis.text(1, 0.5, "notebook (* no model decides)", **small)
    first = 0.5
    for topic in topics:
        axis.text(0, first, topic[0].topic, weight="bold", fontsize=SIZE, va="center")
        for number, claim in enumerate(topic, start=1):
            line = first + number
            axis.plot(0.03, line, markersize=SIZE - 1, **MARKS[claim.outcome])
            axis.text(0.06, line, claim.label, fontsize=SIZE, va="center")
            star = "" if claim.by == MEASUREMENT else "*"
            axis.text(1, line, f"{star}{claim.notebook}", **small)
        first += len(topic) + GAP
    axis.set(xlim=(0, 1), ylim=(lines, 0))
    axis.axis("off")
