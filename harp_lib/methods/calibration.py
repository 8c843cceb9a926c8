"""What the calibration text does inside a model: statistics of a projection's inputs, and one layer after the other."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch import nn
from tqdm import tqdm
from transformers import PreTrainedModel

from harp_lib.measure.likelihood import Tokens, evaluating, make_batches
from harp_lib.pruning.architecture import decoder_layers


class InputStatistics:
    """Mean, variance and norm of each input channel of a linear map over all tokens, which come in parts.

    Parts are merged as Chan, Golub and LeVeque (1983) do it: from their counts, means and squared deviations. All is
    float32, and counted from the mean of the first part, so that a large mean does not swallow small fluctuations.

    Attributes
    ----------
    count : int
        Tokens so far.
    """

    def __init__(self) -> None:
        self.count = 0

    def update(self, inputs: torch.Tensor) -> None:
        """Take in ``inputs`` (…, C), one token or more, of any floating type."""
        values = inputs.flatten(0, -2).float()  # (T, C)
        if self.count == 0:
            self._origin = values.mean(dim=0)
            self._mean = torch.zeros_like(self._origin)  # from here on counted from the origin
            self._squares = torch.zeros_like(self._origin)  # sum of squared deviations from the mean
        values = values - self._origin
        mean = values.mean(dim=0)
        shift, total = mean - self._mean, self.count + len(values)
        self._squares += (values - mean).square().sum(dim=0) + shift.square() * (self.count * len(values) / total)
        self._mean += shift * (len(values) / total)
        self.count = total

    @property
    def mean(self) -> torch.Tensor:
        """Mean of each channel (C,), float32."""
        return self._origin + self._mean

    @property
    def variance(self) -> torch.Tensor:
        """Unbiased variance of each channel (C,), float32; two tokens at least have to have come."""
        return self._squares / (self.count - 1)

    @property
    def norm(self) -> torch.Tensor:
        """L2 norm of each channel over all tokens (C,), float32."""
        return (self._squares + self.count * self.mean.square()).sqrt()


def _check_finite(layer: int, statistics: InputStatistics) -> None:
    if not statistics.norm.isfinite().all():
        raise ValueError(
            f"layer {layer}: activations on the calibration text are not finite; "
            "try a wider dtype (float32 or bfloat16 instead of float16)"
        )


@torch.no_grad()
def input_statistics(
    model: PreTrainedModel, calibration: Tokens, projections: Mapping[int, nn.Module]
) -> dict[int, InputStatistics]:
    """Statistics of what enters some modules, in one forward pass that ends with the highest layer of them.

    Parameters
    ----------
    model : PreTrainedModel
        As it is, dense or temporarily pruned; unchanged afterwards.
    calibration : Tensor or sequence
        As in :func:`harp_lib.perplexity`.
    projections : mapping of int to nn.Module
        One linear map of each layer, by layer index.

    Returns
    -------
    dict of int to InputStatistics
        On the device of each layer.

    Raises
    ------
    ValueError
        If the text is empty, or activations are not finite (the layer is named).
    """
    statistics = {layer: InputStatistics() for layer in projections}

    def count(layer: int):
        def hook(module: nn.Module, args: tuple) -> None:
            statistics[layer].update(args[0])

        return hook

    batches, layers = make_batches(calibration), decoder_layers(model)[: max(projections) + 1]
    handles = [module.register_forward_pre_hook(count(layer)) for layer, module in projections.items()]
    try:
        with evaluating(model), having_layers(model, layers):
            for batch in tqdm(batches, desc="calibration", unit="batch", leave=False, delay=10):
                model.get_decoder()(input_ids=batch.ids.to(model.device), use_cache=False)
    finally:
        for handle in handles:
            handle.remove()
    for layer, seen in statistics.items():
        _check_finite(layer, seen)
    return statistics


@contextmanager
def having_layers(model: PreTrainedModel, layers: Iterable[nn.Module]) -> Iterator[None]:
    """Within the context, the decoder has these layers instead of its own."""
    decoder = model.get_decoder()
    own = decoder.layers
    decoder.layers = nn.ModuleList(layers)
    try:
        yield
    finally:
        decoder.layers = own


class _Recorder(nn.Module):
    """Stands in for a decoder layer: keeps what it is called with and lets hidden states pass."""

    def forward(self, hidden: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        self.hidden, self.arguments = hidden, (args, kwargs)
        return hidden


class _Enough(Exception):
    """Leaves a forward pass when what follows is not needed."""


class LayerStream:
    """The calibration text at one layer boundary, moved up through a dense model.

    Masks and positions of each layer are recorded once for each shape of a batch: without padding, nothing else
    changes them. Memory holds the hidden states of all tokens at one boundary, tokens × d, besides these masks.

    Parameters
    ----------
    model : PreTrainedModel
        Dense whenever :meth:`entering` is called.
    calibration : Tensor or sequence
        As in :func:`harp_lib.perplexity`.
    """

    def __init__(self, model: PreTrainedModel, calibration: Tokens) -> None:
        self.model, self.layers, self.batches = model, decoder_layers(model), make_batches(calibration)
        self._restart()

    @torch.no_grad()
    def _restart(self) -> None:
        recorders = [_Recorder() for _ in self.layers]
        self._arguments: dict[torch.Size, list[tuple[tuple, dict]]] = {}
        self._frontier: list[tuple[int, torch.Tensor]] = []  # of each batch: next layer, hidden states (B, N, d)
        with evaluating(self.model), having_layers(self.model, recorders):
            for batch in self.batches:
                self.model.get_decoder()(input_ids=batch.ids.to(self.model.device), use_cache=False)
                self._arguments.setdefault(batch.ids.shape, [recorder.arguments for recorder in recorders])
                self._frontier.append((0, recorders[0].hidden))

    @torch.no_grad()
    def entering(self, layer: int) -> list[torch.Tensor]:
        """Hidden states (B, N, d) of each batch as they enter ``layer`` of the dense model.

        Going up continues from the last call, going down starts again from the embeddings.
        """
        if any(boundary > layer for boundary, _ in self._frontier):
            self._restart()
        with evaluating(self.model):
            bar = tqdm(self._frontier, desc="hidden states", unit="batch", leave=False, delay=10)
            for index, (boundary, hidden) in enumerate(bar):
                for below in range(boundary, layer):
                    hidden = self._through(below, index, hidden)
                self._frontier[index] = (layer, hidden)  # as a pair, so that an interrupted call can be repeated
        return [hidden for _, hidden in self._frontier]

    @torch.no_grad()
    def statistics(self, layer: int, projection: nn.Module, entering: list[torch.Tensor]) -> InputStatistics:
        """Statistics of what enters a linear map of ``layer``, which is run as far as there and no further."""
        seen = InputStatistics()

        def take(module: nn.Module, args: tuple) -> None:
            seen.update(args[0])
            raise _Enough

        handle = projection.register_forward_pre_hook(take)
        try:
            with evaluating(self.model):
                for index, hidden in enumerate(entering):
                    with suppress(_Enough):
                        self._through(layer, index, hidden)
        finally:
            handle.remove()
        _check_finite(layer, seen)
        return seen

    @torch.no_grad()
    def leaving(self, layer: int, entering: list[torch.Tensor]) -> Iterator[torch.Tensor]:
        """What ``layer``, as it is now, makes of each batch's hidden states, one batch at a time."""
        with evaluating(self.model):
            for index, hidden in enumerate(entering):
                yield self._through(layer, index, hidden)

    def _through(self, layer: int, index: int, hidden: torch.Tensor) -> torch.Tensor:
        args, kwargs = self._arguments[self.batches[index].ids.shape][layer]
        output = self.layers[layer](hidden, *args, **kwargs)
        return output[0] if isinstance(output, tuple) else output
