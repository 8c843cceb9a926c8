"""The experiment of notebook 06: which layers are pruned, what is stored, and that it is what it says."""

import math
from types import SimpleNamespace

import pytest
import torch

from harp_lib import load_model, make_plan, results
from harp_lib.ablation_frames import (
    ALL,
    MISSED,
    STEP,
    cumulative_frame,
    gain_frame,
    picked_layers,
    selection_frame,
    single_layer_frame,
)
from harp_lib.experiments import ablation_study
from harp_lib.experiments.ablation_study import STRATEGIES, AblationStudy, attribution, lowest_layers, score, text_table
from harp_lib.experiments.alpha_study import AlphaStudy
from harp_lib.experiments.score_study import ScoreStudy
from harp_lib.measure.benchmarks import BENCHMARKS, DISCRIMINATIVE_TASKS
from harp_lib.measure.corpora import calibration_blocks
from harp_lib.measure.likelihood import make_batches, total_nll
from harp_lib.methods.layer_selection import layer_scores, select_layers
from harp_lib.profiles import load_profile
from harp_lib.pruning.plan import PruningPlan
from harp_lib.pruning.surgery import apply_plan, temporarily_value_only

NAME = "tiny-qwen2"


def store_of(root, experiment):
    return results.ResultStore("smoke", experiment, root)


def study_of(profile, root, store, seed=0):
    model, tokenizer = load_model(NAME)
    alpha = AlphaStudy(NAME, model, tokenizer, profile, store_of(root, "alpha_search"))
    return AblationStudy(alpha, tokenizer, profile, store, seed)


