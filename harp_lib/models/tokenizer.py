"""Where a text begins, and what a tokenizer is known by."""

import hashlib
import json

from transformers import PreTrainedTokenizerBase


def first_token_id(tokenizer: PreTrainedTokenizerBase) -> int | None:
    """The token after which a text begins that is scored: BOS or, where there is none, EOS.

    It is what lm-eval puts there (``prefix_token_id``).
    """
    if tokenizer.bos_token_id is None:
        return tokenizer.eos_token_id
    return tokenizer.bos_token_id


def adds_bos(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Whether the tokenizer itself puts a BOS token before a text."""
    bos = tokenizer.bos_token_id
    return bos is not None and tokenizer("a").input_ids[:1] == [bos]


def tokenizer_digest(tokenizer: PreTrainedTokenizerBase) -> str:
    """Sixteen hexadecimal digits that stand for how text becomes tokens, and for special tokens."""
    special = {name: str(token) for name, token in tokenizer.special_tokens_map.items()}
    state = {"special": special, "adds": tokenizer("a").input_ids}
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:  # written in Python: its words, and what it makes of ordinary text
        state["vocabulary"] = tokenizer.get_vocab()
        state["sample"] = tokenizer(" It's naïve:\n\t  12,5 %").input_ids
    else:
        state["backend"] = json.loads(backend.to_str())
        for setting in ("truncation", "padding"):  # of the last call, until the next one
            state["backend"].pop(setting, None)
    return hashlib.sha256(json.dumps(state, sort_keys=True).encode()).hexdigest()[:16]
