"""Tables as the paper has them: its block, and ours beneath in the same layout, with counts and
standard errors.

A frame is long and unrounded, and is what the csv has; :func:`block` and :func:`lines` make of it
what people read.
"""

import re
import textwrap
from collections.abc import Iterable, Mapping
from string import Formatter
from typing import Any

import numpy as np
import pandas as pd

from harp_lib import accounting
from harp_lib.names import CATALOGUE, CORPUS_TITLES, METHOD_TITLES, display_name
from harp_lib.pruning.plan import PruningPlan
from harp_lib.report import comparisons, data, table

MISSING = "–"
ENDS = {
    "value": "",
    "low": " low",
    "high": " high",
}  # of an interval, and what their columns are called after its name
VARIANTS = {
    "dense": "dense",
    "harp": "HARP",
    "harp-tail": "HARP, tail-only prefill",
    "harp-folded": "HARP, folded",
}
VARIANTS |= {"thinned": "thinned out evenly"}  # in the order of tables and figures
COUNTED = ("flops full", "flops causal", "bytes", "cache_bytes", "peak_bytes")
Table = tuple[pd.DataFrame, pd.DataFrame]  # as people read it, and the numbers


def written(row: Mapping[str, Any], cell: str) -> str:
    """A row by a format string: a dash and the reason without a value, no " ± …" or " […]" without
    an error.
    """
    parts = re.split(r"(?= [±\[])", cell, maxsplit=1)
    names = [[name for _, name, *_ in Formatter().parse(part) if name] for part in parts]
    value, *error = [not any(pd.isna(row.get(name, np.nan)) for name in wanted) for wanted in names]
    if not value:
        reason = row.get("reason")
        shown = textwrap.shorten(
            str(reason).replace("|", "·"), 80, placeholder="…"
        )  # Markdown reads a bar
        return f"{MISSING} ({shown})" if isinstance(reason, str) else MISSING
    text = (cell if all(error) else parts[0]).format_map(row)
    return f"**{text}**" if row.get("best") is True else text


def lines(frame: pd.DataFrame, columns: Mapping[str, str]) -> pd.DataFrame:
    """A line for each row of a frame, a column for each title, by its format string; ``{name}`` is
    the method's.
    """
    rows = []
    for row in frame.to_dict("records"):
        row |= {
            "model": display_name(row.get("model", "")),
            "name": METHOD_TITLES.get(row.get("method")),
        }
        rows.append({title: written(row, cell) for title, cell in columns.items()})
    return pd.DataFrame(rows, columns=list(columns))


def block(
    frame: pd.DataFrame, rows: str, columns: str, cell: str = "{value:.2f} ± {error:.2f}"
) -> pd.DataFrame:
    """A long frame as a table of :func:`written` cells; ``rows`` and ``columns`` name what a line
    and a column are.
    """
    texts = frame.assign(_text=[written(row, cell) for row in frame.to_dict("records")])
    wide = texts.pivot_table(
        index=rows, columns=columns, values="_text", aggfunc="first", sort=False
    )
    return (
        wide.reindex(columns=frame[columns].unique())
        .fillna(MISSING)
        .rename_axis(columns=None)
        .reset_index()
    )


def stacked(*blocks: pd.DataFrame) -> pd.DataFrame:
    """Blocks beneath each other; a model is named in the first of its lines."""
    whole = pd.concat([part for part in blocks if len(part)] or blocks, ignore_index=True)
    return whole.assign(
        model=whole["model"].mask(whole["model"].eq(whole["model"].shift()), "")
    ).fillna("")


def ends(prefix: str, found: Iterable[float] | None) -> dict[str, float]:
    """An interval as three columns of a frame, nan where there is none: the value, its low and its
    high end.
    """
    return dict(zip((prefix + end for end in ENDS.values()), found or (np.nan,) * 3, strict=False))


