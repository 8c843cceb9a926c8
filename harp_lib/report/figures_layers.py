"""Figures of notebook 02: what averaging does to norms."""

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from harp_lib.report import data, figure, plots, table
from harp_lib.report.comparisons import mean_interval, rank_correlation
from harp_lib.report.plots import FIRST, HARP, LOOKS, SECOND, Look
from harp_lib.report.tables import ENDS, Table, ends, lines, perplexities, stacked

RULES = {  # how α is chosen in notebook 02
    "searched": LOOKS["harp"]._replace(label="searched α"),
    "norm-matching": Look("α that keeps the norm", FIRST, "^"),
    "reconstructing": Look("α that keeps the branch", SECOND, "D", "-."),
    "constant": Look("α = 0.5", plots.PAPER, "s", ":", hollow=True),
    "alpha-1": LOOKS["alpha-1"]._replace(label="α = 1"),
    "dense": LOOKS["dense"],
}


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
