"""Corpora and their splits; perplexity of texts of unequal length, and against lm-eval."""

import json
import math
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import lm_eval
import pytest
import torch
import torch.nn.functional as F
import yaml
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager
from tokenizers.processors import TemplateProcessing

from harp_lib import perplexity, word_perplexity
from harp_lib.models.registry import tiny_tokenizer
from harp_lib.text import tokens as tokens_module
from harp_lib.text.corpora import EMBEDDED, SPLITS, calibration_blocks, excerpt, load_corpus
from harp_lib.text.perplexity import Window, rolling_windows


def adding_bos():
    """The tiny tokenizer, changed to put a BOS token before each text as Llama's does."""
    tokenizer = tiny_tokenizer()
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single="<bos> $A", special_tokens=[("<bos>", 1)]
    )
    assert tokenizer("a").input_ids[0] == tokenizer.bos_token_id == 1
    return tokenizer


class TestCorpora:
    @pytest.mark.parametrize("name", EMBEDDED)
    def test_each_embedded_split_has_enough_and_shares_nothing(self, name):
        """16 documents of 512 tokens of a real tokenizer, which has some 4 characters a token."""
        splits = [load_corpus(name, split) for split in SPLITS]
        for corpus in splits:
            assert sum(len(document) > 2300 for document in corpus.documents) >= 18
        documents = [document for corpus in splits for document in corpus.documents]
        assert len(set(documents)) == len(documents), "held-out text must not be searched"
        assert load_corpus(name, "test").sha256 == splits[2].sha256 != splits[1].sha256

    def test_embedded_prose_is_the_same_in_every_process(self):
        """Docstrings may print addresses and sets, and a library may change those of another."""
        code = """
import lm_eval, seaborn, scipy.special, scipy.stats, transformers
from harp_lib.text.corpora import EMBEDDED, SPLITS, load_corpus
for name in EMBEDDED:
    for split in SPLITS:
        print(load_corpus(name, split).sha256)
"""
        environment = os.environ | {"PYTHONHASHSEED": "1"}
        process = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, env=environment
        )
        expected = [load_corpus(name, split).sha256 for name in EMBEDDED for split in SPLITS]
        assert process.stdout.split() == expected

    @pytest.mark.parametrize(
        "tokenizer", [tiny_tokenizer(), adding_bos()], ids=["plain", "adds BOS"]
    )
    def test_windows_predict_every_token_once_after_one_bos(self, tokenizer):
        texts = ["import this and that " * 40, "short", ""]
        windows = rolling_windows(tokenizer, texts, max_length=32)
        predicted = torch.cat([window.ids[-window.scored :] for window in windows])
        plain = [tokenizer(text, add_special_tokens=False).input_ids for text in texts]
        assert predicted.tolist() == [token for ids in plain for token in ids]
        begins = [window for window in windows if window.ids[0] == tokenizer.bos_token_id]
        num_bos = [window.ids.tolist().count(tokenizer.bos_token_id) for window in begins]
        assert num_bos == [1, 1], "one BOS token for each text that is not empty"
        longest = max(len(window.ids) for window in windows)
        assert longest <= 33, "one context token and 32 predicted ones"

    def test_an_excerpt_is_cut_by_tokens(self):
        tokenizer = tiny_tokenizer()
        whole = load_corpus("python-docs", "test")
        part = excerpt(whole, tokenizer, documents=3, tokens=100)
        assert len(part.documents) == 3
        for cut in part.documents:
            assert any(text.startswith(cut) for text in whole.documents)
            assert abs(len(tokenizer(cut).input_ids) - 100) <= 1
        assert part.sha256 != whole.sha256
        assert excerpt(whole, tokenizer, documents=2, tokens=None).documents == whole.documents[:2]
        blank = replace(whole, documents=("", " \n", *whole.documents))
        assert excerpt(blank, tokenizer, documents=2, tokens=None).documents == whole.documents[:2]
        with pytest.raises(ValueError, match="no document of 10000000 tokens"):
            excerpt(whole, tokenizer, documents=2, tokens=10_000_000)

    def test_calibration_blocks_do_not_overlap(self):
        tokenizer = adding_bos()
        corpus = load_corpus("scipy-docs", "train")
        blocks = calibration_blocks(corpus, tokenizer, 50, 32, seed=1)
        whole = tokenizer("\n\n".join(corpus.texts), add_special_tokens=False).input_ids
        all_blocks = {tuple(whole[start : start + 32]) for start in range(0, len(whole) - 31, 32)}
        drawn_blocks = {tuple(block) for block in blocks.tolist()}
        assert len(drawn_blocks & all_blocks) == 50
        assert not torch.equal(blocks, calibration_blocks(corpus, tokenizer, 50, 32, seed=2))
        with pytest.raises(ValueError, match=r"has \d+ blocks of 32 tokens; 1000000 are wanted"):
            calibration_blocks(corpus, tokenizer, 1_000_000, 32)

    def test_calibration_blocks_may_begin_with_bos(self):
        tokenizer = adding_bos()
        corpus = load_corpus("scipy-docs", "train")
        blocks = calibration_blocks(corpus, tokenizer, 50, 32, seed=1, bos=True)
        assert blocks.shape == (50, 32)
        assert set(blocks[:, 0].tolist()) == {tokenizer.bos_token_id}
        assert tokenizer.bos_token_id not in blocks[:, 1:]
        plain = calibration_blocks(corpus, tokenizer, 50, 31, seed=1)
        assert torch.equal(blocks[:, 1:], plain)

    def test_a_directory_of_pages(self, tmp_path):
        (tmp_path / "wikitext").mkdir()
        file = tmp_path / "wikitext" / "test.jsonl"
        first = json.dumps({"page": "one , two\u2028three"}, ensure_ascii=False)
        file.write_text(first + '\n{"page": "four"}\n')
        corpus = load_corpus("wikitext", "test", str(tmp_path))
        assert corpus.documents == ("one , two\u2028three", "four")
        assert corpus.texts[0].startswith("one, two")
        assert corpus.source == tmp_path.name
        messages = {
            '{"text": "no page"}': "no field 'page'; WikiText-2 needs page",
            "{": "not JSON",
        }
        for row, message in messages.items():
            file.write_text(f"{first}\n{row}\n")
            with pytest.raises(ValueError, match=f"test.jsonl, line 2: {message}"):
                load_corpus("wikitext", "test", str(tmp_path))

    def test_texts_of_a_task_are_held_out(self, tmp_path):
        home_made = load_corpus("gov_report", "validation")
        assert len(home_made.documents) == 4
        assert home_made.source == "embedded"
        (tmp_path / "longbench_multi_news").mkdir()
        file = tmp_path / "longbench_multi_news" / "test.jsonl"
        file.write_text('{"context": "first"}\n{"context": "second"}\n')
        news = load_corpus("multi_news", "validation", str(tmp_path))
        assert news.documents == ("first", "second")
        assert news.source == tmp_path.name
        with pytest.raises(ValueError, match="News is held out: it has no split 'test'"):
            load_corpus("multi_news", "test", str(tmp_path))
        with pytest.raises(ValueError, match=r"test\.jsonl does not exist: News is not in these"):
            load_corpus("multi_news", "validation")

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (("wikitxt", "test"), "wikitxt is not embedded; choose from python-docs"),
            (("wikitext", "test"), "wikitext is not embedded"),
            (("wikitext", "test", "nowhere"), "does not exist"),
        ],
    )
    def test_bad_requests(self, arguments, message):
        with pytest.raises(ValueError, match=message):
            load_corpus(*arguments)

    def test_corpora_of_the_hub(self, monkeypatch):
        """No test reaches the hub, so a stand-in records the requests and answers them."""
        import datasets

        columns = {"page": list("abcdefghi"), "text": list("jklmnopqr")}
        published = datasets.Dataset.from_dict(columns)
        requests = []

        def load_dataset(*name, split):
            requests.append((*name, split))
            return published

        monkeypatch.setattr(datasets, "load_dataset", load_dataset)
        assert load_corpus("wikitext", "test", "hub").documents == tuple("abcdefghi")
        splits = [load_corpus("pile_10k", split, "hub").documents for split in SPLITS]
        assert sorted(sum(splits, ())) == list("jklmnopqr"), "one published split becomes three"
        assert requests == [
            ("EleutherAI/wikitext_document_level", "wikitext-2-raw-v1", "test"),
            ("NeelNanda/pile-10k", "train"),
            ("NeelNanda/pile-10k", "train"),
            ("NeelNanda/pile-10k", "train"),
        ]


