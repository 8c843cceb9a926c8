"""Whether the vocabulary in a GGUF file gives the tokens that the tokenizer gives.

A tokenizer may normalize, split and add in ways that a file has no place for. So both read the same
texts, in which each step of a tokenizer makes a difference.
"""

import json
import unicodedata
from collections.abc import Iterator
from typing import Any

from transformers import PreTrainedTokenizerBase

from harp_lib.models.gguf_tokens import FileTokenizer

PHRASES = (
    "",
    "a",
    " a",
    "a ",
    "\na",
    "a\n\n",
    "The quick brown fox isn't here; it's WE'LL, I'M, You'Re and they'd've.",
    " one  two   three    four     five\tsix\t\tseven \t eight\r\nnine\r\n\r\nten \n \n eleven  ",
    "non\u00a0breaking\u2003and\u200bzero\u3000width\u0085next\u2028line\ufeff",
    "0 12 345 6789 12345678901 3.14 1,000,000 -7 1e-5 0x1F A1B2 ½ ² Ⅷ ٣",
    "2024-02-29 12:30 50% $9.99",
    "éàü e\u0301a\u0300u\u0308 Å A\u030a ﬁ ﬀ Ａｂ１ ① ™ ﷺ İ ı ß ẞ Σς Ǆ ñ n\u0303",
    "각 \u1100\u1161\u11a8 日本語テキスト。 中文，标点！ 한국어 ไทย",
    "العربية עברית हिन्दी Ελληνικά Русский",
    "“quoted” ‘single’ «guillemets» ``ticks'' - – — … ... !!! ?!?! ([{<>}]) //\\\\ __a__ **b** ~~",
    "😀 👩‍👩‍👧 🇩🇪 👍🏽 ❤️ 𝔘𝔫𝔦 𐍈 𠜎 \U000f0000 \ue000",
    "▁ ▁▁ a▁b Ġ Ċ ĠĠ <0x41> ##ing </w> @@ [UNK] <unk>",
    "control \x00 \x01 \x07 \x1b \x7f \x80 \u00ad soft\u00adhyphen",
    "camelCaseWord snake_case_word UPPERCASE MiXeD",
    "a" * 50,
    "antidisestablishmentarianism" * 8,
    "def f(x):\n    if x == 1:\n\t\treturn {'a': [1, 2]}  # comment\n",
    "https://example.org/a?b=c&d=%20 name@example.org @user #tag <b>bold</b> &amp; a/b C:\\d e.g.",
)
NUM_TOKENS = 20_000  # tokens of the vocabulary that are read as texts, at most
NUM_ADDED = 300  # added tokens that are read within texts, at most
NUM_CHARACTERS = 32  # characters in each of the texts of all characters below U+3000


def check_tokens(written: FileTokenizer, tokenizer: PreTrainedTokenizerBase) -> None:
    """Raise a ValueError, with a short example, if the file gives other tokens than ``tokenizer``.

    Parameters
    ----------
    written : FileTokenizer
        The tokenizer that is in the file.
    tokenizer : PreTrainedTokenizerBase
        The tokenizer that it was written from.

    Raises
    ------
    ValueError
        With the shortest text that has other tokens, and what the tokenizer is made of.
    """
    state = json.loads(tokenizer.backend_tokenizer.to_str())
    if "Regex" in json.dumps(state["normalizer"]):
        raise ValueError(
            "a tokenizer that rewrites text by a regular expression cannot be written as GGUF: "
            f"{_parts(state)}"
        )
    texts = sorted({*PHRASES, *_characters(), *_tokens(tokenizer), *_pipeline(state)}, key=len)
    for text, ids in zip(texts, tokenizer(texts).input_ids, strict=True):
        file_ids = written.encode(text)
        if file_ids != ids:
            raise ValueError(
                f"this tokenizer cannot be written as GGUF: llama.cpp would read {text!r} as "
                f"{_shown(file_ids, tokenizer)}, the tokenizer reads {_shown(ids, tokenizer)}. It "
                f"is made of {_parts(state)}{_way_out(state)}"
            )


def _shown(ids: list[int], tokenizer: PreTrainedTokenizerBase) -> str:
    """Some tokens, for a message."""
    tokens = [str(token) for token in tokenizer.convert_ids_to_tokens(ids[:12]) if token]
    return " ".join(tokens) or "no tokens"


def _parts(state: dict[str, Any]) -> str:
    """What a tokenizer is made of, in a line."""
    parts = []
    for name in ("normalizer", "pre_tokenizer", "post_processor"):
        parts.append(f"{name} {json.dumps(state[name], ensure_ascii=False)[:200]}")
    model = {
        name: value for name, value in state["model"].items() if isinstance(value, str | float)
    }
    parts.append(f"model {json.dumps(model)}")
    flags = ("lstrip", "rstrip", "single_word", "normalized")
    flagged = [token for token in state["added_tokens"] if any(token[flag] for flag in flags)]
    if flagged:
        parts.append(f"{len(flagged)} added tokens such as {json.dumps(flagged[0])}")
    return ", ".join(parts)


def _way_out(state: dict[str, Any]) -> str:
    """What helps against a known difference, as the end of a message."""
    if "Metaspace" in json.dumps(state["pre_tokenizer"]):
        return (
            ". llama.cpp puts a blank before the text and after each special token, even before "
            "other blanks, as the tokenizer.json of Llama 2 and Mistral does: "
            "PreTrainedTokenizerFast.from_pretrained(…) reads it as it is"
        )
    return ""


def _characters() -> Iterator[str]:
    """All characters below U+3000, which holds most that normalizers change."""
    letters = [chr(code) for code in range(1, 0x3000) if unicodedata.category(chr(code)) != "Cn"]
    for start in range(0, len(letters), NUM_CHARACTERS):
        yield "".join(letters[start : start + NUM_CHARACTERS])


def _tokens(tokenizer: PreTrainedTokenizerBase) -> Iterator[str]:
    """The text of tokens from all over the vocabulary, as far as it is text."""
    ids = sorted(tokenizer.get_vocab().values())
    for index in ids[:: len(ids) // NUM_TOKENS + 1]:
        text = tokenizer.backend_tokenizer.decode([index], skip_special_tokens=False)
        if "\ufffd" not in text:
            yield text
            yield f" {text}"


def _pipeline(state: dict[str, Any]) -> Iterator[str]:
    """Added tokens, and strings that the normalizer and the pre-tokenizer look for."""
    special = [token["content"] for token in state["added_tokens"]]
    step = len(special) // NUM_ADDED + 1
    literals = [*_strings(state["normalizer"]), *_strings(state["pre_tokenizer"])]
    for text in (*special[::step], *literals):
        yield from (f"a{text}b", f"a {text} b", f"a  {text}\n b", f" {text}{text} ", f"{text}1")
        yield from (text.lower(), text.upper())


def _strings(step: Any) -> Iterator[str]:
    """All strings within a part of a pipeline."""
    if isinstance(step, str):
        yield step
    elif isinstance(step, dict):
        for value in step.values():
            yield from _strings(value)
    elif isinstance(step, list):
        for value in step:
            yield from _strings(value)
