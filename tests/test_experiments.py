"""Every unit on tiny models, end to end: what cells there are, and that their numbers are what they
are said to be.
"""

import ast
import itertools
import json
import math
import re
import shutil

import nbformat
import pytest
import torch

from harp_lib import config, report
from harp_lib.evaluation.benchmarks import ALL_BENCHMARKS
from harp_lib.evaluation.evaluator import Evaluator
from harp_lib.experiments import NOTEBOOKS, UNITS, compute, job, models_of, run
from harp_lib.experiments.plans import Setting
from harp_lib.methods import alpha_search, layer_selection, make_plan
from harp_lib.methods.alpha_search import search_alphas
from harp_lib.models.load import load_model
from harp_lib.names import BASELINES, EVALUATED
from harp_lib.pruning.plan import PruningPlan
from harp_lib.pruning.surgery import temporarily_pruned
from harp_lib.report import data
from harp_lib.results import read_results
from harp_lib.text.corpora import load_corpus
from harp_lib.text.perplexity import make_batches, perplexity_from_nll, total_nll

MODEL = "tiny-gemma2"  # norms after attention, soft caps, sliding windows
FIRST, SECOND = CORPORA = ("python-docs", "scipy-docs")
ALL = ("dense", *EVALUATED)
CALIBRATED = ("wanda-sp", "llm-pruner", "flap", "harp+flap")
TASKS = ("triviaqa", "piqa", "boolq")
LIKELIHOODS = (
    "triviaqa",
    "bbh_cot_fewshot",
    "longbench_narrativeqa",
)  # the second after the dense model's reasoning
CELLS = {
    "theory": 4,
    "paper_ratios": 4,
    "similarity": 6,
    "norm_change": 8,
    "alpha_search": 26,
    "baselines": 67,
    "main_tables": 24,
}
CELLS |= {"longbench": 16, "ablations": 19, "efficiency": 9, "frontier": 56, "likelihoods": 26}


def settings(**changes):
    profile = config.load_profile("smoke", models=[MODEL]) | changes
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
        run("theory", "ratios", "similarity", "norms", profile=settings())
        run("alpha", "efficiency", "frontier", profile=settings())
        run("ablations", "layers", profile=settings())
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


def cells(store):
    return {
        (method, task): cell["result"]
        for (_, method, task), cell in read_results("smoke", store).items()
    }


def the_job(store="baselines"):
    return job.Job(store, settings(), MODEL)


def kinds(cells):
    """Method and task of cells, whatever numbers of layers and texts are in their names."""
    return {(re.sub(r"-\d\d$", "", method), re.sub(r"\d+", "0", task)) for _, method, task in cells}


def numbers(value):
    if isinstance(value, (dict, list)):
        for part in value.values() if isinstance(value, dict) else value:
            yield from numbers(part)
    elif isinstance(value, float):
        yield value


def test_every_store_is_looked_at():
    assert set(CELLS) == {unit.store for unit in UNITS.values()}


@pytest.mark.parametrize(("store", "number"), CELLS.items())
def test_cells_are_those_of_the_reference(store, number):
    """They are those of a run of mini, but for the tasks that this profile leaves out."""
    found = read_results("smoke", store)
    asked = LIKELIHOODS if store == "likelihoods" else {*TASKS, *settings()["longbench"]["tasks"]}
    left_out = {re.sub(r"\d+", "0", task) for task in ALL_BENCHMARKS if task not in asked} | {
        "llama_cpp-0"
    }
    reference = read_results("mini", store) if (config.REFERENCE / "mini" / store).exists() else {}
    assert {cell for cell in kinds(reference) if cell[1] not in left_out} <= kinds(found)
    assert len(found) == number
    assert all(math.isfinite(value) for cell in found.values() for value in numbers(cell["result"]))


@pytest.mark.parametrize("task", ["draws", "uniformity-sweep", "norm-sweep", "counterexamples"])
def test_checks_of_the_theory_are_read_as_tables(task):
    stored = cells("theory")["theory", task]
    frame = data.table("smoke", "theory", task)
    assert list(frame) == [*stored, "model", "method"]
    assert frame[list(stored)].to_dict("list") == stored


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
    assert capsys.readouterr().out == "8 cells computed, 4 read\n", "the search is read"


