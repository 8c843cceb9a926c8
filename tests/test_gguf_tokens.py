"""Tokens that a GGUF file gives: as llama.cpp, and as the tokenizer, which is refused otherwise."""

import json

import pytest
from test_gguf import run_llama_cpp, sentencepiece
from tokenizers import Tokenizer
from transformers import AddedToken, ByT5Tokenizer, PreTrainedTokenizerFast

from harp_lib import save_gguf
from harp_lib.export.gguf_tokens import LLAMA3_WORDS, PHRASES
from harp_lib.models.registry import tiny_model, tiny_tokenizer

SPECIAL = {"bos_token": "<bos>", "eos_token": "<eos>", "pad_token": "<pad>"}
BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
LLAMA_CPP = """
import json
import sys
import urllib.request
from harp_lib.evaluation.llama_cpp import LlamaCpp
texts = json.loads(sys.argv[1])
for path in sys.argv[2:]:
    engine = LlamaCpp(path, context=64)
    ids = []
    for text in texts:
        question = {"content": text, "add_special": True, "parse_special": True}
        request = urllib.request.Request(
            f"{engine.server.listening_address}/tokenize",
            data=json.dumps(question).encode(),
            headers={"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request) as answer:
            ids.append(json.load(answer)["tokens"])
    print("\\n" + json.dumps(ids), flush=True)
"""


def changed(tokenizer, change, **special):
    """A copy of a tokenizer whose ``tokenizer.json`` was changed."""
    state = json.loads(tokenizer.backend_tokenizer.to_str())
    change(state)
    backend = Tokenizer.from_str(json.dumps(state))
    return PreTrainedTokenizerFast(tokenizer_object=backend, **special or SPECIAL)


