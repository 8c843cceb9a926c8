"""Perplexity per token and per word, in bounded memory."""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from typing import NamedTuple

import torch
import torch.nn.functional as F
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from harp_lib.measure.corpora import Window, count_words, detokenize, rolling_windows

TOKENS_PER_BATCH = 4096  # of one forward pass of the decoder
TOKENS_PER_BLOCK = 2048  # of one block of logits
VOCABULARY_PER_BLOCK = 4096  # a block of few hundred tokens stays in the processor's cache

Tokens = torch.Tensor | Sequence[torch.Tensor] | Sequence[Window]


class Batch(NamedTuple):
    """Sequences of one length whose last ``scored`` tokens are predicted."""

    ids: torch.Tensor  # (B, N)
    scored: int

    @property
    def num_scored(self) -> int:
        return len(self.ids) * self.scored


def perplexity(model: PreTrainedModel, tokens: Tokens) -> float:
    """Perplexity per predicted token.

    Parameters
    ----------
    model : PreTrainedModel
        A causal language model.
    tokens : Tensor or sequence
        ``(B, N)`` int64, or a list of 1-D tensors of any length, or a list of :class:`Window`.
        Of a tensor every token but the first is predicted, of a window the last ``scored`` ones.

    Returns
    -------
    float
        The exponential of the mean negative log-likelihood over all predicted tokens.

    Raises
    ------
    ValueError
        If there is nothing to predict.
    """
    batches = make_batches(tokens)
    return perplexity_from_nll(total_nll(model, batches), sum(batch.num_scored for batch in batches))


def word_perplexity(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, documents: Sequence[str]) -> float:
    """Word perplexity as lm-eval's ``wikitext`` task defines it, which is what the paper reports.

    Each document is detokenised as the task does, scored in rolling windows of the model's context length, and the
    summed negative log-likelihood is divided by the words of the documents as they came.

    Parameters
    ----------
    model, tokenizer
        The model and its tokenizer.
    documents : sequence of str
        Raw pages.

    Returns
    -------
    float
    """
    documents = [documents] if isinstance(documents, str) else list(documents)
    if not documents:
        raise ValueError("no documents to score")
    texts = [detokenize(document) for document in documents]
    windows = rolling_windows(tokenizer, texts, model.config.max_position_embeddings)
    words = sum(count_words(document) for document in documents)
    return perplexity_from_nll(total_nll(model, make_batches(windows)), words)


def make_batches(tokens: Tokens) -> list[Batch]:
    """Sequences of equal shape that follow each other, together, at most ``TOKENS_PER_BATCH`` tokens at a time."""
    windows = [_window(sequence) for sequence in tokens]
    windows = [window for window in windows if window.scored > 0]
    if not windows:
        raise ValueError("the corpus is empty: no sequence has two tokens or more, so there is nothing to predict")
    batches = []
    for (length, scored), group in groupby(windows, key=lambda window: (len(window.ids), window.scored)):
        ids = torch.stack([window.ids for window in group])
        batches += [Batch(part, scored) for part in ids.split(max(1, TOKENS_PER_BATCH // length))]
    return batches


def _window(sequence: Window | torch.Tensor) -> Window:
    if isinstance(sequence, Window):
        return sequence
    if isinstance(sequence, str):
        raise ValueError("tokens are wanted, not text: tokenizer(text, return_tensors='pt').input_ids[0]")
    ids = torch.as_tensor(sequence)
    if ids.dim() != 1 or ids.is_floating_point():
        raise ValueError(
            f"tokens have to be (B, N) integers or a list of 1-D integer tensors; "
            f"one sequence is {ids.dtype} of shape {tuple(ids.shape)}"
        )
    return Window(ids.long(), len(ids) - 1)


@torch.no_grad()
def total_nll(model: PreTrainedModel, batches: Sequence[Batch]) -> float:
    """Negative log-likelihood in nats, summed over all scored tokens."""
    decoder, total = model.get_decoder(), 0.0
    with evaluating(model):
        for batch in batches:
            hidden = decoder(input_ids=batch.ids.to(model.device), use_cache=False).last_hidden_state
            total += head_nll(model, hidden, batch)
    return total


@contextmanager
def evaluating(model: PreTrainedModel) -> Iterator[None]:
    """Context in which ``model`` is in evaluation mode."""
    training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(training)


@torch.no_grad()
def head_nll(model: PreTrainedModel, hidden: torch.Tensor, batch: Batch) -> float:
    """Negative log-likelihood of a batch from the decoder's output ``hidden`` (B, N, d).

    The logits exist only as blocks of some tokens by some of the vocabulary: the log-sum-exp is carried along.
    """
    head, config = model.get_output_embeddings(), model.config
    if head.weight.is_meta:
        raise ValueError("the output head is offloaded; load the model with lm_head on a device")
    hidden = hidden[:, -batch.scored - 1 : -1].flatten(0, 1).to(head.weight.device)  # (B·scored, d)
    targets = batch.ids[:, -batch.scored :].flatten().to(hidden.device)
    weights = head.weight.split(VOCABULARY_PER_BLOCK)
    biases = [None] * len(weights) if head.bias is None else head.bias.split(VOCABULARY_PER_BLOCK)
    total = 0.0
    for part, target in zip(hidden.split(TOKENS_PER_BLOCK), targets.split(TOKENS_PER_BLOCK), strict=True):
        peak = torch.full(target.shape, -torch.inf, device=part.device)
        mass, chosen = torch.zeros_like(peak), torch.empty_like(peak)  # sum of exp(logit - peak); logit of the target
        for block, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
            logits = scale_logits(config, F.linear(part, weight, bias)).float()  # (T, V / blocks)
            column = target - block * VOCABULARY_PER_BLOCK
            (inside,) = torch.nonzero((column >= 0) & (column < len(weight)), as_tuple=True)
            chosen[inside] = logits[inside, column[inside]]
            higher = torch.maximum(peak, logits.amax(dim=1))
            mass = mass * (peak - higher).exp() + logits.sub_(higher[:, None]).exp_().sum(dim=1)
            peak = higher
        total += (peak + mass.log() - chosen).double().sum().item()
    return total


def scale_logits(config: PreTrainedConfig, logits: torch.Tensor) -> torch.Tensor:
    """Apply the scalings between head and softmax that some families have."""
    if (scale := getattr(config, "logit_scale", None)) is not None:  # Cohere
        logits = logits * scale
    if (divisor := getattr(config, "logits_scaling", None)) is not None:  # Granite
        logits = logits / divisor
    if (cap := getattr(config, "final_logit_softcapping", None)) is not None:  # Gemma-2
        logits = cap * torch.tanh(logits / cap)
    return logits


def perplexity_from_nll(nll: float, count: int) -> float:
    """``exp(nll / count)``, infinite where that overflows."""
    return math.exp(nll / count) if nll / count < 700 else (math.nan if math.isnan(nll) else math.inf)
