"""Importance of groups and layers: gradients against autograd on the whole model, angles against
the eager probe.
"""

import copy

import pytest
import torch
import torch.nn.functional as F
from helpers import FAMILIES
from test_surgery import small_model

from harp_lib import apply_plan
from harp_lib.evaluation.probe import observe_layers
from harp_lib.methods import llm_pruner
from harp_lib.methods.layer_selection import SCORED, layer_scores, lowest_layers
from harp_lib.methods.llm_pruner import group_importance, planner, weight_gradients
from harp_lib.pruning.architecture import decoder_layers
from harp_lib.pruning.plan import PruningPlan
from harp_lib.text.perplexity import Window

PARTS = ("q_proj", "k_proj", "v_proj", "o_proj")


def small(family, tiny):
    if family in FAMILIES:
        return tiny(family)
    # Attention and FFN in parallel, scaled logits; a multiplier of what is added.
    particulars = {
        "cohere": {"logit_scale": 0.3},
        "granite": {"logits_scaling": 4.0, "residual_multiplier": 0.3},
    }
    return small_model(family, vocab_size=512, **particulars[family])


def assert_gradients(found, twin):
    for layer, pairs in found.items():
        for part, (weight, gradient) in zip(PARTS, pairs, strict=True):
            wanted = getattr(decoder_layers(twin)[layer].self_attn, part).weight
            assert torch.equal(weight, wanted)
            assert gradient.dtype == torch.float32
            assert (gradient - wanted.grad).norm() < 1e-5 * wanted.grad.norm()


@pytest.mark.parametrize("family", [*FAMILIES, "cohere", "granite"])
@pytest.mark.parametrize("tokens_per_pass", [1024, 50])
def test_gradients_are_those_of_the_whole_model(tiny, tokens, family, tokens_per_pass, monkeypatch):
    monkeypatch.setattr(
        llm_pruner, "TOKENS_PER_PASS", tokens_per_pass
    )  # 50: one sequence at a time
    model = small(family, tiny)
    twin = copy.deepcopy(model)
    twin(tokens, labels=tokens).loss.backward()
    assert_gradients(weight_gradients(model, tokens, [0, 1, 3], PARTS), twin)


def test_windows_predict_their_last_tokens_and_weigh_by_them(tiny, tokens):
    """Loss of the model's own logits, window by window; two windows of another length, one that
    repeats context.
    """
    model = tiny("tiny-gemma2")
    windows = [
        Window(tokens[0], 47),
        Window(tokens[1, :20], 5),
        Window(tokens[2, :20], 5),
        Window(tokens[3], 9),
    ]
    twin, losses = copy.deepcopy(model), []
    for ids, scored in windows:
        logits = twin(ids[None]).logits[0]
        losses += [
            F.cross_entropy(logits[i - 1], ids[i]) for i in range(len(ids) - scored, len(ids))
        ]
    torch.stack(losses).mean().backward()
    assert_gradients(weight_gradients(model, windows, range(6), PARTS), twin)


def test_bfloat16_is_summed_up_in_float32(tiny, tokens, monkeypatch):
    """Three hundred equal passes: a sum in bfloat16 would stand still at 256 times the first."""
    monkeypatch.setattr(llm_pruner, "TOKENS_PER_PASS", 8)
    model, ids = tiny().to(torch.bfloat16), tokens[:1, :8]
    once, often = (weight_gradients(model, ids.expand(n, -1), [5], PARTS)[5] for n in (1, 300))
    for (_, same), (_, gradient) in zip(once, often, strict=True):
        assert torch.allclose(gradient, same, rtol=1e-5, atol=0)


def test_the_model_is_as_before_also_after_an_error(tiny, tokens):
    model = tiny("tiny-gemma2").train()
    model.get_input_embeddings().requires_grad_(False)
    own = model.model.norm.weight.grad = torch.ones_like(
        model.model.norm.weight
    )  # somebody's training step
    before = {name: value.clone() for name, value in model.state_dict().items()}
    required = {name: parameter.requires_grad for name, parameter in model.named_parameters()}
    for layer in decoder_layers(model):
        layer.self_attn.attention_dropout = 0.5  # in training mode

    def assert_untouched():
        assert model.training
        assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
        assert required == {
            name: parameter.requires_grad for name, parameter in model.named_parameters()
        }
        assert [
            parameter.grad for parameter in model.parameters() if parameter.grad is not None
        ] == [own]
        assert not any("forward" in vars(module) for module in model.modules())
        assert not any(
            module._forward_hooks or module._forward_pre_hooks for module in model.modules()
        )

    def stop(module, args, output):
        if args[0].shape[1] > 3:  # not in the check that comes first, of three tokens
            raise RuntimeError("stop")

    for strategy in SCORED:
        with torch.no_grad():
            scores = layer_scores(strategy, model, tokens)
        assert_untouched()
        assert scores == layer_scores(strategy, tiny("tiny-gemma2"), tokens), "no dropout"
        handle = decoder_layers(model)[4].mlp.register_forward_hook(stop)
        with pytest.raises(RuntimeError, match="stop"):
            layer_scores(strategy, model, tokens)
        handle.remove()
        assert_untouched()


