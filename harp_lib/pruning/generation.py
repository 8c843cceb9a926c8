"""What transformers expects of every layer, for models whose pruned layers have other sizes.

The config counts heads as in the dense model. Caches and attention maps that transformers lays out
by the config are made to fit here, or are refused.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any

from transformers import PreTrainedModel, StaticCache
from transformers.utils import ModelOutput

from .architecture import decoder_layers
from .layers import LoneAttention, attends, num_groups
from .plan import PruningPlan


def fitting(stock_forward: Callable) -> Callable:
    """The forward pass that refuses static caches of other sizes, and returns a map for each layer.

    In ``attentions``, a value-only layer has the map of no heads, (B, 0, N, S), so that the map of
    layer i is entry i as in the dense model.
    """

    @wraps(stock_forward)
    def forward(self: PreTrainedModel, *args: Any, **kwargs: Any) -> ModelOutput | tuple:
        if isinstance(kwargs.get("past_key_values"), StaticCache):
            _check_allocated(self, kwargs["past_key_values"])
        in_config = getattr(self.config, "output_attentions", False)
        if not kwargs.get("output_attentions", in_config):
            return stock_forward(self, *args, **kwargs)
        return_dict = kwargs.pop("return_dict", None)
        output = stock_forward(self, *args, return_dict=True, **kwargs)
        if output.get("attentions"):
            output.attentions = _map_of_each_layer(self, output.attentions)
        if return_dict is None:
            return_dict = self.config.return_dict
        return output if return_dict else output.to_tuple()

    return forward


def sliced_layers(model: PreTrainedModel) -> list[int]:
    """Indices of the layers that attend with fewer key/value heads than the dense model's."""
    plan = PruningPlan.from_dict(model.config.pruning_plan)
    layers = decoder_layers(model)
    sliced = []
    for index, layer_plan in plan.layers.items():
        if layer_plan.removed_groups and attends(layers[index]):
            sliced.append(index)
    return sliced


def _check_allocated(model: PreTrainedModel, cache: StaticCache) -> None:
    """Raise a ValueError if ``cache`` was allocated for more heads than a pruned layer has."""
    for index in sliced_layers(model):
        attention = decoder_layers(model)[index].self_attn
        entry = cache.layers[attention.layer_idx]
        heads = num_groups(attention)
        if entry.is_initialized and entry.num_heads != heads:
            raise ValueError(
                f"this static cache was allocated with {entry.num_heads} key/value heads in layer "
                f"{index}, which has {heads}; leave out early_initialization, and the cache is "
                "allocated at its first use"
            )


def _map_of_each_layer(model: PreTrainedModel, maps: tuple) -> tuple:
    """``maps``, those of the layers that attend, with maps of no heads (B, 0, N, S) in between."""
    layers = decoder_layers(model)
    has_map = [not isinstance(getattr(layer, "self_attn", None), LoneAttention) for layer in layers]
    if sum(has_map) != len(maps):
        return maps  # further layers have no map in the dense model either
    remaining = iter(maps)
    no_heads = maps[0][:, :0]
    return tuple(next(remaining) if has_one else no_heads for has_one in has_map)
