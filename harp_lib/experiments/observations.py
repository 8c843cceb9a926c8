"""Notebooks 01 and 02: what the paper's theory is about, in every layer of a real model."""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import combinations_with_replacement
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel

from harp_lib import theory
from harp_lib.evaluation.probe import LayerView, observe_layers
from harp_lib.experiments.changes import ALPHA_NORM
from harp_lib.experiments.context import HELD_OUT, SEARCHED, Context
from harp_lib.experiments.frontier import norm_keeping
from harp_lib.experiments.search import alphas_of, searched_alphas
from harp_lib.experiments.texts import Text
from harp_lib.names import DENSE
from harp_lib.pruning.architecture import decoder_layers
from harp_lib.pruning.plan import PruningPlan
from harp_lib.pruning.surgery import temporarily_pruned, temporarily_value_only
from harp_lib.results import Cell, Result, Row, behind_bar, rows_of

Measure = Callable[[PreTrainedModel, LayerView], Iterator[Row]]
"""What is measured in one layer: rows with a quantity, a value, and a head where there is one.

A row without a layer is of the layer that is looked at.
"""


def similarity(context: Context) -> Iterator[Cell]:
    """Observations of every layer, and what a repeated token does."""
    cells = []
    for text in _texts(context):
        about = {"corpus": text.corpus.name}
        ids = _first_windows(text)
        observation = partial(observe, context.model, ids, tokens_of)
        inputs = {"what": "layers", **_inputs(text)}
        cells.append(Cell(inputs, observation, about))
        if text.corpus.name == context.corpora[0]:
            repeated = partial(repeat_tokens, context.model, ids[0])
            inputs = {"what": "repeated tokens", **_inputs(text)}
            cells.append(Cell(inputs, repeated, about))
    yield from behind_bar("layers observed", cells)


def norms(context: Context) -> Iterator[Cell]:
    """What aggregation does to branches, and what the residual stream becomes under many alphas."""
    cells = []
    for text in _texts(context):
        observation = partial(observe, context.model, _first_windows(text), norms_of)
        about = {"method": DENSE, "corpus": text.corpus.name}
        cells.append(Cell({"what": "branches", **_inputs(text)}, observation, about))
    yield from behind_bar("branches", cells)
    reconstructing = reconstructing_alphas(context.store.get(cells[0]))
    searched = searched_alphas(context, context.corpora[0])
    norm_fit = norm_keeping(context, context.num_pruned).fit_cell()  # of notebook 02's perplexities
    plans: dict[str, dict[int, float]] = {
        DENSE: {},
        "alpha-1": dict.fromkeys(searched, 1.0),
        ALPHA_NORM: alphas_of(context.store.get(norm_fit)),
        "searched": searched,
        "reconstructing": {layer: reconstructing[layer] for layer in searched},
    }
    text = _text(context, context.corpora[0], HELD_OUT)
    cells = []
    for rule, alphas in plans.items():
        inputs = {"what": "stream norms", **text.inputs, "alphas": alphas}
        compute = partial(follow, text, alphas)
        cells.append(Cell(inputs, compute, {"method": rule, **text.about}))
    yield from behind_bar("stream norms", cells)


def _text(context: Context, corpus: str, split: str) -> Text:
    size = (context.profile["theory"]["documents"], context.profile["theory"]["tokens"])
    return context.text(corpus, split, size)


def _texts(context: Context) -> Iterator[Text]:
    """The texts that layers are observed on, one of each corpus."""
    for corpus in context.corpora:
        yield _text(context, corpus, SEARCHED)


def _inputs(text: Text) -> dict[str, Any]:
    """What a cell depends on in which layers are observed."""
    return text.inputs | {"documents": len(text.documents), "tokens": sum(text.tokens)}


def _first_windows(text: Text) -> list[torch.Tensor]:
    """The first window of each document, ``(1, N)``."""
    return [document[0].ids[None] for document in text.documents]


def observe(
    model: PreTrainedModel, ids: list[torch.Tensor], measure: Measure, column: str = "document"
) -> Result:
    """What ``measure`` finds in each layer as a model reads texts, each ``(1, N)``.

    ``column`` names the column that numbers the texts.
    """
    rows: list[Row] = []
    for number, text in enumerate(ids):

        def visit(view: LayerView, number: int = number) -> None:
            for row in measure(model, view):
                rows.append({column: number, "layer": view.layer, **row})

        observe_layers(model, text, visit)
    return {"rows": rows}


def _row(quantity: str, value: float, **coordinates: int) -> Row:
    return {"quantity": quantity, "value": value, **coordinates}


