"""Gradients in bounded memory, and LLM-Pruner's importance: against autograd on the whole model, element by element."""

import copy

import pytest
import torch
import torch.nn.functional as F
from conftest import FAMILIES
from test_surgery import small_model

from harp_lib import apply_plan
from harp_lib.measure.text import Window
from harp_lib.measure.text import make_batches

from harp_lib.methods import llm_pruner

from harp_lib.methods.llm_pruner import checkpointed_layers, group_importance, planner, weight_gradients
from harp_lib.pruning.architecture import decoder_layers

PARTS = ("q_proj", "k_proj", "v_proj", "o_proj")


def attention_weights(model, layers=range(6)):
    found = decoder_layers(model)
    return [getattr(found[layer].self_attn, part).weight for layer in layers for part in PARTS]


def snapshot(model):
    return {name: value.clone() for name, value in model.state_dict().items()}


def assert_untouched(model, before, required):
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert {name: parameter.requires_grad for name, parameter in model.named_parameters()} == required
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not any(parameter._post_accumulate_grad_hooks for parameter in model.parameters())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    assert not any("forward" in vars(module) for module in model.modules())


@pytest.mark.parametrize("family", FAMILIES)
def test_gradients_are_those_of_the_whole_model(tiny, tokens, family):
    model = tiny(family)
    twin = copy.deepcopy(model)
    twin(tokens, labels=tokens).loss.backward()
    expected = [weight.grad for weight in attention_weights(twin)]
    for checkpointing in (True, False):
        found = weight_gradients(model, make_batches(tokens), attention_weights(model), checkpointing)
        for gradient, wanted in zip(found, expected, strict=True):
            assert (gradient - wanted).norm() < 1e-5 * wanted.norm()


@pytest.mark.parametrize("scaling", [{"logit_scale": 0.3}, {"logits_scaling": 4.0}])
def test_families_that_scale_their_logits(tokens, scaling):
    model = small_model("cohere" if "logit_scale" in scaling else "granite", vocab_size=512, **scaling)
    twin = copy.deepcopy(model)
    twin(tokens, labels=tokens).loss.backward()
    found = weight_gradients(model, make_batches(tokens), attention_weights(model, [0, 3]))
    for gradient, weight in zip(found, attention_weights(twin, [0, 3]), strict=True):
        assert (gradient - weight.grad).norm() < 1e-5 * weight.grad.norm()


@pytest.mark.parametrize("family", ["tiny-llama", "tiny-gemma2"])
def test_checkpointing_and_chunks_change_nothing(tiny, tokens, family, monkeypatch):
    model, batches = tiny(family), make_batches(tokens)
    whole = weight_gradients(model, batches, attention_weights(model), gradient_checkpointing=False)
    recomputed = weight_gradients(model, batches, attention_weights(model))
    assert all(torch.equal(a, b) for a, b in zip(whole, recomputed, strict=True))
    monkeypatch.setattr(llm_pruner, "TOKENS_PER_CHUNK", 7)
    monkeypatch.setattr(llm_pruner, "TOKENS_PER_PASS", 50)  # one sequence at a time
    chunked = weight_gradients(model, batches, attention_weights(model))
    for gradient, wanted in zip(chunked, whole, strict=True):
        assert (gradient - wanted).norm() < 1e-5 * wanted.norm()


def test_layers_are_computed_again_and_only_from_the_lowest_weight_up(tiny, tokens):
    model, calls = tiny(), [0] * 6
    for index, layer in enumerate(decoder_layers(model)):
        layer.mlp.register_forward_pre_hook(
            lambda module, args, index=index: calls.__setitem__(index, calls[index] + 1)
        )
    weight_gradients(model, make_batches(tokens), attention_weights(model, [3]), gradient_checkpointing=False)
    assert calls == [1] * 6
    calls[:] = [0] * 6
    weight_gradients(model, make_batches(tokens), attention_weights(model, [3]))
    assert calls == [1, 1, 1, 2, 2, 2]


