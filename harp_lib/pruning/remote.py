"""Pruned versions of stock transformers classes, also as the remote code of saved checkpoints.

``HarpLlamaForCausalLM`` is ``LlamaForCausalLM`` that builds its pruned layers from the plan in its config, and so
for any stock class: this module makes ``Harp<Name>`` out of ``transformers.<Name>`` when it is asked for it.
"""

from collections.abc import Callable
from functools import cache, wraps
from itertools import takewhile
from typing import Any

import transformers
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel

from .architecture import decoder_layers, has_known_parts
from .layers import SkippedAttention, ValueOnlyAttention
from .plan import PruningPlan
from .surgery import swap_modules

# Takes the place of the activation's name in a saved config.json. Code that does not know pruned checkpoints
# would fill the missing queries and keys with random numbers and run; now it stops here, with the reason.
REFUSAL = (
    "attention was pruned by HARP: load with AutoModelForCausalLM.from_pretrained(path, trust_remote_code=True) "
    "or harp_lib.load_pruned(path)"
)
ACTIVATION_FIELDS = ("hidden_act", "hidden_activation")


class PrunedConfig:
    """Mixin for a stock config: carries the plan, and hides the activation from code that ignores the plan."""

    fold_output = False  # checkpoints of earlier versions do not say

    def __post_init__(self, **kwargs: Any) -> None:
        for field in ACTIVATION_FIELDS:
            kwargs.pop(field, None)  # the refusal in a field that this architecture does not have
        for field, name in kwargs.pop("stock_activation", {}).items():
            setattr(self, field, name)
        super().__post_init__(**kwargs)

    def to_dict(self) -> dict[str, Any]:
        values = super().to_dict()
        stock = {field: values[field] for field in ACTIVATION_FIELDS if values.get(field)}
        return values | dict.fromkeys(ACTIVATION_FIELDS, REFUSAL) | {"stock_activation": stock}


class PrunedModel:
    """Mixin for a stock model: swaps the planned layers when it is built, and spares those at the top in a prefill.

    Layers without attention look at each token alone and cache nothing: where the caller wants the logits of the last k
    positions only (``logits_to_keep``, as ``generate`` does), no other position has to enter those at the top.
    """

    tail_only_prefill = True  # set it to False to send every position through every layer

    def __init__(self, config: PreTrainedConfig, *args: Any, **kwargs: Any) -> None:
        super().__init__(config, *args, **kwargs)
        swap_modules(self, PruningPlan.from_dict(config.pruning_plan), config.fold_output)

    def _get_static_cache_init_shape(self) -> None:
        """Layers differ in their heads: a static cache takes its shapes from the first keys of each, not beforehand."""


def tail_only(stock_forward: Callable) -> Callable:
    """The forward pass in which the last ``logits_to_keep`` positions alone enter the pruned layers at the top."""

    @wraps(stock_forward)
    def forward(self: PreTrainedModel, *args: Any, **kwargs: Any) -> Any:
        top, keep = _tail(self, args, kwargs), kwargs.get("logits_to_keep")
        if not top:
            return stock_forward(self, *args, **kwargs)

        def enter(layer: nn.Module, args: tuple) -> tuple:
            for above in top:
                above.self_attn.spared = args[0].shape[1] - keep
            return (args[0][:, -keep:], *args[1:])  # (B, k, d)

        handle = top[0].register_forward_pre_hook(enter)
        try:
            return stock_forward(self, *args, **kwargs)
        finally:
            handle.remove()
            for layer in top:
                layer.self_attn.spared = 0

    return forward


def _tail(model: PreTrainedModel, args: tuple, kwargs: dict[str, Any]) -> list[nn.Module]:
    """The layers that a call can spare all but its last positions; none where somebody looks at every position."""
    inputs, keep = args[0] if args else kwargs.get("input_ids"), kwargs.get("logits_to_keep")
    inputs = kwargs.get("inputs_embeds") if inputs is None else inputs
    if not model.tail_only_prefill or inputs is None or type(keep) is not int or not 0 < keep < inputs.shape[1]:
        return []
    if kwargs.get("labels") is not None or kwargs.get("output_hidden_states") or model.config.output_hidden_states:
        return []
    alone = (ValueOnlyAttention, SkippedAttention)
    found = reversed(decoder_layers(model))
    top = [*takewhile(lambda layer: isinstance(layer.self_attn, alone) and has_known_parts(layer), found)][::-1]
    modules = [module for layer in top for module in layer.modules()]
    hooks = [hook for of in modules for hook in (*of._forward_hooks.values(), *of._forward_pre_hooks.values())]
    # Those of transformers, once installed, only look where output_hidden_states or output_attentions are asked for.
    return top if all(getattr(hook, "__module__", "").startswith("transformers.") for hook in hooks) else []


@cache
def pruned_class(stock: type) -> type:
    """``Harp<Name>`` for a stock config or model class; a ValueError for a class that transformers does not have."""
    if getattr(transformers, stock.__name__, None) is not stock:
        raise ValueError(f"{stock.__name__} is not a class of transformers; a checkpoint of it could not be loaded")
    name, namespace = f"Harp{stock.__name__}", {"__module__": __name__, "__doc__": f"Pruned {stock.__name__}."}
    if issubclass(stock, PreTrainedConfig):
        namespace |= {"model_type": f"harp_{stock.model_type}", "_auto_class": "AutoConfig"}
        return type(name, (PrunedConfig, stock), namespace)
    namespace |= {"config_class": pruned_class(stock.config_class), "_auto_class": "AutoModelForCausalLM"}
    namespace["forward"] = tail_only(stock.forward)
    return type(name, (PrunedModel, stock), namespace)


def __getattr__(name: str) -> type:
    stock = getattr(transformers, name.removeprefix("Harp"), None) if name.startswith("Harp") else None
    if not (isinstance(stock, type) and issubclass(stock, (PreTrainedConfig, PreTrainedModel))):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return pruned_class(stock)
