"""Figures of notebook 03: the search for α."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.pyplot import get_cmap
from matplotlib.ticker import LogLocator

from harp_lib.names import CORPUS_TITLES, display_name
from harp_lib.report import data, figure, plots
from harp_lib.report.figures_layers import rank_trend
from harp_lib.report.plots import Look, span
from harp_lib.report.tables import perplexities


@figure("alpha_search")
def alpha_curves(profile: dict) -> Figure:
    """Perplexity against α, a line for each searched layer, and the dense model's perplexity.

    The layers above it have their best α, the layers below are dense. With several models the
    panels are those of the first corpus; the numbers are those of all (:func:`searched_curves`).
    """
    all_curves = searched_curves(profile)
    frame = all_curves
    if len(all_curves["model"].unique()) > 1:
        is_first = all_curves["corpus"] == all_curves["corpus"].iloc[0]
        frame = all_curves[is_first].reset_index(drop=True)
    layout = {
        "panel": "panel",
        "wrap": 2,
        "size": (4.4, 2.6),
        "share": (True, False),
        "x": "α of the layer",
        "y": "perplexity per token (log scale)",
    }
    looks = _looks_of_depths(sorted(frame["depth"].unique()))
    drawn = plots.lines(frame, "alpha", "depth", looks, **layout)
    best = frame.loc[frame.groupby(["panel", "depth"], sort=False)["value"].idxmin()]
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
        axis.axhline(part["dense"].iloc[0], color=plots.DENSE, linestyle=":", label="dense model")
    title = f"The best α lies between 0 and 1 in {_inner(frame)} layers"
    if len(frame) < len(all_curves):
        shown = CORPUS_TITLES[frame["corpus"].iloc[0]]
        title += f" on {shown}, and in {_inner(all_curves)} on all texts"
    note = "{documents} documents, those that α is searched on"
    drawn = plots.finish(drawn, title, note, log="y")
    drawn.numbers = all_curves
    return drawn


def _inner(curves: pd.DataFrame) -> str:
    """In how many of the curves the best α is neither 0 nor 1."""
    best = curves.loc[curves.groupby(["panel", "depth"], sort=False)["value"].idxmin()]
    inner = best["alpha"].between(0, 1, inclusive="neither").sum()
    return f"{inner} of {len(best)}"


def searched_curves(profile: dict) -> pd.DataFrame:
    """Perplexity of every α that Algorithm 1 tried, on each corpus.

    Columns: those of the store, documents (how many α is searched on), dense (the dense model's
    perplexity on them), panel (model and text), and depth (0 for the top layer).
    """
    frame = data.tidy(profile["name"], "alpha_search", "perplexity")
    frame = frame[frame["method"] == "harp"]
    searched = perplexities(profile, "alpha_search")
    dense = searched[(searched["split"] == "test") & (searched["method"] == "dense")]
    dense = dense[["model", "corpus", "documents", "value"]].rename(columns={"value": "dense"})
    frame = frame.merge(dense, how="left", on=["model", "corpus"])
    frame["panel"] = _model_and_text(frame)
    frame["depth"] = frame.groupby("model")["layer"].transform("max") - frame["layer"]
    return frame


def _model_and_text(frame: pd.DataFrame) -> pd.Series:
    """The name of each row's model and text, for a panel."""
    return frame["model"].map(display_name) + ", " + frame["corpus"].map(CORPUS_TITLES)


def _looks_of_depths(depths: Sequence[float]) -> dict[float, Look]:
    """A shade for each depth below the top layer."""
    shades = get_cmap("viridis")(np.linspace(0.05, 0.9, len(depths)))
    looks = {}
    for depth, shade in zip(depths, shades, strict=True):
        label = f"{depth:.0f} below" if depth else "top layer"
        looks[depth] = Look(label, shade, ".")
    return looks


RISING = ("LLaMA3.1-8B", "Mistral-7B-v0.3", "Qwen2-7B")  # by the paper, α rises in these
MARKERS = ("o", "s", "^", "D", "v")


@figure("alpha_search")
def alpha_by_layer(profile: dict) -> Figure:
    """Searched α against the layer: two panels of the paper's models, one for each of ours.

    On the first corpus our line is that of the deepest search there is, which notebook 09 makes.
    """
    ours = _searched_here(profile["name"])
    paper = _searched_in_paper()
    frame = pd.concat([paper, ours], ignore_index=True)
    top = frame.groupby(["panel", "line"])["layer"].transform("max")
    frame["below"] = frame["layer"] - top
    layout = {
        "panel": "panel",
        "wrap": 2,
        "share": (False, True),
        "size": (4.4, 2.3),
        "x": "layers below the top one (0)",
        "y": "searched α",
    }
    drawn = plots.lines(frame, "below", "line", _looks_of_searches(frame), **layout)
    trends = {}
    for source, part in frame.groupby("source"):
        trends[source] = span(rank_trend(part.assign(model=part["panel"] + part["line"])), "+.2f")
    title = (
        f"Does α rise with the layer? Rank correlation {trends['paper']} in the paper, "
        f"{trends['ours']} here"
    )
    note = "Hollow: searched again on other documents of the same text"
    return plots.finish(drawn, title, note, ylim=(-0.05, 1.1))


