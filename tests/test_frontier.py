"""Notebook 09's cells: they hold what the changed model, run as a whole, makes of documents."""

import pytest
import torch
from checkouts import link_results

from harp_lib import config, load_model
from harp_lib.experiments import changes, run
from harp_lib.experiments.changes import TOP, WITH_FIT, Change, fitted_blocks, ranked_blocks
from harp_lib.experiments.context import HELD_OUT, Context
from harp_lib.experiments.frontier import _changes, _compared, _Evaluation, reasons
from harp_lib.experiments.passkeys import CALIBRATION_DIGITS, PASSKEY, passkeys
from harp_lib.experiments.search import alphas_of, search_cell, searched_alphas
from harp_lib.methods.alpha_search import ALPHA_GRID, search_alphas
from harp_lib.methods.calibration import LayerStream
from harp_lib.methods.fit_alpha import fit_alpha_by_layer
from harp_lib.methods.norm_alpha import norm_alpha_by_layer
from harp_lib.methods.refit import explained_by_layer, refit_values
from harp_lib.methods.rivals import RIVALS, nbl, nbl_maps
from harp_lib.pruning.plan import PruningPlan
from harp_lib.pruning.surgery import temporarily_pruned
from harp_lib.report.frames import stacked, with_plain_types
from harp_lib.results import Store, read_unit, rows_of, values_of
from harp_lib.text.perplexity import make_batches, perplexity, total_nll

MODEL = "tiny-llama"  # six layers: a third are two, and half are three
FITTED = ("alpha-fit", "nbl", "harp+refit")


@pytest.fixture(scope="module", autouse=True)
def root(tmp_path_factory, known_results):
    """A folder with the results of one tiny model."""
    root = tmp_path_factory.mktemp("results")
    link_results(known_results, root)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(config, "RESULTS", root)
        run("frontier", "reasons", "frontier_scores", profile=profile())
        yield root


@pytest.fixture(scope="module")
def stored(root):
    """The cells of the unit frontier."""
    return read_unit("smoke", "frontier")


@pytest.fixture(scope="module")
def context(root):
    return context_of(profile())


def profile(model=MODEL, **changes):
    return config.load_profile("smoke", models=[model]) | changes


def context_of(settings, model=MODEL):
    return Context(config.profile_for(model, settings), model, Store())


def changes_of(context):
    """All changes of the unit frontier."""
    return [*_changes(context), *_compared(context)]


def results_of(cells, what, **about):
    """The results of the cells in which something is computed, and that are about something."""
    return [
        cell["result"]
        for cell in cells
        if cell["inputs"]["what"] == what and about.items() <= cell["about"].items()
    ]


def rows(stored, *quantities):
    frame = stacked(stored)
    return with_plain_types(frame[frame["quantity"].isin(quantities)])


def of_change(frame, method, ranking, layers, **others):
    """Rows of one change, of the first draw unless said otherwise."""
    usual = {"seed": 0, "prompts": 0, **others}
    chosen = (frame["method"] == method) & (frame["layers"] == layers)
    if ranking:
        chosen &= frame["ranking"] == ranking
    for column, value in usual.items():
        chosen &= frame[column] == value
    if "without" not in others:
        chosen &= frame["without"].isna()
    return frame[chosen]


def test_each_control_is_fitted_on_the_same_text_and_evaluated_on_the_same_documents(stored):
    nll = rows(stored, "nll")
    texts = {"python-docs", "scipy-docs", "gov_report"}
    sizes = nll[nll["corpus"] != PASSKEY].groupby(["method", "layers", "corpus"])["document"]
    assert set(nll["corpus"]) == {*texts, PASSKEY}
    assert set(nll["split"]) <= {HELD_OUT, f"{HELD_OUT} and test"}
    assert sizes.nunique().eq(3).all()
    for ranking in ("top", "explained"):
        for layers in (2, 3):
            for method in FITTED:
                part = of_change(nll, method, ranking, layers, texts=2, calibration_tokens=256)
                assert set(part["corpus"]) >= texts
    assert {*RIVALS} <= set(nll["method"])


def test_only_a_third_of_the_layers_is_asked_for_pass_keys(stored):
    keys = rows(stored, "exact")
    assert set(keys.loc[keys["method"] != "dense", "layers"]) == {1, 2}, "1: the study"
    assert set(keys["length"]) == {32, 64}
    assert set(keys["depth"]) == {0.0, 1.0}
    assert set(keys["value"]) <= {0.0, 1.0}
    study = keys[keys["method"] == "harp+refit"]
    assert study["without"].nunique() == 2, "each chosen layer once"
    assert set(study["prompts"]) == {0, 12}


