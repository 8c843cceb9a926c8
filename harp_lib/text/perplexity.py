"""How well a model predicts a text: windows, negative log-likelihood, perplexity."""

import math
import re
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import NamedTuple

import torch
import torch.nn.functional as F
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from harp_lib.models.load import evaluating, scale_logits
from harp_lib.text.corpora import detokenize

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


def rolling_windows(
    tokenizer: PreTrainedTokenizerBase, texts: Iterable[str], max_length: int
) -> list[Window]:
    """Cut texts as lm-eval's rolling log-likelihood does: every token is predicted once, the last
    ones with context.

    A text begins after **one** BOS (or EOS) token, whether or not the tokenizer adds one of its
    own: lm-eval 0.4.13 lets it, and then has two.
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


def perplexity(model: PreTrainedModel, tokens: Tokens) -> float:
    """Perplexity per predicted token: the exponential of the mean negative log-likelihood.

    ``tokens`` is ``(B, N)`` int64, or a list of 1-D tensors of any length, or a list of
    :class:`Window`. Of a tensor every token but the first is predicted, of a window the last
    ``scored`` ones. ValueError if there is none.
    """
    batches = make_batches(tokens)
    return perplexity_from_nll(
        total_nll(model, batches), sum(batch.num_scored for batch in batches)
    )


def word_perplexity(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, documents: Sequence[str]
) -> float:
    """Word perplexity as lm-eval's ``wikitext`` task defines it, which is what the paper reports.

    Each document (a raw page) is detokenised as the task does, scored in rolling windows of the
    model's context length, and the summed negative log-likelihood is divided by the words of the
    documents as they came.
    """
    documents = [documents] if isinstance(documents, str) else list(documents)
    windows = rolling_windows(
        tokenizer, map(detokenize, documents), model.config.max_position_embeddings
    )
    words = sum(len(re.split(r"\s+", document)) for document in documents)
    return perplexity_from_nll(total_nll(model, make_batches(windows)), words)


def make_batches(tokens: Tokens) -> list[Batch]:
    """Sequences of equal shape that follow each other, together, at most ``TOKENS_PER_BATCH``
    tokens at a time.
    """
    windows = [
        ids if isinstance(ids, Window) else Window(torch.as_tensor(ids), len(ids) - 1)
        for ids in tokens
    ]
    windows = [window for window in windows if window.scored > 0]
    if not windows:
        raise ValueError(
            "the corpus is empty: no sequence has two tokens or more, so there is nothing to predict"
        )
    batches = []
    for (length, scored), group in groupby(
        windows, key=lambda window: (len(window.ids), window.scored)
    ):
        ids = torch.stack([window.ids for window in group])
        batches += [Batch(part, scored) for part in ids.split(max(1, TOKENS_PER_BATCH // length))]
    return batches


@torch.no_grad()
def total_nll(model: PreTrainedModel, batches: Sequence[Batch]) -> float:
    """Negative log-likelihood in nats, summed over all scored tokens."""
    decoder, total = model.get_decoder(), 0.0
    with evaluating(model):
        for batch in batches:
            hidden = decoder(
                input_ids=batch.ids.to(model.device), use_cache=False
            ).last_hidden_state  # (B, N, d)
            total += head_nll(model, hidden, batch)
    return total


@torch.no_grad()
def head_nll(model: PreTrainedModel, hidden: torch.Tensor, batch: Batch) -> float:
    """Negative log-likelihood of a batch from the decoder's output (B, N, d), with logits of a few
    tokens at a time.
    """
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
    return (
        math.exp(nll / count) if nll / count < 700 else (math.nan if math.isnan(nll) else math.inf)
    )
