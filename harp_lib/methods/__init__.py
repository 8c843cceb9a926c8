"""Pruning methods: each looks at a model and a calibration text, and returns a plan. None touches a weight.

A new baseline is a module with ``planner(model, calibration, layers)`` and a row of ``CATALOGUE`` that describes it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from transformers import PreTrainedModel

from harp_lib.measure.text import Tokens
from harp_lib.pruning.architecture import check_plan, decoder_layers
from harp_lib.pruning.layers import num_groups
from harp_lib.pruning.plan import LayerPlan, PruningPlan


@dataclass(frozen=True)
class Method:
    """What a pruning method is called, how figures show it, what it takes and what it changes.

    Attributes
    ----------
    title : str
        As in the paper's tables.
    module, function : str
        The module of this folder, and its function that makes the plan.
    colour, marker : str
        In every figure; the colour is of seaborn's colour-blind palette.
    is_baseline : bool
        HARP is compared against it. It removes whole key/value groups from a range of layers.
    needs_text : bool
        It reads the calibration text, whatever else is given.
    one_threshold : bool
        The groups of all layers of the range compete, so that layers may lose different numbers of groups. A method
        without it takes equally many from each layer.
    standardises_per_layer : bool
        Scores are standardised within each layer before layers compete, so that a layer's only group says nothing.
    takes_alphas : bool
        It rescales value-only layers. Alphas that are not given are searched on the calibration text.
    removes_channels : bool
        It removes FFN channels too, until ``target_fraction`` of the parameters is gone.
    updates_weights : bool
        It returns weights beside the plan, so it is no method of :func:`make_plan`.
    """

    title: str
    module: str
    colour: str
    marker: str
    function: str = "planner"
    is_baseline: bool = False
    needs_text: bool = False
    one_threshold: bool = False
    standardises_per_layer: bool = False
    takes_alphas: bool = False
    removes_channels: bool = False
    updates_weights: bool = False

    @property
    def at_equal_parameters(self) -> bool:
        """Whether it removes as many parameters as the baselines: only these compete for the best score."""
        return self.is_baseline or self.removes_channels

    def reads_text(self, alphas: Sequence[float] | None) -> bool:
        """Whether a plan with these alphas reads the calibration text."""
        return self.needs_text or (self.takes_alphas and alphas is None)


CATALOGUE = {
    "mag-sp": Method("Mag-sp", "magnitude", "#d55e00", "v", is_baseline=True),
    "llm-pruner": Method("LLM-Pruner", "llm_pruner", "#cc78bc", "D", is_baseline=True, needs_text=True),
    "wanda-sp": Method("Wanda-sp", "wanda", "#029e73", "^", is_baseline=True, needs_text=True),
    "flap": Method(
        "FLAP",
        "flap",
        "#de8f05",
        "P",
        is_baseline=True,
        needs_text=True,
        one_threshold=True,
        standardises_per_layer=True,
    ),
    "harp+flap": Method(
        "HARP+FLAP",
        "harp",
        "#56b4e9",
        "X",
        function="harp_flap_plan",
        needs_text=True,
        takes_alphas=True,
        removes_channels=True,
    ),
    "harp": Method("HARP", "harp", "#0173b2", "o", function="harp_plan", takes_alphas=True),
    "harp+refit": Method(
        "HARP+refit", "refit", "#8c1d5b", "*", function="refit_values", needs_text=True, updates_weights=True
    ),
}
"""Every method by name, in the order of the rows of the paper's tables."""


def with_property(name: str) -> tuple[str, ...]:
    """The names of the methods that have a property."""
    return tuple(method for method, about in CATALOGUE.items() if getattr(about, name))


BASELINES = with_property("is_baseline")
EVALUATED = tuple(sorted(CATALOGUE, key=lambda name: name not in BASELINES))
"""All methods that are compared, in the order of tables and figures: the baselines, and then the others."""
METHODS = tuple(name for name in EVALUATED if not CATALOGUE[name].updates_weights)
"""The names that :func:`make_plan` takes; ``harp+refit``, whose plan has weights beside it, is :func:`refit_values`."""
TITLES = {"dense": "dense"} | {name: CATALOGUE[name].title for name in EVALUATED}
"""The rows of tables and figures by name, the dense model first."""


