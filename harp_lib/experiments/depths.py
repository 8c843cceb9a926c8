"""How many layers can go: methods at several depths, for notebook 05."""

from collections.abc import Iterator
from dataclasses import replace

from harp_lib.experiments.context import HELD_OUT, Context
from harp_lib.experiments.plans import Planning, plan_cells
from harp_lib.experiments.scores import score_cells
from harp_lib.experiments.search import search_cell
from harp_lib.names import BASELINES, DENSE, HARP, HARP_FLAP
from harp_lib.results import Cell


def depths(context: Context) -> Iterator[Cell]:
    """Plans, perplexities and scores of each method with heads removed from fewer and more layers.

    Depth 0 is the dense model. Baselines are tuned anew for each number of layers, and lose as many
    heads as so many layers have. At the profile's own number the cells are those of notebooks 04
    and 05.
    """
    settings = context.profile["depths"]
    counts = settings["layers"].get(context.name, [])
    if not counts:
        return
    # One search: of a greedy search to fewer layers the alphas are the first ones.
    yield search_cell(context, context.corpora[0], max(counts))
    asked = context.tasks("evaluation")
    tasks = [task for task in settings["tasks"].get(context.name, []) if task in asked]
    for count in (0, *counts):
        methods = [HARP, HARP_FLAP] if count else [DENSE]
        if count in settings["baselines"].get(context.name, []):
            methods = [*BASELINES, *methods]
        for cell in _at(replace(context, depth=count or None), methods, tasks):
            yield replace(cell, about={"depth": count, **cell.about})


def _at(context: Context, methods: list[str], tasks: list[str]) -> Iterator[Cell]:
    """The cells of one depth."""
    planning = Planning(context)
    yield from plan_cells(planning, methods)
    plans = {method: planning.plan(method) for method in methods}
    for corpus in context.corpora:
        yield from context.nll_cells(context.text(corpus, HELD_OUT), plans)
    yield from score_cells(context, tasks, plans)
