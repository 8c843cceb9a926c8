"""Figures of notebook 05."""

from collections.abc import Iterable, Iterator

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator, MultipleLocator, PercentFormatter

from harp_lib import colours
from harp_lib.accounting import PAPER_MODELS
from harp_lib.alpha_figures import logarithmic_perplexity
from harp_lib.baseline_frames import EQUAL_HEADS, ORDER, TITLE
from harp_lib.measure.benchmarks import DISCRIMINATIVE, GENERATION, GENERATION_TASKS
from harp_lib.measure.models import display_name, slug
from harp_lib.methods import METHODS
from harp_lib.results import Cells
from harp_lib.score_frames import AVERAGE, average_frame, complete_tasks, difference_frame, score_frame
from harp_lib.score_kept import KIND, KINDS, counterparts, kept_frame, published_kept

WIDTH = 0.12  # of a bar; the tasks are 1 apart
MARKS = dict(zip(PAPER_MODELS, "sD^v", strict=True))  # of the paper's models
OTHERS = [method for method in ORDER if method != EQUAL_HEADS]  # that are compared with HARP
ENDS = (-1, 2)  # of the axis of shares
TASK_MARKS = dict(zip([task.title for task in GENERATION_TASKS], "osD^v", strict=True))


def all_figures(cells: Cells) -> Iterator[tuple[str, Figure]]:
    """Every figure of the experiment, with its file name."""
    scores = score_frame(cells)
    kept, differences = kept_frame(cells, scores), difference_frame(cells, scores)
    for model in scores["model"].unique():
        yield f"teaser_left_{slug(model)}", teaser_left(scores, kept, model)
        yield f"discriminative_scores_{slug(model)}", discriminative_scores(scores, kept, model)
        yield f"score_differences_{slug(model)}", score_differences(differences, model)
        yield f"score_kept_{slug(model)}", score_kept(kept, model)
        yield f"score_kept_by_length_{slug(model)}", kept_by_length(kept, model)


def teaser_left(scores: pd.DataFrame, kept: pd.DataFrame, model: str) -> Figure:
    """The paper's Figure 1, left: scores on the generation tasks, method by method, with standard errors."""
    figure, axis = plt.subplots(figsize=(11.5, 4.4))
    _grouped_bars(axis, scores[(scores["model"] == model) & (scores["kind"] == GENERATION)], kept)
    axis.set_ylabel("exact match (%)")
    figure.suptitle(f"{display_name(model)}: scores on generation tasks ± standard error", x=0.01, ha="left")
    figure.legend(handles=method_handles(ORDER), loc="outside lower center", ncols=len(ORDER))
    return figure


def discriminative_scores(scores: pd.DataFrame, kept: pd.DataFrame, model: str) -> Figure:
    """Accuracy on the discriminative tasks, method by method, with standard errors, and the lines of guessing."""
    figure, axis = plt.subplots(figsize=(12.5, 4.4))
    _grouped_bars(axis, scores[(scores["model"] == model) & (scores["kind"] == DISCRIMINATIVE)], kept)
    axis.set_ylabel("accuracy (%)")
    figure.suptitle(f"{display_name(model)}: scores on discriminative tasks ± standard error", x=0.01, ha="left")
    handles = [*method_handles(ORDER), Line2D([], [], color="black", linestyle="--", label="chance")]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles))
    return figure


def _grouped_bars(axis: plt.Axes, part: pd.DataFrame, kept: pd.DataFrame) -> None:
    """Bars of all methods for each task and their average; what is missing is said where its bar would be."""
    tasks = [*part["task"].unique(), AVERAGE]
    known = pd.concat([part, average_frame(part).assign(task=AVERAGE)]).set_index(["task", "method"])
    chance = part.drop_duplicates("task").set_index("task")["chance"]
    chance[AVERAGE] = chance[complete_tasks(part)].mean()
    for place, task in enumerate(tasks):
        for method in part["method"].unique():
            x = place + WIDTH * (ORDER.index(method) - (len(ORDER) - 1) / 2)
            score, error = known["score"].get((task, method), np.nan), known["error"].get((task, method), np.nan)
            if np.isnan(score):
                axis.annotate(
                    "missing", (x, 0), (0, 3), textcoords="offset points", rotation=90, ha="center", fontsize="x-small"
                )
            else:
                error = None if np.isnan(error) else error
                axis.bar(
                    x,
                    score,
                    WIDTH,
                    yerr=error,
                    color=colours.METHOD[method],
                    error_kw={"elinewidth": 1, "capsize": 1.5},
                )
        if chance[task] > 0:
            axis.hlines(chance[task], place - 4 * WIDTH, place + 4 * WIDTH, color="black", linestyle="--", linewidth=1)
    floor = set(kept.loc[(kept["model"] == part["model"].iloc[0]) & kept["floor"], "task"]) - {AVERAGE}
    asked = part.groupby("task")["questions"].max()
    labels = [f"{task}\n{asked[task]:.0f} questions" if task in asked.dropna() else task for task in tasks]
    labels = [label + "\n(at the floor)" if task in floor else label for label, task in zip(labels, tasks, strict=True)]
    axis.set_xticks(range(len(tasks)), labels)
    axis.tick_params(axis="x", length=0)
    axis.axvline(len(tasks) - 1.5, color="black", linewidth=0.6)
    axis.set_xlim(-0.5, len(tasks) - 0.5)
    axis.set_ylim(0, min(100, max(axis.get_ylim()[1], 5)))
    axis.grid(axis="y", linewidth=0.4)
    axis.set_axisbelow(True)


