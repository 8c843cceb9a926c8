r"""The paper's theory as functions: similarity, consensus, norm change and attention entropy.

The definitions are those of Sections 2.2 and 2.3 and of the appendix. Rows of a matrix ``H``
(..., N, d) are tokens, and ``A`` (..., N, N) is row-stochastic. Measures compute in float64,
take any number of leading dimensions (texts, heads), and raise a ValueError where the measure is
not defined. A measure that returns a float averages over the leading dimensions; a measure whose
name is a plural returns one value for each matrix, (...).
"""

from __future__ import annotations  # signatures show the name Matrix

import math

import torch
from numpy.typing import ArrayLike
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

Matrix = torch.Tensor | ArrayLike


def similarity(H: Matrix) -> float:
    r"""Average pairwise cosine similarity of the rows (paper, Definition 1).

    .. math:: \mathrm{Sim}(H) = \frac{2}{N(N-1)} \sum_{i<j} \cos(h_i, h_j)
              = \frac{\lVert \sum_i h_i / \lVert h_i \rVert \rVert^2 - N}{N(N-1)}

    The second form needs N·d operations, the first N²·d.

    Parameters
    ----------
    H : (..., N, d) with N > 1
        No row may be zero.

    Returns
    -------
    float
        In [-1/(N-1), 1]. At 1 all rows point the same way, whatever their lengths.

    Notes
    -----
    Theorem 1 argues with products of queries and keys, so it is about what heads read, which is the
    residual stream after the layer's RMSNorm. The norm's division leaves every cosine as it is, and
    its gain does not: a gain that is small in the dimensions that all tokens share lowers Sim.
    """
    directions = _directions(_rows(H))
    tokens = directions.shape[-2]
    if tokens < 2:
        raise ValueError("similarity compares pairs of tokens, H has one row")
    squared_sum = directions.sum(-2).square().sum(-1)  # (...)
    similarities = (squared_sum - tokens) / (tokens * (tokens - 1))
    return similarities.clamp_max(1).mean().item()


def distance_to_consensus(H: Matrix) -> float:
    r"""Frobenius distance of H (..., N, d) to the nearest matrix with identical rows (appendix).

    .. math:: d_M(H) = \min_{Y \in M} \lVert H - Y \rVert_F
              = \lVert (I - \tfrac{1}{N} \mathbf{1}\mathbf{1}^\top) H \rVert_F

    The distance has the unit of H: it grows with the length of the rows.
    """
    H = _rows(H)
    return torch.linalg.matrix_norm(H - H.mean(-2, keepdim=True)).mean().item()


def largest_eigenvalues(A: Matrix) -> torch.Tensor:
    r"""The λ of Lemma 1: the largest eigenvalue of :math:`A^\top (I - ee^\top) A`.

    Here e is the unit vector :math:`\mathbf{1}/\sqrt{N}`. The paper prints the vector of ones as e;
    with it the lemma is false.

    √λ_max is the smallest c with :math:`d_M(AH) \le c\, d_M(H)` for every H. Where it exceeds 1,
    attention carries some tokens apart.

    Parameters
    ----------
    A : (..., N, N)
        Row-stochastic.

    Returns
    -------
    torch.Tensor (...)
        Between 0 (all rows of A equal) and N/2.
    """
    A = _row_stochastic(A)
    centred = A - A.mean(-2, keepdim=True)  # (I - ee') A
    return torch.linalg.eigvalsh(centred @ centred.mT)[..., -1].clamp_min(0)


def block_bound(s: float, largest: float, heads: int, betas: tuple[float, float]) -> float:
    r"""The factor v of Lemma 2 for one Transformer block, as printed.

    .. math:: v = (1 + s^2)(1 + \sqrt{\lambda}\, h s) / (\beta_1 \beta_2)

    Parameters
    ----------
    s
        The largest singular value of the block's matrices. The proof has one attention matrix
        :math:`W_V W_O` for each head.
    largest
        λ, the largest :func:`largest_eigenvalues` of the attention matrices.
    heads
        The number h of attention matrices.
    betas
        The smallest standard deviations of a row before the first and the second normalisation.
    """
    return (1 + s**2) * (1 + largest**0.5 * heads * s) / (betas[0] * betas[1])


def norm_ratios(A: Matrix, H: Matrix) -> torch.Tensor:
    r"""Change of the norm by the aggregation step (paper, Proposition 1).

    .. math:: \lVert A H \rVert_F / \lVert H \rVert_F

    Parameters
    ----------
    A : (..., N, N)
        Row-stochastic.
    H : (..., N, d)
        Not zero. Its leading dimensions are broadcast against those of A.

    Returns
    -------
    torch.Tensor (...)
        Between 0 and the square root of the largest column sum of A, which is at most √N.
    """
    A = _row_stochastic(A)
    H = _rows(H)
    norms = torch.linalg.matrix_norm(H)
    if not norms.all():
        raise ValueError("H is zero: the norm has no ratio to it")
    return torch.linalg.matrix_norm(A @ H) / norms


def norm_ratio(A: Matrix, H: Matrix) -> float:
    """‖AH‖/‖H‖, the mean of :func:`norm_ratios`."""
    return norm_ratios(A, H).mean().item()


def preserves_norm(A: Matrix) -> bool:
    r"""Whether :math:`\lVert AH \rVert_F = \lVert H \rVert_F` for **every** H, up to rounding.

    This is Proposition 1, corrected. The condition is :math:`A^\top A = I`, and the only
    row-stochastic matrices that meet it are permutations; one-hot rows, the paper's condition, are
    not enough. Under a causal mask only the identity is left. Of several matrices (..., N, N), all
    have to preserve the norm.
    """
    A = _row_stochastic(A)
    identity = torch.eye(A.shape[-1]).to(A)
    return bool(((A.mT @ A - identity).abs() <= 1e-6).all())


