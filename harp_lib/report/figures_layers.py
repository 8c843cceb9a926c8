"""Figures of notebooks 01 and 02: how alike tokens are, and what averaging them does to norms.

A title says what is seen, in numbers of these results. With several models it gives the lowest and
the highest number.
"""

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from harp_lib.report import data, figure, plots
from harp_lib.report.comparisons import mean_interval, rank_correlation
from harp_lib.report.plots import FIRST, HARP, LOOKS, RANDOM, SECOND, Look, span
from harp_lib.report.tables import ENDS, lines, perplexities, stacked

TOP = 0.8  # share of the depth where the top fifth of the layers begins
TRAINED = {
    "trained": Look("trained weights", plots.DENSE, "."),
    "random": Look("random weights", RANDOM, ".", "--"),
}
RULES = {  # how α is chosen in notebook 02: variants of HARP, told apart by marker and line
    "searched": LOOKS["harp"]._replace(label="searched α"),
    "norm-matching": Look("α that keeps the norm", HARP, "^", "--"),
    "reconstructing": Look("α that keeps the branch", HARP, "D", "-."),
    "constant": Look("α = 0.5", HARP, "s", ":", hollow=True),
    "alpha-1": LOOKS["alpha-1"]._replace(label="α = 1"),
    "dense": LOOKS["dense"],
}


@figure("similarity")
def similarity_by_layer(profile: dict) -> Figure:
    """Sim(H) of what enters each layer, with trained weights and with random ones."""
    similarities = data.tidy(profile["name"], "similarity", "similarity")
    frame = over_documents(similarities, "model", "method", "quantity", "layer")
    axes = {
        "x": "layer index (the last point: what leaves the top)",
        "y": "Sim(H), mean cosine of token pairs",
    }
    drawn = plots.lines(frame, "layer", "method", TRAINED, **axes)
    peak = frame.groupby(["method", "model"])["value"].max()
    title = (
        f"Sim(H) peaks at {span(peak['trained'])} with trained weights, "
        f"at {span(peak['random'])} with random ones"
    )
    return plots.finish(drawn, title, level=1, ylim=(min(0, frame["low"].min()), 1.05))


@figure("theory")
def uniformity(profile: dict) -> Figure:
    """Normalised entropy of random heads while Sim(H) → 1.

    Rows have equal or different lengths, and heads have no positions or rotary ones.
    """
    sweep = data.table(profile["name"], "theory", "uniformity-sweep")
    of_spread = sweep.groupby(["equal lengths", "rotary", "spread"])
    sweep["1 − Sim"] = 1 - of_spread["similarity"].transform("mean")
    lengths = {True: "rows of equal length", False: "rows of different length"}
    sweep["rows"] = sweep["equal lengths"].map(lengths)
    frame = over_draws(sweep, "entropy", "rows", "rotary", "1 − Sim")
    looks = {
        False: Look("no positions", FIRST, "."),
        True: Look("rotary positions", SECOND, ".", "--"),
    }
    axes = {
        "x": "1 − Sim(H): tokens more alike to the right",
        "y": "normalised entropy (1: uniform)",
    }
    drawn = plots.lines(frame, "1 − Sim", "rotary", looks, panel="rows", **axes)
    first_axis, _ = drawn.panels[0]
    first_axis.set_xscale("log")
    first_axis.invert_xaxis()
    most_alike = sweep[sweep["spread"] == sweep["spread"].min()]
    entropy = most_alike.groupby(["equal lengths", "rotary"])["entropy"].mean()
    as_in_the_theorem = (True, False)  # equal lengths, no positions
    title = (
        f"At Sim → 1 entropy is {entropy[as_in_the_theorem]:.2f} "
        f"with equal lengths and no positions, else {span(entropy.drop(as_in_the_theorem))}"
    )
    note = f"mean and 90 % of {sweep['draw'].nunique()} random heads under a causal mask"
    return plots.finish(drawn, title, note, level=1, ylim=(0, 1.05))


