"""Pruning plans: what each decoder layer loses, as plain data that a person can read."""

import hashlib
import json
import math
import operator
import os
import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FORMAT = "harp-plan/1"


@dataclass(frozen=True)
class LayerPlan:
    """What one decoder layer loses: its attention, some key/value groups, or some FFN channels.

    Attributes
    ----------
    alpha : float, optional
        Makes the layer value-only: queries and keys are removed, and the attention branch is
        scaled, as in the paper's Section 2.3, ``H + alpha * H W_V W_O``. Zero removes values and
        output projection too.
    removed_groups : tuple of int
        Key/value heads to remove, each with its query heads and the columns of W_O that read them.
    removed_channels : tuple of int
        Channels of a gated FFN to remove: rows of its gate and up projection, columns of its down
        projection.
    group_means, channel_means : tuple of float, optional
        Mean inputs of the removed columns of W_O and of the down projection, in the order of the
        columns. Multiplied by these columns they give a bias that compensates for the removal, as
        in FLAP. None means no compensation.

    Raises
    ------
    ValueError
        If alpha is not finite or is combined with groups, if indices are negative, repeated or not
        in rising order, or if means do not match the indices.
    """

    alpha: float | None = None
    removed_groups: tuple[int, ...] = ()
    removed_channels: tuple[int, ...] = ()
    group_means: tuple[float, ...] | None = None
    channel_means: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        if self.alpha is not None:
            if not math.isfinite(self.alpha):
                raise ValueError(f"alpha is {self.alpha!r}; it has to be a finite number")
            # The plan is frozen, so that an ordinary assignment would raise.
            object.__setattr__(self, "alpha", float(self.alpha))
            if self.removed_groups or self.group_means is not None:
                raise ValueError(
                    "a value-only layer (alpha) has no key/value groups left to remove or to make "
                    "up for"
                )
        for part in ("group", "channel"):
            removed = _checked_indices(self, f"removed_{part}s")
            object.__setattr__(self, f"removed_{part}s", removed)
            means = _checked_means(self, f"{part}_means", len(removed))
            object.__setattr__(self, f"{part}_means", means)

    def to_dict(self) -> dict[str, Any]:
        """The fields that are not empty, as JSON values."""
        values = {}
        for name, value in vars(self).items():
            if value is None or value == ():
                continue
            values[name] = list(value) if isinstance(value, tuple) else value
        return values


def _checked_indices(plan: LayerPlan, name: str) -> tuple[int, ...]:
    """Field ``name`` of ``plan`` as indices; a ValueError if it is something else."""
    indices = tuple(operator.index(index) for index in getattr(plan, name))
    if list(indices) != sorted(set(indices)) or min(indices, default=0) < 0:
        raise ValueError(
            f"{name} has to be indices from 0, rising, each once; got {reprlib.repr(indices)}"
        )
    return indices


def _checked_means(plan: LayerPlan, name: str, num_removed: int) -> tuple[float, ...] | None:
    """Field ``name`` of ``plan``, the same number of means for each removed part, or None."""
    means = getattr(plan, name)
    if means is None:
        return None
    if num_removed == 0 or len(means) % num_removed != 0 or not all(map(math.isfinite, means)):
        raise ValueError(
            f"{name} has to be finite numbers, equally many for each of {num_removed} removed; "
            f"got {reprlib.repr(means)}"
        )
    return tuple(means)


@dataclass(frozen=True)
class PruningPlan:
    """What each decoder layer loses, and how the remaining attention branch is scaled.

    A plan holds no weights. Layers are counted from the bottom, and layers that are not named stay
    as they are.

    Attributes
    ----------
    num_layers : int
        Number of decoder layers of the model that the plan is for.
    layers : dict of int to LayerPlan
        The layers that lose something, by layer index.
    method : str
        Name of the method that made the plan.

    Raises
    ------
    ValueError
        If a layer index is outside the model.
    """

    num_layers: int
    layers: dict[int, LayerPlan]
    method: str = "harp"

    def __post_init__(self) -> None:
        total = operator.index(self.num_layers)
        for layer in self.layers:
            if layer not in range(total):
                raise ValueError(
                    f"layer {layer} is not in a model of {total} layers (0 … {total - 1})"
                )
        object.__setattr__(self, "num_layers", total)
        from_the_bottom = {int(layer): self.layers[layer] for layer in sorted(self.layers)}
        object.__setattr__(self, "layers", from_the_bottom)

    @classmethod
    def value_only(
        cls, num_layers: int, alphas: Sequence[float] | Mapping[int, float]
    ) -> "PruningPlan":
        """A plan that makes layers value-only.

        Parameters
        ----------
        num_layers : int
            Number of decoder layers of the model.
        alphas : sequence or mapping of float
            A sequence is read top-down, as the paper prints it: the first entry is the highest
            layer. A mapping goes from layer index (from the bottom) to alpha.

        Raises
        ------
        ValueError
            If an index is outside the model (also when there are more alphas than layers), or an
            alpha is not finite.
        """
        if not isinstance(alphas, Mapping):
            alphas = {num_layers - 1 - place: alpha for place, alpha in enumerate(alphas)}
        layers = {layer: LayerPlan(alpha=float(alpha)) for layer, alpha in alphas.items()}
        return cls(num_layers, layers)

    @property
    def alphas(self) -> dict[int, float]:
        """Alpha of each value-only layer by layer index, rising: a search's list is top-down."""
        return {layer: plan.alpha for layer, plan in self.layers.items() if plan.alpha is not None}

    @property
    def digest(self) -> str:
        """Sixteen hexadecimal digits that equal plans share."""
        text = json.dumps(self.to_dict(), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def to_dict(self) -> dict[str, Any]:
        """The plan as JSON values."""
        return {
            "format": FORMAT,
            "method": self.method,
            "num_layers": self.num_layers,
            "layers": [{"layer": layer, **plan.to_dict()} for layer, plan in self.layers.items()],
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "PruningPlan":
        """Read the values that :meth:`to_dict` returned; anything else is a ValueError."""
        if not isinstance(values, Mapping) or values.get("format") != FORMAT:
            raise ValueError(f"not a pruning plan: the field 'format' has to be {FORMAT!r}")
        try:
            layers = {}
            for entry in values["layers"]:
                fields = dict(entry)
                layer = fields.pop("layer")
                if layer in layers:
                    raise ValueError(f"layer {layer} is named twice")
                layers[layer] = LayerPlan(**fields)
            return cls(values["num_layers"], layers, values["method"])
        except (KeyError, TypeError) as error:
            raise ValueError(f"not a complete pruning plan: {error!r}") from None

    def to_json(self, path: str | Path) -> None:
        """Write the plan to a file, with one layer per line."""
        values = self.to_dict()
        layers = ",\n  ".join(json.dumps(layer) for layer in values.pop("layers"))
        head = json.dumps(values).removesuffix("}")
        text = f'{head}, "layers": [\n  {layers}\n]}}\n'
        Path(os.path.expanduser(path)).write_text(text, encoding="utf-8")

    @classmethod
    def from_json(cls, path: str | Path) -> "PruningPlan":
        """Read a plan from a file; a ValueError names the file if it holds no plan."""
        try:
            text = Path(os.path.expanduser(path)).read_text(encoding="utf-8")
            return cls.from_dict(json.loads(text))
        except ValueError as error:  # json.JSONDecodeError is a ValueError
            raise ValueError(f"{path}: {error}") from None
