"""Importance of groups and layers, against autograd on the whole model and the eager probe."""

import copy

import pytest
import torch
import torch.nn.functional as F
from helpers import FAMILIES, model_of, unchanged

from harp_lib.evaluation.probe import observe_layers
from harp_lib.methods import llm_pruner
from harp_lib.methods.gate_norm import gate_norms
from harp_lib.methods.layer_selection import SCORED, layer_scores, lowest_layers
from harp_lib.methods.llm_pruner import group_importance, planner, weight_gradients
from harp_lib.pruning.architecture import decoder_layers
from harp_lib.text.perplexity import Window

PARTS = ("q_proj", "k_proj", "v_proj", "o_proj")


def assert_gradients_equal(gradients, twin):
    """Weights and gradients by layer are those of a twin after its backward pass."""
    for layer, pairs in gradients.items():
        for part, (weight, gradient) in zip(PARTS, pairs, strict=True):
            expected = getattr(decoder_layers(twin)[layer].self_attn, part).weight
            assert torch.equal(weight, expected)
            assert gradient.dtype == torch.float32
            assert (gradient - expected.grad).norm() < 1e-5 * expected.grad.norm()


@pytest.mark.parametrize("family", ["tiny-gemma2", "granite"])
@pytest.mark.parametrize("tokens_per_pass", [1024, 50])
def test_gradients_are_those_of_the_whole_model(tiny, tokens, family, tokens_per_pass, monkeypatch):
    # With 50 tokens a pass takes a single sequence.
    monkeypatch.setattr(llm_pruner, "TOKENS_PER_PASS", tokens_per_pass)
    model = model_of(tiny, family)
    twin = copy.deepcopy(model)
    twin(tokens, labels=tokens).loss.backward()
    assert_gradients_equal(weight_gradients(model, tokens, [0, 1, 3], PARTS), twin)


def test_windows_predict_their_last_tokens_and_weigh_by_them(tiny, tokens):
    """The twin takes the loss of its own logits, window by window.

    Two windows are shorter than the others, and the last one has much context.
    """
    model = tiny("tiny-gemma2")
    windows = [
        Window(tokens[0], 47),
        Window(tokens[1, :20], 5),
        Window(tokens[2, :20], 5),
        Window(tokens[3], 9),
    ]
    twin = copy.deepcopy(model)
    losses = []
    for ids, scored in windows:
        logits = twin(ids[None]).logits[0]
        for i in range(len(ids) - scored, len(ids)):
            losses.append(F.cross_entropy(logits[i - 1], ids[i]))
    torch.stack(losses).mean().backward()
    assert_gradients_equal(weight_gradients(model, windows, range(6), PARTS), twin)


def test_gradients_of_a_bfloat16_model_are_summed_in_float32(tiny, tokens, monkeypatch):
    """Of nine equal passes, a sum in bfloat16 would lose bits."""
    monkeypatch.setattr(llm_pruner, "TOKENS_PER_PASS", 8)
    model = tiny().to(torch.bfloat16)
    ids = tokens[:1, :8]
    once = weight_gradients(model, ids, [5], PARTS)[5]
    often = weight_gradients(model, ids.expand(9, -1), [5], PARTS)[5]
    for (_, gradient_once), (_, gradient_often) in zip(once, often, strict=True):
        assert torch.allclose(gradient_often, gradient_once, rtol=1e-5, atol=0)


@pytest.mark.parametrize("strategy", SCORED)
def test_the_model_is_unchanged_also_after_an_error(tiny, tokens, strategy):
    model = tiny("tiny-gemma2").train()
    model.get_input_embeddings().requires_grad_(False)
    training_gradient = torch.ones_like(model.model.norm.weight)
    model.model.norm.weight.grad = training_gradient
    for layer in decoder_layers(model):
        layer.self_attn.attention_dropout = 0.5  # in training mode

    def stop(module, args, output):
        if args[0].shape[1] > 3:  # not in the check that comes first, of three tokens
            raise RuntimeError("stop")

    with torch.no_grad(), unchanged(model):
        scores = layer_scores(strategy, model, tokens)
    assert scores == layer_scores(strategy, tiny("tiny-gemma2"), tokens), "no dropout"
    decoder_layers(model)[4].mlp.register_forward_hook(stop)
    with unchanged(model), pytest.raises(RuntimeError, match="stop"):
        layer_scores(strategy, model, tokens)


def test_a_layer_with_a_forward_of_its_own_keeps_it(tiny, tokens):
    """accelerate replaces a layer's forward by one that moves its weights to the device first."""
    model = tiny()
    moved_layer = decoder_layers(model)[2]
    forward_of_class = moved_layer.forward
    calls = []

    def moving_forward(*args, **kwargs):
        calls.append(1)
        return forward_of_class(*args, **kwargs)

    moved_layer.forward = moving_forward
    pairs = weight_gradients(model, tokens, [2], PARTS)[2]
    assert moved_layer.forward is moving_forward
    assert len(calls) == 2, "once forward, and once more in the backward pass"
    for layer in decoder_layers(model):
        assert layer is moved_layer or "forward" not in vars(layer)
    expected_pairs = weight_gradients(tiny(), tokens, [2], PARTS)[2]
    for (_, gradient), (_, expected) in zip(pairs, expected_pairs, strict=True):
        assert torch.equal(gradient, expected)


