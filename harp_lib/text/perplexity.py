"""How well a model predicts a text: windows, negative log-likelihood, perplexity."""

import inspect
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

import torch
import torch.nn.functional as F
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from harp_lib.prefix_lm.forward import head_logits, is_decoder_and_head
from harp_lib.prefix_lm.onednn import evaluating
from harp_lib.text.corpora import detokenize

TOKENS_PER_BATCH = 4096  # in one forward pass of the decoder
LOGITS_PER_BLOCK = 2**24  # held at a time: 64 MiB in float32


class Window(NamedTuple):
    """A sequence whose last tokens are predicted; the tokens before them are context.

    Attributes
    ----------
    ids : (N,)
        The sequence.
    scored : int
        Number of predicted tokens.
    """

    ids: torch.Tensor
    scored: int


class Batch(NamedTuple):
    """Sequences of one length whose last ``scored`` tokens are predicted."""

    ids: torch.Tensor  # (B, N)
    scored: int

    @property
    def num_scored(self) -> int:
        return len(self.ids) * self.scored

    @property
    def targets(self) -> torch.Tensor:
        """The scored tokens (B·scored,)."""
        return self.ids[:, -self.scored :].flatten()


Tokens = torch.Tensor | Sequence[torch.Tensor] | Sequence[Window]


def rolling_windows(
    tokenizer: PreTrainedTokenizerBase, texts: Iterable[str], max_length: int
) -> list[Window]:
    """Cut texts into windows as lm-eval's rolling log-likelihood does.

    Every token is predicted once. The last window of a text overlaps the one before, which gives
    its tokens context. A text begins after **one** BOS (or EOS) token, whether or not the tokenizer
    adds its own; lm-eval 0.4.13 would have two where it does.
    """
    from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

    prefix = tokenizer.bos_token_id
    if prefix is None:
        prefix = tokenizer.eos_token_id
    windows = []
    for text in texts:
        ids = tokenizer(text, add_special_tokens=False, verbose=False).input_ids
        for pair in get_rolling_token_windows(ids, prefix, max_length, context_len=1):
            context, scored = make_disjoint_window(pair)
            windows.append(Window(torch.tensor(context + scored), len(scored)))
    return windows


def perplexity(model: PreTrainedModel, tokens: Tokens) -> float:
    """Perplexity per predicted token: the exponential of the mean negative log-likelihood.

    Parameters
    ----------
    model : PreTrainedModel
        Dense or pruned; unchanged afterwards.
    tokens : Tensor or sequence
        ``(B, N)`` int64, a list of 1-D tensors of any length, or a list of :class:`Window`. Every
        token of a tensor but the first is predicted, and the last ``scored`` tokens of a window.

    Raises
    ------
    ValueError
        If there is no token to predict.
    """
    batches = make_batches(tokens)
    num_predicted_tokens = sum(batch.num_scored for batch in batches)
    return perplexity_from_nll(total_nll(model, batches), num_predicted_tokens)


def word_perplexity(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, documents: Sequence[str]
) -> float:
    """Word perplexity as lm-eval's ``wikitext`` task defines it, which is what the paper reports.

    Each document (a raw page) is detokenised as the task does, scored in rolling windows of the
    model's context length, and the summed negative log-likelihood is divided by the words of the
    documents as they came.
    """
    if isinstance(documents, str):
        documents = [documents]
    pages = [detokenize(document) for document in documents]
    windows = rolling_windows(tokenizer, pages, model.config.max_position_embeddings)
    num_words = sum(len(re.split(r"\s+", document)) for document in documents)
    return perplexity_from_nll(total_nll(model, make_batches(windows)), num_words)


