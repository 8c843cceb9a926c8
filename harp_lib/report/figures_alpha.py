"""Figures of notebook 03: the search for α."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.pyplot import get_cmap

from harp_lib.names import CORPUS_TITLES, display_name
from harp_lib.report import data, figure, plots
from harp_lib.report.figures_layers import rank_trend
from harp_lib.report.plots import LOOKS, Look, span, with_paper
from harp_lib.report.tables import perplexities


@figure("alpha_search")
def alpha_curves(profile: dict) -> Figure:
    """Perplexity against α, a line for each searched layer.

    The layers above it have their best α, the layers below are dense.
    """
    frame = data.tidy(profile["name"], "alpha_search", "perplexity").query("method == 'harp'")
    searched = perplexities(profile, "alpha_search").query("split == 'test'")
    searched = searched.drop_duplicates(["model", "corpus"])
    frame = frame.merge(searched[["model", "corpus", "documents"]], how="left")
    frame["text"] = frame["corpus"].map(CORPUS_TITLES)
    frame["depth"] = frame.groupby("model")["layer"].transform("max") - frame["layer"]
    layout = {
        "panel": ["model", "text"],
        "wrap": 2,
        "size": (4.4, 2.6),
        "share": (True, False),
        "x": "α of the layer",
        "y": "perplexity per token (log scale)",
    }
    looks = _looks_of_depths(sorted(frame["depth"].unique()))
    drawn = plots.lines(frame, "alpha", "depth", looks, **layout)
    best = frame.loc[frame.groupby(["model", "text", "depth"], sort=False)["value"].idxmin()]
    for axis, part in drawn.panels:
        best_here = best.loc[best.index.intersection(part.index)]
        axis.scatter(
            best_here["alpha"],
            best_here["value"],
            s=60,
            facecolor="none",
            edgecolor="black",
            zorder=3,
            label="best α",
        )
    inner = best["alpha"].between(0, 1, inclusive="neither").sum()
    title = f"The best α lies between 0 and 1 in {inner} of {len(best)} searches"
    note = "{model}{documents} documents, those that α is searched on"
    return plots.finish(drawn, title, note, log="y")


def _looks_of_depths(depths: Sequence[float]) -> dict[float, Look]:
    """A shade for each depth below the top layer."""
    shades = get_cmap("viridis")(np.linspace(0.05, 0.9, len(depths)))
    looks = {}
    for depth, shade in zip(depths, shades, strict=True):
        label = f"{depth:.0f} below" if depth else "top layer"
        looks[depth] = Look(label, shade, ".")
    return looks


@figure("alpha_search")
def alpha_by_layer(profile: dict) -> Figure:
    """Searched α against layer index: the paper's figure, from its numbers, and ours."""
    ours = data.tidy(profile["name"], "alpha_search", "alpha").query("method == 'harp'")
    frame = with_paper(ours, data.paper("alpha_search").rename(columns={"task": "corpus"}))
    frame["panel"] = frame["model"].map(display_name) + "\n" + frame["corpus"].map(CORPUS_TITLES)
    frame["kind"] = frame["source"].replace("ours", "harp")
    layout = {
        "panel": "panel",
        "share": (False, True),
        "size": (3, 2.2),
        "x": "layer index",
        "y": "searched α",
    }
    drawn = plots.bars(frame, "layer", "kind", **layout)
    for axis, part in drawn.panels:
        for row in part.itertuples():
            axis.text(row.layer, row.value, f"{row.value:g}", ha="center", va="bottom", size=8)
    trends = {}
    for source, part in frame.groupby("source"):
        trends[source] = span(rank_trend(part.assign(model=part["panel"])), "+.2f")
    title = (
        f"Does α rise with the layer? Rank correlation {trends['paper']} in the paper (grey), "
        f"{trends['ours']} here (blue)"
    )
    return plots.finish(drawn, title, "", ylim=(0, 1.1))


@figure("alpha_search")
def alpha_held_out(profile: dict) -> Figure:
    """Perplexity of each choice of α on held-out text, beside the paper's two by two numbers."""
    ours = perplexities(profile, "alpha_search").query("split == 'validation'")
    ours = ours.drop(columns="error")
    ours["kind"] = ours["method"].where(ours["method"].isin(LOOKS), "harp")
    printed = data.paper("alpha_robustness").rename(columns={"task": "corpus"})
    frame = with_paper(ours, printed.assign(kind="paper"))
    models = frame["model"].unique()  # the paper's first
    frame["name"] = _names_of_choices(frame)
    frame["text"] = frame["corpus"].map(CORPUS_TITLES)
    places = {name: _place_of_choice(name) for name in set(frame["name"])}
    frame = frame.sort_values("name", key=lambda names: names.map(places), kind="stable")
    frame = data.in_order(frame, "model", models)
    layout = {
        "panel": ["model", "text"],
        "wrap": 2,
        "size": (4.8, 1.9),
        "x": "perplexity per token (log scale)",
    }
    drawn = plots.dots(frame, "name", "kind", **layout)
    values = {kind: span(part["value"], ".0f") for kind, part in ours.groupby("kind")}
    title = (
        f"On held-out text perplexity is {values['harp']} with a searched α, "
        f"{values['alpha-1']} with α = 1"
    )
    note = "{model}95 % intervals over {documents} documents; the paper's perplexities are per word"
    return plots.finish(drawn, title, plots.about(ours, note), log="x")


def _names_of_choices(frame: pd.DataFrame) -> list[str]:
    """What the plan of each row is called beside the text that perplexity is measured on."""
    names = []
    for method, corpus in zip(frame["method"], frame["corpus"], strict=True):
        if method in LOOKS:
            name = LOOKS[method].label
        elif method.startswith("resampled"):
            name = "α of a second sample of this text"
        elif method == f"searched-on-{corpus}":
            name = "α searched on this text"
        else:
            name = "α searched on the other"
        names.append(name)
    return names


def _place_of_choice(title: str) -> int:
    """The place of a choice of α in a panel, from the top; what was not searched is last."""
    beginnings = ("α searched on this", "α of a second sample", "α searched on the other")
    for place, beginning in enumerate(beginnings):
        if title.startswith(beginning):
            return place
    return len(beginnings)
