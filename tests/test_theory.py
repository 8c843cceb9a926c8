"""The theory against slow, obvious twins, as properties of random matrices, and each counterexample
built again.
"""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from harp_lib import theory
from harp_lib.theory import Products, counterexamples, norm_matching_alpha, reconstructing_alpha
from harp_lib.theory.inequalities import attention, check_on_draws, norm_sweep, uniformity_sweep

F64 = torch.float64
finite = st.floats(-50, 50, allow_nan=False, width=64)
few = settings(max_examples=50, deadline=None)
some, several = st.integers(1, 6), st.integers(2, 7)
either = st.booleans()


@st.composite
def rows(draw, tokens=several, width=some, shortest=1e-3):
    """H (N, d) without rows near zero."""
    H = torch.from_numpy(draw(arrays(np.float64, (draw(tokens), draw(width)), elements=finite)))
    short = H.norm(dim=1) < shortest
    H[short, 0] = 1.0
    return H


@st.composite
def stochastic(draw, tokens=several, causal=either):
    """A row-stochastic matrix, from uniform to one-hot."""
    n = draw(tokens)
    logits = torch.from_numpy(draw(arrays(np.float64, (n, n), elements=finite))) * draw(
        st.sampled_from([0.0, 0.02, 1])
    )
    if draw(causal):
        logits = logits.masked_fill(torch.ones(n, n, dtype=torch.bool).triu(1), -torch.inf)
    return logits.softmax(-1)


@st.composite
def attention_and_rows(draw):
    n = draw(st.integers(2, 7))
    return draw(stochastic(tokens=st.just(n))), draw(rows(tokens=st.just(n)))


def pairwise_similarity(H):
    """Definition 1, word for word."""
    cosines = [(a @ b / (a.norm() * b.norm())).item() for a, b in itertools.combinations(H, 2)]
    return sum(cosines) / len(cosines)


class TestSimilarity:
    @few
    @given(rows())
    def test_equals_the_mean_over_pairs(self, H):
        assert theory.similarity(H) == pytest.approx(pairwise_similarity(H), abs=1e-9)
        assert -1 / (len(H) - 1) - 1e-9 <= theory.similarity(H) <= 1 + 1e-9


class TestConsensus:
    def test_batches_and_one_token(self):
        H = torch.randn(3, 5, 4)
        each = [theory.distance_to_consensus(text) for text in H]
        assert theory.distance_to_consensus(H) == pytest.approx(sum(each) / 3)
        assert theory.distance_to_consensus(torch.randn(1, 4)) == 0


class TestAttention:
    @few
    @given(stochastic())
    def test_the_factor_is_attained(self, A):
        """λ_max by the textbook, and the H that makes the inequality an equality."""
        n = len(A)
        e = torch.full((n, 1), n**-0.5, dtype=F64)
        values, vectors = torch.linalg.eigh(A.mT @ (torch.eye(n, dtype=F64) - e @ e.mT) @ A)
        assert theory.largest_eigenvalue(A).item() == pytest.approx(values[-1].item(), abs=1e-9)
        worst = vectors[:, -1:]
        grown = theory.largest_eigenvalue(A).item() ** 0.5 * theory.distance_to_consensus(worst)
        assert theory.distance_to_consensus(A @ worst) >= grown - 1e-7

    def test_lemma_2(self):
        assert theory.block_bound(2.0, 4.0, 3, (2.0, 5.0)) == pytest.approx(
            (1 + 4) * (1 + 2 * 3 * 2) / 10
        )

    @pytest.mark.parametrize("tokens", [2, 3, 4])
    def test_one_hot_rows_preserve_it_only_as_permutations(self, tokens):
        for choice in itertools.product(range(tokens), repeat=tokens):
            A = torch.eye(tokens)[list(choice)]
            assert theory.preserves_norm(A) == (len(set(choice)) == tokens)
            if (A.triu(1) == 0).all():  # causal
                assert theory.preserves_norm(A) == torch.equal(A, torch.eye(tokens))

    def test_of_many_heads(self):
        A, H = torch.rand(2, 3, 5, 5).softmax(-1), torch.randn(2, 1, 5, 4)
        ratios = theory.norm_ratios(A, H)
        assert ratios.shape == (2, 3)
        assert ratios[1, 2].item() == pytest.approx(theory.norm_ratio(A[1, 2], H[1, 0]))
        assert theory.norm_ratio(A, H) == pytest.approx(ratios.mean().item())
        assert not theory.preserves_norm(
            torch.stack([torch.eye(2), torch.tensor([[1.0, 0], [1, 0]])])
        )


class TestEntropy:
    def test_extremes(self):
        visible = theory.visible_positions(6)
        uniform = torch.ones(6, 6).tril() / visible[:, None]
        assert theory.attention_entropies(uniform, visible).item() == pytest.approx(1)
        assert theory.attention_entropies(torch.eye(6), visible).item() == 0

    @few
    @given(stochastic(causal=st.just(True)))
    def test_against_a_loop(self, A):
        relative = [
            -sum(a * math.log(a) for a in row[: i + 1].tolist() if a > 0) / math.log(i + 1)
            for i, row in enumerate(A)
            if i > 0
        ]
        found = theory.attention_entropies(A, theory.visible_positions(len(A))).item()
        assert found == pytest.approx(sum(relative) / len(relative), abs=1e-9)
        assert -1e-9 <= found <= 1 + 1e-9

    def test_window(self):
        assert theory.visible_positions(5, window=3).tolist() == [1, 2, 3, 3, 3]
        band = torch.ones(5, 5).tril().triu(-2)
        visible = theory.visible_positions(5, window=3)
        assert theory.attention_entropies(band / visible[:, None], visible).item() == pytest.approx(
            1
        )


