"""Scores of benchmarks as frames and as the paper's tables: main results, LongBench, ablations, what was asked."""

from collections.abc import Iterable, Mapping
from fractions import Fraction
from itertools import product
from typing import Any

import numpy as np
import pandas as pd

from harp_lib.measure.evaluation import BENCHMARKS, LONGBENCH, task_title
from harp_lib.measure.models import display_name
from harp_lib.methods import TITLES
from harp_lib.report import comparisons, data, table
from harp_lib.report.tables import MISSING, Table, block, by_model, perplexities, stacked

ROWS = ("dense", "mag-sp", "llm-pruner", "wanda-sp", "flap", "harp+flap", "harp")  # in the paper's order
EQUAL = ROWS[1:6]  # these remove as many parameters; the paper prints the best of them bold
STRATEGIES = {"dense": "dense", "bottom": "Bottom", "hessian": "Hessian", "similarity": "Similarity", "top": "Top"}
ALPHAS = {"dense": "dense", "top": "HARP, α = 1", "harp": "HARP, α searched"}
AVERAGE = "average"
CELL = ["model", "method", "task"]


def of_kind(kind: str) -> list[str]:
    """The benchmarks of a kind, by lm-eval's names."""
    return [name for name, benchmark in BENCHMARKS.items() if benchmark.kind == kind]


def scores(profile: dict, stores: str | tuple, tasks: Iterable[str], methods: Iterable[str] = ROWS) -> pd.DataFrame:
    """Mean score and standard error of each method on each task, and on average of the tasks that no method lacks.

    Columns: model, method, task, value, error (in per cent), questions, reason (of no score), removed_fraction and
    head_ratio (fractions of 1), tokens (mean length of an answer), beside (the metric kept beside, in per cent).
    """
    wanted, names = ("scores", "answer_tokens", "beside", "removed_fraction", "head_ratio", "failed"), list(methods)
    stores = (stores,) if isinstance(stores, str) else stores
    found = pd.concat([data.tidy(profile["name"], store, *wanted) for store in stores])
    found = found[found["task"].isin(list(tasks)) & found["method"].isin(names)]
    found = found.drop_duplicates([name for name in found if name != "value"])  # what two stores have
    asked = found[found["quantity"] == "scores"].astype({"value": float}).groupby(CELL)["value"]
    frame = pd.DataFrame({"value": 100 * asked.mean(), "error": 100 * asked.sem(), "questions": asked.size()})
    failed = found[found["quantity"] == "failed"].set_index(CELL)["value"].rename("reason")
    frame = frame.join(failed, how="outer").reset_index()
    averages = [_average(part) for _, part in frame.groupby("model", sort=False)]
    frame = pd.concat([frame, *averages], ignore_index=True)
    means = found[~found["quantity"].isin(["scores", "failed"])].astype({"value": float})
    of_method = means[means["quantity"].isin(wanted[3:5])].pivot_table("value", CELL[:2], "quantity")
    of_cell = means[means["quantity"].isin(wanted[1:3])].pivot_table("value", CELL, "quantity")
    frame = frame.join(of_method, on=CELL[:2]).join(of_cell.reindex(columns=wanted[1:3]), on=CELL)
    order = {name: i for i, name in enumerate([*tasks, AVERAGE, *names])}
    frame = frame.sort_values(CELL, key=lambda part: part.map(order) if part.name != "model" else part)
    return frame.rename(columns={"answer_tokens": "tokens"}).assign(beside=100 * frame["beside"]).reset_index(drop=True)


def _average(part: pd.DataFrame) -> pd.DataFrame:
    """A model's rows of the unweighted mean over the tasks that all of its methods have."""
    whole = part.pivot_table("value", "task", "method").dropna().index
    rows = part[part["task"].isin(whole)].groupby(["model", "method"])
    error = rows["error"].agg(lambda errors: np.sqrt((errors.to_numpy() ** 2).sum()) / len(errors))
    mean = pd.DataFrame({"value": rows["value"].mean(), "error": error, "questions": rows["questions"].sum()})
    return mean.reset_index().assign(task=AVERAGE)


