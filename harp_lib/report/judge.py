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
import yaml

from harp_lib import config
from harp_lib.report.intervals import Interval, holm

REPRODUCED = "✓"
REFUTED = "✗"
INCONCLUSIVE = "?"
NOT_RUN = "–"
UNMARKED = ""  # a statement of ours, which is shown beside a claim
LEVEL = 0.05
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
