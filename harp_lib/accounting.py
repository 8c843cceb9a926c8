"""What a model holds, dense or pruned, counted from its config and a plan: parameters and KV cache; no weights."""

import copy
import json
from functools import lru_cache

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

from harp_lib import paths
from harp_lib.pruning.architecture import all_linear, check_fits, decoder_layers
from harp_lib.pruning.plan import LayerPlan, PruningPlan
from harp_lib.pruning.slicing import ATTENTION_PARTS, FFN_PARTS, num_groups
from harp_lib.pruning.surgery import temporarily_pruned

PAPER_MODELS = {
    "LLaMA3.1-8B": "Llama-3.1-8B",
    "Mistral-7B-v0.3": "Mistral-7B-v0.3",
    "Qwen2-7B": "Qwen2-7B",
    "Gemma2-9B": "gemma-2-9b",
}
"""The paper's spelling → the repository's name on the hub."""


def paper_configs() -> dict[str, PreTrainedConfig]:
    """The configs of the paper's four models, from the ``config.json`` of each hub repository (``data/configs``)."""
    files = {model: paths.CONFIGS / f"{name}.json" for model, name in PAPER_MODELS.items()}
    return {model: AutoConfig.for_model(**json.loads(file.read_text("utf-8"))) for model, file in files.items()}


def parameters(config: PreTrainedConfig, plan: PruningPlan | None = None, fold_output: bool = False) -> int:
    """All parameters of the model, counted on its modules after surgery.

    Embeddings count once where the output head shares them; norms count, and so do biases that a compensation adds.

    Parameters
    ----------
    config : PreTrainedConfig
        Of a dense model. A pruned model's config counts as that of the dense model it was made from, whatever plan it
        holds; so in all functions of this file.
    plan : PruningPlan, optional
        What is removed; default: nothing.
    fold_output : bool
        As in :func:`harp_lib.apply_plan`. A fold removes nothing that the plan does not say, so it is no part of
        :func:`removed_parameters` and of the paper's ratios.

    Raises
    ------
    ValueError
        If the architecture is not counted here, or the plan does not fit it; so in all functions that take a plan.
    """
    model = stock_model(config)
    with temporarily_pruned(model, plan or _nothing(model), fold_output):
        return sum(parameter.numel() for parameter in model.parameters())


def linear_parameters(config: PreTrainedConfig, plan: PruningPlan | None = None) -> int:
    """Parameters of the linear maps in all decoder layers, with their biases: what the paper's ratios are relative to.

    Embeddings, output head and norms are left out, and so are biases that a compensation adds.
    """
    dense = sum(_linear_parameters(layer) for layer in decoder_layers(stock_model(config)))
    return dense - (removed_parameters(config, plan) if plan else 0)


def removed_parameters(config: PreTrainedConfig, plan: PruningPlan) -> int:
    """How many of the :func:`linear_parameters` the plan removes.

    A value-only layer loses W_Q and W_K; with alpha = 0, all of its attention. A key/value group takes its rows of W_K
    and W_V, those of its query heads in W_Q, and their columns of W_O, whose own bias stays. An FFN channel takes its
    rows of gate and up projection and its column of the down projection.
    """
    model = stock_model(config)
    check_fits(model, plan)
    layers = decoder_layers(model)
    return sum(_removed_from(layers[index], layer_plan) for index, layer_plan in plan.layers.items())


def removed_fraction(config: PreTrainedConfig, plan: PruningPlan) -> float:
    """The paper's "Parameter Pruning Ratio" (Table "gen") as a fraction: 0.033 for its 3.3 %.

    Removed / all linear parameters of the decoder layers; see :func:`removed_parameters`.
    """
    return removed_parameters(config, plan) / linear_parameters(config)


def head_ratio(config: PreTrainedConfig, plan: PruningPlan) -> float:
    """The paper's "Attention Head Pruning Ratio": key/value groups removed / all of them.

    A value-only layer has lost all of its groups, although its values stay.
    """
    groups = count_groups(config, plan)
    return sum(total - kept for total, kept in groups) / sum(total for total, _ in groups)


def kv_bytes_per_token(
    config: PreTrainedConfig, plan: PruningPlan | None = None, dtype: torch.dtype | None = None
) -> int:
    """Bytes that each token of a sequence takes in the KV cache: keys and values of the groups that stay.

    Parameters
    ----------
    config, plan
        As in :func:`parameters`.
    dtype : torch.dtype, optional
        Of the cache; default: the config's, float32 if it has none.

    Returns
    -------
    int
        Over all layers. What a sliding window saves is not counted: once it is full, its layer takes nothing more.
    """
    model, numbers = stock_model(config), 0
    for layer, (total, kept) in zip(decoder_layers(model), count_groups(config, plan), strict=True):
        keys, values = layer.self_attn.k_proj.out_features, layer.self_attn.v_proj.out_features
        numbers += (keys + values) // total * kept
    return numbers * (dtype or model.dtype).itemsize


