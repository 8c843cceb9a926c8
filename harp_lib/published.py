"""The paper's published numbers, typed into ``data/paper``: one CSV per table or figure, one row per number.

====================  ==============================================================================================
generation            Table "gen", with its two ratio columns
discriminative        Table "dis", with its ratio column
longbench             Table "longcontext"
layer_selection       Table "layer_selection"
selected_layers       the layers that the text of the same section prints
alpha_ablation        Table "ablation"; it has two averages, so these are "Average (discriminative)" and "(generation)"
alpha_search          Figure "alpha_search"
alpha_robustness      the perplexities in the text about it
search_cost           what the search costs: for WikiText in the text about it, for all in "Cost analysis"
efficiency            the numbers that the text prints for Figure "time"
layer_ranges          Table "baseline_tuning": ``start`` is pruned, ``end`` is not
dataset_statistics    Table "stat", and the generation tasks from the text; ``documents`` is its "# Tasks"
official_ffn_ratios   not in the paper: the shares of FFN channels in the run settings of its official code
====================  ==============================================================================================

The figure on page 1 repeats tables, and Table "property" has no numbers.

The metric ``score`` is a table's own number, in percent: accuracy for discriminative tasks (``acc`` of ARC-Challenge,
OpenBookQA and PIQA), strict ``exact_match`` of GSM8K and TriviaQA, LongBench's own measures. ``removed_fraction`` and
``time_saved`` are in percent too, ``head_ratio`` is a fraction of 1. "all" stands where a number belongs to no single
model, method or task. Numbers are kept as printed, also the 100 % of heads removed from the dense Mistral-7B-v0.3,
where every other dense model has 0.

Three averages are not the rounded mean of the printed scores: on LLaMA3.1-8B generation, ``wanda-sp`` has 12.61 for
12.616 and on Mistral-7B-v0.3 discriminative, ``harp`` has 64.64 for 64.647, as if cut; on Mistral-7B-v0.3 generation,
``harp+flap`` has 30.88 for 30.874. None needs to be an error: all three can come from scores that were averaged before
they were rounded.
"""

import pandas as pd

from harp_lib import paths


def published(table: str) -> pd.DataFrame:
    """One table or figure of the paper.

    Parameters
    ----------
    table : str
        Name of a file in ``data/paper``, without its ending.

    Returns
    -------
    DataFrame
        Columns ``table, model, method, task, metric, value``.
    """
    file = paths.PAPER / f"{table}.csv"
    if not file.is_file():
        known = ", ".join(sorted(path.stem for path in paths.PAPER.glob("*.csv")))
        raise ValueError(f"unknown table {table!r}; choose from {known}")
    return pd.read_csv(file)


def published_alphas() -> dict[str, dict[int, float]]:
    """The alphas of the paper's figure "alpha_search", searched on WikiText: model → layer index → alpha."""
    rows = published("alpha_search").query("task == 'WikiText'")
    rows = rows.assign(layer=rows["metric"].str.extract(r"layer (\d+)", expand=False).astype(int))
    return {
        model: dict(zip(part["layer"], part["value"], strict=True)) for model, part in rows.groupby("model", sort=False)
    }


def published_scores(table: str, model: str) -> pd.DataFrame:
    """A model's block of a table of scores, method × task, in the paper's order.

    Parameters
    ----------
    table : str
        As in ``published``.
    model : str
        As the paper spells it.

    Returns
    -------
    DataFrame
        Scores in percent; the average is a task.
    """
    scores = published(table).query("metric == 'score'")
    rows = scores[scores["model"] == model]
    if rows.empty:
        raise ValueError(f"{table} has no scores of {model!r}; choose from {', '.join(scores['model'].unique())}")
    block = rows.pivot_table(index="method", columns="task", values="value")
    return block.loc[rows["method"].unique(), rows["task"].unique()]


def published_ratios() -> dict[str, dict[str, float]]:
    """The share of a model's parameters that each method removed, in percent: model → method → percent."""
    rows = published("generation").query("metric == 'removed_fraction'")
    return {
        model: dict(zip(part["method"], part["value"], strict=True))
        for model, part in rows.groupby("model", sort=False)
    }


def published_ranges() -> dict[str, dict[str, tuple[int, int]]]:
    """The layers that each baseline was tuned to prune: model → method → (start, end), end not included."""
    ranges: dict[str, dict[str, tuple[int, int]]] = {}
    for (model, method), part in published("layer_ranges").groupby(["model", "method"], sort=False):
        bounds = part.set_index("metric")["value"]
        ranges.setdefault(model, {})[method] = (int(bounds["start"]), int(bounds["end"]))
    return ranges


def published_layers() -> dict[str, list[int]]:
    """The layers of LLaMA3.1-8B that each heuristic metric selected: method → layer indices, from the bottom up."""
    return {
        method: [int(layer) for layer in part["value"]]
        for method, part in published("selected_layers").groupby("method", sort=False)
    }
