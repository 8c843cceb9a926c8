"""Every unit on a tiny model, end to end: which cells there are, and what their numbers are."""

import itertools
import json
import shutil

import pytest
import torch
from checkouts import link_results

from harp_lib import config
from harp_lib.evaluation.benchmarks import ALL_BENCHMARKS
from harp_lib.evaluation.evaluator import Evaluator
from harp_lib.experiments import UNITS, compute, context, run
from harp_lib.experiments.context import Context
from harp_lib.experiments.plans import Planning
from harp_lib.experiments.search import searched_alphas
from harp_lib.methods import layer_selection, make_plan
from harp_lib.methods.alpha_search import search_alphas
from harp_lib.models.load import load_model
from harp_lib.names import BASELINES, EVALUATED
from harp_lib.pruning.plan import PruningPlan
from harp_lib.pruning.surgery import temporarily_pruned
from harp_lib.report.frames import stacked
from harp_lib.results import Store, digest, listed_cells, read_unit, rows_of, values_of
from harp_lib.text.perplexity import make_batches, perplexity_from_nll, total_nll

MODEL = "tiny-gemma2"  # norms after attention, soft caps, sliding windows
FIRST, SECOND = CORPORA = ("python-docs", "scipy-docs")
ALL = ("dense", *EVALUATED)
TASKS = ("triviaqa", "piqa", "boolq")
# The second one after the dense model's reasoning.
LIKELIHOODS = ("triviaqa", "bbh_cot_fewshot", "longbench_narrativeqa")
CELLS = {
    "similarity": 3,
    "search": 4,
    "alpha": 22,
    "norms": 7,
    "plans": 39,
    "baselines": 28,
    "scores": 24,
    "depths": 83,
    "likelihoods": 16,
    "longbench": 16,
    "longbench_likelihoods": 8,
    "layers": 10,
    "ablations": 21,
    "efficiency": 9,
    "reasons": 49,
    "frontier": 115,
    "frontier_scores": 6,
}
"""How many cells each unit lists."""
OF_TASKS = ("scores", "longbench", "likelihoods", "longbench_likelihoods", "frontier_scores")
NLL = "likelihood of documents"
# Quantities of the reference that were computed until 2026-11-29, and shown nowhere.
NO_MORE = ("peak_bytes", "bytes")


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
def finished(tmp_path_factory, known_results):
    """A run of every unit, the last one first: none needs another one to be there."""
    root = tmp_path_factory.mktemp("results")
    link_results(known_results, root)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(config, "RESULTS", root)
        run(*reversed(UNITS), profile=settings())
        yield root


@pytest.fixture(autouse=True)
def results(finished, monkeypatch):
    monkeypatch.setattr(config, "RESULTS", finished)


@pytest.fixture
def only_plans(finished, tmp_path, monkeypatch):
    """A folder of results that has the plans of all methods, and nothing that rests on them."""
    (tmp_path / "cells").mkdir()
    for cell in {*listed_cells("smoke", "search"), *listed_cells("smoke", "plans")}:
        shutil.copy(finished / "cells" / f"{cell}.json", tmp_path / "cells")
    (tmp_path / "refits").symlink_to(finished / "refits")
    monkeypatch.setattr(config, "RESULTS", tmp_path)


def cells_of(unit, what, **about):
    """The cells of a unit in which something is computed, and that are about something."""
    return [
        cell
        for cell in read_unit("smoke", unit)
        if cell["inputs"]["what"] == what and about.items() <= cell["about"].items()
    ]


def cell_of(unit, what, **about):
    [cell] = cells_of(unit, what, **about)
    return cell


def result_of(unit, what, **about):
    return cell_of(unit, what, **about)["result"]


def inputs_of(unit, what, **about):
    return cell_of(unit, what, **about)["inputs"]


def of_quantity(result, quantity):
    """The rows of one quantity of a result."""
    rows = rows_of(result)
    return rows[rows["quantity"] == quantity].dropna(axis="columns", how="all")


def context_of(profile=None):
    return Context(profile or settings(), MODEL, Store())


def kinds_of(cells, left_out=()):
    """What there are cells of: without the numbers of layers and documents that they have.

    A kind is what is computed, the names of the columns, and which method, corpus, split, kind of
    measurement or task the cell is about.
    """
    kinds = set()
    for cell in cells:
        about = cell["about"]
        if about.get("task") not in left_out and about.get("kind") != "llama_cpp":
            columns = ("method", "corpus", "split", "kind", "task")
            values = [about.get(column) for column in columns]
            kinds.add((cell["inputs"]["what"], tuple(sorted(about)), *values))
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


