"""Figures of notebook 07."""

from collections.abc import Iterator

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from harp_lib import colours
from harp_lib.baseline_frames import EQUAL_HEADS, ORDER, TITLE
from harp_lib.longbench_claims import (
    ALL,
    AMONG,
    EVERY,
    ONE_QUESTION,
    TABLE,
    above_floor,
    category_differences,
    category_frame,
    dense_scores,
    has_no_errors,
    paper_models,
    published_ranks,
    rank_frame,
)
from harp_lib.longbench_verdict import no_tasks
from harp_lib.measure.benchmarks import CATEGORIES, LONGBENCH
from harp_lib.measure.models import display_name, slug
from harp_lib.published import published_scores
from harp_lib.results import Cells
from harp_lib.score_figures import OTHERS, WIDTH, difference_panel, method_handles
from harp_lib.score_frames import score_frame

PALE = 0.4  # opacity of the first places that are shared
SECTIONS = {kind: list(tasks.values()) for kind, tasks in CATEGORIES.items()}  # tasks of each category
SECTIONS[ALL] = [task for tasks in SECTIONS.values() for task in tasks]


def all_figures(cells: Cells) -> Iterator[tuple[str, Figure]]:
    """Every figure of the experiment, with its file name."""
    scores = score_frame(cells, benchmarks=LONGBENCH)
    categories, ranks = category_frame(scores), rank_frame(cells, scores)
    differences = category_differences(cells, scores)
    for model in scores["model"].unique():
        yield f"longbench_categories_{slug(model)}", category_scores(cells, categories, model)
        yield f"longbench_first_places_{slug(model)}", first_places(ranks, model)
        yield f"longbench_differences_{slug(model)}", score_differences(differences, model)


def category_scores(cells: Cells, categories: pd.DataFrame, model: str) -> Figure:
    """Average score of each method in each category: ours with 95 % intervals, and the two models of the paper."""
    part = categories[categories["model"] == model]
    paper = paper_models()
    figure, axes = plt.subplots(1 + len(paper), 1, figsize=(13, 9), sharex=True, sharey=True)
    _bars(axes[0], part)
    axes[0].set_title("ours, 95 % intervals" if part["low"].notna().any() else "ours, one question a task")
    for axis, name in zip(axes[1:], paper, strict=True):
        block = published_scores(TABLE, name)
        means = {kind: block[tasks].mean(axis=1) for kind, tasks in SECTIONS.items()}
        rows = [(kind, method, score) for kind, scores in means.items() for method, score in scores.items()]
        _bars(axis, pd.DataFrame(rows, columns=["kind", "method", "score"]))
        missing = [TITLE[method] for method in ORDER if method not in block.index]
        axis.set_title(f"{name} (paper{', without ' if missing else ''}{' and '.join(missing)})")
    axes[0].set_ylim(0, min(100, axes[0].get_ylim()[1]))
    for axis in axes:
        axis.set_ylabel("score (%)")
        axis.axvline(len(SECTIONS) - 1.5, color="black", linewidth=0.6)
        axis.tick_params(axis="x", length=0)
        axis.grid(axis="y", linewidth=0.4)
        axis.set_axisbelow(True)
    counts, labels = part.drop_duplicates("kind").set_index("kind")[["tasks", "questions"]], []
    for kind, tasks in SECTIONS.items():
        asked = f"{counts.loc[kind, 'questions']} questions" if kind in counts.index else "missing"
        labels.append(f"{kind}\nours: {asked},\n{_floor(cells, model, tasks)}")
    axes[-1].set_xticks(range(len(labels)), labels)
    axes[-1].set_xlim(-0.5, len(labels) - 0.5)
    figure.suptitle(f"{display_name(model)} beside the paper: scores by category", x=0.01, ha="left")
    figure.legend(handles=method_handles(ORDER), loc="outside lower center", ncols=len(ORDER))
    return figure


def _floor(cells: Cells, model: str, tasks: list[str]) -> str:
    """How many of the tasks with a dense score are at the floor, and how many there are where some have none."""
    scored = len(dense_scores(cells, model, tasks))
    floor = f"{scored - len(above_floor(cells, model, tasks))} of {scored} at the floor"
    lines = [ONE_QUESTION.replace(": ", ":\n")] if has_no_errors(cells, model, tasks) else [floor] if scored else []
    if scored < len(tasks):
        lines.append(f"{scored} of {len(tasks)} tasks scored")
    return ",\n".join(lines)


