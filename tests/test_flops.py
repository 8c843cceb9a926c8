"""Floating-point operations against masks of the models and PyTorch's own counter."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoConfig, GPT2Config

from harp_lib.accounting import (
    decode_flops,
    layer_flops,
    overtaking_length,
    paper_configs,
    prefill_flops,
    sliding_window,
)
from harp_lib.models.registry import SHAPE
from harp_lib.pruning.plan import LayerPlan, PruningPlan
from harp_lib.pruning.surgery import apply_plan


@pytest.mark.parametrize("length", [1, 32, 48])  # the window of tiny-gemma2 is 32
@pytest.mark.parametrize("name", ["tiny-llama", "tiny-gemma2"])
def test_causal_pairs_are_those_that_the_models_mask_leaves(tiny, tokens, name, length):
    model = tiny(name)
    model.set_attn_implementation("eager")
    masks = []
    for layer in model.model.layers:
        layer.self_attn.register_forward_pre_hook(
            lambda module, args, kwargs: masks.append(kwargs["attention_mask"]), with_kwargs=True
        )
    with torch.no_grad():
        model(tokens[:1, :length])
    for layer, mask in enumerate(masks):
        visible = int((mask == 0).sum())
        assert (
            layer_flops(model.config, length, layer, causal=True).attention == 2 * 2 * 64 * visible
        )
    assert len(masks) == 6


def test_attention_overtakes_the_ffn_at_one_and_a_half_intermediate_sizes():
    for name in ("LLaMA3.1-8B", "Mistral-7B-v0.3", "Qwen2-7B"):
        config = paper_configs()[name]
        # 4 N² d operations of attention against 6 N d d_ff of the FFN
        assert overtaking_length(config) == 1.5 * config.intermediate_size
        flops = layer_flops(config, config.intermediate_size)
        assert flops.attention * 3 == flops.ffn * 2, (
            "level with two of the FFN's three matrices, as the paper says"
        )
    windowed = AutoConfig.for_model(
        "gemma2", **SHAPE | {"num_hidden_layers": 5, "sliding_window": 32}
    )
    n = 1
    # Three layers have a window, two have none.
    while 2 * 64 * n * (2 * n + 3 * min(n, 32)) < n * 5 * 3 * 64 * 128:
        n += 1
    assert overtaking_length(windowed) == n


@pytest.mark.parametrize(
    ("count", "message"),
    [
        (lambda: layer_flops(GPT2Config(n_layer=1), 16), "GPT2LMHeadModel is not supported"),
        (
            lambda: sliding_window(AutoConfig.for_model("qwen3_next"), 0),
            "layer 0 .* is 'linear_attention'",
        ),
        (
            lambda: prefill_flops(AutoConfig.for_model("starcoder2", **SHAPE), None, 16),
            "only a gated FFN",
        ),
    ],
)
def test_errors_name_what_is_wrong(count, message):
    with pytest.raises(ValueError, match=message):
        count()


PLANS = {
    "dense": PruningPlan(6, {}),
    "value-only": PruningPlan.value_only(6, {5: 0.4, 3: 0.0, 0: 1.0}),
    "emptied": PruningPlan(
        6, {5: LayerPlan(removed_groups=(0, 1)), 4: LayerPlan(0.5), 2: LayerPlan(0.0)}
    ),
    "slices": PruningPlan(
        6,
        {
            0: LayerPlan(removed_groups=(0,)),
            2: LayerPlan(removed_groups=(0, 1), removed_channels=(3, 90)),
            4: LayerPlan(alpha=0.5, removed_channels=tuple(range(100))),
        },
    ),
}


def counted(model, **inputs):
    """What PyTorch counts in decoder layers and output head, without rotary embedding."""
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model(**inputs, logits_to_keep=1)
    name = type(model).__name__
    counts = counter.get_flop_counts()
    modules = [f"{name}.model.layers.{layer}" for layer in range(6)]
    modules.append(f"{name}.lm_head")
    return sum(sum(counts[module].values()) for module in modules if module in counts)


@pytest.mark.parametrize("plan", PLANS.values(), ids=list(PLANS))
@pytest.mark.parametrize(
    ("name", "fold"), [("tiny-llama", True), ("tiny-qwen2", False), ("tiny-gemma2", True)]
)
def test_flops_of_a_pruned_model_are_what_pytorch_counts(tiny, name, plan, fold):
    model = tiny(name)
    config = model.config
    apply_plan(model, plan, fold_output=fold).set_attn_implementation("eager")
    ids = torch.arange(20)[None]  # shorter than the window of tiny-gemma2
    for tail_only in (False, True):
        model.tail_only_prefill = tail_only
        expected = prefill_flops(config, plan, 20, fold_output=fold, tail_only=tail_only)
        assert counted(model, input_ids=ids, use_cache=False) == expected
    cache = model(ids).past_key_values
    expected = decode_flops(config, plan, 21, fold_output=fold)
    assert counted(model, input_ids=ids[:, :1], past_key_values=cache) == expected
    if plan is PLANS["dense"]:
        assert prefill_flops(config, None, 20) == prefill_flops(config, plan, 20)


def test_causal_prefill_is_the_sum_of_decoding_token_by_token_and_a_full_window_bounds_it(tiny):
    config = tiny("tiny-gemma2").config
    plan = PLANS["slices"]
    head = 2 * 64 * config.vocab_size
    # 50 tokens are more than the window of 32.
    steps = sum(decode_flops(config, plan, tokens) - head for tokens in range(1, 51))
    assert prefill_flops(config, plan, 50, causal=True) == steps + head
    # One more key in three layers without window: scores and values of 4 query heads of width 16.
    assert decode_flops(config, None, 101) - decode_flops(config, None, 100) == 3 * 2 * 2 * 64
