"""Notebook 09's cells: what is stored is what the changed model, run as a whole, makes of each
document.
"""

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
from harp_lib.report import figures_harp
from harp_lib.results import read_results
from harp_lib.text.perplexity import make_batches, total_nll

MODEL = "tiny-llama"


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    """The cells of one tiny model, by method and task."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(config, "RESULTS", tmp_path_factory.mktemp("results"))
        run("frontier", profile=load_profile("smoke", models=[MODEL]))
        yield {key[1:]: cell["result"] for key, cell in read_results("smoke", "frontier").items()}


def test_cells_are_likelihoods_of_the_whole_changed_model(stored):
    job = Job("frontier", load_profile("smoke", models=[MODEL]), MODEL)
    model, corpus = job.model, job.corpora[0]
    text, searched = (
        job.text(corpus, HELD_OUT, (3, 64)),
        stored["harp", f"search-{corpus}"]["alphas"],
    )
    assert list(job.alphas(corpus).values()) == searched[:2], (
        "a longer greedy search begins like the shorter one"
    )
    kinds = {kind for kind, _ in (method.rsplit("-", 1) for method, _ in stored if "-" in method)}
    assert kinds == {
        "alpha-0",
        "harp",
        "harp+refit",
        "harp+refit-two",
        "harp+refit-chosen",
        *RIVALS,
    }
    fit = refit_values(model, job.refit_blocks(), 2)
    assert stored["harp+refit-02", "fit"]["explained"] == pytest.approx(
        {str(k): v for k, v in fit.explained.items()}
    )
    explained = explained_by_layer(model, job.refit_blocks(2))
    assert explained[4] == pytest.approx(
        refit_values(model, job.refit_blocks(2), 1, [4]).explained[4]
    )
    best = refit_values(
        model, job.refit_blocks(2), 3, sorted(range(6), key=lambda layer: -explained[layer])[:3]
    )
    changes = {
        "dense": temporarily_pruned(model, PruningPlan(6, {})),
        "alpha-0-03": temporarily_pruned(model, PruningPlan.value_only(6, [0.0] * 3)),
        "harp-02": temporarily_pruned(model, PruningPlan.value_only(6, searched[:2])),
        "harp-03": temporarily_pruned(model, PruningPlan.value_only(6, searched)),
        "harp+refit-02": temporarily_pruned(model, fit.plan, weights=fit.weights),
        "harp+refit-chosen-03": temporarily_pruned(model, best.plan, weights=best.weights),
        "boundary-02": RIVALS["boundary"](model, LayerStream(model, job.refit_blocks()), [4, 5]),
        "nbl-02": RIVALS["nbl"](model, LayerStream(model, job.refit_blocks()), [4, 5]),
    }
    for name, change in changes.items():
        with change:
            nll = [total_nll(model, make_batches(document)) for document in text.documents]
        assert stored[name, f"{corpus}-{HELD_OUT}"]["nll"] == pytest.approx(nll, rel=1e-4), name


def test_a_key_is_named_once_and_asked_for_at_the_end():
    job = Job("frontier", load_profile("smoke", models=[MODEL]), MODEL)
    text = passkeys(job, tokens=96, depths=3, keys=2)
    places = []
    for document, whole in zip(text.documents, text.corpus.documents, strict=True):
        key = whole.rsplit(" ", 1)[1]
        assert whole.count(key) == 2, "where it is told, and the answer"
        places.append(whole.index(key) / len(whole))
        assert job.tokenizer.decode(document[0].ids[-document[0].scored :]).strip() == key
        assert 80 < len(document[0].ids) < 200
    assert places == sorted(places)
    assert places[0] < 0.2 < 0.6 < places[-1]
    assert len({whole.rsplit(" ", 1)[1] for whole in text.corpus.documents}) >= 4, (
        "not always the same key"
    )


def test_multiples_are_of_the_dense_model_or_of_harp(stored):
    profile = load_profile("smoke", models=[MODEL])
    found = figures_harp.changes(profile).set_index(["kind", "layers", "corpus"])
    row = found.loc["harp", 2, "python-docs"]
    assert row["value"] == pytest.approx(row["perplexity"] / row["dense"])
    against = figures_harp.changes(profile, "harp").set_index(["kind", "layers", "corpus"])
    again = against.loc["harp+refit", 2, "python-docs"]
    assert again["harp"] == row["perplexity"]
    assert "harp" not in against.index.get_level_values(0)
    assert again["value"] == pytest.approx(again["perplexity"] / row["perplexity"])