def test_likelihoods_are_those_of_the_whole_model_document_by_document():
    """What lies below a plan's lowest layer is run once for all plans; nothing of that may show in
    a number.
    """
    this, stored = the_job(), cells("baselines")
    model = this.model
    alphas = {
        "alphas": [0.8, 0.3],
        "kv_groups": 4,
    }  # those that are searched on random weights are 0
    both = make_plan("harp+flap", model, torch.arange(90).view(3, 30), **alphas)
    for split in ("test", "validation"):
        text = this.text(FIRST, split)
        assert len(text.windows) == (2 if split == "test" else 6), "the longer ones are cut in two"
        for method in (*ALL, both):
            plan = method if method is both else this.plan(method) or PruningPlan(6, {})
            with this.pruned(plan):
                nll = [total_nll(model, make_batches(document)) for document in text.documents]
            found = text.nll(both) if method is both else stored[method, f"{FIRST}-{split}"]
            assert found["nll"] == pytest.approx(nll, rel=1e-4), method
            assert found["tokens"] == text.tokens
        for method, twin in {"dense": "dense", "harp": f"searched-on-{FIRST}"}.items():
            twin = cells("alpha_search")[twin, f"{FIRST}-{split}"]
            assert stored[method, f"{FIRST}-{split}"]["nll"] == twin["nll"], "not computed twice"


def test_ranges_are_tuned_on_the_text_that_alpha_is_searched_on():
    inputs = {key[1:]: cell["inputs"] for key, cell in read_results("smoke", "baselines").items()}
    search = next(
        c
        for (_, _, t), c in read_results("smoke", "alpha_search").items()
        if t == f"search-{FIRST}"
    )
    text = the_job().text(FIRST, "test")
    stored = cells("baselines")
    for method in BASELINES:
        losses = {
            task: sum(result["nll"]) / sum(result["tokens"])
            for (found, task), result in stored.items()
            if found == method and task.startswith("range-")
        }
        assert {inputs[method, task]["tuning_sha256"] for task in losses} == {
            search["inputs"]["sha256"]
        }
        assert {tuple(stored[method, task]["tokens"]) for task in losses} == {tuple(text.tokens)}
        low, high = inputs[method, "plan"]["layers"]
        assert min(losses, key=losses.get) == f"range-{low:02d}-{high:02d}"
    assert sum(text.tokens) == search["result"]["tokens"]


def test_the_other_reading_of_flap():
    inputs = {key[1:]: cell["inputs"] for key, cell in read_results("smoke", "baselines").items()}
    stored = cells("baselines")
    squared = stored["flap-squared", "plan"]
    layers = stored["flap", "plan"]["plan"]["layers"]
    removed = {
        (layer["layer"], group) for layer in layers for group in layer.get("removed_groups", [])
    }
    assert (
        squared["same"] + len(squared["only_printed"])
        == len(removed)
        == inputs["flap", "plan"]["kv_groups"]
    )
    assert {tuple(pair) for pair in squared["only_printed"]} <= removed
    assert not {tuple(pair) for pair in squared["only_squared"]} & removed
    setting = Setting(the_job())
    calibration = setting.calibration("flap")
    for budget, differs in {4: True, 5: False}.items():  # on these weights
        options = {"kv_groups": budget, "layers": range(6)}
        printed, other = (
            make_plan("flap", load_model(MODEL)[0], calibration, **options, squared=q)
            for q in (False, True)
        )
        assert setting.planner("flap")[0](budget, range(6)) == printed
        assert setting.planner("flap-squared")[0](budget, range(6)) == other
        assert (printed != other) == differs


def test_the_search_is_algorithm_1_on_the_stored_text():
    model, _ = load_model(MODEL)
    found = search_alphas(
        model, the_job().text(FIRST, "test").windows, 2, progress=False, reuse_prefix=False
    )
    assert cells("alpha_search")["harp", f"search-{FIRST}"]["alphas"] == found.alphas
    best = min(found.perplexities[4].values())
    nll = cells("alpha_search")[f"searched-on-{FIRST}", f"{FIRST}-test"]
    assert perplexity_from_nll(sum(nll["nll"]), sum(nll["tokens"])) == pytest.approx(best, rel=1e-4)


