"""What else could take the place of attention in some layers: rivals of :func:`harp_lib.refit_values` in notebook 09.

Each is a context within which a dense model is changed. They run in transformers, for comparison, and no more.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import count

import torch
from torch import nn
from transformers import PreTrainedModel

from harp_lib.methods.calibration import LayerStream
from harp_lib.methods.refit import Moments, with_one
from harp_lib.pruning.architecture import decoder_layers

WINDOW, SINKS = 32, 4  # tokens

Read = Callable[[torch.Tensor], torch.Tensor]


class LinearAttention(nn.Module):
    """An affine map of what enters, in place of an attention."""

    def __init__(self, weight: torch.Tensor, read: Read) -> None:
        super().__init__()
        self.weight, self.read = nn.Parameter(weight, requires_grad=False), read

    def forward(self, hidden_states: torch.Tensor, **_: object) -> tuple[torch.Tensor, None]:
        """(B, N, d) to (B, N, d)."""
        return self.read(hidden_states) @ self.weight, None


def neighbours(x: torch.Tensor) -> torch.Tensor:
    """Features (B, N, 3d + 1): of the token, of the one before it, and of the first."""
    before = torch.cat([x[:, :1], x[:, :-1]], dim=1)
    return with_one(torch.cat([x, before, x[:, :1].expand_as(x)], dim=-1))


@contextmanager
def mapped(
    model: PreTrainedModel, stream: LayerStream, layers: Iterable[int], read: Read = with_one, as_nbl: bool = False
) -> Iterator[None]:
    """Attention by least squares of full rank, from the lowest layer up on the stream of the model as changed so far.

    ``as_nbl``: as NBL (LIONS-EPFL, NeurIPS 2025) has it: from the stream *before* the norm, all layers from dense
    activations.
    """
    stream, weights = stream.fork(), {}
    with ExitStack() as undo:
        for index in sorted(layers):
            layer, moments = decoder_layers(model)[index], Moments(read)
            _observe(stream, index, layer.self_attn, moments, stream.entering(index) if as_nbl else None)
            weights[layer] = moments.least_squares().to(model.dtype)
            if not as_nbl:
                _replace(undo, layer, "self_attn", LinearAttention(weights[layer], read))
        for layer, weight in weights.items() if as_nbl else ():
            _replace(undo, layer, "self_attn", LinearAttention(weight, read))
            _replace(undo, layer, "input_layernorm", nn.Identity())
        yield


def _observe(
    stream: LayerStream, index: int, module: nn.Module, moments: Moments, states: Iterable[torch.Tensor] | None = None
) -> None:
    """Let ``moments`` take in what a module of a layer makes of what it is given; or of other ``states`` instead."""
    others = states and iter(states)

    def look(module: nn.Module, args: tuple, kwargs: dict, output: tuple | torch.Tensor) -> None:
        given = next(others) if others else args[0] if args else kwargs["hidden_states"]
        moments.add(given, output[0] if isinstance(output, tuple) else output)

    hook = module.register_forward_hook(look, with_kwargs=True)
    deque(stream.leaving(index, stream.entering(index)), maxlen=0)
    hook.remove()


def _replace(undo: ExitStack, layer: nn.Module, name: str, module: nn.Module) -> None:
    undo.callback(setattr, layer, name, getattr(layer, name))
    setattr(layer, name, module)


@contextmanager
def windowed(model: PreTrainedModel, stream: LayerStream, layers: Iterable[int]) -> Iterator[None]:
    """Each token sees the last ``WINDOW`` tokens and the first ``SINKS`` (StreamingLLM); queries and keys stay."""

    def narrow(module: nn.Module, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
        hidden = args[0] if args else kwargs["hidden_states"]
        place = torch.arange(hidden.shape[1], device=hidden.device)
        distance = place[:, None] - place  # (N, N)
        seen = (distance >= 0) & ((distance < WINDOW) | (place < SINKS))
        mask = torch.zeros(seen.shape, dtype=hidden.dtype, device=hidden.device)
        return args, kwargs | {"attention_mask": mask.masked_fill(~seen, torch.finfo(mask.dtype).min)[None, None]}

    with ExitStack() as undo:
        for index in layers:
            hook = decoder_layers(model)[index].self_attn.register_forward_pre_hook(narrow, with_kwargs=True)
            undo.callback(hook.remove)
        yield


@contextmanager
def from_boundary(model: PreTrainedModel, stream: LayerStream, layers: Iterable[int]) -> Iterator[None]:
    """Keys and values of contiguous layers by least squares from the stream below them; queries stay.

    SwiftKV in closed form: the cache stays, but a prompt need not enter these layers.
    """
    layers = sorted(layers)
    stream, weights = stream.fork(), {}
    boundary = [_scaled(states) for states in stream.entering(layers[0])]
    for index in layers:
        attention = decoder_layers(model)[index].self_attn
        for module in (attention.k_proj, attention.v_proj):
            _observe(stream, index, module, moments := Moments(), boundary)
            weights[module] = moments.least_squares().to(model.dtype)
    states: list[torch.Tensor] = []  # of each batch, in the order in which every layer sees them
    with ExitStack() as undo:
        keep = decoder_layers(model)[layers[0]].register_forward_pre_hook(lambda _, args: states.append(args[0]))
        undo.callback(keep.remove)
        for module, weight in weights.items():
            undo.callback(module.register_forward_hook(_replaying(states, weight)).remove)
        yield


def _replaying(states: list[torch.Tensor], weight: torch.Tensor) -> Callable:
    """A hook that puts out a linear map of the states, one after the other."""
    calls = count()
    return lambda module, args, output: with_one(_scaled(states[next(calls)])) @ weight


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
"""Contexts ``rival(model, stream, layers)`` by the name of their cells; the stream is at or below these layers."""