def _bars(axis: plt.Axes, rows: pd.DataFrame) -> None:
    """A bar for each method in each category, with the interval where there is one."""
    for row in rows.itertuples():
        place = list(SECTIONS).index(row.kind) + WIDTH * (ORDER.index(row.method) - (len(ORDER) - 1) / 2)
        axis.bar(place, row.score, WIDTH, color=colours.METHOD[row.method])
        if "low" in rows and not np.isnan(row.low):
            reach = [[row.score - max(row.low, 0)], [min(row.high, 100) - row.score]]
            axis.errorbar(place, row.score, yerr=reach, color="black", elinewidth=1, capsize=1.5)


def first_places(ranks: pd.DataFrame, model: str) -> Figure:
    """On how many tasks each method has the highest score: ours, with a bootstrap's 95 % intervals, and the paper's."""
    part, printed = ranks[ranks["model"] == model], published_ranks()
    columns = []
    for of, mine in part.groupby("of", sort=False):
        none = no_tasks(ranks, model).replace(": ", ":\n")
        columns.append((f"ours, {{}} {of}" if mine["tasks"].any() else f"ours, {none}", mine))
    columns += [(f"{name} (paper), {{}} {EVERY}", rows) for name, rows in printed.groupby("model", sort=False)]
    figure, axes = plt.subplots(len(AMONG), len(columns), figsize=(13, 5.4), sharex=True, sharey="row")
    for row, (among, competing) in zip(axes, AMONG.items(), strict=True):
        order = [method for method in ORDER if method in competing]
        for axis, (title, rows) in zip(row, columns, strict=True):
            mine = rows[rows["among"] == among]
            for found in mine.itertuples():
                place, colour = order.index(found.method), colours.METHOD[found.method]
                axis.barh(place, found.alone, color=colour)
                axis.barh(place, found.tied, left=found.alone, color=colour, alpha=PALE)
                if not np.isnan(getattr(found, "low", np.nan)):
                    axis.plot([found.low, found.high], [place, place], color="black", marker="|", linewidth=1)
            for missing in [method for method in order if method not in set(mine["method"])]:
                axis.text(0.3, order.index(missing), "not in the paper", va="center", fontsize="x-small")
            axis.set_title(title.format(mine["tasks"].max()), fontsize="small")
            axis.xaxis.set_major_locator(MaxNLocator(4, integer=True))
            axis.grid(axis="x", linewidth=0.4)
            axis.set_axisbelow(True)
        row[0].set_yticks(range(len(order)), [TITLE[method] for method in order])
        row[0].set_ylabel(among.replace(" parameters", "\nparameters"))
        row[0].invert_yaxis()
    axes[0, 0].set_xlim(0, len(SECTIONS[ALL]))
    for axis in axes[-1]:
        axis.set_xlabel("first places (tasks)")
    shown = [Patch(color="black", label="alone"), Patch(color="black", alpha=PALE, label="tied, but not with all")]
    interval = plt.Line2D([], [], color="black", marker="|", linewidth=1, label="95 % of the draws")
    figure.legend(handles=[*shown, interval], loc="outside lower center", ncols=3)
    figure.suptitle(f"{display_name(model)} beside the paper: first places", x=0.01, ha="left")
    return figure


def score_differences(differences: pd.DataFrame, model: str) -> Figure:
    """By how many points each method scores higher than HARP in each category, with 95 % intervals."""
    part = differences[(differences["model"] == model) & (differences["reference"] == EQUAL_HEADS)]
    figure, axes = plt.subplots(1, len(SECTIONS), figsize=(14, 3.6), sharex=True, sharey=True)
    for axis, kind in zip(axes, SECTIONS, strict=True):
        rows = part[part["kind"] == kind]
        if rows.empty:
            axis.set_title(f"{kind}\nmissing", fontsize="small")
        else:
            difference_panel(axis, rows, kind)
    axes[0].set_yticks(range(len(OTHERS)), [TITLE[method] for method in OTHERS])
    axes[0].set_ylim(len(OTHERS) - 0.5, -0.5)
    figure.supxlabel(f"points above {TITLE[EQUAL_HEADS]}", fontsize="medium")
    title = f"{display_name(model)}: scores against {TITLE[EQUAL_HEADS]}'s, paired by question"
    figure.suptitle(f"{title}\n95 % intervals; left of the line, {TITLE[EQUAL_HEADS]} is better", x=0.01, ha="left")
    return figure
