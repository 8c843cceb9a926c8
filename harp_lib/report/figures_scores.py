"""Figures of notebooks 05 and 07: what the pruned models score."""

from itertools import product

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from harp_lib.measure.evaluation import BENCHMARKS, LONGBENCH, task_title
from harp_lib.methods import BASELINES, TITLES
from harp_lib.report import comparisons, data, figure, plots
from harp_lib.report.plots import LOOKS, about
from harp_lib.report.scores import AVERAGE, EQUAL, ROWS, differences, of_kind, scores
from harp_lib.report.tables import by_model, told

HARP, FLAPPED = "harp", "harp+flap"
KINDS = ("generation", "discriminative")
CATEGORIES = {
    kind: [n for n, t in LONGBENCH.items() if t.kind == kind] for kind in (t.kind for t in LONGBENCH.values())
}


def named(task: str, source: str) -> str:
    """What an axis calls a task, or the average."""
    return "average" if task == AVERAGE else task_title(task, source)


@figure("main_tables")
def teaser_left(profile: dict) -> Figure:
    """The paper's Figure 1, left: scores on generation tasks, the paper's first model and then ours."""
    printed, tasks = data.paper("generation"), of_kind("generation")
    printed = printed[(printed["model"] == printed["model"].iloc[0]) & (printed["quantity"] == "score")]
    ours = scores(profile, "main_tables", tasks)
    ours = ours.assign(low=ours["value"] - ours["error"], high=ours["value"] + ours["error"])
    frame = pd.concat([printed.assign(model=printed["model"] + " (paper)"), ours])
    looks, layout = {method: LOOKS[method] for method in ROWS}, {"size": (9, 2.4), "wrap": 1, "share": (False, True)}
    drawn, grid = plots.bars(frame, "value", "task", "method", looks, **layout)
    for axis, part in grid:
        asked, source = (
            part.groupby("task")["questions"].max(),
            "hub" if part["error"].isna().all() else profile["datasets"],
        )
        counts = ["" if np.isnan(asked[task]) else f"\n{asked[task]:.0f} questions" for task in [*tasks, AVERAGE]]
        names = [named(task, source) + count for task, count in zip([*tasks, AVERAGE], counts, strict=True)]
        axis.set_xticks(range(len(names)), names)
    leads = differences(profile, "main_tables", {AVERAGE: tasks}, FLAPPED)
    closest = leads[leads["method"].isin(BASELINES)].sort_values("value").drop_duplicates("model")
    said = [
        f"{told(row.value, row.low, row.high)} points ahead of {TITLES[row.method]}" for row in closest.itertuples()
    ]
    title = f"At equal parameters HARP+FLAP is {' and '.join(said)}, the closest baseline"
    return plots.finish(drawn, grid, title, "lines: ± standard error, which the paper does not print", y="score (%)")


@figure("main_tables")
def score_differences(profile: dict) -> Figure:
    """By how many points HARP+FLAP and HARP score higher than each baseline, task by task, paired by question."""
    parts = []
    for reference, kind in product((FLAPPED, HARP), KINDS):
        tasks = {task: [task] for task in of_kind(kind)} | {AVERAGE: of_kind(kind)}
        part = differences(profile, "main_tables", tasks, reference)
        parts.append(part.assign(panel=f"{TITLES[reference]}, {kind} tasks", reference=reference))
    frame = pd.concat(parts)
    frame = frame[frame["method"].isin(BASELINES) & ~frame["silent"]]
    source = profile["datasets"]
    frame["task"] = [f"{named(t, source)} ({n})" for t, n in zip(frame["group"], frame["questions"], strict=True)]
    layout = {"panel": ["model", "panel"], "size": (5.2, 3.4), "wrap": 2, "share": (True, False), "dodge": 0.18}
    drawn, grid = plots.dots(frame, "value", "task", "method", **layout)
    for axis, part in grid:
        axis.axvline(0, color=LOOKS[part["reference"].iloc[0]].colour, linewidth=1.5)
    mine = frame[(frame["reference"] == FLAPPED) & (frame["group"] != AVERAGE)]
    ahead, behind = (mine["low"] > 0).sum(), (mine["high"] < 0).sum()
    title = f"Task by task, HARP+FLAP leads a baseline in {ahead} of {len(mine)} comparisons and is led in {behind}"
    note = about(
        frame, "(questions), 95 % intervals, paired by question; not drawn where both scored zero on all of them"
    )
    return plots.finish(drawn, grid, title, note, x="points ahead of the baseline")


