"""Models that are frozen, compiled, in training, made or used where no gradients are taken."""

import contextlib

import pytest
import torch
from helpers import logits, small_model

from harp_lib import (
    PruningPlan,
    apply_plan,
    make_plan,
    perplexity,
    refit_values,
    save_pruned,
    search_alphas,
)
from harp_lib.methods.layer_selection import layer_scores
from harp_lib.names import METHODS
from harp_lib.pruning.plan import LayerPlan
from harp_lib.pruning.surgery import temporarily_pruned

PLAN = PruningPlan(
    6,
    {
        3: LayerPlan(removed_groups=(0,), removed_channels=(4, 9)),
        4: LayerPlan(alpha=0.0),
        5: LayerPlan(alpha=0.5),
    },
)


def search(model, ids):
    found = search_alphas(model, ids, 2, grid=[0.0, 0.5, 1.0], progress=False)
    return found.alphas


def scores(model, ids):
    return layer_scores("hessian", model, ids)


def refitted(model, ids):
    fit = refit_values(model, ids, 2)
    return logits(apply_plan(model, fit.plan, weights=fit.weights), ids)


# Each with the model that a function ``tiny`` makes


@pytest.mark.parametrize("frozen", ["", "layers.0."])  # all of it, and a layer
def test_frozen_weights_are_scored_like_others(frozen, tiny, tokens):
    model = tiny()
    for name, parameter in model.named_parameters():
        parameter.requires_grad = frozen not in name
    needs_gradient = [parameter.requires_grad for parameter in model.parameters()]
    plan = make_plan("llm-pruner", model, tokens, kv_groups=6)
    assert plan == make_plan("llm-pruner", tiny(), tokens, kv_groups=6)
    assert scores(model, tokens) == scores(tiny(), tokens)
    assert [parameter.requires_grad for parameter in model.parameters()] == needs_gradient
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize(
    ("method", "mode"),
    [("llm-pruner", torch.no_grad), *((method, torch.inference_mode) for method in METHODS)],
)
def test_methods_where_no_gradients_are_taken(method, mode, tiny, tokens):
    options = {"alphas": [0.5, 0.3, 0.0]} if "harp" in method else {}
    model = tiny()
    expected = make_plan(method, model, tokens, kv_groups=6, **options)
    with mode():
        assert make_plan(method, model, tokens.clone(), kv_groups=6, **options) == expected


@pytest.mark.parametrize("where", ["made", "used", "both"])
def test_inference_mode(where, tiny, tokens):
    expected = logits(apply_plan(tiny(), PLAN), tokens)
    expected_refit = refitted(tiny(), tokens)
    expected_alphas = search(tiny(), tokens)
    inference = torch.inference_mode
    with inference() if where != "used" else contextlib.nullcontext():
        models = [tiny() for _ in range(3)]
    with inference() if where != "made" else contextlib.nullcontext():
        assert search(models[0], tokens) == expected_alphas
        apply_plan(models[1], PLAN)
        torch.testing.assert_close(refitted(models[2], tokens), expected_refit)
    torch.testing.assert_close(logits(models[1], tokens), expected)


def test_a_model_that_was_pruned_in_inference_mode_can_be_trained(tiny, tokens):
    model = tiny()
    with torch.inference_mode():
        apply_plan(model, PLAN)
        refit = refit_values(tiny(), tokens, 1)
    refitted_model = apply_plan(tiny(), refit.plan, weights=refit.weights)
    for each in (model, refitted_model):
        each(tokens, labels=tokens).loss.backward()
        for layer in (3, 5):
            assert each.model.layers[layer].self_attn.o_proj.weight.grad is not None


def test_gradients_of_a_model_that_has_none_are_refused(tiny, tokens):
    with torch.inference_mode():
        model = tiny()
    with pytest.raises(ValueError, match=r"made under torch\.inference_mode.*copy\.deepcopy"):
        make_plan("llm-pruner", model, tokens, kv_groups=6)


# Compiled


def compiled(module):
    return torch.compile(module, backend="eager")


def whole_in_place(model):
    model.compile(backend="eager")


def layers_in_place(model):
    for layer in model.model.layers:
        layer.compile(backend="eager")


def layer_forwards(model):
    for layer in model.model.layers:
        layer.forward = compiled(layer.forward)


def attention_in_place(model):
    for layer in model.model.layers:
        layer.self_attn.compile(backend="eager")
        layer.self_attn.o_proj.compile(backend="eager")


