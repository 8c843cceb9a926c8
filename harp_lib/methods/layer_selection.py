"""Which layers to prune: the ablation of the paper's Section "Exploring Layer Selection"."""

from collections.abc import Sequence

import torch
from torch import nn
from tqdm import tqdm
from transformers import PreTrainedModel

from harp_lib.measure.models import evaluating
from harp_lib.measure.text import Tokens, make_batches
from harp_lib.methods.llm_pruner import weight_gradients
from harp_lib.pruning.architecture import branch_exit, check_plan, decoder_layers
from harp_lib.pruning.plan import PruningPlan
from harp_lib.theory import block_influence

LAYER_SELECTIONS = ("top", "bottom", "hessian", "similarity", "block-influence")
SCORED = LAYER_SELECTIONS[2:]


def select_layers(strategy: str, model: PreTrainedModel, calibration: Tokens | None, count: int) -> list[int]:
    """The ``count`` layers that a strategy holds to be least important, as rising indices from the bottom.

    Parameters
    ----------
    strategy : {"top", "bottom", "hessian", "similarity", "block-influence"}
        The highest or lowest layers, or those with the lowest :func:`layer_scores`; of equal scores the higher layer
        is taken. The paper compares the first four.
    model : PreTrainedModel
        Dense; unchanged afterwards.
    calibration : Tensor or sequence, optional
        As in :func:`harp_lib.perplexity`. The paper takes WikiText. Not read, and may be None, for top and bottom.
    count : int
        How many layers, from 1 to all.
    """
    if strategy not in LAYER_SELECTIONS:
        raise ValueError(f"unknown strategy {strategy!r}; choose from {', '.join(LAYER_SELECTIONS)}")
    total = len(decoder_layers(model))
    if not 1 <= count <= total:
        raise ValueError(f"{count} layers cannot be selected; {type(model).__name__} has {total}, choose 1 … {total}")
    if strategy == "top":
        return list(range(total - count, total))
    if strategy == "bottom":
        return list(range(count))
    return lowest_layers(layer_scores(strategy, model, calibration), count)


def lowest_layers(scores: Sequence[float], count: int) -> list[int]:
    """The ``count`` layers with the lowest scores, from the bottom; of equal scores the higher layer is taken."""
    return sorted(sorted(range(len(scores)), key=lambda layer: (scores[layer], -layer))[:count])


def layer_scores(strategy: str, model: PreTrainedModel, calibration: Tokens | None) -> list[float]:
    r"""Importance of each layer, low is unimportant (paper, appendix "Layer Selection with Heuristic Metric").

    ``hessian``, of first order despite its name: the squared effect of a matrix' scale on the loss L, the mean over all
    predicted tokens. In memory it needs what :func:`.weight_gradients` does:

    .. math:: I(l) = \sum_{s \in \{q, k, v\}}
              \Bigl( \sum_{ij} \frac{\partial L}{\partial W^s_{ij}} W^s_{ij} \Bigr)^2

    ``similarity``, with X the residual stream that enters the layer and the attention branch as it is added to it
    (after the norm that some families have there); **E** is the mean over all tokens that the model reads:

    .. math:: S(l) = 1 - \mathbf{E} \cos\bigl(X, X + \mathrm{Attention}(\mathrm{LayerNorm}(X))\bigr)

    ``block-influence``, the same over the whole layer, attention and FFN: :func:`harp_lib.theory.block_influence`.

    Parameters and errors are those of :func:`select_layers`; a model that is pruned or not supported is a ValueError.
    """
    if strategy not in SCORED:
        raise ValueError(f"no scores for {strategy!r}; choose from {', '.join(SCORED)}")
    if calibration is None:
        raise ValueError(f"{strategy!r} is measured on a text; give calibration tokens")
    total = len(decoder_layers(model))
    check_plan(model, PruningPlan.value_only(total, [1.0] * total))
    if strategy != "hessian":
        return _turns(model, calibration, strategy)
    of_layers = weight_gradients(model, calibration, range(total), ("q_proj", "k_proj", "v_proj")).values()
    return [sum((w.float() * gradient).sum().item() ** 2 for w, gradient in pairs) for pairs in of_layers]


@torch.no_grad()
def _turns(model: PreTrainedModel, calibration: Tokens, strategy: str) -> list[float]:
    """How far attention, or the layer, turns each token, in one forward pass that keeps one layer's input."""
    layers, batches, handles = decoder_layers(model), make_batches(calibration), []
    totals, tokens = [0.0] * len(layers), sum(batch.ids.numel() for batch in batches)
    multiplier = getattr(model.config, "residual_multiplier", 1.0)  # Granite has one
    entering: list[torch.Tensor] = []

    def enter(module: nn.Module, args: tuple) -> None:
        entering[:] = [args[0]]  # (B, N, d)

    def leave(layer: int):
        def hook(module: nn.Module, args: tuple, output: torch.Tensor | tuple) -> None:
            after = (output[0] if isinstance(output, tuple) else output).float()
            before = entering[0].to(after.device).float()  # from another device, where a model is spread over several
            if strategy == "similarity":
                after = before + multiplier * after
            totals[layer] += before.shape[:-1].numel() * block_influence(before, after)

        return hook

    try:
        for index, layer in enumerate(layers):
            # The last layer's output is seen here as it leaves the layer: before the final norm.
            leaving = branch_exit(layer) if strategy == "similarity" else layer
            handles.append(layer.register_forward_pre_hook(enter))
            handles.append(leaving.register_forward_hook(leave(index)))
        with evaluating(model):
            for batch in tqdm(batches, desc=strategy, unit="batch", delay=5, leave=False):
                model.get_decoder()(input_ids=batch.ids.to(model.device), use_cache=False)
    finally:
        for handle in handles:
            handle.remove()
    return [total / tokens for total in totals]
