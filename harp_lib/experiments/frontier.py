"""Notebook 09: attention replaced in ever more layers, by HARP, a refit, and rivals.

Each is evaluated on two kinds of held-out text, and on finding a pass key.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import torch

from harp_lib import accounting
from harp_lib.experiments.job import (
    HELD_OUT,
    REFIT,
    SEARCHED,
    Job,
    Text,
    described,
    document_rows,
    scalar_rows,
    search_rows,
)
from harp_lib.methods.alpha_search import search_alphas
from harp_lib.methods.calibration import LayerStream
from harp_lib.methods.layer_selection import lowest_layers
from harp_lib.methods.refit import RIDGE, Refit, explained_by_layer, refit_values
from harp_lib.methods.rivals import RIVALS
from harp_lib.pruning.plan import PruningPlan
from harp_lib.pruning.surgery import temporarily_pruned
from harp_lib.results import Cell, Result, rows_of
from harp_lib.text.corpora import Corpus
from harp_lib.text.perplexity import Window

CHOSEN = f"{REFIT}-chosen"  # the layers are chosen, and fitted on two kinds of text
TWO_KINDS = f"{REFIT}-two"  # the top layers, fitted on two kinds of text
PASSKEY = "passkey"
KEY = "31629487501376492865"  # pass keys are four of its digits
FILLER = (
    "The river runs past the mill. Boats come up at noon, and leave before dark. "
    "Somebody mends a net. "
)


@dataclass(frozen=True)
class Change:
    """Something that happens to some layers of a model, within a context."""

    kind: str
    count: int  # of the layers
    lowest: int  # of them
    context: Callable[[], AbstractContextManager]

    @property
    def name(self) -> str:
        """What the folder of its cells is called."""
        return f"{self.kind}-{self.count:02d}" if self.count else self.kind

    @property
    def coordinates(self) -> dict[str, Any]:
        """The columns of its cells."""
        return {"method": self.kind, "layers": self.count}


def frontier(job: Job) -> None:
    """Likelihood of documents and of keys under every change, and what each change costs."""
    settings = job.profile["frontier"]
    texts = {name: job.text(name, HELD_OUT, settings["held_out"]) for name in job.corpora}
    texts[PASSKEY] = passkeys(job, **settings["passkey"])
    inputs = {
        **job.inputs,
        "calibration": job.profile["baselines"]["calibration"][REFIT],
        "seed": job.seed,
        "ridge": RIDGE,
        "context": job.context,
        "read": [described(job.corpus(name)) for name in job.corpora],
    }
    changes = sorted(_changes(job, inputs), key=lambda change: change.lowest)
    job.results("frontier", _cells(job, changes, texts, inputs))


def _cells(
    job: Job, changes: Sequence[Change], texts: dict[str, Text], inputs: dict[str, Any]
) -> list[Cell]:
    """A cell for each change and text. All texts are run at once, from the lowest change up."""
    documents = [document for text in texts.values() for document in text.documents]
    whole = Text(texts[PASSKEY].corpus, documents, job)
    cells = []
    for change in changes:

        @cache
        def nll(change: Change = change) -> list[float]:  # of every document
            return whole.nll_within(change.context(), change.lowest)

        start = 0
        for name, text in texts.items():
            end = start + len(text.documents)
            cell_inputs = inputs | {
                "layers": change.count,
                "evaluated": described(text.corpus),
                "documents": len(text.documents),
            }
            compute = partial(_part, nll, start, end, text.tokens)
            coordinates = change.coordinates | {"corpus": name, "split": HELD_OUT}
            cells.append(Cell(change.name, f"{name}-{HELD_OUT}", cell_inputs, compute, coordinates))
            start = end
    return cells


def _part(nll: Callable[[], list[float]], start: int, end: int, tokens: list[int]) -> Result:
    """The documents of one text."""
    return {"rows": document_rows(nll()[start:end], tokens)}


def _changes(job: Job, inputs: dict[str, Any]) -> Iterator[Change]:
    """All changes, of as many layers as HARP prunes and of the profile's shares of the layers."""
    total = job.num_layers
    shares = job.profile["frontier"]["shares"].get(job.name, ())
    counts = {job.num_pruned, *(round(share * total) for share in shares)} - {0}
    counts = sorted(counts, reverse=True)
    explained = _explained(job, inputs)
    alphas = _searched(job, counts[0])
    dense = partial(temporarily_pruned, job.model, PruningPlan(total, {}))
    yield Change("dense", 0, total, dense)
    for count in counts:
        best = lowest_layers([-share for share in explained], count)
        yield from _refits(job, inputs, count, best)
        yield from _plans(job, alphas[:count])
        if count == job.num_pruned:
            yield from _rivals(job, count)


def _explained(job: Job, inputs: dict[str, Any]) -> list[float]:
    """How much of each layer's attention a linear map of its own token explains."""

    def compute() -> Result:
        explained = explained_by_layer(job.model, job.refit_blocks(2))
        return {"rows": _explained_rows(enumerate(explained))}

    result = job.result(Cell("dense", "explained", inputs, compute, {"method": "dense"}))
    return rows_of(result).sort_values("layer")["value"].tolist()


def _explained_rows(explained: Any) -> list[dict[str, Any]]:
    """A row for each pair of a layer and a share."""
    return [{"quantity": "explained", "layer": layer, "value": value} for layer, value in explained]


