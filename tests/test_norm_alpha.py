"""The alpha that keeps the norm of the stream, against norms of whole runs."""

import pytest
import torch

from harp_lib import load_model
from harp_lib.methods.calibration import LayerStream
from harp_lib.methods.norm_alpha import norm_alpha_by_layer
from harp_lib.pruning.architecture import branch_exit, decoder_layers
from harp_lib.pruning.surgery import temporarily_value_only

FAMILIES = ["tiny-llama", "tiny-gemma2", "tiny-qwen2"]


@pytest.fixture
def ids():
    return torch.randint(3, 100, (3, 24), generator=torch.Generator().manual_seed(0))


def norm_after_attention(model, ids, index, alphas):
    """Norm of the stream after a layer's attention, without first tokens, in a whole run."""
    entering = []
    branches = []
    layer = decoder_layers(model)[index]
    with temporarily_value_only(model, alphas), torch.no_grad():
        hooks = [
            layer.register_forward_pre_hook(lambda module, args: entering.append(args[0])),
            branch_exit(layer).register_forward_hook(
                lambda module, args, output: branches.append(
                    output[0] if isinstance(output, tuple) else output
                )
            ),
        ]
        model(ids)
        for hook in hooks:
            hook.remove()
    return (entering[0] + branches[0])[:, 1:].double().norm().item()


@pytest.mark.parametrize("layers", [(3, 4, 5), (1, 4)])
@pytest.mark.parametrize("family", FAMILIES)
def test_the_stream_is_as_long_as_the_dense_one_after_each_layer(family, layers, ids):
    model, _ = load_model(family)
    alphas = norm_alpha_by_layer(model, LayerStream(model, ids), layers)
    assert list(alphas) == list(layers)
    for index, alpha in alphas.items():
        below = {layer: alphas[layer] for layer in layers if layer <= index}
        dense = norm_after_attention(model, ids, index, {})
        kept = norm_after_attention(model, ids, index, below)
        if kept == pytest.approx(dense, rel=1e-6):
            grid = torch.linspace(alpha + 0.01, alpha + 3, 60).tolist()
            norms = [norm_after_attention(model, ids, index, below | {index: a}) for a in grid]
            assert min(norms) > dense, "the larger of two solutions"
        else:
            grid = torch.linspace(0, 2, 101).tolist()
            norms = [norm_after_attention(model, ids, index, below | {index: a}) for a in grid]
            assert abs(kept - dense) <= min(abs(norm - dense) for norm in norms) * (1 + 1e-6)


def test_layers_above_are_fitted_on_the_pruned_stream(ids):
    model, _ = load_model("tiny-llama")
    both = norm_alpha_by_layer(model, LayerStream(model, ids), [3, 4])
    alone = norm_alpha_by_layer(model, LayerStream(model, ids), [4])
    assert both[4] != pytest.approx(alone[4], rel=1e-3)


def test_alpha_is_one_where_all_tokens_have_equal_values(ids):
    model, _ = load_model("tiny-llama")
    stream = LayerStream(model, torch.full_like(ids, 7))
    assert norm_alpha_by_layer(model, stream, [4, 5]) == pytest.approx({4: 1.0, 5: 1.0}, abs=1e-4)


def test_a_branch_without_values_has_alpha_zero(ids):
    model, _ = load_model("tiny-llama")
    with torch.no_grad():
        decoder_layers(model)[-1].self_attn.v_proj.weight.zero_()
    assert norm_alpha_by_layer(model, LayerStream(model, ids), [5]) == {5: 0.0}


def test_the_model_is_unchanged(ids):
    model, _ = load_model("tiny-llama")
    before = model(ids).logits
    norm_alpha_by_layer(model, LayerStream(model, ids), [4, 5])
    assert torch.equal(model(ids).logits, before)
