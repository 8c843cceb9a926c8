"""Sliced weights against a whole model in which inputs of W_O and W_down are overwritten."""

import pytest
import torch
from helpers import FAMILIES, SHAPES, in_float64, logits, make, small_model, with_twins

from harp_lib import PruningPlan, apply_plan
from harp_lib.models.registry import tiny_model
from harp_lib.pruning.architecture import decoder_layers
from harp_lib.pruning.plan import LayerPlan
from harp_lib.pruning.surgery import temporarily_pruned

REFUSED = {"olmo2"}  # its norm of queries and keys spans the heads
UNGATED = {"granitemoe", "mixtral", "starcoder2"}


def numbers(count):
    """``count`` random numbers, the same every time."""
    return tuple(torch.randn(count, generator=torch.Generator().manual_seed(count)).tolist())


def mixed_plan(model, means=True, channels=True):
    """Every kind of loss in one model of four layers or more."""
    layers = decoder_layers(model)
    attention = layers[0].self_attn
    num_groups = attention.v_proj.out_features // attention.head_dim
    width = attention.o_proj.in_features // num_groups
    all_groups = {"removed_groups": tuple(range(num_groups))}
    all_but_first = {"removed_groups": tuple(range(1, num_groups)) or (0,)}
    some_channels = {}
    if channels:
        some_channels["removed_channels"] = (0, 3, layers[0].mlp.down_proj.in_features - 1)
    if means:
        for loss in (all_groups, all_but_first):
            loss["group_means"] = numbers(width * len(loss["removed_groups"]))
        if channels:
            some_channels["channel_means"] = numbers(3)
    layer_plans = {
        0: LayerPlan(**all_but_first),
        1: LayerPlan(**all_groups, **some_channels),
        2: LayerPlan(0.4, **some_channels),
        3: LayerPlan(removed_groups=(0,), **some_channels),
    }
    return PruningPlan(len(layers), layer_plans, "mixed")


def overwrite(linear, removed, width, means):
    """Replace blocks of a linear map's input by their means, or zero, whenever it runs."""
    columns = [block * width + i for block in removed for i in range(width)]
    if means is None:
        means = [0.0] * len(columns)

    def replace(module, args):
        hidden = args[0].clone()
        for column, mean in zip(columns, means, strict=True):
            hidden[..., column] = mean
        return (hidden,)

    linear.register_forward_pre_hook(replace)


def masked_twin(model, plan):
    """``model`` in which everything that ``plan`` removes is masked instead."""
    for index, layer_plan in plan.layers.items():
        layer = decoder_layers(model)[index]
        if layer_plan.removed_channels:
            channels = layer_plan.removed_channels
            overwrite(layer.mlp.down_proj, channels, 1, layer_plan.channel_means)
        if layer_plan.removed_groups:
            attention = layer.self_attn
            num_groups = attention.v_proj.out_features // attention.head_dim
            width = attention.o_proj.in_features // num_groups
            overwrite(attention.o_proj, layer_plan.removed_groups, width, layer_plan.group_means)
    return with_twins(model, plan.alphas)


