"""FLAP: key/value groups, or FFN channels, whose input hardly fluctuates go; its mean stays behind
as a bias.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from operator import itemgetter

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
    """Score the groups of ``layers``: the fluctuation of W_O's input channels, averaged over each
    group.

    FLAP (An et al., 2024; metric "WIFV" in github.com/CASIA-LMC-Lab/FLAP), here for key/value
    groups and as the paper's Table "property" defines it; ``squared`` squares W_O's scores before
    they are standardised, as both upstream repositories do and no formula says. The groups that
    score lowest over all layers together go, and leave their mean inputs in the plan. The
    standardised scores of a layer average to zero: layers are ranked by how much their groups
    differ, and where each layer holds a single group (multi-query attention), which of them go is
    arbitrary.
    """
    found, scores, means = decoder_layers(model), {}, {}
    outputs = {layer: found[layer].self_attn.o_proj for layer in layers}
    for layer, inputs in input_statistics(model, calibration, outputs).items():
        attention = found[layer].self_attn
        scores[layer] = by_group(attention, fluctuation(outputs[layer], inputs, squared)).mean(
            dim=1
        )  # (K,)
        means[layer] = by_group(attention, inputs.mean).cpu()  # (K, r·Dh)

    def plan(kv_groups: int, layers: Sequence[int]) -> PruningPlan:
        chosen = {layer: scores[layer] for layer in layers}
        check_budget(kv_groups, [len(values) for values in chosen.values()])
        plans = {}
        for layer, groups in lowest_of_all(chosen, kv_groups).items():
            plans[layer] = LayerPlan(
                removed_groups=groups, group_means=_written(means[layer][list(groups)])
            )
        return PruningPlan(len(found), plans, "flap")

    return plan


def without_channels(
    model: PreTrainedModel, calibration: Tokens, plan: PruningPlan, count: int, evenly: bool = False
) -> PruningPlan:
    """``plan``, and ``count`` FFN channels less: those that fluctuate least in the model as
    ``plan`` prunes it.

    The channels of all layers compete; ``evenly``, every layer loses as many (the lowest ones one
    more, if need be).
    """
    with temporarily_pruned(model, plan):
        outputs = {index: layer.mlp.down_proj for index, layer in enumerate(decoder_layers(model))}
        statistics = input_statistics(model, calibration, outputs)
    scores = {layer: fluctuation(output, statistics[layer]) for layer, output in outputs.items()}
    plans = dict(plan.layers)  # no channel goes in these yet
    chosen = lowest_of_each(scores, count) if evenly else lowest_of_all(scores, count)
    for layer, channels in chosen.items():
        if len(channels) == len(scores[layer]):
            wanted = f"remove less than {count} in all"
            raise ValueError(
                f"layer {layer} would lose all of its {len(channels)} FFN channels; {wanted}"
            )
        means = _written(statistics[layer].mean.cpu()[list(channels)])
        plans[layer] = replace(
            plans.get(layer, LayerPlan()), removed_channels=channels, channel_means=means
        )
    return PruningPlan(plan.num_layers, plans, plan.method)


@torch.no_grad()
def fluctuation(
    output: torch.nn.Linear, inputs: InputStatistics, squared: bool = False
) -> torch.Tensor:
    """Variance of each input channel times its column's squared norm, standardised in the layer:
    (C,), on the CPU.
    """
    scores = inputs.variance * output.weight.float().square().sum(dim=0)  # (C,)
    scores = scores.square() if squared else scores
    scores = scores - scores.mean()
    return (scores / scores.std().clamp_min(torch.finfo(scores.dtype).tiny)).cpu()


def lowest_of_all(scores: Mapping[int, torch.Tensor], count: int) -> dict[int, tuple[int, ...]]:
    """Indices of the ``count`` smallest values of all layers, by layer; layers that lose nothing
    are left out.
    """
    where = [(layer, index) for layer, values in scores.items() for index in range(len(values))]
    places = [
        where[position] for position in lowest(torch.cat(list(scores.values())), count)
    ]  # by layer, rising
    return {
        layer: tuple(index for _, index in of) for layer, of in groupby(places, key=itemgetter(0))
    }


def lowest_of_each(scores: Mapping[int, torch.Tensor], count: int) -> dict[int, tuple[int, ...]]:
    """Indices of the smallest values of each layer, ``count`` in all and as many of each layer as
    of the others.
    """
    each, more = divmod(count, len(scores))
    chosen = {}
    for number, (layer, values) in enumerate(scores.items()):
        size = each + 1 if number < more else each
        if size:
            chosen[layer] = tuple(lowest(values, size))
    return chosen


def _written(values: torch.Tensor) -> tuple[float, ...]:
    """Numbers as a plan holds them: in order, with seven significant digits, which is all that
    float32 has.
    """
    return tuple(float(f"{value:.7g}") for value in values.flatten().tolist())
