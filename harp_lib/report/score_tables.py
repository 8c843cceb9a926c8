"""The paper's tables of scores with ours beneath, and a table of all plans at a glance."""

from collections.abc import Iterable, Mapping
from fractions import Fraction
from typing import Any

import pandas as pd

from harp_lib.evaluation.benchmarks import ALL_BENCHMARKS, BENCHMARKS, task_title
from harp_lib.names import CATALOGUE, CORPUS_TITLES, METHOD_TITLES, display_name
from harp_lib.report import data, table
from harp_lib.report.plans import dropped_attention, is_arbitrary, one_row_per_plan
from harp_lib.report.plots import span
from harp_lib.report.scores import (
    AVERAGE,
    CELL,
    KINDS,
    RATIOS,
    named,
    of_kind,
    question_counts,
    scores,
    without_one,
)
from harp_lib.report.tables import MISSING, Table, block, perplexities, stacked, written
from harp_lib.results import Cells

WITHOUT_ONE = "average without one task"


def score_table(
    profile: dict,
    name: str,
    stores: str | tuple,
    tasks: list[str],
    ratios: Iterable[str] = (),
    titles: Mapping[str, str] | None = None,
) -> Table:
    """The paper's models with the best method in bold, then ours with the number of questions.

    Parameters
    ----------
    profile : dict
        The profile whose results are read.
    name : str
        The paper's table.
    stores : str or tuple of str
        The stores of our scores.
    tasks : list of str
        The benchmarks of the table, all of one kind.
    ratios : iterable of str
        Which of ``RATIOS`` have a column.
    titles : mapping of str to str, optional
        What an ablation compares. Otherwise all methods are compared, and HARP, which removes less
        than the baselines, competes for no bold number.
    """
    ours = scores(profile, stores, tasks, titles or METHOD_TITLES)
    if titles:
        competing = list(titles)
        ours["methods"] = ours["method"].map(titles)
    else:
        competing = [method for method, entry in CATALOGUE.items() if entry.at_equal_parameters]
    paper = _printed_scores(name, tasks)
    paper["methods"] = paper["method"].map(titles or METHOD_TITLES)
    paper["best"] = _is_best(paper, competing)
    numbers = pd.concat([paper.assign(source="paper"), ours.assign(source="ours")])
    shown_tasks = list(paper["task"].unique())
    blocks = []
    for (source, model), part in numbers.groupby(["source", "model"], sort=False):
        if source == "paper":
            shown = _score_lines(part, shown_tasks, percent=1, form="{share:.1f} %")
            blocks.append(shown.assign(model=f"{model} (paper)"))
        else:
            shown = _score_lines(part, shown_tasks, percent=100, form="{share:.2f} %")
            shown = _with_questions(shown, part, shown_tasks, profile["datasets"])
            blocks.append(shown.assign(model=display_name(model)))
    columns = ["model", "method", *ratios, *shown_tasks]
    if AVERAGE in shown_tasks:
        columns.append(WITHOUT_ONE)
    column_titles = {task: named(task, "hub") for task in shown_tasks}
    shown = stacked(*blocks)[columns].rename(columns=column_titles | RATIOS)
    return shown, numbers.drop(columns=["quantity", "best"])


def _printed_scores(name: str, tasks: list[str]) -> pd.DataFrame:
    """The scores and averages of a table of the paper, with what each method removes."""
    average_of_kind = f"average {ALL_BENCHMARKS[tasks[0]].kind}"
    printed = data.paper(name).replace({"task": {average_of_kind: AVERAGE}})
    is_score = (printed["quantity"] == "score") & printed["task"].isin([*tasks, AVERAGE])
    of_plans = printed[printed["task"] == "all"].pivot_table("value", CELL[:2], "quantity")
    return printed[is_score].join(of_plans, on=CELL[:2])


def _is_best(frame: pd.DataFrame, competing: list[str]) -> pd.Series:
    """Where a competing method has the highest score of a model on a task."""
    competes = frame["method"].isin(competing)
    candidates = frame["value"].where(competes)
    highest = candidates.groupby([frame["model"], frame["task"]]).transform("max")
    return competes & (frame["value"] == highest)


