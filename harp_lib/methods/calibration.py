"""What methods share: statistics of the calibration text inside a model, and group budgets."""

import copy
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from typing import Any
from weakref import WeakSet

import torch
from torch import nn
from tqdm import tqdm
from transformers import PreTrainedModel

from harp_lib.pruning.architecture import (
    check_own_modules,
    decoder_layers,
    few_tokens,
    first_of,
    hidden_states_of,
)
from harp_lib.pruning.layers import num_groups
from harp_lib.pruning.plan import LayerPlan, PruningPlan
from harp_lib.pruning.surgery import temporarily_pruned
from harp_lib.text.evaluating import evaluating
from harp_lib.text.head import agree_to_rounding
from harp_lib.text.tokens import Tokens, make_batches, read_ids

# plan(kv_groups, layers) removes so many key/value groups from these layers, counted together.
Planner = Callable[[int, Sequence[int]], PruningPlan]


class InputStatistics:
    """Mean, unbiased variance and L2 norm over all tokens of each input channel of a linear map.

    Each is a tensor (C,), float32. Sums are float64, so that a large mean swallows no small
    fluctuations.
    """

    def __init__(self, layer: int) -> None:
        self.layer = layer  # whose linear map it is
        self.count = 0
        self._sum = 0.0
        self._squares = 0.0

    def update(self, inputs: torch.Tensor) -> None:
        """Take in ``inputs`` (…, C), of any floating type."""
        values = inputs.flatten(0, -2).double()  # (T, C)
        self.count += len(values)
        self._sum += values.sum(dim=0)  # (C,)
        self._squares += values.square().sum(dim=0)  # (C,)

    def check_finite(self) -> None:
        """Raise a ValueError if an input was infinite or not a number."""
        if not self.norm.isfinite().all():
            raise ValueError(
                f"layer {self.layer}: activations on the calibration text are not finite; "
                "try a wider dtype (float32 or bfloat16 instead of float16)"
            )

    @property
    def mean(self) -> torch.Tensor:
        return (self._sum / self.count).float()

    @property
    def variance(self) -> torch.Tensor:
        deviations = self._squares - self._sum.square() / self.count
        return (deviations / (self.count - 1)).clamp_min(0).float()

    @property
    def norm(self) -> torch.Tensor:
        return self._squares.sqrt().float()


def input_statistics(
    model: PreTrainedModel, calibration: Tokens, projections: Mapping[int, nn.Module]
) -> dict[int, InputStatistics]:
    """Statistics of the inputs of one linear map in each layer, by layer index.

    The model is run as it is, dense or temporarily pruned. A ValueError is raised if inputs are not
    finite.
    """
    stream = LayerStream(model, calibration)
    statistics = {layer: InputStatistics(layer) for layer in projections}

    def gather(layer: int, module: nn.Module, args: tuple) -> None:
        statistics[layer].update(args[0])

    with ExitStack() as hooks:
        for layer, projection in projections.items():
            hooks.enter_context(projection.register_forward_pre_hook(partial(gather, layer)))
        stream.entering(max(projections) + 1)
    for inputs in statistics.values():
        inputs.check_finite()
    return statistics


# Models whose layers were found to give what the decoder computes.
_streamable: WeakSet[PreTrainedModel] = WeakSet()


class _Recorder(nn.Module):
    """Stands in for a decoder layer: records its arguments and returns the hidden states."""

    def forward(self, hidden: torch.Tensor, *args: object, **kwargs: object) -> torch.Tensor:
        self.hidden = hidden
        self.arguments = (args, kwargs)
        return hidden


class _Passed(Exception):
    """Raised in a layer after one of its modules, as nobody needs the rest."""


