"""What stands in for the modules of a pruned layer: made of stock modules, which stay as they are.

Of K key/value groups of r query heads of width Dh, k stay: k·r·Dh rows of Q, k·Dh of K and V,
k·r·Dh columns of W_O.
"""

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from transformers.cache_utils import Cache, DynamicLayer

from .plan import LayerPlan

ATTENTION_PARTS = ("q_proj", "k_proj", "v_proj", "o_proj")
FFN_PARTS = ("gate_proj", "up_proj", "down_proj")


class LengthLayer(DynamicLayer):
    """Cache entry of a layer that caches nothing: counts tokens with keys and values of width zero."""

    def get_seq_length(
        self,
    ) -> int:  # the stock one is 0 where keys hold no numbers: positions and masks would shift
        return self.keys.shape[-2] if self.is_initialized else 0


def count_tokens(cache: Cache, layer: int, hidden_states: torch.Tensor, spared: int = 0) -> None:
    """Tell ``cache`` that a layer has seen ``hidden_states`` (B, N, d), after some that it was
    spared.
    """
    while len(cache.layers) <= layer:  # a cache made without a config grows as it is used
        cache.layers.append(cache.layer_class_to_replicate())
    entry = cache.layers[layer]
    # Static and sliding entries count tokens themselves, whatever the width of the keys.
    if (
        isinstance(entry, DynamicLayer)
        and not entry.is_sliding
        and not isinstance(entry, LengthLayer)
    ):
        if entry.get_seq_length() > 0:
            raise ValueError(
                f"this cache holds keys for layer {layer}, which has none: another model filled it"
            )
        cache.layers[layer] = LengthLayer()
    batch, tokens, _ = hidden_states.shape
    nothing = hidden_states.new_empty(batch, 1, spared + tokens, 0)
    cache.update(nothing, nothing, layer)


class LoneAttention(nn.Module):
    """Attention with queries and keys removed: every token attends to itself alone (paper, Section
    2.3).

    ``H W_V W_O`` by the projections of ``stock``, d → K·Dh → H·Dh → d, or folded d → K·Dh → d,
    which copies no value. Without ``stock``, with α = 0 or all groups removed, nothing is left but
    perhaps a bias (d,) for every token. A KV cache is told how many tokens were seen. There is no
    attention matrix that ``output_attentions`` could show.
    """

    def __init__(
        self,
        layer: int,
        stock: nn.Module | None = None,
        fold_output: bool = False,
        bias: torch.Tensor | None = None,
    ) -> None:
        super().__init__()
        self.layer_idx, self.bias = layer, None if bias is None else nn.Parameter(bias)
        if stock is not None:
            self.head_dim, self.v_proj = stock.head_dim, stock.v_proj
            self.o_proj = folded_output(stock) if fold_output and folds(stock) else stock.o_proj

    def forward(
        self,
        hidden_states: torch.Tensor,
        *_: Any,
        past_key_values: Cache | None = None,
        spared: int = 0,
        **__: Any,
    ) -> tuple[torch.Tensor, None]:
        if past_key_values is not None:
            count_tokens(past_key_values, self.layer_idx, hidden_states, spared)
        if not hasattr(self, "v_proj"):
            left = (
                torch.zeros_like(hidden_states)
                if self.bias is None
                else self.bias.expand_as(hidden_states)
            )
            return left, None
        values = self.v_proj(hidden_states)  # (B, N, K·Dh)
        if folds(self):
            values = values.unflatten(-1, (-1, 1, self.head_dim))  # (B, N, K, 1, Dh)
            values = values.expand(-1, -1, -1, group_width(self) // self.head_dim, -1).flatten(
                2
            )  # (B, N, H·Dh)
        return self.o_proj(values), None


