"""The texts of an experiment as one model reads them, and their likelihoods under a plan."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import cached_property
from typing import Any

import torch
from transformers import PreTrainedModel

from harp_lib.methods.calibration import LayerStream
from harp_lib.pruning.architecture import decoder_layers
from harp_lib.pruning.plan import PruningPlan
from harp_lib.pruning.surgery import temporarily_pruned
from harp_lib.results import Row
from harp_lib.text.corpora import Corpus
from harp_lib.text.head import is_decoder_and_head
from harp_lib.text.perplexity import Window, head_nll


def without(corpus: Corpus, *read: Corpus) -> Corpus:
    """A corpus without documents that were read before, of which a beginning may have been read."""
    beginnings = tuple(text for excerpted in read for text in excerpted.documents)
    others = tuple(text for text in corpus.documents if not text.startswith(beginnings))
    return replace(corpus, documents=others)


def described(corpus: Corpus) -> dict[str, Any]:
    """What a cell records of a text that it was computed from."""
    return {
        "corpus": corpus.name,
        "split": corpus.split,
        "source": corpus.source,
        "sha256": corpus.sha256,
    }


class Text:
    """A corpus as one model reads it: the windows of each document.

    ``model_inputs`` is what a cell records of the model, and of how it reads.
    """

    def __init__(
        self,
        corpus: Corpus,
        documents: list[list[Window]],
        model: PreTrainedModel,
        model_inputs: dict[str, Any],
    ) -> None:
        self.corpus = corpus
        self.documents = documents
        self.model = model
        self.model_inputs = model_inputs
        self.windows = [window for document in documents for window in document]
        # How many tokens of each document are predicted.
        self.tokens = [sum(window.scored for window in document) for document in documents]

    @property
    def inputs(self) -> dict[str, Any]:
        """What a cell that is computed from this text depends on."""
        return self.model_inputs | described(self.corpus)

    @property
    def about(self) -> dict[str, Any]:
        """The columns of a cell that is computed from this text."""
        return {"corpus": self.corpus.name, "split": self.corpus.split}

    def __getitem__(self, documents: slice) -> "Text":
        """Some of its documents."""
        return Text(self.corpus, self.documents[documents], self.model, self.model_inputs)

    @cached_property
    def stream(self) -> LayerStream:
        """Its hidden states in the model."""
        model = self.model
        if not is_decoder_and_head(model):
            raise ValueError(
                f"{type(model).__name__} is not supported in experiments: its logits are not its "
                "output head on its decoder's output"
            )
        return LayerStream(model, self.windows)

    def passing(self, first: int, changed: AbstractContextManager) -> Iterator[list[torch.Tensor]]:
        """Yield the residual stream, ``(B, N, d)`` of each batch, while ``changed`` holds.

        First comes what enters layer ``first``, then what each layer from there on puts out.
        """
        hidden = self.stream.entering(first)
        yield hidden
        with changed:
            for layer in range(first, len(decoder_layers(self.model))):
                hidden = list(self.stream.leaving(layer, hidden))
                yield hidden

    def by_document(self, values: Iterable[float]) -> list[float]:
        """Sum the values of windows within each document; the result has one for each document."""
        windows = iter(values)
        return [
            sum(next(windows) for window in document if window.scored)
            for document in self.documents
        ]

    def nll(self, plan: PruningPlan, pruned: AbstractContextManager | None = None) -> list[float]:
        """Negative log-likelihood of each document under ``plan``, in nats.

        The model is pruned by the context ``pruned``, where the plan has weights of its own. What
        lies below the lowest pruned layer is run once for all plans that begin there or higher: ask
        for those that begin lowest first, and for the dense model last.
        """
        lowest = min(plan.layers, default=plan.num_layers)
        changed = pruned or temporarily_pruned(self.model, plan)
        [nll] = self.measured_within(changed, lowest, head_nll)
        return nll

    def measured_within(
        self, changed: AbstractContextManager, first: int, *measures: Callable[..., float]
    ) -> list[list[float]]:
        """Each measure of the decoder's output, summed over the windows of each document.

        The model is changed by the context ``changed``, from layer ``first`` on.
        ``measure(model, hidden, batch)`` is given one window at a time, ``hidden`` (1, N, d), as
        :func:`head_nll` is.
        """
        for hidden in self.passing(first, changed):
            leaving_the_top = hidden
        norm = self.model.get_decoder().norm
        by_window = [[] for _ in measures]
        for batch, states in zip(self.stream.batches, leaving_the_top, strict=True):
            for ids, state in zip(batch.ids.split(1), states.split(1), strict=True):
                for values, measure in zip(by_window, measures, strict=True):
                    values.append(measure(self.model, norm(state), batch._replace(ids=ids)))
        return [self.by_document(values) for values in by_window]


def document_rows(nll: Sequence[float], tokens: Sequence[int]) -> list[Row]:
    """A row for each document and quantity: ``nll`` in nats, and how many ``tokens`` it is of."""
    rows = []
    for quantity, values in (("nll", nll), ("tokens", tokens)):
        for document, value in enumerate(values):
            rows.append({"document": document, "quantity": quantity, "value": value})
    return rows


def layer_rows(quantity: str, values: Mapping[int, float]) -> list[Row]:
    """A row for each layer."""
    return [
        {"quantity": quantity, "layer": layer, "value": value} for layer, value in values.items()
    ]


def scalar_rows(**values: float) -> list[Row]:
    """A row for each quantity that has no coordinate of its own."""
    return [{"quantity": quantity, "value": value} for quantity, value in values.items()]
