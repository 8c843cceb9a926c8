"""Counts of parameters, groups and cache bytes against the modules of pruned models."""

import copy
import dataclasses

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from harp_lib.accounting import (
    ffn_channels_for,
    head_ratio,
    kv_bytes,
    linear_parameters,
    paper_configs,
    parameters,
    removed_fraction,
    stock_model,
    top_groups_plan,
)
from harp_lib.evaluation.timing import cache_bytes
from harp_lib.models.registry import FAMILIES, SHAPE
from harp_lib.pruning.layers import num_groups
from harp_lib.pruning.plan import LayerPlan, PruningPlan
from harp_lib.pruning.remote import pruned_class
from harp_lib.pruning.surgery import apply_plan
from harp_lib.report.frames import paper

PARAMETERS = {  # as the hub counts them in the published safetensors files
    "LLaMA3.1-8B": 8_030_261_248,
    "Mistral-7B-v0.3": 7_248_023_552,
    "Qwen2-7B": 7_615_616_512,
    "Gemma2-9B": 9_241_705_984,
}
CONFIGS = {
    "heads of their own": {"model_type": "llama", "num_key_value_heads": 4},
    "one group": {"model_type": "llama", "num_key_value_heads": 1},
    "biases everywhere": {
        "model_type": "llama",
        "hidden_size": 128,
        "attention_bias": True,
        "mlp_bias": True,
    },
    "narrow heads": {"model_type": "llama", "head_dim": 8},
    "norms of queries and keys": {"model_type": "qwen3"},
}
for family, (model_type, particulars) in FAMILIES.items():
    CONFIGS[family] = {"model_type": model_type, **particulars}
PLANS = {
    "nothing": {},
    "value-only": {5: LayerPlan(0.8), 4: LayerPlan(0.0), 0: LayerPlan(1.0)},
    "groups": {
        0: LayerPlan(removed_groups=(0,)),
        3: LayerPlan(removed_groups=(1,)),
        5: LayerPlan(removed_groups=(0, 1)),
    },
    "channels": {
        2: LayerPlan(removed_channels=(0, 5, 127)),
        5: LayerPlan(removed_channels=tuple(range(127))),
    },
    "all kinds": {
        0: LayerPlan(0.0, removed_channels=(1,)),
        2: LayerPlan(removed_groups=(0,), removed_channels=(7, 9)),
        3: LayerPlan(0.3, removed_channels=(2, 4)),
        4: LayerPlan(removed_groups=(0, 1), removed_channels=(0,)),
    },
}


def small(name):
    """A tiny config and a random model of it on the CPU."""
    settings = {**SHAPE, **CONFIGS[name]}
    config = AutoConfig.for_model(
        **settings, vocab_size=512, pad_token_id=0, bos_token_id=1, eos_token_id=2
    )
    return config, AutoModelForCausalLM.from_config(config, dtype=torch.float32)


def for_groups(plan_name, num_groups):
    """A plan of ``PLANS`` for a model of ``num_groups`` key/value groups instead of two.

    All groups stay all groups, and a single one stays a single one.
    """
    layers = {}
    for layer, layer_plan in PLANS[plan_name].items():
        removed = layer_plan.removed_groups
        if len(removed) == 2:
            removed = tuple(range(num_groups))
        elif len(removed) == 1:
            removed = (min(removed[0], num_groups - 1),)
        layers[layer] = dataclasses.replace(layer_plan, removed_groups=removed)
    return PruningPlan(6, layers)


def linear_by_name(model):
    """Slow twin: parameters of everything in a decoder layer whose name is not that of a norm."""
    count = 0
    for name, parameter in model.model.layers.named_parameters():
        module_name = name.rsplit(".", 2)[-2]
        if "norm" not in module_name:
            count += parameter.numel()
    return count


def all_parameters(module):
    return sum(parameter.numel() for parameter in module.parameters())


def test_configs_are_those_of_the_papers_models():
    configs = paper_configs()
    assert list(configs) == list(PARAMETERS)
    assert set(configs) <= set(paper("alpha_search")["model"])
    for name, config in configs.items():
        assert parameters(config) == PARAMETERS[name]


@pytest.mark.parametrize("name", CONFIGS)
def test_counts_are_those_of_the_modules_after_surgery(name):
    config, dense = small(name)
    assert linear_parameters(config) == linear_by_name(dense)
    ids = torch.arange(3, 23).view(2, 10)
    for plan_name in PLANS:
        plan = for_groups(plan_name, config.num_key_value_heads)
        model = apply_plan(copy.deepcopy(dense), plan)
        assert linear_parameters(config, plan) == linear_by_name(model)
        removed = linear_by_name(dense) - linear_by_name(model)
        assert removed_fraction(config, plan) == removed / linear_by_name(dense)
        groups = 0
        for layer in model.model.layers:
            if hasattr(layer.self_attn, "k_proj"):
                groups += num_groups(layer.self_attn)
        kept_share = groups / (6 * config.num_key_value_heads)
        assert head_ratio(config, plan) == pytest.approx(1 - kept_share)
        assert parameters(config, plan) == all_parameters(model)
        folded = apply_plan(copy.deepcopy(dense), plan, fold_output=True)
        assert parameters(config, plan, fold_output=True) == all_parameters(folded)
        with torch.no_grad():
            cache = model(ids).past_key_values
        bytes_held = cache_bytes(cache)
        assert 2 * kv_bytes(config, plan, 10) == bytes_held  # of two texts
        assert 2 * 2 * kv_bytes(config, plan, 10, torch.bfloat16) == bytes_held
        of_pruned_config = removed_fraction(model.config, plan)
        assert of_pruned_config == removed_fraction(config, plan)


