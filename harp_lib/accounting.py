"""Parameters, KV-cache bytes and FLOPs of a model, counted from its config and a plan.

The counts are read off modules on the meta device, after surgery. The config of a pruned model
counts as the dense one's. An architecture or a plan that does not fit is a ValueError.
"""

import copy
import json
from bisect import bisect_left
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import NamedTuple

import pandas as pd
import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

from harp_lib.config import CONFIGS, PAPER
from harp_lib.names import PAPER_MODELS
from harp_lib.pruning.architecture import all_linear, check_fits, decoder_layers
from harp_lib.pruning.layers import FFN_PARTS, attends, num_groups
from harp_lib.pruning.plan import LayerPlan, PruningPlan
from harp_lib.pruning.remote import stock_class
from harp_lib.pruning.surgery import temporarily_pruned


def paper_configs() -> dict[str, PreTrainedConfig]:
    """Configs of the paper's four models, by name, from the hub's ``config.json`` files."""
    configs = {}
    for model, hub_id in PAPER_MODELS.items():
        name = hub_id.rpartition("/")[2]
        content = json.loads((CONFIGS / f"{name}.json").read_bytes())
        configs[model] = AutoConfig.for_model(**content)
    return configs


def printed_plan(model: str) -> PruningPlan:
    """HARP's plan of a model of the paper, with the alphas that it prints, searched on WikiText."""
    printed = pd.read_csv(PAPER / "alpha_search.csv")
    printed = printed.query("model == @model and task == 'wikitext'")
    alphas = printed.set_index("layer")["value"].to_dict()
    return PruningPlan.value_only(max(alphas) + 1, alphas)  # they are of the highest layers


_STOCK_MODELS: dict[tuple[type, str], PreTrainedModel] = {}
"""Models that were counted before, by class and content of their config."""


def stock_model(config: PreTrainedConfig) -> PreTrainedModel:
    """The dense model of ``config`` on the meta device; it is shared and must not be changed."""
    stock_config = copy.deepcopy(config)
    vars(stock_config).pop("fold_output", None)
    if vars(stock_config).pop("pruning_plan", None) is not None:
        stock_config.__class__ = stock_class(type(config))
    key = (type(stock_config), stock_config.to_json_string(use_diff=False))
    if key not in _STOCK_MODELS:
        _STOCK_MODELS[key] = _build(stock_config)
    return _STOCK_MODELS[key]


def _build(config: PreTrainedConfig) -> PreTrainedModel:
    """A model on the meta device; a ValueError if key/value groups cannot be removed from it."""
    with torch.device("meta"):
        # A config may ask for a kernel that this machine lacks.
        model = AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    num_layers = len(decoder_layers(model))
    first_group = LayerPlan(removed_groups=(0,))
    check_fits(model, PruningPlan(num_layers, dict.fromkeys(range(num_layers), first_group)))
    return model


@contextmanager
def pruned(
    config: PreTrainedConfig, plan: PruningPlan | None, fold_output: bool = False
) -> Iterator[PreTrainedModel]:
    """Context with the :func:`stock_model` as ``plan`` prunes it; dense without a plan."""
    model = stock_model(config)
    if plan is None:
        plan = PruningPlan(len(decoder_layers(model)), {})
    with temporarily_pruned(model, plan, fold_output):
        yield model


def parameters(
    config: PreTrainedConfig, plan: PruningPlan | None = None, fold_output: bool = False
) -> int:
    """Number of all parameters: shared ones once, and norms and biases too."""
    with pruned(config, plan, fold_output) as model:
        return sum(parameter.numel() for parameter in model.parameters())


def linear_parameters(config: PreTrainedConfig, plan: PruningPlan | None = None) -> int:
    """Number of weights and biases in the decoder layers without norms, the paper's denominator.

    A value-only layer loses W_Q and W_K, and with alpha = 0 all of its attention. A key/value group
    takes with it its rows of W_K and W_V, the rows of its query heads in W_Q, and their columns of
    W_O, whose own bias stays. An FFN channel takes with it its rows of gate and up projection and
    its column of the down projection. The biases that compensate for removed parts (FLAP) are not
    counted.
    """
    if plan is not None:
        uncompensated = {
            layer: replace(layer_plan, group_means=None, channel_means=None)
            for layer, layer_plan in plan.layers.items()
        }
        plan = replace(plan, layers=uncompensated)
    count = 0
    with pruned(config, plan) as model:
        for module in decoder_layers(model).modules():
            if "Norm" in type(module).__name__:
                continue
            count += sum(parameter.numel() for parameter in module.parameters(recurse=False))
    return count


