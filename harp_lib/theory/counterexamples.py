"""Counterexamples to statements of the paper as they are printed.

Every function builds a few matrices by hand, computes what the statement is about, and says whether
it is refuted. Each can be run by itself, as in ``one_hot_rows()``. Which statement a function
refutes is in ``data/paper/statements.yaml``.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import silu

from harp_lib.theory import (
    attention,
    attention_entropies,
    block_bound,
    largest_eigenvalues,
    norm_ratio,
    preserves_norm,
    similarity,
    visible_positions,
)
from harp_lib.theory import distance_to_consensus as d_M

F64 = torch.float64


class Counterexample(NamedTuple):
    """A construction, and what comes out."""

    construction: str  # the matrices
    found: str  # what they give
    refuted: bool  # whether this contradicts the statement


def vector_of_ones() -> Counterexample:
    """Lemma 1, last inequality: if e is the vector of ones, not a unit vector, λ is too small."""
    A = torch.tensor([[1.0, 0.0], [0.5, 0.5]], dtype=F64)
    H = torch.tensor([[1.0], [-1.0]], dtype=F64)
    projection_as_printed = torch.eye(2, dtype=F64) - torch.ones(2, 2)
    eigenvalues_as_printed = torch.linalg.eigvalsh(A.mT @ projection_as_printed @ A)
    factor_as_printed = eigenvalues_as_printed[-1].sqrt().item()
    factor = largest_eigenvalues(A).item() ** 0.5
    growth = d_M(A @ H) / d_M(H)
    return Counterexample(
        construction="Â = [[1, 0], [½, ½]], H = [[1], [−1]], e = [1, 1]",
        found=f"d_M(ÂH)/d_M(H) = {growth:.3f}; with e = [1, 1]/√2, √λ = {factor:.3f}",
        refuted=growth > factor_as_printed + 0.01,
    )


def silu_spreads_rows() -> Counterexample:
    """Lemma 1, σ: ReLU is meant; the SiLU and GELU of today's models have slopes above 1."""
    H = torch.tensor([[2.3], [2.5]], dtype=F64)
    growth = d_M(silu(H)) / d_M(H)
    return Counterexample(
        construction="σ = SiLU, H = [[2.3], [2.5]]",
        found=f"d_M(σ(H))/d_M(H) = {growth:.4f}",
        refuted=growth > 1.05,
    )


def averaging_under_a_causal_mask() -> Counterexample:
    """The use of Lemma 1: a running average may carry tokens apart, as early tokens weigh more."""
    A = torch.ones(256, 256, dtype=F64).tril()
    A = A / A.sum(-1, keepdim=True)
    factor = largest_eigenvalues(A).item() ** 0.5
    return Counterexample(
        construction="Â uniform over the visible positions, 256 tokens, causal",
        found=f"max d_M(ÂH)/d_M(H) = √λ = {factor:.2f}",
        refuted=factor > 1,
    )


def pre_norm_block() -> Counterexample:
    """Lemma 2 in a pre-norm block, as all four models have: the residual is not divided by β."""
    H = 10 * torch.randn(8, 16, generator=torch.Generator().manual_seed(0), dtype=F64)
    W = 1e-3 * torch.eye(16, dtype=F64)
    A = torch.full((8, 8), 1 / 8, dtype=F64)
    middle = H + A @ normalise(H)[0] @ W
    after = middle + (normalise(middle)[0] @ W).relu() @ W
    v = _bound_of_one_head(1e-3, A, H, middle)
    growth = d_M(after) / d_M(H)
    return Counterexample(
        construction="pre-norm block with small weights (10⁻³ I) on rows of standard deviation 10",
        found=f"d_M(after)/d_M(before) = {growth:.3f}, v = {v:.3f}",
        refuted=growth > 2 * v,
    )


def separate_value_and_output() -> Counterexample:
    """Lemma 2 as worded, in its own post-norm block: if W_V and W_O are two, h·s should be h·s²."""
    H = normalise(torch.randn(8, 16, generator=torch.Generator().manual_seed(0), dtype=F64))[0]
    W = 10 * torch.eye(16, dtype=F64)  # W_V, W_O and both matrices of the FFN
    A = torch.eye(8, dtype=F64)
    first_sum = H + A @ H @ W @ W
    middle = normalise(first_sum)[0]
    second_sum = middle + (middle @ W).relu() @ W
    after = normalise(second_sum)[0]
    v = _bound_of_one_head(10.0, A, first_sum, second_sum)
    growth = d_M(after) / d_M(H)
    return Counterexample(
        construction="post-norm block, one head with Â = I and W_V = W_O = W₁ = W₂ = 10 I",
        found=f"d_M(after)/d_M(before) = {growth:.3f}, v = {v:.3f}",
        refuted=growth > 2 * v,
    )


