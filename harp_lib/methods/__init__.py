"""Pruning methods: each looks at a model and a calibration text, and returns a plan. None touches a weight."""

from collections.abc import Callable, Sequence
from importlib import import_module
from numbers import Real
from pkgutil import iter_modules

from transformers import PreTrainedModel

from harp_lib.measure.likelihood import Tokens
from harp_lib.methods import flap, harp, llm_pruner, magnitude, wanda
from harp_lib.methods.budget import as_index, check_budget, check_layers, equal_parts
from harp_lib.methods.method import Method
from harp_lib.pruning.architecture import (
    check_attention,
    check_dense,
    check_fits,
    check_slices,
    check_weights,
    decoder_layers,
)
from harp_lib.pruning.plan import LayerPlan, PruningPlan
from harp_lib.pruning.slicing import num_groups

_FOUND = [import_module(f".{module.name}", __name__) for module in iter_modules(__path__)]
_PAPER = (magnitude, wanda, llm_pruner, flap)  # in this order; what else has a planner comes after them
BASELINES = {module.METHOD.name: module for module in (*_PAPER, *_FOUND) if hasattr(module, "planner")}
"""Every module of this folder that has a ``METHOD`` and a ``planner``, by the method's name."""
PROPERTIES = (*(module.METHOD for module in BASELINES.values()), harp.METHOD, harp.METHOD_WITH_FLAP)
"""What each method is, in the paper's order: a tuple of :class:`Method`."""
METHODS = tuple(method.name for method in PROPERTIES)
"""The names that :func:`make_plan` takes."""

__all__ = ["BASELINES", "METHODS", "PROPERTIES", "Method", "make_plan", "planner"]


def make_plan(
    method: str,
    model: PreTrainedModel,
    calibration: Tokens | None,
    *,
    kv_groups: int,
    layers: Sequence[int] | None = None,
    alphas: Sequence[float] | None = None,
    target_fraction: float | None = None,
) -> PruningPlan:
    """Decide what goes (paper, Section 3, "Baselines", and Algorithm 1).

    Parameters
    ----------
    method : str
        One of ``METHODS``.
    model : PreTrainedModel
        A dense model with separate projections; unchanged afterwards.
    calibration : Tensor or sequence
        As in :func:`harp_lib.perplexity`: ``(B, N)`` int64, or 1-D tensors of any length, or windows. None will do for
        mag-sp, and for harp if ``alphas`` is given.
    kv_groups : int
        How many key/value groups go in all, each with its query heads. HARP takes the queries and keys of whole
        layers from the top.
    layers : sequence of int, optional
        Baselines only: the layers from which groups may go, counted from the bottom; default: all.
    alphas : sequence of float, optional
        harp and harp+flap only: alpha of each pruned layer, the top layer first; default: searched.
    target_fraction : float, optional
        harp+flap only: the ``removed_fraction`` to reach by FFN channels; default: what taking the groups whole,
        with their values and output projection, comes to.

    Returns
    -------
    PruningPlan
        Names what goes from each layer, and the method; :func:`harp_lib.apply_plan` carries it out.

    Raises
    ------
    ValueError
        For an unknown method, an argument that the method does not take, a budget that cannot be met (the nearest are
        named), a pruned model or one that cannot be sliced. All of that comes before the calibration text is read,
        except a target that HARP exceeds because alphas are found to be 0, or one that empties a layer's FFN.
    """
    _check_arguments(method, layers, alphas, target_fraction)
    kv_groups = as_index(kv_groups, "kv_groups")
    check_dense(model)
    if method not in BASELINES:
        if calibration is None and (alphas is None or method == harp.METHOD_WITH_FLAP.name):
            raise ValueError(_no_calibration(method))
        check_attention(model, range(len(decoder_layers(model))))
        if method == harp.METHOD.name:
            return harp.harp_plan(model, calibration, kv_groups, alphas)
        return harp.harp_flap_plan(model, calibration, kv_groups, alphas, target_fraction)
    layers = check_layers(model, layers)
    _check_baseline(method, model, calibration, layers)
    groups = [num_groups(decoder_layers(model)[layer].self_attn) for layer in layers]
    if method == flap.METHOD.name:
        check_budget(kv_groups, sum(groups))
    else:
        equal_parts(kv_groups, groups)
    return BASELINES[method].planner(model, calibration, layers)(kv_groups, layers)


def planner(
    method: str, model: PreTrainedModel, calibration: Tokens | None, layers: Sequence[int] | None = None
) -> Callable[[int, Sequence[int]], PruningPlan]:
    """Plans for many budgets and layer ranges from one calibration, as tuning a baseline's range needs them.

    Parameters
    ----------
    method : str
        A baseline: mag-sp, wanda-sp, llm-pruner or flap.
    model, calibration
        As in :func:`make_plan`.
    layers : sequence of int, optional
        All layers that a range may have; default: all of the model.

    Returns
    -------
    callable
        ``plan(kv_groups, layers)`` for some of these layers, equal to :func:`make_plan` with the same arguments.
        Wanda-sp depends on what goes in the layers below and runs the model for each plan; rising ranges are fastest.

    Raises
    ------
    ValueError
        As :func:`make_plan`; the callable for a budget that cannot be met or a layer that is not among ``layers``.
    """
    if method not in BASELINES:
        raise ValueError(f"{method!r} has no layer range to plan for; choose from {', '.join(BASELINES)}")
    check_dense(model)
    covered = check_layers(model, layers)
    _check_baseline(method, model, calibration, covered)
    plan_for = BASELINES[method].planner(model, calibration, covered)

    def plan(kv_groups: int, layers: Sequence[int]) -> PruningPlan:
        chosen = check_layers(model, layers)
        if outside := [layer for layer in chosen if layer not in covered]:
            raise ValueError(f"layer {outside[0]} is not among the layers of this planner ({covered})")
        return plan_for(kv_groups, chosen)

    return plan


def _check_arguments(
    method: str,
    layers: Sequence[int] | None,
    alphas: Sequence[float] | None,
    target_fraction: float | None,
) -> None:
    if method not in METHODS:
        raise ValueError(f"unknown method {method!r}; choose from {', '.join(METHODS)}")
    with_alphas = [name for name in METHODS if name not in BASELINES]
    for name, value, methods in (
        ("layers", layers, list(BASELINES)),
        ("alphas", alphas, with_alphas),
        ("target_fraction", target_fraction, [harp.METHOD_WITH_FLAP.name]),
    ):
        if value is not None and method not in methods:
            raise ValueError(f"{method} does not take {name}; it is for {', '.join(methods)}")
    if target_fraction is not None and not (isinstance(target_fraction, Real) and 0 < target_fraction < 1):
        raise ValueError(f"target_fraction is {target_fraction!r}; it has to be a number between 0 and 1")


def _check_baseline(method: str, model: PreTrainedModel, calibration: Tokens | None, layers: Sequence[int]) -> None:
    """ValueError if the calibration is missing, or groups cannot be cut out of one of ``layers``."""
    if calibration is None and method != magnitude.METHOD.name:
        raise ValueError(_no_calibration(method))
    one_each = PruningPlan(len(decoder_layers(model)), {layer: LayerPlan(removed_groups=(0,)) for layer in layers})
    check_fits(model, one_each)
    check_weights(model, one_each)
    check_slices(model, one_each)


def _no_calibration(method: str) -> str:
    return f"{method} needs a calibration text, as (B, N) tokens or a list of 1-D tensors; only mag-sp takes None"
