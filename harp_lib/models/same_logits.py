"""Whether a file computes the same as the model that it was written from."""

import inspect
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_map
from transformers import PreTrainedModel

from harp_lib.accounting import attention_window
from harp_lib.models.plain_llama import PlainLlama
from harp_lib.models.savable import check_savable
from harp_lib.pruning.architecture import decoder_layers, evaluation_mode

# Rotary positions that llama.cpp, vLLM and MLX-LM compute from the settings of a file.
ROPE_TYPES = ("default", "linear", "llama3")
NUM_TOKENS = 16
# Relative error of logits. Rounding of float32 costs a hundredth of it, and a norm's epsilon of
# 1e-5 in place of 1e-6 is eight times as much in a small random model.
TOLERANCE = 1e-4
LIKELY_REASON = (
    "Likely a setting was changed after the model was built, a module was replaced, or a hook is "
    "set: undo that, or make the change in the config before the model is built, then save"
)


def check_llama(model: PreTrainedModel, format_name: str, model_types: Sequence[str]) -> None:
    """Raise a ValueError, with the reason, if ``model`` is no Llama that a format can express."""
    check_savable(model)
    model_type = model.config.model_type
    if model_type not in model_types:
        raise ValueError(
            f"{model_type} models cannot be written as {format_name}; {', '.join(model_types)} can"
        )
    activation = model.config.hidden_act
    if activation != "silu":
        raise ValueError(f"the activation {activation!r} has no place in {format_name}; 'silu' has")
    _check_positions(model, format_name)


def _check_positions(model: PreTrainedModel, format_name: str) -> None:
    """Raise a ValueError if the model has sliding windows, or positions that runtimes do not know.

    A few tokens would not show either of them.
    """
    for index, layer in enumerate(decoder_layers(model)):
        window = attention_window(model.config, index)
        if window is None:  # the module may be older than the config
            window = getattr(layer.self_attn, "sliding_window", None)
        if window is not None:
            raise ValueError(f"a sliding window of {window} tokens has no place in {format_name}")
    rope_type = model.config.rope_parameters["rope_type"]
    if rope_type not in ROPE_TYPES:
        raise ValueError(
            f"rotary positions of type {rope_type!r} cannot be written; {', '.join(ROPE_TYPES)} can"
        )


def check_same_logits(
    model: PreTrainedModel, written: PlainLlama, tolerance: float = TOLERANCE
) -> None:
    """Raise a ValueError if what was written computes other logits than the model.

    Both read the same few tokens in float32, at positions that are far apart.

    Parameters
    ----------
    model : PreTrainedModel
        The model in memory, with its rotary positions in the decoder.
    written : PlainLlama
        What the file says.
    tolerance : float
        Largest relative error of the logits.

    Raises
    ------
    ValueError
        With the size of the difference, and what is likely the reason.
    """
    _check_frequencies(model, written.frequencies)
    with comparable(model), _in_float32(model, written.frequencies):
        expected = outputs_on_probe(model)
    if not expected.isfinite().all():
        raise ValueError("the logits of the model are not finite: look for nan and inf in it")
    error = relative_error(written.logits(*_probe(model)), expected)
    if not error <= tolerance:
        raise ValueError(
            f"the file would compute other logits than the model: they differ by {error:.2%} "
            f"({tolerance:.2%} is allowed). {LIKELY_REASON}"
        )


def relative_error(output: torch.Tensor, expected: torch.Tensor) -> float:
    """Norm of the difference, relative to the norm of ``expected``."""
    return ((output - expected).norm() / expected.norm().clamp_min(1e-30)).item()


