"""Sliced weights against their obvious twin: the whole model with the inputs of W_O and W_down
overwritten.
"""

from unittest.mock import Mock

import pytest
import torch
from helpers import FAMILIES
from test_surgery import SHAPES, logits, make, with_twins

from harp_lib import PruningPlan, apply_plan
from harp_lib.pruning.architecture import decoder_layers
from harp_lib.pruning.plan import LayerPlan
from harp_lib.pruning.surgery import temporarily_pruned

REFUSED = {"olmo2": "norm over all heads"}  # its norm of queries and keys spans the heads
UNGATED = {"granitemoe", "mixtral", "starcoder2"}


def numbers(count):
    return tuple(torch.randn(count, generator=torch.Generator().manual_seed(count)).tolist())


def mixed_plan(model, means=True, channels=True):
    """Every kind of loss in one model of four layers or more."""
    attention, ffn = (
        decoder_layers(model)[0].self_attn,
        getattr(decoder_layers(model)[0], "mlp", None),
    )
    groups = attention.v_proj.out_features // attention.head_dim
    width = attention.o_proj.in_features // groups
    some, every, gone = tuple(range(1, groups)) or (0,), tuple(range(groups)), {}
    if channels:
        gone = {
            "removed_channels": (0, 3, ffn.down_proj.in_features - 1),
            "channel_means": numbers(3) if means else None,
        }
    return PruningPlan(
        len(decoder_layers(model)),
        {
            0: LayerPlan(
                removed_groups=some, group_means=numbers(width * len(some)) if means else None
            ),
            1: LayerPlan(
                removed_groups=every,
                group_means=numbers(width * len(every)) if means else None,
                **gone,
            ),
            2: LayerPlan(0.4, **gone),
            3: LayerPlan(removed_groups=(0,), **gone),
        },
        "mixed",
    )


def overwrite(linear, removed, width, means):
    """Replace blocks of a linear map's input by constants, when it runs."""
    columns = [block * width + i for block in removed for i in range(width)]

    def replace(module, args):
        hidden = args[0].clone()
        for place, column in enumerate(columns):
            hidden[..., column] = 0.0 if means is None else means[place]
        return (hidden,)

    linear.register_forward_pre_hook(replace)


def masked_twin(model, plan):
    for index, lost in plan.layers.items():
        layer = decoder_layers(model)[index]
        if lost.removed_channels:
            overwrite(layer.mlp.down_proj, lost.removed_channels, 1, lost.channel_means)
        if lost.removed_groups:
            attention = layer.self_attn
            width = attention.o_proj.in_features // (
                attention.v_proj.out_features // attention.head_dim
            )
            overwrite(attention.o_proj, lost.removed_groups, width, lost.group_means)
    return with_twins(model, plan.alphas)


@pytest.mark.parametrize("name", [*FAMILIES, *(name for name in SHAPES if name not in REFUSED)])
@pytest.mark.parametrize("means", [True, False], ids=["compensated", "plain"])
def test_sliced_equals_masked(tiny, name, means):
    model = make(tiny, name)
    plan = mixed_plan(model, means, channels=name not in UNGATED)
    twin, dense = masked_twin(make(tiny, name), plan), make(tiny, name)
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


@pytest.mark.parametrize("name", ["olmo2", *sorted(UNGATED)])
def test_other_attention_and_ffns_are_refused(tiny, name):
    model, channels = make(tiny, name), PruningPlan(4, {0: LayerPlan(removed_channels=(0,))})
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    message = (
        "in layer 0, attention without some of its heads"
        if name == "olmo2"
        else "layer 0 has no gated FFN"
    )
    with pytest.raises(ValueError, match=message):
        apply_plan(model, channels if name in UNGATED else mixed_plan(model))
    assert all(torch.equal(weight, before[name]) for name, weight in model.state_dict().items())


@pytest.mark.parametrize(
    ("lost", "message"),
    [
        (
            {"removed_groups": (2,)},
            r"layer 1: key/value group 2 does not exist; there are 2 \(0 … 1\)",
        ),
        (
            {"removed_groups": (0,), "group_means": (0.5,)},
            "layer 1: 1 group_means for 32 removed columns",
        ),
        ({"removed_channels": (10**6,)}, "layer 1: FFN channel 1000000 does not exist"),
        ({"removed_channels": "all"}, "layer 1: all [0-9]+ FFN channels would go"),
    ],
)
def test_plans_for_another_model_are_refused(tiny, tokens, lost, message):
    model = tiny()
    if lost.get("removed_channels") == "all":
        lost = {"removed_channels": tuple(range(model.config.intermediate_size))}
    before = logits(model, tokens)
    plan = PruningPlan(6, {1: LayerPlan(**lost)})
    with pytest.raises(ValueError, match=message):
        apply_plan(model, plan)
    with pytest.raises(ValueError, match=message), temporarily_pruned(model, plan):
        pass
    assert torch.equal(logits(model, tokens), before)


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_bfloat16_and_both_kernels(tokens, implementation):
    from harp_lib.models.registry import tiny_model

    reference = tiny_model("tiny-llama")
    model = tiny_model("tiny-llama").bfloat16()
    model.set_attn_implementation(implementation)
    dense_error = (logits(model, tokens).float() - logits(reference, tokens)).norm()
    plan = PruningPlan(6, mixed_plan(model).layers | {4: LayerPlan(0.0), 5: LayerPlan(0.8)})
    apply_plan(reference, plan)
    apply_plan(model, plan)
    error = (logits(model, tokens).float() - logits(reference, tokens)).norm()
    assert error < 2 * dense_error, "pruning may not cost more precision than the dtype does"
    assert {weight.dtype for weight in model.parameters()} == {torch.bfloat16}


def test_a_model_that_failed_half_way_is_not_pruned_again(tiny, monkeypatch):
    model, plan = tiny(), mixed_plan(tiny())
    with monkeypatch.context() as patch:
        patch.setattr(
            "harp_lib.pruning.surgery.pruned_attention",
            Mock(side_effect=torch.OutOfMemoryError("no more")),
        )
        with pytest.raises(torch.OutOfMemoryError):
            apply_plan(model, plan)
    with pytest.raises(ValueError, match="pruned already; load the dense model again"):
        apply_plan(model, plan)


def test_frozen_weights_stay_frozen_and_hold_on_to_nothing(tiny):
    model = tiny().requires_grad_(False)
    apply_plan(model, mixed_plan(model))
    for name, weight in model.named_parameters():
        assert weight.untyped_storage().nbytes() == weight.nbytes, name
        assert weight.is_contiguous(), name
        assert not weight.requires_grad or name.endswith("self_attn.bias"), name
