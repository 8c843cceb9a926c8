"""Titles, colours and spellings that several rooms share. No torch, so that a report imports in a
second.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from harp_lib import config


@dataclass(frozen=True)
class Method:
    """What a pruning method is called, how figures show it, what it takes and what it changes.

    Attributes
    ----------
    title : str
        As in the paper's tables.
    module, function : str
        The module of ``harp_lib/methods``, and its function that makes the plan.
    colour, marker : str
        In every figure; the colour is of seaborn's colour-blind palette.
    table : dict
        The method's row of the paper's Table "property", column by column.
    is_baseline : bool
        HARP is compared against it. It removes whole key/value groups from a range of layers.
    needs_text : bool
        It reads the calibration text, whatever else is given.
    one_threshold : bool
        The groups of all layers of the range compete, so that layers may lose different numbers of
        groups. A method without it takes equally many from each layer.
    standardises_per_layer : bool
        Scores are standardised within each layer before layers compete, so that a layer's only
        group says nothing.
    takes_alphas : bool
        It rescales value-only layers. Alphas that are not given are searched on the calibration
        text.
    removes_channels : bool
        It removes FFN channels too, until ``target_fraction`` of the parameters is gone.
    updates_weights : bool
        It returns weights beside the plan, so it is no method of :func:`harp_lib.make_plan`.
    """

    title: str
    module: str
    colour: str
    marker: str
    table: dict[str, str]
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
        """Whether it removes as many parameters as the baselines: only these compete for the best
        score.
        """
        return self.is_baseline or self.removes_channels

    def reads_text(self, alphas: Any) -> bool:
        """Whether a plan with these alphas reads the calibration text."""
        return self.needs_text or (self.takes_alphas and alphas is None)


def _read(name: str) -> dict[str, Any]:
    """A YAML file of the folder ``data``."""
    return yaml.safe_load((config.DATA / f"{name}.yaml").read_text(encoding="utf-8"))


CATALOGUE = {name: Method(**about) for name, about in _read("methods").items()}
"""Every method by name, in the order of the rows of the paper's tables (``data/methods.yaml``)."""


def with_property(name: str) -> tuple[str, ...]:
    """The names of the methods that have a property."""
    return tuple(method for method, about in CATALOGUE.items() if getattr(about, name))


BASELINES = with_property("is_baseline")
EVALUATED = tuple(sorted(CATALOGUE, key=lambda name: name not in BASELINES))
"""All methods that are compared, in the order of tables and figures: the baselines, and then the
others.
"""
METHODS = tuple(name for name in EVALUATED if not CATALOGUE[name].updates_weights)
"""The names that :func:`harp_lib.make_plan` takes; ``harp+refit`` has weights beside its plan
(``refit_values``).
"""
METHOD_TITLES = {"dense": "dense"} | {name: CATALOGUE[name].title for name in EVALUATED}
"""The rows of tables and figures by name, the dense model first."""

CORPORA = _read("corpora")
"""Every corpus by name, and where its documents come from (``data/corpora.yaml``)."""
CORPUS_TITLES = {name: about["title"] for name, about in CORPORA.items()}

PAPER_MODELS = {
    "LLaMA3.1-8B": "Llama-3.1-8B",
    "Mistral-7B-v0.3": "Mistral-7B-v0.3",
    "Qwen2-7B": "Qwen2-7B",
    "Gemma2-9B": "gemma-2-9b",
}
"""The paper's spelling of a model, and the name of its repository on the hub."""


def display_name(model: str) -> str:
    """What tables and figures call a model: the registry's words, or the last part of a hub id or
    folder.
    """
    if model in config.NAMED_MODELS:
        return config.NAMED_MODELS[model]["title"]
    return Path(os.path.abspath(model)).name
