"""Notebooks 05 to 07: every plan scored on every benchmark; other layers than the top ones; one layer at a time."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import pandas as pd

from harp_lib.accounting import head_ratio, removed_fraction
from harp_lib.experiments.job import HELD_OUT, Job, Text, described, or_failed
from harp_lib.measure.evaluation import ALL_BENCHMARKS, DISCRIMINATIVE, Benchmark, Evaluator, MissingTaskError
from harp_lib.measure.text import Corpus
from harp_lib.methods import EVALUATED
from harp_lib.methods.layer_selection import SCORED, layer_scores, lowest_layers
from harp_lib.pruning.plan import PruningPlan

STRATEGIES = ("bottom", "hessian", "similarity", "top")  # the paper's, in its order; all of them at alpha = 1
SINGLE_ALPHAS = (1.0, 0.0)  # queries and keys removed; the whole attention removed


def scores(job: Job, section: str = "evaluation") -> None:
    """Every method's plan on the eleven benchmarks."""
    _score(job, job.tasks(section), {method: job.plan(method) for method in ("dense", *EVALUATED)}, section)


def longbench(job: Job) -> None:
    """Every method's plan on LongBench."""
    scores(job, "longbench")


def ablations(job: Job) -> None:
    """The strategies of :func:`layers`: ``top`` on all tasks, the others on discriminative ones, as in the paper."""
    tasks, total = job.tasks("evaluation"), job.num_layers
    shared = {"dense": PruningPlan(total, {}), "harp": PruningPlan.value_only(total, job.alphas(job.corpora[0]))}
    _score(replace(job, store="main_tables", force=False), tasks, shared)  # for notebook 05 too
    chosen = {strategy: job.read("ablations", strategy, "selection")["layers"] for strategy in STRATEGIES}
    plans = {name: PruningPlan.value_only(total, dict.fromkeys(layers, 1.0)) for name, layers in chosen.items()}
    _score(job, tasks, {"top": plans.pop("top")})
    _score(job, [task for task in tasks if ALL_BENCHMARKS[task].kind == DISCRIMINATIVE], plans)


def _score(job: Job, tasks: Iterable[str], plans: Mapping[str, PruningPlan], section: str = "evaluation") -> None:
    """Score plans on tasks. A cell that fails says why and is shown as missing; the others go on."""
    evaluator, cells = Evaluator(job.profile, job.seed, section), []
    for task, (method, plan) in product(tasks, plans.items()):
        inputs, benchmark = job.inputs | job.plan_inputs(plan), ALL_BENCHMARKS[task]
        try:
            inputs |= evaluator.inputs(benchmark)
        except MissingTaskError as error:
            inputs |= {"task": task, "missing": str(error)}
            cells.append((method, task, inputs, dict, {"failed": str(error)}))
        else:
            cells.append((method, task, inputs, or_failed, _result, job, evaluator, plan, benchmark))
    job.cells("scores", cells)


def _result(job: Job, evaluator: Evaluator, plan: PruningPlan, benchmark: Benchmark) -> dict[str, Any]:
    """The scores, and what the plan removes."""
    model = job.model
    ratios = {"removed_fraction": removed_fraction(model.config, plan), "head_ratio": head_ratio(model.config, plan)}
    with job.pruned(plan):
        return evaluator.evaluate(model, job.tokenizer, benchmark) | ratios


def layers(job: Job) -> None:
    """Which layers the strategies choose, what each searched alpha brings, and what one layer alone costs."""
    first, settings, count = job.corpora[0], job.profile["ablations"], job.num_pruned
    corpus, searched, cells = job.corpus(first), job.alphas(first), []
    for strategy in STRATEGIES:
        inputs = job.inputs | {"num_layers": count, "total": job.num_layers}
        if strategy in SCORED:
            inputs |= {"calibration": settings["calibration"], "seed": job.seed} | described(corpus)
        cells.append((strategy, "selection", inputs, _select, job, strategy, corpus))
    job.cells("layer selection", cells)
    gain, single = {"alphas": searched}, {"alphas": SINGLE_ALPHAS, "num_layers": count}
    for method, compute, inputs in (("gain", _gain, gain), ("single-layer", _single_layers, single)):
        text = job.text(first, HELD_OUT, settings[method.replace("-", "_")])
        cells = [
            (method, f"document-{i:02d}", text.inputs | {"document": i} | inputs, compute, text, i, inputs["alphas"])
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
    """Likelihood with the searched alpha in the k highest of the pruned layers, and 1 in those below."""
    text, order = whole[document : document + 1], sorted(searched, reverse=True)
    ones = dict.fromkeys(order, 1.0)
    plans = {f"top-{k}": ones | {layer: searched[layer] for layer in order[:k]} for k in range(len(order) + 1)}
    nll = {name: _nll(text, alphas) for name, alphas in (plans | {"dense": {}}).items()}
    return {"nll": nll, "tokens": sum(text.tokens)}


def _single_layers(whole: Text, document: int, alphas: Sequence[float]) -> dict[str, Any]:
    """Likelihood by alpha and layer, that layer value-only and all others dense."""
    text = whole[document : document + 1]
    layers = range(text.job.num_layers)  # the lowest first, see Text.nll
    nll = pd.DataFrame([{f"{alpha:g}": _nll(text, {layer: alpha}) for alpha in alphas} for layer in layers])
    return {"dense": _nll(text, {}), "tokens": sum(text.tokens), **nll.to_dict("list")}


def _nll(text: Text, alphas: Mapping[int, float]) -> float:
    return sum(text.nll(PruningPlan.value_only(text.job.num_layers, alphas))["nll"])
