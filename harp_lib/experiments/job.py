"""What every experiment needs: the model, its texts, likelihoods under a plan, and the stores."""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from harp_lib import config
from harp_lib.methods.alpha_search import model_digest
from harp_lib.methods.calibration import LayerStream
from harp_lib.methods.refit import RIDGE, Refit, refit_values
from harp_lib.models.load import load_model, release_memory
from harp_lib.pruning.architecture import decoder_layers
from harp_lib.pruning.plan import PruningPlan
from harp_lib.pruning.surgery import temporarily_pruned
from harp_lib.results import ResultStore, digest, read_cell
from harp_lib.text.corpora import Corpus, calibration_blocks, excerpt, load_corpus
from harp_lib.text.perplexity import Window, head_nll, rolling_windows

REFIT = "harp+refit"
CALIBRATION, SEARCHED, HELD_OUT = (
    "train",
    "test",
    "validation",
)  # the paper searches on WikiText's test pages


@lru_cache(maxsize=1)
def _load(
    name: str, dtype: str, device_map: str | None
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase, dict]:
    """A model, its tokenizer, and what every cell of it depends on."""
    model, tokenizer = load_model(name, dtype, device_map)
    inputs = {"model": name, "digest": model_digest(model), "dtype": str(model.dtype)}
    if revision := getattr(model.config, "_commit_hash", None):  # of the hub's repository
        inputs["revision"] = revision
    return model, tokenizer, inputs


def release() -> None:
    """Let go of the model, and give its memory back."""
    _load.cache_clear()
    release_memory()


def or_failed(compute: Callable[..., dict[str, Any]], *arguments: Any) -> dict[str, Any]:
    """The result of a cell, or ``{"failed": reason}``: it is shown as missing, and the other cells
    go on.
    """
    try:
        return compute(*arguments)
    except torch.AcceleratorError:  # the device is lost to this process; the next run goes on
        raise
    except Exception as error:  # out of memory, a hub that does not answer
        failed = f"{type(error).__name__}: {error}".strip().splitlines()[0]
    release_memory()  # which the error held on to until here
    return {"failed": failed}


