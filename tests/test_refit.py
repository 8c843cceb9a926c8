"""Refitted values are the least squares map of the right rank on the stream as pruned so far."""

import copy

import pytest
import torch
from helpers import FAMILIES, ROUNDING, unchanged
from test_rivals import states
from transformers import AutoModelForCausalLM

from harp_lib import apply_plan, load_pruned, refit_values, save_pruned
from harp_lib.methods import refit
from harp_lib.models.registry import tiny_tokenizer
from harp_lib.pruning.surgery import temporarily_pruned


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_attention_that_is_value_only_already_is_refitted_exactly(family, tiny, monkeypatch):
    """Where a text repeats one token, attention averages equal values."""
    monkeypatch.setattr(refit, "RIDGE", 1e-12)
    model = tiny(family)
    ids = torch.arange(3, 512)[:, None].expand(-1, 2)
    result = refit_values(model, ids, 3)
    for share in result.explained.values():
        assert share == pytest.approx(1)
    dense = model(ids).logits
    refitted = apply_plan(model, result.plan, weights=result.weights)(ids).logits
    torch.testing.assert_close(refitted, dense, rtol=0, atol=1e-3)


def test_the_refit_is_the_best_map_of_its_rank(tiny, tokens, monkeypatch):
    """The second of two layers is fitted on the output of the first, refitted.

    The expected map comes from other routines of linear algebra.
    """
    monkeypatch.setattr(refit, "RIDGE", 0.0)
    model = tiny("tiny-llama")
    result = refit_values(model, tokens, 2, layers=[2, 4])
    lower_layer = refit_values(model, tokens, 1, layers=[2])
    with temporarily_pruned(model, lower_layer.plan, weights=lower_layer.weights):
        now = states(model, tokens, 4)
    x = now["x"]
    y = now["y"]
    fitted = x @ torch.linalg.lstsq(x, y).solution
    u, s, v = torch.linalg.svd(fitted, full_matrices=False)
    rank = model.config.num_key_value_heads * model.config.head_dim
    best = u[:, :rank] * s[:rank] @ v[:rank]
    down = result.weights[4]["v_proj.weight"].double().T  # (d, K·Dh)
    up = result.weights[4]["o_proj.weight"].double().T  # (K·Dh, d)
    torch.testing.assert_close(x @ down @ up, best, rtol=0, atol=1e-4)
    missed = (y - best).square().sum() / (y - y.mean(0)).square().sum()
    assert result.explained[4] == pytest.approx(1 - float(missed), abs=1e-6)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_refit_is_closer_than_the_weights_it_replaces_and_changes_no_model(family, tiny, tokens):
    model = tiny(family)
    with unchanged(model):
        result = refit_values(model, tokens, 3)
    assert list(result.weights) == [3, 4, 5]
    dense = states(model, tokens, 3)["y"]
    with temporarily_pruned(model, result.plan):
        kept = states(model, tokens, 3)["y"]
    with temporarily_pruned(model, result.plan, weights=result.weights):
        refitted = states(model, tokens, 3)["y"]
    assert (refitted - dense).square().sum() < 0.9 * (kept - dense).square().sum()


@torch.no_grad()
def test_a_refit_is_applied_and_saved(tiny, tokens, tmp_path):
    model = tiny("tiny-gemma2")
    result = refit_values(model, tokens, 2)
    with temporarily_pruned(model, result.plan, weights=result.weights):
        expected = model(tokens).logits
    apply_plan(model, result.plan, weights=result.weights)
    torch.testing.assert_close(model(tokens).logits, expected, **ROUNDING)
    save_pruned(model, tiny_tokenizer(), tmp_path / "refit")
    loaded, _ = load_pruned(tmp_path / "refit")
    assert torch.equal(loaded(tokens).logits, model(tokens).logits)


@torch.no_grad()
def test_weights_may_be_of_another_dtype(tiny, tokens):
    """As of a refit in float32 that is applied to a model in bfloat16."""
    model = tiny("tiny-qwen2")  # its values have a bias
    result = refit_values(model, tokens, 2)
    with temporarily_pruned(model, result.plan, weights=result.weights):
        expected = model(tokens).logits
    in_float64 = {
        layer: {name: tensor.double() for name, tensor in tensors.items()}
        for layer, tensors in result.weights.items()
    }
    with temporarily_pruned(model, result.plan, weights=in_float64):
        assert torch.equal(model(tokens).logits, expected)


@torch.no_grad()
def test_values_may_be_wider_than_the_stream(tiny, tokens, monkeypatch):
    """As in Gemma 1 with 7B, whose 16 heads have 256 channels each, and its stream 3,072."""
    monkeypatch.setattr(refit, "RIDGE", 0.0)
    config = copy.deepcopy(tiny("tiny-llama").config)
    config.head_dim = config.hidden_size
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).eval()
    result = refit_values(model, tokens, 1)
    dense = states(model, tokens, 5)
    with temporarily_pruned(model, result.plan, weights=result.weights):
        refitted = states(model, tokens, 5)["y"]
    best = dense["x"] @ torch.linalg.lstsq(dense["x"], dense["y"]).solution
    torch.testing.assert_close(refitted, best, rtol=0, atol=1e-4)


def test_wrong_input_is_named(tiny, tokens):
    model = tiny("tiny-llama")
    with pytest.raises(ValueError, match=r"2 layers were asked for, \[5\] given"):
        refit_values(model, tokens, 2, layers=[5])
    with pytest.raises(ValueError, match="layer 6 is not in a model of 6 layers"):
        refit_values(model, tokens, 2, layers=[5, 6])
    result = refit_values(model, tokens, 1)
    with pytest.raises(ValueError, match="layer 3"):
        apply_plan(model, result.plan, weights={3: result.weights[5]})
    transposed = {name: weight.T for name, weight in result.weights[5].items()}
    with pytest.raises(ValueError, match=r"v_proj.weight .*\(32, 64\)"):
        apply_plan(model, result.plan, weights={5: transposed})
    longer = result.weights[5] | {"v_proj.bias": torch.zeros(33)}
    with pytest.raises(ValueError, match=r"v_proj.bias .*\(32,\)"):
        apply_plan(model, result.plan, weights={5: longer})
