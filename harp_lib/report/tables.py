"""How tables are written: the paper's block, and ours beneath, with counts and errors; and times.

A frame is long and unrounded, and is written to the csv; :func:`block` and :func:`lines` make the
table that people read from it.
"""

import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from string import Formatter
from typing import Any

import numpy as np
import pandas as pd

from harp_lib.names import METHOD_TITLES, display_name
from harp_lib.report import comparisons, data, table

MISSING = "–"
# The three numbers of an interval, and how the names of their columns end.
ENDS = {
    "value": "",
    "low": " low",
    "high": " high",
}
VARIANTS = {  # in the order of tables and figures
    "dense": "dense",
    "harp": "HARP",
    "harp-tail": "HARP, tail-only prefill",
    "harp-folded": "HARP, folded",
    "thinned": "thinned out evenly",
}
COUNTED = ("flops full", "flops causal", "bytes", "cache_bytes", "peak_bytes")
Table = tuple[pd.DataFrame, pd.DataFrame]  # as people read it, and the numbers


def written(row: Mapping[str, Any], cell: str) -> str:
    """A row in the words of a format string.

    Without a value it is a dash and the row's ``reason``; without an error the part from " ± " or
    " [" on is left out. A row that is ``best`` is bold.
    """
    value_form, *error_form = re.split(r"(?= [±\[])", cell, maxsplit=1)
    if not _has_all(row, [value_form]):
        reason = row.get("reason")
        if not isinstance(reason, str):
            return MISSING
        without_bars = reason.replace("|", "·")  # a bar would end a cell of a Markdown table
        return f"{MISSING} ({textwrap.shorten(without_bars, 80, placeholder='…')})"
    form = cell if _has_all(row, error_form) else value_form
    text = form.format_map(row)
    if row.get("best") is True:
        return f"**{text}**"
    return text


def _has_all(row: Mapping[str, Any], forms: Sequence[str]) -> bool:
    """Whether a row has a number or text for every field that some format strings name."""
    for form in forms:
        for _, name, *_ in Formatter().parse(form):
            if name and pd.isna(row.get(name, np.nan)):
                return False
    return True


def lines(frame: pd.DataFrame, columns: Mapping[str, str]) -> pd.DataFrame:
    """A line for each row of a frame, with the texts of :func:`written`.

    Parameters
    ----------
    frame : DataFrame
        Long and unrounded.
    columns : mapping
        The format string of each column by its title. The field ``{name}`` is the title of the
        row's method, ``{model}`` what tables call its model.

    Returns
    -------
    DataFrame
        Texts, one column for each title.
    """
    rows = []
    for row in frame.to_dict("records"):
        row["model"] = display_name(row.get("model", ""))
        row["name"] = METHOD_TITLES.get(row.get("method"))
        rows.append({title: written(row, cell) for title, cell in columns.items()})
    return pd.DataFrame(rows, columns=list(columns))


def block(
    frame: pd.DataFrame, rows: str, columns: str, cell: str = "{value:.2f} ± {error:.2f}"
) -> pd.DataFrame:
    """A long frame as a wide table, with the texts of :func:`written`.

    Parameters
    ----------
    frame : DataFrame
        Long and unrounded, with the fields that ``cell`` names.
    rows, columns : str
        The columns of ``frame`` whose values become the lines and the columns of the table.
    cell : str
        The format string of each cell.

    Returns
    -------
    DataFrame
        Texts: the column ``rows``, and one for each value of ``columns``.
    """
    texts = frame.assign(_text=[written(row, cell) for row in frame.to_dict("records")])
    wide = texts.pivot_table(
        index=rows, columns=columns, values="_text", aggfunc="first", sort=False
    )
    wide = wide.reindex(columns=frame[columns].unique()).fillna(MISSING)
    return wide.rename_axis(columns=None).reset_index()


def stacked(*blocks: pd.DataFrame) -> pd.DataFrame:
    """Blocks beneath each other; a model is named only in the first of its lines."""
    with_lines = [part for part in blocks if len(part)]
    whole = pd.concat(with_lines or blocks, ignore_index=True)
    repeats = whole["model"].eq(whole["model"].shift())
    return whole.assign(model=whole["model"].mask(repeats, "")).fillna("")


def ends(prefix: str, numbers: Iterable[float] | None) -> dict[str, float]:
    """An interval as three columns of a frame: value, low and high end, nan without an interval."""
    if numbers is None:
        numbers = (np.nan, np.nan, np.nan)
    names = [prefix + end for end in ENDS.values()]
    return dict(zip(names, numbers, strict=False))  # an Interval has its number of items last


