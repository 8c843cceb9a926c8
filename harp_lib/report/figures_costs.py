"""Figures of notebook 08: what HARP costs and saves."""

from collections.abc import Iterable
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator

from harp_lib.report import figure, plots
from harp_lib.report.plots import LOOKS, PAPER, Look
from harp_lib.report.tables import (
    ENDS,
    VARIANTS,
    efficiency,
    lines,
    paper_times,
    stacked,
)

READ = ("harp", "harp-tail")  # two ways to run a prefill
LOOK = {"harp-tail": ("#004d40", "*"), "harp-folded": ("#7cb518", "^"), "thinned": ("#920000", "D")}
TIMED = {"harp": LOOKS["harp"]} | {name: Look(VARIANTS[name], *look) for name, look in LOOK.items()}


@figure("efficiency")
def time_saved(profile: dict) -> Figure:
    """The time of a prefill as a multiple of the dense model's, by length.

    Bands are the operations that HARP leaves with and without tail-only prefill. The paper's times
    stand beside them, as far as our lengths go.
    """
    frame = _multiples(efficiency(profile, "prefill"), "of dense")
    # Variants stand beside each other, so that their intervals can be seen.
    places = frame["variant"].map({name: place for place, name in enumerate(TIMED)})
    frame["place"] = frame["length"] * 1.09 ** (places - (len(TIMED) - 1) / 2)
    layout = {"bars": True, "size": (4.8, 3), "wrap": 2, "share": (True, True)}
    axes = {"x": "tokens (log scale)", "y": "time, as a multiple\nof the dense model's"}
    drawn = plots.lines(frame, "place", "variant", TIMED, **layout, **axes)
    paper = paper_times()
    for axis, part in drawn.panels:
        axis.axhline(1, color=LOOKS["dense"].colour, linewidth=1, zorder=0)
        _draw_operations(axis, part)
        beside = paper[paper.index <= part["length"].max()]
        if len(beside):
            label = "HARP in the paper (H100)"
            axis.scatter(beside.index, beside, 70, PAPER, marker="X", label=label)
        _token_axis(axis, part["length"].unique())
    title = "How long a prompt takes to read, relative to the dense model"
    note = "{model}95 % intervals over repetitions; bands are counted, not timed: the share of "
    note += "operations left, from all query-key pairs (lower edge) to the visible ones (upper)"
    longest = paper.index.max()
    if longest > frame["length"].max():
        note += f"; the paper has {paper[longest]:.2f} at {longest:,.0f} tokens"
    return plots.finish(drawn, title, note)


def _draw_operations(axis: Axes, part: pd.DataFrame) -> None:
    """Bands from the share of all operations that HARP leaves to that of the visible pairs."""
    for variant in READ:
        line = part[part["variant"] == variant]
        axis.fill_between(
            line["length"],
            line["flops full of dense"],
            line["flops causal of dense"],
            color=TIMED[variant].colour,
            alpha=0.2,
            linewidth=2,
            label=f"operations left: {TIMED[variant].label}",
        )


def _multiples(frame: pd.DataFrame, column: str) -> pd.DataFrame:
    """The rows of :func:`efficiency` with one of its intervals as value, low and high."""
    intervals = {name: frame[column + end] for name, end in ENDS.items()}
    frame = frame.assign(**intervals).dropna(subset="value")
    return frame.reset_index(drop=True)


def _token_axis(axis: Axes, lengths: Iterable[int]) -> None:
    """Make the x axis one of tokens, on a log scale with a tick at each length."""
    axis.set_xscale("log", base=2)
    axis.xaxis.set_major_locator(FixedLocator(sorted(lengths)))
    axis.xaxis.set_minor_locator(NullLocator())
    axis.xaxis.set_major_formatter("{x:,.0f}")


@figure("efficiency")
def decode_time(profile: dict) -> Figure:
    """The time of a new token as a multiple of the dense model's, by length of the text."""
    frame = _multiples(efficiency(profile, "decode"), "of dense")
    frame["tokens"] = [f"after {length:,} tokens" for length in frame["length"]]
    layout = {"size": (4.8, 1.8), "wrap": 2, "share": (True, False)}
    drawn = plots.dots(frame, "tokens", "variant", TIMED, x="times the dense model's", **layout)
    for axis, _ in drawn.panels:
        axis.axvline(1, color=LOOKS["dense"].colour, linewidth=1)
    title = "How long a new token takes, relative to the dense model"
    return plots.finish(drawn, title, "{model}95 % intervals over repetitions")


def time_found(profile: dict) -> pd.DataFrame:
    """HARP's prefill time as a multiple, at each length that was timed repeatedly.

    It is compared with the dense model and with the evenly thinned one.
    """
    prefills = efficiency(profile, "prefill")
    rows = []
    if len(prefills):
        repeated = prefills[prefills["repetitions"] > 1]
        for (model, length), part in repeated.groupby(["model", "length"], sort=False):
            rows += _times_of_prefill(model, length, part.set_index("variant"))
    columns = {"model": "{model}", "tokens": "{length:,}", "against": "{other}"}
    for variant in READ:
        form = "{NAME:.3f} [{NAME low:.3f}, {NAME high:.3f}]"
        columns[VARIANTS[variant]] = form.replace("NAME", variant)
    return stacked(lines(pd.DataFrame(rows), columns))


def _times_of_prefill(model: str, length: int, variants: pd.DataFrame) -> list[dict[str, Any]]:
    """A row for each other model with which HARP's prefill can be compared."""
    rows = []
    for other in ("dense", "thinned"):
        row = {"model": model, "length": length, "other": VARIANTS[other]}
        for variant in READ:
            for end in ENDS.values():
                row[variant + end] = variants.get(f"of {other}{end}", {}).get(variant)
        if pd.notna(row["harp"]):
            rows.append(row)
    return rows
