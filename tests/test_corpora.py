import json
import os
import subprocess
import sys
from dataclasses import replace

import pytest
import torch

from harp_lib.measure import corpora
from harp_lib.measure.tiny import tiny_tokenizer


@pytest.mark.parametrize("name", corpora.EMBEDDED)
def test_embedded_prose(name):
    splits = [corpora.load_corpus(name, split) for split in corpora.SPLITS]
    for corpus in splits:
        assert sum(len(document) for document in corpus.documents) > 60_000, "too little prose to search alpha on"
    texts = [set(corpus.documents) for corpus in splits]
    assert not texts[0] & texts[1]
    assert not texts[1] & texts[2], "held-out text must not be searched"
    assert corpora.load_corpus(name, "test").sha256 == splits[2].sha256
    assert splits[1].sha256 != splits[2].sha256


DIGESTS = """
from harp_lib import corpora
print(*[corpora.load_corpus(name, split).sha256 for name in corpora.EMBEDDED for split in corpora.SPLITS])
"""
EVERYTHING = "import hypothesis, lm_eval, seaborn, sklearn, scipy.special, scipy.stats, torch, transformers"


@pytest.mark.parametrize("imports", ["", EVERYTHING], ids=["alone", "after other imports"])
def test_embedded_prose_is_the_same_in_every_process(imports):
    """Docstrings may print addresses and sets, and libraries may change those of others."""
    digests = [corpora.load_corpus(name, split).sha256 for name in corpora.EMBEDDED for split in corpora.SPLITS]
    for seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", imports + DIGESTS],
            capture_output=True,
            text=True,
            check=True,
            env=os.environ | {"PYTHONHASHSEED": seed},
        )
        assert done.stdout.split() == digests


def test_windows_predict_every_token_once():
    tokenizer = tiny_tokenizer()
    texts = ["import this and that " * 40, "short", ""]
    windows = corpora.rolling_windows(tokenizer, texts, max_length=32)
    predicted = torch.cat([window.ids[-window.scored :] for window in windows])
    assert predicted.tolist() == [token for text in texts for token in tokenizer(text).input_ids]
    assert windows[0].ids[0] == tokenizer.bos_token_id
    assert all(len(window.ids) <= 33 for window in windows), "one context token and 32 predicted ones at most"


def test_an_excerpt_is_cut_by_tokens():
    tokenizer = tiny_tokenizer()
    whole = corpora.load_corpus("python-docs", "test")
    part = corpora.excerpt(whole, tokenizer, documents=3, tokens=100)
    assert len(part.documents) == 3
    assert all(any(text.startswith(cut) for text in whole.documents) for cut in part.documents)
    assert all(abs(len(tokenizer(text).input_ids) - 100) <= 1 for text in part.documents)
    assert part.sha256 != whole.sha256
    assert corpora.excerpt(whole, tokenizer, documents=2, tokens=None).documents == whole.documents[:2]
    assert corpora.excerpt(whole, tokenizer, documents=None, tokens=None) == whole
    blank = replace(whole, documents=("", " \n", *whole.documents))
    assert corpora.excerpt(blank, tokenizer, documents=2, tokens=None).documents == whole.documents[:2]
    with pytest.raises(ValueError, match="no document of 10000000 tokens"):
        corpora.excerpt(whole, tokenizer, documents=2, tokens=10_000_000)


def write_rows(folder, rows, name="wikitext", split="test"):
    (folder / name).mkdir(parents=True)
    (folder / name / f"{split}.jsonl").write_text("\n".join(rows) + "\n")


def test_a_directory_of_pages(tmp_path):
    write_rows(
        tmp_path, [json.dumps({"page": "one , two\u2028three"}, ensure_ascii=False), json.dumps({"page": "four"})]
    )
    corpus = corpora.load_corpus("wikitext", "test", str(tmp_path))
    assert corpus.documents == ("one , two\u2028three", "four")
    assert corpus.texts[0].startswith("one, two")
    assert corpus.num_words == 5
    assert corpus.source == tmp_path.name


@pytest.mark.parametrize("row", ['{"text": "no page"}', "{", "[]"])
def test_a_bad_row_is_named_by_file_and_line(tmp_path, row):
    write_rows(tmp_path, [json.dumps({"page": "fine"}), row])
    with pytest.raises(ValueError, match=r"test.jsonl, line 2: no JSON object with a field 'page'"):
        corpora.load_corpus("wikitext", "test", str(tmp_path))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("wikitxt", "test"), "unknown corpus 'wikitxt'; choose from python-docs"),
        (("python-docs", "dev"), "unknown split 'dev'; choose from train"),
        (("wikitext", "test"), "wikitext is not embedded"),
        (("wikitext", "test", "nowhere"), "does not exist"),
    ],
)
def test_bad_requests(arguments, message):
    with pytest.raises(ValueError, match=message):
        corpora.load_corpus(*arguments)


def test_default_corpora(tmp_path):
    assert corpora.default_corpora("embedded") == corpora.EMBEDDED
    assert corpora.default_corpora("hub") == ("wikitext", "pile_10k")
    assert corpora.default_corpora(str(tmp_path)) == corpora.EMBEDDED, "a folder of benchmarks alone"
    (tmp_path / "wikitext").mkdir()
    assert corpora.default_corpora(str(tmp_path)) == ("wikitext", "python-docs")
    (tmp_path / "pile_10k").mkdir()
    assert corpora.default_corpora(str(tmp_path)) == ("wikitext", "pile_10k")


def test_real_pages(shared):
    corpus = corpora.load_corpus("wikitext", "test", str(shared / "benchmarks"))
    assert len(corpus.documents) == 62, "what the paper searches on"


def test_corpora_of_the_hub(monkeypatch):
    """The hub itself cannot be reached from a test; what is asked of it and what becomes of the answer can."""
    import datasets

    rows = {"wikitext": {"page": ["one", "two"]}, "pile-10k": {"text": [f"text {i}" for i in range(9)]}}
    asked = []

    def load_dataset(path, *name, split):
        asked.append((path, *name, split))
        return datasets.Dataset.from_dict(rows["wikitext" if "wikitext" in path else "pile-10k"])

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    assert corpora.load_corpus("wikitext", "test", "hub").documents == ("one", "two")
    splits = [corpora.load_corpus("pile_10k", split, "hub").documents for split in corpora.SPLITS]
    assert sorted(sum(splits, ())) == sorted(rows["pile-10k"]["text"]), "one published split becomes three"
    assert (
        asked
        == [("EleutherAI/wikitext_document_level", "wikitext-2-raw-v1", "test")] + [("NeelNanda/pile-10k", "train")] * 3
    )


def test_a_hub_that_is_not_reached(monkeypatch):
    import datasets

    def offline(*args, **kwargs):
        raise ConnectionError("no route")

    monkeypatch.setattr(datasets, "load_dataset", offline)
    with pytest.raises(ConnectionError, match=r"pass a folder that holds wikitext/test.jsonl as datasets"):
        corpora.load_corpus("wikitext", "test", "hub")