@figure("main_tables")
def score_kept(profile: dict) -> Figure | None:
    """The share of the dense score above chance that is kept, by the length of an answer: ours, then the paper's."""
    store, methods, here = (
        data.Source(profile["name"]),
        [method for method in ROWS if method != "dense"],
        profile["datasets"],
    )
    rows, lengths = [], {"triviaqa": 16, "gsm8k": 256}  # tokens of an answer, as the paper prints them
    for model in store.models("main_tables"):
        asked = data.above(store.answers("main_tables", model, methods, BENCHMARKS))
        for task, method in product(asked, methods):
            found = comparisons.share_kept([data.compared(task, asked[task], method)]) * 100
            tokens = np.mean(store.result("main_tables", model, "dense", task).get("answer_tokens", [0]))
            rows.append((model, task, method, *found[:3], tokens, task_title(task, here)))
    if not rows:
        return None
    for model, part in by_model(data.paper("generation").query("quantity == 'score'")):
        wide = part.pivot_table("value", "method", "task")
        for task, method in product(lengths, wide.index.drop("dense")):
            share = 100 * wide.loc[method, task] / wide.loc["dense", task]
            rows.append(
                (f"{model} (paper)", task, method, share, np.nan, np.nan, lengths[task], task_title(task, "hub"))
            )
    frame = pd.DataFrame(rows, columns=["model", "task", "method", "value", "low", "high", "tokens", "name"])
    frame["name"] += [f"\n{count:.0f} tokens" if count else "\nto choose" for count in frame["tokens"]]
    frame["kind"] = np.where(frame["model"].str.endswith("(paper)"), "the paper", "here")
    layout = {"dodge": 0.12, "size": (4, 3.8), "wrap": 3, "share": (True, False)}
    drawn, grid = plots.dots(frame, "value", "name", "method", **layout)
    for axis, _ in grid:
        axis.axvline(100, color=LOOKS["dense"].colour, linewidth=1)
        axis.set_xlim(-15, 165)  # intervals may reach further
    ours = frame[(frame["kind"] == "here") & (frame["method"] == HARP)]
    sides = {"written": ours["tokens"] > 0, "chosen": ours["tokens"] == 0}
    said = [
        f"{ours[side]['value'].mean():.0f} % where answers are {name}" for name, side in sides.items() if side.any()
    ]
    below = [task_title(task, here) for task in BENCHMARKS if task not in set(frame[frame["kind"] == "here"]["task"])]
    note = (
        f"0 is guessing, 100 dense; 95 % intervals; dense is not above chance here on {', '.join(below) or 'no task'}"
    )
    return plots.finish(
        drawn, grid, f"Of what dense has above chance HARP keeps {' and '.join(said)}", note, x="share kept (%)"
    )


@figure("longbench")
def longbench_first_places(profile: dict) -> Figure:
    """How many tasks each of the methods that remove as many parameters is first on, alone or with others."""
    rows, source = [], data.Source(profile["name"])
    for model in source.models("longbench"):
        answers = source.answers("longbench", model, EQUAL, LONGBENCH)
        asked = [part[list(EQUAL)].to_numpy().T for part in answers.values()]
        own = comparisons.first_places(np.stack([one.mean(axis=1) for one in asked], axis=-1))
        drawn = comparisons.first_places(comparisons.bootstrap(asked))  # (draws, methods)
        found = [comparisons.drawn_interval(own[i], drawn[:, i], len(asked)) for i in range(len(EQUAL))]
        rows += [(model, method, *interval) for method, interval in zip(EQUAL, found, strict=True)]
    for model, part in by_model(data.paper("longbench")):
        wide = part.pivot_table("value", "method", "task").reindex(EQUAL).dropna()
        places = comparisons.first_places(wide.to_numpy())
        rows += [(f"{model} (paper)", *row, np.nan, np.nan, 16) for row in zip(wide.index, places, strict=True)]
    frame = pd.DataFrame(rows, columns=["model", "method", "value", "low", "high", "tasks"])
    frame["title"] = frame["method"].map(TITLES)
    drawn, grid = plots.dots(frame, "value", "title", "method", dodge=0, size=(4, 2.2))
    first = frame[frame["method"] == FLAPPED].iloc[0]
    places = told(*first[["value", "low", "high"]], ".0f")
    title = f"HARP+FLAP is first on {places} of {first['tasks']} tasks here"
    note = "alone or with others, of the methods that remove as many parameters; 95 % of the draws over questions"
    return plots.finish(drawn, grid, title, note, x="first places (tasks)", legend=False)


@figure("longbench")
def longbench_differences(profile: dict) -> Figure:
    """By how many points HARP+FLAP scores higher than each other method, by category, paired by question."""
    frame = differences(profile, "longbench", CATEGORIES | {"all tasks": list(LONGBENCH)}, FLAPPED)
    frame = frame[frame["method"].isin((*BASELINES, HARP)) & ~frame["silent"]]
    frame["category"] = [f"{group} ({count})" for group, count in zip(frame["group"], frame["questions"], strict=True)]
    drawn, grid = plots.dots(frame, "value", "category", "method", dodge=0.14, size=(6.5, 4), wrap=2)
    for axis, _ in grid:
        axis.axvline(0, color=LOOKS[FLAPPED].colour, linewidth=1.5)
    whole = frame[frame["group"] == "all tasks"]
    sides = {"ahead of": whole["low"] > 0, "behind": whole["high"] < 0}
    said = [
        f"{word} {', '.join(dict.fromkeys(whole[side]['method'].map(TITLES)))}"
        for word, side in sides.items()
        if side.any()
    ]
    count = whole["questions"].max()
    title = f"Over all {count} questions HARP+FLAP is {' and '.join(said) or 'not told from any other'}"
    note = about(
        frame, "(questions), 95 % intervals, paired by question; not drawn where both scored zero on all of them"
    )
    return plots.finish(drawn, grid, title, note, x="points ahead")
