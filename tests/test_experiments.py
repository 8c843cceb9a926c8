"""Every unit on a tiny model, end to end: which cells there are, and what their numbers are."""

import itertools
import json
import math
import shutil

import pytest
import torch

from harp_lib import config
from harp_lib.evaluation.benchmarks import ALL_BENCHMARKS
from harp_lib.evaluation.evaluator import Evaluator
from harp_lib.experiments import UNITS, compute, job, run
from harp_lib.experiments.changes import Change
from harp_lib.experiments.plans import WITHOUT_BOS, Setting, readings
from harp_lib.methods import alpha_search, layer_selection, make_plan
from harp_lib.methods.alpha_search import search_alphas
from harp_lib.models.load import load_model
from harp_lib.names import BASELINES, EVALUATED
from harp_lib.pruning.plan import PruningPlan
from harp_lib.pruning.surgery import temporarily_pruned
from harp_lib.report.frames import stacked
from harp_lib.results import read_results, rows_of, values_of
from harp_lib.text.corpora import load_corpus
from harp_lib.text.perplexity import make_batches, perplexity_from_nll, total_nll

MODEL = "tiny-gemma2"  # norms after attention, soft caps, sliding windows
FIRST, SECOND = CORPORA = ("python-docs", "scipy-docs")
ALL = ("dense", *EVALUATED)
TASKS = ("triviaqa", "piqa", "boolq")
# The second one after the dense model's reasoning.
LIKELIHOODS = ("triviaqa", "bbh_cot_fewshot", "longbench_narrativeqa")
CELLS = {
    "similarity": 3,
    "norm_change": 6,
    "alpha_search": 26,
    "baselines": 67,
    "depths": 71,
    "main_tables": 24,
    "longbench": 16,
    "ablations": 19,
    "efficiency": 9,
    "frontier": 132,
    "frontier_scores": 6,
    "likelihoods": 26,
}
"""How many cells the units of this file have, by store."""
QUESTIONS = ("main_tables", "longbench", "likelihoods", "frontier_scores")


def settings(**changes):
    profile = config.load_profile("smoke", models=[MODEL]) | changes
    profile["depths"] = {
        "layers": {MODEL: [1, 2, 3]},
        "baselines": {MODEL: [1]},
        "tasks": {MODEL: ["piqa"]},
    }
    profile["evaluation"]["tasks"] = {name: profile["evaluation"]["tasks"][name] for name in TASKS}
    profile["longbench"]["tasks"] = dict(itertools.islice(profile["longbench"]["tasks"].items(), 2))
    profile["likelihoods"]["tasks"] = {
        name: profile["likelihoods"]["tasks"][name] for name in LIKELIHOODS
    }
    return profile


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run of every unit, in which the ablations come before the scores that they read."""
    root = tmp_path_factory.mktemp("results")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(config, "RESULTS", root)
        run("similarity", "norms", profile=settings())
        run("alpha", "efficiency", "reasons", "frontier", "frontier_scores", profile=settings())
        run("ablations", "layers", "depths", profile=settings())
        run(
            "baselines",
            "scores",
            "longbench",
            "likelihoods",
            "longbench_likelihoods",
            profile=settings(),
        )
        yield root


@pytest.fixture(autouse=True)
def results(finished, monkeypatch):
    monkeypatch.setattr(config, "RESULTS", finished)


def stored_cells(store):
    """The cells of a store, by method and name."""
    of_model = read_results("smoke", store).items()
    return {(method, name): cell for (_, method, name), cell in of_model}


def result_of(store, method, name):
    return stored_cells(store)[method, name]["result"]


def inputs_of(store, method, name):
    return stored_cells(store)[method, name]["inputs"]


def of_quantity(result, quantity):
    """The rows of one quantity of a result."""
    rows = rows_of(result)
    return rows[rows["quantity"] == quantity].dropna(axis="columns", how="all")


def the_job(store="baselines"):
    return job.Job(store, settings(), MODEL)


def numbers_in(value):
    """All floating point numbers in nested lists and dictionaries."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        for part in value:
            yield from numbers_in(part)
    elif isinstance(value, float):
        yield value