@pytest.mark.parametrize("unit", UNITS)
def test_cells_and_columns_are_those_of_the_reference(unit):
    """The reference is of mini, which reports read; this profile leaves out some of its tasks."""
    cells = read_unit("smoke", unit)
    assert len(cells) == CELLS[unit]
    for cell in cells:
        assert "rows" in cell["result"] or "plan" in cell["result"]
        assert json.dumps(cell["result"], allow_nan=False), "all numbers are finite"
    if not (config.REFERENCE / "mini" / unit).exists():
        return
    asked = {*TASKS, *settings()["longbench"]["tasks"]}
    if "likelihoods" in unit:
        asked = set(LIKELIHOODS)
    reference = read_unit("mini", unit)
    assert kinds_of(reference, set(ALL_BENCHMARKS) - asked) <= kinds_of(cells)
    if unit not in OF_TASKS:
        # The tiny model's architecture has no llama.cpp, and the profile no other rankings of it.
        not_here = {"prompt", "generation", "score", *NO_MORE}
        columns = columns_of_quantities(reference)
        expected = {pair for pair in columns if pair[0] not in not_here}
        assert expected <= columns_of_quantities(cells), "as figures ask for"


def test_a_run_in_another_order_computes_nothing_and_force_only_its_own(
    capsys, finished, tmp_path, monkeypatch
):
    run("search", "plans", "baselines", "norms", profile=settings())
    assert capsys.readouterr().out.startswith("0 cells computed, ")
    assert not context._load.cache_info().currsize, "no model stays in memory"
    link_results(finished, tmp_path)
    monkeypatch.setattr(config, "RESULTS", tmp_path)
    run("norms", profile=settings(), force=True)
    shown = capsys.readouterr().out
    assert shown == "7 cells computed, 2 read\n", "the search and the fit that unit reasons lists"


def test_likelihoods_are_those_of_the_whole_model_document_by_document():
    """What lies below a plan's lowest layer is run once for all plans: no number shows it."""
    this = context_of()
    planning = Planning(this)
    model = this.model
    text = this.text(FIRST, "validation")
    assert len(text.windows) == 6, "three documents that are cut in two"
    of_text = {"corpus": FIRST, "split": "validation"}

    def whole_model(plan):
        with this.pruned(plan):
            return [total_nll(model, make_batches(model, document)) for document in text.documents]

    for method in ALL:
        result = result_of("baselines", NLL, method=method, **of_text)
        expected = whole_model(planning.plan(method))
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
        inputs = inputs_of("baselines", NLL, method=method, **of_text)
        assert inputs == inputs_of("alpha", NLL, method=twin, **of_text), "not computed twice"


def test_ranges_are_tuned_on_the_text_that_alpha_is_searched_on():
    text = context_of().text(FIRST, "test")
    harp = cell_of("search", "search", method="harp", corpus=FIRST)
    for baseline in BASELINES:
        losses = {}
        for cell in cells_of("plans", "layer range", method=baseline):
            assert cell["inputs"]["tuning_sha256"] == harp["inputs"]["sha256"]
            tokens = values_of(cell["result"], "tokens")
            assert tokens == text.tokens
            layers = (cell["about"]["start"], cell["about"]["end"])
            assert list(layers) == cell["inputs"]["layers"]
            losses[layers] = sum(values_of(cell["result"], "nll")) / sum(tokens)
        assert len(losses) > 1
        tuned = inputs_of("plans", "plan", method=baseline)["layers"]
        assert min(losses, key=losses.get) == tuple(tuned)
    assert values_of(harp["result"], "tokens") == [sum(text.tokens)]


def test_the_other_reading_of_flap():
    this = context_of()
    planning = Planning(this)
    inputs = inputs_of("plans", "plan", method="flap-squared")
    text = planning.calibration("flap")
    budget = {"kv_groups": inputs["kv_groups"], "layers": range(*inputs["layers"])}
    squared = make_plan("flap", this.model, text, **budget, squared=True)
    assert planning.plan("flap") == make_plan("flap", this.model, text, **budget)
    assert planning.plan("flap-squared") == squared