def _searched_in_paper() -> pd.DataFrame:
    """The paper's α on WikiText-2, in a panel for the models in which it rises and one more."""
    rows = data.paper("alpha_search").rename(columns={"task": "corpus"})
    rows = rows[rows["corpus"] == "wikitext"]
    is_rising = rows["model"].isin(RISING)
    titles = {True: "The paper: models where α rises", False: "The paper, other models"}
    return rows.assign(line=rows["model"], panel=is_rising.map(titles), source="paper")


def _searched_here(profile: str) -> pd.DataFrame:
    """Our α: of each corpus, of a second sample of it, and of the deepest search on the first."""
    rows = data.tidy(profile, "alpha_search", "alpha")
    deeper = data.tidy(profile, "frontier", "alpha")
    deeper = deeper[deeper["method"] == "harp"]
    is_searched_deeper = (
        (rows["method"] == "harp")
        & rows["model"].isin(deeper["model"])
        & (rows["corpus"] == rows["corpus"].iloc[0])
    )
    rows = pd.concat([rows[~is_searched_deeper], deeper], ignore_index=True)
    line = rows["corpus"].map(CORPUS_TITLES)
    line = line.where(rows["method"] == "harp", line + ", again")
    panel = rows["model"].map(display_name)
    models = list(dict.fromkeys(data.tidy(profile, "alpha_search", "alpha")["model"]))
    return data.in_order(rows.assign(line=line, panel=panel, source="ours"), "model", models)


def _looks_of_searches(frame: pd.DataFrame) -> dict[str, Look]:
    """The paper's models in greys, our corpora in two colours, second samples hollow."""
    looks = {}
    for marker, model in zip(MARKERS, data.paper("alpha_search")["model"].unique(), strict=True):
        shade = plots.DENSE if model in RISING else plots.PAPER
        looks[model] = Look(f"{model} (paper)", shade, marker)
    ours = frame[frame["source"] == "ours"]
    corpora = ours["corpus"].map(CORPUS_TITLES).unique()
    for corpus, colour in zip(corpora, (plots.FIRST, plots.SECOND), strict=False):
        looks[corpus] = Look(corpus, colour)
        again = f"{corpus}, again"
        looks[again] = Look(again, colour, "o", ":", hollow=True)
    return looks


@figure("alpha_search")
def alpha_held_out(profile: dict) -> Figure:
    """Held-out perplexity of each choice of α as a multiple of the dense model's, for each text."""
    rows = perplexities(profile, "alpha_search", "dense")
    rows = rows[(rows["split"] == "validation") & (rows["method"] != "dense")]
    frame = rows[["model", "method", "corpus", "documents"]].copy()
    frame["value"] = 1 + rows["dense"]
    frame["low"] = 1 + rows["dense low"]
    frame["high"] = 1 + rows["dense high"]
    frame["text"] = frame["corpus"].map(CORPUS_TITLES)
    frame["name"] = _names_of_choices(frame)
    frame = data.in_order(frame, "name", CHOICES)
    models = list(dict.fromkeys(rows["model"]))
    frame = data.in_order(frame, "corpus", dict.fromkeys(rows["corpus"]))
    layout = {
        "panel": "text",
        "size": (5, 3.6),
        "x": "multiple of the dense perplexity (log scale)",
    }
    drawn = plots.dots(frame, "name", "model", _looks_of_models(models), **layout)
    searched = span(frame.loc[frame["name"] == CHOICES[0], "value"], ".1f")
    unscaled = span(frame.loc[frame["name"] == CHOICES[3], "value"], ".1f")
    title = (
        f"On held-out text perplexity is {searched} times the dense model's with a searched α, "
        f"{unscaled} times with α = 1"
    )
    note = "{model}95 % intervals over {documents} documents, paired by document"
    drawn = plots.finish(drawn, title, note, log="x")
    for axis, _ in drawn.panels:
        axis.xaxis.set_major_locator(LogLocator(subs=(1, 1.5, 2, 3, 5), numticks=12))
    return drawn


CHOICES = (
    "α searched on this text",
    "α of a second sample of it",
    "α searched on the other",
    "α = 1",
    "α = 0",
)
"""What α a plan has, beside the text that perplexity is measured on, from top to bottom."""


def _names_of_choices(frame: pd.DataFrame) -> list[str]:
    """Which of the choices the plan of each row is."""
    names = []
    for method, corpus in zip(frame["method"], frame["corpus"], strict=True):
        if method == f"searched-on-{corpus}":
            names.append(CHOICES[0])
        elif method.startswith("resampled"):
            names.append(CHOICES[1])
        elif method.startswith("searched"):
            names.append(CHOICES[2])
        elif method == "alpha-1":
            names.append(CHOICES[3])
        else:
            names.append(CHOICES[4])
    return names


def _looks_of_models(models: Sequence[str]) -> dict[str, Look]:
    """A shade and a marker for each model."""
    shades = get_cmap("viridis")(np.linspace(0.05, 0.8, len(models)))
    looks = {}
    for model, shade, marker in zip(models, shades, MARKERS, strict=False):
        looks[model] = Look(display_name(model), to_hex(shade), marker)
    return looks
