"""Every identity and inequality of the theory on random matrices; when attention is uniform, what
averaging does.
"""

import math
from functools import partial

import pandas as pd
import torch
from torch import Tensor
from torch.nn.functional import gelu, silu
from tqdm import tqdm
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

from harp_lib import theory
from harp_lib.theory import (
    attention_entropies,
    largest_eigenvalue,
    largest_singular_value,
    similarity,
)
from harp_lib.theory import distance_to_consensus as d_M

TOKENS, WIDTH = 64, 64  # of the sweeps
SILU_SLOPE, GELU_SLOPE = 1.0998393, 1.1289042  # their largest, at x = 2.3994 and x = √2


def draw_matrices(
    generator: torch.Generator,
) -> tuple[Tensor, Tensor, Tensor, Tensor, tuple[float, float]]:
    """H and B (N, d), W (d, d'), A (N, N) from uniform to one-hot, half of them causal; two
    positive numbers.
    """
    tokens, width, out = torch.randint(2, 13, (3,), generator=generator).tolist()
    normal = partial(torch.randn, generator=generator, dtype=torch.float64)
    offset, scale, sharpness = 3 * normal(1), torch.exp(1.5 * normal(1)), torch.exp(1.5 * normal(1))
    logits = sharpness * normal(tokens, tokens)
    if torch.rand(1, generator=generator) < 0.5:
        logits = logits.masked_fill(
            torch.ones(tokens, tokens, dtype=torch.bool).triu(1), -torch.inf
        )
    a = tuple(normal(2).abs().tolist())
    H, B = offset + scale * normal(tokens, width), scale * normal(tokens, width)
    return H, B, normal(width, out), logits.softmax(-1), a


def inequalities(
    H: Tensor, B: Tensor, W: Tensor, A: Tensor, a: tuple[float, float]
) -> dict[str, tuple[float, float]]:
    """The smaller and the larger side of each inequality, by name."""
    n, distance, d_B = len(H), d_M(H), d_M(B)
    eye, logits, aggregated = torch.eye(n, dtype=H.dtype), H[:, 0], d_M(A @ H)
    before, after, v, no_larger = post_norm_block(H, W, A)
    shortest = H.norm(dim=1).min().item()
    deficit = (
        math.log(n) - torch.special.entr(logits.softmax(0)).sum().item()
    )  # of a softmax over n logits
    as_printed = (
        torch.linalg.eigvalsh(A.mT @ (eye - 1.0) @ A)[-1].clamp_min(0).sqrt().item()
    )  # e is all ones
    return {
        "d(HW) ≤ s d(H)": (d_M(H @ W), largest_singular_value(W) * distance),
        "d(ReLU(H)) ≤ d(H)": (d_M(H.relu()), distance),
        "d(SiLU(H)) ≤ d(H)": (d_M(silu(H)), distance),
        "d(SiLU(H)) ≤ 1.1 d(H)": (d_M(silu(H)), SILU_SLOPE * distance),
        "d(GELU(H)) ≤ 1.13 d(H)": (d_M(gelu(H)), GELU_SLOPE * distance),
        "d(a₁H + a₂B) ≤ a₁d(H) + a₂d(B)": (d_M(a[0] * H + a[1] * B), a[0] * distance + a[1] * d_B),
        "d(ÂH) ≤ √λ d(H), e = 1": (aggregated, as_printed * distance),
        "d(ÂH) ≤ √λ d(H), e = 1/√N": (aggregated, largest_eigenvalue(A).item() ** 0.5 * distance),
        "λ ≤ N/2": (largest_eigenvalue(A).item(), n / 2),
        "d(ÂH) ≤ d(H)": (aggregated, distance),
        "d(block(H)) ≤ v d(H)": (after, v * before),
        "(1 + √λ h s) / (1 + h s) ≤ v": (no_larger, v),
        "1 − Sim(H) ≤ d(H)² / ((N−1) min‖h‖²)": (
            1 - similarity(H),
            distance**2 / ((n - 1) * shortest**2),
        ),
        "log n − entropy ≤ (range of logits)² / 8": (
            deficit,
            (logits.max() - logits.min()).item() ** 2 / 8,
        ),
        "‖ÂH − H‖ ≤ ‖Â − I‖ d(H)": (
            (A @ H - H).norm().item(),
            largest_singular_value(A - eye) * distance,
        ),
        "‖ÂH‖ ≤ √(largest column sum) ‖H‖": (
            (A @ H).norm().item(),
            (A.sum(0).max().sqrt() * H.norm()).item(),
        ),
        "‖Â‖² ≤ N, equal for one-hot rows": (A.square().sum().item(), float(n)),
    }


