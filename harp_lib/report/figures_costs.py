"""Figures of notebooks 04 and 08: what the methods remove, and what that costs and saves."""

from typing import Any

import numpy as np
import pandas as pd
import seaborn.objects as so
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator

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

    A layer that HARP prunes counts as whole, because it loses all queries and keys.
    """
    stored = data.cells(profile["name"], "baselines")
    frame = data.in_order(_removed_groups(stored), "method", DRAWN_PLANS).reset_index(drop=True)
    frame = one_row_per_plan(frame, stored).replace({"methods": DRAWN_PLANS})
    squares = frame.assign(
        title=frame["methods"].map(plots.in_lines),
        colour=[LOOKS[method.removesuffix("-squared")].colour for method in frame["method"]],
        side=np.sqrt(70 * frame["value"]),  # points
    )
    plot = so.Plot(squares, x="layer", y="title", color="colour", pointsize="side")
    plot = plot.add(so.Dot(marker="s", edgewidth=0), legend=False)
    plot = plot.scale(color=None, pointsize=None, y=so.Nominal())
    drawn = plots.panels(plot, squares, size=(5.2, 2.8), wrap=2, share=(False, False), x="layer")
    for axis, part in drawn.panels:
        axis.set_xlim(-1, part["layers"].iloc[0])
        axis.locator_params(axis="x", integer=True)
    drawn.numbers = frame
    title = "The key/value groups that each method removes, layer by layer"
    note = "{model}a square is as large as the share of the layer's groups that goes"
    return plots.finish(drawn, title, note)


def _removed_groups(stored: Cells) -> pd.DataFrame:
    """The share of its key/value groups that each layer of each plan loses.

    Columns: model, method, title, layer, value (the share, 0 to 1), layers (of the whole model).
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
            if part.get("alpha") is not None:
                share = 1.0
            title = DRAWN_PLANS[method]
            rows.append((model, method, title, part["layer"], share, plan["num_layers"]))
    return pd.DataFrame(rows, columns=["model", "method", "title", "layer", "value", "layers"])


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


def _ratios(profile: dict, panels: dict[str, tuple[str, str]], **axes: str) -> Figure:
    """Columns of the efficiency frames against length, with a line at 1 in each panel.

    ``panels`` has a kind of measurement and a column of :func:`efficiency` for each panel's title.
    The last word of the column is the variant that is 1.
    """
    frames = {kind: efficiency(profile, kind) for kind, _ in panels.values()}
    parts = []
    for title, (kind, column) in panels.items():
        part = frames[kind].query("variant in @TIMED")
        part = part.assign(what=title, of=column.split()[-1])
        for name, end in ENDS.items():
            part[name] = part.get(column + end)
        parts.append(part)
    frame = pd.concat(parts, ignore_index=True).dropna(subset="value")
    layout = {
        "bars": True,
        "panel": ["model", "what"],
        "size": (4.4, 3.3),
        "wrap": max(2, frame["model"].nunique()),
        "x": "tokens (log scale)",
    }
    drawn = plots.lines(frame, "length", "variant", TIMED, **layout, **axes)
    for axis, part in drawn.panels:
        axis.axhline(1, color=(LOOKS | TIMED)[part["of"].iloc[0]].colour, linewidth=1, zorder=0)
        axis.set_xscale("log", base=2)
        axis.xaxis.set_major_locator(LogLocator(base=2, numticks=4))
        axis.xaxis.set_minor_locator(NullLocator())
        axis.xaxis.set_major_formatter("{x:,.0f}")
    return drawn


@figure("efficiency")
def time_saved(profile: dict) -> Figure:
    """The time of a prefill as a multiple of the dense model's and of an evenly thinned model's.

    Bands are the operations left; the paper's times stand beside the first.
    """
    dense = "times the dense model's"
    thinned = "times the evenly thinned model's"
    panels = {dense: ("prefill", "of dense"), thinned: ("prefill", "of thinned")}
    drawn = _ratios(profile, panels, y="time, as a multiple")
    paper = paper_times()
    for axis, part in drawn.panels:
        if part["what"].iloc[0] != dense:
            continue
        for variant, line in part.groupby("variant"):
            low = line["flops full of dense"]
            high = line["flops causal of dense"]
            colour = TIMED[variant].colour
            axis.fill_between(line["length"], low, high, color=colour, alpha=0.15, linewidth=2)
        label = "HARP in the paper (H100)"
        axis.scatter(paper.index, paper, 70, PAPER, marker="X", label=label)
    longest = drawn.numbers["length"].max()
    last = drawn.numbers.query("variant == 'harp' and length == @longest")
    multiples = []
    for name, part in last.groupby("what", sort=False):
        multiples.append(f"{plots.span(part['value'])} {name}")
    title = f"HARP takes {' and '.join(multiples)} time at {longest:,} tokens"
    note = (
        "95 % intervals over repetitions; "
        "bands: operations left, of all and of visible query-key pairs"
    )
    return plots.finish(drawn, title, note)


@figure("efficiency")
def memory_and_decode(profile: dict) -> Figure:
    """What is left of the time of a new token, of the KV cache and of the peak of a prefill."""
    cache = "KV cache, times dense"
    panels = {
        "time of a new token, times dense": ("decode", "of dense"),
        cache: ("prefill", "cache_bytes of dense"),
        "time of a new token, times thinned out evenly": ("decode", "of thinned"),
        "peak of a prefill, times dense": ("prefill", "peak_bytes of dense"),
    }
    drawn = _ratios(profile, panels, y="as a multiple")
    left = plots.span(drawn.numbers.query("what == @cache and variant == 'harp'")["value"], ".0%")
    note = "{model}marks upon each other are equal; 95 % intervals over repetitions of the times"
    return plots.finish(drawn, f"HARP keeps {left} of the KV cache", note)


def time_found(profile: dict) -> pd.DataFrame:
    """HARP's prefill time at the longest text that was timed repeatedly, as a multiple.

    It is compared with the dense model and with the evenly thinned one.
    """
    prefills = efficiency(profile, "prefill")
    rows = []
    if len(prefills):
        repeated = prefills.query("repetitions > 1")
        for model, part in repeated.groupby("model", sort=False):
            rows += _longest_prefill(model, part)
    columns = {"model": "{model}", "tokens": "{length:,}", "against": "{other}"}
    for variant in READ:
        form = "{NAME:.3f} [{NAME low:.3f}, {NAME high:.3f}]"
        columns[VARIANTS[variant]] = form.replace("NAME", variant)
    return stacked(lines(pd.DataFrame(rows), columns))


def _longest_prefill(model: str, part: pd.DataFrame) -> list[dict[str, Any]]:
    """A row for each other model with which HARP's longest prefill can be compared."""
    longest = part["length"].max()
    last = part[part["length"] == longest].set_index("variant")
    rows = []
    for other in ("dense", "thinned"):
        row = {"model": model, "length": longest, "other": VARIANTS[other]}
        for variant in READ:
            for end in ENDS.values():
                row[variant + end] = last.get(f"of {other}{end}", {}).get(variant)
        if pd.notna(row["harp"]):
            rows.append(row)
    return rows
