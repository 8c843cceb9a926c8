"""The modules that replace those of a pruned layer, built from stock modules, which stay unchanged.

Symbols in shapes: d is the width of the residual stream, K the number of key/value groups, r the
number of query heads in each group, H = K·r the number of query heads, and Dh the width of a head.
When k of the K groups are kept, k·r·Dh rows of W_Q remain, k·Dh rows of W_K and of W_V, and k·r·Dh
columns of W_O.
"""

import copy
import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import nn
from transformers.cache_utils import (
    Cache,
    DynamicLayer,
    LinearAttentionAndFullAttentionLayer,
)

from .plan import LayerPlan

ATTENTION_PARTS = ("q_proj", "k_proj", "v_proj", "o_proj")
FFN_PARTS = ("gate_proj", "up_proj", "down_proj")


class LoneAttention(nn.Module):
    """Attention without queries and keys: each token attends to itself alone (paper, Section 2.3).

    The output is ``H W_V W_O``, by the projections of ``stock``: d → K·Dh → H·Dh → d, or with a
    folded W_O d → K·Dh → d, which copies no values. Alpha is not applied here.

    Without ``stock`` (alpha = 0, or all groups removed) the output is zero, or ``bias`` for every
    token. No keys and values are cached, but a KV cache is informed of how many tokens were seen.
    There is no attention matrix: in the ``attentions`` of a pruned model the layer has no heads.

    Parameters
    ----------
    layer : int
        Index under which a KV cache holds the layer.
    stock : nn.Module, optional
        The attention whose value and output projection are kept.
    fold_output : bool
        Use :func:`folded_output` of ``stock`` where query heads share value heads.
    bias : nn.Parameter, optional
        (d,), the output for every token if there is no ``stock``.
    """

    def __init__(
        self,
        layer: int,
        stock: nn.Module | None = None,
        fold_output: bool = False,
        bias: nn.Parameter | None = None,
    ) -> None:
        super().__init__()
        self.layer_idx = layer
        self.bias = bias
        if stock is not None:
            self.head_dim = stock.head_dim
            self.v_proj = stock.v_proj
            self.o_proj = stock.o_proj
            if fold_output and repeats_values(stock):
                self.o_proj = folded_output(stock)

    def forward(
        self,
        hidden_states: torch.Tensor,
        *_: Any,
        past_key_values: Cache | None = None,
        spared_tokens: int = 0,
        **__: Any,
    ) -> tuple[torch.Tensor, None]:
        if past_key_values is not None:
            count_tokens(past_key_values, self.layer_idx, hidden_states, spared_tokens)
        if hasattr(self, "v_proj"):
            output = self.attend_to_self(hidden_states)
        elif self.bias is not None:
            output = self.bias.expand_as(hidden_states)
        else:
            output = torch.zeros_like(hidden_states)
        return output, None

    def attend_to_self(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """``H W_V W_O``: attention whose weight matrix is the identity, (B, N, d) → (B, N, d)."""
        values = self.v_proj(hidden_states)  # (B, N, K·Dh)
        if repeats_values(self):
            heads_per_group = group_width(self) // self.head_dim
            values = values.unflatten(-1, (-1, 1, self.head_dim))  # (B, N, K, 1, Dh)
            values = values.expand(-1, -1, -1, heads_per_group, -1)  # (B, N, K, r, Dh)
            values = values.flatten(2)  # (B, N, H·Dh)
        return self.o_proj(values)


@torch.no_grad()
def folded_output(attention: nn.Module) -> nn.Linear:
    """The output projection (K·Dh → d) that reads each value head once instead of r times.

    ``[V_1 … V_1 … V_K … V_K] W_O = [V_1 … V_K] W_O'``, where W_O' sums W_O over the r query heads
    of each group. This is exact where each token attends to itself alone (paper, Section 2.3).
    """
    weight = attention.o_proj.weight  # (d, H·Dh)
    heads = weight.unflatten(1, (num_groups(attention), -1, attention.head_dim))  # (d, K, r, Dh)
    folded = heads.sum(2, dtype=torch.float64)  # (d, K, Dh)
    folded = folded.flatten(1).to(weight.dtype)  # (d, K·Dh)
    return linear_like(attention.o_proj, folded, attention.o_proj.bias)


class LengthLayer(DynamicLayer):
    """Cache entry that stores nothing: keys and values of width zero count the tokens."""

    def get_seq_length(self) -> int:
        # The stock method returns 0 for keys of width zero, and positions and masks would shift.
        return self.keys.shape[-2] if self.is_initialized else 0


class HybridLengthLayer(LengthLayer, LinearAttentionAndFullAttentionLayer):
    """The same for a layer with a linear attention beside, whose states are kept."""


def count_tokens(
    cache: Cache, layer: int, hidden_states: torch.Tensor, spared_tokens: int = 0
) -> None:
    """Record in ``cache`` that a layer without keys has seen the tokens of ``hidden_states``.

    Parameters
    ----------
    cache : Cache
        The KV cache of the model.
    layer : int
        Index under which the cache holds the layer.
    hidden_states : torch.Tensor
        (B, N, d); only its shape, dtype and device matter.
    spared_tokens : int
        Number of tokens before these that belong to the text but did not enter the layer.

    Raises
    ------
    ValueError
        If the cache already holds keys for this layer, from another model.
    """
    while len(cache.layers) <= layer:  # a cache made without a config grows as it is used
        if cache.layer_class_to_replicate is None:
            return  # it was made for fewer layers, and nobody asks it for this one
        cache.layers.append(cache.layer_class_to_replicate())
    if isinstance(cache.layers[layer], DynamicLayer):
        _check_empty(cache.layers[layer], layer)
        cache.layers[layer] = _counting(cache.layers[layer])
    entry = cache.layers[layer]
    batch_size, num_tokens, _ = hidden_states.shape
    num_tokens += spared_tokens
    states = []
    for stored in (entry.keys, entry.values):
        # A static entry may be allocated in advance, with the dense model's heads.
        heads, width = (1, 0) if stored is None else (stored.shape[1], stored.shape[-1])
        states.append(hidden_states.new_zeros(batch_size, heads, num_tokens, width))
    cache.update(*states, layer)


def _check_empty(entry: DynamicLayer, layer: int) -> None:
    """Raise a ValueError if ``entry``, of a layer without keys, was filled by somebody else."""
    if not entry.is_initialized:
        return
    has_width_zero = entry.keys.ndim == 4 and entry.keys.shape[-1] == 0
    if entry.get_seq_length() > 0 and not has_width_zero:
        raise ValueError(
            f"this cache holds keys for layer {layer}, which has none: another model filled it"
        )
    if has_width_zero and entry.get_seq_length() < entry.keys.shape[-2]:
        raise ValueError(
            f"this cache was made from the tensors of another, and no longer knows how many tokens "
            f"layer {layer} has seen; pass on the first cache itself, or copy.deepcopy of it"
        )


def _counting(entry: DynamicLayer) -> DynamicLayer:
    """``entry`` itself if it counts tokens whatever the width of the keys, or one that does."""
    if entry.is_sliding or isinstance(entry, LengthLayer):
        return entry
    if isinstance(entry, LinearAttentionAndFullAttentionLayer):
        entry.__class__ = HybridLengthLayer
        return entry
    return LengthLayer()


def cache_index(layers: nn.ModuleList, place: int) -> int:
    """Index under which a KV cache holds the layer at ``place`` when it is pruned.

    It is the module's own, which differs from the place if layers were dropped from the list. Where
    another layer has the same, because they share their attention, it is the first that none has.
    """
    indices = [getattr(getattr(layer, "self_attn", None), "layer_idx", None) for layer in layers]
    own = indices.pop(place)
    if own is None:
        own = place
    if own not in indices:
        return own
    return next(index for index in itertools.count() if index not in indices)


def pruned_attention(
    attention: nn.Module, layer: int, plan: LayerPlan, fold_output: bool = False
) -> nn.Module:
    """The attention that remains under ``plan``; ``attention`` itself if it loses nothing.

    A removed key/value head takes with it the query heads that read it. Alpha is not applied:
    :func:`harp_lib.pruning.surgery.fold_alpha` puts it into the weights. ``layer`` is the index
    under which a KV cache holds the layer.
    """
    if plan.alpha == 0:
        return LoneAttention(layer)
    if plan.alpha is not None:
        return LoneAttention(layer, attention, fold_output)
    if not plan.removed_groups:
        return attention
    queries = indices_of_groups(plan.removed_groups, group_width(attention))
    if len(plan.removed_groups) == num_groups(attention):
        bias = compensated_bias(attention.o_proj, queries, plan.group_means)
        return LoneAttention(layer, bias=parameter_like(attention.o_proj.weight, bias))
    keys = indices_of_groups(plan.removed_groups, attention.head_dim)
    sliced = with_parts(
        attention,
        q_proj=without_outputs(attention.q_proj, queries),
        k_proj=without_outputs(attention.k_proj, keys),
        v_proj=without_outputs(attention.v_proj, keys),
        o_proj=without_inputs(attention.o_proj, queries, plan.group_means),
    )
    sliced.layer_idx = layer
    # Most attention modules derive the number of heads from the projections; some have stored it.
    if hasattr(sliced, "num_key_value_heads"):
        sliced.num_key_value_heads = num_groups(sliced)
    if hasattr(sliced, "num_heads"):
        sliced.num_heads = sliced.o_proj.in_features // sliced.head_dim
    return sliced


def pruned_ffn(ffn: nn.Module, plan: LayerPlan) -> nn.Module:
    """A copy of a gated FFN without the channels that ``plan`` removes."""
    return with_parts(
        ffn,
        gate_proj=without_outputs(ffn.gate_proj, plan.removed_channels),
        up_proj=without_outputs(ffn.up_proj, plan.removed_channels),
        down_proj=without_inputs(ffn.down_proj, plan.removed_channels, plan.channel_means),
    )


def attends(layer: nn.Module) -> bool:
    """Whether a decoder layer has queries and keys."""
    return hasattr(getattr(layer, "self_attn", None), "q_proj")


def repeats_values(attention: nn.Module) -> bool:
    """Whether W_O reads each value head several times, once for each query head of the group."""
    return attention.o_proj.in_features > attention.v_proj.out_features


def num_groups(attention: nn.Module) -> int:
    """Number K of key/value groups of an attention module."""
    return attention.v_proj.out_features // attention.head_dim


def group_width(attention: nn.Module) -> int:
    """Number r·Dh of columns of W_O that read one key/value group."""
    return attention.o_proj.in_features // num_groups(attention)


def indices_of_groups(groups: Iterable[int], width: int) -> list[int]:
    """Indices of the rows or columns that belong to ``groups``, if each group has ``width``."""
    indices = []
    for group in groups:
        indices.extend(range(group * width, (group + 1) * width))
    return indices


@torch.no_grad()
def without_outputs(linear: nn.Linear, removed: Sequence[int]) -> nn.Linear:
    """``linear`` without some outputs: rows of its weight and entries of its bias."""
    kept = _kept_indices(linear.weight, 0, removed)
    bias = None if linear.bias is None else linear.bias.index_select(0, kept)
    return linear_like(linear, linear.weight.index_select(0, kept), bias)


@torch.no_grad()
def without_inputs(
    linear: nn.Linear, removed: Sequence[int], means: Sequence[float] | None = None
) -> nn.Linear:
    """``linear`` without some inputs: columns of its weight. Means, if given, become a bias."""
    kept = _kept_indices(linear.weight, 1, removed)
    bias = compensated_bias(linear, removed, means)
    return linear_like(linear, linear.weight.index_select(1, kept), bias)


def _kept_indices(weight: torch.Tensor, dim: int, removed: Sequence[int]) -> torch.Tensor:
    kept = sorted(set(range(weight.shape[dim])).difference(removed))
    return torch.tensor(kept, device=weight.device)


@torch.no_grad()
def compensated_bias(
    linear: nn.Linear, removed: Sequence[int], means: Sequence[float] | None
) -> torch.Tensor | None:
    """The bias (d,) of ``linear`` once some inputs are replaced by their ``means``.

    Without means it is the bias of ``linear``, which may be None.
    """
    if means is None:
        return linear.bias
    device = linear.weight.device
    columns = linear.weight.index_select(1, torch.tensor(removed, device=device))  # (d, removed)
    precision = torch.promote_types(columns.dtype, torch.float32)  # bfloat16 is too coarse for sums
    bias = columns.to(precision) @ torch.tensor(means, device=device, dtype=precision)  # (d,)
    if linear.bias is not None:
        bias = linear.bias.to(precision) + bias
    return bias.to(linear.weight.dtype)


def masked(
    module: nn.Module, part: str, removed: Sequence[int], means: Sequence[float] | None
) -> nn.Module:
    """The slow twin of a pruned module: the whole module, with columns of zeros in ``part``."""
    linear = getattr(module, part)
    columns = torch.tensor(removed, device=linear.weight.device)
    weight = linear.weight.index_fill(1, columns, 0)
    masked_linear = linear_like(linear, weight, compensated_bias(linear, removed, means))
    return with_parts(module, **{part: masked_linear})


def linear_like(stock: nn.Linear, weight: torch.Tensor, bias: torch.Tensor | None) -> nn.Linear:
    """A linear map with this weight and bias, which require a gradient if those of ``stock`` do."""
    with torch.device("meta"):  # no random numbers are drawn for weights that are replaced at once
        linear = nn.Linear(weight.shape[1], weight.shape[0], bias=False)
    linear.weight = parameter_like(stock.weight, weight)
    linear.bias = parameter_like(stock.weight, bias)
    linear.training = stock.training
    return linear


def parameter_like(stock: nn.Parameter, values: torch.Tensor | None) -> nn.Parameter | None:
    """A parameter that requires a gradient if ``stock`` does; None where there are no values."""
    if values is None:
        return None
    if values.is_inference():  # made under torch.inference_mode, where nothing takes a gradient
        values = values.clone()
    return nn.Parameter(values, stock.requires_grad)


def with_parts(module: nn.Module, **parts: nn.Module) -> nn.Module:
    """A copy of ``module`` that shares everything with it except for ``parts``."""
    twin = copy.copy(module)
    # Submodules and hooks are held in dicts; a change of the copy must not reach the original.
    for name, value in vars(module).items():
        if isinstance(value, dict):
            vars(twin)[name] = value.copy()
    # accelerate leaves these on a module that is spread over devices; they lead to the original.
    for name in ("forward", "_old_forward", "_hf_hook"):
        vars(twin).pop(name, None)
    for name, part in parts.items():
        setattr(twin, name, part)
    return twin


@torch.no_grad()
def scaled(module: nn.Module, factor: float, offset: float = 0.0) -> nn.Module:
    """A copy of ``module`` with weights w' such that offset + w' is ``factor`` (offset + w)."""
    twin = with_parts(module)
    # Its hooks and settings are those of the module; the weights become its own.
    twin._parameters, twin._modules = copy.deepcopy((module._parameters, module._modules))
    for weight in twin.parameters():
        weight.copy_(factor * (weight.double() + offset) - offset)
    return twin
