"""Alphas that follow from what a layer does, without a search: one keeps the norm, one keeps the branch."""

import math
from typing import NamedTuple

import torch


class Products(NamedTuple):
    """Inner products, over all tokens, of the residual stream H, the attention branch A and the value-only branch B."""

    HH: float
    HA: float
    HB: float
    AA: float
    AB: float
    BB: float

    @classmethod
    def of(cls, H: torch.Tensor, A: torch.Tensor, B: torch.Tensor) -> "Products":
        """From the matrices, any shape, in float64."""
        H, A, B = (matrix.double().flatten() for matrix in (H, A, B))
        return cls(*(torch.dot(a, b).item() for a, b in ((H, H), (H, A), (H, B), (A, A), (A, B), (B, B))))

    def __add__(self, other: "Products") -> "Products":  # type: ignore[override]
        """Of two texts together."""
        return Products(*(a + b for a, b in zip(self, other, strict=True)))

    @property
    def branch_ratio(self) -> float:
        """‖A‖ / ‖B‖: what aggregation does to the norm of the branch."""
        return (self.AA / self.BB) ** 0.5 if self.BB else math.nan

    @property
    def branch_cosine(self) -> float:
        """Cosine of A and B, as vectors of all their numbers: how much of the branch any alpha can keep."""
        return self.AB / (self.AA * self.BB) ** 0.5 if self.AA and self.BB else math.nan


def norm_matching_alpha(products: Products) -> float:
    r"""The alpha that keeps the norm of the residual stream, which is the paper's reason for rescaling (Section 2.3).

    .. math:: \lVert H + \alpha B \rVert_F = \lVert H + A \rVert_F

    Parameters
    ----------
    products : Products

    Returns
    -------
    float
        The solution in [0, 1]; the larger of two; if there is none, where the squared norms differ least.
    """
    _, ha, hb, aa, _, bb = products
    if bb == 0:
        return 1.0  # nothing to scale
    wanted = 2 * ha + aa  # ‖H + A‖² - ‖H‖²
    candidates = [0.0, 1.0, -hb / bb]
    if (root := hb**2 + bb * wanted) >= 0:
        candidates += [(-hb + sign * root**0.5) / bb for sign in (-1, 1)]
    allowed = sorted((alpha for alpha in candidates if 0 <= alpha <= 1), reverse=True)
    return min(allowed, key=lambda alpha: round(abs(bb * alpha**2 + 2 * hb * alpha - wanted) / max(aa, bb), 9))


def reconstructing_alpha(products: Products) -> float:
    r"""The alpha that keeps the branch itself as well as it can: least squares, cut to [0, 1].

    .. math:: \arg\min_\alpha \lVert A - \alpha B \rVert_F = \langle A, B \rangle / \lVert B \rVert_F^2
    """
    return min(max(products.AB / products.BB, 0.0), 1.0) if products.BB else 1.0
