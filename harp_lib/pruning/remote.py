"""Pruned versions of stock transformers classes, also as the remote code of saved checkpoints.

``HarpLlamaForCausalLM`` is ``LlamaForCausalLM`` that builds its pruned layers from the plan in its config, and so
for any stock class: this module makes ``Harp<Name>`` out of ``transformers.<Name>`` when it is asked for it.
"""

from functools import cache
from typing import Any

import transformers
from transformers import PreTrainedConfig, PreTrainedModel

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
    """Mixin for a stock model: swaps the planned layers when it is built."""

    def __init__(self, config: PreTrainedConfig, *args: Any, **kwargs: Any) -> None:
        super().__init__(config, *args, **kwargs)
        swap_modules(self, PruningPlan.from_dict(config.pruning_plan), config.fold_output)

    def _get_static_cache_init_shape(self) -> None:
        """Layers differ in their heads: a static cache takes its shapes from the first keys of each, not beforehand."""


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
    return type(name, (PrunedModel, stock), namespace)


def __getattr__(name: str) -> type:
    stock = getattr(transformers, name.removeprefix("Harp"), None) if name.startswith("Harp") else None
    if not (isinstance(stock, type) and issubclass(stock, (PreTrainedConfig, PreTrainedModel))):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return pruned_class(stock)
