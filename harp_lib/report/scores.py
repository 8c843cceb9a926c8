"""Scores of benchmarks as frames and as the paper's tables: main results, LongBench, ablations, what was asked."""

from collections.abc import Iterable, Mapping
from fractions import Fraction
from itertools import chain, product

import numpy as np
import pandas as pd

from harp_lib.measure.evaluation import BENCHMARKS, LONGBENCH, task_title
from harp_lib.measure.models import display_name
from harp_lib.methods import TITLES
from harp_lib.report import comparisons, data, plots, table
from harp_lib.report.tables import MISSING, Table, block, by_model, perplexities, stacked, written

ROWS = ("dense", "mag-sp", "llm-pruner", "wanda-sp", "flap", "harp+flap", "harp", "harp+refit")  # the paper's order
STRATEGIES = {"dense": "dense", "bottom": "Bottom", "hessian": "Hessian", "similarity": "Similarity", "top": "Top"}
ALPHAS = {"dense": "dense", "top": "HARP, α = 1", "harp": "HARP, α searched"}
KINDS, AVERAGE = ("generation", "discriminative"), "average"
CELL = ["model", "method", "task"]
RATIOS = {"removed_fraction": "parameters removed", "head_ratio": "heads removed"}  # and their columns


def of_kind(kind: str) -> list[str]:
    """The benchmarks of a kind, by lm-eval's names."""
    return [name for name, benchmark in BENCHMARKS.items() if benchmark.kind == kind]


def scores(profile: dict, stores: str | tuple, tasks: Iterable[str], methods: Iterable[str] = ROWS) -> pd.DataFrame:
    """Mean score and standard error of each method on each task, and on average of the tasks that no method lacks.

    Columns: model, method, task, value, error (in per cent), questions, reason (of no score), removed_fraction and
    head_ratio (fractions of 1). Of several stores together, the models that all of them have.
    """
    rows, tasks, names = [], list(tasks), list(methods)
    found = [data.cells(profile["name"], store) for store in ((stores,) if isinstance(stores, str) else stores)]
    models = set.intersection(*({model for model, *_ in cells} for cells in found))
    for key, cell in chain.from_iterable(cells.items() for cells in found):
        if key[0] in models and key[1] in names and key[2] in tasks:
            result, asked = cell["result"], pd.Series(cell["result"].get("scores"), dtype=float)
            row = {"value": 100 * asked.mean(), "error": 100 * asked.sem(), "questions": len(asked) or np.nan}
            row |= {"reason": result.get("failed")} | {ratio: result.get(ratio) for ratio in RATIOS}
            rows.append(dict(zip(CELL, key, strict=True)) | row)
    columns = [*CELL, "value", "error", "questions", "reason", *RATIOS]
    frame = pd.DataFrame(rows, columns=columns).drop_duplicates(CELL)  # what two stores have
    frame = pd.concat([frame, *(_average(part) for _, part in by_model(frame))], ignore_index=True)
    frame[list(RATIOS)] = frame.groupby(CELL[:2])[list(RATIOS)].transform("first").astype(float)
    order = {name: i for i, name in enumerate([*tasks, AVERAGE, *names])}
    frame = frame.sort_values(CELL, key=lambda part: part.map(order) if part.name != "model" else part)
    return frame.reset_index(drop=True)


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
    found, rows = {}, []
    for (model, method, task), cell in data.cells(profile["name"], store).items():
        if "scores" in cell["result"]:
            found.setdefault(model, {})[method, task] = cell["result"]["scores"]
    for model, kept in found.items():
        for (group, tasks), method in product(groups.items(), [one for one in ROWS if one != reference]):
            both = [(kept.get((reference, task)), kept.get((method, task))) for task in tasks]
            both = [pair for pair in both if pair[0] is not None and pair[1] is not None]
            if both:
                silent = not any(map(any, chain(*both)))
                rows.append((model, method, group, *comparisons.paired_difference(both) * 100, silent))
    return pd.DataFrame(rows, columns=["model", "method", "group", "value", "low", "high", "questions", "silent"])


