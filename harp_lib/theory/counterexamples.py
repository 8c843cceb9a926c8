"""Counterexamples to statements of the paper as they are printed, each to be run by itself, as
``one_hot_rows()``.

Every function builds a few matrices by hand, computes what the statement speaks of, and says
whether it is refuted.
"""

import math
from typing import NamedTuple

import pandas as pd
import torch
from torch import Tensor
from torch.nn.functional import silu

from harp_lib import theory
from harp_lib.theory import attention_entropies, largest_eigenvalue, similarity, visible_positions
from harp_lib.theory import distance_to_consensus as d_M
from harp_lib.theory.inequalities import attention, normalise

F64 = torch.float64
UNIFORM = "Sim = 1 makes attention uniform"


class Counterexample(NamedTuple):
    """A statement, what it meets, and what comes out."""

    statement: str
    construction: str
    says: str
    found: str
    refuted: bool


def vector_of_ones() -> Counterexample:
    """Lemma 1, last inequality: with e the vector of ones instead of a unit vector, λ_max is too
    small.
    """
    A, H = (
        torch.tensor([[1.0, 0.0], [0.5, 0.5]], dtype=F64),
        torch.tensor([[1.0], [-1.0]], dtype=F64),
    )
    printed = (
        torch.linalg.eigvalsh(A.mT @ (torch.eye(2, dtype=F64) - torch.ones(2, 2)) @ A)[-1]
        .sqrt()
        .item()
    )
    grown = d_M(A @ H) / d_M(H)
    says = f"d_M(ÂH)/d_M(H) ≤ √λ = {printed:.3f}"
    found = f"d_M(ÂH)/d_M(H) = {grown:.3f}; with e = [1, 1]/√2, √λ = {largest_eigenvalue(A).item() ** 0.5:.3f}"
    what = "Â = [[1, 0], [½, ½]], H = [[1], [−1]], e = [1, 1]"
    return Counterexample("Lemma 1, ÂH", what, says, found, grown > printed + 0.01)


def silu_spreads_rows() -> Counterexample:
    """Lemma 1, σ: ReLU is meant; the SiLU and GELU of today's models have slopes above 1."""
    H = torch.tensor([[2.3], [2.5]], dtype=F64)
    grown = d_M(silu(H)) / d_M(H)
    says, found = "d_M(σ(H)) ≤ d_M(H)", f"d_M(σ(H))/d_M(H) = {grown:.4f}"
    return Counterexample(
        "Lemma 1, σ(H)", "σ = SiLU, H = [[2.3], [2.5]]", says, found, grown > 1.05
    )


def averaging_under_a_causal_mask() -> Counterexample:
    """What Lemma 1 is used for: even the running average carries tokens apart, because early tokens
    weigh more.
    """
    A = torch.ones(256, 256, dtype=F64).tril()
    factor = largest_eigenvalue(A / A.sum(-1, keepdim=True)).item() ** 0.5
    what, says = (
        "Â uniform over the visible positions, 256 tokens, causal",
        "averaging contracts every d_M",
    )
    return Counterexample(
        "Lemma 1, its use", what, says, f"max d_M(ÂH)/d_M(H) = √λ = {factor:.2f}", factor > 1
    )


def _lemma_2(
    what: str, says: str, streams: tuple, sums: tuple, s: float, A: Tensor, digits=3
) -> Counterexample:
    """A block of one head: ``streams`` enter and leave it, of ``sums`` the deviations are taken,
    before the norms.
    """
    v = theory.block_bound(s, largest_eigenvalue(A).item(), 1, tuple(normalise(H)[1] for H in sums))
    grown = d_M(streams[1]) / d_M(streams[0])
    found = f"d_M(after)/d_M(before) = {grown:.{digits}f}, v = {v:.{digits}f}"
    return Counterexample("Lemma 2", what, says.format(v), found, grown > 2 * v)


def pre_norm_block() -> Counterexample:
    """Lemma 2 in a pre-norm block, the kind of all four models: the residual is not divided by β."""
    H = 10 * torch.randn(8, 16, generator=torch.Generator().manual_seed(0), dtype=F64)
    W, A = 1e-3 * torch.eye(16, dtype=F64), torch.full((8, 8), 1 / 8, dtype=F64)
    middle = H + A @ normalise(H)[0] @ W
    after = middle + (normalise(middle)[0] @ W).relu() @ W
    what = "pre-norm block with small weights (10⁻³ I) on rows of standard deviation 10"
    return _lemma_2(what, "d_M shrinks by v = {:.3f}", (H, after), (H, middle), 1e-3, A)


