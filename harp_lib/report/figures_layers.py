"""Figures of notebooks 01 and 02: how alike tokens are, and what averaging them does to norms."""

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from harp_lib import config
from harp_lib.report import data, figure, plots, table
from harp_lib.report.comparisons import mean_interval, rank_correlation
from harp_lib.report.plots import FIRST, HARP, LOOKS, RANDOM, SECOND, Look
from harp_lib.report.tables import ENDS, Table, ends, lines, perplexities, stacked

RANDOM_TWIN = Look("random weights", RANDOM, ".", "--")
ALIKE = {  # whose similarity
    "stream": Look("residual stream", plots.DENSE, "."),
    "heads": Look("what heads read, after the norm", FIRST, "."),
    "random": RANDOM_TWIN._replace(label="both, with random weights"),
}
CHANGES = {  # what a trained layer changes, from the largest change to the smallest
    "value gap": Look("values: ‖ÂV − V‖ / ‖V‖", SECOND, "."),
    "branch gap": Look("stream without Q and K: ‖A − B‖ / ‖H‖", HARP, "."),
    "block influence": Look("Block Influence: 1 − cosine", plots.DENSE, ".", "--"),
    "attention influence": Look("Block Influence of attention alone", FIRST, ".", ":"),
}
RULES = {  # how α is chosen in notebook 02
    "searched": LOOKS["harp"]._replace(label="searched α"),
    "norm-matching": Look("α that keeps the norm", FIRST, "^"),
    "reconstructing": Look("α that keeps the branch", SECOND, "D", "-."),
    "constant": Look("α = 0.5", plots.PAPER, "s", ":", hollow=True),
    "alpha-1": LOOKS["alpha-1"]._replace(label="α = 1"),
    "dense": LOOKS["dense"],
}


@figure("similarity")
def similarity_by_layer(profile: dict) -> Figure:
    """Sim(H) of the residual stream that enters each layer, and of what its heads read.

    Norms of an untrained twin have no gain, so both are equal there and are drawn once.
    """
    similarities = data.tidy(profile["name"], "similarity", "similarity", "projected similarity")
    is_random = similarities["method"] == "random"
    of_stream = similarities["quantity"] == "similarity"
    similarities = similarities[of_stream | ~is_random]
    measured = np.where(of_stream, "stream", "heads")
    similarities["whose"] = pd.Series(measured, of_stream.index).mask(is_random, "random")
    frame = over_documents(similarities, "model", "whose", "layer")
    axes = {
        "x": "layer index (last: what leaves the top)",
        "y": "Sim, mean cosine of token pairs",
    }
    drawn = plots.lines(frame, "layer", "whose", ALIKE, wrap=2, share=(False, True), **axes)
    title = "How alike are tokens, in the residual stream and where heads read?"
    return plots.finish(drawn, title, level=1, ylim=(min(0, frame["low"].min()), 1.05))


@figure("theory")
def uniformity(profile: dict) -> Figure:
    """Normalised entropy of random heads while Sim(H) → 1, a panel for each kind of head.

    Rows have equal or different lengths, and heads have no positions or rotary ones.
    """
    sweep = data.table(profile["name"], "theory", "uniformity-sweep")
    of_spread = sweep.groupby(["equal lengths", "rotary", "spread"])
    sweep["1 − Sim"] = 1 - of_spread["similarity"].transform("mean")
    lengths = {True: "equal lengths", False: "different lengths"}
    sweep["rows"] = sweep["equal lengths"].map(lengths)
    sweep["positions"] = sweep["rotary"].map({False: "no positions", True: "rotary positions"})
    frame = over_draws(sweep, "entropy", "rows", "positions", "1 − Sim")
    looks = {
        "no positions": Look("no positions", FIRST, "."),
        "rotary positions": Look("rotary positions", SECOND, ".", "--"),
    }
    axes = {
        "x": "1 − Sim(H): tokens more alike to the right",
        "y": "normalised entropy (1: uniform)",
    }
    layout = {"panel": ["rows", "positions"], "wrap": 2, "size": (4.4, 2.3)}
    drawn = plots.lines(frame, "1 − Sim", "positions", looks, **layout, **axes)
    drawn.looks = []  # the names of the panels say what is drawn
    first_axis, _ = drawn.panels[0]
    first_axis.set_xscale("log")
    first_axis.invert_xaxis()
    title = "Are random heads uniform as Sim goes to 1?"
    note = (
        f"line: mean of {sweep['draw'].nunique()} random heads under a causal mask; "
        "band: where the middle 90 % of them lie"
    )
    return plots.finish(drawn, title, note, level=1, ylim=(0, 1.05))


