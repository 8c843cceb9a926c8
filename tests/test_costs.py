"""What a changed model costs, against counts by hand."""

import pytest
from helpers import small_model

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


D, Q, K, FFN = 64, 96, 24, 3 * 64 * 80  # width of the stream, of all queries, of keys; weights
N = 256  # tokens
SEEN = (48, N, 48, N)  # by the last token, in layers that see a window or all
PAIRS = tuple(seen * (seen + 1) // 2 + (N - seen) * seen for seen in SEEN)
HEAD = 2 * 128 * D
OPERATIONS = [2 * N * (2 * D * Q + 2 * D * K + FFN) + 4 * Q * pairs for pairs in PAIRS]
OPERATIONS_OF_A_TOKEN = [2 * (2 * D * Q + 2 * D * K + FFN) + 4 * Q * seen for seen in SEEN]
VALUE_ONLY = 2 * (2 * D * K + FFN)  # of a position
LINEAR = 2 * (D * D + FFN)
ASKING = 2 * (2 * D * Q + FFN)
KEEPING = 2 * 2 * D * K
BY_HAND = {  # changed layers; operations of their prefill and of a token, tokens in their caches
    "harp": ((2, 3), 2 * VALUE_ONLY, 2 * VALUE_ONLY, 0),
    "harp+refit": ((1, 3), (N + 1) * VALUE_ONLY, 2 * VALUE_ONLY, 0),
    "nbl": ((1, 3), (N + 1) * LINEAR, 2 * LINEAR, 0),
    "windowed": (
        (2, 3),
        (36 * ASKING + 67 * KEEPING + 4 * Q * 36 * 36) + (ASKING + 36 * KEEPING + 4 * Q * 36),
        2 * (ASKING + KEEPING + 4 * Q * 36),
        36 + 36,
    ),
    "boundary": (
        (2, 3),
        2 * ASKING + (48 + N) * KEEPING + 4 * Q * (48 + N),
        OPERATIONS_OF_A_TOKEN[2] + OPERATIONS_OF_A_TOKEN[3],
        48 + N,
    ),
}


@pytest.mark.parametrize("method", BY_HAND)
def test_costs_where_layers_have_windows_and_no_two_widths_are_equal(method):
    kinds = ["sliding_attention", "full_attention"] * 2
    particulars = {"layer_types": kinds, "sliding_window": 48, "tie_word_embeddings": False}
    shape = {"hidden_size": D, "head_dim": K, "num_key_value_heads": 1, "intermediate_size": 80}
    model = small_model("gemma3_text", **shape, **particulars)
    layers, prefill, of_a_token, cached = BY_HAND[method]
    kept = [layer for layer in range(4) if layer not in layers]

    costs = costs_left(model, method, layers, N)

    left = sum(OPERATIONS[layer] for layer in kept) + prefill + HEAD
    assert costs["prefill left"] == pytest.approx(left / (sum(OPERATIONS) + HEAD))
    left = sum(OPERATIONS_OF_A_TOKEN[layer] for layer in kept) + of_a_token + HEAD
    assert costs["decode left"] == pytest.approx(left / (sum(OPERATIONS_OF_A_TOKEN) + HEAD))
    left = sum(SEEN[layer] for layer in kept) + cached
    assert costs["cache left"] == pytest.approx(left / sum(SEEN))


def test_a_linear_map_has_more_parameters_than_values_and_output_of_few_heads():
    model = small_model("gemma3_text", hidden_size=D, head_dim=K, num_key_value_heads=1)
    refitted = costs_left(model, "harp+refit", [1, 3], N)["parameters left"]
    linear = costs_left(model, "nbl", [1, 3], N)["parameters left"]
    parameters = sum(parameter.numel() for parameter in model.parameters())
    assert (linear - refitted) * parameters == pytest.approx(2 * (D * D - 2 * D * K))