def tokens_of(model: PreTrainedModel, view: LayerView) -> Iterator[Row]:
    """How alike tokens are, whom they attend to, and what attention does."""
    # The residual stream before each layer; and what leaves the last one, as if it entered another.
    streams = {view.layer: view.entering}
    if view.layer == len(decoder_layers(model)) - 1:
        streams[view.layer + 1] = view.leaving
    for layer, H in streams.items():
        yield _row("similarity", theory.similarity(H), layer=layer)
    yield _row("projected similarity", theory.similarity(view.projected))
    yield _row("block influence", theory.block_influence(view.entering, view.leaving))
    yield from entropies_of(model, view)
    states = view.value_states.double()  # (1, H, N, Dh)
    moved = view.attention.double() @ states - states
    yield _row("value gap", (moved.norm() / states.norm()).item())
    # Without the first token, whose stream is far longer than others.
    stream = view.entering[:, 1:].double()
    gap = (view.branch - view.value_only_branch)[:, 1:].double()
    yield _row("branch gap", (gap.norm() / stream.norm()).item())


def entropies_of(model: PreTrainedModel, view: LayerView) -> Iterator[Row]:
    """Normalised entropy of each head's attention."""
    entropies = theory.attention_entropies(view.attention, view.visible)[0].tolist()
    for head, value in enumerate(entropies):
        yield _row("entropy", value, head=head)


def norms_of(model: PreTrainedModel, view: LayerView) -> Iterator[Row]:
    """‖ÂV‖/‖V‖ of each head, and products of stream and branches.

    Products are without the first token, whose stream is far longer than others.
    """
    ratios = theory.norm_ratios(view.attention, view.value_states)[0].tolist()
    for head, value in enumerate(ratios):
        yield _row("ratio", value, head=head)
    parts = (view.entering, view.branch, view.value_only_branch)
    flat = [part[:, 1:].double().flatten() for part in parts]
    pairs = combinations_with_replacement(zip("HAB", flat, strict=True), 2)
    for (name, part), (other_name, other) in pairs:
        yield _row(f"product {name}{other_name}", torch.dot(part, other).item())


def reconstructing_alphas(result: Result) -> list[float]:
    """The alpha in [0, 1] of each layer with which αB comes nearest to A: ⟨A, B⟩ / ⟨B, B⟩.

    The products of :func:`norms_of` are summed over documents.
    """
    rows = rows_of(result)
    sums = {}  # (layers,) each
    for pair in ("AB", "BB"):
        of_pair = rows[rows["quantity"] == f"product {pair}"]
        by_document = of_pair.pivot_table("value", "document", "layer")
        # Not pandas' own sum, which may round otherwise: these alphas are inputs of stored cells.
        sums[pair] = by_document.to_numpy().sum(axis=0)
    nearest = np.ones_like(sums["AB"])  # where the branch is zero, any alpha is
    np.divide(sums["AB"], sums["BB"], out=nearest, where=sums["BB"] > 0)
    return np.clip(nearest, 0, 1).tolist()


@torch.no_grad()
def repeat_tokens(model: PreTrainedModel, ids: torch.Tensor) -> Result:
    """One token of the text at every position, so that rows stay equal in every layer.

    What do heads do, and does it matter?
    """
    length = ids.shape[1]
    places = [length // 4, length * 2 // 4, length * 3 // 4]
    chosen = ids[0, places]
    repeated = [token.expand(1, length).contiguous().to(model.device) for token in chosen]
    everywhere = dict.fromkeys(range(len(decoder_layers(model))), 1.0)
    rows = []
    for number, text in enumerate(repeated):
        dense = model(text).logits.double()
        with temporarily_value_only(model, everywhere):
            pruned = model(text).logits.double()
        difference = ((pruned - dense).abs().max() / dense.std()).item()
        rows.append(_row("logit difference", difference, token=number))
    return {"rows": rows + observe(model, repeated, entropies_of, column="token")["rows"]}


def follow(text: Text, alphas: Mapping[int, float]) -> Result:
    """The norm of the residual stream at each layer boundary, of each document.

    Boundary i is what enters layer i, and the last one is what leaves the top.
    """
    plan = PruningPlan.value_only(len(decoder_layers(text.model)), alphas)
    rows = [_row("alpha", alpha, layer=layer) for layer, alpha in alphas.items()]
    norms = []  # (boundaries, documents)
    for hidden in text.passing(0, temporarily_pruned(text.model, plan)):
        # Of each window (N, d), without its first token.
        squares = [H[1:].double().square().sum().item() for batch in hidden for H in batch]
        norms.append([total**0.5 for total in text.by_document(squares)])
    for boundary, of_documents in enumerate(norms):
        for document, value in enumerate(of_documents):
            rows.append(_row("stream norm", value, document=document, layer=boundary))
    return {"rows": rows}