class LayerStream:
    """The hidden states of a text at one layer boundary, moved up through the layers.

    Memory holds one boundary only, tokens × d. The layers are run as they are at that time, so a
    caller may prune a layer before the stream passes it. Masks and positions for each layer are
    recorded once for each shape of a batch, because nothing else changes them. A family whose
    layers are run in another way is a ValueError, and so is a model with a module at two places.
    ``seconds`` is what the way up has taken.
    """

    def __init__(self, model: PreTrainedModel, calibration: Tokens) -> None:
        check_own_modules(model)
        self.model = model
        self.layers = decoder_layers(model)
        self.batches = make_batches(model, calibration)
        if model not in _streamable:
            self._check_layers()
            _streamable.add(model)
        self._restart()

    def _restart(self) -> None:
        """Go back to the embeddings, and record the arguments of each layer."""
        begin = time.perf_counter()
        self._boundary = 0  # index of the next layer
        self._hidden: list[torch.Tensor] = []  # what enters it: (B, N, d) of each batch
        self._arguments: dict[torch.Size, list[tuple[tuple, dict]]] = {}  # of each layer, by shape
        for batch in self.batches:
            hidden, arguments = self._recorded(read_ids(self.model, batch))
            self._hidden.append(hidden)
            self._arguments.setdefault(batch.ids.shape, arguments)
        self.seconds = time.perf_counter() - begin

    @torch.no_grad()
    def _recorded(self, ids: torch.Tensor) -> tuple[torch.Tensor, list[tuple[tuple, dict]]]:
        """What enters the lowest layer (B, N, d), and the arguments of each, for ids (B, N)."""
        decoder = self.model.get_decoder()
        recorders = nn.ModuleList(_Recorder() for _ in self.layers)
        decoder.layers = recorders
        try:
            with evaluating(self.model):
                decoder(input_ids=ids, use_cache=False)
        finally:
            decoder.layers = self.layers
        return recorders[0].hidden, [recorder.arguments for recorder in recorders]

    @torch.no_grad()
    def _check_layers(self) -> None:
        """Raise a ValueError unless the recorded arguments give what the decoder computes.

        Three tokens are run both ways.
        """
        leaving_the_top = []

        def keep(module: nn.Module, args: tuple, output: torch.Tensor | tuple) -> None:
            leaving_the_top.append(first_of(output))

        ids = few_tokens(self.model)
        with evaluating(self.model):
            with self.layers[-1].register_forward_hook(keep):
                self.model.get_decoder()(input_ids=ids, use_cache=False)
            try:
                hidden, arguments = self._recorded(ids)  # (1, 3, d)
                for layer, (args, kwargs) in zip(self.layers, arguments, strict=True):
                    hidden = first_of(layer(hidden, *args, **kwargs))
                agrees = agree_to_rounding(hidden, leaving_the_top[0])
            except torch.OutOfMemoryError:
                raise
            except (AttributeError, TypeError, IndexError, RuntimeError):
                agrees = False
        if not agrees:
            raise ValueError(
                f"{type(self.model).__name__} is not supported: its layers take more from the "
                "layers below than hidden states, so they cannot be run one after another"
            )

    def fork(self) -> "LayerStream":
        """A second stream at the same boundary; moving one leaves the other where it is."""
        return copy.copy(self)

    def entering(self, layer: int) -> list[torch.Tensor]:
        """Hidden states that enter a layer, (B, N, d) of each batch.

        The stream moves up from its boundary, or starts again at the embeddings if it is above
        ``layer`` already. ``len(layers)`` gives what leaves the top layer.
        """
        if layer < self._boundary:
            self._restart()
        begin = time.perf_counter()
        layers_below = range(self._boundary, layer)
        for below in tqdm(layers_below, desc="hidden states", unit="layer", leave=False, delay=10):
            self._hidden = list(self.leaving(below, self._hidden))
            self._boundary = below + 1
        self.seconds += time.perf_counter() - begin
        return list(self._hidden)

    @torch.no_grad()
    def leaving(self, layer: int, entering: list[torch.Tensor]) -> Iterator[torch.Tensor]:
        """Hidden states (B, N, d) that leave a layer as it is now, one batch after the other."""
        with evaluating(self.model):
            for batch, hidden in zip(self.batches, entering, strict=True):
                args, kwargs = self._arguments[batch.ids.shape][layer]
                yield first_of(self.layers[layer](hidden, *args, **kwargs))

    @torch.no_grad()
    def passing(self, layer: int, module: nn.Module) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """What a module of a layer is given and puts out, (B, N, …) each, batch by batch.

        The layer is left after the module, and the stream stays below it.
        """
        passed = None

        def leave(module: nn.Module, args: tuple, kwargs: dict, output: Any) -> None:
            nonlocal passed
            passed = hidden_states_of(args, kwargs), first_of(output)
            raise _Passed

        for batch, hidden in zip(self.batches, self.entering(layer), strict=True):
            passed = None  # not the last batch's, if the layer does not come to the module
            args, kwargs = self._arguments[batch.ids.shape][layer]
            leaving = module.register_forward_hook(leave, with_kwargs=True)
            with evaluating(self.model), leaving, suppress(_Passed):
                self.layers[layer](hidden, *args, **kwargs)
            yield passed