def test_windows_predict_their_last_tokens(tiny, tokens):
    """Loss of the model's own logits, window by window; two windows of another length, one that repeats context."""
    model = tiny("tiny-gemma2")
    windows = [Window(tokens[0], 47), Window(tokens[1, :20], 5), Window(tokens[2, :20], 5), Window(tokens[3], 9)]
    twin = copy.deepcopy(model)
    losses = []
    for ids, scored in windows:
        logits = twin(ids[None]).logits[0]
        losses += [F.cross_entropy(logits[i - 1], ids[i]) for i in range(len(ids) - scored, len(ids))]
    assert len(losses) == 66
    torch.stack(losses).mean().backward()
    found = weight_gradients(model, make_batches(windows), attention_weights(model))
    for gradient, weight in zip(found, attention_weights(twin), strict=True):
        assert (gradient - weight.grad).norm() < 1e-5 * weight.grad.norm()


def test_texts_of_different_length_weigh_by_their_tokens(tiny, tokens):
    model = tiny("tiny-qwen2")
    texts = [tokens[0], tokens[1, :20], tokens[2, :33]]
    together = weight_gradients(model, make_batches(texts), attention_weights(model))
    single = [weight_gradients(model, make_batches([text]), attention_weights(model)) for text in texts]
    for gradient, *parts in zip(together, *single, strict=True):
        mean = sum(part * (len(text) - 1) for part, text in zip(parts, texts, strict=True)) / (47 + 19 + 32)
        assert (gradient - mean).norm() < 1e-5 * mean.norm()


def test_embedding_and_head_that_are_one_weight(tiny, tokens):
    """What lies on both sides of the cut between head and decoder gets the gradient of both."""
    model = tiny("tiny-gemma2")
    embedding = model.get_input_embeddings().weight
    assert embedding is model.get_output_embeddings().weight
    twin = copy.deepcopy(model)
    twin(tokens, labels=tokens).loss.backward()
    (found,) = weight_gradients(model, make_batches(tokens), [embedding])
    wanted = twin.get_input_embeddings().weight.grad
    assert (found - wanted).norm() < 1e-5 * wanted.norm()


def test_head_alone(tiny, tokens):
    model = tiny()
    twin = copy.deepcopy(model)
    twin(tokens, labels=tokens).loss.backward()
    (found,) = weight_gradients(model, make_batches(tokens), [model.lm_head.weight])
    assert (found - twin.lm_head.weight.grad).norm() < 1e-5 * twin.lm_head.weight.grad.norm()


def test_bfloat16_is_summed_up_in_float32(tiny, tokens, monkeypatch):
    """Three hundred equal passes: a sum in bfloat16 would stand still at 256 times the first."""
    monkeypatch.setattr(llm_pruner, "TOKENS_PER_PASS", 8)
    model, ids = tiny().to(torch.bfloat16), tokens[:1, :8]
    weights = attention_weights(model, [5])
    once, often = (weight_gradients(model, make_batches(ids.expand(n, -1)), weights) for n in (1, 300))
    exact = weight_gradients(model.float(), make_batches(ids), weights)
    for gradient, same, wanted in zip(often, once, exact, strict=True):
        assert gradient.dtype == torch.float32
        assert torch.allclose(gradient, same, rtol=1e-5, atol=0)
        assert (gradient - wanted).norm() < 0.1 * wanted.norm()


def test_model_is_as_before(tiny, tokens):
    model = tiny().train()
    model.get_input_embeddings().requires_grad_(False)
    before, required = snapshot(model), {name: p.requires_grad for name, p in model.named_parameters()}
    assert len(set(required.values())) == 2
    for layer in decoder_layers(model):
        layer.self_attn.attention_dropout = 0.5  # in training mode
    with torch.no_grad():
        found = weight_gradients(model, make_batches(tokens), attention_weights(model))
    assert model.training
    assert_untouched(model, before, required)
    model.eval()
    plain = weight_gradients(model, make_batches(tokens), attention_weights(model))
    assert all(torch.equal(gradient, same) for gradient, same in zip(found, plain, strict=True)), "no dropout"
    model.train()

    handle = decoder_layers(model)[2].mlp.register_forward_hook(lambda *_: (_ for _ in ()).throw(RuntimeError("stop")))
    with pytest.raises(RuntimeError, match="stop"):
        weight_gradients(model, make_batches(tokens), attention_weights(model))
    handle.remove()
    assert model.training
    assert_untouched(model, before, required)

    own = model.lm_head.weight.grad = torch.ones_like(model.lm_head.weight)  # somebody's training step
    (found,) = weight_gradients(model, make_batches(tokens), [model.lm_head.weight])
    assert model.lm_head.weight.grad is own
    assert torch.equal(own, torch.ones_like(own))
    model.lm_head.weight.grad = None
    assert torch.equal(found, weight_gradients(model, make_batches(tokens), [model.lm_head.weight])[0])


