"""Pruned versions of stock transformers classes, also as the remote code of saved checkpoints.

``Harp<Name>`` is derived from ``transformers.<Name>`` on demand, and builds its pruned layers from
the plan in its config.
"""

import inspect
import json
from collections.abc import Callable
from contextlib import ExitStack
from functools import cache, wraps
from threading import get_ident
from typing import Any

import torch
import transformers
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.models.auto import modeling_auto

from .architecture import check_fits, has_known_parts
from .generation import fitting, sliced_layers
from .layers import LoneAttention
from .plan import PruningPlan
from .swap import swap_modules

# Replaces the name of the activation in a saved config.json. Code that does not know pruned
# checkpoints would fill the missing queries and keys with random numbers and run; now it stops with
# this reason.
REFUSAL = (
    "attention was pruned by HARP: load with "
    "AutoModelForCausalLM.from_pretrained(path, trust_remote_code=True) "
    "or harp_lib.load_pruned(path)"
)
ACTIVATION_FIELDS = ("hidden_act", "hidden_activation")


class PrunedConfig:
    """Mixin for a stock config: holds the plan, and hides the activation from unaware code.

    In memory the config has the values of the stock config, its ``model_type`` included, so that
    whatever is looked up by type (weight conversions, LoRA targets, kernels) is found as for the
    dense model. Only the file says that the model is pruned.
    """

    _auto_class = "AutoConfig"
    fold_output = False  # for checkpoints of earlier versions, which lack the field

    def __post_init__(self, **kwargs: Any) -> None:
        kwargs.pop("model_type", None)  # that of the file
        # An architecture lacks one of the two fields, in which a saved config holds the refusal.
        for field in ACTIVATION_FIELDS:
            kwargs.pop(field, None)
        for field, name in kwargs.pop("stock_activation", {}).items():
            setattr(self, field, name)
        super().__post_init__(**kwargs)

    @classmethod
    def get_config_dict(cls, *args: Any, **kwargs: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """The values of a file, with the type of the stock config, and the arguments not used."""
        values, unused = super().get_config_dict(*args, **kwargs)
        return {**values, "model_type": cls.model_type}, unused

    def to_json_string(self, use_diff: bool = True) -> str:
        """The text of ``config.json``, with the activation moved to ``stock_activation``."""
        values = json.loads(super().to_json_string(use_diff))
        stock_activation = {}
        for field in ACTIVATION_FIELDS:
            if values.get(field):
                stock_activation[field] = values[field]
            values[field] = REFUSAL
        values["stock_activation"] = stock_activation
        values["model_type"] = f"harp_{self.model_type}"
        values["auto_map"] = {"AutoConfig": _reference(type(self))}
        for auto_class, stock in auto_classes(stock_class(type(self))).items():
            values["auto_map"][auto_class] = _reference(pruned_class(stock))
        return json.dumps(values, indent=2, sort_keys=True) + "\n"


def stock_class(pruned: type) -> type:
    """The class of transformers that a pruned class is derived from."""
    return getattr(transformers, pruned.__name__.removeprefix("Harp"))


def auto_classes(stock_config: type) -> dict[str, type]:
    """The model classes of transformers for a config class, by the name of their auto class."""
    classes = {}
    for name in dir(modeling_auto):
        mapping = getattr(getattr(modeling_auto, name), "_model_mapping", None)
        if not name.startswith("AutoModel") or mapping is None:
            continue
        stock = mapping.get(stock_config, None)
        if isinstance(stock, type) and getattr(transformers, stock.__name__, None) is stock:
            classes[name] = stock
    return classes


def auto_class_of(model: PreTrainedModel) -> str:
    """The name of the auto class that loads a pruned model; a ValueError if there is none."""
    stock = stock_class(type(model))
    for name, candidate in auto_classes(stock.config_class).items():
        if candidate is stock:
            return name
    raise ValueError(
        f"{stock.__name__} cannot be saved pruned: no auto class of transformers loads it; prune "
        "and save a model that AutoModelForCausalLM loads"
    )


def _reference(pruned: type) -> str:
    """What ``auto_map`` says of a class of this file."""
    return f"{__name__.rpartition('.')[2]}.{pruned.__name__}"


class PrunedModel:
    """Mixin for a stock model: replaces the modules of pruned layers when the model is built."""

    _auto_class = "AutoModel"  # that of the file is `PrunedConfig.to_json_string`'s
    tail_only_prefill = True  # set it to False to send every position through every layer

    def __init__(self, config: PreTrainedConfig, *args: Any, **kwargs: Any) -> None:
        # A model with another head than that of language builds its decoder by AutoModel, which
        # knows stock configs alone.
        pruned_config = type(config)
        config.__class__ = stock_class(pruned_config)
        try:
            super().__init__(config, *args, **kwargs)
        finally:
            config.__class__ = pruned_config
        plan = PruningPlan.from_dict(config.pruning_plan)
        try:
            check_fits(self, plan)
        except ValueError as error:
            raise ValueError(
                f"the config does not fit the pruning plan in it: {error}; num_hidden_layers and "
                "other sizes have to be those of the model that was pruned"
            ) from error
        swap_modules(self, plan, config.fold_output)

    @classmethod
    def is_custom_code(cls) -> bool:
        """False: the weights of a file are renamed and converted as those of the dense model."""
        return False

    def _get_static_cache_init_shape(self) -> None:
        """None: a static cache takes the shapes of each layer from its first keys.

        The layers differ in their number of heads, so there is no common shape to allocate before.
        """

    def init_continuous_batching(self, *args: Any, **kwargs: Any) -> Any:
        """Continuous batching as of the stock class; a ValueError if an attending layer lost heads.

        Its paged cache has as many heads in each layer as the config says.
        """
        for layer in sliced_layers(self):
            raise ValueError(
                f"continuous batching allots as many key/value heads to each layer as the config "
                f"says, and layer {layer} has fewer; call generate without paging"
            )
        return super().init_continuous_batching(*args, **kwargs)

    @classmethod
    def from_pretrained(
        cls, *args: Any, output_loading_info: bool = False, **kwargs: Any
    ) -> PreTrainedModel | tuple[PreTrainedModel, dict[str, Any]]:
        """Load as the stock class does; weights that the files lack are a ValueError.

        A head for another task than language, which has to be trained, may be new.
        """
        model, report = super().from_pretrained(*args, output_loading_info=True, **kwargs)
        missing = sorted(report["missing_keys"])
        has_other_head = cls.__name__ not in (model.config.architectures or [])
        is_decoder = model.base_model is model
        if has_other_head and not is_decoder and model.get_output_embeddings() is None:
            prefix = f"{cls.base_model_prefix}."
            missing = [name for name in missing if name.startswith(prefix)]
        if missing:
            raise ValueError(
                f"{model.config.name_or_path} lacks {len(missing)} weights, {missing[0]} for one: "
                "it would be partly random"
            )
        return (model, report) if output_loading_info else model


def tail_only(stock_forward: Callable) -> Callable:
    """The forward pass in which only the last ``logits_to_keep`` positions enter the top layers.

    The top layers are those of :func:`top_layers`, which look at each token alone and cache
    nothing. In the prefill of ``generate``, one position has to enter them. A compiled forward pass
    sends every position through them.
    """

    @wraps(stock_forward)
    def forward(self: PreTrainedModel, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return stock_forward(self, *args, **kwargs)  # hooks of one thread cannot be traced
        num_tokens = _input_length(args, kwargs)
        keep = kwargs.get("logits_to_keep")
        needs_all = kwargs.get("labels") is not None or kwargs.get("output_hidden_states")
        if needs_all or num_tokens is None or type(keep) is not int or not 0 < keep < num_tokens:
            return stock_forward(self, *args, **kwargs)
        thread = get_ident()  # other threads may use the same modules meanwhile

        def keep_last_positions(layer: nn.Module, args: tuple) -> tuple:
            if get_ident() != thread:
                return args
            hidden_states, *others = args
            return (hidden_states[:, -keep:], *others)  # (B, keep, d)

        def count_spared_tokens(
            attention: nn.Module, args: tuple, kwargs: dict[str, Any]
        ) -> tuple[tuple, dict[str, Any]]:
            if get_ident() != thread:
                return args, kwargs
            return args, {**kwargs, "spared_tokens": num_tokens - keep}

        top = top_layers(self)
        with ExitStack() as hooks:
            for layer in top:
                attention = layer.self_attn
                hook = attention.register_forward_pre_hook(count_spared_tokens, with_kwargs=True)
                hooks.enter_context(hook)
            if top:
                lowest = top[-1]
                hooks.enter_context(lowest.register_forward_pre_hook(keep_last_positions))
            return stock_forward(self, *args, **kwargs)

    return forward


def _input_length(args: tuple, kwargs: dict[str, Any]) -> int | None:
    """Number N of positions of ``input_ids`` (B, N) or ``inputs_embeds`` (B, N, d), if given."""
    inputs = args[0] if args else kwargs.get("input_ids")
    if inputs is None:
        inputs = kwargs.get("inputs_embeds")
    return None if inputs is None else inputs.shape[1]


def top_layers(model: PreTrainedModel) -> list[nn.Module]:
    """The layers at the top, from above, that look at each token alone.

    The list is empty if all positions have to enter them.
    """
    # In training, a checkpointed layer is computed again without the hooks that spare it positions.
    if model.training or not model.tail_only_prefill or model.config.output_hidden_states:
        return []
    decoder = model.get_decoder()
    top = []
    for layer in reversed(decoder.layers):
        attention = getattr(layer, "self_attn", None)
        if not isinstance(attention, LoneAttention) or not has_known_parts(layer):
            break
        top.append(layer)
    watched = [decoder, *decoder.children()]
    for layer in top:
        watched.extend(layer.modules())
    if any(_has_foreign_hooks(module) for module in watched):
        return []
    return top


def _has_foreign_hooks(module: nn.Module) -> bool:
    """Whether somebody set a hook on ``module``, which then may need to see every position.

    The hooks of transformers do nothing unless hidden states or attention are requested.
    """
    hooks = [*module._forward_hooks.values(), *module._forward_pre_hooks.values()]
    return any(not getattr(hook, "__module__", "").startswith("transformers.") for hook in hooks)


@cache
def pruned_class(stock: type) -> type:
    """The class ``Harp<Name>`` for a config or model class of transformers.

    A class that transformers does not have is a ValueError: a checkpoint of it could not be loaded.
    """
    if getattr(transformers, stock.__name__, None) is not stock:
        raise ValueError(
            f"{stock.__name__} is not a class of transformers; "
            "a checkpoint of it could not be loaded"
        )
    name = f"Harp{stock.__name__}"
    attributes = {"__module__": __name__, "__doc__": f"Pruned {stock.__name__}."}
    if issubclass(stock, PreTrainedConfig):
        return type(name, (PrunedConfig, stock), attributes)
    attributes["config_class"] = pruned_class(stock.config_class)
    forward = fitting(stock.forward)
    if "logits_to_keep" in inspect.signature(stock.forward).parameters:
        forward = tail_only(forward)
    attributes["forward"] = forward
    return type(name, (PrunedModel, stock), attributes)


def __getattr__(name: str) -> type:
    """Attribute ``Harp<Name>`` of this module, which saved checkpoints name as their class."""
    stock = None
    if name.startswith("Harp"):
        stock = getattr(transformers, name.removeprefix("Harp"), None)
    if not isinstance(stock, type) or not issubclass(stock, (PreTrainedConfig, PreTrainedModel)):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return pruned_class(stock)
