"""A look into a model shows what the model computes, and changes nothing."""

import pytest
import torch
from helpers import FAMILIES, unchanged

from harp_lib import theory
from harp_lib.evaluation.probe import observe_layers
from harp_lib.pruning.architecture import branch_exit, decoder_layers, output_norm
from harp_lib.pruning.surgery import temporarily_value_only


def views_of(model, ids):
    """The view of each layer, bottom to top."""
    views = []
    observe_layers(model, ids, views.append)
    return views


@pytest.mark.parametrize("family", FAMILIES)
class TestViews:
    def test_streams_are_those_of_transformers(self, tiny, tokens, family):
        model = tiny(family)
        views = views_of(model, tokens)
        with torch.no_grad():
            hidden = model(tokens, output_hidden_states=True, use_cache=False).hidden_states
        assert [view.layer for view in views] == list(range(6))
        for view in views:
            assert torch.allclose(view.entering, hidden[view.layer], atol=1e-4)
        for view in views[:-1]:
            assert torch.allclose(view.leaving, hidden[view.layer + 1], atol=1e-4)
        with torch.no_grad():
            normed = model.get_decoder().norm(views[-1].leaving)
        assert torch.allclose(normed, hidden[-1], atol=1e-4), "the last one is after the norm"

    def test_branch_is_attention_times_values(self, tiny, tokens, family):
        model = tiny(family)
        for view in views_of(model, tokens):
            layer = decoder_layers(model)[view.layer]
            mixed = view.attention @ view.value_states  # (B, H, N, Dh)
            branch = layer.self_attn.o_proj(mixed.transpose(1, 2).flatten(2))  # (B, N, d)
            norm = output_norm(layer)
            if norm is not None:
                branch = norm(branch)
            assert torch.allclose(branch, view.branch, atol=1e-4)
            assert theory.attention_entropies(view.attention, view.visible).shape == (4, 4)

    def test_value_only_branch_is_what_pruning_leaves(self, tiny, tokens, family):
        model = tiny(family)
        view = views_of(model, tokens)[5]
        branches = []

        def keep(module, args, output):
            branches.append(output[0] if isinstance(output, tuple) else output)

        with temporarily_value_only(model, {5: 1.0}), torch.no_grad():
            handle = branch_exit(decoder_layers(model)[5]).register_forward_hook(keep)
            model(tokens, use_cache=False)
            handle.remove()
        (branch,) = branches
        assert torch.allclose(view.value_only_branch, branch, atol=1e-4)

    def test_looking_changes_nothing(self, tiny, tokens, family):
        model = tiny(family).train()

        def fail(view):
            raise RuntimeError("stop")

        with unchanged(model):
            views_of(model, tokens)
        with unchanged(model), pytest.raises(RuntimeError, match="stop"):
            observe_layers(model, tokens, fail)


def test_windows_are_seen(tiny, tokens):
    first, second, *_ = views_of(tiny("tiny-gemma2"), tokens)
    assert first.visible.max() == 32
    assert second.visible.max() == 48
    assert (first.attention > 0).sum(-1).max() == 32
