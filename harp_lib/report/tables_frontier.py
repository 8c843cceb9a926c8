"""Tables of notebook 09: the refit against its controls, its costs, pass keys and benchmarks."""

import numpy as np
import pandas as pd

from harp_lib.report import comparisons, data, table
from harp_lib.report.perplexity_changes import (
    PASSKEY,
    REFIT,
    REFITTED,
    WHICH,
    changes,
    is_third,
    num_layers,
    usual,
)
from harp_lib.report.tables import Table, lines, stacked

COSTS = ("prefill left", "decode left", "cache left", "parameters left", "seconds")
TITLES = {
    ("dense", ""): "dense",
    ("harp", "top"): "HARP, top",
    ("alpha-fit", "top"): "α by least squares, top",
    ("alpha-fit", "explained"): "α by least squares, explained best",
    ("nbl", "top"): "NBL, top",
    ("nbl", "explained"): "NBL, explained best",
    (REFIT, "top"): "refit, top",
    (REFIT, "explained"): "refit, explained best",
}


def _title(row: pd.Series) -> str:
    ranking = row["ranking"] if isinstance(row["ranking"], str) else ""
    return TITLES.get((row["method"], ranking), f"{row['method']}, {ranking}")


def _of_third(profile: dict, frame: pd.DataFrame) -> pd.DataFrame:
    """Rows of a third of the layers, models in the order of the profile."""
    frame = frame[is_third(frame, num_layers(profile))]
    return data.in_order(frame, "model", profile["models"])


@table("frontier")
def refit_against_nbl(profile: dict) -> Table:
    """NBL against the refit in the same layers, on each text; over documents, and over draws."""
    frame = changes(profile, REFITTED, same_draw=True)
    same = (frame["method"] == "nbl") & (frame["ranking"] == "explained")
    frame = _of_third(profile, frame[same & (frame["corpus"] != PASSKEY)])
    rows = []
    for _, draws in frame.groupby(["model", "text"], sort=False):
        first = draws[draws["seed"] == 0].iloc[0]
        row = first[["model", "layers", "text", "documents", "value", "low", "high"]].to_dict()
        over_draws = comparisons.mean_interval(np.log(draws["value"])).mapped(np.exp)
        row["draws"] = len(draws)
        if len(draws) > 1:
            row |= {
                "mean": over_draws.value,
                "lowest": over_draws.low,
                "highest": over_draws.high,
            }
        rows.append(row)
    frame = pd.DataFrame(rows)
    columns = {
        "model": "{model}",
        "layers": "{layers}",
        "text": "{text}",
        "NBL, times the refit": "{value:.3f} [{low:.3f}, {high:.3f}]",
        "documents": "{documents:.0f}",
    }
    if "mean" in frame:
        columns["over draws"] = "{mean:.3f} [{lowest:.3f}, {highest:.3f}]"
        columns["draws"] = "{draws:.0f}"
    return stacked(lines(frame, columns)), frame


@table("frontier")
def refit_of_a_third(profile: dict) -> Table:
    """Perplexity with a third of the layers value-only: HARP's top ones, and those refitted."""
    keys = ["model", "layers", "corpus"]
    dense = usual(changes(profile))
    against_harp = usual(changes(profile, {"method": "harp", "ranking": "top"}))
    chosen = pd.Series(True, against_harp.index)
    for column, value in REFITTED.items():
        chosen &= against_harp[column] == value
    frame = against_harp[chosen]
    before = dense[dense["method"] == "harp"][[*keys, "reference"]]
    frame = frame.merge(before.rename(columns={"reference": "dense"}), on=keys)
    frame = _of_third(profile, frame)
    columns = {
        "model": "{model}",
        "layers": "{layers}",
        "text": "{text}",
        "dense": "{dense:.2f}",
        "HARP": "{reference:.2f}",
        "refit": "{perplexity:.2f}",
        "times HARP's": "{value:.2f} [{low:.2f}, {high:.2f}]",
        "documents": "{documents:.0f}",
    }
    return stacked(lines(frame, columns)), frame


@table("frontier")
def frontier_costs(profile: dict) -> Table:
    """What a third of the layers leaves of the dense model's costs, counted, and seconds to fit."""
    fits = data.tidy(profile["name"], "frontier", *COSTS)
    for column in WHICH:
        if column not in fits:
            fits[column] = np.nan
    keys = ["model", "layers", "method", "ranking"]
    fits = _of_third(profile, usual(fits).dropna(subset="ranking"))
    fits = fits[fits["texts"] == 2]
    wide = fits.pivot_table("value", keys, "quantity", sort=False).reset_index()
    wide = data.in_order(wide, "model", profile["models"])
    wide["what"] = wide.apply(_title, axis=1)
    wide = wide[wide["what"].isin(TITLES.values())]
    columns = {
        "model": "{model}",
        "layers": "{layers}",
        "what": "{what}",
        "prefill": "{prefill left:.0%}",
        "decode": "{decode left:.0%}",
        "cache": "{cache left:.0%}",
        "parameters": "{parameters left:.1%}",
        "fit, s": "{seconds:.0f}",
    }
    return stacked(lines(wide, columns)), wide


