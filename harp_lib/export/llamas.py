"""Which Llamas other programs can run: what their formats have a place for, and what they do not.

A format holds settings and weights. So a model has to compute what its config and its weights say.
"""

from collections.abc import Sequence

import torch
from accelerate import dispatch_model
from transformers import PreTrainedModel

from harp_lib.accounting import sliding_window
from harp_lib.models.same_outputs import check_same_outputs, comparable
from harp_lib.models.savable import built_from_config, check_savable
from harp_lib.pruning.architecture import decoder_layers

# Rotary positions that llama.cpp, vLLM and MLX-LM compute from the settings of a file.
ROPE_TYPES = ("default", "linear", "llama3")


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
    for index, layer in enumerate(decoder_layers(model)):
        width = sliding_window(model.config, index)
        if width is None:  # the module may be older than the config
            width = getattr(layer.self_attn, "sliding_window", None)
        if width is not None:
            raise ValueError(f"a sliding window of {width} tokens has no place in {format_name}")
    rope_type = model.config.rope_parameters["rope_type"]
    if rope_type not in ROPE_TYPES:
        raise ValueError(
            f"rotary positions of type {rope_type!r} cannot be written; {', '.join(ROPE_TYPES)} can"
        )


def check_config_says_all(model: PreTrainedModel) -> None:
    """Raise a ValueError if ``model`` computes something else than its config and weights say.

    A model is built from the config, around the very weights of ``model``, and has to compute the
    same. The frequencies of rotary positions are compared by themselves, because a short text may
    not show them.
    """
    rotary = model.get_decoder().rotary_emb
    described_rotary = type(rotary)(model.config)
    in_model = rotary.inv_freq
    described = described_rotary.inv_freq.to(in_model)  # which may be rounded to another dtype
    rounding = max(1e-5, torch.finfo(in_model.dtype).eps)
    if not torch.allclose(described, in_model, rtol=rounding, atol=0):
        raise ValueError(
            f"the model rotates queries and keys by the frequencies {in_model[:3].tolist()} …, but "
            f"its config says {described[:3].tolist()} …: set config.rope_parameters before the "
            "model is built, not afterwards"
        )
    described_rotary.inv_freq = in_model
    with comparable(model):
        copy = built_from_config(model).eval()
        copy.load_state_dict(model.state_dict(), assign=True)
        copy.get_decoder().rotary_emb = described_rotary
        if hasattr(model, "hf_device_map"):
            copy = dispatch_model(copy, model.hf_device_map)
        check_same_outputs(copy, model)
