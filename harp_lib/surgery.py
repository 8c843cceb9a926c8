"""Executing a plan: the only file that changes a model."""

import copy
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import nn
from transformers import PreTrainedModel

from .modeling import SkippedAttention, ValueOnlyAttention
from .plan import PruningPlan

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
OTHER_PARTS = {"self_attn", "mlp", "block_sparse_moe", "dropout"}


def apply_plan(model: PreTrainedModel, plan: PruningPlan) -> PreTrainedModel:
    """Prune ``model`` in place, structurally: queries and keys are gone afterwards, alpha is in the weights.

    The model becomes an instance of ``harp_lib.remote.Harp<its class>``, a subclass of its class, so that
    ``save_pretrained`` and ``generate`` do the right thing.

    Parameters
    ----------
    model : PreTrainedModel
        A dense transformers decoder whose attention has separate ``v_proj`` and ``o_proj``.
    plan : PruningPlan
        For as many layers as the model has.

    Returns
    -------
    PreTrainedModel
        The same object.

    Raises
    ------
    ValueError
        If the model was pruned before, has another number of layers, keeps weights where they cannot be folded
        (offloaded or quantized), or its attention is not of the supported kind. The model is unchanged then.
    """
    from .remote import pruned_class  # builds its skeletons with this module, hence not at the top

    check_dense(model)
    layers = decoder_layers(model)
    if plan.num_layers != len(layers):
        raise ValueError(f"the plan is for {plan.num_layers} layers, {type(model).__name__} has {len(layers)}")
    check_attention(model, plan.layers)
    check_weights(model, plan.layers)
    model_class, config_class = pruned_class(type(model)), pruned_class(type(model.config))
    for layer, alpha in plan.alphas.items():
        fold_alpha(layers[layer], alpha)
    swap_attention(model, plan)

    config = model.config
    pruned_config = copy.deepcopy(config)  # models may share a config object; only this one was pruned
    pruned_config.__class__ = config_class
    pruned_config.pruning_plan = plan.to_dict()
    for module in model.modules():
        if getattr(module, "config", None) is config:
            module.config = pruned_config
    model.__class__ = model_class
    return model


def swap_attention(model: PreTrainedModel, plan: PruningPlan) -> None:
    """Replace the attention modules that ``plan`` names. Weights are kept as they are; alpha is not folded."""
    layers = decoder_layers(model)
    for layer, layer_plan in plan.layers.items():
        attention = layers[layer].self_attn
        layers[layer].self_attn = SkippedAttention(layer) if layer_plan.alpha == 0 else value_only(attention, layer)


def value_only(attention: nn.Module, layer: int) -> ValueOnlyAttention:
    """The value-only attention that shares ``v_proj`` and ``o_proj`` with ``attention``."""
    return ValueOnlyAttention(attention.v_proj, attention.o_proj, attention.head_dim, layer)


@contextmanager
def temporarily_value_only(model: PreTrainedModel, alphas: Mapping[int, float]) -> Iterator[None]:
    """Within the context, layers are value-only with their branch multiplied by alpha; no weight is touched.

    Parameters
    ----------
    model : PreTrainedModel
        A dense model. It is as before when the context ends, also after an error.
    alphas : mapping of int to float
        Alpha by layer index.
    """
    layers = decoder_layers(model)
    stock = {layer: layers[layer].self_attn for layer in alphas}
    handles = []
    try:
        for layer, alpha in alphas.items():
            layers[layer].self_attn = value_only(stock[layer], layer)
            handles.append(branch_exit(layers[layer]).register_forward_hook(_scaled_by(alpha)))
        yield
    finally:
        for handle in handles:
            handle.remove()
        for layer, attention in stock.items():
            layers[layer].self_attn = attention


def _scaled_by(alpha: float):
    def scale(module: nn.Module, inputs: tuple, output: torch.Tensor | tuple) -> torch.Tensor | tuple:
        return (alpha * output[0], *output[1:]) if isinstance(output, tuple) else alpha * output

    return scale


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
def fold_alpha(layer: nn.Module, alpha: float) -> None:
    """Multiply the attention branch of ``layer`` by ``alpha``, in the weights.

    Where a norm follows the attention it would undo a smaller ``W_O``, so its gain takes alpha: Gemma's norms
    compute ``(1 + w) x``, which makes ``w' = alpha (1 + w) - 1``.
    """
    norm = output_norm(layer)
    offset = gain_offset(norm) if norm else 0.0
    if alpha != 1:
        for weight in exit_weights(layer):
            weight.copy_(alpha * (weight.double() + offset) - offset)


@torch.no_grad()
def gain_offset(norm: nn.Module) -> float:
    """What an RMS norm adds to its weight before multiplying: 1 in Gemma's, 0 in Llama's."""
    gain = norm(torch.ones_like(norm.weight))
    return float(round((gain - norm.weight).double().mean().item()))


def check_dense(model: PreTrainedModel) -> None:
    """ValueError if a plan was applied to ``model`` before."""
    if getattr(model.config, "pruning_plan", None) is not None:
        raise ValueError("this model is pruned already; load the dense model again")


def check_weights(model: PreTrainedModel, layers: Iterable[int]) -> None:
    """ValueError if the attention of one of ``layers`` is offloaded or quantized, where alpha cannot reach it."""
    for layer in layers:
        for weight in exit_weights(decoder_layers(model)[layer]):
            if weight.is_meta or not weight.is_floating_point():
                raise ValueError(
                    f"layer {layer}: alpha cannot be folded into weights that are offloaded or quantized; "
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
        if not all(isinstance(getattr(attention, part, None), nn.Linear) for part in ("v_proj", "o_proj")):
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
    differing = [layer for layer, error in _lone_token_errors(model, layers).items() if error > 0.05]
    if differing:
        raise ValueError(
            f"{name} is not supported: in layer {differing[0]}, attention on a single token is not W_V W_O "
            "(a gate, a sink or a norm in between)"
        )


@torch.no_grad()
def _lone_token_errors(model: PreTrainedModel, layers: Iterable[int]) -> dict[int, float]:
    found, errors, handles, training = decoder_layers(model), {}, [], model.training

    def compare(layer: int):
        def hook(attention: nn.Module, args: tuple, kwargs: dict, output: tuple) -> None:
            hidden = args[0] if args else kwargs["hidden_states"]
            expected, dense = value_only(attention, layer)(hidden)[0].float(), output[0].float()
            errors[layer] = ((expected - dense).norm() / dense.norm().clamp_min(1e-12)).item()

        return hook

    try:
        for layer in layers:
            handles.append(found[layer].self_attn.register_forward_hook(compare(layer), with_kwargs=True))
        model.eval()
        token = model.get_input_embeddings().num_embeddings // 2  # token 0 is often padding, with a zero embedding
        model(torch.tensor([[token]], device=model.device), use_cache=False)
    finally:
        model.train(training)
        for handle in handles:
            handle.remove()
    return errors
