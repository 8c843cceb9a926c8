"""Figures of notebooks 05 and 07: what the pruned models score."""

from itertools import product
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from harp_lib.measure.evaluation import BENCHMARKS, LONGBENCH, task_title
from harp_lib.methods import BASELINES, TITLES
from harp_lib.report import comparisons, data, figure, plots
from harp_lib.report.plots import LOOKS, about, with_paper
from harp_lib.report.scores import AVERAGE, KINDS, ROWS, differences, named, of_kind, scores
from harp_lib.report.tables import ENDS, by_model, told

HARP, FLAPPED = "harp", "harp+flap"
CATEGORIES = {
    kind: [n for n, t in LONGBENCH.items() if t.kind == kind] for kind in (t.kind for t in LONGBENCH.values())
}


@figure("main_tables")
def teaser_left(profile: dict) -> Figure:
    """The paper's Figure 1, left: scores on generation tasks, the paper's first model and then ours."""
    printed, tasks = data.paper("generation"), of_kind("generation")
    printed = printed[(printed["model"] == printed["model"].iloc[0]) & (printed["quantity"] == "score")]
    frame = with_paper(scores(profile, "main_tables", tasks), printed)
    origin = frame["source"].map({"paper": "hub", "ours": profile["datasets"]})
    frame["title"] = [named(task, source) for task, source in zip(frame["task"], origin, strict=True)]
    layout = {"size": (9, 2.4), "wrap": 1, "share": (False, True)}
    drawn, grid = plots.bars(frame, "value", "title", "method", {method: LOOKS[method] for method in ROWS}, **layout)
    leads = differences(profile, "main_tables", {AVERAGE: tasks}, FLAPPED)
    closest = leads[leads["method"].isin(BASELINES)].sort_values("value").drop_duplicates("model")
    said = [f"{told(*row[list(ENDS)])} points ahead of {TITLES[row['method']]}" for _, row in closest.iterrows()]
    title = f"At equal parameters HARP+FLAP is {' and '.join(said)}, the closest baseline"
    return plots.finish(drawn, grid, title, "lines: ± standard error, which the paper does not print", y="score (%)")


def _leads(frame: pd.DataFrame, title: str, **layout: Any) -> Figure:
    """By how many points a reference is ahead of others, group by group, each with its number of questions."""
    frame = frame.assign(name=[f"{row.group} ({row.questions})" for row in frame.itertuples()])
    drawn, grid = plots.dots(frame, "value", "name", "method", **layout)
    for axis, part in grid:
        axis.axvline(0, color=LOOKS[part["reference"].iloc[0]].colour, linewidth=1.5)
    note = "(questions), 95 % intervals, paired by question; not drawn where both scored zero on all of them"
    return plots.finish(drawn, grid, title, about(frame, note), x="points ahead")


@figure("main_tables")
def score_differences(profile: dict) -> Figure:
    """By how many points HARP+FLAP and HARP score higher than each baseline, task by task, paired by question."""
    parts = []
    for reference, kind in product((FLAPPED, HARP), KINDS):
        groups = {named(task, profile["datasets"]): [task] for task in of_kind(kind)} | {AVERAGE: of_kind(kind)}
        part = differences(profile, "main_tables", groups, reference)
        parts.append(part.assign(panel=f"{TITLES[reference]}, {kind} tasks", reference=reference))
    frame = pd.concat(parts).query("method in @BASELINES and not silent")
    tasks = frame[(frame["reference"] == FLAPPED) & (frame["group"] != AVERAGE)]
    title = (
        f"Task by task, HARP+FLAP leads a baseline in {(tasks['low'] > 0).sum()} of {len(tasks)} comparisons and is "
    )
    title += f"led in {(tasks['high'] < 0).sum()}"
    layout = {"panel": ["model", "panel"], "size": (5.2, 3.4), "wrap": 2, "share": (True, False), "dodge": 0.18}
    return _leads(frame, title, **layout)


@figure("longbench")
def longbench_differences(profile: dict) -> Figure:
    """By how many points HARP+FLAP scores higher than each other method, by category, paired by question."""
    frame = differences(profile, "longbench", CATEGORIES | {"all tasks": list(LONGBENCH)}, FLAPPED)
    frame = frame.assign(reference=FLAPPED).query("method != 'dense' and not silent")
    whole = frame[frame["group"] == "all tasks"]
    title = f"Over all {whole['questions'].max()} questions HARP+FLAP leads {(whole['low'] > 0).sum()} of {len(whole)} "
    title += f"others and is led by {(whole['high'] < 0).sum()}"
    return _leads(frame, title, dodge=0.14, size=(6.5, 4), wrap=2)


@figure("main_tables")
def score_kept(profile: dict) -> Figure | None:
    """The share of the dense score above chance that is kept, by the length of an answer: the paper's, then ours."""
    store, here, ours, printed = data.Source(profile["name"]), profile["datasets"], [], []
    lengths = {"triviaqa": 16, "gsm8k": 256}  # tokens of an answer, as the paper prints them
    for model in store.models("main_tables"):
        asked = data.above(store.answers("main_tables", model, ROWS, BENCHMARKS))
        for task, method in product(asked, ROWS[1:]):
            found = comparisons.share_kept([data.compared(task, asked[task], method)]) * 100
            tokens = np.mean(store.result("main_tables", model, "dense", task).get("answer_tokens", [0]))
            ours.append((model, task, method, tokens, task_title(task, here), *found[:3]))
    if not ours:
        return None
    for model, part in by_model(data.paper("generation").query("quantity == 'score'")):
        wide = part.pivot_table("value", "method", "task")
        for task, method in product(lengths, wide.index.drop("dense")):
            share = 100 * wide.loc[method, task] / wide.loc["dense", task]
            printed.append((model, task, method, lengths[task], task_title(task, "hub"), share))
    columns = ["model", "task", "method", "tokens", "name", *ENDS]
    frame = with_paper(pd.DataFrame(ours, columns=columns), pd.DataFrame(printed, columns=columns[:-2]))
    frame["name"] += [f"\n{count:.0f} tokens" if count else "\nto choose" for count in frame["tokens"]]
    layout = {"dodge": 0.12, "size": (4, 3.8), "wrap": 3, "share": (True, False)}
    drawn, grid = plots.dots(frame, "value", "name", "method", **layout)
    for axis, _ in grid:
        axis.axvline(100, color=LOOKS["dense"].colour, linewidth=1)
        axis.set_xlim(-15, 165)  # intervals may reach further
    mine = frame[(frame["source"] == "ours") & (frame["method"] == HARP)]
    sides = {"written": mine["tokens"] > 0, "chosen": mine["tokens"] == 0}
    said = [f"{mine[at]['value'].mean():.0f} % where answers are {name}" for name, at in sides.items() if at.any()]
    below = [task_title(task, here) for task in BENCHMARKS if task not in set(mine["task"])]
    note = f"0 is guessing, 100 dense; 95 % intervals; dense is not above chance on {', '.join(below) or 'no task'}"
    title = f"Of what dense has above chance HARP keeps {' and '.join(said)}"
    return plots.finish(drawn, grid, title, note, x="share kept (%)")
