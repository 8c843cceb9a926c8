"""What a model holds and does, dense or pruned, counted from its config and a plan: parameters, KV cache, operations.

Modules are looked at on the meta device. A pruned model's config counts as that of the dense model it was made from. An
architecture that is not counted is a ValueError, and so is a plan that does not fit it.
"""

import copy
import json
from bisect import bisect_left
from collections.abc import Sequence
from functools import lru_cache
from itertools import takewhile
from typing import NamedTuple

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

from harp_lib.config import CONFIGS
from harp_lib.pruning.architecture import all_linear, check_fits, decoder_layers
from harp_lib.pruning.layers import ATTENTION_PARTS, FFN_PARTS, num_groups
from harp_lib.pruning.plan import LayerPlan, PruningPlan
from harp_lib.pruning.surgery import temporarily_pruned

PAPER_MODELS = {  # the paper's spelling → the repository's name on the hub
    "LLaMA3.1-8B": "Llama-3.1-8B",
    "Mistral-7B-v0.3": "Mistral-7B-v0.3",
    "Qwen2-7B": "Qwen2-7B",
    "Gemma2-9B": "gemma-2-9b",
}


def paper_configs() -> dict[str, PreTrainedConfig]:
    """The configs of the paper's four models, from the ``config.json`` of each hub repository (``data/configs``)."""
    files = {model: CONFIGS / f"{name}.json" for model, name in PAPER_MODELS.items()}
    return {model: AutoConfig.for_model(**json.loads(file.read_text("utf-8"))) for model, file in files.items()}


def stock_model(config: PreTrainedConfig) -> PreTrainedModel:
    """The dense model on the meta device; configs of one content share it, so it has to be left as it is."""
    stock = copy.copy(config)
    vars(stock).pop("fold_output", None)
    if vars(stock).pop("pruning_plan", None) is not None:
        # The class may come from a checkpoint's own code; the one it is derived from is transformers' in any case.
        stock.__class__ = next(kind for kind in type(config).__mro__ if kind.__module__.startswith("transformers."))
    return _build(type(stock), stock.to_json_string(use_diff=False))


@lru_cache(maxsize=32)
def _build(config_class: type[PreTrainedConfig], content: str) -> PreTrainedModel:
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config_class.from_dict(json.loads(content)))
    for index, layer in enumerate(decoder_layers(model)):
        if not all_linear(getattr(layer, "self_attn", None), ATTENTION_PARTS):
            parts = ", ".join(ATTENTION_PARTS)
            raise ValueError(f"{type(model).__name__} is not counted: layer {index} has no attention of {parts}")
    return model


def parameters(config: PreTrainedConfig, plan: PruningPlan | None = None, fold_output: bool = False) -> int:
    """All parameters of the model, counted on its modules after surgery: shared ones once, norms and biases too."""
    model = stock_model(config)
    with temporarily_pruned(model, plan or PruningPlan(len(decoder_layers(model)), {}), fold_output):
        return sum(parameter.numel() for parameter in model.parameters())


def linear_parameters(config: PreTrainedConfig) -> int:
    """Weights and biases of the linear maps in all decoder layers: what the paper's ratios are relative to."""
    return sum(_linear_parameters(layer) for layer in decoder_layers(stock_model(config)))


def removed_parameters(config: PreTrainedConfig, plan: PruningPlan) -> int:
    """How many of the :func:`linear_parameters` the plan removes.

    A value-only layer loses W_Q and W_K; with alpha = 0, all of its attention. A key/value group takes its rows of W_K
    and W_V, those of its query heads in W_Q, and their columns of W_O, whose own bias stays. An FFN channel takes its
    rows of gate and up projection and its column of the down projection.
    """
    model, removed = stock_model(config), 0
    check_fits(model, plan)
    for index, lost in plan.layers.items():
        layer = decoder_layers(model)[index]
        query, key, value, output = (_linear_parameters(getattr(layer.self_attn, part)) for part in ATTENTION_PARTS)
        if lost.alpha is not None:
            removed += query + key if lost.alpha else _linear_parameters(layer.self_attn)
        if lost.removed_groups:
            output = layer.self_attn.o_proj.weight.numel()
            removed += (query + key + value + output) // num_groups(layer.self_attn) * len(lost.removed_groups)
        if lost.removed_channels:
            removed += _channel_size(layer.mlp) * len(lost.removed_channels)
    return removed


def removed_fraction(config: PreTrainedConfig, plan: PruningPlan) -> float:
    """The paper's "Parameter Pruning Ratio" (Table "gen") as a fraction: 0.033 for its 3.3 %.

    Removed / all linear parameters of the decoder layers; see :func:`removed_parameters`.
    """
    return removed_parameters(config, plan) / linear_parameters(config)


def head_ratio(config: PreTrainedConfig, plan: PruningPlan) -> float:
    """The paper's "Attention Head Pruning Ratio": key/value groups removed, all those of a value-only layer, / all."""
    groups = count_groups(config, plan)
    return sum(total - kept for total, kept in groups) / sum(total for total, _ in groups)


