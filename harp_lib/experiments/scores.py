"""Notebooks 05 and 07: every plan scored on every benchmark, by accuracy and by likelihood."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from itertools import product

from harp_lib.evaluation.benchmarks import (
    ALL_BENCHMARKS,
    BENCHMARKS,
    LONGBENCH,
    Benchmark,
    MissingTaskError,
)
from harp_lib.evaluation.evaluator import Evaluator
from harp_lib.evaluation.likelihood import FULL_STOP
from harp_lib.experiments.context import Context, or_failed
from harp_lib.experiments.plans import Planning
from harp_lib.names import DENSE, EVALUATED
from harp_lib.pruning.plan import PruningPlan
from harp_lib.results import Cell, Result, behind_bar


def scores(context: Context, section: str = "evaluation") -> Iterator[Cell]:
    """Every method's plan on the eleven benchmarks."""
    return score_cells(context, context.tasks(section), _plans(context), section)


def longbench(context: Context) -> Iterator[Cell]:
    """Every method's plan on LongBench."""
    return scores(context, "longbench")


def likelihoods(context: Context) -> Iterator[Cell]:
    """Likelihood of the reference answers under every method's plan, where answers are written."""
    return _likelihoods_among(context, BENCHMARKS)


def longbench_likelihoods(context: Context) -> Iterator[Cell]:
    """The same on LongBench."""
    return _likelihoods_among(context, LONGBENCH)


def _likelihoods_among(context: Context, benchmarks: Collection[str]) -> Iterator[Cell]:
    tasks = [task for task in context.tasks("likelihoods") if task in benchmarks]
    if not tasks:  # the other unit has those of this job: no model is loaded
        return iter(())
    return score_cells(context, tasks, _plans(context), "likelihoods")


def _plans(context: Context) -> dict[str, PruningPlan]:
    """The plans of all methods, the dense model's first."""
    planning = Planning(context)
    return {method: planning.plan(method) for method in (DENSE, *EVALUATED)}


def score_cells(
    context: Context,
    tasks: Iterable[str],
    plans: Mapping[str, PruningPlan],
    section: str = "evaluation",
) -> Iterator[Cell]:
    """Plans, by method, on tasks: one cell for each task and plan; equal plans share it.

    A cell that fails says why and is shown as missing; the others go on. In the section
    ``likelihoods`` the score is the likelihood of the reference answers.
    """
    evaluator = Evaluator(context.profile, context.seed, section)
    make_cell = _likelihoods_cell if section == "likelihoods" else _scores_cell
    cells = []
    for task, (method, plan) in product(tasks, plans.items()):
        about = {"method": method, "task": task}
        try:
            cell = make_cell(context, evaluator, ALL_BENCHMARKS[task], plan)
            cells.append(replace(cell, about=about))
        except MissingTaskError as error:
            inputs = {**context.inputs, "task": task, "missing": str(error)}
            cells.append(Cell(inputs, partial(dict, failed=str(error)), about))
    yield from behind_bar(section, cells)


def _scores_cell(
    context: Context, evaluator: Evaluator, benchmark: Benchmark, plan: PruningPlan
) -> Cell:
    """Scores of a plan on one benchmark."""

    def compute() -> Result:
        with context.pruned(plan):
            return evaluator.evaluate(context.model, context.tokenizer, benchmark)

    inputs = {
        "what": "scores",
        **context.inputs,
        **context.plan_inputs(plan),
        **evaluator.inputs(benchmark),
    }
    return Cell(inputs, partial(or_failed, compute))


def _likelihoods_cell(
    context: Context, evaluator: Evaluator, benchmark: Benchmark, plan: PruningPlan
) -> Cell:
    """Bits per byte of the reference answers of one benchmark under a plan.

    Where the paper asks for a chain of thought, they stand after the dense model's.
    """

    def compute() -> Result:
        replies = None
        if benchmark.chain_of_thought:
            replies = _dense_replies(context, evaluator, benchmark)
        with context.pruned(plan):
            return evaluator.likelihoods(context.model, context.tokenizer, benchmark, replies)

    inputs = {
        "what": "likelihoods",
        **context.inputs,
        **context.plan_inputs(plan),
        **evaluator.inputs(benchmark),
    }
    if benchmark.chain_of_thought:
        inputs["reference_ends"] = FULL_STOP
    return Cell(inputs, partial(or_failed, compute))


def _dense_replies(
    context: Context, evaluator: Evaluator, benchmark: Benchmark
) -> dict[str, list[str]]:
    """What the dense model writes, by subtask."""
    dense = PruningPlan(context.num_layers, {})
    scored = context.store.get(_scores_cell(context, evaluator, benchmark, dense))
    if "answers" in scored:
        return scored["answers"]
    # It is a committed one. Replies may repeat their questions, and BBH asks not to publish them.
    inputs = {"what": "replies", **context.inputs, **evaluator.inputs(benchmark)}
    evaluate = partial(evaluator.evaluate, context.model, context.tokenizer, benchmark)
    return context.store.get(Cell(inputs, evaluate))["answers"]