def naive_nll(model, ids, scored):
    """Negative log-likelihood of the last tokens, with the logits of the whole text at once."""
    with torch.no_grad():
        logits = model(ids[None]).logits[0, :-1].double()
    return F.cross_entropy(logits, ids[1:], reduction="none")[-scored:].sum().item()


class TestPerplexity:
    def test_documents_and_windows_of_unequal_length(self, tiny, tokens, monkeypatch):
        monkeypatch.setattr(tokens_module, "TOKENS_PER_BATCH", 64)
        model = tiny()
        documents = [tokens[0], tokens[1], tokens[2, :13], tokens[3, :2], tokens[3, :1]]
        nll = sum(naive_nll(model, ids, len(ids) - 1) for ids in documents[:-1])
        expected = math.exp(nll / (47 + 47 + 12 + 1))
        assert perplexity(model, documents) == pytest.approx(expected, rel=1e-5)
        windows = [Window(tokens[0], 9), Window(tokens[1], 9), Window(tokens[2], 47)]
        nll = sum(naive_nll(model, window.ids, window.scored) for window in windows)
        assert perplexity(model, windows) == pytest.approx(math.exp(nll / 65), rel=1e-5)

    def test_refusals(self, tiny):
        for empty in ([], [torch.tensor([5])], torch.empty(0, 4, dtype=torch.long)):
            with pytest.raises(ValueError, match="the corpus is empty"):
                perplexity(tiny(), empty)
        with pytest.raises(ValueError, match="the corpus is empty"):
            word_perplexity(tiny(), tiny_tokenizer(), [])

    @pytest.mark.parametrize(
        ("max_length", "tokenizer"), [(512, tiny_tokenizer()), (100, adding_bos())]
    )
    def test_word_perplexity_equals_lm_eval(self, shared, tiny, tmp_path, max_length, tokenizer):
        """lm-eval runs its own ``wikitext`` task, without a second BOS token."""
        rows = (shared / "benchmarks" / "wikitext" / "test.jsonl").read_text().split("\n")[:3]
        pages = [json.loads(row)["page"][:3000] for row in rows]
        file = tmp_path / "test.jsonl"
        file.write_text("\n".join(json.dumps({"page": page}) for page in pages))
        overlay = {
            "include": str(Path(lm_eval.__file__).parent / "tasks" / "wikitext" / "wikitext.yaml"),
            "task": "wikitext",
            "dataset_path": "json",
            "dataset_name": None,
            "dataset_kwargs": {"data_files": {"test": str(file)}},
            "training_split": None,
            "validation_split": None,
        }
        (tmp_path / "wikitext.yaml").write_text(yaml.safe_dump(overlay))
        model = tiny()
        model.config.max_position_embeddings = max_length
        lm = HFLM(
            pretrained=model,
            tokenizer=tokenizer,
            max_length=max_length,
            batch_size=1,
            add_bos_token=False,
        )
        evaluation = lm_eval.simple_evaluate(
            lm,
            tasks=["wikitext"],
            task_manager=TaskManager(include_path=str(tmp_path), include_defaults=False),
            bootstrap_iters=0,
        )
        expected = evaluation["results"]["wikitext"]["word_perplexity,none"]
        assert word_perplexity(model, tokenizer, pages) == pytest.approx(expected, rel=1e-4)
