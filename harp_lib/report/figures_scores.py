"""Figures of scores: both halves of the paper's Figure 1, and who leads."""

from collections.abc import Mapping
from typing import Any

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.pyplot import setp

from harp_lib.evaluation.benchmarks import CATEGORIES, LONGBENCH
from harp_lib.names import BASELINES, METHOD_TITLES
from harp_lib.report import data, figure, plots
from harp_lib.report.plots import LOOKS, Look, short, span, with_paper
from harp_lib.report.scores import (
    ABLATED,
    AVERAGE,
    FEWEST_QUESTIONS,
    FLAPPED,
    KINDS,
    closest_baselines,
    differences,
    named,
    of_kind,
    place_of,
    scores,
)
from harp_lib.report.tables import told

HARP = "harp"
REFIT = "harp+refit"
AVERAGES = {f"{kind} tasks": of_kind(kind) for kind in KINDS}


def looks_of_plans(frame: pd.DataFrame) -> dict[str, Look]:
    """How the plans of a frame are drawn, by their joined names: as the first of the methods that
    made them.
    """
    plans = frame.drop_duplicates("methods").sort_values("method", key=place_of, kind="stable")
    return {
        plan.methods: LOOKS[plan.method]._replace(label=plan.methods) for plan in plans.itertuples()
    }


def _bars(
    profile: dict,
    frame: pd.DataFrame,
    hue: str,
    looks: Mapping[str, Look],
    title: str,
    **layout: Any,
) -> Figure:
    """The paper's scores and then ours, a bar for each look on each task."""
    origin = frame["source"].map({"paper": "hub", "ours": profile["datasets"]})
    frame["title"] = [
        named(task, source) for task, source in zip(frame["task"], origin, strict=True)
    ]
    frame["low"] = (frame["value"] - frame["error"]).clip(lower=0)  # no score is below 0
    frame["high"] = (frame["value"] + frame["error"]).clip(upper=100)
    layout = {"wrap": 1, "size": (9.5, 2.4)} | layout
    drawn = plots.bars(frame, "title", hue, looks, share=(False, False), y="score (%)", **layout)
    for axis, _ in drawn.panels:
        setp(axis.get_xticklabels(), rotation=30, ha="right", rotation_mode="anchor", size="small")
    return plots.finish(
        drawn, title, "lines: ± standard error, which the paper does not print", ylim=(0, None)
    )


@figure("main_tables")
def teaser_left(profile: dict) -> Figure | None:
    """The paper's Figure 1, left: scores on generation tasks, the paper's first model and then
    ours.
    """
    tasks = of_kind("generation")
    printed = data.paper("generation").query("model == 'LLaMA3.1-8B' and quantity == 'score'")
    printed = printed.assign(methods=printed["method"].map(METHOD_TITLES))
    frame = with_paper(scores(profile, "main_tables", tasks), printed)
    closest = closest_baselines(profile)
    if closest.empty:
        return None
    leads = [
        f"{told(row.value, row.low, row.high)} ({row.rival}, {short(row.model)})"
        for row in closest.itertuples()
    ]
    title = "HARP+FLAP minus the closest baseline, in points, on the tasks where the dense model is above chance: "
    title += ", ".join(leads)
    return _bars(profile, frame, "methods", looks_of_plans(frame), title)