def attention(
    H: torch.Tensor,
    W_Q: torch.Tensor,
    W_K: torch.Tensor,
    rotary: bool = False,
    causal: bool = True,
) -> torch.Tensor:
    """Attention weights of one head, the softmax of q·k / √d_k (paper, proof of Theorem 1).

    Parameters
    ----------
    H : (..., N, d)
        Hidden states.
    W_Q, W_K : (d, d_k)
        Query and key projections.
    rotary
        Whether to turn queries and keys by their positions (base 10,000), as the paper's four
        models do.
    causal
        Whether a token sees only itself and earlier tokens.

    Returns
    -------
    torch.Tensor (..., N, N)
    """
    queries = H @ W_Q  # (..., N, d_k)
    keys = H @ W_K  # (..., N, d_k)
    tokens, width = queries.shape[-2:]
    if rotary:
        config = LlamaConfig(head_dim=width, max_position_embeddings=tokens)
        positions = torch.arange(tokens, device=H.device)
        cos, sin = LlamaRotaryEmbedding(config).to(H.device)(H, positions[None])
        queries, keys = apply_rotary_pos_emb(queries, keys, cos[0], sin[0], unsqueeze_dim=0)
    logits = queries @ keys.mT / math.sqrt(width)  # (..., N, N)
    if causal:
        is_later = torch.ones_like(logits, dtype=torch.bool).triu(1)
        logits = logits.masked_fill(is_later, -torch.inf)
    return logits.softmax(-1)


def visible_positions(tokens: int, sliding_window: int | None = None) -> torch.Tensor:
    """How many positions each token (N,) attends to under a causal mask."""
    positions = torch.arange(1, tokens + 1)
    if sliding_window is None:
        return positions
    return positions.clamp_max(sliding_window)


def attention_entropies(A: Matrix, visible: Matrix) -> torch.Tensor:
    r"""Entropy of the attention relative to uniform attention: 1 is uniform, 0 is one-hot.

    .. math:: \frac{1}{|Q|} \sum_{i \in Q} \frac{-\sum_j a_{ij} \log a_{ij}}{\log n_i}, \qquad
              Q = \{i : n_i > 1\}

    Parameters
    ----------
    A : (..., N, N)
        Row-stochastic.
    visible : (N,)
        :math:`n_i`, the number of positions that query i may attend to (:func:`visible_positions`).
        Queries that see one position have no choice and are left out.

    Returns
    -------
    torch.Tensor (...)
        The mean over queries.
    """
    A = _row_stochastic(A)
    visible = torch.as_tensor(visible, device=A.device)
    if ((A > 1e-8).sum(-1) > visible).any():
        raise ValueError(
            "a query attends to more positions than it sees: wrong mask, or wrong visible"
        )
    has_choice = visible > 1
    if not has_choice.any():
        raise ValueError("every query sees one position only: entropy has nothing to compare with")
    entropies = torch.special.entr(A).sum(-1)[..., has_choice]  # (..., |Q|)
    uniform_entropies = visible[has_choice].double().log()  # (|Q|,)
    return (entropies / uniform_entropies).mean(-1)


def block_influence(before: Matrix, after: Matrix) -> float:
    r"""How far a layer turns its tokens (paper, Section 2.2).

    .. math:: 1 - \mathbf{E}_t \cos(h^{(\ell)}_t, h^{(\ell+1)}_t)

    Parameters
    ----------
    before, after : (..., N, d)
        The residual stream that enters the layer and the one that leaves it (before the final norm,
        for the last layer). No row may be zero.

    Returns
    -------
    float
        Between 0 (no token changes its direction) and 2.
    """
    cosines = (_directions(_rows(before)) * _directions(_rows(after))).sum(-1)  # (..., N)
    return 1 - cosines.mean().item()


def _rows(H: Matrix, name: str = "H") -> torch.Tensor:
    """H (..., N, d) in float64; a ValueError unless it has tokens and finite numbers."""
    H = torch.as_tensor(H).detach().double()
    if H.dim() < 2 or 0 in H.shape or not H.isfinite().all():
        raise ValueError(
            f"{name} has to be finite numbers (..., N, d) with at least one token, "
            f"got {tuple(H.shape)}"
        )
    return H


def _directions(H: torch.Tensor) -> torch.Tensor:
    """The rows of H (..., N, d) divided by their lengths; a ValueError where a row is zero."""
    lengths = H.norm(dim=-1, keepdim=True)  # (..., N, 1)
    if not lengths.all():
        first_zero_row = (lengths[..., 0] == 0).nonzero()[0].tolist()
        raise ValueError(f"row {first_zero_row} of H is zero and has no direction")
    return H / lengths


def _row_stochastic(A: Matrix) -> torch.Tensor:
    """A (..., N, N) in float64; a ValueError unless it is row-stochastic, up to rounding."""
    A = torch.as_tensor(A)
    tolerance = 1e-5
    if A.is_floating_point():
        # Transformers casts its softmax to the model's dtype, which rounds the sums of the rows.
        tolerance = max(tolerance, 2 * torch.finfo(A.dtype).eps)

    A = _rows(A, "A")
    row_sums = A.sum(-1)
    is_square = A.shape[-1] == A.shape[-2]
    if not is_square or A.min() < -tolerance or (row_sums - 1).abs().max() > tolerance:
        raise ValueError(
            f"A has to be (..., N, N) and row-stochastic, got {tuple(A.shape)}, "
            f"entries from {A.min():.3g}, "
            f"row sums from {row_sums.min():.6g} to {row_sums.max():.6g}"
        )
    return A.clamp_min(0)