def test_layers_are_ranked_and_fitted_on_different_halves(context):
    ranked = {tuple(block) for block in ranked_blocks(context, 0).tolist()}
    fitted = {tuple(block) for block in fitted_blocks(context, 2, 4, 0).tolist()}
    assert len(ranked) == len(fitted) == 4
    assert not ranked & fitted
    other_draw = {tuple(block) for block in fitted_blocks(context, 2, 4, 1).tolist()}
    assert fitted != other_draw


def test_a_longer_greedy_search_begins_like_the_shorter_one(stored, context):
    alphas = rows(stored, "alpha")
    searched = alphas[alphas["method"] == "harp"].set_index("layer")["value"]
    shorter = searched_alphas(context, context.corpora[0])
    assert searched[list(shorter)].to_dict() == shorter
    assert len(searched) == 3


def test_alpha_is_also_searched_on_the_text_that_a_refit_reads(stored, context):
    text = fitted_blocks(context, 2, 4, 0)
    for layers in (2, 3):
        search = search_alphas(context.model, text, layers)
        [result] = results_of(stored, "search", method="alpha-search", layers=layers)
        assert alphas_of(result) == search.plan.alphas
        assert values_of(result, "layer_passes") == [search.layer_passes]
        assert values_of(result, "tokens") == [4 * 63]
        [seconds] = values_of(result, "seconds")
        assert seconds > 0


def test_what_is_compared_with_harp_has_a_depth_of_its_own():
    """Where the profile prunes another number of layers, none of these cells may vanish."""
    settings = profile()
    settings["frontier"]["searched_again"] = [MODEL]
    expected = ["alpha-0.3", "alpha-0.5", "alpha-1", "alpha-norm", "alpha-float32"]
    expected += ["alpha-in-pairs", *RIVALS]
    shares = {0.1667: 1, 0.3334: 2, 0.8334: 5}  # of six layers, of which HARP prunes two
    for share, count in shares.items():
        settings["frontier"]["compared"] = {MODEL: share}
        changes = changes_of(context_of(settings))
        for method in expected:
            layers = [change.layers for change in changes if change.method == method]
            assert tuple(range(6 - count, 6)) in layers, (method, share)


LAYERS = {
    "smollm2-135m": 30,
    "gemma3-270m": 18,
    "qwen2.5-coder-0.5b": 24,
    "qwen2.5-coder-1.5b": 28,
}


def test_small_has_everything_that_is_compared_with_harp():
    """In a fifth of each model's layers, whatever number the other notebooks prune."""
    settings = config.read_profile("small")["frontier"]
    assert list(settings["compared"]) == list(LAYERS)
    constants = ["alpha-0", "alpha-0.3", "alpha-0.5", "alpha-1", "alpha-norm"]
    again = ["alpha-float32", "alpha-in-pairs"]
    of_top = {}
    for cell in read_unit("small", "frontier"):
        about = cell["about"]
        if about.get("ranking") == TOP and about["method"] != "alpha-search":
            of_top.setdefault((about["model"], about["layers"]), set()).add(about["method"])
    for model, share in settings["compared"].items():
        expected = {"harp", *constants, *FITTED, *RIVALS}
        if model in settings["searched_again"]:
            expected.update(again)
        assert of_top[model, round(share * LAYERS[model])] == expected, model


def test_controls_of_alpha(context):
    """One alpha for all layers, alphas in other orders, and a fit on the searched text."""
    cells = read_unit("smoke", "reasons")
    text = context.text(context.corpora[0], "test")
    single = {}
    for alpha in ALPHA_GRID:
        with temporarily_pruned(context.model, PruningPlan.value_only(6, {4: alpha, 5: alpha})):
            single[alpha] = perplexity(context.model, text.windows)
    best = min(single, key=single.get)
    searched = LayerStream(context.model, [window.ids for window in text.windows])
    alphas = {
        "alpha-single": dict.fromkeys((4, 5), best),
        "alpha-0.3": dict.fromkeys((4, 5), 0.3),
        "alpha-fit-searched": fit_alpha_by_layer(context.model, searched, [4, 5]),
    }
    held_out = context.unsearched(context.corpora[0], 3, 64)
    for method, of_layers in alphas.items():
        with temporarily_pruned(context.model, PruningPlan.value_only(6, of_layers)):
            expected = total_nll(context.model, make_batches(context.model, held_out.windows))
        about = {"method": method, "corpus": context.corpora[0]}
        [result] = results_of(cells, "likelihood of documents", **about)
        assert sum(values_of(result, "nll")) == pytest.approx(expected, rel=1e-4), method


