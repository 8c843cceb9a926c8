"""Texts for calibration and perplexity: where they come from, and how they become tokens."""

import functools
import hashlib
import importlib
import inspect
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

import torch
import torch.nn.functional as F
from transformers import PreTrainedTokenizerBase

from harp_lib.config import folder_of
from harp_lib.names import CORPORA, CORPUS_TITLES
from harp_lib.text.rows import read_rows

SPLITS = ("train", "validation", "test")
EMBEDDED = tuple(name for name, corpus in CORPORA.items() if "modules" in corpus)


@dataclass(frozen=True)
class Corpus:
    """Documents of one split, and where they came from."""

    name: str
    split: str
    source: str  # "embedded", "hub", or the name of a directory
    documents: tuple[str, ...]  # as published: WikiText's are words separated by spaces

    @property
    def title(self) -> str:
        return CORPUS_TITLES[self.name]

    @property
    def texts(self) -> list[str]:
        """The documents as they are scored."""
        if self.name == "wikitext":
            return [detokenize(page) for page in self.documents]
        return list(self.documents)

    @functools.cached_property
    def sha256(self) -> str:
        return hashlib.sha256("\0".join(self.documents).encode()).hexdigest()


def load_corpus(name: str, split: str, datasets: str = "embedded") -> Corpus:
    """Documents of one split of a corpus; no document is in two splits.

    Parameters
    ----------
    name : str
        A corpus of ``data/corpora.yaml``.
    split : str
        ``train`` (for calibration), ``validation`` (held out) or ``test`` (on which alpha is
        searched). Texts of a task are held out, all of them.
    datasets : str
        Where corpora that are not embedded come from: ``hub``, or a directory with
        ``<name>/<split>.jsonl``.

    Raises
    ------
    ValueError
        For an unknown corpus, one that is not embedded if ``datasets`` is ``embedded``, another
        split of a task than ``validation``, or a missing or damaged file.
    """
    if name in EMBEDDED:
        return Corpus(name, split, "embedded", _every_third(_embedded_documents(name), split))
    is_of_task = "task" in CORPORA.get(name, ())
    if name not in CORPORA or (datasets == "embedded" and not is_of_task):
        others = [other for other in CORPORA if {"hub", "task"} & {*CORPORA[other]} == {"hub"}]
        raise ValueError(
            f"{name} is not embedded; choose from {', '.join(EMBEDDED)}, or one of "
            f"{', '.join(others)} with datasets='hub' or a folder"
        )
    published_split = split
    if is_of_task:
        if split != "validation":
            raise ValueError(f"{CORPUS_TITLES[name]} is held out: it has no split {split!r}")
        published_split = "test"
    folder = folder_of(datasets)
    if folder is None:
        return Corpus(name, split, "hub", _hub_documents(name, published_split))
    source = "embedded" if datasets == "embedded" else folder.name
    documents = _documents_in(folder, name, published_split)
    return Corpus(name, split, source, documents)


def excerpt(
    corpus: Corpus, tokenizer: PreTrainedTokenizerBase, documents: int | None, tokens: int | None
) -> Corpus:
    """The first documents of a corpus that are long enough, cut to equal numbers of tokens.

    Parameters
    ----------
    corpus : Corpus
        Blank documents are skipped.
    tokenizer : PreTrainedTokenizerBase
        Counts the tokens, without special ones.
    documents : int, optional
        How many documents to take; None takes all.
    tokens : int, optional
        Tokens that a document must have, and where it is cut; None takes documents whole.

    Raises
    ------
    ValueError
        If no document is long enough.
    """
    texts = (text for text in corpus.documents if text.strip())
    if tokens is not None:
        texts = _cut(texts, tokenizer, tokens)
    excerpts = tuple(islice(texts, documents))
    if tokens is not None and not excerpts:
        raise ValueError(f"{corpus.title} ({corpus.split}) has no document of {tokens} tokens")
    return replace(corpus, documents=excerpts)


def _cut(texts: Iterable[str], tokenizer: PreTrainedTokenizerBase, tokens: int) -> Iterator[str]:
    """The texts of at least so many tokens, each cut after that many."""
    for text in texts:
        encoding = tokenizer(
            text, return_offsets_mapping=True, add_special_tokens=False, verbose=False
        )
        spans = encoding.offset_mapping  # the characters of each token: (start, end)
        if len(spans) >= tokens:
            _, end = spans[tokens - 1]
            yield text[:end]


