"""Every counterexample, built again with NumPy and from the paper's own formulas."""

import numpy as np
import pytest
import torch

from harp_lib.theory import counterexamples
from harp_lib.theory.inequalities import INEQUALITIES, check_on_draws, count_one_hot
from harp_lib.theory.synthetic import attention, norm_sweep, uniformity_sweep


@pytest.mark.parametrize("example", counterexamples.ALL, ids=lambda example: example.__name__)
def test_refutes(example):
    found = example()
    assert found.refuted, found
    assert found.statement
    assert found.found


def distance(H):
    return np.linalg.norm(H - H.mean(0))


def softmax(logits):
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


def cosines(H):
    directions = H / np.linalg.norm(H, axis=1, keepdims=True)
    return (directions @ directions.T)[np.triu_indices(len(H), 1)]


def test_one_hot_rows():
    A, H = np.array([[1.0, 0], [1, 0]]), np.array([[1.0], [0]])
    assert np.linalg.norm(A @ H) == pytest.approx(2**0.5)
    assert "1.4142" in counterexamples.one_hot_rows().found


def test_equal_rows_keep_their_norm():
    A, H = np.full((4, 4), 0.25), np.ones((4, 3))
    assert np.linalg.norm(A @ H) == pytest.approx(np.linalg.norm(H))


def test_parallel_rows_of_different_length():
    H = np.linspace(1, 4, 16)[:, None] * np.ones(4)
    weights = softmax(H @ H.T / 2)
    assert np.allclose(cosines(H), 1)
    entropy = -(weights * np.log(weights)).sum(-1).mean() / np.log(16)
    assert f"normalised entropy {entropy:.2f}" in counterexamples.parallel_rows_of_different_length().found


def test_parallel_rows_are_no_consensus():
    H = np.array([[1.0, 1], [2, 2]])
    assert np.allclose(cosines(H), 1)
    assert distance(H) == pytest.approx(1)


def test_equal_rows_with_rotary_positions():
    """Logits of equal rows depend on the distance of their positions: the rotation written out."""
    row = torch.randn(32, generator=torch.Generator().manual_seed(0)).double().numpy()
    angles = np.arange(32)[:, None] * 10_000.0 ** (-np.arange(16) / 16)
    half = row[:16] + 1j * row[16:]
    turned = half * np.exp(1j * angles)  # (N, 16)
    logits = 3 * (turned @ turned.conj().T).real / 32**0.5
    weights = [softmax(logits[i, : i + 1]) for i in range(1, 32)]
    entropy = np.mean([-(w * np.log(w)).sum() / np.log(len(w)) for w in weights])
    assert f"normalised entropy {entropy:.2f}" in counterexamples.equal_rows_with_rotary_positions().found


def test_one_token_apart():
    H = np.ones((1000, 4))
    H[0] = -1
    assert f"Sim = {cosines(H).mean():.4f}" in counterexamples.one_token_apart().found
    assert cosines(H).mean() == pytest.approx(1 - 4 / 1000)
    logits = H[-1] @ (-5 * H).T / 2
    assert softmax(logits)[0] > 0.999


def test_diverse_rows_with_uniform_attention():
    H = np.hstack([np.full((16, 1), 0.1), np.eye(16)])
    keys = H * np.eye(17)[0]
    assert np.ptp(H @ keys.T, axis=1).max() < 1e-12, "every query sees equal logits"
    assert cosines(H).max() < 0.01


def test_shrinking_rows():
    for scale in (1.0, 1e-3, 1e-6):
        H = scale * np.eye(8)
        assert distance(H) == pytest.approx(scale * 7**0.5)
        assert np.allclose(cosines(H), 0)


def test_vector_of_ones():
    A, H = np.array([[1, 0], [0.5, 0.5]]), np.array([[1.0], [-1]])
    printed = np.linalg.eigvalsh(A.T @ (np.eye(2) - np.ones((2, 2))) @ A).max() ** 0.5
    unit = np.linalg.eigvalsh(A.T @ (np.eye(2) - np.ones((2, 2)) / 2) @ A).max() ** 0.5
    grown = distance(A @ H) / distance(H)
    assert printed < grown <= unit + 1e-12


def test_silu_spreads_rows():
    H = np.array([[2.3], [2.5]])
    assert distance(H / (1 + np.exp(-H))) / distance(H) == pytest.approx(1.0997, abs=1e-4)


