"""HARP: queries and keys of the highest layers go, and alpha rescales what stays (paper, Section
2.3).
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate

from transformers import PreTrainedModel

from harp_lib.accounting import ffn_channels_for, removed_fraction, top_groups_plan
from harp_lib.methods.alpha_search import search_alphas
from harp_lib.methods.flap import without_channels
from harp_lib.pruning.architecture import decoder_layers
from harp_lib.pruning.layers import num_groups
from harp_lib.pruning.plan import PruningPlan
from harp_lib.text.perplexity import Tokens


def harp_plan(
    model: PreTrainedModel,
    calibration: Tokens | None,
    kv_groups: int,
    alphas: Sequence[float] | None,
) -> PruningPlan:
    """HARP's plan: whole layers from the top that hold ``kv_groups``; ``alphas`` are searched
    unless they are given.
    """
    count = layers_from_top(model, kv_groups)
    if alphas is None:
        return search_alphas(model, calibration, count).plan
    if len(alphas) != count:
        raise ValueError(
            f"{len(alphas)} alphas for {count} layers ({kv_groups} key/value groups); give one for each"
        )
    return PruningPlan.value_only(len(decoder_layers(model)), alphas)


def harp_flap_plan(
    model: PreTrainedModel,
    calibration: Tokens,
    kv_groups: int,
    alphas: Sequence[float] | None,
    target_fraction: float | None,
    evenly: bool = False,
) -> PruningPlan:
    """HARP's plan, and FFN channels of all layers less, chosen by FLAP on the model as HARP prunes
    it.

    HARP removes fewer parameters than a baseline that takes the same groups whole; the channels
    close the difference (paper, Section 3, rows "HARP + FLAP"), or bring it as near to
    ``target_fraction`` as whole channels can. FLAP's rule lets the channels of all layers compete,
    which can empty a few layers; ``evenly`` is the control.
    """
    # With no alpha at zero HARP removes least: a target below that fails before the search.
    least = PruningPlan.value_only(
        len(decoder_layers(model)), [1.0] * layers_from_top(model, kv_groups)
    )
    channels_to_go(model, least, kv_groups, target_fraction)
    plan = replace(harp_plan(model, calibration, kv_groups, alphas), method="harp+flap")
    count = channels_to_go(model, plan, kv_groups, target_fraction)
    return without_channels(model, calibration, plan, count, evenly)


def channels_to_go(
    model: PreTrainedModel, plan: PruningPlan, kv_groups: int, target: float | None
) -> int:
    """FFN channels that bring HARP's ``plan`` nearest to the target; a ValueError if it is out of
    their reach.
    """
    if target is None:
        # Where W_O has a bias and all alphas are 0, HARP already removes these biases too, and a
        # little more.
        plans = plan, top_groups_plan(model.config, kv_groups)
        target = max(removed_fraction(model.config, each) for each in plans)
    return ffn_channels_for(model.config, plan, target)


def layers_from_top(model: PreTrainedModel, kv_groups: int) -> int:
    """How many whole layers from the top hold ``kv_groups`` key/value groups; a ValueError names
    what they hold.
    """
    layers = reversed(decoder_layers(model))
    whole = list(
        accumulate(num_groups(layer.self_attn) for layer in layers)
    )  # groups of the top 1, 2, … layers
    if kv_groups not in whole:
        wanted = f"which is what HARP takes; choose from {', '.join(map(str, whole))}"
        raise ValueError(f"{kv_groups} key/value groups are no whole number of layers, {wanted}")
    return whole.index(kv_groups) + 1
