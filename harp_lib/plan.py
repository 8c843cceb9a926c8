"""Pruning plans: what goes and what stays, as plain data that a person can read."""

import hashlib
import json
import math
import operator
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

FORMAT = "harp-plan/1"


@dataclass(frozen=True)
class LayerPlan:
    """What happens to one value-only layer: queries and keys go, the attention branch is scaled.

    Attributes
    ----------
    alpha : float
        Residual rescaling of the paper's Section 2.3, ``H + alpha * H W_V W_O``. Zero removes values and output
        projection too, since nothing of the branch is left.
    """

    alpha: float

    def __post_init__(self) -> None:
        if not math.isfinite(self.alpha):
            raise ValueError(f"alpha is {self.alpha}; it has to be a finite number")


@dataclass(frozen=True)
class PruningPlan:
    """Which decoder layers lose their attention, and how what remains is scaled.

    A plan holds no weights. Layers are counted from the bottom, and layers that are not named stay as they are.

    Attributes
    ----------
    num_layers : int
        Decoder layers of the model that the plan is for.
    layers : dict of int to LayerPlan
        The value-only layers, by index.
    method : str
        Name of the method that made the plan.
    """

    num_layers: int
    layers: dict[int, LayerPlan]
    method: str = "harp"

    def __post_init__(self) -> None:
        if self.num_layers < 1:
            raise ValueError(f"num_layers is {self.num_layers}; a model has at least one layer")
        for layer in self.layers:
            if not isinstance(layer, int):
                raise ValueError(f"layer index {layer!r} is not an integer")
            if not 0 <= layer < self.num_layers:
                raise ValueError(
                    f"layer {layer} is not in a model of {self.num_layers} layers (0 … {self.num_layers - 1})"
                )
        object.__setattr__(self, "layers", dict(sorted(self.layers.items())))

    @classmethod
    def value_only(cls, num_layers: int, alphas: Sequence[float] | Mapping[int, float]) -> "PruningPlan":
        """Plan that makes layers value-only.

        Parameters
        ----------
        num_layers : int
            Decoder layers of the model.
        alphas : sequence or mapping of float
            A sequence is read top-down, as the paper prints it: the first entry is the highest layer. A mapping
            goes from layer index (from the bottom) to alpha.

        Raises
        ------
        ValueError
            For an index outside the model, more alphas than layers, or an alpha that is not finite.
        """
        if not isinstance(alphas, Mapping):
            alphas = list(alphas)
            if len(alphas) > num_layers:
                raise ValueError(f"{len(alphas)} alphas for a model of {num_layers} layers")
            alphas = {num_layers - 1 - depth: alpha for depth, alpha in enumerate(alphas)}
        layers = {}
        for layer, alpha in alphas.items():
            try:
                layers[operator.index(layer)] = LayerPlan(float(alpha))
            except (TypeError, ValueError) as error:
                raise ValueError(f"layer {layer}: {error}") from None
        return cls(operator.index(num_layers), layers)

    @property
    def alphas(self) -> dict[int, float]:
        """Alpha of each value-only layer, by layer index."""
        return {layer: plan.alpha for layer, plan in self.layers.items()}

    @property
    def digest(self) -> str:
        """Sixteen hexadecimal digits that equal plans share."""
        return hashlib.sha256(json.dumps(self.to_dict(), sort_keys=True).encode()).hexdigest()[:16]

    def to_dict(self) -> dict[str, Any]:
        """The plan as JSON values."""
        layers = [{"layer": layer, **asdict(plan)} for layer, plan in self.layers.items()]
        return {"format": FORMAT, "method": self.method, "num_layers": self.num_layers, "layers": layers}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "PruningPlan":
        """Read what :meth:`to_dict` gave; anything else is a ValueError."""
        if not isinstance(values, Mapping) or values.get("format") != FORMAT:
            raise ValueError(f"not a pruning plan: the field 'format' has to be {FORMAT!r}")
        try:
            layers = {entry["layer"]: LayerPlan(entry["alpha"]) for entry in values["layers"]}
            return cls(values["num_layers"], layers, values["method"])
        except (KeyError, TypeError) as error:
            raise ValueError(f"not a complete pruning plan: {error!r}") from None

    def to_json(self, path: str | Path) -> None:
        """Write the plan to a file."""
        Path(path).write_text(json.dumps(self.to_dict(), indent=2) + "\n", encoding="utf-8")

    @classmethod
    def from_json(cls, path: str | Path) -> "PruningPlan":
        """Read a plan from a file; a ValueError names the file if it holds none."""
        try:
            return cls.from_dict(json.loads(Path(path).read_text(encoding="utf-8")))
        except ValueError as error:  # json.JSONDecodeError is one
            raise ValueError(f"{path}: {error}") from None