@pytest.mark.parametrize("count", [3, 6])
def test_shuffled_alphas_are_the_searched_ones_each_time_in_another_order(
    context, monkeypatch, count
):
    layers = tuple(range(count))
    searched = {layer: layer / 10 for layer in layers}
    monkeypatch.setattr(changes, "top_alphas", lambda context, count: searched)
    orders = {tuple(searched.values())}
    for draw in (1, 2, 3):
        change = Change(context, "alpha-shuffled", layers, TOP, texts=1, draw=draw)
        shuffled = change._alphas()
        assert list(shuffled) == list(layers)
        assert sorted(shuffled.values()) == list(searched.values())
        orders.add(tuple(shuffled.values()))
    assert len(orders) == 4


def test_the_search_is_listed_where_no_more_layers_are_changed_than_harp_prunes():
    """As for a model that the profile has no shares for; notebook 02 reads it."""
    settings = profile()
    settings["frontier"]["shares"] = {}
    context = context_of(settings)
    cell = search_cell(context, context.corpora[0], context.num_pruned)
    assert next(reasons(context)).digest == cell.digest


def test_pass_keys_are_left_out_where_there_are_no_lengths():
    settings = profile()
    settings["frontier"]["passkey"]["lengths"] = []
    context = context_of(settings)
    evaluation = _Evaluation(context)
    assert PASSKEY not in evaluation.texts
    assert evaluation._evaluated_on(Change(context, "dense")) == tuple(evaluation.texts)
    study = Change(context, "harp+refit", (4,), TOP, texts=2, samples=4, without=5)
    assert evaluation._evaluated_on(study) == ()


def test_the_search_can_be_repeated_in_float32_and_in_pairs():
    settings = profile("tiny-gemma2", dtype="bfloat16")
    other = context_of(settings, "tiny-gemma2")
    text = other.text(other.corpora[0], "test")
    twice = [window for window in text.windows for _ in range(2)]
    expected = {
        "alpha-in-pairs": search_alphas(other.model, twice, 2),
        "alpha-float32": search_alphas(load_model("tiny-gemma2", "float32")[0], text.windows, 2),
    }
    repeated = [change for change in changes_of(other) if change.method in expected]
    assert len(repeated) == 2
    for change in repeated:
        search = expected[change.method]
        result = other.store.get(change.search_cell())
        assert change._alphas() == alphas_of(result) == search.plan.alphas
        of_layers = [value for of in search.perplexities.values() for value in of.values()]
        found = rows_of(result)
        assert found.loc[found["quantity"] == "perplexity", "value"].tolist() == of_layers
    assert expected["alpha-float32"].perplexities != expected["alpha-in-pairs"].perplexities


def test_what_lies_below_a_change_is_run_once_for_all_fits(context):
    """A fit from shared states is the fit on the text, to the last bit."""
    changes = [change for change in _changes(context) if change.method in WITH_FIT]
    usual = [change for change in changes if change.samples == 4 and change.draw == 0]
    rising = sorted(usual, key=lambda change: change.lowest)[::2]
    assert len(rising) > 5
    streams = set()
    shared = []
    for change in rising:
        shared.append(found_by_layer(change))
        streams.update(context.calibrated.values())
        change.forget()
    assert len(streams) == 1
    for change, expected in zip(rising, shared, strict=True):
        context.calibrated = {}
        assert found_by_layer(change) == expected


def found_by_layer(change):
    """What a fit found, which has to have taken some time."""
    found = rows_of(change.fit())
    assert found.loc[found["quantity"] == "seconds", "value"].item() > 0
    if "layer" not in found:  # NBL says nothing of its layers
        return []
    return found.dropna(subset="layer").to_dict("records")


def test_fits_say_what_they_explain(stored, context):
    explained = rows(stored, "explained")
    by_layer = explained_by_layer(context.model, ranked_blocks(context, 0))
    of_dense = explained[(explained["method"] == "dense") & (explained["seed"] == 0)]
    assert of_dense.sort_values("layer")["value"].tolist() == pytest.approx(by_layer)
    fit = refit_values(context.model, fitted_blocks(context, 2, 4, 0), 3)
    of_fit = of_change(explained, "harp+refit", "top", 3, calibration_tokens=256)
    assert of_fit.set_index("layer")["value"].to_dict() == pytest.approx(fit.explained)


def best_explained(context, count):
    explained = explained_by_layer(context.model, ranked_blocks(context, 0))
    return sorted(sorted(range(6), key=lambda layer: -explained[layer])[:count])


