"""Alphas without a search, and how a pruned model is read."""

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from harp_lib.experiments.norm_study import read
from harp_lib.measure.corpora import Window
from harp_lib.measure.likelihood import make_batches, total_nll
from harp_lib.pruning.surgery import temporarily_value_only
from harp_lib.theory.rescaling import Products, norm_matching_alpha, reconstructing_alpha

matrices = st.integers(0, 10_000).map(lambda seed: torch.Generator().manual_seed(seed))
scales = st.floats(0.05, 5)


def draw(generator, scale):
    H, A, B = torch.randn(3, 6, 4, generator=generator, dtype=torch.float64)
    return 2 * H, scale * A, B


@settings(max_examples=300, deadline=None)
@given(matrices, scales)
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


@settings(max_examples=300, deadline=None)
@given(matrices, scales)
def test_reconstructing_alpha_is_least_squares(generator, scale):
    _, A, B = draw(generator, scale)
    products = Products.of(A, A, B)
    exact = torch.linalg.lstsq(B.reshape(-1, 1), A.reshape(-1, 1)).solution.item()
    assert reconstructing_alpha(products) == pytest.approx(min(max(exact, 0), 1))
    assert products.branch_ratio == pytest.approx((A.norm() / B.norm()).item())
    assume(abs(products.branch_cosine) > 1e-6)
    assert products.branch_cosine == pytest.approx(torch.cosine_similarity(A.flatten(), B.flatten(), dim=0).item())


def test_products_add_up_over_texts():
    parts = [draw(torch.Generator().manual_seed(seed), 1.0) for seed in (0, 1)]
    together = Products.of(*(torch.cat(pair) for pair in zip(*parts, strict=True)))
    assert Products.of(*parts[0]) + Products.of(*parts[1]) == pytest.approx(together)


@pytest.mark.parametrize("family", ["tiny-llama", "tiny-gemma2"])
@pytest.mark.parametrize("alphas", [{}, {5: 0.4, 4: 0.0}])
def test_read(tiny, tokens, family, alphas):
    model = tiny(family)
    documents = [[Window(tokens[0], 47), Window(tokens[1][:20], 11)], [Window(tokens[2], 47)]]
    with temporarily_value_only(model, alphas):
        found = read(model, documents)
        expected = [total_nll(model, make_batches(document)) for document in documents]
        with torch.no_grad():
            hidden = model(tokens[2:3], output_hidden_states=True, use_cache=False).hidden_states
    assert found["nll"] == expected
    assert found["all tokens"][1][:-1] == pytest.approx([h.norm().item() for h in hidden[:-1]], rel=1e-5)
    assert found["without first"][1][:-1] == pytest.approx([h[:, 1:].norm().item() for h in hidden[:-1]], rel=1e-5)
    assert len(found["all tokens"][0]) == 7
    assert all(a > b for a, b in zip(found["all tokens"][0], found["without first"][0], strict=True))
    hooks = [len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules()]
    read(model, documents[:1])
    assert hooks == [len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules()]
