"""Notebooks 05 to 07: every plan scored on every benchmark; other layers than the top ones; one
layer at a time.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pandas as pd

from harp_lib import config
from harp_lib.accounting import head_ratio, removed_fraction
from harp_lib.evaluation.benchmarks import (
    ALL_BENCHMARKS,
    BENCHMARKS,
    DISCRIMINATIVE,
    LONGBENCH,
    Benchmark,
    MissingTaskError,
)
from harp_lib.evaluation.evaluator import Evaluator
from harp_lib.experiments.job import HELD_OUT, REFIT, Job, Text, described, or_failed
from harp_lib.methods.layer_selection import SCORED, layer_scores, lowest_layers
from harp_lib.names import EVALUATED
from harp_lib.pruning.plan import PruningPlan
from harp_lib.results import digest, write_json
from harp_lib.text.corpora import Corpus

STRATEGIES = (
    "bottom",
    "hessian",
    "similarity",
    "top",
)  # the paper's, in its order; all of them at alpha = 1
SINGLE_ALPHAS = (1.0, 0.0)  # queries and keys removed; the whole attention removed


def scores(job: Job, section: str = "evaluation") -> None:
    """Every method's plan on the eleven benchmarks."""
    plans = {method: job.plan(method) for method in ("dense", *EVALUATED)}
    tasks = job.tasks(section)
    chosen = [task for task in tasks if ALL_BENCHMARKS[task].choices]
    written = [task for task in tasks if not ALL_BENCHMARKS[task].choices]
    writers = job.profile[section].get("written_by", {}).get(job.name, plans)
    _score(job, chosen, plans, section)
    _score(
        job, written, {method: plan for method, plan in plans.items() if method in writers}, section
    )


def longbench(job: Job) -> None:
    """Every method's plan on LongBench."""
    scores(job, "longbench")


def likelihoods(job: Job) -> None:
    """Likelihood of the reference answers under every method's plan, where answers are written."""
    plans = {method: job.plan(method) for method in ("dense", *EVALUATED)}
    _measure_likelihoods(
        job, [task for task in job.tasks("likelihoods") if task in BENCHMARKS], plans
    )


def longbench_likelihoods(job: Job) -> None:
    """The same on LongBench."""
    plans = {method: job.plan(method) for method in ("dense", *EVALUATED)}
    _measure_likelihoods(
        job, [task for task in job.tasks("likelihoods") if task in LONGBENCH], plans
    )


def ablations(job: Job) -> None:
    """The strategies of :func:`layers`: ``top`` on all tasks, the others on discriminative ones, as
    in the paper.
    """
    tasks, total = job.tasks("evaluation"), job.num_layers
    shared = {
        "dense": PruningPlan(total, {}),
        "harp": PruningPlan.value_only(total, job.alphas(job.corpora[0])),
    }
    _score(replace(job, store="main_tables", force=False), tasks, shared)  # for notebook 05 too
    chosen = {
        strategy: job.read("ablations", strategy, "selection")["layers"] for strategy in STRATEGIES
    }
    plans = {
        name: PruningPlan.value_only(total, dict.fromkeys(layers, 1.0))
        for name, layers in chosen.items()
    }
    of_likelihoods = replace(job, store="likelihoods", force=False)
    written = [task for task in job.tasks("likelihoods") if task in BENCHMARKS]
    _measure_likelihoods(of_likelihoods, written, shared | {"top": plans["top"]})
    _score(job, tasks, {"top": plans.pop("top")})
    _score(job, [task for task in tasks if ALL_BENCHMARKS[task].kind == DISCRIMINATIVE], plans)


def _score(
    job: Job, tasks: Iterable[str], plans: Mapping[str, PruningPlan], section: str = "evaluation"
) -> None:
    """Score plans on tasks."""
    _measure(job, tasks, plans, section, "scores", _result)


def _measure_likelihoods(job: Job, tasks: Iterable[str], plans: Mapping[str, PruningPlan]) -> None:
    """Likelihoods of the reference answers of tasks under plans, of which the first is the dense
    model's.
    """
    _measure(job, tasks, plans, "likelihoods", "likelihoods", _likelihoods)


def _measure(
    job: Job,
    tasks: Iterable[str],
    plans: Mapping[str, PruningPlan],
    section: str,
    description: str,
    compute: Callable[[Job, Evaluator, PruningPlan, Benchmark], dict[str, Any]],
) -> None:
    """One cell for each task and plan. A cell that fails says why and is shown as missing; the
    others go on.
    """
    evaluator = Evaluator(job.profile, job.seed, section)
    cells = []
    for task, (method, plan) in product(tasks, plans.items()):
        inputs, missing = _inputs(job, evaluator, task, plan)
        twin = _method_with_equal_plan(plans, method)
        if missing:
            cells.append((method, task, inputs, dict, {"failed": missing}))
        elif twin:
            cells.append((method, task, inputs, _of_this_run, job, twin, task))
        else:
            cells.append(
                (
                    method,
                    task,
                    inputs,
                    or_failed,
                    compute,
                    job,
                    evaluator,
                    plan,
                    ALL_BENCHMARKS[task],
                )
            )
    job.cells(description, cells)


def _inputs(
    job: Job, evaluator: Evaluator, task: str, plan: PruningPlan
) -> tuple[dict[str, Any], str | None]:
    """What a cell of a task depends on, and why it cannot be computed where there are no rows."""
    inputs = job.inputs | job.plan_inputs(plan)
    try:
        return inputs | evaluator.inputs(ALL_BENCHMARKS[task]), None
    except MissingTaskError as error:
        return inputs | {"task": task, "missing": str(error)}, str(error)


