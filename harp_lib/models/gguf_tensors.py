"""The tensors of a GGUF file, by the names and in the order of rows that llama.cpp wants.

Symbols in shapes are those of :mod:`harp_lib.pruning.layers`.
"""

from collections.abc import Iterator

import torch
from torch import nn
from transformers import PreTrainedModel

from harp_lib.pruning.architecture import decoder_layers
from harp_lib.pruning.layers import FFN_PARTS, LoneAttention, group_width


def file_tensors(model: PreTrainedModel) -> Iterator[tuple[str, torch.Tensor]]:
    """Every tensor of the file: the name that llama.cpp gives it, and its weights."""
    yield from outer_tensors(model)
    for index, layer in enumerate(decoder_layers(model)):
        for name, tensor in layer_tensors(layer, model.config.head_dim):
            yield f"blk.{index}.{name}.weight", tensor


def outer_tensors(model: PreTrainedModel) -> Iterator[tuple[str, torch.Tensor]]:
    """Names and weights of the tensors that belong to no layer."""
    decoder = model.get_decoder()
    yield "token_embd.weight", decoder.embed_tokens.weight
    yield "output_norm.weight", decoder.norm.weight
    if not model.config.tie_word_embeddings:
        yield "output.weight", model.lm_head.weight
    if model.config.rope_parameters["rope_type"] != "default":
        yield "rope_freqs.weight", _frequency_factors(model)


def layer_tensors(layer: nn.Module, head_dim: int) -> Iterator[tuple[str, torch.Tensor]]:
    """Names within a block, and weights, of one decoder layer."""
    if hasattr(layer.self_attn, "o_proj"):
        yield "attn_norm", layer.input_layernorm.weight
    yield from _attention_tensors(layer.self_attn, head_dim)
    yield "ffn_norm", layer.post_attention_layernorm.weight
    for part in FFN_PARTS:
        yield f"ffn_{part.removesuffix('_proj')}", getattr(layer.mlp, part).weight


def _frequency_factors(model: PreTrainedModel) -> torch.Tensor:
    """Factors (Dh / 2,) by which llama.cpp divides the default rotary frequencies."""
    config = model.config
    exponents = torch.arange(0, config.head_dim, 2, dtype=torch.float64) / config.head_dim
    default_frequencies = config.rope_parameters["rope_theta"] ** -exponents
    # Those of the model may be rounded to its dtype.
    rotary = type(model.get_decoder().rotary_emb)(config)
    return default_frequencies / rotary.inv_freq.double().cpu()


def _attention_tensors(attention: nn.Module, head_dim: int) -> Iterator[tuple[str, torch.Tensor]]:
    """Names within a block, and weights, of one attention module; none of skipped attention."""
    if isinstance(attention, LoneAttention):
        if hasattr(attention, "o_proj"):
            yield "attn_output", _value_only_weight(attention)
        return
    yield "attn_output", attention.o_proj.weight
    yield "attn_v", attention.v_proj.weight
    yield "attn_q", _rows_for_llama_cpp(attention.q_proj.weight, head_dim)
    yield "attn_k", _rows_for_llama_cpp(attention.k_proj.weight, head_dim)


def _value_only_weight(attention: LoneAttention) -> torch.Tensor:
    """``W_O W_V`` (d, d) of a value-only layer, as ``o_proj.weight @ v_proj.weight``."""
    heads_per_group = group_width(attention) // attention.head_dim
    values = attention.v_proj.weight.float()  # (K·Dh, d)
    values = values.unflatten(0, (-1, 1, attention.head_dim))  # (K, 1, Dh, d)
    values = values.expand(-1, heads_per_group, -1, -1)  # (K, r, Dh, d)
    values = values.flatten(0, 2)  # (H·Dh, d), each value head as often as W_O reads it
    return attention.o_proj.weight.float() @ values


def _rows_for_llama_cpp(weight: torch.Tensor, head_dim: int) -> torch.Tensor:
    """Rows of W_Q or W_K in llama.cpp's order: it rotates neighbours, not halves of a head."""
    halves = weight.unflatten(0, (-1, 2, head_dim // 2))  # (heads, 2, Dh / 2, d)
    return halves.transpose(1, 2).flatten(0, 2)  # (heads·Dh, d)
