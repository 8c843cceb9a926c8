"""What every unit needs: the model, its texts, and the store of results."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from harp_lib import config
from harp_lib.experiments.texts import Text, described, document_rows, without
from harp_lib.methods.alpha_search import model_digest
from harp_lib.methods.calibration import LayerStream
from harp_lib.methods.refit import RIDGE, Refit, refit_values
from harp_lib.models.load import load_with_tokenizer, release_memory
from harp_lib.models.repository import models_of_hub
from harp_lib.models.tokenizer import adds_bos, first_token_id, tokenizer_digest
from harp_lib.names import REFIT
from harp_lib.pruning.architecture import decoder_layers
from harp_lib.pruning.plan import PruningPlan
from harp_lib.pruning.surgery import temporarily_pruned
from harp_lib.results import Cell, Result, Store, behind_bar, digest
from harp_lib.text.corpora import Corpus, calibration_blocks, excerpt, load_corpus
from harp_lib.text.perplexity import rolling_windows

CALIBRATION = "train"
SEARCHED = "test"  # the paper searches on WikiText's test pages
HELD_OUT = "validation"
# Samples, and tokens of each, of a method that the profile does not name.
CALIBRATION_SIZE = (128, 128)


@lru_cache(maxsize=1)
def _load(
    name: str, dtype: str, device_map: str | None
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase, dict[str, Any]]:
    """A model, its tokenizer, and what every cell of it depends on."""
    model, tokenizer = load_with_tokenizer(name, dtype, device_map)
    inputs = {
        "model": name,
        "digest": model_digest(model),
        "dtype": str(model.dtype),
        **_tokens_of(model, tokenizer),
    }
    for repository in models_of_hub([name]):
        inputs["revision"] = repository.commit
    return model, tokenizer, inputs


def _tokens_of(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> dict[str, Any]:
    """How a model's texts become tokens, what they begin with, and how it writes others."""
    generation = model.generation_config.to_diff_dict()
    generation.pop("transformers_version", None)
    first = first_token_id(tokenizer)
    return {
        "tokenizer": tokenizer_digest(tokenizer),
        "first_token": None if first is None else tokenizer.convert_ids_to_tokens(first),
        "generation": generation,
    }


def release() -> None:
    """Let go of the model, and give its memory back."""
    _load.cache_clear()
    release_memory()


def or_failed(compute: Callable[..., Result], *arguments: Any) -> Result:
    """The result of a cell, or ``{"failed": reason}``: it is shown as missing, and others go on."""
    try:
        return compute(*arguments)
    except torch.AcceleratorError:  # the device is lost to this process; the next run goes on
        raise
    except Exception as error:  # out of memory, a hub that does not answer
        reason = f"{type(error).__name__}: {error}".strip().splitlines()[0]
    release_memory()  # which the error held on to until here
    return {"failed": reason}


