"""FLAP: remove key/value groups or FFN channels whose inputs hardly fluctuate, keep their means."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from transformers import PreTrainedModel

from harp_lib.methods.calibration import (
    InputStatistics,
    Planner,
    by_group,
    check_budget,
    input_statistics,
    lowest,
)
from harp_lib.pruning.architecture import decoder_layers
from harp_lib.pruning.plan import LayerPlan, PruningPlan
from harp_lib.pruning.surgery import temporarily_pruned
from harp_lib.text.perplexity import Tokens


def planner(
    model: PreTrainedModel, calibration: Tokens, layers: Sequence[int], squared: bool = False
) -> Planner:
    """Score the groups of ``layers`` by the fluctuation of W_O's inputs, averaged over each group.

    This is FLAP (An et al., 2024; metric "WIFV" in github.com/CASIA-LMC-Lab/FLAP) for key/value
    groups, as the paper's Table "property" defines it. ``squared`` squares W_O's scores before they
    are standardised, as both upstream repositories do although no formula says so. The groups that
    score lowest over all layers together are removed, and their mean inputs are kept in the plan.

    The standardised scores of a layer average to zero, so layers are ranked by how much their
    groups differ. Where each layer holds a single group (multi-query attention), it is arbitrary
    which groups are removed.
    """
    model_layers = decoder_layers(model)
    outputs = {layer: model_layers[layer].self_attn.o_proj for layer in layers}
    scores = {}
    means = {}
    for layer, inputs in input_statistics(model, calibration, outputs).items():
        attention = model_layers[layer].self_attn
        channel_scores = fluctuation(outputs[layer], inputs, squared)  # (H·Dh,)
        scores[layer] = by_group(attention, channel_scores).mean(dim=1)  # (K,)
        means[layer] = by_group(attention, inputs.mean).cpu()  # (K, r·Dh)

    def plan(kv_groups: int, layer_range: Sequence[int]) -> PruningPlan:
        scores_in_range = {layer: scores[layer] for layer in layer_range}
        check_budget(kv_groups, [len(values) for values in scores_in_range.values()])
        layer_plans = {}
        for layer, groups in lowest_of_all(scores_in_range, kv_groups).items():
            group_means = _rounded(means[layer][list(groups)])
            layer_plans[layer] = LayerPlan(removed_groups=groups, group_means=group_means)
        return PruningPlan(len(model_layers), layer_plans, "flap")

    return plan


def without_channels(
    model: PreTrainedModel, calibration: Tokens, plan: PruningPlan, count: int, evenly: bool = False
) -> PruningPlan:
    """``plan`` with ``count`` FFN channels removed too: those that fluctuate least.

    Fluctuation is measured in the model as ``plan`` prunes it. The channels of all layers compete.
    With ``evenly`` every layer loses as many instead; the lowest layers lose one more if ``count``
    is no multiple of the number of layers. A ValueError is raised if a layer would lose all of its
    channels. ``plan`` must remove no channels itself.
    """
    with temporarily_pruned(model, plan):
        outputs = {index: layer.mlp.down_proj for index, layer in enumerate(decoder_layers(model))}
        statistics = input_statistics(model, calibration, outputs)
    scores = {layer: fluctuation(output, statistics[layer]) for layer, output in outputs.items()}
    choose = lowest_of_each if evenly else lowest_of_all
    layer_plans = dict(plan.layers)
    for layer, channels in choose(scores, count).items():
        if len(channels) == len(scores[layer]):
            raise ValueError(
                f"layer {layer} would lose all of its {len(channels)} FFN channels; "
                f"remove less than {count} in all"
            )
        channel_means = _rounded(statistics[layer].mean.cpu()[list(channels)])
        layer_plan = layer_plans.get(layer, LayerPlan())
        layer_plans[layer] = replace(
            layer_plan, removed_channels=channels, channel_means=channel_means
        )
    return PruningPlan(plan.num_layers, layer_plans, plan.method)


@torch.no_grad()
def fluctuation(
    output: torch.nn.Linear, inputs: InputStatistics, squared: bool = False
) -> torch.Tensor:
    """Variance of each input channel times its column's squared norm, standardised in the layer.

    The result is (C,), on the CPU.
    """
    scores = inputs.variance * output.weight.float().square().sum(dim=0)  # (C,)
    if squared:
        scores = scores.square()
    scores = scores - scores.mean()
    tiny = torch.finfo(scores.dtype).tiny  # all scores of a layer may be equal
    return (scores / scores.std().clamp_min(tiny)).cpu()


def lowest_of_all(scores: Mapping[int, torch.Tensor], count: int) -> dict[int, tuple[int, ...]]:
    """Indices of the ``count`` smallest values of all layers together, by layer.

    Layers that hold none of them are left out.
    """
    places = []  # of each value when the layers are joined
    for layer, values in scores.items():
        places += [(layer, index) for index in range(len(values))]
    joined = torch.cat(list(scores.values()))
    indices: dict[int, list[int]] = {}
    for position in lowest(joined, count):
        layer, index = places[position]
        indices.setdefault(layer, []).append(index)
    return {layer: tuple(of_layer) for layer, of_layer in indices.items()}


def lowest_of_each(scores: Mapping[int, torch.Tensor], count: int) -> dict[int, tuple[int, ...]]:
    """Indices of the smallest values of each layer, ``count`` in all and equally many per layer.

    The first layers get one more each if ``count`` is no multiple of the number of layers.
    """
    per_layer, rest = divmod(count, len(scores))
    indices = {}
    for number, (layer, values) in enumerate(scores.items()):
        size = per_layer
        if number < rest:
            size += 1
        if size:
            indices[layer] = lowest(values, size)
    return indices


def _rounded(values: torch.Tensor) -> tuple[float, ...]:
    """Numbers with seven significant digits, about float32's precision, as a plan holds them."""
    return tuple(float(f"{value:.7g}") for value in values.flatten().tolist())
