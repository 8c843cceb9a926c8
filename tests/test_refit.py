"""Refitted values: least squares of the right rank, on the stream of the model as it is pruned so
far.
"""

import pytest
import torch

from harp_lib import apply_plan, load_pruned, refit_values, save_pruned
from harp_lib.methods import refit
from harp_lib.models.registry import tiny_tokenizer
from harp_lib.pruning.architecture import decoder_layers
from harp_lib.pruning.surgery import temporarily_pruned

FAMILIES = ("tiny-llama", "tiny-qwen2", "tiny-gemma2")


@torch.no_grad()
def attention_in_and_out(model, layer, ids):
    """What enters and leaves an attention, (T, d) each, in float64."""
    seen = []
    attention = decoder_layers(model)[layer].self_attn
    hook = attention.register_forward_hook(
        lambda module, args, kwargs, out: seen.extend([kwargs["hidden_states"], out[0]]),
        with_kwargs=True,
    )
    model(ids)
    hook.remove()
    return [states.flatten(0, 1).double() for states in seen]


@pytest.mark.parametrize("family", FAMILIES)
def test_what_is_value_only_already_is_found(family, tiny, monkeypatch):
    """Where a text repeats one token, attention averages equal values: the fit has to find the very
    map, and biases.
    """
    monkeypatch.setattr(refit, "RIDGE", 1e-12)
    model, ids = tiny(family), torch.arange(3, 512)[:, None].expand(-1, 2)
    found = refit_values(model, ids, 3)
    assert all(share == pytest.approx(1) for share in found.explained.values())
    with torch.no_grad():
        dense = model(ids).logits
        torch.testing.assert_close(
            apply_plan(model, found.plan, weights=found.weights)(ids).logits,
            dense,
            rtol=0,
            atol=1e-3,
        )


def test_the_best_map_of_its_rank(tiny, tokens, monkeypatch):
    """The second layer of two is fitted on what the first makes, refitted; by other routines of
    linear algebra.
    """
    monkeypatch.setattr(refit, "RIDGE", 0.0)
    model = tiny("tiny-llama")
    found = refit_values(model, tokens, 2, layers=[2, 4])
    low = refit_values(model, tokens, 1, layers=[2])
    with temporarily_pruned(model, low.plan, weights=low.weights):
        x, y = attention_in_and_out(model, 4, tokens)
    fitted = x @ torch.linalg.lstsq(x, y).solution
    u, s, v = torch.linalg.svd(fitted, full_matrices=False)
    rank = model.config.num_key_value_heads * model.config.head_dim
    best = u[:, :rank] * s[:rank] @ v[:rank]
    ours = (
        x
        @ found.weights[4]["v_proj.weight"].double().T
        @ found.weights[4]["o_proj.weight"].double().T
    )
    torch.testing.assert_close(ours, best, rtol=0, atol=1e-4)
    missed = (y - best).square().sum() / (y - y.mean(0)).square().sum()
    assert found.explained[4] == pytest.approx(1 - float(missed), abs=1e-6)


@pytest.mark.parametrize("family", FAMILIES)
def test_closer_than_what_it_replaces_and_nothing_changes(family, tiny, tokens):
    model = tiny(family)
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    found = refit_values(model, tokens, 3)
    assert [*found.weights] == [3, 4, 5]
    assert all(torch.equal(weight, before[name]) for name, weight in model.state_dict().items())
    _, wanted = attention_in_and_out(model, 3, tokens)
    with temporarily_pruned(model, found.plan):
        kept = attention_in_and_out(model, 3, tokens)[1]
    with temporarily_pruned(model, found.plan, weights=found.weights):
        fitted = attention_in_and_out(model, 3, tokens)[1]
    assert (fitted - wanted).square().sum() < 0.9 * (kept - wanted).square().sum()


@torch.no_grad()
def test_applied_and_in_checkpoints(tiny, tokens, tmp_path):
    model = tiny("tiny-gemma2")
    found = refit_values(model, tokens, 2)
    with temporarily_pruned(model, found.plan, weights=found.weights):
        expected = model(tokens).logits
    apply_plan(model, found.plan, weights=found.weights)
    torch.testing.assert_close(model(tokens).logits, expected, rtol=0, atol=1e-5)
    save_pruned(model, tiny_tokenizer(), tmp_path / "refit")
    assert torch.equal(load_pruned(tmp_path / "refit")[0](tokens).logits, model(tokens).logits)


def test_wrong_input_is_named(tiny, tokens):
    model = tiny("tiny-llama")
    with pytest.raises(
        ValueError, match=r"2 layers were asked for, \[5, 6\] given; the model has 0 … 5"
    ):
        refit_values(model, tokens, 2, layers=[5, 6])
    found = refit_values(model, tokens, 1)
    with pytest.raises(ValueError, match="layer 3"):
        apply_plan(model, found.plan, weights={3: found.weights[5]})
    with pytest.raises(ValueError, match=r"v_proj.weight .*\(32, 64\)"):
        apply_plan(
            model,
            found.plan,
            weights={5: {name: weight.T for name, weight in found.weights[5].items()}},
        )
