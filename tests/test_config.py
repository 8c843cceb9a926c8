import subprocess
import sys

import pytest
import torch

from harp_lib.config import (
    CHECKOUT,
    HUB_ID,
    NAMED_MODELS,
    load_profile,
    num_pruned_layers,
    profile_for,
)
from harp_lib.experiments import UNITS, models_of


def test_profiles_have_the_same_keys_and_models_that_exist():
    profiles = [load_profile(name) for name in ("smoke", "mini", "paper")]
    for profile in profiles:
        assert profile.keys() == profiles[0].keys()
        for section in (
            "alpha_search",
            "theory",
            "baselines",
            "evaluation",
            "ablations",
            "longbench",
            "efficiency",
        ):
            assert profile[section].keys() == profiles[0][section].keys(), (
                profile["name"],
                section,
            )
        assert profile["evaluation"]["tasks"].keys() == profiles[0]["evaluation"]["tasks"].keys()
        for model in models_of(profile, "search"):
            assert model in NAMED_MODELS or HUB_ID.fullmatch(model)
            assert model in profile["pruned_layers"]


def test_what_the_paper_profile_asks():
    """Layers and few-shot examples of Section 3 (Experimental Setup), all rows, lm-eval's own
    lengths, whole pages.
    """
    paper = load_profile("paper")
    assert [
        num_pruned_layers(paper, model, 32) for model in [*paper["models"], "another/model"]
    ] == [8, 8, 4, 6, 8]
    assert {name: task["shots"] for name, task in paper["evaluation"]["tasks"].items()} == {
        **{
            "triviaqa": 5,
            "nq_open": 5,
            "gsm8k": 5,
            "leaderboard_math_hard": 4,
            "bbh_cot_fewshot": 3,
        },
        **{"winogrande": 5, "arc_challenge": 25, "boolq": 0, "openbookqa": 0, "piqa": 0, "mmlu": 5},
    }
    tasks = [
        task for section in ("evaluation", "longbench") for task in paper[section]["tasks"].values()
    ]
    assert len(tasks) == 27
    assert all(task["rows"] is task["new_tokens"] is None for task in tasks)
    search = paper["alpha_search"]
    assert search["context"] is search["tokens"] is paper["evaluation"]["subtasks"] is None


@pytest.mark.parametrize(("gpu", "dtype"), [(True, "bfloat16"), (False, "float32")])
def test_a_cpu_computes_in_float32(gpu, dtype, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
    assert load_profile("paper")["dtype"] == dtype


def test_what_may_be_replaced(tmp_path):
    profile = load_profile("paper", models=["tiny-llama"], datasets=str(tmp_path), limit=3)
    found = {tuple(models_of(profile, unit)) for unit in UNITS if unit != "theory"}
    assert found == {("tiny-llama",)}, "only what was asked for: no extra models, no shapes"
    assert profile["corpora"] == ("python-docs", "scipy-docs"), "the folder has no text"
    assert {task["rows"] for task in profile["longbench"]["tasks"].values()} == {3}
    assert models_of(load_profile("paper"), "efficiency") == ["LLaMA3.1-8B"]
    small = load_profile("small", models=["gemma3-270m", "tiny-llama"], datasets=str(tmp_path))
    tasks = [
        profile_for(model, small)["evaluation"]["tasks"]
        for model in [*small["models"], "smollm2-135m"]
    ]
    assert [task.get("gsm8k", {}).get("rows") for task in tasks] == [50, 100, None], (
        "its own number, or the largest"
    )
    small = profile_for("smollm2-135m", load_profile("small", datasets=str(tmp_path), limit=3))[
        "evaluation"
    ]["tasks"]
    assert (small["piqa"]["rows"], "gsm8k" in small) == (3, False), (
        "fewer questions, but to the same models"
    )


def test_bad_requests():
    with pytest.raises(
        ValueError, match="unknown profile 'mnii'; choose from mini, paper, small, smoke"
    ):
        load_profile("mnii")
    with pytest.raises(ValueError, match="unknown datasets 'nowhere'"):
        load_profile("mini", datasets="nowhere")


def test_what_is_imported_when():
    """The command line needs no package, since it runs before set-up; Snakemake and a run's start
    wait for no torch.
    """
    bare = "import sys; from harp_lib.cli import main; sys.exit(main(['--check', '--models', 'tiny-llama']))"
    subprocess.run([sys.executable, "-E", "-s", "-S", "-c", bare], cwd=CHECKOUT, check=True)
    quick = "import sys, harp_lib.batch; sys.exit(bool({'torch', 'papermill'} & set(sys.modules)))"
    subprocess.run([sys.executable, "-c", quick], check=True)
