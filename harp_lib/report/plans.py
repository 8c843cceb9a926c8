"""What the stored plans have in common, and what they take away, in words.

Baselines that made the same plan for a model are one plan: it is shown once, under all of their
names, and is counted once.
"""

import json
from collections.abc import Iterable, Mapping
from itertools import groupby
from typing import Any

import pandas as pd

from harp_lib.names import BASELINES, METHOD_TITLES
from harp_lib.results import Cells


def equal_plans(stored: Cells) -> dict[tuple[str, str], tuple[str, ...]]:
    """All baselines that made a baseline's plan, by model and method, in the order of the
    catalogue.

    ``stored`` are the cells of the store ``baselines``. The name of the method is no part of a
    plan.
    """
    makers: dict[tuple[str, str], list[str]] = {}
    for (model, method, task), cell in stored.items():
        plan = cell["result"].get("plan") if task == "plan" else None
        if plan and method in BASELINES:
            content = {name: value for name, value in plan.items() if name != "method"}
            makers.setdefault((model, json.dumps(content, sort_keys=True)), []).append(method)
    found = {}
    for (model, _), methods in makers.items():
        same = tuple(sorted(methods, key=BASELINES.index))
        for method in methods:
            found[model, method] = same
    return found


def distinct_plans(
    stored: Cells, model: str, methods: Iterable[str], titles: Mapping[str, str] = METHOD_TITLES
) -> dict[str, str]:
    """One method for each plan that some methods made, with the joined titles of all baselines that
    made it.
    """
    groups, methods, found = equal_plans(stored), list(methods), {}
    for method in methods:
        same = groups.get((model, method), (method,))
        first = next(other for other in same if other in methods)
        if method == first:
            found[method] = " = ".join(titles.get(name, name) for name in same)
    return found


def one_row_per_plan(frame: pd.DataFrame, stored: Cells) -> pd.DataFrame:
    """The rows of a frame (with model and method), those of equal plans once; ``methods`` joins the
    titles.
    """
    parts = [frame.assign(methods="").iloc[:0]]
    for model, part in frame.groupby("model", sort=False):
        names = distinct_plans(stored, model, part["method"].unique())
        kept = part[part["method"].isin(names)]
        parts.append(kept.assign(methods=kept["method"].map(names)))
    return pd.concat([part for part in parts if len(part)] or parts).sort_index()


def dropped_attention(plan: Mapping[str, Any] | None, groups_per_layer: int) -> str:
    """Which layers lose their whole attention in a stored plan, as "attention of layers 14 to 17
    dropped", or "".
    """
    layers = []
    for part in plan["layers"] if plan else ():
        all_groups = len(part.get("removed_groups", ())) == groups_per_layer
        if all_groups or part.get("alpha") == 0:  # at α = 0 values and output projection go too
            layers.append(part["layer"])
    if not layers:
        return ""
    noun = "layers" if len(layers) > 1 else "layer"
    text = f"attention of {noun} {runs_in_words(sorted(layers))} dropped"
    top = range(plan["num_layers"] - len(layers), plan["num_layers"])
    is_harp_at_zero = sorted(layers) == list(top) and len(plan["layers"]) == len(layers)
    return text + " (HARP with α = 0)" if is_harp_at_zero else text


def runs_in_words(numbers: list[int]) -> str:
    """Rising numbers, as "3, 5 and 14 to 17"."""
    runs = []
    for _, run in groupby(enumerate(numbers), key=lambda pair: pair[1] - pair[0]):
        members = [number for _, number in run]
        if len(members) > 2:
            runs.append(f"{members[0]} to {members[-1]}")
        else:
            runs += map(str, members)
    return " and ".join(filter(None, (", ".join(runs[:-1]), runs[-1])))
