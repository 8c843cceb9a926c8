"""Text for calibration and perplexity: where it comes from, and how it becomes tokens."""

import functools
import hashlib
import importlib
import inspect
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

import torch
from transformers import PreTrainedTokenizerBase

from harp_lib.names import CORPORA, CORPUS_TITLES
from harp_lib.text.rows import read_rows

SPLITS = ("train", "validation", "test")
EMBEDDED = tuple(name for name, about in CORPORA.items() if "modules" in about)


@dataclass(frozen=True)
class Corpus:
    """Documents of one split, and where they came from."""

    name: str
    split: str
    source: str  # embedded, hub, or the name of a directory
    documents: tuple[str, ...]  # as they came; WikiText's are tokenised words

    @property
    def title(self) -> str:
        return CORPUS_TITLES[self.name]

    @property
    def texts(self) -> list[str]:
        """The documents as they are scored."""
        return [detokenize(text) if self.name == "wikitext" else text for text in self.documents]

    @property
    def sha256(self) -> str:
        return hashlib.sha256("\0".join(self.documents).encode()).hexdigest()


def load_corpus(name: str, split: str, datasets: str = "embedded") -> Corpus:
    """Documents of a corpus; no document is in two splits.

    ``split`` is ``train`` (for calibration), ``validation`` (held out) or ``test`` (what alpha is
    searched on), ``datasets`` where texts that are not embedded are: ``hub``, or a directory with
    ``<name>/<split>.jsonl``.
    """
    if name in EMBEDDED:
        return Corpus(name, split, "embedded", _third(_prose(name), split))
    if name not in CORPORA or datasets == "embedded":
        known = f"{', '.join(EMBEDDED)}, or one of {', '.join(other for other in CORPORA if other not in EMBEDDED)}"
        raise ValueError(
            f"{name} is not embedded; choose from {known} with datasets='hub' or a folder"
        )
    field, one_split = CORPORA[name]["field"], CORPORA[name].get("one_split")
    if datasets == "hub":
        from datasets import load_dataset

        documents = load_dataset(*CORPORA[name]["hub"], split="train" if one_split else split)[
            field
        ]
        return Corpus(
            name, split, "hub", _third(documents, split) if one_split else tuple(documents)
        )
    file = Path(datasets, name, f"{split}.jsonl")
    if not file.is_file():
        raise ValueError(f"{file} does not exist; {datasets} has to hold <name>/<split>.jsonl")
    rows = read_rows(file, [field], CORPUS_TITLES[name])
    return Corpus(name, split, Path(datasets).name, tuple(row[field] for row in rows))


def excerpt(
    corpus: Corpus, tokenizer: PreTrainedTokenizerBase, documents: int | None, tokens: int | None
) -> Corpus:
    """The first ``documents`` documents of at least ``tokens`` tokens, each cut there; ``None``
    leaves things whole.
    """
    texts = (text for text in corpus.documents if text.strip())
    if tokens is None:
        return replace(corpus, documents=tuple(islice(texts, documents)))
    options = {"return_offsets_mapping": True, "add_special_tokens": False, "verbose": False}
    placed = ((text, tokenizer(text, **options).offset_mapping) for text in texts)
    cut = (text[: offsets[tokens - 1][1]] for text, offsets in placed if len(offsets) >= tokens)
    if not (taken := tuple(islice(cut, documents))):
        raise ValueError(f"{corpus.title} ({corpus.split}) has no document of {tokens} tokens")
    return replace(corpus, documents=taken)


def calibration_blocks(
    corpus: Corpus, tokenizer: PreTrainedTokenizerBase, samples: int, tokens: int, seed: int = 0
) -> torch.Tensor:
    """Random pieces of a corpus that do not overlap, (samples, tokens) int64; ValueError if there
    are fewer.

    The documents are joined by blank lines and cut into blocks, of which ``samples`` are drawn. As
    in FLAP's own calibration, a block begins in the middle of a text, without the token that begins
    one.
    """
    ids = tokenizer("\n\n".join(corpus.texts), add_special_tokens=False, verbose=False).input_ids
    blocks = torch.tensor(ids[: len(ids) // tokens * tokens]).view(-1, tokens)
    if len(blocks) < samples:
        found = f"{corpus.title} ({corpus.split}) has {len(blocks)} blocks of {tokens} tokens"
        raise ValueError(f"{found}; {samples} are wanted")
    return blocks[
        torch.randperm(len(blocks), generator=torch.Generator().manual_seed(seed))[:samples]
    ]


def detokenize(page: str) -> str:
    """WikiText's spaced-out words as ordinary text, as lm-eval does it."""
    from lm_eval.tasks.wikitext.preprocess_wikitext import wikitext_detokenizer

    return wikitext_detokenizer({"page": page})


def _third(documents: Sequence[str], split: str) -> tuple[str, ...]:
    """Every third document, in an order that mixes topics and stays the same; long ones are dealt
    out evenly.
    """
    ordered = sorted(
        documents, key=lambda text: (len(text) < 2500, hashlib.sha256(text.encode()).digest())
    )
    return tuple(ordered[SPLITS.index(split) :: len(SPLITS)])


@functools.cache
def _prose(name: str) -> tuple[str, ...]:
    """Documentation that is on every machine, each text once."""
    from pydoc_data.topics import topics

    # All are imported before one is read: scipy.special, which signal imports, adds to a docstring
    # of NumPy's.
    modules = [importlib.import_module(module) for module in CORPORA[name]["modules"]]
    public = (
        getattr(module, key) for module in modules for key in dir(module) if not key.startswith("_")
    )
    docs = [inspect.getdoc(item) or "" for item in (*modules, *public)]
    if name == "python-docs":
        docs = [*topics.values(), *(doc for doc in docs if len(doc) > 2000)]
    else:  # "Use of argument(s)" is followed by a set, in any order
        docs = [doc for doc in docs if "Parameters\n" in doc and "Use of argument(s)" not in doc]
    # A default value that prints its address would be another text, in another split, in each
    # process.
    return tuple(dict.fromkeys(re.sub(r"0x[0-9a-f]{8,}", "0x0", doc) for doc in docs))
