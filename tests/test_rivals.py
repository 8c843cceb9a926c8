"""Rivals of the refit: each is exact where it can be, and leaves the model as it was."""

import pytest
import torch

from harp_lib.experiments import frontier
from harp_lib.experiments.frontier import RIVALS, from_boundary, mapped, windowed
from harp_lib.methods import refit
from harp_lib.methods.calibration import LayerStream
from harp_lib.pruning.architecture import decoder_layers


@torch.no_grad()
def states(model, ids, layer):
    """What enters a layer, its attention, and what the attention puts out: (T, d) each, float64."""
    seen = {}
    module = decoder_layers(model)[layer]
    hooks = [
        module.register_forward_pre_hook(lambda _, args: seen.update(stream=args[0])),
        module.self_attn.register_forward_hook(
            lambda _, args, kwargs, out: seen.update(x=kwargs["hidden_states"], y=out[0]), with_kwargs=True
        ),
    ]
    logits = model(ids).logits
    for hook in hooks:
        hook.remove()
    return {name: values.flatten(0, 1).double() for name, values in seen.items()} | {"logits": logits}


def fitted(x, y):
    x = torch.cat([x, torch.ones_like(x[:, :1])], dim=1)
    return x @ torch.linalg.lstsq(x, y).solution


@pytest.mark.parametrize(("as_nbl", "read"), [(False, "x"), (True, "stream")])
def test_a_map_of_full_rank_is_least_squares(tiny, tokens, monkeypatch, as_nbl, read):
    """NBL reads the stream before the norm, and all its layers are fitted on the dense model."""
    monkeypatch.setattr(refit, "RIDGE", 0.0)
    model = tiny("tiny-llama")
    dense = {layer: states(model, tokens, layer) for layer in (2, 4)}
    with mapped(model, LayerStream(model, tokens), [2, 4], as_nbl=as_nbl):
        for layer in (2, 4):
            now = states(model, tokens, layer)
            if as_nbl and layer == 4:  # fitted where nothing was changed below
                x = torch.cat([dense[4][read], torch.ones(len(now["y"]), 1)], dim=1)
                weight = torch.linalg.lstsq(x.double(), dense[4]["y"]).solution
                found = torch.cat([now[read], torch.ones(len(now["y"]), 1)], dim=1) @ weight
            else:
                found = fitted(dense[2][read], dense[2]["y"]) if layer == 2 else now["y"]
            torch.testing.assert_close(now["y"], found, rtol=0, atol=1e-3)
    assert torch.equal(states(model, tokens, 2)["logits"], dense[2]["logits"])


def test_a_window_as_wide_as_the_text_is_the_dense_model(tiny, tokens, monkeypatch):
    model = tiny("tiny-llama")
    dense = states(model, tokens, 0)["logits"]
    monkeypatch.setattr(frontier, "WINDOW", tokens.shape[1])
    with windowed(model, LayerStream(model, tokens), [3, 5]):
        torch.testing.assert_close(states(model, tokens, 0)["logits"], dense)
        monkeypatch.setattr(frontier, "WINDOW", 2)
        narrow = states(model, tokens, 0)["logits"]
        first = frontier.SINKS + 2
        torch.testing.assert_close(narrow[:, :first], dense[:, :first])
        assert not torch.allclose(narrow[:, first:], dense[:, first:], atol=1e-3)


def test_keys_and_values_of_one_layer_are_found_in_what_enters_it(tiny, tokens, monkeypatch):
    """They are linear in its norm, up to the length of each token."""
    monkeypatch.setattr(refit, "RIDGE", 1e-12)
    model = tiny("tiny-llama")
    dense = states(model, tokens, 4)["logits"]
    with from_boundary(model, LayerStream(model, tokens), [4]):
        torch.testing.assert_close(states(model, tokens, 4)["logits"], dense, rtol=0, atol=1e-3)
    with from_boundary(model, LayerStream(model, tokens), [3, 4]):
        assert not torch.allclose(states(model, tokens, 4)["logits"], dense, atol=1e-2)


@pytest.mark.parametrize("family", ["tiny-qwen2", "tiny-gemma2"])
@pytest.mark.parametrize("rival", RIVALS)
def test_every_rival_takes_other_families_and_goes_without_a_trace(tiny, tokens, family, rival):
    model = tiny(family)
    dense = states(model, tokens, 4)["logits"]
    with RIVALS[rival](model, LayerStream(model, tokens), [4, 5]):
        assert model(tokens).logits.isfinite().all()
    assert torch.equal(states(model, tokens, 4)["logits"], dense)
