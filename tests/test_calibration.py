"""Statistics of a projection's inputs, and the calibration text moved up layer by layer."""

import numpy as np
import pytest
import torch
from helpers import FAMILIES, ROUNDING, unchanged, with_embeddings_everywhere

from harp_lib.methods import make_plan
from harp_lib.methods.calibration import InputStatistics, LayerStream, input_statistics
from harp_lib.pruning.architecture import decoder_layers

LENGTHS = (40, 40, 17, 2, 40)
MIXED = [torch.arange(3 + i, 3 + i + length) for i, length in enumerate(LENGTHS)]


def statistics_of(values, sizes):
    statistics = InputStatistics(0)
    for part in values.split(sizes):
        statistics.update(part)
    return statistics


@pytest.fixture
def fluctuating():
    """Three channels around 10,000, -10,000 and 0, with a standard deviation of 0.1."""
    noise = torch.randn(1000, 3, generator=torch.Generator().manual_seed(0))
    return 0.1 * noise + torch.tensor([1e4, -1e4, 0.0])


@pytest.mark.parametrize("sizes", [[1000], [1] * 1000, [1, 999], [999, 1], [300, 500, 200]])
def test_small_fluctuations_around_a_large_mean(fluctuating, sizes):
    values = fluctuating.double().numpy()
    for given in (fluctuating, fluctuating.flip(0)):
        statistics = statistics_of(given, sizes)
        assert statistics.count == 1000
        np.testing.assert_allclose(statistics.mean, values.mean(axis=0), rtol=2e-7, atol=1e-6)
        np.testing.assert_allclose(statistics.variance, values.var(axis=0, ddof=1), rtol=1e-4)
        np.testing.assert_allclose(statistics.norm, np.linalg.norm(values, axis=0), rtol=1e-6)


def count_calls(modules):
    """A list that counts from now on how often each module runs."""
    calls = [0] * len(modules)

    def count(index):
        def hook(*_):
            calls[index] += 1

        return hook

    for index, module in enumerate(modules):
        module.register_forward_hook(count(index))
    return calls


def test_activations_that_are_not_finite_name_the_layer_and_leave_the_model_whole(tiny, tokens):
    model = tiny().train()
    layers = decoder_layers(model)
    layers[1].self_attn.v_proj.weight.data[0, 0] = torch.inf
    projections = {i: layers[i].self_attn.o_proj for i in (0, 1, 4)}
    for read in (
        lambda: input_statistics(model, tokens, projections),
        lambda: make_plan("wanda-sp", model, tokens, kv_groups=6),
    ):
        with unchanged(model), pytest.raises(ValueError, match=r"1: activations .* not finite"):
            read()
    assert decoder_layers(model) is layers


@torch.no_grad()
def states_entering(model, ids, layer):
    """Hidden states (N, d) that enter a layer, by the whole model."""
    return model(ids[None], output_hidden_states=True).hidden_states[layer][0]


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("order", [[0, 1, 2, 3, 4, 5], [5, 0, 3, 3, 1, 4]])
def test_a_stream_holds_what_enters_a_layer(tiny, name, order):
    model = tiny(name)
    stream = LayerStream(model, MIXED)
    for layer in order:
        batches = stream.entering(layer)
        sequences = [sequence for batch in batches for sequence in batch]
        for ids, states in zip(MIXED, sequences, strict=True):
            expected = states_entering(model, ids, layer)
            torch.testing.assert_close(states, expected, **ROUNDING)
        # A caller's change of the list stays with the caller.
        batches[0] = torch.zeros_like(batches[0])


@pytest.mark.parametrize("name", FAMILIES)
@torch.no_grad()
def test_the_last_layer_leaves_what_the_final_norm_reads(tiny, name):
    model = tiny(name)
    stream = LayerStream(model, MIXED)
    leaving = [sequence for batch in stream.leaving(5, stream.entering(5)) for sequence in batch]
    for ids, states in zip(MIXED, leaving, strict=True):
        expected = model.model(ids[None]).last_hidden_state[0]
        torch.testing.assert_close(model.model.norm(states), expected, **ROUNDING)


def test_what_passes_an_attention_leaves_the_stream_below_its_layer(tiny):
    model = tiny()
    stream = LayerStream(model, MIXED)
    attentions = count_calls([layer.self_attn for layer in decoder_layers(model)])
    ffns = count_calls([layer.mlp for layer in decoder_layers(model)])
    batches = len(stream.batches)
    attention = decoder_layers(model)[2].self_attn
    for number, (entering, _) in enumerate(stream.passing(2, attention)):
        assert entering.shape[:2] == stream.batches[number].ids.shape
    assert attentions == [batches] * 3 + [0] * 3
    assert ffns == [batches] * 2 + [0] * 4, "what comes behind the attention is spared"
    stream.entering(2)
    assert attentions == [batches] * 3 + [0] * 3, "layers 0 and 1 are not run again"
    list(stream.passing(2, attention))
    assert attentions == [batches, batches, 2 * batches, 0, 0, 0]
    stream.entering(3)
    assert ffns == [batches] * 3 + [0] * 3, "the layer is whole again"


def test_rising_layers_run_each_layer_once(tiny):
    model = tiny()
    LayerStream(model, MIXED)  # a model that is seen for the first time is checked
    calls = count_calls(decoder_layers(model))
    stream = LayerStream(model, MIXED)
    batches = len(stream.batches)
    assert batches == 4
    for layer in (1, 2, 2, 5):
        stream.entering(layer)
    assert calls == [batches] * 5 + [0]
    stream.entering(0)
    assert calls == [batches] * 5 + [0]


def test_a_pass_ends_with_the_highest_layer(tiny):
    model = tiny()
    layers = decoder_layers(model)
    LayerStream(model, MIXED)  # a model that is seen for the first time is checked
    calls = count_calls([layers[3].mlp, layers[4], model.lm_head])
    input_statistics(model, MIXED, {3: layers[3].self_attn.o_proj, 1: layers[1].self_attn.o_proj})
    assert calls == [4, 0, 0]
    assert decoder_layers(model) is layers


def test_a_family_whose_layers_take_more_than_hidden_states_is_refused(tiny, tokens):
    model = with_embeddings_everywhere(tiny())
    with pytest.raises(ValueError, match="LlamaForCausalLM is not supported: its layers take more"):
        LayerStream(model, tokens)
    assert type(model.model.layers[0]).__name__ == "LlamaDecoderLayer"


def test_the_check_of_the_layers_adds_no_token_to_the_statistics(tiny, tokens):
    model = tiny()
    projections = {
        layer: module.self_attn.o_proj for layer, module in enumerate(model.model.layers)
    }
    for _ in range(2):
        statistics = input_statistics(model, tokens, projections)
        assert {inputs.count for inputs in statistics.values()} == {tokens.numel()}
