"""Counterexamples to statements of the paper as they are printed, each to be run by itself.

Every function builds a few matrices by hand, computes what the statement speaks of, and says whether it is refuted::

    from harp_lib.theory import counterexamples
    counterexamples.one_hot_rows()
"""

import math
from collections.abc import Callable
from functools import wraps
from typing import NamedTuple

import pandas as pd
import torch
from torch import Tensor
from torch.nn.functional import silu

from harp_lib.theory import (
    attention_entropies,
    block_bound,
    contraction_factors,
    largest_eigenvalue,
    norm_ratio,
    preserves_norm,
    similarity,
    visible_positions,
)
from harp_lib.theory import distance_to_consensus as d_M
from harp_lib.theory.inequalities import attention

F64 = torch.float64
Found = (
    tuple[str, bool] | tuple[str, bool, str]
)  # what comes out, whether it refutes, what the statement says if computed


class Counterexample(NamedTuple):
    """A statement, what it meets, and what comes out."""

    statement: str
    construction: str
    says: str
    found: str
    refuted: bool


ALL: list[Callable[[], Counterexample]] = []


def _counterexample(statement: str, construction: str, says: str = "") -> Callable:
    def register(build: Callable[[], Found]) -> Callable[[], Counterexample]:
        @wraps(build)
        def run() -> Counterexample:
            found, refuted, *computed = build()
            return Counterexample(statement, construction, *(computed or [says]), found, refuted)

        ALL.append(run)
        return run

    return register


@_counterexample("Lemma 1, ÂH", "Â = [[1, 0], [½, ½]], H = [[1], [−1]], e = [1, 1]")
def vector_of_ones() -> Found:
    """Lemma 1, last inequality: with e the vector of ones instead of a unit vector, λ_max is too small."""
    A, H = torch.tensor([[1.0, 0.0], [0.5, 0.5]], dtype=F64), torch.tensor([[1.0], [-1.0]], dtype=F64)
    printed = torch.linalg.eigvalsh(A.mT @ (torch.eye(2, dtype=F64) - torch.ones(2, 2)) @ A)[-1].sqrt().item()
    grown = d_M(A @ H) / d_M(H)
    return (
        f"d_M(ÂH)/d_M(H) = {grown:.3f}; with e = [1, 1]/√2, √λ = {contraction_factors(A).item():.3f}",
        grown > printed + 0.01,
        f"d_M(ÂH)/d_M(H) ≤ √λ = {printed:.3f}",
    )


@_counterexample("Lemma 1, σ(H)", "σ = SiLU, H = [[2.3], [2.5]]", "d_M(σ(H)) ≤ d_M(H)")
def silu_spreads_rows() -> Found:
    """Lemma 1, σ: ReLU is meant; the SiLU and GELU of today's models have slopes above 1."""
    H = torch.tensor([[2.3], [2.5]], dtype=F64)
    grown = d_M(silu(H)) / d_M(H)
    return f"d_M(σ(H))/d_M(H) = {grown:.4f}", grown > 1.05


@_counterexample(
    "Lemma 1, its use", "Â uniform over the visible positions, 256 tokens, causal", "averaging contracts every d_M"
)
def averaging_under_a_causal_mask() -> Found:
    """What Lemma 1 is used for: even the running average carries tokens apart, because early tokens weigh more."""
    A = torch.ones(256, 256, dtype=F64).tril()
    A = A / A.sum(-1, keepdim=True)
    factor = contraction_factors(A).item()
    return f"max d_M(ÂH)/d_M(H) = √λ = {factor:.2f}", factor > 1


@_counterexample("Lemma 2", "pre-norm block with small weights (10⁻³ I) on rows of standard deviation 10")
def pre_norm_block() -> Found:
    """Lemma 2 in a pre-norm block, the kind of all four models: the residual is not divided by β."""
    H = 10 * torch.randn(8, 16, generator=torch.Generator().manual_seed(0), dtype=F64)
    W = 1e-3 * torch.eye(16, dtype=F64)
    A = torch.full((8, 8), 1 / 8, dtype=F64)
    middle = H + A @ _layer_norm(H) @ W
    after = middle + (_layer_norm(middle) @ W).relu() @ W
    v = block_bound(1e-3, largest_eigenvalue(A).item(), 1, (_smallest_deviation(H), _smallest_deviation(middle)))
    grown = d_M(after) / d_M(H)
    return f"d_M(after)/d_M(before) = {grown:.3f}, v = {v:.3f}", v < 1 and grown > 2 * v, f"d_M shrinks by v = {v:.3f}"