def identities(H: Tensor) -> dict[str, tuple[float, float]]:
    """Two numbers that are the same, by name."""
    ones = torch.ones(len(H), 1, dtype=H.dtype)
    cosines = torch.cosine_similarity(H[:, None], H[None], dim=-1)[
        ~torch.ones(len(H), len(H)).tril().bool()
    ]
    common_row = torch.linalg.lstsq(ones, H).solution
    of_length_1 = d_M(H / H.norm(dim=1, keepdim=True)) ** 2 / (len(H) - 1)
    return {
        "Sim(H) = mean cosine of all pairs": (similarity(H), cosines.mean().item()),
        "d(H) = residual of the best common row": (d_M(H), (H - ones @ common_row).norm().item()),
        "1 − Sim(H) = d(H)² / ((N−1) r²), rows of length r": (1 - similarity(H), of_length_1),
    }


def post_norm_block(H: Tensor, W: Tensor, A: Tensor) -> tuple[float, float, float, float]:
    """The block of Lemma 2's proof: d_M before and after, v, and (1 + √λ h s) / (1 + h s)."""
    W = W @ W.mT / 4  # (d, d): one matrix for each head, and both of the FFN, which has a ReLU
    heads = torch.stack([A, A.flip(-1).softmax(-1)])  # (2, N, N)
    H, beta_0 = normalise(H)
    X, beta_1 = normalise(H + (heads @ H @ W).sum(0))
    Y, beta_2 = normalise(X + (X @ W).relu() @ W)
    if not min(beta_0, beta_1, beta_2) >= 1e-9:
        return 1.0, 0.0, 1.0, 0.0  # a row that cannot be normalised says nothing
    s, largest = largest_singular_value(W), largest_eigenvalue(heads).max().item()
    no_larger = (1 + 2 * s * largest**0.5) / (1 + 2 * s)
    return d_M(H), d_M(Y), theory.block_bound(s, largest, 2, (beta_1, beta_2)), no_larger


def normalise(H: Tensor) -> tuple[Tensor, float]:
    """Rows of mean 0 and standard deviation 1, and the smallest standard deviation before."""
    deviations = H.std(-1, correction=0, keepdim=True)
    return (H - H.mean(-1, keepdim=True)) / deviations, deviations.min().item()


def check_on_draws(draws: int, seed: int) -> pd.DataFrame:
    """Everything on the same random draws: check, kind, draws, violations, largest.

    ``largest`` is the largest quotient of the two sides of an inequality (1: it cannot be
    improved), or the largest difference of the two sides of an identity, in parts of what is
    larger, 1 or the right side.
    """
    generator = torch.Generator().manual_seed(seed)
    material = [draw_matrices(generator) for _ in range(draws)]
    ordered = [
        inequalities(*matrices) for matrices in tqdm(material, desc="random draws", unit="draw")
    ]
    rows = []
    for name, pairs in pd.DataFrame(ordered).items():
        violations = sum(left > right * (1 + 1e-9) + 1e-9 for left, right in pairs)
        rows.append(
            (
                name,
                "inequality",
                draws,
                violations,
                max(left / right for left, right in pairs if right > 1e-6),
            )
        )
    for name, pairs in pd.DataFrame([identities(H) for H, *_ in material]).items():
        differences = [abs(left - right) / max(1.0, abs(right)) for left, right in pairs]
        rows.append(
            (
                name,
                "identity",
                draws,
                sum(difference > 1e-9 for difference in differences),
                max(differences),
            )
        )
    return pd.DataFrame(rows, columns=["check", "kind", "draws", "violations", "largest"])


