"""Alpha in closed form, against least squares on branches of whole runs."""

import pytest
import torch

from harp_lib import fit_alphas, load_model
from harp_lib.methods.calibration import LayerStream
from harp_lib.methods.fit_alpha import fit_alpha_by_layer
from harp_lib.models.registry import tiny_model
from harp_lib.pruning.architecture import branch_exit, decoder_layers
from harp_lib.pruning.surgery import apply_plan, temporarily_value_only

FAMILIES = ["tiny-llama", "tiny-gemma2", "tiny-qwen2"]


def branch(model, ids, index, alphas):
    """What a layer's attention branch adds, (T, d), where some layers are value-only."""
    outputs = []

    def keep(module, args, output):
        outputs.append(output[0] if isinstance(output, tuple) else output)

    with temporarily_value_only(model, alphas), torch.no_grad():
        hook = branch_exit(decoder_layers(model)[index]).register_forward_hook(keep)
        model(ids)
        hook.remove()
    return outputs[0].flatten(0, 1).double()


def fit_by_whole_runs(model, ids, layers):
    """The slow twin: the whole model is run twice for each layer, and torch solves."""
    alphas = {}
    for index in sorted(layers):
        attended = branch(model, ids, index, alphas)
        value_only = branch(model, ids, index, alphas | {index: 1.0})
        solved = torch.linalg.lstsq(value_only.reshape(-1, 1), attended.reshape(-1, 1))
        alphas[index] = solved.solution.item()
    return alphas


@pytest.fixture
def ids():
    return torch.randint(3, 100, (3, 24), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("family", FAMILIES)
def test_alphas_are_least_squares_of_the_branches(family, ids):
    model, _ = load_model(family)
    fitted = fit_alphas(model, ids, 3)
    num_layers = len(decoder_layers(model))
    expected = fit_by_whole_runs(model, ids, range(num_layers - 3, num_layers))
    assert fitted.alphas == pytest.approx(list(reversed(expected.values())), rel=1e-4)
    assert fitted.perplexities == {}
    assert fitted.num_model_layers == num_layers
    assert sorted(fitted.plan.layers) == sorted(expected)


def test_layers_need_not_be_at_the_top(ids):
    model, _ = load_model("tiny-llama")
    alphas = fit_alpha_by_layer(model, LayerStream(model, ids), [4, 1])
    assert alphas == pytest.approx(fit_by_whole_runs(model, ids, [1, 4]), rel=1e-4)


def test_alpha_is_one_where_all_tokens_have_equal_values(ids):
    model, _ = load_model("tiny-llama")
    fitted = fit_alphas(model, torch.full_like(ids, 7), 2)
    assert fitted.alphas == pytest.approx([1.0, 1.0])


def test_a_branch_without_values_has_alpha_zero(ids):
    model, _ = load_model("tiny-llama")
    with torch.no_grad():
        decoder_layers(model)[-1].self_attn.v_proj.weight.zero_()
    assert fit_alphas(model, ids, 1).alphas == [0.0]


def test_the_model_is_unchanged(ids):
    model, _ = load_model("tiny-llama")
    before = model(ids).logits
    fit_alphas(model, ids, 2)
    assert torch.equal(model(ids).logits, before)


def test_bad_input_is_named(ids):
    model = tiny_model("tiny-llama")
    num_layers = len(decoder_layers(model))
    with pytest.raises(ValueError, match="layers"):
        fit_alphas(model, ids, num_layers + 1)
    with pytest.raises(ValueError, match="empty"):
        fit_alphas(model, ids[:0], 1)
    fitted = fit_alphas(model, ids, 1)
    with pytest.raises(ValueError, match="pruned"):
        fit_alphas(apply_plan(model, fitted.plan), ids, 1)
