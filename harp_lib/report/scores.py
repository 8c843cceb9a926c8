"""Scores of benchmarks as frames, and as the paper's tables."""

from collections.abc import Iterable, Mapping
from fractions import Fraction
from itertools import product

import numpy as np
import pandas as pd

from harp_lib.evaluation.benchmarks import ALL_BENCHMARKS, BENCHMARKS, LONGBENCH, task_title
from harp_lib.names import CATALOGUE, CORPUS_TITLES, METHOD_TITLES, display_name
from harp_lib.report import comparisons, data, table
from harp_lib.report.claims.score_tests import score_lead
from harp_lib.report.plans import dropped_attention, one_row_per_plan
from harp_lib.report.plots import span
from harp_lib.report.tables import MISSING, Table, block, perplexities, stacked, written
from harp_lib.results import Cells

FLAPPED = "harp+flap"
STRATEGIES = {
    "dense": "dense",
    "bottom": "Bottom",
    "hessian": "Hessian",
    "similarity": "Similarity",
    "top": "Top",
}
ALPHAS = {"dense": "dense", "top": "HARP, α = 1", "harp": "HARP, α searched"}
ABLATED = ("ablations", "main_tables")  # HARP and the dense model are in the second
KINDS, AVERAGE = ("generation", "discriminative"), "average"
CELL = ["model", "method", "task"]
WITHOUT_ONE = "average without one task"
FEWEST_QUESTIONS = 10  # of a task: a score of fewer is not shown as one
RATIOS = {
    "removed_fraction": "parameters removed",
    "head_ratio": "heads removed",
}  # and their columns


def of_kind(kind: str) -> list[str]:
    """The benchmarks of a kind, by lm-eval's names."""
    return [name for name, benchmark in BENCHMARKS.items() if benchmark.kind == kind]


def scores(
    profile: dict, stores: str | tuple, tasks: Iterable[str], methods: Iterable[str] = METHOD_TITLES
) -> pd.DataFrame:
    """Mean score and standard error of each plan on each task, and on average of the tasks that no
    method lacks.

    Columns: model, method, task, value, error (in per cent), questions, reason (of no score),
    removed_fraction and head_ratio (fractions of 1), least and most (of an average: its range when
    one task is left out), methods (by :func:`one_row_per_plan`). A task with fewer than
    ``FEWEST_QUESTIONS`` has no score. Of several stores together, the models that all of them have.
    """
    rows, tasks, names = [], list(tasks), list(methods)
    found = [
        data.cells(profile["name"], store)
        for store in ((stores,) if isinstance(stores, str) else stores)
    ]
    models = set.intersection(*({model for model, *_ in cells} for cells in found))
    for key, cell in (item for cells in found for item in cells.items()):
        if key[0] in models and key[1] in names and key[2] in tasks:
            result = cell["result"]
            asked = data.answered(result) or []
            if len(asked) >= FEWEST_QUESTIONS:
                numbers = (
                    100 * np.mean(asked),
                    100 * comparisons.score_error(asked),
                    len(asked),
                    None,
                )
            elif asked:
                numbers = (np.nan, np.nan, len(asked), f"{len(asked)} questions")
            else:
                numbers = (np.nan, np.nan, np.nan, result.get("failed"))
            rows.append((*key, *numbers, *map(result.get, RATIOS)))
    columns = [*CELL, "value", "error", "questions", "reason", *RATIOS]
    frame = pd.DataFrame(rows, columns=columns).drop_duplicates(CELL)  # what two stores have
    frame = pd.concat(
        [frame, *(_average(part) for _, part in frame.groupby("model", sort=False))],
        ignore_index=True,
    )
    frame[list(RATIOS)] = frame.groupby(CELL[:2])[list(RATIOS)].transform("first").astype(float)
    order = {name: i for i, name in enumerate([*tasks, AVERAGE, *names])}
    frame = frame.sort_values(
        CELL, key=lambda part: part.map(order) if part.name != "model" else part
    )
    return one_row_per_plan(frame.reset_index(drop=True), data.cells(profile["name"], "baselines"))


def _average(part: pd.DataFrame) -> pd.DataFrame:
    """A model's rows of the unweighted mean over the tasks that all of its methods have."""
    whole = part.pivot_table("value", "task", "method").dropna().index
    rows = part[part["task"].isin(whole)].groupby(["model", "method"])
    error = rows["error"].agg(lambda errors: np.sqrt((errors.to_numpy() ** 2).sum()) / len(errors))
    average = rows.agg({"value": "mean", "questions": "sum"}).assign(error=error, task=AVERAGE)
    average["least"] = rows["value"].agg(lambda values: _without_one(values).min())
    average["most"] = rows["value"].agg(lambda values: _without_one(values).max())
    return average.reset_index()


