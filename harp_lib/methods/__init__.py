"""Pruning methods: each looks at a model and a calibration text, and returns a plan. None touches a weight.

A new baseline is a module with ``planner(model, calibration, layers)`` and a row of ``CATALOGUE`` that names it.
"""

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any, NamedTuple

from transformers import PreTrainedModel

from harp_lib.measure.text import Tokens
from harp_lib.pruning.architecture import check_plan, decoder_layers
from harp_lib.pruning.layers import num_groups
from harp_lib.pruning.plan import LayerPlan, PruningPlan


class Method(NamedTuple):
    """What a pruning method is called, its module, and how figures show it."""

    title: str
    module: str
    colour: str  # of seaborn's colour-blind palette
    marker: str


CATALOGUE = {
    "mag-sp": Method("Mag-sp", "magnitude", "#d55e00", "v"),
    "wanda-sp": Method("Wanda-sp", "wanda", "#029e73", "^"),
    "llm-pruner": Method("LLM-Pruner", "llm_pruner", "#cc78bc", "D"),
    "flap": Method("FLAP", "flap", "#de8f05", "P"),
    "harp": Method("HARP", "harp", "#0173b2", "o"),
    "harp+flap": Method("HARP+FLAP", "harp", "#56b4e9", "X"),
    "harp+refit": Method("HARP+refit", "refit", "#8c1d5b", "*"),
}
EVALUATED = tuple(CATALOGUE)  # all that are compared
METHODS = EVALUATED[:-1]
"""The names that :func:`make_plan` takes; ``harp+refit``, whose plan has weights beside it, is :func:`refit_values`."""
BASELINES = METHODS[:-2]
TITLES = {"dense": "dense"} | {name: method.title for name, method in CATALOGUE.items()}


def make_plan(
    method: str,
    model: PreTrainedModel,
    calibration: Tokens | None,
    *,
    kv_groups: int,
    layers: Sequence[int] | None = None,
    alphas: Sequence[float] | None = None,
    target_fraction: float | None = None,
    **options: Any,
) -> PruningPlan:
    """Decide what goes (paper, Section 3, "Baselines", and Algorithm 1); :func:`harp_lib.apply_plan` carries it out.

    Parameters
    ----------
    method : str
        One of ``METHODS``.
    model : PreTrainedModel
        Dense, with separate projections; unchanged afterwards.
    calibration : Tensor or sequence
        As in :func:`harp_lib.perplexity`: ``(B, N)`` int64, or 1-D tensors of any length, or windows. None will do for
        mag-sp, and for harp if ``alphas`` is given.
    kv_groups : int
        Key/value groups that go in all, each with its query heads; for HARP those of whole layers from the top.
    layers : sequence of int, optional
        Baselines only: the layers from which groups may go, counted from the bottom; default: all.
    alphas : sequence of float, optional
        harp and harp+flap only: alpha of each pruned layer, the top layer first; default: searched.
    target_fraction : float, optional
        harp+flap only: the ``removed_fraction`` to reach by FFN channels; default: that of these groups, V and O too.
    **options
        Of a baseline's own planner: ``squared=True`` of FLAP, as upstream computes it.

    Raises
    ------
    ValueError
        For an unknown method, an argument that it does not take, a budget that cannot be met (what can is named), a
        pruned model or one that cannot be sliced, before the calibration text is read; later for a target that HARP
        exceeds because alphas are found to be 0, or one that empties a layer's FFN.
    """
    from harp_lib.methods.calibration import check_budget, equal_parts  # here: reports want names and colours only

    if method not in METHODS:
        raise ValueError(f"unknown method {method!r}; choose from {', '.join(METHODS)}")
    takers = {"layers": BASELINES, "alphas": METHODS[-2:], "target_fraction": METHODS[-1:]}
    for name, value in {"layers": layers, "alphas": alphas, "target_fraction": target_fraction, **options}.items():
        if value is not None and method not in takers.get(name, BASELINES):
            raise ValueError(f"{method} does not take {name}; it is for {', '.join(takers.get(name, BASELINES))}")
    read = method != "mag-sp" and (method != "harp" or alphas is None)
    module, layers = _prepared(method, model, calibration if read else (), layers)
    if method == "harp":
        return module.harp_plan(model, calibration, kv_groups, alphas)
    if method == "harp+flap":
        return module.harp_flap_plan(model, calibration, kv_groups, alphas, target_fraction)
    groups = [num_groups(decoder_layers(model)[layer].self_attn) for layer in layers]
    (check_budget if method == "flap" else equal_parts)(kv_groups, groups)
    return module.planner(model, calibration, layers, **options)(kv_groups, layers)


def planner(
    method: str, model: PreTrainedModel, calibration: Tokens | None, **options: Any
) -> Callable[[int, Sequence[int]], PruningPlan]:
    """What :func:`make_plan` gives, for many budgets and ranges from one calibration; Wanda-sp wants rising ranges."""
    if method not in BASELINES:
        raise ValueError(f"{method!r} has no layer range to plan for; choose from {', '.join(BASELINES)}")
    module, layers = _prepared(method, model, () if method == "mag-sp" else calibration, None)
    return module.planner(model, calibration, layers, **options)


def _prepared(
    method: str, model: PreTrainedModel, calibration: Tokens | None, layers: Sequence[int] | None
) -> tuple[Any, list[int]]:
    """A method's module, and the layers that may lose something; a ValueError if they cannot lose what it takes."""
    total, lost = len(decoder_layers(model)), LayerPlan(removed_groups=(0,))
    if method not in BASELINES:
        lost = LayerPlan(1.0, removed_channels=(0,) if method == "harp+flap" else ())
    plan = PruningPlan(total, dict.fromkeys(range(total) if layers is None else layers, lost))
    if not plan.layers:
        raise ValueError("layers is empty; name at least one layer, or none for all")
    check_plan(model, plan)
    if calibration is None:
        wanted = "as (B, N) tokens or a list of 1-D tensors; only mag-sp takes None"
        raise ValueError(f"{method} needs a calibration text, {wanted}")
    return import_module(f"{__name__}.{CATALOGUE[method].module}"), list(plan.layers)
