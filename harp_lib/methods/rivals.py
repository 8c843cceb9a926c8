"""What else could stand in place of attention: rivals of the refit, by hooks, for comparison and no more.

Each is a context ``rival(model, stream, layers)`` in which some layers of a model do something else.
"""

import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial

import torch
from torch import nn
from transformers import PreTrainedModel

from harp_lib.methods.calibration import LayerStream
from harp_lib.methods.refit import Moments, with_one
from harp_lib.pruning.architecture import decoder_layers

WINDOW, SINKS = 32, 4  # tokens

Read = Callable[[torch.Tensor], torch.Tensor]


def neighbours(x: torch.Tensor) -> torch.Tensor:
    """Features (B, N, 3d + 1): of the token, of the one before it, and of the first."""
    before = torch.cat([x[:, :1], x[:, :-1]], dim=1)
    return with_one(torch.cat([x, before, x[:, :1].expand_as(x)], dim=-1))


@contextmanager
def mapped(
    model: PreTrainedModel,
    stream: LayerStream,
    layers: Iterable[int],
    read: Read = with_one,
    as_nbl: bool = False,
) -> Iterator[None]:
    """Attention by least squares of full rank, from the lowest layer up on the stream of the model
    as changed so far.

    NBL (LIONS-EPFL, NeurIPS 2025) fits it to the stream *before* the norm, all layers on dense
    activations.
    """
    stream = stream.fork()

    def fitted() -> Iterator[tuple[nn.Module, torch.Tensor]]:
        for index in sorted(layers):
            layer, states = decoder_layers(model)[index], stream.entering(index) if as_nbl else None
            yield layer, _least_squares(stream, index, layer.self_attn, states, read)

    def linear(weight: torch.Tensor) -> Callable:
        return lambda module, args, kwargs, output: (
            read(args[0] if args else kwargs["hidden_states"]) @ weight,
            None,
        )

    with ExitStack() as hooks:
        for layer, weight in list(fitted()) if as_nbl else fitted():
            if as_nbl:  # without the norm
                hooks.enter_context(
                    layer.input_layernorm.register_forward_hook(
                        lambda module, args, output: args[0]
                    )
                )
            hooks.enter_context(
                layer.self_attn.register_forward_hook(linear(weight), with_kwargs=True)
            )
        yield


def _least_squares(
    stream: LayerStream, index: int, module: nn.Module, states: list | None, read: Read
) -> torch.Tensor:
    """The map (features, d) from what a module of a layer is given, or other ``states``, to what it
    puts out.
    """
    moments, others = Moments(read), iter(states or ())

    def look(module: nn.Module, args: tuple, kwargs: dict, output: tuple | torch.Tensor) -> None:
        given = next(others) if states else args[0] if args else kwargs["hidden_states"]
        moments.add(given, output[0] if isinstance(output, tuple) else output)

    with module.register_forward_hook(look, with_kwargs=True):
        deque(stream.leaving(index, stream.entering(index)), maxlen=0)
    return moments.least_squares().to(stream.model.dtype)


@contextmanager
def windowed(model: PreTrainedModel, stream: LayerStream, layers: Iterable[int]) -> Iterator[None]:
    """Each token sees the last ``WINDOW`` tokens and the first ``SINKS`` (StreamingLLM); queries
    and keys stay.
    """

    def narrow(module: nn.Module, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
        hidden = args[0] if args else kwargs["hidden_states"]
        place = torch.arange(hidden.shape[1], device=hidden.device)
        distance = place[:, None] - place  # (N, N)
        seen = (distance >= 0) & ((distance < WINDOW) | (place < SINKS))
        mask = torch.zeros(seen.shape, dtype=hidden.dtype, device=hidden.device)
        return args, kwargs | {
            "attention_mask": mask.masked_fill(~seen, torch.finfo(mask.dtype).min)[None, None]
        }

    with ExitStack() as hooks:
        for index in layers:
            attention = decoder_layers(model)[index].self_attn
            hooks.enter_context(attention.register_forward_pre_hook(narrow, with_kwargs=True))
        yield


@contextmanager
def from_boundary(
    model: PreTrainedModel, stream: LayerStream, layers: Iterable[int]
) -> Iterator[None]:
    """Keys and values of contiguous layers by least squares from the stream below them: SwiftKV in
    closed form.
    """
    layers = sorted(layers)
    stream, weights = stream.fork(), {}
    boundary = [_scaled(states) for states in stream.entering(layers[0])]
    for index in layers:
        attention = decoder_layers(model)[index].self_attn
        for module in (attention.k_proj, attention.v_proj):
            weights[module] = _least_squares(stream, index, module, boundary, with_one)
    states: list[torch.Tensor] = []  # of each batch, in the order in which every layer sees them

    def replaying(weight: torch.Tensor) -> Callable:
        calls = itertools.count()
        return lambda module, args, output: with_one(states[next(calls)]) @ weight

    with ExitStack() as hooks:
        below = decoder_layers(model)[layers[0]]
        hooks.enter_context(
            below.register_forward_pre_hook(lambda _, args: states.append(_scaled(args[0])))
        )
        for module, weight in weights.items():
            hooks.enter_context(module.register_forward_hook(replaying(weight)))
        yield


def _scaled(states: torch.Tensor) -> torch.Tensor:
    """The stream (B, N, d), each token with a root mean square of one."""
    return states * states.float().square().mean(-1, keepdim=True).rsqrt().to(states.dtype)


RIVALS = {
    "nbl": partial(mapped, as_nbl=True),
    "linear": mapped,
    "neighbours": partial(mapped, read=neighbours),
    "windowed": windowed,
    "boundary": from_boundary,
}
"""Contexts ``rival(model, stream, layers)`` by the name of their cells; the stream is at or below
these layers.
"""
