"""Text for calibration and perplexity: where it comes from, and how it becomes tokens."""

import functools
import hashlib
import importlib
import inspect
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import torch
from transformers import PreTrainedTokenizerBase

SPLITS = ("train", "validation", "test")
EMBEDDED = ("python-docs", "scipy-docs")
TITLES = {
    "python-docs": "Python documentation",
    "scipy-docs": "NumPy and SciPy docstrings",
    "wikitext": "WikiText-2",
    "pile_10k": "Pile10K",
}
_HUB = {"wikitext": ("EleutherAI/wikitext_document_level", "wikitext-2-raw-v1"), "pile_10k": ("NeelNanda/pile-10k",)}
_TEXT_FIELD = {"wikitext": "page", "pile_10k": "text"}
_SCIPY_MODULES = ("numpy", "numpy.linalg", "scipy.linalg", "scipy.optimize", "scipy.signal", "scipy.ndimage")


class Window(NamedTuple):
    """Token ids (N,) of which the last ``scored`` are predicted; those before are context."""

    ids: torch.Tensor
    scored: int


@dataclass(frozen=True)
class Corpus:
    """Documents of one split, and where they came from.

    Attributes
    ----------
    name, split, source : str
        Which text this is; ``source`` is ``embedded``, ``hub`` or the name of a directory.
    documents : tuple of str
        The documents as they came. WikiText's are tokenised words; :attr:`texts` has them as they are scored.
    """

    name: str
    split: str
    source: str
    documents: tuple[str, ...]

    @property
    def title(self) -> str:
        return TITLES[self.name]

    @property
    def texts(self) -> list[str]:
        return [detokenize(text) if self.name == "wikitext" else text for text in self.documents]

    @property
    def num_words(self) -> int:
        return sum(count_words(document) for document in self.documents)

    @property
    def sha256(self) -> str:
        return hashlib.sha256("\0".join(self.documents).encode()).hexdigest()


def load_corpus(name: str, split: str, datasets: str = "embedded") -> Corpus:
    """Documents of a corpus.

    Parameters
    ----------
    name : str
        ``python-docs`` or ``scipy-docs`` (prose that is on every machine with Python and SciPy), ``wikitext``
        (WikiText-2, one document per page) or ``pile_10k``.
    split : str
        ``train`` (for calibration), ``validation`` (held out) or ``test`` (what alpha is searched on).
    datasets : str
        Where ``wikitext`` and ``pile_10k`` are read from: ``hub``, or a directory with ``<name>/<split>.jsonl``.

    Returns
    -------
    Corpus

    Raises
    ------
    ValueError
        For an unknown name or split, a file that is not there, or a row without text (file and line are named).
    """
    if name not in TITLES:
        raise ValueError(f"unknown corpus {name!r}; choose from {', '.join(TITLES)}")
    if split not in SPLITS:
        raise ValueError(f"unknown split {split!r}; choose from {', '.join(SPLITS)}")
    if name in EMBEDDED:
        return Corpus(
            name, split, "embedded", _third(_python_docs() if name == "python-docs" else _scipy_docs(), split)
        )
    if datasets == "embedded":
        raise ValueError(
            f"{name} is not embedded; choose from {', '.join(EMBEDDED)}, or pass datasets='hub' or a folder"
        )
    if datasets == "hub":
        return Corpus(name, split, "hub", _from_hub(name, split))
    return Corpus(name, split, Path(datasets).name, _from_directory(Path(datasets), name, split))


def default_corpora(datasets: str) -> tuple[str, str]:
    """The two corpora that a data source offers for searching and cross-reading alpha."""
    if datasets == "hub":
        return ("wikitext", "pile_10k")
    if datasets == "embedded" or not (Path(datasets) / "wikitext").is_dir():
        return EMBEDDED
    return ("wikitext", "pile_10k" if (Path(datasets) / "pile_10k").is_dir() else "python-docs")


def excerpt(corpus: Corpus, tokenizer: PreTrainedTokenizerBase, documents: int | None, tokens: int | None) -> Corpus:
    """The first ``documents`` documents of at least ``tokens`` tokens, each cut there; ``None`` leaves things whole."""
    texts = [text for text in corpus.documents if text.strip()]
    if tokens is None:
        return replace(corpus, documents=tuple(texts[:documents]))
    taken: list[str] = []
    for text in texts:
        offsets = tokenizer(text, return_offsets_mapping=True, add_special_tokens=False, verbose=False).offset_mapping
        if len(offsets) >= tokens:
            taken.append(text[: offsets[tokens - 1][1]])
        if len(taken) == documents:
            break
    if not taken:
        raise ValueError(f"{corpus.title} ({corpus.split}) has no document of {tokens} tokens")
    return replace(corpus, documents=tuple(taken))