@dataclass
class Job:
    """One unit for one model: its settings, its stores, and the model once it is wanted."""

    store: str  # the unit's own
    profile: dict[str, Any]
    name: str
    seed: int = 0
    force: bool = False
    part: tuple[int, int] = (0, 1)  # the first of its tasks, and how many further the next one is
    stores: dict[str, ResultStore] = field(default_factory=dict)  # that were opened

    @property
    def corpora(self) -> tuple[str, str]:
        return self.profile["corpora"]

    def _loaded(self) -> tuple[PreTrainedModel, PreTrainedTokenizerBase, dict[str, Any]]:
        spread = (
            self.name in self.profile["alpha_search"]["extra_models"]
        )  # too large for one device
        return _load(
            self.name, self.profile["dtype"], "auto" if spread else self.profile["device_map"]
        )

    @property
    def model(self) -> PreTrainedModel:
        return self._loaded()[0]

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        return self._loaded()[1]

    @property
    def inputs(self) -> dict[str, Any]:
        """What every cell of this model depends on."""
        return self._loaded()[2]

    @property
    def num_layers(self) -> int:
        return len(decoder_layers(self.model))

    @property
    def num_pruned(self) -> int:
        """Layers that HARP prunes, from the top."""
        return config.num_pruned_layers(self.profile, self.name, self.num_layers)

    @property
    def context(self) -> int:
        """Tokens that a window of text has at most: the profile's number, or the model's own."""
        own = self.model.config.max_position_embeddings
        return min(self.profile["alpha_search"]["context"] or own, own)

    def corpus(self, name: str, split: str = CALIBRATION) -> Corpus:
        return load_corpus(name, split, self.profile["datasets"])

    def blocks(self, corpus: Corpus, samples: int, tokens: int) -> torch.Tensor:
        """Calibration text (samples, tokens)."""
        return calibration_blocks(corpus, self.tokenizer, samples, tokens, self.seed)

    def text(
        self, name: str, split: str, size: tuple[int | None, int | None] | None = None
    ) -> "Text":
        """The beginning of the first documents of a corpus, by default as many as alpha is searched
        or reported on.
        """
        settings = self.profile["alpha_search"]
        usual = (
            settings["held_out"]
            if split == HELD_OUT
            else (settings["documents"], settings["tokens"])
        )
        return self._read(excerpt(self.corpus(name, split), self.tokenizer, *(size or usual)))

    def _read(self, corpus: Corpus) -> "Text":
        windows = [rolling_windows(self.tokenizer, [text], self.context) for text in corpus.texts]
        return Text(corpus, windows, self)

    def second_sample(self, name: str) -> "Text | None":
        """The next documents of the corpus and split that alpha is searched on, as many; None if
        none is left.
        """
        settings = self.profile["alpha_search"]
        others = without(self.corpus(name, SEARCHED), self.text(name, SEARCHED).corpus)
        try:
            sample = excerpt(others, self.tokenizer, settings["documents"], settings["tokens"])
        except ValueError:  # none of them is long enough
            return None
        return self._read(sample) if sample.documents else None

    def unread(self, name: str, documents: int, tokens: int) -> "Text":
        """Held-out documents; where there are too few, then test pages that no search of alpha
        reads.
        """
        held_out = self.text(name, HELD_OUT, (documents, tokens))
        missing = documents - len(held_out.documents)
        second = self.second_sample(name)
        if not missing or second is None:  # all test pages are searched
            return held_out
        pages = without(
            self.corpus(name, SEARCHED), self.text(name, SEARCHED).corpus, second.corpus
        )
        more = excerpt(pages, self.tokenizer, missing, tokens)
        both = (*held_out.corpus.documents, *more.documents)
        return self._read(replace(more, split=f"{HELD_OUT} and {SEARCHED}", documents=both))

    def store_of(self, experiment: str) -> ResultStore:
        """The store of any experiment; only the unit's own is forced."""
        force = self.force and experiment == self.store
        return self.stores.setdefault(
            experiment, ResultStore(self.profile["name"], experiment, force)
        )

    def cell(
        self, method: str, task: str, inputs: dict, compute: Callable, *arguments: Any
    ) -> dict[str, Any]:
        """The result of one cell of the unit's own store: ``compute(*arguments)``, unless it is
        stored.
        """
        return self.store_of(self.store).cell(
            self.name, method, task, inputs, lambda partial: compute(*arguments)
        )

    def cells(self, description: str, wanted: Sequence[tuple]) -> list[dict[str, Any]]:
        """Results of several cells behind a bar, one after the other; of each what :meth:`cell`
        takes.
        """
        results = []
        with tqdm(wanted, desc=description, unit="cell") as bar:
            for method, task, *others in bar:
                bar.set_postfix_str(f"{method}, {task}", refresh=False)
                results.append(self.cell(method, task, *others))
        return results

    def read(self, store: str, method: str, task: str) -> dict[str, Any]:
        """The result of a cell that another unit has stored for the same model."""
        cell = read_cell(self.store_of(store).file(self.name, method, task))
        if cell is None or "failed" in cell["result"]:
            raise FileNotFoundError(
                f"{store} has no {method}/{task} of {self.name}: compute that first"
            )
        return cell["result"]

    def tasks(self, section: str) -> list[str]:
        """The tasks of a section of the profile, or this job's part of them."""
        first, step = self.part
        return list(self.profile[section]["tasks"])[first::step]

    def plan(self, method: str) -> PruningPlan:
        """A method's plan, as notebook 04 has stored it; the dense model's names no layer."""
        stored = self.read("baselines", method, "plan")["plan"]
        return PruningPlan.from_dict(stored) if stored else PruningPlan(self.num_layers, {})

    def refit_blocks(self, kinds: int = 1) -> torch.Tensor:
        """Calibration text that layers are refitted on, of the baselines' kind or of as much in all
        of two kinds.
        """
        samples, tokens = self.profile["baselines"]["calibration"][REFIT]
        read = map(self.corpus, self.corpora[:kinds])
        return torch.cat(
            [self.blocks(corpus, samples // kinds, tokens) for corpus in read]
        )  # (samples, tokens)

    def refit(self) -> Refit:
        """HARP's layers refitted: once, and kept beside the results."""
        file, began = self._refit_file, self.store_of(self.store).began.timestamp()
        if not file.is_file() or (self.force and file.stat().st_mtime < began):
            found = refit_values(self.model, self.refit_blocks(), self.num_pruned)
            file.parent.mkdir(parents=True, exist_ok=True)
            partial = file.with_suffix(f".{os.getpid()}")
            torch.save(vars(found) | {"plan": found.plan.to_dict()}, partial)
            partial.replace(file)
        stored = torch.load(file, map_location=self.model.device)
        return Refit(**stored | {"plan": PruningPlan.from_dict(stored["plan"])})

    @cached_property
    def _refit_file(self) -> Path:
        """Its name says what the weights depend on."""
        inputs = self.inputs | described(self.corpus(self.corpora[0]))
        inputs |= {"size": self.profile["baselines"]["calibration"][REFIT], "seed": self.seed}
        inputs |= {"layers": self.num_pruned, "ridge": RIDGE}
        return (
            config.RESULTS
            / self.profile["name"]
            / ".refit"
            / f"{config.slug(self.name)}-{digest(inputs)}.pt"
        )

    def plan_inputs(self, plan: PruningPlan) -> dict[str, Any]:
        """What a cell records of the plan under which it was computed."""
        weights = {"weights": self._refit_file.stem} if plan.method == REFIT else {}
        return {"plan": plan.digest if plan.layers else None} | weights

    def pruned(self, plan: PruningPlan) -> AbstractContextManager[None]:
        """:func:`temporarily_pruned`, with the weights of a plan that has some."""
        return temporarily_pruned(
            self.model, plan, weights=self.refit().weights if plan.method == REFIT else None
        )

    def alphas(self, corpus: str, method: str = "harp") -> dict[int, float]:
        """The alphas searched on a corpus, by layer, the top layer first."""
        found = self.read("alpha_search", method, f"search-{corpus}")["alphas"]
        return {self.num_layers - 1 - depth: alpha for depth, alpha in enumerate(found)}


def without(corpus: Corpus, *read: Corpus) -> Corpus:
    """The documents of a corpus that do not begin with one of those that were read, which may be
    cut.
    """
    beginnings = tuple(text for excerpted in read for text in excerpted.documents)
    return replace(
        corpus,
        documents=tuple(text for text in corpus.documents if not text.startswith(beginnings)),
    )


def described(corpus: Corpus) -> dict[str, Any]:
    """What a cell records of a text that it was computed from."""
    return {
        "corpus": corpus.name,
        "split": corpus.split,
        "source": corpus.source,
        "sha256": corpus.sha256,
    }


class Text:
    """A corpus as one model reads it: the windows of each document."""

    def __init__(self, corpus: Corpus, documents: list[list[Window]], job: Job) -> None:
        self.corpus, self.documents, self.job = corpus, documents, job
        self.windows = [window for document in documents for window in document]
        self.tokens = [
            sum(window.scored for window in document) for document in documents
        ]  # predicted

    @property
    def inputs(self) -> dict[str, Any]:
        """What a cell depends on that is computed from this text."""
        return self.job.inputs | {"context": self.job.context} | described(self.corpus)

    def __getitem__(self, documents: slice) -> "Text":
        """Some of its documents."""
        return Text(self.corpus, self.documents[documents], self.job)

    @cached_property
    def stream(self) -> LayerStream:
        return LayerStream(self.job.model, self.windows)

    def passing(self, first: int, changed: AbstractContextManager) -> Iterator[list[torch.Tensor]]:
        """What enters each layer from ``first`` on within a context, then what leaves the top; each
        batch (B, N, d).
        """
        yield (hidden := self.stream.entering(first))
        with changed:
            for layer in range(first, self.job.num_layers):
                yield (hidden := list(self.stream.leaving(layer, hidden)))

    def by_document(self, values: Iterable[float]) -> list[float]:
        """Of a value for each window, the sums over documents."""
        windows = iter(values)
        return [
            sum(next(windows) for window in document if window.scored)
            for document in self.documents
        ]

    def nll(self, plan: PruningPlan) -> dict[str, list]:
        """Negative log-likelihood and predicted tokens of each document under ``plan``.

        What lies below the lowest pruned layer is run once for all plans that begin there or
        higher: ask for those that begin lowest first, and for the dense model last.
        """
        return self.nll_within(self.job.pruned(plan), min(plan.layers, default=self.job.num_layers))

    def nll_within(self, changed: AbstractContextManager, first: int) -> dict[str, list]:
        """The same within a context in which something else happens from layer ``first`` on."""
        (hidden,) = deque(self.passing(first, changed), maxlen=1)  # what leaves the top
        model, norm, found = self.job.model, self.job.model.get_decoder().norm, []
        for batch, states in zip(self.stream.batches, hidden, strict=True):
            rows = zip(batch.ids.split(1), states.split(1), strict=True)
            found += [head_nll(model, norm(state), batch._replace(ids=ids)) for ids, state in rows]
        return {"nll": self.by_document(found), "tokens": self.tokens}