def interval(
    row: Mapping[str, Any], prefix: str = "", n: str = "documents"
) -> comparisons.Interval:
    """The interval in three columns of a row; ``n`` is the column with its number of items."""
    numbers = [row[prefix + end] for end in ENDS.values()]
    return comparisons.Interval(*numbers, row[n])


def told(value: float, low: float, high: float, form: str = "+.1f") -> str:
    """A number with its interval, for a title or a sentence."""
    return f"{value:{form}} [{low:{form}}, {high:{form}}]".replace("-", "−")


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
        value, error = comparisons.perplexity_and_error(part["nll"], part["tokens"])
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
            row.update(ends(reference, change))
        rows.append(row)
    return pd.DataFrame(rows)


def efficiency(profile: dict, kind: str) -> pd.DataFrame:
    """Seconds of each variant, beside what is counted of it.

    Parameters
    ----------
    profile : dict
        Its name says which stored cells are read.
    kind : str
        ``prefill`` or ``decode``.

    Returns
    -------
    DataFrame
        Columns: model, length, variant, repetitions; by :func:`ends` seconds, and "of dense" and
        "of thinned" (these models' seconds times how much, paired by repetition); "flops full" and
        "flops causal" (all query-key pairs, and the visible ones), bytes (moved for a token),
        cache_bytes, peak_bytes; the same with " of dense", as a ratio.
    """
    measured = data.tidy(profile["name"], "efficiency", "seconds", *COUNTED)
    if measured.empty or kind not in set(measured["kind"]):
        return pd.DataFrame()
    rows = []
    of_kind = measured[measured["kind"] == kind].sort_values("length", kind="stable")
    for (model, length), part in of_kind.groupby(["model", "length"], sort=False):
        seconds = {}
        for variant, of_variant in part[part["quantity"] == "seconds"].groupby("variant"):
            seconds[variant] = of_variant["value"].tolist()
        counted = part[part["quantity"].isin(COUNTED)]
        counted = counted.pivot_table("value", "variant", "quantity")
        counted = counted[[name for name in COUNTED if name in counted]]
        for variant in VARIANTS:
            if variant in seconds:
                rows.append(
                    {
                        "model": model,
                        "length": int(length),
                        "variant": variant,
                        **_timed(variant, seconds),
                        **_counted(variant, counted),
                    }
                )
    models = measured["model"].unique()
    return data.in_order(pd.DataFrame(rows), "model", models)


def _timed(variant: str, seconds: Mapping[str, list[float]]) -> dict[str, float]:
    """A variant's seconds, and as multiples of two other models' seconds."""
    row = {
        "repetitions": len(seconds[variant]),
        **ends("seconds", comparisons.mean_interval(seconds[variant])),
    }
    for other in ("dense", "thinned"):
        ratio = None
        if other in seconds and other != variant:
            ratio = comparisons.time_ratio(seconds[other], seconds[variant])
        row.update(ends(f"of {other}", ratio))
    return row


def _counted(variant: str, counted: pd.DataFrame) -> dict[str, float]:
    """What is counted of a variant, and as shares of the dense model's."""
    row = {}
    if variant in counted.index:
        row = counted.loc[variant].dropna().astype(int).to_dict()
    shares = {f"{name} of dense": row[name] / counted.loc["dense", name] for name in row}
    return row | shares


def paper_times() -> pd.Series:
    """HARP's seconds as a multiple of the dense model's, as the paper prints them, by length."""
    seconds = data.paper("efficiency").query("quantity == 'seconds'")
    seconds = seconds.pivot_table("value", "length", "method")
    return seconds["harp"] / seconds["dense"]


@table("efficiency")
def llama_cpp(profile: dict) -> Table | None:
    """Tokens a second of the same model in llama.cpp, dense and pruned by HARP.

    Both are measured in turn.
    """
    measured = data.tidy(profile["name"], "efficiency", "prompt", "generation")
    if measured.empty:
        return None
    rows = []
    keys = ["model", "length", "quantity"]
    for (model, length, quantity), part in measured.groupby(keys, sort=False):
        speeds = {name: runs["value"].tolist() for name, runs in part.groupby("variant")}
        dense = speeds["dense"]
        harp = speeds["harp"]
        rows.append(
            {
                "model": model,
                "length": length,
                "what": quantity,
                "repetitions": len(harp),
                **ends("dense", comparisons.mean_interval(dense)),
                **ends("harp", comparisons.mean_interval(harp)),
                **ends("times", comparisons.time_ratio(dense, harp)),
            }
        )
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
