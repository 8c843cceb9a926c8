"""The tokens that llama.cpp makes of a text, by the vocabulary in a GGUF file.

This is what ``src/llama-vocab.cpp`` does. First the text is cut at special tokens. Then the rest is
split by byte-level BPE (``gpt2``), or by the scores of SentencePiece (``llama``).
"""

import re
from itertools import pairwise
from typing import Any

from gguf import GGUFReader, TokenType
from tokenizers import Regex, Tokenizer, models, pre_tokenizers

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


class FileTokenizer:
    """Tokenizes as llama.cpp does with the vocabulary of a file.

    Parameters
    ----------
    reader : GGUFReader
        A file that :func:`harp_lib.save_gguf` wrote.
    """

    def __init__(self, reader: GGUFReader) -> None:
        self.settings = reader.fields
        tokens = self._setting("tokens")
        self.ids: dict[str, int] = {token: index for index, token in enumerate(tokens)}
        special = []
        for token, kind in zip(tokens, self._setting("token_type"), strict=True):
            if kind in SPECIAL_TYPES and token:
                special.append(token)
        special.sort(key=lambda token: -len(token.encode()))  # llama.cpp looks for long ones first
        self.special = {token: self.ids[token] for token in special}
        self.any_special = re.compile("|".join(map(re.escape, self.special)) or r"(?!)")
        self.bpe: Tokenizer | None = None
        self.scores: list[float] = []
        if self._setting("model") == "gpt2":
            self.bpe = self._byte_pairs()
        else:
            self.scores = self._setting("scores")

    def encode(self, text: str) -> list[int]:
        """The ids of a text, with the tokens that are added at its ends."""
        ids = []
        if self._setting("add_bos_token", False):
            ids.append(self._setting("bos_token_id"))
        after_special = True
        for fragment in self._fragments(text):
            if isinstance(fragment, int):
                ids.append(fragment)
            elif self.bpe is not None:
                ids.extend(self.bpe.encode(fragment).ids)
            else:
                if after_special and self._setting("add_space_prefix", True):
                    fragment = f" {fragment}"
                ids.extend(self._by_scores(fragment.replace(" ", "▁")))
            after_special = isinstance(fragment, int)
        if self._setting("add_eos_token", False):
            ids.append(self._setting("eos_token_id"))
        return ids

    def _setting(self, name: str, default: Any = None) -> Any:
        field = self.settings.get(f"tokenizer.ggml.{name}")
        return default if field is None else field.contents()

    def _byte_pairs(self) -> Tokenizer:
        """Byte-level BPE with the merges of the file, and llama.cpp's way to split into words."""
        kind = self._setting("pre")
        merges = [tuple(merge.split(" ")) for merge in self._setting("merges")]
        bpe = Tokenizer(models.BPE(self.ids, merges, ignore_merges=kind in TAKES_WHOLE_WORDS))
        splits = [pre_tokenizers.Split(Regex(words), "isolated") for words in WORDS[kind]]
        bytes_of = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        bpe.pre_tokenizer = pre_tokenizers.Sequence([*splits, bytes_of])
        return bpe

    def _fragments(self, text: str) -> list[str | int]:
        """The text, cut at special tokens, which are given by their ids."""
        fragments: list[str | int] = [text]
        if not self.any_special.search(text):
            return fragments if text else []
        for token, index in self.special.items():
            if token not in text:
                continue
            cut: list[str | int] = []
            for fragment in fragments:
                if isinstance(fragment, int):
                    cut.append(fragment)
                    continue
                first, *others = fragment.split(token)
                cut.append(first)
                for other in others:
                    cut.extend((index, other))
            fragments = [fragment for fragment in cut if fragment != ""]
        return fragments

    def _by_scores(self, text: str) -> list[int]:
        """SentencePiece: the pair of neighbours whose joint token has the highest score is merged.

        What is no token in the end becomes tokens of single bytes, or -1 where there are none.
        """
        symbols = list(text)
        while True:
            pairs = [first + second for first, second in pairwise(symbols)]
            candidates = [place for place, pair in enumerate(pairs) if pair in self.ids]
            if not candidates:
                break
            place = max(candidates, key=lambda place: self.scores[self.ids[pairs[place]]])
            symbols[place : place + 2] = [pairs[place]]
        ids = []
        for symbol in symbols:
            if symbol in self.ids:
                ids.append(self.ids[symbol])
            else:
                ids.extend(self.ids.get(f"<0x{byte:02X}>", -1) for byte in symbol.encode())
        return ids