def gated_ffn() -> Counterexample:
    """Lemma 2 with the gated FFN of today's models: a product of two maps is not bounded by s²."""
    random = torch.randn(64, 3, generator=torch.Generator().manual_seed(0), dtype=F64)
    basis = torch.linalg.qr(random).Q
    centred = basis - basis.mean(0)
    u1, u2 = torch.linalg.qr(centred[:, :2]).Q.T  # orthogonal, each of mean zero
    e = torch.eye(64, dtype=F64)[0]
    W_gate = torch.outer(u1, e)
    W_up = torch.outer(u2, e)
    W_down = torch.outer(e, u2)
    H = normalise(torch.stack([u1, u1 + 1e-3 * u2]))[0]
    second_sum = H + (silu(H @ W_gate) * (H @ W_up)) @ W_down
    after = normalise(second_sum)[0]
    uniform = torch.full((2, 2), 0.5, dtype=F64)
    v = _bound_of_one_head(1.0, uniform, H, second_sum)
    growth = d_M(after) / d_M(H)
    return Counterexample(
        construction="post-norm block, no attention, SwiGLU FFN with s = 1 and d = 64",
        found=f"d_M(after)/d_M(before) = {growth:.2f}, v = {v:.2f}",
        refuted=growth > 2 * v,
    )


def normalise(H: Tensor) -> tuple[Tensor, float]:
    """Rows of mean 0 and standard deviation 1, and the smallest standard deviation before."""
    deviations = H.std(-1, correction=0, keepdim=True)  # (..., N, 1)
    normalised = (H - H.mean(-1, keepdim=True)) / deviations
    return normalised, deviations.min().item()


def _bound_of_one_head(s: float, A: Tensor, first_sum: Tensor, second_sum: Tensor) -> float:
    """Lemma 2's v of a block with one head; the sums (N, d) are what its norms are applied to."""
    betas = (normalise(first_sum)[1], normalise(second_sum)[1])
    return block_bound(s, largest_eigenvalues(A).item(), 1, betas)


def shrinking_rows() -> Counterexample:
    """Lemma 3: orthogonal rows that shrink to zero come close to M and stay orthogonal."""
    H = 1e-6 * torch.eye(8, dtype=F64)
    distance = d_M(H)
    Sim = similarity(H)
    return Counterexample(
        construction="H = 10⁻⁶ I, 8 tokens",
        found=f"d_M = {distance:.1e}, Sim = {Sim:.4f}",
        refuted=distance < 1e-5 and Sim < 1e-9,
    )


def parallel_rows_are_no_consensus() -> Counterexample:
    """Lemma 3 read backwards, as in the proof of Theorem 1: Sim = 1, but the rows differ."""
    H = torch.tensor([[1.0, 1.0], [2.0, 2.0]], dtype=F64)
    distance = d_M(H)
    Sim = similarity(H)
    return Counterexample(
        construction="two parallel rows, one twice as long",
        found=f"Sim = {Sim:.4f}, d_M = {distance:.2f}",
        refuted=Sim > 1 - 1e-9 and distance > 0.5,
    )


def parallel_rows_of_different_length() -> Counterexample:
    """Theorem 1: parallel rows have Sim = 1, and yet each query prefers the longest key."""
    H = torch.linspace(1, 4, 16, dtype=F64)[:, None] * torch.ones(1, 4, dtype=F64)
    A = attention(H, torch.eye(4, dtype=F64), torch.eye(4, dtype=F64), causal=False)
    Sim = similarity(H)
    entropy = attention_entropies(A, torch.full((16,), 16)).item()
    return Counterexample(
        construction="16 rows along one direction, of lengths from 2 to 8; W_Q = W_K = I",
        found=f"Sim = {Sim:.4f}, normalised entropy {entropy:.2f}",
        refuted=Sim > 1 - 1e-9 and entropy < 0.9,
    )