def interval(
    row: Mapping[str, Any], prefix: str = "", n: str = "documents"
) -> comparisons.Interval:
    """The interval that these three columns of a row are; ``n`` is the column of how many items it
    is over.
    """
    return comparisons.Interval(*(row[prefix + end] for end in ENDS.values()), row[n])


def told(value: float, low: float, high: float, form: str = "+.1f") -> str:
    """A number with its interval, for a title or a sentence."""
    return f"{value:{form}} [{low:{form}}, {high:{form}}]".replace("-", "−")


@table()
def method_properties(profile: dict) -> pd.DataFrame:
    """The paper's Table "property", and where the methods take from."""
    return pd.DataFrame([{"method": method.title} | method.table for method in CATALOGUE.values()])


def perplexities(profile: dict, store: str, *references: str) -> pd.DataFrame:
    """Perplexity of each plan on each text, and its paired change against other plans.

    Columns: model, method, corpus, split, value, error, low, high, documents, and by :func:`ends`
    of each reference (a method) how much higher the perplexity is, as a fraction.
    """
    whole = data.documents(profile["name"], store)
    if "start" in whole:  # ranges that were tried
        whole = whole[whole["start"].isna()]
    if whole.empty:
        return pd.DataFrame()
    plans = dict(list(whole.groupby(["model", "method", "corpus", "split"], sort=False)))
    rows = []
    for (model, method, corpus, split), part in plans.items():
        value, error = comparisons.perplexity(part["nll"], part["tokens"])
        mean = comparisons.mean_interval(part["nll"], part["tokens"]).mapped(np.exp)
        row = {
            "model": model,
            "method": method,
            "corpus": corpus,
            "split": split,
            "value": value,
            "error": error,
            "low": mean.low,
            "high": mean.high,
            "documents": mean.n,
        }
        for reference in references:
            other = plans.get((model, reference, corpus, split))
            change = None
            if other is not None:
                change = comparisons.change(other["nll"], part["nll"], part["tokens"])
            row |= ends(reference, change)
        rows.append(row)
    return pd.DataFrame(rows)


