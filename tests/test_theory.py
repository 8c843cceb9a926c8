"""The theory's functions against slow, obvious twins, and every identity and inequality as a property."""

import itertools
import math

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from matrices import F64, attention, attention_and_rows, few, rows

from harp_lib import theory


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
