"""Pruning methods: each reads a model and a calibration text and returns a plan; none prunes.

A new method is a file of this folder and an entry of ``data/methods.yaml`` that describes it.
"""

import inspect
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

from transformers import PreTrainedModel

from harp_lib.methods.calibration import Planner, check_budget, equal_parts
from harp_lib.names import BASELINES, CATALOGUE, METHODS
from harp_lib.pruning.architecture import check_plan, decoder_layers
from harp_lib.pruning.layers import num_groups
from harp_lib.pruning.plan import LayerPlan, PruningPlan
from harp_lib.text.perplexity import Tokens


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
    """Decide what to prune (paper, Section 3, "Baselines", and Algorithm 1).

    :func:`harp_lib.apply_plan` carries the plan out.

    Parameters
    ----------
    method : str
        One of ``METHODS``.
    model : PreTrainedModel
        A dense model with separate projections; for harp the layers below those that it takes may
        be of any kind. It is unchanged afterwards.
    calibration : Tensor or sequence, optional
        As in :func:`harp_lib.perplexity`. It may be None for mag-sp, and for harp if ``alphas`` is
        given.
    kv_groups : int
        Number of key/value groups to remove in all, each with its query heads. HARP removes those
        of whole layers from the top.
    layers : sequence of int, optional
        Baselines only: indices of the layers from which groups may be removed, counted from the
        bottom. The default is all layers.
    alphas : sequence of float, optional
        harp and harp+flap only: alpha of each pruned layer, the top layer first. By default alphas
        are searched.
    target_fraction : float, optional
        harp+flap only: the ``removed_fraction`` to reach by removing FFN channels. The default is
        what a baseline removes with ``kv_groups``, V and O included.
    **options
        Options of a single planner. FLAP takes ``squared=True``, which scores as upstream's code
        does. harp+flap takes ``evenly=True``, which removes equally many channels from each layer.

    Returns
    -------
    PruningPlan
        What to remove; its ``method`` is ``method``.

    Raises
    ------
    ValueError
        Before the calibration text is read: for an unknown method, an argument that it does not
        take, a budget that cannot be met (the message says which can), or a model that is pruned
        already or cannot be sliced. Later: for a target that HARP exceeds because some alphas turn
        out to be 0, or that would empty a layer's FFN.
    """
    if method not in METHODS:
        raise ValueError(f"unknown method {method!r}; choose from {', '.join(METHODS)}")
    arguments = {"layers": layers, "alphas": alphas, "target_fraction": target_fraction, **options}
    given = {name: value for name, value in arguments.items() if value is not None}
    make = _function_of(method, calibration, given)
    if not CATALOGUE[method].is_baseline:
        return make(model, calibration, kv_groups, **given)
    layers = _sliceable_layers(model, layers)
    groups = [num_groups(decoder_layers(model)[layer].self_attn) for layer in layers]
    check = check_budget if CATALOGUE[method].one_threshold else equal_parts
    check(kv_groups, groups)
    plan_for = make(model, calibration, layers, **options)
    return plan_for(kv_groups, layers)


def planner(
    method: str, model: PreTrainedModel, calibration: Tokens | None, **options: Any
) -> Planner:
    """Prepare :func:`make_plan` for many budgets and layer ranges with one calibration.

    The method is a baseline; any other is a ValueError. ``plan(kv_groups, layers)`` returns a
    :class:`.PruningPlan`. Wanda-sp is fastest if ranges come in rising order.
    """
    if method not in BASELINES:
        raise ValueError(
            f"{method!r} has no layer range to plan for; choose from {', '.join(BASELINES)}"
        )
    make = _function_of(method, calibration, options)
    return make(model, calibration, _sliceable_layers(model), **options)


def _function_of(
    method: str, calibration: Tokens | None, given: dict[str, Any]
) -> Callable[..., Any]:
    """The function that plans for a method.

    A ValueError is raised for an option that the method does not take, and for a missing text.
    """
    properties = CATALOGUE[method]
    module = import_module(f"{__name__}.{properties.module}")
    make = getattr(module, properties.function)
    parameters = inspect.signature(make).parameters
    taken = [name for name in parameters if name not in ("model", "calibration", "kv_groups")]
    for name in given:
        if name not in taken:
            raise ValueError(f"{method} does not take {name}; it takes {', '.join(taken)}")
    if calibration is None and properties.reads_text(given.get("alphas")):
        raise ValueError(
            f"{method} needs a calibration text, as (B, N) tokens or a list of 1-D tensors"
        )
    return make


def _sliceable_layers(model: PreTrainedModel, layers: Sequence[int] | None = None) -> list[int]:
    """The layers that a baseline takes groups from: ``layers``, or all.

    A ValueError is raised if the model cannot lose a group in one of them.
    """
    num_layers = len(decoder_layers(model))
    if layers is None:
        layers = range(num_layers)
    trial_plan = PruningPlan(num_layers, dict.fromkeys(layers, LayerPlan(removed_groups=(0,))))
    if not trial_plan.layers:
        raise ValueError("layers is empty; name at least one layer, or none for all")
    check_plan(model, trial_plan)
    return list(trial_plan.layers)
