"""The experiment of notebook 08: the variants, what is stored, and what a length that fails leaves of the others."""

import json
import re
from types import SimpleNamespace

import matplotlib.pyplot as plt
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from harp_lib import PruningPlan, load_model, results
from harp_lib.accounting import kv_bytes_per_token, parameters
from harp_lib.efficiency_figures import all_figures
from harp_lib.efficiency_frames import (
    decode_frame,
    memory_frame,
    missing_frame,
    model_title,
    prefill_frame,
    share_frame,
    split_frame,
)
from harp_lib.efficiency_tables import efficiency_tables
from harp_lib.efficiency_verdict import FOLDED_DECODING, FOLDING, WHOLE, answer, verdict
from harp_lib.experiments import efficiency_study, efficiency_variants
from harp_lib.experiments.efficiency_study import EfficiencyStudy
from harp_lib.experiments.efficiency_variants import VARIANTS
from harp_lib.accounting import prefill_flops
from harp_lib.measure.timing import decode, prefill
from harp_lib.profiles import load_profile


def settings(**changes):
    efficiency = {
        "shapes": None,
        "layers": None,
        "prefill": {16: 2, 48: 3, 64: 1, 1024: 2},
        "decode": {"contexts": [16, 48], "steps": 3, "repetitions": 2},
        "split": [48],
    }
    return load_profile("smoke", models=["tiny-llama"]) | {"efficiency": efficiency | changes}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Finished studies of a model without and one with sliding windows, and their cells."""
    root = tmp_path_factory.mktemp("results")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("harp_lib.paths.RESULTS", root)
        store = results.ResultStore("smoke", "efficiency", root)
        studies = {name: EfficiencyStudy(name, settings(), store) for name in ("tiny-llama", "tiny-gemma2")}
        for study in studies.values():
            study.measure()
        yield SimpleNamespace(studies=studies, store=store, cells=store.finish(), root=root)


def result(finished, task, model="tiny-llama"):
    return finished.cells[model, "all", task]["result"]


def test_the_cells(finished):
    tasks = {task for model, method, task in finished.cells if model == "tiny-llama" and method == "all"}
    assert tasks == {"counted", "prefill-16", "prefill-48", "prefill-64", "split-48", "decode-16", "decode-48"}
    for task, repetitions in {"prefill-16": 2, "prefill-48": 3, "prefill-64": 1, "decode-48": 2}.items():
        seconds = result(finished, task)["seconds"]
        assert list(seconds) == list(VARIANTS)
        assert all(len(found) == repetitions and min(found) > 0 for found in seconds.values())
    split = result(finished, "split-48")["seconds"]
    assert {name: len(runs) for name, runs in split.items()} == {"dense": 3, "harp": 3}
    inputs = finished.cells["tiny-llama", "all", "decode-48"]["inputs"]
    assert inputs["device"] == results.device_name()
    assert inputs["threads"] == torch.get_num_threads()
    assert (inputs["tokens"], inputs["steps"], inputs["repetitions"]) == (48, 3, 2)
    assert set(inputs["plans"]) == set(VARIANTS)


def test_what_the_model_cannot_read_is_named(finished):
    assert result(finished, "counted")["left_out"] == [1024]
    missing = missing_frame(finished.cells)
    assert missing["what"].tolist() == ["all at 1024 tokens"] * 2
    assert 1024 not in prefill_frame(finished.cells)["tokens"].tolist()


def test_a_second_study_measures_nothing(finished):
    store = results.ResultStore("smoke", "efficiency", finished.root)
    EfficiencyStudy("tiny-llama", settings(), store).measure()
    assert store.counts == {"read": 7}


def test_other_repetitions_are_other_measurements(finished):
    store = results.ResultStore("smoke", "efficiency", finished.root / "other")
    profile = settings(prefill={16: 4}, split=[], decode={"contexts": [], "steps": 1, "repetitions": 1})
    EfficiencyStudy("tiny-llama", profile, store).measure()
    inputs = store.cells["tiny-llama", "all", "prefill-16"]["inputs"]
    assert inputs != finished.cells["tiny-llama", "all", "prefill-16"]["inputs"]
    lengths = store.cells["tiny-llama", "all", "counted"]["result"]["lengths"]
    assert (lengths[0], lengths[-1]) == (8, 4 * 128), "to where attention has overtaken the FFN"


def test_the_bar_counts_every_run(finished, tmp_path, capsys):
    EfficiencyStudy("tiny-llama", settings(), results.ResultStore("smoke", "efficiency", tmp_path)).measure()
    prefills, split, decodes = 4 * (3 + 4 + 1), 2 * 4, 2 * 4 * 3
    runs = prefills + split + decodes
    moves = re.findall(r"(\d+)/(\d+) \[", capsys.readouterr().err)
    assert set(moves) <= {(str(done), str(runs)) for done in range(runs + 1)}
    assert moves[-1] == (str(runs), str(runs))


def test_every_repetition_decodes_after_as_many_tokens(finished, tmp_path, monkeypatch):
    lengths = []

    def recorded(model, cache, ids):
        lengths.append(cache.get_seq_length())
        return decode(model, cache, ids)

    monkeypatch.setattr(efficiency_study, "decode", recorded)
    profile = settings(prefill={}, split=[])
    EfficiencyStudy("tiny-llama", profile, results.ResultStore("smoke", "efficiency", tmp_path)).measure()
    assert lengths == [16] * 12 + [48] * 12


def test_operations_are_those_of_the_plans(finished):
    study = finished.studies["tiny-llama"]
    for tokens in (16, 48, 64):
        flops = result(finished, f"prefill-{tokens}")["flops"]
        for name, variant in study.variants.items():
            how = (study.config, variant.plan, tokens)
            assert flops["full"][name] == prefill_flops(*how, False, variant.fold_output)
            assert flops["causal"][name] == prefill_flops(*how, True, variant.fold_output)
    assert flops["full"]["dense"] > flops["full"]["harp"] > flops["full"]["harp-folded"]


def test_caches_are_weighed_where_something_is_repeated(finished):
    frame = memory_frame(finished.cells)
    llama, gemma = (frame[frame["model"] == name] for name in ("tiny-llama", "tiny-gemma2"))
    assert llama["tokens"].unique().tolist() == [16, 48]
    assert (llama["cache"] == llama["cache_counted"]).all()
    assert (gemma["cache"] == gemma["cache_counted"])[gemma["tokens"] == 16].all()
    assert (gemma["cache"] < gemma["cache_counted"])[gemma["tokens"] == 48].all(), "the window is 32"
    held = llama[llama["tokens"] == 48].set_index("variant")["cache"]
    assert held["harp"] * 6 == held["thinned"] * 6 == held["dense"] * 4


def test_the_bytes_that_a_token_moves(finished):
    study = finished.studies["tiny-llama"]
    read = result(finished, "decode-48")["bytes"]
    for name, (model, plan, fold_output) in study.variants.items():
        embedding = model.get_input_embeddings().weight.numel()  # the output head is another matrix
        weights = parameters(study.config, plan, fold_output) - embedding
        assert weights == sum(weight.numel() for weight in model.parameters()) - embedding
        assert read[name] == 4 * weights + 3 * 48 * kv_bytes_per_token(study.config, plan, torch.float32)
    tied = finished.studies["tiny-gemma2"].variants["dense"].model
    assert tied.get_input_embeddings().weight is tied.get_output_embeddings().weight
    windowed = 3 * 16 + 3 * 16
    each = kv_bytes_per_token(tied.config) // 6
    assert (
        result(finished, "decode-16", "tiny-gemma2")["bytes"]["dense"]
        == 4 * parameters(tied.config) + 3 * each * windowed
    )


def test_counted_shares(finished):
    frame = share_frame(finished.cells)
    sums = frame.groupby(["model", "pairs", "tokens"])["share"].sum()
    assert sums.to_numpy() == pytest.approx(1)
    counted = result(finished, "counted")
    assert counted["overtaking"] == {
        "full": {"attention": 192, "with_projections": 96},
        "causal": {"attention": 383, "with_projections": 191},
    }
    assert counted["lengths"][-1] == 1024
    assert counted["variants"]["harp"]["removed_groups"] == counted["variants"]["thinned"]["removed_groups"] == 4


def test_frames(finished):
    frame = prefill_frame(finished.cells).query("model == 'tiny-llama' and tokens == 48").set_index("variant")
    assert frame.loc["dense", "saved"] != frame.loc["dense", "saved"], "nothing to compare with"
    seconds = result(finished, "prefill-48")["seconds"]
    assert frame.loc["dense", "seconds"] == pytest.approx(sum(seconds["dense"]) / 3)
    assert frame.loc["harp", "saved_low"] <= frame.loc["harp", "saved"] <= frame.loc["harp", "saved_high"]
    decoded = decode_frame(finished.cells).query("model == 'tiny-llama' and tokens == 16").set_index("variant")
    rates = [3 / each for each in result(finished, "decode-16")["seconds"]["thinned"]]
    assert decoded.loc["thinned", "speed"] == pytest.approx(sum(rates) / 2)
    split = split_frame(finished.cells).query("model == 'tiny-llama' and variant == 'dense'").set_index("part")
    assert split.loc[["attention", "projections", "ffn"], "share"].sum() == pytest.approx(1)
    runs = result(finished, f"split-{int(split.loc['attention', 'tokens'])}")["seconds"]["dense"]
    two = [run["attention"] / (run["attention"] + run["ffn"]) for run in runs]
    assert split.loc["attention", "of_two"] == pytest.approx(sum(two) / len(two))


def test_a_length_that_fails_is_named_and_tried_again(finished, monkeypatch, tmp_path):
    monkeypatch.setattr("harp_lib.paths.RESULTS", finished.root)

    def out_of_memory(model, ids):
        if ids.shape[1] == 48:
            raise RuntimeError("DefaultCPUAllocator: not enough memory\nand where")
        return prefill(model, ids)

    with monkeypatch.context() as patched:
        patched.setattr(efficiency_study, "prefill", out_of_memory)
        store = results.ResultStore("smoke", "efficiency", tmp_path)
        EfficiencyStudy("tiny-llama", settings(), store).measure()
    missing = missing_frame(store.cells).set_index("what")["reason"]
    assert missing["prefill at 48 tokens"] == "RuntimeError: DefaultCPUAllocator: not enough memory"
    assert set(missing.index) == {"prefill at 48 tokens", "split at 48 tokens", "all at 1024 tokens"}
    assert prefill_frame(store.cells)["tokens"].unique().tolist() == [16, 64]
    again = results.ResultStore("smoke", "efficiency", tmp_path)
    EfficiencyStudy("tiny-llama", settings(), again).measure()
    assert again.counts == {"read": 5, "computed": 2}


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (MemoryError(), "MemoryError:"),
        (torch.OutOfMemoryError("CUDA out of memory. Tried"), "OutOfMemoryError: CUDA out of memory. Tried"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you"), "DefaultCPUAllocator: can't allocate"),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when"), "ALLOC_FAILED"),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), None),
        (NotImplementedError("no such kernel"), None),
    ],
)
def test_only_want_of_memory_is_a_result(finished, monkeypatch, error, said):
    study = finished.studies["tiny-llama"]

    def fail(model, ids):
        raise error

    monkeypatch.setattr(efficiency_study, "prefill", fail)
    job = efficiency_study.Job("prefill", 16, 2, VARIANTS)
    if said:
        assert said in study._result(job, None)["failed"]
    else:
        with pytest.raises(type(error), match=str(error)):
            study._result(job, None)


def test_new_tokens_have_to_be_readable_too(finished, monkeypatch, tmp_path):
    monkeypatch.setattr("harp_lib.paths.RESULTS", finished.root)
    end = finished.studies["tiny-llama"].config.max_position_embeddings
    profile = settings(prefill={16: 2}, split=[], decode={"contexts": [end - 3, end - 2], "steps": 3, "repetitions": 2})
    store = results.ResultStore("smoke", "efficiency", tmp_path)
    EfficiencyStudy("tiny-llama", profile, store).measure()
    assert decode_frame(store.cells)["tokens"].unique().tolist() == [end - 3]
    missing = missing_frame(store.cells).set_index("what")["reason"].to_dict()
    assert missing == {f"decode at {end - 2} tokens": "with 3 new tokens more than the model reads"}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("family", "groups", "lacks", "claims"),
    [("olmo2", 2, "thinned out", {WHOLE}), ("llama", 4, "HARP, folded", {FOLDING, FOLDED_DECODING})],
)
def test_a_model_that_lacks_a_variant_has_the_others(finished, monkeypatch, tmp_path, family, groups, lacks, claims):
    sizes = {"hidden_size": 64, "intermediate_size": 96, "vocab_size": 500, "num_attention_heads": 4}
    config = AutoConfig.for_model(family, **sizes, num_key_value_heads=groups, num_hidden_layers=6)
    model = AutoModelForCausalLM.from_config(config).eval()
    loaded = (model, PruningPlan.value_only(6, [0.8, 0.0]))
    monkeypatch.setattr(efficiency_study, "load_dense", lambda name, profile, seed: loaded)
    store = results.ResultStore("smoke", "efficiency", tmp_path)
    EfficiencyStudy("tiny-other", settings(prefill={16: 2, 48: 2}), store).measure()
    missing = missing_frame(store.cells)
    assert missing["what"].tolist() == [lacks]
    every, said = set(verdict(finished.cells)["claim"]), set(verdict(store.cells)["claim"])
    assert every - said == claims
    assert "HARP saves" in answer(store.cells)
    for table, name, numbers in efficiency_tables(store.cells):
        assert "nan" not in table.to_markdown(index=False), name
        others = name.endswith("_missing") or len(numbers) == 0
        assert others or lacks not in table.to_markdown(index=False), name
    for _, figure in all_figures(store.cells):
        figure.savefig(tmp_path / "figure.png")
        legend = {text.get_text() for text in figure.legends[0].get_texts()}
        assert lacks not in legend
        plt.close(figure)


def test_the_shape_of_a_model_of_the_paper(monkeypatch, tmp_path):
    """The way of the paper profile, at a small width: at the full one, one layer takes half a gigabyte."""
    widths = {"hidden_size": 64, "intermediate_size": 96, "vocab_size": 500, "num_attention_heads": 4}
    config = AutoConfig.for_model("llama", **widths, num_key_value_heads=2, num_hidden_layers=32)
    for module in (efficiency_study, efficiency_variants):
        monkeypatch.setattr(module, "paper_configs", lambda: {"LLaMA3.1-8B": config})
    profile = settings(layers=8, prefill={16: 2}, split=[16]) | {"dtype": "bfloat16"}
    store = results.ResultStore("paper", "efficiency", tmp_path)
    EfficiencyStudy("LLaMA3.1-8B", profile, store).measure()
    cells = store.finish()
    assert model_title(cells, "LLaMA3.1-8B") == "LLaMA3.1-8B shape, random weights, 8 of 32 layers"
    counted = cells["LLaMA3.1-8B", "all", "counted"]
    assert counted["inputs"]["dtype"] == "torch.bfloat16"
    assert counted["result"]["variants"]["harp"]["layers_without_attention"] == 2
    held = cells["LLaMA3.1-8B", "all", "prefill-16"]["result"]["cache_bytes"]
    assert held["harp"] * 8 == held["dense"] * 6


def test_alpha_is_that_of_notebook_03(finished):
    model, _ = load_model("tiny-llama")
    cell = json.loads(
        next((finished.root / "smoke" / "alpha_search" / "tiny-llama").rglob("search-*.json")).read_text()
    )
    expected = PruningPlan.value_only(len(model.model.layers), cell["result"]["alphas"])
    assert finished.studies["tiny-llama"].variants["harp"].plan == expected