def run(study):
    study.select()
    study.gains()
    study.single_layers()


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A study of a tiny model with its scores, its stores and its cells."""
    profile, root = load_profile("smoke", models=[NAME], limit=1), tmp_path_factory.mktemp("results")
    store, main = store_of(root, "ablations"), store_of(root, "main_tables")
    study = study_of(profile, root, store)
    run(study)
    digest = study.alpha.inputs["digest"]
    score(NAME, digest, study.plans, profile, store, main)
    cells = store.finish()
    return SimpleNamespace(study=study, store=store, main=main, cells=cells, root=root, profile=profile, digest=digest)


def test_layers_are_those_of_the_slow_way(finished):
    study = finished.study
    blocks = calibration_blocks(study.calibration_text, study.tokenizer, *finished.profile["ablations"]["calibration"])
    picked = picked_layers(finished.cells, NAME)
    assert tuple(picked) == STRATEGIES
    for strategy, layers in picked.items():
        assert layers == select_layers(strategy, study.model, blocks, 2)
        assert study.plans[strategy].alphas == dict.fromkeys(layers, 1.0)
    frame = selection_frame(finished.cells)
    assert frame.groupby("strategy")["picked"].sum().to_dict() == dict.fromkeys(STRATEGIES, 2)
    stored = frame[frame["strategy"] == "hessian"]["score"].tolist()
    assert stored == pytest.approx(layer_scores("hessian", study.model, blocks))
    assert frame[frame["strategy"] == "top"]["score"].isna().all()


def test_of_equal_scores_the_higher_layer_goes():
    assert lowest_layers([1.0, 1.0, 0.5, 1.0], 2) == [2, 3]


def test_harp_is_the_plan_of_notebooks_04_and_05(finished):
    study = finished.study
    alphas = study.alpha.search([study.corpus])[study.corpus]["alphas"]
    plan = make_plan("harp", study.model, None, kv_groups=2 * study.model.config.num_key_value_heads, alphas=alphas)
    assert study.plans["harp"].digest == plan.digest, "or its scores would not be shared"
    assert study.plans["dense"] is None
    assert study.searched == plan.alphas
    assert set(study.searched) == set(study.plans["top"].alphas)


def test_the_texts_are_kept_apart(finished):
    study = finished.study
    assert study.calibration_text.split == "train"
    assert {study.gain_text.corpus.split, study.single_text.corpus.split} == {"validation"}
    table = text_table(study)
    assert table["documents or samples"].tolist() == [4, 3, 3]
    assert table["tokens"].tolist() == [128, 3 * 128, 3 * 64]
    for strategy in ("hessian", "similarity"):
        inputs = finished.cells[NAME, strategy, "selection"]["inputs"]
        assert (inputs["split"], inputs["calibration"], inputs["seed"]) == ("train", [4, 32], 0)
    assert "seed" not in finished.cells[NAME, "top", "selection"]["inputs"], "which reads no text"


def test_plans_that_share_out_the_gain():
    assert attribution({4: 0.0, 5: 0.8}) == {
        "top-0": {5: 1.0, 4: 1.0},
        "top-1": {5: 0.8, 4: 1.0},
        "top-2": {5: 0.8, 4: 0.0},
        "only-5": {5: 0.8, 4: 1.0},
        "only-4": {5: 1.0, 4: 0.0},
        "without-5": {5: 1.0, 4: 0.0},
        "without-4": {5: 0.8, 4: 1.0},
    }


def test_gains_are_of_models_that_were_really_pruned(finished):
    study, layers = finished.study, len(finished.study.model.model.layers)
    cell = finished.cells[NAME, "gain", "document-01"]
    batches = make_batches(study.gain_text.documents[1])
    for name, alphas in attribution(study.searched).items():
        model, _ = load_model(NAME)
        apply_plan(model, PruningPlan.value_only(layers, alphas))
        assert cell["result"]["nll"][name] == pytest.approx(total_nll(model, batches), rel=1e-5), name
    assert cell["result"]["nll"]["dense"] == pytest.approx(total_nll(study.model, batches), rel=1e-6)
    assert cell["result"]["tokens"] == sum(batch.num_scored for batch in batches)
    assert cell["inputs"]["alphas"] == {str(layer): alpha for layer, alpha in study.searched.items()}


def test_single_layers_are_those_of_the_whole_model(finished):
    """The slow, obvious way: the whole model again for every layer."""
    study = finished.study
    result = finished.cells[NAME, "single-layer", "document-02"]["result"]
    batches = make_batches(study.single_text.documents[2])
    for alpha in (1.0, 0.0):
        for layer, nll in enumerate(result[f"{alpha:g}"]):
            with temporarily_value_only(study.model, {layer: alpha}):
                assert nll == pytest.approx(total_nll(study.model, batches), rel=1e-5), (layer, alpha)
    assert len(result["1"]) == len(result["0"]) == study.total
    assert result["dense"] == pytest.approx(total_nll(study.model, batches), rel=1e-6)
    assert len({round(nll, 3) for nll in result["1"]}) == study.total, "each layer was pruned in its turn"


def test_the_model_is_as_before(finished):
    fresh, _ = load_model(NAME)
    ids = torch.arange(3, 43)[None]
    with torch.no_grad():
        assert finished.study.model(ids).logits.equal(fresh(ids).logits)


def test_who_is_asked_what(finished):
    asked = {}
    for (_, method, task), cell in finished.cells.items():
        if task in BENCHMARKS:
            asked.setdefault(method, set()).add(task)
            plan = finished.study.plans[method]
            assert cell["inputs"]["plan"] == (plan and plan.digest)
    six = {benchmark.name for benchmark in DISCRIMINATIVE_TASKS}
    assert asked == {
        **{method: set(BENCHMARKS) for method in ("dense", "harp", "top")},
        **{method: six for method in ("bottom", "hessian", "similarity")},
    }


def test_scores_are_shared_with_notebook_05(finished):
    """Its cells are read, or made so that it reads them; its list of cells is left alone."""
    assert finished.main.counts == {"computed": 2 * len(BENCHMARKS)}
    for (model, method, task), cell in finished.main.cells.items():
        copied = finished.cells[model, method, task]
        assert (copied["inputs"], copied["result"]) == (cell["inputs"], cell["result"])
    assert not (finished.main.folder / results.RUN_FILE).exists()
    theirs = store_of(finished.root, "main_tables")
    plans = {method: finished.study.plans[method] for method in ("dense", "harp")}
    ScoreStudy(NAME, finished.digest, finished.profile, theirs).evaluate(plans)
    assert theirs.counts == {"read": 2 * len(BENCHMARKS)}


def test_a_score_that_failed_is_copied_too(finished, tmp_path, monkeypatch):
    def out_of_memory(self, job):
        return {"failed": "out of memory"}

    monkeypatch.setattr(ablation_study.ScoreStudy, "__init__", _with_work(out_of_memory))
    store = store_of(tmp_path, "ablations")
    score(NAME, "digest", finished.study.plans, finished.profile, store, store_of(tmp_path, "main_tables"))
    failed = {(method, task) for (_, method, task), cell in store.cells.items() if "failed" in cell["result"]}
    assert {("dense", "piqa"), ("harp", "gsm8k"), ("top", "gsm8k"), ("bottom", "piqa")} <= failed


def _with_work(work):
    original = ScoreStudy.__init__

    def build(self, *arguments):
        original(self, *arguments)
        evaluator = self.work.evaluator
        self.work = type("Failing", (), {"__call__": work, "evaluator": evaluator})()

    return build


def test_a_second_study_computes_nothing(finished):
    store, main = store_of(finished.root, "ablations"), store_of(finished.root, "main_tables")
    study = study_of(finished.profile, finished.root, store)
    run(study)
    score(NAME, finished.digest, study.plans, finished.profile, store, main)
    assert store.counts == {"read": finished.store.counts["computed"]}
    assert main.counts == {"read": 2 * len(BENCHMARKS)}
    assert results.read_results("smoke", "ablations", [finished.root]) == finished.cells


def test_what_another_seed_changes(finished, tmp_path):
    study = study_of(finished.profile, finished.root, store_of(tmp_path, "ablations"), seed=1)
    study.select()
    for strategy in STRATEGIES:
        first, second = (cells[NAME, strategy, "selection"] for cells in (finished.cells, study.store.cells))
        assert (first["result"] == second["result"]) is (strategy in ("top", "bottom")), strategy


def test_gains_add_up(finished):
    gains = gain_frame(finished.cells)
    total = gains[gains["way"] == ALL].iloc[0]
    steps = gains[gains["way"] == STEP]
    assert steps["gain"].sum() == pytest.approx(total["gain"])
    assert steps["share"].sum() == pytest.approx(1)
    assert total["gain"] != 0
    levels = cumulative_frame(finished.cells).set_index("searched")["perplexity"]
    assert math.log(levels[0] / levels[2]) == pytest.approx(total["gain"])
    assert levels.index.tolist() == [-1, 0, 1, 2]
    top = steps.iloc[0]
    assert (top["layer"], top["gain"]) == (5, pytest.approx(math.log(levels[0] / levels[1])))
    missed = gains[(gains["way"] == MISSED) & (gains["layer"] == 4)].iloc[0]
    assert missed["gain"] == pytest.approx(steps.iloc[1]["gain"]), "the lowest layer is the last in both ways"


def test_single_layers_as_a_frame(finished):
    frame = single_layer_frame(finished.cells)
    assert frame.groupby("alpha")["layer"].apply(list).to_dict() == {0.0: [*range(6)], 1.0: [*range(6)]}
    assert frame[frame["pruned"]]["layer"].unique().tolist() == [4, 5]
    found = [finished.cells[NAME, "single-layer", f"document-{index:02d}"]["result"] for index in range(3)]
    rise = sum(result["0"][3] - result["dense"] for result in found) / sum(result["tokens"] for result in found)
    row = frame[(frame["layer"] == 3) & (frame["alpha"] == 0)].iloc[0]
    assert row["rise"] == pytest.approx(rise)
    assert row["low"] < row["rise"] < row["high"]
    assert row["documents"] == 3
