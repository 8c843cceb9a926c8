"""What a decoder is made of, and whether a plan can be carried out on it."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack

import torch
from torch import nn
from transformers import PreTrainedModel

from .layers import (
    ATTENTION_PARTS,
    FFN_PARTS,
    blocks,
    group_width,
    masked,
    num_groups,
    pruned_attention,
    pruned_ffn,
)
from .plan import LayerPlan, PruningPlan

# Norms of the decoder layers whose way through attention is known. Any other layer may hold a norm
# after attention, which would undo alpha, or a second mixer beside it.
KNOWN_NORMS = {
    "input_layernorm post_attention_layernorm",  # Llama and most others
    "input_layernorm",  # Cohere: attention and FFN in parallel
    "input_layernorm pre_feedforward_layernorm",
    # Gemma-2
    "input_layernorm post_attention_layernorm post_feedforward_layernorm pre_feedforward_layernorm",
    "input_layernorm post_attention_layernorm post_mlp_layernorm post_self_attn_layernorm",  # GLM-4
    "post_attention_layernorm post_feedforward_layernorm",  # OLMo-2
    "attention_layernorm feedforward_layernorm",  # Apertus
}
OTHER_PARTS = {"self_attn", "mlp", "block_sparse_moe", "dropout"}
TOLERANCE = (
    0.05  # relative; above what bfloat16 costs, below what another kind of attention differs by
)


def decoder_layers(model: PreTrainedModel) -> nn.ModuleList:
    """The decoder layers of ``model``, from the bottom."""
    layers = getattr(model.get_decoder(), "layers", None)
    if not isinstance(layers, nn.ModuleList):
        raise ValueError(
            f"{type(model).__name__} is not supported: its decoder has no list of layers"
        )
    return layers


def output_norm(layer: nn.Module) -> nn.Module | None:
    """The norm between attention and residual, if ``layer`` has one (Gemma-2 and -3, OLMo-2,
    GLM-4).
    """
    if hasattr(layer, "post_self_attn_layernorm"):
        return layer.post_self_attn_layernorm
    # In Llama, `post_attention_layernorm` stands before the FFN; where there is one after the FFN,
    # it is a real one.
    return layer.post_attention_layernorm if hasattr(layer, "post_feedforward_layernorm") else None


def branch_exit(layer: nn.Module) -> nn.Module:
    """The module whose output is added to the residual stream as the attention branch."""
    return output_norm(layer) or layer.self_attn


def has_known_parts(layer: nn.Module) -> bool:
    """Whether nothing but ``self_attn`` can move information between tokens in ``layer``, or stand
    after it unseen.
    """
    return (
        " ".join(sorted(part for part, _ in layer.named_children() if part not in OTHER_PARTS))
        in KNOWN_NORMS
    )


def all_linear(module: nn.Module | None, parts: Iterable[str]) -> bool:
    """Whether ``module`` has all of these linear maps."""
    return all(isinstance(getattr(module, part, None), nn.Linear) for part in parts)


def check_plan(model: PreTrainedModel, plan: PruningPlan, fold_output: bool = False) -> None:
    """ValueError, with the reason, if ``plan`` cannot be carried out on ``model``, which is left as
    it is.
    """
    name, layers = type(model).__name__, decoder_layers(model)
    if getattr(model.config, "pruning_plan", None) is not None:
        raise ValueError("this model is pruned already; load the dense model again")
    check_fits(model, plan)
    if plan.alphas and model.config.get_text_config() is not model.config:
        raise ValueError(
            f"{name} is not supported: it has other inputs than text; load its text-only class"
        )
    if plan.alphas and getattr(model.config, "clip_qkv", None) is not None:
        raise ValueError(
            f"{name} is not supported: it clips values (clip_qkv), so that W_V W_O is not all of it"
        )
    for index, lost in plan.layers.items():
        layer, touched = layers[index], []
        if lost.alpha is not None:
            if not has_known_parts(layer):
                parts = ", ".join(sorted(part for part, _ in layer.named_children()))
                raise ValueError(
                    f"{name} is not supported: layer {index} has parts of no known kind ({parts})"
                )
            output = layer.self_attn.o_proj
            touched += [
                *(output_norm(layer) or output).parameters(),
                *[output.weight] * fold_output,
            ]
        touched += layer.self_attn.parameters() if lost.removed_groups else []
        touched += layer.mlp.parameters() if lost.removed_channels else []
        if any(weight.is_meta or not weight.is_floating_point() for weight in touched):
            why = f"layer {index}: weights that are offloaded or quantized can be neither scaled nor sliced"
            raise ValueError(
                f"{why}; load the model in float32, bfloat16 or float16 without offloading"
            )
    _try_out(model, plan)


def check_fits(model: PreTrainedModel, plan: PruningPlan) -> None:
    """ValueError if ``plan`` names layers, groups or channels that ``model`` has not, or modules of
    another kind.
    """
    layers, name = decoder_layers(model), type(model).__name__
    if plan.num_layers != len(layers):
        raise ValueError(f"the plan is for {plan.num_layers} layers, {name} has {len(layers)}")
    for index, lost in plan.layers.items():
        attention, ffn = (
            getattr(layers[index], "self_attn", None),
            getattr(layers[index], "mlp", None),
        )
        needed = (
            ATTENTION_PARTS
            if lost.removed_groups
            else ()
            if lost.alpha is None
            else ("v_proj", "o_proj")
        )
        if not all_linear(attention, needed):
            lacks = f"no self_attn with separate {', '.join(needed)} (fused projections, or no attention)"
            raise ValueError(f"{name} is not supported: layer {index} has {lacks}")
        if lost.removed_groups:
            _check_indices(
                f"layer {index}: key/value group", lost.removed_groups, num_groups(attention)
            )
            wanted = len(lost.removed_groups) * group_width(attention)
            if lost.group_means is not None and len(lost.group_means) != wanted:
                raise ValueError(
                    f"layer {index}: {len(lost.group_means)} group_means for {wanted} removed columns"
                )
        if lost.removed_channels:
            if not all_linear(ffn, FFN_PARTS):
                raise ValueError(
                    f"{name} is not supported: layer {index} has no gated FFN of {', '.join(FFN_PARTS)}"
                )
            channels = ffn.down_proj.in_features
            _check_indices(f"layer {index}: FFN channel", lost.removed_channels, channels)
            if len(lost.removed_channels) == channels:
                raise ValueError(
                    f"layer {index}: all {channels} FFN channels would go; leave at least one"
                )


def _check_indices(what: str, indices: Sequence[int], count: int) -> None:
    if indices[-1] >= count:
        raise ValueError(
            f"{what} {indices[-1]} does not exist; there are {count} (0 … {count - 1})"
        )


@torch.no_grad()
def _try_out(model: PreTrainedModel, plan: PruningPlan) -> None:
    """ValueError if pruned modules do not do as stock ones with three tokens: names show no gate,
    sink or odd norm.
    """
    layers, runs = decoder_layers(model), {}

    def keep(module: nn.Module, args: tuple, kwargs: dict) -> None:
        runs[module] = lambda other: other.forward(*args, **kwargs)

    with ExitStack() as hooks:
        hooks.callback(model.train, model.training)
        for module in (module for index in plan.layers for module in layers[index].children()):
            hooks.enter_context(module.register_forward_pre_hook(keep, with_kwargs=True))
        # Token 0 is often padding, with a zero embedding.
        ids = model.get_input_embeddings().num_embeddings // 2 - torch.arange(3)
        model.eval()(ids[None].to(model.device), use_cache=False)
        for index, lost in plan.layers.items():
            reason, attention, ffn = (
                None,
                layers[index].self_attn,
                getattr(layers[index], "mlp", None),
            )
            if lost.alpha is not None:
                alone = pruned_attention(attention, index, LayerPlan(alpha=1.0))
                if not _agree(alone, attention, runs[attention], tokens=1):
                    reason = "attention on a single token is not W_V W_O (a gate, a sink or a norm in between)"
            if lost.removed_groups:
                columns = blocks(lost.removed_groups, group_width(attention))
                twin = masked(attention, "o_proj", columns, lost.group_means)
                if not _agree(pruned_attention(attention, index, lost), twin, runs[attention]):
                    reason = "attention without some of its heads is not the same as with these heads masked"
            if lost.removed_channels:
                twin = masked(ffn, "down_proj", lost.removed_channels, lost.channel_means)
                if not _agree(pruned_ffn(ffn, lost), twin, runs[ffn]):
                    reason = "an FFN without some of its channels is not the same as with these channels masked"
            if reason:
                raise ValueError(
                    f"{type(model).__name__} is not supported: in layer {index}, {reason}"
                )


def _agree(pruned: nn.Module, stock: nn.Module, run: Callable, tokens: int | None = None) -> bool:
    """Whether both give the same for the first ``tokens``, by default all; a pruned module may not
    fit together.
    """
    expected = run(stock)
    try:
        found = run(pruned)
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, TypeError, AttributeError, ValueError):
        return False
    found, expected = (
        (each[0] if isinstance(each, tuple) else each)[:, :tokens].float()
        for each in (found, expected)
    )
    close = (found - expected).norm() <= TOLERANCE * expected.norm().clamp_min(1e-12)
    return (
        bool(close) or not expected.isfinite().all()
    )  # weights that say nothing about the architecture
