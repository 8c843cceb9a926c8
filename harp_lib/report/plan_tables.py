"""What the claims of notebook 04 are judged by: layer ranges, and ratios of parameters."""

import pandas as pd

from harp_lib.report import comparisons, data
from harp_lib.report.tables import ends


def ranges(profile: dict) -> pd.DataFrame:
    """Perplexity of every layer range that was tried.

    Columns: model, method, start, end (open), layers, value, error, documents, tuned (the best), by
    :func:`ends` "above" (how much higher than the best, paired by document), alike (not
    significantly above the best).
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
            value, error = comparisons.perplexity_and_error(part["nll"], part["tokens"])
            above = comparisons.change(best["nll"], part["nll"], part["tokens"])
            rows.append(
                {
                    "model": model,
                    "method": method,
                    "start": start,
                    "end": end,
                    "layers": end - start,
                    "value": value,
                    "error": error,
                    "documents": above.n,
                    "tuned": (start, end) == tuned,
                    **ends("above", above),
                    "alike": not above.low > 0,
                }
            )
    return pd.DataFrame(rows)


def ratios_beside_printed(counted: pd.DataFrame) -> pd.DataFrame:
    """What is counted of the paper's models beside what the paper prints, a row for each model.

    Parameters
    ----------
    counted : DataFrame
        The rows ``removed_fraction`` and ``ffn_share`` of the store ``paper_ratios``.

    Returns
    -------
    DataFrame
        Columns: model, needed and official (the FFN share of HARP+FLAP, 0 to 1), "flap printed",
        "harp printed", flap and harp (removed parameters in per cent).
    """
    printed = data.paper("generation").set_index(["model", "method", "quantity"])["value"]
    official = data.paper("official_ffn_ratios").set_index("model")["value"]
    rows = []
    for model, of_model in counted.groupby("model", sort=False):
        values = of_model.set_index(["method", "quantity"])["value"]
        rows.append(
            {
                "model": model,
                "needed": values["harp+flap", "ffn_share"],
                "official": official[model],
                "flap printed": printed[model, "flap", "removed_fraction"],
                "harp printed": printed[model, "harp", "removed_fraction"],
                "flap": 100 * values["flap", "removed_fraction"],
                "harp": 100 * values["harp", "removed_fraction"],
            }
        )
    return pd.DataFrame(rows)