def calibration_blocks(
    corpus: Corpus,
    tokenizer: PreTrainedTokenizerBase,
    samples: int,
    tokens: int,
    seed: int = 0,
    bos: bool = False,
) -> torch.Tensor:
    """Random pieces of a corpus that do not overlap, (samples, tokens) int64.

    The documents are joined by blank lines and cut into blocks, and ``samples`` of these are drawn.
    A block begins in the middle of a text. With ``bos`` its first token is the BOS token; FLAP's
    own calibration has none. A ValueError is raised if there are fewer blocks.
    """
    ids = _joined_ids(corpus, tokenizer)
    if bos:
        tokens -= 1
    num_blocks = len(ids) // tokens
    if num_blocks < samples:
        raise ValueError(
            f"{corpus.title} ({corpus.split}) has {num_blocks} blocks of {tokens} tokens; "
            f"{samples} are wanted"
        )
    blocks = ids[: num_blocks * tokens].view(-1, tokens)
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(blocks), generator=generator)
    drawn = blocks[order[:samples]]
    if bos:
        drawn = F.pad(drawn, (1, 0), value=tokenizer.bos_token_id)
    return drawn


@functools.lru_cache(maxsize=2)
def _joined_ids(corpus: Corpus, tokenizer: PreTrainedTokenizerBase) -> torch.Tensor:
    """All documents as one text, (tokens,) int64; kept, because one corpus is drawn from often."""
    text = "\n\n".join(corpus.texts)
    return torch.tensor(tokenizer(text, add_special_tokens=False, verbose=False).input_ids)


def detokenize(page: str) -> str:
    """WikiText's spaced-out words as ordinary text, as lm-eval does it."""
    from lm_eval.tasks.wikitext.preprocess_wikitext import wikitext_detokenizer

    return wikitext_detokenizer({"page": page})


def _every_third(documents: Sequence[str], split: str) -> tuple[str, ...]:
    """Every third document, in an order that mixes topics and is the same in every process."""

    def order(text: str) -> tuple[bool, bytes]:
        # Long documents come first, so that each split gets equally many.
        return len(text) < 2500, hashlib.sha256(text.encode()).digest()

    ordered = sorted(documents, key=order)
    return tuple(ordered[SPLITS.index(split) :: len(SPLITS)])


def _hub_documents(name: str, split: str) -> tuple[str, ...]:
    from datasets import load_dataset

    corpus = CORPORA[name]
    one_split = corpus.get("one_split", False)
    published_split = "train" if one_split else split
    documents = load_dataset(*corpus["hub"], split=published_split)[corpus["field"]]
    if one_split:
        return _every_third(documents, split)
    return tuple(documents)


def _documents_in(folder: Path, name: str, split: str) -> tuple[str, ...]:
    corpus = CORPORA[name]
    file = folder / corpus.get("task", name) / f"{split}.jsonl"
    if not file.is_file():
        raise ValueError(f"{file} does not exist: {corpus['title']} is not in these datasets")
    rows = read_rows(file, [corpus["field"]], corpus["title"])
    return tuple(row[corpus["field"]] for row in rows)


@functools.cache
def _embedded_documents(name: str) -> tuple[str, ...]:
    """Documentation that is on every machine with Python and SciPy, each text once."""
    docstrings = _docstrings(CORPORA[name]["modules"])
    if name == "python-docs":
        from pydoc_data.topics import topics

        texts = [*topics.values(), *(text for text in docstrings if len(text) > 2000)]
    else:
        # "Use of argument(s)" is followed by a set, which prints in any order.
        texts = [
            text
            for text in docstrings
            if "Parameters\n" in text and "Use of argument(s)" not in text
        ]
    # The address of a default value differs in each process, and would change a text and its split.
    texts = [re.sub(r"0x[0-9a-f]{8,}", "0x0", text) for text in texts]
    return tuple(dict.fromkeys(texts))


def _docstrings(module_names: Sequence[str]) -> list[str]:
    """Docstrings of modules, and then of their public members."""
    # All modules are imported before a docstring is read, because scipy.special, which
    # scipy.signal imports, adds to a docstring of NumPy's.
    modules = [importlib.import_module(name) for name in module_names]
    members = []
    for module in modules:
        public_names = [name for name in dir(module) if not name.startswith("_")]
        members += [getattr(module, name) for name in public_names]
    return [inspect.getdoc(item) or "" for item in (*modules, *members)]
