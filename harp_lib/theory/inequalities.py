"""Every identity and inequality of the theory, tried on random matrices."""

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import NamedTuple

import pandas as pd
import torch
from torch import Tensor
from torch.nn.functional import gelu, silu
from tqdm import tqdm

from harp_lib.theory import (
    block_bound,
    contraction_factors,
    distance_to_consensus,
    largest_eigenvalue,
    largest_singular_value,
    preserves_norm,
    similarity,
)

SILU_SLOPE, GELU_SLOPE = 1.0998393, 1.1289042  # their largest, at x = 2.3994 and x = √2


class Block(NamedTuple):
    """The block of Lemma 2's proof, run once: two heads, ReLU, a normalisation without gain after each sum."""

    before: float  # d_M
    after: float
    v: float
    no_larger: float  # (1 + √λ h s) / (1 + h s)


@dataclass(frozen=True)
class Draw:
    """Random material for one check of every inequality."""

    H: Tensor  # (N, d)
    B: Tensor  # (N, d)
    W: Tensor  # (d, d')
    A: Tensor  # (N, N), row-stochastic
    a: tuple[float, float]

    @cached_property
    def distance(self) -> float:
        """d_M(H)."""
        return distance_to_consensus(self.H)

    @cached_property
    def block(self) -> Block:
        """Lemma 2's block of these matrices; where a row cannot be normalised, one that says nothing."""
        return _post_norm_block(self) or Block(before=1.0, after=0.0, v=1.0, no_larger=0.0)


def draw_matrices(generator: torch.Generator) -> Draw:
    """Matrices of random shape, scale and offset; attention from uniform to one-hot, half of it causal."""
    tokens, width, out = torch.randint(2, 13, (3,), generator=generator).tolist()
    normal = partial(torch.randn, generator=generator, dtype=torch.float64)
    offset, scale, sharpness = 3 * normal(1), torch.exp(1.5 * normal(1)), torch.exp(1.5 * normal(1))
    logits = sharpness * normal(tokens, tokens)
    if torch.rand(1, generator=generator) < 0.5:
        logits = logits.masked_fill(torch.ones(tokens, tokens, dtype=torch.bool).triu(1), -torch.inf)
    a = tuple(normal(2).abs().tolist())
    return Draw(
        offset + scale * normal(tokens, width), scale * normal(tokens, width), normal(width, out), logits.softmax(-1), a
    )


def _as_printed(A: Tensor) -> float:
    """√λ_max with the paper's e, the vector of ones."""
    centred = torch.eye(len(A), dtype=A.dtype) - 1.0
    return math.sqrt(max(0.0, torch.linalg.eigvalsh(A.mT @ centred @ A)[-1].item()))


def _post_norm_block(draw: Draw) -> Block | None:
    """None where a row cannot be normalised."""
    H = draw.H - draw.H.mean(-1, keepdim=True)
    if (deviation := _deviations(H)).min() < 1e-9:
        return None
    H = H / deviation
    W = draw.W @ draw.W.mT / 4  # (d, d): one matrix for each head, and both of the FFN
    heads = torch.stack([draw.A, draw.A.flip(-1).softmax(-1)])
    first = H + (heads @ H @ W).sum(0)
    if (beta_1 := _deviations(first)).min() < 1e-9:
        return None
    X = (first - first.mean(-1, keepdim=True)) / beta_1
    second = X + (X @ W).relu() @ W
    if (beta_2 := _deviations(second)).min() < 1e-9:
        return None
    Y = (second - second.mean(-1, keepdim=True)) / beta_2
    s, largest = largest_singular_value(W), largest_eigenvalue(heads).max().item()
    v = block_bound(s, largest, 2, (beta_1.min().item(), beta_2.min().item()))
    no_larger = (1 + 2 * s * largest**0.5) / (1 + 2 * s)
    return Block(distance_to_consensus(H), distance_to_consensus(Y), v, no_larger)


def _deviations(H: Tensor) -> Tensor:
    return H.std(-1, correction=0, keepdim=True)


def _softmax_deficit(draw: Draw) -> tuple[float, float]:
    """log n minus the entropy of a softmax over n logits, and an eighth of the squared range of the logits."""
    logits = draw.H[:, 0]
    entropy = torch.special.entr(logits.softmax(0)).sum().item()
    return math.log(len(logits)) - entropy, (logits.max() - logits.min()).item() ** 2 / 8


def _lemma_3(draw: Draw) -> tuple[float, float]:
    shortest = draw.H.norm(dim=1).min().item()
    return 1 - similarity(draw.H), draw.distance**2 / ((len(draw.H) - 1) * shortest**2)


def _value_only(draw: Draw) -> tuple[float, float]:
    gap = draw.A - torch.eye(len(draw.A), dtype=draw.A.dtype)
    return (gap @ draw.H).norm().item(), torch.linalg.matrix_norm(gap, 2).item() * draw.distance