def test_other_depths_have_plans_of_their_own():
    """At the profile's own number of layers the cells are those of notebooks 04 and 05."""
    depths = {cell["about"].get("depth") for cell in read_unit("smoke", "depths")}
    assert depths == {None, 0, 1, 2, 3}
    elsewhere = {*listed_cells("smoke", "plans"), *listed_cells("smoke", "baselines")}
    elsewhere.update(listed_cells("smoke", "scores"))
    for what in ("plan", NLL, "scores"):
        for cell in cells_of("depths", what):
            is_shared = digest(cell["inputs"]) in elsewhere
            assert is_shared == (cell["about"]["depth"] in (0, 2)), cell["about"]

    rows = of_quantity(result_of("depths", "search", method="harp"), "alpha")
    alphas = rows.set_index("layer")["value"].to_dict()
    assert sorted(alphas) == [3, 4, 5], "one search to the greatest depth"
    for depth in (1, 3):
        for method in ("harp", "harp+flap"):
            planned = result_of("depths", "plan", method=method, depth=depth)
            plan = PruningPlan.from_dict(planned["plan"])
            assert plan.alphas == {layer: alphas[layer] for layer in range(6 - depth, 6)}
    assert not cells_of("depths", "plan", method="flap", depth=3)
    flap = cell_of("depths", "plan", method="flap", depth=1)
    plan = PruningPlan.from_dict(flap["result"]["plan"])
    groups = sum(len(layer.removed_groups) for layer in plan.layers.values())
    assert groups == flap["inputs"]["kv_groups"] == 2, "as many heads as one layer has"
    this = context_of()
    windows = this.text(FIRST, "validation").windows
    with temporarily_pruned(this.model, plan):
        expected = total_nll(this.model, make_batches(this.model, windows))
    stored = result_of("depths", NLL, method="flap", depth=1, corpus=FIRST)
    assert sum(values_of(stored, "nll")) == pytest.approx(expected, rel=1e-4)


def test_the_search_is_algorithm_1_on_the_stored_text():
    model, _ = load_model(MODEL)
    this = context_of()
    windows = this.text(FIRST, "test").windows
    literal = search_alphas(model, windows, 2, progress=False, reuse_prefix=False)
    result = result_of("search", "search", method="harp", corpus=FIRST)
    alphas = of_quantity(result, "alpha").set_index("layer")["value"].to_dict()
    assert alphas == {5: literal.alphas[0], 4: literal.alphas[1]}
    top_first = [(5, alphas[5]), (4, alphas[4])]
    assert list(searched_alphas(this, FIRST).items()) == top_first

    curves = of_quantity(result, "perplexity")
    for layer, perplexities in literal.perplexities.items():
        curve = curves[curves["layer"] == layer].set_index("alpha")["value"]
        assert curve.to_dict() == pytest.approx(perplexities, rel=1e-4)
    (layer_passes,) = values_of(result, "layer_passes")
    assert 0 < layer_passes <= literal.layer_passes

    best = min(literal.perplexities[4].values())
    evaluated = result_of("alpha", NLL, method=f"searched-on-{FIRST}", corpus=FIRST, split="test")
    nll = sum(values_of(evaluated, "nll"))
    tokens = sum(values_of(evaluated, "tokens"))
    assert perplexity_from_nll(nll, tokens) == pytest.approx(best, rel=1e-4)


def test_gain_and_single_layers():
    this = context_of()
    alphas = searched_alphas(this, FIRST)
    text = this.text(FIRST, "validation", (3, 64))[1:2]

    def likelihood(alphas):
        with temporarily_pruned(this.model, PruningPlan.value_only(6, alphas)):
            nll = total_nll(this.model, make_batches(this.model, text.windows))
        return pytest.approx(nll, rel=1e-4)

    gain = result_of("layers", "gain", document=1)
    by_searched = of_quantity(gain, "nll").set_index("searched")["value"]
    assert by_searched.to_dict() == {
        0: likelihood({5: 1.0, 4: 1.0}),
        1: likelihood({5: alphas[5], 4: 1.0}),
        2: likelihood(alphas),
    }
    single = result_of("layers", "single layers", document=1, num_pruned=2)
    by_layer = of_quantity(single, "nll").set_index(["layer", "alpha"])["value"]
    assert set(by_layer.index) == set(itertools.product(range(6), (0.0, 1.0)))
    assert by_layer[2, 1.0] == likelihood({2: 1.0})
    assert by_layer[2, 0.0] == likelihood({2: 0.0})
    for result in (gain, single):
        assert values_of(result, "dense nll") == [likelihood({})]
        assert values_of(result, "tokens") == text.tokens


def test_layers_are_those_with_the_lowest_scores():
    hessian = result_of("layers", "layer selection", method="hessian")
    scores = of_quantity(hessian, "score")
    assert scores["layer"].tolist() == list(range(6))
    lowest = layer_selection.lowest_layers(scores["value"].tolist(), 2)
    assert hessian["layers"] == lowest
    assert result_of("layers", "layer selection", method="bottom")["layers"] == [0, 1]
    assert result_of("layers", "layer selection", method="top")["layers"] == [4, 5]


