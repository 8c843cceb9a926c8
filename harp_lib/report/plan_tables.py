"""Tables of plans: what each method removes, from which layers, and how much that is."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from harp_lib.names import BASELINES, CATALOGUE, CORPUS_TITLES, METHOD_TITLES, display_name
from harp_lib.report import comparisons, data, table
from harp_lib.report.plans import equal_plans, is_arbitrary, one_row_per_plan
from harp_lib.report.plots import span
from harp_lib.report.tables import ENDS, Table, block, ends, lines, perplexities, stacked
from harp_lib.results import Cells

FILLERS = {
    "harp": "HARP",
    "harp+flap": "HARP+FLAP",
    "harp+flap-even": "HARP+FLAP, evenly",
}


@table()
def method_properties(profile: dict) -> pd.DataFrame:
    """The paper's Table "property", and what each method removes from where."""
    rows = [{"method": method.title} | method.table for method in CATALOGUE.values()]
    return pd.DataFrame(rows)


def ranges(profile: dict) -> pd.DataFrame:
    """Perplexity of every layer range that was tried.

    Columns: model, method, start, end (open), layers, value, error, documents, tuned (the best), by
    :func:`ends` "above" (how much higher than the best, paired by document), alike (not
    significantly above the best).
    """
    whole = data.documents(profile["name"], "baselines")
    if "start" not in whole:
        return pd.DataFrame()
    whole = whole.dropna(subset="start").astype({"start": int, "end": int})
    rows = []
    for (model, method), of_method in whole.groupby(["model", "method"], sort=False):
        tried = dict(list(of_method.groupby(["start", "end"], sort=False)))
        losses = {key: part["nll"].sum() / part["tokens"].sum() for key, part in tried.items()}
        tuned = min(losses, key=losses.get)
        best = tried[tuned]
        for (start, end), part in tried.items():
            value, error = comparisons.perplexity_and_error(part["nll"], part["tokens"])
            above = comparisons.change(best["nll"], part["nll"], part["tokens"])
            rows.append(
                {
                    "model": model,
                    "method": method,
                    "start": start,
                    "end": end,
                    "layers": end - start,
                    "value": value,
                    "error": error,
                    "documents": above.n,
                    "tuned": (start, end) == tuned,
                    **ends("above", above),
                    "alike": not above.low > 0,
                }
            )
    return pd.DataFrame(rows)


@table("baselines")
def baseline_tuning(profile: dict) -> Table:
    """The paper's Table "baseline_tuning", then ours with the number of ranges that are as good.

    Baselines that made the same plan are one row, and an arbitrary plan has a star. Where their
    numbers of ranges differ, the row has all of them.
    """
    frame = ranges(profile)
    stored = data.cells(profile["name"], "baselines")
    paper = data.paper("layer_ranges")
    paper = paper.assign(model=paper["model"] + " (paper)", last=paper["end"] - 1)
    tried = frame.groupby(["model", "method"])["alike"].agg(
        tried="size", others=lambda alike: alike.sum() - 1
    )
    ours = frame[frame["tuned"]].join(tried, on=["model", "method"])
    ours = one_row_per_plan(ours.assign(last=ours["end"] - 1), stored)
    places = [_in_upper_half(stored[row.model, row.method, "plan"]) for row in ours.itertuples()]
    ours[["upper", "removed"]] = places
    makers = equal_plans(stored)
    for column in ("tried", "others"):
        counts = tried[column]
        texts = []
        for row in ours.itertuples():
            numbers = [counts[row.model, method] for method in makers[row.model, row.method]]
            texts.append(" or ".join(map(str, dict.fromkeys(numbers))))
        ours[column] = texts
    documents = span(frame["documents"], ".0f")
    columns = {
        "model": "{model}",
        "method": "{name}",
        "layers": "{start} to {last}",
    }
    columns_of_ours = {
        **columns,
        "method": "{methods}",
        "in the upper half": "{upper} of {removed} groups",
        f"perplexity ({documents} documents)": "{value:.1f} ± {error:.1f}",
        "ranges tried": "{tried}",
        "not told apart": "{others}",
    }
    return stacked(lines(paper, columns), lines(ours, columns_of_ours)), frame


