"""Which cells a run stores, known before it runs."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from harp_lib import paths
from harp_lib.accounting import PAPER_MODELS, count_groups, paper_configs
from harp_lib.expected_cells import NOTEBOOK_OF, expected_cells, experiment_models, model_config
from harp_lib.measure.tiny import FAMILIES, tiny_model
from harp_lib.profiles import load_profile


def unlike_stored(profile: dict, root: Path) -> dict[str, set[tuple[str, str, str]]]:
    """By experiment, the cells that a finished run under ``root`` stored unexpectedly, or that it lacks."""
    unlike = {}
    for experiment in NOTEBOOK_OF:
        run = json.loads((root / profile["name"] / experiment / "run.json").read_text(encoding="utf-8"))
        stored = {(model, method, task) for model, method, task, _ in run["cells"]}
        expected = {
            (model, *cell)
            for model in experiment_models(profile, experiment)
            for cell in expected_cells(profile, experiment, model)
        }
        unlike[experiment] = stored ^ expected
    return {experiment: cells for experiment, cells in unlike.items() if cells}


def test_the_cells_of_the_reference_run_are_expected_and_no_others():
    assert unlike_stored(load_profile("mini"), paths.REFERENCE) == {}


@pytest.mark.parametrize("profile", ["smoke", "mini", "paper"])
def test_every_cell_is_named_once(profile):
    settings = load_profile(profile)
    for experiment in NOTEBOOK_OF:
        for model in experiment_models(settings, experiment):
            cells = expected_cells(settings, experiment, model)
            assert cells
            assert len(cells) == len(set(cells))


def test_the_paper_profile_searches_a_further_model_and_times_a_shape():
    profile = load_profile("paper")
    assert experiment_models(profile, "theory") == ["synthetic"]
    assert experiment_models(profile, "main_tables") == profile["models"]
    assert experiment_models(profile, "alpha_search") == [*profile["models"], "meta-llama/Llama-3.1-70B"]
    assert experiment_models(profile, "efficiency") == ["LLaMA3.1-8B"]
    searched = expected_cells(profile, "alpha_search", "meta-llama/Llama-3.1-70B")
    assert searched == [("harp", "search-wikitext"), ("harp", "search-pile_10k")]


@pytest.mark.parametrize("models", [["tiny-llama"], load_profile("paper")["models"]])
def test_named_models_are_timed_in_place_of_the_shapes(models):
    profile = load_profile("paper", models=models)
    assert experiment_models(profile, "efficiency") == models
    assert experiment_models(profile, "alpha_search") == models


def test_the_paper_tunes_the_ranges_that_its_profile_says():
    cells = expected_cells(load_profile("paper"), "baselines", "meta-llama/Llama-3.1-8B")
    ranges = [task for method, task in cells if method == "mag-sp" and task.startswith("range-")]
    assert ranges == [f"range-{start:02d}-{start + 16:02d}" for start in range(17)] + ["range-00-32"]
    flap = [task for method, task in cells if method == "flap" and task.startswith("range-")]
    assert len(flap) == sum(33 - layers for layers in (12, 16, 20, 24, 28, 32))


def test_a_model_without_a_config_at_hand_lacks_what_depends_on_its_layers():
    profile = load_profile("mini", models=["owner/unheard-of"])
    assert model_config("owner/unheard-of") is None
    cells = expected_cells(profile, "baselines", "owner/unheard-of")
    assert ("flap", "plan") in cells
    assert not any(task.startswith("range-") for _, task in cells)
    assert expected_cells(profile, "efficiency", "owner/unheard-of") == [("all", "counted")]
    assert len(expected_cells(profile, "main_tables", "owner/unheard-of")) == 77


def test_lengths_that_a_model_cannot_read_are_not_measured():
    profile = load_profile("mini", models=["tiny-llama"])  # 512 tokens
    cells = expected_cells(profile, "efficiency", "tiny-llama")
    assert [task for _, task in cells] == ["counted", "prefill-256", "prefill-512", "split-256", "decode-256"]


def test_documents_are_as_many_as_the_text_has(tmp_path):
    (tmp_path / "wikitext").mkdir()
    for split in ("train", "validation", "test"):
        pages = [json.dumps({"page": text}) for text in ("one", " ", "two", "three")]
        (tmp_path / "wikitext" / f"{split}.jsonl").write_text("\n".join(pages) + "\n", encoding="utf-8")
    cells = expected_cells(load_profile("mini", datasets=str(tmp_path)), "ablations", "smollm2-135m")
    for method in ("gain", "single-layer"):
        assert [task for name, task in cells if name == method] == ["document-00", "document-01", "document-02"]


@pytest.mark.parametrize("family", FAMILIES)
def test_the_config_of_a_tiny_model_is_the_models(family):
    config = tiny_model(family).config.to_dict()
    assert {key: config[key] for key in model_config(family)} == model_config(family)


def test_configs_are_found_under_every_name_of_a_model():
    for name, config in paper_configs().items():
        assert model_config(name) == model_config(f"owner/{PAPER_MODELS[name]}")
        assert model_config(name)["num_key_value_heads"] == count_groups(config)[0][0]


def test_the_config_of_a_folder_is_its_own(tmp_path):
    (tmp_path / "config.json").write_text('{"num_hidden_layers": 7}', encoding="utf-8")
    assert model_config(str(tmp_path))["num_hidden_layers"] == 7
    (tmp_path / "config.json").write_text('{"text_config": {"num_hidden_layers": 7}}', encoding="utf-8")
    assert model_config(str(tmp_path)) is None


def test_the_small_model_is_known_before_it_is_downloaded(monkeypatch, tmp_path):
    monkeypatch.setattr(paths, "MODELS", tmp_path)
    config = model_config("smollm2-135m")
    assert (config["num_hidden_layers"], config["num_key_value_heads"], config["num_attention_heads"]) == (30, 3, 9)


def test_an_unknown_experiment_is_refused_with_those_there_are():
    with pytest.raises(ValueError, match="unknown experiment 'alpha'; choose from theory, similarity, norm_change"):
        expected_cells(load_profile("smoke"), "alpha", "tiny-llama")


def test_importing_it_loads_neither_torch_nor_pandas():
    code = "import sys, harp_lib.expected_cells; sys.exit(bool({'torch', 'pandas', 'transformers'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
