"""Figures of scores: both halves of the paper's Figure 1, and who leads."""

from collections.abc import Mapping
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.pyplot import setp

from harp_lib.names import BASELINES, METHOD_TITLES, display_name
from harp_lib.report import data, plots
from harp_lib.report.plots import LOOKS, Look, with_paper
from harp_lib.report.scores import (
    FEWEST_QUESTIONS,
    FLAPPED,
    KINDS,
    PAPER_MODEL,
    differences,
    named,
    of_kind,
    scores,
)

AVERAGES = {f"{kind} tasks": of_kind(kind) for kind in KINDS}


def looks_of_plans(frame: pd.DataFrame) -> dict[str, Look]:
    """The looks of the plans of a frame, by their joined names.

    A plan that several methods made looks like the first of them.
    """
    plans = data.in_order(frame.drop_duplicates("methods"), "method", METHOD_TITLES)
    return {
        plan.methods: LOOKS[plan.method]._replace(label=plan.methods) for plan in plans.itertuples()
    }


def _bars(
    profile: dict,
    frame: pd.DataFrame,
    hue: str,
    looks: Mapping[str, Look],
    title: str,
    chances: Mapping[tuple[str, str], float] | None = None,
    remark: str = "",
    **layout: Any,
) -> Figure:
    """The paper's scores and then ours, a bar for each look on each task.

    ``chances`` are what a guess scores in per cent, by model and task, and are drawn as lines.
    ``remark`` ends the note.
    """
    datasets = {"paper": "hub", "ours": profile["datasets"]}
    tasks = zip(frame["task"], frame["source"].map(datasets), strict=True)
    frame["title"] = [named(task, source) for task, source in tasks]
    frame["low"] = (frame["value"] - frame["error"]).clip(lower=0)  # no score is below 0
    frame["high"] = (frame["value"] + frame["error"]).clip(upper=100)
    drawn = plots.bars(
        frame,
        "title",
        hue,
        looks,
        wrap=1,
        size=(9.5, 2.4),
        share=(False, False),
        y="score (%)",
        **layout,
    )
    for axis, part in drawn.panels:
        _draw_chances(axis, part, chances or {})
        setp(axis.get_xticklabels(), rotation=30, ha="right", rotation_mode="anchor")
        # The axis lies below 0, so that the stroke of a score of 0 stands free of it.
        top = axis.get_ylim()[1]
        axis.set_ylim(-0.06 * top, top)
    note = "lines: ± standard error, which the paper does not print; "
    note += "a stroke at 0 is a score of 0, and no mark is no score" + remark
    return plots.finish(drawn, title, note)


def _draw_chances(axis: Axes, part: pd.DataFrame, chances: Mapping[tuple[str, str], float]) -> None:
    """A line across the bars of each task on which a guess scores something."""
    titles = [label.get_text() for label in axis.get_xticklabels()]
    for row in part.drop_duplicates(["model", "task"]).itertuples():
        chance = chances.get((row.model, row.task), 0)
        if chance:
            place = titles.index(row.title)
            ends = (place - 0.45, place + 0.45)
            axis.hlines(chance, *ends, "black", linestyle=":", linewidth=1.5, label="a guess")


def _scores_of_guesses(profile: dict) -> dict[tuple[str, str], float]:
    """What a guess in the right form scores in per cent, by model and task."""
    chances = {}
    for (model, method, task), cell in data.cells(profile["name"], "main_tables").items():
        of_questions = data.answered(cell["result"], "chance")
        if method == "dense" and of_questions:
            chances[model, task] = 100 * sum(of_questions) / len(of_questions)
    return chances


def teaser_left(profile: dict) -> Figure | None:
    """The left half of the paper's Figure 1: scores on generation tasks.

    The paper's first model stands above ours.
    """
    printed = data.paper("generation")
    printed = printed[(printed["model"] == PAPER_MODEL) & (printed["quantity"] == "score")]
    printed = printed.assign(methods=printed["method"].map(METHOD_TITLES))
    frame = with_paper(scores(profile, "main_tables", of_kind("generation")), printed)
    if frame[frame["source"] == "ours"].empty:
        return None
    title = "Scores on generation tasks: the paper's first model, and ours beneath"
    remark = ""
    models = dict.fromkeys(model for model, *_ in data.cells(profile["name"], "main_tables"))
    without = [display_name(model) for model in models if model not in set(frame["model"])]
    if without:
        remark = f"; not asked: {', '.join(without)}"
    chances = _scores_of_guesses(profile)
    return _bars(profile, frame, "methods", looks_of_plans(frame), title, chances, remark)


def _leads(
    frame: pd.DataFrame, counted: pd.DataFrame, remark: str = "", **layout: Any
) -> Figure | None:
    """By how many points a reference is ahead of others, group by group.

    Each group has its number of questions. The title says how many of the ``counted`` comparisons
    the reference leads, if there are any. ``remark`` ends the note.
    """
    if frame.empty:
        return None
    frame = frame.assign(name=[f"{row.group} ({row.questions})" for row in frame.itertuples()])
    drawn = plots.dots(
        frame,
        "name",
        "methods",
        looks_of_plans(frame),
        wrap=2,
        share=(True, False),
        x=f"points by which {METHOD_TITLES[frame['reference'].iloc[0]]} is ahead",
        **layout,
    )
    for axis, part in drawn.panels:
        axis.axvline(0, color=LOOKS[part["reference"].iloc[0]].colour, linewidth=1.5)
    note = "{model}95 % intervals, paired by question, with the number of questions in brackets; "
    note += "not drawn where both methods scored zero on all of them" + remark
    return plots.finish(drawn, _title_of_leads(counted), note)


def _title_of_leads(counted: pd.DataFrame) -> str:
    """How many comparisons a reference leads, and in how many it is led."""
    if counted.empty:
        return f"No single comparison has {FEWEST_QUESTIONS} questions"
    ahead = (counted["low"] > 0).sum()
    behind = (counted["high"] < 0).sum()
    if not ahead and not behind:
        return f"None of {len(counted)} comparisons is significant"
    reference = METHOD_TITLES[counted["reference"].iloc[0]]
    return f"{reference} leads in {ahead} of {len(counted)} comparisons and is led in {behind}"


def score_differences(profile: dict) -> Figure | None:
    """By how many points HARP+FLAP scores higher than each baseline, task by task."""
    groups = {}
    for kind in KINDS:
        for task in of_kind(kind):
            groups[named(task, profile["datasets"])] = [task]
    groups.update(AVERAGES)
    frame = differences(profile, "main_tables", groups, FLAPPED, BASELINES)
    is_silent = frame["silent"].astype(bool)
    remark = _remark_on_silent(frame[is_silent], frame[~is_silent])
    remark += "; each comparison is with the plan of one or more baselines"
    frame = frame[~is_silent].assign(reference=FLAPPED)
    single_tasks = frame[~frame["group"].isin(AVERAGES)]
    return _leads(frame, single_tasks, remark, size=(5, 5.6))


def _remark_on_silent(silent: pd.DataFrame, drawn: pd.DataFrame) -> str:
    """The tasks of each model on which no comparison is drawn, in words, or ""."""
    left_out = []
    for model, part in silent.groupby("model", sort=False):
        shown = set(drawn[drawn["model"] == model]["group"])
        tasks = [group for group in part["group"].unique() if group not in shown]
        if tasks:
            left_out.append(f"{' and '.join(tasks)} on {display_name(model)}")
    if not left_out:
        return ""
    return f" ({', '.join(left_out)})"
