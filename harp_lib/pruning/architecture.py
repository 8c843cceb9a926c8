"""What a decoder is made of, and whether a plan can be carried out on it."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import nn
from transformers import PreTrainedModel

from .plan import LayerPlan, PruningPlan
from .slicing import (
    ATTENTION_PARTS,
    FFN_PARTS,
    blocks,
    group_width,
    num_groups,
    pruned_attention,
    pruned_ffn,
    value_only,
)

# Norms of the decoder layers whose way through attention is known. Any other layer may hold a norm after attention,
# which would undo alpha, or a second mixer beside it.
KNOWN_NORMS = {
    frozenset(norms.split())
    for norms in (
        "input_layernorm post_attention_layernorm",  # Llama and most others
        "input_layernorm",  # Cohere: attention and FFN in parallel
        "input_layernorm pre_feedforward_layernorm",
        "input_layernorm post_attention_layernorm pre_feedforward_layernorm post_feedforward_layernorm",  # Gemma-2
        "input_layernorm post_attention_layernorm post_self_attn_layernorm post_mlp_layernorm",  # GLM-4
        "post_attention_layernorm post_feedforward_layernorm",  # OLMo-2
        "attention_layernorm feedforward_layernorm",  # Apertus
    )
}
TOLERANCE = 0.05  # relative; above what bfloat16 costs, below what another kind of attention differs by
OTHER_PARTS = {"self_attn", "mlp", "block_sparse_moe", "dropout"}


def decoder_layers(model: PreTrainedModel) -> nn.ModuleList:
    """The decoder layers of ``model``, from the bottom."""
    layers = getattr(model.get_decoder(), "layers", None)
    if not isinstance(layers, nn.ModuleList):
        raise ValueError(f"{type(model).__name__} is not supported: its decoder has no list of layers")
    return layers


def output_norm(layer: nn.Module) -> nn.Module | None:
    """The norm between attention and residual, if ``layer`` has one (Gemma-2 and -3, OLMo-2, GLM-4)."""
    if hasattr(layer, "post_self_attn_layernorm"):
        return layer.post_self_attn_layernorm
    # In Llama, `post_attention_layernorm` stands before the FFN; where there is one after the FFN, it is a real one.
    return layer.post_attention_layernorm if hasattr(layer, "post_feedforward_layernorm") else None


def branch_exit(layer: nn.Module) -> nn.Module:
    """The module whose output is added to the residual stream as the attention branch."""
    return output_norm(layer) or layer.self_attn


def exit_weights(layer: nn.Module) -> list[nn.Parameter]:
    """The parameters that scale the attention branch of ``layer`` linearly."""
    norm = output_norm(layer)
    return list(norm.parameters()) if norm else list(layer.self_attn.o_proj.parameters())


@torch.no_grad()
def gain_offset(norm: nn.Module) -> float:
    """What an RMS norm adds to its weight before multiplying: 1 in Gemma's, 0 in Llama's."""
    gain = norm(torch.ones_like(norm.weight))
    return float(round((gain - norm.weight).double().mean().item()))


def check_dense(model: PreTrainedModel) -> None:
    """ValueError if a plan was applied to ``model`` before."""
    if getattr(model.config, "pruning_plan", None) is not None:
        raise ValueError("this model is pruned already; load the dense model again")


def check_fits(model: PreTrainedModel, plan: PruningPlan) -> None:
    """ValueError if ``plan`` names layers, groups or channels that ``model`` has not, or has other modules."""
    layers, name = decoder_layers(model), type(model).__name__
    if plan.num_layers != len(layers):
        raise ValueError(f"the plan is for {plan.num_layers} layers, {name} has {len(layers)}")
    for index, removed in plan.layers.items():
        attention, ffn = getattr(layers[index], "self_attn", None), getattr(layers[index], "mlp", None)
        if removed.removed_groups:
            if not all_linear(attention, ATTENTION_PARTS):
                raise ValueError(f"{name} is not supported: layer {index} has no {', '.join(ATTENTION_PARTS)}")
            _check_indices(f"layer {index}: key/value group", removed.removed_groups, num_groups(attention))
            wanted = len(removed.removed_groups) * group_width(attention)
            if removed.group_means is not None and len(removed.group_means) != wanted:
                raise ValueError(f"layer {index}: {len(removed.group_means)} group_means for {wanted} removed columns")
        if removed.removed_channels:
            if not all_linear(ffn, FFN_PARTS):
                raise ValueError(f"{name} is not supported: layer {index} has no gated FFN of {', '.join(FFN_PARTS)}")
            channels = ffn.down_proj.in_features
            _check_indices(f"layer {index}: FFN channel", removed.removed_channels, channels)
            if len(removed.removed_channels) == channels:
                raise ValueError(f"layer {index}: all {channels} FFN channels would go; leave at least one")


def all_linear(module: nn.Module | None, parts: Iterable[str]) -> bool:
    """Whether ``module`` has all of these linear maps."""
    return all(isinstance(getattr(module, part, None), nn.Linear) for part in parts)


def _check_indices(what: str, indices: Sequence[int], count: int) -> None:
    if indices[-1] >= count:
        raise ValueError(f"{what} {indices[-1]} does not exist; there are {count} (0 … {count - 1})")


def check_weights(model: PreTrainedModel, plan: PruningPlan) -> None:
    """ValueError if what ``plan`` scales or slices is offloaded or quantized."""
    for index, removed in plan.layers.items():
        layer = decoder_layers(model)[index]
        touched = [] if removed.alpha is None else exit_weights(layer)
        if removed.removed_groups:
            touched += layer.self_attn.parameters()
        if removed.removed_channels:
            touched += layer.mlp.parameters()
        if any(weight.is_meta or not weight.is_floating_point() for weight in touched):
            raise ValueError(
                f"layer {index}: weights that are offloaded or quantized can be neither scaled nor sliced; "
                "load the model in float32, bfloat16 or float16 without offloading"
            )


def check_attention(model: PreTrainedModel, layers: Iterable[int]) -> None:
    """ValueError if ``model`` cannot have value-only attention in ``layers``.

    A lone token can only attend to itself, so ``W_V W_O`` must give what the stock attention gives on a text of
    one token. That refuses what the names of the modules do not show: gates, sinks, norms on the values.
    """
    name, found = type(model).__name__, decoder_layers(model)
    if model.config.get_text_config() is not model.config:
        raise ValueError(f"{name} is not supported: it has other inputs than text; load its text-only class")
    for layer in layers:
        attention = getattr(found[layer], "self_attn", None)
        if not all_linear(attention, ("v_proj", "o_proj")):
            raise ValueError(
                f"{name} is not supported: layer {layer} has no self_attn with separate v_proj and o_proj "
                "(fused projections, or no attention)"
            )
        parts = {part for part, _ in found[layer].named_children()}
        if frozenset(parts - OTHER_PARTS) not in KNOWN_NORMS:
            raise ValueError(
                f"{name} is not supported: layer {layer} has parts of no known kind ({', '.join(sorted(parts))})"
            )
    if getattr(model.config, "clip_qkv", None) is not None:
        raise ValueError(f"{name} is not supported: it clips values (clip_qkv), so that W_V W_O is not all of it")
    differing = [layer for layer, error in _lone_token_errors(model, layers).items() if error > TOLERANCE]
    if differing:
        raise ValueError(
            f"{name} is not supported: in layer {differing[0]}, attention on a single token is not W_V W_O "
            "(a gate, a sink or a norm in between)"
        )


@torch.no_grad()
def check_slices(model: PreTrainedModel, plan: PruningPlan) -> None:
    """ValueError if slicing a layer of ``model`` is not the same as masking what is removed.

    A sliced copy and the masked original of each module read the same three tokens. That refuses what the names of
    the modules do not show: norms over all heads, sinks, heads that are mixed.
    """
    found, differing = decoder_layers(model), []

    def compare(index: int, part: str, removed: LayerPlan):
        def hook(module: nn.Module, args: tuple, kwargs: dict, output: tuple | torch.Tensor) -> None:
            if part == "attention":
                sliced = pruned_attention(module, index, removed)
                mask = masking(module.o_proj, removed.removed_groups, group_width(module), removed.group_means)
            else:
                sliced = pruned_ffn(module, removed)
                mask = masking(module.down_proj, removed.removed_channels, 1, removed.channel_means)
            with mask:
                expected = _tensor(module.forward(*args, **kwargs)).float()
            if not expected.isfinite().all():
                raise ValueError(f"layer {index}: its {part} gives numbers that are not finite; look at its weights")
            try:
                difference = _tensor(sliced.forward(*args, **kwargs)).float() - expected
                error = difference.norm() / expected.norm().clamp_min(1e-12)
            except torch.OutOfMemoryError:
                raise
            except (RuntimeError, TypeError, AttributeError, ValueError):  # shapes that do not fit
                error = torch.tensor(torch.inf)
            if not error < TOLERANCE:
                differing.append((index, part))

        return hook

    hooks = {}
    for index, removed in plan.layers.items():
        if removed.removed_groups:
            hooks[found[index].self_attn] = compare(index, "attention", removed)
        if removed.removed_channels:
            hooks[found[index].mlp] = compare(index, "FFN", removed)
    _probe(model, hooks, tokens=3)
    if differing:
        index, part = differing[0]
        raise ValueError(
            f"{type(model).__name__} is not supported: in layer {index}, {part} without some of its parts is not the "
            "same as with these parts masked (a norm over all heads, a sink or a cache of its own)"
        )


@contextmanager
def masking(output: nn.Linear, removed: Sequence[int], width: int, means: Sequence[float] | None) -> Iterator[None]:
    """Within the context, blocks of ``width`` input channels of a linear map are zero, or their means."""
    columns = blocks(removed, width)

    def mask(module: nn.Module, args: tuple) -> tuple:
        masked = args[0].clone()
        masked[..., columns] = 0 if means is None else torch.tensor(means, device=masked.device, dtype=masked.dtype)
        return (masked,)

    handle = output.register_forward_pre_hook(mask)
    try:
        yield
    finally:
        handle.remove()


def _tensor(output: torch.Tensor | tuple) -> torch.Tensor:
    return output[0] if isinstance(output, tuple) else output


def _lone_token_errors(model: PreTrainedModel, layers: Iterable[int]) -> dict[int, float]:
    found, errors = decoder_layers(model), {}

    def compare(layer: int):
        def hook(attention: nn.Module, args: tuple, kwargs: dict, output: tuple) -> None:
            hidden = args[0] if args else kwargs["hidden_states"]
            expected, dense = value_only(attention, layer)(hidden)[0].float(), output[0].float()
            errors[layer] = ((expected - dense).norm() / dense.norm().clamp_min(1e-12)).item()

        return hook

    _probe(model, {found[layer].self_attn: compare(layer) for layer in layers}, tokens=1)
    return errors


@torch.no_grad()
def _probe(model: PreTrainedModel, hooks: Mapping[nn.Module, Callable], tokens: int) -> None:
    """Run the model once over a few tokens, with a forward hook on some modules."""
    training, handles = model.training, []
    try:
        for module, hook in hooks.items():
            handles.append(module.register_forward_hook(hook, with_kwargs=True))
        model.eval()
        # Token 0 is often padding, with a zero embedding.
        ids = model.get_input_embeddings().num_embeddings // 2 - torch.arange(tokens)
        model(ids[None].to(model.device), use_cache=False)
    finally:
        model.train(training)
        for handle in handles:
            handle.remove()
