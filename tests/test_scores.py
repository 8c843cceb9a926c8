"""Scores of the forward-only methods against slow twins: loops over the inputs of whole models."""

import numpy as np
import pytest
import torch
from helpers import FAMILIES, small_model

from harp_lib import PruningPlan, apply_plan, perplexity
from harp_lib.methods import make_plan
from harp_lib.models.registry import SHAPE
from harp_lib.pruning.architecture import decoder_layers
from harp_lib.pruning.layers import num_groups
from harp_lib.pruning.plan import LayerPlan
from harp_lib.pruning.surgery import temporarily_pruned

# Key/value groups for four query heads.
GROUPS = {"multi-head": 4, "grouped": 2, "multi-query": 1}


DENSE = PruningPlan(6, {})


def llama(groups):
    """A tiny random Llama with so many key/value groups."""
    shape = SHAPE | {"num_key_value_heads": groups}
    return small_model("llama", **shape, vocab_size=512)


@torch.no_grad()
def inputs_of(path, model, tokens, plan):
    """Inputs of one module for all tokens (T, C), float64, in the model as a plan prunes it.

    The whole model is run, one sequence at a time.
    """
    inputs = []

    def record(module, args):
        inputs.append(args[0][0].double())

    with temporarily_pruned(model, plan):
        module = model.get_submodule(path)
        with module.register_forward_pre_hook(record):
            for ids in tokens:
                model(ids[None])
    return torch.cat(inputs).numpy()


def weight_of(module):
    return module.weight.detach().double().numpy()


def sums_by_group(columns, groups):
    width = len(columns) // groups
    return [sum(columns[g * width + i] for i in range(width)) for g in range(groups)]


def lowest(scores, count):
    from_lowest = sorted(range(len(scores)), key=lambda index: scores[index])
    return tuple(sorted(from_lowest[:count]))


@pytest.mark.parametrize("groups", GROUPS.values(), ids=GROUPS)
def test_magnitude_is_the_summed_column_norms(groups):
    model = llama(groups)
    plan = make_plan("mag-sp", model, None, kv_groups=2, layers=[1, 4])
    assert set(plan.layers) == {1, 4}
    for layer in (1, 4):
        weight = weight_of(decoder_layers(model)[layer].self_attn.o_proj)
        norms = [np.sqrt(sum(w**2 for w in weight[:, j])) for j in range(weight.shape[1])]
        removed = lowest(sums_by_group(norms, groups), 1)
        assert plan.layers[layer] == LayerPlan(removed_groups=removed)


def wanda_twin(model, tokens, layers, per_layer):
    """Wanda-sp's plan, by whole runs of the model as pruned so far."""
    layer_plans = {}
    for layer in layers:
        path = f"model.layers.{layer}.self_attn.o_proj"
        inputs = inputs_of(path, model, tokens, PruningPlan(6, layer_plans))
        attention = decoder_layers(model)[layer].self_attn
        weight = weight_of(attention.o_proj)
        columns = []
        for j in range(weight.shape[1]):
            columns.append(np.mean(np.abs(weight[:, j]) * np.linalg.norm(inputs[:, j])))
        scores = sums_by_group(columns, num_groups(attention))
        layer_plans[layer] = LayerPlan(removed_groups=lowest(scores, per_layer))
    return PruningPlan(6, layer_plans, "wanda-sp")


@pytest.mark.parametrize("name", ["multi-head", "multi-query", *FAMILIES])
def test_wanda_scores_a_layer_on_the_output_of_the_pruned_layers_below(tiny, tokens, name):
    model = llama(GROUPS[name]) if name in GROUPS else tiny(name)
    texts = [*tokens, tokens[0, :19], tokens[1, :2]]
    layers = [1, 2, 4, 5]
    per_layer = max(1, num_groups(decoder_layers(model)[0].self_attn) // 2)
    plan = make_plan("wanda-sp", model, texts, kv_groups=4 * per_layer, layers=layers)
    assert plan == wanda_twin(model, texts, layers, per_layer)


def flap_twin(weight, inputs, power=1):
    """Standardised fluctuation of each input channel, in loops.

    Upstream raises W_O's scores to the power of 2 before they are standardised.
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
    model = llama(groups)
    layers = [0, 2, 3, 5]
    width = 64 // groups
    plan = make_plan("flap", model, tokens, kv_groups=kv_groups, layers=layers, squared=squared)
    scores = {}
    means = {}
    for layer in layers:
        path = f"model.layers.{layer}.self_attn.o_proj"
        inputs = inputs_of(path, model, tokens, DENSE)
        columns = flap_twin(weight_of(model.get_submodule(path)), inputs, 2 if squared else 1)
        for group, total in enumerate(sums_by_group(columns, groups)):
            scores[layer, group] = total / width
            means[layer, group] = inputs[:, group * width : (group + 1) * width].mean(axis=0)
    expected = sorted(sorted(scores, key=scores.get)[:kv_groups])
    removed = []
    removed_means = []
    for layer, layer_plan in plan.layers.items():
        removed += [(layer, group) for group in layer_plan.removed_groups]
        removed_means += layer_plan.group_means
    assert removed == expected
    expected_means = np.concatenate([means[place] for place in expected])
    np.testing.assert_allclose(removed_means, expected_means, rtol=1e-4, atol=1e-6)


def test_flap_may_empty_a_layer(tokens):
    """In a layer of two groups the standardised scores are opposite numbers.

    So 7 groups of 12 include both groups of the layer whose groups differ least.
    """
    model = llama(2)
    plan = make_plan("flap", model, tokens, kv_groups=7)
    assert max(len(layer.removed_groups) for layer in plan.layers.values()) == 2
    assert np.isfinite(perplexity(apply_plan(model, plan), tokens))


def lowest_evenly(scores, count):
    """Places (layer, channel) of the lowest scores, equally many in each of the six layers.

    The lowest layers have one more if ``count`` is no multiple of six.
    """
    lowest_places = []
    for layer in range(6):
        size = count // 6
        if layer < count % 6:
            size += 1
        of_layer = [place for place in scores if place[0] == layer]
        lowest_places += sorted(sorted(of_layer, key=scores.get)[:size])
    return lowest_places


@pytest.mark.parametrize(
    ("name", "evenly"), [("tiny-llama", True), *((name, False) for name in FAMILIES)]
)
def test_harp_flap_measures_channels_in_the_pruned_model(tiny, tokens, name, evenly):
    model = tiny(name)
    options = {"alphas": [0.3, 0.0], "target_fraction": 0.2}
    plan = make_plan("harp+flap", model, tokens, kv_groups=4, evenly=evenly, **options)
    harp = PruningPlan.value_only(6, [0.3, 0.0])
    scores = {}
    means = {}
    for layer in range(6):
        path = f"model.layers.{layer}.mlp.down_proj"
        inputs = inputs_of(path, model, tokens, harp)
        for channel, score in enumerate(flap_twin(weight_of(model.get_submodule(path)), inputs)):
            scores[layer, channel] = score
            means[layer, channel] = inputs[:, channel].mean()
    removed = []
    removed_means = []
    for layer, layer_plan in plan.layers.items():
        removed += [(layer, channel) for channel in layer_plan.removed_channels]
        removed_means += layer_plan.channel_means or ()
    expected = sorted(sorted(scores, key=scores.get)[: len(removed)])
    if evenly:
        expected = lowest_evenly(scores, len(removed))
    assert removed == expected
    expected_means = [means[place] for place in expected]
    np.testing.assert_allclose(removed_means, expected_means, rtol=1e-3, atol=1e-5)
