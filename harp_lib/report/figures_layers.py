"""What figures of layers share: means over documents, and trends."""

import pandas as pd

from harp_lib.report.comparisons import mean_interval, rank_correlation


def over_documents(frame: pd.DataFrame, *keys: str) -> pd.DataFrame:
    """Mean over the documents of both texts, its 95 % interval (Student's t), and their number.

    Columns: the keys, value, low, high, documents.
    """
    parts = frame.groupby(list(keys), sort=False)["value"]
    intervals = {key: mean_interval(part) for key, part in parts}
    index = pd.MultiIndex.from_tuples(intervals, names=keys)
    columns = ["value", "low", "high", "documents"]
    return pd.DataFrame(intervals.values(), index, columns).reset_index()


def rank_trend(frame: pd.DataFrame) -> pd.Series:
    """Spearman's rank correlation of the value with the layer, for each model."""
    correlations = {}
    for model, part in frame.astype({"value": float}).groupby("model", sort=False):
        correlations[model] = rank_correlation(part["layer"], part["value"]).value
    return pd.Series(correlations)