def _without_one(values: pd.Series) -> pd.Series:
    """The average of some tasks when each of them is left out; nan of a single task."""
    if len(values) < 2:
        return values * np.nan
    return (values.sum() - values) / (len(values) - 1)


def differences(
    profile: dict, store: str, groups: Mapping[str, Iterable[str]], reference: str
) -> pd.DataFrame:
    """By how many points a reference scores higher than each other plan, paired by question, with
    its interval.

    Columns: model, method, group (the key of the tasks that are averaged), value, low, high,
    questions, silent (both scored zero on all of these), methods (by :func:`one_row_per_plan`).
    Tasks that one of the two lacks are left out, and groups with fewer than ``FEWEST_QUESTIONS``.
    """
    stored, rows = data.cells(profile["name"], store), []
    asked = {
        key: scores for key, cell in stored.items() if (scores := data.answered(cell["result"]))
    }
    for model, (group, tasks), method in product(
        dict.fromkeys(key[0] for key in asked), groups.items(), METHOD_TITLES
    ):
        both = [
            (asked.get((model, reference, task)), asked.get((model, method, task)))
            for task in tasks
        ]
        both = [pair for pair in both if None not in pair]
        asked_together = sum(len(ours) for ours, _ in both)
        if asked_together >= FEWEST_QUESTIONS and method != reference:
            silent = not any(any(scores) for pair in both for scores in pair)
            rows.append((model, method, group, *comparisons.paired_difference(both) * 100, silent))
    frame = pd.DataFrame(
        rows, columns=["model", "method", "group", "value", "low", "high", "questions", "silent"]
    )
    return one_row_per_plan(frame, data.cells(profile["name"], "baselines"))


def closest_baselines(profile: dict) -> pd.DataFrame:
    """The baseline that decides whether HARP+FLAP leads on generation tasks, for each model, as the
    claims name it.

    Columns: model, rival (the joined titles of equal plans), value, low, high (points ahead),
    questions.
    """
    rows = []
    for model in dict.fromkeys(model for model, *_ in data.cells(profile["name"], "main_tables")):
        source = data.Source(profile["name"], "main_tables", model, data.cells)
        try:
            (lead,) = score_lead(source, FLAPPED, "baselines", "generation")
        except data.Missing:
            continue
        rows.append((model, lead.rival, *lead.interval))
    return pd.DataFrame(rows, columns=["model", "rival", "value", "low", "high", "questions"])


def score_table(
    profile: dict,
    name: str,
    stores: str | tuple,
    tasks: list[str],
    ratios=(),
    titles: Mapping[str, str] | None = None,
) -> Table:
    """The paper's models whole, the best method in bold; then ours, with the number of questions.

    An ablation has ``titles`` of what it compares; else HARP, which removes less, competes for no
    bold number.
    """
    ours = scores(profile, stores, tasks, titles or METHOD_TITLES)
    if titles:
        competing = list(titles)
        ours["methods"] = ours["method"].map(titles)
    else:
        competing = [name for name, method in CATALOGUE.items() if method.at_equal_parameters]
    printed = data.paper(name).replace(
        {"task": {f"average {ALL_BENCHMARKS[tasks[0]].kind}": AVERAGE}}
    )
    paper = printed[(printed["quantity"] == "score") & printed["task"].isin([*tasks, AVERAGE])]
    about = printed[printed["task"] == "all"].pivot_table("value", CELL[:2], "quantity")
    paper = paper.join(about, on=CELL[:2])
    paper["methods"] = paper["method"].map(titles or METHOD_TITLES)
    competes = paper["method"].isin(competing)
    highest = (
        paper["value"].where(competes).groupby([paper["model"], paper["task"]]).transform("max")
    )
    paper["best"] = competes & (paper["value"] == highest)
    numbers = pd.concat([paper.assign(source="paper"), ours.assign(source="ours")])
    tasks, here, blocks = list(paper["task"].unique()), profile["datasets"], []
    for (source, model), part in numbers.groupby(["source", "model"], sort=False):
        scale, unit = (1, "{share:.1f} %") if source == "paper" else (100, "{share:.2f} %")
        shown = block(part, "method", "task").reindex(
            columns=["method", *tasks], fill_value=MISSING
        )
        first = part.groupby("method").first().reindex(columns=list(RATIOS)).loc[shown["method"]]
        shown["removed_fraction"] = [
            written({"share": scale * r}, unit) for r in first["removed_fraction"]
        ]
        shown["head_ratio"] = [
            str(Fraction(r).limit_denominator(1000)) for r in first["head_ratio"].fillna(0)
        ]
        shown[WITHOUT_ONE] = [
            _range_without_one(part[part["method"] == method]) for method in shown["method"]
        ]
        shown["method"] = shown["method"].map(part.groupby("method")["methods"].first())
        if source == "ours":
            own = [{task: named(task, here) for task in tasks}] if here == "embedded" else []
            asked = part.groupby("task")["questions"].max().map("{:.0f}".format).to_dict() | {
                "method": "questions"
            }
            shown = pd.concat([pd.DataFrame(own), shown, pd.DataFrame([asked])])
        blocks.append(
            shown.assign(model=f"{model} (paper)" if source == "paper" else display_name(model))
        )
    averages = [WITHOUT_ONE] if AVERAGE in tasks else []
    shown = stacked(*blocks)[["model", "method", *ratios, *tasks, *averages]]
    shown = shown.rename(columns={task: named(task, "hub") for task in tasks} | RATIOS)
    return shown, numbers.drop(columns=["quantity", "best"])


