"""Pruning methods: each looks at a model and a calibration text, and returns a plan. None touches a
weight.

A new method is a file of this folder and an entry of ``data/methods.yaml`` that describes it.
"""

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

from transformers import PreTrainedModel

from harp_lib.names import BASELINES, CATALOGUE, METHODS, with_property
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
    """Decide what goes (paper, Section 3, "Baselines", and Algorithm 1);
    :func:`harp_lib.apply_plan` carries it out.

    Parameters
    ----------
    method : str
        One of ``METHODS``.
    model : PreTrainedModel
        Dense, with separate projections; unchanged afterwards.
    calibration : Tensor or sequence
        As in :func:`harp_lib.perplexity`: ``(B, N)`` int64, or 1-D tensors of any length, or
        windows. None will do for mag-sp, and for harp if ``alphas`` is given.
    kv_groups : int
        Key/value groups that go in all, each with its query heads; for HARP those of whole layers
        from the top.
    layers : sequence of int, optional
        Baselines only: the layers from which groups may go, counted from the bottom; default: all.
    alphas : sequence of float, optional
        harp and harp+flap only: alpha of each pruned layer, the top layer first; default: searched.
    target_fraction : float, optional
        harp+flap only: the ``removed_fraction`` to reach by FFN channels; default: that of these
        groups, V and O too.
    **options
        Of a baseline's own planner: ``squared=True`` of FLAP, as upstream computes it. Of
        harp+flap: ``evenly=True``, as many FFN channels from each layer.

    Raises
    ------
    ValueError
        For an unknown method, an argument that it does not take, a budget that cannot be met (what
        can is named), a pruned model or one that cannot be sliced, before the calibration text is
        read; later for a target that HARP exceeds because alphas are found to be 0, or one that
        empties a layer's FFN.
    """
    from harp_lib.methods.calibration import (
        check_budget,
        equal_parts,
    )  # here: reports want names and colours only

    if method not in METHODS:
        raise ValueError(f"unknown method {method!r}; choose from {', '.join(METHODS)}")
    chosen = CATALOGUE[method]
    takers = {
        "alphas": with_property("takes_alphas"),
        "target_fraction": with_property("removes_channels"),
    }
    takers["evenly"] = takers["target_fraction"]
    given = {"layers": layers, "alphas": alphas, "target_fraction": target_fraction, **options}
    for name, value in given.items():
        allowed = takers.get(name, BASELINES)
        if value is not None and method not in allowed:
            raise ValueError(f"{method} does not take {name}; it is for {', '.join(allowed)}")
    make, layers = _prepared(method, model, calibration, layers, alphas)
    if chosen.is_baseline:
        groups = [num_groups(decoder_layers(model)[layer].self_attn) for layer in layers]
        check = check_budget if chosen.one_threshold else equal_parts
        check(kv_groups, groups)
        return make(model, calibration, layers, **options)(kv_groups, layers)
    arguments: dict[str, Any] = {}
    if chosen.takes_alphas:
        arguments["alphas"] = alphas
    if chosen.removes_channels:
        arguments["target_fraction"] = target_fraction
    return make(model, calibration, kv_groups, **arguments, **options)


def planner(
    method: str, model: PreTrainedModel, calibration: Tokens | None, **options: Any
) -> Callable[[int, Sequence[int]], PruningPlan]:
    """What :func:`make_plan` gives, for many budgets and ranges from one calibration; Wanda-sp
    wants rising ranges.
    """
    if method not in BASELINES:
        raise ValueError(
            f"{method!r} has no layer range to plan for; choose from {', '.join(BASELINES)}"
        )
    make, layers = _prepared(method, model, calibration)
    return make(model, calibration, layers, **options)


def _prepared(
    method: str,
    model: PreTrainedModel,
    calibration: Tokens | None,
    layers: Sequence[int] | None = None,
    alphas: Sequence[float] | None = None,
) -> tuple[Callable[..., Any], list[int]]:
    """A method's function, and the layers that may lose something; a ValueError if they cannot lose
    what it takes.
    """
    chosen = CATALOGUE[method]
    total = len(decoder_layers(model))
    if chosen.is_baseline:
        lost = LayerPlan(removed_groups=(0,))
    elif chosen.removes_channels:
        lost = LayerPlan(1.0, removed_channels=(0,))
    else:
        lost = LayerPlan(1.0)
    plan = PruningPlan(total, dict.fromkeys(range(total) if layers is None else layers, lost))
    if not plan.layers:
        raise ValueError("layers is empty; name at least one layer, or none for all")
    check_plan(model, plan)
    if calibration is None and chosen.reads_text(alphas):
        raise ValueError(
            f"{method} needs a calibration text, as (B, N) tokens or a list of 1-D tensors"
        )
    module = import_module(f"{__name__}.{chosen.module}")
    return getattr(module, chosen.function), list(plan.layers)
