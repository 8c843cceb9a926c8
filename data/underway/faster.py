"""Write answers faster on a CPU, for the queue alone: ``install()`` before anything is computed.

Texts that are written side by side begin with the same examples: their keys and values are kept
once, and read once for all texts. And bfloat16 weights are packed for oneDNN once for each model
that writes, not at every product. In bfloat16 both change the rounding, as other kernels do.
"""

from contextlib import AbstractContextManager, nullcontext
from itertools import takewhile
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from transformers import PreTrainedModel
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from harp_lib.prefix_lm import lm
from harp_lib.prefix_lm.cache import DynamicCache, ReadPrompt, RoomyLayer, TextBatch, padded
from harp_lib.prefix_lm.onednn import OneDNN

WORTH_SHARING = 64  # tokens
MOST_ROWS = 512  # tokens in a pass for which weights are packed

attention_of_each_text = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
stock_attention = ALL_ATTENTION_FUNCTIONS["sdpa"]
packed_weights: dict[tuple, torch.Tensor] = {}


def install() -> None:
    """Let :class:`.PrefixLM` write in this way."""
    ALL_ATTENTION_FUNCTIONS["sdpa"] = attention
    lm.TextBatch = SharedBatch
    lm.by_onednn = by_onednn


class SharedLayer(RoomyLayer):
    """A cache layer whose first P places are the same in all texts, and kept once."""

    def __init__(
        self,
        keys: torch.Tensor,
        values: torch.Tensor,
        num_tokens: int,
        shared_keys: torch.Tensor,
        shared_values: torch.Tensor,
    ) -> None:
        self.shared_keys = shared_keys  # (K, P, Dh)
        self.shared_values = shared_values
        super().__init__(keys, values, num_tokens)

    def update(
        self, keys: torch.Tensor, values: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Those of each text's own tokens; the keys have what is shared as an attribute."""
        keys, values = super().update(keys, values)
        keys = keys.view_as(keys)
        keys.shared = self.shared_keys, self.shared_values
        return keys, values

    def get_seq_length(self) -> int:
        return self.num_tokens + self.shared_keys.shape[1]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.get_seq_length() + query_length, 0


class SharedBatch(TextBatch):
    """Texts that are written side by side, with what they begin with kept once."""

    def __init__(self, prompts: list[ReadPrompt], max_new_tokens: int) -> None:
        texts = [prompt.tokens for prompt in prompts]
        alike = takewhile(lambda tokens: len(set(tokens)) == 1, zip(*texts, strict=False))
        shared = sum(1 for _ in alike)
        shared = min(shared, min(map(len, texts)) - 1)
        every_token_cached = all(
            keys.shape[1] in (0, len(prompt.tokens))
            for prompt in prompts
            for keys, _ in prompt.layers
        )
        if len(texts) == 1 or shared < WORTH_SHARING or not every_token_cached:
            super().__init__(prompts, max_new_tokens)
            return
        self.texts = list(range(len(prompts)))
        self._lengths = torch.tensor([len(text) for text in texts])  # (B,)
        longest = int(self._lengths.max())
        self.positions = torch.arange(longest).expand(len(prompts), -1)
        self.visible = self.positions < self._lengths[:, None]
        self.cache = DynamicCache()
        for parts in zip(*(prompt.layers for prompt in prompts), strict=True):
            first_keys, first_values = parts[0]  # (K, N, Dh) each
            start = 0 if first_keys.shape[-1] == 0 else shared
            room = longest - start + max_new_tokens
            keys = torch.stack([padded(keys[:, start:], room) for keys, _ in parts])
            values = torch.stack([padded(values[:, start:], room) for _, values in parts])
            if start == 0:  # a value-only layer
                layer = RoomyLayer(keys, values, longest)
            else:
                first_keys = first_keys[:, :shared].contiguous()
                first_values = first_values[:, :shared].contiguous()
                layer = SharedLayer(keys, values, longest - shared, first_keys, first_values)
            self.cache.layers.append(layer)


def attention(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Attention to the shared keys and to a text's own ones, joined by their log-sum-exp."""
    if not hasattr(key, "shared"):
        return stock_attention(
            module, query, key, value, attention_mask, dropout, scaling, **kwargs
        )
    shared_keys, shared_values = key.shared  # (K, P, Dh) each
    num_texts, num_heads, _, width = query.shape  # one token of each text
    groups, num_shared, _ = shared_keys.shape
    size = num_heads // groups  # query heads of each group, G
    query = query.reshape(num_texts, groups, size, width)
    mask = attention_mask.expand(num_texts, 1, size, -1)  # (B, 1, G, P + S)
    own = attention_of_each_text(query, key, value, attn_mask=mask[..., num_shared:], scale=scaling)
    # To the shared keys, the queries of all texts are as those of one text.
    mask = mask[..., :num_shared].reshape(1, 1, -1, num_shared)
    shared = attention_of_each_text(
        query.transpose(0, 1).reshape(1, groups, -1, width),
        shared_keys[None],
        shared_values[None],
        attn_mask=mask if mask.any() else None,  # a sliding window does not see all of them
        scale=scaling,
    )
    of_texts = (
        part.reshape(groups, num_texts, size, -1).transpose(0, 1).float() for part in shared
    )
    output = joined(*(part.reshape(num_texts, groups, size, -1) for part in own), *of_texts)
    return output.to(value.dtype).reshape(num_texts, 1, num_heads, width), None


def joined(
    output: torch.Tensor, lse: torch.Tensor, other_output: torch.Tensor, other_lse: torch.Tensor
) -> torch.Tensor:
    """Attention to two sets of keys, from that to each and its log-sum-exp (…, 1) of scores."""
    weight = torch.sigmoid(other_lse - lse)
    return output + weight * (other_output - output)


class PackedOneDNN(OneDNN):
    """oneDNN, also for bfloat16, with weights that are packed at their first product."""

    def __torch_function__(
        self, function: Any, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        if function is F.linear and not kwargs and args[1].dtype == torch.bfloat16:
            x, weight, bias = (*args, None)[:3]
            rows = x.numel() // x.shape[-1]
            if type(weight) is nn.Parameter and weight.is_contiguous() and 1 < rows <= MOST_ROWS:
                packed = packed_weight(weight)
                return torch.ops.mkldnn._linear_pointwise(
                    x.contiguous(), packed, bias, "none", [], ""
                )
        return super().__torch_function__(function, types, args, kwargs)


def packed_weight(weight: nn.Parameter) -> torch.Tensor:
    key = (weight.data_ptr(), weight.shape, weight._version)
    if key not in packed_weights:
        pack = torch.ops.mkldnn._reorder_linear_weight
        packed_weights[key] = pack(weight.detach(), MOST_ROWS)
    return packed_weights[key]


def by_onednn(model: PreTrainedModel) -> AbstractContextManager:
    """Context in which oneDNN runs the linear layers of ``model``, if it is on a CPU."""
    packed_weights.clear()  # those of another model
    return PackedOneDNN() if model.device.type == "cpu" else nullcontext()