def score_differences(differences: pd.DataFrame, model: str) -> Figure:
    """By how many points each method scores higher than HARP on the same questions, with 95 % intervals."""
    part = differences[differences["model"] == model]
    columns = max(1, *(part.loc[part["kind"] == kind, "task"].nunique() for kind in KINDS))
    figure, axes = plt.subplots(len(KINDS), columns, figsize=(14, 6), sharey=True, sharex="row", squeeze=False)
    for row, kind in zip(axes, KINDS, strict=True):
        mine = part[part["kind"] == kind]
        tasks = list(mine["task"].unique())
        for axis, task in zip(row, tasks, strict=False):
            difference_panel(axis, mine[mine["task"] == task], task)
        for axis in row[len(tasks) :]:
            axis.set_visible(False)
        row[0].set_ylabel(f"{kind} tasks")
    axes[0, 0].set_yticks(range(len(OTHERS)), [TITLE[method] for method in OTHERS])
    axes[0, 0].invert_yaxis()
    figure.supxlabel(f"points above {TITLE[EQUAL_HEADS]}", fontsize="medium")
    title = f"{display_name(model)}: scores against {TITLE[EQUAL_HEADS]}'s, paired by question"
    figure.suptitle(f"{title}\n95 % intervals; left of the line, {TITLE[EQUAL_HEADS]} is better", x=0.01, ha="left")
    return figure


def difference_panel(axis: plt.Axes, rows: pd.DataFrame, title: str) -> None:
    """How many points each method is above HARP, a line for each of ``OTHERS``, with 95 % intervals."""
    for row in rows.itertuples():
        reach = np.maximum([[row.change - row.low], [row.high - row.change]], 0)
        look = {"color": colours.METHOD[row.method], "marker": "o", "capsize": 2}
        axis.errorbar(row.change, OTHERS.index(row.method), xerr=reach, **look)
    axis.axvline(0, color=colours.METHOD[EQUAL_HEADS], linewidth=1.5, zorder=0)
    axis.set_title(f"{title}\n{rows['questions'].max()} questions", fontsize="small")
    axis.grid(axis="y", linewidth=0.4)
    axis.xaxis.set_major_locator(MaxNLocator(4))


