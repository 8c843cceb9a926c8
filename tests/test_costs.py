"""What a run costs before it runs."""

import importlib.util
import json
import math

import pytest

from harp_lib import load_model, paths
from harp_lib.costs import UNKNOWN, Estimate, cell_seconds, full_size, memory_bytes
from harp_lib.counted_costs import LARGE, counted_seconds, gpu_model, literal_search_seconds, question_tokens
from harp_lib.expected_cells import NOTEBOOK_OF, expected_cells, experiment_models
from harp_lib.measure.benchmarks import ALL_BENCHMARKS
from harp_lib.measure.evaluation import Evaluator
from harp_lib.profiles import load_profile
from harp_lib.published import published

LLAMA = "meta-llama/Llama-3.1-8B"


@pytest.fixture(scope="module")
def paper():
    return load_profile("paper")


@pytest.fixture
def no_results(monkeypatch, tmp_path):
    """An empty result store of this checkout."""
    monkeypatch.setattr(paths, "RESULTS", tmp_path / "results")
    return tmp_path / "results"


def test_a_cell_takes_what_it_took_in_the_reference_run(no_results):
    estimates = cell_seconds(load_profile("mini"), "main_tables", "smollm2-135m")
    for (method, task), estimate in estimates.items():
        file = paths.REFERENCE / "mini" / "main_tables" / "smollm2-135m" / method / f"{task}.json"
        assert estimate == (json.loads(file.read_text(encoding="utf-8"))["seconds"], "measured")


@pytest.mark.parametrize("content", ['{"inputs": {}, "result": {"failed": "no memory"}, "seconds": 1}', '{"inp', "[]"])
def test_this_checkouts_cells_count_before_the_reference_runs_if_whole(no_results, content):
    profile, cell = load_profile("mini"), ("harp", "piqa")
    reference = cell_seconds(profile, "main_tables", "smollm2-135m")[cell]
    file = no_results / "mini" / "main_tables" / "smollm2-135m" / "harp" / "piqa.json"
    file.parent.mkdir(parents=True)
    file.write_text('{"inputs": {}, "result": {}, "seconds": 1234.5}', encoding="utf-8")
    assert cell_seconds(profile, "main_tables", "smollm2-135m")[cell] == Estimate(1234.5, "measured")
    file.write_text(content, encoding="utf-8")
    assert cell_seconds(profile, "main_tables", "smollm2-135m")[cell] == reference


@pytest.mark.parametrize(("section", "task"), [("main_tables", "piqa"), ("longbench", "longbench_lcc")])
def test_a_cell_of_fewer_rows_does_not_tell_what_all_take(no_results, section, task):
    cell, few, whole = ("harp", task), load_profile("mini", limit=2), load_profile("mini")
    reference = cell_seconds(whole, section, "smollm2-135m")[cell]
    assert cell_seconds(few, section, "smollm2-135m")[cell] == UNKNOWN
    file = no_results / "mini" / section / "smollm2-135m" / "harp" / f"{task}.json"
    file.parent.mkdir(parents=True)
    file.write_text('{"inputs": {"rows": 2}, "result": {}, "seconds": 1234.5}', encoding="utf-8")
    assert cell_seconds(few, section, "smollm2-135m")[cell] == Estimate(1234.5, "measured")
    assert cell_seconds(whole, section, "smollm2-135m")[cell] == reference


def test_nobody_knows_what_smoke_takes_before_it_ran(no_results):
    profile = load_profile("smoke")
    for experiment in set(NOTEBOOK_OF) - {"ablations"}:
        for model in experiment_models(profile, experiment):
            assert set(cell_seconds(profile, experiment, model).values()) == {UNKNOWN}


