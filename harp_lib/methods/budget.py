"""How many key/value groups go, and where: budgets that can be met, and the groups of lowest importance."""

import operator
from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import nn
from transformers import PreTrainedModel

from harp_lib.pruning.architecture import decoder_layers
from harp_lib.pruning.plan import LayerPlan, PruningPlan
from harp_lib.pruning.slicing import num_groups

Scores = Mapping[int, torch.Tensor]  # layer index → importance of its key/value groups (K,)


def check_layers(model: PreTrainedModel, layers: Iterable[int] | None) -> list[int]:
    """The layers of a range, rising; None means all. A ValueError names a layer that the model has not."""
    total = len(decoder_layers(model))
    if layers is not None and not isinstance(layers, Iterable):
        raise ValueError(f"layers is {layers!r}; it has to be indices, as range(12, 30)")
    chosen = sorted({as_index(layer, "layers") for layer in (range(total) if layers is None else layers)})
    if not chosen:
        raise ValueError("layers is empty; name at least one layer, or none for all")
    for layer in chosen:
        if not 0 <= layer < total:
            raise ValueError(f"layer {layer} is not in a model of {total} layers (0 … {total - 1})")
    return chosen


def as_index(value: int, name: str) -> int:
    """An integer of any kind but bool, as Python's; a ValueError names the argument."""
    try:
        if isinstance(value, bool):
            raise TypeError
        return operator.index(value)
    except TypeError:
        raise ValueError(f"{name} has to be integers; got {value!r}") from None


def lowest_per_layer(scores: Scores, kv_groups: int, num_layers: int, method: str) -> PruningPlan:
    """Remove the least important groups, equally many in each layer of ``scores``.

    Raises
    ------
    ValueError
        If the layers do not hold so many groups, or they cannot go in equal parts; the nearest budget is named.
    """
    each = equal_parts(kv_groups, [len(values) for values in scores.values()])
    plans = {layer: LayerPlan(removed_groups=lowest(values, each)) for layer, values in scores.items()}
    return PruningPlan(num_layers, plans, method)


def equal_parts(kv_groups: int, groups: Sequence[int]) -> int:
    """How many groups each layer loses if all lose equally many; ``groups`` is what each layer holds.

    Raises
    ------
    ValueError
        As :func:`lowest_per_layer`.
    """
    each, rest = divmod(kv_groups, len(groups))
    largest = min(groups)
    if rest or not 1 <= each <= largest:
        nearest = sorted({min(max(count, 1), largest) * len(groups) for count in (each, each + (rest > 0))})
        raise ValueError(
            f"{kv_groups} key/value groups cannot go in equal parts from {len(groups)} layers; "
            f"the nearest that can: {' or '.join(map(str, nearest))}"
        )
    return each


def lowest(values: torch.Tensor, count: int) -> tuple[int, ...]:
    """Indices of the ``count`` smallest values, rising; of equal values the first go."""
    return tuple(sorted(values.argsort(stable=True)[:count].tolist()))


def check_budget(kv_groups: int, available: int) -> None:
    """ValueError if the layers do not hold ``kv_groups`` key/value groups."""
    if not 1 <= kv_groups <= available:
        raise ValueError(
            f"{kv_groups} key/value groups cannot go: the layers hold {available}; "
            f"the nearest that can: {min(max(kv_groups, 1), available)}"
        )


def by_group(attention: nn.Module, columns: torch.Tensor) -> torch.Tensor:
    """What belongs to the input channels of W_O (H·Dh,), as (K, columns of a group)."""
    return columns.unflatten(-1, (num_groups(attention), -1))
