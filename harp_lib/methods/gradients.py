"""Gradients of the loss with respect to some weights of a model, in bounded memory."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint
from tqdm import tqdm
from transformers import PreTrainedModel

from harp_lib.measure.likelihood import Batch, evaluating, scale_logits
from harp_lib.pruning.architecture import decoder_layers

TOKENS_PER_PASS = 1024  # of one forward and backward pass through the decoder, unless one sequence is longer
TOKENS_PER_CHUNK = 256  # of one block of logits


def weight_gradients(
    model: PreTrainedModel,
    batches: Sequence[Batch],
    weights: Sequence[nn.Parameter],
    gradient_checkpointing: bool = True,
) -> list[torch.Tensor]:
    r"""Gradients of the mean negative log-likelihood per predicted token.

    .. math:: \frac{\partial L}{\partial W}, \qquad L = -\frac{1}{T} \sum_t \log p(x_t \mid x_{<t})

    T is the number of predicted tokens of all batches, which are gone through in evaluation mode, 1,024 tokens (at
    least one sequence) at a time. Memory is that of the model, the float32 gradients of ``weights``, the activations
    of one layer, the inputs of all layers (layers × 1,024 × d), and the logits of 256 tokens with their gradient, in
    float32. Without checkpointing the activations are those of all layers.

    Parameters
    ----------
    model : PreTrainedModel
        A causal language model. It is as before afterwards, also after an error: weights, their ``requires_grad`` and
        ``grad``, training mode.
    batches : sequence of Batch
        From :func:`harp_lib.measure.likelihood.make_batches`.
    weights : sequence of Parameter
        Parameters of ``model``, each once. No other gets a gradient.
    gradient_checkpointing : bool
        Compute each layer a second time in the backward pass instead of keeping what is in it.

    Returns
    -------
    list of Tensor
        One for each of ``weights``, of its shape and on its device, summed up in float32 whatever the model's dtype.

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
        for part in tqdm(parts, desc="gradients", unit="batch", delay=10, leave=False):
            _backward(model, part)
    predicted = sum(batch.num_scored for batch in batches)
    for weight, gradient in zip(weights, gradients, strict=True):
        gradient /= predicted  # only now: in float16, shares of the mean would vanish
        if not gradient.isfinite().all():
            raise ValueError(
                f"the gradient of {names[id(weight)]} is not finite in {weight.dtype}; try float32 or bfloat16"
            )
    return gradients


def _backward(model: PreTrainedModel, batch: Batch) -> None:
    """Send the summed negative log-likelihood of a batch back through the model, the head first, in chunks."""
    head = model.get_output_embeddings()
    if head.weight.is_meta:
        raise ValueError("the output head is offloaded; load the model with lm_head on a device")
    hidden = model.get_decoder()(input_ids=batch.ids.to(model.device), use_cache=False).last_hidden_state  # (B, N, d)
    predicting = hidden[:, -batch.scored - 1 : -1].flatten(0, 1)  # (B·scored, d)
    targets = batch.ids[:, -batch.scored :].flatten().to(head.weight.device)
    chunks = [chunk.detach().requires_grad_() for chunk in predicting.split(TOKENS_PER_CHUNK)]
    for chunk, target in zip(chunks, targets.split(TOKENS_PER_CHUNK), strict=True):
        _chunk_nll(model, head, chunk, target).backward()
    if predicting.requires_grad:  # where only the head is asked for, nothing below is
        predicting.backward(torch.cat([chunk.grad for chunk in chunks]))


def _chunk_nll(model: PreTrainedModel, head: nn.Linear, hidden: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    logits = F.linear(hidden.to(head.weight.device), head.weight, head.bias)  # (T, V)
    return F.cross_entropy(scale_logits(model.config, logits).float(), targets, reduction="sum")


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