@_counterexample("Lemma 2", "post-norm block, one head with Â = I and W_V = W_O = W₁ = W₂ = 10 I")
def separate_value_and_output() -> Found:
    """Lemma 2 as it is worded, in its own post-norm block: with W_V and W_O apart, h·s should be h·s²."""
    H = _layer_norm(torch.randn(8, 16, generator=torch.Generator().manual_seed(0), dtype=F64))
    W = 10 * torch.eye(16, dtype=F64)  # W_V, W_O and both matrices of the FFN
    A = torch.eye(8, dtype=F64)
    first = H + A @ H @ W @ W
    second = (X := _layer_norm(first)) + (X @ W).relu() @ W
    v = block_bound(10, largest_eigenvalue(A).item(), 1, (_smallest_deviation(first), _smallest_deviation(second)))
    grown = d_M(_layer_norm(second)) / d_M(H)
    return f"d_M(after)/d_M(before) = {grown:.3f}, v = {v:.3f}", v < 1 and grown > 2 * v, f"d_M shrinks by v = {v:.3f}"


@_counterexample("Lemma 2", "post-norm block, no attention, SwiGLU FFN with s = 1 and d = 64")
def gated_ffn() -> Found:
    """Lemma 2 with the gated FFN of today's models: a product of two maps is not bounded by s²."""
    d = 64
    basis = torch.linalg.qr(torch.randn(d, 3, generator=torch.Generator().manual_seed(0), dtype=F64)).Q
    centred = basis - basis.mean(0)
    u1, u2 = torch.linalg.qr(centred[:, :2]).Q.T  # orthogonal, each of mean zero
    e = torch.eye(d, dtype=F64)[0]
    H = _layer_norm(torch.stack([u1, u1 + 1e-3 * u2]))
    gate, up, down = torch.outer(u1, e), torch.outer(u2, e), torch.outer(e, u2)
    second = H + (silu(H @ gate) * (H @ up)) @ down
    v = block_bound(1.0, 0.0, 1, (_smallest_deviation(H), _smallest_deviation(second)))
    grown = d_M(_layer_norm(second)) / d_M(H)
    return f"d_M(after)/d_M(before) = {grown:.2f}, v = {v:.2f}", grown > 2 * v, f"d_M grows by v = {v:.2f} at most"


@_counterexample("Lemma 3", "H = 10⁻⁶ I, 8 tokens", "d_M → 0 implies Sim → 1")
def shrinking_rows() -> Found:
    """Lemma 3: orthogonal rows that shrink to zero come close to M and stay orthogonal."""
    H = 1e-6 * torch.eye(8, dtype=F64)
    return f"d_M = {d_M(H):.1e}, Sim = {similarity(H):.4f}", d_M(H) < 1e-5 and similarity(H) < 1e-9


@_counterexample(
    "Lemma 3, backwards (proof of Theorem 1)", "two parallel rows, one twice as long", "Sim → 1 implies d_M → 0"
)
def parallel_rows_are_no_consensus() -> Found:
    """Lemma 3 read backwards, as the proof of Theorem 1 does: Sim = 1, but the rows are not the same."""
    H = torch.tensor([[1.0, 1.0], [2.0, 2.0]], dtype=F64)
    return f"Sim = {similarity(H):.4f}, d_M = {d_M(H):.2f}", similarity(H) > 1 - 1e-9 and d_M(H) > 0.5


@_counterexample(
    "Theorem 1, forward",
    "16 rows along one direction, of lengths from 2 to 8; W_Q = W_K = I",
    "Sim = 1 makes attention uniform",
)
def parallel_rows_of_different_length() -> Found:
    """Theorem 1: rows along one direction give Sim = 1, and yet each query prefers the longest key."""
    H = torch.linspace(1, 4, 16, dtype=F64)[:, None] * torch.ones(1, 4, dtype=F64)
    A = attention(H, torch.eye(4, dtype=F64), torch.eye(4, dtype=F64), causal=False)
    entropy = attention_entropies(A, torch.full((16,), 16)).item()
    return f"Sim = {similarity(H):.4f}, normalised entropy {entropy:.2f}", similarity(H) > 1 - 1e-9 and entropy < 0.9


@_counterexample(
    "Theorem 1, forward",
    "32 equal rows, rotary positions, causal; W_Q = 3 I, W_K = I",
    "Sim = 1 makes attention uniform",
)
def equal_rows_with_rotary_positions() -> Found:
    """Theorem 1: the same row at every position, but rotary positions turn queries and keys apart."""
    generator = torch.Generator().manual_seed(0)
    H = torch.randn(1, 32, generator=generator).expand(32, -1)
    A = attention(H, 3 * torch.eye(32), torch.eye(32), rotary=True)
    entropy = attention_entropies(A, visible_positions(32)).item()
    return (
        f"Sim = {similarity(H):.4f}, d_M = {d_M(H):.0f}, normalised entropy {entropy:.2f}",
        similarity(H) > 1 - 1e-6 and d_M(H) < 1e-5 and entropy < 0.9,
    )