def removed_fraction(config: PreTrainedConfig, plan: PruningPlan) -> float:
    """The paper's "Parameter Pruning Ratio" (Table "gen") as a fraction: 0.033 for 3.3 %.

    It is relative to :func:`linear_parameters`.
    """
    total = linear_parameters(config)
    return (total - linear_parameters(config, plan)) / total


def head_ratio(config: PreTrainedConfig, plan: PruningPlan) -> float:
    """The paper's "Attention Head Pruning Ratio": removed key/value groups / all groups.

    All groups of a value-only layer count as removed.
    """
    groups = count_groups(config, plan)
    return sum(total - kept for total, kept in groups) / sum(total for total, _ in groups)


def count_groups(
    config: PreTrainedConfig, plan: PruningPlan | None = None
) -> list[tuple[int, int]]:
    """Key/value groups of each layer, bottom to top: how many there are, and how many are kept."""
    totals = [num_groups(layer.self_attn) for layer in decoder_layers(stock_model(config))]
    kept = []
    with pruned(config, plan) as model:
        for layer in decoder_layers(model):
            kept.append(num_groups(layer.self_attn) if attends(layer) else 0)
    return list(zip(totals, kept, strict=True))


def kv_bytes(
    config: PreTrainedConfig,
    plan: PruningPlan | None = None,
    tokens: int = 1,
    dtype: torch.dtype | None = None,
) -> int:
    """Bytes of a KV cache of ``dtype`` (default: the config's) over all layers, for a text.

    A layer with a sliding window keeps its window alone; in transformers one token less, whose
    place is for the next one. Of a text of one token, which is the default, these are the bytes
    that a token adds until a window is full.
    """
    numbers = 0
    with pruned(config, plan) as model:
        for index, layer in enumerate(decoder_layers(model)):
            if attends(layer):
                attention = layer.self_attn
                kept = min(tokens, sliding_window(config, index) or tokens)
                numbers += kept * (attention.k_proj.out_features + attention.v_proj.out_features)
        return numbers * (dtype or model.dtype).itemsize


def top_groups_plan(config: PreTrainedConfig, kv_groups: int) -> PruningPlan:
    """A plan that removes ``kv_groups`` key/value groups, from the top layer down.

    It serves for counting, where it does not matter which groups are removed.
    """
    totals = [total for total, _ in count_groups(config)]
    layers = {}
    for layer in reversed(range(len(totals))):
        num_removed = min(kv_groups, totals[layer])
        if num_removed:
            layers[layer] = LayerPlan(removed_groups=tuple(range(num_removed)))
            kv_groups -= num_removed
    return PruningPlan(len(totals), layers, "top-groups")


