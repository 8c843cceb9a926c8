"""Tables and figures of how likely the right answer is: margins, bits per byte and flips.

In multiple choice the measure is the log-odds margin of the right choice, in written answers the
bits per byte of the reference answer (:mod:`harp_lib.evaluation.likelihood`). Both are compared
question by question.
"""

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from harp_lib import config
from harp_lib.names import METHOD_TITLES, display_name
from harp_lib.report import data, plots
from harp_lib.report.comparisons import Interval, paired_mean_difference
from harp_lib.report.figures_scores import looks_of_plans
from harp_lib.report.plans import one_row_per_plan
from harp_lib.report.plots import Look
from harp_lib.report.right_answers import ITEM, measure_of, paired, right_answers
from harp_lib.report.scores import AVERAGE, FEWEST_QUESTIONS, named, of_kind, question_counts
from harp_lib.report.tables import MISSING, Table, block, stacked

DIRECTIONS = {"to_wrong": "right to wrong", "to_right": "wrong to right"}  # of flips


def changes_against_dense(
    profile: dict, groups: Mapping[str, list[str]], methods: Collection[str] = METHOD_TITLES
) -> pd.DataFrame:
    """How much less likely the right answer is than with the dense model, paired by question.

    A group is the average of those of its tasks that the model has under every method.

    Parameters
    ----------
    profile : dict
        The profile whose results are read.
    groups : mapping of str to list of str
        The tasks of each group.
    methods : collection of str
        The dense model and the methods that are compared with it.

    Returns
    -------
    DataFrame
        Columns: model, method, group, value, low, high (above 0 it is less likely: the margin that
        is lost, or the bits per byte that are added), questions.
    """
    all_tasks = {task for tasks in groups.values() for task in tasks}
    answers = right_answers(profile["name"], all_tasks)
    answers = answers[answers["method"].isin(methods)]
    rows = []
    for model, of_model in answers.groupby("model", sort=False):
        for group, tasks in groups.items():
            of_group = of_model[of_model["task"].isin(tasks)]
            complete = of_group.pivot_table("value", "task", "method").dropna().index
            if not len(complete):
                continue
            for method in of_group["method"].unique():
                if method != "dense":
                    rows.append((model, method, group, *_loss(of_group, complete, method)))
    columns = ["model", "method", "group", "value", "low", "high", "questions"]
    return pd.DataFrame(rows, columns=columns)


def _loss(answers: pd.DataFrame, tasks: pd.Index, method: str) -> Interval:
    """How much less likely a method finds the right answers to some tasks than the dense model."""
    pairs = []
    for task in tasks:
        both = paired(answers, task, ["dense", method])
        if measure_of(task).sign > 0:
            pairs.append((both["dense"], both[method]))
        else:
            pairs.append((both[method], both["dense"]))
    return paired_mean_difference(pairs)


def flips(profile: dict, tasks: list[str]) -> pd.DataFrame:
    """Answers that differ from the dense model's, after Dutta et al. (2024, arXiv 2407.09141).

    An answer is right if its score is above one half.

    Returns
    -------
    DataFrame
        Columns: model, method, task, questions, and as fractions of 1 ``flipped`` (right became
        wrong or wrong became right), ``to_wrong`` and ``to_right`` (its two parts), and ``changed``
        (another choice than the dense model's, right or not; nan where answers are written). It is
        empty for LongBench, whose scores are in another store.
    """
    questions = data.questions(data.cells(profile["name"], "main_tables"))
    if questions.empty:
        return pd.DataFrame()
    is_asked = questions["task"].isin(tasks) & questions["method"].isin(METHOD_TITLES)
    questions = questions[is_asked]
    if questions.empty:
        return pd.DataFrame()
    if "choice" not in questions:
        questions = questions.assign(choice=np.nan)
    keys = ["model", "task", *ITEM]
    is_dense = questions["method"] == "dense"
    dense = questions[is_dense].set_index(keys)[["score", "choice"]]
    both = questions[~is_dense].join(dense, on=keys, rsuffix=" of dense", how="inner")
    was_right = both["score of dense"] > 0.5
    is_right = both["score"] > 0.5
    both["to_wrong"] = (was_right & ~is_right).astype(float)
    both["to_right"] = (~was_right & is_right).astype(float)
    both["flipped"] = both["to_wrong"] + both["to_right"]
    differs = (both["choice"] != both["choice of dense"]).astype(float)
    both["changed"] = differs.where(both["choice"].notna())
    parts = both.groupby(["model", "method", "task"], sort=False)
    shares = parts[["flipped", "to_wrong", "to_right", "changed"]].mean()
    return shares.assign(questions=parts.size()).reset_index()


def _average_flips(profile: dict, tasks: list[str]) -> pd.DataFrame:
    """Flips of each model and method, averaged over the tasks."""
    of_tasks = flips(profile, tasks)
    if of_tasks.empty:
        return of_tasks
    plans = of_tasks.groupby(["model", "method"])
    return plans[["flipped", "to_wrong", "to_right"]].mean().reset_index()


