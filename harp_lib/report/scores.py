"""Scores of benchmarks as frames and as the paper's tables: main results, LongBench, ablations, what was asked."""

from collections.abc import Collection, Iterable, Mapping
from fractions import Fraction
from itertools import product
from typing import Any

import numpy as np
import pandas as pd

from harp_lib.measure.evaluation import BENCHMARKS, LONGBENCH, task_title
from harp_lib.measure.models import display_name
from harp_lib.methods import TITLES
from harp_lib.report import comparisons, data, table
from harp_lib.report.tables import MISSING, Table, block, by_model, stacked

ROWS = ("dense", "mag-sp", "llm-pruner", "wanda-sp", "flap", "harp+flap", "harp")  # in the paper's order
COMPETING = ROWS[1:6]  # these remove as many parameters; the paper prints the best of them bold
STRATEGIES = {"dense": "dense", "bottom": "Bottom", "hessian": "Hessian", "similarity": "Similarity", "top": "Top"}
ALPHAS = {"dense": "dense", "top": "HARP, α = 1", "harp": "HARP, α searched"}


def scores(profile: dict, stores: str | tuple, tasks: Iterable[str], methods: Iterable[str] = ROWS) -> pd.DataFrame:
    """Mean score and standard error of each method on each task, and on average of the tasks that no method lacks.

    Columns: model, method, removed_fraction, head_ratio (fractions of 1), task, value, error (in per cent), questions,
    tokens (mean length of an answer), beside (the metric that is kept beside, in per cent), reason (of no score).
    """
    about, quantities = ("removed_fraction", "head_ratio"), ("scores", "answer_tokens", "beside")
    stores = (stores,) if isinstance(stores, str) else stores
    found = pd.concat([data.tidy(profile["name"], store, *quantities, "failed", *about) for store in stores])
    found = found[found["task"].isin(list(tasks)) & found["method"].isin(list(methods))].astype({"value": object})
    found = found.drop_duplicates([name for name in found if name != "value"])  # what two stores have
    rows = []
    for model, mine in by_model(found):
        by = {key: list(part) for key, part in mine.groupby(["quantity", "method", "task"])["value"]}
        there = [method for method in methods if method in set(mine["method"])]
        asked = [task for task in tasks if task in set(mine["task"])]
        whole = [task for task in asked if all(("scores", method, task) in by for method in there)]
        for method, task in product(there, [*asked, "average"] if whole else asked):
            own = mine[mine["method"] == method].set_index("quantity")["value"]
            row = {"model": model, "method": method, "task": task}
            row |= {name: own[[name]].iloc[0] if name in own else np.nan for name in about}
            parts = [
                by[key] for one in (whole if task == "average" else [task]) if (key := ("scores", method, one)) in by
            ]
            if parts:
                value, error = comparisons.average([comparisons.score(part) for part in parts])
                row |= {"value": 100 * value, "error": 100 * error, "questions": sum(map(len, parts))}
            else:
                row["reason"] = by.get(("failed", method, task), ["not run"])[0]
            for name, column, unit in (("answer_tokens", "tokens", 1), ("beside", "beside", 100)):
                row[column] = unit * np.mean(by.get((name, method, task), [np.nan]))
            rows.append(row)
    columns = ["model", "method", "task", "value", "error", "questions", "tokens", "beside", "reason", *about]
    return pd.DataFrame(rows, columns=columns)


def score_table(
    profile: dict,
    printed: pd.DataFrame,
    ours: pd.DataFrame,
    ratios: Mapping[str, str] | None = None,
    titles: Mapping[str, str] = TITLES,
    competing: Collection[str] = COMPETING,
) -> Table:
    """The paper's models whole, the highest printed score bold; then ours, with how many questions were asked."""
    paper, about = printed[printed["quantity"] == "score"], printed[printed["task"] == "all"]
    about = about.pivot_table(index=["model", "method"], columns="quantity", values="value")
    paper = paper.join(about, on=["model", "method"])
    highest = paper[paper["method"].isin(competing)].groupby(["model", "task"])["value"].max().rename("highest")
    paper = paper.join(highest, on=["model", "task"])
    paper["best"] = paper["method"].isin(competing) & (paper["value"] == paper["highest"])
    tasks, blocks = list(paper["task"].unique()), []
    official, own = ({task: _title(task, source) for task in tasks} for source in ("hub", profile["datasets"]))
    for (model, part), is_ours in [(pair, False) for pair in by_model(paper)] + [
        (pair, True) for pair in by_model(ours)
    ]:
        shown = block(part, "method", "task").reindex(columns=["method", *tasks], fill_value=MISSING)
        first = part.drop_duplicates("method").set_index("method")
        for name, head in (ratios or {}).items():
            shown[head] = [_share(name, first.loc[method], is_ours) for method in shown["method"]]
        shown["method"] = [titles.get(method, method) for method in shown["method"]]
        if is_ours:
            counts = {"method": "questions"} | part.groupby("task")["questions"].max().map("{:.0f}".format).to_dict()
            above = [own] if own != official else []
            shown = pd.concat([pd.DataFrame(above), shown, pd.DataFrame([counts])])
        blocks.append(shown.assign(model=display_name(model) if is_ours else f"{model} (paper)"))
    whole = stacked(*blocks)[["model", "method", *(ratios or {}).values(), *tasks]].rename(columns=official)
    numbers = pd.concat([paper.assign(source="paper"), ours.assign(source="ours")])
    return whole, numbers.drop(columns=["quantity", "best", "highest"])


