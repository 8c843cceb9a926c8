"""Wanda-sp: remove key/value groups of small weights times activations, layer by layer upwards."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from transformers import PreTrainedModel

from harp_lib.methods.calibration import (
    InputStatistics,
    LayerStream,
    Planner,
    by_group,
    equal_parts,
    lowest,
    plan_upwards,
)
from harp_lib.pruning.architecture import decoder_layers
from harp_lib.pruning.layers import num_groups
from harp_lib.pruning.plan import LayerPlan, PruningPlan
from harp_lib.text.perplexity import Tokens


def planner(model: PreTrainedModel, calibration: Tokens, layers: Sequence[int]) -> Planner:
    """Score the groups of one layer after the other, on the output of the pruned layers below.

    Wanda (Sun et al., 2024) was made structured by FLAP's authors ("wanda_sp" in
    github.com/CASIA-LMC-Lab/FLAP). Here it removes key/value groups, equally many from each layer.
    """
    dense_stream = LayerStream(model, calibration)
    model_layers = decoder_layers(model)

    def plan(kv_groups: int, layer_range: Sequence[int]) -> PruningPlan:
        groups = [num_groups(model_layers[layer].self_attn) for layer in layer_range]
        per_layer = equal_parts(kv_groups, groups)
        dense_stream.entering(min(layer_range))  # shared by the ranges that begin here or higher
        stream = dense_stream.fork()

        def decide(layer: int) -> LayerPlan:
            attention = model_layers[layer].self_attn
            statistics = InputStatistics(layer)
            for inputs, _ in stream.passing(layer, attention.o_proj):
                statistics.update(inputs)
            statistics.check_finite()
            return LayerPlan(removed_groups=lowest(group_scores(attention, statistics), per_layer))

        return replace(plan_upwards(model, layer_range, decide), method="wanda-sp")

    return plan


@torch.no_grad()
def group_scores(attention: torch.nn.Module, inputs: InputStatistics) -> torch.Tensor:
    """Importance (K,) of each group, on the CPU.

    It is the mean of abs(W_ij) over W_O's rows i times the norm of input channel j, summed over the
    channels of a group.
    """
    columns = attention.o_proj.weight.float().abs().mean(dim=0) * inputs.norm  # (H·Dh,)
    return by_group(attention, columns).sum(dim=1).cpu()