def _in_upper_half(cell: Mapping[str, Any]) -> tuple[int, int]:
    """How many key/value groups a plan removes from the upper half of the layers, and in all."""
    plan = cell["result"]["plan"]
    counts = {part["layer"]: len(part.get("removed_groups", ())) for part in plan["layers"]}
    upper = [count for layer, count in counts.items() if layer >= plan["num_layers"] / 2]
    return sum(upper), sum(counts.values())


@table("baselines", "alpha_search")
def candidates(profile: dict) -> Table:
    """How many plans are compared by perplexity: HARP's alphas, and the ranges of each baseline."""
    searched = data.tidy(profile["name"], "alpha_search", "perplexity")
    is_plan = (searched["method"] == "harp") & (searched["corpus"] == profile["corpora"][0])
    counts = [searched[is_plan].groupby(["model", "method"]).size()]
    counts.append(ranges(profile).groupby(["model", "method"]).size())
    frame = pd.concat(counts).rename("candidates").reset_index()
    frame = data.in_order(frame, "method", ["harp", *BASELINES])
    frame["name"] = frame["method"].map(METHOD_TITLES)
    frame = data.in_order(frame, "model", searched["model"].unique())
    shown = block(frame, "model", "name", "{candidates}")
    return shown.assign(model=shown["model"].map(display_name)), frame


@table("baselines")
def flap_scores(profile: dict) -> Table:
    """Held-out perplexity of FLAP with the score as printed, and with the squared one.

    The change is paired by document. An arbitrary plan has a star.
    """
    frame = perplexities(profile, "baselines", "flap")
    stored = data.cells(profile["name"], "baselines")
    printed = frame[frame["method"] == "flap"].set_index(["model", "corpus", "split"])["value"]
    frame = frame[frame["method"] == "flap-squared"]
    frame = frame.join(printed.rename("printed"), on=["model", "corpus", "split"])
    plans = [stored[model, "flap-squared", "plan"]["result"] for model in frame["model"]]
    frame = frame.assign(
        same=[plan["same"] for plan in plans],
        removed=[plan["same"] + len(plan["only_printed"]) for plan in plans],
        text=[CORPUS_TITLES.get(corpus, corpus) for corpus in frame["corpus"]],
        star=["*" if is_arbitrary(stored, model, "flap") else "" for model in frame["model"]],
        **{f"change{end}": 100 * frame[f"flap{end}"] for end in ENDS.values()},
    )
    columns = {
        "model": "{model}",
        "groups in common": "{same} of {removed}",
        "text (documents)": "{text} ({documents})",
        "as printed": "{printed:.1f}{star}",
        "squared (upstream)": "{value:.1f}{star}",
        "change (%)": "{change:+.1f} [{change low:+.1f}, {change high:+.1f}]",
    }
    return stacked(lines(frame, columns)), frame


@table("baselines")
def held_out_perplexity(profile: dict) -> Table:
    """Held-out perplexity of the dense model, of HARP, of HARP+FLAP and of the best baseline.

    The best baseline is the one with the lowest perplexity on the text. An arbitrary plan has a
    star.
    """
    frame = perplexities(profile, "baselines").query("split == 'validation'")
    frame = one_row_per_plan(frame, data.cells(profile["name"], "baselines"))
    rows = []
    for (model, corpus), part in frame.groupby(["model", "corpus"], sort=False):
        by_method = part.set_index("method")["value"]
        baselines = part[part["method"].isin(BASELINES)]
        best = baselines.loc[baselines["value"].idxmin()]
        row = {"model": model, "corpus": corpus, "documents": best["documents"]}
        row |= {"dense": by_method["dense"], "HARP": by_method["harp"]}
        row |= {"HARP+FLAP": by_method["harp+flap"], "best": best["value"]}
        rows.append(row | {"methods": best["methods"], "text": CORPUS_TITLES.get(corpus, corpus)})
    numbers = pd.DataFrame(rows)
    columns = {
        "model": "{model}",
        "text (documents)": "{text} ({documents})",
        "dense": "{dense:.1f}",
        "HARP": "{HARP:.1f}",
        "HARP+FLAP": "{HARP+FLAP:.1f}",
        "best baseline": "{best:.1f} ({methods})",
    }
    return stacked(lines(numbers, columns)), numbers


