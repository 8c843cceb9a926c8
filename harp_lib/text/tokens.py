"""Token ids as tokenizers return them, brought into the windows that are scored."""

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from numbers import Number
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
    for part in _parts(tokens):
        if isinstance(part, Window):
            ids = _ids(part.ids)
            _check_length(len(ids) - 1, model)  # the last token is not read
            yield Window(ids, part.scored)
            continue
        if isinstance(part, Mapping):
            sequences = _sequences_of_encoding(part, model)
        else:
            sequences = _without_padding(_ids(part), model)
        for ids in sequences:
            _check_length(len(ids), model)
            yield Window(ids, len(ids) - 1)


def _parts(tokens: Any) -> Iterator[Window | Mapping[str, Any] | torch.Tensor]:
    """The windows, encodings and arrays (B, N) in ``tokens``, which may be lists of any depth.

    Lists of numbers of one length are one array, because they may be padded together.
    """
    if isinstance(tokens, Window | Mapping):
        yield tokens
        return
    if isinstance(tokens, str | bytes):
        raise ValueError(f"{tokens[:40]!r} is text, not tokens: call {HOW_TO_CALL}")
    if not hasattr(tokens, "shape"):  # as arrays of torch, NumPy, … have
        try:
            tokens = list(tokens)
        except TypeError:
            raise ValueError(
                f"{type(tokens).__name__} holds no token ids: call {HOW_TO_CALL}"
            ) from None
        lengths = {len(part) if _are_numbers(part) else None for part in tokens}
        is_array = _are_numbers(tokens) or (len(lengths) == 1 and None not in lengths)
        if not is_array:
            for part in tokens:
                yield from _parts(part)
            return
    array = torch.as_tensor(tokens)
    if array.ndim not in (1, 2):
        raise ValueError(
            f"token ids have to be (N,) or (B, N), got {tuple(array.shape)}: call {HOW_TO_CALL}"
        )
    yield torch.atleast_2d(array)


def _sequences_of_encoding(
    encoding: Mapping[str, Any], model: PreTrainedModel
) -> Iterator[torch.Tensor]:
    """Sequences (N,) of what a tokenizer returns: ids, and a mask that says which are padding."""
    if encoding.get("input_ids") is None:
        raise ValueError(f"no input_ids among {', '.join(encoding)}: call {HOW_TO_CALL}")
    if encoding.get("labels") is not None:
        raise ValueError(
            "labels are not read, because every token is scored: leave them out, and give a list "
            "of harp_lib.text.perplexity.Window(ids, scored) where only the last tokens count"
        )
    arrays = [_ids(array) for array in _parts(encoding["input_ids"])]
    if encoding.get("attention_mask") is None:
        for array in arrays:
            yield from _without_padding(array, model)
        return
    rows = [ids for array in arrays for ids in array]
    masks = [mask for array in _parts(encoding["attention_mask"]) for mask in array]
    if [len(ids) for ids in rows] != [len(mask) for mask in masks]:
        raise ValueError("attention_mask has to be of the shape of input_ids")
    if any(mask.is_floating_point() for mask in masks):
        raise ValueError("attention_mask has to be of 0 and 1, not of floating-point numbers")
    for ids, mask in zip(rows, masks, strict=True):
        places = mask.nonzero().flatten()
        if len(places) and places[-1] - places[0] + 1 != len(places):
            raise ValueError(
                "attention_mask hides tokens in the middle of a sequence; only padding at its ends "
                "can be left out"
            )
        yield ids[places.to(ids.device)]


def _are_numbers(part: Any) -> bool:
    """Whether ``part`` is a list of numbers, one at least."""
    is_list = isinstance(part, list) and len(part) > 0
    return is_list and all(isinstance(number, Number) for number in part)


def _ids(values: Any) -> torch.Tensor:
    """Token ids as int64; a ValueError unless they are whole numbers."""
    ids = torch.as_tensor(values)
    if ids.numel() and (ids.is_floating_point() or ids.is_complex() or ids.dtype == torch.bool):
        raise ValueError(f"token ids have to be whole numbers, got {ids.dtype}: call {HOW_TO_CALL}")
    return ids.long()


# Padding without a mask


def _without_padding(ids: torch.Tensor, model: PreTrainedModel) -> list[torch.Tensor]:
    """The rows of ids (B, N) without padding, as far as it can be told from text.

    Rows that end or begin with a pad token are padded where another row does not, or where two
    pad tokens follow each other. A pad token that also ends or begins texts tells nothing, so that
    two of them are a ValueError.
    """
    pad, is_text = _pad_token(model)
    if pad is None or not ids.numel():
        return list(ids)
    is_pad = (ids == pad).long()  # (B, N)
    at_begin = is_pad.cumprod(dim=1)  # (B, N): 1 within a run of pad tokens at this side
    at_end = is_pad.flip(1).cumprod(dim=1).flip(1)
    kept = torch.ones_like(ids, dtype=torch.bool)
    for runs in (at_begin, at_end):
        lengths = runs.sum(dim=1)  # (B,)
        if is_text and lengths.max() > 1:
            raise ValueError(
                f"a sequence has {int(lengths.max())} tokens {pad} at one end, padding or text: "
                f"give what the tokenizer returns, with its attention_mask: {HOW_TO_CALL}"
            )
        is_padding = lengths.max() > 1 or 0 < lengths.count_nonzero() < len(ids)
        if is_padding and not is_text:
            kept &= runs == 0
    return [row[keep] for row, keep in zip(ids, kept, strict=True)]


def _pad_token(model: PreTrainedModel) -> tuple[int | None, bool]:
    """The pad token of a model, and whether it also ends or begins texts."""
    config = model.config.get_text_config()
    pad = getattr(config, "pad_token_id", None)
    if pad is None:
        return None, False
    text_tokens = []
    for name in ("bos_token_id", "eos_token_id"):
        token = getattr(config, name, None)
        text_tokens += token if isinstance(token, (list, tuple)) else [token]
    return pad, pad in text_tokens


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