def count_groups(config: PreTrainedConfig, plan: PruningPlan | None = None) -> list[tuple[int, int]]:
    """Key/value groups of each layer, and how many of them stay."""
    model, counts = stock_model(config), []
    if plan:
        check_fits(model, plan)
    for index, layer in enumerate(decoder_layers(model)):
        total, lost = num_groups(layer.self_attn), (plan.layers if plan else {}).get(index, LayerPlan())
        counts.append((total, 0 if lost.alpha is not None else total - len(lost.removed_groups)))
    return counts


def kv_bytes_per_token(
    config: PreTrainedConfig, plan: PruningPlan | None = None, dtype: torch.dtype | None = None
) -> int:
    """Bytes that each token takes in a KV cache of ``dtype`` (default: the config's), over all layers.

    What a sliding window saves is not counted: once it is full, its layer takes nothing more.
    """
    model, numbers = stock_model(config), 0
    for layer, (total, kept) in zip(decoder_layers(model), count_groups(config, plan), strict=True):
        keys, values = layer.self_attn.k_proj.out_features, layer.self_attn.v_proj.out_features
        numbers += (keys + values) // total * kept
    return numbers * (dtype or model.dtype).itemsize


def top_groups_plan(config: PreTrainedConfig, kv_groups: int) -> PruningPlan:
    """The plan that takes ``kv_groups`` key/value groups, from the top layer down: for counting, where any would do."""
    groups = [total for total, _ in count_groups(config)]
    if not 1 <= kv_groups <= sum(groups):
        raise ValueError(f"{kv_groups} key/value groups cannot go: the layers hold {sum(groups)}")
    layers = {}
    for layer in reversed(range(len(groups))):
        if taken := min(kv_groups, groups[layer]):
            layers[layer] = LayerPlan(removed_groups=tuple(range(taken)))
            kv_groups -= taken
    return PruningPlan(len(groups), layers, "top-groups")


def ffn_channels_for(config: PreTrainedConfig, plan: PruningPlan, target_fraction: float) -> int:
    """How many FFN channels, over all layers, bring ``plan`` nearest to a :func:`removed_fraction` such as 0.048.

    A ValueError names what is within reach: from the plan alone to all channels but one in each layer.
    """
    ffns, own = _gated_ffns(config), removed_fraction(config, plan)
    share = _channel_size(ffns[0]) / linear_parameters(config)
    removed = sum(len(lost.removed_channels) for lost in plan.layers.values())
    largest = own + share * (sum(ffn.down_proj.in_features - 1 for ffn in ffns) - removed)
    if not own <= target_fraction <= largest:
        reach = f"the plan alone removes {own:.6f}, with all of them but one in each layer it is {largest:.6f}"
        raise ValueError(f"target_fraction {target_fraction} is out of reach of FFN channels: {reach}")
    return round((target_fraction - own) / share)


class LayerFlops(NamedTuple):
    """Floating-point operations of one decoder layer; a multiply-add is two. Matrix products only."""

    projections: int  # of queries, keys, values and output
    attention: int  # scores, and weighted average of the values
    ffn: int  # the three matrices of a gated FFN


def layer_flops(config: PreTrainedConfig, tokens: int, layer: int = 0, causal: bool = False) -> LayerFlops:
    """Floating-point operations of one decoder layer in a prefill of one sequence of N ``tokens``.

    The terms of the paper's Section 2.1, "Theoretical Computation Complexity Analysis", with their constants, for
    grouped-query attention and a dense gated FFN. Without ``causal`` all N² query-key pairs count, as in the paper and
    in a kernel that masks afterwards; with it the N (N + 1) / 2 that are visible. In a sliding window of W tokens these
    are N min(N, W), and the sum of min(i, W) over i = 1 … N: what lies outside is taken to be passed over.
    """
    for name in ("num_attention_heads", "intermediate_size"):
        if getattr(config, name, None) is None:
            raise ValueError(
                f"the {config.model_type} config has no {name}: only decoders with a gated FFN are counted"
            )
    depth, width, heads = config.num_hidden_layers, config.hidden_size, config.num_attention_heads
    if tokens < 0:
        raise ValueError(f"tokens is {tokens}; a sequence cannot be shorter than nothing")
    if not 0 <= layer < depth:
        raise ValueError(f"layer {layer} is not in a model of {depth} layers (0 … {depth - 1})")
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
    """The shortest prefill in which attention takes at least as many operations as the FFNs, over all layers.

    The paper's Section 2.1 puts it at N = d_ff, the intermediate size, for an FFN "consisting of two linear
    transformations". That holds exactly for the full square where heads times head dimension are the hidden size.
    A gated FFN has a third matrix and moves it to 1.5 d_ff; without the masked half it is 3 d_ff - 1.
    """

    def lead(tokens: int) -> int:  # per token it never falls: where it is not negative, it stays so
        counts = [layer_flops(config, tokens, layer, causal) for layer in range(config.num_hidden_layers)]
        return sum(of.attention + (of.projections if with_projections else 0) - of.ffn for of in counts)

    windows, enough = [attention_window(config, layer) for layer in range(config.num_hidden_layers)], 1
    while lead(enough) < 0:
        # Once every window is full, the lead is a straight line.
        if None not in windows and enough >= max(windows) and lead(enough + 1) <= lead(enough):
            raise ValueError(f"attention of this {config.model_type} model never takes as many FLOPs as its FFNs")
        enough *= 2
    return 1 + bisect_left(range(1, enough), True, key=lambda tokens: lead(tokens) >= 0)


