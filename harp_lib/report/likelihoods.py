"""How likely the right answer is, beside how often it is given: tables and figures of margins, bits
and flips.

Of multiple choice the measure is the log-odds margin of the right choice, of written answers the
bits per byte of the reference answer (:mod:`harp_lib.evaluation.likelihood`). Both are compared
question by question.
"""

from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from harp_lib.evaluation.benchmarks import BENCHMARKS, LONGBENCH
from harp_lib.names import METHOD_TITLES, display_name
from harp_lib.report import data, figure, plots, table
from harp_lib.report.comparisons import paired_mean_difference
from harp_lib.report.plans import one_row_per_plan
from harp_lib.report.right_answers import ITEM, measure_of, paired, right_answers
from harp_lib.report.scores import AVERAGE, FEWEST_QUESTIONS, named, of_kind
from harp_lib.report.tables import Table, block, stacked


def changes_against_dense(profile: dict, groups: Mapping[str, list[str]]) -> pd.DataFrame:
    """How much less likely the right answer is than with the dense model, paired by question.

    Columns: model, method, group (the key of the tasks that are averaged), value, low, high (above
    0 it is less likely: the margin that is lost, or the bits per byte that are added), questions,
    methods. A group is the average of the tasks that the model has under every method.
    """
    rows = []
    answers = right_answers(profile["name"], {task for tasks in groups.values() for task in tasks})
    answers = answers[answers["method"].isin(METHOD_TITLES)]
    for model, mine in answers.groupby("model", sort=False):
        for group, tasks in groups.items():
            asked = mine[mine["task"].isin(tasks)]
            complete = asked.pivot_table("value", "task", "method").dropna().index
            for method in asked["method"].unique():
                if method == "dense" or not len(complete):
                    continue
                pairs = []
                for task in complete:
                    both = paired(asked, task, ["dense", method])
                    worse, better = both["dense"], both[method]
                    pairs.append((worse, better) if measure_of(task).sign > 0 else (better, worse))
                rows.append((model, method, group, *paired_mean_difference(pairs)))
    columns = ["model", "method", "group", "value", "low", "high", "questions"]
    frame = pd.DataFrame(rows, columns=columns)
    return one_row_per_plan(frame, data.cells(profile["name"], "baselines"))


def flips(profile: dict, tasks: list[str]) -> pd.DataFrame:
    """Answers that differ from the dense model's, after Dutta et al. (2024, arXiv 2407.09141).

    Columns: model, method, task, questions, and as fractions of 1 ``flipped`` (right became wrong
    or wrong became right), ``to_wrong`` and ``to_right`` (its two parts), and ``changed`` (another
    choice than the dense model's, right or not; nan where answers are written). An answer is right
    where its score is above one half.
    """
    asked = data.questions(data.cells(profile["name"], "main_tables"))
    if asked.empty:
        return pd.DataFrame()
    asked = asked[asked["task"].isin(tasks) & asked["method"].isin(METHOD_TITLES)]
    if asked.empty:  # LongBench's scores are in another store
        return pd.DataFrame()
    if "choice" not in asked:
        asked = asked.assign(choice=np.nan)
    keys = ["model", "task", *ITEM]
    dense = asked[asked["method"] == "dense"].set_index(keys)[["score", "choice"]]
    both = asked[asked["method"] != "dense"].join(dense, on=keys, rsuffix=" of dense", how="inner")
    was_right = both["score of dense"] > 0.5
    is_right = both["score"] > 0.5
    both["to_wrong"] = (was_right & ~is_right).astype(float)
    both["to_right"] = (~was_right & is_right).astype(float)
    both["flipped"] = both["to_wrong"] + both["to_right"]
    both["changed"] = (
        (both["choice"] != both["choice of dense"]).astype(float).where(both["choice"].notna())
    )
    parts = both.groupby(["model", "method", "task"], sort=False)
    shares = parts[["flipped", "to_wrong", "to_right", "changed"]].mean()
    return shares.assign(questions=parts.size()).reset_index()


def _flips_together(profile: dict, tasks: list[str]) -> pd.DataFrame:
    """Flips of a model's tasks, averaged over these."""
    found = flips(profile, tasks)
    if found.empty:
        return found
    return (
        found.groupby(["model", "method"])[["flipped", "to_wrong", "to_right"]].mean().reset_index()
    )


