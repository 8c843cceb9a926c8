"""Whether the vocabulary in a GGUF file gives the tokens that the tokenizer gives.

A tokenizer may split texts and add tokens in ways that a file has no place for. So both read the
same texts, in which each step of a tokenizer makes a difference.
"""

from collections.abc import Callable, Iterator

from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerBase

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


def check_tokens(encode: Callable[[str], list[int]], tokenizer: PreTrainedTokenizerBase) -> None:
    """Raise a ValueError, with a short example, if the file gives other tokens than ``tokenizer``.

    Parameters
    ----------
    encode : Callable[[str], list[int]]
        Gives the ids of a text by the vocabulary in the file.
    tokenizer : PreTrainedTokenizerBase
        The tokenizer that it was written from.

    Raises
    ------
    ValueError
        With the shortest text that has other tokens, and what the tokenizer is made of.
    """
    texts = sorted({*PHRASES, *_tokens(tokenizer), *_added_tokens(tokenizer)}, key=len)
    for text, ids in zip(texts, tokenizer(texts).input_ids, strict=True):
        file_ids = encode(text)
        if file_ids != ids:
            raise ValueError(
                f"this tokenizer cannot be written as GGUF: llama.cpp would read {text!r} as "
                f"{_shown(file_ids, tokenizer)}, the tokenizer reads {_shown(ids, tokenizer)}. It "
                f"is made of {_parts(tokenizer.backend_tokenizer)}"
            )


def _shown(ids: list[int], tokenizer: PreTrainedTokenizerBase) -> str:
    """Some tokens, for a message."""
    tokens = [str(token) for token in tokenizer.convert_ids_to_tokens(ids[:12]) if token]
    return " ".join(tokens) or "no tokens"


def _parts(backend: Tokenizer) -> str:
    """What a tokenizer is made of, and what helps against a known difference."""
    parts = (
        f"normalizer {backend.normalizer}, pre_tokenizer {backend.pre_tokenizer}, "
        f"post_processor {backend.post_processor}, model {backend.model}"
    )
    if "Metaspace" in str(backend.pre_tokenizer):
        parts += (
            ". llama.cpp puts a blank before the text and after each special token, even before "
            "other blanks, as the tokenizer.json of Llama 2 and Mistral does: "
            "PreTrainedTokenizerFast.from_pretrained(…) reads it as it is"
        )
    return parts


def _tokens(tokenizer: PreTrainedTokenizerBase) -> Iterator[str]:
    """The text of tokens from all over the vocabulary, as far as it is text."""
    ids = sorted(tokenizer.get_vocab().values())
    for index in ids[:: len(ids) // NUM_TOKENS + 1]:
        text = tokenizer.backend_tokenizer.decode([index], skip_special_tokens=False)
        if "\ufffd" not in text:
            yield text
            yield f" {text}"


def _added_tokens(tokenizer: PreTrainedTokenizerBase) -> Iterator[str]:
    """Added tokens within texts."""
    added = list(tokenizer.get_added_vocab())
    for token in added[:: len(added) // NUM_ADDED + 1]:
        yield from (f"a{token}b", f"a {token} b", f"a  {token}\n b", f" {token}{token} 1")
