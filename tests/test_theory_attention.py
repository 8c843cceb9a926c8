"""The theory's measures of attention, norm and entropy, against slow twins and as properties."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from matrices import F64, attention, attention_and_rows, few, finite, rows

from harp_lib import theory


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


@few
@given(attention_and_rows())
def test_value_only_attention_errs_by_the_distance_of_the_values(pair):
    A, V = pair
    gap = A - torch.eye(len(A), dtype=F64)
    bound = torch.linalg.matrix_norm(gap, 2).item() * theory.distance_to_consensus(V)
    assert (A @ V - V).norm().item() <= bound + 1e-7
