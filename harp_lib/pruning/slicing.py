"""What stands in for the modules of a pruned layer: new modules, made of stock ones that stay as they are."""

import copy
from collections.abc import Sequence

import torch
from torch import nn

from .modeling import SkippedAttention, ValueOnlyAttention
from .plan import LayerPlan

ATTENTION_PARTS = ("q_proj", "k_proj", "v_proj", "o_proj")
FFN_PARTS = ("gate_proj", "up_proj", "down_proj")


def pruned_attention(attention: nn.Module, layer: int, plan: LayerPlan, fold_output: bool = False) -> nn.Module:
    """The attention that stays under ``plan``; ``attention`` itself where it loses nothing. Alpha is not folded.

    Of the K groups with r query heads each, k stay: rows k·r·Dh of Q, k·Dh of K and V, columns k·r·Dh of W_O. Only the
    W_O of a value-only layer is folded.
    """
    if plan.alpha is not None:
        return SkippedAttention(layer) if plan.alpha == 0 else value_only(attention, layer, fold_output)
    if not plan.removed_groups:
        return attention
    groups, removed = num_groups(attention), plan.removed_groups
    kept = [group for group in range(groups) if group not in removed]
    columns, output = group_width(attention), attention.o_proj
    bias = bias_without(output, blocks(removed, columns), plan.group_means)
    if not kept:
        return SkippedAttention(layer, bias)
    parts = {
        "q_proj": keep_rows(attention.q_proj, blocks(kept, columns)),
        "k_proj": keep_rows(attention.k_proj, blocks(kept, attention.head_dim)),
        "v_proj": keep_rows(attention.v_proj, blocks(kept, attention.head_dim)),
        "o_proj": keep_columns(output, blocks(kept, columns), bias),
    }
    sliced = with_parts(attention, parts)
    # Most attention modules read the number of heads off the projections; some have counted it.
    for name, heads in (("num_key_value_heads", len(kept)), ("num_heads", len(kept) * columns // attention.head_dim)):
        if hasattr(sliced, name):
            setattr(sliced, name, heads)
    return sliced


def pruned_ffn(ffn: nn.Module, plan: LayerPlan) -> nn.Module:
    """The gated FFN that stays under ``plan``; ``ffn`` itself where it loses nothing."""
    if not plan.removed_channels:
        return ffn
    removed = set(plan.removed_channels)
    kept = [channel for channel in range(ffn.down_proj.in_features) if channel not in removed]
    output = ffn.down_proj
    parts = {
        "gate_proj": keep_rows(ffn.gate_proj, kept),
        "up_proj": keep_rows(ffn.up_proj, kept),
        "down_proj": keep_columns(output, kept, bias_without(output, plan.removed_channels, plan.channel_means)),
    }
    return with_parts(ffn, parts)


def value_only(attention: nn.Module, layer: int, fold_output: bool = False) -> ValueOnlyAttention:
    """The value-only attention that shares ``v_proj`` with ``attention``, and ``o_proj`` unless that is folded."""
    output = folded_output(attention) if fold_output else attention.o_proj
    return ValueOnlyAttention(attention.v_proj, output, attention.head_dim, layer)


@torch.no_grad()
def folded_output(attention: nn.Module) -> nn.Linear:
    """The output projection that reads each value head once, instead of a copy for each of its r query heads.

    ``[V_1 … V_1 … V_K … V_K] W_O = [V_1 … V_K] W_O'``, where W_O' sums W_O over the r query heads of each group: exact
    where all r read the same, as they do where each token attends to itself alone (paper, Section 2.3).

    Returns
    -------
    nn.Linear
        K·Dh → d, with the bias of ``o_proj``; ``o_proj`` itself where r is 1.
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
    """Columns of W_O that read one key/value group: its query heads times the head dimension."""
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
def bias_without(linear: nn.Linear, removed: Sequence[int], means: Sequence[float] | None) -> torch.Tensor | None:
    """The bias of a linear map that loses inputs: with the constant that their means come to, if given."""
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