def _searched(job: Job, count: int) -> list[float]:
    """Alpha of the top layers: of greedy searches, the longer one begins like the shorter one."""
    corpus = job.corpora[0]
    if count <= job.num_pruned:
        return list(job.alphas(corpus).values())
    text = job.text(corpus, SEARCHED)

    def search() -> Result:
        return {"rows": search_rows(search_alphas(job.model, text.windows, count), text)}

    inputs = text.inputs | {"num_layers": count}
    result = job.result(Cell("harp", f"search-{corpus}", inputs, search, {"corpus": corpus}))
    rows = rows_of(result)
    alphas = rows[rows["quantity"] == "alpha"].sort_values("layer", ascending=False)
    return alphas["value"].tolist()


def _refits(job: Job, inputs: dict[str, Any], count: int, best: Sequence[int]) -> Iterator[Change]:
    """Refits of the ``best`` explained layers, and of the top ones on one and two kinds of text.

    What each refit takes and finds is a cell of its own.
    """
    top = range(job.num_layers - count, job.num_layers)
    for kind, layers, kinds in ((CHOSEN, best, 2), (REFIT, top, 1), (TWO_KINDS, top, 2)):
        refit = cache(partial(_refit, job, layers, kinds))

        def context(refit: Callable[[], Refit] = refit) -> AbstractContextManager:
            return temporarily_pruned(job.model, refit().plan, weights=refit().weights)

        change = Change(kind, count, layers[0], context)
        cell_inputs = inputs | {"layers": count, "kinds": kinds}
        compute = partial(_fit_result, job, refit)
        job.result(Cell(change.name, "fit", cell_inputs, compute, change.coordinates))
        yield change


def _refit(job: Job, layers: Sequence[int], kinds: int) -> Refit:
    """Layers refitted; HARP's own on one kind of text are kept for other notebooks too."""
    if kinds == 1 and len(layers) == job.num_pruned:
        return job.refit()
    return refit_values(job.model, job.refit_blocks(kinds), len(layers), layers)


def _fit_result(job: Job, refit: Callable[[], Refit]) -> Result:
    """Seconds of a fit, the variance that it explains, and what its plan saves."""
    fitted = refit()
    rows = _explained_rows(fitted.explained.items())
    rows += scalar_rows(seconds=fitted.seconds, **_left(job, fitted.plan))
    return {"rows": rows}


def _left(job: Job, plan: PruningPlan) -> dict[str, float]:
    """Shares of the dense model's operations and bytes of cache that are left, counted."""
    tokens = job.profile["baselines"]["cost_tokens"]
    pruned = _costs(job, plan, tokens)
    dense = _costs(job, None, tokens)
    shares = {f"{name} left": pruned[name] / dense[name] for name in pruned}
    return shares | {"counted at": tokens}


def _costs(job: Job, plan: PruningPlan | None, tokens: int) -> dict[str, float]:
    """Operations of a prefill and of a new token, and bytes of cache, with value-only layers."""
    config = job.model.config
    return {
        "prefill": accounting.prefill_flops(config, plan, tokens, True, True, tail_only=True),
        "decode": accounting.decode_flops(config, plan, tokens, True),
        "cache": accounting.kv_bytes_per_token(config, plan, job.model.dtype),
    }


def _plans(job: Job, alphas: list[float]) -> Iterator[Change]:
    """The top layers without attention, and with searched alphas."""
    total = job.num_layers
    count = len(alphas)
    for kind, values in (("alpha-0", [0.0] * count), ("harp", alphas)):
        plan = PruningPlan.value_only(total, values)
        yield Change(kind, count, total - count, partial(temporarily_pruned, job.model, plan))


def _rivals(job: Job, count: int) -> Iterator[Change]:
    """What else could stand in the top layers."""
    top = range(job.num_layers - count, job.num_layers)

    @cache
    def stream() -> LayerStream:
        of_calibration = LayerStream(job.model, job.refit_blocks())
        of_calibration.entering(top[0])  # once for all rivals
        return of_calibration

    for kind, rival in RIVALS.items():

        def context(rival: Callable[..., AbstractContextManager] = rival) -> AbstractContextManager:
            return rival(job.model, stream(), top)

        yield Change(kind, count, top[0], context)


def passkeys(job: Job, tokens: int, depths: int, keys: int) -> Text:
    """Texts of about ``tokens`` tokens that name a pass key and ask for it: it is predicted.

    There are ``keys`` of them at each of ``depths`` depths.
    """
    filler = FILLER * tokens
    ids = job.tokenizer(filler, add_special_tokens=False, verbose=False).input_ids
    room = int(tokens * len(filler) / len(ids))  # characters
    texts = []
    windows = []
    for depth, number in itertools.product(range(depths), range(keys)):
        first = 2 * (number + depth) % len(KEY)
        key = (KEY + KEY)[first : first + 4]
        place = room * depth // max(1, depths - 1)
        text = f"{filler[:place]}\nThe pass key is {key}. Remember it.\n{filler[: room - place]}"
        question = f"Find the pass key in this text.\n{text}\nWhat is the pass key? The pass key is"
        answered = f"{question} {key}"
        question_ids = job.tokenizer(question).input_ids
        answered_ids = job.tokenizer(answered).input_ids
        texts.append(answered)
        windows.append([Window(torch.tensor(answered_ids), len(answered_ids) - len(question_ids))])
    return Text(Corpus(PASSKEY, HELD_OUT, "embedded", tuple(texts)), windows, job)
