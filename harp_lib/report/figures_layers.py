"""What figures of layers share: means over documents, and trends."""

import pandas as pd

from harp_lib.report.comparisons import mean_interval


def over_documents(frame: pd.DataFrame, *keys: str) -> pd.DataFrame:
    """Mean over the documents of both texts, its 95 % interval (Student's t), and their number.

    Columns: the keys, value, low, high, documents.
    """
    parts = frame.groupby(list(keys), sort=False)["value"]
    intervals = {key: mean_interval(part) for key, part in parts}
    index = pd.MultiIndex.from_tuples(intervals, names=keys)
    columns = ["value", "low", "high", "documents"]
    return pd.DataFrame(intervals.values(), index, columns).reset_index()
