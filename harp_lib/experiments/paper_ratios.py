"""Notebook 04: what the paper's plans remove from its four models, counted from their configs.

No model is loaded and no weights are read.
"""

import json
from functools import partial
from typing import Any

import pandas as pd
from transformers import PreTrainedConfig

from harp_lib import config
from harp_lib.accounting import (
    count_groups,
    ffn_channels_for,
    overtaking_length,
    paper_configs,
    removed_fraction,
    top_groups_plan,
)
from harp_lib.experiments.job import Job
from harp_lib.names import PAPER_MODELS
from harp_lib.pruning.plan import PruningPlan
from harp_lib.results import Cell, Result, digest


def ratios(job: Job) -> None:
    """Count what is removed from each model of the paper: one cell for each."""
    head_ratios = _printed_head_ratios()
    for model, shape in paper_configs().items():
        alphas = _printed_alphas(model)
        head_ratio = head_ratios[model]
        inputs = {
            "config": _config_digest(model),
            "flap_head_ratio": head_ratio,
            "alphas": alphas,
        }
        compute = partial(count, shape, head_ratio, alphas)
        job.result(Cell("all", model, inputs, compute, {"model": model}))


def count(shape: PreTrainedConfig, head_ratio: float, alphas: dict[int, float]) -> Result:
    """The rows of one model of the paper: ``method``, ``quantity`` and ``value``.

    Parameters
    ----------
    shape : PreTrainedConfig
        The model's config.
    head_ratio : float
        Share of the key/value groups that FLAP removes, as the paper prints it.
    alphas : dict
        The paper's alphas by layer.

    Returns
    -------
    dict
        Rows of four quantities: ``removed_fraction`` (of the linear parameters, 0 to 1) of ``flap``
        and ``harp``; ``ffn_share``, the share of all FFN channels that ``harp+flap`` has to remove
        beside HARP's layers to remove as much as FLAP; and of the dense model
        ``overtaking_length`` (tokens, :func:`harp_lib.accounting.overtaking_length`) and
        ``intermediate_size``.
    """
    harp = PruningPlan.value_only(shape.num_hidden_layers, alphas)
    num_groups = sum(total for total, _ in count_groups(shape))
    flap = top_groups_plan(shape, round(head_ratio * num_groups))
    target = removed_fraction(shape, flap)
    num_channels = ffn_channels_for(shape, harp, target)
    ffn_share = num_channels / (shape.num_hidden_layers * shape.intermediate_size)
    return {
        "rows": [
            _row("flap", "removed_fraction", target),
            _row("harp", "removed_fraction", removed_fraction(shape, harp)),
            _row("harp+flap", "ffn_share", ffn_share),
            _row("dense", "overtaking_length", overtaking_length(shape)),
            _row("dense", "intermediate_size", shape.intermediate_size),
        ]
    }


def _row(method: str, quantity: str, value: float) -> dict[str, Any]:
    return {"method": method, "quantity": quantity, "value": value}


def _config_digest(model: str) -> str:
    """A digest of the config of one of the paper's models."""
    file = config.CONFIGS / f"{PAPER_MODELS[model]}.json"
    return digest(json.loads(file.read_bytes()))


def _printed_head_ratios() -> dict[str, float]:
    """Share of the key/value groups that FLAP removes from each model, as the paper prints it."""
    printed = pd.read_csv(config.PAPER / "generation.csv")
    printed = printed.query("method == 'flap' and quantity == 'head_ratio'")
    return dict(zip(printed["model"], printed["value"].tolist(), strict=True))


def _printed_alphas(model: str) -> dict[int, float]:
    """The alphas by layer that the paper prints for one of its models, searched on WikiText."""
    printed = pd.read_csv(config.PAPER / "alpha_search.csv")
    printed = printed.query("model == @model and task == 'wikitext'")
    return dict(zip(printed["layer"].tolist(), printed["value"].tolist(), strict=True))