def _range_without_one(scored: pd.DataFrame) -> str:
    """The range of a method's average when one task is left out, in words."""
    values = scored.loc[scored["task"] != AVERAGE, "value"].dropna()
    if AVERAGE not in set(scored["task"]):
        return MISSING
    averages = _without_one(values)
    return written({"least": averages.min(), "most": averages.max()}, "{least:.1f} to {most:.1f}")


def named(task: str, source: str) -> str:
    """What an axis or a column calls a task, or the average."""
    return task.capitalize() if task == AVERAGE else task_title(task, source)


@table("main_tables")
def scores_generation(profile: dict) -> Table:
    """The paper's Table "gen"."""
    return score_table(profile, "generation", "main_tables", of_kind("generation"), [*RATIOS])


@table("main_tables")
def scores_discriminative(profile: dict) -> Table:
    """The paper's Table "dis"."""
    return score_table(
        profile, "discriminative", "main_tables", of_kind("discriminative"), ["head_ratio"]
    )


@table("longbench")
def longbench_scores(profile: dict) -> Table:
    """The paper's Table "longcontext"; it prints no averages."""
    return score_table(profile, "longbench", "longbench", [*LONGBENCH])


@table("ablations")
def ablation_layer_selection(profile: dict) -> Table:
    """The paper's Table "layer_selection"."""
    return score_table(
        profile, "layer_selection", ABLATED, of_kind("discriminative"), titles=STRATEGIES
    )


@table("ablations")
def ablation_alpha_generation(profile: dict) -> Table:
    """The lower half of the paper's Table "ablation"."""
    return score_table(profile, "alpha_ablation", ABLATED, of_kind("generation"), titles=ALPHAS)


@table("ablations")
def ablation_alpha_discriminative(profile: dict) -> Table:
    """Its upper half."""
    return score_table(profile, "alpha_ablation", ABLATED, of_kind("discriminative"), titles=ALPHAS)


@table("main_tables")
def dataset_statistics(profile: dict) -> pd.DataFrame:
    """The paper's Table "stat" with its sentence on generation tasks, and the same of what is asked
    here.
    """
    printed = data.paper("dataset_statistics").pivot_table("value", "quantity", "task", sort=False)
    paper = printed.map(lambda number: "" if pd.isna(number) else f"{number:,.0f}")
    paper, asked, counts = (
        paper.rename(index={"documents": "# Tasks", "choices": "# Choices"}),
        {},
        {},
    )
    for (*_, name), cell in data.cells(profile["name"], "main_tables").items():
        inputs, result, benchmark = cell["inputs"], cell["result"], BENCHMARKS[name]
        if scores := data.answered(result):
            counts.setdefault(name, []).append(len(scores))  # of every model
            asked[name] = {
                "called": task_title(name, profile["datasets"]),
                "in lm-eval": f"{name}, version {next(iter(result['versions'].values())):g}",
                "metric": benchmark.metric
                + ("" if benchmark.filter == "none" else f" ({benchmark.filter})"),
                "questions": span(counts[name], ".0f"),
                "choices": benchmark.choices or "",
                "examples in the prompt": inputs.get("shots", ""),
                "new tokens at most": ""
                if benchmark.choices
                else inputs.get("new_tokens") or "lm-eval's",
            }
    here = pd.DataFrame(asked).reindex(columns=paper.columns)
    shown = stacked(
        pd.concat({"paper": paper, "here": here}, names=["model", "what"]).reset_index()
    )
    return shown.rename(
        columns={"model": " "} | {task: task_title(task, "hub") for task in printed.columns}
    )


