"""Figures of notebooks 04 and 08: what the methods remove, and what that costs and saves."""

from collections.abc import Iterable
from typing import Any

import pandas as pd
import seaborn.objects as so
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator

from harp_lib.names import BASELINES, CORPUS_TITLES, METHOD_TITLES
from harp_lib.report import data, figure, plots
from harp_lib.report.plans import one_row_per_plan
from harp_lib.report.plots import LOOKS, PAPER, Look
from harp_lib.report.scores import FLAPPED
from harp_lib.report.tables import (
    ENDS,
    VARIANTS,
    efficiency,
    lines,
    paper_times,
    perplexities,
    stacked,
)
from harp_lib.results import Cells

READ = ("harp", "harp-tail")  # two ways to run a prefill
LOOK = {"harp-tail": ("#004d40", "*"), "harp-folded": ("#7cb518", "^"), "thinned": ("#920000", "D")}
TIMED = {"harp": LOOKS["harp"]} | {name: Look(VARIANTS[name], *look) for name, look in LOOK.items()}
DRAWN_PLANS = METHOD_TITLES | {"flap-squared": "FLAP (upstream)"}


@figure("baselines")
def baseline_groups(profile: dict) -> Figure:
    """Share of the key/value groups that each method removes from each layer.

    A layer that HARP prunes loses the queries and keys of all groups, and is drawn hollow, because
    its values stay.
    """
    stored = data.cells(profile["name"], "baselines")
    frame = _removed_groups(stored)
    frame = frame[frame["value"] > 0]  # other layers lose FFN channels only
    frame = data.in_order(frame, "method", DRAWN_PLANS).reset_index(drop=True)
    frame = one_row_per_plan(frame, stored).replace({"methods": DRAWN_PLANS})
    plot = so.Plot(frame, x="layer", y="value")
    drawn = plots.panels(plot, frame, size=(5, 3), wrap=2, share=(False, False), x="layer")
    for axis, part in drawn.panels:
        _draw_groups(axis, part)
    title = "The key/value groups that each method removes, layer by layer"
    note = "{model}a full bar is all groups of the layer; hollow: queries and keys go, values stay"
    return plots.finish(drawn, title, note)


def _draw_groups(axis: Axes, plans: pd.DataFrame) -> None:
    """A row for each plan of a model, and in it a bar for each layer that loses groups."""
    titles = list(plans["methods"].unique())
    for row, title in enumerate(titles):
        plan = plans[plans["methods"] == title]
        colour = LOOKS[plan["method"].iloc[0].removesuffix("-squared")].colour
        for values_stay, layers in plan.groupby("values stay"):
            axis.bar(
                layers["layer"],
                0.8 * layers["value"],
                bottom=-row - 0.4,
                width=0.7,
                edgecolor=colour,
                facecolor="white" if values_stay else colour,
                linewidth=1.2,
            )
    axis.set_yticks(range(0, -len(titles), -1), [plots.in_lines(title) for title in titles])
    axis.set_ylim(-len(titles) + 0.4, 0.6)
    axis.set_xlim(-1, plans["layers"].iloc[0])
    axis.locator_params(axis="x", integer=True)
    axis.tick_params(axis="y", length=0)


def _removed_groups(stored: Cells) -> pd.DataFrame:
    """The share of its key/value groups that each layer of each plan loses.

    Columns: model, method, title, layer, value (the share, 0 to 1), values stay (of a layer without
    queries and keys), layers (of the whole model).
    """
    rows = []
    for (model, method, task), cell in stored.items():
        if task != "plan" or method not in DRAWN_PLANS:
            continue
        plan = cell["result"].get("plan")
        if not plan:
            continue
        for part in plan["layers"]:
            removed = part.get("removed_groups") or ()
            share = len(removed) / cell["result"]["groups_per_layer"]
            alpha = part.get("alpha")
            if alpha is not None:
                share = 1.0
            row = (model, method, DRAWN_PLANS[method], part["layer"], share)
            rows.append((*row, bool(alpha), plan["num_layers"]))
    columns = ["model", "method", "title", "layer", "value", "values stay", "layers"]
    return pd.DataFrame(rows, columns=columns)


@figure("baselines")
def baseline_change(profile: dict) -> Figure:
    """Held-out perplexity of each baseline as a multiple of HARP's and of HARP+FLAP's."""
    changes = perplexities(profile, "baselines", "harp", FLAPPED)
    changes = changes.query("method in @BASELINES and split == 'validation'")
    changes = one_row_per_plan(changes, data.cells(profile["name"], "baselines"))
    parts = []
    for reference, equal in (("harp", "heads"), (FLAPPED, "parameters")):
        part = changes[["model", "method", "methods", "documents"]].assign(reference=reference)
        fractions = changes[[reference + end for end in ENDS.values()]]
        part[list(ENDS)] = 1 + fractions.to_numpy()
        heading = f"as many {equal} as {METHOD_TITLES[reference]}\n"
        parts.append(part.assign(panel=heading + changes["corpus"].map(CORPUS_TITLES)))
    frame = pd.concat(parts, ignore_index=True).dropna(subset="value")
    frame = data.in_order(frame, "method", BASELINES)
    frame["title"] = frame["methods"].map(plots.in_lines)
    layout = {
        "panel": ["model", "panel"],
        "size": (4.4, 1.8),
        "wrap": 2,
        "share": (True, False),
        "x": "perplexity, as a multiple (log scale)",
    }
    drawn = plots.dots(frame, "title", "method", **layout)
    for axis, part in drawn.panels:
        axis.axvline(1, color=LOOKS[part["reference"].iloc[0]].colour, linewidth=1.5)
    multiples = plots.span(frame[frame["reference"] == FLAPPED]["value"])
    title = (
        f"At equal parameters the baselines have {multiples} times HARP+FLAP's held-out perplexity"
    )
    note = "{model}{documents} documents, 95 % intervals; right of the line the baseline is worse"
    return plots.finish(drawn, title, note, log="x")


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
