"""Wanda-sp: key/value groups whose weights times activations are small go, layer by layer from the
bottom.
"""

from collections import deque
from collections.abc import Sequence
from contextlib import ExitStack

import torch
from tqdm import tqdm
from transformers import PreTrainedModel

from harp_lib.methods.calibration import (
    InputStatistics,
    LayerStream,
    Planner,
    by_group,
    equal_parts,
    gathering,
    lowest,
)
from harp_lib.pruning.architecture import decoder_layers
from harp_lib.pruning.layers import num_groups
from harp_lib.pruning.plan import LayerPlan, PruningPlan
from harp_lib.pruning.surgery import temporarily_pruned
from harp_lib.text.perplexity import Tokens


def planner(model: PreTrainedModel, calibration: Tokens, layers: Sequence[int]) -> Planner:
    """Score the groups of one layer after the other, each on what the layers below give without
    those that go.

    Wanda (Sun et al., 2024) made structured by FLAP's authors ("wanda_sp" in
    github.com/CASIA-LMC-Lab/FLAP), here for key/value groups, equally many from each layer.
    """
    dense, found = LayerStream(model, calibration), decoder_layers(model)

    def plan(kv_groups: int, layers: Sequence[int]) -> PruningPlan:
        each, plans = (
            equal_parts(kv_groups, [num_groups(found[layer].self_attn) for layer in layers]),
            {},
        )
        dense.entering(min(layers))  # shared by the ranges that begin here or higher
        stream = dense.fork()
        with ExitStack() as pruned_so_far:
            for layer in tqdm(sorted(layers), desc="wanda-sp", unit="layer", leave=False, delay=10):
                attention, hidden = found[layer].self_attn, stream.entering(layer)
                with gathering({layer: attention.o_proj}) as statistics:
                    deque(stream.leaving(layer, hidden), maxlen=0)
                plans[layer] = LayerPlan(
                    removed_groups=lowest(group_scores(attention, statistics[layer]), each)
                )
                one = PruningPlan(len(found), {layer: plans[layer]})
                pruned_so_far.enter_context(temporarily_pruned(model, one))
        return PruningPlan(len(found), plans, "wanda-sp")

    return plan


@torch.no_grad()
def group_scores(attention: torch.nn.Module, inputs: InputStatistics) -> torch.Tensor:
    """Mean of |W_ij| over W_O's rows times the norm of input channel j, summed over each group:
    (K,), on the CPU.
    """
    columns = attention.o_proj.weight.float().abs().mean(dim=0) * inputs.norm  # (H·Dh,)
    return by_group(attention, columns).sum(dim=1).cpu()