@figure("similarity")
def attention_entropy(profile: dict) -> Figure:
    """Normalised entropy of every head against Sim of its normalised input, a point for each head.

    Both are means over documents. The number at a point is its layer: that of the most uniform
    trained head among the layers that HARP prunes, and among those below.
    """
    keys = ["model", "method", "corpus", "layer", "document"]
    heads = data.tidy(profile["name"], "similarity", "entropy").dropna(subset="document")
    similarities = data.tidy(profile["name"], "similarity", "projected similarity")
    similarities = similarities.rename(columns={"value": "sim"})
    heads = heads.merge(similarities[[*keys, "sim"]], on=keys)
    of_head = heads.groupby(["model", "method", "layer", "head"], sort=False)
    frame = of_head[["sim", "value"]].mean().reset_index()
    place = np.where(is_pruned(profile, frame), "pruned", "below")
    frame["kind"] = np.where(frame["method"] == "random", "random", place)
    looks = {
        "random": RANDOM_TWIN,
        "below": Look("layers below", SECOND),
        "pruned": Look("layers that HARP prunes", FIRST),
    }
    axes = {
        "x": "Sim of what the heads read",
        "y": "entropy of attention (1: uniform)",
    }
    drawn = plots.points(frame, "sim", "kind", looks, wrap=2, share=(False, True), **axes)
    for axis, part in drawn.panels:
        trained = part[part["method"] == "trained"]
        for row in trained.loc[trained.groupby("kind")["value"].idxmax()].to_dict("records"):
            text = f"layer {row['layer']:.0f}"
            axis.annotate(
                text,
                (row["sim"], row["value"]),
                xytext=(6, 2),
                textcoords="offset points",
                size=plots.NOTE_SIZE,
                bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 0.5},
                zorder=4,
            )
    title = "Do heads attend more uniformly where they read tokens that are more alike?"
    note = (
        "{model}a point for each head, mean over documents; named: the layer of the most uniform "
        "head, pruned and below"
    )
    return plots.finish(drawn, title, note, level=1, ylim=(-0.03, 1.08))


def is_pruned(profile: dict, frame: pd.DataFrame) -> pd.Series:
    """Whether each row, of all layers of some models, is of a layer that HARP prunes."""
    first_pruned = {}
    for model, top in frame.groupby("model")["layer"].max().astype(int).items():
        first_pruned[model] = top + 1 - config.num_pruned_layers(profile, model, top + 1)
    return frame["layer"] >= frame["model"].map(first_pruned)


@figure("similarity")
def layer_changes(profile: dict) -> Figure:
    """How much a trained layer changes values, residual stream and tokens, by layer index."""
    frame = data.tidy(profile["name"], "similarity", *CHANGES)
    frame = frame[frame["method"] == "trained"]
    models = frame["model"].unique()
    frame = over_documents(frame, "model", "quantity", "layer")
    frame = data.in_order(data.in_order(frame, "quantity", CHANGES), "model", models)
    axes = {"x": "layer index", "y": "ratio of norms, or 1 − cosine"}
    drawn = plots.lines(frame, "layer", "quantity", CHANGES, wrap=2, share=(False, True), **axes)
    note = (
        "{model}log scale; solid lines are ratios of norms, broken lines are Block Influence; "
        "95 % intervals over {documents} documents"
    )
    return plots.finish(drawn, "What does each layer change?", note, log="y")


