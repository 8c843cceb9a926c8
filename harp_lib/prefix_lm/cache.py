"""Caches: one that is continued many times, and one for texts that are written side by side."""

import copy
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from transformers import DynamicCache
from transformers.cache_utils import CacheLayerMixin

from .tree import Tokens


class ReadPrompt(NamedTuple):
    """A prompt that was read, and can be continued."""

    tokens: Tokens
    logits: torch.Tensor  # (V,), at the last token
    layers: list[tuple[torch.Tensor, torch.Tensor]]  # keys and values (K, N, Dh) of each layer


def continued(cache: DynamicCache) -> DynamicCache:
    """A cache that begins with what ``cache`` holds, and leaves it as it is.

    No key or value is copied: a dynamic cache makes new tensors when tokens are added.
    """
    twin = copy.copy(cache)
    twin.layers = [copy.copy(layer) for layer in cache.layers]
    return twin


def entries_at(layer: CacheLayerMixin, places: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values (K, N, Dh) at some places of a cache layer."""
    if layer.keys.shape[-1] == 0:
        # Attention without keys: it only counts tokens, and not those that never entered the layer.
        return layer.keys[0, :, :0], layer.values[0, :, :0]
    places = places.to(layer.keys.device)
    return layer.keys[0][:, places], layer.values[0][:, places]


class TextBatch:
    """What the model has to know of B texts that are written side by side.

    Attributes
    ----------
    texts : list of int
        Which of the prompts the rows of the batch belong to.
    positions : torch.Tensor
        Position (B, S) of each key. Prompts are padded on the right, before what is written.
    visible : torch.Tensor
        Whether a key (B, S) is no padding.
    cache : DynamicCache
        Keys and values of all texts, with room for ``max_new_tokens``.
    """

    def __init__(self, prompts: list[ReadPrompt], max_new_tokens: int) -> None:
        self.texts = list(range(len(prompts)))
        self._lengths = torch.tensor([len(prompt.tokens) for prompt in prompts])  # (B,)
        longest = int(self._lengths.max())
        self.positions = torch.arange(longest).expand(len(prompts), -1)
        self.visible = self.positions < self._lengths[:, None]

        self.cache = DynamicCache()
        room = longest + max_new_tokens
        for parts in zip(*(prompt.layers for prompt in prompts), strict=True):
            keys = torch.stack([padded(keys, room) for keys, _ in parts])  # (B, K, room, Dh)
            values = torch.stack([padded(values, room) for _, values in parts])
            self.cache.layers.append(RoomyLayer(keys, values, longest))

    def keep(self, rows: list[int]) -> list[int]:
        """Leave out the texts that have ended; return which row each of the others had.

        The last rows move to where texts have ended, so that little is copied.
        """
        order = list(range(len(rows)))
        moved = [row for row in rows if row >= len(rows)]
        for row, gap in zip(moved, sorted(set(order) - set(rows)), strict=True):
            order[gap] = row
        self.texts = [self.texts[row] for row in order]
        self._lengths = self._lengths[order]
        self.positions = self.positions[order]
        self.visible = self.visible[order]
        for layer in self.cache.layers:
            layer.keep(order)
        return order

    def add_position(self) -> None:
        """Make each text one token longer."""
        self.positions = torch.cat([self.positions, self._lengths[:, None]], dim=1)
        present = torch.ones(len(self.texts), 1, dtype=torch.bool)
        self.visible = torch.cat([self.visible, present], dim=1)
        self._lengths = self._lengths + 1


def padded(part: torch.Tensor, length: int) -> torch.Tensor:
    """Keys or values (K, N, Dh), filled up with zeros to (K, length, Dh)."""
    return F.pad(part, (0, 0, 0, length - part.shape[1]))


class RoomyLayer(CacheLayerMixin):
    """Keys and values of a layer, with room for more: new ones are written into it.

    A dynamic cache layer would copy all of them at every token. Keys of width 0, of attention
    that has none, are counted.
    """

    is_sliding = False

    def __init__(self, keys: torch.Tensor, values: torch.Tensor, num_tokens: int) -> None:
        super().__init__()
        self.lazy_initialization(keys, values)
        self._fill(num_tokens)

    def lazy_initialization(self, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Take tensors (B, K, room, Dh) to write into."""
        self.all_keys = keys
        self.all_values = values
        self.is_initialized = True

    def _fill(self, num_tokens: int) -> None:
        """Show the first ``num_tokens`` places, and no room."""
        self.num_tokens = num_tokens
        self.keys = self.all_keys[..., :num_tokens, :]
        self.values = self.all_values[..., :num_tokens, :]

    def update(
        self, keys: torch.Tensor, values: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write the keys and values (B, K, N, Dh) of new tokens; return those of all tokens."""
        end = self.num_tokens + keys.shape[-2]
        self.all_keys[..., self.num_tokens : end, :] = keys
        self.all_values[..., self.num_tokens : end, :] = values
        self._fill(end)
        return self.keys, self.values

    def keep(self, order: list[int]) -> None:
        """Keep the texts in these rows, in this order. A row may only move to a lower one."""
        for place, row in enumerate(order):
            if place != row:
                self.all_keys[place] = self.all_keys[row]
                self.all_values[place] = self.all_values[row]
        self.all_keys = self.all_keys[: len(order)]
        self.all_values = self.all_values[: len(order)]
        self._fill(self.num_tokens)

    def get_seq_length(self) -> int:
        return self.num_tokens

    def get_max_length(self) -> int:
        return self.all_keys.shape[-2]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.num_tokens + query_length, 0
