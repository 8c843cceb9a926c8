"""Puts the modules of a pruned model in their places, when it is pruned and when it is loaded."""

from collections.abc import Mapping

from torch import nn
from transformers import PreTrainedModel

from .architecture import decoder_layers
from .layers import cache_index, pruned_attention, pruned_ffn, with_parts
from .plan import PruningPlan


def swap_modules(
    model: PreTrainedModel,
    plan: PruningPlan,
    fold_output: bool = False,
    refitted: Mapping[int, nn.Module] | None = None,
) -> None:
    """Replace the modules that lose something; no weight is changed, and alpha is not applied.

    ``refitted`` holds ready attention modules by layer index, which take precedence.
    """
    attentions = dict(refitted or {})
    layers = decoder_layers(model)
    for index, layer_plan in plan.layers.items():
        layer = layers[index]
        if sum(other is layer for other in layers) > 1:
            layer = with_parts(layer)  # its other places keep what they have
            layers[index] = layer
        # A layer that keeps its attention may have none.
        if layer_plan.alpha is not None or layer_plan.removed_groups:
            stock = layer.self_attn
            if index not in attentions:
                attentions[index] = pruned_attention(
                    stock, cache_index(layers, index), layer_plan, fold_output
                )
            attentions[index].training = stock.training
            layer.self_attn = attentions[index]
        if layer_plan.removed_channels:  # a layer that keeps its channels may have any kind of FFN
            layer.mlp = pruned_ffn(layer.mlp, layer_plan)
