"""How a claim about a real model is judged and put into words."""

import numpy as np
import pandas as pd
from scipy.stats import spearmanr

from harp_lib.statistics import Interval, mean_interval

COLUMNS = ["statement", "what was checked", "on what", "evidence", "verdict", "counterexample"]
NEARLY_ONE = 0.95  # from here on Sim and normalised entropy count as "near 1"
HIGH = 0.8  # "high" are the layers above this share of the depth: the top fifth
CLEAR_TREND = 0.5  # a rank correlation over layers that is smaller is not called a trend


def read(claims: pd.DataFrame, *checked: str) -> str:
    """The claims of these words as a list: what was measured, and the verdict."""
    lines = []
    for row in claims[claims["what was checked"].isin(checked)].to_dict("records"):
        said = row["verdict"][0].upper() + row["verdict"][1:]
        lines.append(f"- *{row['what was checked']}* ({row['on what']}): {row['evidence']}. **{said}.**")
    return "\n".join(lines)


def verdict(interval: Interval) -> str:
    """Of a quantity that the claim needs to be positive."""
    return "holds" if interval.low > 0 else "does not hold" if interval.high < 0 else "too small to tell"


def layer_trend(layers: pd.DataFrame, quantity: str) -> Interval:
    """Spearman's ρ of a quantity with the layer index: mean over documents and 95 % interval.

    All documents pass the same layers, so the interval says how well the profile over layers is known, not how
    likely other layers would have the same trend: :func:`trend_verdict` asks for a large ρ as well.
    """
    part = layers[layers["quantity"] == quantity]
    return mean_interval([spearmanr(rows["layer"], rows["value"]).statistic for _, rows in part.groupby("document")])


def trend_verdict(rho: Interval, rising: bool) -> str:
    """Of a claim that something rises, or falls, with the layer index."""
    value, low, _ = rho if rising else negated(rho)
    if abs(value) < CLEAR_TREND:
        return "does not hold: no clear trend"
    return "does not hold" if value < 0 else "holds" if low > 0 else "too small to tell"


def negated(interval: Interval) -> Interval:
    """The interval of minus the quantity."""
    return Interval(-interval.value, -interval.high, -interval.low)


def rho_text(rho: Interval, other: str = "the layer index") -> str:
    """A rank correlation with its interval."""
    return f"rank correlation with {other} {rho.value:+.2f}{_bracket(rho, '+.2f')}"


def percent(interval: Interval) -> str:
    """A relative change with its interval, in per cent."""
    return f"{100 * interval.value:+.1f} %{_bracket(Interval(*(100 * x for x in interval)), '+.1f')}"


def documents(rows: pd.DataFrame) -> str:
    """How many there are, in words."""
    number = rows["document"].nunique()
    return f"{number} document{'s' if number > 1 else ''}"


def _bracket(interval: Interval, digits: str) -> str:
    """The interval's ends, where there is more than one document."""
    return "" if np.isnan(interval.low) else f" [{interval.low:{digits}}, {interval.high:{digits}}]"