def attention(
    H: Tensor, W_Q: Tensor, W_K: Tensor, rotary: bool = False, causal: bool = True
) -> Tensor:
    """Attention weights (..., N, N) of one head over H (..., N, d): softmax of q·k / √d_k (proof of
    Theorem 1).
    """
    queries, keys = H @ W_Q, H @ W_K
    tokens, width = queries.shape[-2:]
    if rotary:  # turned by their position, as in the paper's four models; base 10,000
        config = LlamaConfig(head_dim=width, max_position_embeddings=tokens)
        cos, sin = LlamaRotaryEmbedding(config)(H, torch.arange(tokens)[None])
        queries, keys = apply_rotary_pos_emb(queries, keys, cos[0], sin[0], unsqueeze_dim=0)
    logits = queries @ keys.mT / math.sqrt(width)
    if causal:
        logits = logits.masked_fill(
            torch.ones(tokens, tokens, dtype=torch.bool).triu(1), -torch.inf
        )
    return logits.softmax(-1)


def uniformity_sweep(draws: int, seed: int) -> pd.DataFrame:
    """Normalised entropy of random heads while Sim(H) → 1: lengths, positions, draw, spread,
    similarity, entropy.
    """
    visible, rows = theory.visible_positions(TOKENS), []
    for draw in range(draws):
        W_Q, W_K = (
            2 * torch.randn(2, WIDTH, WIDTH, generator=_seeded(seed, draw)) / math.sqrt(WIDTH)
        )
        normal = partial(torch.randn, generator=_seeded(seed, draw, 1))
        direction, own, lengths = (
            normal(WIDTH),
            normal(TOKENS, WIDTH),
            torch.exp(0.7 * normal(TOKENS, 1)),
        )
        for spread in torch.logspace(-3, 0.5, 15).tolist():
            H = direction + spread * own  # (N, d), around one direction
            H = math.sqrt(WIDTH) * H / H.norm(dim=-1, keepdim=True)  # of length √d
            for equal, states in ((True, H), (False, H * lengths)):
                for rotary in (False, True):
                    entropy = attention_entropies(
                        attention(states, W_Q, W_K, rotary), visible
                    ).item()
                    rows.append((equal, rotary, draw, spread, similarity(states), entropy))
    return pd.DataFrame(
        rows, columns=["equal lengths", "rotary", "draw", "spread", "similarity", "entropy"]
    )


def norm_sweep(draws: int, seed: int) -> pd.DataFrame:
    """‖AH‖/‖H‖ from one-hot rows to uniform ones: mask, rows of H, draw, temperature, entropy,
    ratio.

    The rows of A are the softmax of random logits at a temperature. The rows of H are independent,
    or have half of their squared length in common, or the first of them is as long as all others
    together.
    """
    rows = []
    for draw in range(draws):
        logits = torch.randn(TOKENS, TOKENS, generator=_seeded(seed, draw)).double()
        own = torch.randn(TOKENS, WIDTH, generator=_seeded(seed, draw, 1))
        common = torch.randn(1, WIDTH, generator=_seeded(seed, draw, 2))
        long = torch.cat([math.sqrt(TOKENS) * own[:1], own[1:]])
        for mask in ("full", "causal"):
            hidden = torch.ones(TOKENS, TOKENS, dtype=torch.bool).triu(
                1 if mask == "causal" else TOKENS
            )
            for temperature in torch.logspace(-2, 1.5, 15, dtype=torch.float64).tolist():
                A = (logits / temperature).masked_fill(hidden, -torch.inf).softmax(-1)
                entropy = attention_entropies(A, (~hidden).sum(-1)).item()
                for kind, H in (
                    ("independent", own),
                    ("half in common", own + common),
                    ("a long first row", long),
                ):
                    rows.append((mask, kind, draw, temperature, entropy, theory.norm_ratio(A, H)))
    return pd.DataFrame(rows, columns=["mask", "rows", "draw", "temperature", "entropy", "ratio"])


def _seeded(*numbers: int) -> torch.Generator:
    return torch.Generator().manual_seed(
        sum(number * 1000**place for place, number in enumerate(numbers))
    )