@figure("ablations")
def teaser_right(profile: dict) -> Figure:
    """The paper's Figure 1, right: α = 1 against searched α on all benchmarks, and ours beneath."""
    methods, parts = {"dense": "dense", "top": "alpha-1", "harp": "harp"}, []
    for kind in KINDS:
        paper = pd.concat([data.paper("alpha_ablation"), data.paper(kind)]).replace(
            {f"average {kind}": AVERAGE}
        )
        paper = paper[paper["task"].isin([*of_kind(kind), AVERAGE])].drop_duplicates(
            ["model", "method", "task"]
        )
        ours = scores(profile, ABLATED, of_kind(kind), methods)
        parts.append(with_paper(ours, paper.query("model == 'LLaMA3.1-8B'")).assign(kind=kind))
    frame = pd.concat(parts, ignore_index=True).dropna(subset="value")
    frame = frame[frame["method"].isin(methods)].replace({"method": methods})
    mean = frame.query("source == 'ours' and task == @AVERAGE").set_index(
        ["kind", "method", "model"]
    )["value"]
    asked = mean.index.unique("kind")
    gains = [
        f"{span(mean[kind]['harp'] - mean[kind]['alpha-1'], '+.1f')} points on {kind}"
        for kind in asked
    ]
    title = f"Searching α changes the average by {' and '.join(gains)} tasks"
    looks = {method: LOOKS[method] for method in methods.values()}
    return _bars(profile, frame, "method", looks, title, panel=["model", "kind"])


def _leads(frame: pd.DataFrame, counted: pd.DataFrame, **layout: Any) -> Figure | None:
    """By how many points a reference is ahead of others, group by group, each with its number of
    questions.

    The title says how many of the ``counted`` comparisons it leads, if there are any.
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
        x="points ahead",
        **layout,
    )
    for axis, part in drawn.panels:
        axis.axvline(0, color=LOOKS[part["reference"].iloc[0]].colour, linewidth=1.5)
    if counted.empty:
        title = f"No single comparison has {FEWEST_QUESTIONS} questions"
    else:
        reference = METHOD_TITLES[counted["reference"].iloc[0]]
        ahead = (counted["low"] > 0).sum()
        behind = (counted["high"] < 0).sum()
        title = f"{reference} leads in {ahead} of {len(counted)} comparisons and is led in {behind}"
        if not ahead and not behind:
            title = f"None of {len(counted)} comparisons is significant"
    note = "{model}(questions), 95 % intervals, paired by question; not drawn where both scored zero on all of them"
    return plots.finish(drawn, title, note)


@figure("main_tables")
def score_differences(profile: dict) -> Figure | None:
    """By how many points HARP+FLAP and HARP score higher than each baseline, task by task, paired
    by question.
    """
    groups = {
        named(task, profile["datasets"]): [task] for kind in KINDS for task in of_kind(kind)
    } | AVERAGES
    parts = [
        differences(profile, "main_tables", groups, one).assign(reference=one)
        for one in (FLAPPED, HARP)
    ]
    whole = pd.concat(parts)
    frame = whole[whole["method"].isin(BASELINES) & ~whole["silent"].astype(bool)].sort_values(
        "model", kind="stable"
    )
    frame["panel"] = frame["reference"].map(METHOD_TITLES)
    tasks = frame[(frame["reference"] == FLAPPED) & ~frame["group"].isin(AVERAGES)]
    return _leads(frame, tasks, panel=["model", "panel"], size=(5.2, 5.6))


@figure("longbench")
def longbench_differences(profile: dict) -> Figure | None:
    """By how many points HARP+FLAP scores higher than each other method, by category, paired by
    question.
    """
    frame = differences(profile, "longbench", CATEGORIES | {"all tasks": list(LONGBENCH)}, FLAPPED)
    frame = frame.assign(reference=FLAPPED).query("method != 'dense' and not silent")
    return _leads(frame, frame, size=(6.5, 4))


@figure("main_tables")
def refit_scores(profile: dict) -> Figure | None:
    """By how many points a refit scores higher than HARP and the dense model, by kind of task and
    of long prompt.
    """
    kinds = differences(profile, "main_tables", AVERAGES, REFIT)
    groups = {f"LongBench: {kind}": tasks for kind, tasks in CATEGORIES.items()}
    frame = pd.concat([kinds, differences(profile, "longbench", groups, REFIT)]).assign(
        reference=REFIT
    )
    frame = frame.query("method in ['dense', @HARP] and not silent")
    return _leads(frame, frame, size=(6.5, 3))