def top_groups_plan(config: PreTrainedConfig, kv_groups: int) -> PruningPlan:
    """The plan that takes ``kv_groups`` key/value groups, from the top layer down: for counting, where any would do.

    Raises
    ------
    ValueError
        If there are not so many.
    """
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
    """How many FFN channels have to go beyond ``plan`` for :func:`removed_fraction` to come nearest to a target.

    Parameters
    ----------
    config, plan
        As in :func:`parameters`.
    target_fraction : float
        Such as 0.048.

    Returns
    -------
    int
        Over all layers.

    Raises
    ------
    ValueError
        If the plan alone removes more than the target, if all channels but one in each layer are not enough, or if
        the layers have no gated FFNs with channels of one size.
    """
    ffns, own = gated_ffns(config), removed_fraction(config, plan)
    sizes = {_channel_size(ffn) for ffn in ffns}
    if len(sizes) > 1:
        raise ValueError(f"FFN channels of this {config.model_type} model differ in size: {sorted(sizes)} parameters")
    share = sizes.pop() / linear_parameters(config)
    removed = sum(len(layer_plan.removed_channels) for layer_plan in plan.layers.values())
    largest = own + share * (sum(ffn.down_proj.in_features - 1 for ffn in ffns) - removed)
    if not own <= target_fraction <= largest:
        raise ValueError(
            f"target_fraction {target_fraction} is out of reach of FFN channels: the plan alone removes {own:.6f}, "
            f"with all of them but one in each layer it is {largest:.6f}"
        )
    return round((target_fraction - own) / share)


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
            name, parts = type(model).__name__, ", ".join(ATTENTION_PARTS)
            raise ValueError(f"{name} is not counted: layer {index} has no attention of {parts}")
    return model


def _nothing(model: PreTrainedModel) -> PruningPlan:
    return PruningPlan(len(decoder_layers(model)), {}, "dense")


def count_groups(config: PreTrainedConfig, plan: PruningPlan | None = None) -> list[tuple[int, int]]:
    """Key/value groups of each layer, and how many of them stay."""
    model, counts = stock_model(config), []
    plan = plan or _nothing(model)
    check_fits(model, plan)
    for index, layer in enumerate(decoder_layers(model)):
        total, layer_plan = num_groups(layer.self_attn), plan.layers.get(index, LayerPlan())
        counts.append((total, 0 if layer_plan.alpha is not None else total - len(layer_plan.removed_groups)))
    return counts


def gated_ffns(config: PreTrainedConfig) -> list[nn.Module]:
    """The FFN of each layer; a ValueError where one is of another kind."""
    ffns = [getattr(layer, "mlp", None) for layer in decoder_layers(stock_model(config))]
    for layer, ffn in enumerate(ffns):
        if not all_linear(ffn, FFN_PARTS):
            parts = ", ".join(FFN_PARTS)
            raise ValueError(f"layer {layer} of this {config.model_type} model has no gated FFN of {parts}")
    return ffns


def _linear_parameters(module: nn.Module) -> int:
    # Experts and their router are matrices in modules of other kinds. Cohere's norms hold matrices too.
    return sum(
        parameter.numel()
        for part in module.modules()
        for parameter in part.parameters(recurse=False)
        if isinstance(part, nn.Linear) or (parameter.dim() > 1 and "Norm" not in type(part).__name__)
    )


def _removed_from(layer: nn.Module, plan: LayerPlan) -> int:
    attention, removed = layer.self_attn, 0
    query, key, value, _ = (_linear_parameters(getattr(attention, part)) for part in ATTENTION_PARTS)
    if plan.alpha is not None:
        removed += query + key if plan.alpha else _linear_parameters(attention)
    if plan.removed_groups:
        size = (query + key + value + attention.o_proj.weight.numel()) // num_groups(attention)
        removed += size * len(plan.removed_groups)
    if plan.removed_channels:
        removed += _channel_size(layer.mlp) * len(plan.removed_channels)
    return removed


def _channel_size(ffn: nn.Module) -> int:
    matrices = _linear_parameters(ffn.gate_proj) + _linear_parameters(ffn.up_proj) + ffn.down_proj.weight.numel()
    return matrices // ffn.down_proj.in_features
