"""Looking into a model: what is seen is what the model computes, and looking changes nothing."""

import pytest
import torch
from helpers import FAMILIES

from harp_lib import PruningPlan, apply_plan, theory
from harp_lib.evaluation.probe import observe_layers
from harp_lib.pruning.architecture import branch_exit, decoder_layers, output_norm
from harp_lib.pruning.surgery import temporarily_value_only


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
        assert torch.allclose(normed, hidden[-1], atol=1e-4), (
            "transformers' last hidden state is after the norm"
        )

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
        branches = []
        with temporarily_value_only(model, {5: 1.0}), torch.no_grad():
            place = branch_exit(decoder_layers(model)[5])
            handle = place.register_forward_hook(
                lambda module, args, output: branches.append(output)
            )
            model(tokens, use_cache=False)
            handle.remove()
        (branch,) = branches
        branch = branch[0] if isinstance(branch, tuple) else branch
        assert torch.allclose(view.value_only_branch, branch, atol=1e-4)

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
        assert not any(
            module._forward_hooks or module._forward_pre_hooks for module in model.modules()
        )


def test_windows_are_seen(tiny, tokens):
    seen = views(tiny("tiny-gemma2"), tokens)
    assert seen[0].visible.max() == 32
    assert seen[1].visible.max() == 48
    assert (seen[0].attention > 0).sum(-1).max() == 32


def test_a_pruned_model_is_refused(tiny, tokens):
    model = apply_plan(tiny(), PruningPlan.value_only(6, [0.5]))
    with pytest.raises(ValueError, match="pruned already"):
        observe_layers(model, tokens, print)
