"""What a model holds and does, counted from its config and a plan on the meta device, after
surgery.

A pruned model's config counts as the dense one's. An architecture or a plan that does not fit is a
ValueError.
"""

import copy
import json
from bisect import bisect_left
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

from harp_lib.config import CONFIGS
from harp_lib.names import PAPER_MODELS
from harp_lib.pruning.architecture import all_linear, check_fits, decoder_layers
from harp_lib.pruning.layers import FFN_PARTS, num_groups
from harp_lib.pruning.plan import LayerPlan, PruningPlan
from harp_lib.pruning.surgery import temporarily_pruned


def paper_configs() -> dict[str, PreTrainedConfig]:
    """The configs of the paper's four models, from the ``config.json`` of each hub repository
    (``data/configs``).
    """
    read = {
        model: json.loads((CONFIGS / f"{name}.json").read_bytes())
        for model, name in PAPER_MODELS.items()
    }
    return {model: AutoConfig.for_model(**content) for model, content in read.items()}


def stock_model(config: PreTrainedConfig) -> PreTrainedModel:
    """The dense model on the meta device; configs of one content share it, so it has to be left as
    it is.
    """
    stock = copy.copy(config)
    vars(stock).pop("fold_output", None)
    if vars(stock).pop("pruning_plan", None) is not None:
        # The class may come from a checkpoint's own code; the one it is derived from is
        # transformers' in any case.
        stock.__class__ = next(
            kind for kind in type(config).__mro__ if kind.__module__.startswith("transformers.")
        )
    return _build(type(stock), stock.to_json_string(use_diff=False))


@lru_cache(maxsize=32)
def _build(config_class: type[PreTrainedConfig], content: str) -> PreTrainedModel:
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config_class.from_dict(json.loads(content)))
    layers = range(len(decoder_layers(model)))
    check_fits(
        model, PruningPlan(len(layers), {layer: LayerPlan(removed_groups=(0,)) for layer in layers})
    )
    return model


@contextmanager
def pruned(
    config: PreTrainedConfig, plan: PruningPlan | None, fold_output: bool = False
) -> Iterator[PreTrainedModel]:
    """Within the context, the :func:`stock_model` as ``plan`` prunes it; no plan: dense."""
    model = stock_model(config)
    with temporarily_pruned(
        model, plan or PruningPlan(len(decoder_layers(model)), {}), fold_output
    ):
        yield model


def parameters(
    config: PreTrainedConfig, plan: PruningPlan | None = None, fold_output: bool = False
) -> int:
    """All parameters of the model: shared ones once, norms and biases too."""
    with pruned(config, plan, fold_output) as model:
        return sum(parameter.numel() for parameter in model.parameters())


def linear_parameters(config: PreTrainedConfig, plan: PruningPlan | None = None) -> int:
    """Weights and biases of all that is no norm in the decoder layers: what the paper's ratios are
    relative to.

    A value-only layer loses W_Q and W_K; with alpha = 0, all of its attention. A key/value group
    takes its rows of W_K and W_V, those of its query heads in W_Q, and their columns of W_O, whose
    own bias stays. An FFN channel takes its rows of gate and up projection and its column of the
    down projection. FLAP's biases are not counted.
    """
    if plan:
        silent = {
            layer: replace(lost, group_means=None, channel_means=None)
            for layer, lost in plan.layers.items()
        }
        plan = replace(plan, layers=silent)
    with pruned(config, plan) as model:
        parts = [
            part for part in decoder_layers(model).modules() if "Norm" not in type(part).__name__
        ]
        return sum(
            parameter.numel() for part in parts for parameter in part.parameters(recurse=False)
        )


def removed_fraction(config: PreTrainedConfig, plan: PruningPlan) -> float:
    """The paper's "Parameter Pruning Ratio" (Table "gen") as a fraction, 0.033 for its 3.3 %: of
    linear parameters.
    """
    total = linear_parameters(config)
    return (total - linear_parameters(config, plan)) / total