def _averages(profile: dict, answers: pd.DataFrame, tasks: list[str]) -> pd.DataFrame:
    """The average measure of each plan on each task, in the order of models, methods and tasks.

    Columns: model, method, task, value, error, questions, methods.
    """
    groups = answers.groupby(["model", "method", "task"], sort=False)["value"]
    frame = groups.agg(value="mean", error="sem", questions="size").reset_index()
    frame = data.in_order(frame, "task", tasks)
    frame = data.in_order(frame, "method", METHOD_TITLES)
    frame = data.in_order(frame, "model", config.NAMED_MODELS).reset_index(drop=True)
    return one_row_per_plan(frame, data.cells(profile["name"], "baselines"))


def _table(profile: dict, tasks: list[str], form: str) -> Table | None:
    """The measure of each plan on each task, and the average flips of its answers."""
    answers = right_answers(profile["name"], tasks)
    answers = answers[answers["method"].isin(METHOD_TITLES)]
    if answers.empty:
        return None
    frame = _averages(profile, answers, tasks)
    flipped = _average_flips(profile, tasks)
    blocks = []
    for model, part in frame.groupby("model", sort=False):
        shown = block(part, "methods", "task", form)
        if not flipped.empty:
            names = part.drop_duplicates("methods").set_index("methods")["method"]
            of_model = flipped[flipped["model"] == model].set_index("method")
            of_plans = of_model.reindex(shown["methods"].map(names))
            for column, title in DIRECTIONS.items():
                shown[title] = [_share(value) for value in of_plans[column].astype(float)]
        last_line = pd.DataFrame([{"methods": "questions", **question_counts(part)}])
        blocks.append(pd.concat([shown, last_line]).assign(model=display_name(model)))
    shown = stacked(*blocks)
    columns = ["model", "methods", *(task for task in tasks if task in shown)]
    if not flipped.empty:
        columns.extend(DIRECTIONS.values())
    titles = {task: named(task, profile["datasets"]) for task in tasks}
    titles["methods"] = "method"
    return shown[columns].rename(columns=titles), frame


def _share(value: float) -> str:
    """A fraction in per cent, or a dash."""
    return MISSING if np.isnan(value) else f"{value:.1%}"


def likelihood_discriminative(profile: dict) -> Table | None:
    """Log-odds margin of the right choice (nats; a guess has 0, more is better), and flips."""
    return _table(profile, of_kind("discriminative"), "{value:.2f} ± {error:.2f}")


def likelihood_generation(profile: dict) -> Table | None:
    """Bits per byte of the reference answer (less is better), and flips."""
    return _table(profile, of_kind("generation"), "{value:.3f} ± {error:.3f}")


def _grouped(profile: dict, tasks: list[str]) -> dict[str, list[str]]:
    """Each task for itself by its title, and the average of all."""
    groups = {named(task, profile["datasets"]): [task] for task in tasks}
    groups[AVERAGE.capitalize()] = tasks
    return groups


def _losses_of_methods(
    profile: dict, groups: Mapping[str, list[str]], unit: str, title: str
) -> Figure | None:
    """How much less likely the right answer is under each distinct plan than with the dense model.

    Baselines that made the same plan share a mark.
    """
    frame = changes_against_dense(profile, groups)
    frame = one_row_per_plan(frame, data.cells(profile["name"], "baselines"))
    if frame.empty:
        return None
    looks = looks_of_plans(frame)
    return _losses(frame, "methods", looks, unit, title, wrap=2, size=(5.2, 4.4))


def _losses(
    frame: pd.DataFrame, hue: str, looks: Mapping[str, Look], unit: str, title: str, **layout: Any
) -> Figure | None:
    """The changes of a frame by group, with a mark for each look.

    A group with fewer than ``FEWEST_QUESTIONS`` is not drawn; its tasks are part of the average.
    """
    frame = frame[frame["questions"] >= FEWEST_QUESTIONS].copy()
    if frame.empty:
        return None
    counts = frame.groupby(["model", "group"])["questions"].transform("max")
    names = zip(frame["group"], counts, strict=True)
    frame["name"] = [f"{group} ({count})" for group, count in names]
    of_axis = f"{unit} lost against the dense model"
    drawn = plots.dots(frame, "name", hue, looks, share=(False, False), x=of_axis, **layout)
    for axis, _ in drawn.panels:
        axis.axvline(0, color=plots.DENSE, linewidth=1)
    note = "{model}(questions), 95 % intervals, paired by question; "
    note += "to the right the right answer is less likely"
    return plots.finish(drawn, title, note)


def margin_lost(profile: dict) -> Figure | None:
    """Log-odds margin that each plan loses against the dense model, by task."""
    title = "Multiple choice: how much of the right choice's margin each method loses"
    groups = _grouped(profile, of_kind("discriminative"))
    return _losses_of_methods(profile, groups, "nats of margin", title)


def bits_lost(profile: dict) -> Figure | None:
    """Bits per byte of the reference answer that each plan adds to the dense model's, by task."""
    title = "Written answers: how many more bits each method needs for the reference answer"
    groups = _grouped(profile, of_kind("generation"))
    return _losses_of_methods(profile, groups, "bits per byte", title)