def test_a_second_sample_shares_no_document_with_the_first():
    this = the_job()
    first, second = (
        text.corpus.documents for text in (this.text(FIRST, "test"), this.second_sample(FIRST))
    )
    assert len(first) == len(second) == 2
    assert not set(first) & set(second)
    pages = load_corpus(FIRST, "test").documents
    assert [page.startswith(first) for page in pages].count(True) == 2, "cut at the same length"
    found = {key: cell["inputs"] for key, cell in read_results("smoke", "alpha_search").items()}
    searched = {
        method: found[MODEL, method, f"search-{FIRST}"]["sha256"]
        for method in ("harp", "harp-resampled")
    }
    assert searched["harp"] == this.text(FIRST, "test").corpus.sha256
    assert searched["harp-resampled"] == this.second_sample(FIRST).corpus.sha256


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
        assert this.unread(FIRST, 10_000, 32).corpus.split == "validation"
    profile = settings()
    profile["alpha_search"] |= {"documents": 10_000, "tokens": 16}
    profile["corpora"] = [FIRST]
    assert compute("search", profile, MODEL) == {"computed": 1, "read": 0, "failed": 0}


def test_where_held_out_pages_are_too_few_test_pages_follow_that_no_search_reads():
    this = the_job()
    held_out = this.text(FIRST, "validation", (10_000, 32)).corpus
    more = this.unread(FIRST, 10_000, 32).corpus
    assert more.documents[: len(held_out.documents)] == held_out.documents
    others = more.documents[len(held_out.documents) :]
    assert len(others) > 0
    for searched in (this.text(FIRST, "test").corpus, this.second_sample(FIRST).corpus):
        assert not [page for page in searched.documents if page.startswith(others)]
    few = this.unread(FIRST, 3, 32).corpus
    assert (few.documents, few.split) == (held_out.documents[:3], "validation")


def test_gain_and_single_layers():
    model, _ = load_model(MODEL)
    this, found = the_job("ablations"), cells("ablations")
    alphas = this.alphas(FIRST)
    text = this.text(FIRST, "validation", (3, 64))[1:2]
    one = {"1": {2: 1.0}, "0": {2: 0.0}}
    plans = {
        "top-2": alphas,
        "top-0": dict.fromkeys(alphas, 1.0),
        "top-1": {5: alphas[5], 4: 1.0},
        **one,
    }
    for name, chosen in plans.items():
        with temporarily_pruned(model, PruningPlan.value_only(6, chosen)):
            nll = total_nll(model, make_batches(text.windows))
        cell = found["single-layer" if name in one else "gain", "document-01"]
        assert (cell[name][2] if name in one else cell["nll"][name]) == pytest.approx(
            nll, rel=1e-4
        ), name
    chosen = found["hessian", "selection"]
    assert chosen["layers"] == layer_selection.lowest_layers(chosen["scores"], 2)
    assert found["bottom", "selection"]["layers"] == [0, 1]


def test_norms_follow_the_residual_stream():
    model, _ = load_model(MODEL)
    this = the_job()
    text = this.text(FIRST, "validation", (3, 96))
    stream = cells("norm_change")["dense", "reading"]
    with torch.no_grad():
        states = model(text.documents[0][0].ids[None], output_hidden_states=True).hidden_states
    expected = [
        state[:, 1:].double().norm().item() for state in states[:-1]
    ]  # the last one is behind the final norm
    assert len(text.documents[0]) == 1
    assert stream["without first"][0][:-1] == pytest.approx(expected, rel=1e-5)
    read = {key[1:]: cell["inputs"] for key, cell in read_results("smoke", "norm_change").items()}
    alphas = {
        method: inputs["alphas"] for (method, task), inputs in read.items() if task == "reading"
    }
    assert alphas["searched"] == {str(layer): alpha for layer, alpha in this.alphas(FIRST).items()}
    assert alphas["dense"] == {}
    assert alphas["norm-matching"].keys() == alphas["constant"].keys() == {"4", "5"}


def test_the_ablations_share_their_scores_with_the_main_tables():
    """They ran first, and computed HARP's for notebook 05, whose own plan of HARP is another
    object.
    """
    plans = {
        key[1:]: cell["inputs"]["plan"]
        for key, cell in read_results("smoke", "main_tables").items()
    }
    assert len({plans["harp", task] for task in TASKS}) == 1
    assert plans["harp", "piqa"] == the_job().plan("harp").digest
    top = {key[1:]: cell["inputs"] for key, cell in read_results("smoke", "ablations").items()}[
        "top", "piqa"
    ]
    assert top["plan"] == PruningPlan.value_only(6, {4: 1.0, 5: 1.0}).digest


