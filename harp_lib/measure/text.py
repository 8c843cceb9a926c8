"""Text for calibration and perplexity: where it comes from, how it becomes tokens, and how well a model predicts it."""

import functools
import hashlib
import importlib
import inspect
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, islice
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
import yaml
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from harp_lib import config
from harp_lib.measure.evaluation import read_rows
from harp_lib.measure.models import evaluating, scale_logits

SPLITS = ("train", "validation", "test")
CORPORA = yaml.safe_load((config.DATA / "corpora.yaml").read_text(encoding="utf-8"))
EMBEDDED = tuple(name for name, about in CORPORA.items() if "modules" in about)
TITLES = {name: about["title"] for name, about in CORPORA.items()}
TOKENS_PER_BATCH = 4096  # of one forward pass of the decoder
LOGITS_PER_BLOCK = 2**24  # 64 MiB in float32


class Window(NamedTuple):
    """Token ids (N,) of which the last ``scored`` are predicted; those before are context."""

    ids: torch.Tensor
    scored: int


class Batch(NamedTuple):
    """Sequences of one length whose last ``scored`` tokens are predicted."""

    ids: torch.Tensor  # (B, N)
    scored: int

    @property
    def num_scored(self) -> int:
        return len(self.ids) * self.scored


Tokens = torch.Tensor | Sequence[torch.Tensor] | Sequence[Window]


@dataclass(frozen=True)
class Corpus:
    """Documents of one split, and where they came from."""

    name: str
    split: str
    source: str  # embedded, hub, or the name of a directory
    documents: tuple[str, ...]  # as they came; WikiText's are tokenised words

    @property
    def title(self) -> str:
        return TITLES[self.name]

    @property
    def texts(self) -> list[str]:
        """The documents as they are scored."""
        return [detokenize(text) if self.name == "wikitext" else text for text in self.documents]

    @property
    def sha256(self) -> str:
        return hashlib.sha256("\0".join(self.documents).encode()).hexdigest()


def load_corpus(name: str, split: str, datasets: str = "embedded") -> Corpus:
    """Documents of a corpus; no document is in two splits.

    ``split`` is ``train`` (for calibration), ``validation`` (held out) or ``test`` (what alpha is searched on),
    ``datasets`` where texts that are not embedded are: ``hub``, or a directory with ``<name>/<split>.jsonl``.
    """
    if name in EMBEDDED:
        return Corpus(name, split, "embedded", _third(_prose(name), split))
    if name not in CORPORA or datasets == "embedded":
        known = f"{', '.join(EMBEDDED)}, or one of {', '.join(other for other in CORPORA if other not in EMBEDDED)}"
        raise ValueError(f"{name} is not embedded; choose from {known} with datasets='hub' or a folder")
    field, one_split = CORPORA[name]["field"], CORPORA[name].get("one_split")
    if datasets == "hub":
        from datasets import load_dataset

        documents = load_dataset(*CORPORA[name]["hub"], split="train" if one_split else split)[field]
        return Corpus(name, split, "hub", _third(documents, split) if one_split else tuple(documents))
    file = Path(datasets, name, f"{split}.jsonl")
    if not file.is_file():
        raise ValueError(f"{file} does not exist; {datasets} has to hold <name>/<split>.jsonl")
    rows = read_rows(file, [field], TITLES[name])
    return Corpus(name, split, Path(datasets).name, tuple(row[field] for row in rows))