@_counterexample(
    "Theorem 1, forward",
    "1000 tokens, all rows equal but the first, which points the other way; W_Q = I, W_K = −5 I",
    "Sim near 1 makes attention nearly uniform",
)
def one_token_apart() -> Found:
    """Theorem 1: an average over pairs hides one token, and one token (an attention sink) can take all attention."""
    H = torch.ones(1000, 4, dtype=F64)
    H[0] = -1
    W_Q, W_K = torch.eye(4, dtype=F64), -5 * torch.eye(4, dtype=F64)
    A = attention(H, W_Q, W_K)
    Sim, entropy = similarity(H), attention_entropies(A, visible_positions(1000)).item()
    return f"Sim = {Sim:.4f}, {A[1:, 0].mean():.0%} of the attention on the first token", Sim > 0.99 and entropy < 0.1


@_counterexample(
    "Theorem 1, its proof",
    "rows with a large part in common and a small one of their own; W drops the large one",
    "linear maps keep rows almost parallel",
)
def projection_loses_what_is_common() -> Found:
    """Proof of Theorem 1: a projection keeps parallel rows parallel, but not nearly parallel rows nearly parallel."""
    H = torch.cat([torch.ones(16, 1, dtype=F64), 1e-3 * torch.eye(16, dtype=F64)], dim=1)  # (16, 17)
    W = torch.eye(17, dtype=F64)
    W[0, 0] = 0
    before, after = similarity(H), similarity(H @ W)
    return f"Sim(H) = {before:.6f}, Sim(HW) = {after:.4f}", before > 1 - 1e-5 and after < 0.1


@_counterexample(
    "Theorem 1, converse",
    "orthogonal rows with a small part in common; W_K reads that part only",
    "Sim away from 1 keeps attention away from uniform",
)
def diverse_rows_with_uniform_attention() -> Found:
    """Theorem 1, converse: what tells the tokens apart lies where W_K does not look."""
    H = torch.cat([torch.full((16, 1), 0.1, dtype=F64), torch.eye(16, dtype=F64)], dim=1)  # (16, 17)
    W_Q = torch.eye(17, dtype=F64)
    W_K = torch.zeros(17, 17, dtype=F64)
    W_K[0, 0] = 1
    entropy = attention_entropies(attention(H, W_Q, W_K), visible_positions(16)).item()
    return f"Sim = {similarity(H):.4f}, normalised entropy {entropy:.4f}", similarity(H) < 0.1 and entropy > 1 - 1e-9


@_counterexample(
    "Theorem 1, its use", "Â uniform over 16 tokens, V = I", "where attention is uniform, queries and keys can go"
)
def uniform_attention_is_not_value_only() -> Found:
    """What HARP makes of Theorem 1: it puts every token's own value in the place of the average of all."""
    A, V = torch.full((16, 16), 1 / 16, dtype=F64), torch.eye(16, dtype=F64)
    error = ((A @ V - V).norm() / V.norm()).item()
    return f"‖ÂV − V‖/‖V‖ = {error:.2f}", error > 0.9


@_counterexample("Proposition 1, if", "Â = [[1, 0], [1, 0]], H = [[1], [0]]", "one-hot rows preserve the norm")
def one_hot_rows() -> Found:
    """Proposition 1, "if": both tokens copy the first one, every row is one-hot, and the norm changes."""
    A, H = torch.tensor([[1.0, 0.0], [1.0, 0.0]]), torch.tensor([[1.0], [0.0]])
    ratio = norm_ratio(A, H)
    return f"‖ÂH‖/‖H‖ = {ratio:.4f}", not preserves_norm(A) and abs(ratio - 1) > 0.1


@_counterexample(
    "Proposition 1, only if (one H)", "Â uniform over 4 tokens, all rows of H equal", "an equal norm needs one-hot rows"
)
def equal_rows_keep_their_norm() -> Found:
    """Proposition 1, "only if", read for one H: averaging equal rows changes nothing."""
    A, H = torch.full((4, 4), 0.25), torch.ones(4, 3)
    ratio, one_hot = norm_ratio(A, H), bool((A.amax(-1) == 1).all())
    return f"‖ÂH‖/‖H‖ = {ratio:.4f}, no row one-hot", math.isclose(ratio, 1) and not one_hot


def _layer_norm(H: Tensor) -> Tensor:
    return torch.nn.functional.layer_norm(H, H.shape[-1:], eps=0.0)


def _smallest_deviation(H: Tensor) -> float:
    return H.std(-1, correction=0).min().item()


def counterexample_table() -> pd.DataFrame:
    """Run them: statement, construction, what the statement says, what was found, whether it is refuted, which call."""
    rows = [(*example(), f"{example.__name__}()") for example in ALL]
    return pd.DataFrame(rows, columns=[*Counterexample._fields, "call"])
