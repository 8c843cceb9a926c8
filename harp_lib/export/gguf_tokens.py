"""Whether llama.cpp makes the same tokens of a text, by the vocabulary in a GGUF file.

``_file_tokenizer`` does what ``src/llama-vocab.cpp`` does. First the text is cut at special
tokens. Then the rest is split by byte-level BPE (``gpt2``), or by the scores of SentencePiece
(``llama``). The package ``tokenizers`` splits in the same way for byte-level BPE alone: its added
tokens are looked for from left to right, and its SentencePiece joins no letters that are not tokens
themselves.
"""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

from gguf import GGUFReader, TokenType
from tokenizers import Regex, Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerBase

LLAMA3_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
GPT2_WORDS = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
WORDS = {  # regular expressions that split a text one after the other, by llama.cpp's name
    "gpt-2": (GPT2_WORDS,),
    "smollm": (r"\p{N}", GPT2_WORDS),
    "llama-bpe": (LLAMA3_WORDS,),
}
TAKES_WHOLE_WORDS = ("llama-bpe",)  # a word that is a token is taken without looking at merges
SPECIAL_TYPES = (TokenType.CONTROL, TokenType.USER_DEFINED, TokenType.UNKNOWN)
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
NUM_ADDED = 300  # added tokens that are read within texts, at most


def check_tokens(reader: GGUFReader, tokenizer: PreTrainedTokenizerBase) -> None:
    """Raise a ValueError, with a short example, if a file gives other tokens than ``tokenizer``.

    Both read the same lines of text. Some tokenizers take blanks with an added token, or look for
    it in whole words only, which a file has no place for.
    """
    encode = _file_tokenizer(reader)
    added = list(tokenizer.get_added_vocab())
    some_added = added[:: len(added) // NUM_ADDED + 1]
    in_texts = [f"a{token}b  {token}  c" for token in some_added]
    texts = sorted([*PHRASES, *in_texts], key=len)
    for text, ids in zip(texts, tokenizer(texts).input_ids, strict=True):
        file_ids = encode(text)
        if file_ids != ids:
            message = (
                f"this tokenizer cannot be written as GGUF: llama.cpp would read {text!r} as "
                f"{_shown(file_ids, tokenizer)}, the tokenizer reads {_shown(ids, tokenizer)}"
            )
            if "Metaspace" in str(tokenizer.backend_tokenizer.pre_tokenizer):
                message += (
                    ". llama.cpp puts a blank before the text and after each special token, even "
                    "before other blanks, as the tokenizer.json of Llama 2 and Mistral does: "
                    "PreTrainedTokenizerFast.from_pretrained(…) reads it as it is"
                )
            raise ValueError(message)


def _shown(ids: list[int], tokenizer: PreTrainedTokenizerBase) -> str:
    """Some tokens, for a message."""
    tokens = [str(token) for token in tokenizer.convert_ids_to_tokens(ids[:12]) if token]
    return " ".join(tokens) or "no tokens"


def _file_tokenizer(reader: GGUFReader) -> Callable[[str], list[int]]:
    """A function that gives the ids of a text, with the tokens that are added at its ends."""

    def setting(name: str, default: Any = None) -> Any:
        field = reader.fields.get(f"tokenizer.ggml.{name}")
        return default if field is None else field.contents()

    tokens = setting("tokens")
    ids = {token: index for index, token in enumerate(tokens)}
    if setting("model") == "gpt2":
        split = _byte_pairs(ids, setting("merges"), setting("pre"))
    else:
        split = _sentencepiece(ids, setting("scores"), setting("add_space_prefix", True))
    types = zip(tokens, setting("token_type"), strict=True)
    special = [token for token, kind in types if token and kind in SPECIAL_TYPES]
    special.sort(key=lambda token: -len(token.encode()))  # llama.cpp looks for long ones first
    start = [setting("bos_token_id")] if setting("add_bos_token", False) else []
    end = [setting("eos_token_id")] if setting("add_eos_token", False) else []

    def cut(text: str) -> list[int]:
        """The ids of a text; long special tokens are cut out first."""
        for token in special:
            if token in text:
                before, _, after = text.partition(token)
                return [*cut(before), ids[token], *cut(after)]
        return split(text) if text else []

    return lambda text: [*start, *cut(text), *end]


def _byte_pairs(ids: dict[str, int], merges: list[str], kind: str) -> Callable[[str], list[int]]:
    """Byte-level BPE with the merges of the file, and llama.cpp's way to split into words."""
    pairs = [tuple(merge.split(" ")) for merge in merges]
    bpe = Tokenizer(models.BPE(ids, pairs, ignore_merges=kind in TAKES_WHOLE_WORDS))
    splits = [pre_tokenizers.Split(Regex(words), "isolated") for words in WORDS[kind]]
    bytes_of = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    bpe.pre_tokenizer = pre_tokenizers.Sequence([*splits, bytes_of])
    return lambda text: bpe.encode(text).ids


def _sentencepiece(
    ids: dict[str, int], scores: list[float], add_space: bool
) -> Callable[[str], list[int]]:
    """SentencePiece: the neighbours whose joint token has the highest score are merged first.

    What is no token in the end becomes tokens of single bytes.
    """

    def split(text: str) -> list[int]:
        if add_space:
            text = f" {text}"
        symbols = list(text.replace(" ", "▁"))
        while True:
            pairs = [first + second for first, second in pairwise(symbols)]
            known = [pair for pair in pairs if pair in ids]
            if not known:
                break
            best = max(known, key=lambda pair: scores[ids[pair]])  # the first of equal ones
            place = pairs.index(best)
            symbols[place : place + 2] = [best]
        result = []
        for symbol in symbols:
            if symbol in ids:
                result.append(ids[symbol])
            else:
                result.extend(ids[f"<0x{byte:02X}>"] for byte in symbol.encode())
        return result

    return split
