"""Beyond the paper: the rescaling alpha of each layer by least squares, without a search."""

import time
from collections.abc import Iterable

import torch
from torch import nn
from transformers import PreTrainedModel

from harp_lib.methods.alpha_search import AlphaSearch
from harp_lib.methods.calibration import LayerStream, plan_upwards
from harp_lib.pruning.architecture import check_plan, decoder_layers, output_norm
from harp_lib.pruning.layers import LoneAttention
from harp_lib.pruning.plan import LayerPlan, PruningPlan
from harp_lib.text.evaluating import evaluating
from harp_lib.text.perplexity import Tokens


def fit_alphas(model: PreTrainedModel, tokens: Tokens, num_layers: int) -> AlphaSearch:
    r"""Fit alpha of the top layers in closed form.

    With Y what an attention branch adds to the residual stream, and V what it adds when each token
    attends to itself alone, the least squares solution of alpha V ≈ Y is

    .. math:: \alpha = \langle \mathbf{V}, \mathbf{Y} \rangle / \langle \mathbf{V}, \mathbf{V}
              \rangle .

    Layers are fitted from the lowest up, each on the stream of the model as it is pruned so far.

    Parameters
    ----------
    model : PreTrainedModel
        A dense model. It is unchanged afterwards, also after an error.
    tokens : Tensor or sequence
        Calibration text, as in :func:`harp_lib.search_alphas`.
    num_layers : int
        Number of layers to fit, counted from the top.

    Returns
    -------
    AlphaSearch
        The alphas and what the fit took. ``perplexities`` is empty, because none is computed.

    Raises
    ------
    ValueError
        For an empty text, more layers than the model has, or a pruned or unsupported model.
    """
    begin = time.perf_counter()
    if num_layers < 1:
        raise ValueError(f"num_layers is {num_layers}; there has to be a layer, at least")
    num_model_layers = len(decoder_layers(model))
    check_plan(model, PruningPlan.value_only(num_model_layers, [1.0] * num_layers))
    layers = range(num_model_layers - num_layers, num_model_layers)
    alphas = fit_alpha_by_layer(model, LayerStream(model, tokens), layers)
    return AlphaSearch(
        alphas=list(reversed(alphas.values())),  # the top layer first
        perplexities={},
        seconds=time.perf_counter() - begin,
        # To reach the layers, and then two of each: as far as its attention, and pruned.
        layer_passes=num_model_layers - num_layers + 2 * num_layers,
        num_model_layers=num_model_layers,
    )


def fit_alpha_by_layer(
    model: PreTrainedModel, stream: LayerStream, layers: Iterable[int]
) -> dict[int, float]:
    """Alpha of any layers by index, rising (:func:`fit_alphas`).

    ``stream`` is of the calibration text, at or below these layers; it is moved up.
    """

    def decide(layer: int) -> LayerPlan:
        return LayerPlan(alpha=_least_squares(stream, layer))

    return plan_upwards(model, layers, decide).alphas


@torch.no_grad()
def _least_squares(stream: LayerStream, index: int) -> float:
    """Alpha of one layer; zero where its value-only branch is zero."""
    layer = stream.layers[index]
    alone = LoneAttention(index, layer.self_attn)
    norm = output_norm(layer) or nn.Identity()
    product = 0.0
    square = 0.0
    with evaluating(stream.model):
        for entering, attended in stream.passing(index, layer.self_attn):
            value_only, _ = alone(entering)
            value_only = norm(value_only).double()  # (B, N, d)
            attended = norm(attended).double()  # (B, N, d)
            product += (value_only * attended).sum().item()
            square += value_only.square().sum().item()
    return product / square if square else 0.0