def test_a_layer_with_a_forward_of_its_own_keeps_it(tiny, tokens):
    """accelerate replaces a layer's forward by one that moves its weights to the device first."""
    model = tiny()
    own, calls = decoder_layers(model)[2], []
    plain = own.forward

    def moving(*args, **kwargs):
        calls.append(1)
        return plain(*args, **kwargs)

    own.forward = moving
    found = weight_gradients(model, tokens, [2], PARTS)
    assert own.forward is moving
    assert len(calls) == 2, "once forward, and once more in the backward pass"
    assert not any("forward" in vars(layer) for layer in decoder_layers(model) if layer is not own)
    for (_, gradient), (_, other) in zip(
        found[2], weight_gradients(tiny(), tokens, [2], PARTS)[2], strict=True
    ):
        assert torch.equal(gradient, other)


@pytest.mark.parametrize("family", FAMILIES)
def test_importance_group_by_group(tiny, tokens, family):
    """The slow twin: each element's place says which group it belongs to."""
    model = tiny(family)
    twin = copy.deepcopy(model)
    twin(tokens, labels=tokens).loss.backward()
    importance = group_importance(model, tokens, range(6))
    for layer, scores in importance.items():
        expected = [0.0, 0.0]
        for part in PARTS:
            weight = getattr(decoder_layers(twin)[layer].self_attn, part).weight
            for i, row in enumerate((weight * weight.grad).abs().tolist()):
                for j, product in enumerate(row):
                    head = (
                        j if part == "o_proj" else i
                    ) // 16  # of 4 query heads, two for each of the 2 groups
                    expected[head if part in ("k_proj", "v_proj") else head // 2] += product
        assert scores.tolist() == pytest.approx(expected, rel=1e-4)
    plan = planner(model, tokens, range(1, 6))
    for layers in ([3, 4, 5], [1, 2]):
        lowest = {layer: (importance[layer].argmin().item(),) for layer in layers}
        assert {
            layer: lost.removed_groups for layer, lost in plan(len(layers), layers).layers.items()
        } == lowest


def test_gradients_that_are_not_finite_name_the_layer(tiny, tokens):
    model = tiny()
    decoder_layers(model)[5].mlp.down_proj.weight.data.fill_(torch.inf)
    with pytest.raises(ValueError, match=r"layer 0: gradients are not finite in torch\.float32"):
        weight_gradients(model, tokens, range(6), PARTS)


def observed(model, ids):
    """The angle of each layer's attention, summed over tokens, from the probe's views."""
    sums = []

    def visit(view):
        pairs = zip(
            *(x.double().flatten(0, 1) for x in (view.entering, view.entering + view.branch)),
            strict=True,
        )
        sums.append(sum(1 - (x @ y / (x.norm() * y.norm())).item() for x, y in pairs))

    observe_layers(model, ids, visit)
    return sums


@pytest.mark.parametrize("family", [*FAMILIES, "cohere", "granite"])
def test_angles_are_those_of_the_probe(tiny, tokens, family):
    model = small(family, tiny)
    texts = [
        Window(tokens[0], 47),
        Window(tokens[1, :20], 19),
        Window(tokens[2, :33], 4),
    ]  # weigh by their tokens
    sums = [observed(model, text.ids[None]) for text in texts]
    wanted = [sum(values) / (48 + 20 + 33) for values in zip(*sums, strict=True)]
    assert layer_scores("similarity", model, texts) == pytest.approx(wanted, rel=1e-4)


@pytest.mark.parametrize("family", FAMILIES)
def test_hessian_is_the_squared_slope_of_the_loss_in_the_scale_of_each_matrix(tiny, tokens, family):
    model = tiny(family)
    scores, scales = layer_scores("hessian", model, tokens), torch.ones(6, 3, requires_grad=True)
    weights = {
        f"model.layers.{layer}.self_attn.{part}.weight": scales[layer, i]
        * getattr(decoder_layers(model)[layer].self_attn, part).weight.detach()
        for layer in range(6)
        for i, part in enumerate(PARTS[:3])
    }
    torch.func.functional_call(model, weights, (tokens,), {"labels": tokens}).loss.backward()
    assert scores == pytest.approx(scales.grad.square().sum(1).tolist(), rel=1e-4)


def test_the_lowest_layers_of_what_can_be_scored(tiny, tokens):
    assert lowest_layers([0.5, 0.1, 0.3, 0.3, 0.3, 0.9], 3) == [1, 3, 4], (
        "of equal scores the higher layer goes"
    )
    model = tiny("tiny-mistral")
    for strategy in SCORED:
        assert all(
            isinstance(score, float)
            for score in layer_scores(strategy, model.to(torch.bfloat16), tokens)
        )
    with pytest.raises(ValueError, match="no scores for 'top'; choose from hessian"):
        layer_scores("top", model, tokens)
    with pytest.raises(ValueError, match="pruned already"):
        layer_scores("similarity", apply_plan(model, PruningPlan.value_only(6, [0.5])), tokens)