def digits(state):
    digit = {"type": "Digits", "individual_digits": True}
    words = BYTES | {"use_regex": True}
    state["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [digit, words]}


def llama3(state):
    words = {"Regex": LLAMA3_WORDS}
    split = {"type": "Split", "pattern": words, "behavior": "Isolated", "invert": False}
    state["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [split, BYTES]}
    state["model"]["ignore_merges"] = True


def template(*pieces):
    def change(state):
        special = {
            name: {"id": name, "ids": [1 if name == "<bos>" else 2], "tokens": [name]}
            for name in pieces
            if name != "A"
        }
        single = [
            {"Sequence": {"id": "A", "type_id": 0}}
            if name == "A"
            else {"SpecialToken": {"id": name, "type_id": 0}}
            for name in pieces
        ]
        state["post_processor"] = {
            "type": "TemplateProcessing",
            "single": single,
            "pair": [*single, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": special,
        }

    return change


def with_added_tokens(**flags):
    """A tokenizer with two added tokens, one of them of blanks."""
    tokenizer = tiny_tokenizer()
    flags = {"normalized": False} | flags
    added = [AddedToken("<think>", **flags), AddedToken("  ", **flags)]
    tokenizer.backend_tokenizer.add_tokens(added)
    return tokenizer


GOOD = {
    "bytes": tiny_tokenizer,
    "digits": lambda: changed(tiny_tokenizer(), digits),
    "llama 3": lambda: changed(tiny_tokenizer(), llama3),
    "begin": lambda: changed(tiny_tokenizer(), template("<bos>", "A")),
    "begin and end": lambda: changed(tiny_tokenizer(), template("<bos>", "A", "<eos>")),
    "added": with_added_tokens,
    "sentencepiece": sentencepiece,
}


@pytest.fixture(scope="module")
def model():
    model = tiny_model("tiny-llama")
    model.resize_token_embeddings(520, mean_resizing=False)
    return model


@pytest.fixture(scope="module")
def files(model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokens")
    for name, make in GOOD.items():
        save_gguf(model, make(), folder / name)
    return folder


def test_tokens_are_those_of_llama_cpp(files):
    texts = [*PHRASES, "a<bos>b <eos> c", "x<think>  x", "<s> a</s>b<unk>", "<bos"]
    answers, _ = run_llama_cpp(LLAMA_CPP, json.dumps(texts), *(files / name for name in GOOD))
    for name, ids_of_texts in zip(GOOD, answers, strict=True):
        expected = GOOD[name]()(texts).input_ids
        for text, ids, expected_ids in zip(texts, ids_of_texts, expected, strict=True):
            assert ids == expected_ids, (name, text)


def nfc(state):
    state["normalizer"] = {"type": "NFC"}


def missing_bytes(state):
    """Without some letters of the alphabet, and with a token for what is unknown."""
    vocabulary = state["model"]["vocab"]
    vocabulary["<unk>"] = vocabulary.pop("Ã")
    state["model"]["merges"] = [pair for pair in state["model"]["merges"] if "Ã" not in str(pair)]
    state["model"]["unk_token"] = "<unk>"


def unreachable_token(state):
    """A token that no merge makes; Llama 3's splitting takes it, this tokenizer does not."""
    llama3(state)
    state["model"]["ignore_merges"] = False
    state["model"]["vocab"]["zqxj"] = 515


CHANGES = {
    "NFC": nfc,
    "missing bytes": missing_bytes,
    "unreachable token": unreachable_token,
    "other end": template("A", "<bos>"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_a_file_cannot_say_is_refused(name, model, tmp_path):
    with pytest.raises(ValueError, match="cannot be written as GGUF"):
        save_gguf(model, changed(tiny_tokenizer(), CHANGES[name]), tmp_path / "model.gguf")
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("flag", ["lstrip", "single_word"])
def test_added_tokens_that_take_blanks_or_words_are_refused(flag, model, tmp_path):
    with pytest.raises(ValueError, match=r"llama\.cpp would read"):
        save_gguf(model, with_added_tokens(**{flag: True}), tmp_path / "model.gguf")


def first_only(state):
    space = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": False}
    state["normalizer"] = None
    state["pre_tokenizer"] = space


def never(state):
    first_only(state)
    state["pre_tokenizer"]["prepend_scheme"] = "never"


def regular_expression(state):
    step = {"type": "Replace", "pattern": {"Regex": "qqq+"}, "content": "q"}
    state["normalizer"]["normalizers"].append(step)


def no_token_for_a_byte(state):
    del state["model"]["vocab"]["<0x41>"]


def test_sentencepiece(model, tmp_path):
    special = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}
    save_gguf(model, changed(sentencepiece(), never, **special), tmp_path / "model.gguf")
    messages = {
        first_only: "PreTrainedTokenizerFast.from_pretrained",
        regular_expression: "changes or splits text by .*'Replace'",
        no_token_for_a_byte: "cannot be written as GGUF",
    }
    for change, message in messages.items():
        with pytest.raises(ValueError, match=message):
            save_gguf(model, changed(sentencepiece(), change, **special), tmp_path / "model.gguf")


class LowerCaseTokenizer(PreTrainedTokenizerFast):
    """A class that changes texts itself, before its pipeline."""

    def __call__(self, text, **options):
        if isinstance(text, list):
            text = [part.lower() for part in text]
        return super().__call__(text, **options)


def test_what_the_class_does_counts(model, tmp_path):
    backend = tiny_tokenizer().backend_tokenizer
    for tokenizer in (
        LowerCaseTokenizer(tokenizer_object=backend, **SPECIAL),
        PreTrainedTokenizerFast(tokenizer_object=backend, split_special_tokens=True, **SPECIAL),
    ):
        with pytest.raises(ValueError, match="cannot be written as GGUF"):
            save_gguf(model, tokenizer, tmp_path / "model.gguf")
    with pytest.raises(ValueError, match="ByT5Tokenizer is written in Python"):
        save_gguf(model, ByT5Tokenizer(), tmp_path / "model.gguf")


def test_more_tokens_than_embeddings(tmp_path):
    tokenizer = tiny_tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "<|im_end|>"]})
    model = tiny_model("tiny-llama")
    message = r"the tokenizer has 514 tokens, but .* embeddings for 512: .*embeddings\(514\)"
    with pytest.raises(ValueError, match=message):
        save_gguf(model, tokenizer, tmp_path / "model.gguf")
    assert not [*tmp_path.iterdir()]
    model.resize_token_embeddings(600, mean_resizing=False)  # more embeddings than tokens are fine
    save_gguf(model, tokenizer, tmp_path / "model.gguf")
