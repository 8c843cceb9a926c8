"""The paper's published numbers, typed into ``data/paper``: one CSV per table or figure, one row per number."""

import pandas as pd

from . import paths


def published(table: str) -> pd.DataFrame:
    """One table or figure of the paper.

    Parameters
    ----------
    table : str
        Name of a file in ``data/paper``, without its ending.

    Returns
    -------
    DataFrame
        Columns ``table, model, method, task, metric, value``.
    """
    file = paths.PAPER / f"{table}.csv"
    if not file.is_file():
        known = ", ".join(sorted(path.stem for path in paths.PAPER.glob("*.csv")))
        raise ValueError(f"unknown table {table!r}; choose from {known}")
    return pd.read_csv(file)


def published_alphas() -> dict[str, dict[int, float]]:
    """The alphas of the paper's figure "alpha_search", searched on WikiText: model → layer index → alpha."""
    rows = published("alpha_search").query("task == 'WikiText'")
    rows = rows.assign(layer=rows["metric"].str.extract(r"layer (\d+)", expand=False).astype(int))
    return {
        model: dict(zip(part["layer"], part["value"], strict=True)) for model, part in rows.groupby("model", sort=False)
    }
