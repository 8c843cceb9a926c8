"""Pruned versions of stock transformers classes, also as the remote code of saved checkpoints.

``Harp<Name>`` is made of ``transformers.<Name>`` on demand, and builds its pruned layers from the
plan in its config.
"""

from collections.abc import Callable
from contextlib import ExitStack
from functools import cache, wraps
from itertools import takewhile
from threading import get_ident
from typing import Any

import transformers
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel

from .architecture import has_known_parts
from .layers import LoneAttention
from .plan import PruningPlan
from .surgery import swap_modules

# Takes the place of the activation's name in a saved config.json. Code that does not know pruned
# checkpoints would fill the missing queries and keys with random numbers and run; now it stops
# here, with the reason.
REFUSAL = (
    "attention was pruned by HARP: load with AutoModelForCausalLM.from_pretrained(path, trust_remote_code=True) "
    "or harp_lib.load_pruned(path)"
)
ACTIVATION_FIELDS = ("hidden_act", "hidden_activation")


class PrunedConfig:
    """Mixin for a stock config: carries the plan, and hides the activation from code that ignores
    the plan.
    """

    _auto_class = "AutoConfig"
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
    """Mixin for a stock model: swaps the planned layers when it is built."""

    _auto_class = "AutoModelForCausalLM"
    tail_only_prefill = True  # set it to False to send every position through every layer

    def __init__(self, config: PreTrainedConfig, *args: Any, **kwargs: Any) -> None:
        super().__init__(config, *args, **kwargs)
        swap_modules(self, PruningPlan.from_dict(config.pruning_plan), config.fold_output)

    def _get_static_cache_init_shape(self) -> None:
        """Layers differ in their heads: a static cache takes its shapes from the first keys of
        each, not beforehand.
        """


def tail_only(stock_forward: Callable) -> Callable:
    """The forward pass that spares the pruned layers at the top all but the last ``logits_to_keep``
    positions.

    They look at each token alone and cache nothing: of ``generate``'s prefill, one position has to
    enter them.
    """

    @wraps(stock_forward)
    def forward(self: PreTrainedModel, *args: Any, **kwargs: Any) -> Any:
        inputs, keep = args[0] if args else kwargs.get("input_ids"), kwargs.get("logits_to_keep")
        inputs = kwargs.get("inputs_embeds") if inputs is None else inputs
        asked = kwargs.get("labels") is not None or kwargs.get("output_hidden_states")
        if asked or inputs is None or type(keep) is not int or not 0 < keep < inputs.shape[1]:
            return stock_forward(self, *args, **kwargs)
        spared, mine, top = inputs.shape[1] - keep, get_ident(), top_layers(self)

        def enter(layer: nn.Module, args: tuple) -> tuple:
            return (args[0][:, -keep:], *args[1:]) if get_ident() == mine else args  # (B, k, d)

        def tell(attention: nn.Module, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
            return args, kwargs | (
                {"spared": spared} if get_ident() == mine else {}
            )  # caches count them all the same

        with ExitStack() as hooks:
            for layer in top:
                hooks.enter_context(
                    layer.self_attn.register_forward_pre_hook(tell, with_kwargs=True)
                )
            if top:
                hooks.enter_context(top[-1].register_forward_pre_hook(enter))
            return stock_forward(self, *args, **kwargs)

    return forward


def top_layers(model: PreTrainedModel) -> list[nn.Module]:
    """The layers, from above, that look at each token alone; none where a prefill has to send all
    positions there.
    """
    decoder = model.get_decoder()
    if model.training or not model.tail_only_prefill or model.config.output_hidden_states:
        # a checkpointed layer would be computed again without the hooks that spare it positions
        return []
    above = reversed(decoder.layers)
    top = [
        *takewhile(
            lambda layer: isinstance(layer.self_attn, LoneAttention) and has_known_parts(layer),
            above,
        )
    ]
    watched = [
        decoder,
        *decoder.children(),
        *(module for layer in top for module in layer.modules()),
    ]
    hooks = [
        hook
        for of in watched
        for hook in (*of._forward_hooks.values(), *of._forward_pre_hooks.values())
    ]
    # Somebody's hooks want to see every position. Those of transformers are idle unless outputs are
    # asked for.
    return (
        top
        if all(getattr(hook, "__module__", "").startswith("transformers.") for hook in hooks)
        else []
    )


@cache
def pruned_class(stock: type) -> type:
    """``Harp<Name>`` for a stock config or model class; a ValueError for a class that transformers
    does not have.
    """
    if getattr(transformers, stock.__name__, None) is not stock:
        raise ValueError(
            f"{stock.__name__} is not a class of transformers; a checkpoint of it could not be loaded"
        )
    name, own = (
        f"Harp{stock.__name__}",
        {"__module__": __name__, "__doc__": f"Pruned {stock.__name__}."},
    )
    if issubclass(stock, PreTrainedConfig):
        return type(name, (PrunedConfig, stock), own | {"model_type": f"harp_{stock.model_type}"})
    own |= {"config_class": pruned_class(stock.config_class), "forward": tail_only(stock.forward)}
    return type(name, (PrunedModel, stock), own)


def __getattr__(name: str) -> type:
    stock = (
        getattr(transformers, name.removeprefix("Harp"), None) if name.startswith("Harp") else None
    )
    if not (isinstance(stock, type) and issubclass(stock, (PreTrainedConfig, PreTrainedModel))):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return pruned_class(stock)
