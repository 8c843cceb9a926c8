"""What notebook 08 times: variants of one model that share its weights, and models of random weights."""

import gc
import weakref

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from harp_lib import PruningPlan
from harp_lib.accounting import paper_configs, parameters
from harp_lib.experiments import efficiency_variants
from harp_lib.experiments.efficiency_variants import (
    cut_config,
    load_dense,
    make_variants,
    published_plan,
    random_model,
    thinned_plan,
)
from harp_lib.accounting import prefill_flops
from harp_lib.measure.timing import decode, prefill
from harp_lib.pruning.plan import LayerPlan
from harp_lib.pruning.surgery import temporarily_pruned
from harp_lib.published import published_alphas

PLAN = PruningPlan.value_only(6, [0.8, 0.0])
SMALL = {
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "intermediate_size": 96,
    "vocab_size": 500,
}


def test_variants_share_weights_and_leave_the_model(tiny, tokens):
    model = tiny()
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    variants = make_variants(model, PLAN)
    assert variants["dense"].model is model
    own = {
        name: {key for key, weight in variant.model.named_parameters() if not shared(weight, model)}
        for name, variant in variants.items()
    }
    assert own["harp"] == set()
    assert own["harp-folded"] == {"model.layers.5.self_attn.o_proj.weight"}
    assert all("self_attn" in name for name in own["thinned"])
    assert [type(layer.self_attn).__name__ for layer in model.model.layers] == ["LlamaAttention"] * 6
    assert all(torch.equal(weight, before[name]) for name, weight in model.state_dict().items())


def shared(weight, model):
    return weight.data_ptr() in {other.data_ptr() for other in model.parameters()}


@pytest.mark.parametrize("family", ["tiny-llama", "tiny-qwen2", "tiny-gemma2"])
def test_variants_compute_what_their_plans_say(tiny, tokens, family):
    """As the model does while it is pruned; alpha is left out, but for layers that it empties."""
    model = tiny(family)
    variants = make_variants(model, PLAN)
    ids = tokens[:1]
    without_alpha = PruningPlan.value_only(6, [1.0, 0.0])
    for name, plan in {
        "harp": without_alpha,
        "harp-folded": without_alpha,
        "thinned": thinned_plan(model.config, PLAN),
    }.items():
        with torch.no_grad(), temporarily_pruned(model, plan):
            expected = model(ids, use_cache=False).logits[:, -1]
        pruned = variants[name].model
        found = decode(pruned, prefill(pruned, ids[:, :-1]), ids[:, -1:])
        torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    ("family", "groups", "alphas", "names"),
    [
        ("llama", 2, [0.8, 0.0], ["dense", "harp", "harp-folded", "thinned"]),
        ("olmo2", 2, [0.8, 0.0], ["dense", "harp", "harp-folded"]),  # a norm over all heads
        ("llama", 4, [0.8, 0.0], ["dense", "harp", "thinned"]),  # a value head for each query head
        ("llama", 2, [0.0], ["dense", "harp", "thinned"]),  # no layer keeps its values
    ],
)
def test_what_a_model_cannot_have_is_left_out(family, groups, alphas, names):
    sizes = {**SMALL, "num_key_value_heads": groups, "num_hidden_layers": 6}
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **sizes))
    variants = make_variants(model, PruningPlan.value_only(6, alphas))
    assert list(variants) == names
    for variant in variants.values():
        prefill(variant.model, torch.arange(12)[None])


def test_the_timed_model_is_on_one_device_and_alone(monkeypatch):
    """Between devices, copies would be timed; a model that was timed before would take its memory."""
    loaded, before = [], torch.nn.Module()
    before.itself = before  # goes only with the garbage collector
    before = weakref.ref(before)

    def load(name, dtype="float32", device_map=None):
        loaded.append((name, dtype, device_map, before() is None))
        return "model", "tokenizer"

    monkeypatch.setattr(efficiency_variants, "load_model", load)
    monkeypatch.setattr(efficiency_variants, "searched_plan", lambda name, profile: PLAN)
    gc.disable()
    try:
        found = load_dense("owner/name", {"efficiency": {}, "dtype": "bfloat16", "device_map": "auto"}, 0)
    finally:
        gc.enable()
    assert found == ("model", PLAN)
    assert loaded == [("owner/name", "bfloat16", None, True)]


