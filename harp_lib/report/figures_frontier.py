"""Notebook 09: how far HARP's layers go, refitted, and what else could stand there. Beyond the paper."""

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from harp_lib.measure.models import display_name
from harp_lib.measure.text import TITLES
from harp_lib.report import comparisons, data, figure, plots, table
from harp_lib.report.plots import LOOKS, Look, about, span
from harp_lib.report.tables import ENDS, Table, lines

REFIT, TWO = "harp+refit", "harp+refit-two"
FRONTIER = {name: LOOKS[name] for name in ("alpha-0", "harp", REFIT)}
FRONTIER[TWO] = LOOKS[REFIT]._replace(label="HARP+refit, two kinds of text", line="--", hollow=True)
RIVALS = {
    "nbl": Look("NBL", "#d55e00", "v"),
    "linear": Look("least squares, full rank", "#de8f05", "^"),
    "neighbours": Look("own, previous and first token", "#029e73", "P"),
    "windowed": Look("window of 32, 4 sinks (keeps Q, K)", "#949494", "D"),
    "boundary": Look("K, V from below (keeps Q, cache)", "#56b4e9", "X"),
}
SHOWN = FRONTIER | RIVALS
PASSKEY = "passkey"
TEXTS = TITLES | {PASSKEY: "pass key (retrieval)"}


COSTS = ("prefill left", "decode left", "cache left", "counted at", "seconds")


def changes(profile: dict, reference: str = "dense") -> pd.DataFrame:
    """Perplexity of each model as a multiple of the dense one's, or of another kind's with as many layers changed.

    Columns: model, kind, layers, corpus, perplexity, of the reference too, documents, value, low, high (the multiple,
    paired by document).
    """
    stored, rows = data.cells(profile["name"], "frontier"), []
    for (model, method, task), cell in stored.items():
        kind, _, layers = method.rpartition("-")
        other = stored.get((model, reference if reference == "dense" else f"{reference}-{layers}", task), cell)
        if other is cell or "nll" not in cell["result"]:
            continue
        (before, after), tokens = (each["result"]["nll"] for each in (other, cell)), cell["result"]["tokens"]
        found = comparisons.change(before, after, tokens)
        levels = (comparisons.perplexity(each, tokens)[0] for each in (after, before))
        rows.append((model, kind, int(layers), task.rpartition("-")[0], *levels, found.n, *(1 + np.array(found[:3]))))
    columns = ["model", "kind", "layers", "corpus", "perplexity", reference, "documents", *ENDS]
    frame = pd.DataFrame(rows, columns=columns)
    frame["text"] = frame["corpus"].map(TEXTS)
    return frame


def told(profile: dict) -> str:
    """Refitted against HARP where as many layers go as in the other notebooks, in a sentence."""
    found = changes(profile, "harp").query("kind == @REFIT and corpus != @PASSKEY")
    found = found[found["layers"] == found["model"].map(_usual(profile))]
    less, more = ((found["high"] < 1).sum(), (found["low"] > 1).sum())
    said = f"Refitted, {less} of {len(found)} pairs of model and text have less perplexity than HARP"
    return said + (f", {more} more" if more else ", none more")


def _usual(profile: dict) -> pd.Series:
    """By model, how many layers go in the other notebooks: rivals are compared there."""
    found = changes(profile)
    return found[found["kind"].isin(RIVALS)].groupby("model")["layers"].max()


@figure("frontier")
def frontier(profile: dict) -> Figure:
    """Perplexity against the number of layers that have no attention."""
    frame = changes(profile).query("kind in @FRONTIER and corpus != @PASSKEY")
    drawn, grid = plots.lines(frame, "value", "layers", "kind", FRONTIER, bars=True, panel=["model", "text"], wrap=2)
    plots.log_axis(grid[0][0], "y")
    note = about(frame, "95 % intervals over {} documents, as many layers at the top")
    axes = {"x": "value-only layers", "y": "times the dense perplexity (log scale)"}
    return plots.finish(drawn, grid, told(profile), note, **axes, level=1)


@figure("frontier")
def frontier_rivals(profile: dict) -> Figure:
    """What else could stand in the place of attention, at as many layers, also for finding a key."""
    found = changes(profile)
    frame = found[found["layers"] == found["model"].map(_usual(profile))].copy()
    frame["title"] = frame["kind"].map({kind: look.label for kind, look in SHOWN.items()})
    order = {kind: number for number, kind in enumerate(SHOWN)}
    frame = frame.sort_values("kind", key=lambda kinds: kinds.map(order), kind="stable")
    frame["panel"] = frame["model"].map(display_name) + "\n" + frame["text"]
    layout = {"panel": "panel", "wrap": 3, "size": (4.6, 2.6), "dodge": 0, "share": (False, True)}
    drawn, grid = plots.dots(frame, "value", "title", "kind", SHOWN, **layout)
    for axis, _ in grid:
        axis.axvline(1, color=plots.DENSE, linewidth=1)
        plots.log_axis(axis, "x")
    keys = frame[(frame["corpus"] == PASSKEY) & frame["kind"].isin([REFIT, "windowed", "boundary"])]
    said = {kind: span(part["perplexity"], ".1f") for kind, part in keys.groupby("kind")}
    title = f"Finding a key: perplexity {span(keys['dense'], '.1f')} dense, {said[REFIT]} refitted, "
    title += f"{said['windowed']} with a window, {said['boundary']} with keys and values from below"
    note = about(frame, "95 % intervals")
    return plots.finish(drawn, grid, title, note, x="times the dense perplexity (log scale)", legend=False)


@figure("frontier")
def explained_variance(profile: dict) -> Figure:
    """How much of an attention's variance a linear map of its own token explains, by layer."""
    frame = data.tidy(profile["name"], "frontier", "explained")
    frame["kind"] = frame["method"].str.rpartition("-")[0]
    frame["count"] = frame["method"].str.rpartition("-")[2].astype(int)
    frame = frame[frame["count"] == frame.groupby("model")["count"].transform("max")]
    looks = {kind: FRONTIER[kind] for kind in (REFIT, TWO)}
    drawn, grid = plots.lines(frame, "value", "layer", "kind", looks, wrap=3, share=(False, True))
    title = f"A token's own values explain {span(frame['value'])} of what attention puts out in the layers at the top"
    return plots.finish(drawn, grid, title, about(frame, ""), x="layer index", y="explained variance", ylim=(0, 1))


@table("frontier")
def frontier_costs(profile: dict) -> Table:
    """What refitting wins against HARP on each text, what it finds, and what its layers cost."""
    frame = changes(profile, "harp").query("kind in [@REFIT, @TWO]")
    fits = data.tidy(profile["name"], "frontier", *COSTS).pivot_table("value", ["model", "method"], "quantity")
    frame["method"] = [f"{kind}-{layers:02d}" for kind, layers in zip(frame["kind"], frame["layers"], strict=True)]
    frame = frame.join(fits, on=["model", "method"])
    columns = {
        "model": "{model}",
        "layers": "{layers}",
        "fitted on": "{fitted}",
        "text": "{text}",
        "HARP": "{harp:.2f}",
        "refitted": "{perplexity:.2f}",
        "multiple": "{value:.3f} [{low:.3f}, {high:.3f}]",
        "documents": "{documents:.0f}",
        "prefill left": "{prefill left:.1%}",
        "decode left": "{decode left:.1%}",
        "cache left": "{cache left:.1%}",
        "fit, s": "{seconds:.0f}",
    }
    frame["fitted"] = frame["kind"].map({REFIT: "one text", TWO: "two texts"})
    return lines(frame, columns), frame
