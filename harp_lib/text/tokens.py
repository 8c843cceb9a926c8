"""Token ids as tokenizers return them, brought into the windows that are scored."""

import math
import reprlib
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from numbers import Integral
from typing import Any, NamedTuple

import torch
from transformers import PreTrainedConfig, PreTrainedModel

from harp_lib.pruning.architecture import check_unwrapped

TOKENS_PER_BATCH = 4096  # in one forward pass of the decoder
HOW_TO_CALL = "perplexity(model, [tokenizer(text) for text in texts])"


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


Tokens = torch.Tensor | Mapping[str, Any] | Sequence[Any]
"""What :func:`harp_lib.perplexity` takes."""


def make_batches(model: PreTrainedModel, tokens: Tokens) -> list[Batch]:
    """Join neighbouring sequences of equal shape, at most ``TOKENS_PER_BATCH`` tokens at a time.

    Parameters
    ----------
    model : PreTrainedModel
        The model that is to read them.
    tokens : Tensor, mapping or sequence
        As in :func:`harp_lib.perplexity`.

    Raises
    ------
    ValueError
        If there is no token to predict, if a sequence is longer than the context of the model or
        holds ids that it has no embeddings for, if ``tokens`` are no tokens, or ``model`` is none.
    """
    check_unwrapped(model)
    windows = []
    for window in _windows(tokens, model):
        if window.scored > 0:
            _check_ids(window, model)
            windows.append(window)
    if not windows:
        raise ValueError(
            "the corpus is empty: no sequence has two tokens or more, "
            "so there is nothing to predict"
        )
    batches = []
    for (length, scored), group in groupby(
        windows, lambda window: (len(window.ids), window.scored)
    ):
        ids = torch.stack([window.ids for window in group])  # (B, N)
        sequences_per_batch = max(1, TOKENS_PER_BATCH // length)
        batches += [Batch(part, scored) for part in ids.split(sequences_per_batch)]
    return batches


def context_length(config: PreTrainedConfig) -> int | None:
    """Number of tokens that a model reads at most; None for families without such a number."""
    config = config.get_text_config()
    length = getattr(config, "max_position_embeddings", None)
    if length is None or length < 1:  # XLNet has -1
        return None
    rope = getattr(config, "rope_parameters", None) or {}
    if rope.get("rope_type") in ("linear", "dynamic", "yarn"):
        original = rope.get("original_max_position_embeddings") or length
        return max(length, int(original * (rope.get("factor") or 1)))
    return length


def read_ids(model: PreTrainedModel, batch: Batch) -> torch.Tensor:
    """The ids of a batch that the model reads, (B, N) or (B, N - 1), on its device.

    A window may be a token longer than the context, because its last token is only predicted.
    """
    return batch.ids[:, : context_length(model.config)].to(model.device)


# What people pass


def _windows(tokens: Any, model: PreTrainedModel) -> Iterator[Window]:
    """The sequences of ``tokens`` as windows, without padding."""
    parts = list(_parts(tokens, model))
    unmasked = [part for part in parts if not isinstance(part, Window)]
    texts = iter(_without_padding(unmasked, model))
    for part in parts:
        if isinstance(part, Window):
            yield part
        else:
            yield _text(next(texts), model)


def _parts(tokens: Any, model: PreTrainedModel) -> Iterator[Window | torch.Tensor]:
    """Windows, and sequences (N,) that may be padded, in lists of any depth."""
    if isinstance(tokens, Window):
        [ids] = _sequences(tokens.ids)
        _check_length(len(ids) - 1, model)  # the last token is not read
        yield Window(ids, tokens.scored)
    elif isinstance(tokens, Mapping):
        yield from _parts_of_encoding(tokens, model)
    elif isinstance(tokens, list | tuple) and not _are_numbers(tokens):
        for part in tokens:
            yield from _parts(part, model)
    else:
        yield from _sequences(tokens)


def _parts_of_encoding(
    encoding: Mapping[str, Any], model: PreTrainedModel
) -> Iterator[Window | torch.Tensor]:
    """Sequences of what a tokenizer returns: windows where a mask says what padding is."""
    if encoding.get("input_ids") is None or encoding.get("labels") is not None:
        raise ValueError(
            f"an encoding has to hold input_ids, and no labels, because every token is scored; got "
            f"{', '.join(encoding)}: call {HOW_TO_CALL}, or give a list of Window(ids, scored)"
        )
    sequences = list(_parts(encoding["input_ids"], model))
    if encoding.get("attention_mask") is None:
        yield from sequences
        return
    masks = list(_parts(encoding["attention_mask"], model))
    if [len(ids) for ids in sequences] != [len(mask) for mask in masks]:
        raise ValueError("attention_mask has to be of the shape of input_ids")
    for ids, mask in zip(sequences, masks, strict=True):
        places = mask.nonzero().flatten()
        if len(places) and places[-1] - places[0] + 1 != len(places):
            raise ValueError(
                "attention_mask hides tokens in the middle of a sequence; only padding at its ends "
                "can be left out"
            )
        yield _text(ids[places.to(ids.device)], model)


def _text(ids: torch.Tensor, model: PreTrainedModel) -> Window:
    """A sequence (N,) of which every token but the first is scored."""
    _check_length(len(ids), model)
    return Window(ids, len(ids) - 1)


def _are_numbers(tokens: Sequence[Any]) -> bool:
    return all(isinstance(number, Integral) for number in tokens)


def _sequences(tokens: Any) -> Iterator[torch.Tensor]:
    """The sequences (N,) of an array (N,) or (B, N), or of a list of numbers, as int64."""
    if isinstance(tokens, list | tuple):
        tokens = torch.tensor(tokens, dtype=torch.int64)
    is_array = hasattr(tokens, "shape") and len(tokens.shape) in (1, 2)
    if is_array:
        tokens = torch.as_tensor(tokens)
        is_array = not (tokens.is_floating_point() or tokens.is_complex())
    if not is_array or tokens.dtype == torch.bool:
        raise ValueError(
            f"{reprlib.repr(tokens)} is not whole numbers (N,) or (B, N), as token ids and their "
            f"masks are: call {HOW_TO_CALL}"
        )
    yield from torch.atleast_2d(tokens).long()


# Padding without a mask


def _without_padding(sequences: list[torch.Tensor], model: PreTrainedModel) -> list[torch.Tensor]:
    """The sequences (N,) without padding, as far as it can be told from text.

    Pad tokens at an end are padding where a sequence has two of them, or where another has none. A
    pad token that also ends or begins texts tells nothing, so that two of them are a ValueError.
    """
    config = model.config.get_text_config()
    pad = getattr(config, "pad_token_id", None)
    if pad is None:
        return sequences
    tokens_of_texts = []
    for name in ("bos_token_id", "eos_token_id"):
        token = getattr(config, name, None)
        tokens_of_texts += token if isinstance(token, list | tuple) else [token]
    is_text = pad in tokens_of_texts
    for _ in ("the end", "the beginning"):
        sequences = [ids.flip(0) for ids in sequences]
        runs = [int((ids == pad).cumprod(0).sum()) for ids in sequences]
        if is_text and max(runs, default=0) > 1:
            raise ValueError(
                f"a sequence has {max(runs)} tokens {pad} at one end, padding or text: "
                f"give what the tokenizer returns, with its attention_mask: {HOW_TO_CALL}"
            )
        if not is_text and (0 in runs or max(runs, default=0) > 1):
            sequences = [ids[run:] for ids, run in zip(sequences, runs, strict=True)]
    return sequences


# What a model can read


def _check_length(num_tokens: int, model: PreTrainedModel) -> None:
    """Raise a ValueError for a sequence that is longer than the context of the model."""
    context = context_length(model.config)
    if context is not None and num_tokens > context:
        raise ValueError(
            f"a text of {num_tokens} tokens is longer than the context of {context} tokens of "
            f"{type(model).__name__}: cut it, as ids[:, :{context}], or into the windows of "
            f"harp_lib.text.perplexity.rolling_windows(tokenizer, texts, {context})"
        )


def _check_ids(window: Window, model: PreTrainedModel) -> None:
    """Raise a ValueError for ids that the model has no embeddings for, or that nothing predicts."""
    ids, scored = window
    if scored >= len(ids):
        raise ValueError(
            f"a window of {len(ids)} tokens cannot score {scored}: nothing predicts the first"
        )
    num_embeddings = getattr(model.get_input_embeddings(), "num_embeddings", math.inf)
    for token in (int(ids.min()), int(ids.max())):
        if not 0 <= token < num_embeddings:
            raise ValueError(
                f"token {token} is none of the {num_embeddings} of {type(model).__name__}: the ids "
                "are of another model's tokenizer, or are labels"
            )