@table("baselines")
def channel_filler(profile: dict) -> Table:
    """Perplexity of HARP+FLAP with FLAP's choice of FFN channels, and with equally many a layer.

    The change is against HARP+FLAP, paired by document. Channels that are removed are counted in
    all layers, and in the three layers that lose most.
    """
    frame = perplexities(profile, "baselines", "harp+flap")
    frame = frame.query("method in @FILLERS and split == 'validation'")
    removed = _removed_channels(data.cells(profile["name"], "baselines"))
    plans = list(zip(frame["model"], frame["method"], strict=True))
    frame = frame.assign(
        channels=[sum(removed[plan]) for plan in plans],
        in_three_layers=[sum(removed[plan][-3:]) for plan in plans],
        plan=[FILLERS[method] for _, method in plans],
        text=[f"{CORPUS_TITLES[row.corpus]} ({row.documents})" for row in frame.itertuples()],
        change=100 * frame["harp+flap"],
        change_low=100 * frame["harp+flap low"],
        change_high=100 * frame["harp+flap high"],
    )
    itself = frame["method"] == "harp+flap"
    frame.loc[itself, ["change", "change_low", "change_high"]] = np.nan
    models = frame["model"].unique()
    corpora = frame["corpus"].unique()
    for column, order in {"method": FILLERS, "corpus": corpora, "model": models}.items():
        frame = data.in_order(frame, column, order)
    columns = {
        "model": "{model}",
        "text (documents)": "{text}",
        "plan": "{plan}",
        "channels (in three layers)": "{channels:,} ({in_three_layers:,})",
        "perplexity": "{value:.1f} ± {error:.1f}",
        "against HARP+FLAP (%)": "{change:+.1f} [{change_low:+.1f}, {change_high:+.1f}]",
    }
    return stacked(lines(frame, columns)), frame


def _removed_channels(stored: Cells) -> dict[tuple[str, str], list[int]]:
    """FFN channels that each plan of ``FILLERS`` removes from its layers, the fewest first.

    The keys are model and method.
    """
    removed = {}
    for (model, method, task), cell in stored.items():
        if task != "plan" or method not in FILLERS:
            continue
        plan = cell["result"]["plan"]
        if plan:
            counts = [len(part.get("removed_channels", ())) for part in plan["layers"]]
            removed[model, method] = sorted(counts)
    return removed


@table("paper_ratios")
def pruning_ratios(profile: dict) -> Table:
    """Every "Parameter Pruning Ratio" of the paper, beside those counted from its models' configs.

    The FFN share that HARP+FLAP needs stands beside the one in the authors' logs.
    """
    counted = data.tidy(profile["name"], "paper_ratios", "removed_fraction", "ffn_share")
    frame = ratios_beside_printed(counted)
    columns = {
        "model": "{model}",
        "baselines: computed": "{flap:.2f} %",
        "printed": "{flap printed:.1f} %",
        "HARP: computed": "{harp:.2f} %",
        "printed ": "{harp printed:.1f} %",
        "FFN share of HARP+FLAP: computed": "{needed:.5f}",
        "official run": "{official:.5f}",
    }
    return lines(frame, columns), frame


def ratios_beside_printed(counted: pd.DataFrame) -> pd.DataFrame:
    """What is counted of the paper's models beside what the paper prints, a row for each model.

    Parameters
    ----------
    counted : DataFrame
        The rows ``removed_fraction`` and ``ffn_share`` of the store ``paper_ratios``.

    Returns
    -------
    DataFrame
        Columns: model, needed and official (the FFN share of HARP+FLAP, 0 to 1), "flap printed",
        "harp printed", flap and harp (removed parameters in per cent).
    """
    printed = data.paper("generation").set_index(["model", "method", "quantity"])["value"]
    official = data.paper("official_ffn_ratios").set_index("model")["value"]
    rows = []
    for model, of_model in counted.groupby("model", sort=False):
        values = of_model.set_index(["method", "quantity"])["value"]
        rows.append(
            {
                "model": model,
                "needed": values["harp+flap", "ffn_share"],
                "official": official[model],
                "flap printed": printed[model, "flap", "removed_fraction"],
                "harp printed": printed[model, "harp", "removed_fraction"],
                "flap": 100 * values["flap", "removed_fraction"],
                "harp": 100 * values["harp", "removed_fraction"],
            }
        )
    return pd.DataFrame(rows)
