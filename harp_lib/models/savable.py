"""Refuses to save a model that its weights, by name, and its config do not fully describe."""

import copy

import torch
from torch import nn
from transformers import PreTrainedModel

RELOAD = "load the model in float32, bfloat16 or float16 without offloading"


def check_savable(model: nn.Module) -> None:
    """Raise a ValueError, with the way out, if a file of the weights would be another model.

    A saver writes the weights by name and the config, and a loader builds the model from the
    config. So each module, weight, shape and tie has to be the one that the config describes.
    Adapters, quantized modules, parametrizations and wrappers are not, whichever library made them.
    """
    _check_adapters(model)
    if not isinstance(model, PreTrainedModel):
        raise ValueError(
            f"{type(model).__name__} is not a model of transformers: if it wraps one, save the "
            "wrapped model (model._orig_mod after torch.compile, model.module after "
            "DataParallel)"
        )
    _check_weights(model)
    _check_structure(model)


def _check_adapters(model: nn.Module) -> None:
    """Raise a ValueError if ``model`` has adapters, be it wrapped or not."""
    # With this flag, `save_pretrained` of transformers writes the adapter alone.
    has_adapter = getattr(model, "_hf_peft_config_loaded", False)
    for module in model.modules():
        classes = type(module).__mro__
        if any(base.__module__.partition(".")[0] == "peft" for base in classes):
            has_adapter = True
    if has_adapter:
        raise ValueError(
            f"{type(model).__name__} has an adapter that is not merged: load it on the model "
            "without adapters by PeftModel.from_pretrained, and save what merge_and_unload() "
            "returns. An adapter that is no change of weights, as a prompt, cannot be merged; "
            "get_base_model() is the model without it"
        )


def _check_weights(model: PreTrainedModel) -> None:
    """Raise a ValueError if a weight is quantized, offloaded or sharded."""
    if getattr(model.config, "quantization_config", None) is not None:
        raise ValueError(f"a quantized model cannot be saved: {RELOAD}, and prune that")
    for name, module in model.named_modules():
        if getattr(getattr(module, "_hf_hook", None), "offload", False):
            raise ValueError(f"{name or 'the model'} is offloaded by accelerate: {RELOAD}")
    for name, tensor in model.state_dict(keep_vars=True).items():
        if tensor.is_meta:
            raise ValueError(f"{name} is offloaded (on the meta device): {RELOAD}")
        if type(tensor) not in (nn.Parameter, torch.Tensor):
            raise ValueError(
                f"{name} is a tensor of class {type(tensor).__name__} (it is quantized, or "
                f"sharded over devices): {RELOAD}, and prune that"
            )
        is_float = tensor.is_floating_point() and tensor.element_size() >= 2
        if isinstance(tensor, nn.Parameter) and not is_float:
            raise ValueError(
                f"{name} is of dtype {tensor.dtype}, as in a quantized model: {RELOAD}, and "
                "prune that"
            )


def built_from_config(model: PreTrainedModel) -> PreTrainedModel:
    """What loading makes of the config of ``model``, without values, on the meta device."""
    with torch.device("meta"):  # takes no memory, and draws no random numbers
        described = type(model)._from_config(copy.deepcopy(model.config))
    described.tie_weights()
    return described


def _check_structure(model: PreTrainedModel) -> None:
    """Raise a ValueError if a model that is built from the config has another structure."""
    described = built_from_config(model)
    modules = dict(model.named_modules(remove_duplicate=False))
    for name, module in described.named_modules():
        if name not in modules:
            raise ValueError(
                f"{name} is missing, where loading makes {type(module).__name__}: correct the "
                "config (num_hidden_layers where layers were dropped), then save"
            )
        if type(modules[name]) is not type(module):
            raise ValueError(
                f"{name} is {type(modules[name]).__name__}, where loading makes "
                f"{type(module).__name__}: undo what replaced it (merge adapters, dequantize, "
                "remove parametrizations, take compiled modules out of their wrapper), then save"
            )
    weights = model.state_dict(keep_vars=True)
    described_weights = described.state_dict(keep_vars=True)
    shapes = _shapes(weights)
    described_shapes = _shapes(described_weights)
    differing = dict(shapes.items() ^ described_shapes.items())
    if differing:
        name = min(differing)
        raise ValueError(
            f"{name} is {shapes.get(name, 'missing')}, where loading makes "
            f"{described_shapes.get(name, 'nothing')}: undo what changed the weights of its module "
            "(a mask, a weight norm, an added layer), or correct the config "
            "(resize_token_embeddings does so for embeddings), then save"
        )
    _check_ties(weights, described_weights)


def _shapes(weights: dict[str, torch.Tensor]) -> dict[str, str]:
    """The shape of each weight, in words."""
    return {name: f"a weight of shape {tuple(weight.shape)}" for name, weight in weights.items()}


def _check_ties(
    weights: dict[str, torch.Tensor], described_weights: dict[str, torch.Tensor]
) -> None:
    """Raise a ValueError if other weights are shared than those that the config ties."""
    first_tied: dict[int, str] = {}  # the first name of each weight that the config describes
    first_shared: dict[tuple, str] = {}  # the first name of each weight in memory
    for name, weight in weights.items():
        described = described_weights[name]
        tied = first_tied.setdefault(id(described), name)
        if weights[tied] is not weight and not torch.equal(weights[tied].to(weight), weight):
            raise ValueError(
                f"{name} differs from {tied}, to which the config ties it: set "
                "model.config.tie_word_embeddings = False, then save"
            )
        if weight.numel() == 0:  # it has no place in memory
            continue
        shared = first_shared.setdefault((weight.data_ptr(), weight.device, weight.shape), name)
        if described_weights[shared] is not described:
            raise ValueError(
                f"{name} is the same weight as {shared}, but the config does not tie them: give "
                "one of them a copy (or set model.config.tie_word_embeddings = True where these "
                "are the embeddings), then save"
            )
