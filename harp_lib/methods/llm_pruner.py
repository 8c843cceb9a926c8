"""LLM-Pruner: first-order Taylor importance of key/value groups (Ma et al., 2023)."""

from collections.abc import Callable, Sequence

import torch
from transformers import PreTrainedModel

from harp_lib.measure.likelihood import Tokens, make_batches
from harp_lib.methods.budget import by_group, lowest_per_layer
from harp_lib.methods.gradients import projection_weights, weight_gradients
from harp_lib.methods.method import Method
from harp_lib.pruning.architecture import decoder_layers
from harp_lib.pruning.plan import PruningPlan

METHOD = Method(
    name="llm-pruner",
    title="LLM-Pruner",
    colour="#cc78bc",
    metric=r"\sum_{w \in g} \lvert w \cdot \partial L / \partial w \rvert",
    looks_at="weights and gradients",
    calibration="forward and backward passes",
    weight_update="none",
    allocation="equally many groups in each layer of the range",
)


def planner(
    model: PreTrainedModel, calibration: Tokens, layers: Sequence[int], gradient_checkpointing: bool = True
) -> Callable[[int, Sequence[int]], PruningPlan]:
    """Measure the importance of all groups once; plans for any budget and layer range are made of it.

    Parameters
    ----------
    model, calibration, layers, gradient_checkpointing
        As in :func:`group_importance`.

    Returns
    -------
    callable
        ``plan(kv_groups, layers)``: removes that many groups from these layers, equally many from each, the least
        important first.
    """
    total = len(decoder_layers(model))
    importance = group_importance(model, calibration, layers, gradient_checkpointing)

    def plan(kv_groups: int, layers: Sequence[int]) -> PruningPlan:
        return lowest_per_layer({layer: importance[layer] for layer in layers}, kv_groups, total, METHOD.name)

    return plan


def group_importance(
    model: PreTrainedModel, calibration: Tokens, layers: Sequence[int], gradient_checkpointing: bool = True
) -> dict[int, torch.Tensor]:
    r"""First-order Taylor importance of key/value groups (paper, "Baselines"; Ma et al., 2023).

    .. math:: I_g = \sum_{w \in g} \left| w \, \frac{\partial L}{\partial w} \right|

    The sum goes over the weights that a group couples: its rows of the query projection (those of all its query
    heads), of the key and the value projection, and its columns of the output projection. Biases are not counted. L
    is the mean negative log-likelihood per predicted token, and its gradient that of the whole calibration: absolute
    values are taken after texts are summed over, not before. It is the first-order term of LLM-Pruner's code
    (``param_first``, aggregated by sum), which exists for LLaMA alone; here it is for any grouped-query attention.

    One pass forward and backward. Beside what :func:`.weight_gradients` needs for activations, memory is that of the
    model and, for each layer, ``4 · 2 d (H + K) Dh`` bytes of float32 gradients: for LLaMA3.1-8B (d 4096, H 32,
    K 8, Dh 128) 0.17 GB a layer, 5.4 GB for all 32, beside 16.1 GB of weights in bfloat16.

    Parameters
    ----------
    model : PreTrainedModel
        Dense, with separate projections; unchanged afterwards.
    calibration : Tensor or sequence
        As in :func:`harp_lib.perplexity`.
    layers : sequence of int
        Layers to measure, counted from the bottom.
    gradient_checkpointing : bool
        Compute each layer twice, for less memory; the importance is the same.

    Returns
    -------
    dict of int to Tensor (K,)
        Importance of the groups of each layer, float32 on the CPU, in nats per predicted token.

    Raises
    ------
    ValueError
        For an empty calibration, fused projections, and as :func:`.weight_gradients` does.
    """
    weights = {layer: projection_weights(model, layer, ("q_proj", "k_proj", "v_proj", "o_proj")) for layer in layers}
    flat = [weight for of_layer in weights.values() for weight in of_layer]
    gradients = iter(weight_gradients(model, make_batches(calibration), flat, gradient_checkpointing))
    importance = {}
    for layer, of_layer in weights.items():
        attention = decoder_layers(model)[layer].self_attn
        q, k, v, o = ((weight.detach().float() * next(gradients)).abs() for weight in of_layer)
        channels = (q.sum(1), k.sum(1), v.sum(1), o.sum(0))  # (H·Dh,), (K·Dh,), (K·Dh,), (H·Dh,)
        importance[layer] = sum(by_group(attention, of_channel).sum(1) for of_channel in channels).cpu()  # (K,)
    return importance
