"""The tokenizer in a GGUF file, as llama.cpp reads it."""

import json
from pathlib import Path
from typing import Any

from gguf import GGUFWriter, SpecialVocab, TokenType
from transformers import PreTrainedTokenizerBase

from harp_lib.models.gguf_tokens import LLAMA3_WORDS


def write_vocabulary(
    writer: GGUFWriter, tokenizer: PreTrainedTokenizerBase, size: int, folder: Path
) -> None:
    """Write ``tokenizer`` with room for ``size`` tokens; ``folder`` is for files in between.

    A ValueError if a file cannot hold a tokenizer of this kind.
    """
    _check_kind(tokenizer, size)
    _add_tokens(writer, tokenizer, size)
    _special_vocabulary(tokenizer, folder / "tokenizer").add_to_gguf(writer, quiet=True)


def _check_kind(tokenizer: PreTrainedTokenizerBase, size: int) -> None:
    """Raise a ValueError if ``tokenizer`` is of another kind, or has more than ``size`` tokens."""
    if tokenizer is None:
        raise ValueError("a GGUF file holds the tokenizer too: give the one of the model")
    if not tokenizer.is_fast:
        raise ValueError(
            f"{type(tokenizer).__name__} is written in Python and cannot be written as GGUF: load "
            "the tokenizer with use_fast=True"
        )
    kind = _backend_state(tokenizer)["model"]["type"]
    if kind != "BPE":
        raise ValueError(f"a tokenizer of type {kind} cannot be written as GGUF; BPE can")
    num_tokens = 1 + max(tokenizer.get_vocab().values())
    if num_tokens > size:
        raise ValueError(
            f"the tokenizer has {num_tokens} tokens, but the model has embeddings for {size}: "
            f"model.resize_token_embeddings({num_tokens}) before pruning makes room for tokens "
            "that were added"
        )


def _add_tokens(writer: GGUFWriter, tokenizer: PreTrainedTokenizerBase, size: int) -> None:
    """Write ``size`` tokens and their types."""
    state = _backend_state(tokenizer)
    bpe = state["model"]
    tokens = [f"[PAD{index}]" for index in range(size)]
    types = [TokenType.UNUSED] * size
    for token, index in bpe["vocab"].items():
        tokens[index] = token
        is_byte = _is_sentencepiece(state) and token.startswith("<0x")
        types[index] = TokenType.BYTE if is_byte else TokenType.NORMAL
    for added in state["added_tokens"]:
        index = added["id"]
        tokens[index] = added["content"]
        types[index] = TokenType.CONTROL if added["special"] else TokenType.USER_DEFINED
    if _is_sentencepiece(state):
        if tokenizer.unk_token_id is not None:
            types[tokenizer.unk_token_id] = TokenType.UNKNOWN
        writer.add_tokenizer_model("llama")
        writer.add_token_scores(_token_scores(tokens, bpe["merges"]))
        writer.add_add_space_prefix(_adds_space(state))
    else:
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre(_splitting(state["pre_tokenizer"]))
    writer.add_token_list(tokens)
    writer.add_token_types(types)


def _special_vocabulary(tokenizer: PreTrainedTokenizerBase, folder: Path) -> SpecialVocab:
    """Ids of special tokens, chat template and byte-level merges, as llama.cpp reads them.

    The tokenizer is saved to ``folder``, from which the ``gguf`` package reads.
    """
    tokenizer.save_pretrained(folder)
    special = SpecialVocab(
        folder,
        load_merges=not _is_sentencepiece(_backend_state(tokenizer)),
        special_token_types=("bos", "eos", "pad"),
    )
    # What the tokenizer does counts, whatever its files say.
    ids = tokenizer("a").input_ids
    special.add_special_token = {
        "bos": tokenizer.bos_token_id in ids[:1],
        "eos": tokenizer.eos_token_id in ids[-1:],
    }
    return special


def _backend_state(tokenizer: PreTrainedTokenizerBase) -> dict[str, Any]:
    """The content of ``tokenizer.json``."""
    return json.loads(tokenizer.backend_tokenizer.to_str())


def _is_sentencepiece(state: dict[str, Any]) -> bool:
    """Whether a BPE tokenizer falls back to tokens for single bytes, as SentencePiece does."""
    return bool(state["model"].get("byte_fallback"))


def _token_scores(tokens: list[str], merges: list[list[str]]) -> list[float]:
    """A score for each token, higher the earlier it is merged: SentencePiece's form of merges."""
    ranks: dict[str, int] = {}
    for rank, merge in enumerate(merges):
        ranks.setdefault("".join(merge).replace(" ", ""), rank)
    return [-float(ranks.get(token, len(merges))) for token in tokens]


def _adds_space(state: dict[str, Any]) -> bool:
    """Whether the tokenizer puts a space before the text."""
    steps = json.dumps([state["normalizer"], state["pre_tokenizer"]])
    return any(mark in steps for mark in ("Prepend", '"always"', '"first"'))


def _splitting(pre_tokenizer: dict[str, Any] | None) -> str:
    """llama.cpp's name for the way in which text is split into words."""
    steps = []
    if pre_tokenizer:
        steps = pre_tokenizer.get("pretokenizers", [pre_tokenizer])
    kinds = [step["type"] for step in steps]
    if kinds == ["ByteLevel"] and steps[0]["use_regex"]:
        return "gpt-2"
    if kinds == ["Digits", "ByteLevel"] and steps[0]["individual_digits"]:
        return "smollm"
    if kinds == ["Split", "ByteLevel"] and steps[0]["pattern"].get("Regex") == LLAMA3_WORDS:
        return "llama-bpe"
    raise ValueError(
        f"a tokenizer that splits words by {kinds or 'nothing'} cannot be written as GGUF"
    )
