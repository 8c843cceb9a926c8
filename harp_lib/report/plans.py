"""Which stored plans are equal, and what a plan takes away, in words.

Baselines that made the same plan for a model are one plan: it is shown once, under all of their
names, and is counted once. A plan that a method cannot help but choose arbitrarily has a star.
"""

import json
from collections.abc import Iterable, Mapping
from itertools import groupby
from typing import Any

import pandas as pd

from harp_lib.names import BASELINES, CATALOGUE, METHOD_TITLES
from harp_lib.results import Cells


def equal_plans(stored: Cells) -> dict[tuple[str, str], tuple[str, ...]]:
    """All baselines that made the same plan as a baseline, by model and method.

    Parameters
    ----------
    stored : Cells
        The cells of the store ``baselines``.

    Returns
    -------
    dict
        For each model and method the methods with this plan, in the order of the catalogue. The
        name of the method is no part of a plan.
    """
    makers: dict[tuple[str, str], list[str]] = {}
    for (model, method, task), cell in stored.items():
        if task != "plan" or method not in BASELINES:
            continue
        plan = cell["result"].get("plan")
        if plan:
            content = {name: value for name, value in plan.items() if name != "method"}
            makers.setdefault((model, json.dumps(content, sort_keys=True)), []).append(method)
    equal = {}
    for (model, _), methods in makers.items():
        in_order = tuple(sorted(methods, key=BASELINES.index))
        for method in methods:
            equal[model, method] = in_order
    return equal


def distinct_plans(
    stored: Cells, model: str, methods: Iterable[str], titles: Mapping[str, str] = METHOD_TITLES
) -> dict[str, str]:
    """One method for each distinct plan, with the joined titles of all baselines that made it."""
    equal = equal_plans(stored)
    methods = list(methods)
    joined_titles = {}
    for method in methods:
        makers = equal.get((model, method), (method,))
        representative = next(maker for maker in makers if maker in methods)
        if method == representative:
            joined_titles[method] = " = ".join(titles.get(maker, maker) for maker in makers)
    return joined_titles


def is_arbitrary(stored: Cells, model: str, method: str) -> bool:
    """Whether a method's scores cannot rank the layers of a model, so that its plan is arbitrary.

    Scores that are standardised within a layer are zero in a layer that has one key/value group.
    What is left of them is rounding, and rounding decides which layers lose their group.
    """
    entry = CATALOGUE.get(method)
    cell = stored.get((model, method, "plan"))
    if entry is None or cell is None or not entry.standardises_per_layer:
        return False
    return cell["result"].get("groups_per_layer") == 1


def one_row_per_plan(frame: pd.DataFrame, stored: Cells) -> pd.DataFrame:
    """Keep the rows of one method for each distinct plan of each model.

    ``frame`` has the columns model and method. The column ``methods``, which is added, joins the
    titles of all baselines that made the plan; a title has a star if the plan is arbitrary.
    """
    parts = []
    for model, part in frame.groupby("model", sort=False):
        methods = part["method"].unique()
        titles = dict(METHOD_TITLES)
        for method in methods:
            if is_arbitrary(stored, model, method):
                titles[method] += "*"
        joined_titles = distinct_plans(stored, model, methods, titles)
        kept = part[part["method"].isin(joined_titles)]
        if len(kept):
            parts.append(kept.assign(methods=kept["method"].map(joined_titles)))
    if not parts:
        return frame.assign(methods="").iloc[:0].sort_index()
    return pd.concat(parts).sort_index()


def dropped_attention(plan: Mapping[str, Any] | None, groups_per_layer: int) -> str:
    """Name the layers that lose their whole attention in a stored plan, or return "".

    An example is "attention of layers 14 to 17 dropped".
    """
    if not plan:
        return ""
    layers = []
    for part in plan["layers"]:
        loses_all_groups = len(part.get("removed_groups", ())) == groups_per_layer
        is_skipped = part.get("alpha") == 0  # values and output projection go too
        if loses_all_groups or is_skipped:
            layers.append(part["layer"])
    if not layers:
        return ""
    noun = "layers" if len(layers) > 1 else "layer"
    text = f"attention of {noun} {runs_in_words(sorted(layers))} dropped"
    top_layers = list(range(plan["num_layers"] - len(layers), plan["num_layers"]))
    changes_nothing_else = len(plan["layers"]) == len(layers)
    if sorted(layers) == top_layers and changes_nothing_else:
        return text + " (HARP with α = 0)"
    return text


def runs_in_words(numbers: list[int]) -> str:
    """Rising numbers in words: "3, 5 and 14 to 17"."""
    runs = []
    # Within a run of consecutive numbers, a number less its place is the same.
    for _, run in groupby(enumerate(numbers), key=lambda pair: pair[1] - pair[0]):
        members = [number for _, number in run]
        if len(members) > 2:
            runs.append(f"{members[0]} to {members[-1]}")
        else:
            runs.extend(str(number) for number in members)
    if len(runs) == 1:
        return runs[0]
    return f"{', '.join(runs[:-1])} and {runs[-1]}"
