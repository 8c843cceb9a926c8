"""What runs in a pruned layer: attention without queries and keys, and the cache entry that goes with it."""

import torch
from torch import nn
from transformers.cache_utils import Cache, DynamicLayer


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


def count_tokens(cache: Cache, layer_idx: int, hidden_states: torch.Tensor) -> None:
    """Tell ``cache`` that layer ``layer_idx`` has seen ``hidden_states`` (B, N, d), without storing anything."""
    while len(cache.layers) <= layer_idx:  # a cache made without a config grows as it is used
        cache.layers.append(cache.layer_class_to_replicate())
    entry = cache.layers[layer_idx]
    # Static and sliding entries count tokens themselves, whatever the width of the keys.
    if isinstance(entry, DynamicLayer) and not entry.is_sliding and not isinstance(entry, LengthLayer):
        if entry.get_seq_length() > 0:
            raise ValueError(f"this cache holds keys for layer {layer_idx}, which has none: another model filled it")
        cache.layers[layer_idx] = LengthLayer()
    batch, tokens, _ = hidden_states.shape
    nothing = hidden_states.new_empty(batch, 1, tokens, 0)
    cache.update(nothing, nothing, layer_idx)


class ValueOnlyAttention(nn.Module):
    """Attention with queries and keys removed: every token attends to itself alone (paper, Section 2.3).

    Computes ``H W_V W_O``; alpha is folded into the weights. Nothing is read from or written to a KV cache. The
    attention matrix is the identity and is not returned, so ``output_attentions`` leaves these layers out.

    Parameters
    ----------
    v_proj, o_proj : nn.Linear
        The projections of the attention that this module replaces, d → K·Dh and H·Dh → d; or a folded output
        projection K·Dh → d, before which no value is copied.
    head_dim : int
        Width Dh of a head.
    layer_idx : int
        Index of the layer, from the bottom.
    """

    def __init__(self, v_proj: nn.Module, o_proj: nn.Module, head_dim: int, layer_idx: int) -> None:
        super().__init__()
        self.v_proj = v_proj
        self.o_proj = o_proj
        self.head_dim = head_dim
        self.layer_idx = layer_idx
        self.queries_per_group = o_proj.in_features // v_proj.out_features

    def forward(
        self, hidden_states: torch.Tensor, *args: object, past_key_values: Cache | None = None, **kwargs: object
    ) -> tuple[torch.Tensor, None]:
        if past_key_values is not None:
            count_tokens(past_key_values, self.layer_idx, hidden_states)
        values = self.v_proj(hidden_states)  # (B, N, K·Dh)
        if self.queries_per_group > 1:
            values = values.unflatten(-1, (-1, 1, self.head_dim))  # (B, N, K, 1, Dh)
            values = values.expand(-1, -1, -1, self.queries_per_group, -1).flatten(2)  # (B, N, H·Dh)
        return self.o_proj(values), None


class SkippedAttention(nn.Module):
    """Attention of which nothing is left: with α = 0, or with all key/value groups removed.

    Parameters
    ----------
    layer_idx : int
        Index of the layer, from the bottom.
    bias : Tensor (d,), optional
        What the branch still adds to every token: W_O's bias, with what makes up for removed groups.
    """

    def __init__(self, layer_idx: int, bias: torch.Tensor | None = None) -> None:
        super().__init__()
        self.layer_idx = layer_idx
        self.bias = None if bias is None else nn.Parameter(bias)

    def forward(
        self, hidden_states: torch.Tensor, *args: object, past_key_values: Cache | None = None, **kwargs: object
    ) -> tuple[torch.Tensor, None]:
        if past_key_values is not None:
            count_tokens(past_key_values, self.layer_idx, hidden_states)
        return (torch.zeros_like(hidden_states) if self.bias is None else self.bias.expand_as(hidden_states)), None