def kinds_of(store, cells, left_out=()):
    """What there are cells of: without the numbers of layers and documents that they have.

    A kind is a method, the names of the coordinates, and which corpus, split, kind of measurement
    or task the cell is about.
    """
    kinds = set()
    for (_, method, name), cell in cells.items():
        coordinates = cell["coordinates"]
        method = coordinates.get("method", method)
        about = [coordinates.get(column) for column in ("corpus", "split", "kind")]
        is_of_task = name in ALL_BENCHMARKS
        if name in left_out or "llama_cpp" in about:
            continue
        task = name if is_of_task else None
        kinds.add((store, method, tuple(sorted(coordinates)), *about, task))
    return kinds


def columns_of_quantities(cells):
    """Pairs of a quantity and the columns that its rows have."""
    rows = stacked(cells)
    if "quantity" not in rows:
        return {(None, name) for name in rows}
    columns = set()
    for quantity, part in rows.groupby("quantity"):
        columns.update((quantity, name) for name in part.dropna(axis="columns", how="all"))
    return columns


def test_every_store_is_looked_at():
    assert set(CELLS) == {unit.store for unit in UNITS.values()}


@pytest.mark.parametrize(("store", "number"), CELLS.items())
def test_cells_are_those_of_the_reference(store, number):
    """The reference is of mini, which reports read; this profile leaves out some of its tasks."""
    cells = read_results("smoke", store)
    assert len(cells) == number
    for cell in cells.values():
        assert "rows" in cell["result"] or "plan" in cell["result"]
        assert all(math.isfinite(value) for value in numbers_in(cell["result"]))
    if not (config.REFERENCE / "mini" / store).exists():
        return
    reference = read_results("mini", store)
    asked = {*TASKS, *settings()["longbench"]["tasks"]}
    if store == "likelihoods":
        asked = set(LIKELIHOODS)
    left_out = set(ALL_BENCHMARKS) - asked
    assert kinds_of(store, reference, left_out) <= kinds_of(store, cells)


@pytest.mark.parametrize("store", [name for name in CELLS if name not in (*QUESTIONS, "depths")])
def test_rows_have_the_columns_of_the_reference(store):
    """What a figure asks of the committed rows, it finds in newly computed ones."""
    of_reference = columns_of_quantities(read_results("mini", store))
    # The tiny model's architecture has no llama.cpp, and the profile no other rankings of it.
    not_here = {"prompt", "generation", "score"}
    expected = {pair for pair in of_reference if pair[0] not in not_here}
    assert expected <= columns_of_quantities(read_results("smoke", store))


def test_a_second_run_computes_nothing_and_force_only_its_own(
    capsys, finished, tmp_path, monkeypatch
):
    run(*UNITS, profile=settings())
    assert capsys.readouterr().out.startswith("0 cells computed, ")
    assert not job._load.cache_info().currsize, "no model stays in memory"
    copy = tmp_path / "copy"
    shutil.copytree(finished, copy)
    monkeypatch.setattr(config, "RESULTS", copy)
    run("norms", profile=settings(), force=True)
    assert capsys.readouterr().out == "6 cells computed, 4 read\n", "the search is read"


@pytest.mark.parametrize(("split", "windows"), [("test", 2), ("validation", 6)])
def test_likelihoods_are_those_of_the_whole_model_document_by_document(split, windows):
    """What lies below a plan's lowest layer is run once for all plans: no number shows it."""
    this = the_job()
    model = this.model
    text = this.text(FIRST, split)
    assert len(text.windows) == windows, "held-out documents are longer, and cut in two"

    def whole_model(plan):
        with this.pruned(plan):
            return [total_nll(model, make_batches(model, document)) for document in text.documents]

    for method in ALL:
        result = result_of("baselines", method, f"{FIRST}-{split}")
        expected = whole_model(this.plan(method))
        assert values_of(result, "nll") == pytest.approx(expected, rel=1e-4), method
        assert values_of(result, "tokens") == text.tokens
        documents = list(range(len(text.documents)))
        assert of_quantity(result, "nll")["document"].tolist() == documents

    # The alphas that are searched on random weights are 0.
    both = make_plan(
        "harp+flap", model, torch.arange(90).view(3, 30), alphas=[0.8, 0.3], kv_groups=4
    )
    assert text.nll(both) == pytest.approx(whole_model(both), rel=1e-4)

    for method, twin in {"dense": "dense", "harp": f"searched-on-{FIRST}"}.items():
        result = result_of("baselines", method, f"{FIRST}-{split}")
        assert result == result_of("alpha_search", twin, f"{FIRST}-{split}"), "not computed twice"


