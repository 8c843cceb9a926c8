"""Attention masks of a tree, made of the patterns of the model itself."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock, get_ident
from typing import Any

import torch
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS

# Attention implementations that take a mask which is added to the scores.
IMPLEMENTATIONS = ("eager", "sdpa")

_one_tree_at_a_time = Lock()


class TreeMasks:
    """Makes the masks (B, 1, T, S) that a model asks for: 0 for a visible key, else the lowest.

    A model asks with a function of two positions, which says what a kind of layers sees: all that
    came before, a sliding window, a chunk. A token of a tree sees this part of its own ancestors.

    Parameters
    ----------
    visible : torch.Tensor
        Which keys (B, T, S) each token may see.
    positions : torch.Tensor
        Position (B, T) of each token in its text.
    key_positions : torch.Tensor
        Position (B, S) of each key.
    """

    def __init__(
        self, visible: torch.Tensor, positions: torch.Tensor, key_positions: torch.Tensor
    ) -> None:
        self.visible = visible[:, None]  # (B, 1, T, S)
        self.positions = positions[:, None, :, None]
        self.key_positions = key_positions[:, None, None, :]
        self.num_made = 0

    def make(
        self,
        *,
        mask_function: Callable,
        dtype: torch.dtype,
        device: torch.device | str,
        **unused: Any,
    ) -> torch.Tensor:
        """One mask, for the arguments that transformers gives to its own functions."""
        self.num_made += 1
        texts = torch.arange(len(self.visible), device=device)[:, None, None, None]
        any_head = torch.zeros(1, 1, 1, 1, dtype=torch.long, device=device)
        in_pattern = mask_function(
            texts, any_head, self.positions.to(device), self.key_positions.to(device)
        )
        visible = self.visible.to(device) & in_pattern
        mask = torch.zeros(visible.shape, dtype=dtype, device=device)
        return mask.masked_fill(~visible, torch.finfo(dtype).min)

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Context in which models that run in this thread get these masks.

        Raises
        ------
        RuntimeError
            At the end, if the model did not ask for a mask.
        """
        thread = get_ident()

        def mask_for_thread(implementation: str) -> Callable:
            stock = ALL_MASK_ATTENTION_FUNCTIONS[implementation]

            def mask(*args: Any, **kwargs: Any) -> Any:
                if get_ident() != thread:
                    return stock(*args, **kwargs)
                return self.make(*args, **kwargs)

            return mask

        with _one_tree_at_a_time:
            for implementation in IMPLEMENTATIONS:
                ALL_MASK_ATTENTION_FUNCTIONS[implementation] = mask_for_thread(implementation)
            try:
                yield
            finally:
                for implementation in IMPLEMENTATIONS:
                    del ALL_MASK_ATTENTION_FUNCTIONS[implementation]
        if not self.num_made:
            raise RuntimeError("its attention takes no masks of ours")
