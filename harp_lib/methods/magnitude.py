"""Mag-sp: key/value groups whose columns of the output projection are small go."""

from collections.abc import Sequence

import torch
from transformers import PreTrainedModel

from harp_lib.methods.calibration import Planner, by_group, lowest_per_layer
from harp_lib.pruning.architecture import decoder_layers
from harp_lib.text.perplexity import Tokens


@torch.no_grad()
def planner(model: PreTrainedModel, calibration: Tokens | None, layers: Sequence[int]) -> Planner:
    """Score the groups of ``layers``: the L2 norm of each column of W_O, summed over the columns of
    a group.

    Magnitude pruning (Han et al., 2015) made structured by FLAP's authors ("mag_sp" in
    github.com/CASIA-LMC-Lab/FLAP), here for key/value groups, equally many from each layer. No text
    is looked at.
    """
    found, scores = decoder_layers(model), {}
    for layer in layers:
        attention = found[layer].self_attn
        columns = attention.o_proj.weight.float().norm(dim=0)  # (H·Dh,)
        scores[layer] = by_group(attention, columns).sum(dim=1).cpu()  # (K,)
    return lowest_per_layer(scores, len(found), "mag-sp")