def test_scores_that_are_copied_cost_nothing_whatever_their_cells_say(no_results):
    profile = load_profile("smoke")
    for method in ("harp", "top"):
        file = no_results / "smoke" / "ablations" / "tiny-llama" / method / "piqa.json"
        file.parent.mkdir(parents=True)
        file.write_text('{"inputs": {}, "result": {}, "seconds": 1234.5}', encoding="utf-8")
    estimates = cell_seconds(profile, "ablations", "tiny-llama")
    assert estimates["dense", "piqa"] == estimates["harp", "piqa"] == Estimate(0.0, "counted")
    assert estimates["top", "piqa"] == Estimate(1234.5, "measured")
    assert estimates["top", "selection"] == UNKNOWN


def test_every_cell_of_the_paper_profile_has_an_estimate_or_is_called_unknown(no_results, paper):
    for experiment in NOTEBOOK_OF:
        for model in experiment_models(paper, experiment):
            estimates = cell_seconds(paper, experiment, model)
            assert list(estimates) == expected_cells(paper, experiment, model)
            for estimate in estimates.values():
                assert estimate == UNKNOWN or (estimate.source == "counted" and 0 <= estimate.seconds < 1e6)
            if experiment not in ("theory", "similarity", "norm_change"):
                assert UNKNOWN not in estimates.values()


def test_the_speed_of_the_longest_prefill_tells_that_of_the_shortest():
    seconds = published("efficiency").query("method == 'dense' and metric == 'seconds'").set_index("task")["value"]
    llama = gpu_model(LLAMA)
    assert llama.reading(65536) == pytest.approx(seconds["65536 tokens"])
    assert llama.reading(1024) == pytest.approx(seconds["1024 tokens"], rel=0.1)


def test_the_literal_search_takes_about_as_long_as_the_paper_says(paper):
    printed = published("search_cost").query("metric == 'hours_below'")["value"].item()
    counted = literal_search_seconds(paper, LLAMA) / 3600
    assert printed / 10 < counted < printed
    reused = counted_seconds(paper, "alpha_search", LLAMA)["harp", "search-wikitext"] / 3600
    assert reused < counted / 2


def test_a_large_model_is_counted_by_its_published_shape(paper):
    assert gpu_model(LARGE).weight_bytes / 2 == pytest.approx(70.55e9, rel=1e-3)
    assert counted_seconds(paper, "alpha_search", LARGE)["harp", "search-wikitext"] > 0


def test_a_model_that_cannot_be_counted_is_unknown(no_results, tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "gpt2", "num_hidden_layers": 2}', encoding="utf-8")
    estimates = cell_seconds(load_profile("paper", models=[str(tmp_path)]), "main_tables", str(tmp_path))
    assert len(estimates) == 77
    assert set(estimates.values()) == {UNKNOWN}


def test_answers_are_counted_to_their_limit_and_choices_once_each(paper):
    found, llama = counted_seconds(paper, "main_tables", LLAMA), gpu_model(LLAMA)
    rows = question_tokens()
    gsm8k = rows.loc["gsm8k"]
    tokens = round(gsm8k["tokens_per_text"])
    steps = sum(llama.token(tokens + step + 0.5, texts=8) for step in range(256))
    batches = math.ceil(1319 / 8)
    assert found["harp", "gsm8k"] == pytest.approx(batches * (8 * llama.layers(tokens) + llama.head(8) + steps))
    arc = rows.loc["arc_challenge"]
    tokens, texts = round(arc["tokens_per_text"]), 1172 * arc["texts_per_question"]
    assert found["dense", "arc_challenge"] == pytest.approx(
        texts * (llama.layers(tokens) + llama.head(tokens)), rel=0.01
    )


def test_fewer_rows_and_shorter_answers_cost_less(paper):
    whole = counted_seconds(paper, "longbench", LLAMA)["dense", "longbench_gov_report"]
    few = load_profile("paper", limit=20)
    assert counted_seconds(few, "longbench", LLAMA)["dense", "longbench_gov_report"] == pytest.approx(whole / 10)
    few["longbench"]["tasks"]["longbench_gov_report"]["new_tokens"] = 16
    assert counted_seconds(few, "longbench", LLAMA)["dense", "longbench_gov_report"] < whole / 100