@table("main_tables", "baselines")
def at_a_glance(profile: dict) -> Table:
    """One line for each plan: what it removes, held-out perplexity of both texts, average scores,
    and remarks.

    The plans that remove as many parameters as each other stand together; HARP and its refit, which
    remove fewer, beneath them.
    """
    stored = data.cells(profile["name"], "baselines")
    texts = perplexities(profile, "baselines").query(
        "method in @METHOD_TITLES and split == 'validation'"
    )
    parts = []
    for corpus, of_corpus in one_row_per_plan(texts, stored).groupby("corpus", sort=False):
        documents = span(of_corpus["documents"], ".0f")
        parts.append(
            of_corpus.assign(
                what=f"perplexity, {CORPUS_TITLES.get(corpus, corpus)} ({documents} documents)"
            )
        )
    source = "home-made questions" if profile["datasets"] == "embedded" else "questions"
    ratios = {}  # of each plan, whether or not it has an average
    for kind in KINDS:
        scored = scores(profile, "main_tables", of_kind(kind))
        ratios |= scored.groupby(["model", "method"])["removed_fraction"].first().to_dict()
        averages = scored.query("task == @AVERAGE")
        parts.append(
            averages.assign(what=f"{kind} ({span(averages['questions'], '.0f')} {source})")
        )
    numbers = pd.concat(parts, ignore_index=True)
    columns = ["model", "method", "methods", "what", "value", "error", "least", "most"]
    numbers = numbers.reindex(columns=columns)
    numbers["note"] = [
        _note(stored, *plan) for plan in zip(numbers["model"], numbers["method"], strict=True)
    ]

    measured = list(numbers["what"].unique())
    blocks = []
    for model, part in numbers.groupby("model"):
        wide = _glance(part.sort_values("method", key=place_of, kind="stable"), measured)
        wide.insert(
            1,
            "parameters removed (%)",
            [f"{100 * ratios[model, method]:.1f}" for method in wide["method"]],
        )
        wide["remarks"] = wide["method"].map(part.groupby("method")["note"].first())
        at_equal = wide["method"].map(
            lambda method: method == "dense" or CATALOGUE[method].at_equal_parameters
        )
        wide["method"] = wide["method"].map(part.groupby("method")["methods"].first())
        heading = pd.DataFrame([{"method": "*fewer parameters removed:*"}])
        shown = pd.concat([wide[at_equal], heading, wide[~at_equal]])
        blocks.append(shown.assign(model=display_name(model)))
    return stacked(*blocks)[["model", *blocks[0].columns.drop("model")]], numbers


def _glance(part: pd.DataFrame, measured: list[str]) -> pd.DataFrame:
    """One model's numbers, a line for each plan and a column for each measured quantity.

    Beside an average stands its range when one task is left out.
    """
    without_range = "{value:.1f} ± {error:.1f}"
    texts = []
    for row in part.to_dict("records"):
        whole = (
            without_range
            if pd.isna(row["most"])
            else without_range + " ({least:.1f} to {most:.1f})"
        )
        texts.append(written(row, whole))
    wide = part.assign(text=texts).pivot_table(
        "text", "method", "what", aggfunc="first", sort=False
    )
    return (
        wide.astype(object)
        .reindex(columns=measured, fill_value=MISSING)
        .fillna(MISSING)
        .rename_axis(columns=None)
        .reset_index()
    )


def _note(stored: Cells, model: str, method: str) -> str:
    """What a reader has to know of a plan: which layers lose their attention, and whether it is a
    choice at all.
    """
    result = stored.get((model, method, "plan"), {"result": {}})["result"]
    groups = result.get("groups_per_layer", 0)
    notes = [dropped_attention(result.get("plan"), groups)]
    if groups == 1 and method != "dense" and CATALOGUE[method].standardises_per_layer:
        notes.append(
            "arbitrary: scores standardised in each layer cannot rank layers of one key/value group"
        )
    return "; ".join(filter(None, notes))


def place_of(methods: pd.Series) -> pd.Series:
    """Where methods stand in tables and figures."""
    return methods.map(list(METHOD_TITLES).index)