@pytest.mark.parametrize(
    ("name", "means"),
    [
        ("tiny-llama", False),
        ("tiny-gemma2", False),
        *((name, True) for name in (*FAMILIES, *SHAPES) if name not in REFUSED),
    ],
)
def test_sliced_equals_masked(tiny, name, means):
    model = make(tiny, name)
    plan = mixed_plan(model, means, channels=name not in UNGATED)
    twin = masked_twin(make(tiny, name), plan)
    dense = make(tiny, name)
    ids = torch.randint(3, 120, (2, 24), generator=torch.Generator().manual_seed(1))
    before = logits(model, ids)
    with temporarily_pruned(model, plan):
        temporary = logits(model, ids)
    with pytest.raises(RuntimeError, match="stop"), temporarily_pruned(model, plan):
        raise RuntimeError("stop")
    assert torch.equal(logits(model, ids), before)
    assert model.state_dict().keys() == dense.state_dict().keys()
    apply_plan(model, plan)
    torch.testing.assert_close(logits(model, ids), logits(twin, ids), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(temporary, logits(model, ids), atol=1e-5, rtol=1e-5)
    assert (logits(model, ids) - before).abs().max() > 1e-2


def linear_attention_model():
    """A hybrid: three layers of linear attention, which have no ``self_attn``, and one with it.

    Linear attention amplifies rounding, hence float64.
    """
    model = small_model(
        "qwen3_next",
        linear_num_key_heads=2,
        linear_num_value_heads=4,
        linear_key_head_dim=8,
        linear_value_head_dim=8,
        mlp_only_layers=[0, 1, 2, 3],
    )
    return in_float64(model)


def test_channels_are_removed_from_layers_without_self_attn():
    model = linear_attention_model()
    assert not hasattr(decoder_layers(model)[0], "self_attn")
    plan = PruningPlan(
        4,
        {
            0: LayerPlan(removed_channels=(0, 3, 5), channel_means=numbers(3)),
            3: LayerPlan(removed_channels=(1,)),
        },
    )
    twin = masked_twin(linear_attention_model(), plan)
    ids = torch.randint(3, 120, (2, 24), generator=torch.Generator().manual_seed(1))
    expected = logits(twin, ids)
    before = logits(model, ids)
    with temporarily_pruned(model, plan):
        torch.testing.assert_close(logits(model, ids), expected, atol=1e-5, rtol=1e-5)
    assert torch.equal(logits(model, ids), before)
    apply_plan(model, plan)
    torch.testing.assert_close(logits(model, ids), expected, atol=1e-5, rtol=1e-5)
    assert decoder_layers(model)[0].mlp.down_proj.in_features == 61
    texts = [m.generate(ids, max_new_tokens=4, do_sample=False) for m in (model, twin)]
    assert torch.equal(*texts)


@pytest.mark.parametrize("name", ["olmo2", *sorted(UNGATED)])
def test_other_attention_and_ffns_are_refused(tiny, name):
    model = make(tiny, name)
    if name in UNGATED:
        plan = PruningPlan(4, {0: LayerPlan(removed_channels=(0,))})
        message = "layer 0 has no gated FFN"
    else:
        plan = mixed_plan(model)
        message = "in layer 0, attention without some of its heads"
    state_before = {key: weight.clone() for key, weight in model.state_dict().items()}
    with pytest.raises(ValueError, match=message):
        apply_plan(model, plan)
    for key, weight in model.state_dict().items():
        assert torch.equal(weight, state_before[key]), key


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (
            {"removed_groups": (2,)},
            r"layer 1: key/value group 2 does not exist; there are 2 \(0 … 1\)",
        ),
        (
            {"removed_groups": (0,), "group_means": (0.5,)},
            "layer 1: 1 group_means for 32 removed columns",
        ),
        (
            {"removed_channels": (0, 3), "channel_means": (0.5,) * 4},
            "layer 1: 4 channel_means for 2 removed columns",
        ),
        ({"removed_channels": (10**6,)}, "layer 1: FFN channel 1000000 does not exist"),
        ({"removed_channels": "all"}, "layer 1: all [0-9]+ FFN channels would go"),
    ],
)
def test_plans_for_another_model_are_refused(tiny, tokens, loss, message):
    model = tiny()
    if loss.get("removed_channels") == "all":
        loss = {"removed_channels": tuple(range(model.config.intermediate_size))}
    before = logits(model, tokens)
    plan = PruningPlan(6, {1: LayerPlan(**loss)})
    with pytest.raises(ValueError, match=message):
        apply_plan(model, plan)
    with pytest.raises(ValueError, match=message), temporarily_pruned(model, plan):
        pass
    assert torch.equal(logits(model, tokens), before)


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_pruning_costs_no_more_precision_than_bfloat16(tokens, implementation):
    reference = tiny_model("tiny-llama")
    model = tiny_model("tiny-llama").bfloat16()
    model.set_attn_implementation(implementation)
    dense_error = (logits(model, tokens).float() - logits(reference, tokens)).norm()
    layer_plans = {**mixed_plan(model).layers, 4: LayerPlan(0.0), 5: LayerPlan(0.8)}
    plan = PruningPlan(6, layer_plans)
    apply_plan(reference, plan)
    apply_plan(model, plan)
    error = (logits(model, tokens).float() - logits(reference, tokens)).norm()
    assert error < 2 * dense_error, "pruning may not cost more precision than the dtype does"
    assert {weight.dtype for weight in model.parameters()} == {torch.bfloat16}


def test_frozen_weights_stay_frozen_and_hold_on_to_nothing(tiny):
    model = tiny().requires_grad_(False)
    apply_plan(model, mixed_plan(model))
    for name, weight in model.named_parameters():
        assert weight.untyped_storage().nbytes() == weight.nbytes, name
        assert weight.is_contiguous(), name
        assert not weight.requires_grad, name
