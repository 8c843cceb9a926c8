"""Figures of notebooks 05 and 07, and both halves of the paper's Figure 1: what the pruned models score."""

from typing import Any

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.pyplot import setp

from harp_lib.measure.evaluation import CATEGORIES, LONGBENCH
from harp_lib.methods import BASELINES, TITLES
from harp_lib.report import data, figure, plots
from harp_lib.report.plots import LOOKS, about, short, span, with_paper
from harp_lib.report.scores import AVERAGE, KINDS, ROWS, differences, named, of_kind, scores
from harp_lib.report.tables import ENDS, told

HARP, FLAPPED, REFIT = "harp", "harp+flap", "harp+refit"
AVERAGES = {f"{kind} tasks": of_kind(kind) for kind in KINDS}


def _bars(profile: dict, frame: pd.DataFrame, methods: Any, title: str, **layout: Any) -> Figure:
    """The paper's scores and then ours, a bar for each method on each task."""
    origin = frame["source"].map({"paper": "hub", "ours": profile["datasets"]})
    frame["title"] = [named(task, source) for task, source in zip(frame["task"], origin, strict=True)]
    looks, layout = {method: LOOKS[method] for method in methods}, {"wrap": 1, "size": (9.5, 2.4)} | layout
    drawn, grid = plots.bars(frame, "value", "title", "method", looks, **layout)
    for axis, _ in grid:
        setp(axis.get_xticklabels(), rotation=30, ha="right", rotation_mode="anchor", size="small")
    return plots.finish(drawn, grid, title, "lines: ± standard error, which the paper does not print", y="score (%)")


@figure("main_tables")
def teaser_left(profile: dict) -> Figure | None:
    """The paper's Figure 1, left: scores on generation tasks, the paper's first model and then ours."""
    tasks = of_kind("generation")
    printed = data.paper("generation").query("model == 'LLaMA3.1-8B' and quantity == 'score'")
    frame = with_paper(scores(profile, "main_tables", tasks), printed)
    leads = differences(profile, "main_tables", {AVERAGE: tasks}, FLAPPED)
    closest = leads[leads["method"].isin(BASELINES)].sort_values("value").drop_duplicates("model")
    if closest.empty:
        return None
    said = [f"{told(*r[list(ENDS)])} ({TITLES[r['method']]}, {short(r['model'])})" for _, r in closest.iterrows()]
    title = f"At equal parameters HARP+FLAP is ahead of the closest baseline by {', '.join(said)} points"
    return _bars(profile, frame, ROWS, title, share=(False, False))


@figure("ablations")
def teaser_right(profile: dict) -> Figure:
    """The paper's Figure 1, right: α = 1 against searched α on all benchmarks, and ours beneath."""
    methods, parts = {"dense": "dense", "top": "alpha-1", "harp": "harp"}, []
    for kind in KINDS:
        paper = pd.concat([data.paper("alpha_ablation"), data.paper(kind)])
        paper = paper.query("model == 'LLaMA3.1-8B' and quantity == 'score'")
        paper = paper.replace({"task": {f"average {kind}": AVERAGE}}).drop_duplicates(["method", "task"])
        ours = scores(profile, ("ablations", "main_tables"), of_kind(kind), methods)
        found = with_paper(ours, paper[paper["task"].isin([*of_kind(kind), AVERAGE])])
        parts.append(found.assign(kind=kind))
    frame = pd.concat(parts, ignore_index=True).dropna(subset="value")
    frame = frame[frame["method"].isin(methods)].replace({"method": methods})
    mean = frame.query("source == 'ours' and task == @AVERAGE").set_index(["kind", "method", "model"])["value"]
    asked = mean.index.unique("kind")
    gains = [f"{span(mean[kind]['harp'] - mean[kind]['alpha-1'], '+.1f')} points on {kind}" for kind in asked]
    title = f"Searching α changes the average by {' and '.join(gains)} tasks"
    return _bars(profile, frame, methods.values(), title, panel=["model", "kind"], share=(False, False))


def _leads(frame: pd.DataFrame, whole: pd.DataFrame, **layout: Any) -> Figure | None:
    """By how many points a reference is ahead of others, group by group, each with its number of questions."""
    if frame.empty:
        return None
    frame = frame.assign(name=[f"{row.group} ({row.questions})" for row in frame.itertuples()])
    drawn, grid = plots.dots(frame, "value", "name", "method", dodge=0.15, wrap=2, share=(True, False), **layout)
    for axis, part in grid:
        axis.axvline(0, color=LOOKS[part["reference"].iloc[0]].colour, linewidth=1.5)
    title = f"{TITLES[whole['reference'].iloc[0]]} leads in {(whole['low'] > 0).sum()} of {len(whole)} comparisons "
    title += f"and is led in {(whole['high'] < 0).sum()}"
    note = "(questions), 95 % intervals, paired by question; not drawn where both scored zero on all of them"
    return plots.finish(drawn, grid, title, about(frame, note), x="points ahead")


@figure("main_tables")
def score_differences(profile: dict) -> Figure | None:
    """By how many points HARP+FLAP and HARP score higher than each baseline, task by task, paired by question."""
    groups = {named(task, profile["datasets"]): [task] for kind in KINDS for task in of_kind(kind)} | AVERAGES
    parts = [differences(profile, "main_tables", groups, one).assign(reference=one) for one in (FLAPPED, HARP)]
    frame = pd.concat(parts).query("method in @BASELINES and not silent").sort_values("model", kind="stable")
    frame["panel"] = frame["reference"].map(TITLES)
    tasks = frame[(frame["reference"] == FLAPPED) & ~frame["group"].isin(AVERAGES)]
    return _leads(frame, tasks, panel=["model", "panel"], size=(5.2, 5.6))


@figure("longbench")
def longbench_differences(profile: dict) -> Figure | None:
    """By how many points HARP+FLAP scores higher than each other method, by category, paired by question."""
    frame = differences(profile, "longbench", CATEGORIES | {"all tasks": list(LONGBENCH)}, FLAPPED)
    frame = frame.assign(reference=FLAPPED).query("method != 'dense' and not silent")
    return _leads(frame, frame, size=(6.5, 4))


@figure("main_tables")
def refit_scores(profile: dict) -> Figure | None:
    """By how many points a refit scores higher than HARP and the dense model, by kind of task and of long prompt."""
    kinds = differences(profile, "main_tables", AVERAGES, REFIT)
    groups = {f"LongBench: {kind}": tasks for kind, tasks in CATEGORIES.items()}
    frame = pd.concat([kinds, differences(profile, "longbench", groups, REFIT)]).assign(reference=REFIT)
    frame = frame.query("method in ['dense', @HARP] and not silent")
    return _leads(frame, frame, size=(6.5, 3))
