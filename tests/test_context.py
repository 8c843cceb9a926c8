"""Which texts the experiments read: searched, held out, and calibration text."""

import torch

from harp_lib import config
from harp_lib.experiments import context
from harp_lib.experiments.changes import Change
from harp_lib.experiments.context import Context
from harp_lib.experiments.plans import WITHOUT_BOS, Planning, readings
from harp_lib.experiments.search import search
from harp_lib.results import Store
from harp_lib.text.corpora import load_corpus

MODEL = "tiny-gemma2"
FIRST = "python-docs"


def settings(**changes):
    return config.load_profile("smoke", models=[MODEL]) | changes


def context_of(profile=None):
    return Context(profile or settings(), MODEL, Store())


def test_calibration_pieces_begin_with_bos_where_texts_do(monkeypatch):
    """Then the published way, without it, is a control."""
    this = context_of()
    assert not this.pieces_begin_with_bos
    assert not set(WITHOUT_BOS) & set(readings(this))
    monkeypatch.setattr(context, "adds_bos", lambda tokenizer: True)
    other = context_of()
    planning = Planning(other)
    bos = other.tokenizer.bos_token_id
    assert set(WITHOUT_BOS) <= set(planning.readings)
    assert set(planning.calibration("flap")[:, 0].tolist()) == {bos}
    assert bos not in planning.calibration("flap-without-bos")
    assert planning.inputs("flap") != Planning(this).inputs("flap")
    assert planning.inputs("flap-without-bos") == Planning(this).inputs("flap")
    assert other._refit_file != this._refit_file
    assert not context_of(settings(bos_in_calibration=False)).pieces_begin_with_bos


def test_more_draws_of_the_calibration_text_are_readings():
    profile = settings()
    profile["baselines"]["draws"] = {MODEL: 2}
    planning = Planning(context_of(profile))
    draws = [name for name in planning.readings if "draw" in name]
    assert draws == ["flap-draw-1", "llm-pruner-draw-1", "flap-draw-2", "llm-pruner-draw-2"]
    texts = [planning.calibration(name) for name in ("flap", "flap-draw-1", "flap-draw-2")]
    assert not torch.equal(texts[0], texts[1])
    assert not torch.equal(texts[1], texts[2])
    assert planning.inputs("flap-draw-2")["seed"] == 2


def test_a_method_that_the_profile_does_not_name_has_the_usual_sample():
    profile = settings()
    profile["baselines"]["calibration"] = {"flap": [8, 32]}
    this = context_of(profile)
    assert this.calibration_size("flap") == [8, 32]
    assert this.calibration_size("harp+refit") == (128, 128)


def test_tokens_of_the_searched_text_are_as_cut_or_counted():
    assert context_of().searched_tokens == 2 * 64
    profile = settings()
    profile["alpha_search"] |= {"documents": 3, "tokens": None}
    whole = context_of(profile)
    ids = whole.tokenizer(whole.text(FIRST, "test").corpus.texts).input_ids
    assert whole.searched_tokens == sum(map(len, ids)), "the first token is predicted, too"
    assert Change(whole, "harp", (4, 5), "top", texts=1).calibration_tokens == whole.searched_tokens


def test_a_second_sample_shares_no_document_with_the_first():
    this = context_of()
    first = this.text(FIRST, "test").corpus
    second = this.second_sample(FIRST).corpus
    assert len(first.documents) == len(second.documents) == 2
    assert not set(first.documents) & set(second.documents)
    pages = load_corpus(FIRST, "test").documents
    num_first = [page.startswith(first.documents) for page in pages].count(True)
    assert num_first == 2, "cut at the same length"
    cells = search(context_of(settings(corpora=[FIRST])))
    texts = {cell.about["method"]: cell.inputs["sha256"] for cell in cells}
    assert texts == {"harp": first.sha256, "harp-resampled": second.sha256}


def test_where_all_pages_are_searched_there_is_no_second_sample():
    """As in the profile paper, whose 62 pages are all that WikiText-2's test split has."""
    profile = settings(corpora=[FIRST])
    pages = len(load_corpus(FIRST, "test").documents)
    profile["alpha_search"] |= {"documents": pages, "tokens": None}
    this = context_of(profile)
    assert this.second_sample(FIRST) is None
    assert this.unsearched(FIRST, 10_000, 32).corpus.split == "validation"
    assert [cell.about["method"] for cell in search(this)] == ["harp"]


def test_held_out_documents_may_be_all_of_them():
    corpus = context_of().unsearched(FIRST, None, None).corpus
    assert corpus.documents == load_corpus(FIRST, "validation").documents
    assert corpus.split == "validation"


def test_where_held_out_pages_are_too_few_test_pages_follow_that_no_search_reads():
    this = context_of()
    held_out = this.text(FIRST, "validation", (10_000, 32)).corpus
    more = this.unsearched(FIRST, 10_000, 32).corpus
    assert more.documents[: len(held_out.documents)] == held_out.documents
    others = more.documents[len(held_out.documents) :]
    assert len(others) > 0
    for searched in (this.text(FIRST, "test").corpus, this.second_sample(FIRST).corpus):
        assert not [page for page in searched.documents if page.startswith(others)]
    few = this.unsearched(FIRST, 3, 32).corpus
    assert (few.documents, few.split) == (held_out.documents[:3], "validation")