def test_a_forward_of_accelerate_is_put_back(tiny):
    model = tiny()
    layer = decoder_layers(model)[1]
    own = layer.forward = lambda *args, **kwargs: type(layer).forward(layer, *args, **kwargs)
    with checkpointed_layers(model):
        assert layer.forward is not own
    assert layer.forward is own
    assert "forward" not in vars(decoder_layers(model)[0])


def test_weights_without_a_gradient_are_named(tiny, tokens):
    model, batches = tiny(), make_batches(tokens)
    with pytest.raises(ValueError, match=r"shape \(64, 64\) is not a parameter of this LlamaForCausalLM"):
        weight_gradients(model, batches, attention_weights(tiny())[:1])
    attention = decoder_layers(model)[4].self_attn
    attention.k_proj.to("meta")
    with pytest.raises(ValueError, match=r"layers\.4\.self_attn\.k_proj\.weight is offloaded"):
        weight_gradients(model, batches, attention_weights(model))
    model = tiny()
    with torch.no_grad():
        decoder_layers(model)[5].mlp.down_proj.weight.fill_(torch.inf)
    with pytest.raises(ValueError, match=r"q_proj\.weight is not finite in torch\.float32"):
        weight_gradients(model, batches, attention_weights(model))


@pytest.mark.parametrize("family", FAMILIES)
def test_importance_group_by_group(tiny, tokens, family):
    """The slow twin: each element's place says which group it belongs to."""
    model = tiny(family)
    twin = copy.deepcopy(model)
    twin(tokens, labels=tokens).loss.backward()
    importance = group_importance(model, tokens, range(6))
    assert list(importance) == list(range(6))
    for layer, scores in importance.items():
        expected = [0.0, 0.0]
        for part in PARTS:
            weight = getattr(decoder_layers(twin)[layer].self_attn, part).weight
            products = (weight * weight.grad).abs()
            for i, row in enumerate(products.tolist()):
                for j, product in enumerate(row):
                    channel = j if part == "o_proj" else i
                    head = channel // 16  # of 4 query heads, two for each of the 2 key/value heads
                    expected[head if part in ("k_proj", "v_proj") else head // 2] += product
        assert scores.dtype == torch.float32
        assert scores.tolist() == pytest.approx(expected, rel=1e-4)


def test_one_pass_gives_every_plan(tiny, tokens, monkeypatch):
    model, passes = tiny(), []
    real = llm_pruner.weight_gradients
    monkeypatch.setattr(llm_pruner, "weight_gradients", lambda *args: passes.append(args[3]) or real(*args))
    before, required = snapshot(model), {name: p.requires_grad for name, p in model.named_parameters()}
    plan = planner(model, tokens, range(1, 6), gradient_checkpointing=False)
    assert passes == [False]
    plans = [plan(len(layers), layers) for layers in ([3, 4, 5], [1, 2])]
    assert passes == [False]
    assert_untouched(model, before, required)

    importance = group_importance(model, tokens, range(1, 6))
    for pruned, layers in zip(plans, ([3, 4, 5], [1, 2]), strict=True):
        assert pruned.method == "llm-pruner"
        assert pruned.num_layers == 6
        lowest = {layer: (importance[layer].argmin().item(),) for layer in layers}
        assert {layer: of.removed_groups for layer, of in pruned.layers.items()} == lowest
    apply_plan(model, plans[0])
    assert decoder_layers(model)[3].self_attn.v_proj.out_features == 16


def test_what_cannot_be_measured_is_refused(tiny, tokens):
    model = tiny()
    with pytest.raises(ValueError, match="the corpus is empty"):
        planner(model, [], [3])
    decoder_layers(model)[3].self_attn.q_proj = torch.nn.Identity()
    with pytest.raises(ValueError, match="not supported: layer 3 has no self_attn with separate q_proj"):
        group_importance(model, tokens, [3])
