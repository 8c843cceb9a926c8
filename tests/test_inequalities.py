"""What ``data/paper/statements.yaml`` says of the paper's lemmas, on random draws of matrices."""

import math
from functools import partial

import numpy as np
import pandas as pd
import pytest
import torch
import yaml
from torch.nn.functional import gelu, silu

from harp_lib import config
from harp_lib.theory import block_bound, counterexamples, largest_eigenvalues, similarity
from harp_lib.theory import distance_to_consensus as d_M
from harp_lib.theory.counterexamples import normalise

DRAWS = 700
SILU_LARGEST_SLOPE = 1.0998393  # at x = 2.3994
GELU_LARGEST_SLOPE = 1.1289042  # at x = √2
STATEMENTS = yaml.safe_load((config.PAPER / "statements.yaml").read_text(encoding="utf-8"))
EXAMPLES = [call for statement in STATEMENTS for call in statement.get("examples", [])]


def largest_singular_value(weight):
    return torch.linalg.matrix_norm(weight, ord=2).item()


def inequalities(H, B, W, A, factors):
    """Name of an inequality → its smaller and its larger side.

    H and B are (N, d), W is (d, d'), A is (N, N) and row-stochastic; the factors are positive.
    """
    tokens = len(H)
    identity = torch.eye(tokens, dtype=H.dtype)
    distance = d_M(H)
    aggregated = A @ H
    a_1, a_2 = factors
    largest = largest_eigenvalues(A).item()
    largest_as_printed = torch.linalg.eigvalsh(A.mT @ (identity - 1.0) @ A)[-1].clamp_min(0)
    logits = H[:, 0]  # (N,)
    entropy_deficit = math.log(tokens) - torch.special.entr(logits.softmax(0)).sum().item()
    return {
        # Lemma 1
        "d(HW) ≤ s d(H)": (d_M(H @ W), largest_singular_value(W) * distance),
        "d(ReLU(H)) ≤ d(H)": (d_M(H.relu()), distance),
        "d(SiLU(H)) ≤ d(H)": (d_M(silu(H)), distance),
        "d(SiLU(H)) ≤ 1.1 d(H)": (d_M(silu(H)), SILU_LARGEST_SLOPE * distance),
        "d(GELU(H)) ≤ 1.13 d(H)": (d_M(gelu(H)), GELU_LARGEST_SLOPE * distance),
        "d(a₁H + a₂B) ≤ a₁d(H) + a₂d(B)": (d_M(a_1 * H + a_2 * B), a_1 * distance + a_2 * d_M(B)),
        "d(ÂH) ≤ √λ d(H), e = 1": (d_M(aggregated), largest_as_printed.sqrt().item() * distance),
        "d(ÂH) ≤ √λ d(H), e = 1/√N": (d_M(aggregated), largest**0.5 * distance),
        "λ ≤ N/2": (largest, tokens / 2),
        "d(ÂH) ≤ d(H)": (d_M(aggregated), distance),
        **lemma_2(H, W, A),
        # What is left of Lemma 3 and of Theorem 1
        "1 − Sim(H) ≤ d(H)² / ((N−1) min‖h‖²)": (
            1 - similarity(H),
            distance**2 / ((tokens - 1) * H.norm(dim=1).min().item() ** 2),
        ),
        "log n − entropy ≤ (range of logits)² / 8": (
            entropy_deficit,
            (logits.max() - logits.min()).item() ** 2 / 8,
        ),
        # Proposition 1
        "‖ÂH − H‖ ≤ ‖Â − I‖ d(H)": (
            (aggregated - H).norm().item(),
            largest_singular_value(A - identity) * distance,
        ),
        "‖ÂH‖ ≤ √(largest column sum) ‖H‖": (
            aggregated.norm().item(),
            (A.sum(0).max().sqrt() * H.norm()).item(),
        ),
        "‖Â‖² ≤ N, equal for one-hot rows": (A.square().sum().item(), float(tokens)),
    }


