"""The table of docs/results.md of a third of the layers, HARP's and refitted ones."""

import pandas as pd

from harp_lib.report import data
from harp_lib.report.perplexity_changes import (
    HARP_TOP,
    REFITTED,
    changes,
    is_third,
    num_layers,
    usual,
)
from harp_lib.report.tables import Table, lines, stacked


def _of_third(profile: dict, frame: pd.DataFrame) -> pd.DataFrame:
    """Rows of a third of the layers, models in the order of the profile."""
    frame = frame[is_third(frame, num_layers(profile))]
    return data.in_order(frame, "model", profile["models"])


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