@dataclass
class Context:
    """One model in one profile: what its cells depend on, and where results are.

    Attributes
    ----------
    profile : dict
        As ``config.profile_for`` returns it.
    name : str
        The model.
    store : Store
    seed : int
        Of everything that is drawn.
    force : bool
        Whether refitted weights of earlier runs are fitted again.
    part : tuple of int
        ``(i, n)`` is the i-th, from 0, of n groups of tasks.
    depth : int, optional
        How many layers HARP prunes, if not the profile's number.
    """

    profile: dict[str, Any]
    name: str
    store: Store
    seed: int = 0
    force: bool = False
    part: tuple[int, int] = (0, 1)
    depth: int | None = None
    # The calibration text of notebook 09's changes, on its way up the dense layers.
    calibrated: dict[tuple[bool, int, int], LayerStream] = field(default_factory=dict)
    _corpora: dict[tuple[str, str], Corpus] = field(default_factory=dict)

    # The model, and what the profile says of it

    def _loaded(self) -> tuple[PreTrainedModel, PreTrainedTokenizerBase, dict[str, Any]]:
        device_map = self.profile["device_map"]
        if self.name in self.profile["alpha_search"]["extra_models"]:  # too large for one device
            device_map = "auto"
        return _load(self.name, self.profile["dtype"], device_map)

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
        """Number of layers that HARP prunes, from the top."""
        return self.profile_depth if self.depth is None else self.depth

    @property
    def profile_depth(self) -> int:
        """The profile's number of layers that HARP prunes."""
        return config.num_pruned_layers(self.profile, self.name, self.num_layers)

    @property
    def longest_window(self) -> int:
        """Tokens that a window of text has at most: the profile's number, or the model's own."""
        longest = self.model.config.max_position_embeddings
        return min(self.profile["alpha_search"]["context"] or longest, longest)

    def tasks(self, section: str) -> list[str]:
        """The tasks of a section of the profile, or this part of them."""
        first, step = self.part
        return list(self.profile[section]["tasks"])[first::step]

    # Texts

    @property
    def corpora(self) -> tuple[str, str]:
        return self.profile["corpora"]

    def corpus(self, name: str, split: str = CALIBRATION) -> Corpus:
        """A corpus, which is read once."""
        if (name, split) not in self._corpora:
            self._corpora[name, split] = load_corpus(name, split, self.profile["datasets"])
        return self._corpora[name, split]

    @cached_property
    def pieces_begin_with_bos(self) -> bool:
        """Whether a piece of calibration text begins with the BOS token.

        It does where the profile wants it and the tokenizer puts one before any text.
        """
        return self.profile["bos_in_calibration"] and adds_bos(self.tokenizer)

    @property
    def piece_inputs(self) -> dict[str, Any]:
        """What a cell records of how its calibration pieces begin: something, if with BOS."""
        if self.pieces_begin_with_bos:
            return {"pieces_begin": self.tokenizer.bos_token}
        return {}

    def blocks(
        self, corpus: Corpus, samples: int, tokens: int, draw: int = 0, bos: bool = True
    ) -> torch.Tensor:
        """Calibration text, ``(samples, tokens)`` int64, of one of several draws.

        Without ``bos`` no piece begins with a BOS token, whatever the profile says.
        """
        with_bos = bos and self.pieces_begin_with_bos
        seed = self.seed + draw
        return calibration_blocks(corpus, self.tokenizer, samples, tokens, seed, with_bos)

    def calibration_size(self, method: str) -> Sequence[int]:
        """Samples of a method's calibration text, and tokens of each."""
        return self.profile["baselines"]["calibration"].get(method, CALIBRATION_SIZE)

    def text(
        self, name: str, split: str, size: tuple[int | None, int | None] | None = None
    ) -> Text:
        """The beginning of the first documents of a corpus.

        ``size`` is their number and the tokens of each; by default as many as alpha is searched on,
        or, of the held-out split, as many as perplexity is reported on.
        """
        settings = self.profile["alpha_search"]
        if size is None and split == HELD_OUT:
            size = settings["held_out"]
        elif size is None:
            size = (settings["documents"], settings["tokens"])
        return self._read(excerpt(self.corpus(name, split), self.tokenizer, *size))

    @cached_property
    def searched_tokens(self) -> int:
        """Tokens of the text that alpha is searched on: as they were cut, or predicted ones."""
        text = self.text(self.corpora[0], SEARCHED)
        length = self.profile["alpha_search"]["tokens"]
        if length is None:  # whole documents
            return sum(text.tokens)
        return len(text.documents) * length

    def _read(self, corpus: Corpus) -> Text:
        longest = self.longest_window
        windows = [rolling_windows(self.tokenizer, [text], longest) for text in corpus.texts]
        return Text(corpus, windows, self.model, self.inputs | {"context": longest})

    def second_sample(self, name: str) -> Text | None:
        """The next documents of the corpus and split that alpha is searched on, as many.

        None if none is left.
        """
        settings = self.profile["alpha_search"]
        others = without(self.corpus(name, SEARCHED), self.text(name, SEARCHED).corpus)
        try:
            sample = excerpt(others, self.tokenizer, settings["documents"], settings["tokens"])
        except ValueError:  # none of them is long enough
            return None
        return self._read(sample) if sample.documents else None

    def unsearched(self, name: str, documents: int | None, tokens: int | None) -> Text:
        """Documents that no search for alpha reads.

        They are held-out ones and, where there are too few of these, test pages behind the two
        samples that alpha is searched on.
        """
        held_out = self.text(name, HELD_OUT, (documents, tokens))
        if documents is None:  # all of the held-out ones
            return held_out
        missing = documents - len(held_out.documents)
        second = self.second_sample(name)
        if not missing or second is None:  # all test pages are searched
            return held_out
        searched = self.text(name, SEARCHED).corpus
        pages = without(self.corpus(name, SEARCHED), searched, second.corpus)
        try:
            more = excerpt(pages, self.tokenizer, missing, tokens)
        except ValueError:  # none of them is long enough
            return held_out
        both = (*held_out.corpus.documents, *more.documents)
        return self._read(replace(more, split=f"{HELD_OUT} and {SEARCHED}", documents=both))

    # Plans

    def plan_inputs(self, plan: PruningPlan) -> dict[str, Any]:
        """What a cell records of the plan under which it is computed: what goes, not who says so.

        So methods whose plans remove the same share their results.
        """
        removed = plan.to_dict()
        del removed["method"]
        inputs = {"plan": digest(removed) if plan.layers else None}
        if plan.method == REFIT:
            inputs["weights"] = self._refit_file.stem
        return inputs

    def refit(self) -> Refit:
        """HARP's layers refitted: once, and kept beside the results."""
        file = self._refit_file
        began = self.store.began.timestamp()
        if not file.is_file() or (self.force and file.stat().st_mtime < began):
            size = self.calibration_size(REFIT)
            blocks = self.blocks(self.corpus(self.corpora[0]), *size)
            refitted = refit_values(self.model, blocks, self.num_pruned)
            file.parent.mkdir(parents=True, exist_ok=True)
            partial = file.with_suffix(f".{os.getpid()}")
            torch.save(vars(refitted) | {"plan": refitted.plan.to_dict()}, partial)
            partial.replace(file)
        stored = torch.load(file, map_location=self.model.device)
        return Refit(**stored | {"plan": PruningPlan.from_dict(stored["plan"])})

    @cached_property
    def _refit_file(self) -> Path:
        """Its name says what the weights depend on."""
        inputs = {
            **self.inputs,
            **described(self.corpus(self.corpora[0])),
            **self.piece_inputs,
            "size": self.calibration_size(REFIT),
            "seed": self.seed,
            "layers": self.num_pruned,
            "ridge": RIDGE,
        }
        name = f"{config.slug(self.name)}-{digest(inputs)[:8]}.pt"
        return config.RESULTS / "refits" / name

    def pruned(self, plan: PruningPlan) -> AbstractContextManager[None]:
        """:func:`temporarily_pruned`, with the weights of a plan that has some."""
        weights = self.refit().weights if plan.method == REFIT else None
        return temporarily_pruned(self.model, plan, weights=weights)

    # Cells

    def nll_cells(self, text: Text, plans: Mapping[str, PruningPlan]) -> Iterator[Cell]:
        """A cell for each method: likelihood of each document of a text under the method's plan.

        Plans that begin low come first, which :meth:`Text.nll` asks for.
        """
        lowest = {
            method: min(plan.layers, default=plan.num_layers) for method, plan in plans.items()
        }
        cells = []
        for method in sorted(plans, key=lowest.get):
            plan = plans[method]
            inputs = {"what": "likelihood of documents", **text.inputs, **self.plan_inputs(plan)}
            compute = partial(self._nll_rows, text, plan)
            cells.append(Cell(inputs, compute, {"method": method, **text.about}))
        yield from behind_bar(f"perplexities, {text.corpus.name}", cells)

    def _nll_rows(self, text: Text, plan: PruningPlan) -> Result:
        """Likelihood, and predicted tokens, of each document of a text under a plan."""
        nll = text.nll(plan, self.pruned(plan))
        return {"rows": document_rows(nll, text.tokens)}
