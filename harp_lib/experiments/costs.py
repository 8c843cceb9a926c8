"""What is left of the dense model's costs once attention is changed in some layers: counted.

Prefill is of HARP's tail-only kind: a changed layer computes the positions that somebody above it
reads. Layers that keep their attention compute all positions, as they are run, though the highest
of them could spare most of its queries. A text has N tokens, and P layers at the top are changed.

- *Value-only* layers read their own position, so the last token alone enters them.
- A *sliding window* of W tokens and S sinks: the layer at the top is read at one position, and the
  j-th from the top at 1 + (j − 1)(W − 1) + S. The cache keeps W + S tokens, whose keys are read
  for each new token.
- *Keys and values from below* (SwiftKV): every layer projects the states below the lowest of them,
  and its query is the last token's. It projects all N of them, or a window of its own. The cache,
  and what a new token reads, is the dense one.
"""

from collections.abc import Sequence

from transformers import PreTrainedModel

from harp_lib import accounting
from harp_lib.methods.rivals import SINKS, SLIDING_WINDOW
from harp_lib.pruning.architecture import decoder_layers
from harp_lib.pruning.plan import PruningPlan

NBL = "nbl"
WINDOWED = "windowed"
BOUNDARY = "boundary"
COUNTED_RIVALS = (WINDOWED, BOUNDARY)


def costs_left(
    model: PreTrainedModel, method: str, layers: Sequence[int], tokens: int
) -> dict[str, float]:
    """Shares of the dense model's costs that are left in a text of ``tokens`` tokens.

    Parameters
    ----------
    model : PreTrainedModel
        The dense model.
    method : str
        A rival of ``COUNTED_RIVALS``, ``nbl``, or anything that makes layers value-only, whose
        output projections are folded.
    layers : sequence of int
        The changed layers; of a rival those at the top.
    tokens : int
        Length of the text that is read, and of the one after which the next token is written.

    Returns
    -------
    dict
        ``prefill left`` and ``decode left`` (operations), ``cache left`` (bytes), ``parameters
        left``, ``reads left`` (bytes of weights and cache that a new token reads), and ``counted
        at``, the tokens.
    """
    dense = _value_only_costs(model, (), tokens)
    if method in COUNTED_RIVALS:
        left = _rival_costs(model, method, len(layers), tokens, dense)
    else:
        left = _value_only_costs(model, layers, tokens)
        if method == NBL:
            _add_square_maps(model, layers, tokens, left)
    for costs in (dense, left):
        costs["reads"] = costs["parameters"] * model.dtype.itemsize + costs["cache"]
    shares = {f"{name} left": left[name] / dense[name] for name in dense}
    return shares | {"counted at": tokens}


def _value_only_costs(
    model: PreTrainedModel, layers: Sequence[int], tokens: int
) -> dict[str, float]:
    """Costs with value-only layers, whose output projections are folded."""
    config = model.config
    plan = None
    if layers:
        num_layers = len(decoder_layers(model))
        plan = PruningPlan.value_only(num_layers, dict.fromkeys(layers, 1.0))
    return {
        "prefill": accounting.prefill_flops(config, plan, tokens, True, True, tail_only=True),
        "decode": accounting.decode_flops(config, plan, tokens, True),
        "cache": accounting.kv_bytes(config, plan, tokens, model.dtype),
        "parameters": accounting.parameters(config, plan, fold_output=True),
    }


def _add_square_maps(
    model: PreTrainedModel, layers: Sequence[int], tokens: int, costs: dict[str, float]
) -> None:
    """Exchange a value-only layer's maps (d, K·Dh) and (K·Dh, d) for NBL's one (d, d)."""
    width = model.config.hidden_size
    value_width = decoder_layers(model)[0].self_attn.v_proj.out_features
    more_weights = width * (width - 2 * value_width)  # of each layer
    num_layers = len(decoder_layers(model))
    in_tail = 0  # how many of the layers form an unbroken run at the top
    while num_layers - 1 - in_tail in layers:
        in_tail += 1
    in_full = len(layers) - in_tail
    costs["prefill"] += 2 * more_weights * (in_full * tokens + in_tail)
    costs["decode"] += 2 * more_weights * len(layers)
    costs["parameters"] += more_weights * len(layers)


def _rival_costs(
    model: PreTrainedModel, method: str, num_changed: int, tokens: int, dense: dict[str, float]
) -> dict[str, float]:
    """Costs with a rival in the top layers; its weights are as many as the dense model's."""
    left = dict(dense)
    top_first = accounting.prefill_layers(model.config, None, tokens, causal=True)[::-1]
    for place, flops in enumerate(top_first[:num_changed], start=1):
        index = len(decoder_layers(model)) - place
        attention = decoder_layers(model)[index].self_attn
        of_queries = attention.q_proj.weight.numel() + attention.o_proj.weight.numel()
        of_keys = attention.k_proj.weight.numel() + attention.v_proj.weight.numel()
        width = attention.o_proj.in_features  # H·Dh
        ffn = flops.ffn // (2 * tokens)  # weights
        reach = accounting.sliding_window(model.config, index) or tokens
        seen_before = min(tokens, reach)  # keys that a query of the dense layer sees
        if method == WINDOWED:
            seen = min(seen_before, SLIDING_WINDOW + SINKS)
            queries = _positions_read(place - 1, tokens)
            keys = _positions_read(place, tokens)
            of_token = attention.k_proj.out_features + attention.v_proj.out_features
            left["cache"] -= (seen_before - seen) * of_token * model.dtype.itemsize
            left["decode"] -= 2 * 2 * width * (seen_before - seen)
        else:
            seen = seen_before
            queries = 1
            keys = seen_before
        left["prefill"] -= sum(flops)
        left["prefill"] += 2 * (queries * (of_queries + ffn) + keys * of_keys)
        left["prefill"] += 2 * 2 * width * queries * seen
    return left


def _positions_read(num_above: int, tokens: int) -> int:
    """Positions of a stream that ``num_above`` sliding windows read: the last one if none does."""
    if num_above == 0:
        return 1
    return min(tokens, 1 + num_above * (SLIDING_WINDOW - 1) + SINKS)
