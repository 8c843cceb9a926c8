"""A pruned model as the blocks of the format ``nemotron-nas``.

Each block of this format has its own number of key/value heads, or no attention, and its own width
of the FFN. A value-only layer becomes two blocks without attention. In the first one, the FFN is
``W_O W_V``: its gate is 16 for every token, because the gate's weight is zero, its bias is 16, and
SiLU(16) = 16 up to rounding. Dividing W_V by 16 makes up for that without an error of rounding. The
second block holds the FFN of the layer.

Symbols in shapes are those of :mod:`harp_lib.pruning.layers`.
"""

import math
from typing import Any, NamedTuple

import torch
from torch import nn
from transformers import PreTrainedModel

from harp_lib.export.llamas import check_llama
from harp_lib.models.savable import RELOAD
from harp_lib.pruning.architecture import decoder_layers
from harp_lib.pruning.layers import (
    attends,
    folded_output,
    linear_like,
    num_groups,
    repeats_values,
)

MODEL_TYPES = ("llama", "mistral", "qwen2")  # RMS norms before attention and FFN, a gated FFN
WIDTH_UNIT = 256  # runtimes round the width of an FFN up to a multiple of it
CONSTANT_GATE = 16.0  # a power of two, so that dividing by it is exact; SiLU(16) = 16 (1 - 1e-7)

Tensors = dict[str, torch.Tensor]


class Block(NamedTuple):
    """One block of the format: its entry of ``block_configs``, and its weights by name."""

    settings: dict[str, dict[str, Any]]
    tensors: Tensors


def check_nemotron_nas(model: PreTrainedModel) -> None:
    """Raise a ValueError, with the reason, if ``nemotron-nas`` cannot express ``model``."""
    check_llama(model, "nemotron-nas", MODEL_TYPES)
    if getattr(model.config, "pruning_plan", None) is None:
        raise ValueError(
            "this model is not pruned: call apply_plan first, or save it with model.save_pretrained"
        )
    if any(weight.dtype == torch.float64 for weight in model.parameters()):
        raise ValueError(f"nemotron-nas has no weights of dtype torch.float64: {RELOAD}")
    bottom = decoder_layers(model)[0]
    if not attends(bottom):
        raise ValueError(
            "layer 0 has no attention, but vLLM needs it in the first layer of nemotron-nas: "
            "prune other layers, or save the model with save_pruned or save_gguf"
        )
    config = model.config
    head_dim = bottom.self_attn.head_dim
    if head_dim * config.num_attention_heads != config.hidden_size:
        raise ValueError(
            f"{config.num_attention_heads} heads of width {head_dim} do not make up the hidden "
            f"size {config.hidden_size}, as MLX-LM's nemotron-nas assumes"
        )


@torch.no_grad()
def blocks_of(model: PreTrainedModel) -> list[Block]:
    """The blocks that compute the same as the decoder layers of ``model``, from the bottom."""
    blocks = []
    for layer in decoder_layers(model):
        attention_settings: dict[str, Any] = {"no_op": True}
        tensors: Tensors = {}
        attention = layer.self_attn
        if attends(layer):
            heads_in_group, tensors = _attention(attention, model.config.num_attention_heads)
            attention_settings = {"no_op": False, "n_heads_in_group": heads_in_group}
            tensors["input_layernorm.weight"] = layer.input_layernorm.weight
        elif hasattr(attention, "v_proj") or attention.bias is not None:
            blocks.append(_value_block(layer))
        tensors.update(_ffn(layer.mlp))
        tensors["post_attention_layernorm.weight"] = layer.post_attention_layernorm.weight
        blocks.append(_block(attention_settings, tensors))
    for module in ("self_attn", "mlp"):
        _complete_biases(blocks, module)
    return blocks


def has_biases(blocks: list[Block], module: str) -> bool:
    """Whether a projection of ``module`` ("self_attn" or "mlp") has a bias in any block."""
    names = [name for block in blocks for name in block.tensors]
    return any(name.startswith(f"{module}.") and name.endswith(".bias") for name in names)


def _complete_biases(blocks: list[Block], module: str) -> None:
    """Add zero biases to all projections of ``module`` if one has any: one setting is for all."""
    if not has_biases(blocks, module):
        return
    for _, tensors in blocks:
        for name, weight in list(tensors.items()):
            if name.startswith(f"{module}.") and name.endswith(".weight"):
                bias_name = f"{name.removesuffix('weight')}bias"
                tensors.setdefault(bias_name, weight.new_zeros(len(weight)))


def _block(attention_settings: dict[str, Any], tensors: Tensors) -> Block:
    """A block with these weights, whose FFN is described by the shape of its weights."""
    width, hidden_size = tensors["mlp.up_proj.weight"].shape
    # Runtimes round int(2 * ffn_mult * hidden_size / 3) up to a multiple of 256. Half a channel is
    # left out, so that no error of rounding can lead beyond the width.
    ffn_mult = 3 * (width - 0.5) / (2 * hidden_size)
    ffn_settings = {"no_op": False, "ffn_mult": ffn_mult}
    return Block({"attention": attention_settings, "ffn": ffn_settings}, tensors)


