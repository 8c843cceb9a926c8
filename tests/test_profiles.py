import pytest
import torch

from harp_lib.measure.model_names import MODEL_NAMES
from harp_lib.measure.models import HUB_ID
from harp_lib.profiles import load_profile, num_pruned_layers

NAMES = ("smoke", "mini", "paper")


@pytest.mark.parametrize("name", NAMES)
def test_profiles_name_models_that_exist(name):
    profile = load_profile(name)
    for model in [*profile["models"], *profile["alpha_search"]["extra_models"]]:
        assert model in MODEL_NAMES or HUB_ID.fullmatch(model)
        assert model in profile["pruned_layers"]


def test_profiles_have_the_same_keys():
    smoke, mini, paper = map(load_profile, NAMES)
    assert smoke.keys() == mini.keys() == paper.keys()
    assert smoke["evaluation"].keys() == mini["evaluation"].keys() == paper["evaluation"].keys()
    assert smoke["evaluation"]["tasks"].keys() == mini["evaluation"]["tasks"].keys()
    assert smoke["alpha_search"].keys() == mini["alpha_search"].keys() == paper["alpha_search"].keys()


@pytest.mark.parametrize(("gpu", "dtype"), [(True, "bfloat16"), (False, "float32")])
def test_a_cpu_computes_in_float32(gpu, dtype, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
    assert load_profile("paper")["dtype"] == dtype


def test_what_the_paper_prunes():
    paper = load_profile("paper")
    assert [num_pruned_layers(paper, model, 32) for model in paper["models"]] == [8, 8, 4, 6]
    assert num_pruned_layers(load_profile("mini"), "smollm2-135m", 30) == 6
    assert num_pruned_layers(load_profile("mini"), "another/model", 24) == 5


def test_replacing_models_and_datasets(tmp_path):
    profile = load_profile("paper", models=["tiny-llama"], datasets=str(tmp_path))
    assert profile["models"] == ["tiny-llama"]
    assert profile["alpha_search"]["extra_models"] == [], "only what was asked for"
    assert profile["corpora"] == ("python-docs", "scipy-docs"), "the folder has no text"


def test_limiting_the_rows():
    assert {task["rows"] for task in load_profile("paper", limit=3)["evaluation"]["tasks"].values()} == {3}
    for limit in (0, -1, 1.5, "3", True):
        with pytest.raises(ValueError, match="limit is a number of rows, 1 or more"):
            load_profile("mini", limit=limit)


def test_what_the_paper_asks():
    """Few-shot examples of Section 3 (Experimental Setup), all rows, lm-eval's own lengths."""
    evaluation = load_profile("paper")["evaluation"]
    shots = {name: task["shots"] for name, task in evaluation["tasks"].items()}
    assert shots == {
        **{"triviaqa": 5, "nq_open": 5, "gsm8k": 5, "leaderboard_math_hard": 4, "bbh_cot_fewshot": 3},
        **{"winogrande": 5, "arc_challenge": 25, "boolq": 0, "openbookqa": 0, "piqa": 0, "mmlu": 5},
    }
    assert evaluation["subtasks"] is None
    assert all(task["rows"] is task["new_tokens"] is None for task in evaluation["tasks"].values())


def test_bad_requests():
    with pytest.raises(ValueError, match="unknown profile 'mnii'; choose from mini, paper, smoke"):
        load_profile("mnii")
    with pytest.raises(ValueError, match="unknown datasets 'nowhere'"):
        load_profile("mini", datasets="nowhere")