def ranges(profile: dict) -> pd.DataFrame:
    """Perplexity of every layer range that was tried.

    Columns: model, method, start, end (open), layers, value, error, documents, tuned (the best), by
    :func:`ends` "above" (how much higher than the best, paired by document), alike (not told from
    the best).
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
            value, error = comparisons.perplexity(part["nll"], part["tokens"])
            above = comparisons.change(best["nll"], part["nll"], part["tokens"])
            row = {
                "model": model,
                "method": method,
                "start": start,
                "end": end,
                "layers": end - start,
                "value": value,
                "error": error,
                "documents": above.n,
                "tuned": (start, end) == tuned,
            }
            row |= ends("above", above)
            row["alike"] = not above.low > 0
            rows.append(row)
    return pd.DataFrame(rows)


@table("baselines")
def baseline_tuning(profile: dict) -> Table:
    """The paper's Table "baseline_tuning", then ours: the tuned range, and how many others cannot
    be told from it.
    """
    frame, paper = ranges(profile), data.paper("layer_ranges")
    tried = frame.groupby(["model", "method"])["alike"].agg(
        tried="size", others=lambda alike: alike.sum() - 1
    )
    ours = frame[frame["tuned"]].join(tried, on=["model", "method"])
    columns = {
        "model": "{model}",
        "method": "{name}",
        "starting layer index": "{start}",
        "end layer index": "{end}",
    }
    more = {
        "perplexity": "{value:.2f} ± {error:.2f}",
        "documents": "{documents}",
        "ranges tried": "{tried}",
    }
    more["not told from the best"] = "{others}"
    return stacked(
        lines(paper.assign(model=paper["model"] + " (paper)"), columns), lines(ours, columns | more)
    ), frame


FILLERS = {
    "harp": "HARP",
    "harp+flap": "HARP+FLAP",
    "harp+flap-even": "HARP+FLAP, channels taken evenly (control)",
}


@table("baselines")
def channel_filler(profile: dict) -> Table:
    """What the choice of FFN channels does to HARP+FLAP: perplexity with FLAP's channels, and with
    as many a layer.

    The change is against HARP+FLAP, paired by document. Channels that go are counted in the three
    layers that lose most.
    """
    frame = perplexities(profile, "baselines", "harp+flap").query(
        "method in @FILLERS and split == 'validation'"
    )
    shares = {}
    for (model, method, task), cell in data.cells(profile["name"], "baselines").items():
        if task == "plan" and method in FILLERS and cell["result"]["plan"]:
            lost = sorted(
                len(part.get("removed_channels", ())) for part in cell["result"]["plan"]["layers"]
            )
            shares[model, method] = (sum(lost), sum(lost[-3:]))
    plans = list(zip(frame["model"], frame["method"], strict=True))
    frame = frame.assign(
        channels=[shares[plan][0] for plan in plans],
        in_three_layers=[shares[plan][1] for plan in plans],
        plan=[FILLERS[method] for _, method in plans],
        text=[CORPUS_TITLES.get(corpus, corpus) for corpus in frame["corpus"]],
        change=100 * frame["harp+flap"],
        change_low=100 * frame["harp+flap low"],
        change_high=100 * frame["harp+flap high"],
    )
    itself = frame["method"] == "harp+flap"
    frame.loc[itself, ["change", "change_low", "change_high"]] = np.nan
    order = ["model", "corpus", "method"]
    frame = frame.sort_values(
        order, key=lambda part: part.map(list(FILLERS).index) if part.name == "method" else part
    )
    columns = {
        "model": "{model}",
        "text": "{text}",
        "plan": "{plan}",
        "channels removed": "{channels:,}",
    }
    columns |= {
        "in the three layers that lose most": "{in_three_layers:,}",
        "documents": "{documents}",
    }
    columns |= {"perplexity": "{value:.1f} ± {error:.1f}"}
    columns |= {"against HARP+FLAP (%)": "{change:+.1f} [{change_low:+.1f}, {change_high:+.1f}]"}
    return stacked(lines(frame, columns)), frame


@table()
def pruning_ratios(profile: dict) -> Table:
    """Every "Parameter Pruning Ratio" of the paper from its models' configs, and the FFN share of
    the official runs.
    """
    printed = data.paper("generation").set_index(["model", "method", "quantity"])["value"]
    alphas, official = (
        data.paper("alpha_search"),
        data.paper("official_ffn_ratios").set_index("model")["value"],
    )
    rows = []
    for model, config in accounting.paper_configs().items():
        groups = sum(total for total, _ in accounting.count_groups(config))
        mine = alphas[(alphas["model"] == model) & (alphas["task"] == "wikitext")]
        harp = PruningPlan.value_only(
            config.num_hidden_layers, dict(zip(mine["layer"], mine["value"], strict=True))
        )
        taken = accounting.top_groups_plan(
            config, round(printed[model, "flap", "head_ratio"] * groups)
        )
        target = accounting.removed_fraction(config, taken)
        ratios = {"flap": 100 * target, "harp": 100 * accounting.removed_fraction(config, harp)}
        needed = accounting.ffn_channels_for(config, harp, target)
        needed /= config.num_hidden_layers * config.intermediate_size
        row = {"model": model, "needed": needed, "official": official[model]}
        rows.append(
            row | {f"{m} printed": printed[model, m, "removed_fraction"] for m in ratios} | ratios
        )
    columns = {
        "model": "{model}",
        "baselines: computed": "{flap:.2f} %",
        "printed": "{flap printed:.1f} %",
    }
    columns |= {"HARP: computed": "{harp:.2f} %", "printed ": "{harp printed:.1f} %"}
    columns |= {
        "FFN share of HARP+FLAP: computed": "{needed:.5f}",
        "official run": "{official:.5f}",
    }
    return lines(pd.DataFrame(rows), columns), pd.DataFrame(rows)


def efficiency(profile: dict, kind: str) -> pd.DataFrame:
    """Seconds of each variant (``prefill`` or ``decode``), beside what is counted of it.

    Columns: model, length, variant, repetitions; by :func:`ends` seconds, and "of dense" and "of
    thinned": how many times these models' seconds, paired by repetition; "flops full" and "flops
    causal" (all query-key pairs, and the visible ones), bytes (moved for a token), cache_bytes,
    peak_bytes; the same with " of dense", as a ratio.
    """
    found = data.tidy(profile["name"], "efficiency", "seconds", *COUNTED)
    if found.empty or kind not in set(found["kind"]):
        return pd.DataFrame()
    rows = []
    for (model, length), part in found[found["kind"] == kind].groupby(["model", "length"]):
        seconds = {}
        for variant, of_variant in part[part["quantity"] == "seconds"].groupby("variant"):
            seconds[variant] = of_variant["value"].tolist()
        counted = part[part["quantity"].isin(COUNTED)]
        counted = counted.pivot_table("value", "variant", "quantity")
        counted = counted[[name for name in COUNTED if name in counted]]
        for variant in VARIANTS:
            if variant in seconds:
                row = {"model": model, "length": int(length), "variant": variant}
                rows.append(row | _timed(variant, seconds) | _counted(variant, counted))
    return pd.DataFrame(rows)


def _timed(variant: str, seconds: Mapping[str, list[float]]) -> dict[str, float]:
    """A variant's seconds, and as multiples of two other models' seconds."""
    row = {"repetitions": len(seconds[variant])}
    row |= ends("seconds", comparisons.mean_interval(seconds[variant]))
    for other in ("dense", "thinned"):
        ratio = None
        if other in seconds and other != variant:
            ratio = comparisons.time_ratio(seconds[other], seconds[variant])
        row |= ends(f"of {other}", ratio)
    return row


def _counted(variant: str, counted: pd.DataFrame) -> dict[str, float]:
    """What is counted of a variant, and as shares of the dense model's."""
    row = {}
    if variant in counted.index:
        row = counted.loc[variant].dropna().astype(int).to_dict()
    shares = {f"{name} of dense": row[name] / counted.loc["dense", name] for name in row}
    return row | shares


