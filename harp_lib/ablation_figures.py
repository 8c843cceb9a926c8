"""Figures of notebook 06."""

from collections.abc import Iterator, Mapping

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, MaxNLocator, NullLocator

from harp_lib import colours
from harp_lib.ablation_frames import (
    ALONE,
    MISSED,
    ORDER,
    PAPER_MODEL,
    STEP,
    cumulative_frame,
    gain_frame,
    selection_frame,
    single_layer_frame,
    strategy_title,
)
from harp_lib.ablation_tables import ALPHAS, alpha_scores, strategy_scores, with_averages
from harp_lib.ablation_verdict import TASKS, published_ablation
from harp_lib.experiments.ablation_study import STRATEGIES
from harp_lib.measure.models import display_name, slug
from harp_lib.published import published_scores
from harp_lib.results import Cells
from harp_lib.score_frames import AVERAGE, score_frame
from harp_lib.score_kept import CHANCE, KINDS

STRATEGY = {strategy: colours.HARP_ALPHA_1 if strategy == "top" else colours.FIRST for strategy in STRATEGIES}
WAY = {  # label, colour and marker of the three ways to share out the gain
    STEP: ("after the layers above it", colours.METHOD["harp"], "o"),
    ALONE: ("alone", colours.FIRST, "s"),
    MISSED: ("after all others", colours.SECOND, "D"),
}
SINGLE = {
    1.0: ("queries and keys removed (α = 1)", colours.HARP_ALPHA_1, "o"),
    0.0: ("the whole attention removed (α = 0)", colours.FIRST, "s"),
}
PAPER = ("#d6d6d6", colours.PUBLISHED)  # alpha = 1 and searched, in the paper
BAR = 0.36  # of two for each task; the tasks are 1 apart
COLUMNS = [(kind, task) for kind in KINDS for task in [*TASKS[kind], AVERAGE]]  # of the teaser


def all_figures(cells: Cells) -> Iterator[tuple[str, Figure]]:
    """Every figure of the experiment, with its file name."""
    scores, layers = score_frame(cells, ORDER), selection_frame(cells)
    cumulative, gains, singles = cumulative_frame(cells), gain_frame(cells), single_layer_frame(cells)
    for model in layers["model"].unique():
        yield f"ablation_layers_{slug(model)}", picked_layers(layers, model)
        yield f"ablation_scores_{slug(model)}", strategies(scores, model)
        yield f"ablation_single_layers_{slug(model)}", single_layers(singles, model)
        yield f"teaser_right_{slug(model)}", teaser_right(scores, model)
        yield f"ablation_gain_{slug(model)}", gain_by_layer(cumulative, gains, model)


def picked_layers(layers: pd.DataFrame, model: str) -> Figure:
    """Which layers each strategy picks, and the scores that two of them go by."""
    layers = layers[layers["model"] == model]
    count = layers[layers["picked"]].groupby("strategy").size().max()
    figure, axes = plt.subplots(3, 1, figsize=(10, 6.4), sharex=True, height_ratios=[1.1, 1, 1])
    order = STRATEGIES[::-1]
    for row in layers.itertuples():
        colour = STRATEGY[row.strategy] if row.picked else "#ececec"
        axes[0].barh(order.index(row.strategy), 0.86, left=row.layer - 0.43, height=0.76, color=colour)
    axes[0].set_yticks(range(len(order)), [strategy_title(strategy, count) for strategy in order])
    axes[0].invert_yaxis()
    axes[0].set_title(f"the {count} layers that each strategy picks")
    axes[0].tick_params(axis="y", length=0)
    units = {"similarity": "1 − cosine", "hessian": "nats² per token²"}
    for axis, (strategy, unit) in zip(axes[1:], units.items(), strict=True):
        part = layers[layers["strategy"] == strategy]
        for picked, colour in ((False, "#9a9a9a"), (True, colours.FIRST)):
            mine = part[part["picked"] == picked]
            axis.plot(mine["layer"], mine["score"], "o", color=colour)
        axis.set_yscale("log")
        axis.yaxis.set_major_locator(LogLocator(subs=(1, 3), numticks=6))
        axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.yaxis.set_minor_locator(NullLocator())
        axis.set(title=f"{strategy.capitalize()}: the lowest scores are picked", ylabel=f"{unit}\n(log scale)")
        axis.grid(axis="y", linewidth=0.4)
    axes[-1].set(xlabel="layer index (0 is the bottom)", xlim=(-0.6, layers["layer"].max() + 0.6))
    axes[-1].xaxis.set_major_locator(MaxNLocator(12, integer=True))
    figure.suptitle(f"{display_name(model)}: which layers can go?", x=0.01, ha="left")
    return figure


