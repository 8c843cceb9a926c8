"""Both sides of every inequality and identity of the theory, and one head's attention weights.

``data/paper/statements.yaml`` refers to the inequalities and identities by their names.
"""

import math

import torch
from torch import Tensor
from torch.nn.functional import gelu, silu
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

from harp_lib.theory import (
    block_bound,
    largest_eigenvalue,
    largest_singular_value,
    similarity,
)
from harp_lib.theory import distance_to_consensus as d_M

SILU_LARGEST_SLOPE = 1.0998393  # at x = 2.3994
GELU_LARGEST_SLOPE = 1.1289042  # at x = √2

Sides = dict[str, tuple[float, float]]
"""Name of an inequality → its smaller and its larger side; or of an identity → its two sides."""


def inequalities(H: Tensor, B: Tensor, W: Tensor, A: Tensor, factors: tuple[float, float]) -> Sides:
    """The smaller and the larger side of each inequality, by name.

    Parameters
    ----------
    H, B : (N, d)
        Hidden states.
    W : (d, d')
        A linear map.
    A : (N, N)
        Row-stochastic.
    factors
        Two positive numbers, a₁ and a₂.
    """
    return {
        **_lemma_1(H, B, W, factors),
        **_lemma_1_attention(H, A),
        **_lemma_2(H, W, A),
        **_similarity_and_entropy(H),
        **_aggregation(H, A),
    }


def _lemma_1(H: Tensor, B: Tensor, W: Tensor, factors: tuple[float, float]) -> Sides:
    """Lemma 1 without attention: linear maps, activations and sums."""
    distance = d_M(H)
    a_1, a_2 = factors
    return {
        "d(HW) ≤ s d(H)": (d_M(H @ W), largest_singular_value(W) * distance),
        "d(ReLU(H)) ≤ d(H)": (d_M(H.relu()), distance),
        "d(SiLU(H)) ≤ d(H)": (d_M(silu(H)), distance),
        "d(SiLU(H)) ≤ 1.1 d(H)": (d_M(silu(H)), SILU_LARGEST_SLOPE * distance),
        "d(GELU(H)) ≤ 1.13 d(H)": (d_M(gelu(H)), GELU_LARGEST_SLOPE * distance),
        "d(a₁H + a₂B) ≤ a₁d(H) + a₂d(B)": (
            d_M(a_1 * H + a_2 * B),
            a_1 * distance + a_2 * d_M(B),
        ),
    }


def _lemma_1_attention(H: Tensor, A: Tensor) -> Sides:
    """Lemma 1 with attention: as printed (e is the vector of ones), corrected, and as used."""
    tokens = len(H)
    distance = d_M(H)
    distance_after = d_M(A @ H)
    identity = torch.eye(tokens, dtype=H.dtype)
    largest_as_printed = torch.linalg.eigvalsh(A.mT @ (identity - 1.0) @ A)[-1].clamp_min(0)
    largest = largest_eigenvalue(A).item()
    return {
        "d(ÂH) ≤ √λ d(H), e = 1": (distance_after, largest_as_printed.sqrt().item() * distance),
        "d(ÂH) ≤ √λ d(H), e = 1/√N": (distance_after, largest**0.5 * distance),
        "λ ≤ N/2": (largest, tokens / 2),
        "d(ÂH) ≤ d(H)": (distance_after, distance),
    }


def _lemma_2(H: Tensor, W: Tensor, A: Tensor) -> Sides:
    """Lemma 2 for the post-norm block of its proof, with two heads."""
    block_bound_name = "d(block(H)) ≤ v d(H)"
    factor_name = "(1 + √λ h s) / (1 + h s) ≤ v"
    W = W @ W.mT / 4  # (d, d): one matrix for each head, and both of the FFN, which has a ReLU
    heads = torch.stack([A, A.flip(-1).softmax(-1)])  # (2, N, N)
    H, beta_0 = normalise(H)
    X, beta_1 = normalise(H + (heads @ H @ W).sum(0))
    Y, beta_2 = normalise(X + (X @ W).relu() @ W)
    could_normalise = min(beta_0, beta_1, beta_2) >= 1e-9  # False also for NaN
    if not could_normalise:
        # Lemma 2 says nothing about a row that cannot be normalised: both hold trivially.
        return {block_bound_name: (0.0, 1.0), factor_name: (0.0, 1.0)}
    s = largest_singular_value(W)
    largest = largest_eigenvalue(heads).max().item()
    v = block_bound(s, largest, 2, (beta_1, beta_2))
    smallest_possible_v = (1 + 2 * s * largest**0.5) / (1 + 2 * s)
    return {block_bound_name: (d_M(Y), v * d_M(H)), factor_name: (smallest_possible_v, v)}