def paper_times() -> pd.Series:
    """The pruned model's seconds that the paper prints, as a multiple of the dense model's, by
    length.
    """
    seconds = (
        data.paper("efficiency")
        .query("quantity == 'seconds'")
        .pivot_table("value", "length", "method")
    )
    return seconds["harp"] / seconds["dense"]


@table("efficiency")
def llama_cpp(profile: dict) -> Table | None:
    """Tokens a second of the same model in llama.cpp, dense and pruned by HARP.

    Both are measured in turn.
    """
    found = data.tidy(profile["name"], "efficiency", "prompt", "generation")
    if found.empty:
        return None
    rows = []
    keys = ["model", "length", "quantity"]
    for (model, length, quantity), part in found.groupby(keys, sort=False):
        speeds = {name: own["value"].tolist() for name, own in part.groupby("variant")}
        dense = speeds["dense"]
        harp = speeds["harp"]
        row = {"model": model, "length": length, "what": quantity, "repetitions": len(harp)}
        row |= ends("dense", comparisons.mean_interval(dense))
        row |= ends("harp", comparisons.mean_interval(harp))
        row |= ends("times", comparisons.time_ratio(dense, harp))
        rows.append(row)
    columns = {
        "model": "{model}",
        "prompt": "{length:,} tokens",
        "speed of": "{what}",
        "repetitions": "{repetitions}",
        "dense, tokens a second": "{dense:,.0f}",
        "HARP": "{harp:,.0f}",
        "HARP, times dense": "{times:.3f} [{times low:.3f}, {times high:.3f}]",
    }
    frame = pd.DataFrame(rows)
    return stacked(lines(frame, columns)), frame