def strategies(scores: pd.DataFrame, model: str) -> Figure:
    """Score of each strategy on each discriminative task and on their average, with standard errors."""
    part = strategy_scores(scores[scores["model"] == model])
    whole, order = with_averages(part), STRATEGIES[::-1]
    tasks = [*part["task"].unique(), AVERAGE]
    figure, axes = plt.subplots(1, len(tasks), figsize=(13, 3.2), sharey=True)
    for axis, task in zip(axes, tasks, strict=True):
        known = whole[whole["task"] == task].dropna(subset="score").set_index("method")
        for row, strategy in enumerate(order):
            if strategy in known.index:
                score, error = known.loc[strategy, ["score", "error"]]
                look = {"color": STRATEGY[strategy], "marker": "o", "capsize": 2}
                axis.errorbar(score, row, xerr=None if np.isnan(error) else error, **look)
            else:
                where = {"xycoords": ("axes fraction", "data"), "fontsize": "small", "ha": "center", "va": "center"}
                axis.annotate("missing", (0.5, row), backgroundcolor="white", **where)
        if "dense" in known.index:
            axis.axvline(known.loc["dense", "score"], color=colours.METHOD["dense"], linewidth=1.5, zorder=0)
            axis.axvline(known.loc["dense", "chance"], color="black", linestyle=":", linewidth=1.5, zorder=0)
        counted = "tasks" if task == AVERAGE else "questions"
        axis.set_title(f"{task}\n{known[counted].max():.0f} {counted}" if len(known) else task, fontsize="small")
        axis.set_xlabel("accuracy (%)", fontsize="small")
        axis.xaxis.set_major_locator(MaxNLocator(3))
        axis.margins(x=0.2)
        axis.grid(axis="y", linewidth=0.4)
    axes[0].set_yticks(range(len(order)), [strategy.capitalize() for strategy in order])
    axes[0].set_ylim(len(order) - 0.5, -0.5)
    handles = [
        Line2D([], [], color=colours.METHOD["dense"], linewidth=1.5, label="dense"),
        Line2D([], [], color="black", linestyle=":", linewidth=1.5, label="chance"),
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles))
    title = f"{display_name(model)}: as many layers pruned at α = 1, chosen in four ways; scores ± standard error"
    figure.suptitle(title, x=0.01, ha="left")
    return figure


def single_layers(singles: pd.DataFrame, model: str) -> Figure:
    """Rise of log perplexity when one layer is pruned, by its index."""
    part = singles[singles["model"] == model]
    figure, axis = plt.subplots(figsize=(10, 4.4))
    for offset, (alpha, (label, colour, marker)) in zip((-0.14, 0.14), SINGLE.items(), strict=True):
        mine = part[part["alpha"] == alpha]
        reach = np.nan_to_num([mine["rise"] - mine["low"], mine["high"] - mine["rise"]])
        look = {"color": colour, "marker": marker, "markersize": 5, "capsize": 2, "linestyle": "none", "elinewidth": 1}
        axis.errorbar(mine["layer"] + offset, mine["rise"], yerr=reach, label=label, **look)
    pruned = part.loc[part["pruned"], "layer"]
    axis.axvspan(pruned.min() - 0.5, pruned.max() + 0.5, color="black", alpha=0.07, linewidth=0)
    axis.axhline(0, color=colours.METHOD["dense"], linewidth=1)
    axis.set_yscale("symlog", linthresh=0.1, linscale=0.6)
    ticks = (0.03, 0.1, 0.3, 1, 3, 10)
    axis.yaxis.set_major_locator(FixedLocator([0, *ticks, *(-tick for tick in ticks)]))
    axis.set_ylim(np.nanmin([0, *part["rise"], *part["low"]]) - 0.02, None)
    axis.set_xlim(-0.6, part["layer"].max() + 0.6)
    axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set(
        xlabel="layer index (0 is the bottom)", ylabel="rise of log perplexity\n(nats per token; linear below 0.1)"
    )
    axis.xaxis.set_major_locator(MaxNLocator(12, integer=True))
    axis.grid(axis="y", linewidth=0.4)
    handles, _ = axis.get_legend_handles_labels()
    handles.append(Patch(color="black", alpha=0.07, label="layers that HARP prunes"))
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles))
    title = f"{display_name(model)}: one layer pruned, all others dense"
    note = f"95 % intervals over {part['documents'].max()} held-out documents"
    figure.suptitle(f"{title}\n{note}", x=0.01, ha="left")
    return figure


