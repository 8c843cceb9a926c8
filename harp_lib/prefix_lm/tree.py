"""The tree of tokens that all requests form, and how it is packed into one sequence."""

from typing import NamedTuple

import torch

TOKENS_PER_PASS = 1024  # new tokens of the tree; those in the cache come on top

Tokens = tuple[int, ...]


class Branch(NamedTuple):
    """A sequence of tokens, from the root of the tree on; the last ``num_scored`` are scored."""

    tokens: Tokens
    num_scored: int
    num_shared: int  # how many tokens it begins with are those of the branch before it


def sorted_branches(num_scored: dict[Tokens, int]) -> list[Branch]:
    """Sequences in an order in which those that begin alike stand side by side."""
    branches: list[Branch] = []
    previous: Tokens = ()
    for tokens in sorted(num_scored):
        branches.append(Branch(tokens, num_scored[tokens], common_length(previous, tokens)))
        previous = tokens
    return branches


def common_length(first: Tokens, second: Tokens) -> int:
    """How many tokens two sequences begin with in common."""
    length = 0
    for one, other in zip(first, second, strict=False):
        if one != other:
            break
        length += 1
    return length


def fits(branches: list[Branch], num_cached: int) -> bool:
    """Whether branches can be read in one pass; a single branch always is."""
    if len(branches) == 1:
        return True
    num_new = len(branches[0].tokens) - num_cached
    for branch in branches[1:]:
        num_new += len(branch.tokens) - branch.num_shared
    return num_new <= TOKENS_PER_PASS


class PackedTree:
    """Branches one after another in one sequence of T tokens, which holds each token once.

    Attributes
    ----------
    tokens : list of int
        The sequence; tokens in the cache are left out.
    paths : list of list of int
        Of each branch, the places of its tokens in the sequence.
    """

    def __init__(self, branches: list[Branch], num_cached: int) -> None:
        self.num_cached = num_cached
        self.tokens: list[int] = []
        self.paths: list[list[int]] = []
        path: list[int] = []
        for branch in branches:
            if self.paths:
                path = path[: branch.num_shared - num_cached]
            new_tokens = branch.tokens[num_cached + len(path) :]
            first_place = len(self.tokens)
            path = path + list(range(first_place, first_place + len(new_tokens)))
            self.tokens.extend(new_tokens)
            self.paths.append(path)

    def positions(self) -> torch.Tensor:
        """Depth of each token in the tree (T,): its position in the sequence that it comes from."""
        positions = torch.zeros(len(self.tokens), dtype=torch.long)
        for path in self.paths:
            positions[torch.tensor(path)] = self.num_cached + torch.arange(len(path))
        return positions

    def visible(self) -> torch.Tensor:
        """Which keys (T, S) each token sees: all in the cache, its ancestors, and itself."""
        num_keys = self.num_cached + len(self.tokens)
        visible = torch.zeros(len(self.tokens), num_keys, dtype=torch.bool)
        visible[:, : self.num_cached] = True
        for path in self.paths:
            places = torch.tensor(path)
            causal = torch.ones(len(path), len(path), dtype=torch.bool).tril()
            visible[places[:, None], self.num_cached + places] = causal
        return visible

    def cache_places(self) -> list[torch.Tensor]:
        """Where the tokens of each branch are in the cache, once the sequence has been read."""
        beginning = torch.arange(self.num_cached)
        return [torch.cat([beginning, self.num_cached + torch.tensor(path)]) for path in self.paths]