def test_averaging_under_a_causal_mask():
    A = np.tril(np.ones((256, 256))) / np.arange(1, 257)[:, None]
    first = np.eye(256)[:, :1]  # one that differs from all others, seen by all
    assert distance(A @ first) > 1.2 * distance(first)


def test_pre_norm_block():
    """With weights of zero a pre-norm block is the identity, whatever β is."""
    H = 10 * torch.randn(8, 16, generator=torch.Generator().manual_seed(0), dtype=torch.float64).numpy()
    v = 1 / H.std(1).min() ** 2
    assert counterexamples.pre_norm_block().found == f"d_M(after)/d_M(before) = 1.000, v = {v:.3f}"


def test_separate_value_and_output():
    def layer_norm(H):
        return (H - H.mean(1, keepdims=True)) / H.std(1, keepdims=True)

    H = layer_norm(np.random.default_rng(1).normal(size=(8, 16)))
    s = 10.0
    first = H + s * s * H
    X = layer_norm(first)
    second = X + s * np.maximum(s * X, 0)
    v = (1 + s**2) * (1 + s) / (first.std(1).min() * second.std(1).min())
    assert v < 0.5
    assert distance(layer_norm(second)) > 2 * v * distance(H)


def test_gated_ffn():
    """The second row moves its gate's neighbour: the product of two unit maps has slope √d."""
    assert "d_M(after)/d_M(before) = 9.00, v = 2.00" in counterexamples.gated_ffn().found


def test_projection_loses_what_is_common():
    H = np.hstack([np.ones((16, 1)), 1e-3 * np.eye(16)])
    assert cosines(H).min() > 0.99999
    assert np.allclose(cosines(H[:, 1:]), 0)


def test_uniform_attention_is_not_value_only():
    V = np.eye(16)
    assert np.linalg.norm(V.mean(0) - V) / np.linalg.norm(V) == pytest.approx((15 / 16) ** 0.5)
    assert "= 0.97" in counterexamples.uniform_attention_is_not_value_only().found


def test_random_draws():
    """Bounds hold and are nearly attained; what is printed too generously is violated."""
    checks = check_on_draws(2000, seed=1).set_index("check")
    broken = {"d(SiLU(H)) ≤ d(H)", "d(ÂH) ≤ √λ d(H), e = 1", "d(ÂH) ≤ d(H)"}
    assert set(checks.index[checks["violations"] > 0]) == broken
    quotients = checks.loc[list(INEQUALITIES), "largest"]
    assert (quotients.drop(list(broken)) <= 1 + 1e-9).all()
    assert (quotients > 0.3).all()


def test_one_hot_matrices_are_counted():
    assert count_one_hot(3, causal=False) == (27, 6)
    assert count_one_hot(3, causal=True) == (6, 1)


def test_synthetic_attention_is_the_models():
    """The same weights as transformers' own Llama attention gives."""
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaAttention, LlamaRotaryEmbedding

    config = LlamaConfig(hidden_size=16, num_attention_heads=1, num_key_value_heads=1, attn_implementation="eager")
    module, H = LlamaAttention(config, 0), torch.randn(1, 12, 16)
    mask = torch.full((12, 12), -torch.inf).triu(1)[None, None]
    positions = LlamaRotaryEmbedding(config)(H, torch.arange(12)[None])
    with torch.no_grad():
        _, expected = module(H, positions, mask)
        found = attention(H[0], module.q_proj.weight.T, module.k_proj.weight.T, rotary=True)
    assert torch.allclose(found, expected[0, 0], atol=1e-6)


def test_sweeps_show_what_they_should():
    sweep = uniformity_sweep(3, seed=0)
    nearest = sweep[sweep["spread"] == sweep["spread"].min()]
    assert nearest["similarity"].min() > 0.9999
    ends = nearest.groupby(["equal lengths", "rotary"])["entropy"].mean()
    assert ends[True, False] > 0.999
    assert ends.drop((True, False)).max() < 0.9
    norms = norm_sweep(3, seed=0)
    assert norms.loc[norms["rows"] == "independent", "ratio"].max() < 1.1
    assert norms.loc[norms["rows"] == "a long first row", "ratio"].max() > 1.2, "averaging may lengthen"
    assert uniformity_sweep(2, seed=0).equals(uniformity_sweep(2, seed=0))
    assert not norm_sweep(2, seed=0).equals(norm_sweep(2, seed=1))