def test_ranges_are_tuned_on_the_text_that_alpha_is_searched_on():
    text = the_job().text(FIRST, "test")
    search = stored_cells("alpha_search")["harp", f"search-{FIRST}"]
    for baseline in BASELINES:
        losses = {}
        for (method, _), cell in stored_cells("baselines").items():
            coordinates = cell["coordinates"]
            if method != baseline or "start" not in coordinates:
                continue
            assert cell["inputs"]["tuning_sha256"] == search["inputs"]["sha256"]
            tokens = values_of(cell["result"], "tokens")
            assert tokens == text.tokens
            layers = (coordinates["start"], coordinates["end"])
            assert list(layers) == cell["inputs"]["layers"]
            losses[layers] = sum(values_of(cell["result"], "nll")) / sum(tokens)
        assert len(losses) > 1
        tuned = inputs_of("baselines", baseline, "plan")["layers"]
        assert min(losses, key=losses.get) == tuple(tuned)
    assert values_of(search["result"], "tokens") == [sum(text.tokens)]


def test_the_other_reading_of_flap():
    this = the_job()
    inputs = inputs_of("baselines", "flap-squared", "plan")
    text = Setting(this).calibration("flap")
    budget = {"kv_groups": inputs["kv_groups"], "layers": range(*inputs["layers"])}
    assert this.plan("flap") == make_plan("flap", this.model, text, **budget)
    assert this.plan("flap-squared") == make_plan("flap", this.model, text, **budget, squared=True)


def test_other_depths_have_plans_of_their_own():
    """At the profile's own number of layers there are no cells: notebooks 04 and 05 have them."""
    cells = stored_cells("depths")
    assert {cell["coordinates"].get("depth") for cell in cells.values()} == {None, 1, 3}
    search = of_quantity(cells["harp", f"search-{FIRST}"]["result"], "alpha")
    alphas = search.set_index("layer")["value"].to_dict()
    assert sorted(alphas) == [3, 4, 5], "one search to the greatest depth"
    model = the_job().model
    for depth in (1, 3):
        plan = PruningPlan.from_dict(cells[f"harp-{depth:02d}", "plan"]["result"]["plan"])
        assert plan.alphas == {layer: alphas[layer] for layer in range(6 - depth, 6)}
        both = PruningPlan.from_dict(cells[f"harp+flap-{depth:02d}", "plan"]["result"]["plan"])
        assert both.alphas == plan.alphas
    assert not [method for method, _ in cells if method.startswith("flap-03")]
    flap = cells["flap-01", "plan"]
    plan = PruningPlan.from_dict(flap["result"]["plan"])
    groups = sum(len(layer.removed_groups) for layer in plan.layers.values())
    assert groups == flap["inputs"]["kv_groups"] == 2, "as many heads as one layer has"
    text = the_job().text(FIRST, "validation")
    with temporarily_pruned(model, plan):
        expected = total_nll(model, make_batches(model, text.windows))
    stored = values_of(cells["flap-01", f"{FIRST}-validation"]["result"], "nll")
    assert sum(stored) == pytest.approx(expected, rel=1e-4)
    assert cells["harp-03", "piqa"]["coordinates"] == {"method": "harp", "depth": 3}


def test_calibration_pieces_begin_with_bos_where_texts_do(tmp_path, monkeypatch):
    """Then the published way, without it, is a control."""
    this = the_job()
    assert not this.pieces_begin_with_bos
    assert not set(WITHOUT_BOS) & set(readings(this))
    monkeypatch.setattr(job, "adds_bos", lambda tokenizer: True)
    other = the_job()
    setting = Setting(other)
    bos = other.tokenizer.bos_token_id
    assert set(WITHOUT_BOS) <= set(setting.readings)
    assert set(setting.calibration("flap")[:, 0].tolist()) == {bos}
    assert bos not in setting.calibration("flap-without-bos")
    assert setting.inputs("flap") != Setting(this).inputs("flap")
    assert setting.inputs("flap-without-bos") == Setting(this).inputs("flap")
    assert other._refit_file != this._refit_file
    published = settings(bos_in_calibration=False)
    assert not job.Job("baselines", published, MODEL).pieces_begin_with_bos


