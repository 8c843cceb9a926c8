"""Scores of the forward-only methods against slow twins: loops over the inputs of whole models."""

import numpy as np
import pytest
import torch
from helpers import FAMILIES
from test_surgery import small_model

from harp_lib import PruningPlan, apply_plan, perplexity
from harp_lib.methods import make_plan
from harp_lib.models.registry import SHAPE
from harp_lib.pruning.architecture import decoder_layers
from harp_lib.pruning.layers import num_groups
from harp_lib.pruning.plan import LayerPlan
from harp_lib.pruning.surgery import temporarily_pruned

HEADS = {"multi-head": 4, "grouped": 2, "multi-query": 1}  # key/value groups, for four query heads


def llama(groups):
    """A tiny random Llama with so many key/value groups."""
    return small_model("llama", **SHAPE | {"num_key_value_heads": groups}, vocab_size=512)


def output_inputs(model, tokens, path, plan=None):
    """Inputs of one module for all tokens (T, C), float64: the whole model, one sequence at a time."""
    seen = []
    with torch.no_grad(), temporarily_pruned(model, plan or PruningPlan(6, {})):
        module = model.get_submodule(path)
        handle = module.register_forward_pre_hook(
            lambda module, args: seen.append(args[0][0].double())
        )
        for ids in tokens:
            model(ids[None])
        handle.remove()
    return torch.cat(seen).numpy()


def output_weight(model, layer):
    return decoder_layers(model)[layer].self_attn.o_proj.weight.detach().double().numpy()


def sums_by_group(columns, groups):
    width = len(columns) // groups
    return [sum(columns[g * width + i] for i in range(width)) for g in range(groups)]


def lowest(scores, count):
    return tuple(sorted(sorted(range(len(scores)), key=lambda index: scores[index])[:count]))


@pytest.mark.parametrize("groups", HEADS.values(), ids=HEADS)
def test_magnitude_is_the_summed_column_norms(groups):
    model = llama(groups)
    plan = make_plan("mag-sp", model, None, kv_groups=2, layers=[1, 4])
    for layer in (1, 4):
        weight = output_weight(model, layer)
        norms = [np.sqrt(sum(w**2 for w in weight[:, j])) for j in range(weight.shape[1])]
        assert plan.layers[layer] == LayerPlan(
            removed_groups=lowest(sums_by_group(norms, groups), 1)
        )
    assert set(plan.layers) == {1, 4}


def wanda_twin(model, tokens, layers, each):
    plans = {}
    for layer in layers:
        inputs = output_inputs(
            model, tokens, f"model.layers.{layer}.self_attn.o_proj", PruningPlan(6, plans)
        )
        weight = output_weight(model, layer)
        columns = [
            np.mean(np.abs(weight[:, j]) * np.linalg.norm(inputs[:, j]))
            for j in range(weight.shape[1])
        ]
        groups = num_groups(decoder_layers(model)[layer].self_attn)
        plans[layer] = LayerPlan(removed_groups=lowest(sums_by_group(columns, groups), each))
    return PruningPlan(6, plans, "wanda-sp")