def _similarity_and_entropy(H: Tensor) -> Sides:
    """What is left of Lemma 3 and of Theorem 1; the logits are the first column of H."""
    tokens = len(H)
    shortest = H.norm(dim=1).min().item()
    logits = H[:, 0]  # (N,)
    entropy_deficit = math.log(tokens) - torch.special.entr(logits.softmax(0)).sum().item()
    range_of_logits = (logits.max() - logits.min()).item()
    return {
        "1 − Sim(H) ≤ d(H)² / ((N−1) min‖h‖²)": (
            1 - similarity(H),
            d_M(H) ** 2 / ((tokens - 1) * shortest**2),
        ),
        "log n − entropy ≤ (range of logits)² / 8": (entropy_deficit, range_of_logits**2 / 8),
    }


def _aggregation(H: Tensor, A: Tensor) -> Sides:
    """How far aggregation moves H and its norm (Proposition 1)."""
    tokens = len(H)
    identity = torch.eye(tokens, dtype=H.dtype)
    aggregated = A @ H
    return {
        "‖ÂH − H‖ ≤ ‖Â − I‖ d(H)": (
            (aggregated - H).norm().item(),
            largest_singular_value(A - identity) * d_M(H),
        ),
        "‖ÂH‖ ≤ √(largest column sum) ‖H‖": (
            aggregated.norm().item(),
            (A.sum(0).max().sqrt() * H.norm()).item(),
        ),
        "‖Â‖² ≤ N, equal for one-hot rows": (A.square().sum().item(), float(tokens)),
    }


def identities(H: Tensor) -> Sides:
    """Two numbers that are equal for every H (N, d), by the name of the identity."""
    tokens = len(H)
    cosines = torch.cosine_similarity(H[:, None], H[None], dim=-1)  # (N, N)
    is_pair = torch.ones(tokens, tokens, dtype=torch.bool).triu(1)
    ones = torch.ones(tokens, 1, dtype=H.dtype)
    common_row = torch.linalg.lstsq(ones, H).solution  # (1, d)
    unit_rows = H / H.norm(dim=1, keepdim=True)
    return {
        "Sim(H) = mean cosine of all pairs": (similarity(H), cosines[is_pair].mean().item()),
        "d(H) = residual of the best common row": (d_M(H), (H - ones @ common_row).norm().item()),
        "1 − Sim(H) = d(H)² / ((N−1) r²), rows of length r": (
            1 - similarity(H),
            d_M(unit_rows) ** 2 / (tokens - 1),
        ),
    }


def normalise(H: Tensor) -> tuple[Tensor, float]:
    """Rows of mean 0 and standard deviation 1, and the smallest standard deviation before."""
    deviations = H.std(-1, correction=0, keepdim=True)  # (..., N, 1)
    normalised = (H - H.mean(-1, keepdim=True)) / deviations
    return normalised, deviations.min().item()


def attention(
    H: Tensor, W_Q: Tensor, W_K: Tensor, rotary: bool = False, causal: bool = True
) -> Tensor:
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
    Tensor (..., N, N)
    """
    queries = H @ W_Q  # (..., N, d_k)
    keys = H @ W_K  # (..., N, d_k)
    tokens, width = queries.shape[-2:]
    if rotary:
        config = LlamaConfig(head_dim=width, max_position_embeddings=tokens)
        cos, sin = LlamaRotaryEmbedding(config)(H, torch.arange(tokens)[None])
        queries, keys = apply_rotary_pos_emb(queries, keys, cos[0], sin[0], unsqueeze_dim=0)
    logits = queries @ keys.mT / math.sqrt(width)  # (..., N, N)
    if causal:
        is_later = torch.ones(tokens, tokens, dtype=torch.bool).triu(1)
        logits = logits.masked_fill(is_later, -torch.inf)
    return logits.softmax(-1)