def test_parts_are_all_of_it_and_share_nothing(finished, tmp_path, monkeypatch):
    for store in ("baselines", "alpha_search"):
        (tmp_path / "smoke" / store).mkdir(parents=True)
        (tmp_path / "smoke" / store / MODEL).symlink_to(finished / "smoke" / store / MODEL)
    monkeypatch.setattr(config, "RESULTS", tmp_path)
    monkeypatch.setattr(
        Evaluator, "evaluate", lambda self, model, tokenizer, benchmark: {"rows": [{"score": 1.0}]}
    )
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
    files = {task: next(tmp_path.rglob(f"harp/{task}.json")).read_text() for task in TASKS}
    assert json.loads(files["piqa"])["result"]["failed"] == "OutOfMemoryError: CUDA out of memory."
    assert "boolq" in json.loads(files["boolq"])["result"]["failed"]
    reasons = {
        json.loads(file.read_text())["result"]["failed"] for file in tmp_path.rglob("piqa.json")
    }
    assert reasons == {"OutOfMemoryError: CUDA out of memory."}, (
        "of HARP too, whose plan here is HARP+FLAP's"
    )


def test_wrong_requests(tmp_path, monkeypatch):
    monkeypatch.setattr(config, "RESULTS", tmp_path)
    with pytest.raises(ValueError, match="unknown unit 'alphas'; choose from theory, similarity"):
        run("alphas", profile=settings())
    for unit, needed in {
        "plans": "alpha_search has no harp/search",
        "scores": "baselines has no dense/plan",
    }.items():
        with pytest.raises(FileNotFoundError, match=f"{needed}.* of {MODEL}: compute that first"):
            compute(unit, settings(), MODEL)


OF_OTHERS = {"refit_scores"}  # shown in 09, where notebooks 05 and 07 have been run


def calls(notebook, function):
    """The names that a notebook gives to each call of ``experiments.run`` or ``report.show``."""
    cells = nbformat.read(notebook, 4).cells
    tree = ast.parse("\n".join(cell.source for cell in cells if cell.cell_type == "code"))
    called = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == function
    ]
    return [
        tuple(part.value for part in node.args if isinstance(part, ast.Constant)) for node in called
    ]


def with_needs(unit):
    """A unit and what it needs first, and what that needs."""
    return {unit}.union(*map(with_needs, UNITS[unit].needs))


@pytest.mark.parametrize("number", [number for number in NOTEBOOKS if NOTEBOOKS[number]])
def test_a_notebook_runs_what_is_computed_for_it_and_shows_nothing_else(number):
    """In Jupyter it computes by itself what a run of everything computes before it."""
    (notebook,) = config.NOTEBOOKS.glob(f"{number}_*.ipynb")
    assert calls(notebook, "experiments.run") == [NOTEBOOKS[number]]
    stores = {UNITS[unit].store for asked in NOTEBOOKS[number] for unit in with_needs(asked)}
    shown = [name for (name,) in calls(notebook, "report.show")]
    assert shown
    for name in set(shown) - OF_OTHERS:
        assert set(report.entries()[name].stores) <= stores, name


def test_units_and_notebooks_fit_together():
    assert not {unit for unit in UNITS if not any(unit in asked for asked in NOTEBOOKS.values())}, (
        "nobody asks for it"
    )
    for name, unit in UNITS.items():
        assert all(list(UNITS).index(needed) < list(UNITS).index(name) for needed in unit.needs)
        assert models_of(settings(), name) == [unit.model or MODEL]
    extra = settings()
    extra["alpha_search"]["extra_models"] = ["owner/large"]
    assert [unit for unit in UNITS if "owner/large" in models_of(extra, unit)] == ["search"]


def test_a_search_that_is_interrupted_goes_on_where_it_was(finished, tmp_path, monkeypatch):
    head_nll, calls = alpha_search.head_nll, []

    def stopping(*arguments):
        calls.append(1)
        if len(calls) == 6:
            raise KeyboardInterrupt
        return head_nll(*arguments)

    monkeypatch.setattr(config, "RESULTS", tmp_path)
    monkeypatch.setattr(alpha_search, "head_nll", stopping)
    with pytest.raises(KeyboardInterrupt):
        compute("search", settings(), MODEL)
    (half,) = tmp_path.rglob("*.partial")
    taken = sum(json.loads(line)["seconds"] for line in half.read_text().splitlines()[1:])
    assert compute("search", settings(), MODEL) == {"computed": 4, "read": 0, "failed": 0}
    assert not list(tmp_path.rglob("*.partial"))
    for corpus in CORPORA:
        file = f"smoke/alpha_search/{MODEL}/harp/search-{corpus}.json"
        again, before = (
            json.loads((root / file).read_text())["result"] for root in (tmp_path, finished)
        )
        assert again["perplexities"] == before["perplexities"]
        assert corpus != FIRST or again["seconds"] > taken > 0, (
            "what the interrupted one spent is counted"
        )