def make_batches(tokens: Tokens) -> list[Batch]:
    """Join neighbouring sequences of equal shape, at most ``TOKENS_PER_BATCH`` tokens at a time.

    A ValueError is raised if there is no token to predict.
    """
    windows = [_as_window(sequence) for sequence in tokens]
    windows = [window for window in windows if window.scored > 0]
    if not windows:
        raise ValueError(
            "the corpus is empty: no sequence has two tokens or more, "
            "so there is nothing to predict"
        )
    batches = []
    for (length, scored), group in groupby(windows, key=_shape):
        ids = torch.stack([window.ids for window in group])  # (B, N)
        sequences_per_batch = max(1, TOKENS_PER_BATCH // length)
        batches += [Batch(part, scored) for part in ids.split(sequences_per_batch)]
    return batches


def _as_window(sequence: torch.Tensor | Window) -> Window:
    """A window in which every token but the first is predicted, unless it is a window already."""
    if isinstance(sequence, Window):
        return sequence
    return Window(torch.as_tensor(sequence), len(sequence) - 1)


def _shape(window: Window) -> tuple[int, int]:
    return len(window.ids), window.scored


@torch.no_grad()
def total_nll(model: PreTrainedModel, batches: Sequence[Batch]) -> float:
    """Negative log-likelihood in nats, summed over all scored tokens."""
    nll = 0.0
    with evaluating(model):
        has_parts = is_decoder_and_head(model)
        for batch in batches:
            if has_parts:
                output = model.get_decoder()(input_ids=batch.ids.to(model.device), use_cache=False)
                nll += head_nll(model, output.last_hidden_state, batch)
            else:
                nll += _own_nll(model, batch)
    return nll


@torch.no_grad()
def head_nll(model: PreTrainedModel, hidden: torch.Tensor, batch: Batch) -> float:
    """Negative log-likelihood in nats of a batch, from the decoder's output (B, N, d).

    It is the model's own if :func:`harp_lib.prefix_lm.forward.is_decoder_and_head` holds.
    """
    nll = 0.0
    for logits, targets in _head_logits(model, hidden, batch):
        nll += _summed_nll(logits, targets)
    return nll


@torch.no_grad()
def head_hits(model: PreTrainedModel, hidden: torch.Tensor, batch: Batch) -> int:
    """How many scored tokens of a batch are the most likely ones, from the output (B, N, d)."""
    hits = 0
    for logits, targets in _head_logits(model, hidden, batch):
        hits += (logits.argmax(dim=-1) == targets).sum().item()
    return hits


def _head_logits(
    model: PreTrainedModel, hidden: torch.Tensor, batch: Batch
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Logits (T, V) of scored tokens and the tokens (T,), a few at a time."""
    head = model.get_output_embeddings()
    hidden = _before_scored(hidden, batch).to(head.weight.device)  # (B·scored, d)
    targets = batch.targets.to(hidden.device)  # (B·scored,)
    tokens_per_block = max(1, LOGITS_PER_BLOCK // len(head.weight))
    hidden_blocks = hidden.split(tokens_per_block)
    target_blocks = targets.split(tokens_per_block)
    for hidden_block, target_block in zip(hidden_blocks, target_blocks, strict=True):
        yield head_logits(model, hidden_block).float(), target_block


def _own_nll(model: PreTrainedModel, batch: Batch) -> float:
    """Negative log-likelihood in nats of a batch, by the model's own forward pass."""
    nll = 0.0
    num_words = model.config.get_text_config().vocab_size
    sequences_per_pass = max(1, LOGITS_PER_BLOCK // (batch.ids.shape[1] * num_words))
    for ids in batch.ids.split(sequences_per_pass):
        part = batch._replace(ids=ids)
        logits = _before_scored(_own_logits(model, ids), part)  # (B·scored, V)
        nll += _summed_nll(logits.float(), part.targets.to(logits.device))
    return nll


def _own_logits(model: PreTrainedModel, ids: torch.Tensor) -> torch.Tensor:
    """Logits (B, N, V) of sequences (B, N) by the model's own forward pass.

    A ValueError is raised if it wants more than tokens, as an encoder-decoder does.
    """
    options = {}
    if "use_cache" in inspect.signature(model.forward).parameters:
        options["use_cache"] = False
    try:
        return model(input_ids=ids.to(model.device), **options).logits
    except (TypeError, ValueError, AttributeError) as error:
        raise ValueError(
            f"{type(model).__name__} is not supported: its forward pass cannot be called with "
            f"input_ids alone ({error})"
        ) from error


def _before_scored(values: torch.Tensor, batch: Batch) -> torch.Tensor:
    """Values (B·scored, …) of the tokens that predict the scored ones, from values (B, N, …)."""
    # The token before the scored ones predicts the first of them.
    return values[:, -batch.scored - 1 : -1].flatten(0, 1)


def _summed_nll(logits: torch.Tensor, targets: torch.Tensor) -> float:
    """Negative log-likelihood in nats of tokens (T,) under logits (T, V)."""
    token_nlls = F.cross_entropy(logits, targets, reduction="none")  # (T,)
    return token_nlls.double().sum().item()


def perplexity_from_nll(nll: float, count: int) -> float:
    """``exp(nll / count)``, infinite where that overflows."""
    mean = nll / count
    if math.isnan(mean):
        return math.nan
    if mean >= 700:
        return math.inf
    return math.exp(mean)
