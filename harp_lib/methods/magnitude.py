"""Mag-sp: key/value groups whose columns of the output projection are small go."""

from collections.abc import Callable, Sequence

import torch
from transformers import PreTrainedModel

from harp_lib.measure.likelihood import Tokens
from harp_lib.methods.budget import by_group, lowest_per_layer
from harp_lib.methods.method import Method
from harp_lib.pruning.architecture import decoder_layers
from harp_lib.pruning.plan import PruningPlan

METHOD = Method(
    name="mag-sp",
    title="Mag-sp",
    colour="#d55e00",
    metric=r"\sum_{j \in g} \lVert \mathbf{W}^O_{:,j} \rVert_2",
    looks_at="weights",
    calibration="none",
    weight_update="none",
    allocation="equally many groups in each layer of the range",
)


@torch.no_grad()
def planner(
    model: PreTrainedModel, calibration: Tokens | None, layers: Sequence[int]
) -> Callable[[int, Sequence[int]], PruningPlan]:
    """Score the groups of ``layers``: the L2 norm of each column of W_O, summed over the columns of a group.

    Magnitude pruning (Han et al., 2015) made structured by FLAP's authors ("mag_sp" in
    github.com/CASIA-IVA-Lab/FLAP), here for key/value groups.

    Parameters
    ----------
    model : PreTrainedModel
        A dense model.
    calibration : ignored
        Weights are all that counts.
    layers : sequence of int
        Layers from which groups may go.

    Returns
    -------
    callable
        ``plan(kv_groups, layers)``: removes that many groups from some of these layers, equally many from each.
    """
    found, scores = decoder_layers(model), {}
    for layer in layers:
        attention = found[layer].self_attn
        scores[layer] = by_group(attention, attention.o_proj.weight.float().norm(dim=0)).sum(dim=1).cpu()  # (K,)

    def plan(kv_groups: int, layers: Sequence[int]) -> PruningPlan:
        return lowest_per_layer({layer: scores[layer] for layer in layers}, kv_groups, len(found), METHOD.name)

    return plan
