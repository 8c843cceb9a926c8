"""LLM-Pruner: first-order Taylor importance of key/value groups (Ma et al., 2023), and the
gradients it takes.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint
from tqdm import tqdm
from transformers import PreTrainedModel

from harp_lib.methods.calibration import Planner, by_group, lowest_per_layer
from harp_lib.models.load import evaluating
from harp_lib.pruning.architecture import decoder_layers
from harp_lib.pruning.layers import ATTENTION_PARTS
from harp_lib.text.perplexity import Tokens, make_batches

TOKENS_PER_PASS = 1024  # of one forward and backward pass, unless one sequence is longer


def planner(model: PreTrainedModel, calibration: Tokens, layers: Sequence[int]) -> Planner:
    """Measure :func:`group_importance` once; the least important groups go, equally many from each
    layer.
    """
    return lowest_per_layer(
        group_importance(model, calibration, layers), len(decoder_layers(model)), "llm-pruner"
    )


def group_importance(
    model: PreTrainedModel, calibration: Tokens, layers: Iterable[int]
) -> dict[int, torch.Tensor]:
    r"""First-order Taylor importance (K,) of key/value groups, by layer (paper, "Baselines"; Ma et
    al., 2023).

    .. math:: I_g = \sum_{w \in g} \left| w \, \frac{\partial L}{\partial w} \right|

    The sum goes over the weights that a group couples: its rows of W_Q (those of all its query
    heads), W_K and W_V, and its columns of W_O; absolute values are taken after texts are summed
    over. It is the first-order term of LLM-Pruner's code (``param_first``, aggregated by sum),
    which calibrates on BookCorpus (10 samples of 64 tokens) and for LLaMA 3 adds up query heads by
    ``view(4, 1024).sum(0)``: key/value head k gets the query heads k, k + 8, k + 16 and k + 24
    instead of those four that read it.
    """
    importance = {}
    for layer, pairs in weight_gradients(model, calibration, layers, ATTENTION_PARTS).items():
        attention = decoder_layers(model)[layer].self_attn
        q, k, v, o = ((weight.float() * gradient).abs() for weight, gradient in pairs)
        channels = (q.sum(1), k.sum(1), v.sum(1), o.sum(0))  # (H·Dh,), (K·Dh,), (K·Dh,), (H·Dh,)
        importance[layer] = sum(
            by_group(attention, of_channel).sum(1) for of_channel in channels
        ).cpu()  # (K,)
    return importance


@contextmanager
def checkpointed(layers: Sequence[torch.nn.Module]) -> Iterator[None]:
    """Within the context each layer keeps only its input, and is computed again in the backward
    pass.

    What transformers has for this works in training mode only, which brings dropout. There is no
    dropout here, so no random state has to be kept.
    """
    # accelerate gives a layer a forward of its own, which has to come back.
    replaced = [(layer, vars(layer).get("forward")) for layer in layers]
    try:
        for layer in layers:
            layer.forward = partial(
                checkpoint, layer.forward, use_reentrant=False, preserve_rng_state=False
            )
        yield
    finally:
        for layer, forward in replaced:
            if forward is None:
                vars(layer).pop("forward", None)  # the method of its class is seen again
            else:
                layer.forward = forward


def weight_gradients(
    model: PreTrainedModel, calibration: Tokens, layers: Iterable[int], parts: Sequence[str]
) -> dict[int, list[tuple[torch.Tensor, torch.Tensor]]]:
    r"""Weights of some projections of each layer's attention, each with its gradient of the mean
    loss.

    .. math:: \frac{\partial L}{\partial W}, \qquad L = -\frac{1}{T} \sum_t \log p(x_t \mid x_{<t})

    T is the number of predicted tokens; gradients are float32 whatever the model's dtype, and
    finite, or a ValueError. Memory is these gradients twice (5.4 GB for LLaMA3.1-8B, and 2.7 GB in
    bfloat16), the inputs of all layers (layers × 1,024 × d), one layer's backward pass, and four
    times the logits in float32 (2.1 GB for 128,256 words).
    """
    found, batches = decoder_layers(model), make_batches(calibration)
    weights = {
        layer: [getattr(found[layer].self_attn, part).weight for part in parts] for layer in layers
    }
    wanted = [weight for of_layer in weights.values() for weight in of_layer]
    sums = {weight: torch.zeros_like(weight, dtype=torch.float32) for weight in wanted}
    with torch.enable_grad(), evaluating(model), checkpointed(found):
        for batch in tqdm(batches, desc="gradients", unit="batch", delay=10, leave=False):
            for ids in batch.ids.split(max(1, TOKENS_PER_PASS // batch.ids.shape[1])):
                logits = model(
                    ids.to(model.device), use_cache=False, logits_to_keep=batch.scored + 1
                ).logits
                targets = ids[:, -batch.scored :].flatten().to(logits.device)
                nll = F.cross_entropy(
                    logits[:, :-1].flatten(0, 1).float(), targets, reduction="sum"
                )
                for total, gradient in zip(
                    sums.values(), torch.autograd.grad(nll, wanted), strict=True
                ):
                    total.add_(gradient)
    predicted, pairs = sum(batch.num_scored for batch in batches), {}
    for layer, of_layer in weights.items():
        # Divided only now: in float16, shares of the mean would vanish.
        pairs[layer] = [(weight.detach(), sums[weight].div_(predicted)) for weight in of_layer]
        if not all(gradient.isfinite().all() for _, gradient in pairs[layer]):
            raise ValueError(
                f"layer {layer}: gradients are not finite in {model.dtype}; try float32 or bfloat16"
            )
    return pairs