def excerpt(corpus: Corpus, tokenizer: PreTrainedTokenizerBase, documents: int | None, tokens: int | None) -> Corpus:
    """The first ``documents`` documents of at least ``tokens`` tokens, each cut there; ``None`` leaves things whole."""
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
    """Random pieces of a corpus that do not overlap, (samples, tokens) int64; ValueError if there are fewer.

    The documents are joined by blank lines and cut into blocks, of which ``samples`` are drawn. As in FLAP's own
    calibration, a block begins in the middle of a text, without the token that begins one.
    """
    ids = tokenizer("\n\n".join(corpus.texts), add_special_tokens=False, verbose=False).input_ids
    blocks = torch.tensor(ids[: len(ids) // tokens * tokens]).view(-1, tokens)
    if len(blocks) < samples:
        found = f"{corpus.title} ({corpus.split}) has {len(blocks)} blocks of {tokens} tokens"
        raise ValueError(f"{found}; {samples} are wanted")
    return blocks[torch.randperm(len(blocks), generator=torch.Generator().manual_seed(seed))[:samples]]


def rolling_windows(tokenizer: PreTrainedTokenizerBase, texts: Iterable[str], max_length: int) -> list[Window]:
    """Cut texts as lm-eval's rolling log-likelihood does: every token is predicted once, the last ones with context.

    A text begins after **one** BOS (or EOS) token, whether or not the tokenizer adds one of its own: lm-eval 0.4.13
    lets it, and then has two.
    """
    from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

    prefix = tokenizer.eos_token_id if tokenizer.bos_token_id is None else tokenizer.bos_token_id
    windows = []
    for text in texts:
        ids = tokenizer(text, add_special_tokens=False, verbose=False).input_ids
        for pair in get_rolling_token_windows(ids, prefix, max_length, context_len=1):
            context, scored = make_disjoint_window(pair)
            windows.append(Window(torch.tensor(context + scored), len(scored)))
    return windows


def detokenize(page: str) -> str:
    """WikiText's spaced-out words as ordinary text, as lm-eval does it."""
    from lm_eval.tasks.wikitext.preprocess_wikitext import wikitext_detokenizer

    return wikitext_detokenizer({"page": page})


def perplexity(model: PreTrainedModel, tokens: Tokens) -> float:
    """Perplexity per predicted token: the exponential of the mean negative log-likelihood.

    ``tokens`` is ``(B, N)`` int64, or a list of 1-D tensors of any length, or a list of :class:`Window`. Of a tensor
    every token but the first is predicted, of a window the last ``scored`` ones. ValueError if there is none.
    """
    batches = make_batches(tokens)
    return perplexity_from_nll(total_nll(model, batches), sum(batch.num_scored for batch in batches))


def word_perplexity(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, documents: Sequence[str]) -> float:
    """Word perplexity as lm-eval's ``wikitext`` task defines it, which is what the paper reports.

    Each document (a raw page) is detokenised as the task does, scored in rolling windows of the model's context length,
    and the summed negative log-likelihood is divided by the words of the documents as they came.
    """
    documents = [documents] if isinstance(documents, str) else list(documents)
    windows = rolling_windows(tokenizer, map(detokenize, documents), model.config.max_position_embeddings)
    words = sum(len(re.split(r"\s+", document)) for document in documents)
    return perplexity_from_nll(total_nll(model, make_batches(windows)), words)


def make_batches(tokens: Tokens) -> list[Batch]:
    """Sequences of equal shape that follow each other, together, at most ``TOKENS_PER_BATCH`` tokens at a time."""
    windows = [ids if isinstance(ids, Window) else Window(torch.as_tensor(ids), len(ids) - 1) for ids in tokens]
    windows = [window for window in windows if window.scored > 0]
    if not windows:
        raise ValueError("the corpus is empty: no sequence has two tokens or more, so there is nothing to predict")
    batches = []
    for (length, scored), group in groupby(windows, key=lambda window: (len(window.ids), window.scored)):
        ids = torch.stack([window.ids for window in group])
        batches += [Batch(part, scored) for part in ids.split(max(1, TOKENS_PER_BATCH // length))]
    return batches


@torch.no_grad()
def total_nll(model: PreTrainedModel, batches: Sequence[Batch]) -> float:
    """Negative log-likelihood in nats, summed over all scored tokens."""
    decoder, total = model.get_decoder(), 0.0
    with evaluating(model):
        for batch in batches:
            hidden = decoder(input_ids=batch.ids.to(model.device), use_cache=False).last_hidden_state  # (B, N, d)
            total += head_nll(model, hidden, batch)
    return total


@torch.no_grad()
def head_nll(model: PreTrainedModel, hidden: torch.Tensor, batch: Batch) -> float:
    """Negative log-likelihood of a batch from the decoder's output (B, N, d), with logits of a few tokens at a time."""
    head = model.get_output_embeddings()
    hidden = hidden[:, -batch.scored - 1 : -1].flatten(0, 1).to(head.weight.device)  # (B·scored, d)
    targets = batch.ids[:, -batch.scored :].flatten().to(hidden.device)
    size, total = max(1, LOGITS_PER_BLOCK // len(head.weight)), 0.0
    for part, target in zip(hidden.split(size), targets.split(size), strict=True):
        logits = scale_logits(model.config, head(part)).float()  # (T, V)
        total += F.cross_entropy(logits, target, reduction="none").double().sum().item()
    return total


def perplexity_from_nll(nll: float, count: int) -> float:
    """``exp(nll / count)``, infinite where that overflows."""
    return math.exp(nll / count) if nll / count < 700 else (math.nan if math.isnan(nll) else math.inf)


def _third(documents: Sequence[str], split: str) -> tuple[str, ...]:
    """Every third document, in an order that mixes topics and stays the same; long ones are dealt out evenly."""
    ordered = sorted(documents, key=lambda text: (len(text) < 2500, hashlib.sha256(text.encode()).digest()))
    return tuple(ordered[SPLITS.index(split) :: len(SPLITS)])


@functools.cache
def _prose(name: str) -> tuple[str, ...]:
    """Documentation that is on every machine, each text once."""
    from pydoc_data.topics import topics

    # All are imported before one is read: scipy.special, which signal imports, adds to a docstring of NumPy's.
    modules = [importlib.import_module(module) for module in CORPORA[name]["modules"]]
    public = (getattr(module, key) for module in modules for key in dir(module) if not key.startswith("_"))
    docs = [inspect.getdoc(item) or "" for item in (*modules, *public)]
    if name == "python-docs":
        docs = [*topics.values(), *(doc for doc in docs if len(doc) > 2000)]
    else:  # "Use of argument(s)" is followed by a set, in any order
        docs = [doc for doc in docs if "Parameters\n" in doc and "Use of argument(s)" not in doc]
    # A default value that prints its address would be another text, in another split, in each process.
    return tuple(dict.fromkeys(re.sub(r"0x[0-9a-f]{8,}", "0x0", doc) for doc in docs))