def _table(profile: dict, tasks: list[str], form: str) -> Table | None:
    """The measure of each plan on each task, and the flips of its answers on average of the tasks."""
    answers = right_answers(profile["name"], tasks)
    answers = answers[answers["method"].isin(METHOD_TITLES)]
    if answers.empty:
        return None
    groups = answers.groupby(["model", "method", "task"], sort=False)["value"]
    frame = groups.agg(value="mean", error="sem", questions="size").reset_index()
    order = {name: place for place, name in enumerate([*METHOD_TITLES, *tasks])}
    frame = frame.sort_values(["method", "task"], key=lambda names: names.map(order), kind="stable")
    frame = one_row_per_plan(
        frame.sort_values("model", kind="stable"), data.cells(profile["name"], "baselines")
    )

    flipped = _flips_together(profile, tasks)
    directions = (
        {} if flipped.empty else {"to_wrong": "right to wrong", "to_right": "wrong to right"}
    )
    blocks = []
    for model, part in frame.groupby("model", sort=False):
        shown = block(part, "methods", "task", form)
        names = part.drop_duplicates("methods").set_index("methods")["method"]
        for column, title in directions.items():
            of_model = flipped[flipped["model"] == model]
            share = of_model.set_index("method")[column].reindex(shown["methods"].map(names))
            shown[title] = [
                "–" if np.isnan(value) else f"{value:.1%}" for value in share.astype(float)
            ]
        asked = part.groupby("task")["questions"].max().map("{:.0f}".format).to_dict()
        counts = pd.DataFrame([{"methods": "questions", **asked}])
        blocks.append(pd.concat([shown, counts]).assign(model=display_name(model)))
    shown = stacked(*blocks)
    columns = ["model", "methods", *(task for task in tasks if task in shown), *directions.values()]
    titles = {task: named(task, profile["datasets"]) for task in tasks}
    return shown[columns].rename(columns=titles | {"methods": "method"}), frame


@table("main_tables")
def likelihood_discriminative(profile: dict) -> Table | None:
    """Log-odds margin of the right choice (nats, a guess has 0; more is better), and flipped
    answers.
    """
    return _table(profile, of_kind("discriminative"), "{value:.2f} ± {error:.2f}")


@table("likelihoods")
def likelihood_generation(profile: dict) -> Table | None:
    """Bits per byte of the reference answer (less is better), and flipped answers."""
    return _table(profile, of_kind("generation"), "{value:.3f} ± {error:.3f}")


@table("likelihoods")
def likelihood_longbench(profile: dict) -> Table | None:
    """Bits per byte of LongBench's reference answers (less is better)."""
    return _table(profile, list(LONGBENCH), "{value:.3f} ± {error:.3f}")


def _lost(profile: dict, tasks: list[str], unit: str, what: str) -> Figure | None:
    """How much less likely the right answer is than with the dense model, task by task and on
    average.

    A task with fewer than ``FEWEST_QUESTIONS`` is part of the average only.
    """
    groups = {named(task, profile["datasets"]): [task] for task in tasks} | {
        AVERAGE.capitalize(): tasks
    }
    frame = changes_against_dense(profile, groups)
    frame = frame[frame["questions"] >= FEWEST_QUESTIONS]
    if frame.empty:
        return None
    counts = frame.groupby(["model", "group"])["questions"].transform("max")
    frame["name"] = [
        f"{group} ({count})" for group, count in zip(frame["group"], counts, strict=True)
    ]
    layout = {
        "wrap": 2,
        "share": (False, False),
        "size": (5.2, 4.4),
        "x": f"{unit} lost against the dense model",
    }
    drawn = plots.dots(frame, "name", "method", **layout)
    for axis, _ in drawn.panels:
        axis.axvline(0, color=plots.DENSE, linewidth=1)
    note = "{model}(questions), 95 % intervals, paired by question; to the right the right answer is less likely"
    return plots.finish(drawn, what, note)


@figure("main_tables")
def margin_lost(profile: dict) -> Figure | None:
    """Log-odds margin that each plan loses against the dense model, by task."""
    title = "Multiple choice: how much of the right choice's margin each method loses"
    return _lost(profile, of_kind("discriminative"), "nats of margin", title)


@figure("likelihoods")
def bits_lost(profile: dict) -> Figure | None:
    """Bits per byte of the reference answer that each plan adds to the dense model's, by task."""
    title = "Written answers: how many more bits each method needs for the reference answer"
    tasks = [task for task, benchmark in BENCHMARKS.items() if not benchmark.choices]
    return _lost(profile, tasks, "bits per byte", title)


@figure("likelihoods")
def longbench_bits_lost(profile: dict) -> Figure | None:
    """The same on LongBench."""
    title = "LongBench: how many more bits each method needs for the reference answer"
    return _lost(profile, list(LONGBENCH), "bits per byte", title)
