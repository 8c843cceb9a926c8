"""Floating-point operations of decoder layers and of whole models, dense or pruned: from a config and a plan."""

from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple

from transformers import PreTrainedConfig

from harp_lib.accounting import count_groups, gated_ffns, stock_model
from harp_lib.pruning.plan import LayerPlan, PruningPlan


class LayerFlops(NamedTuple):
    """Floating-point operations of one decoder layer; a multiply-add is two.

    Attributes
    ----------
    projections : int
        Query, key, value and output projections.
    attention : int
        Scores and weighted average of the values: two multiply-adds for each head, head dimension and query-key pair.
    ffn : int
        The three matrices of a gated FFN.
    """

    projections: int
    attention: int
    ffn: int


def layer_flops(config: PreTrainedConfig, tokens: int, layer: int = 0, causal: bool = False) -> LayerFlops:
    """Floating-point operations of one decoder layer in a prefill, matrix products only.

    The terms of the paper's Section 2.1, "Theoretical Computation Complexity Analysis", with their constants. Softmax,
    norms, rotary embedding, activations, biases and residual sums are left out.

    Parameters
    ----------
    config : PreTrainedConfig
        Of a decoder with grouped-query attention and a dense gated FFN; another kind of FFN is not recognised.
    tokens : int
        N, the length of the one sequence that is read.
    layer : int
        Index from the bottom. It matters where only some layers have a sliding window.
    causal : bool
        False counts all N² query-key pairs, as the paper does and as a kernel computes that masks afterwards; True
        counts the N (N + 1) / 2 that are visible. Where a sliding window of W tokens applies, these are N min(N, W)
        and the sum of min(i, W) over i = 1 … N: what lies outside the window is taken to be passed over.

    Raises
    ------
    ValueError
        If the config does not say ``num_attention_heads`` or ``intermediate_size``, the layer is not in the model or
        attends in another way, or the number of tokens is negative.
    """
    for name in ("num_attention_heads", "intermediate_size"):
        if getattr(config, name, None) is None:
            raise ValueError(
                f"the {config.model_type} config has no {name}; only decoders with a gated FFN are counted"
            )
    if tokens < 0:
        raise ValueError(f"tokens is {tokens}; a sequence cannot be shorter than nothing")
    if not 0 <= layer < config.num_hidden_layers:
        raise ValueError(
            f"layer {layer} is not in a model of {config.num_hidden_layers} layers (0 … {config.num_hidden_layers - 1})"
        )
    width, heads = config.hidden_size, config.num_attention_heads
    kv_heads = getattr(config, "num_key_value_heads", None) or heads
    head_dim = getattr(config, "head_dim", None) or width // heads
    window = attention_window(config, layer)
    reach = tokens if window is None else min(tokens, window)  # keys that a query sees at most
    pairs = tokens * reach - (reach * (reach - 1) // 2 if causal else 0)  # the first queries see fewer
    return LayerFlops(
        projections=2 * tokens * width * 2 * (heads + kv_heads) * head_dim,
        attention=2 * 2 * heads * head_dim * pairs,
        ffn=2 * 3 * tokens * width * config.intermediate_size,
    )


def overtaking_length(config: PreTrainedConfig, causal: bool = False, with_projections: bool = False) -> int:
    """The shortest prefill in which attention takes at least as many FLOPs as the FFNs, over all layers.

    The paper's Section 2.1 puts it at N = d_ff, the intermediate size, for an FFN "consisting of two linear
    transformations". That holds exactly for the full square where heads times head dimension are the hidden size.
    A gated FFN has a third matrix and moves it to 1.5 d_ff; without the masked half it is 3 d_ff - 1.

    Parameters
    ----------
    config, causal
        As in :func:`layer_flops`.
    with_projections : bool
        Count the query, key, value and output projections with attention.

    Returns
    -------
    int
        Tokens, at least 1. The model's context may be shorter.

    Raises
    ------
    ValueError
        If attention never gets there, as where every layer has a short sliding window, and as :func:`layer_flops` does.
    """

    def lead(tokens: int) -> int:  # per token it never falls: where it is not negative, it stays so
        counts = [layer_flops(config, tokens, layer, causal) for layer in range(config.num_hidden_layers)]
        own = sum(count.attention + (count.projections if with_projections else 0) for count in counts)
        return own - sum(count.ffn for count in counts)

    windows = [attention_window(config, layer) for layer in range(config.num_hidden_layers)]
    enough = 1
    while lead(enough) < 0:
        # Once every window is full, the lead is a straight line.
        if None not in windows and enough >= max(windows) and lead(enough + 1) <= lead(enough):
            raise ValueError(f"attention of this {config.model_type} model never takes as many FLOPs as its FFNs")
        enough *= 2
    return 1 + bisect_left(range(1, enough), True, key=lambda tokens: lead(tokens) >= 0)


def attention_window(config: PreTrainedConfig, layer: int) -> int | None:
    """How many keys a token of this layer sees at most, itself included; None where it sees all before it."""
    layer_types = getattr(config, "layer_types", None)
    if layer_types is None:  # Llama has no window; Mistral has one for all layers, or None
        return getattr(config, "sliding_window", None)
    if layer_types[layer] not in ("full_attention", "sliding_attention"):
        raise ValueError(f"layer {layer} of this {config.model_type} model is {layer_types[layer]!r}: not counted here")
    return config.sliding_window if layer_types[layer] == "sliding_attention" else None


def prefill_flops(
    config: PreTrainedConfig, plan: PruningPlan | None, tokens: int, causal: bool = False, fold_output: bool = False
) -> int:
    """Floating-point operations of reading ``tokens`` tokens: all decoder layers, and the output head at the last one.

    Parameters
    ----------
    config, tokens, causal
        As in :func:`layer_flops`; at least one token.
    plan : PruningPlan or None
        What is removed; None: nothing. A value-only layer keeps its value and output projection, and no attention.
    fold_output : bool
        As in :func:`harp_lib.apply_plan`; the output projection of a value-only layer takes as much as its values then.

    Returns
    -------
    int
        A multiply-add is two operations.

    Raises
    ------
    ValueError
        For no token, a plan that does not fit the config, and as :func:`layer_flops` does.
    """
    dense = [layer_flops(config, tokens, layer, causal) for layer in range(config.num_hidden_layers)]
    return _pruned_flops(config, plan, tokens, dense, fold_output)


def decode_flops(config: PreTrainedConfig, plan: PruningPlan | None, tokens: int, fold_output: bool = False) -> int:
    """Floating-point operations of one new token that attends to ``tokens`` keys, its own included.

    With a KV cache. A sliding window bounds the keys. Parameters, value and errors as in :func:`prefill_flops`.
    """
    dense = []
    for layer in range(config.num_hidden_layers):
        flops, window = layer_flops(config, 1, layer), attention_window(config, layer)
        dense.append(flops._replace(attention=flops.attention * (tokens if window is None else min(tokens, window))))
    return _pruned_flops(config, plan, tokens, dense, fold_output)


def _pruned_flops(
    config: PreTrainedConfig, plan: PruningPlan | None, tokens: int, dense: Sequence[LayerFlops], fold_output: bool
) -> int:
    """What a plan leaves of the layers' operations, and one position of the output head."""
    if tokens < 1:
        raise ValueError(f"tokens is {tokens}; there has to be at least one")
    total = 2 * stock_model(config).get_output_embeddings().weight.numel()
    layers = zip(dense, count_groups(config, plan), gated_ffns(config), strict=True)
    for layer, (flops, (groups, kept), ffn) in enumerate(layers):
        layer_plan = plan.layers.get(layer, LayerPlan()) if plan else LayerPlan()
        if layer_plan.alpha and fold_output:  # values and output projection: K of the 2 H + 2 K heads each
            total += flops.projections * groups // (config.num_attention_heads + groups)
        elif layer_plan.alpha:  # values and output projection take as much as queries and keys
            total += flops.projections // 2
        total += (flops.projections + flops.attention) * kept // groups
        channels = ffn.down_proj.in_features
        total += flops.ffn * (channels - len(layer_plan.removed_channels)) // channels
    return total
