"""Tables of a page's width: what the argument of a notebook needs of the paper's wide tables."""

from collections.abc import Mapping

import pandas as pd

from harp_lib.names import METHOD_TITLES, display_name
from harp_lib.report import table
from harp_lib.report.score_tables import score_table
from harp_lib.report.scores import (
    AVERAGE,
    FLAPPED,
    PAPER_MODEL,
    differences,
    named,
    of_kind,
)
from harp_lib.report.tables import Table, efficiency, lines, stacked, written

PLAN = ["model", "method"]
LEAD = "{value:+.1f} [{low:+.1f}, {high:+.1f}]"
BBH = "bbh_cot_fewshot"


def averages(
    profile: dict,
    name: str,
    stores: str | tuple,
    tasks: list[str],
    reference: str,
    titles: Mapping[str, str] | None = None,
    without: str | None = None,
) -> Table:
    """Average scores, and by how many points a reference is ahead of each plan.

    Of the paper's models the first one stands above ours.

    Parameters
    ----------
    profile, name, stores, tasks, titles
        Those of :func:`score_table`.
    reference : str
        The method that the others are compared with: question by question where the scores are
        ours, by the printed averages where they are the paper's.
    without : str, optional
        A task. The same two columns follow for the average without it.
    """
    _, numbers = score_table(profile, name, stores, tasks, titles=titles)
    numbers = numbers[(numbers["source"] == "ours") | (numbers["model"] == PAPER_MODEL)]
    titles = titles or METHOD_TITLES
    groups = {"": tasks}
    if without:
        others = [task for task in tasks if task != without]
        groups[f" without {named(without, 'hub')}"] = others
    shown = numbers.drop_duplicates(PLAN)[["source", *PLAN, "methods"]]
    columns = {"model": "{model}", "method": "{methods}"}
    for group, of_group in groups.items():
        means = _means(numbers, of_group)
        leads = differences(profile, stores, {group: of_group}, reference, titles)
        leads = pd.concat([_printed_leads(numbers, means, reference), leads])
        average = f"average{group}"
        ahead = f"{titles[reference]} ahead{group}"
        shown = shown.join(means.rename(average), on=PLAN)
        shown = shown.join(_texts(leads).rename(ahead), on=PLAN)
        columns[average] = f"{{{average}:.1f}}"
        columns[ahead] = f"{{{ahead}}}"
    shown = shown.dropna(subset="average").fillna("")
    blocks = []
    for (source, model), part in shown.groupby(["source", "model"], sort=False):
        of_model = lines(part, columns)
        if source == "paper":
            of_model["model"] = f"{model} (paper)"
        else:
            of_model = pd.concat([of_model, _questions(numbers, model)])
        blocks.append(of_model)
    return stacked(*blocks), shown


def _means(numbers: pd.DataFrame, tasks: list[str]) -> pd.Series:
    """Mean score of each plan over those of the tasks that all plans of its model have."""
    parts = {}
    for model, part in numbers[numbers["task"].isin(tasks)].groupby("model", sort=False):
        complete = part.pivot_table("value", "method", "task").dropna(axis="columns")
        parts[model] = complete.mean(axis="columns")
    return pd.concat(parts, names=PLAN)


def _printed_leads(numbers: pd.DataFrame, means: pd.Series, reference: str) -> pd.DataFrame:
    """By how many points a method of the paper is ahead of the others, without intervals."""
    printed = numbers.loc[numbers["source"] == "paper", "model"].unique()
    leads = []
    for model in printed:
        of_model = means[model]
        ahead = (of_model[reference] - of_model).drop(reference)
        leads.append(pd.DataFrame({"model": model, "method": ahead.index, "value": ahead.array}))
    return pd.concat(leads)


def _texts(leads: pd.DataFrame) -> pd.Series:
    """Each lead with its interval, by model and method."""
    texts = [written(row, LEAD).replace("-", "−") for row in leads.to_dict("records")]
    return pd.Series(texts, index=pd.MultiIndex.from_frame(leads[PLAN]))


def _questions(numbers: pd.DataFrame, model: str) -> pd.DataFrame:
    """The line with the number of questions of a model's average."""
    counts = numbers[(numbers["model"] == model) & (numbers["task"] == AVERAGE)]["questions"]
    return pd.DataFrame(
        [{"model": display_name(model), "method": "questions", "average": f"{counts.max():.0f}"}]
    )


def averages_generation(profile: dict) -> Table:
    """Average scores on generation tasks, with BBH and without it."""
    tasks = of_kind("generation")
    return averages(profile, "generation", "main_tables", tasks, FLAPPED, without=BBH)


def averages_discriminative(profile: dict) -> Table:
    """Average scores on discriminative tasks."""
    tasks = of_kind("discriminative")
    return averages(profile, "discriminative", "main_tables", tasks, FLAPPED)


@table("efficiency")
def memory(profile: dict) -> Table:
    """The KV cache and the peak memory of a prefill, as multiples of the dense model's."""
    frame = efficiency(profile, "prefill")
    measures = {"cache_bytes of dense": "cache", "peak_bytes of dense": "peak"}
    measures = {name: word for name, word in measures.items() if name in frame}
    rows = []
    for (model, length), part in frame.groupby(["model", "length"], sort=False):
        row = {"model": model, "length": length}
        for variant, of_variant in part.set_index("variant").iterrows():
            for name, word in measures.items():
                row[f"{word} {variant}"] = of_variant[name]
        rows.append(row)
    numbers = pd.DataFrame(rows)
    columns = {"model": "{model}", "tokens": "{length:,}", "KV cache, HARP": "{cache harp:.2f}"}
    columns["KV cache, thinned out evenly"] = "{cache thinned:.2f}"
    columns["peak, HARP"] = "{peak harp:.2f}"
    columns["peak, thinned out evenly"] = "{peak thinned:.2f}"
    return stacked(lines(numbers, columns)), numbers