def _attention(attention: nn.Module, num_heads: int) -> tuple[int, Tensors]:
    """Query heads in each group, and the weights, of an attention that may have lost groups.

    Every attention of the format has ``num_heads`` query heads in groups of equal size. The k
    groups of r query heads that are kept become K' groups of r' heads, where K' is the smallest
    divisor of the number of heads that is not below k. Zeros fill the rest.
    """
    head_dim = attention.head_dim
    kept_groups = num_groups(attention)
    groups = next(n for n in range(kept_groups, num_heads + 1) if num_heads % n == 0)
    heads_in_group = num_heads // groups
    query_rows = (groups, heads_in_group * head_dim)
    value_rows = (groups, head_dim)
    tensors: Tensors = {}
    for part, rows in (("q_proj", query_rows), ("k_proj", value_rows), ("v_proj", value_rows)):
        for name, tensor in getattr(attention, part).named_parameters():  # weight, and any bias
            tensors[f"self_attn.{part}.{name}"] = _padded_groups(tensor, kept_groups, rows)
    output = attention.o_proj  # it reads query heads by the columns of its weight
    columns = _padded_groups(output.weight.T, kept_groups, query_rows)  # (r'·K'·Dh, d)
    tensors["self_attn.o_proj.weight"] = columns.T
    if output.bias is not None:
        tensors["self_attn.o_proj.bias"] = output.bias
    return heads_in_group, tensors


def _padded_groups(tensor: torch.Tensor, kept_groups: int, shape: tuple[int, int]) -> torch.Tensor:
    """Rows of ``kept_groups`` groups, with zeros for more groups and for more rows in each.

    ``shape`` is the number of groups and of rows in each group afterwards.
    """
    groups = tensor.unflatten(0, (kept_groups, -1))  # (k, rows, …)
    return _padded(groups, shape).flatten(0, 1)  # (K'·rows', …)


def _padded(tensor: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    """``tensor`` with zeros behind its entries, so that its first dimensions are ``shape``."""
    full_shape = (*shape, *tensor.shape[len(shape) :])
    if tensor.shape == full_shape:
        return tensor
    padded = tensor.new_zeros(full_shape)
    padded[tuple(slice(size) for size in tensor.shape)] = tensor
    return padded


def _rounded_up(width: int) -> int:
    """``width`` as a multiple of the unit in which runtimes count."""
    return math.ceil(width / WIDTH_UNIT) * WIDTH_UNIT


def _ffn(ffn: nn.Module) -> Tensors:
    """The weights of an FFN, with zeros for channels that round its width up."""
    hidden_size, width = ffn.down_proj.weight.shape
    width = _rounded_up(width)
    tensors: Tensors = {}
    for part in ("gate_proj", "up_proj"):
        for name, tensor in getattr(ffn, part).named_parameters():
            tensors[f"mlp.{part}.{name}"] = _padded(tensor, (width,))
    tensors["mlp.down_proj.weight"] = _padded(ffn.down_proj.weight, (hidden_size, width))
    if ffn.down_proj.bias is not None:
        tensors["mlp.down_proj.bias"] = ffn.down_proj.bias
    return tensors


def _value_block(layer: nn.Module) -> Block:
    """The block whose FFN is the attention branch of a layer without queries and keys."""
    values, output = _value_projections(layer)
    hidden_size = values.in_features
    width = _rounded_up(values.out_features)
    up = _padded(values.weight / CONSTANT_GATE, (width,))
    tensors = {
        "mlp.gate_proj.weight": torch.zeros_like(up),
        "mlp.gate_proj.bias": up.new_full((width,), CONSTANT_GATE),
        "mlp.up_proj.weight": up,  # (width, d)
        "mlp.down_proj.weight": _padded(output.weight, (hidden_size, width)),
        "post_attention_layernorm.weight": layer.input_layernorm.weight,
    }
    if values.bias is not None:
        tensors["mlp.up_proj.bias"] = _padded(values.bias / CONSTANT_GATE, (width,))
    if output.bias is not None:
        tensors["mlp.down_proj.bias"] = output.bias
    return _block({"no_op": True}, tensors)


def _value_projections(layer: nn.Module) -> tuple[nn.Linear, nn.Linear]:
    """The value projection, and the output projection that reads each value head once.

    If the layer adds the same vector to every token, this is the bias of an output projection that
    reads one channel of zeros.
    """
    attention = layer.self_attn
    if not hasattr(attention, "v_proj"):
        hidden_size = len(attention.bias)
        zeros = attention.bias.new_zeros(1, hidden_size)
        values = linear_like(layer.mlp.up_proj, zeros, None)
        return values, linear_like(layer.mlp.up_proj, zeros.T, attention.bias)
    if repeats_values(attention):
        return attention.v_proj, folded_output(attention)
    return attention.v_proj, attention.o_proj