@table("frontier")
def passkey_study(profile: dict) -> Table | None:
    """Keys found if one of the chosen layers keeps its attention, or keys are calibrated on."""
    frame = data.tidy(profile["name"], "frontier", "exact", "nll", "tokens")
    for column in WHICH:
        if column not in frame:
            frame[column] = np.nan
    frame = frame[(frame["corpus"] == PASSKEY) & (frame["seed"] == 0)]
    studied = frame.loc[frame["without"].notna(), "model"].unique()
    frame = frame[frame["model"].isin(studied)]
    if frame.empty:
        return None
    explained = (frame["method"] == REFIT) & (frame["ranking"] == "explained")
    others = is_third(frame, num_layers(profile)) & frame["method"].isin(["harp"])
    frame = frame[explained | others | (frame["method"] == "dense")]
    keys = ["model", "method", "layers", "without", "prompts"]
    rows = []
    for key, part in frame.groupby(keys, sort=False, dropna=False):
        sums = part.groupby("quantity")["value"].sum()
        row = dict(zip(keys, key, strict=True))
        row["keys"] = int((part["quantity"] == "exact").sum())
        row["found"] = sums["exact"] / row["keys"]
        row["perplexity"] = np.exp(sums["nll"] / sums["tokens"])
        row["what"] = _studied(row)
        rows.append(row)
    frame = pd.DataFrame(rows).sort_values("found", ascending=False, kind="stable")
    frame = data.in_order(frame, "model", profile["models"])
    columns = {
        "model": "{model}",
        "layers changed": "{what}",
        "keys found": "{found:.0%}",
        "perplexity of the key": "{perplexity:.2f}",
        "keys": "{keys}",
    }
    return stacked(lines(frame, columns)), frame


def _studied(row: dict) -> str:
    if row["method"] == "dense":
        return "none"
    if row["method"] == "harp":
        return f"{row['layers']}, HARP"
    if row["prompts"]:
        return f"{row['layers']}, refitted with {row['prompts']:.0f} pass keys in the text"
    if not pd.isna(row["without"]):
        return f"{row['layers']}, refitted; layer {row['without']:.0f} keeps its attention"
    return f"{row['layers']}, refitted"


@table("frontier_scores")
def frontier_benchmarks(profile: dict) -> Table:
    """Benchmarks by likelihood: the refit of a third of the layers against HARP, by question."""
    cells = data.cells(profile["name"], "frontier_scores")
    found: dict[tuple[str, str], dict[str, pd.DataFrame]] = {}
    for (model, _, task), cell in cells.items():
        rows = pd.DataFrame(cell["result"].get("rows", {}))
        if len(rows):
            found.setdefault((model, task), {})[cell["coordinates"]["method"]] = rows
    table_rows = []
    for (model, task), by_method in found.items():
        if {"dense", "harp", REFIT} <= set(by_method):
            table_rows.append(_compared_answers(model, task, by_method))
    frame = data.in_order(pd.DataFrame(table_rows), "model", profile["models"])
    columns = {
        "model": "{model}",
        "task": "{title}",
        "dense": "{dense:.2f}",
        "HARP": "{harp:.2f}",
        "refit": "{refit:.2f}",
        "refit less HARP": "{value:+.2f} [{low:+.2f}, {high:+.2f}]",
        "questions": "{questions}",
    }
    return stacked(lines(frame, columns)), frame


def _compared_answers(
    model: str, task: str, by_method: dict[str, pd.DataFrame]
) -> dict[str, object]:
    from harp_lib.evaluation.benchmarks import ALL_BENCHMARKS

    quantity = "margin" if "margin" in by_method["dense"] else "bits_per_byte"
    unit = "nats" if quantity == "margin" else "bits per byte; lower is better"
    values = {method: rows[quantity] for method, rows in by_method.items()}
    difference = comparisons.paired_mean_difference([(values[REFIT], values["harp"])])
    return {
        "model": model,
        "task": task,
        "title": f"{ALL_BENCHMARKS[task].title} ({unit})",
        "dense": values["dense"].mean(),
        "harp": values["harp"].mean(),
        "refit": values[REFIT].mean(),
        "value": difference.value,
        "low": difference.low,
        "high": difference.high,
        "questions": len(values["dense"]),
    }
