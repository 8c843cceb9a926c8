"""HARP: remove queries and keys of the highest layers, rescale the rest by alpha (Section 2.3)."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate

from transformers import PreTrainedModel

from harp_lib.accounting import ffn_channels_for, removed_fraction, top_groups_plan
from harp_lib.methods.alpha_search import search_alphas
from harp_lib.methods.flap import without_channels
from harp_lib.pruning.architecture import (
    all_linear,
    check_own_modules,
    check_plan,
    decoder_layers,
)
from harp_lib.pruning.layers import num_groups
from harp_lib.pruning.plan import LayerPlan, PruningPlan
from harp_lib.text.perplexity import Tokens


def harp_plan(
    model: PreTrainedModel,
    calibration: Tokens | None,
    kv_groups: int,
    alphas: Sequence[float] | None = None,
) -> PruningPlan:
    """HARP's plan: the topmost layers, which hold ``kv_groups`` in all, become value-only.

    Alphas are searched on the calibration text unless they are given, the top layer first.
    """
    num_layers = len(decoder_layers(model))
    num_pruned = layers_from_top(model, kv_groups)
    check_plan(model, PruningPlan.value_only(num_layers, [1.0] * num_pruned))
    if alphas is None:
        return search_alphas(model, calibration, num_pruned).plan
    if len(alphas) != num_pruned:
        raise ValueError(
            f"{len(alphas)} alphas for {num_pruned} layers ({kv_groups} key/value groups); "
            "give one for each"
        )
    return PruningPlan.value_only(num_layers, alphas)


def harp_flap_plan(
    model: PreTrainedModel,
    calibration: Tokens,
    kv_groups: int,
    alphas: Sequence[float] | None = None,
    target_fraction: float | None = None,
    evenly: bool = False,
) -> PruningPlan:
    """HARP's plan, and the FFN channels that FLAP removes from the model as HARP prunes it.

    HARP removes fewer parameters than a baseline that takes the same groups whole. The channels
    close the difference (paper, Section 3, rows "HARP + FLAP"), or bring the removed parameters as
    near to ``target_fraction`` as whole channels can. FLAP's rule lets the channels of all layers
    compete, which can empty a few layers; ``evenly`` is the control.
    """
    # HARP removes least where no alpha is zero. A target below that fails here, before the search.
    num_layers = len(decoder_layers(model))
    no_zero_alpha = [1.0] * layers_from_top(model, kv_groups)
    smallest_plan = PruningPlan.value_only(num_layers, no_zero_alpha)
    one_channel_less = {
        layer: replace(smallest_plan.layers.get(layer, LayerPlan()), removed_channels=(0,))
        for layer in range(num_layers)
    }
    check_plan(model, PruningPlan(num_layers, one_channel_less))
    check_own_modules(model)  # for FLAP's part
    num_channels_to_remove(model, smallest_plan, kv_groups, target_fraction)

    plan = harp_plan(model, calibration, kv_groups, alphas)
    plan = replace(plan, method="harp+flap")
    count = num_channels_to_remove(model, plan, kv_groups, target_fraction)
    return without_channels(model, calibration, plan, count, evenly)


def num_channels_to_remove(
    model: PreTrainedModel, plan: PruningPlan, kv_groups: int, target: float | None
) -> int:
    """Number of FFN channels that bring HARP's ``plan`` nearest to the target.

    Without a target the plan is brought to what a baseline removes with ``kv_groups``. A ValueError
    is raised if channels cannot reach the target.
    """
    if target is None:
        whole_groups = top_groups_plan(model.config, kv_groups)
        # Where W_O has a bias and all alphas are 0, HARP already removes a little more than that,
        # because these biases go too.
        target = max(
            removed_fraction(model.config, plan), removed_fraction(model.config, whole_groups)
        )
    return ffn_channels_for(model.config, plan, target)


def layers_from_top(model: PreTrainedModel, kv_groups: int) -> int:
    """Number of whole layers from the top that hold ``kv_groups`` key/value groups.

    If no number of layers does, a ValueError names the budgets that are possible. It names the top
    layer where that cannot lose its queries and keys.
    """
    layers = decoder_layers(model)
    groups = []
    for layer in reversed(layers):
        attention = getattr(layer, "self_attn", None)
        if not all_linear(attention, ("v_proj", "o_proj")):
            break  # HARP takes no layers below another kind of layer
        groups.append(num_groups(attention))
    budgets = list(accumulate(groups))  # groups of the top 1, 2, … layers
    if kv_groups not in budgets:
        check_plan(model, PruningPlan.value_only(len(layers), [1.0]))
        below = ""
        if len(groups) < len(layers):
            below = f"; layer {len(layers) - len(groups) - 1} has no separate v_proj and o_proj"
        raise ValueError(
            f"{kv_groups} key/value groups are no whole number of layers that HARP can take; "
            f"choose from {', '.join(map(str, budgets))}{below}"
        )
    return budgets.index(kv_groups) + 1
