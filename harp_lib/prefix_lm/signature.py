"""What decides which code a model runs, and with which masks and positions; not its weights."""

import inspect
from collections.abc import Hashable, Mapping
from functools import partial
from typing import Any
from weakref import WeakMethod, ref

import torch
from torch import nn
from transformers import GenerationConfig, PreTrainedConfig, PreTrainedModel

from .reader import num_mixing_layers

# Attributes that every module has. Of these, tensors and hooks of the forward pass are described.
COMMON_ATTRIBUTES = frozenset(vars(nn.Module()))
# Which layer it is, how wide a linear map is, and who made its weights, decide no code.
OTHER_ATTRIBUTES = {"layer_idx", "in_features", "out_features", "_is_hf_initialized"}


def build_signature(model: PreTrainedModel) -> Hashable:
    """Equal for models that are built alike, and for one that was changed and changed back.

    It holds the types of modules, their attributes, hooks and replaced methods, the types of their
    tensors, and configs. Of the decoder layers it holds the different kinds, in the order in which
    they appear, and whether those on top mix no tokens: a model that is pruned in 9 layers is built
    like one that is pruned in 12. Nothing in it keeps the model alive.
    """
    layers = model.get_decoder().layers
    configs = [model.generation_config]
    for module in model.modules():
        configs.append(vars(module).get("config"))
    different_configs = {id(config): config for config in configs}.values()
    return (
        tuple(_described(config) for config in different_configs),
        _build(model, layers),
        tuple(dict.fromkeys(_build(layer) for layer in layers)),
        num_mixing_layers(layers) < len(layers),
    )


def _build(module: nn.Module, left_out: nn.Module | None = None) -> Hashable:
    """Description of a module and of those in it, except for one that is left out."""
    attributes = []
    for name, value in vars(module).items():
        if name in COMMON_ATTRIBUTES or name in OTHER_ATTRIBUTES:
            continue
        if not isinstance(value, PreTrainedConfig | GenerationConfig):  # they are described once
            attributes.append((name, _described(value)))
    parts = []
    for name, part in module.named_children():
        if part is not left_out:
            parts.append((name, _build(part, left_out)))
    return (
        type(module),
        _described(type(module).forward),
        tuple(attributes),
        _described(module._parameters),
        _described(module._buffers),
        _described(list(module._forward_pre_hooks.values())),
        _described(list(module._forward_hooks.values())),
        tuple(parts),
    )


def _described(value: Any) -> Hashable:
    """A value, or something hashable in its place, which is equal for what has the same effect."""
    if value is None or isinstance(value, bool | int | float | str | torch.dtype | torch.device):
        return value
    if isinstance(value, Mapping):
        return tuple((_described(key), _described(entry)) for key, entry in value.items())
    if isinstance(value, list | tuple):
        return tuple(map(_described, value))
    if isinstance(value, set | frozenset):
        return frozenset(map(_described, value))
    if isinstance(value, torch.Tensor):
        return (type(value), value.dtype, value.device)
    if isinstance(value, nn.Module):
        return type(value)
    if isinstance(value, PreTrainedConfig | GenerationConfig):
        return (type(value), _described(vars(value)))
    if isinstance(value, partial):
        arguments = [*value.args, *value.keywords, *value.keywords.values()]
        # A fraction is a factor, and decides as little as a weight does.
        arguments = [float if isinstance(item, float) else item for item in arguments]
        return (_described(value.func), _described(arguments))
    return _reference(value)


def _reference(value: Any) -> Hashable:
    """Something that is equal for the same object alone, and does not keep it alive."""
    try:
        reference = WeakMethod(value) if inspect.ismethod(value) else ref(value)
        hash(reference)
    except TypeError:
        return value if isinstance(value, Hashable) else object()
    return reference
