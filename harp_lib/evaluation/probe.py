"""A look into the attention of a real model, one layer at a time.

Memory holds the attention matrices of a single layer.
"""

from collections.abc import Callable
from contextlib import ExitStack
from typing import NamedTuple

import torch
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel

from harp_lib.accounting import sliding_window
from harp_lib.pruning.architecture import (
    branch_exit,
    check_own_modules,
    check_plan,
    decoder_layers,
    first_of,
    hidden_states_of,
    output_norm,
)
from harp_lib.pruning.layers import LoneAttention
from harp_lib.pruning.plan import PruningPlan
from harp_lib.text.evaluating import evaluating
from harp_lib.theory import visible_positions


class LayerView(NamedTuple):
    """What passes through one decoder layer: B texts, N tokens, width d, H heads of width Dh.

    Attributes
    ----------
    layer : int
        Index from the bottom.
    entering : (B, N, d)
        The residual stream before the layer.
    projected : (B, N, d)
        The same after the norm: queries, keys and values are projected from it.
    attention : (B, H, N, N)
        The attention weights.
    value_states : (B, H, N, Dh)
        The values of each query head.
    branch : (B, N, d)
        What attention adds to the residual stream.
    value_only_branch : (B, N, d)
        What it adds without queries and keys, at alpha = 1.
    leaving : (B, N, d)
        The residual stream after the layer.
    visible : (N,)
        Number of positions that each token attends to.
    """

    layer: int
    entering: torch.Tensor
    projected: torch.Tensor
    attention: torch.Tensor
    value_states: torch.Tensor
    branch: torch.Tensor
    value_only_branch: torch.Tensor
    leaving: torch.Tensor
    visible: torch.Tensor


@torch.no_grad()
def observe_layers(
    model: PreTrainedModel, ids: torch.Tensor, visit: Callable[[LayerView], None]
) -> None:
    """Run a dense model over texts and call ``visit`` for each layer, bottom to top.

    What ``visit`` does not keep is freed. The last layer's output is taken before the final norm;
    the ``hidden_states`` of transformers have it after. Attention is computed eagerly meanwhile,
    because other kernels keep no weights.

    Parameters
    ----------
    model : PreTrainedModel
        A dense model. It is unchanged afterwards.
    ids : torch.Tensor
        Texts of equal length (B, N).
    visit : callable
        Takes a :class:`LayerView`.

    Raises
    ------
    ValueError
        If the model is pruned already, could not be made value-only, or has a module at two places.
    """
    layers = decoder_layers(model)
    check_plan(model, PruningPlan.value_only(len(layers), [1.0] * len(layers)))
    check_own_modules(model)
    with evaluating(model), ExitStack() as undo:
        undo.callback(model.set_attn_implementation, model.config._attn_implementation)
        model.set_attn_implementation("eager")
        for index, layer in enumerate(layers):
            _watch(undo, index, layer, model.config, visit)
        model.get_decoder()(input_ids=ids.to(model.device), use_cache=False)


def _watch(
    hooks: ExitStack,
    index: int,
    layer: nn.Module,
    config: PreTrainedConfig,
    visit: Callable[[LayerView], None],
) -> None:
    """Hook onto a layer, its attention and the end of its attention branch."""
    attention = layer.self_attn
    visible_at_most = sliding_window(config, index)
    multiplier = getattr(config, "residual_multiplier", 1.0)  # Granite has one
    seen: dict[str, torch.Tensor] = {}

    def after_attention(module: nn.Module, args: tuple, kwargs: dict, output: tuple) -> None:
        seen["projected"] = hidden_states_of(args, kwargs)
        seen["weights"] = output[1]  # (B, H, N, N)

    def after_branch(module: nn.Module, args: tuple, output: torch.Tensor | tuple) -> None:
        seen["branch"] = multiplier * first_of(output)

    def after_layer(module: nn.Module, args: tuple, output: torch.Tensor | tuple) -> None:
        leaving = first_of(output)
        entering = args[0].to(leaving.device)  # a model may be spread over several devices
        projected = seen["projected"]
        weights = seen["weights"]
        num_tokens = weights.shape[-1]
        view = LayerView(
            layer=index,
            entering=entering,
            projected=projected,
            attention=weights,
            value_states=_value_states(attention, projected, weights.shape[1]),
            branch=seen["branch"],
            value_only_branch=multiplier * _value_only_branch(index, layer, projected),
            leaving=leaving,
            visible=visible_positions(num_tokens, visible_at_most),
        )
        visit(view)
        seen.clear()

    hooks.enter_context(attention.register_forward_hook(after_attention, with_kwargs=True))
    hooks.enter_context(branch_exit(layer).register_forward_hook(after_branch))
    hooks.enter_context(layer.register_forward_hook(after_layer))


def _value_states(attention: nn.Module, projected: torch.Tensor, num_heads: int) -> torch.Tensor:
    """Values (B, H, N, Dh), repeated for the query heads that share them."""
    values = attention.v_proj(projected)  # (B, N, K·Dh)
    values = values.unflatten(-1, (-1, attention.head_dim)).transpose(1, 2)  # (B, K, N, Dh)
    return values.repeat_interleave(num_heads // values.shape[1], dim=1)  # (B, H, N, Dh)


def _value_only_branch(index: int, layer: nn.Module, projected: torch.Tensor) -> torch.Tensor:
    """The attention branch (B, N, d) if every token attended to itself alone."""
    branch, _ = LoneAttention(index, layer.self_attn)(projected)
    norm = output_norm(layer)
    if norm is None:
        return branch
    return norm(branch)
