"""The paper's reason for rescaling, as a method: the alpha that keeps the norm of the stream."""

from collections.abc import Iterable
from contextlib import ExitStack

import torch
from torch import nn
from tqdm import tqdm
from transformers import PreTrainedModel

from harp_lib.methods.calibration import LayerStream
from harp_lib.pruning.architecture import branch_exit, first_of
from harp_lib.pruning.surgery import temporarily_value_only


def norm_alpha_by_layer(
    model: PreTrainedModel, stream: LayerStream, layers: Iterable[int]
) -> dict[int, float]:
    r"""Alpha with which the residual stream after attention is as long as in the dense model.

    .. math:: \lVert \mathbf{H}' + \alpha \mathbf{B}' \rVert_F = \lVert \mathbf{H} + \mathbf{A}
              \rVert_F

    H and A are the dense model's stream and attention branch. H' is the stream of the model as it
    is pruned so far, and B' what the layer adds to it when each token attends to itself alone.
    Layers are fitted from the lowest up. The first token of each text is left out, because its
    stream is far longer than others, and nothing that attention does to it is lost.

    Parameters
    ----------
    model : PreTrainedModel
        A dense model. It is unchanged afterwards, also after an error.
    stream : LayerStream
        The calibration text, at or below these layers; it is moved up.
    layers : iterable of int
        Indices of the layers.

    Returns
    -------
    dict
        Alpha by layer, rising (:func:`norm_keeping_alpha`).
    """
    layers = sorted(layers)
    multiplier = getattr(model.config, "residual_multiplier", 1.0)  # Granite has one
    dense_stream = stream.fork()
    dense_norms = {}  # ‖H + A‖² of each layer
    for index in layers:
        sums = _Sums(multiplier)
        with sums.of(stream.layers[index]):
            dense_stream.entering(index + 1)
        dense_norms[index] = sums.stream + 2 * sums.product + sums.branch
    alphas: dict[int, float] = {}
    with ExitStack() as pruned_so_far:
        for index in tqdm(layers, desc="alpha", unit="layer", leave=False, delay=10):
            sums = _Sums(multiplier)
            with temporarily_value_only(model, {index: 1.0}), sums.of(stream.layers[index]):
                stream.run_attention(index)
            growth = dense_norms[index] - sums.stream
            alphas[index] = norm_keeping_alpha(growth, sums.product, sums.branch)
            pruned_so_far.enter_context(temporarily_value_only(model, {index: alphas[index]}))
    return alphas


def norm_keeping_alpha(growth: float, product: float, branch: float) -> float:
    r"""The alpha with which a value-only branch makes the stream as long as attention does.

    .. math:: \lVert \mathbf{H} + \alpha \mathbf{B} \rVert_F = \lVert \mathbf{H} + \mathbf{A}
              \rVert_F

    Parameters
    ----------
    growth : float
        By how much :math:`\lVert \mathbf{H} + \mathbf{A} \rVert_F^2` is more than
        :math:`\lVert \mathbf{H} \rVert_F^2`.
    product : float
        :math:`\langle \mathbf{H}, \mathbf{B} \rangle`.
    branch : float
        :math:`\lVert \mathbf{B} \rVert_F^2`.

    Returns
    -------
    float
        Not negative. Where two alphas solve the equation, it is the larger one; where none does,
        the one that comes nearest. A branch that is zero has alpha zero.
    """
    if branch == 0:
        return 0.0
    # ‖B‖² α² + 2 ⟨H, B⟩ α = growth
    nearest = -product / branch
    discriminant = nearest**2 + growth / branch
    return max(0.0, nearest + max(0.0, discriminant) ** 0.5)


class _Sums:
    """Inner products of the stream that enters a layer and its attention branch, over tokens."""

    def __init__(self, multiplier: float) -> None:
        self.multiplier = multiplier  # of the branch, where it is added to the stream
        self.stream = 0.0  # ‖H‖²
        self.product = 0.0  # ⟨H, B⟩
        self.branch = 0.0  # ‖B‖²

    def of(self, layer: nn.Module) -> ExitStack:
        """Context in which the sums are taken as the layer runs."""
        hooks = ExitStack()
        hooks.enter_context(layer.register_forward_pre_hook(self._enter))
        hooks.enter_context(branch_exit(layer).register_forward_hook(self._add))
        return hooks

    def _enter(self, layer: nn.Module, args: tuple) -> None:
        self._entering = args[0][:, 1:].double()  # (B, N - 1, d)

    def _add(self, module: nn.Module, args: tuple, output: torch.Tensor | tuple) -> None:
        branch = self.multiplier * first_of(output)[:, 1:].double()  # (B, N - 1, d)
        self.stream += self._entering.square().sum().item()
        self.product += (self._entering * branch).sum().item()
        self.branch += branch.square().sum().item()