def score_kept(kept: pd.DataFrame, model: str) -> Figure:
    """The share of the dense score above chance that each method keeps: ours, and the paper's four models in grey."""
    part, printed = kept[kept["model"] == model], published_kept()
    tasks = [(kind, task) for kind in KINDS for task in (*[t for t in KIND if KIND[t] == kind], AVERAGE)]
    figure, axes = plt.subplots(1, len(METHODS), figsize=(14, 5.6), sharey=True, sharex=True)
    for axis, method in zip(axes, METHODS, strict=True):
        for row in printed[printed["method"] == method].itertuples():
            look = {"color": colours.PUBLISHED, "marker": MARKS[row.model], "markersize": 5, "markerfacecolor": "none"}
            axis.plot(row.kept, tasks.index((row.kind, row.task)) + 0.18, linestyle="none", **look)
        for row in part[part["method"] == method].itertuples():
            place = tasks.index((row.kind, row.task)) - 0.15
            if row.floor:
                clear = {"facecolor": "white", "edgecolor": "none", "pad": 0.3}
                axis.text(0.5, place, "at the floor", va="center", ha="center", fontsize=6, bbox=clear)
                continue
            share = np.clip(row.kept, *ENDS)
            reach = np.maximum([[share - row.low], [row.high - share]], 0)
            axis.errorbar(share, place, xerr=reach, color=colours.METHOD[method], marker="o", capsize=2)
        axis.axvline(0, color="black", linewidth=1, linestyle="--", zorder=0)
        axis.axvline(1, color=colours.METHOD["dense"], linewidth=1, zorder=0)
        axis.set_title(TITLE[method])
        axis.grid(axis="y", linewidth=0.4)
        axis.axhline(len([t for t in tasks if t[0] == GENERATION]) - 0.5, color="black", linewidth=0.6)
        axis.set_xlabel("share kept")
        axis.xaxis.set_major_formatter(PercentFormatter(1, decimals=0))
        axis.xaxis.set_major_locator(MultipleLocator(1))
    axes[0].set_yticks(range(len(tasks)), [f"{kind} average*" if task == AVERAGE else task for kind, task in tasks])
    axes[0].invert_yaxis()
    axes[0].set_xlim(*ENDS)
    ours = Line2D([], [], color="black", marker="o", label="ours, 95 % interval; *of tasks above the floor")
    grey = {"color": colours.PUBLISHED, "linestyle": "none", "markerfacecolor": "none"}
    handles = [ours, *(Line2D([], [], marker=mark, label=f"{name} (paper)", **grey) for name, mark in MARKS.items())]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles))
    title = f"{display_name(model)} beside the paper: the share of the dense score above chance that each method keeps"
    note = "0 % is guessing, 100 % the dense model; what lies beyond the axis is drawn at its end"
    figure.suptitle(f"{title}\n{note}", x=0.01, ha="left")
    return figure


def kept_by_length(kept: pd.DataFrame, model: str) -> Figure:
    """The share of the dense score that is kept against the length of the dense answers: ours, then the paper's."""
    part = kept[(kept["model"] == model) & (kept["kind"] == GENERATION) & (kept["task"] != AVERAGE)]
    tasks = part.drop_duplicates("task").set_index("task")
    tokens = tasks["dense_tokens"].clip(lower=0.5)  # no answer at all has no place on a logarithmic axis
    (paper,) = counterparts([model])
    printed = published_kept().query("model == @paper and task in @tasks.index")
    figure, axes = plt.subplots(1, 2, figsize=(13, 5), sharex=True, sharey=True)
    titles = ("our scores, 95 % intervals", f"the paper's scores of {paper}, at our answer lengths")
    for axis, title, shown in zip(axes, titles, (part[~part["floor"]], printed), strict=True):
        for method in METHODS:
            shift = 1.03 ** (METHODS.index(method) - (len(METHODS) - 1) / 2)
            rows = sorted(shown[shown["method"] == method].itertuples(), key=lambda row: tokens[row.task])
            places = [shift * tokens[row.task] for row in rows]
            axis.plot(places, [row.kept for row in rows], color=colours.METHOD[method], linewidth=0.8)
            for place, row in zip(places, rows, strict=True):
                reach = np.maximum([[row.kept - row.low], [row.high - row.kept]], 0) if "low" in shown else None
                look = {"color": colours.METHOD[method], "marker": TASK_MARKS[row.task], "capsize": 2}
                axis.errorbar(place, row.kept, yerr=reach, **look)
        axis.axhline(1, color=colours.METHOD["dense"], linewidth=1, zorder=0)
        axis.set(title=title, xlabel="tokens of a dense answer (mean, log scale)")
        axis.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    if tasks["floor"].all():
        axes[0].text(0.5, 0.5, "no task is above the floor", transform=axes[0].transAxes, ha="center")
    if len(tokens):
        axes[0].set_xlim(0.7 * tokens.min(), 1.4 * tokens.max())
        logarithmic_perplexity(axes[0], "x")
    axes[0].set_ylabel("share of the dense score that is kept")
    handles = [
        Line2D([], [], color="black", linestyle="none", marker=TASK_MARKS[task], label=_with_length(task, row))
        for task, row in tasks.iterrows()
    ]
    figure.legend(handles=method_handles(METHODS), loc="outside lower center", ncols=len(METHODS))
    figure.legend(handles=handles, loc="outside right center", labelspacing=1.5)
    figure.suptitle(f"{display_name(model)}: do longer answers lose more?", x=0.01, ha="left")
    return figure


def _with_length(task: str, row: pd.Series) -> str:
    return f"{task}\n{row['dense_tokens']:.1f} tokens" + ("\n(at the floor)" if row["floor"] else "")


def method_handles(methods: Iterable[str]) -> list[Patch]:
    """A patch of its colour for each method, for a legend."""
    return [Patch(color=colours.METHOD[method], label=TITLE[method]) for method in methods]
