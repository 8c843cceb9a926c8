"""What stands in for the modules of a pruned layer: made of stock modules, which stay as they are.

Of the K key/value groups of a layer with r query heads each, of width Dh, k stay: rows k·r·Dh of Q, k·Dh of K and V,
columns k·r·Dh of W_O.
"""

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn
from transformers.cache_utils import Cache, DynamicLayer

from .plan import LayerPlan

ATTENTION_PARTS = ("q_proj", "k_proj", "v_proj", "o_proj")
FFN_PARTS = ("gate_proj", "up_proj", "down_proj")


class LengthLayer(DynamicLayer):
    """Cache entry of a layer that caches nothing: counts tokens with keys and values of width zero.

    transformers asks the first layer of a cache how many tokens it has seen. ``DynamicLayer`` answers 0 whenever
    its keys hold no numbers, which would silently shift positions and masks if that layer is value-only.
    """

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        self.dtype, self.device = key_states.dtype, key_states.device
        self.keys, self.values = key_states[..., :0, :], value_states[..., :0, :]  # (B, 1, 0, 0)
        self.is_initialized = True

    def get_seq_length(self) -> int:
        return self.keys.shape[-2] if self.is_initialized else 0


def count_tokens(cache: Cache, layer_idx: int, hidden_states: torch.Tensor, spared: int = 0) -> None:
    """Tell ``cache`` that a layer has seen ``hidden_states`` (B, N, d), after some that it was spared."""
    while len(cache.layers) <= layer_idx:  # a cache made without a config grows as it is used
        cache.layers.append(cache.layer_class_to_replicate())
    entry = cache.layers[layer_idx]
    # Static and sliding entries count tokens themselves, whatever the width of the keys.
    if isinstance(entry, DynamicLayer) and not entry.is_sliding and not isinstance(entry, LengthLayer):
        if entry.get_seq_length() > 0:
            raise ValueError(f"this cache holds keys for layer {layer_idx}, which has none: another model filled it")
        cache.layers[layer_idx] = LengthLayer()
    batch, tokens, _ = hidden_states.shape
    nothing = hidden_states.new_empty(batch, 1, spared + tokens, 0)
    cache.update(nothing, nothing, layer_idx)


