"""Notebooks 05 and 07: every plan scored on every benchmark, by accuracy and by likelihood."""

import json
from collections.abc import Iterable, Mapping
from functools import partial
from itertools import product
from pathlib import Path

from harp_lib import config
from harp_lib.evaluation.benchmarks import (
    ALL_BENCHMARKS,
    BENCHMARKS,
    LONGBENCH,
    Benchmark,
    MissingTaskError,
)
from harp_lib.evaluation.evaluator import Evaluator
from harp_lib.evaluation.likelihood import FULL_STOP
from harp_lib.experiments.job import Job, or_failed
from harp_lib.names import DENSE, EVALUATED, REFIT
from harp_lib.pruning.plan import PruningPlan
from harp_lib.results import Cell, Result, digest, write_json


def scores(job: Job, section: str = "evaluation") -> None:
    """Every method's plan on the eleven benchmarks."""
    score(job, job.tasks(section), _plans(job), section)


def longbench(job: Job) -> None:
    """Every method's plan on LongBench."""
    scores(job, "longbench")


def likelihoods(job: Job) -> None:
    """Likelihood of the reference answers under every method's plan, where answers are written."""
    tasks = [task for task in job.tasks("likelihoods") if task in BENCHMARKS]
    score(job, tasks, _plans(job), "likelihoods")


def longbench_likelihoods(job: Job) -> None:
    """The same on LongBench."""
    tasks = [task for task in job.tasks("likelihoods") if task in LONGBENCH]
    score(job, tasks, _plans(job), "likelihoods")


def _plans(job: Job) -> dict[str, PruningPlan]:
    """The plans of all methods, the dense model's first."""
    return {method: job.plan(method) for method in (DENSE, *EVALUATED)}


def score(
    job: Job, tasks: Iterable[str], plans: Mapping[str, PruningPlan], section: str = "evaluation"
) -> None:
    """Score plans, by method, on tasks: one cell for each task and plan.

    A cell that fails says why and is shown as missing; the others go on. In the section
    ``likelihoods`` the score is the likelihood of the reference answers.
    """
    evaluator = Evaluator(job.profile, job.seed, section)
    measure = _likelihoods if section == "likelihoods" else _scores
    cells = []
    for task, (method, plan) in product(tasks, plans.items()):
        inputs = job.inputs | job.plan_inputs(plan)
        twin = _method_with_equal_plan(plans, method)
        benchmark = ALL_BENCHMARKS[task]
        try:
            inputs.update(evaluator.inputs(benchmark))
            if section == "likelihoods" and benchmark.chain_of_thought:
                inputs["reference_ends"] = FULL_STOP
        except MissingTaskError as error:
            inputs.update(task=task, missing=str(error))
            compute = partial(dict, failed=str(error))
        else:
            if twin:
                compute = partial(job.of_this_run, twin, task)
            else:
                compute = partial(or_failed, measure, job, evaluator, plan, benchmark)
        cells.append(Cell(method, task, inputs, compute))
    job.results(section, cells)


def _method_with_equal_plan(plans: Mapping[str, PruningPlan], method: str) -> str | None:
    """An earlier method whose plan removes the same, so that its results are this method's too."""
    for other, plan in plans.items():
        if other == method:
            return None
        refitted = REFIT in (plan.method, plans[method].method)
        if plan.layers == plans[method].layers and not refitted:
            return other
    return None


def _scores(job: Job, evaluator: Evaluator, plan: PruningPlan, benchmark: Benchmark) -> Result:
    """Score a plan, and keep what the dense model reasons for :func:`_likelihoods`."""
    with job.pruned(plan):
        result = evaluator.evaluate(job.model, job.tokenizer, benchmark)
    if not plan.layers and benchmark.chain_of_thought:
        write_json(_replies_file(job, evaluator, benchmark), result["answers"])
    return result


def _likelihoods(job: Job, evaluator: Evaluator, plan: PruningPlan, benchmark: Benchmark) -> Result:
    """Bits per byte of the reference answers.

    Where the paper asks for a chain of thought, they stand after the dense model's.
    """
    replies = None
    if benchmark.chain_of_thought:
        replies = _dense_replies(job, evaluator, benchmark)
    with job.pruned(plan):
        return evaluator.likelihoods(job.model, job.tokenizer, benchmark, replies)


def _dense_replies(job: Job, evaluator: Evaluator, benchmark: Benchmark) -> dict[str, list[str]]:
    """What the dense model writes, by subtask: once, and kept beside the results, not among them.

    Replies may repeat their questions, and BBH asks not to be published again.
    """
    file = _replies_file(job, evaluator, benchmark)
    if not file.is_file():
        answers = evaluator.evaluate(job.model, job.tokenizer, benchmark)["answers"]
        write_json(file, answers)
    return json.loads(file.read_bytes())


def _replies_file(job: Job, evaluator: Evaluator, benchmark: Benchmark) -> Path:
    """Its name says what the replies depend on."""
    inputs = job.inputs | evaluator.inputs(benchmark)
    name = f"{config.slug(job.name)}-{digest(inputs)}.json"
    return config.RESULTS / job.profile["name"] / ".replies" / name