def pruned_attention(
    attention: nn.Module, layer: int, plan: LayerPlan, fold_output: bool = False
) -> nn.Module:
    """The attention that stays under ``plan``; ``attention`` itself where it loses nothing. Alpha
    is not folded.
    """
    if plan.alpha is not None:
        return LoneAttention(layer, attention if plan.alpha else None, fold_output)
    if not plan.removed_groups:
        return attention
    width, groups = group_width(attention), num_groups(attention) - len(plan.removed_groups)
    keys, queries = (
        blocks(plan.removed_groups, attention.head_dim),
        blocks(plan.removed_groups, width),
    )
    if not groups:
        return LoneAttention(layer, bias=bias_without(attention.o_proj, queries, plan.group_means))
    sliced = with_parts(
        attention,
        q_proj=without(attention.q_proj, 0, queries),
        k_proj=without(attention.k_proj, 0, keys),
        v_proj=without(attention.v_proj, 0, keys),
        o_proj=without(attention.o_proj, 1, queries, plan.group_means),
    )
    # Most attention modules read the number of heads off the projections; some have counted it.
    for name, heads in (
        ("num_key_value_heads", groups),
        ("num_heads", groups * width // attention.head_dim),
    ):
        if hasattr(sliced, name):
            setattr(sliced, name, heads)
    return sliced


def pruned_ffn(ffn: nn.Module, plan: LayerPlan) -> nn.Module:
    """The gated FFN that stays under ``plan``."""
    gate, up = (
        without(linear, 0, plan.removed_channels) for linear in (ffn.gate_proj, ffn.up_proj)
    )
    down = without(ffn.down_proj, 1, plan.removed_channels, plan.channel_means)
    return with_parts(ffn, gate_proj=gate, up_proj=up, down_proj=down)


@torch.no_grad()
def folded_output(attention: nn.Module) -> nn.Linear:
    """The output projection (K·Dh → d) that reads each value head once, not a copy for each of its
    r query heads.

    ``[V_1 … V_1 … V_K … V_K] W_O = [V_1 … V_K] W_O'``, where W_O' sums W_O over the r query heads
    of each group: exact where each token attends to itself alone (paper, Section 2.3).
    """
    heads = attention.o_proj.weight.unflatten(
        1, (num_groups(attention), -1, attention.head_dim)
    )  # (d, K, r, Dh)
    weight = heads.sum(2, dtype=torch.float64).flatten(1)  # (d, K·Dh)
    return linear_like(attention.o_proj, weight.to(heads.dtype), attention.o_proj.bias)


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
def without(
    linear: nn.Linear, dim: int, removed: Sequence[int], means: Sequence[float] | None = None
) -> nn.Linear:
    """The linear map without some outputs (``dim`` 0) or inputs (1), whose means become a bias, if
    given.
    """
    others = sorted({*range(linear.weight.shape[dim])}.difference(removed))
    kept = torch.tensor(others, device=linear.weight.device)
    bias = bias_without(linear, removed, means) if dim == 1 else linear.bias
    if dim == 0 and bias is not None:
        bias = bias.index_select(0, kept)
    return linear_like(linear, linear.weight.index_select(dim, kept), bias)


def masked(
    module: nn.Module, part: str, removed: Sequence[int], means: Sequence[float] | None
) -> nn.Module:
    """The slow twin of a pruned module: a whole one, with columns of zeros in its last ``part``."""
    linear = getattr(module, part)
    weight = linear.weight.index_fill(1, torch.tensor(removed, device=linear.weight.device), 0)
    return with_parts(
        module, **{part: linear_like(linear, weight, bias_without(linear, removed, means))}
    )


@torch.no_grad()
def bias_without(
    linear: nn.Linear, removed: Sequence[int], means: Sequence[float] | None
) -> torch.Tensor | None:
    """The bias (d,) of a linear map that loses inputs: with the constant that their means come to,
    if given.
    """
    weight, bias, device = linear.weight, linear.bias, linear.weight.device
    if means is None:
        return bias
    gone = weight.index_select(1, torch.tensor(removed, device=device)).float()  # (d, removed)
    constant = gone @ torch.tensor(means, device=device, dtype=torch.float32)
    return (constant if bias is None else bias.float() + constant).to(weight.dtype)


def linear_like(stock: nn.Linear, weight: torch.Tensor, bias: torch.Tensor | None) -> nn.Linear:
    """A linear map with these weights, which are trained if those of ``stock`` are."""
    with torch.device("meta"):  # no random numbers are drawn for weights that are replaced at once
        linear = nn.Linear(weight.shape[1], weight.shape[0], bias=False)
    linear.weight = nn.Parameter(weight, stock.weight.requires_grad)
    linear.bias = None if bias is None else nn.Parameter(bias, stock.weight.requires_grad)
    return linear


def with_parts(module: nn.Module, **parts: nn.Module) -> nn.Module:
    """A copy of ``module`` that shares everything with it except for ``parts``."""
    twin = copy.copy(module)
    # Submodules and hooks: what is changed in the copy stays in the copy.
    vars(twin).update(
        {name: value.copy() for name, value in vars(module).items() if isinstance(value, dict)}
    )
    # What accelerate leaves on a module that is spread over devices leads back to the original.
    for name in ("forward", "_old_forward", "_hf_hook"):
        vars(twin).pop(name, None)
    for name, part in parts.items():
        setattr(twin, name, part.train(module.training))
    return twin
