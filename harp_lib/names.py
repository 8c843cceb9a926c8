"""Titles, colours and spellings that several rooms share; no torch, so that reports load fast."""

import os
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
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
    "LLaMA3.1-8B": "meta-llama/Llama-3.1-8B",
    "Mistral-7B-v0.3": "mistralai/Mistral-7B-v0.3",
    "Qwen2-7B": "Qwen/Qwen2-7B",
    "Gemma2-9B": "google/gemma-2-9b",
}
"""The hub ids of the paper's models, by the paper's spelling."""


def short_names(models: Collection[str]) -> dict[str, str]:
    """Names for tables and figures of models that are given by their full names.

    A model of the registry has its short one there. Another one has the last part of its hub id or
    path, and as many parts before it as it takes to be no other model's: none of ``models``, of
    the registry or of the paper.
    """
    candidates = {model: _names(model) for model in {*models, *config.NAMED_MODELS}}
    for spelling, hub_id in PAPER_MODELS.items():
        candidates[hub_id] = [*_names(hub_id), spelling]
    # For each name, how many models may have it.
    counts = Counter(name for names in candidates.values() for name in set(names))
    short = {}
    for model in models:
        if model in config.NAMED_MODELS:  # whose names come before those of others
            usable = candidates[model]
        else:
            usable = [name for name in candidates[model] if counts[name] == 1]
        short[model] = usable[0] if usable else model
    return short


def _names(model: str) -> list[str]:
    """A model's names in the registry, or the ends of its hub id or path, the shortest first."""
    if model in config.NAMED_MODELS:
        fields = config.NAMED_MODELS[model]
        return [fields.get("short", fields["title"]), fields["title"], model]
    if not os.path.isabs(model) and not config.HUB_ID.fullmatch(model):
        return [model]
    parts = model.split("/")
    return ["/".join(parts[-number:]) for number in range(1, len(parts) + 1)]