def calibration_blocks(
    corpus: Corpus, tokenizer: PreTrainedTokenizerBase, samples: int, tokens: int, seed: int = 0
) -> torch.Tensor:
    """Random pieces of a corpus that do not overlap: (samples, tokens) int64.

    The documents are joined by blank lines and cut into blocks of ``tokens`` tokens, of which ``samples`` are drawn. As
    in FLAP's own calibration, a block begins in the middle of a text, without the token that begins one.

    Raises
    ------
    ValueError
        If the corpus has fewer blocks.
    """
    ids = tokenizer("\n\n".join(corpus.texts), add_special_tokens=False, verbose=False).input_ids
    blocks = torch.tensor(ids[: len(ids) // tokens * tokens]).view(-1, tokens)
    if len(blocks) < samples:
        raise ValueError(
            f"{corpus.title} ({corpus.split}) has {len(blocks)} blocks of {tokens} tokens; {samples} are wanted"
        )
    return blocks[torch.randperm(len(blocks), generator=torch.Generator().manual_seed(seed))[:samples]]


def rolling_windows(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], max_length: int) -> list[Window]:
    """Cut texts as lm-eval's rolling log-likelihood does: every token is predicted once.

    A text begins after the tokenizer's BOS (or EOS) token. One longer than ``max_length`` is cut; the last window
    then sees earlier tokens again, as context.
    """
    from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

    prefix = tokenizer.eos_token_id if tokenizer.bos_token_id is None else tokenizer.bos_token_id
    windows = []
    for text in texts:
        ids = tokenizer(text, verbose=False).input_ids
        for pair in get_rolling_token_windows(ids, prefix, max_length, context_len=1):
            context, scored = make_disjoint_window(pair)
            windows.append(Window(torch.tensor(context + scored), len(scored)))
    return windows


def detokenize(page: str) -> str:
    """WikiText's spaced-out words as ordinary text, as lm-eval does it."""
    from lm_eval.tasks.wikitext.preprocess_wikitext import wikitext_detokenizer

    return wikitext_detokenizer({"page": page})


def count_words(document: str) -> int:
    """Words as lm-eval counts them."""
    return len(re.split(r"\s+", document))


def _third(documents: Sequence[str], split: str) -> tuple[str, ...]:
    """Every third document, in an order that mixes topics and stays the same."""
    ordered = sorted(documents, key=lambda text: hashlib.sha256(text.encode()).digest())
    return tuple(ordered[SPLITS.index(split) :: len(SPLITS)])


@functools.cache
def _python_docs() -> tuple[str, ...]:
    from pydoc_data.topics import topics

    return tuple(dict.fromkeys(topics.values()))  # several names may lead to one text


@functools.cache
def _scipy_docs() -> tuple[str, ...]:
    documents = {}
    # All are imported before one is read: scipy.special, which signal imports, adds to a docstring of NumPy's.
    for module in [importlib.import_module(name) for name in _SCIPY_MODULES]:
        for name in dir(module):
            doc = inspect.getdoc(getattr(module, name)) if not name.startswith("_") else None
            if doc and "Parameters\n" in doc and "Use of argument(s)" not in doc:  # prints a set, in any order
                # A default value that prints its address would be another text, in another split, in each process.
                documents[re.sub(r"0x[0-9a-f]{8,}", "0x0", doc)] = None  # a dict drops what two modules share
    return tuple(documents)


def _from_hub(name: str, split: str) -> tuple[str, ...]:
    from datasets import load_dataset

    published_split = "train" if name == "pile_10k" else split  # Pile10K has no other
    try:
        documents = load_dataset(*_HUB[name], split=published_split)[_TEXT_FIELD[name]]
    except ConnectionError as error:
        raise ConnectionError(
            f"{_HUB[name][0]} was not reached on the hub: check the network and HF_HUB_OFFLINE, "
            f"or pass a folder that holds {name}/{split}.jsonl as datasets"
        ) from error
    return _third(documents, split) if name == "pile_10k" else tuple(documents)


def _from_directory(folder: Path, name: str, split: str) -> tuple[str, ...]:
    file = folder / name / f"{split}.jsonl"
    if not file.is_file():
        raise ValueError(f"{file} does not exist; {folder} has to hold <name>/<split>.jsonl")
    documents = []
    for number, line in enumerate(file.read_text(encoding="utf-8").rstrip("\n").split("\n"), start=1):
        try:
            documents.append(json.loads(line)[_TEXT_FIELD[name]])
        except (ValueError, KeyError, TypeError):
            raise ValueError(f"{file}, line {number}: no JSON object with a field {_TEXT_FIELD[name]!r}") from None
    return tuple(documents)