def head_ratio(config: PreTrainedConfig, plan: PruningPlan) -> float:
    """The paper's "Attention Head Pruning Ratio": key/value groups removed, all those of a
    value-only layer, / all.
    """
    groups = count_groups(config, plan)
    return sum(total - kept for total, kept in groups) / sum(total for total, _ in groups)


def count_groups(
    config: PreTrainedConfig, plan: PruningPlan | None = None
) -> list[tuple[int, int]]:
    """Key/value groups of each layer, and how many of them stay."""
    whole = [num_groups(layer.self_attn) for layer in decoder_layers(stock_model(config))]
    with pruned(config, plan) as model:
        kept = [
            num_groups(layer.self_attn) if attends(layer) else 0 for layer in decoder_layers(model)
        ]
    return list(zip(whole, kept, strict=True))


def attends(layer: nn.Module) -> bool:
    """Whether a decoder layer has queries and keys."""
    return hasattr(layer.self_attn, "q_proj")


def kv_bytes_per_token(
    config: PreTrainedConfig, plan: PruningPlan | None = None, dtype: torch.dtype | None = None
) -> int:
    """Bytes that each token takes in a KV cache of ``dtype`` (default: the config's), over all
    layers.

    What a sliding window saves is not counted: once it is full, its layer takes nothing more.
    """
    with pruned(config, plan) as model:
        cached = [layer.self_attn for layer in decoder_layers(model) if attends(layer)]
        numbers = sum(each.k_proj.out_features + each.v_proj.out_features for each in cached)
        return numbers * (dtype or model.dtype).itemsize


def top_groups_plan(config: PreTrainedConfig, kv_groups: int) -> PruningPlan:
    """The plan that takes ``kv_groups`` key/value groups, from the top layer down: for counting,
    where any would do.
    """
    groups, layers = [total for total, _ in count_groups(config)], {}
    for layer in reversed(range(len(groups))):
        if taken := min(kv_groups, groups[layer]):
            layers[layer] = LayerPlan(removed_groups=tuple(range(taken)))
            kv_groups -= taken
    return PruningPlan(len(groups), layers, "top-groups")


def ffn_channels_for(config: PreTrainedConfig, plan: PruningPlan, target_fraction: float) -> int:
    """How many FFN channels, over all layers, bring ``plan`` nearest to a :func:`removed_fraction`
    such as 0.048.

    A ValueError names what is within reach: from the plan alone to all channels but one in each
    layer.
    """
    own, removed = (
        removed_fraction(config, plan),
        sum(len(lost.removed_channels) for lost in plan.layers.values()),
    )
    share = removed_fraction(
        config, PruningPlan(plan.num_layers, {0: LayerPlan(removed_channels=(0,))})
    )
    largest = own + share * (plan.num_layers * (config.intermediate_size - 1) - removed)
    if not own <= target_fraction <= largest:
        reach = f"the plan alone removes {own:.6f}, with all of them but one in each layer it is {largest:.6f}"
        raise ValueError(
            f"target_fraction {target_fraction} is out of reach of FFN channels: {reach}"
        )
    return round((target_fraction - own) / share)


class Flops(NamedTuple):
    """Floating-point operations of decoder layers; a multiply-add is two. Matrix products only."""

    projections: int  # of queries, keys, values and output
    attention: int  # scores, and weighted average of the values
    ffn: int  # the three matrices of a gated FFN


def layer_flops(
    config: PreTrainedConfig, tokens: int, layer: int = 0, causal: bool = False
) -> Flops:
    """Floating-point operations of one decoder layer in a prefill of one sequence of N ``tokens``.

    The terms of the paper's Section 2.1, "Theoretical Computation Complexity Analysis", with their
    constants, for grouped-query attention and a dense gated FFN. Without ``causal`` all N²
    query-key pairs count, as in the paper and in a kernel that masks afterwards; with it the N (N +
    1) / 2 that are visible. In a sliding window of W tokens these are N min(N, W), and the sum of
    min(i, W) over i = 1 … N: what lies outside is taken to be passed over.
    """
    return prefill_layers(config, None, tokens, causal)[layer]