def separate_value_and_output() -> Counterexample:
    """Lemma 2 as it is worded, in its own post-norm block: with W_V and W_O apart, h·s should be
    h·s².
    """
    H = normalise(torch.randn(8, 16, generator=torch.Generator().manual_seed(0), dtype=F64))[0]
    W, A = (
        10 * torch.eye(16, dtype=F64),
        torch.eye(8, dtype=F64),
    )  # W_V, W_O and both matrices of the FFN
    first = H + A @ H @ W @ W
    second = (X := normalise(first)[0]) + (X @ W).relu() @ W
    what = "post-norm block, one head with Â = I and W_V = W_O = W₁ = W₂ = 10 I"
    return _lemma_2(
        what, "d_M shrinks by v = {:.3f}", (H, normalise(second)[0]), (first, second), 10.0, A
    )


def gated_ffn() -> Counterexample:
    """Lemma 2 with the gated FFN of today's models: a product of two maps is not bounded by s²."""
    basis = torch.linalg.qr(
        torch.randn(64, 3, generator=torch.Generator().manual_seed(0), dtype=F64)
    ).Q
    u1, u2 = torch.linalg.qr((basis - basis.mean(0))[:, :2]).Q.T  # orthogonal, each of mean zero
    e = torch.eye(64, dtype=F64)[0]
    H = normalise(torch.stack([u1, u1 + 1e-3 * u2]))[0]
    gate, up, down = torch.outer(u1, e), torch.outer(u2, e), torch.outer(e, u2)
    second = H + (silu(H @ gate) * (H @ up)) @ down
    what, equal = (
        "post-norm block, no attention, SwiGLU FFN with s = 1 and d = 64",
        torch.full((2, 2), 0.5, dtype=F64),
    )
    return _lemma_2(
        what,
        "d_M grows by v = {:.2f} at most",
        (H, normalise(second)[0]),
        (H, second),
        1.0,
        equal,
        2,
    )


def shrinking_rows() -> Counterexample:
    """Lemma 3: orthogonal rows that shrink to zero come close to M and stay orthogonal."""
    H = 1e-6 * torch.eye(8, dtype=F64)
    found, refuted = (
        f"d_M = {d_M(H):.1e}, Sim = {similarity(H):.4f}",
        d_M(H) < 1e-5 and similarity(H) < 1e-9,
    )
    return Counterexample(
        "Lemma 3", "H = 10⁻⁶ I, 8 tokens", "d_M → 0 implies Sim → 1", found, refuted
    )


def parallel_rows_are_no_consensus() -> Counterexample:
    """Lemma 3 read backwards, as the proof of Theorem 1 does: Sim = 1, but the rows are not the
    same.
    """
    H = torch.tensor([[1.0, 1.0], [2.0, 2.0]], dtype=F64)
    statement, what = (
        "Lemma 3, backwards (proof of Theorem 1)",
        "two parallel rows, one twice as long",
    )
    found, refuted = (
        f"Sim = {similarity(H):.4f}, d_M = {d_M(H):.2f}",
        similarity(H) > 1 - 1e-9 and d_M(H) > 0.5,
    )
    return Counterexample(statement, what, "Sim → 1 implies d_M → 0", found, refuted)


def parallel_rows_of_different_length() -> Counterexample:
    """Theorem 1: rows along one direction give Sim = 1, and yet each query prefers the longest key."""
    H = torch.linspace(1, 4, 16, dtype=F64)[:, None] * torch.ones(1, 4, dtype=F64)
    A = attention(H, torch.eye(4, dtype=F64), torch.eye(4, dtype=F64), causal=False)
    Sim, entropy = similarity(H), attention_entropies(A, torch.full((16,), 16)).item()
    what = "16 rows along one direction, of lengths from 2 to 8; W_Q = W_K = I"
    found, refuted = (
        f"Sim = {Sim:.4f}, normalised entropy {entropy:.2f}",
        Sim > 1 - 1e-9 and entropy < 0.9,
    )
    return Counterexample("Theorem 1, forward", what, UNIFORM, found, refuted)


def equal_rows_with_rotary_positions() -> Counterexample:
    """Theorem 1: the same row at every position, but rotary positions turn queries and keys apart."""
    H = torch.randn(1, 32, generator=torch.Generator().manual_seed(0)).expand(32, -1)
    A = attention(H, 3 * torch.eye(32), torch.eye(32), rotary=True)
    Sim, entropy = similarity(H), attention_entropies(A, visible_positions(32)).item()
    what = "32 equal rows, rotary positions, causal; W_Q = 3 I, W_K = I"
    found = f"Sim = {Sim:.4f}, d_M = {d_M(H):.0f}, normalised entropy {entropy:.2f}"
    return Counterexample(
        "Theorem 1, forward", what, UNIFORM, found, Sim > 1 - 1e-6 and entropy < 0.9
    )


