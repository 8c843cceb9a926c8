"""Tables of notebook 09: the refit against its controls, its costs, pass keys and benchmarks."""

import numpy as np
import pandas as pd

from harp_lib.report import comparisons, data, table
from harp_lib.report.perplexity_changes import (
    HARP_TOP,
    PASSKEY,
    REFIT,
    REFIT_EXPLAINED,
    REFITTED,
    changes,
    is_third,
    num_layers,
    usual,
    with_coordinates,
)
from harp_lib.report.tables import Table, lines, stacked

COSTS = ("prefill left", "decode left", "cache left", "parameters left", "seconds")
TITLES = {
    ("dense", ""): "dense",
    ("harp", "top"): "HARP, top",
    ("alpha-fit", "top"): "α by least squares, top",
    ("alpha-fit", "explained"): "α by least squares, explained best",
    ("alpha-fit", "influence"): "α by least squares, least influence",
    ("nbl", "top"): "NBL, top",
    ("nbl", "explained"): "NBL, explained best",
    ("nbl", "influence"): "NBL, least influence",
    (REFIT, "top"): "refit, top",
    (REFIT, "explained"): "refit, explained best",
    (REFIT, "influence"): "refit, least influence",
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
    parts = [_nbl(profile, REFITTED, "least influence")]
    parts.append(_nbl(profile, REFIT_EXPLAINED, "explained best"))
    frame = data.in_order(pd.concat(parts), "model", profile["models"])
    columns = {
        "model": "{model}",
        "layers": "{layers}, {chosen}",
        "text": "{text}",
        "NBL, times the refit": "{value:.3f} [{low:.3f}, {high:.3f}]",
        "documents": "{documents:.0f}",
    }
    if "mean" in frame:
        columns["over draws"] = "{mean:.3f} [{lowest:.3f}, {highest:.3f}]"
        columns["draws"] = "{draws:.0f}"
    return stacked(lines(frame, columns)), frame


def _nbl(profile: dict, reference: dict, chosen: str) -> pd.DataFrame:
    """NBL's perplexity as a multiple of a refit's, one row a model and text."""
    frame = changes(profile, reference, same_draw=True)
    same = (frame["method"] == "nbl") & (frame["ranking"] == reference["ranking"])
    frame = _of_third(profile, frame[same & (frame["corpus"] != PASSKEY)])
    rows = []
    for _, draws in frame.groupby(["model", "text"], sort=False):
        first = draws[draws["seed"] == 0].iloc[0]
        row = first[["model", "layers", "text", "documents", "value", "low", "high"]].to_dict()
        row |= {"chosen": chosen, "draws": len(draws)}
        if len(draws) > 1:
            over_draws = comparisons.mean_interval(np.log(draws["value"])).mapped(np.exp)
            row["mean"] = over_draws.value
            row["lowest"] = over_draws.low
            row["highest"] = over_draws.high
        rows.append(row)
    return pd.DataFrame(rows)


@table("frontier")
def refit_of_a_third(profile: dict) -> Table:
    """Perplexity with a third of the layers value-only: HARP's top ones, and those refitted."""
    keys = ["model", "layers", "corpus"]
    dense = usual(changes(profile))
    against_harp = usual(changes(profile, HARP_TOP))
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
    fits = with_coordinates(data.tidy(profile["name"], "frontier", *COSTS))
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
    frame = with_coordinates(frame)
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
    refitted = f"{row['layers']}, explained best, refitted"
    if row["prompts"]:
        return f"{refitted} with {row['prompts']:.0f} pass keys in the text"
    if not pd.isna(row["without"]):
        return f"{refitted}; layer {row['without']:.0f} keeps its attention"
    return refitted


@table("frontier_scores")
def frontier_benchmarks(profile: dict) -> Table:
    """Benchmarks by likelihood: refits of a third of the layers against HARP, by question."""
    cells = data.cells(profile["name"], "frontier_scores")
    found: dict[tuple[str, str], dict[str, pd.DataFrame]] = {}
    for (model, _, task), cell in cells.items():
        rows = pd.DataFrame(cell["result"].get("rows", {}))
        which = cell["coordinates"]
        name = which["method"]
        if name == REFIT:
            name = which["ranking"]
        if len(rows):
            found.setdefault((model, task), {})[name] = rows
    table_rows = []
    for (model, task), changed in found.items():
        if {"dense", "harp", "explained", "influence"} <= set(changed):
            table_rows.append({"model": model, "task": task} | _answers(task, changed))
    frame = data.in_order(pd.DataFrame(table_rows), "model", profile["models"])
    columns = {
        "model": "{model}",
        "task": "{title}",
        "dense": "{dense:.2f}",
        "HARP": "{harp:.2f}",
        "refit, explained best, less HARP": (
            "{explained:+.2f} [{explained low:+.2f}, {explained high:+.2f}]"
        ),
        "refit, least influence, less HARP": (
            "{influence:+.2f} [{influence low:+.2f}, {influence high:+.2f}]"
        ),
        "questions": "{questions}",
    }
    return stacked(lines(frame, columns)), frame


def _answers(task: str, changed: dict[str, pd.DataFrame]) -> dict[str, object]:
    """Means over the questions of a task, and what the refits differ from HARP by."""
    from harp_lib.evaluation.benchmarks import ALL_BENCHMARKS

    quantity = "margin" if "margin" in changed["dense"] else "bits_per_byte"
    unit = "nats" if quantity == "margin" else "bits per byte; lower is better"
    values = {name: rows[quantity] for name, rows in changed.items()}
    row = {
        "title": f"{ALL_BENCHMARKS[task].title} ({unit})",
        "dense": values["dense"].mean(),
        "harp": values["harp"].mean(),
        "questions": len(values["dense"]),
    }
    for ranking in ("explained", "influence"):
        difference = comparisons.paired_mean_difference([(values[ranking], values["harp"])])
        row[ranking] = difference.value
        row[f"{ranking} low"] = difference.low
        row[f"{ranking} high"] = difference.high
    return row