def prefill_layers(
    config: PreTrainedConfig,
    plan: PruningPlan | None,
    tokens: int,
    causal=False,
    fold_output=False,
    tail_only=False,
) -> list[Flops]:
    """Those of every layer, from the bottom; see :func:`prefill_flops`."""
    with pruned(config, plan, fold_output) as model:
        counts, read = [], 1 if tail_only else tokens
        for index, layer in reversed([*enumerate(decoder_layers(model))]):
            if not all_linear(getattr(layer, "mlp", None), FFN_PARTS):
                parts = ", ".join(FFN_PARTS)
                raise ValueError(
                    f"only a gated FFN of {parts} is counted; {type(layer).__name__} has another"
                )
            read = (
                tokens if attends(layer) else read
            )  # once one does, all tokens enter it and what lies below
            width = layer.self_attn.o_proj.in_features if attends(layer) else 0  # H·Dh
            reach = min(
                tokens, attention_window(config, index) or tokens
            )  # keys that a query sees at most
            pairs = tokens * reach - (
                reach * (reach - 1) // 2 if causal else 0
            )  # the first queries see fewer
            projections, ffn = (
                sum(
                    linear.weight.numel()
                    for linear in part.children()
                    if isinstance(linear, nn.Linear)
                )
                for part in (layer.self_attn, layer.mlp)
            )
            counts.insert(0, Flops(2 * read * projections, 2 * 2 * width * pairs, 2 * read * ffn))
        return counts


def overtaking_length(config: PreTrainedConfig) -> int:
    """The shortest prefill in which attention takes at least as many operations as the FFNs, all
    pairs counted.

    The paper's Section 2.1 puts it at N = d_ff, the intermediate size, for an FFN "consisting of
    two linear transformations". That holds where heads times head dimension are the hidden size; a
    gated FFN's third matrix moves it to 1.5 d_ff.
    """

    def lead(tokens: int) -> int:  # once it is not negative, it stays so
        return sum(of.attention - of.ffn for of in prefill_layers(config, None, tokens))

    return bisect_left(range(2**32), 0, lo=1, key=lead)


def attention_window(config: PreTrainedConfig, layer: int) -> int | None:
    """How many keys a token of this layer sees at most, itself included; None where it sees all
    before it.
    """
    kinds = getattr(config, "layer_types", None)
    if kinds is None:  # Llama has no window; Mistral has one for all layers, or None
        return getattr(config, "sliding_window", None)
    if kinds[layer] not in ("full_attention", "sliding_attention"):
        raise ValueError(
            f"layer {layer} of this {config.model_type} model is {kinds[layer]!r}: not counted here"
        )
    return config.sliding_window if kinds[layer] == "sliding_attention" else None


def prefill_flops(
    config: PreTrainedConfig,
    plan: PruningPlan | None,
    tokens: int,
    causal=False,
    fold_output=False,
    tail_only=False,
) -> int:
    """Floating-point operations of reading ``tokens`` tokens: all decoder layers, and the output
    head at the last one.

    A value-only layer keeps its value and output projection, and no attention; ``fold_output`` is
    that of :func:`harp_lib.apply_plan`, ``causal`` that of :func:`layer_flops`. With ``tail_only``
    the last token alone enters the layers without attention at the top, as in a pruned model that
    ``generate`` runs.
    """
    head = 2 * stock_model(config).get_output_embeddings().weight.numel()
    return head + sum(
        map(sum, prefill_layers(config, plan, tokens, causal, fold_output, tail_only))
    )


def decode_flops(
    config: PreTrainedConfig, plan: PruningPlan | None, tokens: int, fold_output: bool = False
) -> int:
    """Floating-point operations of one new token that attends to ``tokens`` cached keys, its own
    included.

    It is what a causal prefill takes more with it than without; the output head is needed again.
    """
    without = sum(map(sum, prefill_layers(config, plan, tokens - 1, True, fold_output)))
    return prefill_flops(config, plan, tokens, True, fold_output) - without
