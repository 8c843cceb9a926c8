"""Forward passes over the tree of tokens, each of which computes what is new and no more."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from itertools import groupby
from typing import NamedTuple

import torch
from torch import nn
from transformers import DynamicCache, PreTrainedModel

from .cache import ReadPrompt, TextBatch, continued, entries_at
from .masks import TreeMasks
from .tree import Branch, PackedTree, Tokens, fits, sorted_branches

WORTH_CACHING = 16  # tokens; a shorter common beginning is not worth a pass of its own


class ReadBranches(NamedTuple):
    """Sequences that one forward pass read, and what it found out about them."""

    sequences: list[Tokens]
    logits: torch.Tensor  # (U, V)
    logit_rows: list[list[int]]  # of each sequence: the rows of ``logits`` at its scored tokens
    cache: DynamicCache | None
    cache_places: list[torch.Tensor]  # of each sequence: where its tokens are in the cache


class TreeReader:
    """Reads sequences of tokens with a decoder, and what they begin with once.

    Tokens and masks enter the model on ``device``.
    """

    def __init__(self, model: PreTrainedModel, device: torch.device) -> None:
        self.model = model
        self.device = device

    @torch.no_grad()
    def read(self, num_scored: dict[Tokens, int], keep_cache: bool) -> Iterator[ReadBranches]:
        """Read sequences, several in a pass, and score the last ``num_scored`` tokens of each."""
        for branches, num_cached, cache in self._passes(sorted_branches(num_scored)):
            tree = PackedTree(branches, num_cached)
            positions = tree.positions()  # (T,)
            masks = None  # a single sequence has the masks that the model makes
            if len(branches) > 1:
                key_positions = torch.cat([torch.arange(num_cached), positions])  # (S,)
                masks = TreeMasks(tree.visible()[None], positions[None], key_positions[None])

            scored_paths = [
                path[-branch.num_scored :]
                for branch, path in zip(branches, tree.paths, strict=True)
            ]
            scored_places = sorted({place for path in scored_paths for place in path})
            row_of = {place: row for row, place in enumerate(scored_places)}

            if cache is not None:
                cache = continued(cache)
            elif keep_cache:
                cache = DynamicCache()
            logits = self._logits(
                torch.tensor([tree.tokens]),
                positions[None],
                masks,
                cache,
                torch.tensor(scored_places),
            )
            yield ReadBranches(
                sequences=[branch.tokens for branch in branches],
                logits=logits,
                logit_rows=[[row_of[place] for place in path] for path in scored_paths],
                cache=cache,
                cache_places=tree.cache_places(),
            )

    def _passes(
        self, branches: list[Branch], num_cached: int = 0, cache: DynamicCache | None = None
    ) -> Iterator[tuple[list[Branch], int, DynamicCache | None]]:
        """Split sorted branches into those of each pass.

        With them come the number of tokens that all of them begin with and that were read before,
        and the cache with these tokens.
        """
        if fits(branches, num_cached):
            yield branches, num_cached, cache
            return

        num_shared = min(branch.num_shared for branch in branches[1:])
        num_unscored = min(len(branch.tokens) - branch.num_scored for branch in branches)
        end = min(num_shared, num_unscored)
        if end - num_cached >= WORTH_CACHING:
            tokens = torch.tensor([branches[0].tokens[num_cached:end]])
            positions = torch.arange(num_cached, end)[None]
            nowhere = torch.tensor([], dtype=torch.long)
            longer = DynamicCache() if cache is None else continued(cache)
            self._logits(tokens, positions, None, longer, nowhere)
            yield from self._passes(branches, end, longer)
            return

        group: list[Branch] = []  # as many subtrees as fit in a pass
        for _, subtree in groupby(branches, lambda branch: branch.tokens[: num_shared + 1]):
            subtree = list(subtree)
            if group and not fits(group + subtree, num_cached):
                yield from self._passes(group, num_cached, cache)
                group = []
            group.extend(subtree)
        yield from self._passes(group, num_cached, cache)

    def read_prompts(self, prompts: Iterable[Tokens]) -> Iterator[ReadPrompt]:
        """Each different prompt once, with its part of the cache it was read into."""
        for reading in self.read(dict.fromkeys(prompts, 1), keep_cache=True):
            rows = [row for (row,) in reading.logit_rows]  # of the one scored token
            for tokens, row, places in zip(
                reading.sequences, rows, reading.cache_places, strict=True
            ):
                layers = [entries_at(layer, places) for layer in reading.cache.layers]
                yield ReadPrompt(tokens, reading.logits[row], layers)

    def _logits(
        self,
        tokens: torch.Tensor,
        positions: torch.Tensor,
        masks: TreeMasks | None,
        cache: DynamicCache | None,
        scored_places: torch.Tensor,
    ) -> torch.Tensor:
        """Logits (U, V) at some places of a sequence (1, T).

        Only these places enter the output head, and the layers on top that do not mix tokens.
        """
        layers = self.model.get_decoder().layers
        modules = [*layers, self.model.get_output_embeddings()]
        with only_places(scored_places, modules[num_mixing_layers(layers)]):
            return self._forward(tokens, positions, masks, cache)[0]

    @torch.no_grad()
    def next_logits(self, batch: TextBatch, tokens: torch.Tensor) -> torch.Tensor:
        """Logits (B, V) after one more token (B,) of each text."""
        positions = batch.positions[:, -1:]  # (B, 1)
        masks = TreeMasks(batch.visible[:, None], positions, batch.positions)
        return self._forward(tokens[:, None], positions, masks, batch.cache)[:, -1].float()

    def _forward(
        self,
        tokens: torch.Tensor,
        positions: torch.Tensor,
        masks: TreeMasks | None,
        cache: DynamicCache | None,
    ) -> torch.Tensor:
        """Logits (B, T, V) of tokens (B, T)."""
        attention_mask = None
        if masks is not None:
            # Without it, transformers would take positions that go back for texts of their own.
            attention_mask = torch.ones_like(masks.key_positions[:, 0, 0]).to(self.device)
        with nullcontext() if masks is None else masks.in_use():
            output = self.model(
                input_ids=tokens.to(self.device),
                position_ids=positions.to(self.device),
                attention_mask=attention_mask,
                past_key_values=cache,
                use_cache=cache is not None,
            )
        return output.logits


@contextmanager
def only_places(places: torch.Tensor, entrance: nn.Module) -> Iterator[None]:
    """Context in which some places (U,) of a sequence enter a module, and no others."""

    def narrow(module: nn.Module, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
        hidden_states = args[0]  # (1, T, d)
        scored = hidden_states[:, places.to(hidden_states.device)]  # (1, U, d)
        return (scored, *args[1:]), kwargs

    with entrance.register_forward_pre_hook(narrow, with_kwargs=True):
        yield


def num_mixing_layers(layers: nn.ModuleList) -> int:
    """How many layers, from the bottom, have to see all tokens.

    The layers above them have attention without queries and keys: a value projection and an output
    projection at most, as in a pruned model. They look at each token alone.
    """
    count = 0
    for index, layer in enumerate(layers):
        parts = {name for name, _ in layer.self_attn.named_children()}
        if not parts <= {"v_proj", "o_proj"}:
            count = index + 1
    return count