def _check_frequencies(model: PreTrainedModel, frequencies: torch.Tensor) -> None:
    """Raise a ValueError if the model rotates by other angles than the file says.

    Logits of a few tokens may not show it.
    """
    rotary = model.get_decoder().rotary_emb
    in_model = rotary.inv_freq.float().cpu()
    rounding = max(1e-5, torch.finfo(rotary.inv_freq.dtype).eps)
    is_as_long = in_model.shape == frequencies.shape
    if is_as_long and torch.allclose(in_model, frequencies, rtol=rounding, atol=0):
        return
    raise ValueError(
        f"the model rotates queries and keys by the frequencies {in_model[:3].tolist()} …, but its "
        f"config says {frequencies[:3].tolist()} …: set config.rope_parameters before the model is "
        "built, not afterwards"
    )


def _probe(model: PreTrainedModel) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens (N,) from all over the vocabulary, and positions (N,) with growing distances."""
    num_embeddings = model.get_input_embeddings().num_embeddings
    # Token 0 is often padding; a token that comes again gives attention something to look at.
    ids = torch.arange(1, NUM_TOKENS + 1) * (num_embeddings - 1) // NUM_TOKENS
    ids[NUM_TOKENS // 2 :: 2] = ids[: NUM_TOKENS // 2 : 2]
    positions = torch.arange(NUM_TOKENS)
    longest = getattr(model.config, "max_position_embeddings", NUM_TOKENS)
    step = min(4, longest // NUM_TOKENS**2)
    if step > 0:
        positions = step * positions.pow(2)
    return ids, positions


@torch.no_grad()
def outputs_on_probe(model: PreTrainedModel) -> torch.Tensor:
    """What ``model`` puts out for a few tokens, without their batch, in float32 on the CPU."""
    ids, positions = _probe(model)
    # Without a mask, positions that are far apart would be taken for several texts.
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    if "position_ids" in inspect.signature(type(model).forward).parameters:
        inputs["position_ids"] = positions
    batch = {name: values[None].to(model.device) for name, values in inputs.items()}
    return model(**batch, use_cache=False)[0][0].float().cpu()


@contextmanager
def comparable(model: PreTrainedModel) -> Iterator[None]:
    """Context in evaluation mode without autocast, with an attention function for float32."""
    attention_function = model.config._attn_implementation
    with evaluation_mode(model), torch.autocast(model.device.type, enabled=False):
        if attention_function not in ("eager", "sdpa"):
            model.config._attn_implementation = "sdpa"
        try:
            yield
        finally:
            model.config._attn_implementation = attention_function


@contextmanager
def _in_float32(model: PreTrainedModel, frequencies: torch.Tensor) -> Iterator[None]:
    """Context in which modules compute in float32, with their weights as they are.

    Only the weights of the module that runs are converted, so that memory suffices.
    ``frequencies`` stand in for the model's own, which may be rounded.
    """
    narrow: dict[nn.Module, dict[str, nn.Parameter]] = {}  # parameters of modules that run now

    def widened(value: Any) -> Any:
        is_narrow = torch.is_tensor(value) and value.is_floating_point() and value.itemsize < 4
        return value.float() if is_narrow else value

    def widen(module: nn.Module, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
        narrow[module] = dict(module._parameters)
        for name, parameter in module._parameters.items():
            if parameter is not None:
                module._parameters[name] = nn.Parameter(widened(parameter.data), False)
        return tree_map(widened, args), tree_map(widened, kwargs)

    def restore(module: nn.Module, *_: Any) -> None:
        module._parameters.update(narrow.pop(module))

    rotary = model.get_decoder().rotary_emb
    model_frequencies = rotary.inv_freq
    with ExitStack() as hooks:
        for module in model.modules():
            if module._parameters:
                hook = module.register_forward_pre_hook(widen, prepend=True, with_kwargs=True)
                hooks.enter_context(hook)
                hook = module.register_forward_hook(restore, always_call=True)
                hooks.enter_context(hook)
        rotary.inv_freq = frequencies.to(model_frequencies.device)
        try:
            yield
        finally:
            rotary.inv_freq = model_frequencies
            for module in list(narrow):
                restore(module)
