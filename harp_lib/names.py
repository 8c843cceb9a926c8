"""Titles, colours and spellings that several rooms share; no torch, so that reports load fast."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from harp_lib import config


@dataclass(frozen=True)
class Method:
    """A pruning method: its title, its look in figures, its arguments and what it changes.

    Attributes
    ----------
    title : str
        As in the paper's tables.
    module, function : str
        The module of ``harp_lib/methods``, and its function that makes the plan.
    colour : str
        In every figure; of seaborn's colour-blind palette.
    table : dict
        The method's row of the paper's Table "property", column by column.
    is_baseline : bool
        HARP is compared against this method, which removes whole key/value groups from a range of
        layers.
    needs_text : bool
        The method always reads the calibration text.
    one_threshold : bool
        The groups of all layers in the range compete, so layers may lose different numbers of
        groups. Without this property, a method removes equally many groups from each layer.
    takes_alphas : bool
        The method rescales value-only layers. If no alphas are given, it searches them on the
        calibration text.
    updates_weights : bool
        The method returns weights beside the plan, so :func:`harp_lib.make_plan` does not take it.
    """

    title: str
    module: str
    colour: str
    table: dict[str, str]
    function: str = "planner"
    is_baseline: bool = False
    needs_text: bool = False
    one_threshold: bool = False
    takes_alphas: bool = False
    updates_weights: bool = False

    def reads_text(self, alphas: Any) -> bool:
        """Whether a plan with these alphas reads the calibration text."""
        return self.needs_text or (self.takes_alphas and alphas is None)


def _read_yaml(name: str) -> dict[str, Any]:
    """Contents of a YAML file in the folder ``data``."""
    file = config.DATA / f"{name}.yaml"
    return yaml.safe_load(file.read_text(encoding="utf-8"))


CATALOGUE = {name: Method(**fields) for name, fields in _read_yaml("methods").items()}
"""Every method by name, in the order of the rows of the paper's tables (``data/methods.yaml``)."""

DENSE = "dense"  # the model before pruning, beside the methods
HARP = "harp"
HARP_FLAP = "harp+flap"
REFIT = "harp+refit"
BASELINES = tuple(name for name, method in CATALOGUE.items() if method.is_baseline)
EVALUATED = tuple(sorted(CATALOGUE, key=lambda name: name not in BASELINES))
"""All methods that are compared, in the order of tables and figures: baselines come first."""
METHODS = tuple(name for name in EVALUATED if not CATALOGUE[name].updates_weights)
"""The names that :func:`harp_lib.make_plan` takes.

``REFIT`` is not one of them, because :func:`harp_lib.refit_values` also returns weights.
"""
METHOD_TITLES = {DENSE: "dense"} | {name: CATALOGUE[name].title for name in EVALUATED}
"""The title of each row of tables and figures by method name, the dense model first."""

CORPORA = _read_yaml("corpora")
"""Every corpus by name, and where its documents come from (``data/corpora.yaml``)."""
CORPUS_TITLES = {name: corpus["title"] for name, corpus in CORPORA.items()}

PAPER_MODELS = {
    "LLaMA3.1-8B": "Llama-3.1-8B",
    "Mistral-7B-v0.3": "Mistral-7B-v0.3",
    "Qwen2-7B": "Qwen2-7B",
    "Gemma2-9B": "gemma-2-9b",
}
"""The name of a model's repository on the hub, by the paper's spelling of the model."""


def display_name(model: str) -> str:
    """Name of a model in tables and figures.

    This is the registry's title, or else the last part of the hub id or folder.
    """
    if model in config.NAMED_MODELS:
        return config.NAMED_MODELS[model]["title"]
    return Path(os.path.abspath(model)).name


def short_name(model: str) -> str:
    """Name of a model in the notebooks: the registry's short one, or else :func:`display_name`."""
    return config.NAMED_MODELS.get(model, {}).get("short") or display_name(model)
