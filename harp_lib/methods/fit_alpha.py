"""Beyond the paper: the rescaling alpha of each layer by least squares, without a search."""

import time
from collections.abc import Iterable
from contextlib import ExitStack

from torch import nn
from tqdm import tqdm
from transformers import PreTrainedModel

from harp_lib.methods.alpha_search import AlphaSearch
from harp_lib.methods.calibration import LayerStream
from harp_lib.pruning.architecture import (
    check_plan,
    decoder_layers,
    hidden_states_of,
    output_norm,
)
from harp_lib.pruning.layers import LoneAttention
from harp_lib.pruning.plan import PruningPlan
from harp_lib.pruning.surgery import temporarily_value_only
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
    alphas: dict[int, float] = {}
    with ExitStack() as pruned_so_far:
        for index in tqdm(sorted(layers), desc="alpha", unit="layer", leave=False, delay=10):
            branches = _Branches(index, stream.layers[index])
            attention = stream.layers[index].self_attn
            with attention.register_forward_hook(branches.take, with_kwargs=True):
                stream.run_attention(index)
            alphas[index] = branches.alpha
            pruned_so_far.enter_context(temporarily_value_only(model, {index: alphas[index]}))
    return alphas


class _Branches:
    """Sums over tokens of a layer's attention branch with queries and keys, and without."""

    def __init__(self, index: int, layer: nn.Module) -> None:
        self.alone = LoneAttention(index, layer.self_attn)
        norm = output_norm(layer) or nn.Identity()
        self.norm = norm.forward  # without its hooks, which are for the layer's own run
        self.product = 0.0
        self.square = 0.0

    def take(self, attention: nn.Module, args: tuple, kwargs: dict, output: tuple) -> None:
        """Add what an attention was given and what it put out, as a forward hook."""
        value_only, _ = self.alone(hidden_states_of(args, kwargs))
        value_only = self.norm(value_only).double()  # (B, N, d)
        attended = self.norm(output[0]).double()  # (B, N, d)
        self.product += (value_only * attended).sum().item()
        self.square += value_only.square().sum().item()

    @property
    def alpha(self) -> float:
        """The least squares solution; zero for a branch that is zero."""
        return self.product / self.square if self.square else 0.0
