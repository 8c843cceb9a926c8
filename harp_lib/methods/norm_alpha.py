"""The paper's reason for rescaling, as a method: the alpha that keeps the norm of the stream."""

from collections.abc import Iterable

from transformers import PreTrainedModel

from harp_lib.methods.calibration import LayerStream, plan_upwards
from harp_lib.pruning.architecture import branch_exit
from harp_lib.pruning.plan import LayerPlan
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
    dense_stream = stream.fork()
    dense_norms = {}  # ‖H + A‖² of each layer
    for layer in layers:
        length, product, branch = _inner_products(dense_stream, layer)
        dense_norms[layer] = length + 2 * product + branch

    def decide(layer: int) -> LayerPlan:
        with temporarily_value_only(model, {layer: 1.0}):
            length, product, branch = _inner_products(stream, layer)
        growth = dense_norms[layer] - length
        return LayerPlan(alpha=norm_keeping_alpha(growth, product, branch))

    return plan_upwards(model, layers, decide).alphas


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


def _inner_products(stream: LayerStream, index: int) -> tuple[float, float, float]:
    """‖H‖², ⟨H, B⟩ and ‖B‖² of what enters a layer and its attention branch, but first tokens."""
    multiplier = getattr(stream.model.config, "residual_multiplier", 1.0)  # Granite has one
    length = 0.0
    product = 0.0
    square = 0.0
    end = branch_exit(stream.layers[index])
    for entering, (_, branch) in zip(
        stream.entering(index), stream.passing(index, end), strict=True
    ):
        branch = multiplier * branch[:, 1:].double()  # (B, N - 1, d)
        entering = entering[:, 1:].to(branch.device).double()  # (B, N - 1, d)
        length += entering.square().sum().item()
        product += (entering * branch).sum().item()
        square += branch.square().sum().item()
    return length, product, square