def attention_window(config: PreTrainedConfig, layer: int) -> int | None:
    """How many keys a token of this layer sees at most, itself included; None where it sees all before it."""
    kinds = getattr(config, "layer_types", None)
    if kinds is None:  # Llama has no window; Mistral has one for all layers, or None
        return getattr(config, "sliding_window", None)
    if kinds[layer] not in ("full_attention", "sliding_attention"):
        raise ValueError(f"layer {layer} of this {config.model_type} model is {kinds[layer]!r}: not counted here")
    return config.sliding_window if kinds[layer] == "sliding_attention" else None


def prefill_flops(
    config: PreTrainedConfig,
    plan: PruningPlan | None,
    tokens: int,
    causal: bool = False,
    fold_output: bool = False,
    tail_only: bool = False,
) -> int:
    """Floating-point operations of reading ``tokens`` tokens: all decoder layers, and the output head at the last one.

    A value-only layer keeps its value and output projection, and no attention; ``fold_output`` is that of
    :func:`harp_lib.apply_plan`, ``causal`` that of :func:`layer_flops`. With ``tail_only`` the last token alone enters
    the layers without attention at the top, as in a pruned model that ``generate`` runs.
    """
    reads = [tokens] * config.num_hidden_layers
    for layer in takewhile(lambda layer: count_groups(config, plan)[layer][1] == 0, reversed(range(len(reads)))):
        reads[layer] = min(tokens, 1) if tail_only else tokens
    dense = [layer_flops(config, read, layer, causal) for layer, read in enumerate(reads)]
    return _pruned_flops(config, plan, tokens, dense, fold_output)


def decode_flops(config: PreTrainedConfig, plan: PruningPlan | None, tokens: int, fold_output: bool = False) -> int:
    """Floating-point operations of one new token that attends to ``tokens`` cached keys, its own included."""
    dense = []
    for layer in range(config.num_hidden_layers):
        flops, window = layer_flops(config, 1, layer), attention_window(config, layer)
        dense.append(flops._replace(attention=flops.attention * min(tokens, window or tokens)))
    return _pruned_flops(config, plan, tokens, dense, fold_output)


def _pruned_flops(
    config: PreTrainedConfig, plan: PruningPlan | None, tokens: int, dense: Sequence[LayerFlops], fold_output: bool
) -> int:
    """What a plan leaves of the layers' operations, and one position of the output head."""
    if tokens < 1:
        raise ValueError(f"tokens is {tokens}; there has to be at least one")
    total, lost = 2 * stock_model(config).get_output_embeddings().weight.numel(), plan.layers if plan else {}
    layers = zip(dense, count_groups(config, plan), _gated_ffns(config), strict=True)
    for layer, (flops, (groups, kept), ffn) in enumerate(layers):
        alpha, removed = (lost[layer].alpha, len(lost[layer].removed_channels)) if layer in lost else (None, 0)
        if alpha and fold_output:  # values and output projection: K of the 2 H + 2 K heads each
            total += flops.projections * groups // (config.num_attention_heads + groups)
        elif alpha:  # values and output projection take as much as queries and keys
            total += flops.projections // 2
        total += (flops.projections + flops.attention) * kept // groups
        total += flops.ffn * (ffn.down_proj.in_features - removed) // ffn.down_proj.in_features
    return total


def _gated_ffns(config: PreTrainedConfig) -> list[nn.Module]:
    ffns = [getattr(layer, "mlp", None) for layer in decoder_layers(stock_model(config))]
    for layer, ffn in enumerate(ffns):
        if not all_linear(ffn, FFN_PARTS):
            raise ValueError(
                f"layer {layer} of this {config.model_type} model has no gated FFN of {', '.join(FFN_PARTS)}"
            )
    return ffns


def _linear_parameters(module: nn.Module) -> int:
    # Experts and their router are matrices in modules of other kinds. Cohere's norms hold matrices too.
    own = ((part, parameter) for part in module.modules() for parameter in part.parameters(recurse=False))
    counted = (w for of, w in own if isinstance(of, nn.Linear) or (w.dim() > 1 and "Norm" not in type(of).__name__))
    return sum(parameter.numel() for parameter in counted)


def _channel_size(ffn: nn.Module) -> int:
    matrices = _linear_parameters(ffn.gate_proj) + _linear_parameters(ffn.up_proj) + ffn.down_proj.weight.numel()
    return matrices // ffn.down_proj.in_features
