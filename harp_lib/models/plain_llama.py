"""A Llama in plain torch: what runtimes compute from the tensors and settings of a file.

Symbols in shapes: N tokens of one text, d the width of the residual stream, H query heads and K
key/value groups of one block, Dh the width of a head.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch.nn.functional import linear, rms_norm, scaled_dot_product_attention, silu

Weight = Callable[[str], torch.Tensor | None]


class Heads(NamedTuple):
    """Attention heads of one block.

    Without query heads there is no attention. With query heads but no groups, attention is
    ``W norm(x)``, with the output projection as W.
    """

    queries: int
    groups: int


@dataclass(frozen=True)
class PlainLlama:
    """Settings and weights of a Llama whose blocks differ in their heads and widths.

    Parameters
    ----------
    blocks : list of Heads
        The heads of each block, from the bottom.
    frequencies : torch.Tensor
        (Dh / 2,), rotary angle per position.
    rotates_neighbours : bool
        Whether dimensions 2i and 2i + 1 of a head are rotated as a pair, instead of i and
        i + Dh / 2.
    eps : float
        What the norms add to the mean square.
    weight : callable
        The weight or bias of a name as in transformers' Llama, in float32, or None if there is
        none.
    """

    blocks: list[Heads]
    frequencies: torch.Tensor
    rotates_neighbours: bool
    eps: float
    weight: Weight

    @torch.no_grad()
    @torch.autocast("cpu", enabled=False)
    def logits(self, ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Logits (N, vocabulary) of one text.

        Parameters
        ----------
        ids : torch.Tensor
            (N,), the tokens.
        positions : torch.Tensor
            (N,), their positions, in rising order.
        """
        angles = positions[:, None] * self.frequencies  # (N, Dh / 2)
        embeddings = self.weight("model.embed_tokens.weight")
        hidden = embeddings[ids]  # (N, d)
        for index, heads in enumerate(self.blocks):
            block = f"model.layers.{index}"
            if heads.queries > 0:
                normed = self._norm(f"{block}.input_layernorm", hidden)
                hidden = hidden + self._attention(f"{block}.self_attn", heads, normed, angles)
            normed = self._norm(f"{block}.post_attention_layernorm", hidden)
            hidden = hidden + self._ffn(f"{block}.mlp", normed)
        head = self.weight("lm_head.weight")
        if head is None:
            head = embeddings
        return linear(self._norm("model.norm", hidden), head)

    def _norm(self, name: str, hidden: torch.Tensor) -> torch.Tensor:
        return rms_norm(hidden, hidden.shape[-1:], self.weight(f"{name}.weight"), self.eps)

    def _linear(self, name: str, hidden: torch.Tensor) -> torch.Tensor:
        return linear(hidden, self.weight(f"{name}.weight"), self.weight(f"{name}.bias"))

    def _attention(
        self, name: str, heads: Heads, hidden: torch.Tensor, angles: torch.Tensor
    ) -> torch.Tensor:
        """The attention branch (N, d) of a block, with a causal mask."""
        if heads.groups == 0:
            return self._linear(f"{name}.o_proj", hidden)
        queries = self._linear(f"{name}.q_proj", hidden).unflatten(1, (heads.queries, -1))
        keys = self._linear(f"{name}.k_proj", hidden).unflatten(1, (heads.groups, -1))
        values = self._linear(f"{name}.v_proj", hidden).unflatten(1, (heads.groups, -1))
        queries = self._rotate(queries, angles)  # (N, H, Dh)
        keys = self._rotate(keys, angles)  # (N, K, Dh)
        output = scaled_dot_product_attention(
            queries.transpose(0, 1),
            keys.transpose(0, 1),
            values.transpose(0, 1),
            is_causal=True,
            enable_gqa=True,
        )  # (H, N, Dh)
        return self._linear(f"{name}.o_proj", output.transpose(0, 1).flatten(1))

    def _rotate(self, heads: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
        """Queries or keys (N, heads, Dh), rotated by ``angles`` (N, Dh / 2)."""
        cos = angles.cos()[:, None]  # (N, 1, Dh / 2)
        sin = angles.sin()[:, None]
        if self.rotates_neighbours:
            first, second = heads.unflatten(-1, (-1, 2)).unbind(-1)  # (N, heads, Dh / 2) each
        else:
            first, second = heads.unflatten(-1, (2, -1)).unbind(-2)
        rotated = (first * cos - second * sin, second * cos + first * sin)
        if self.rotates_neighbours:
            return torch.stack(rotated, dim=-1).flatten(-2)
        return torch.stack(rotated, dim=-2).flatten(-2)

    def _ffn(self, name: str, hidden: torch.Tensor) -> torch.Tensor:
        gate = silu(self._linear(f"{name}.gate_proj", hidden))
        return self._linear(f"{name}.down_proj", gate * self._linear(f"{name}.up_proj", hidden))