def plan_upwards(
    model: PreTrainedModel,
    layers: Iterable[int],
    decide: Callable[[int], LayerPlan],
    weights: Mapping[int, Mapping[str, torch.Tensor]] | None = None,
) -> PruningPlan:
    """Plan for layers from the lowest up, each above layers that are pruned as they were planned.

    Parameters
    ----------
    model : PreTrainedModel
        Unchanged afterwards, also after an error.
    layers : iterable of int
        Indices of the layers.
    decide : callable
        The plan of a layer, by index.
    weights : dict, optional
        Refitted weights by layer (:func:`harp_lib.apply_plan`), to which ``decide`` adds.
    """
    num_layers = len(decoder_layers(model))
    layer_plans = {}
    with ExitStack() as pruned_so_far:
        for layer in tqdm(sorted(layers), desc="plan", unit="layer", leave=False, delay=10):
            layer_plans[layer] = decide(layer)
            this_layer = PruningPlan(num_layers, {layer: layer_plans[layer]})
            new_weights = {layer: weights[layer]} if weights else None
            pruned_so_far.enter_context(temporarily_pruned(model, this_layer, weights=new_weights))
    return PruningPlan(num_layers, layer_plans)


def check_budget(kv_groups: int, groups: Sequence[int]) -> None:
    """Raise a ValueError unless layers with so many ``groups`` each can lose ``kv_groups``."""
    if not 1 <= kv_groups <= sum(groups):
        raise ValueError(f"{kv_groups} key/value groups cannot go: the layers hold {sum(groups)}")


def equal_parts(kv_groups: int, groups: Sequence[int]) -> int:
    """Number of groups that each layer loses if all layers lose equally many.

    ``groups`` are the numbers of groups that the layers hold. A ValueError names the budgets that
    can be met if ``kv_groups`` cannot.
    """
    per_layer, rest = divmod(kv_groups, len(groups))
    if rest or not 1 <= per_layer <= min(groups):
        largest = min(groups) * len(groups)
        raise ValueError(
            f"{kv_groups} key/value groups cannot go in equal parts from {len(groups)} layers; "
            f"a multiple of {len(groups)} can, {largest} at most"
        )
    return per_layer


def lowest_per_layer(scores: Mapping[int, torch.Tensor], num_layers: int, method: str) -> Planner:
    """Planner that removes the groups of lowest importance, equally many from each layer.

    ``scores`` holds the importance (K,) of the groups by layer index; ``num_layers`` is the number
    of layers in the model.
    """

    def plan(kv_groups: int, layers: Sequence[int]) -> PruningPlan:
        per_layer = equal_parts(kv_groups, [len(scores[layer]) for layer in layers])
        layer_plans = {}
        for layer in layers:
            removed_groups = lowest(scores[layer], per_layer)
            layer_plans[layer] = LayerPlan(removed_groups=removed_groups)
        return PruningPlan(num_layers, layer_plans, method)

    return plan


def lowest(values: torch.Tensor, count: int) -> tuple[int, ...]:
    """Indices of the ``count`` smallest values, rising; of equal values the first are taken."""
    smallest = values.argsort(stable=True)[:count]
    return tuple(sorted(smallest.tolist()))


def by_group(attention: nn.Module, columns: torch.Tensor) -> torch.Tensor:
    """Reshape values of channels in head order, such as W_O's inputs (H·Dh,), to (K, r·Dh)."""
    return columns.unflatten(-1, (num_groups(attention), -1))