def test_biases_of_a_compensation_are_parameters_but_no_linear_ones():
    config, dense = small("tiny-llama")
    plain = PruningPlan(
        6,
        {
            1: LayerPlan(removed_groups=(1,)),
            2: LayerPlan(removed_groups=(0, 1)),
            3: LayerPlan(removed_channels=(0, 9)),
        },
    )
    compensated = PruningPlan(
        6,
        {
            1: LayerPlan(removed_groups=(1,), group_means=(0.5,) * 32),
            2: LayerPlan(removed_groups=(0, 1), group_means=(0.5,) * 64),
            3: LayerPlan(removed_channels=(0, 9), channel_means=(1.0, -1.0)),
        },
    )
    assert linear_parameters(config, compensated) == linear_parameters(config, plain)
    assert parameters(config, compensated) == parameters(config, plain) + 3 * 64
    assert parameters(config, compensated) == all_parameters(apply_plan(dense, compensated))


def test_experts_and_their_router_count_and_norms_do_not():
    config = AutoConfig.for_model("mixtral", **SHAPE, vocab_size=512, num_local_experts=4)
    attention = 2 * 64 * 64 + 2 * 64 * 32
    assert linear_parameters(config) == 6 * (attention + 4 * 3 * 64 * 128 + 4 * 64)
    config = AutoConfig.for_model(
        "cohere",  # its norms hold a matrix
        **SHAPE,
        vocab_size=512,
        use_qk_norm=True,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    assert linear_parameters(config) == 6 * (attention + 3 * 64 * 128)


def test_groups_are_removed_from_the_top():
    config, _ = small("tiny-llama")
    assert top_groups_plan(config, 3).layers == {
        4: LayerPlan(removed_groups=(0,)),
        5: LayerPlan(removed_groups=(0, 1)),
    }
    assert head_ratio(config, top_groups_plan(config, 12)) == 1


def test_ffn_channels_within_reach():
    config, _ = small("tiny-llama")
    plan = PruningPlan(6, {5: LayerPlan(0.0, removed_channels=(3, 8))})
    all_but_one = tuple(range(127))
    layers = {layer: LayerPlan(removed_channels=all_but_one) for layer in range(5)}
    layers[5] = LayerPlan(0.0, removed_channels=all_but_one)
    smallest = removed_fraction(config, plan)
    largest = removed_fraction(config, PruningPlan(6, layers))
    assert ffn_channels_for(config, plan, smallest) == 0
    assert ffn_channels_for(config, plan, largest - 1e-9) == 6 * 127 - 2
    message = f"removes {smallest:.6f}, with all .* it is {largest:.6f}"
    for target in (smallest - 1e-6, largest + 1e-6):
        with pytest.raises(ValueError, match=message):
            ffn_channels_for(config, plan, target)
    mixtral = AutoConfig.for_model("mixtral", **SHAPE, num_local_experts=2)
    with pytest.raises(ValueError, match="layer 0 has no gated FFN of gate_proj"):
        ffn_channels_for(mixtral, PruningPlan(6, {}), 0.1)


def test_the_config_of_a_pruned_model_counts_as_the_dense_ones():
    config, dense = small("tiny-gemma2")
    plan = PruningPlan.value_only(6, [0.5, 0.0])
    model = apply_plan(dense, plan, fold_output=True)
    reloaded = pruned_class(type(config)).from_dict(model.config.to_dict())
    for pruned_config in (model.config, reloaded):
        assert pruned_config.pruning_plan == plan.to_dict()
        assert stock_model(pruned_config) is stock_model(config)
        assert parameters(pruned_config) == parameters(config)
        assert pruned_config.pruning_plan == plan.to_dict(), "counting leaves the config alone"


def test_errors_name_what_is_wrong():
    config, _ = small("tiny-llama")
    other_group = PruningPlan(6, {3: LayerPlan(removed_groups=(2,))})
    for count in (removed_fraction, head_ratio, parameters, kv_bytes):
        with pytest.raises(ValueError, match="layer 3: key/value group 2 does not exist"):
            count(config, other_group)
    phi3 = AutoConfig.for_model("phi3", **SHAPE, vocab_size=512, pad_token_id=0)
    message = "Phi3ForCausalLM is not supported: layer 0 has no self_attn with separate q_proj"
    with pytest.raises(ValueError, match=message):
        linear_parameters(phi3)


def test_a_config_may_ask_for_a_kernel_that_this_machine_lacks():
    config = AutoConfig.for_model("llama", **SHAPE, vocab_size=500)
    config._attn_implementation = "flash_attention_2"
    assert linear_parameters(config) == linear_parameters(small("tiny-llama")[0])
    assert config._attn_implementation == "flash_attention_2"