def _method_with_equal_plan(plans: Mapping[str, PruningPlan], method: str) -> str | None:
    """An earlier method whose plan removes the same, so that its results are this method's too."""
    for other, plan in plans.items():
        if other == method:
            return None
        if plan.layers == plans[method].layers and REFIT not in (plan.method, plans[method].method):
            return other
    return None


def _of_this_run(job: Job, method: str, task: str) -> dict[str, Any]:
    """What this run has already found of another method on a task: its result, or why there is
    none.
    """
    return job.store_of(job.store).cells[job.name, method, task]["result"]


def _result(
    job: Job, evaluator: Evaluator, plan: PruningPlan, benchmark: Benchmark
) -> dict[str, Any]:
    """The scores, and what the plan removes."""
    model = job.model
    ratios = {
        "removed_fraction": removed_fraction(model.config, plan),
        "head_ratio": head_ratio(model.config, plan),
    }
    with job.pruned(plan):
        result = evaluator.evaluate(model, job.tokenizer, benchmark)
    if not plan.layers and benchmark.chain_of_thought:
        write_json(_replies_file(job, evaluator, benchmark), result["answers"])
    return result | ratios


def _likelihoods(
    job: Job, evaluator: Evaluator, plan: PruningPlan, benchmark: Benchmark
) -> dict[str, Any]:
    """Bits per byte of the reference answers; where the paper asks for a chain of thought, after
    the dense model's.
    """
    replies = _dense_replies(job, evaluator, benchmark) if benchmark.chain_of_thought else None
    with job.pruned(plan):
        return evaluator.likelihoods(job.model, job.tokenizer, benchmark, replies)


def _dense_replies(job: Job, evaluator: Evaluator, benchmark: Benchmark) -> dict[str, list[str]]:
    """What the dense model writes, by subtask: once, and kept beside the results, not among them.

    Replies may repeat their questions, and BBH asks not to be published again.
    """
    file = _replies_file(job, evaluator, benchmark)
    if not file.is_file():
        write_json(file, evaluator.evaluate(job.model, job.tokenizer, benchmark)["answers"])
    return json.loads(file.read_bytes())


def _replies_file(job: Job, evaluator: Evaluator, benchmark: Benchmark) -> Path:
    """Its name says what the replies depend on."""
    inputs = job.inputs | evaluator.inputs(benchmark)
    return (
        config.RESULTS
        / job.profile["name"]
        / ".replies"
        / f"{config.slug(job.name)}-{digest(inputs)}.json"
    )


def layers(job: Job) -> None:
    """Which layers the strategies choose, what each searched alpha brings, and what one layer alone
    costs.
    """
    first, settings, count = job.corpora[0], job.profile["ablations"], job.num_pruned
    corpus, searched, cells = job.corpus(first), job.alphas(first), []
    for strategy in STRATEGIES:
        inputs = job.inputs | {"num_layers": count, "total": job.num_layers}
        if strategy in SCORED:
            inputs |= {"calibration": settings["calibration"], "seed": job.seed} | described(corpus)
        cells.append((strategy, "selection", inputs, _select, job, strategy, corpus))
    job.cells("layer selection", cells)
    gain, single = {"alphas": searched}, {"alphas": SINGLE_ALPHAS, "num_layers": count}
    texts = {
        "gain": job.text(first, HELD_OUT, settings["gain"]),
        "single-layer": job.unread(first, *settings["single_layer"]),
    }
    for method, compute, inputs in (
        ("gain", _gain, gain),
        ("single-layer", _single_layers, single),
    ):
        text = texts[method]
        cells = [
            (
                method,
                f"document-{i:02d}",
                text.inputs | {"document": i} | inputs,
                compute,
                text,
                i,
                inputs["alphas"],
            )
            for i in range(len(text.documents))
        ]
        job.cells(method, cells)


def _select(job: Job, strategy: str, corpus: Corpus) -> dict[str, Any]:
    """The layers of a strategy, as many as HARP prunes."""
    count = job.num_pruned
    if strategy not in SCORED:
        first = 0 if strategy == "bottom" else job.num_layers - count
        return {"layers": list(range(first, first + count)), "scores": None}
    blocks = job.blocks(corpus, *job.profile["ablations"]["calibration"])
    found = layer_scores(strategy, job.model, blocks)
    return {"layers": lowest_layers(found, count), "scores": found}


def _gain(whole: Text, document: int, searched: Mapping[int, float]) -> dict[str, Any]:
    """Likelihood with the searched alpha in the k highest of the pruned layers, and 1 in those
    below.
    """
    text, order = whole[document : document + 1], sorted(searched, reverse=True)
    ones = dict.fromkeys(order, 1.0)
    plans = {
        f"top-{k}": ones | {layer: searched[layer] for layer in order[:k]}
        for k in range(len(order) + 1)
    }
    nll = {name: _nll(text, alphas) for name, alphas in (plans | {"dense": {}}).items()}
    return {"nll": nll, "tokens": sum(text.tokens)}


def _single_layers(whole: Text, document: int, alphas: Sequence[float]) -> dict[str, Any]:
    """Likelihood by alpha and layer, that layer value-only and all others dense."""
    text = whole[document : document + 1]
    layers = range(text.job.num_layers)  # the lowest first, see Text.nll
    nll = pd.DataFrame(
        [{f"{alpha:g}": _nll(text, {layer: alpha}) for alpha in alphas} for layer in layers]
    )
    return {"dense": _nll(text, {}), "tokens": sum(text.tokens), **nll.to_dict("list")}


def _nll(text: Text, alphas: Mapping[int, float]) -> float:
    return sum(text.nll(PruningPlan.value_only(text.job.num_layers, alphas))["nll"])
