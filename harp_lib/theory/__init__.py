r"""The paper's theory as functions: similarity, consensus, norm change, attention entropy (Section
2.2, 2.3, appendix).

Rows of a matrix ``H`` (…, N, d) are tokens, ``A`` (…, N, N) is row-stochastic. All functions
compute in float64, take any number of leading dimensions (texts, heads), and refuse what has no
answer with a ValueError. A measure that is a float is the average over these dimensions; a name in
the plural returns one value for each matrix, (…).
"""

from collections import namedtuple

import torch
from numpy.typing import ArrayLike

Matrix = torch.Tensor | ArrayLike


def similarity(H: Matrix) -> float:
    r"""Average pairwise cosine similarity of the rows (paper, Definition 1), in [-1/(N-1), 1].

    .. math:: \mathrm{Sim}(H) = \frac{2}{N(N-1)} \sum_{i<j} \cos(h_i, h_j)
              = \frac{\lVert \sum_i h_i / \lVert h_i \rVert \rVert^2 - N}{N(N-1)}

    The second form needs N·d operations, the first N²·d. 1: all rows point the same way, whatever
    their lengths.
    """
    directions = _directions(_rows(H))
    tokens = directions.shape[-2]
    if tokens < 2:
        raise ValueError("similarity compares pairs of tokens, H has one row")
    found = (directions.sum(-2).square().sum(-1) - tokens) / (tokens * (tokens - 1))
    return found.clamp_max(1).mean().item()


def distance_to_consensus(H: Matrix) -> float:
    r"""Distance to the nearest matrix with identical rows (appendix), in the unit of H: it grows
    with the rows' length.

    .. math:: d_M(H) = \min_{Y \in M} \lVert H - Y \rVert_F = \lVert (I - \tfrac{1}{N}
    \mathbf{1}\mathbf{1}^\top) H
              \rVert_F
    """
    H = _rows(H)
    return torch.linalg.matrix_norm(H - H.mean(-2, keepdim=True)).mean().item()


def largest_eigenvalue(A: Matrix) -> torch.Tensor:
    r"""λ_max of :math:`A^\top (I - ee^\top) A` with the unit vector :math:`e = \mathbf{1}/\sqrt{N}`
    (Lemma 1).

    Between 0 (all rows equal) and N/2; with the vector of ones, which the paper prints as e, the
    lemma is false. √λ_max is the smallest c with :math:`d_M(AH) \le c\, d_M(H)` for every H: where
    it exceeds 1, tokens are carried apart.
    """
    A = _attention(A)
    centred = A - A.mean(-2, keepdim=True)  # (I - ee') A
    return torch.linalg.eigvalsh(centred @ centred.mT)[..., -1].clamp_min(0)


def block_bound(s: float, largest: float, heads: int, betas: tuple[float, float]) -> float:
    r"""The factor v of Lemma 2 for one Transformer block, as printed.

    .. math:: v = (1 + s^2)(1 + \sqrt{\lambda}\, h s) / (\beta_1 \beta_2)

    ``s`` is the largest singular value of the block's matrices (the proof has one for each head,
    :math:`W_V W_O`), ``largest`` is λ, the largest :func:`largest_eigenvalue` of the ``heads``
    attention matrices, and ``betas`` are the smallest standard deviations of a row before the first
    and the second normalisation.
    """
    return (1 + s**2) * (1 + largest**0.5 * heads * s) / (betas[0] * betas[1])


def largest_singular_value(weight: torch.Tensor) -> float:
    """Spectral norm of a matrix (m, n), from the smaller of its two Gram matrices."""
    weight = weight.detach().double()
    wide = weight if weight.shape[0] <= weight.shape[1] else weight.mT
    return torch.linalg.eigvalsh(wide @ wide.mT)[-1].clamp_min(0).sqrt().item()


def norm_ratios(A: Matrix, H: Matrix) -> torch.Tensor:
    r"""Change of the norm by the aggregation step (Proposition 1), :math:`\lVert A H \rVert_F /
    \lVert H \rVert_F`.

    Between 0 and the square root of the largest column sum of ``A``, which is at most √N. Leading
    dimensions of H are broadcast against those of A.
    """
    A, H = _attention(A), _rows(H)
    norms = torch.linalg.matrix_norm(H)
    if not norms.all():
        raise ValueError("H is zero: the norm has no ratio to it")
    return torch.linalg.matrix_norm(A @ H) / norms


def norm_ratio(A: Matrix, H: Matrix) -> float:
    """‖AH‖/‖H‖, the mean of :func:`norm_ratios`."""
    return norm_ratios(A, H).mean().item()


def preserves_norm(A: Matrix) -> bool:
    r"""Whether :math:`\lVert A H \rVert_F = \lVert H \rVert_F` for **every** H (Proposition 1,
    corrected), to rounding.

    That is :math:`A^\top A = I`, which among row-stochastic matrices only permutations fulfil: rows
    that are one-hot (as the paper has it) are not enough. Under a causal mask the identity alone is
    left. Of several matrices, all.
    """
    A = _attention(A)
    return bool(((A.mT @ A - torch.eye(A.shape[-1]).to(A)).abs() <= 1e-6).all())