def _title(task: str, source: str) -> str:
    return "Average" if task.startswith("average") else task_title(task, source)


def _share(name: str, row: pd.Series, is_ours: bool) -> str:
    value = row.get(name, np.nan)
    if name == "head_ratio" and pd.notna(value):
        return str(Fraction(value).limit_denominator(1000))
    return "" if pd.isna(value) else f"{100 * value:.2f} %" if is_ours else f"{value:.1f} %"


def of_kind(kind: str) -> list[str]:
    """The benchmarks of a kind, by lm-eval's names."""
    return [name for name, benchmark in BENCHMARKS.items() if benchmark.kind == kind]


def _main(profile: dict, kind: str, ratios: dict[str, str]) -> Table:
    return score_table(profile, data.paper(kind), scores(profile, "main_tables", of_kind(kind)), ratios)


@table("main_tables")
def scores_generation(profile: dict) -> Table:
    """The paper's Table "gen"."""
    return _main(profile, "generation", {"removed_fraction": "parameters removed", "head_ratio": "heads removed"})


@table("main_tables")
def scores_discriminative(profile: dict) -> Table:
    """The paper's Table "dis"."""
    return _main(profile, "discriminative", {"head_ratio": "heads removed"})


@table("longbench")
def longbench_scores(profile: dict) -> Table:
    """The paper's Table "longcontext"; it prints no averages."""
    return score_table(profile, data.paper("longbench"), scores(profile, "longbench", LONGBENCH))


def _ablation(profile: dict, name: str, kind: str, titles: dict[str, str]) -> Table:
    printed = data.paper(name).replace({"task": {f"average {kind}": "average"}})
    printed = printed[printed["task"].isin([*of_kind(kind), "average"])]
    ours = scores(profile, ("ablations", "main_tables"), of_kind(kind), titles)
    return score_table(profile, printed, ours, titles=titles, competing=titles)


@table("ablations")
def ablation_layer_selection(profile: dict) -> Table:
    """The paper's Table "layer_selection"."""
    return _ablation(profile, "layer_selection", "discriminative", STRATEGIES)


@table("ablations")
def ablation_alpha_generation(profile: dict) -> Table:
    """The lower half of the paper's Table "ablation"."""
    return _ablation(profile, "alpha_ablation", "generation", ALPHAS)


@table("ablations")
def ablation_alpha_discriminative(profile: dict) -> Table:
    """Its upper half."""
    return _ablation(profile, "alpha_ablation", "discriminative", ALPHAS)


def _asked(profile: dict, store: str, benchmarks: Mapping[str, Any]) -> pd.DataFrame:
    """What each task is made of, a line each."""
    stored, rows = data.cells(profile["name"], store), {}
    for (*_, name), cell in stored.items():
        inputs, result, benchmark = cell["inputs"], cell["result"], benchmarks.get(name)
        if benchmark is None or "scores" not in result or name in rows:
            continue
        prompts = result.get("prompt_tokens")
        rows[name] = {
            "called": task_title(name, profile["datasets"]),
            "in lm-eval": f"{name}, version {next(iter(result['versions'].values())):g}",
            "metric": benchmark.metric + ("" if benchmark.filter == "none" else f" ({benchmark.filter})"),
            "questions": len(result["scores"]),
            "choices": benchmark.choices or "",
            "subtasks": len(result["subtasks"]) if len(result["subtasks"]) > 1 else "",
            "examples in the prompt": inputs.get("shots", ""),
            "new tokens at most": "" if benchmark.choices else inputs.get("new_tokens") or "lm-eval's limit",
            "tokens of a prompt (median)": f"{np.median(prompts):,.0f}" if prompts else "",
            "prompts cut": str(sum(count > result["context"] for count in prompts)) if prompts else "",
        }
    frame = pd.DataFrame.from_dict(rows, orient="index").astype(object)
    return frame.loc[[name for name in benchmarks if name in rows], (frame != "").any()]


@table("main_tables")
def dataset_statistics(profile: dict) -> pd.DataFrame:
    """The paper's Table "stat" with its sentence on generation tasks, and the same of what is asked here."""
    printed = data.paper("dataset_statistics").pivot_table(index="quantity", columns="task", values="value", sort=False)
    paper = printed.map(lambda number: "" if pd.isna(number) else f"{number:,.0f}")
    paper = paper.rename(index={"documents": "# Tasks", "choices": "# Choices"})
    here = _asked(profile, "main_tables", BENCHMARKS).T
    parts = [
        part.rename_axis("what").reset_index().assign(model=name) for name, part in (("paper", paper), ("here", here))
    ]
    shown = stacked(*parts)[["model", "what", *printed.columns]]
    return shown.rename(columns={"model": " "} | {task: task_title(task, "hub") for task in printed.columns})


@table("longbench")
def longbench_asked(profile: dict) -> pd.DataFrame:
    """The same of LongBench, which the paper does not print."""
    return _asked(profile, "longbench", LONGBENCH)