def differences(profile: dict, store: str, groups: Mapping[str, Iterable[str]], reference: str) -> pd.DataFrame:
    """By how many points a reference scores higher than each other method, paired by question, with its interval.

    Columns: model, method, group (the key of the tasks that are averaged), value, low, high, questions, silent (both
    scored zero on all of these). Tasks that one of the two lacks are left out.
    """
    found, rows = data.tidy(profile["name"], store, "scores"), []
    for model, mine in by_model(found):
        kept = {key: part.to_numpy(float) for key, part in mine.groupby(["method", "task"])["value"]}
        for method, (group, tasks) in product([one for one in ROWS if one != reference], groups.items()):
            both = [(kept.get((reference, task)), kept.get((method, task))) for task in tasks]
            both = [pair for pair in both if pair[0] is not None and pair[1] is not None]
            if both:
                silent = not any(part.any() for pair in both for part in pair)
                rows.append((model, method, group, *comparisons.paired_difference(both) * 100, silent))
    return pd.DataFrame(rows, columns=["model", "method", "group", "value", "low", "high", "questions", "silent"])


def score_table(
    profile: dict, printed: pd.DataFrame, ours: pd.DataFrame, ratios=(), titles=TITLES, bold=EQUAL
) -> Table:
    """The paper's models whole, the highest score of ``bold`` methods bold; then ours, with the number of questions."""
    paper, about = printed[printed["quantity"] == "score"], printed[printed["task"] == "all"]
    paper = paper.join(about.pivot_table("value", CELL[:2], "quantity"), on=CELL[:2])
    highest = paper["value"].where(paper["method"].isin(bold)).groupby([paper["model"], paper["task"]]).transform("max")
    best = paper["method"].isin(bold) & (paper["value"] == highest)
    paper, tasks = paper.assign(best=best), list(paper["task"].unique())
    official, own = ({task: _title(task, source) for task in tasks} for source in ("hub", profile["datasets"]))
    heads = {"removed_fraction": "parameters removed", "head_ratio": "heads removed"}
    blocks = []
    for source, model, part in [("paper", *pair) for pair in by_model(paper)] + [
        ("ours", *pair) for pair in by_model(ours)
    ]:
        shown = block(part, "method", "task").reindex(columns=["method", *tasks], fill_value=MISSING)
        first = part.drop_duplicates("method").set_index("method")
        for name in ratios:
            shown[heads[name]] = [_share(name, first.loc[method].get(name), source) for method in shown["method"]]
        shown["method"] = [titles.get(method, method) for method in shown["method"]]
        if source == "ours":
            counts = part.groupby("task")["questions"].max().map("{:.0f}".format).to_dict() | {"method": "questions"}
            shown = pd.concat([pd.DataFrame([own] if own != official else []), shown, pd.DataFrame([counts])])
        blocks.append(shown.assign(model=display_name(model) if source == "ours" else f"{model} (paper)"))
    whole = stacked(*blocks)[["model", "method", *(heads[name] for name in ratios), *tasks]].rename(columns=official)
    return whole, pd.concat([paper.assign(source="paper"), ours.assign(source="ours")]).drop(
        columns=["quantity", "best"]
    )


def _title(task: str, source: str) -> str:
    return "Average" if task == AVERAGE else task_title(task, source)


def _share(name: str, value: float | None, source: str) -> str:
    if value is None or np.isnan(value):
        return ""
    if name == "head_ratio":
        return str(Fraction(value).limit_denominator(1000))
    return f"{value:.1f} %" if source == "paper" else f"{100 * value:.2f} %"


@table("main_tables")
def scores_generation(profile: dict) -> Table:
    """The paper's Table "gen"."""
    ours = scores(profile, "main_tables", of_kind("generation"))
    return score_table(profile, data.paper("generation"), ours, ("removed_fraction", "head_ratio"))


@table("main_tables")
def scores_discriminative(profile: dict) -> Table:
    """The paper's Table "dis"."""
    ours = scores(profile, "main_tables", of_kind("discriminative"))
    return score_table(profile, data.paper("discriminative"), ours, ("head_ratio",))


@table("longbench")
def longbench_scores(profile: dict) -> Table:
    """The paper's Table "longcontext"; it prints no averages."""
    return score_table(profile, data.paper("longbench"), scores(profile, "longbench", LONGBENCH))


