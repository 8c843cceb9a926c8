"""LLM-Pruner: first-order Taylor importance of key/value groups (Ma et al., 2023)."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint
from tqdm import tqdm
from transformers import PreTrainedModel

from harp_lib.methods.calibration import Planner, by_group, lowest_per_layer
from harp_lib.pruning.architecture import check_own_modules, decoder_layers
from harp_lib.pruning.layers import ATTENTION_PARTS
from harp_lib.text.evaluating import evaluating
from harp_lib.text.perplexity import Batch, Tokens, make_batches

# Tokens of one forward and backward pass, unless a single sequence is longer.
TOKENS_PER_PASS = 1024


def planner(model: PreTrainedModel, calibration: Tokens, layers: Sequence[int]) -> Planner:
    """Score the groups of ``layers`` by :func:`group_importance`.

    The least important groups are removed, equally many from each layer.
    """
    importance = group_importance(model, calibration, layers)
    return lowest_per_layer(importance, len(decoder_layers(model)), "llm-pruner")


def group_importance(
    model: PreTrainedModel, calibration: Tokens, layers: Iterable[int]
) -> dict[int, torch.Tensor]:
    r"""First-order Taylor importance (K,) of key/value groups, by layer ("Baselines"; Ma et al.).

    .. math:: I_g = \sum_{w \in g} \left| w \, \frac{\partial L}{\partial w} \right|

    The sum goes over the weights that a group couples: its rows of W_Q (those of all its query
    heads), W_K and W_V, and its columns of W_O. Absolute values are taken after the gradients of
    all texts are summed. This is the first-order term of LLM-Pruner's code (``param_first``,
    aggregated by sum).

    LLM-Pruner calibrates on BookCorpus (10 samples of 64 tokens). For LLaMA 3 its code adds up
    query heads by ``view(4, 1024).sum(0)``, so key/value head k gets the query heads k, k + 8,
    k + 16 and k + 24 instead of the four that read it. We add up the four that read it.
    """
    gradients = weight_gradients(model, calibration, layers, ATTENTION_PARTS)
    importance = {}
    for layer, pairs in gradients.items():
        attention = decoder_layers(model)[layer].self_attn
        q, k, v, o = [(weight.float() * gradient).abs() for weight, gradient in pairs]
        q_scores = by_group(attention, q.sum(dim=1)).sum(dim=1)  # (H·Dh,) → (K,)
        k_scores = by_group(attention, k.sum(dim=1)).sum(dim=1)  # (K·Dh,) → (K,)
        v_scores = by_group(attention, v.sum(dim=1)).sum(dim=1)  # (K·Dh,) → (K,)
        o_scores = by_group(attention, o.sum(dim=0)).sum(dim=1)  # (H·Dh,) → (K,)
        importance[layer] = (q_scores + k_scores + v_scores + o_scores).cpu()
    return importance


@contextmanager
def checkpointed(layers: Sequence[nn.Module]) -> Iterator[None]:
    """Context in which each layer keeps only its input and is run again in the backward pass.

    The gradient checkpointing of transformers works in training mode only, which brings dropout.
    There is no dropout here, so no random state has to be kept.
    """
    # accelerate gives a layer a forward of its own, which has to be restored.
    own_forwards = [(layer, vars(layer).get("forward")) for layer in layers]
    try:
        for layer in layers:
            layer.forward = partial(
                checkpoint, layer.forward, use_reentrant=False, preserve_rng_state=False
            )
        yield
    finally:
        for layer, forward in own_forwards:
            if forward is None:
                vars(layer).pop("forward", None)  # uncovers the method of the layer's class
            else:
                layer.forward = forward


@torch.inference_mode(False)
def weight_gradients(
    model: PreTrainedModel, calibration: Tokens, layers: Iterable[int], parts: Sequence[str]
) -> dict[int, list[tuple[torch.Tensor, torch.Tensor]]]:
    r"""Some projections of each layer's attention, each with its gradient of the mean loss.

    .. math:: \frac{\partial L}{\partial W}, \qquad L = -\frac{1}{T} \sum_t \log p(x_t \mid x_{<t})

    T is the number of predicted tokens. Memory is twice these gradients (5.4 GB for LLaMA3.1-8B,
    and 2.7 GB in bfloat16), the inputs of all layers (layers × 1,024 × d), one layer's backward
    pass, and four times the logits in float32 (2.1 GB for 128,256 words).

    Parameters
    ----------
    model : PreTrainedModel
        Unchanged afterwards.
    calibration : Tensor or sequence
        The text, as in :func:`harp_lib.perplexity`.
    layers : iterable of int
        Layer indices.
    parts : sequence of str
        Names of projections, such as ``q_proj``.

    Returns
    -------
    dict
        By layer, a pair (weight, gradient) for each of ``parts``. Gradients are float32 whatever
        the model's dtype.

    Raises
    ------
    ValueError
        For an empty text, a model with a module at two places or that was made in inference mode,
        or if a gradient is not finite.
    """
    check_own_modules(model)
    if any(parameter.is_inference() for parameter in model.parameters()):
        raise ValueError(
            f"this {type(model).__name__} was made under torch.inference_mode, so that it has no "
            "gradients: load it outside of that, or take a copy there (copy.deepcopy)"
        )
    batches = make_batches(model, calibration)
    num_predicted_tokens = sum(batch.num_scored for batch in batches)
    weights = {}
    with ExitStack() as undo:
        for layer in layers:
            attention = decoder_layers(model)[layer].self_attn
            linears = [getattr(attention, part) for part in parts]
            weights[layer] = [_weight_with_gradient(linear, undo) for linear in linears]
        all_weights = [weight for layer_weights in weights.values() for weight in layer_weights]
        sums = _summed_gradients(model, batches, all_weights)
    pairs = {}
    for layer, layer_weights in weights.items():
        pairs[layer] = []
        for weight in layer_weights:
            # Divided only now: in float16, shares of the mean would vanish.
            gradient = sums[weight].div_(num_predicted_tokens)
            pairs[layer].append((weight.detach(), gradient))
        if not all(gradient.isfinite().all() for _, gradient in pairs[layer]):
            raise ValueError(
                f"layer {layer}: gradients are not finite in {model.dtype}; try float32 or bfloat16"
            )
    return pairs


def _weight_with_gradient(linear: nn.Linear, undo: ExitStack) -> nn.Parameter:
    """A parameter that takes the place of the weight of ``linear`` until ``undo`` is closed.

    It holds the same numbers. That weight may be frozen, or that of another linear map as well.
    """
    undo.callback(setattr, linear, "weight", linear.weight)
    linear.weight = nn.Parameter(linear.weight.detach())
    return linear.weight


def _summed_gradients(
    model: PreTrainedModel, batches: Sequence[Batch], weights: Sequence[torch.Tensor]
) -> dict[torch.Tensor, torch.Tensor]:
    """Gradient of the loss summed over all predicted tokens, float32, by weight."""
    sums = {weight: torch.zeros_like(weight, dtype=torch.float32) for weight in weights}
    with torch.enable_grad(), evaluating(model), checkpointed(decoder_layers(model)):
        for batch in tqdm(batches, desc="gradients", unit="batch", delay=10, leave=False):
            sequences_per_pass = max(1, TOKENS_PER_PASS // batch.ids.shape[1])
            for ids in batch.ids.split(sequences_per_pass):
                nll = _nll(model, ids, batch.scored)
                # Not kept in a variable, which would hold these gradients through the next pass.
                for weight, gradient in zip(
                    weights, torch.autograd.grad(nll, weights), strict=True
                ):
                    sums[weight].add_(gradient)
    return sums


def _nll(model: PreTrainedModel, ids: torch.Tensor, scored: int) -> torch.Tensor:
    """Summed negative log-likelihood in nats of the last ``scored`` tokens of ``ids`` (B, N)."""
    # The token before the scored ones predicts the first of them.
    logits = model(ids.to(model.device), use_cache=False, logits_to_keep=scored + 1).logits
    predictions = logits[:, :-1].flatten(0, 1).float()  # (B·scored, V)
    targets = ids[:, -scored:].flatten().to(logits.device)  # (B·scored,)
    return F.cross_entropy(predictions, targets, reduction="sum")