@pytest.mark.parametrize("groups", HEADS.values(), ids=HEADS)
def test_wanda_feeds_what_the_pruned_layer_gives_to_the_next(tokens, groups):
    model, layers, each = llama(groups), [1, 2, 4, 5], max(1, groups // 2)
    plan = make_plan("wanda-sp", model, tokens, kv_groups=4 * each, layers=layers)
    assert plan == wanda_twin(model, tokens, layers, each)


@pytest.mark.parametrize("name", FAMILIES)
def test_wanda_stream_is_the_whole_model(tiny, tokens, name):
    model, texts = tiny(name), [*tokens, tokens[0, :19], tokens[1, :2]]
    assert make_plan("wanda-sp", model, texts, kv_groups=6) == wanda_twin(model, texts, range(6), 1)


def flap_twin(weight, inputs, power=1):
    """Standardised fluctuation of each input channel, in loops; upstream's of W_O to the power of
    2.
    """
    raw = []
    for j in range(weight.shape[1]):
        mean = sum(inputs[:, j]) / len(inputs)
        variance = sum((x - mean) ** 2 for x in inputs[:, j]) / (len(inputs) - 1)
        raw.append((variance * sum(w**2 for w in weight[:, j])) ** power)
    centre = sum(raw) / len(raw)
    spread = np.sqrt(sum((r - centre) ** 2 for r in raw) / (len(raw) - 1))
    return [(r - centre) / spread for r in raw]


@pytest.mark.parametrize("squared", [False, True])
@pytest.mark.parametrize(("groups", "kv_groups"), [(4, 7), (2, 5)], ids=["multi-head", "grouped"])
def test_flap_has_one_threshold_over_the_range(tokens, groups, kv_groups, squared):
    model, layers = llama(groups), [0, 2, 3, 5]
    plan = make_plan("flap", model, tokens, kv_groups=kv_groups, layers=layers, squared=squared)
    scores, means = {}, {}
    for layer in layers:
        inputs = output_inputs(model, tokens, f"model.layers.{layer}.self_attn.o_proj")
        columns, width = flap_twin(output_weight(model, layer), inputs, 1 + squared), 64 // groups
        for group, total in enumerate(sums_by_group(columns, groups)):
            scores[layer, group] = total / width
            means[layer, group] = inputs[:, group * width : (group + 1) * width].mean(axis=0)
    chosen = sorted(sorted(scores, key=scores.get)[:kv_groups])
    assert [
        (layer, group) for layer, one in plan.layers.items() for group in one.removed_groups
    ] == chosen
    found = np.concatenate([one.group_means for one in plan.layers.values()])
    np.testing.assert_allclose(
        found, np.concatenate([means[pair] for pair in chosen]), rtol=1e-4, atol=1e-6
    )


def test_flap_may_empty_a_layer(tokens):
    # In a layer of two groups the standardised scores are opposite, so 7 of 12 take both of the
    # most even layer.
    plan = make_plan("flap", model := llama(2), tokens, kv_groups=7)
    assert max(len(layer.removed_groups) for layer in plan.layers.values()) == 2
    assert np.isfinite(perplexity(apply_plan(model, plan), tokens))


@pytest.mark.parametrize("evenly", [False, True])
@pytest.mark.parametrize("name", FAMILIES)
def test_harp_flap_measures_channels_in_the_pruned_model(tiny, tokens, name, evenly):
    model = tiny(name)
    options = {"alphas": [0.3, 0.0], "target_fraction": 0.2}
    plan = make_plan("harp+flap", model, tokens, kv_groups=4, evenly=evenly, **options)
    harp, scores, means = PruningPlan.value_only(6, [0.3, 0.0]), {}, {}
    for layer in range(6):
        inputs = output_inputs(model, tokens, f"model.layers.{layer}.mlp.down_proj", harp)
        weight = decoder_layers(model)[layer].mlp.down_proj.weight.detach().double().numpy()
        for channel, score in enumerate(flap_twin(weight, inputs)):
            scores[layer, channel], means[layer, channel] = score, inputs[:, channel].mean()
    count = sum(len(layer.removed_channels) for layer in plan.layers.values())
    chosen = sorted(sorted(scores, key=scores.get)[:count])
    if evenly:  # the lowest layers lose one more where it does not come out even
        chosen = []
        for layer in range(6):
            own = sorted((pair for pair in scores if pair[0] == layer), key=scores.get)
            chosen += sorted(own[: count // 6 + (layer < count % 6)])
    assert [
        (layer, channel) for layer, one in plan.layers.items() for channel in one.removed_channels
    ] == chosen
    found = [mean for one in plan.layers.values() for mean in one.channel_means or ()]
    np.testing.assert_allclose(found, [means[pair] for pair in chosen], rtol=1e-3, atol=1e-5)
