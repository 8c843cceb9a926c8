import subprocess
import sys

import pytest
import torch

from harp_lib.config import (
    CHECKOUT,
    HUB_ID,
    NAMED_MODELS,
    is_left_out,
    load_profile,
    num_pruned_layers,
    profile_for,
)
from harp_lib.experiments import UNITS, models_of

OWN_KEYS = ("pruned_layers", "frontier")
"""Sections whose keys are models, or may be left out."""


@pytest.mark.parametrize("name", ["mini", "paper"])
def test_profiles_have_the_same_keys(name):
    smoke = load_profile("smoke")
    profile = load_profile(name)
    assert profile.keys() == smoke.keys()
    for section, values in smoke.items():
        if isinstance(values, dict) and section not in OWN_KEYS:
            assert profile[section].keys() == values.keys(), section
    assert profile["evaluation"]["tasks"].keys() == smoke["evaluation"]["tasks"].keys()


@pytest.mark.parametrize("name", ["smoke", "mini", "paper"])
def test_models_of_profiles_exist(name):
    profile = load_profile(name)
    for model in models_of(profile, "search"):
        assert model in NAMED_MODELS or HUB_ID.fullmatch(model)
        assert model in profile["pruned_layers"]


def test_the_paper_profile_prunes_the_layers_of_the_paper():
    paper = load_profile("paper")
    numbers = [num_pruned_layers(paper, model, 32) for model in paper["models"]]
    assert numbers == [8, 8, 4, 6]
    assert num_pruned_layers(paper, "another/model", 32) == 8


def test_the_paper_profile_evaluates_as_the_paper():
    """Few-shot examples of Section 3 (Experimental Setup), all rows, whole pages."""
    paper = load_profile("paper")
    shots = {name: task["shots"] for name, task in paper["evaluation"]["tasks"].items()}
    assert shots == {
        "triviaqa": 5,
        "nq_open": 5,
        "gsm8k": 5,
        "leaderboard_math_hard": 4,
        "bbh_cot_fewshot": 3,
        "winogrande": 5,
        "arc_challenge": 25,
        "boolq": 0,
        "openbookqa": 0,
        "piqa": 0,
        "mmlu": 5,
    }
    tasks = [*paper["evaluation"]["tasks"].values(), *paper["longbench"]["tasks"].values()]
    assert len(tasks) == 27
    for task in tasks:
        assert task["rows"] is None
        assert task["new_tokens"] is None, "lm-eval's own length"
    assert paper["evaluation"]["subtasks"] is None
    for model in paper["models"]:
        assert profile_for(model, paper)["alpha_search"]["context"] is None, "the model's own"
    (largest,) = paper["alpha_search"]["extra_models"]
    assert profile_for(largest, paper)["alpha_search"]["context"] == 20480
    assert paper["alpha_search"]["tokens"] is None


@pytest.mark.parametrize(("gpu", "dtype"), [(True, "bfloat16"), (False, "float32")])
def test_a_cpu_computes_in_float32(gpu, dtype, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
    assert load_profile("paper")["dtype"] == dtype


def test_a_profile_may_name_the_dtype_of_one_model(monkeypatch):
    """Then a CPU computes in it, too, so that a profile's results are the same on all machines."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    small = load_profile("small")
    assert profile_for("qwen2.5-coder-1.5b", small)["dtype"] == "bfloat16"
    assert profile_for("smollm2-135m", small)["dtype"] == "float32"


def test_a_model_may_have_lengths_of_its_own():
    small = load_profile("small")
    lengths = list(profile_for("smollm2-135m", small)["efficiency"]["prefill"])
    assert len(lengths) == 7
    assert list(profile_for("gemma3-270m", small)["efficiency"]["prefill"]) == [1024, 4096]
    assert small["efficiency"]["prefill"] == {1024: 10, 4096: 10}, "the profile is not changed"


def test_models_datasets_and_rows_may_be_replaced(tmp_path):
    shape = "LLaMA3.1-8B (random weights)"
    assert models_of(load_profile("paper"), "efficiency") == [shape], "no model of the hub"
    small = load_profile("small")
    assert models_of(small, "efficiency") == [*small["models"], shape]
    profile = load_profile("paper", models=["tiny-llama"], datasets=str(tmp_path), limit=3)
    for unit in UNITS:
        assert models_of(profile, unit) == ["tiny-llama"], "no extra models, no shapes"
    paper = load_profile("paper")
    without_extra = load_profile("paper", models=paper["models"])
    assert models_of(without_extra, "efficiency") == [shape]
    assert models_of(without_extra, "search") == paper["models"]
    assert profile["corpora"] == ("python-docs", "scipy-docs"), "the folder has no text"
    assert {task["rows"] for task in profile["longbench"]["tasks"].values()} == {3}


def test_a_new_model_gets_the_largest_number_of_rows(tmp_path):
    models = ["gemma3-270m", "tiny-llama"]
    profile = load_profile("small", models=models, datasets=str(tmp_path))
    rows = {}
    for model in [*models, "smollm2-135m"]:
        tasks = profile_for(model, profile)["evaluation"]["tasks"]
        rows[model] = tasks["gsm8k"]["rows"] if "gsm8k" in tasks else None
    assert rows == {"gemma3-270m": 50, "tiny-llama": 150, "smollm2-135m": None}


def test_other_depths_go_with_their_models():
    assert load_profile("smoke", models=["tiny-llama"])["depths"] == load_profile("smoke")["depths"]
    profile = load_profile("smoke", models=["tiny-gemma2"])
    assert all(is_left_out(profile, f"depths.{setting}") for setting in profile["depths"])


def test_a_limit_adds_no_benchmark_to_a_model(tmp_path):
    profile = load_profile("small", datasets=str(tmp_path), limit=3)
    tasks = profile_for("smollm2-135m", profile)["evaluation"]["tasks"]
    assert tasks["piqa"]["rows"] == 3
    assert "gsm8k" not in tasks


def test_unknown_profiles_and_datasets_are_refused():
    choice = "unknown profile 'mnii'; choose from mini, paper, small, smoke"
    with pytest.raises(ValueError, match=choice):
        load_profile("mnii")
    with pytest.raises(ValueError, match="unknown datasets 'nowhere'"):
        load_profile("mini", datasets="nowhere")


def test_the_command_line_needs_no_package():
    """It runs before set-up."""
    check = "main(['--check', '--models', 'tiny-llama'])"
    code = f"import sys; from harp_lib.cli import main; sys.exit({check})"
    subprocess.run([sys.executable, "-E", "-s", "-S", "-c", code], cwd=CHECKOUT, check=True)
