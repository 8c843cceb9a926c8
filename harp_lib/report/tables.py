"""Tables as the paper has them: its block, and ours beneath in the same layout, with counts and standard errors.

A frame is long and unrounded, and is what the csv has; :func:`block` and :func:`lines` make of it what people read.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from string import Formatter
from typing import Any

import numpy as np
import pandas as pd

from harp_lib.accounting import (
    count_groups,
    ffn_channels_for,
    overtaking_length,
    paper_configs,
    removed_fraction,
    top_groups_plan,
)
from harp_lib.measure.models import display_name
from harp_lib.measure.text import TITLES as TEXTS
from harp_lib.methods import PROPERTIES, TITLES
from harp_lib.pruning.plan import PruningPlan
from harp_lib.report import comparisons, data, table

MISSING = "–"
SPLITS = {"test": "searched", "validation": "held-out", "train": "calibration"}
PLANS = TITLES | {"flap-without-bias": "FLAP without its bias", "flap-squared": "FLAP as its repository has it"}
PLANS |= {"alpha-1": "HARP, α = 1", "alpha-0": "HARP, α = 0"}
PLANS |= {f"searched-on-{corpus}": f"HARP, α from {title}" for corpus, title in TEXTS.items()}
VARIANTS = {"dense": "dense", "harp": "HARP", "harp-folded": "HARP, folded", "thinned": "thinned out evenly"}
Table = tuple[pd.DataFrame, pd.DataFrame]  # as people read it, and the numbers


def written(row: Mapping[str, Any], cell: str) -> str:
    """A row by a format string: a dash and the reason without a value, no " ± …" or " […]" without an error."""
    head, *tail = re.split(r"(?= [±\[])", cell, maxsplit=1)
    if _lacks(row, head):
        reason = row.get("reason")
        return f"{MISSING} ({one_line(reason, 80)})" if isinstance(reason, str) else MISSING
    text = "".join([head, *(part for part in tail if not _lacks(row, part))]).format_map(row)
    return f"**{text}**" if row.get("best") is True else text


def _lacks(row: Mapping[str, Any], cell: str) -> bool:
    return any(pd.isna(row.get(name, np.nan)) for _, name, *_ in Formatter().parse(cell) if name)


def lines(frame: pd.DataFrame, columns: Mapping[str, str]) -> pd.DataFrame:
    """A line for each row of a frame; a column for each title, written by its format string."""
    rows = frame.to_dict("records")
    return pd.DataFrame({title: [written(row, cell) for row in rows] for title, cell in columns.items()})


def block(frame: pd.DataFrame, rows: str, columns: str, cell: str = "{value:.2f} ± {error:.2f}") -> pd.DataFrame:
    """A long frame as a table of text.

    Parameters
    ----------
    frame : DataFrame
        A row for each cell of the table: value, and where there are such: error, reason (why there is no value), best.
    rows, columns : str
        The columns that name a line and a column of the table, both in order of appearance.
    cell : str
        How a row is written; what stands from " ±" on is left out where there is no error.

    Returns
    -------
    DataFrame
        Of strings: a dash, and its reason, where there is no value; bold where it is the best.
    """
    texts = frame.assign(_text=[written(row, cell) for row in frame.to_dict("records")])
    wide = texts.pivot_table(index=rows, columns=columns, values="_text", aggfunc="first", sort=False)
    return wide.reindex(columns=frame[columns].unique()).fillna(MISSING).rename_axis(columns=None).reset_index()


def stacked(*blocks: pd.DataFrame) -> pd.DataFrame:
    """Blocks beneath each other; a model is named in the first of its lines."""
    whole = pd.concat([part for part in blocks if len(part)], ignore_index=True)
    return whole.assign(model=whole["model"].mask(whole["model"].eq(whole["model"].shift()), "")).fillna("")


def one_line(text: str, most: int) -> str:
    """The beginning of a text in a cell: · stands for line ends and for marks that Markdown would read."""
    kept = "".join(mark if mark.isalnum() or mark in " .,:;!?'()=+-/%−" else "·" for mark in text)
    return kept if len(kept) <= most else kept[: most - 1] + "…"


def ends(prefix: str, found: Iterable[float] | None) -> dict[str, float]:
    """An interval as three columns of a frame, nan where there is none: the value, its low and its high end."""
    return dict(zip((prefix, f"{prefix} low", f"{prefix} high"), found or (np.nan,) * 3, strict=False))


def by_model(frame: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    """The rows of each model, in order."""
    return list(frame.groupby("model", sort=False))


@table()
def method_properties(profile: dict) -> pd.DataFrame:
    """The paper's Table "property", from what each method's code says of itself."""
    columns = {"method": "{title}", "pruning metric": "${metric}$", "looks at": "{looks_at}"}
    columns |= {"calibration": "{calibration}", "weight update": "{weight_update}", "what goes where": "{allocation}"}
    return lines(pd.DataFrame(PROPERTIES), columns)


def perplexities(profile: dict, store: str, *references: str) -> pd.DataFrame:
    """Perplexity of each plan on each text, and its paired change against other plans on the same text.

    Columns: model, method, corpus, split, value, error, documents, tokens, and by :func:`ends` of each reference (a
    method; ``{corpus}`` stands for the text) how much higher it is, as a fraction.
    """
    stored, rows = data.cells(profile["name"], store), []
    for (model, method, task), cell in stored.items():
        corpus, _, split = task.rpartition("-")
        if split not in SPLITS or "nll" not in (result := cell["result"]):
            continue
        value, error = comparisons.perplexity(result["nll"], result["tokens"])
        row = {"model": model, "method": method, "corpus": corpus, "split": split, "value": value, "error": error}
        row |= {"documents": len(result["nll"]), "tokens": sum(result["tokens"])}
        for reference in references:
            other = stored.get((model, reference.format(corpus=corpus), task), cell)
            found = comparisons.change(other["result"]["nll"], result["nll"], result["tokens"])
            row |= ends(reference, None if other is cell else found)
        rows.append(row)
    return pd.DataFrame(rows)


def _perplexity_table(frame: pd.DataFrame) -> Table:
    """Plans by texts."""
    text = [f"{TEXTS[row.corpus]}, {SPLITS[row.split]} ({row.documents})" for row in frame.itertuples()]
    frame = frame.assign(text=text, name=[PLANS.get(method, method) for method in frame["method"]])
    blocks = [block(part, "name", "text").assign(model=display_name(model)) for model, part in by_model(frame)]
    shown = stacked(*blocks)
    return shown[["model", "name", *shown.columns.drop(["model", "name"])]], frame.drop(columns=["text", "name"])


@table("baselines")
def baseline_perplexity(profile: dict) -> Table:
    """Perplexity of every method on each text (number of documents); the paper prints none of a baseline."""
    return _perplexity_table(perplexities(profile, "baselines", "harp", "harp+flap"))


@table("alpha_search")
def alpha_perplexity(profile: dict) -> Table:
    """Perplexity of HARP with α searched, on this text or the other, and without a search."""
    return _perplexity_table(perplexities(profile, "alpha_search", "searched-on-{corpus}"))


def ranges(profile: dict) -> pd.DataFrame:
    """Perplexity of every layer range that was tried.

    Columns: model, method, start, end (open), layers, value, error, documents, tuned (the method's best), and by
    :func:`ends` "against the best": how much higher it is, paired by document.
    """
    stored, rows = data.cells(profile["name"], "baselines"), []
    found = {key: cell for key, cell in stored.items() if key[2].startswith("range-")}
    best = {}
    for (model, method, _), cell in found.items():
        nll, tokens = cell["result"]["nll"], cell["result"]["tokens"]
        value, error = comparisons.perplexity(nll, tokens)
        start, end = cell["inputs"]["layers"]
        row = {"model": model, "method": method, "start": start, "end": end, "layers": end - start}
        rows.append(row | {"value": value, "error": error, "documents": len(nll), "nll": nll, "tokens": tokens})
        if value < best.get((model, method), rows[-1] | {"value": np.inf})["value"]:
            best[model, method] = rows[-1]
    for row in rows:
        tuned = best[row["model"], row["method"]]
        row["tuned"], nll = row is tuned, row.pop("nll") if row is not tuned else row["nll"]
        row |= ends("against the best", None if row is tuned else comparisons.change(tuned["nll"], nll, row["tokens"]))
    return pd.DataFrame(rows).drop(columns=["nll", "tokens"])


@table("baselines")
def baseline_ranges(profile: dict) -> Table:
    """The paper's Table "baseline_tuning", then ours: the tuned range, and how many others cannot be told from it."""
    frame = ranges(profile)
    frame["alike"] = (frame["against the best low"] <= 0) | frame["against the best low"].isna()
    tried = frame.groupby(["model", "method"], sort=False).agg(tried=("alike", "size"), alike=("alike", "sum"))
    ours = frame[frame["tuned"]].join(tried, on=["model", "method"], rsuffix=" ranges")
    ours = ours.assign(
        name=ours["method"].map(TITLES), model=ours["model"].map(display_name), alike=ours["alike ranges"] - 1
    )
    paper = data.paper("layer_ranges")
    paper = paper.assign(name=paper["method"].map(TITLES), model=paper["model"] + " (paper)")
    columns = {"model": "{model}", "method": "{name}", "starting layer index": "{start}", "end layer index": "{end}"}
    more = {"perplexity": "{value:.2f} ± {error:.2f}", "documents": "{documents}", "ranges tried": "{tried}"}
    more["not told from the best"] = "{alike}"
    return stacked(lines(paper, columns), lines(ours, columns | more)), frame


@table("baselines")
def baseline_costs(profile: dict) -> Table:
    """What each pruned model costs, counted, and what finding its plan took, measured."""
    stored, rows, tuning = data.cells(profile["name"], "baselines"), [], Counter()
    for (model, method, task), cell in stored.items():
        tuning[model, method] += cell["seconds"] if task.startswith("range-") else 0
    for (model, method, task), cell in stored.items():
        if task == "plan":
            row = {"model": model, "method": method} | {k: v for k, v in cell["result"].items() if k != "plan"}
            rows.append(row | {"tuning_seconds": tuning[model, method]})
    frame = pd.DataFrame(rows)
    columns = {"model": "{model}", "method": "{name}", "heads removed": "{head_ratio:.1%}"}
    columns |= {"decoder parameters removed": "{removed_fraction:.2%}", "parameters": "{parameters:,}"}
    columns |= {"KV cache, bytes a token": "{kv_bytes_per_token:,}", "calibration tokens": "{calibration_tokens:,}"}
    columns |= {"seconds for the plan": "{seconds:.1f}", "seconds for all ranges": "{tuning_seconds:.1f}"}
    shown = frame.assign(model=frame["model"].map(display_name), name=frame["method"].map(TITLES))
    return stacked(lines(shown, columns)), frame


@table("baselines")
def baseline_writing(profile: dict) -> Table:
    """How much each method repeats itself in greedy writing: the share of 4-grams that stood there before."""
    rows = []
    for (model, method, task), cell in data.cells(profile["name"], "baselines").items():
        if task == "writing":
            shares = comparisons.mean_interval([repetition(ids) for ids in cell["result"]["ids"]])
            row = {"model": model, "method": method} | ends("repetition", shares) | {"texts": shares.n}
            rows.append(row | {"sample": one_line(cell["result"]["texts"][0], 70)})
    frame = pd.DataFrame(rows)
    columns = {"model": "{model}", "method": "{name}", "texts": "{texts}", "the first continuation begins": "{sample}"}
    columns["repetition"] = "{repetition:.0%} [{repetition low:.0%}, {repetition high:.0%}]"
    shown = frame.assign(model=frame["model"].map(display_name), name=frame["method"].map(TITLES))
    return stacked(lines(shown, columns)), frame


def repetition(ids: list[int], width: int = 4) -> float:
    """Share of the n-grams of ``width`` tokens that are not the first of their kind (Welleck et al., 2020)."""
    grams = [tuple(ids[start : start + width]) for start in range(len(ids) - width + 1)]
    return 1 - len(set(grams)) / len(grams) if grams else 0.0


@table()
def pruning_ratios(profile: dict) -> Table:
    """Every "Parameter Pruning Ratio" of the paper from its models' configs, and the FFN share of the official runs."""
    printed = data.paper("generation").set_index(["model", "method", "quantity"])["value"]
    alphas, official = data.paper("alpha_search"), data.paper("official_ffn_ratios").set_index("model")["value"]
    rows = []
    for model, config in paper_configs().items():
        groups, channels = (
            sum(total for total, _ in count_groups(config)),
            config.num_hidden_layers * config.intermediate_size,
        )
        mine = alphas[(alphas["model"] == model) & (alphas["task"] == "wikitext")]
        harp = PruningPlan.value_only(config.num_hidden_layers, dict(zip(mine["layer"], mine["value"], strict=True)))
        taken = top_groups_plan(config, round(printed[model, "flap", "head_ratio"] * groups))
        target = removed_fraction(config, taken)
        ratios = {"flap": 100 * target, "harp": 100 * removed_fraction(config, harp)}
        needed = ffn_channels_for(config, harp, target)
        row = {"model": model, "needed": needed / channels, "official": official[model]}
        rows.append(row | {f"{m} printed": printed[model, m, "removed_fraction"] for m in ratios} | ratios)
    columns = {"model": "{model}", "baselines: computed": "{flap:.2f} %", "printed": "{flap printed:.1f} %"}
    columns |= {"HARP: computed": "{harp:.2f} %", "printed ": "{harp printed:.1f} %"}
    columns |= {"FFN share of HARP+FLAP: computed": "{needed:.5f}", "official run": "{official:.5f}"}
    return lines(pd.DataFrame(rows), columns), pd.DataFrame(rows)


@table("alpha_search")
def alpha_values(profile: dict) -> Table:
    """The α as the paper prints them, from the top layer down: the paper's, then ours."""
    ours = data.tidy(profile["name"], "alpha_search", "alphas").rename(columns={"corpus": "text"})
    paper = data.paper("alpha_search").rename(columns={"task": "text"})
    numbers = pd.concat([paper.assign(source="paper"), ours.assign(source="ours")])
    rows = []
    for (source, model, corpus), part in numbers.groupby(["source", "model", "text"], sort=False):
        values = part.sort_values("layer", ascending=False)["value"]
        name = display_name(model) if source == "ours" else f"{model} (paper)"
        rows.append((name, TEXTS[corpus], " ".join(f"{value:g}" for value in values)))
    columns = ["model", "searched on", "α from the top layer down"]
    return pd.DataFrame(rows, columns=columns), numbers[["source", "model", "text", "layer", "value"]]


@table("alpha_search")
def search_cost(profile: dict) -> Table:
    """What the search takes: as the paper has it, then ours, literally and with reused hidden states."""
    rows = []
    for (model, _, task), cell in data.cells(profile["name"], "alpha_search").items():
        result, ways = cell["result"], {"reused": cell["result"]} if task.startswith("search-") else {}
        if task == "cost":
            ways = {way: result[way] for way in ("literal", "reused")}
        for way, found in ways.items():
            about = {"model": display_name(model), "cell": task, "way": way, "tokens": result["tokens"]}
            rows.append(about | {name: found[name] for name in ("seconds", "layer_passes")})
    printed = data.paper("search_cost").query("task == 'wikitext'").set_index("quantity")["value"]
    paper = {"model": "LLaMA3.1-8B (paper)", "cell": f"WikiText-2, {printed['documents']:.0f} pages", "way": "literal"}
    paper |= {"evaluations": printed["evaluations"], "seconds": 3600 * printed["hours_below"], "below": "under "}
    frame = pd.DataFrame([paper, *rows]).fillna({"below": ""})
    columns = {"model": "{model}", "search": "{cell}", "way": "{way}", "tokens": "{tokens:,.0f}"}
    columns |= {
        "layer passes": "{layer_passes:,.0f}",
        "evaluations": "{evaluations:,.0f}",
        "seconds": "{below}{seconds:,.1f}",
    }
    return stacked(lines(frame, columns)), frame