def equal_rows_with_rotary_positions() -> Counterexample:
    """Theorem 1: all rows are equal, but rotary positions turn queries and keys apart."""
    H = torch.randn(1, 32, generator=torch.Generator().manual_seed(0)).expand(32, -1)
    A = attention(H, 3 * torch.eye(32), torch.eye(32), rotary=True)
    Sim = similarity(H)
    entropy = attention_entropies(A, visible_positions(32)).item()
    return Counterexample(
        construction="32 equal rows, rotary positions, causal; W_Q = 3 I, W_K = I",
        found=f"Sim = {Sim:.4f}, d_M = {d_M(H):.0f}, normalised entropy {entropy:.2f}",
        refuted=Sim > 1 - 1e-6 and entropy < 0.9,
    )


def one_token_apart() -> Counterexample:
    """Theorem 1: an average over pairs hides one token, which can take all attention (a sink)."""
    H = torch.ones(1000, 4, dtype=F64)
    H[0] = -1
    A = attention(H, torch.eye(4, dtype=F64), -5 * torch.eye(4, dtype=F64))
    Sim = similarity(H)
    entropy = attention_entropies(A, visible_positions(1000)).item()
    first_token_share = A[1:, 0].mean()
    return Counterexample(
        construction=(
            "1000 tokens, all rows equal but the first, which points the other way; "
            "W_Q = I, W_K = −5 I"
        ),
        found=f"Sim = {Sim:.4f}, {first_token_share:.0%} of the attention on the first token",
        refuted=Sim > 0.99 and entropy < 0.1,
    )


def projection_loses_what_is_common() -> Counterexample:
    """Proof of Theorem 1: a linear map need not keep nearly parallel rows nearly parallel."""
    common_part = torch.ones(16, 1, dtype=F64)
    H = torch.cat([common_part, 1e-3 * torch.eye(16, dtype=F64)], dim=1)  # (16, 17)
    projected = H[:, 1:]  # W drops the first column
    before = similarity(H)
    after = similarity(projected)
    return Counterexample(
        construction=(
            "rows with a large part in common and a small one of their own; W drops the large one"
        ),
        found=f"Sim(H) = {before:.6f}, Sim(HW) = {after:.4f}",
        refuted=before > 1 - 1e-5 and after < 0.1,
    )


def diverse_rows_with_uniform_attention() -> Counterexample:
    """Theorem 1, converse: the tokens differ where W_K does not look."""
    common_part = torch.full((16, 1), 0.1, dtype=F64)
    H = torch.cat([common_part, torch.eye(16, dtype=F64)], dim=1)  # (16, 17)
    first = torch.eye(17, dtype=F64)[0]
    A = attention(H, torch.eye(17, dtype=F64), torch.outer(first, first))
    Sim = similarity(H)
    entropy = attention_entropies(A, visible_positions(16)).item()
    return Counterexample(
        construction="orthogonal rows with a small part in common; W_K reads that part only",
        found=f"Sim = {Sim:.4f}, normalised entropy {entropy:.4f}",
        refuted=Sim < 0.1 and entropy > 1 - 1e-9,
    )


def uniform_attention_is_not_value_only() -> Counterexample:
    """The use of Theorem 1: HARP replaces the average of all values by each token's own value."""
    A = torch.full((16, 16), 1 / 16, dtype=F64)
    V = torch.eye(16, dtype=F64)
    error = ((A @ V - V).norm() / V.norm()).item()
    return Counterexample(
        construction="Â uniform over 16 tokens, V = I",
        found=f"‖ÂV − V‖/‖V‖ = {error:.2f}",
        refuted=error > 0.9,
    )


def one_hot_rows() -> Counterexample:
    """Proposition 1, "if": both tokens copy the first, all rows are one-hot, the norm changes."""
    A = torch.tensor([[1.0, 0.0], [1.0, 0.0]])
    H = torch.tensor([[1.0], [0.0]])
    ratio = norm_ratio(A, H)
    return Counterexample(
        construction="Â = [[1, 0], [1, 0]], H = [[1], [0]]",
        found=f"‖ÂH‖/‖H‖ = {ratio:.4f}",
        refuted=not preserves_norm(A) and abs(ratio - 1) > 0.1,
    )


def equal_rows_keep_their_norm() -> Counterexample:
    """Proposition 1, "only if", read for one H: averaging equal rows changes nothing."""
    A = torch.full((4, 4), 0.25)
    H = torch.ones(4, 3)
    ratio = norm_ratio(A, H)
    rows_are_one_hot = bool((A.amax(-1) == 1).all())
    return Counterexample(
        construction="Â uniform over 4 tokens, all rows of H equal",
        found=f"‖ÂH‖/‖H‖ = {ratio:.4f}, no row one-hot",
        refuted=math.isclose(ratio, 1) and not rows_are_one_hot,
    )