def importance_element_by_element(attention):
    """Importance of the two groups: each element's place says which group it belongs to.

    There are four query heads of width 16, two for each group.
    """
    scores = [0.0, 0.0]
    for part in PARTS:
        weight = getattr(attention, part).weight
        for i, row in enumerate((weight * weight.grad).abs().tolist()):
            for j, product in enumerate(row):
                channel = j if part == "o_proj" else i
                head = channel // 16
                group = head if part in ("k_proj", "v_proj") else head // 2
                scores[group] += product
    return scores


@pytest.mark.parametrize("family", FAMILIES)
def test_importance_is_summed_over_the_elements_of_a_group(tiny, tokens, family):
    model = tiny(family)
    twin = copy.deepcopy(model)
    twin(tokens, labels=tokens).loss.backward()
    importance = group_importance(model, tokens, range(6))
    for layer, scores in importance.items():
        expected = importance_element_by_element(decoder_layers(twin)[layer].self_attn)
        assert scores.tolist() == pytest.approx(expected, rel=1e-4)
    plan = planner(model, tokens, range(1, 6))
    for layers in ([3, 4, 5], [1, 2]):
        layer_plans = plan(len(layers), layers).layers
        assert list(layer_plans) == layers
        for layer, layer_plan in layer_plans.items():
            assert layer_plan.removed_groups == (importance[layer].argmin().item(),)


def test_gradients_that_are_not_finite_name_the_layer(tiny, tokens):
    model = tiny()
    decoder_layers(model)[5].mlp.down_proj.weight.data.fill_(torch.inf)
    with pytest.raises(ValueError, match=r"layer 0: gradients are not finite in torch\.float32"):
        weight_gradients(model, tokens, range(6), PARTS)


def summed_angles(model, ids):
    """The angle of each layer's attention, summed over tokens, from the probe's views."""
    sums = []

    def visit(view):
        before = view.entering.double().flatten(0, 1)  # (T, d)
        after = (view.entering + view.branch).double().flatten(0, 1)
        total = 0.0
        for x, y in zip(before, after, strict=True):
            total += 1 - (x @ y / (x.norm() * y.norm())).item()
        sums.append(total)

    observe_layers(model, ids, visit)
    return sums


@pytest.mark.parametrize("family", [*FAMILIES, "cohere", "granite"])
def test_similarity_is_the_mean_angle_that_the_probe_shows(tiny, tokens, family):
    model = model_of(tiny, family)
    # Texts weigh by all of their tokens, scored or not.
    texts = [Window(tokens[0], 47), Window(tokens[1, :20], 19), Window(tokens[2, :33], 4)]
    sums = [summed_angles(model, text.ids[None]) for text in texts]
    expected = [sum(values) / (48 + 20 + 33) for values in zip(*sums, strict=True)]
    assert layer_scores("similarity", model, texts) == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("family", FAMILIES)
def test_hessian_is_the_squared_slope_of_the_loss_in_the_scale_of_each_matrix(tiny, tokens, family):
    model = tiny(family)
    scores = layer_scores("hessian", model, tokens)
    scales = torch.ones(6, 3, requires_grad=True)
    scaled_weights = {}
    for layer in range(6):
        attention = decoder_layers(model)[layer].self_attn
        for i, part in enumerate(("q_proj", "k_proj", "v_proj")):
            weight = getattr(attention, part).weight.detach()
            name = f"model.layers.{layer}.self_attn.{part}.weight"
            scaled_weights[name] = scales[layer, i] * weight
    output = torch.func.functional_call(model, scaled_weights, (tokens,), {"labels": tokens})
    output.loss.backward()
    assert scores == pytest.approx(scales.grad.square().sum(1).tolist(), rel=1e-4)


def test_of_equal_scores_the_higher_layer_is_among_the_lowest():
    assert lowest_layers([0.5, 0.1, 0.3, 0.3, 0.3, 0.9], 3) == [1, 3, 4]


def test_an_unknown_score_is_refused(tiny, tokens):
    with pytest.raises(ValueError, match="no scores for 'top'; choose from hessian"):
        layer_scores("top", tiny(), tokens)


def test_gate_norm_is_the_norm_of_the_product(tiny):
    model = tiny()
    attention = decoder_layers(model)[3].self_attn
    queries = attention.q_proj.weight.double().unflatten(0, (-1, attention.head_dim))
    keys = attention.k_proj.weight.double().unflatten(0, (-1, attention.head_dim))
    shared_by = len(queries) // len(keys)
    norms = [(query.T @ keys[head // shared_by]).norm() for head, query in enumerate(queries)]
    assert gate_norms(model)[3] == pytest.approx(torch.stack(norms).mean().item())