def ffn_channels_for(config: PreTrainedConfig, plan: PruningPlan, target_fraction: float) -> int:
    """Number of FFN channels, over all layers, to remove beyond ``plan`` to reach a target.

    Parameters
    ----------
    config : PreTrainedConfig
        The config of the dense model.
    plan : PruningPlan
        What is removed in any case.
    target_fraction : float
        The :func:`removed_fraction` to come nearest to, such as 0.048.

    Raises
    ------
    ValueError
        If the target is out of reach: below what the plan alone removes, or above what is removed
        with all channels but one of each layer.
    """
    plan_fraction = removed_fraction(config, plan)
    one_channel = PruningPlan(plan.num_layers, {0: LayerPlan(removed_channels=(0,))})
    channel_fraction = removed_fraction(config, one_channel)
    num_planned = sum(len(layer_plan.removed_channels) for layer_plan in plan.layers.values())
    num_left = plan.num_layers * (config.intermediate_size - 1) - num_planned
    largest = plan_fraction + channel_fraction * num_left
    if not plan_fraction <= target_fraction <= largest:
        raise ValueError(
            f"target_fraction {target_fraction} is out of reach of FFN channels: the plan alone "
            f"removes {plan_fraction:.6f}, with all of them but one in each layer it is "
            f"{largest:.6f}"
        )
    return round((target_fraction - plan_fraction) / channel_fraction)


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
    query-key pairs count, as in the paper and in a kernel that masks afterwards; with ``causal``
    the N (N + 1) / 2 visible pairs. In a sliding window of W tokens these are N min(N, W) pairs,
    and the sum of min(i, W) over i = 1 … N: keys outside of the window are assumed to be skipped.
    """
    return prefill_layers(config, None, tokens, causal)[layer]


def prefill_layers(
    config: PreTrainedConfig,
    plan: PruningPlan | None,
    tokens: int,
    causal: bool = False,
    fold_output: bool = False,
    tail_only: bool = False,
) -> list[Flops]:
    """Floating-point operations of every layer, bottom to top; see :func:`prefill_flops`."""
    counts = []
    with pruned(config, plan, fold_output) as model:
        num_entering = 1 if tail_only else tokens
        for index, layer in reversed(list(enumerate(decoder_layers(model)))):
            if not all_linear(getattr(layer, "mlp", None), FFN_PARTS):
                raise ValueError(
                    f"only a gated FFN of {', '.join(FFN_PARTS)} is counted; "
                    f"{type(layer).__name__} has another"
                )
            attention_flops = 0
            if attends(layer):
                # All tokens enter the highest layer that attends, and all layers below it.
                num_entering = tokens
                width = layer.self_attn.o_proj.in_features  # H·Dh
                attention_flops = 2 * 2 * width * _num_pairs(config, index, tokens, causal)
            flops = Flops(
                projections=2 * num_entering * _num_linear_weights(layer.self_attn),
                attention=attention_flops,
                ffn=2 * num_entering * _num_linear_weights(layer.mlp),
            )
            counts.append(flops)
    counts.reverse()
    return counts


def _num_pairs(config: PreTrainedConfig, layer: int, tokens: int, causal: bool) -> int:
    """Number of query-key pairs in a prefill; see :func:`layer_flops`."""
    reach = min(tokens, sliding_window(config, layer) or tokens)  # keys that a query sees at most
    pairs = tokens * reach
    if causal:
        pairs -= reach * (reach - 1) // 2  # the first queries see fewer keys
    return pairs


def _num_linear_weights(module: nn.Module) -> int:
    """Number of weights in the linear maps of an attention or FFN module, without biases."""
    linears = (child for child in module.children() if isinstance(child, nn.Linear))
    return sum(linear.weight.numel() for linear in linears)


def overtaking_length(config: PreTrainedConfig) -> int:
    """The shortest prefill in which attention takes at least as many operations as the FFNs.

    All query-key pairs are counted. The paper's Section 2.1 puts this length at N = d_ff, the
    intermediate size, for an FFN "consisting of two linear transformations". That holds where heads
    times head dimension equals the hidden size; a gated FFN's third matrix moves it to 1.5 d_ff.
    """

    def lead_of_attention(tokens: int) -> int:
        # It is negative for short prefills; once it is not, it stays so.
        flops = prefill_layers(config, None, tokens)
        return sum(layer.attention - layer.ffn for layer in flops)

    lengths = range(1, 2**32)
    return lengths[bisect_left(lengths, 0, key=lead_of_attention)]


def sliding_window(config: PreTrainedConfig, layer: int) -> int | None:
    """Number of keys that a token of this layer sees at most, itself included; None if unlimited.

    Another kind of layer than full or sliding attention is a ValueError.
    """
    kinds = getattr(config, "layer_types", None)
    if kinds is None:  # Llama has none; Mistral has one for all layers, or None
        return getattr(config, "sliding_window", None)
    kind = kinds[layer]
    if kind == "full_attention":
        return None
    if kind == "sliding_attention":
        return config.sliding_window
    raise ValueError(
        f"layer {layer} of this {config.model_type} model is {kind!r}: not counted here"
    )


def prefill_flops(
    config: PreTrainedConfig,
    plan: PruningPlan | None,
    tokens: int,
    causal: bool = False,
    fold_output: bool = False,
    tail_only: bool = False,
) -> int:
    """Floating-point operations of a prefill: all decoder layers, and one run of the output head.

    Parameters
    ----------
    config : PreTrainedConfig
        The config of the dense model.
    plan : PruningPlan or None
        What is removed. A value-only layer keeps its value and output projection, and has no
        attention. None counts the dense model.
    tokens : int
        Length of the text.
    causal : bool
        Count only visible query-key pairs, as in :func:`layer_flops`.
    fold_output : bool
        As in :func:`harp_lib.apply_plan`.
    tail_only : bool
        Only the last token enters the layers without attention at the top, as in a pruned model
        that ``generate`` runs.
    """
    layers = prefill_layers(config, plan, tokens, causal, fold_output, tail_only)
    head = stock_model(config).get_output_embeddings().weight
    return 2 * head.numel() + sum(sum(flops) for flops in layers)


def decode_flops(
    config: PreTrainedConfig, plan: PruningPlan | None, tokens: int, fold_output: bool = False
) -> int:
    """Floating-point operations of one new token that attends to ``tokens`` keys, its own included.

    They are the difference between causal prefills of ``tokens`` and one token less, plus the
    output head, which runs again.
    """
    layers_before = prefill_layers(config, plan, tokens - 1, causal=True, fold_output=fold_output)
    prefill = prefill_flops(config, plan, tokens, causal=True, fold_output=fold_output)
    return prefill - sum(sum(flops) for flops in layers_before)