def make_plan(
    method: str,
    model: PreTrainedModel,
    calibration: Tokens | None,
    *,
    kv_groups: int,
    layers: Sequence[int] | None = None,
    alphas: Sequence[float] | None = None,
    target_fraction: float | None = None,
    **options: Any,
) -> PruningPlan:
    """Decide what goes (paper, Section 3, "Baselines", and Algorithm 1); :func:`harp_lib.apply_plan` carries it out.

    Parameters
    ----------
    method : str
        One of ``METHODS``.
    model : PreTrainedModel
        Dense, with separate projections; unchanged afterwards.
    calibration : Tensor or sequence
        As in :func:`harp_lib.perplexity`: ``(B, N)`` int64, or 1-D tensors of any length, or windows. None will do for
        mag-sp, and for harp if ``alphas`` is given.
    kv_groups : int
        Key/value groups that go in all, each with its query heads; for HARP those of whole layers from the top.
    layers : sequence of int, optional
        Baselines only: the layers from which groups may go, counted from the bottom; default: all.
    alphas : sequence of float, optional
        harp and harp+flap only: alpha of each pruned layer, the top layer first; default: searched.
    target_fraction : float, optional
        harp+flap only: the ``removed_fraction`` to reach by FFN channels; default: that of these groups, V and O too.
    **options
        Of a baseline's own planner: ``squared=True`` of FLAP, as upstream computes it. Of harp+flap: ``evenly=True``,
        as many FFN channels from each layer.

    Raises
    ------
    ValueError
        For an unknown method, an argument that it does not take, a budget that cannot be met (what can is named), a
        pruned model or one that cannot be sliced, before the calibration text is read; later for a target that HARP
        exceeds because alphas are found to be 0, or one that empties a layer's FFN.
    """
    from harp_lib.methods.calibration import check_budget, equal_parts  # here: reports want names and colours only

    if method not in METHODS:
        raise ValueError(f"unknown method {method!r}; choose from {', '.join(METHODS)}")
    chosen = CATALOGUE[method]
    takers = {"alphas": with_property("takes_alphas"), "target_fraction": with_property("removes_channels")}
    takers["evenly"] = takers["target_fraction"]
    given = {"layers": layers, "alphas": alphas, "target_fraction": target_fraction, **options}
    for name, value in given.items():
        allowed = takers.get(name, BASELINES)
        if value is not None and method not in allowed:
            raise ValueError(f"{method} does not take {name}; it is for {', '.join(allowed)}")
    make, layers = _prepared(method, model, calibration, layers, alphas)
    if chosen.is_baseline:
        groups = [num_groups(decoder_layers(model)[layer].self_attn) for layer in layers]
        check = check_budget if chosen.one_threshold else equal_parts
        check(kv_groups, groups)
        return make(model, calibration, layers, **options)(kv_groups, layers)
    arguments: dict[str, Any] = {}
    if chosen.takes_alphas:
        arguments["alphas"] = alphas
    if chosen.removes_channels:
        arguments["target_fraction"] = target_fraction
    return make(model, calibration, kv_groups, **arguments, **options)


def planner(
    method: str, model: PreTrainedModel, calibration: Tokens | None, **options: Any
) -> Callable[[int, Sequence[int]], PruningPlan]:
    """What :func:`make_plan` gives, for many budgets and ranges from one calibration; Wanda-sp wants rising ranges."""
    if method not in BASELINES:
        raise ValueError(f"{method!r} has no layer range to plan for; choose from {', '.join(BASELINES)}")
    make, layers = _prepared(method, model, calibration)
    return make(model, calibration, layers, **options)


def _prepared(
    method: str,
    model: PreTrainedModel,
    calibration: Tokens | None,
    layers: Sequence[int] | None = None,
    alphas: Sequence[float] | None = None,
) -> tuple[Callable[..., Any], list[int]]:
    """A method's function, and the layers that may lose something; a ValueError if they cannot lose what it takes."""
    chosen = CATALOGUE[method]
    total = len(decoder_layers(model))
    if chosen.is_baseline:
        lost = LayerPlan(removed_groups=(0,))
    elif chosen.removes_channels:
        lost = LayerPlan(1.0, removed_channels=(0,))
    else:
        lost = LayerPlan(1.0)
    plan = PruningPlan(total, dict.fromkeys(range(total) if layers is None else layers, lost))
    if not plan.layers:
        raise ValueError("layers is empty; name at least one layer, or none for all")
    check_plan(model, plan)
    if calibration is None and chosen.reads_text(alphas):
        raise ValueError(f"{method} needs a calibration text, as (B, N) tokens or a list of 1-D tensors")
    module = import_module(f"{__name__}.{chosen.module}")
    return getattr(module, chosen.function), list(plan.layers)