def teaser_right(scores: pd.DataFrame, model: str) -> Figure:
    """The paper's Figure 1, right: alpha = 1 against searched alpha on all benchmarks; ours, then the paper's."""
    figure, axes = plt.subplots(2, 1, figsize=(13, 7), sharex=True)
    mine = scores[scores["model"] == model]
    whole = pd.concat([with_averages(alpha_scores(mine, kind)) for kind in KINDS])
    known = whole.dropna(subset="score").set_index(["method", "kind", "task"])
    chance = whole.drop_duplicates(["kind", "task"]).set_index(["kind", "task"])["chance"]
    asked = mine.groupby("task")["questions"].max().fillna(0)
    ours = {(method, *key): tuple(known.loc[(method, *key), ["score", "error"]]) for method, *key in known.index}
    _pairs(axes[0], ours, chance, (colours.HARP_ALPHA_1, colours.METHOD["harp"]))
    axes[0].set_title(display_name(model))
    guessing = {(kind, task): 100 * CHANCE[task] for kind in KINDS for task in TASKS[kind]}
    guessing |= {(kind, AVERAGE): np.mean([guessing[kind, task] for task in TASKS[kind]]) for kind in KINDS}
    _pairs(axes[1], published_pairs(), guessing, PAPER)
    axes[1].set_title(f"{PAPER_MODEL} (paper)")
    labels = [f"{task}\n({kind})" if task == AVERAGE else task for kind, task in COLUMNS]
    axes[1].set_xticks(range(len(COLUMNS)), labels, rotation=35, ha="right", rotation_mode="anchor")
    for place, (_, task) in enumerate(COLUMNS):
        if task in asked:
            axes[0].annotate(
                f"n = {asked[task]:.0f}",
                (place, 1),
                (0, -2),
                xycoords=("data", "axes fraction"),
                textcoords="offset points",
                ha="center",
                va="top",
                fontsize="x-small",
            )
    for axis in axes:
        axis.set_ylabel("score (%)")
        axis.axvline(sum(kind == KINDS[0] for kind, _ in COLUMNS) - 0.5, color="black", linewidth=0.6)
        axis.grid(axis="y", linewidth=0.4)
        axis.set_axisbelow(True)
    axes[0].set(ylim=(0, 1.12 * axes[0].get_ylim()[1]), xlim=(-0.6, len(COLUMNS) - 0.4))
    handles = [
        Patch(facecolor=colours.HARP_ALPHA_1, label="α = 1"),
        Patch(facecolor=colours.METHOD["harp"], label="searched α"),
        Patch(facecolor=PAPER[0], label="α = 1 (paper)"),
        Patch(facecolor=PAPER[1], label="searched α (paper)"),
        Line2D([], [], color=colours.METHOD["dense"], linewidth=2, label="dense"),
        Line2D([], [], color="black", linestyle=":", label="chance"),
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles))
    title = "What searching α adds: our scores ± standard error on n questions, and below them the paper's, in grey"
    figure.suptitle(title, x=0.01, ha="left")
    return figure