def _score_lines(part: pd.DataFrame, tasks: list[str], percent: float, form: str) -> pd.DataFrame:
    """A line for each method of a model: its scores, what it removes, and its range.

    ``percent`` turns a removed fraction into per cent, and ``form`` is the format of its
    ``share``.
    """
    shown = block(part, "method", "task")
    shown = shown.reindex(columns=["method", *tasks], fill_value=MISSING)
    ratios = part.groupby("method").first().reindex(columns=list(RATIOS)).loc[shown["method"]]
    shown["removed_fraction"] = [
        written({"share": percent * fraction}, form) for fraction in ratios["removed_fraction"]
    ]
    shown["head_ratio"] = [
        str(Fraction(ratio).limit_denominator(1000)) for ratio in ratios["head_ratio"].fillna(0)
    ]
    shown[WITHOUT_ONE] = [
        _range_without_one(part[part["method"] == method]) for method in shown["method"]
    ]
    shown["method"] = shown["method"].map(part.groupby("method")["methods"].first())
    return shown


def _with_questions(
    shown: pd.DataFrame, part: pd.DataFrame, tasks: list[str], datasets: str
) -> pd.DataFrame:
    """The lines of one of our models, then the number of questions of each task.

    Home-made tasks have names of their own, which stand above.
    """
    blocks = [shown]
    if datasets == "embedded":
        blocks.insert(0, pd.DataFrame([{task: named(task, datasets) for task in tasks}]))
    blocks.append(pd.DataFrame([{**question_counts(part), "method": "questions"}]))
    return pd.concat(blocks)


def _range_without_one(scored: pd.DataFrame) -> str:
    """The range of a method's average when one task is left out, in words."""
    if AVERAGE not in set(scored["task"]):
        return MISSING
    values = scored.loc[scored["task"] != AVERAGE, "value"].dropna()
    averages = without_one(values)
    return written({"least": averages.min(), "most": averages.max()}, "{least:.1f} to {most:.1f}")


def scores_generation(profile: dict) -> Table:
    """The paper's Table "gen"."""
    return score_table(profile, "generation", "main_tables", of_kind("generation"), [*RATIOS])


def scores_discriminative(profile: dict) -> Table:
    """The paper's Table "dis"."""
    return score_table(
        profile, "discriminative", "main_tables", of_kind("discriminative"), ["head_ratio"]
    )


def dataset_statistics(profile: dict) -> pd.DataFrame:
    """The paper's Table "stat" with its sentence on generation tasks, and the same for our run."""
    printed = data.paper("dataset_statistics").pivot_table("value", "task", "quantity", sort=False)
    cells_of_tasks = {}
    for (*_, task), cell in data.cells(profile["name"], "main_tables").items():
        if data.answered(cell["result"]):
            cells_of_tasks.setdefault(task, []).append(cell)
    rows = []
    for task, paper in printed.iterrows():
        row = {
            "task": task_title(task, "hub"),
            "questions in the paper": f"{paper['documents']:,.0f}",
            "choices": "" if pd.isna(paper["choices"]) else f"{paper['choices']:.0f}",
        }
        if task in cells_of_tasks:
            row.update(_what_is_asked(task, cells_of_tasks[task]))
            row["task"] = task_title(task, profile["datasets"])
        rows.append(row)
    return pd.DataFrame(rows).fillna(MISSING)


def _what_is_asked(task: str, cells: list[Mapping[str, Any]]) -> dict[str, Any]:
    """How a task is run here: how many questions, how long, and how answers are scored."""
    benchmark = BENCHMARKS[task]
    inputs = cells[0]["inputs"]
    metric = benchmark.metric
    if benchmark.filter != "none":
        metric += f" ({benchmark.filter})"
    new_tokens = ""
    if not benchmark.choices:
        new_tokens = inputs.get("new_tokens") or "lm-eval's"
    counts = [len(data.answered(cell["result"])) for cell in cells]
    return {
        "questions here": span(counts, ".0f"),
        "examples in the prompt": inputs.get("shots", ""),
        "new tokens at most": new_tokens,
        "metric": metric,
    }


