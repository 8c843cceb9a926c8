"""Mag-sp: remove key/value groups whose columns of the output projection are small."""

from collections.abc import Sequence

import torch
from transformers import PreTrainedModel

from harp_lib.methods.calibration import Planner, by_group, lowest_per_layer
from harp_lib.pruning.architecture import decoder_layers
from harp_lib.text.perplexity import Tokens


@torch.no_grad()
def planner(model: PreTrainedModel, calibration: Tokens | None, layers: Sequence[int]) -> Planner:
    """Score the groups of ``layers`` by the L2 norms of W_O's columns, summed over each group.

    Magnitude pruning (Han et al., 2015) was made structured by FLAP's authors ("mag_sp" in
    github.com/CASIA-LMC-Lab/FLAP). Here it removes key/value groups, equally many from each layer.
    The calibration text is not read.
    """
    model_layers = decoder_layers(model)
    scores = {}
    for layer in layers:
        attention = model_layers[layer].self_attn
        columns = attention.o_proj.weight.float().norm(dim=0)  # (H·Dh,)
        scores[layer] = by_group(attention, columns).sum(dim=1).cpu()  # (K,)
    return lowest_per_layer(scores, len(model_layers), "mag-sp")