@pytest.mark.parametrize(
    ("measure", "given", "message"),
    [
        (theory.similarity, [[[1.0, 2.0]]], "H has one row"),
        (theory.similarity, [[[1.0, 0.0], [0.0, 0.0]]], r"row \[1\] of H is zero"),
        (theory.similarity, [[[[1.0], [2.0]], [[0.0], [2.0]]]], r"row \[1, 0\] of H is zero"),
        (theory.similarity, [[[1.0, math.nan], [1.0, 2.0]]], "H has to be finite"),
        (theory.similarity, [[1.0, 2.0]], r"H has to be finite numbers \(..., N, d\)"),
        (
            theory.norm_ratio,
            [[[0.5, 0.4], [0.5, 0.5]], [[1.0], [1]]],
            "row-stochastic, got .* row sums from 0.9 to 1",
        ),
        (
            theory.norm_ratio,
            [[[1.5, -0.5], [0.5, 0.5]], [[1.0], [1]]],
            "row-stochastic, got .* entries from -0.5",
        ),
        (theory.norm_ratio, [[[0.5, 0.5]], [[1.0], [1]]], r"A has to be \(..., N, N\)"),
        (theory.norm_ratio, [[[1.0, 0], [0, 1]], [[0.0], [0]]], "H is zero"),
        (theory.attention_entropies, [[[1.0]], [1]], "one position only"),
        (
            theory.attention_entropies,
            [[[0.5, 0.5], [0.5, 0.5]], [1, 2]],
            "more positions than it sees",
        ),
    ],
)
def test_refusals(measure, given, message):
    with pytest.raises(ValueError, match=message):
        measure(*given)


class TestBlockInfluence:
    def test_known_values(self):
        H = torch.randn(2, 4, 3)
        assert theory.block_influence(H, 5 * H) == pytest.approx(0, abs=1e-12)
        assert theory.block_influence(H, -H) == pytest.approx(2)
        with pytest.raises(ValueError, match="is zero and has no direction"):
            theory.block_influence(H, 0 * H)


generators = st.integers(0, 10_000).map(lambda seed: torch.Generator().manual_seed(seed))
scales = st.floats(0.05, 5)


def draw(generator, scale):
    H, A, B = torch.randn(3, 6, 4, generator=generator, dtype=torch.float64)
    return 2 * H, scale * A, B


@settings(max_examples=50, deadline=None)
@given(generators, scales)
def test_norm_matching_alpha_is_the_best_of_a_fine_grid(generator, scale):
    H, A, B = draw(generator, scale)
    alpha = norm_matching_alpha(Products.of(H, A, B))
    wanted = (H + A).square().sum().item()

    def miss(alpha):
        return abs((H + alpha * B).square().sum().item() - wanted)

    grid = [i / 1000 for i in range(1001)]
    assert 0 <= alpha <= 1
    assert miss(alpha) <= min(map(miss, grid)) + 1e-6


def test_of_two_solutions_the_larger():
    H, B = torch.tensor([[-1.0, 1.0]]), torch.tensor([[2.0, 0.0]])
    A = torch.tensor([[0.2, 0.0]])  # ‖H + A‖² = 1.64 = ‖H + αB‖² at α = 0.1 and 0.9
    assert norm_matching_alpha(Products.of(H, A, B)) == pytest.approx(0.9)
    assert norm_matching_alpha(Products.of(H, B, B)) == pytest.approx(1.0)


@settings(max_examples=50, deadline=None)
@given(generators, scales)
def test_reconstructing_alpha_is_least_squares(generator, scale):
    _, A, B = draw(generator, scale)
    products = Products.of(A, A, B)
    exact = torch.linalg.lstsq(B.reshape(-1, 1), A.reshape(-1, 1)).solution.item()
    assert reconstructing_alpha(products) == pytest.approx(min(max(exact, 0), 1))


@pytest.mark.parametrize("example", counterexamples.ALL, ids=lambda example: example.__name__)
def test_refutes(example):
    found = example()
    assert found.refuted, found
    assert found.statement
    assert found.found


def test_random_draws():
    """Bounds hold and are nearly attained; what is printed too generously is violated."""
    checks = check_on_draws(2000, seed=1).set_index("check")
    broken = {"d(SiLU(H)) ≤ d(H)", "d(ÂH) ≤ √λ d(H), e = 1", "d(ÂH) ≤ d(H)"}
    assert set(checks.index[checks["violations"] > 0]) == broken
    quotients = checks.loc[checks["kind"] == "inequality", "largest"]
    assert (quotients.drop(list(broken)) <= 1 + 1e-9).all()
    assert (quotients > 0.3).all()


def test_synthetic_attention_is_the_models():
    """The same weights as transformers' own Llama attention gives."""
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaAttention, LlamaRotaryEmbedding

    config = LlamaConfig(
        hidden_size=16, num_attention_heads=1, num_key_value_heads=1, attn_implementation="eager"
    )
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
    assert norms.loc[norms["rows"] == "a long first row", "ratio"].max() > 1.2, (
        "averaging may lengthen"
    )
    assert uniformity_sweep(2, seed=0).equals(uniformity_sweep(2, seed=0))
    assert not norm_sweep(2, seed=0).equals(norm_sweep(2, seed=1))