def test_more_draws_of_the_calibration_text_are_readings():
    profile = settings()
    profile["baselines"]["draws"] = {MODEL: 2}
    setting = Setting(job.Job("baselines", profile, MODEL))
    draws = [name for name in setting.readings if "draw" in name]
    assert draws == ["flap-draw-1", "llm-pruner-draw-1", "flap-draw-2", "llm-pruner-draw-2"]
    texts = [setting.calibration(name) for name in ("flap", "flap-draw-1", "flap-draw-2")]
    assert not torch.equal(texts[0], texts[1])
    assert not torch.equal(texts[1], texts[2])
    assert setting.inputs("flap-draw-2")["seed"] == 2


def test_the_search_is_algorithm_1_on_the_stored_text():
    model, _ = load_model(MODEL)
    windows = the_job().text(FIRST, "test").windows
    search = search_alphas(model, windows, 2, progress=False, reuse_prefix=False)
    result = result_of("alpha_search", "harp", f"search-{FIRST}")
    alphas = of_quantity(result, "alpha").set_index("layer")["value"].to_dict()
    assert alphas == {5: search.alphas[0], 4: search.alphas[1]}
    assert list(the_job().alphas(FIRST).items()) == [(5, alphas[5]), (4, alphas[4])], "top first"

    curves = of_quantity(result, "perplexity")
    for layer, perplexities in search.perplexities.items():
        curve = curves[curves["layer"] == layer].set_index("alpha")["value"]
        assert curve.to_dict() == pytest.approx(perplexities, rel=1e-4)
    (layer_passes,) = values_of(result, "layer_passes")
    assert 0 < layer_passes <= search.layer_passes

    best = min(search.perplexities[4].values())
    evaluated = result_of("alpha_search", f"searched-on-{FIRST}", f"{FIRST}-test")
    nll = sum(values_of(evaluated, "nll"))
    tokens = sum(values_of(evaluated, "tokens"))
    assert perplexity_from_nll(nll, tokens) == pytest.approx(best, rel=1e-4)


def test_a_second_sample_shares_no_document_with_the_first():
    this = the_job()
    first = this.text(FIRST, "test").corpus.documents
    second = this.second_sample(FIRST).corpus.documents
    assert len(first) == len(second) == 2
    assert not set(first) & set(second)
    pages = load_corpus(FIRST, "test").documents
    assert [page.startswith(first) for page in pages].count(True) == 2, "cut at the same length"
    name = f"search-{FIRST}"
    search = inputs_of("alpha_search", "harp", name)
    search_again = inputs_of("alpha_search", "harp-resampled", name)
    assert search["sha256"] == this.text(FIRST, "test").corpus.sha256
    assert search_again["sha256"] == this.second_sample(FIRST).corpus.sha256


def test_where_all_pages_are_searched_there_is_no_second_sample(tmp_path, monkeypatch):
    """As in the profile paper, whose 62 pages are all that WikiText-2's test split has."""
    monkeypatch.setattr(config, "RESULTS", tmp_path)
    for tokens in (None, 64):
        profile = settings()
        profile["alpha_search"] |= {
            "documents": len(load_corpus(FIRST, "test").documents),
            "tokens": tokens,
        }
        this = job.Job("alpha_search", profile, MODEL)
        assert this.second_sample(FIRST) is None
        assert this.unsearched(FIRST, 10_000, 32).corpus.split == "validation"
    profile = settings()
    profile["alpha_search"] |= {"documents": 10_000, "tokens": 16}
    profile["corpora"] = [FIRST]
    assert compute("search", profile, MODEL) == {"computed": 1, "read": 0, "failed": 0}


def test_tokens_of_the_searched_text_are_as_cut_or_counted():
    this = the_job()
    assert this.searched_tokens == 2 * 64
    profile = settings()
    profile["alpha_search"] |= {"documents": 3, "tokens": None}
    whole = job.Job("frontier", profile, MODEL)
    ids = whole.tokenizer(whole.text(FIRST, "test").corpus.texts).input_ids
    assert whole.searched_tokens == sum(map(len, ids)), "the first token is predicted, too"
    assert Change(whole, "harp", (4, 5), "top", texts=1).calibration_tokens == whole.searched_tokens


