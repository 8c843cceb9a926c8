"""The tokenizer in a GGUF file, as llama.cpp reads it."""

import json
from pathlib import Path
from typing import Any

from gguf import GGUFWriter, SpecialVocab, TokenType
from transformers import PreTrainedTokenizerBase

from harp_lib.export.gguf_tokens import LLAMA3_WORDS, TAKES_WHOLE_WORDS


def write_vocabulary(
    writer: GGUFWriter, tokenizer: PreTrainedTokenizerBase, size: int, folder: Path
) -> None:
    """Write ``tokenizer`` with room for ``size`` tokens; ``folder`` is for files in between.

    A ValueError if a file cannot hold a tokenizer of this kind.
    """
    state = _backend_state(tokenizer)
    _check_kind(state)
    num_tokens = 1 + max(tokenizer.get_vocab().values())
    if num_tokens > size:
        raise ValueError(
            f"the tokenizer has {num_tokens} tokens, but the model has embeddings for {size}: "
            f"model.resize_token_embeddings({num_tokens}) before pruning makes room for tokens "
            "that were added"
        )
    _add_tokens(writer, tokenizer, state, size)
    special = _special_vocabulary(tokenizer, state, folder / "tokenizer")
    special.add_to_gguf(writer, quiet=True)


def _backend_state(tokenizer: PreTrainedTokenizerBase) -> dict[str, Any]:
    """The content of ``tokenizer.json``, or a ValueError if there is no such file."""
    if tokenizer is None:
        raise ValueError("a GGUF file holds the tokenizer too: give the one of the model")
    if not tokenizer.is_fast:
        raise ValueError(
            f"{type(tokenizer).__name__} is written in Python and cannot be written as GGUF: load "
            "the tokenizer with use_fast=True"
        )
    return json.loads(tokenizer.backend_tokenizer.to_str())


def _check_kind(state: dict[str, Any]) -> None:
    """Raise a ValueError if a tokenizer is no BPE, or if it changes text in a way of its own."""
    kind = state["model"]["type"]
    if kind != "BPE":
        raise ValueError(f"a tokenizer of type {kind} cannot be written as GGUF; BPE can")
    steps = _steps(state["normalizer"], "normalizers")
    if _is_sentencepiece(state):
        steps = [*steps, *_steps(state["pre_tokenizer"], "pretokenizers")]
        steps = [step for step in steps if not _is_about_blanks(step)]
    if steps:
        raise ValueError(
            f"a tokenizer that changes or splits text by {steps} cannot be written as GGUF"
        )


def _is_about_blanks(step: dict[str, Any]) -> bool:
    """Whether a step changes only blanks, which any text of several words shows."""
    return step["type"] in ("Prepend", "Metaspace") or step.get("pattern") == {"String": " "}


def _steps(part: dict[str, Any] | None, name: str) -> list[dict[str, Any]]:
    """The steps of a normalizer or pre-tokenizer, which has several of them under ``name``."""
    return part.get(name, [part]) if part else []


def _add_tokens(
    writer: GGUFWriter, tokenizer: PreTrainedTokenizerBase, state: dict[str, Any], size: int
) -> None:
    """Write ``size`` tokens and their types."""
    bpe = state["model"]
    is_sentencepiece = _is_sentencepiece(state)
    tokens = [f"[PAD{index}]" for index in range(size)]
    types = [TokenType.UNUSED] * size
    for token, index in bpe["vocab"].items():
        tokens[index] = token
        is_byte = is_sentencepiece and token.startswith("<0x")
        types[index] = TokenType.BYTE if is_byte else TokenType.NORMAL
    for added in state["added_tokens"]:
        index = added["id"]
        tokens[index] = added["content"]
        types[index] = TokenType.CONTROL if added["special"] else TokenType.USER_DEFINED
    if is_sentencepiece:
        if tokenizer.unk_token_id is not None:
            types[tokenizer.unk_token_id] = TokenType.UNKNOWN
        writer.add_tokenizer_model("llama")
        writer.add_token_scores(_token_scores(tokens, bpe["merges"]))
        writer.add_add_space_prefix(_adds_space(state))
    else:
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre(_splitting(state))
    writer.add_token_list(tokens)
    writer.add_token_types(types)


def _special_vocabulary(
    tokenizer: PreTrainedTokenizerBase, state: dict[str, Any], folder: Path
) -> SpecialVocab:
    """Ids of special tokens, chat template and byte-level merges, as llama.cpp reads them.

    The tokenizer is saved to ``folder``, from which the ``gguf`` package reads.
    """
    tokenizer.save_pretrained(folder)
    special = SpecialVocab(
        folder,
        load_merges=not _is_sentencepiece(state),
        special_token_types=("bos", "eos", "pad"),
    )
    # What the tokenizer does counts, whatever its files say.
    ids = tokenizer("a").input_ids
    special.add_special_token = {
        "bos": tokenizer.bos_token_id in ids[:1],
        "eos": tokenizer.eos_token_id in ids[-1:],
    }
    return special


def _is_sentencepiece(state: dict[str, Any]) -> bool:
    """Whether a BPE tokenizer falls back to tokens for single bytes, as SentencePiece does."""
    byte_tokens = {f"<0x{byte:02X}>" for byte in range(256)}
    return state["model"]["byte_fallback"] and byte_tokens <= state["model"]["vocab"].keys()


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


def _splitting(state: dict[str, Any]) -> str:
    """llama.cpp's name for the way in which text is split into words, and words into tokens."""
    steps = _steps(state["pre_tokenizer"], "pretokenizers")
    kinds = [step["type"] for step in steps]
    name = None
    if kinds == ["ByteLevel"] and steps[0]["use_regex"]:
        name = "gpt-2"
    elif kinds == ["Digits", "ByteLevel"] and steps[0]["individual_digits"]:
        name = "smollm"
    elif kinds == ["Split", "ByteLevel"] and steps[0]["pattern"].get("Regex") == LLAMA3_WORDS:
        name = "llama-bpe"
    takes_whole_words = state["model"]["ignore_merges"]
    if name is None or takes_whole_words != (name in TAKES_WHOLE_WORDS):
        raise ValueError(
            f"a tokenizer that splits words by {kinds or 'nothing'}, with ignore_merges "
            f"{takes_whole_words}, cannot be written as GGUF"
        )
    return name