@table("similarity")
def layers_found(profile: dict) -> Table:
    """Where each model's layers come nearest to what the theory needs, a row for each model."""
    quantities = ("similarity", "projected similarity", "branch gap", "block influence")
    observed = data.tidy(profile["name"], "similarity", *quantities)
    observed = observed[observed["method"] == "trained"].astype({"value": float})
    factors = data.tidy(profile["name"], "similarity", "v").set_index("model")["value"]
    rows = []
    for model, part in observed.groupby("model", sort=False):
        means = part.groupby(["quantity", "layer"])["value"].mean()
        influence = means["block influence"]
        rows.append(
            {
                "model": model,
                "layers": len(influence),
                "stream": means["similarity"].max(),
                "heads": means["projected similarity"].max(),
                "least_changed": means["branch gap"].idxmin(),
                "top_rank": influence.rank(ascending=False).iloc[-1],
                "small_v": (factors[[model]] < 1).sum(),
                "documents": part.groupby("corpus")["document"].nunique().sum(),
            }
        )
    columns = {
        "model": "{model}",
        "highest Sim: stream": "{stream:.2f}",
        "heads read": "{heads:.2f}",
        "least changed": "layer {least_changed} of 0 to {last}",
        "BI of the top layer": "rank {top_rank:.0f} of {layers}",
        "v < 1": "{small_v} of {layers} layers",
        "documents": "{documents}",
    }
    frame = pd.DataFrame(rows).assign(last=lambda rows: rows["layers"] - 1)
    return lines(frame, columns), frame


@figure("theory")
def norm_change(profile: dict) -> Figure:
    """‖ÂH‖/‖H‖ from one-hot rows to uniform ones, for three kinds of rows of H."""
    sweep = data.table(profile["name"], "theory", "norm-sweep")
    sweep["x"] = sweep.groupby(["rows", "mask", "temperature"])["entropy"].transform("mean")
    sweep["rows"] = "rows of H: " + sweep["rows"]
    frame = over_draws(sweep, "ratio", "rows", "mask", "x")
    looks = {
        "full": Look("full attention", FIRST, "."),
        "causal": Look("causal attention", SECOND, ".", "--"),
    }
    axes = {"x": "normalised entropy of attention (1: uniform)", "y": "‖ÂH‖ / ‖H‖"}
    drawn = plots.lines(frame, "x", "mask", looks, panel="rows", size=(3.6, 3.2), **axes)
    title = "What averaging does to the norm depends on the rows of H"
    note = (
        f"line: mean of {sweep['draw'].nunique()} random draws; "
        "band: where the middle 90 % of them lie; 1 is the norm kept"
    )
    return plots.finish(drawn, title, note, level=1, ylim=(0, None))


@figure("norm_change")
def value_norms(profile: dict) -> Figure:
    """‖ÂV‖/‖V‖ of every head, mean over documents, a point for each head."""
    ratios = data.tidy(profile["name"], "norm_change", "ratio")
    frame = over_documents(ratios, "model", "layer", "head").drop(columns=["low", "high"])
    looks = dict.fromkeys(frame["model"], Look("a head", FIRST, "."))
    axes = {"x": "layer index", "y": "‖ÂV‖ / ‖V‖ (log scale)"}
    drawn = plots.points(frame, "layer", "model", looks, wrap=2, share=(False, True), **axes)
    title = "How much of its values' norm does each head keep?"
    note = "{model}a point for each head, mean over {documents} documents; 1 is the norm kept"
    return plots.finish(drawn, title, note, log="y", level=1)


@figure("norm_change")
def stream_norms(profile: dict) -> Figure:
    """Norm of the residual stream relative to the dense model, from the first pruned layer up."""
    frame = relative_norms(profile)
    axes = {
        "x": "layer entered (last: what leaves the top)",
        "y": "‖H‖ relative to the dense model",
    }
    layout = {"bars": True, "wrap": 2, "share": (False, True)}
    drawn = plots.lines(frame, "layer", "method", RULES, **layout, **axes)
    return plots.finish(drawn, "Does α bring the norm of the residual stream back?", level=1)


@figure("norm_change")
def rescaling_perplexity(profile: dict) -> Figure:
    """Perplexity of every way to choose α, against the searched α, paired by document."""
    frame = perplexities(profile, "norm_change", "searched")
    frame = frame[frame["method"] != "searched"]
    changes = frame[["searched" + end for end in ENDS.values()]]
    frame[list(ENDS)] = 100 * changes.to_numpy()
    frame["name"] = [RULES[rule].label for rule in frame["method"]]
    axes = {"size": (4.8, 2.4), "wrap": 2, "share": (False, True), "x": "change of perplexity (%)"}
    drawn = plots.dots(frame, "name", "method", RULES, **axes)
    for axis, _ in drawn.panels:
        axis.axvline(0, color=HARP, linewidth=1.5)
    title = "Perplexity with each way to choose α, against the searched α"
    note = (
        "{model}95 % intervals over {documents} held-out documents; the line is the searched α. "
        "An interval that its mark hides is in the table below"
    )
    return plots.finish(drawn, title, note)