@figure("similarity")
def attention_entropy(profile: dict) -> Figure:
    """Normalised entropy of every head against Sim of its normalised input, a point for each head.

    Both are means over documents.
    """
    keys = ["model", "method", "corpus", "layer", "document"]
    heads = data.tidy(profile["name"], "similarity", "entropy").dropna(subset="document")
    similarities = data.tidy(profile["name"], "similarity", "projected similarity")
    similarities = similarities.rename(columns={"value": "sim"})
    heads = heads.merge(similarities[[*keys, "sim"]], on=keys)
    of_head = heads.groupby(["model", "method", "layer", "head"], sort=False)
    frame = of_head[["sim", "value"]].mean().reset_index()
    num_layers = frame.groupby("model")["layer"].transform("max") + 1
    place = np.where(frame["layer"] >= TOP * num_layers, "top", "below")
    frame["kind"] = np.where(frame["method"] == "random", "random", place)
    looks = {
        "random": TRAINED["random"],
        "below": Look("layers below", SECOND),
        "top": Look("top fifth", FIRST),
    }
    axes = {
        "x": "Sim of what the heads of a layer read",
        "y": "normalised entropy of attention (1: uniform)",
    }
    drawn = plots.points(frame, "sim", "kind", looks, **axes)
    top = frame[frame["kind"] == "top"].groupby("model")[["sim", "value"]].median()
    title = (
        f"Heads of the top fifth read a Sim of {span(top['sim'])} "
        f"with an entropy of {span(top['value'])} (medians)"
    )
    note = "{model}a point for each head, mean over documents"
    return plots.finish(drawn, title, note, level=1, ylim=(-0.03, 1.05))


@figure("similarity")
def layer_changes(profile: dict) -> Figure:
    """How much a layer changes values, residual stream and tokens, by layer index."""
    names = {
        "value gap": "values: ‖ÂV − V‖ / ‖V‖",
        "branch gap": "stream: ‖A − B‖ / ‖H‖",
        "block influence": "BI: 1 − cos(input, output)",
        "attention influence": "BI of attention alone",
    }
    frame = data.tidy(profile["name"], "similarity", *names).replace({"quantity": names})
    orders = {
        "model": frame["model"].unique(),
        "method": list(TRAINED),
        "quantity": list(names.values()),
    }
    for column, order in orders.items():
        frame[column] = pd.Categorical(frame[column], order)
    frame = frame.sort_values(list(orders), kind="stable").astype(dict.fromkeys(orders, str))
    frame = over_documents(frame, "model", "method", "quantity", "layer")
    layout = {
        "panel": ["model", "quantity"],
        "wrap": 2,
        "share": (False, False),
        "size": (4.4, 2.6),
        "x": "layer index",
        "y": "change (log scale)",
    }
    drawn = plots.lines(frame, "layer", "method", TRAINED, **layout)
    trends = {}
    for quantity in ("block influence", "attention influence"):
        of_quantity = frame["quantity"] == names[quantity]
        trends[quantity] = rank_trend(frame[of_quantity & (frame["method"] == "trained")])
    title = (
        "Does BI fall with the layer index? "
        f"Rank correlation {span(trends['block influence'], '+.2f')}, "
        f"of attention alone {span(trends['attention influence'], '+.2f')}"
    )
    return plots.finish(drawn, title, log="y")


def layers_found(profile: dict) -> pd.DataFrame:
    """Depths, ranks and the factor v of Lemma 2 in the layers of each model, a row for each."""
    quantities = ("similarity", "branch gap", "block influence")
    frame = data.tidy(profile["name"], "similarity", *quantities)
    frame = frame.query("method == 'trained'").astype({"value": float})
    bounds = data.tidy(profile["name"], "similarity", "v").set_index("model")["value"]
    rows = []
    for model, part in frame.groupby("model", sort=False):
        means = part.groupby(["quantity", "layer"])["value"].mean()
        similarity = means["similarity"]
        influence = means["block influence"]
        ranks = influence.rank(ascending=False)
        rows.append(
            {
                "model": model,
                "layers": len(influence),
                "depths": len(similarity),
                "near": (similarity >= 0.95).sum(),
                "least_changed": means["branch gap"].idxmin(),
                "top_rank": ranks.loc[influence.index.max()],
                "least_v": bounds[model].min(),
                "small_v": (bounds[model] < 1).sum(),
            }
        )
    columns = {
        "model": "{model}",
        "Sim ≥ 0.95": "at {near} of {depths} depths",
        "stream changes least in": "layer {least_changed} (of {layers}, from 0)",
        "rank of the top layer in BI": "{top_rank:.0f} of {layers}",
        "v < 1": "in {small_v} of {layers} layers",
        "lowest v": "{least_v:,.2g}",
    }
    return lines(pd.DataFrame(rows), columns)


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
    title = f"Averaging leaves ‖ÂH‖/‖H‖ of {span(frame['value'])}; it depends on H"
    note = f"mean and 90 % of {sweep['draw'].nunique()} random draws; 1 is the norm kept"
    return plots.finish(drawn, title, note, level=1, ylim=(0, None))