class LoneAttention(nn.Module):
    """Attention with queries and keys removed: every token attends to itself alone (paper, Section 2.3).

    Computes ``H W_V W_O``, d → K·Dh → H·Dh → d, or with a folded output projection d → K·Dh → d, which copies no value;
    alpha is folded into the weights. Without projections nothing is left, with α = 0 or all groups removed, but perhaps
    a bias (d,) for every token. Nothing is written to a KV cache but how many tokens were seen. There is no attention
    matrix to return, so ``output_attentions`` leaves these layers out.
    """

    def __init__(
        self,
        layer_idx: int,
        v_proj: nn.Module | None = None,
        o_proj: nn.Module | None = None,
        head_dim: int = 0,
        bias: torch.Tensor | None = None,
    ) -> None:
        super().__init__()
        self.layer_idx, self.head_dim = layer_idx, head_dim
        if v_proj is not None:
            self.v_proj, self.o_proj = v_proj, o_proj
        self.bias = None if bias is None else nn.Parameter(bias)

    def forward(
        self,
        hidden_states: torch.Tensor,
        *args: Any,
        past_key_values: Cache | None = None,
        spared: int = 0,
        **kwargs: Any,
    ) -> tuple[torch.Tensor, None]:
        if past_key_values is not None:
            count_tokens(past_key_values, self.layer_idx, hidden_states, spared)
        if not hasattr(self, "v_proj"):
            left = torch.zeros_like(hidden_states) if self.bias is None else self.bias.expand_as(hidden_states)
            return left, None
        values = self.v_proj(hidden_states)  # (B, N, K·Dh)
        if folds(self):
            values = values.unflatten(-1, (-1, 1, self.head_dim))  # (B, N, K, 1, Dh)
            values = values.expand(-1, -1, -1, group_width(self) // self.head_dim, -1).flatten(2)  # (B, N, H·Dh)
        return self.o_proj(values), None


def pruned_attention(attention: nn.Module, layer: int, plan: LayerPlan, fold_output: bool = False) -> nn.Module:
    """The attention that stays under ``plan``; ``attention`` itself where it loses nothing. Alpha is not folded."""
    if plan.alpha is not None:
        return LoneAttention(layer) if plan.alpha == 0 else value_only(attention, layer, fold_output)
    if not plan.removed_groups:
        return attention
    removed, width, output = plan.removed_groups, group_width(attention), attention.o_proj
    kept = [group for group in range(num_groups(attention)) if group not in removed]
    bias = bias_without(output, blocks(removed, width), plan.group_means)
    if not kept:
        return LoneAttention(layer, bias=bias)
    parts = {
        "q_proj": keep_rows(attention.q_proj, blocks(kept, width)),
        "k_proj": keep_rows(attention.k_proj, blocks(kept, attention.head_dim)),
        "v_proj": keep_rows(attention.v_proj, blocks(kept, attention.head_dim)),
        "o_proj": keep_columns(output, blocks(kept, width), bias),
    }
    sliced = with_parts(attention, parts)
    # Most attention modules read the number of heads off the projections; some have counted it.
    for name, heads in (("num_key_value_heads", len(kept)), ("num_heads", len(kept) * width // attention.head_dim)):
        if hasattr(sliced, name):
            setattr(sliced, name, heads)
    return sliced


def pruned_ffn(ffn: nn.Module, plan: LayerPlan) -> nn.Module:
    """The gated FFN that stays under ``plan``; ``ffn`` itself where it loses nothing."""
    if not plan.removed_channels:
        return ffn
    removed, output = set(plan.removed_channels), ffn.down_proj
    kept = [channel for channel in range(output.in_features) if channel not in removed]
    parts = {
        "gate_proj": keep_rows(ffn.gate_proj, kept),
        "up_proj": keep_rows(ffn.up_proj, kept),
        "down_proj": keep_columns(output, kept, bias_without(output, plan.removed_channels, plan.channel_means)),
    }
    return with_parts(ffn, parts)


def value_only(attention: nn.Module, layer: int, fold_output: bool = False) -> LoneAttention:
    """The value-only attention that shares ``v_proj`` with ``attention``, and ``o_proj`` unless that is folded."""
    output = folded_output(attention) if fold_output else attention.o_proj
    return LoneAttention(layer, attention.v_proj, output, attention.head_dim)


def refitted(attention: nn.Module, layer: int, weights: Mapping[str, torch.Tensor]) -> LoneAttention:
    """The folded value-only attention with other weights: ``v_proj.weight`` (K·Dh, d), ``o_proj.weight`` (d, K·Dh)."""
    own, parts = value_only(attention, layer, fold_output=True), {}
    for name in ("v_proj", "o_proj"):
        stock, weight = getattr(own, name), weights[f"{name}.weight"]
        if weight.shape != stock.weight.shape:
            wanted, given = tuple(stock.weight.shape), tuple(weight.shape)
            raise ValueError(f"layer {layer}: {name}.weight has to be of shape {wanted}; got {given}")
        bias = weights.get(f"{name}.bias", stock.bias)
        parts[name] = _linear(weight.to(stock.weight), bias, stock.weight.requires_grad)
    return LoneAttention(layer, **parts, head_dim=attention.head_dim)


@torch.no_grad()
def folded_output(attention: nn.Module) -> nn.Linear:
    """The output projection (K·Dh → d) that reads each value head once, not a copy for each of its r query heads.

    ``[V_1 … V_1 … V_K … V_K] W_O = [V_1 … V_K] W_O'``, where W_O' sums W_O over the r query heads of each group: exact
    where each token attends to itself alone (paper, Section 2.3). ``o_proj`` itself where r is 1.
    """
    output = attention.o_proj
    if not folds(attention):
        return output
    heads = output.weight.unflatten(1, (num_groups(attention), -1, attention.head_dim))  # (d, K, r, Dh)
    weight = heads.sum(2, dtype=torch.float64).flatten(1)  # (d, K·Dh)
    folded = _linear(weight.to(output.weight.dtype), None, output.weight.requires_grad)
    folded.bias = output.bias
    return folded


def folds(attention: nn.Module) -> bool:
    """Whether several query heads share a value head."""
    return attention.o_proj.in_features > attention.v_proj.out_features


def num_groups(attention: nn.Module) -> int:
    """Key/value groups K of an attention module."""
    return attention.v_proj.out_features // attention.head_dim


def group_width(attention: nn.Module) -> int:
    """Columns r·Dh of W_O that read one key/value group."""
    return attention.o_proj.in_features // num_groups(attention)


def blocks(groups: Sequence[int], width: int) -> list[int]:
    """Rows or columns that belong to some groups of ``width`` each."""
    return [group * width + i for group in groups for i in range(width)]


@torch.no_grad()
def keep_rows(linear: nn.Linear, rows: Sequence[int]) -> nn.Linear:
    """The linear map to some of the outputs."""
    kept = torch.tensor(rows, device=linear.weight.device)
    bias = None if linear.bias is None else linear.bias.index_select(0, kept)
    return _linear(linear.weight.index_select(0, kept), bias, linear.weight.requires_grad)


@torch.no_grad()
def keep_columns(linear: nn.Linear, columns: Sequence[int], bias: torch.Tensor | None) -> nn.Linear:
    """The linear map of some of the inputs, with another bias."""
    kept = torch.tensor(columns, device=linear.weight.device)
    return _linear(linear.weight.index_select(1, kept), bias, linear.weight.requires_grad)


@torch.no_grad()
def masked_columns(linear: nn.Linear, columns: Sequence[int], means: Sequence[float] | None) -> nn.Linear:
    """The linear map as if these inputs were zero, or their means: the slow twin of :func:`keep_columns`."""
    weight = linear.weight.clone()
    weight[:, columns] = 0
    return _linear(weight, bias_without(linear, columns, means), False)


@torch.no_grad()
def bias_without(linear: nn.Linear, removed: Sequence[int], means: Sequence[float] | None) -> torch.Tensor | None:
    """The bias (d,) of a linear map that loses inputs: with the constant that their means come to, if given."""
    weight, bias, device = linear.weight, linear.bias, linear.weight.device
    if means is None:
        return None if bias is None else bias.clone()
    gone = weight.index_select(1, torch.tensor(removed, device=device)).float()  # (d, removed)
    constant = gone @ torch.tensor(means, device=device, dtype=torch.float32)
    return (constant if bias is None else bias.float() + constant).to(weight.dtype)


def _linear(weight: torch.Tensor, bias: torch.Tensor | None, requires_grad: bool) -> nn.Linear:
    with torch.device("meta"):  # no random numbers are drawn for weights that are replaced at once
        linear = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None)
    linear.weight = nn.Parameter(weight, requires_grad)
    if bias is not None:
        linear.bias = nn.Parameter(bias, requires_grad)
    return linear


def with_parts(module: nn.Module, parts: dict[str, nn.Module]) -> nn.Module:
    """A copy of ``module`` that shares everything with it except for ``parts``."""
    twin = copy.copy(module)
    for name, value in vars(module).items():
        if isinstance(value, dict):  # submodules and hooks: what is changed in the copy stays in the copy
            setattr(twin, name, value.copy())
    # What accelerate leaves on a module that is spread over devices leads back to the original.
    for name in ("forward", "_old_forward", "_hf_hook"):
        vars(twin).pop(name, None)
    for name, part in parts.items():
        setattr(twin, name, part.train(module.training))
    return twin
