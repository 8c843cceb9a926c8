"""How well a model predicts a text: windows, negative log-likelihood, perplexity."""

import inspect
import math
import re
from collections.abc import Iterable, Iterator, Sequence

import torch
import torch.nn.functional as F
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from harp_lib.models.tokenizer import first_token_id
from harp_lib.text.corpora import detokenize
from harp_lib.text.evaluating import evaluating
from harp_lib.text.head import head_logits, is_decoder_and_head
from harp_lib.text.tokens import Batch, Tokens, Window, context_length, make_batches, read_ids

LOGITS_PER_BLOCK = 2**24  # held at a time: 64 MiB in float32
DEFAULT_CONTEXT = 2048  # tokens of a window for a family without a context length, as in lm-eval


def rolling_windows(
    tokenizer: PreTrainedTokenizerBase, texts: Iterable[str], max_length: int
) -> list[Window]:
    """Cut texts into windows as lm-eval's rolling log-likelihood does.

    Every token is predicted once. The last window of a text overlaps the one before, which gives
    its tokens context. A text begins after **one** BOS (or EOS) token, whether or not the tokenizer
    adds its own; lm-eval 0.4.13 would have two where it does.
    """
    from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

    if tokenizer is None:
        raise ValueError("texts are cut by a tokenizer: give the one of the model")
    prefix = first_token_id(tokenizer)
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
    tokens : Tensor, mapping or sequence
        Token ids (N,) or (B, N) of any integer type, what a tokenizer returns, or a list of these
        or of :class:`Window`. Every token of a sequence but the first is predicted, and the last
        ``scored`` tokens of a window. Padding is left out: what an ``attention_mask`` hides, or,
        without one, the model's pad tokens at the ends.

    Raises
    ------
    ValueError
        If there is no token to predict, a sequence is longer than the model's context, ids are
        beyond its vocabulary, or ``tokens`` are no tokens.

    Notes
    -----
    It is ``exp(model(ids, labels=ids).loss)`` for a tensor, except for families that do not shift
    the labels (Bart and its kin) or add other losses.
    """
    batches = make_batches(model, tokens)
    num_predicted_tokens = sum(batch.num_scored for batch in batches)
    return perplexity_from_nll(total_nll(model, batches), num_predicted_tokens)


def word_perplexity(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, documents: Sequence[str]
) -> float:
    """Word perplexity as lm-eval's ``wikitext`` task defines it, which is what the paper reports.

    Each document (a raw page) is detokenised as the task does, scored in rolling windows of the
    model's context length, and the summed negative log-likelihood is divided by the words of the
    documents as they came. Families without a context length read 2,048 tokens at a time.
    """
    if isinstance(documents, str):
        documents = [documents]
    context = context_length(model.config) or DEFAULT_CONTEXT
    pages = [detokenize(document) for document in documents]
    windows = rolling_windows(tokenizer, pages, context)
    num_words = sum(len(re.split(r"\s+", document)) for document in documents)
    return perplexity_from_nll(total_nll(model, make_batches(model, windows)), num_words)


@torch.no_grad()
def total_nll(model: PreTrainedModel, batches: Sequence[Batch]) -> float:
    """Negative log-likelihood in nats, summed over all scored tokens."""
    nll = 0.0
    with evaluating(model):
        has_parts = is_decoder_and_head(model)
        for batch in batches:
            if has_parts:
                output = model.get_decoder()(input_ids=read_ids(model, batch), use_cache=False)
                nll += head_nll(model, output.last_hidden_state, batch)
            else:
                nll += _own_nll(model, batch)
    return nll


@torch.no_grad()
def head_nll(model: PreTrainedModel, hidden: torch.Tensor, batch: Batch) -> float:
    """Negative log-likelihood in nats of a batch, from the decoder's output (B, N, d).

    It is the model's own if :func:`harp_lib.text.head.is_decoder_and_head` holds.
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
        logits = _before_scored(_own_logits(model, read_ids(model, part)), part)  # (B·scored, V)
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
        return model(input_ids=ids, **options).logits
    except (TypeError, ValueError, AttributeError) as error:
        raise ValueError(
            f"{type(model).__name__} is not supported: its forward pass cannot be called with "
            f"input_ids alone ({error})"
        ) from error


def _before_scored(values: torch.Tensor, batch: Batch) -> torch.Tensor:
    """Values (B·scored, …) of the tokens that predict the scored ones, from values (B, N, …)."""
    first = batch.ids.shape[1] - batch.scored - 1  # it predicts the first of the scored tokens
    return values[:, first : first + batch.scored].flatten(0, 1)


def _summed_nll(logits: torch.Tensor, targets: torch.Tensor) -> float:
    """Negative log-likelihood in nats of tokens (T,) under logits (T, V)."""
    token_nlls = F.cross_entropy(logits, targets, reduction="none")  # (T,)
    return token_nlls.double().sum().item()


def perplexity_from_nll(nll: float, count: int) -> float:
    """``exp(nll / count)``, infinite where that overflows."""
    mean = nll / count
    if mean >= 700:
        return math.inf
    return math.exp(mean)
