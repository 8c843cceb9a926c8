"""Notebook 06: other layers than the top ones, what each searched alpha brings, single layers."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from harp_lib.evaluation.benchmarks import ALL_BENCHMARKS, BENCHMARKS, DISCRIMINATIVE
from harp_lib.experiments.job import HELD_OUT, Job
from harp_lib.experiments.scores import score
from harp_lib.experiments.texts import Text, described, layer_rows
from harp_lib.methods.layer_selection import SCORED, layer_scores, lowest_layers
from harp_lib.names import DENSE, HARP
from harp_lib.pruning.plan import PruningPlan
from harp_lib.results import Cell, Result
from harp_lib.text.corpora import Corpus

Row = dict[str, Any]
# The paper's strategies, in its order; all of them at alpha = 1.
STRATEGIES = ("bottom", "hessian", "similarity", "top")
SINGLE_ALPHAS = (1.0, 0.0)  # queries and keys removed; the whole attention removed


def ablations(job: Job) -> None:
    """The strategies of :func:`layers` on the benchmarks.

    ``top`` is scored on all tasks, the others on discriminative ones, as in the paper.
    """
    tasks = job.tasks("evaluation")
    total = job.num_layers
    shared = {
        DENSE: PruningPlan(total, {}),
        HARP: PruningPlan.value_only(total, job.alphas(job.corpora[0])),
    }
    score(replace(job, store="main_tables", force=False), tasks, shared)  # for notebook 05 too
    plans = {}
    for strategy in STRATEGIES:
        selected = job.read("ablations", strategy, "selection")["layers"]
        plans[strategy] = PruningPlan.value_only(total, dict.fromkeys(selected, 1.0))
    top = plans.pop("top")
    written = [task for task in job.tasks("likelihoods") if task in BENCHMARKS]
    of_likelihoods = replace(job, store="likelihoods", force=False)
    score(of_likelihoods, written, shared | {"top": top}, "likelihoods")
    score(job, tasks, {"top": top})
    discriminative = [task for task in tasks if ALL_BENCHMARKS[task].kind == DISCRIMINATIVE]
    score(job, discriminative, plans)


def layers(job: Job) -> None:
    """Which layers the strategies choose, what alphas bring, and what one layer alone costs."""
    corpus = job.corpora[0]
    settings = job.profile["ablations"]
    _select_layers(job)
    searched = job.alphas(corpus)
    text = job.text(corpus, HELD_OUT, settings["gain"])
    _by_document("gain", text, partial(_gain, searched), {"alphas": searched})
    text = job.unsearched(corpus, *settings["single_layer"])
    inputs = {"alphas": SINGLE_ALPHAS, "num_layers": job.num_pruned}
    _by_document("single-layer", text, _single_layers, inputs, num_pruned=job.num_pruned)


def _select_layers(job: Job) -> None:
    """The layers that each strategy chooses, as many as HARP prunes."""
    corpus = job.corpus(job.corpora[0])
    cells = []
    for strategy in STRATEGIES:
        inputs = job.inputs | {"num_layers": job.num_pruned, "total": job.num_layers}
        if strategy in SCORED:
            calibration = job.profile["ablations"]["calibration"]
            inputs.update(calibration=calibration, seed=job.seed, **described(corpus))
            inputs.update(job.piece_inputs)
        cells.append(Cell(strategy, "selection", inputs, partial(_select, job, strategy, corpus)))
    job.results("layer selection", cells)


def _select(job: Job, strategy: str, corpus: Corpus) -> Result:
    """The layers of a strategy, and the scores by which it chose."""
    count = job.num_pruned
    if strategy == "bottom":
        return {"layers": list(range(count)), "rows": []}
    if strategy == "top":
        return {"layers": list(range(job.num_layers - count, job.num_layers)), "rows": []}
    blocks = job.blocks(corpus, *job.profile["ablations"]["calibration"])
    scores = layer_scores(strategy, job.model, blocks)
    rows = layer_rows("score", dict(enumerate(scores)))
    return {"layers": lowest_layers(scores, count), "rows": rows}


def _by_document(
    method: str,
    text: Text,
    measure: Callable[[Text], list[Row]],
    inputs: dict[str, Any],
    **coordinates: Any,
) -> None:
    """A cell for each document: what is measured, and the dense model's likelihood."""

    def compute(document: int) -> Result:
        part = text[document : document + 1]
        rows = measure(part)
        rows.append({"quantity": "dense nll", "value": _nll(part, {})})
        rows.append({"quantity": "tokens", "value": sum(part.tokens)})
        return {"rows": rows}

    cells = []
    for document in range(len(text.documents)):
        name = f"document-{document:02d}"
        place = {"document": document}
        cell_inputs = text.inputs | place | inputs
        cells.append(
            Cell(method, name, cell_inputs, partial(compute, document), place | coordinates)
        )
    text.job.results(method, cells)


def _gain(searched: Mapping[int, float], text: Text) -> list[Row]:
    """Likelihood with the searched alpha in the k highest of the pruned layers, and 1 below.

    The column ``searched`` is k; it is missing in the dense model's row.
    """
    order = sorted(searched, reverse=True)
    rows = []
    for count in range(len(order) + 1):
        highest = {layer: searched[layer] for layer in order[:count]}
        alphas = dict.fromkeys(order, 1.0) | highest
        rows.append({"quantity": "nll", "searched": count, "value": _nll(text, alphas)})
    return rows


def _single_layers(text: Text) -> list[Row]:
    """Likelihood by alpha and layer, that layer value-only and all others dense."""
    rows = []
    for layer in range(text.job.num_layers):  # the lowest first, see Text.nll
        for alpha in SINGLE_ALPHAS:
            nll = _nll(text, {layer: alpha})
            rows.append({"quantity": "nll", "layer": layer, "alpha": alpha, "value": nll})
    return rows


def _nll(text: Text, alphas: Mapping[int, float]) -> float:
    """Negative log-likelihood of a text with value-only layers, in nats."""
    return sum(text.nll(PruningPlan.value_only(text.job.num_layers, alphas)))