def visible_positions(tokens: int, window: int | None = None) -> torch.Tensor:
    """How many positions each token attends to under a causal mask (N,), with a sliding window or
    without.
    """
    return torch.arange(1, tokens + 1).clamp_max(tokens if window is None else window)


def attention_entropies(A: Matrix, visible: Matrix) -> torch.Tensor:
    r"""Entropy of the attention relative to uniform over what is visible, averaged over queries: 1
    uniform, 0 one-hot.

    .. math:: \frac{1}{|Q|} \sum_{i \in Q} \frac{-\sum_j a_{ij} \log a_{ij}}{\log n_i}, \qquad Q =
    \{i : n_i > 1\}

    ``visible`` (N,) is :math:`n_i`, the number of positions that query i may attend to
    (:func:`visible_positions`). Queries with one have no choice and are left out.
    """
    A = _attention(A)
    visible = torch.as_tensor(visible, device=A.device)
    if ((A > 1e-8).sum(-1) > visible).any():
        raise ValueError(
            "a query attends to more positions than it sees: wrong mask, or wrong visible"
        )
    choice = visible > 1
    if not choice.any():
        raise ValueError("every query sees one position only: entropy has nothing to compare with")
    return (torch.special.entr(A).sum(-1)[..., choice] / visible[choice].double().log()).mean(-1)


def block_influence(before: Matrix, after: Matrix) -> float:
    r"""How far a layer turns its tokens (Section 2.2), :math:`1 - \mathbf{E}_t \cos(h^{(\ell)}_t,
    h^{(\ell+1)}_t)`.

    ``before`` and ``after`` (…, N, d) are the residual stream that enters and that leaves the layer
    (before the final norm, for the last layer). Between 0 (unchanged but for length) and 2.
    """
    return 1 - (_directions(_rows(before)) * _directions(_rows(after))).sum(-1).mean().item()


class Products(namedtuple("Products", "HH HA HB AA AB BB")):
    """Inner products, over all tokens, of the residual stream H, the attention branch A and the
    value-only branch B.
    """

    @classmethod
    def of(cls, H: torch.Tensor, A: torch.Tensor, B: torch.Tensor) -> "Products":
        """From the matrices, any shape, in float64."""
        H, A, B = (matrix.double().flatten() for matrix in (H, A, B))
        return cls(
            *(torch.dot(a, b).item() for a, b in ((H, H), (H, A), (H, B), (A, A), (A, B), (B, B)))
        )


def norm_matching_alpha(products: Products) -> float:
    r"""The alpha in [0, 1] that keeps the residual stream's norm, the paper's reason for rescaling
    (Section 2.3).

    .. math:: \lVert H + \alpha B \rVert_F = \lVert H + A \rVert_F

    The larger of two solutions; if there is none, where the squared norms differ least.
    """
    _, ha, hb, aa, _, bb = products
    if bb == 0:
        return 1.0  # nothing to scale
    wanted = 2 * ha + aa  # ‖H + A‖² - ‖H‖²
    candidates = [0.0, 1.0, -hb / bb]
    if (root := hb**2 + bb * wanted) >= 0:
        candidates += [(-hb + sign * root**0.5) / bb for sign in (-1, 1)]
    allowed = sorted((alpha for alpha in candidates if 0 <= alpha <= 1), reverse=True)
    return min(
        allowed,
        key=lambda alpha: round(abs(bb * alpha**2 + 2 * hb * alpha - wanted) / max(aa, bb), 9),
    )


def reconstructing_alpha(products: Products) -> float:
    r"""The alpha in [0, 1] that keeps the branch itself best, :math:`\arg\min_\alpha \lVert A -
    \alpha B \rVert_F`.
    """
    return min(max(products.AB / products.BB, 0.0), 1.0) if products.BB else 1.0


def _rows(H: Matrix, name: str = "H") -> torch.Tensor:
    H = torch.as_tensor(H).detach().double()
    if H.dim() < 2 or 0 in H.shape or not H.isfinite().all():
        raise ValueError(
            f"{name} has to be finite numbers (..., N, d) with at least one token, got {tuple(H.shape)}"
        )
    return H


def _directions(H: torch.Tensor) -> torch.Tensor:
    lengths = H.norm(dim=-1, keepdim=True)
    if not lengths.all():
        raise ValueError(
            f"row {(lengths[..., 0] == 0).nonzero()[0].tolist()} of H is zero and has no direction"
        )
    return H / lengths


def _attention(A: Matrix) -> torch.Tensor:
    given = torch.as_tensor(A)
    A = _rows(given, "A")
    # What rounding may take from a row sum: transformers casts its softmax to the model's dtype.
    tolerance = max(1e-5, 2 * torch.finfo(given.dtype).eps) if given.is_floating_point() else 1e-5
    if (
        A.shape[-1] != A.shape[-2]
        or A.min() < -tolerance
        or (A.sum(-1) - 1).abs().max() > tolerance
    ):
        sums = A.sum(-1)
        found = f"{tuple(A.shape)}, entries from {A.min():.3g}, row sums from {sums.min():.6g} to {sums.max():.6g}"
        raise ValueError(f"A has to be (..., N, N) and row-stochastic, got {found}")
    return A.clamp_min(0)
