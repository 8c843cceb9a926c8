"""The variants of a model that notebook 08 times, and models of the paper with random weights."""

import copy
from contextlib import suppress
from typing import NamedTuple

import numpy as np
import psutil
import torch
from transformers import PreTrainedConfig, PreTrainedModel

from harp_lib.accounting import count_groups, paper_configs, parameters, printed_plan
from harp_lib.models.load import random_model
from harp_lib.names import DENSE, HARP
from harp_lib.pruning import remote, swap
from harp_lib.pruning.architecture import check_plan, decoder_layers
from harp_lib.pruning.layers import repeats_values
from harp_lib.pruning.plan import LayerPlan, PruningPlan

TAIL = "harp-tail"
FOLDED = "harp-folded"
THINNED = "thinned"
# Memory of all variants of a model in its weights: groups are sliced out of a copy.
MEMORY_OF_VARIANTS = 1.2


class Variant(NamedTuple):
    """A model that is ready to be timed, and how it was pruned; no plan: dense."""

    model: PreTrainedModel
    plan: PruningPlan | None = None
    fold_output: bool = False
    tail_only: bool = False  # a prefill sends its last position alone through the top layers


def make_variants(model: PreTrainedModel, plan: PruningPlan) -> dict[str, Variant]:
    """The dense model, HARP's plan carried out in three ways, and as many groups taken evenly.

    All share the weights of ``model``: what a variant has of its own are sliced and folded
    projections. Alpha is left out. In a pruned model it is in the weights and takes no time; only
    where it is 0 does the rest of the attention go too, and that it does here. A variant that a
    model cannot have is left out.
    """
    plans = {HARP: plan, TAIL: plan}
    layers = decoder_layers(model)
    if any(
        alpha and repeats_values(layers[layer].self_attn) for layer, alpha in plan.alphas.items()
    ):
        plans[FOLDED] = plan
    thinned = thinned_plan(model.config, plan)
    with suppress(ValueError):  # as of a norm over all heads
        check_plan(model, thinned)
        plans[THINNED] = thinned
    shared = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    variants = {DENSE: Variant(model)}
    for name, variant_plan in plans.items():
        twin = copy.deepcopy(model, dict(shared))
        swap.swap_modules(twin, variant_plan, fold_output=name == FOLDED)
        if name == TAIL:
            # The forward pass of a saved checkpoint; the other variants run every position.
            twin.__class__ = remote.pruned_class(type(twin))
        variants[name] = Variant(twin, variant_plan, name == FOLDED, name == TAIL)
    return variants


def thinned_plan(config: PreTrainedConfig, plan: PruningPlan) -> PruningPlan:
    """The plan that takes as many groups as ``plan``, as evenly as whole groups allow."""
    total, kept = np.array(count_groups(config, plan)).T  # of each layer
    # Groups that are gone from the bottom up to the top of each layer.
    gone = total.cumsum() * (total - kept).sum() // total.sum()
    layers = {}
    for layer, count in enumerate(np.diff(gone, prepend=0).tolist()):
        if count:
            layers[layer] = LayerPlan(removed_groups=tuple(range(count)))
    return PruningPlan(plan.num_layers, layers, THINNED)


def random_shape(
    name: str, num_layers: int, dtype: str, seed: int, narrow: bool = False
) -> tuple[PreTrainedModel, PruningPlan]:
    """A model of the paper with random weights, and HARP's plan of the published alphas.

    No time depends on the weights. It has the first ``num_layers`` of the model's layers. If these
    are not all, HARP prunes the same share of them. A ``narrow`` model has the same layers and
    heads, so that it has the same variants, in almost no memory.
    """
    config = _shape_config(name, num_layers)
    if narrow:
        config.head_dim = 2
        config.hidden_size = 2 * config.num_attention_heads
        config.intermediate_size = 2
    printed = printed_plan(name)
    alphas = [printed.alphas[layer] for layer in sorted(printed.alphas, reverse=True)]
    count = max(1, round(len(alphas) * num_layers / printed.num_layers))
    plan = PruningPlan.value_only(num_layers, alphas[:count])
    return random_model(config, dtype, seed), plan


def _shape_config(name: str, num_layers: int) -> PreTrainedConfig:
    """The config of a model of the paper, cut to its first layers."""
    config = paper_configs()[name]
    config.num_hidden_layers = num_layers
    if getattr(config, "layer_types", None):
        config.layer_types = config.layer_types[:num_layers]
    return config


def why_not_timed(name: str, num_layers: int, dtype: str) -> str | None:
    """Why a random shape cannot be timed on this machine; None if it can.

    Where bfloat16 is emulated, its times are those of the emulation.
    """
    on_gpu = torch.cuda.is_available()
    if not on_gpu and dtype == "bfloat16" and not multiplies_bfloat16():
        return "this processor has no instructions for bfloat16"
    weights = parameters(_shape_config(name, num_layers)) * getattr(torch, dtype).itemsize
    needed = MEMORY_OF_VARIANTS * weights / 2**30
    free = torch.cuda.mem_get_info()[0] if on_gpu else psutil.virtual_memory().available
    free = free / 2**30
    if needed > free:
        return f"it takes {needed:.1f} GiB of memory, and {free:.1f} GiB are free"
    return None


def multiplies_bfloat16() -> bool:
    """Whether the processor has instructions for matrices of bfloat16: AMX, or AVX-512 BF16."""
    capabilities = torch.cpu.get_capabilities()
    return bool(capabilities.get("amx_bf16") or capabilities.get("avx512_bf16"))