def _ablation(profile: dict, name: str, kind: str, titles: dict[str, str]) -> Table:
    printed = data.paper(name).replace({"task": {f"average {kind}": AVERAGE}})
    printed = printed[printed["task"].isin([*of_kind(kind), AVERAGE])]
    ours = scores(profile, ("ablations", "main_tables"), of_kind(kind), titles)
    return score_table(profile, printed, ours, titles=titles, bold=titles)


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
    rows = {}
    for (*_, name), cell in data.cells(profile["name"], store).items():
        inputs, result, benchmark = cell["inputs"], cell["result"], benchmarks.get(name)
        if benchmark is None or "scores" not in result or name in rows:
            continue
        limit, prompts = inputs.get("new_tokens") or "lm-eval's", result.get("prompt_tokens", [])
        rows[name] = {
            "called": task_title(name, profile["datasets"]),
            "in lm-eval": f"{name}, version {next(iter(result['versions'].values())):g}",
            "metric": benchmark.metric + ("" if benchmark.filter == "none" else f" ({benchmark.filter})"),
            "questions": len(result["scores"]),
            "choices": benchmark.choices or "",
            "subtasks": len(result["subtasks"]) if len(result["subtasks"]) > 1 else "",
            "examples in the prompt": inputs.get("shots", ""),
            "new tokens at most": "" if benchmark.choices else limit,
            "tokens of a prompt (median)": f"{np.median(prompts):,.0f}" if prompts else "",
            "prompts cut": sum(count > result["context"] for count in prompts) if prompts else "",
        }
    frame = pd.DataFrame.from_dict(rows, orient="index").astype(object)
    return frame.loc[[name for name in benchmarks if name in rows], (frame != "").any()]


@table("main_tables")
def dataset_statistics(profile: dict) -> pd.DataFrame:
    """The paper's Table "stat" with its sentence on generation tasks, and the same of what is asked here."""
    printed = data.paper("dataset_statistics").pivot_table("value", "quantity", "task", sort=False)
    paper = printed.map(lambda number: "" if pd.isna(number) else f"{number:,.0f}")
    paper = paper.rename(index={"documents": "# Tasks", "choices": "# Choices"})
    parts = {"paper": paper, "here": _asked(profile, "main_tables", BENCHMARKS).T}
    shown = stacked(*(part.rename_axis("what").reset_index().assign(model=name) for name, part in parts.items()))
    shown = shown[["model", "what", *printed.columns]]
    return shown.rename(columns={"model": " "} | {task: task_title(task, "hub") for task in printed.columns})


@table("longbench")
def longbench_asked(profile: dict) -> pd.DataFrame:
    """The same of LongBench, which the paper does not print."""
    return _asked(profile, "longbench", LONGBENCH)


@table("main_tables", "baselines")
def at_a_glance(profile: dict) -> Table:
    """One line for each method: what was removed, held-out perplexity, and the average score of each kind of task."""
    texts = perplexities(profile, "baselines").query("method in @ROWS and split == 'validation'")
    parts = [texts[texts["corpus"] == texts["corpus"].iloc[0]].assign(what="perplexity")]
    for kind in ("generation", "discriminative"):
        frame = scores(profile, "main_tables", of_kind(kind)).query("task == @AVERAGE")
        asked = f"{frame['questions'].max():.0f} {'home-made ' * (profile['datasets'] == 'embedded')}questions"
        parts.append(frame.assign(what=f"{kind} ({asked})"))
    numbers = pd.concat([frame[["model", "method", "what", "value", "error"]] for frame in parts])
    removed = parts[1].set_index(["model", "method"])["removed_fraction"]
    blocks = []
    for model, part in by_model(numbers):
        shown = (
            block(part, "method", "what", "{value:.1f} ± {error:.1f}").set_index("method").reindex(ROWS).reset_index()
        )
        shown.insert(1, "parameters removed", [f"{100 * removed[model, method]:.1f} %" for method in shown["method"]])
        blocks.append(shown.assign(model=display_name(model), method=[TITLES[method] for method in shown["method"]]))
    whole = stacked(*blocks)
    return whole[["model", *whole.columns.drop("model")]], numbers