# Each returns the smaller and the larger side of an inequality, by name.
INEQUALITIES: dict[str, Callable[[Draw], tuple[float, float]]] = {
    "d(HW) ≤ s d(H)": lambda x: (
        distance_to_consensus(x.H @ x.W),
        torch.linalg.matrix_norm(x.W, 2).item() * x.distance,
    ),
    "d(ReLU(H)) ≤ d(H)": lambda x: (distance_to_consensus(x.H.relu()), x.distance),
    "d(SiLU(H)) ≤ d(H)": lambda x: (distance_to_consensus(silu(x.H)), x.distance),
    "d(SiLU(H)) ≤ 1.1 d(H)": lambda x: (
        distance_to_consensus(silu(x.H)),
        SILU_SLOPE * x.distance,
    ),
    "d(GELU(H)) ≤ 1.13 d(H)": lambda x: (
        distance_to_consensus(gelu(x.H)),
        GELU_SLOPE * x.distance,
    ),
    "d(a₁H + a₂B) ≤ a₁d(H) + a₂d(B)": lambda x: (
        distance_to_consensus(x.a[0] * x.H + x.a[1] * x.B),
        x.a[0] * x.distance + x.a[1] * distance_to_consensus(x.B),
    ),
    "d(ÂH) ≤ √λ d(H), e = 1": lambda x: (
        distance_to_consensus(x.A @ x.H),
        _as_printed(x.A) * x.distance,
    ),
    "d(ÂH) ≤ √λ d(H), e = 1/√N": lambda x: (
        distance_to_consensus(x.A @ x.H),
        contraction_factors(x.A).item() * x.distance,
    ),
    "λ ≤ N/2": lambda x: (contraction_factors(x.A).item() ** 2, len(x.A) / 2),
    "d(ÂH) ≤ d(H)": lambda x: (distance_to_consensus(x.A @ x.H), x.distance),
    "d(block(H)) ≤ v d(H)": lambda x: (x.block.after, x.block.v * x.block.before),
    "(1 + √λ h s) / (1 + h s) ≤ v": lambda x: (x.block.no_larger, x.block.v),
    "1 − Sim(H) ≤ d(H)² / ((N−1) min‖h‖²)": _lemma_3,
    "log n − entropy ≤ (range of logits)² / 8": _softmax_deficit,
    "‖ÂH − H‖ ≤ ‖Â − I‖ d(H)": _value_only,
    "‖ÂH‖ ≤ √(largest column sum) ‖H‖": lambda x: (
        (x.A @ x.H).norm().item(),
        x.A.sum(0).max().sqrt().item() * x.H.norm().item(),
    ),
    "‖Â‖² ≤ N, equal for one-hot rows": lambda x: (x.A.square().sum().item(), float(len(x.A))),
}


# Each returns two numbers that are the same, by name.
IDENTITIES: dict[str, Callable[[Draw], tuple[float, float]]] = {
    "Sim(H) = mean cosine of all pairs": lambda x: (similarity(x.H), _mean_cosine(x.H)),
    "d(H) = residual of the best common row": lambda x: (x.distance, _residual(x.H)),
    "1 − Sim(H) = d(H)² / ((N−1) r²), rows of length r": lambda x: (
        1 - similarity(x.H),
        distance_to_consensus(x.H / x.H.norm(dim=1, keepdim=True)) ** 2 / (len(x.H) - 1),
    ),
}


def _mean_cosine(H: Tensor) -> float:
    cosines = torch.cosine_similarity(H[:, None], H[None], dim=-1)  # (N, N)
    return cosines[torch.ones_like(cosines).triu(1).bool()].mean().item()


def _residual(H: Tensor) -> float:
    ones = torch.ones(len(H), 1, dtype=H.dtype)
    return (H - ones @ torch.linalg.lstsq(ones, H).solution).norm().item()


def check_on_draws(draws: int, seed: int) -> pd.DataFrame:
    """Everything on the same random draws: check, kind, draws, violations, largest.

    ``largest`` is the largest quotient of the two sides of an inequality (1: it cannot be improved), or the largest
    difference of the two sides of an identity, in parts of what is larger, 1 or the right side.
    """
    generator = torch.Generator().manual_seed(seed)
    material = [draw_matrices(generator) for _ in range(draws)]
    rows = []
    for name, sides in tqdm(INEQUALITIES.items(), desc="random draws", unit="check"):
        pairs = [sides(draw) for draw in material]
        violations = sum(left > right * (1 + 1e-9) + 1e-9 for left, right in pairs)
        rows.append((name, "inequality", draws, violations, max(left / right for left, right in pairs if right > 1e-6)))
    for name, sides in IDENTITIES.items():
        differences = [abs(left - right) / max(1.0, abs(right)) for left, right in map(sides, material)]
        rows.append((name, "identity", draws, sum(difference > 1e-9 for difference in differences), max(differences)))
    return pd.DataFrame(rows, columns=["check", "kind", "draws", "violations", "largest"])


def count_one_hot(tokens: int, causal: bool) -> tuple[int, int]:
    """All matrices of one-hot rows over ``tokens`` tokens, and how many of them preserve the norm of every H."""
    choices = [range(row + 1) if causal else range(tokens) for row in range(tokens)]
    matrices = [
        torch.nn.functional.one_hot(torch.tensor(rows), tokens).double() for rows in itertools.product(*choices)
    ]
    return len(matrices), sum(preserves_norm(A) for A in matrices)
