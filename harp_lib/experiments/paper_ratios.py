"""Notebook 04: what the paper's plans remove from its four models, counted from their configs.

No model is loaded and no weights are read.
"""

import json
from functools import partial

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
    printed = pd.read_csv(config.PAPER / "generation.csv")
    printed = printed.query("method == 'flap' and quantity == 'head_ratio'")
    head_ratios = printed.set_index("model")["value"].to_dict()
    for model, shape in paper_configs().items():
        file = config.CONFIGS / f"{PAPER_MODELS[model]}.json"
        head_ratio = head_ratios[model]
        alphas = printed_alphas(model)
        inputs = {
            "config": digest(json.loads(file.read_bytes())),
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
    values = {
        ("flap", "removed_fraction"): target,
        ("harp", "removed_fraction"): removed_fraction(shape, harp),
        ("harp+flap", "ffn_share"): ffn_share,
        ("dense", "overtaking_length"): overtaking_length(shape),
        ("dense", "intermediate_size"): shape.intermediate_size,
    }
    rows = [
        {"method": method, "quantity": quantity, "value": value}
        for (method, quantity), value in values.items()
    ]
    return {"rows": rows}


def printed_alphas(model: str) -> dict[int, float]:
    """The alphas by layer that the paper prints for one of its models, searched on WikiText."""
    printed = pd.read_csv(config.PAPER / "alpha_search.csv")
    printed = printed.query("model == @model and task == 'wikitext'")
    return printed.set_index("layer")["value"].to_dict()