@table("norm_change")
def ways_to_choose_alpha(profile: dict) -> Table:
    """Mean α of each way to choose it, the norm that it leaves, and its perplexity.

    Both numbers are over held-out documents: the norm at the top relative to the dense model's, and
    the perplexity against the searched α, in per cent.
    """
    alphas = data.tidy(profile["name"], "norm_change", "alpha")
    alphas = alphas.groupby(["model", "method"])["value"].mean()
    norms = relative_norms(profile)
    at_the_top = norms["layer"] == norms.groupby("model")["layer"].transform("max")
    norms = norms[at_the_top].set_index(["model", "method"])
    frame = perplexities(profile, "norm_change", "searched")
    frame = frame[~frame["method"].isin(["dense"])].reset_index(drop=True)
    rows = []
    for row in frame.to_dict("records"):
        key = (row["model"], row["method"])
        deviation = 100 * (norms.loc[key, list(ENDS)] - 1)
        change = [np.nan] * len(ENDS)
        if row["method"] != "searched":
            change = [100 * row["searched" + end] for end in ENDS.values()]
        rows.append(
            {
                "model": row["model"],
                "method": row["method"],
                "rule": RULES[row["method"]].label,
                "alpha": alphas[key],
                "documents": row["documents"],
                **ends("norm", deviation),
                **ends("change", change),
            }
        )
    columns = {
        "model": "{model}",
        "α": "{rule}",
        "mean α": "{alpha:.2f}",
        "norm at the top (%)": "{norm:+.0f} [{norm low:+.0f}, {norm high:+.0f}]",
        "perplexity (%)": "{change:+.1f} [{change low:+.1f}, {change high:+.1f}]",
        "documents": "{documents}",
    }
    frame = data.in_order(pd.DataFrame(rows), "method", RULES)
    frame = data.in_order(frame, "model", norms.index.unique("model"))
    return stacked(lines(frame, columns)), frame


def relative_norms(profile: dict) -> pd.DataFrame:
    """Norm of the residual stream relative to the dense model, from the first pruned layer up.

    Columns: model, method, layer, value, low, high, documents.
    """
    alphas = data.tidy(profile["name"], "norm_change", "alpha")
    first_pruned = alphas.groupby("model")["layer"].min()
    norms = data.tidy(profile["name"], "norm_change", "stream norm")
    norms = norms[norms["layer"] >= norms["model"].map(first_pruned)]
    keys = ["model", "document", "layer"]
    dense = norms[norms["method"] == "dense"].set_index(keys)["value"].rename("dense")
    norms["value"] /= norms.join(dense, on=keys)["dense"]
    return over_documents(norms[norms["method"] != "dense"], "model", "method", "layer")


def over_documents(frame: pd.DataFrame, *keys: str) -> pd.DataFrame:
    """Mean over the documents of both texts, its 95 % interval (Student's t), and their number.

    Columns: the keys, value, low, high, documents.
    """
    parts = frame.groupby(list(keys), sort=False)["value"]
    intervals = {key: mean_interval(part) for key, part in parts}
    index = pd.MultiIndex.from_tuples(intervals, names=keys)
    columns = ["value", "low", "high", "documents"]
    return pd.DataFrame(intervals.values(), index, columns).reset_index()


def over_draws(frame: pd.DataFrame, value: str, *keys: str) -> pd.DataFrame:
    """Mean over random draws, and where 90 % of them lie. Columns: the keys, value, low, high."""
    draws = frame.groupby(list(keys), sort=False)[value]
    columns = {"value": draws.mean(), "low": draws.quantile(0.05), "high": draws.quantile(0.95)}
    return pd.DataFrame(columns).reset_index()


def rank_trend(frame: pd.DataFrame) -> pd.Series:
    """Spearman's rank correlation of the value with the layer, for each model."""
    correlations = {}
    for model, part in frame.astype({"value": float}).groupby("model", sort=False):
        correlations[model] = rank_correlation(part["layer"], part["value"]).value
    return pd.Series(correlations)