def score_table(
    profile: dict, printed: pd.DataFrame, ours: pd.DataFrame, ratios=(), titles=TITLES, bold=ROWS[1:6]
) -> Table:
    """The paper's models whole, the highest score of ``bold`` methods bold; then ours, with the number of questions."""
    paper, about = printed[printed["quantity"] == "score"], printed[printed["task"] == "all"]
    paper = paper.join(about.pivot_table("value", CELL[:2], "quantity"), on=CELL[:2])
    highest = paper["value"].where(paper["method"].isin(bold)).groupby([paper["model"], paper["task"]]).transform("max")
    paper["best"] = paper["method"].isin(bold) & (paper["value"] == highest)
    tasks, here, blocks = list(paper["task"].unique()), profile["datasets"], []
    for frame, scale, unit in ((paper, 1, "{share:.1f} %"), (ours, 100, "{share:.2f} %")):
        for model, part in by_model(frame):
            shown = block(part, "method", "task").reindex(columns=["method", *tasks], fill_value=MISSING)
            first = part.groupby("method").first().reindex(columns=list(RATIOS)).loc[shown["method"]]
            shown["removed_fraction"] = [written({"share": scale * r}, unit) for r in first["removed_fraction"]]
            shown["head_ratio"] = [str(Fraction(r).limit_denominator(1000)) for r in first["head_ratio"].fillna(0)]
            shown["method"] = [titles[method] for method in shown["method"]]
            if frame is not paper:
                own = {task: named(task, here) for task in tasks} if here == "embedded" else {}
                asked = part.groupby("task")["questions"].max().map("{:.0f}".format).to_dict() | {"method": "questions"}
                shown = pd.concat([pd.DataFrame([own] if own else []), shown, pd.DataFrame([asked])])
            blocks.append(shown.assign(model=f"{model} (paper)" if frame is paper else display_name(model)))
    shown = stacked(*blocks)[["model", "method", *ratios, *tasks]]
    numbers = pd.concat([paper.assign(source="paper"), ours.assign(source="ours")]).drop(columns=["quantity", "best"])
    return shown.rename(columns={task: named(task, "hub") for task in tasks} | RATIOS), numbers


def named(task: str, source: str) -> str:
    """What an axis or a column calls a task, or the average."""
    return task.capitalize() if task == AVERAGE else task_title(task, source)


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


@table("main_tables")
def dataset_statistics(profile: dict) -> pd.DataFrame:
    """The paper's Table "stat" with its sentence on generation tasks, and the same of what is asked here."""
    printed = data.paper("dataset_statistics").pivot_table("value", "quantity", "task", sort=False)
    paper = printed.map(lambda number: "" if pd.isna(number) else f"{number:,.0f}")
    paper, asked, counts = paper.rename(index={"documents": "# Tasks", "choices": "# Choices"}), {}, {}
    for (*_, name), cell in data.cells(profile["name"], "main_tables").items():
        inputs, result, benchmark = cell["inputs"], cell["result"], BENCHMARKS[name]
        if "scores" in result:
            counts.setdefault(name, []).append(len(result["scores"]))  # of every model
            asked[name] = {
                "called": task_title(name, profile["datasets"]),
                "in lm-eval": f"{name}, version {next(iter(result['versions'].values())):g}",
                "metric": benchmark.metric + ("" if benchmark.filter == "none" else f" ({benchmark.filter})"),
                "questions": plots.span(counts[name], ".0f"),
                "choices": benchmark.choices or "",
                "examples in the prompt": inputs.get("shots", ""),
                "new tokens at most": "" if benchmark.choices else inputs.get("new_tokens") or "lm-eval's",
            }
    parts = {"paper": paper, "here": pd.DataFrame(asked).reindex(columns=paper.columns)}
    shown = stacked(*(part.rename_axis("what").reset_index().assign(model=name) for name, part in parts.items()))
    shown = shown[["model", "what", *printed.columns]]
    return shown.rename(columns={"model": " "} | {task: task_title(task, "hub") for task in printed.columns})


@table("main_tables", "baselines")
def at_a_glance(profile: dict) -> Table:
    """One line for each method: what was removed, held-out perplexity, and the average score of each kind of task."""
    texts = perplexities(profile, "baselines").query("method in @ROWS and split == 'validation'")
    parts = [texts[texts["corpus"] == texts["corpus"].iloc[0]].assign(what="perplexity")]
    for kind in KINDS:
        frame = scores(profile, "main_tables", of_kind(kind)).query("task == @AVERAGE")
        asked = f"{plots.span(frame['questions'], '.0f')} {'home-made ' * (profile['datasets'] == 'embedded')}questions"
        parts.append(frame.assign(what=f"{kind} ({asked})"))
    numbers = pd.concat([frame[["model", "method", "what", "value", "error"]] for frame in parts])
    removed = frame.assign(what="parameters removed (%)", value=100 * frame["removed_fraction"], error=np.nan)
    shown = block(pd.concat([removed, numbers]), ["model", "method"], "what", "{value:.1f} ± {error:.1f}")
    shown = shown.sort_values("method", key=lambda part: part.map(list(ROWS).index)).sort_values("model", kind="stable")
    shown = shown.replace({"method": TITLES}).assign(model=shown["model"].map(display_name))
    return stacked(shown), numbers