def test_held_out_documents_may_be_all_of_them():
    this = the_job()
    corpus = this.unsearched(FIRST, None, None).corpus
    assert corpus.documents == load_corpus(FIRST, "validation").documents
    assert corpus.split == "validation"


def test_a_method_that_the_profile_does_not_name_has_the_usual_sample():
    profile = settings()
    profile["baselines"]["calibration"] = {"flap": [8, 32]}
    this = job.Job("baselines", profile, MODEL)
    assert this.calibration_size("flap") == [8, 32]
    assert this.calibration_size("harp+refit") == (128, 128)


def test_where_held_out_pages_are_too_few_test_pages_follow_that_no_search_reads():
    this = the_job()
    held_out = this.text(FIRST, "validation", (10_000, 32)).corpus
    more = this.unsearched(FIRST, 10_000, 32).corpus
    assert more.documents[: len(held_out.documents)] == held_out.documents
    others = more.documents[len(held_out.documents) :]
    assert len(others) > 0
    for searched in (this.text(FIRST, "test").corpus, this.second_sample(FIRST).corpus):
        assert not [page for page in searched.documents if page.startswith(others)]
    few = this.unsearched(FIRST, 3, 32).corpus
    assert (few.documents, few.split) == (held_out.documents[:3], "validation")


def test_gain_and_single_layers():
    model, _ = load_model(MODEL)
    this = the_job("ablations")
    alphas = this.alphas(FIRST)
    text = this.text(FIRST, "validation", (3, 64))[1:2]

    def likelihood(alphas):
        with temporarily_pruned(model, PruningPlan.value_only(6, alphas)):
            return pytest.approx(total_nll(model, make_batches(model, text.windows)), rel=1e-4)

    gain = result_of("ablations", "gain", "document-01")
    by_searched = of_quantity(gain, "nll").set_index("searched")["value"]
    assert by_searched.to_dict() == {
        0: likelihood({5: 1.0, 4: 1.0}),
        1: likelihood({5: alphas[5], 4: 1.0}),
        2: likelihood(alphas),
    }
    single = result_of("ablations", "single-layer", "document-01")
    by_layer = of_quantity(single, "nll").set_index(["layer", "alpha"])["value"]
    assert set(by_layer.index) == set(itertools.product(range(6), (0.0, 1.0)))
    assert by_layer[2, 1.0] == likelihood({2: 1.0})
    assert by_layer[2, 0.0] == likelihood({2: 0.0})
    for result in (gain, single):
        assert values_of(result, "dense nll") == [likelihood({})]
        assert values_of(result, "tokens") == text.tokens
    coordinates = stored_cells("ablations")["single-layer", "document-01"]["coordinates"]
    assert coordinates == {"document": 1, "num_pruned": 2}


def test_layers_are_those_with_the_lowest_scores():
    hessian = result_of("ablations", "hessian", "selection")
    scores = of_quantity(hessian, "score")
    assert scores["layer"].tolist() == list(range(6))
    lowest = layer_selection.lowest_layers(scores["value"].tolist(), 2)
    assert hessian["layers"] == lowest
    assert result_of("ablations", "bottom", "selection")["layers"] == [0, 1]
    assert result_of("ablations", "top", "selection")["layers"] == [4, 5]


def test_norms_follow_the_residual_stream():
    model, _ = load_model(MODEL)
    text = the_job().text(FIRST, "validation", (3, 96))
    assert len(text.documents[0]) == 1
    stream = of_quantity(result_of("norm_change", "dense", "reading"), "stream norm")
    with torch.no_grad():
        states = model(text.documents[0][0].ids[None], output_hidden_states=True).hidden_states
    # The last one is behind the final norm.
    expected = [state[:, 1:].double().norm().item() for state in states[:-1]]
    of_document = stream[stream["document"] == 0].sort_values("layer")
    assert of_document["layer"].tolist() == list(range(7))
    assert of_document["value"].tolist()[:-1] == pytest.approx(expected, rel=1e-5)


