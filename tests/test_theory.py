"""The theory's functions against slow, obvious twins, and every identity and inequality as a property."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from harp_lib import theory

F64 = torch.float64
finite = st.floats(-50, 50, allow_nan=False, width=64)
few = settings(max_examples=200, deadline=None)
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
def attention(draw, tokens=several, causal=either):
    """A row-stochastic matrix, from uniform to one-hot."""
    n = draw(tokens)
    logits = torch.from_numpy(draw(arrays(np.float64, (n, n), elements=finite))) * draw(st.sampled_from([0.0, 0.02, 1]))
    if draw(causal):
        logits = logits.masked_fill(torch.ones(n, n, dtype=torch.bool).triu(1), -torch.inf)
    return logits.softmax(-1)


@st.composite
def attention_and_rows(draw):
    n = draw(st.integers(2, 7))
    return draw(attention(tokens=st.just(n))), draw(rows(tokens=st.just(n)))


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

    @few
    @given(rows(), st.floats(0.01, 100))
    def test_sees_directions_only(self, H, scale):
        lengths = torch.linspace(1, scale, len(H), dtype=F64)[:, None]
        assert theory.similarity(lengths * H) == pytest.approx(theory.similarity(H), abs=1e-9)

    def test_of_many_texts_is_their_mean(self):
        H = torch.randn(3, 2, 5, 4)
        each = torch.tensor([[theory.similarity(text) for text in half] for half in H], dtype=F64)
        assert torch.allclose(theory.similarities(H), each)
        assert theory.similarity(H) == pytest.approx(each.mean().item())

    def test_takes_time_and_memory_linear_in_tokens(self):
        H = torch.randn(100_000, 4)  # all pairs: 80 GB
        assert abs(theory.similarity(H)) < 0.01

    @pytest.mark.parametrize("scale", [1e-300, 1e-161, 1e155, 1e300])
    def test_at_any_scale(self, scale):
        """Squares of such numbers are infinite, or zero."""
        H = torch.tensor([[1.0, 2.0], [3.0, 1.0]], dtype=F64)
        assert theory.similarity(scale * H) == pytest.approx(theory.similarity(H))
        assert theory.distance_to_consensus(scale * H) == pytest.approx(scale * theory.distance_to_consensus(H))
        assert theory.norm_ratio(torch.eye(2), scale * H) == pytest.approx(1)
        assert theory.block_influence(scale * H, H) == pytest.approx(0, abs=1e-12)

    def test_known_values(self):
        assert theory.similarity([[1, 0], [0, 1]]) == pytest.approx(0)
        assert theory.similarity([[1, 2], [-2, -4]]) == pytest.approx(-1)
        assert theory.similarity(torch.ones(4, 3, dtype=torch.bfloat16)) == pytest.approx(1)

    @pytest.mark.parametrize(
        ("H", "message"),
        [
            ([[1.0, 2.0]], "H has one row"),
            ([[1.0, 0.0], [0.0, 0.0]], r"row \[1\] of H is zero"),
            ([[[1.0], [2.0]], [[0.0], [2.0]]], r"row \[1, 0\] of H is zero"),
            ([[1.0, math.nan], [1.0, 2.0]], "H holds NaN or infinity"),
            ([[1.0, math.inf], [1.0, 2.0]], "H holds NaN or infinity"),
            ([1.0, 2.0], r"H has to be \(..., N, d\)"),
            (torch.empty(0, 3), r"H has to be \(..., N, d\)"),
            (torch.ones(2, 2) * 1j, "H has to be real"),
        ],
    )
    def test_refuses(self, H, message):
        with pytest.raises(ValueError, match=message):
            theory.similarity(H)


class TestConsensus:
    @few
    @given(rows(shortest=0), st.integers(0, 5))
    def test_no_common_row_is_nearer(self, H, seed):
        distance = theory.distance_to_consensus(H)
        least_squares = torch.linalg.lstsq(torch.ones(len(H), 1, dtype=F64), H).solution
        assert distance == pytest.approx((H - least_squares).norm().item(), abs=1e-9)
        other = H.mean(0) + torch.randn(H.shape[1], generator=torch.Generator().manual_seed(seed), dtype=F64)
        assert distance <= (H - other).norm().item() + 1e-9

    @few
    @given(rows(shortest=0))
    def test_projection(self, H):
        P = theory.consensus(H)
        assert torch.allclose(theory.consensus(P), P)
        assert theory.distance_to_consensus(P) == pytest.approx(0, abs=1e-9)
        assert H.norm().item() ** 2 == pytest.approx(P.norm().item() ** 2 + theory.distance_to_consensus(H) ** 2)

    @few
    @given(rows())
    def test_equal_lengths_make_both_measures_one(self, H):
        H = 3 * H / H.norm(dim=1, keepdim=True)
        assert 1 - theory.similarity(H) == pytest.approx(theory.distance_to_consensus(H) ** 2 / (9 * (len(H) - 1)))

    @few
    @given(rows())
    def test_lemma_3_with_rows_away_from_zero(self, H):
        bound = theory.distance_to_consensus(H) ** 2 / ((len(H) - 1) * H.norm(dim=1).min().item() ** 2)
        assert 1 - theory.similarity(H) <= bound + 1e-9

    def test_batches_and_one_token(self):
        H = torch.randn(3, 5, 4)
        each = [theory.distance_to_consensus(text) for text in H]
        assert theory.distances_to_consensus(H).tolist() == pytest.approx(each)
        assert theory.distance_to_consensus(H) == pytest.approx(sum(each) / 3)
        assert theory.distance_to_consensus(torch.randn(1, 4)) == 0
        with pytest.raises(ValueError, match="NaN"):
            theory.distance_to_consensus([[math.nan]])


class TestLemma1:
    @few
    @given(rows(shortest=0), st.integers(0, 9))
    def test_weights(self, H, seed):
        W = torch.randn(H.shape[1], 5, generator=torch.Generator().manual_seed(seed), dtype=F64)
        s = theory.largest_singular_value(W)
        assert s == pytest.approx(torch.linalg.svdvals(W)[0].item())
        assert theory.distance_to_consensus(H @ W) <= s * theory.distance_to_consensus(H) + 1e-9

    @few
    @given(rows(shortest=0))
    def test_activations(self, H):
        distance = theory.distance_to_consensus(H)
        assert theory.distance_to_consensus(H.relu()) <= distance + 1e-9
        assert theory.distance_to_consensus(torch.nn.functional.silu(H)) <= 1.0998394 * distance + 1e-9

    @few
    @given(rows(shortest=0), st.floats(0, 9), st.floats(0, 9))
    def test_sums(self, H, a, b):
        B = H.flip(0).sin()
        bound = a * theory.distance_to_consensus(H) + b * theory.distance_to_consensus(B)
        assert theory.distance_to_consensus(a * H + b * B) <= bound + 1e-9

    @few
    @given(attention_and_rows())
    def test_attention(self, pair):
        A, H = pair
        factor = theory.contraction_factors(A).item()
        assert theory.distance_to_consensus(A @ H) <= factor * theory.distance_to_consensus(H) + 1e-7
        assert factor**2 <= len(A) / 2 + 1e-9

    @few
    @given(attention())
    def test_the_factor_is_attained(self, A):
        """λ_max by the textbook, and the H that makes the inequality an equality."""
        n = len(A)
        e = torch.full((n, 1), n**-0.5, dtype=F64)
        values, vectors = torch.linalg.eigh(A.mT @ (torch.eye(n, dtype=F64) - e @ e.mT) @ A)
        assert theory.largest_eigenvalue(A).item() == pytest.approx(values[-1].item(), abs=1e-9)
        worst = vectors[:, -1:]
        grown = theory.contraction_factors(A).item() * theory.distance_to_consensus(worst)
        assert theory.distance_to_consensus(A @ worst) >= grown - 1e-7

    def test_the_largest_factor_there_is(self):
        A = torch.zeros(8, 8)
        A[:4, 0] = A[4:, 1] = 1
        assert theory.contraction_factors(A).item() == pytest.approx(2.0)  # √(N/2)

    def test_heads(self):
        A = torch.rand(2, 3, 5, 5).softmax(-1)
        each = [[theory.largest_eigenvalue(head).item() for head in text] for text in A]
        assert torch.allclose(theory.largest_eigenvalue(A), torch.tensor(each, dtype=F64))


class TestLemma2:
    def test_formula(self):
        assert theory.block_bound(2.0, 4.0, 3, (2.0, 5.0)) == pytest.approx((1 + 4) * (1 + 2 * 3 * 2) / 10)
        with pytest.raises(ValueError, match="have to be positive"):
            theory.block_bound(1.0, 1.0, 1, (0.0, 1.0))

    @few
    @given(attention_and_rows(), st.integers(0, 9))
    def test_post_norm_block(self, pair, seed):
        """The block of the proof: two heads of one matrix each, ReLU, normalisation after each sum."""
        A, H = pair
        generator, d = torch.Generator().manual_seed(seed), H.shape[1]
        heads, (W1, W2) = torch.randn(2, d, d, generator=generator), torch.randn(2, d, d, generator=generator)
        first = H + sum(A @ H @ W.double() for W in heads)
        deviation = [first.std(-1, correction=0, keepdim=True)]
        assume(deviation[0].min() > 1e-3)
        X = (first - first.mean(-1, keepdim=True)) / deviation[0]
        second = X + (X @ W1.double()).relu() @ W2.double()
        deviation.append(second.std(-1, correction=0, keepdim=True))
        assume(deviation[1].min() > 1e-3)
        Y = (second - second.mean(-1, keepdim=True)) / deviation[1]
        s = max(theory.largest_singular_value(W) for W in (*heads, W1, W2))
        betas = tuple(x.min().item() for x in deviation)
        v = theory.block_bound(s, theory.largest_eigenvalue(A).item(), 2, betas)
        assert theory.distance_to_consensus(Y) <= v * theory.distance_to_consensus(H) * (1 + 1e-6) + 1e-6


class TestNorms:
    @few
    @given(attention_and_rows())
    def test_bounds(self, pair):
        A, H = pair
        ratio = theory.norm_ratio(A, H)
        assert ratio == pytest.approx(((A @ H).square().sum() / H.square().sum()).sqrt().item())
        assert ratio <= A.sum(0).max().sqrt().item() + 1e-9 <= len(A) ** 0.5 + 1e-8
        singular = torch.linalg.svdvals(A)
        assert singular[-1].item() - 1e-7 <= ratio <= singular[0].item() + 1e-7

    @few
    @given(st.permutations(range(5)), rows(tokens=st.just(5)))
    def test_permutations_preserve_every_norm(self, order, H):
        A = torch.eye(5)[list(order)]
        assert theory.preserves_norm(A)
        assert theory.norm_ratio(A, H) == pytest.approx(1)

    @pytest.mark.parametrize("tokens", [2, 3, 4])
    def test_one_hot_rows_preserve_it_only_as_permutations(self, tokens):
        for choice in itertools.product(range(tokens), repeat=tokens):
            A = torch.eye(tokens)[list(choice)]
            assert theory.preserves_norm(A) == (len(set(choice)) == tokens)
            if (A.triu(1) == 0).all():  # causal
                assert theory.preserves_norm(A) == torch.equal(A, torch.eye(tokens))

    @few
    @given(attention())
    def test_preserving_every_norm_is_what_it_says(self, A):
        """The columns of the identity and their sums decide: they determine AᵀA."""
        basis = torch.eye(len(A), dtype=F64)
        vectors = [*basis, *(a + b for a, b in itertools.combinations(basis, 2))]
        changed = max(abs((A @ x).norm().item() - x.norm().item()) for x in vectors)
        assert changed < 1e-5 if theory.preserves_norm(A) else changed > 1e-8

    def test_of_many_heads(self):
        A, H = torch.rand(2, 3, 5, 5).softmax(-1), torch.randn(2, 1, 5, 4)
        ratios = theory.norm_ratios(A, H)
        assert ratios.shape == (2, 3)
        assert ratios[1, 2].item() == pytest.approx(theory.norm_ratio(A[1, 2], H[1, 0]))
        assert theory.norm_ratio(A, H) == pytest.approx(ratios.mean().item())
        assert not theory.preserves_norm(torch.stack([torch.eye(2), torch.tensor([[1.0, 0], [1, 0]])]))

    @pytest.mark.parametrize(
        ("A", "H", "message"),
        [
            ([[0.5, 0.4], [0.5, 0.5]], [[1.0], [1]], "not row-stochastic: a row sums to 0.9"),
            ([[1.5, -0.5], [0.5, 0.5]], [[1.0], [1]], "not row-stochastic: its smallest entry is -0.5"),
            ([[math.nan, 1], [0.5, 0.5]], [[1.0], [1]], "A holds NaN"),
            ([[0.5, 0.5]], [[1.0], [1]], r"A has to be \(..., N, N\)"),
            ([[1.0, 0], [0, 1]], [[0.0], [0]], "H is zero"),
            ([[1.0, 0], [0, 1]], [[1.0], [1], [1]], "A is over 2 tokens, H has 3"),
        ],
    )
    def test_refuses(self, A, H, message):
        with pytest.raises(ValueError, match=message):
            theory.norm_ratio(A, H)

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
    def test_takes_softmax_in_any_dtype(self, dtype):
        A = torch.randn(64, 64).softmax(-1).to(dtype)
        assert 0 < theory.norm_ratio(A, torch.randn(64, 8)) < 1
        assert not theory.preserves_norm(A)


class TestEntropy:
    def test_extremes(self):
        visible = theory.visible_positions(6)
        uniform = torch.ones(6, 6).tril() / visible[:, None]
        assert theory.attention_entropies(uniform, visible).item() == pytest.approx(1)
        assert theory.attention_entropies(torch.eye(6), visible).item() == 0

    @few
    @given(attention(causal=st.just(True)))
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
        assert theory.attention_entropies(band / visible[:, None], visible).item() == pytest.approx(1)

    @few
    @given(arrays(np.float64, st.integers(2, 9), elements=finite))
    def test_logits_that_are_close_make_it_uniform(self, logits):
        A = torch.from_numpy(logits).softmax(0).expand(len(logits), -1)
        entropy = theory.attention_entropies(A, torch.full((len(logits),), len(logits))).item()
        assert (1 - entropy) * math.log(len(logits)) <= np.ptp(logits) ** 2 / 8 + 1e-9

    @pytest.mark.parametrize(
        ("A", "visible", "message"),
        [
            (torch.eye(1), [1], "one position only"),
            (torch.full((2, 2), 0.5), [1, 2], "more positions than it sees"),
            (torch.eye(2), [1, 2, 3], "visible has to be 2 numbers"),
            (torch.eye(2), [0, 2], "visible has to be 2 numbers"),
        ],
    )
    def test_refuses(self, A, visible, message):
        with pytest.raises(ValueError, match=message):
            theory.attention_entropies(A, visible)


class TestBlockInfluence:
    @few
    @given(rows(width=st.just(3)), st.integers(0, 9))
    def test_against_a_loop(self, H, seed):
        after = H + torch.randn(H.shape, generator=torch.Generator().manual_seed(seed), dtype=F64)
        cosines = [(a @ b / (a.norm() * b.norm())).item() for a, b in zip(H, after, strict=True)]
        assert theory.block_influence(H, after) == pytest.approx(1 - sum(cosines) / len(cosines), abs=1e-9)

    def test_known_values(self):
        H = torch.randn(2, 4, 3)
        assert theory.block_influence(H, 5 * H) == pytest.approx(0, abs=1e-12)
        assert theory.block_influence(H, -H) == pytest.approx(2)
        with pytest.raises(ValueError, match="before is"):
            theory.block_influence(H, H[:, 1:])
        with pytest.raises(ValueError, match="is zero and has no direction"):
            theory.block_influence(H, 0 * H)


@few
@given(attention_and_rows())
def test_value_only_attention_errs_by_the_distance_of_the_values(pair):
    A, V = pair
    gap = A - torch.eye(len(A), dtype=F64)
    bound = torch.linalg.matrix_norm(gap, 2).item() * theory.distance_to_consensus(V)
    assert (A @ V - V).norm().item() <= bound + 1e-7


def test_gradients_do_not_get_in_the_way():
    H = torch.randn(3, 4, requires_grad=True)
    assert isinstance(theory.similarity(H), float)
    assert isinstance(theory.norm_ratio(H @ H.mT * 0 + torch.eye(3), H), float)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu():
    H, A = torch.randn(2, 5, 4), torch.rand(2, 5, 5).softmax(-1)
    assert theory.similarity(H.cuda()) == pytest.approx(theory.similarity(H))
    assert theory.largest_eigenvalue(A.cuda()).device.type == "cuda"
    assert theory.attention_entropies(A.cuda(), torch.full((5,), 5)).mean().item() == pytest.approx(
        theory.attention_entropies(A, torch.full((5,), 5)).mean().item()
    )
