"""The theory against slow, obvious implementations on random matrices."""

import itertools
import math

import pytest
import torch
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaAttention, LlamaRotaryEmbedding

from harp_lib import theory
from harp_lib.theory import attention

F64 = torch.float64


def row_stochastic(causal):
    """Matrices A (N, N) of two to seven tokens, from uniform to one-hot."""
    generator = torch.Generator().manual_seed(0)
    for tokens, sharpness in itertools.product(range(2, 8), (0.0, 0.1, 1.0, 10.0, 1000.0)):
        logits = sharpness * torch.randn(tokens, tokens, generator=generator, dtype=F64)
        if causal:
            is_later = torch.ones(tokens, tokens, dtype=torch.bool).triu(1)
            logits = logits.masked_fill(is_later, -torch.inf)
        yield logits.softmax(-1)


class TestConsensus:
    def test_of_a_batch_is_the_mean(self):
        H = torch.randn(3, 5, 4)
        distances = [theory.distance_to_consensus(text) for text in H]
        assert theory.distance_to_consensus(H) == pytest.approx(sum(distances) / 3)

    def test_of_one_token_is_zero(self):
        assert theory.distance_to_consensus(torch.randn(1, 4)) == 0


class TestAttention:
    @pytest.mark.parametrize("causal", [False, True])
    def test_the_bound_of_lemma_1_is_attained(self, causal):
        """λ_max by the textbook, and the H that makes the inequality an equality."""
        for A in row_stochastic(causal):
            tokens = len(A)
            e = torch.full((tokens, 1), tokens**-0.5, dtype=F64)
            projection = torch.eye(tokens, dtype=F64) - e @ e.mT
            values, vectors = torch.linalg.eigh(A.mT @ projection @ A)
            largest = theory.largest_eigenvalues(A).item()
            assert largest == pytest.approx(values[-1].item(), abs=1e-9)
            worst_H = vectors[:, -1:]
            bound = largest**0.5 * theory.distance_to_consensus(worst_H)
            assert theory.distance_to_consensus(A @ worst_H) >= bound - 1e-7

    def test_the_bound_of_lemma_2(self):
        v = theory.block_bound(s=2.0, largest=4.0, heads=3, betas=(2.0, 5.0))
        assert v == pytest.approx((1 + 4) * (1 + 2 * 3 * 2) / 10)

    @pytest.mark.parametrize("tokens", [2, 3, 4])
    def test_one_hot_rows_preserve_the_norm_only_as_permutations(self, tokens):
        identity = torch.eye(tokens)
        for attended in itertools.product(range(tokens), repeat=tokens):
            A = identity[list(attended)]
            is_permutation = len(set(attended)) == tokens
            assert theory.preserves_norm(A) == is_permutation
            is_causal = bool((A.triu(1) == 0).all())
            if is_causal:
                assert theory.preserves_norm(A) == torch.equal(A, identity)

    def test_norms_of_many_heads(self):
        A = torch.rand(2, 3, 5, 5).softmax(-1)
        H = torch.randn(2, 1, 5, 4)
        ratios = theory.norm_ratios(A, H)
        assert ratios.shape == (2, 3)
        assert ratios[1, 2].item() == pytest.approx(theory.norm_ratio(A[1, 2], H[1, 0]))
        assert theory.norm_ratio(A, H) == pytest.approx(ratios.mean().item())

    def test_of_many_heads_all_have_to_preserve_the_norm(self):
        one_hot_rows = torch.tensor([[1.0, 0], [1, 0]])
        assert not theory.preserves_norm(torch.stack([torch.eye(2), one_hot_rows]))


class TestEntropy:
    def test_of_uniform_and_of_one_hot_attention(self):
        visible = theory.visible_positions(6)
        uniform = torch.ones(6, 6).tril() / visible[:, None]
        assert theory.attention_entropies(uniform, visible).item() == pytest.approx(1)
        assert theory.attention_entropies(torch.eye(6), visible).item() == 0

    def test_equals_a_loop_over_queries(self):
        for A in row_stochastic(causal=True):
            relative_entropies = []
            for query in range(1, len(A)):
                weights = A[query, : query + 1].tolist()
                entropy = -sum(weight * math.log(weight) for weight in weights if weight > 0)
                relative_entropies.append(entropy / math.log(query + 1))
            expected = sum(relative_entropies) / len(relative_entropies)
            entropy = theory.attention_entropies(A, theory.visible_positions(len(A))).item()
            assert entropy == pytest.approx(expected, abs=1e-9)
            assert -1e-9 <= entropy <= 1 + 1e-9

    def test_in_a_sliding_window(self):
        visible = theory.visible_positions(5, sliding_window=3)
        assert visible.tolist() == [1, 2, 3, 3, 3]
        band = torch.ones(5, 5).tril().triu(-2)
        uniform = band / visible[:, None]
        assert theory.attention_entropies(uniform, visible).item() == pytest.approx(1)


@pytest.mark.parametrize(
    ("measure", "arguments", "message"),
    [
        (theory.similarity, [[[1.0, 2.0]]], "H has one row"),
        (theory.similarity, [[[[1.0], [2.0]], [[0.0], [2.0]]]], r"row \[1, 0\] of H is zero"),
        (theory.similarity, [[[1.0, math.nan], [1.0, 2.0]]], "H has to be finite"),
        (theory.similarity, [[1.0, 2.0]], r"H has to be finite numbers \(..., N, d\)"),
        (theory.norm_ratio, [[[0.5, 0.4], [0.5, 0.5]], [[1.0], [1]]], "row sums from 0.9 to 1"),
        (theory.norm_ratio, [[[1.5, -0.5], [0.5, 0.5]], [[1.0], [1]]], "entries from -0.5"),
        (theory.norm_ratio, [[[0.5, 0.5]], [[1.0], [1]]], r"A has to be \(..., N, N\)"),
        (theory.norm_ratio, [[[1.0, 0], [0, 1]], [[0.0], [0]]], "H is zero"),
        (theory.attention_entropies, [[[1.0]], [1]], "one position only"),
        (theory.attention_entropies, [[[0.5, 0.5]] * 2, [1, 2]], "more positions than it sees"),
    ],
)
def test_what_has_no_measure_is_refused(measure, arguments, message):
    with pytest.raises(ValueError, match=message):
        measure(*arguments)


class TestBlockInfluence:
    def test_ignores_lengths(self):
        H = torch.randn(2, 4, 3)
        assert theory.block_influence(H, 5 * H) == pytest.approx(0, abs=1e-12)

    def test_of_opposite_tokens_is_two(self):
        H = torch.randn(2, 4, 3)
        assert theory.block_influence(H, -H) == pytest.approx(2)

    def test_of_zeros_is_refused(self):
        H = torch.randn(2, 4, 3)
        with pytest.raises(ValueError, match="is zero and has no direction"):
            theory.block_influence(H, 0 * H)


def test_attention_of_one_head_is_that_of_transformers_llama():
    config = LlamaConfig(
        hidden_size=16, num_attention_heads=1, num_key_value_heads=1, attn_implementation="eager"
    )
    module = LlamaAttention(config, 0)
    H = torch.randn(1, 12, 16)
    causal_mask = torch.full((12, 12), -torch.inf).triu(1)[None, None]
    positions = LlamaRotaryEmbedding(config)(H, torch.arange(12)[None])
    with torch.no_grad():
        _, expected = module(H, positions, causal_mask)  # (1, 1, 12, 12)
        A = attention(H[0], module.q_proj.weight.T, module.k_proj.weight.T, rotary=True)
    assert torch.allclose(A, expected[0, 0], atol=1e-6)