@table("main_tables", "baselines")
def at_a_glance(profile: dict) -> Table:
    """One line for each plan: what it removes, its perplexities and average scores, and remarks.

    Perplexity is on held-out text of both corpora. The plans that remove as many parameters as each
    other stand together; HARP and its refit, which remove fewer, stand beneath them.
    """
    scored = {kind: scores(profile, "main_tables", of_kind(kind)) for kind in KINDS}
    removed = {}  # of each plan, whether or not it has an average
    for frame in scored.values():
        removed.update(frame.groupby(["model", "method"])["removed_fraction"].first().to_dict())
    parts = [*_glance_perplexities(profile), *_glance_scores(scored, profile["datasets"])]
    columns = ["model", "method", "methods", "what", "value", "error", "least", "most"]
    numbers = pd.concat(parts, ignore_index=True).reindex(columns=columns)
    stored = data.cells(profile["name"], "baselines")
    plans = zip(numbers["model"], numbers["method"], strict=True)
    numbers["note"] = [_note(stored, model, method) for model, method in plans]

    measured = list(numbers["what"].unique())
    blocks = []
    for model, part in numbers.groupby("model", sort=False):
        part = data.in_order(part, "method", METHOD_TITLES)
        blocks.append(_glance(part, measured, removed).assign(model=display_name(model)))
    return stacked(*blocks)[["model", *blocks[0].columns.drop("model")]], numbers


def _glance_perplexities(profile: dict) -> list[pd.DataFrame]:
    """Held-out perplexities of each plan, a frame for each text; ``what`` names it."""
    frame = perplexities(profile, "baselines")
    frame = frame.query("method in @METHOD_TITLES and split == 'validation'")
    frame = one_row_per_plan(frame, data.cells(profile["name"], "baselines"))
    parts = []
    for corpus, part in frame.groupby("corpus", sort=False):
        documents = span(part["documents"], ".0f")
        title = f"perplexity, {CORPUS_TITLES.get(corpus, corpus)} ({documents} documents)"
        parts.append(part.assign(what=title))
    return parts


def _glance_scores(scored: Mapping[str, pd.DataFrame], datasets: str) -> list[pd.DataFrame]:
    """Average scores of each plan, a frame for each kind of task; ``what`` names it."""
    source = "home-made questions" if datasets == "embedded" else "questions"
    parts = []
    for kind, frame in scored.items():
        averages = frame.query("task == @AVERAGE")
        title = f"{kind} ({span(averages['questions'], '.0f')} {source})"
        parts.append(averages.assign(what=title))
    return parts


def _glance(
    part: pd.DataFrame, measured: list[str], removed: Mapping[tuple[str, str], float]
) -> pd.DataFrame:
    """The lines of one model, with a column for each quantity that was ``measured``."""
    (model,) = part["model"].unique()
    wide = _glance_numbers(part, measured)
    methods = wide["method"]
    percents = [f"{100 * removed[model, method]:.1f}" for method in methods]
    wide.insert(1, "parameters removed (%)", percents)
    plans = part.groupby("method")
    wide["remarks"] = methods.map(plans["note"].first())
    at_equal = methods.map(_is_at_equal_parameters)
    wide["method"] = methods.map(plans["methods"].first())
    heading = pd.DataFrame([{"method": "*fewer parameters removed:*"}])
    return pd.concat([wide[at_equal], heading, wide[~at_equal]])


def _is_at_equal_parameters(method: str) -> bool:
    """Whether a method removes as many parameters as the baselines, or is the dense model."""
    return method == "dense" or CATALOGUE[method].at_equal_parameters


def _glance_numbers(part: pd.DataFrame, measured: list[str]) -> pd.DataFrame:
    """One model's numbers, a line for each plan and a column for each measured quantity.

    Beside an average stands its range when one task is left out.
    """
    texts = []
    for row in part.to_dict("records"):
        form = "{value:.1f} ± {error:.1f}"
        if not pd.isna(row["most"]):
            form += " ({least:.1f} to {most:.1f})"
        texts.append(written(row, form))
    wide = part.assign(text=texts).pivot_table(
        "text", "method", "what", aggfunc="first", sort=False
    )
    wide = wide.astype(object).reindex(columns=measured, fill_value=MISSING).fillna(MISSING)
    return wide.rename_axis(columns=None).reset_index()


def _note(stored: Cells, model: str, method: str) -> str:
    """Which layers lose their attention in a plan, and whether the plan is a choice at all."""
    result = stored.get((model, method, "plan"), {"result": {}})["result"]
    groups = result.get("groups_per_layer", 0)
    notes = []
    dropped = dropped_attention(result.get("plan"), groups)
    if dropped:
        notes.append(dropped)
    if is_arbitrary(stored, model, method):
        notes.append(
            "arbitrary: scores standardised in each layer cannot rank layers of one key/value group"
        )
    return "; ".join(notes)