@pytest.mark.parametrize(("model", "layers", "pruned"), [("LLaMA3.1-8B", 32, 8), ("Qwen2-7B", 28, 4)])
def test_thinning_is_even_and_does_the_same_work_on_pairs(model, layers, pruned):
    config = paper_configs()[model]
    plan = PruningPlan.value_only(layers, dict.fromkeys(range(layers - pruned, layers), 0.5))
    thinned = thinned_plan(config, plan)
    per_layer = [len(thinned.layers.get(layer, LayerPlan()).removed_groups) for layer in range(layers)]
    groups = config.num_key_value_heads
    assert sum(per_layer) == pruned * groups
    for layer in range(layers):
        assert abs(sum(per_layer[: layer + 1]) - (layer + 1) * pruned * groups / layers) < 1
    if model == "LLaMA3.1-8B":
        assert per_layer == [2] * 32

    def quadratic(plan):  # what is left of a second difference is the work on pairs
        once, twice, thrice = (prefill_flops(config, plan, times * 64) for times in (1, 2, 3))
        return thrice - 2 * twice + once

    assert quadratic(thinned) == quadratic(plan) < quadratic(None)
    assert prefill_flops(config, thinned, 64) < prefill_flops(config, plan, 64), "its values and outputs go too"


def test_the_thinned_plan_of_smollm2():
    heads = {"num_attention_heads": 9, "num_key_value_heads": 3, "hidden_size": 144}
    config = AutoConfig.for_model("llama", **SMALL | heads | {"num_hidden_layers": 30})
    plan = thinned_plan(config, PruningPlan.value_only(30, [0.3] * 6))
    assert len(plan.layers) == 18
    assert {lost.removed_groups for lost in plan.layers.values()} == {(0,)}
    assert max(b - a for a, b in zip(list(plan.layers), list(plan.layers)[1:], strict=False)) == 2


def test_published_plans():
    whole = published_plan("LLaMA3.1-8B", 32)
    assert whole.alphas == published_alphas()["LLaMA3.1-8B"]
    assert published_plan("LLaMA3.1-8B", 16).alphas == {15: 0.8, 14: 0.2, 13: 0.1, 12: 0.1}
    assert published_plan("LLaMA3.1-8B", 2).alphas == {1: 0.8}, "at least one"


@pytest.mark.parametrize("family", ["llama", "qwen2", "gemma2"])
def test_random_models_are_whole(family):
    config = AutoConfig.for_model(family, **SMALL | {"num_hidden_layers": 6})
    if family == "gemma2":
        config.sliding_window = 8
    config = cut_config(config, 2)
    model, again, other = (random_model(config, "bfloat16", seed) for seed in (0, 0, 1))
    stock = AutoModelForCausalLM.from_config(config)
    assert len(model.model.layers) == 2
    assert not model.training
    assert {weight.dtype for weight in model.parameters()} == {torch.bfloat16}
    matrices = torch.cat([weight.flatten().float() for weight in model.parameters() if weight.dim() > 1])
    assert matrices.std().item() == pytest.approx(0.02, rel=0.02)
    for name, weight in model.named_parameters():
        if weight.dim() == 1:
            assert torch.equal(weight, dict(stock.named_parameters())[name].to(weight.dtype)), name
    for name, buffer in stock.named_buffers():
        assert torch.equal(dict(model.named_buffers())[name], buffer), name
    tied = stock.get_input_embeddings().weight is stock.get_output_embeddings().weight
    assert (model.get_input_embeddings().weight is model.get_output_embeddings().weight) == tied
    first, second, third = (next(m.parameters()) for m in (model, again, other))
    assert torch.equal(first, second)
    assert not torch.equal(first, third)
    cache = prefill(model, torch.arange(12)[None])
    assert (len(cache.layers), cache.get_seq_length()) == (2, 12)
    assert parameters(config) == model.num_parameters()
