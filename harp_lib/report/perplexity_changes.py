"""Perplexity under the changes of notebook 09, against the dense model's or another change's."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from harp_lib import config
from harp_lib.names import CORPUS_TITLES
from harp_lib.report import comparisons, data
from harp_lib.report.tables import ENDS

REFIT = "harp+refit"
PASSKEY = "passkey"
TEXTS = CORPUS_TITLES | {PASSKEY: "pass key"}
# What says which change a cell is of, beside its model and number of layers.
WHICH = ("method", "ranking", "texts", "calibration_tokens", "seed", "without", "prompts")
HARP_TOP = {"method": "harp", "ranking": "top"}
REFITTED = {"method": REFIT, "ranking": "influence", "texts": 2}
"""The refit that others are compared with: of the layers of least block influence."""


def usual(frame: pd.DataFrame) -> pd.DataFrame:
    """Rows of the first draw and the profile's amount of calibration text, without pass keys in it.

    Only the calibration curve, other draws and the study of pass keys have others.
    """
    first = frame[(frame["seed"] == 0) & (frame["prompts"] == 0) & frame["without"].isna()]
    fitted = first[first["texts"] == 2]
    amounts = fitted.groupby("model")["calibration_tokens"].agg(lambda tokens: tokens.mode()[0])
    as_usual = first["calibration_tokens"] == first["model"].map(amounts)
    return first[as_usual | (first["texts"] < 2)]


def with_coordinates(frame: pd.DataFrame) -> pd.DataFrame:
    """A frame with all columns of ``WHICH``; those that no cell of a profile has are empty."""
    missing = [column for column in WHICH if column not in frame]
    return frame.assign(**dict.fromkeys(missing, np.nan))


def stored_documents(profile: Mapping[str, Any]) -> pd.DataFrame:
    """Every evaluated document: :func:`data.documents` with all columns of ``WHICH``."""
    frame = data.documents(profile["name"], "frontier")
    for column in ("layers", "corpus"):
        if column not in frame:
            frame[column] = np.nan
    return with_coordinates(frame)


def is_third(frame: pd.DataFrame, total: Mapping[str, int]) -> pd.Series:
    """Whether the change is of the number of layers nearest to a third of the model's."""
    changed = frame.loc[frame["layers"] > 0, ["model", "layers"]].drop_duplicates()
    distance = (changed["layers"] - changed["model"].map(total) / 3).abs()
    nearest = changed.loc[distance.groupby(changed["model"]).idxmin()].set_index("model")["layers"]
    return frame["layers"] == frame["model"].map(nearest)


def num_layers(profile: Mapping[str, Any]) -> dict[str, int]:
    """How many layers each model has, which its ranking of all layers says."""
    ranked = data.tidy(profile["name"], "frontier", "explained")
    ranked = ranked[ranked["method"] == "dense"]
    return ranked.groupby("model")["layer"].nunique().to_dict()


def third_text(profile: Mapping[str, Any]) -> str:
    """The corpus that nothing is fitted to or ranked on."""
    return config.load_profile(profile["name"])["frontier"]["third"]


def changes(profile: Mapping[str, Any], reference: Mapping[str, Any] | None = None) -> pd.DataFrame:
    """Perplexity as a multiple of the dense model's, or of another change's with as many layers.

    Parameters
    ----------
    profile : dict
        Its name says which stored cells are read.
    reference : dict, optional
        Coordinates of the change that others are compared with, of the usual calibration text.

    Returns
    -------
    DataFrame
        Columns: model, ``WHICH``, layers, corpus, perplexity, reference (its perplexity),
        documents, value, low, high (the multiple, paired by document), text.
    """
    documents = stored_documents(profile)
    keys = ["model", *WHICH, "layers", "corpus"]
    columns = [*keys, "perplexity", "reference", "documents", *ENDS]
    if documents.empty:
        return pd.DataFrame(columns=[*columns, "text"])
    befores = _references(documents, reference)
    rows = []
    for key, after in documents.groupby(keys, sort=False, dropna=False):
        change = dict(zip(keys, key, strict=True))
        layers = 0 if reference is None else change["layers"]
        before = befores.get((change["model"], layers, 0, change["corpus"]))
        if before is not None:
            rows.append((*key, *_compared(before, after)))
    frame = pd.DataFrame(rows, columns=columns)
    frame["layers"] = frame["layers"].astype(int)
    frame["text"] = frame["corpus"].map(TEXTS)
    return frame


def _references(
    documents: pd.DataFrame, reference: Mapping[str, Any] | None
) -> dict[tuple, pd.DataFrame]:
    """Documents under the reference, by model, number of layers, draw and corpus."""
    if reference is None:
        chosen = documents[documents["method"] == "dense"]
    else:
        chosen = usual(documents)
        for column, value in reference.items():
            chosen = chosen[chosen[column] == value]
    by = ["model", "layers", "seed", "corpus"]
    return {key: part for key, part in chosen.groupby(by, sort=False)}


def _compared(before: pd.DataFrame, after: pd.DataFrame) -> list[float]:
    """Two perplexities on the same documents, as :func:`changes` has them in its columns."""
    tokens = after["tokens"]
    perplexity_after, _ = comparisons.perplexity_and_error(after["nll"], tokens)
    perplexity_before, _ = comparisons.perplexity_and_error(before["nll"], tokens)
    *change, documents = comparisons.change(before["nll"], after["nll"], tokens)
    multiple = 1 + np.array(change)  # value, low, high
    return [perplexity_after, perplexity_before, documents, *multiple]
