"""The one rule by which claims of the paper are judged: the sign of an effect.

A claim's effects are positive where the paper is right. The claim is reproduced (✓) on a model
where the 95 % interval of every effect lies above zero. It is refuted (✗) where an effect is
negative with a p value below 0.05, which Holm's method adjusts for the number of effects. Anything
else is inconclusive (?). A claim that two things are comparable has a margin in place of a sign.
"""

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import pandas as pd
import yaml

from harp_lib import config
from harp_lib.report.intervals import Interval, holm

REPRODUCED = "✓"
REFUTED = "✗"
INCONCLUSIVE = "?"
NOT_RUN = "–"
UNMARKED = ""  # a statement of ours, which is shown beside a claim
LEVEL = 0.05
MOST_EFFECTS = 6  # of a claim on a model that are written one by one
COLUMNS = ["claim", "model", "effect", "value", "low", "high", "n", "p", "within", "mark", "reason"]


@cache
def claims() -> dict[str, dict[str, Any]]:
    """The entries of ``data/paper/claims.yaml`` by id."""
    entries = yaml.safe_load((config.PAPER / "claims.yaml").read_text(encoding="utf-8"))
    return {entry["id"]: entry for entry in entries}


def claims_of(notebook: str) -> list[str]:
    """The ids of the claims that a notebook judges."""
    return [
        name
        for name, claim in claims().items()
        if claim["notebook"] == notebook and "effect" in claim
    ]


def mark(effects: Sequence[Interval], within: tuple[float, float] | None = None) -> str:
    """✓, ✗, ? or –, from the effects of a claim on one model.

    Parameters
    ----------
    effects : sequence of Interval
        Positive where the paper is right. Without any, the claim was not run.
    within : (float, float), optional
        The margin of a claim that two things are comparable: ✓ where every interval lies inside, ✗
        where one lies outside.
    """
    if not effects:
        return NOT_RUN
    if within is not None:
        lowest, highest = within
        if all(lowest <= effect.low and effect.high <= highest for effect in effects):
            return REPRODUCED
        if any(effect.high < lowest or effect.low > highest for effect in effects):
            return REFUTED
        return INCONCLUSIVE
    if all(is_positive(effect) for effect in effects):
        return REPRODUCED
    adjusted = holm([effect.p for effect in effects])
    for effect, p in zip(effects, adjusted, strict=True):
        if effect.value < 0 and p < LEVEL:
            return REFUTED
    return INCONCLUSIVE


def is_positive(effect: Interval) -> bool:
    """Whether an effect is clearly above zero: by its interval, or without one by its test."""
    if np.isnan(effect.low):
        return effect.value > 0 and effect.p < LEVEL
    return effect.low > 0


def judgement(
    claim: str,
    model: str,
    effects: Sequence[Interval],
    within: tuple[float, float] | None = None,
    reason: str = "",
) -> list[dict[str, Any]]:
    """The rows of a claim on one model in the file of verdicts, one for each effect.

    Parameters
    ----------
    claim : str
        Its id in ``claims.yaml``.
    model : str
        Full name of the model.
    effects : sequence of Interval
        As :func:`mark` takes them; the intervals are written unadjusted, the p values adjusted.
    within : (float, float), optional
        As :func:`mark` takes it.
    reason : str
        Why the claim was not run, without effects.

    Returns
    -------
    list of dict
        Records of :data:`COLUMNS`.

    Raises
    ------
    ValueError
        If there is no such claim, or neither an effect nor a reason.
    """
    if claim not in claims():
        known = ", ".join(claims())
        raise ValueError(f"unknown claim {claim!r}; data/paper/claims.yaml has {known}")
    if not effects and not reason:
        raise ValueError(f"{claim} on {model} has no effect; say why in reason=…")
    made = mark(effects, within)
    if claims()[claim]["kind"] == "ours":
        made = UNMARKED
    about = {"claim": claim, "model": model, "mark": made, "reason": reason}
    if not effects:
        nothing = Interval(np.nan, np.nan, np.nan)
        return [about | vars(nothing) | {"within": ""}]
    margin = ""
    if within is not None:
        margin = f"{within[0]:g} to {within[1]:g}"
    rows = []
    adjusted = holm([effect.p for effect in effects])
    for effect, p in zip(effects, adjusted, strict=True):
        rows.append(about | vars(effect) | {"p": p, "within": margin})
    return rows


def effects_of(rows: pd.DataFrame | pd.Series) -> list[Interval]:
    """The effects that stand in the rows of a frame, or in one row, as :func:`.paired` makes them.

    An effect has the name that is in the column ``effect``, or else in ``against``.
    """
    if isinstance(rows, pd.Series):
        rows = rows.to_frame().T
    effects = []
    for row in rows.to_dict("records"):
        name = row.get("effect", row.get("against", ""))
        ends = [float(row[column]) for column in ("value", "low", "high")]
        effects.append(Interval(*ends, int(row["n"]), float(row.get("p", np.nan)), name))
    return effects


def in_words(judged: Sequence[dict[str, Any]]) -> str:
    """The effects of a :func:`judgement` with their intervals, or why there is none."""
    first = judged[0]
    values = [row["value"] for row in judged]
    if pd.isna(values).all():
        return first["reason"]
    words = [_effect_in_words(row) for row in judged]
    within = f" (margin: {first['within']})" if first["within"] else ""
    if len(words) > MOST_EFFECTS:
        lowest = words[int(np.argmin(values))]
        highest = words[int(np.argmax(values))]
        return f"{len(words)} effects, from {lowest} to {highest}{within}"
    return "; ".join(words) + within


def _effect_in_words(effect: dict[str, Any]) -> str:
    """Name, value and interval of an effect, or its p value where there is no interval."""
    number = f"{effect['value']:+.3g}"
    if not pd.isna(effect["low"]):
        number += f" [{effect['low']:+.3g}, {effect['high']:+.3g}]"
    elif not pd.isna(effect["p"]):
        number += f" (p = {effect['p']:.2g})"
    number = number.replace("-", "−")
    return f"{effect['effect']} {number}, n = {effect['n']:.0f}".strip()
