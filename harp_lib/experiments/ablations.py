"""Notebook 06: other layers than the top ones, what each searched alpha brings, single layers."""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from harp_lib.evaluation.benchmarks import ALL_BENCHMARKS, BENCHMARKS, DISCRIMINATIVE
from harp_lib.experiments.context import HELD_OUT, Context
from harp_lib.experiments.scores import score_cells
from harp_lib.experiments.search import searched_alphas
from harp_lib.experiments.texts import Text, described, layer_rows
from harp_lib.methods.layer_selection import SCORED, layer_scores, lowest_layers
from harp_lib.names import DENSE, HARP
from harp_lib.pruning.architecture import decoder_layers
from harp_lib.pruning.plan import PruningPlan
from harp_lib.results import Cell, Result, Row, behind_bar
from harp_lib.text.corpora import Corpus

# The paper's strategies, in its order; all of them at alpha = 1.
STRATEGIES = ("bottom", "hessian", "similarity", "top")
SINGLE_ALPHAS = (1.0, 0.0)  # queries and keys removed; the whole attention removed


def ablations(context: Context) -> Iterator[Cell]:
    """The strategies of :func:`layers` on the benchmarks, with the dense model and HARP.

    ``top`` is scored on all tasks, the others on discriminative ones, as in the paper.
    """
    tasks = context.tasks("evaluation")
    total = context.num_layers
    everywhere = {
        DENSE: PruningPlan(total, {}),
        HARP: PruningPlan.value_only(total, searched_alphas(context, context.corpora[0])),
    }
    others = {}
    for strategy in STRATEGIES:
        selected = context.store.get(_selection_cell(context, strategy))["layers"]
        others[strategy] = PruningPlan.value_only(total, dict.fromkeys(selected, 1.0))
    everywhere["top"] = others.pop("top")
    yield from score_cells(context, tasks, everywhere)
    written = [task for task in context.tasks("likelihoods") if task in BENCHMARKS]
    yield from score_cells(context, written, everywhere, "likelihoods")
    discriminative = [task for task in tasks if ALL_BENCHMARKS[task].kind == DISCRIMINATIVE]
    yield from score_cells(context, discriminative, others)


def layers(context: Context) -> Iterator[Cell]:
    """Which layers the strategies choose, what alphas bring, and what one layer alone costs."""
    corpus = context.corpora[0]
    settings = context.profile["ablations"]
    cells = [_selection_cell(context, strategy) for strategy in STRATEGIES]
    yield from behind_bar("layer selection", cells)
    searched = searched_alphas(context, corpus)
    text = context.text(corpus, HELD_OUT, settings["gain"])
    inputs = {"what": "gain", "alphas": searched}
    yield from _by_document(text, partial(_gain, searched), inputs, {"method": "gain"})
    text = context.unsearched(corpus, *settings["single_layer"])
    inputs = {
        "what": "single layers",
        "alphas": SINGLE_ALPHAS,
        "num_layers": context.num_pruned,
    }
    about = {"method": "single-layer", "num_pruned": context.num_pruned}
    yield from _by_document(text, _single_layers, inputs, about)


def _selection_cell(context: Context, strategy: str) -> Cell:
    """The layers that a strategy chooses, as many as HARP prunes."""
    corpus = context.corpus(context.corpora[0])
    inputs = {"what": "layer selection", "strategy": strategy, **context.inputs}
    inputs |= {"num_layers": context.num_pruned, "total": context.num_layers}
    if strategy in SCORED:
        calibration = context.profile["ablations"]["calibration"]
        inputs |= {"calibration": calibration, "seed": context.seed, **described(corpus)}
        inputs |= context.piece_inputs
    return Cell(inputs, partial(_select, context, strategy, corpus), {"method": strategy})


def _select(context: Context, strategy: str, corpus: Corpus) -> Result:
    """The layers of a strategy, and the scores by which it chose."""
    count = context.num_pruned
    if strategy == "bottom":
        return {"layers": list(range(count)), "rows": []}
    if strategy == "top":
        return {"layers": list(range(context.num_layers - count, context.num_layers)), "rows": []}
    blocks = context.blocks(corpus, *context.profile["ablations"]["calibration"])
    scores = layer_scores(strategy, context.model, blocks)
    rows = layer_rows("score", dict(enumerate(scores)))
    return {"layers": lowest_layers(scores, count), "rows": rows}


def _by_document(
    text: Text,
    measure: Callable[[Text], list[Row]],
    inputs: dict[str, Any],
    about: dict[str, Any],
) -> Iterator[Cell]:
    """A cell for each document: what is measured, and the dense model's likelihood."""

    def compute(document: int) -> Result:
        part = text[document : document + 1]
        rows = measure(part)
        rows.append({"quantity": "dense nll", "value": _nll(part, {})})
        rows.append({"quantity": "tokens", "value": sum(part.tokens)})
        return {"rows": rows}

    cells = []
    for document in range(len(text.documents)):
        place = {"document": document}
        cells.append(Cell(text.inputs | place | inputs, partial(compute, document), about | place))
    yield from behind_bar(inputs["what"], cells)


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
    for layer in range(len(decoder_layers(text.model))):  # the lowest first, see Text.nll
        for alpha in SINGLE_ALPHAS:
            nll = _nll(text, {layer: alpha})
            rows.append({"quantity": "nll", "layer": layer, "alpha": alpha, "value": nll})
    return rows


def _nll(text: Text, alphas: Mapping[int, float]) -> float:
    """Negative log-likelihood of a text with value-only layers, in nats."""
    return sum(text.nll(PruningPlan.value_only(len(decoder_layers(text.model)), alphas)))