def lemma_2(H, W, A):
    """Lemma 2 for the post-norm block of its proof, with two heads."""
    W = W @ W.mT / 4  # (d, d): one matrix for each head, and both of the FFN, which has a ReLU
    heads = torch.stack([A, A.flip(-1).softmax(-1)])  # (2, N, N)
    H, beta_0 = normalise(H)
    X, beta_1 = normalise(H + (heads @ H @ W).sum(0))
    Y, beta_2 = normalise(X + (X @ W).relu() @ W)
    v_is_met, v_is_large = "d(block(H)) ≤ v d(H)", "(1 + √λ h s) / (1 + h s) ≤ v"
    could_normalise = min(beta_0, beta_1, beta_2) >= 1e-9  # False also for NaN
    if not could_normalise:  # the lemma says nothing of such a row
        return {v_is_met: (0.0, 1.0), v_is_large: (0.0, 1.0)}
    s = largest_singular_value(W)
    largest = largest_eigenvalues(heads).max().item()
    v = block_bound(s, largest, 2, (beta_1, beta_2))
    smallest_possible_v = (1 + 2 * s * largest**0.5) / (1 + 2 * s)
    return {v_is_met: (d_M(Y), v * d_M(H)), v_is_large: (smallest_possible_v, v)}


def identities(H):
    """Name of an identity → its two sides, for H (N, d)."""
    tokens = len(H)
    cosines = torch.cosine_similarity(H[:, None], H[None], dim=-1)  # (N, N)
    is_pair = torch.ones(tokens, tokens, dtype=torch.bool).triu(1)
    ones = torch.ones(tokens, 1, dtype=H.dtype)
    common_row = torch.linalg.lstsq(ones, H).solution  # (1, d)
    of_unit_rows = d_M(H / H.norm(dim=1, keepdim=True))
    return {
        "Sim(H) = mean cosine of all pairs": (similarity(H), cosines[is_pair].mean().item()),
        "d(H) = residual of the best common row": (d_M(H), (H - ones @ common_row).norm().item()),
        "1 − Sim(H) = d(H)² / ((N−1) r²), rows of length r": (
            1 - similarity(H),
            of_unit_rows**2 / (tokens - 1),
        ),
    }


def draw_matrices(generator):
    """The arguments of :func:`inequalities`, of random size.

    A is from uniform to one-hot, and in half of the draws causal.
    """
    tokens, width, out_width = torch.randint(2, 13, (3,), generator=generator).tolist()
    normal = partial(torch.randn, generator=generator, dtype=torch.float64)
    offset = 3 * normal(1)
    scale = torch.exp(1.5 * normal(1))
    sharpness = torch.exp(1.5 * normal(1))
    logits = sharpness * normal(tokens, tokens)
    if torch.rand(1, generator=generator) < 0.5:
        is_later = torch.ones(tokens, tokens, dtype=torch.bool).triu(1)
        logits = logits.masked_fill(is_later, -torch.inf)
    factors = normal(2).abs().tolist()
    H = offset + scale * normal(tokens, width)
    B = scale * normal(tokens, width)
    W = normal(width, out_width)
    return H, B, W, logits.softmax(-1), factors


@pytest.fixture(scope="module")
def drawn():
    """The two sides of each inequality and identity, ``(draws, 2)``, by its name."""
    generator = torch.Generator().manual_seed(1)
    draws = []
    for _ in range(DRAWS):
        matrices = draw_matrices(generator)
        draws.append(inequalities(*matrices) | identities(matrices[0]))
    return {name: np.array(sides.tolist()) for name, sides in pd.DataFrame(draws).items()}


def is_violated(name, sides):
    """Whether in any draw an inequality, or else an identity, is wrong beyond rounding."""
    left, right = sides.T
    if "≤" in name:
        return (left > right * (1 + 1e-9) + 1e-9).any()
    return (np.abs(left - right) > 1e-9 * np.maximum(1, np.abs(right))).any()


@pytest.mark.parametrize("statement", STATEMENTS, ids=lambda statement: statement["statement"])
def test_a_statement_is_kept_and_broken_by_what_its_entry_names(drawn, statement):
    for name in statement.get("kept", []):
        assert not is_violated(name, drawn[name]), name
    for name in statement.get("broken", []):
        assert is_violated(name, drawn[name]), name


def test_bounds_are_nearly_attained(drawn):
    """A bound that nothing comes near would be kept whatever the code computes."""
    for name, sides in drawn.items():
        if "≤" in name:
            smaller, larger = sides.T
            is_positive = larger > 1e-6
            assert (smaller[is_positive] / larger[is_positive]).max() > 0.3, name


@pytest.mark.parametrize("call", EXAMPLES)
def test_a_counterexample_refutes_what_its_entry_says(call):
    example = getattr(counterexamples, call.removesuffix("()"))()
    assert example.refuted, example.found
