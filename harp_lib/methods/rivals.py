"""Rivals of the refit: what else could stand in place of attention, by hooks, for comparison only.

Each but NBL is a context ``rival(model, stream, layers)`` within which some layers of a model do
something else. ``stream`` is a :class:`.LayerStream` of the calibration text, at or below them; it
is moved up.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle
from transformers import PreTrainedModel

from harp_lib.methods.calibration import LayerStream
from harp_lib.methods.refit import Moments, with_one
from harp_lib.pruning.architecture import decoder_layers, hidden_states_of

SLIDING_WINDOW = 32  # latest tokens that a token sees
SINKS = 4  # first tokens, which every token sees

# Makes features (B, N, features) of hidden states (B, N, d).
Features = Callable[[torch.Tensor], torch.Tensor]


def neighbours(x: torch.Tensor) -> torch.Tensor:
    """Features (B, N, 3d + 1): of the token, of the one before it, and of the first."""
    first = x[:, :1]  # (B, 1, d)
    before = torch.cat([first, x[:, :-1]], dim=1)
    return with_one(torch.cat([x, before, first.expand_as(x)], dim=-1))


@contextmanager
def linear(
    model: PreTrainedModel,
    stream: LayerStream,
    layers: Iterable[int],
    features: Features = with_one,
) -> Iterator[None]:
    """Attention becomes a linear map of full rank, fitted by least squares.

    Layers are fitted from the lowest up, on the stream of the model as it is changed so far.
    """
    with ExitStack() as hooks:
        for index in sorted(layers):
            attention = decoder_layers(model)[index].self_attn
            weight = _least_squares(stream, index, attention, features)
            hooks.enter_context(_replaced(attention, weight, features))
        yield


def nbl_maps(
    model: PreTrainedModel, stream: LayerStream, layers: Iterable[int]
) -> dict[int, torch.Tensor]:
    """The linear maps (d + 1, d) of :func:`nbl`, by layer."""
    weights = {}
    for index in sorted(layers):
        attention = decoder_layers(model)[index].self_attn
        states = stream.entering(index)
        weights[index] = _least_squares(stream, index, attention, with_one, states)
    return weights


@contextmanager
def nbl(model: PreTrainedModel, weights: Mapping[int, torch.Tensor]) -> Iterator[None]:
    """Attention becomes a linear map as in NBL (LIONS-EPFL, NeurIPS 2025).

    NBL fits the map (:func:`nbl_maps`) to the stream *before* the norm, and all layers on dense
    activations.
    """
    with ExitStack() as hooks:
        for index, weight in weights.items():
            layer = decoder_layers(model)[index]
            norm = layer.input_layernorm
            hooks.enter_context(norm.register_forward_hook(lambda norm, args, output: args[0]))
            hooks.enter_context(_replaced(layer.self_attn, weight, with_one))
        yield


def _replaced(attention: nn.Module, weight: torch.Tensor, features: Features) -> RemovableHandle:
    """Hook by which an attention gives a linear map (features, d) of its features."""

    def instead(module: nn.Module, args: tuple, kwargs: dict, output: tuple) -> tuple:
        return features(hidden_states_of(args, kwargs)) @ weight, None

    return attention.register_forward_hook(instead, with_kwargs=True)


def _least_squares(
    stream: LayerStream,
    index: int,
    module: nn.Module,
    features: Features,
    states: list[torch.Tensor] | None = None,
) -> torch.Tensor:
    """The best map (features, d) from the input of a module of layer ``index`` to its output.

    If ``states`` (B, N, d) of each batch are given, the map is fitted from them instead of from
    the module's input.
    """
    moments = Moments(features)
    for batch, (entering, leaving) in enumerate(stream.passing(index, module)):
        if states is not None:
            entering = states[batch]
        moments.add(entering, leaving)
    return moments.least_squares().to(stream.model.dtype)


@contextmanager
def windowed(model: PreTrainedModel, stream: LayerStream, layers: Iterable[int]) -> Iterator[None]:
    """Each token sees the last ``SLIDING_WINDOW`` tokens and the first ``SINKS`` (StreamingLLM).

    Queries and keys stay.
    """

    def narrow(module: nn.Module, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
        hidden = hidden_states_of(args, kwargs)
        position = torch.arange(hidden.shape[1], device=hidden.device)  # (N,)
        distance = position[:, None] - position  # (N, N)
        visible = (distance >= 0) & ((distance < SLIDING_WINDOW) | (position < SINKS))
        mask = torch.zeros(visible.shape, dtype=hidden.dtype, device=hidden.device)
        mask = mask.masked_fill(~visible, torch.finfo(mask.dtype).min)
        return args, kwargs | {"attention_mask": mask[None, None]}  # (1, 1, N, N)

    with ExitStack() as hooks:
        for index in layers:
            attention = decoder_layers(model)[index].self_attn
            hooks.enter_context(attention.register_forward_pre_hook(narrow, with_kwargs=True))
        yield


@contextmanager
def from_boundary(
    model: PreTrainedModel, stream: LayerStream, layers: Iterable[int]
) -> Iterator[None]:
    """Keys and values of contiguous layers become linear maps of the stream below all of them.

    This is SwiftKV in closed form: the maps are fitted by least squares.
    """
    layers = sorted(layers)
    fitted_from = [_scaled(states) for states in stream.entering(layers[0])]
    weights = {}
    for index in layers:
        attention = decoder_layers(model)[index].self_attn
        for module in (attention.k_proj, attention.v_proj):
            weights[module] = _least_squares(stream, index, module, with_one, fitted_from)

    boundary_states: list[torch.Tensor] = []  # of each batch that the changed model is run on

    def keep_boundary(module: nn.Module, args: tuple) -> None:
        boundary_states.append(_scaled(args[0]))

    def projecting(weight: torch.Tensor) -> Callable[..., torch.Tensor]:
        batch_numbers = itertools.count()  # every projection sees the batches in the same order

        def project(module: nn.Module, args: tuple, output: torch.Tensor) -> torch.Tensor:
            return with_one(boundary_states[next(batch_numbers)]) @ weight

        return project

    with ExitStack() as hooks:
        lowest_layer = decoder_layers(model)[layers[0]]
        hooks.enter_context(lowest_layer.register_forward_pre_hook(keep_boundary))
        for module, weight in weights.items():
            hooks.enter_context(module.register_forward_hook(projecting(weight)))
        yield


def _scaled(states: torch.Tensor) -> torch.Tensor:
    """The stream (B, N, d), each token with a root mean square of one."""
    return states * states.float().square().mean(-1, keepdim=True).rsqrt().to(states.dtype)


RIVALS = {
    "linear": linear,
    "neighbours": partial(linear, features=neighbours),
    "windowed": windowed,
    "boundary": from_boundary,
}
"""The rivals by the name of their cells; :func:`nbl` is compared in more layers than these."""
