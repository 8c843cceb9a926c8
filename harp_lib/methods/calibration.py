"""What methods share: statistics of the calibration text inside a model, and budgets of key/value
groups.
"""

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager

import torch
from torch import nn
from tqdm import tqdm
from transformers import PreTrainedModel

from harp_lib.models.load import evaluating
from harp_lib.pruning.architecture import decoder_layers
from harp_lib.pruning.layers import num_groups
from harp_lib.pruning.plan import LayerPlan, PruningPlan
from harp_lib.text.perplexity import Tokens, make_batches

Planner = Callable[
    [int, Sequence[int]], PruningPlan
]  # plan(kv_groups, layers): so many in all from these layers


class InputStatistics:
    """Mean, variance (unbiased) and L2 norm of each input channel of a linear map, (C,) float32,
    over all tokens.
    """

    def __init__(self) -> None:
        self.count, self._sum, self._squares = 0, 0.0, 0.0

    def update(self, inputs: torch.Tensor) -> None:
        """Take in ``inputs`` (…, C), of any floating type."""
        values = inputs.flatten(
            0, -2
        ).double()  # (T, C), float64: a large mean swallows no small fluctuations
        self.count += len(values)
        self._sum += values.sum(dim=0)
        self._squares += values.square().sum(dim=0)

    @property
    def mean(self) -> torch.Tensor:
        return (self._sum / self.count).float()

    @property
    def variance(self) -> torch.Tensor:
        return (
            ((self._squares - self._sum.square() / self.count) / (self.count - 1))
            .clamp_min(0)
            .float()
        )

    @property
    def norm(self) -> torch.Tensor:
        return self._squares.sqrt().float()


@contextmanager
def gathering(projections: Mapping[int, nn.Module]) -> Iterator[dict[int, InputStatistics]]:
    """Within the context, statistics of what enters one linear map of each layer; a ValueError if
    not finite.
    """
    statistics = {layer: InputStatistics() for layer in projections}
    with ExitStack() as hooks:
        for layer, projection in projections.items():
            take = statistics[layer].update
            hooks.enter_context(
                projection.register_forward_pre_hook(lambda _, args, take=take: take(args[0]))
            )
        yield statistics
    for layer, seen in statistics.items():
        if not seen.norm.isfinite().all():
            wanted = "try a wider dtype (float32 or bfloat16 instead of float16)"
            raise ValueError(
                f"layer {layer}: activations on the calibration text are not finite; {wanted}"
            )


def input_statistics(
    model: PreTrainedModel, calibration: Tokens, projections: Mapping[int, nn.Module]
) -> dict[int, InputStatistics]:
    """Statistics of what enters one linear map of each layer of a model as it is, dense or
    temporarily pruned.
    """
    with gathering(projections) as statistics:
        LayerStream(model, calibration).entering(max(projections) + 1)
    return statistics


class _Recorder(nn.Module):
    """Stands in for a decoder layer: keeps what it is called with and lets hidden states pass."""

    def forward(self, hidden: torch.Tensor, *args: object, **kwargs: object) -> torch.Tensor:
        self.hidden, self.arguments = hidden, (args, kwargs)
        return hidden


class LayerStream:
    """The hidden states of a text at one layer boundary, tokens × d, moved up through the layers as
    they are then.

    Masks and positions of each layer are recorded once for each shape of a batch: nothing else
    changes them.
    """

    def __init__(self, model: PreTrainedModel, calibration: Tokens) -> None:
        self.model, self.layers, self.batches = (
            model,
            decoder_layers(model),
            make_batches(calibration),
        )
        self._restart()

    @torch.no_grad()
    def _restart(self) -> None:
        decoder, recorders = (
            self.model.get_decoder(),
            nn.ModuleList(_Recorder() for _ in self.layers),
        )
        self._arguments: dict[torch.Size, list[tuple[tuple, dict]]] = {}
        self._boundary, self._hidden = (
            0,
            [],
        )  # the next layer, and what enters it: of each batch (B, N, d)
        decoder.layers = recorders
        try:
            with evaluating(self.model):
                for batch in self.batches:
                    decoder(input_ids=batch.ids.to(self.model.device), use_cache=False)
                    self._arguments.setdefault(
                        batch.ids.shape, [recorder.arguments for recorder in recorders]
                    )
                    self._hidden.append(recorders[0].hidden)
        finally:
            decoder.layers = self.layers

    def fork(self) -> "LayerStream":
        """A stream that goes on from here by itself; this one stays."""
        return copy.copy(self)

    def entering(self, layer: int) -> list[torch.Tensor]:
        """What enters a layer, (B, N, d) of each batch: going up from the last call, or again from
        the embeddings.
        """
        if layer < self._boundary:
            self._restart()
        for below in tqdm(
            range(self._boundary, layer), desc="hidden states", unit="layer", leave=False, delay=10
        ):
            self._hidden = list(self.leaving(below, self._hidden))
            self._boundary = below + 1
        return list(self._hidden)

    @torch.no_grad()
    def leaving(self, layer: int, entering: list[torch.Tensor]) -> Iterator[torch.Tensor]:
        """What ``layer``, as it is now, makes of each batch's hidden states, one batch at a time."""
        with evaluating(self.model):
            for batch, hidden in zip(self.batches, entering, strict=True):
                args, kwargs = self._arguments[batch.ids.shape][layer]
                output = self.layers[layer](hidden, *args, **kwargs)
                yield output[0] if isinstance(output, tuple) else output


def check_budget(kv_groups: int, groups: Sequence[int]) -> None:
    """ValueError if layers that hold so many ``groups`` each do not hold ``kv_groups``."""
    if not 1 <= kv_groups <= sum(groups):
        raise ValueError(f"{kv_groups} key/value groups cannot go: the layers hold {sum(groups)}")


def equal_parts(kv_groups: int, groups: Sequence[int]) -> int:
    """How many groups each layer loses if all lose equally many of the ``groups`` that they hold;
    or a ValueError.
    """
    each, rest = divmod(kv_groups, len(groups))
    if rest or not 1 <= each <= min(groups):
        wanted = f"a multiple of {len(groups)} can, {min(groups) * len(groups)} at most"
        raise ValueError(
            f"{kv_groups} key/value groups cannot go in equal parts from {len(groups)} layers; {wanted}"
        )
    return each


def lowest_per_layer(scores: Mapping[int, torch.Tensor], num_layers: int, method: str) -> Planner:
    """Takes the groups of lowest importance (K,), equally many from each layer."""

    def plan(kv_groups: int, layers: Sequence[int]) -> PruningPlan:
        each = equal_parts(kv_groups, [len(scores[layer]) for layer in layers])
        lost = {layer: LayerPlan(removed_groups=lowest(scores[layer], each)) for layer in layers}
        return PruningPlan(num_layers, lost, method)

    return plan


def lowest(values: torch.Tensor, count: int) -> tuple[int, ...]:
    """Indices of the ``count`` smallest values, rising; of equal values the first go."""
    return tuple(sorted(values.argsort(stable=True)[:count].tolist()))


def by_group(attention: nn.Module, columns: torch.Tensor) -> torch.Tensor:
    """What belongs to the input channels of W_O (H·Dh,), as (K, r·Dh)."""
    return columns.unflatten(-1, (num_groups(attention), -1))