def test_questions_were_measured_as_the_paper_profile_asks_them(paper):
    rows = question_tokens()
    tasks = {name: task for section in ("evaluation", "longbench") for name, task in paper[section]["tasks"].items()}
    assert {name: int(rows.loc[name, "shots"]) for name in tasks} == {
        name: task.get("shots", 0) for name, task in tasks.items()
    }
    documents = published("dataset_statistics").query("metric == 'documents'").set_index("task")["value"]
    for name in paper["evaluation"]["tasks"]:
        row, benchmark = rows.loc[name], ALL_BENCHMARKS[name]
        assert (row["questions"] == documents[benchmark.title]) == (name != "mmlu")  # the appendix has another number
        assert (row["answer_tokens"] == 0) == bool(benchmark.choices)
        assert 1 <= row["texts_per_question"] <= max(1, benchmark.choices) + 0.01
    assert rows.loc["longbench_narrativeqa", "longest_text"] == paper["longbench"]["context"]


@pytest.mark.real_model
@pytest.mark.parametrize(("section", "name"), [("evaluation", "piqa"), ("longbench", "longbench_musique")])
def test_real_questions_are_as_long_as_stored(shared, section, name):
    file = paths.DATA / "costs" / "measure_question_tokens.py"
    spec = importlib.util.spec_from_file_location("measure_question_tokens", file)
    spec.loader.exec_module(measuring := importlib.util.module_from_spec(spec))
    evaluator = Evaluator(load_profile("paper", datasets=str(shared / "benchmarks")), section=section)
    row = measuring.benchmark_row(evaluator, ALL_BENCHMARKS[name], load_model("smollm2-135m")[1])
    assert row == pytest.approx({"task": name, **question_tokens().loc[name]})


def test_counted_memory_is_what_a_prefill_takes():
    """The reference run measured it on a CPU; what it takes beside what is counted matters less the longer the text."""
    model = gpu_model("smollm2-135m")
    profile = {"longbench": {"batch_size": 1}, **_elsewhere()}
    for tokens in (2048, 4096):
        file = paths.REFERENCE / "mini" / "efficiency" / "smollm2-135m" / "all" / f"prefill-{tokens}.json"
        measured = json.loads(file.read_text(encoding="utf-8"))["result"]["peak_bytes"]["dense"]
        profile["longbench"]["context"] = tokens
        counted = memory_bytes(profile, "07", model) - model.weight_bytes
        assert measured / 2 < counted < 2 * measured


def _elsewhere() -> dict:
    """Sections of a profile that other notebooks take memory for."""
    profile = load_profile("mini")
    return {section: profile[section] for section in ("alpha_search", "theory", "evaluation", "efficiency")}


def test_full_size_has_a_row_for_each_notebook():
    table = full_size().set_index("notebook")
    assert list(table.index) == sorted(set(NOTEBOOK_OF.values()))
    assert list(table) == ["models", "cells", "GPU memory (GiB)", "GPU hours", "what dominates"]
    weights = {name: gpu_model(name).weight_bytes / 2**30 for name in (LARGE, "google/gemma-2-9b")}
    assert table.loc["03", "models"] == "5, the largest Llama-3.1-70B"
    assert weights[LARGE] < table.loc["03", "GPU memory (GiB)"] < 1.1 * weights[LARGE]
    assert table.loc["01", "GPU memory (GiB)"] > 2 * weights["google/gemma-2-9b"]  # with its untrained twin
    assert (table.loc[["02", "04", "05", "06", "07"], "GPU memory (GiB)"] > weights["google/gemma-2-9b"]).all()
    assert list(table.index[table["GPU hours"].isna()]) == ["01", "02"]
    assert table.loc["01", "what dominates"] == "37 of 37 cells are not counted"
    assert table.loc["02", "what dominates"] == "8 of 32 cells are not counted"
    assert table["GPU hours"].idxmax() == "05"
    assert "answers to BBH" in table.loc["05", "what dominates"]