@pytest.fixture
def small():
    """A function that makes a model of two layers, which is quick to compile."""
    torch.compiler.reset()
    yield lambda: small_model("llama", num_hidden_layers=2)
    torch.compiler.reset()


@pytest.mark.parametrize(
    "compile_it",
    [whole_in_place, layers_in_place, layer_forwards, attention_in_place],
)
def test_code_that_was_compiled_before_pruning(compile_it, small):
    ids = torch.randint(3, 120, (2, 12), generator=torch.Generator().manual_seed(0))
    plan = PruningPlan(2, {0: LayerPlan(removed_groups=(1,)), 1: LayerPlan(alpha=0.5)})
    expected = logits(apply_plan(small(), plan), ids)
    model = small()
    compile_it(model)
    dense = logits(model, ids)  # it is compiled now
    assert perplexity(model, ids) == pytest.approx(perplexity(small(), ids), rel=1e-5)
    assert search(model, ids) == search(small(), ids)
    for method in ("flap", "llm-pruner"):
        method_plan = make_plan(method, model, ids, kv_groups=2)
        assert method_plan == make_plan(method, small(), ids, kv_groups=2)
    with temporarily_pruned(model, plan):
        torch.testing.assert_close(logits(model, ids), expected)
    torch.testing.assert_close(logits(model, ids), dense)
    apply_plan(model, plan)
    torch.testing.assert_close(logits(model, ids), expected)


def in_wrappers(model):
    model.model.layers[0] = compiled(model.model.layers[0])
    return model


def attention_in_a_wrapper(model):
    model.model.layers[1].self_attn = compiled(model.model.layers[1].self_attn)
    return model


@pytest.mark.parametrize(
    ("wrap", "name"),
    [
        (compiled, "the model"),
        (in_wrappers, "model.layers.0"),
        (attention_in_a_wrapper, "model.layers.1.self_attn"),
    ],
)
def test_wrappers_of_compiled_modules_are_refused_by_name(wrap, name, small, tmp_path):
    ids = torch.randint(3, 120, (2, 12), generator=torch.Generator().manual_seed(0))
    model = wrap(small())
    assert perplexity(model, ids) == pytest.approx(perplexity(small(), ids), rel=1e-5)
    plan = PruningPlan.value_only(2, [0.5])
    for act in (
        lambda: apply_plan(model, plan),
        lambda: search(model, ids),
        lambda: refit_values(model, ids, 1),
        *(lambda method=method: make_plan(method, model, ids, kv_groups=2) for method in METHODS),
    ):
        with pytest.raises(ValueError, match=f"^{name} is compiled .*_orig_mod"):
            act()
    pruned = wrap(apply_plan(small(), plan))
    with pytest.raises(ValueError, match=r"torch\.compile|OptimizedModule"):
        save_pruned(pruned, None, tmp_path / "saved")


def test_a_wrapper_of_several_devices_is_refused_by_name(tiny, tokens):
    model = torch.nn.DataParallel(tiny())
    for act in (
        lambda: perplexity(model, tokens),
        lambda: search(model, tokens),
        lambda: apply_plan(model, PLAN),
        lambda: make_plan("flap", model, tokens, kv_groups=6),
    ):
        with pytest.raises(ValueError, match=r"DataParallel is not a model .*model\.module"):
            act()


# Modes


def all_but_a_part(model):
    model.train()
    model.model.layers[2].eval()


def checkpointed(model):
    model.gradient_checkpointing_enable()
    model.train()


@pytest.mark.parametrize("set_modes", [all_but_a_part, checkpointed])
def test_every_module_is_in_its_own_mode_afterwards(set_modes, tiny, tokens, tmp_path):
    model = tiny()
    expected = perplexity(model, tokens)
    set_modes(model)
    modes = {name: module.training for name, module in model.named_modules()}

    def check(name):
        now = {name: module.training for name, module in model.named_modules()}
        changed = [module for module in now.keys() & modes.keys() if now[module] != modes[module]]
        assert not changed, name

    assert perplexity(model, tokens) == expected
    check("perplexity")
    assert search(model, tokens) == search(tiny(), tokens)
    check("search")
    for method in METHODS:
        make_plan(
            method,
            model,
            tokens,
            kv_groups=6,
            **({"alphas": [1.0] * 3} if "harp" in method else {}),
        )
        check(method)
    apply_plan(model, PLAN)
    check("apply_plan")
    save_pruned(model, None, tmp_path / "saved")
    check("save_pruned")