@figure("norm_change")
def value_norms(profile: dict) -> Figure:
    """‖ÂV‖/‖V‖ of every head, mean over documents, a point for each head."""
    ratios = data.tidy(profile["name"], "norm_change", "ratio")
    frame = over_documents(ratios, "model", "layer", "head").drop(columns=["low", "high"])
    looks = dict.fromkeys(frame["model"], Look("a head", FIRST, "."))
    axes = {"x": "layer index", "y": "‖ÂV‖ / ‖V‖ (log scale)"}
    drawn = plots.points(frame, "layer", "model", looks, **axes)
    median = frame.groupby("model")["value"].median()
    is_kept = (frame["value"] - 1).abs() <= 0.05
    kept_share = is_kept.groupby(frame["model"]).mean()
    title = (
        f"Averaging leaves {span(median)} of a head's norm (median); "
        f"{span(100 * kept_share, '.0f')} % keep it within 5 %"
    )
    note = "{model}a point for each head, mean over {documents} documents; 1 is the norm kept"
    return plots.finish(drawn, title, note, log="y", level=1)


@figure("norm_change")
def stream_norms(profile: dict) -> Figure:
    """Norm of the residual stream relative to the dense model, from the first pruned layer up."""
    alphas = data.tidy(profile["name"], "norm_change", "alpha")
    first_pruned = alphas.groupby("model")["layer"].min()
    norms = data.tidy(profile["name"], "norm_change", "stream norm")
    norms = norms[norms["layer"] >= norms["model"].map(first_pruned)]
    keys = ["model", "document", "layer"]
    dense = norms[norms["method"] == "dense"].set_index(keys)["value"].rename("dense")
    norms["value"] /= norms.join(dense, on=keys)["dense"]
    frame = over_documents(norms[norms["method"] != "dense"], "model", "method", "layer")
    axes = {
        "x": "what enters this layer; last: what leaves the top",
        "y": "‖H‖ relative to the dense model",
    }
    drawn = plots.lines(frame, "layer", "method", RULES, bars=True, share=(False, True), **axes)
    top = frame[frame["layer"] == frame.groupby("model")["layer"].transform("max")]
    top = top.set_index(["method", "model"])["value"]
    deviation = {}  # per cent
    for rule in ("searched", "norm-matching", "alpha-1"):
        deviation[rule] = span(100 * (top[rule] - 1), "+.0f")
    title = (
        f"At the top the norm is off by {deviation['alpha-1']} % with α = 1, "
        f"{deviation['searched']} % with the searched α, "
        f"{deviation['norm-matching']} % with the α that keeps it"
    )
    return plots.finish(drawn, title, level=1)


@figure("norm_change")
def rescaling_perplexity(profile: dict) -> Figure:
    """Perplexity of every way to choose α, against the searched α, paired by document."""
    frame = perplexities(profile, "norm_change", "searched").query("method != 'searched'")
    changes = frame[["searched" + end for end in ENDS.values()]]
    frame[list(ENDS)] = 100 * changes.to_numpy()
    frame["name"] = [RULES[rule].label for rule in frame["method"]]
    axes = {"size": (4.8, 2.4), "x": "perplexity, change against the searched α (%)"}
    drawn = plots.dots(frame, "name", "method", RULES, **axes)
    norm_keeping = span(frame[frame["method"] == "norm-matching"]["value"], "+.1f")
    title = f"The α that keeps the norm has {norm_keeping} % perplexity against the searched α"
    note = "{model}95 % intervals over {documents} held-out documents; the searched α is at 0"
    return plots.finish(drawn, title, note)


def rules_found(profile: dict) -> pd.DataFrame:
    """Mean α of each way to choose it, and its share of what the search wins over α = 1."""
    alphas = data.tidy(profile["name"], "norm_change", "alpha")
    alphas = alphas.groupby(["model", "method"])["value"].mean()
    losses = data.tidy(profile["name"], "norm_change", "nll")
    documents = losses.groupby("model")["document"].nunique()
    losses = losses.groupby(["model", "method"])["value"].sum()
    rows = []
    for model in losses.index.unique("model"):
        won_by_search = losses[model, "alpha-1"] - losses[model, "searched"]
        for rule in ("searched", "norm-matching", "reconstructing", "constant"):
            won = losses[model, "alpha-1"] - losses[model, rule]
            rows.append(
                {
                    "model": model,
                    "rule": RULES[rule].label,
                    "alpha": alphas[model, rule],
                    "share": won / won_by_search,
                    "documents": documents[model],
                }
            )
    columns = {
        "model": "{model}",
        "α": "{rule}",
        "mean α": "{alpha:.2f}",
        "wins, of what the search wins": "{share:.0%}",
        "documents": "{documents}",
    }
    return stacked(lines(pd.DataFrame(rows), columns))


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
