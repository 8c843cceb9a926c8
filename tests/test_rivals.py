"""Rivals of the refit: each is exact where it can be, and leaves the model as it was."""

import pytest
import torch
from helpers import ROUNDING

from harp_lib.methods import refit, rivals
from harp_lib.methods.calibration import LayerStream
from harp_lib.methods.rivals import RIVALS, from_boundary, linear, nbl, nbl_maps, windowed
from harp_lib.pruning.architecture import decoder_layers


@torch.no_grad()
def states(model, ids, layer):
    """What passes through a layer, and the logits.

    ``stream`` enters the layer, ``x`` enters its attention and ``y`` leaves its attention: (T, d)
    each, float64.
    """
    recorded = {}

    def record_stream(module, args):
        recorded["stream"] = args[0].flatten(0, 1).double()

    def record_attention(module, args, kwargs, output):
        recorded["x"] = kwargs["hidden_states"].flatten(0, 1).double()
        recorded["y"] = output[0].flatten(0, 1).double()

    module = decoder_layers(model)[layer]
    with (
        module.register_forward_pre_hook(record_stream),
        module.self_attn.register_forward_hook(record_attention, with_kwargs=True),
    ):
        recorded["logits"] = model(ids).logits
    return recorded


def with_one(x):
    """The features of a token and a constant: (T, d + 1), float64."""
    return torch.cat([x, torch.ones_like(x[:, :1])], dim=1)


def least_squares(x, y):
    return torch.linalg.lstsq(with_one(x), y).solution


def replace_attention(model, layer, weight, x):
    """Replace a layer's attention by a map of the states ``x`` of the text, until removed."""

    def instead(module, args, output):
        y = with_one(x) @ weight
        return y.view_as(output[0]).to(output[0].dtype), None

    return decoder_layers(model)[layer].self_attn.register_forward_hook(instead)


@pytest.fixture
def no_ridge(monkeypatch):
    monkeypatch.setattr(refit, "RIDGE", 0.0)


def test_a_map_is_fitted_where_the_layers_below_are_replaced_already(tiny, tokens, no_ridge):
    """By hand, layer 2 is replaced first, and only then layer 4 is run and fitted."""
    model = tiny("tiny-llama")
    dense = {layer: states(model, tokens, layer) for layer in (2, 4)}
    weight = least_squares(dense[2]["x"], dense[2]["y"])
    with replace_attention(model, 2, weight, dense[2]["x"]):
        above = states(model, tokens, 4)
    expected = with_one(above["x"]) @ least_squares(above["x"], above["y"])
    on_dense = with_one(above["x"]) @ least_squares(dense[4]["x"], dense[4]["y"])
    assert (expected - on_dense).abs().max() > 0.01, "on these weights the order of fitting matters"
    with linear(model, LayerStream(model, tokens), [4, 2]):
        now = states(model, tokens, 4)
    torch.testing.assert_close(now["x"], above["x"], rtol=0, atol=1e-3)
    torch.testing.assert_close(now["y"], expected, rtol=0, atol=1e-3)
    assert torch.equal(states(model, tokens, 2)["logits"], dense[2]["logits"])


def test_nbl_reads_the_stream_before_the_norm_and_is_fitted_on_the_dense_model(
    tiny, tokens, no_ridge
):
    model = tiny("tiny-llama")
    dense = {layer: states(model, tokens, layer) for layer in (2, 4)}
    with nbl(model, nbl_maps(model, LayerStream(model, tokens), [2, 4])):
        for layer in (2, 4):
            now = states(model, tokens, layer)
            weight = least_squares(dense[layer]["stream"], dense[layer]["y"])
            torch.testing.assert_close(
                now["y"], with_one(now["stream"]) @ weight, rtol=0, atol=1e-3
            )
    assert torch.equal(states(model, tokens, 2)["logits"], dense[2]["logits"])


def test_a_window_as_wide_as_the_text_is_the_dense_model(tiny, tokens, monkeypatch):
    model = tiny("tiny-llama")
    dense = states(model, tokens, 0)["logits"]
    monkeypatch.setattr(rivals, "SLIDING_WINDOW", tokens.shape[1])
    with windowed(model, LayerStream(model, tokens), [3, 5]):
        torch.testing.assert_close(states(model, tokens, 0)["logits"], dense, **ROUNDING)
        monkeypatch.setattr(rivals, "SLIDING_WINDOW", 2)
        narrow = states(model, tokens, 0)["logits"]
        first = rivals.SINKS + 2
        torch.testing.assert_close(narrow[:, :first], dense[:, :first], **ROUNDING)
        assert not torch.allclose(narrow[:, first:], dense[:, first:], atol=1e-3)


def test_keys_and_values_of_one_layer_are_linear_in_what_enters_it(tiny, tokens, monkeypatch):
    """They are linear in its norm, which is the stream up to the length of each token."""
    monkeypatch.setattr(refit, "RIDGE", 1e-12)
    model = tiny("tiny-llama")
    dense = states(model, tokens, 4)["logits"]
    with from_boundary(model, LayerStream(model, tokens), [4]):
        torch.testing.assert_close(states(model, tokens, 4)["logits"], dense, rtol=0, atol=1e-3)
    with from_boundary(model, LayerStream(model, tokens), [3, 4]):
        assert not torch.allclose(states(model, tokens, 4)["logits"], dense, atol=1e-2)


@pytest.mark.parametrize("family", ["tiny-qwen2", "tiny-gemma2"])
@pytest.mark.parametrize("rival", RIVALS)
def test_every_rival_takes_other_families_and_leaves_the_model_unchanged(
    tiny, tokens, family, rival
):
    model = tiny(family)
    dense = states(model, tokens, 4)["logits"]
    with RIVALS[rival](model, LayerStream(model, tokens), [4, 5]):
        assert model(tokens).logits.isfinite().all()
    assert torch.equal(states(model, tokens, 4)["logits"], dense)
