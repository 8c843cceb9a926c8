"""Pruning plans: what goes and what stays, as plain data that a person can read."""

import hashlib
import json
import math
import operator
import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FORMAT = "harp-plan/1"


@dataclass(frozen=True)
class LayerPlan:
    """What one decoder layer loses: its attention, some of its key/value groups, or some of its FFN
    channels.

    Attributes
    ----------
    alpha : float, optional
        Makes the layer value-only: queries and keys go, and the attention branch is scaled, as in
        the paper's Section 2.3, ``H + alpha * H W_V W_O``. Zero removes values and output
        projection too.
    removed_groups : tuple of int
        Key/value heads that go, each with its query heads and the columns of W_O that read them.
    removed_channels : tuple of int
        Channels of a gated FFN that go: rows of its gate and up projection, columns of its down
        projection.
    group_means, channel_means : tuple of float, optional
        Mean inputs of the removed columns of W_O and of the down projection, in their order. Times
        these columns they are a bias that makes up for what goes, as FLAP's. None: nothing does.
    """

    alpha: float | None = None
    removed_groups: tuple[int, ...] = ()
    removed_channels: tuple[int, ...] = ()
    group_means: tuple[float, ...] | None = None
    channel_means: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        if self.alpha is not None and not math.isfinite(self.alpha):
            raise ValueError(f"alpha is {self.alpha!r}; it has to be a finite number")
        if self.alpha is not None and (self.removed_groups or self.group_means is not None):
            raise ValueError(
                "a value-only layer (alpha) has no key/value groups left to remove or to make up for"
            )
        for part in ("group", "channel"):
            name, removed, means = (
                f"removed_{part}s",
                getattr(self, f"removed_{part}s"),
                getattr(self, f"{part}_means"),
            )
            removed = tuple(map(operator.index, removed))
            if list(removed) != sorted(set(removed)) or min(removed, default=0) < 0:
                raise ValueError(
                    f"{name} has to be indices from 0, rising, each once; got {reprlib.repr(removed)}"
                )
            object.__setattr__(self, name, removed)
            if means is not None:
                if not removed or len(means) % len(removed) or not all(map(math.isfinite, means)):
                    wanted = f"finite numbers, equally many for each of {len(removed)} removed"
                    raise ValueError(f"{part}_means has to be {wanted}; got {reprlib.repr(means)}")
                object.__setattr__(self, f"{part}_means", tuple(means))

    def to_dict(self) -> dict[str, Any]:
        """The fields that say something, as JSON values."""
        said = {name: value for name, value in vars(self).items() if value not in (None, ())}
        return {
            name: list(value) if isinstance(value, tuple) else value for name, value in said.items()
        }


@dataclass(frozen=True)
class PruningPlan:
    """What each decoder layer loses, and how what remains is scaled.

    A plan holds no weights. Layers are counted from the bottom, and layers that are not named stay
    as they are.

    Attributes
    ----------
    num_layers : int
        Decoder layers of the model that the plan is for.
    layers : dict of int to LayerPlan
        The layers that lose something, by index.
    method : str
        Name of the method that made the plan.
    """

    num_layers: int
    layers: dict[int, LayerPlan]
    method: str = "harp"

    def __post_init__(self) -> None:
        total = self.num_layers
        if other := [layer for layer in self.layers if layer not in range(total)]:
            raise ValueError(
                f"layer {other[0]} is not in a model of {total} layers (0 … {total - 1})"
            )
        object.__setattr__(
            self, "layers", {int(layer): self.layers[layer] for layer in sorted(self.layers)}
        )

    @classmethod
    def value_only(
        cls, num_layers: int, alphas: Sequence[float] | Mapping[int, float]
    ) -> "PruningPlan":
        """Plan that makes layers value-only.

        Parameters
        ----------
        num_layers : int
            Decoder layers of the model.
        alphas : sequence or mapping of float
            A sequence is read top-down, as the paper prints it: the first entry is the highest
            layer. A mapping goes from layer index (from the bottom) to alpha.

        Raises
        ------
        ValueError
            For an index outside the model, as of more alphas than layers, or an alpha that is not
            finite.
        """
        if not isinstance(alphas, Mapping):
            alphas = {num_layers - 1 - depth: alpha for depth, alpha in enumerate(alphas)}
        return cls(
            operator.index(num_layers),
            {layer: LayerPlan(float(alpha)) for layer, alpha in alphas.items()},
        )

    @property
    def alphas(self) -> dict[int, float]:
        """Alpha of each value-only layer, by layer index."""
        return {layer: plan.alpha for layer, plan in self.layers.items() if plan.alpha is not None}

    @property
    def digest(self) -> str:
        """Sixteen hexadecimal digits that equal plans share."""
        return hashlib.sha256(json.dumps(self.to_dict(), sort_keys=True).encode()).hexdigest()[:16]

    def to_dict(self) -> dict[str, Any]:
        """The plan as JSON values."""
        layers = [{"layer": layer, **plan.to_dict()} for layer, plan in self.layers.items()]
        return {
            "format": FORMAT,
            "method": self.method,
            "num_layers": self.num_layers,
            "layers": layers,
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "PruningPlan":
        """Read what :meth:`to_dict` gave; anything else is a ValueError."""
        if not isinstance(values, Mapping) or values.get("format") != FORMAT:
            raise ValueError(f"not a pruning plan: the field 'format' has to be {FORMAT!r}")
        try:
            layers = {
                entry.pop("layer"): LayerPlan(**entry) for entry in map(dict, values["layers"])
            }
            return cls(values["num_layers"], layers, values["method"])
        except (KeyError, TypeError) as error:
            raise ValueError(f"not a complete pruning plan: {error!r}") from None

    def to_json(self, path: str | Path) -> None:
        """Write the plan to a file, one layer a line."""
        values = self.to_dict()
        lines = ",\n  ".join(json.dumps(layer) for layer in values.pop("layers"))
        text = f'{json.dumps(values)[:-1]}, "layers": [\n  {lines}\n]}}\n'
        Path(path).write_text(text, encoding="utf-8")

    @classmethod
    def from_json(cls, path: str | Path) -> "PruningPlan":
        """Read a plan from a file; a ValueError names the file if it holds none."""
        try:
            return cls.from_dict(json.loads(Path(path).read_text(encoding="utf-8")))
        except ValueError as error:  # json.JSONDecodeError is one
            raise ValueError(f"{path}: {error}") from None
