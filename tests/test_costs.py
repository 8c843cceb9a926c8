"""What a changed model costs, against counts by hand."""

import pytest

from harp_lib import load_model
from harp_lib.experiments.costs import costs_left

MODEL = "tiny-llama"


def by_hand(model, tokens):
    """Operations of a dense prefill and of one layer; heads' width, weights by who needs them."""
    attention = model.model.layers[0].self_attn
    mlp = model.model.layers[0].mlp
    ffn = sum(part.weight.numel() for part in (mlp.gate_proj, mlp.up_proj, mlp.down_proj))
    of_queries = attention.q_proj.weight.numel() + attention.o_proj.weight.numel() + ffn
    of_keys = attention.k_proj.weight.numel() + attention.v_proj.weight.numel()
    width = attention.o_proj.in_features
    pairs = tokens * (tokens + 1) // 2
    layer = 2 * tokens * (of_queries + of_keys) + 4 * width * pairs
    return 6 * layer + 2 * model.lm_head.weight.numel(), layer, width, of_queries, of_keys


def test_costs_of_keys_and_values_from_below():
    """All tokens are projected, and the last one alone asks."""
    model, _ = load_model(MODEL)
    dense, dense_layer, width, of_queries, of_keys = by_hand(model, 256)
    below = 2 * (of_queries + 256 * of_keys) + 4 * width * 256
    costs = costs_left(model, "boundary", [4, 5], 256)
    assert costs["prefill left"] == pytest.approx((dense - 2 * dense_layer + 2 * below) / dense)
    assert costs["cache left"] == costs["decode left"] == costs["reads left"] == 1


def test_costs_of_a_window():
    """Of 32 tokens and 4 sinks: the top is read at 1 position and reads 36, the next 36 and 67."""
    model, _ = load_model(MODEL)
    dense, dense_layer, width, of_queries, of_keys = by_hand(model, 256)
    top = 2 * (of_queries + 36 * of_keys) + 4 * width * 36
    second = 2 * (36 * of_queries + 67 * of_keys) + 4 * width * 36 * 36
    costs = costs_left(model, "windowed", [4, 5], 256)
    assert costs["prefill left"] == pytest.approx((dense - 2 * dense_layer + top + second) / dense)
    assert costs["cache left"] == pytest.approx((4 * 256 + 2 * 36) / (6 * 256))
    assert costs["parameters left"] == 1
    assert costs["decode left"] < 1
    assert costs["reads left"] < 1
