"""Looking into the attention of a real model, one layer at a time, so that memory holds one layer's
attention.
"""

from collections.abc import Callable
from contextlib import ExitStack
from typing import NamedTuple

import torch
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel

from harp_lib.accounting import attention_window
from harp_lib.models.load import evaluating
from harp_lib.pruning.architecture import branch_exit, check_plan, decoder_layers, output_norm
from harp_lib.pruning.layers import LoneAttention
from harp_lib.pruning.plan import PruningPlan
from harp_lib.theory import visible_positions


class LayerView(NamedTuple):
    """What passes through one decoder layer. B texts, N tokens, width d, H heads of width Dh."""

    layer: int
    entering: torch.Tensor  # (B, N, d), the residual stream before the layer
    projected: (
        torch.Tensor
    )  # (B, N, d), what queries, keys and values are projected from: normalised
    attention: torch.Tensor  # (B, H, N, N)
    value_states: torch.Tensor  # (B, H, N, Dh), of each query head
    branch: torch.Tensor  # (B, N, d), what attention adds to the residual stream
    value_only_branch: (
        torch.Tensor
    )  # (B, N, d), what it would add without queries and keys, at alpha = 1
    leaving: torch.Tensor  # (B, N, d), the residual stream after the layer
    visible: torch.Tensor  # (N,), positions that each token attends to


@torch.no_grad()
def observe_layers(
    model: PreTrainedModel, ids: torch.Tensor, visit: Callable[[LayerView], None]
) -> None:
    """Run a dense model over texts (B, N) of equal length and call ``visit`` for each layer, from
    the bottom.

    What ``visit`` does not keep is freed. The last layer's output is taken before the final norm;
    the ``hidden_states`` of transformers have it after. Attention is computed eagerly meanwhile,
    because other kernels keep no weights.
    """
    layers = decoder_layers(model)
    check_plan(model, PruningPlan.value_only(len(layers), [1.0] * len(layers)))
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
    seen: dict[str, torch.Tensor] = {}
    attention, window = layer.self_attn, attention_window(config, index)
    multiplier = getattr(config, "residual_multiplier", 1.0)  # Granite has one

    def attend(_: nn.Module, args: tuple, kwargs: dict, output: tuple) -> None:
        seen["projected"] = args[0] if args else kwargs["hidden_states"]
        seen["weights"] = output[1]

    def exit_branch(_: nn.Module, args: tuple, output: torch.Tensor | tuple) -> None:
        seen["branch"] = multiplier * (output[0] if isinstance(output, tuple) else output)

    def leave(_: nn.Module, args: tuple, output: torch.Tensor | tuple) -> None:
        leaving = output[0] if isinstance(output, tuple) else output
        projected, weights, norm = seen["projected"], seen["weights"], output_norm(layer)
        alone = LoneAttention(index, attention)(projected)[0]
        values = (
            attention.v_proj(projected).unflatten(-1, (-1, attention.head_dim)).transpose(1, 2)
        )  # (B, K, N, Dh)
        visit(
            LayerView(
                layer=index,
                entering=args[0].to(
                    leaving.device
                ),  # another one, where a model is spread over several
                projected=projected,
                attention=weights,
                value_states=values.repeat_interleave(
                    weights.shape[1] // values.shape[1], dim=1
                ),  # (B, H, N, Dh)
                branch=seen["branch"],
                value_only_branch=multiplier * (norm(alone) if norm else alone),
                leaving=leaving,
                visible=visible_positions(weights.shape[-1], window),
            )
        )
        seen.clear()

    hooks.enter_context(attention.register_forward_hook(attend, with_kwargs=True))
    hooks.enter_context(branch_exit(layer).register_forward_hook(exit_branch))
    hooks.enter_context(layer.register_forward_hook(leave))