def test_norms_are_followed_under_the_alphas_of_every_rule():
    alphas = {}
    for (method, name), cell in stored_cells("norm_change").items():
        if name == "reading":
            alphas[method] = cell["inputs"]["alphas"]
            rows = of_quantity(cell["result"], "alpha")
            by_layer = {str(int(row.layer)): row.value for row in rows.itertuples()}
            assert by_layer == alphas[method], "the rows say under which alphas"
    searched = the_job().alphas(FIRST)
    assert alphas["searched"] == {str(layer): alpha for layer, alpha in searched.items()}
    assert alphas["dense"] == {}
    branches = result_of("norm_change", "dense", FIRST)
    product, square = (
        of_quantity(branches, f"product {pair}").groupby("layer")["value"].sum()
        for pair in ("AB", "BB")
    )
    nearest = (product / square).clip(0, 1)  # ⟨A, B⟩ / ⟨B, B⟩
    expected = {str(layer): pytest.approx(nearest[layer]) for layer in (4, 5)}
    assert alphas["reconstructing"] == expected


def test_the_ablations_share_their_scores_with_the_main_tables():
    """They ran first, and computed HARP's for notebook 05, whose plan of HARP is another object."""
    plans = {inputs_of("main_tables", "harp", task)["plan"] for task in TASKS}
    assert plans == {the_job().plan("harp").digest}
    top = inputs_of("ablations", "top", "piqa")
    assert top["plan"] == PruningPlan.value_only(6, {4: 1.0, 5: 1.0}).digest


def test_parts_are_all_of_it_and_share_nothing(finished, tmp_path, monkeypatch):
    for store in ("baselines", "alpha_search"):
        (tmp_path / "smoke" / store).mkdir(parents=True)
        (tmp_path / "smoke" / store / MODEL).symlink_to(finished / "smoke" / store / MODEL)
    monkeypatch.setattr(config, "RESULTS", tmp_path)

    def evaluate(self, model, tokenizer, benchmark):
        return {"rows": [{"score": 1.0}]}

    monkeypatch.setattr(Evaluator, "evaluate", evaluate)
    profile = settings()
    counts = [compute("scores", profile, MODEL, part=(i, 2)) for i in range(2)]
    assert [count["computed"] for count in counts] == [16, 8]
    assert compute("scores", profile, MODEL) == {"computed": 0, "read": 24, "failed": 0}
    assert compute("scores", profile, MODEL, force=True) == {"computed": 24, "read": 0, "failed": 0}


def test_a_score_that_fails_is_kept_with_its_reason(finished, tmp_path, monkeypatch):
    (tmp_path / "smoke").mkdir(parents=True)
    (tmp_path / "smoke" / "baselines").symlink_to(finished / "smoke" / "baselines")
    monkeypatch.setattr(config, "RESULTS", tmp_path)
    evaluate = Evaluator.evaluate

    def forgetful(self, model, tokenizer, benchmark):
        if benchmark.name == "piqa":
            raise torch.OutOfMemoryError("CUDA out of memory.\nand where")
        return evaluate(self, model, tokenizer, benchmark)

    monkeypatch.setattr(Evaluator, "evaluate", forgetful)
    (tmp_path / "rows").mkdir()
    (tmp_path / "rows" / "piqa").symlink_to(config.DATA / "mini" / "piqa")
    profile = settings(datasets=str(tmp_path / "rows"))
    assert compute("scores", profile, MODEL) == {"computed": 0, "read": 0, "failed": 24}
    reasons = {task: set() for task in TASKS}
    for task in TASKS:
        for file in tmp_path.rglob(f"{task}.json"):
            reasons[task].add(json.loads(file.read_text())["result"]["failed"])
    # Of HARP too, whose plan here is HARP+FLAP's.
    assert reasons["piqa"] == {"OutOfMemoryError: CUDA out of memory."}
    (reason,) = reasons["boolq"]
    assert "boolq" in reason


def test_a_search_that_is_interrupted_goes_on_where_it_was(tmp_path, monkeypatch):
    total_nll_with = alpha_search.total_nll_with
    candidates = []

    def stopping(*arguments):
        candidates.append(arguments)
        if len(candidates) == 6:
            raise KeyboardInterrupt
        return total_nll_with(*arguments)

    monkeypatch.setattr(config, "RESULTS", tmp_path)
    monkeypatch.setattr(alpha_search, "total_nll_with", stopping)
    with pytest.raises(KeyboardInterrupt):
        compute("search", settings(), MODEL)
    assert compute("search", settings(), MODEL) == {"computed": 4, "read": 0, "failed": 0}
    assert len(candidates) == 1 + 4 * 2 * 11, "one candidate of four searches is begun again"
    assert not list(tmp_path.rglob("*.partial"))