def one_token_apart() -> Counterexample:
    """Theorem 1: an average over pairs hides one token, and one token (an attention sink) can take
    all attention.
    """
    H = torch.ones(1000, 4, dtype=F64)
    H[0] = -1
    A = attention(H, torch.eye(4, dtype=F64), -5 * torch.eye(4, dtype=F64))
    Sim, entropy = similarity(H), attention_entropies(A, visible_positions(1000)).item()
    what = (
        "1000 tokens, all rows equal but the first, which points the other way; W_Q = I, W_K = −5 I"
    )
    says = "Sim near 1 makes attention nearly uniform"
    found = f"Sim = {Sim:.4f}, {A[1:, 0].mean():.0%} of the attention on the first token"
    return Counterexample("Theorem 1, forward", what, says, found, Sim > 0.99 and entropy < 0.1)


def projection_loses_what_is_common() -> Counterexample:
    """Proof of Theorem 1: a projection keeps parallel rows parallel, but not nearly parallel rows
    nearly parallel.
    """
    H = torch.cat(
        [torch.ones(16, 1, dtype=F64), 1e-3 * torch.eye(16, dtype=F64)], dim=1
    )  # (16, 17)
    before, after = similarity(H), similarity(H[:, 1:])  # W drops the first column
    what = "rows with a large part in common and a small one of their own; W drops the large one"
    says, found = (
        "linear maps keep rows almost parallel",
        f"Sim(H) = {before:.6f}, Sim(HW) = {after:.4f}",
    )
    return Counterexample(
        "Theorem 1, its proof", what, says, found, before > 1 - 1e-5 and after < 0.1
    )


def diverse_rows_with_uniform_attention() -> Counterexample:
    """Theorem 1, converse: what tells the tokens apart lies where W_K does not look."""
    H = torch.cat(
        [torch.full((16, 1), 0.1, dtype=F64), torch.eye(16, dtype=F64)], dim=1
    )  # (16, 17)
    first = torch.eye(17, dtype=F64)[0]
    A = attention(H, torch.eye(17, dtype=F64), torch.outer(first, first))
    Sim, entropy = similarity(H), attention_entropies(A, visible_positions(16)).item()
    what = "orthogonal rows with a small part in common; W_K reads that part only"
    says = "Sim away from 1 keeps attention away from uniform"
    found = f"Sim = {Sim:.4f}, normalised entropy {entropy:.4f}"
    return Counterexample(
        "Theorem 1, converse", what, says, found, Sim < 0.1 and entropy > 1 - 1e-9
    )


def uniform_attention_is_not_value_only() -> Counterexample:
    """What HARP makes of Theorem 1: it puts every token's own value in the place of the average of
    all.
    """
    A, V = torch.full((16, 16), 1 / 16, dtype=F64), torch.eye(16, dtype=F64)
    error = ((A @ V - V).norm() / V.norm()).item()
    says, found = (
        "where attention is uniform, queries and keys can go",
        f"‖ÂV − V‖/‖V‖ = {error:.2f}",
    )
    return Counterexample(
        "Theorem 1, its use", "Â uniform over 16 tokens, V = I", says, found, error > 0.9
    )


def one_hot_rows() -> Counterexample:
    """Proposition 1, "if": both tokens copy the first one, every row is one-hot, and the norm
    changes.
    """
    A, H = torch.tensor([[1.0, 0.0], [1.0, 0.0]]), torch.tensor([[1.0], [0.0]])
    ratio, what = theory.norm_ratio(A, H), "Â = [[1, 0], [1, 0]], H = [[1], [0]]"
    says, found = "one-hot rows preserve the norm", f"‖ÂH‖/‖H‖ = {ratio:.4f}"
    return Counterexample(
        "Proposition 1, if",
        what,
        says,
        found,
        not theory.preserves_norm(A) and abs(ratio - 1) > 0.1,
    )


def equal_rows_keep_their_norm() -> Counterexample:
    """Proposition 1, "only if", read for one H: averaging equal rows changes nothing."""
    A, H = torch.full((4, 4), 0.25), torch.ones(4, 3)
    ratio, one_hot = theory.norm_ratio(A, H), bool((A.amax(-1) == 1).all())
    what = "Â uniform over 4 tokens, all rows of H equal"
    says, found = "an equal norm needs one-hot rows", f"‖ÂH‖/‖H‖ = {ratio:.4f}, no row one-hot"
    return Counterexample(
        "Proposition 1, only if (one H)", what, says, found, math.isclose(ratio, 1) and not one_hot
    )


ALL = [  # the functions above, in this order
    example
    for name, example in list(vars().items())
    if not name.startswith("_")
    and getattr(example, "__annotations__", {}).get("return") is Counterexample
]


def counterexample_table() -> pd.DataFrame:
    """Run them: statement, construction, what the statement says, what was found, whether it is
    refuted, which call.
    """
    rows = [(*example(), f"{example.__name__}()") for example in ALL]
    return pd.DataFrame(rows, columns=[*Counterexample._fields, "call"])
