"""Notebook 09's cells: they hold what the changed model, run as a whole, makes of documents."""

import pytest

from harp_lib import config
from harp_lib.config import load_profile
from harp_lib.experiments import run
from harp_lib.experiments.frontier import passkeys
from harp_lib.experiments.job import HELD_OUT, Job
from harp_lib.methods.calibration import LayerStream
from harp_lib.methods.refit import explained_by_layer, refit_values
from harp_lib.methods.rivals import RIVALS
from harp_lib.pruning.plan import PruningPlan
from harp_lib.pruning.surgery import temporarily_pruned
from harp_lib.report import data, figures_harp
from harp_lib.results import read_results
from harp_lib.text.perplexity import make_batches, total_nll

MODEL = "tiny-llama"


KINDS = {"alpha-0", "harp", "harp+refit", "harp+refit-two", "harp+refit-chosen", *RIVALS}


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    """The cells of one tiny model."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(config, "RESULTS", tmp_path_factory.mktemp("results"))
        run("frontier", profile=load_profile("smoke", models=[MODEL]))
        yield read_results("smoke", "frontier")


@pytest.fixture(scope="module")
def job():
    return Job("frontier", load_profile("smoke", models=[MODEL]), MODEL)


def rows(stored, quantity):
    return data.of_quantities(data.rows(stored), quantity)


def searched_alphas(stored):
    """Alphas of the longer search, the top layer first."""
    alphas = rows(stored, "alpha").sort_values("layer", ascending=False)
    assert alphas["layer"].tolist() == [5, 4, 3]
    return alphas["value"].tolist()


def test_cells_have_a_kind_and_a_number_of_layers(stored):
    cells = [cell["coordinates"] for cell in stored.values() if "layers" in cell["coordinates"]]
    changes = {(coordinates["method"], coordinates["layers"]) for coordinates in cells}
    assert {kind for kind, _ in changes} == {"dense", *KINDS}
    assert {layers for kind, layers in changes if kind in RIVALS} == {2}
    assert {layers for kind, layers in changes if kind in KINDS - {*RIVALS}} == {2, 3}
    assert ("dense", 0) in changes
    texts = {(cell.get("corpus"), cell.get("split")) for cell in cells}
    assert texts - {(None, None)} == {  # a fit reads none of them
        ("python-docs", HELD_OUT),
        ("scipy-docs", HELD_OUT),
        ("passkey", HELD_OUT),
    }


def test_every_change_is_evaluated_on_every_text(stored):
    documents = rows(stored, "nll").groupby(["method", "layers", "corpus"]).size()
    by_text = documents.unstack("corpus")
    assert by_text.notna().all(axis=None)
    assert (by_text == by_text.iloc[0]).all(axis=None), "the same documents"
    cells = [cell for cell in stored.values() if "corpus" in cell["coordinates"]]
    assert len(cells) == by_text.size + 1, "and the search"


def test_a_longer_greedy_search_begins_like_the_shorter_one(stored, job):
    shorter = list(job.alphas(job.corpora[0]).values())
    assert searched_alphas(stored)[:2] == shorter


def test_fits_say_what_they_explain(stored, job):
    explained = rows(stored, "explained")
    fit = refit_values(job.model, job.refit_blocks(), 2)
    of_fit = explained.query("method == 'harp+refit' and layers == 2")
    assert of_fit.set_index("layer")["value"].to_dict() == pytest.approx(fit.explained)

    by_layer = explained_by_layer(job.model, job.refit_blocks(2))
    of_dense = explained.query("method == 'dense'").sort_values("layer")
    assert of_dense["value"].tolist() == pytest.approx(by_layer)
    alone = refit_values(job.model, job.refit_blocks(2), 1, [4])
    assert by_layer[4] == pytest.approx(alone.explained[4])


def test_cells_are_likelihoods_of_the_whole_changed_model(stored, job):
    model = job.model
    corpus = job.corpora[0]
    text = job.text(corpus, HELD_OUT, (3, 64))
    alphas = searched_alphas(stored)
    fit = refit_values(model, job.refit_blocks(), 2)
    explained = explained_by_layer(model, job.refit_blocks(2))
    best = sorted(range(6), key=lambda layer: -explained[layer])[:3]
    chosen = refit_values(model, job.refit_blocks(2), 3, best)

    def value_only(alphas):
        return temporarily_pruned(model, PruningPlan.value_only(6, alphas))

    def rival(name):
        return RIVALS[name](model, LayerStream(model, job.refit_blocks()), [4, 5])

    changes = {
        ("dense", 0): temporarily_pruned(model, PruningPlan(6, {})),
        ("alpha-0", 3): value_only([0.0] * 3),
        ("harp", 2): value_only(alphas[:2]),
        ("harp", 3): value_only(alphas),
        ("harp+refit", 2): temporarily_pruned(model, fit.plan, weights=fit.weights),
        ("harp+refit-chosen", 3): temporarily_pruned(model, chosen.plan, weights=chosen.weights),
        ("boundary", 2): rival("boundary"),
        ("nbl", 2): rival("nbl"),
    }
    likelihoods = rows(stored, "nll").query("corpus == @corpus")
    for (kind, count), change in changes.items():
        with change:
            expected = [total_nll(model, make_batches(document)) for document in text.documents]
        of_kind = likelihoods[likelihoods["method"] == kind]
        of_change = of_kind[of_kind["layers"] == count]
        assert of_change["document"].tolist() == [0, 1, 2]
        assert of_change["value"].tolist() == pytest.approx(expected, rel=1e-4), kind


def test_a_key_is_named_once_and_asked_for_at_the_end(job):
    text = passkeys(job, tokens=96, depths=3, keys=2)
    places = []
    keys = set()
    for document, whole in zip(text.documents, text.corpus.documents, strict=True):
        _, key = whole.rsplit(" ", 1)
        keys.add(key)
        assert whole.count(key) == 2, "where it is named, and the answer"
        places.append(whole.index(key) / len(whole))
        assert job.tokenizer.decode(document[0].ids[-document[0].scored :]).strip() == key
        assert 80 < len(document[0].ids) < 200
    assert places == sorted(places)
    assert places[0] < 0.2 < 0.6 < places[-1]
    assert len(keys) >= 4, "not always the same key"


def changes_of(profile, *reference):
    return figures_harp.changes(profile, *reference).set_index(["kind", "layers", "corpus"])


def test_multiples_are_of_the_dense_model_or_of_harp(stored):
    profile = load_profile("smoke", models=[MODEL])
    harp = changes_of(profile).loc["harp", 2, "python-docs"]
    assert harp["value"] == pytest.approx(harp["perplexity"] / harp["dense"])
    against_harp = changes_of(profile, "harp")
    assert "harp" not in against_harp.index.get_level_values("kind")
    refit = against_harp.loc["harp+refit", 2, "python-docs"]
    assert refit["harp"] == harp["perplexity"]
    assert refit["value"] == pytest.approx(refit["perplexity"] / harp["perplexity"])
