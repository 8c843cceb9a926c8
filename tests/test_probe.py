"""Looking into a model: what is seen is what the model computes, and looking changes nothing."""

import pytest
import torch
from conftest import FAMILIES

from harp_lib import theory
from harp_lib.probe import observe_layers
from harp_lib.similarity_study import random_twin, repeat_tokens, value_output_maps
from harp_lib.surgery import decoder_layers, output_norm, temporarily_value_only


def views(model, ids):
    seen = []
    observe_layers(model, ids, seen.append)
    return seen


@pytest.mark.parametrize("family", FAMILIES)
class TestViews:
    def test_streams_are_transformers_own(self, tiny, tokens, family):
        model = tiny(family)
        seen = views(model, tokens)
        with torch.no_grad():
            hidden = model(tokens, output_hidden_states=True, use_cache=False).hidden_states
        assert [view.layer for view in seen] == list(range(6))
        for view, entering, leaving in zip(seen, hidden[:-1], [*hidden[1:-1], None], strict=True):
            assert torch.allclose(view.entering, entering, atol=1e-4)
            assert leaving is None or torch.allclose(view.leaving, leaving, atol=1e-4)
        with torch.no_grad():
            normed = model.get_decoder().norm(seen[-1].leaving)
        assert torch.allclose(normed, hidden[-1], atol=1e-4), "transformers' last hidden state is after the norm"

    def test_branch_is_attention_times_values(self, tiny, tokens, family):
        model = tiny(family)
        for view in views(model, tokens):
            layer = decoder_layers(model)[view.layer]
            mixed = (view.attention @ view.value_states).transpose(1, 2).flatten(2)  # (B, N, H·Dh)
            branch = layer.self_attn.o_proj(mixed)
            branch = output_norm(layer)(branch) if output_norm(layer) else branch
            assert torch.allclose(branch, view.branch, atol=1e-4)
            assert theory.attention_entropies(view.attention, view.visible).shape == (4, 4)

    def test_value_only_branch_is_what_pruning_leaves(self, tiny, tokens, family):
        model = tiny(family)
        view = views(model, tokens)[5]
        with temporarily_value_only(model, {5: 1.0}):
            hidden = []
            handle = decoder_layers(model)[5].register_forward_hook(lambda m, a, out: hidden.append((a[0], out)))
            with torch.no_grad():
                model(tokens, use_cache=False)
            handle.remove()
        layer, entering = decoder_layers(model)[5], hidden[0][0]
        middle = entering + view.value_only_branch
        with torch.no_grad():
            if output_norm(layer):
                ffn = layer.post_feedforward_layernorm(layer.mlp(layer.pre_feedforward_layernorm(middle)))
            else:
                ffn = layer.mlp(layer.post_attention_layernorm(middle))
        output = hidden[0][1][0] if isinstance(hidden[0][1], tuple) else hidden[0][1]
        assert torch.allclose(middle + ffn, output, atol=1e-4)

    def test_looking_changes_nothing(self, tiny, tokens, family):
        model = tiny(family).train()
        implementation = model.config._attn_implementation
        before = {name: value.clone() for name, value in model.state_dict().items()}
        views(model, tokens)
        with pytest.raises(RuntimeError, match="stop"):
            observe_layers(model, tokens, lambda view: (_ for _ in ()).throw(RuntimeError("stop")))
        assert model.training
        assert model.config._attn_implementation == implementation
        assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
        assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_windows_are_seen(tiny, tokens):
    seen = views(tiny("tiny-gemma2"), tokens)
    assert seen[0].visible.max() == 32
    assert seen[1].visible.max() == 48
    assert (seen[0].attention > 0).sum(-1).max() == 32


def test_a_pruned_model_is_refused(tiny, tokens):
    from harp_lib import PruningPlan, apply_plan

    model = apply_plan(tiny(), PruningPlan.value_only(6, [0.5]))
    with pytest.raises(ValueError, match="pruned already"):
        observe_layers(model, tokens, print)


@pytest.mark.parametrize("family", ["tiny-llama", "tiny-gemma2"])
def test_singular_values_of_value_and_output(tiny, family):
    layer = decoder_layers(tiny(family))[0]
    maps, attention = value_output_maps(layer), layer.self_attn
    assert len(maps) == 4
    for head, small in enumerate(maps):
        group = slice(head // 2 * 16, head // 2 * 16 + 16)
        whole = attention.o_proj.weight[:, head * 16 : head * 16 + 16] @ attention.v_proj.weight[group]  # (d, d)
        expected = torch.linalg.svdvals(whole.double())[:16]
        assert torch.allclose(torch.linalg.svdvals(small), expected, atol=1e-6)


@pytest.mark.parametrize("family", ["tiny-llama", "tiny-qwen2", "tiny-gemma2"])
def test_a_repeated_token_keeps_all_rows_equal(tiny, tokens, family):
    """Theorem 1's limit in a model with rotary positions: not uniform, and superfluous all the same."""
    found = repeat_tokens(tiny(family), tokens[:1], tokens=2)
    assert min(min(layers) for layers in found["similarity"]) > 1 - 1e-6
    assert max(max(layers) for layers in found["relative distance"]) < 1e-5
    assert min(min(heads) for layers in found["entropy"] for heads in layers) < 0.98
    assert max(found["logit difference"]) < 1e-3


def test_random_twin(tiny):
    model = tiny()
    state = torch.random.get_rng_state()
    twin, again, other = random_twin(model, 7), random_twin(model, 7), random_twin(model, 8)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert {k: v.shape for k, v in twin.state_dict().items()} == {k: v.shape for k, v in model.state_dict().items()}
    weights = [x.model.layers[0].mlp.up_proj.weight for x in (twin, again, other, model)]
    assert torch.equal(weights[0], weights[1])
    assert not any(torch.equal(weights[0], weight) for weight in weights[2:])
    assert weights[0].std().item() == pytest.approx(model.config.initializer_range, rel=0.1)


def test_a_norm_after_attention_fixes_the_branch_whatever_attention_does(tiny, tokens):
    """Gemma-2 with gains of 1: every row of the branch has length √d, with aggregation and without."""
    model = tiny("tiny-gemma2")
    for layer in decoder_layers(model):
        torch.nn.init.zeros_(layer.post_attention_layernorm.weight)
    for view in views(model, tokens):
        for branch in (view.branch, view.value_only_branch):
            assert torch.allclose(branch.norm(dim=-1), torch.tensor(8.0), rtol=1e-3)