def _pairs(
    axis: plt.Axes,
    known: dict[tuple[str, str, str], tuple[float, float]],
    chance: Mapping[tuple[str, str], float],
    fills: tuple[str, str],
) -> None:
    """Two bars for each task, alpha = 1 and searched, and lines across them for the dense model and for guessing."""
    for place, key in enumerate(COLUMNS):
        for x, method, fill in zip((place - BAR / 2, place + BAR / 2), ALPHAS, fills, strict=True):
            if (method, *key) in known:
                score, error = known[(method, *key)]
                look = {"color": fill, "error_kw": {"elinewidth": 1, "capsize": 2}}
                axis.bar(x, score, BAR, yerr=None if np.isnan(error) else error, **look)
            else:
                where = {"textcoords": "offset points", "rotation": 90, "ha": "center", "fontsize": "x-small"}
                axis.annotate("missing", (x, 0), (0, 3), **where)
        if ("dense", *key) in known:
            axis.hlines(known[("dense", *key)][0], place - BAR, place + BAR, color=colours.METHOD["dense"], linewidth=2)
        if chance.get(key, 0) > 0:
            axis.hlines(chance[key], place - 0.45, place + 0.45, color="black", linestyle=":", linewidth=1.5)


def published_pairs() -> dict[tuple[str, str, str], tuple[float, float]]:
    """The paper's scores of the dense model, of alpha = 1 and of searched alpha; it prints no errors."""
    found = {}
    for kind in KINDS:
        printed = published_ablation().rename(columns={f"Average ({kind})": AVERAGE})
        rows = {"dense": published_scores(kind, PAPER_MODEL).loc["dense"]}
        rows |= {method: printed.loc[alpha] for method, alpha in ALPHAS.items()}
        for task in [*TASKS[kind], AVERAGE]:
            found |= {(method, kind, task): (row[task], np.nan) for method, row in rows.items()}
    return found


def gain_by_layer(cumulative: pd.DataFrame, gains: pd.DataFrame, model: str) -> Figure:
    """What searching alpha gains: layer after layer from the top, and layer by layer in three ways."""
    levels, part = (frame[frame["model"] == model] for frame in (cumulative, gains))
    figure, (left, right) = plt.subplots(1, 2, figsize=(12, 4.8), width_ratios=[1, 1.15])
    searched, dense = levels[levels["searched"] >= 0], levels[levels["searched"] < 0].iloc[0]
    ratio = 1 + searched["change"]
    reach = np.nan_to_num([searched["change"] - searched["low"], searched["high"] - searched["change"]])
    left.errorbar(searched["searched"], ratio, yerr=reach, color=colours.METHOD["harp"], marker="o", capsize=2)
    left.axhline(1 + dense["change"], color=colours.METHOD["dense"], linewidth=1.5)
    left.set(xlabel="layers with searched α, from the top down", title="perplexity as α is searched")
    left.set_ylabel("perplexity, as a multiple of that at α = 1")
    left.set_ylim(0, None)
    left.xaxis.set_major_locator(MaxNLocator(integer=True))
    layers = sorted(part["layer"].dropna().unique(), reverse=True)
    for offset, (way, (label, colour, marker)) in zip((-0.22, 0, 0.22), WAY.items(), strict=True):
        mine = part[part["way"] == way].set_index("layer").loc[layers]
        reach = np.nan_to_num([mine["gain"] - mine["low"], mine["high"] - mine["gain"]])
        rows = np.arange(len(layers)) + offset
        look = {"color": colour, "marker": marker, "markersize": 5, "capsize": 2, "linestyle": "none"}
        right.errorbar(mine["gain"], rows, xerr=reach, label=label, **look)
    alphas = part.dropna(subset="layer").drop_duplicates("layer").set_index("layer")["alpha"]
    right.set_yticks(range(len(layers)), [f"layer {layer:.0f}, α = {alphas[layer]:g}" for layer in layers])
    right.set_ylim(len(layers) - 0.5, -0.5)
    right.axvline(0, color="black", linewidth=0.8)
    right.grid(axis="y", linewidth=0.4)
    right.set(xlabel="gain in log perplexity (nats per token)", title="what each layer's α gains")
    handles = [
        Line2D([], [], color=colours.METHOD["dense"], linewidth=1.5, label="dense"),
        *right.get_legend_handles_labels()[0],
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles))
    title = f"{display_name(model)}: 95 % intervals over {part['documents'].max()} held-out documents"
    figure.suptitle(title, x=0.01, ha="left")
    return figure