def test_cells_are_likelihoods_of_the_whole_changed_model(stored, context):
    model = context.model
    corpus = context.corpora[0]
    text = context.unsearched(corpus, 3, 64)
    tokens = fitted_blocks(context, 2, 4, 0)
    chosen = best_explained(context, 3)
    refit = refit_values(model, tokens, 3, chosen)
    fitted = fit_alpha_by_layer(model, LayerStream(model, tokens), chosen)

    def value_only(alphas):
        return temporarily_pruned(model, PruningPlan.value_only(6, alphas))

    changes = {
        ("dense", None, 0): temporarily_pruned(model, PruningPlan(6, {})),
        ("alpha-0", "top", 3): value_only([0.0] * 3),
        ("alpha-0.5", "top", 2): value_only([0.5] * 2),
        ("alpha-1", "top", 2): value_only([1.0] * 2),
        ("alpha-norm", "top", 2): value_only(
            norm_alpha_by_layer(model, LayerStream(model, tokens), [4, 5])
        ),
        ("alpha-search", "top", 3): value_only(search_alphas(model, tokens, 3).alphas),
        ("alpha-fit", "explained", 3): value_only(fitted),
        ("nbl", "explained", 3): nbl(model, nbl_maps(model, LayerStream(model, tokens), chosen)),
        ("harp+refit", "explained", 3): temporarily_pruned(
            model, refit.plan, weights=refit.weights
        ),
        ("boundary", "top", 2): RIVALS["boundary"](model, LayerStream(model, tokens), [4, 5]),
    }
    nll = rows(stored, "nll")
    nll = nll[nll["corpus"] == corpus]
    for change, changed in changes.items():
        with changed:
            expected = [
                total_nll(model, make_batches(model, document)) for document in text.documents
            ]
        part = of_change(nll, *change)
        assert part["document"].tolist() == [0, 1, 2]
        assert part["value"].tolist() == pytest.approx(expected, rel=1e-4), change


def test_greedy_skips_the_attention_that_costs_least(stored, context):
    places = rows(stored, "score")
    greedy = places[places["ranking"] == "greedy"].set_index("layer")["value"]
    blocks = ranked_blocks(context, 0)
    text = torch.stack([blocks[0, :32], blocks[2, :32]])  # one of each kind
    costs = []
    for layer in range(6):
        with temporarily_pruned(context.model, PruningPlan.value_only(6, {layer: 0.0})):
            costs.append(perplexity(context.model, text))
    assert greedy.idxmin() == costs.index(min(costs))
    assert sorted(greedy) == [0, 1, 2]


def test_a_key_is_named_once_and_asked_for_at_the_end(context):
    text, places = passkeys(context, [64, 96], depths=3, keys=2)
    assert len(places) == len(text.documents) == 12
    shares = []
    for document, whole in zip(text.documents, text.corpus.documents, strict=True):
        _, key = whole.rsplit(" ", 1)
        assert whole.count(key) == 2, "where it is named, and the answer"
        shares.append(whole.index(key) / len(whole))
        assert context.tokenizer.decode(document[0].ids[-document[0].scored :]).strip() == key
    assert shares[0] < 0.25 < 0.6 < shares[-1]
    evaluated = {whole.rsplit(" ", 1)[1] for whole in text.corpus.documents}
    others, _ = passkeys(context, [64, 96], 3, 2, CALIBRATION_DIGITS)
    calibrated = {whole.rsplit(" ", 1)[1] for whole in others.corpus.documents}
    assert len(evaluated) >= 4, "not always the same key"
    assert not evaluated & calibrated


def test_costs_of_a_change_are_shares_of_the_dense_model(stored):
    left = rows(stored, "prefill left", "cache left", "parameters left")
    left = left[(left["layers"] == 2) & (left["texts"] == 2) & (left["seed"] == 0)]
    left = left[~left["method"].isin(RIVALS)]
    costs = left.pivot_table("value", ["method", "ranking"], "quantity")
    assert (costs["cache left"].round(3) == round(4 / 6, 3)).all()
    refit = costs.loc["harp+refit", "top"]
    # The values of this tiny model are as wide as half of it, so NBL has as many weights.
    assert refit["parameters left"] <= costs.loc["nbl", "top"]["parameters left"]
    assert refit["prefill left"] <= costs.loc["harp+refit", "explained"]["prefill left"]


def test_benchmarks_compare_the_same_questions(stored):
    cells = read_unit("smoke", "frontier_scores")
    assert {cell["about"]["method"] for cell in cells} == {"dense", "harp", "harp+refit"}
    for task in ("piqa", "triviaqa"):
        asked = [
            cell["result"]["rows"]["question"] for cell in cells if cell["about"]["task"] == task
        ]
        assert len(asked) == 4
        assert all(questions == asked[0] for questions in asked)
