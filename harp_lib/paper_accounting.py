"""The paper's pruning ratios, computed from the configs of its models and set beside what it printed."""

import dataclasses

import pandas as pd
from transformers import PreTrainedConfig

from harp_lib.accounting import count_groups, ffn_channels_for, paper_configs, removed_fraction, top_groups_plan
from harp_lib.pruning.plan import LayerPlan, PruningPlan
from harp_lib.published import published, published_alphas, published_ratios

WAYS = {
    "baselines": ("mag-sp", "llm-pruner", "wanda-sp", "flap"),
    "harp": ("harp",),
    "harp+flap": ("harp+flap",),
}
"""Ways to prune → the methods of the generation table; all baselines remove equally many parameters of a model."""


def paper_ratios() -> pd.DataFrame:
    """Every "Parameter Pruning Ratio" of the generation table, computed from the configs and as printed.

    Baselines remove the printed share of key/value groups, and HARP makes layers value-only with the printed alphas.
    HARP+FLAP removes, beyond that, the share of all FFN channels that the official code is run with.

    Returns
    -------
    DataFrame
        One row for each model and way to prune (``WAYS``). ``kv_groups``: how many go. ``percent``: removed of the
        linear parameters of the decoder layers. ``rounded``: to the printed digit. ``printed``; ``matches``.
    """
    rows = []
    for model, config in paper_configs().items():
        ratios = published_ratios()[model]
        for method, plan in _plans(model, config).items():
            (printed,) = {ratios[name] for name in WAYS[method] if name in ratios}  # baselines print the same
            percent = 100 * removed_fraction(config, plan)
            rows.append(
                {
                    "model": model,
                    "method": method,
                    "kv_groups": sum(total - kept for total, kept in count_groups(config, plan)),
                    "percent": percent,
                    "rounded": round(percent, 1),
                    "printed": printed,
                    "matches": round(percent, 1) == printed,
                }
            )
    return pd.DataFrame(rows)


def ffn_ratios() -> pd.DataFrame:
    """The share of FFN channels that takes HARP+FLAP to the ratio of the baselines, and the one of the official runs.

    Returns
    -------
    DataFrame
        One row for each model. ``channels``: how many have to go, over all layers. ``ratio``: their share of all.
        ``official``; ``difference``: official minus ratio. ``ratio_from_printed`` and ``difference_from_printed``: the
        same with the baselines' printed percent for the target.
    """
    rows = []
    for model, config in paper_configs().items():
        plans, channels, official = _plans(model, config), _all_channels(config), official_ffn_ratio(model)
        needed = ffn_channels_for(config, plans["harp"], removed_fraction(config, plans["baselines"]))
        printed = published_ratios()[model]["harp+flap"] / 100
        from_printed = ffn_channels_for(config, plans["harp"], printed) / channels
        rows.append(
            {
                "model": model,
                "channels": needed,
                "ratio": needed / channels,
                "official": official,
                "difference": official - needed / channels,
                "ratio_from_printed": from_printed,
                "difference_from_printed": official - from_printed,
            }
        )
    return pd.DataFrame(rows)


def official_ffn_ratio(model: str) -> float:
    """The share of FFN channels that the official code's run of HARP+FLAP removes; it is not in the paper."""
    return published("official_ffn_ratios").set_index("model").loc[model, "value"]


def _plans(model: str, config: PreTrainedConfig) -> dict[str, PruningPlan]:
    generation = published("generation").set_index(["model", "method", "metric"])["value"]
    groups = sum(total for total, _ in count_groups(config))
    harp = PruningPlan.value_only(config.num_hidden_layers, published_alphas()[model])
    return {
        "baselines": top_groups_plan(config, round(generation[model, "flap", "head_ratio"] * groups)),
        "harp": harp,
        "harp+flap": _without_channels(harp, round(official_ffn_ratio(model) * _all_channels(config))),
    }


def _all_channels(config: PreTrainedConfig) -> int:
    return config.num_hidden_layers * config.intermediate_size


def _without_channels(plan: PruningPlan, channels: int) -> PruningPlan:
    """The plan that also takes ``channels`` FFN channels, spread over all layers: which ones is all the same here."""
    each, rest = divmod(channels, plan.num_layers)
    layers = {
        layer: dataclasses.replace(
            plan.layers.get(layer, LayerPlan()), removed_channels=tuple(range(each + (layer < rest)))
        )
        for layer in range(plan.num_layers)
    }
    return PruningPlan(plan.num_layers, layers, "harp+flap")
