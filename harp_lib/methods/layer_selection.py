"""Which layers to prune: the ablation of the paper's Section "Exploring Layer Selection"."""

from collections.abc import Sequence
from contextlib import ExitStack

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

SCORED = ("hessian", "similarity")
"""The strategies that look at the model; the paper's others take the highest or the lowest layers."""


def lowest_layers(scores: Sequence[float], count: int) -> list[int]:
    """The ``count`` layers with the lowest scores, from the bottom; of equal scores the higher layer is taken."""
    return sorted(sorted(range(len(scores)), key=lambda layer: (scores[layer], -layer))[:count])


def layer_scores(strategy: str, model: PreTrainedModel, calibration: Tokens) -> list[float]:
    r"""Importance of each layer, low is unimportant (paper, appendix "Layer Selection with Heuristic Metric").

    ``hessian``, of first order despite its name: the squared effect of a matrix' scale on the loss L, the mean over all
    predicted tokens. In memory it needs what :func:`.weight_gradients` does:

    .. math:: I(l) = \sum_{s \in \{q, k, v\}}
              \Bigl( \sum_{ij} \frac{\partial L}{\partial W^s_{ij}} W^s_{ij} \Bigr)^2

    ``similarity``, with X the residual stream that enters the layer and the attention branch as it is added to it
    (after the norm that some families have there); **E** is the mean over all tokens that the model reads:

    .. math:: S(l) = 1 - \mathbf{E} \cos\bigl(X, X + \mathrm{Attention}(\mathrm{LayerNorm}(X))\bigr)

    ``model`` is dense, and unchanged afterwards; ``calibration`` is as in :func:`harp_lib.perplexity`. A model that is
    pruned or not supported is a ValueError.
    """
    if strategy not in SCORED:
        raise ValueError(f"no scores for {strategy!r}; choose from {', '.join(SCORED)}")
    total = len(decoder_layers(model))
    check_plan(model, PruningPlan.value_only(total, [1.0] * total))
    if strategy == "similarity":
        return _turns(model, calibration)
    of_layers = weight_gradients(model, calibration, range(total), ("q_proj", "k_proj", "v_proj")).values()
    return [sum((w.float() * gradient).sum().item() ** 2 for w, gradient in pairs) for pairs in of_layers]


@torch.no_grad()
def _turns(model: PreTrainedModel, calibration: Tokens) -> list[float]:
    """How far attention turns each token, in one forward pass that keeps one layer's input."""
    layers, batches = decoder_layers(model), make_batches(calibration)
    totals, tokens = [0.0] * len(layers), sum(batch.ids.numel() for batch in batches)
    multiplier = getattr(model.config, "residual_multiplier", 1.0)  # Granite has one
    entering: list[torch.Tensor] = []

    def enter(layer: nn.Module, args: tuple) -> None:
        entering[:] = [args[0]]  # (B, N, d)

    def leave(layer: int):
        def hook(module: nn.Module, args: tuple, output: torch.Tensor | tuple) -> None:
            branch = (output[0] if isinstance(output, tuple) else output).float()
            before = entering[0].to(branch.device).float()  # from another device, where a model is spread over several
            totals[layer] += before.shape[:-1].numel() * block_influence(before, before + multiplier * branch)

        return hook

    with ExitStack() as hooks, evaluating(model):
        for index, layer in enumerate(layers):
            hooks.enter_context(layer.register_forward_pre_hook(enter))
            hooks.enter_context(branch_exit(layer).register_forward_hook(leave(index)))
        for batch in tqdm(batches, desc="similarity", unit="batch", delay=5, leave=False):
            model.get_decoder()(input_ids=batch.ids.to(model.device), use_cache=False)
    return [total / tokens for total in totals]
