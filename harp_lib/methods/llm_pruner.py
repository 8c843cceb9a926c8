"""LLM-Pruner: first-order Taylor importance of key/value groups (Ma et al., 2023), and the gradients it takes."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint
from tqdm import tqdm
from transformers import PreTrainedModel

from harp_lib.measure.models import evaluating
from harp_lib.measure.text import Batch, Tokens, make_batches
from harp_lib.methods.calibration import by_group, lowest_per_layer
from harp_lib.pruning.architecture import decoder_layers
from harp_lib.pruning.layers import ATTENTION_PARTS
from harp_lib.pruning.plan import PruningPlan

TOKENS_PER_PASS = 1024  # of one forward and backward pass, unless one sequence is longer


def planner(
    model: PreTrainedModel, calibration: Tokens, layers: Sequence[int], gradient_checkpointing: bool = True
) -> Callable[[int, Sequence[int]], PruningPlan]:
    """Measure :func:`group_importance` once; plans for any budget and layer range are made of it.

    The callable ``plan(kv_groups, layers)`` removes that many groups, equally many from each layer, the least important
    first.
    """
    total = len(decoder_layers(model))
    importance = group_importance(model, calibration, layers, gradient_checkpointing)

    def plan(kv_groups: int, layers: Sequence[int]) -> PruningPlan:
        return lowest_per_layer({layer: importance[layer] for layer in layers}, kv_groups, total, "llm-pruner")

    return plan


def group_importance(
    model: PreTrainedModel, calibration: Tokens, layers: Sequence[int], gradient_checkpointing: bool = True
) -> dict[int, torch.Tensor]:
    r"""First-order Taylor importance of key/value groups (paper, "Baselines"; Ma et al., 2023).

    .. math:: I_g = \sum_{w \in g} \left| w \, \frac{\partial L}{\partial w} \right|

    The sum goes over the weights that a group couples: its rows of the query projection (those of all its query
    heads), of the key and the value projection, and its columns of the output projection. Biases are not counted. L
    is the mean negative log-likelihood per predicted token, and its gradient that of the whole calibration: absolute
    values are taken after texts are summed over, not before. It is the first-order term of LLM-Pruner's code
    (``param_first``, aggregated by sum), with two differences. For LLaMA 3 that code adds up query heads by
    ``view(4, 1024).sum(0)``, which gives key/value head k the query heads k, k + 8, k + 16 and k + 24 instead of those
    four that read it. And it calibrates on BookCorpus (10 samples of 64 tokens), where here all methods read one text.

    Parameters
    ----------
    model, calibration
        As in :func:`harp_lib.make_plan`.
    layers : sequence of int
        Layers to measure, counted from the bottom.
    gradient_checkpointing : bool
        Compute each layer twice, for less memory; the importance is the same.

    Returns
    -------
    dict of int to Tensor (K,)
        Importance of the groups of each layer, float32 on the CPU, in nats per predicted token.
    """
    weights = {layer: projection_weights(model, layer, ATTENTION_PARTS) for layer in layers}
    flat = [weight for of_layer in weights.values() for weight in of_layer]
    gradients = iter(weight_gradients(model, make_batches(calibration), flat, gradient_checkpointing))
    importance = {}
    for layer, of_layer in weights.items():
        attention = decoder_layers(model)[layer].self_attn
        q, k, v, o = ((weight.detach().float() * next(gradients)).abs() for weight in of_layer)
        channels = (q.sum(1), k.sum(1), v.sum(1), o.sum(0))  # (H·Dh,), (K·Dh,), (K·Dh,), (H·Dh,)
        importance[layer] = sum(by_group(attention, of_channel).sum(1) for of_channel in channels).cpu()  # (K,)
    return importance


def weight_gradients(
    model: PreTrainedModel,
    batches: Sequence[Batch],
    weights: Sequence[nn.Parameter],
    gradient_checkpointing: bool = True,
) -> list[torch.Tensor]:
    r"""Gradients of the mean negative log-likelihood per predicted token, summed up in float32 whatever the dtype.

    .. math:: \frac{\partial L}{\partial W}, \qquad L = -\frac{1}{T} \sum_t \log p(x_t \mid x_{<t})

    T is the number of predicted tokens of all batches, which are gone through in evaluation mode, 1,024 tokens (at
    least one sequence) at a time. Beside the model and the gradients of ``weights``, memory is the inputs of all layers
    (layers × 1,024 × d), the activations of one, and four times the logits in float32: about 2.1 GB of these for the
    128,256 words of LLaMA3.1-8B, whose gradients of all attention weights are 5.4 GB. Without checkpointing the
    activations are those of all layers.

    Parameters
    ----------
    model : PreTrainedModel
        As before afterwards, also after an error: weights, their ``requires_grad`` and ``grad``, training mode.
    batches : sequence of Batch
        From ``make_batches``.
    weights : sequence of Parameter
        Parameters of ``model``, each once. No other gets a gradient.
    gradient_checkpointing : bool
        Compute each layer a second time in the backward pass instead of keeping what is in it.

    Raises
    ------
    ValueError
        For a weight that is not the model's, is offloaded or quantized, or whose gradient is not finite.
    """
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    for weight in weights:
        if id(weight) not in names:
            raise ValueError(
                f"a weight of shape {tuple(weight.shape)} is not a parameter of this {type(model).__name__}"
            )
        if weight.is_meta or not weight.is_floating_point():
            raise ValueError(
                f"{names[id(weight)]} is offloaded or quantized and gets no gradient; "
                "load the model in float32 or bfloat16 without offloading"
            )
    gradients = [torch.zeros_like(weight, dtype=torch.float32, requires_grad=False) for weight in weights]
    parts = [
        Batch(ids, batch.scored)
        for batch in batches
        for ids in batch.ids.split(max(1, TOKENS_PER_PASS // batch.ids.shape[1]))
    ]
    recomputing = checkpointed_layers(model) if gradient_checkpointing else nullcontext()
    with torch.enable_grad(), evaluating(model), _accumulating(model, weights, gradients), recomputing:
        for ids, scored in tqdm(parts, desc="gradients", unit="batch", delay=10, leave=False):
            logits = model(ids.to(model.device), use_cache=False, logits_to_keep=scored + 1).logits[:, :-1]  # (B, ·, V)
            targets = ids[:, -scored:].flatten().to(logits.device)
            F.cross_entropy(logits.flatten(0, 1).float(), targets, reduction="sum").backward()
    predicted = sum(batch.num_scored for batch in batches)
    for weight, gradient in zip(weights, gradients, strict=True):
        gradient /= predicted  # only now: in float16, shares of the mean would vanish
        if not gradient.isfinite().all():
            raise ValueError(
                f"the gradient of {names[id(weight)]} is not finite in {weight.dtype}; try float32 or bfloat16"
            )
    return gradients


@contextmanager
def _accumulating(
    model: PreTrainedModel, weights: Sequence[nn.Parameter], gradients: Sequence[torch.Tensor]
) -> Iterator[None]:
    """Within the context only ``weights`` require a gradient, which is added to ``gradients`` and freed at once."""

    def add_to(gradient: torch.Tensor):
        def hook(weight: nn.Parameter) -> None:
            gradient.add_(weight.grad)
            weight.grad = None

        return hook

    before = [(parameter, parameter.requires_grad, parameter.grad) for parameter in model.parameters()]
    handles = []
    try:
        for parameter, _, _ in before:
            parameter.requires_grad_(False)
            parameter.grad = None
        for weight, gradient in zip(weights, gradients, strict=True):
            weight.requires_grad_(True)
            handles.append(weight.register_post_accumulate_grad_hook(add_to(gradient)))
        yield
    finally:
        for handle in handles:
            handle.remove()
        for parameter, required, gradient in before:
            parameter.requires_grad_(required)
            parameter.grad = gradient


@contextmanager
def checkpointed_layers(model: PreTrainedModel) -> Iterator[None]:
    """Within the context each decoder layer keeps its input only, and is computed again in the backward pass.

    What transformers has for this works in training mode only, which brings dropout. A layer below every weight that
    requires a gradient is computed once, as without.
    """
    layers = decoder_layers(model)
    own = [vars(layer).get("forward") for layer in layers]  # accelerate sets one where it spreads a model over devices
    try:
        for layer in layers:
            # There is no dropout in evaluation mode: no random state has to be kept.
            layer.forward = partial(checkpoint, layer.forward, use_reentrant=False, preserve_rng_state=False)
        yield
    finally:
        for layer, forward in zip(layers, own, strict=True):
            vars(layer).pop("forward", None)
            if forward is not None:
                layer.forward = forward


def projection_weights(model: PreTrainedModel, layer: int, names: Sequence[str]) -> list[nn.Parameter]:
    """Weights of some projections of a layer's attention, as ``q_proj``; a ValueError where one does not exist."""
    attention = getattr(decoder_layers(model)[layer], "self_attn", None)
    projections = [getattr(attention, name, None) for name in names]
    if not all(isinstance(projection, nn.Linear) for projection in projections):
        raise ValueError(
            f"{type(model).__name__} is not supported: layer {layer} has no self_attn with separate {', '.join(names)} "
            "(fused projections, or no attention)"
        )
    return [projection.weight for projection in projections]