def test_norms_follow_the_residual_stream():
    this = context_of()
    text = this.text(FIRST, "validation", (3, 96))
    assert len(text.documents[0]) == 1
    stream = of_quantity(result_of("norms", "stream norms", method="dense"), "stream norm")
    with torch.no_grad():
        states = this.model(text.documents[0][0].ids[None], output_hidden_states=True).hidden_states
    # The last one is behind the final norm.
    expected = [state[:, 1:].double().norm().item() for state in states[:-1]]
    of_document = stream[stream["document"] == 0].sort_values("layer")
    assert of_document["layer"].tolist() == list(range(7))
    assert of_document["value"].tolist()[:-1] == pytest.approx(expected, rel=1e-5)


def test_norms_are_followed_under_the_alphas_of_every_rule():
    alphas = {}
    for cell in cells_of("norms", "stream norms"):
        of_layers = cell["inputs"]["alphas"]
        alphas[cell["about"]["method"]] = of_layers
        rows = of_quantity(cell["result"], "alpha")
        by_layer = {str(int(row.layer)): row.value for row in rows.itertuples()}
        assert by_layer == of_layers, "the rows say under which alphas"
    searched = searched_alphas(context_of(), FIRST)
    assert alphas["searched"] == {str(layer): alpha for layer, alpha in searched.items()}
    assert alphas["dense"] == {}
    fitted = of_quantity(result_of("reasons", "fit", method="alpha-norm"), "alpha")
    by_layer = {str(int(row.layer)): row.value for row in fitted.itertuples()}
    assert alphas["alpha-norm"] == by_layer, "of the same fit as notebook 02's perplexities"
    branches = result_of("norms", "branches", corpus=FIRST)
    product, square = (
        of_quantity(branches, f"product {pair}").groupby("layer")["value"].sum()
        for pair in ("AB", "BB")
    )
    nearest = (product / square).clip(0, 1)  # ⟨A, B⟩ / ⟨B, B⟩
    expected = {str(layer): pytest.approx(nearest[layer]) for layer in (4, 5)}
    assert alphas["reconstructing"] == expected


def test_equal_plans_share_their_scores():
    """So do the ablations, and HARP and HARP+FLAP, which remove the same from this model."""
    for method, task in itertools.product(("dense", "harp"), TASKS):
        inputs = inputs_of("scores", "scores", method=method, task=task)
        assert inputs_of("ablations", "scores", method=method, task=task) == inputs
    assert inputs_of("scores", "scores", method="harp+flap", task=task) == inputs
    this = context_of()
    top = PruningPlan.value_only(6, {4: 1.0, 5: 1.0})
    inputs = inputs_of("ablations", "scores", method="top", task="piqa")
    assert inputs["plan"] == this.plan_inputs(top)["plan"]
    assert inputs["plan"] != this.plan_inputs(Planning(this).plan("harp"))["plan"]


def test_parts_are_all_of_it_and_share_nothing(only_plans, monkeypatch):
    def evaluate(self, model, tokenizer, benchmark):
        return {"rows": [{"score": 1.0}]}

    monkeypatch.setattr(Evaluator, "evaluate", evaluate)
    profile = settings()
    numbers = [compute("scores", profile, MODEL, part=(number, 2))["computed"] for number in (0, 1)]
    assert compute("scores", profile, MODEL)["computed"] == 0
    about = [
        (cell["about"]["task"], cell["about"]["method"]) for cell in cells_of("scores", "scores")
    ]
    assert sorted(about) == sorted(itertools.product(TASKS, ALL))
    number = len(set(listed_cells("smoke", "scores")))
    assert numbers == [number * 2 // 3, number // 3]
    assert compute("scores", profile, MODEL, force=True)["computed"] == number


def test_a_score_that_fails_is_kept_with_its_reason(only_plans, tmp_path, monkeypatch):
    evaluate = Evaluator.evaluate

    def forgetful(self, model, tokenizer, benchmark):
        if benchmark.name == "piqa":
            raise torch.OutOfMemoryError("CUDA out of memory.\nand where")
        return evaluate(self, model, tokenizer, benchmark)

    monkeypatch.setattr(Evaluator, "evaluate", forgetful)
    (tmp_path / "rows").mkdir()
    (tmp_path / "rows" / "piqa").symlink_to(config.DATA / "mini" / "piqa")
    counts = compute("scores", settings(datasets=str(tmp_path / "rows")), MODEL)
    assert counts["computed"] == 0
    cells = read_unit("smoke", "scores")
    assert counts["failed"] == len(set(listed_cells("smoke", "scores")))
    reasons = {task: set() for task in TASKS}
    for cell in cells:
        reasons[cell["about"]["task"]].add(cell["result"]["failed"])
    assert reasons["piqa"] == {"OutOfMemoryError: CUDA out of memory."}
    (reason,) = reasons["boolq"]
    assert "boolq" in reason
