"""Alpha in closed form, by least squares or from the norm of the stream, against whole runs."""

import pytest
import torch
from helpers import FAMILIES, unchanged

from harp_lib import fit_alphas, load_model
from harp_lib.methods.calibration import LayerStream
from harp_lib.methods.fit_alpha import fit_alpha_by_layer
from harp_lib.methods.norm_alpha import norm_alpha_by_layer
from harp_lib.pruning.architecture import branch_exit, decoder_layers, first_of
from harp_lib.pruning.surgery import apply_plan, temporarily_value_only

both_rules = pytest.mark.parametrize("fit", [fit_alpha_by_layer, norm_alpha_by_layer])


@pytest.fixture
def ids():
    return torch.randint(3, 100, (3, 24), generator=torch.Generator().manual_seed(0))


def stream_and_branch(model, ids, index, alphas):
    """What enters a layer and what its attention branch adds, (B, N, d) each.

    The whole model is run, with some layers value-only.
    """
    recorded = {}

    def keep_stream(module, args):
        recorded["stream"] = args[0].double()

    def keep_branch(module, args, output):
        recorded["branch"] = first_of(output).double()

    layer = decoder_layers(model)[index]
    with (
        temporarily_value_only(model, alphas),
        layer.register_forward_pre_hook(keep_stream),
        branch_exit(layer).register_forward_hook(keep_branch),
        torch.no_grad(),
    ):
        model(ids)
    return recorded["stream"], recorded["branch"]


def fit_by_whole_runs(model, ids, layers):
    """The slow twin: the whole model is run twice for each layer, and torch solves."""
    alphas = {}
    for index in sorted(layers):
        _, attended = stream_and_branch(model, ids, index, alphas)
        _, value_only = stream_and_branch(model, ids, index, alphas | {index: 1.0})
        solved = torch.linalg.lstsq(value_only.reshape(-1, 1), attended.reshape(-1, 1))
        alphas[index] = solved.solution.item()
    return alphas


@pytest.mark.parametrize("family", FAMILIES)
def test_alphas_are_least_squares_of_the_branches(family, ids):
    model, _ = load_model(family)
    fitted = fit_alphas(model, ids, 3)
    expected = fit_by_whole_runs(model, ids, [3, 4, 5])
    assert fitted.alphas == pytest.approx(list(reversed(expected.values())), rel=1e-4)
    assert fitted.perplexities == {}
    assert sorted(fitted.plan.layers) == [3, 4, 5]


def test_layers_need_not_be_at_the_top(ids):
    model, _ = load_model("tiny-llama")
    alphas = fit_alpha_by_layer(model, LayerStream(model, ids), [4, 1])
    assert alphas == pytest.approx(fit_by_whole_runs(model, ids, [1, 4]), rel=1e-4)


def norm_after_attention(model, ids, index, alphas):
    """Norm of the stream after a layer's attention, without first tokens, in a whole run."""
    stream, branch = stream_and_branch(model, ids, index, alphas)
    return (stream + branch)[:, 1:].norm().item()


@pytest.mark.parametrize(("family", "layers"), [("tiny-gemma2", (3, 4, 5)), ("tiny-llama", (1, 4))])
def test_the_stream_is_as_long_as_the_dense_one_after_each_layer(family, layers, ids):
    model, _ = load_model(family)
    alphas = norm_alpha_by_layer(model, LayerStream(model, ids), layers)
    assert list(alphas) == list(layers)
    for index, alpha in alphas.items():
        below = {layer: alphas[layer] for layer in layers if layer <= index}
        dense = norm_after_attention(model, ids, index, {})
        kept = norm_after_attention(model, ids, index, below)
        if kept == pytest.approx(dense, rel=1e-6):
            grid = torch.linspace(alpha + 0.01, alpha + 3, 7).tolist()
            norms = [norm_after_attention(model, ids, index, below | {index: a}) for a in grid]
            assert min(norms) > dense, "the larger of two solutions"
        else:
            grid = torch.linspace(0, 2, 9).tolist()
            norms = [norm_after_attention(model, ids, index, below | {index: a}) for a in grid]
            assert abs(kept - dense) <= min(abs(norm - dense) for norm in norms) * (1 + 1e-6)


@both_rules
def test_layers_above_are_fitted_on_the_pruned_stream(fit, ids):
    model, _ = load_model("tiny-llama")
    both = fit(model, LayerStream(model, ids), [3, 4])
    alone = fit(model, LayerStream(model, ids), [4])
    assert both[4] != pytest.approx(alone[4], rel=1e-3)


@both_rules
def test_alpha_is_one_where_all_tokens_have_equal_values(fit, ids):
    model, _ = load_model("tiny-llama")
    stream = LayerStream(model, torch.full_like(ids, 7))
    assert fit(model, stream, [4, 5]) == pytest.approx({4: 1.0, 5: 1.0}, abs=1e-4)


@both_rules
def test_a_branch_without_values_has_alpha_zero(fit, ids):
    model, _ = load_model("tiny-llama")
    with torch.no_grad():
        decoder_layers(model)[-1].self_attn.v_proj.weight.zero_()
    assert fit(model, LayerStream(model, ids), [5]) == {5: 0.0}


@both_rules
def test_the_model_is_unchanged(fit, ids):
    model, _ = load_model("tiny-llama")
    with unchanged(model):
        fit(model, LayerStream(model, ids), [4, 5])


def test_bad_input_is_named(ids):
    model, _ = load_model("tiny-llama")
    with pytest.raises(ValueError, match="not in a model of 6 layers"):
        fit_alphas(model, ids, 7)
    with pytest.raises(ValueError, match="num_layers is -1"):
        fit_alphas(model, ids, -1)
    with pytest.raises(ValueError, match="empty"):
        fit_alphas(model, ids[:0], 1)
    fitted = fit_alphas(model, ids, 1)
    with pytest.raises(ValueError, match="pruned already"):
        fit_alphas(apply_plan(model, fitted.plan), ids, 1)
