"""The experiment of notebook 04: which ranges are tried, what is stored, and what is made of it."""

import math
import re
from types import SimpleNamespace

import pytest
import torch

from harp_lib import PruningPlan, load_model, results
from harp_lib.accounting import linear_parameters
from harp_lib.baseline_frames import (
    WITHOUT_BIAS,
    cost_frame,
    group_frame,
    perplexity_frame,
    plans,
    range_frame,
    references,
    repetition,
)
from harp_lib.baseline_tables import (
    method_costs,
    method_properties,
    one_line,
    pruning_ratios,
    published_averages,
    tuned_ranges,
)
from harp_lib.baseline_verdict import read_groups
from harp_lib.experiments.alpha_study import AlphaStudy
from harp_lib.experiments.baseline_study import (
    BaselineStudy,
    flap_counts,
    sliding_windows,
    text_table,
    uncompensated,
    uniform_parts,
)
from harp_lib.measure.likelihood import perplexity
from harp_lib.methods import BASELINES, METHODS
from harp_lib.profiles import load_profile
from harp_lib.pruning.plan import LayerPlan
from harp_lib.pruning.surgery import apply_plan
from harp_lib.published import published_ranges
from harp_lib.tables import with_error

PAPER_SHAPES = {  # layers, groups a layer, groups to remove
    "LLaMA3.1-8B": (32, 8, 64),
    "Mistral-7B-v0.3": (32, 8, 64),
    "Qwen2-7B": (28, 4, 16),
    "Gemma2-9B": (42, 8, 48),
}


@pytest.mark.parametrize("model", PAPER_SHAPES)
def test_the_papers_ranges_are_among_those_of_the_paper_profile(model):
    """The profile's lengths, or the default ones, hold the length of every range that the paper ends up with."""
    layers, groups, budget = PAPER_SHAPES[model]
    settings = load_profile("paper")["baselines"]
    (name,) = [
        name for name in settings["groups_per_layer"] if name.split("/")[1].lower().startswith(model[:5].lower())
    ]
    uniform = {budget // each for each in settings["groups_per_layer"][name]}
    for method, (start, end) in published_ranges()[model].items():
        assert end - start in (settings["flap_layers"][name] if method == "flap" else uniform)
    if model != "Gemma2-9B":  # for which the paper tries four
        assert settings["groups_per_layer"][name] == uniform_parts(layers, groups, budget)
    assert max(settings["flap_layers"][name]) == layers


def test_default_ranges():
    assert uniform_parts(30, 3, 18) == [1, 2]
    assert uniform_parts(32, 32, 256) == [8, 16], "multi-head: one group a layer would need 256 layers"
    assert flap_counts(32, 8, 64) == [12, 16, 20, 24, 28, 32], "the paper's"
    assert min(flap_counts(30, 1, 15)) == 15, "layers that hold fewer groups than have to go are left out"


def test_windows_slide_from_the_bottom_and_end_at_the_top():
    assert sliding_windows(30, 24, 3) == [range(0, 24), range(3, 27), range(6, 30)]
    assert sliding_windows(6, 3, 2) == [range(0, 3), range(2, 5), range(3, 6)], "the top layers in any case"
    assert sliding_windows(30, 30, 3) == [range(30)]
    assert len(sliding_windows(32, 16, 1)) == 17, "every one, as in the paper"


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A study of a tiny model, its store and its cells."""
    profile = load_profile("smoke", models=["tiny-qwen2"])
    model, tokenizer = load_model("tiny-qwen2")
    root = tmp_path_factory.mktemp("results")
    alpha = AlphaStudy("tiny-qwen2", model, tokenizer, profile, results.ResultStore("smoke", "alpha_search", root))
    store = results.ResultStore("smoke", "baselines", root)
    study = BaselineStudy(alpha, tokenizer, profile, store)
    study.tune()
    study.plan()
    study.evaluate()
    study.write()
    return SimpleNamespace(study=study, store=store, cells=store.finish(), root=root, profile=profile)


def test_a_second_study_computes_nothing(finished):
    store = results.ResultStore("smoke", "baselines", finished.root)
    again = BaselineStudy(finished.study.alpha, finished.study.tokenizer, finished.profile, store)
    again.tune()
    again.plan()
    again.evaluate()
    again.write()
    assert store.counts == {"read": finished.store.counts["computed"]}
    assert not again.planners, "no calibration is run when everything is stored"
    assert {method: plan and plan.digest for method, plan in again.plans.items()} == {
        method: plan and plan.digest for method, plan in finished.study.plans.items()
    }


def test_another_seed_is_another_calibration(finished):
    store = results.ResultStore("smoke", "baselines", finished.root)
    other = BaselineStudy(finished.study.alpha, finished.study.tokenizer, finished.profile, store, seed=1)
    assert not other.calibration("flap").equal(finished.study.calibration("flap"))
    assert other.calibration("mag-sp") is None
    assert other._inputs("flap") != finished.study._inputs("flap")
    assert other._inputs("mag-sp") == finished.study._inputs("mag-sp"), "which reads no text"


def test_every_method_spends_the_same_budget(finished):
    groups = group_frame(finished.cells)
    gone = groups[groups["state"] != "kept"].groupby("method").size()
    assert gone.to_dict() == dict.fromkeys(METHODS, finished.study.kv_groups)
    costs = cost_frame(finished.cells).set_index("method")
    assert len(set(costs.loc[list(METHODS), "head_ratio"])) == 1
    assert len(set(costs.loc[list(BASELINES), "removed_fraction"])) == 1
    assert abs(costs.loc["harp+flap", "removed_fraction"] - costs.loc["flap", "removed_fraction"]) < 1e-3
    assert costs.loc["harp", "removed_fraction"] < costs.loc["flap", "removed_fraction"]
    assert (groups[groups["method"] == "harp+flap"]["channels"] > 0).any()


def test_the_tuned_range_is_the_best_and_the_plan_keeps_to_it(finished):
    ranges = range_frame(finished.cells)
    for method in BASELINES:
        part = ranges[ranges["method"] == method]
        best = part[part["tuned"]].iloc[0]
        assert best["perplexity"] == part["perplexity"].min()
        assert set(plans(finished.cells)["tiny-qwen2", method].layers) <= set(range(best["start"], best["end"]))


def test_perplexities_are_those_of_the_pruned_model(finished):
    """Read under the plan for a moment, and by a model that was really pruned: one way checks the other."""
    frame = perplexity_frame(finished.cells).set_index(["method", "corpus", "split"])["perplexity"]
    text = finished.study.alpha.texts[finished.study.corpus, "validation"]
    for method in ("flap", "harp+flap"):
        model, _ = load_model("tiny-qwen2")
        apply_plan(model, plans(finished.cells)["tiny-qwen2", method])
        assert frame[method, finished.study.corpus, "validation"] == pytest.approx(
            perplexity(model, text.windows), rel=1e-5
        )


def test_the_searched_text_is_of_the_searched_corpus_only(finished):
    frame = perplexity_frame(finished.cells)
    read = set(zip(frame["corpus"], frame["split"], strict=True))
    first, second = finished.profile["corpora"]
    assert read == {(first, "test"), (first, "validation"), (second, "validation")}


def test_the_texts_are_kept_apart(finished):
    study = finished.study
    assert study.calibration_text.split == "train"
    assert len(study.tuning_documents) == finished.profile["baselines"]["tuning_documents"] == 1
    cell = finished.cells["tiny-qwen2", "flap", "range-00-03"]
    assert cell["inputs"]["calibration_split"] == "train"
    assert len(cell["result"]["nll"]) == 1
    table = text_table(study)
    assert table["role"].tolist() == ["calibration"] * 2 + ["searched"] * 2 + ["held out"] * 2
    assert table["tokens"].iloc[0] == 4 * 32


def compensated(model):
    """How many biases a compensation added: Qwen2 has none there."""
    ends = ("o_proj", "down_proj")
    modules = [module for name, module in model.named_modules() if name.endswith(ends) and module.bias is not None]
    return sum(module.bias.numel() for module in modules)


def test_costs_are_those_of_the_plan(finished):
    """Counted in the study, and of a model that was really pruned."""
    costs = cost_frame(finished.cells).set_index("method")
    dense, config = costs.loc["dense"], finished.study.model.config
    for method in METHODS:
        model, _ = load_model("tiny-qwen2")
        apply_plan(model, finished.study.plans[method])
        row = costs.loc[method]
        emptied = sum(
            layer.self_attn.bias.numel()
            for layer in model.model.layers
            if hasattr(layer.self_attn, "bias") and layer.self_attn.bias is not None
        )
        assert row["parameters"] == model.num_parameters()
        removed = dense["parameters"] - row["parameters"] + compensated(model) + emptied
        assert row["removed_fraction"] == pytest.approx(removed / linear_parameters(config))
        assert row["kv_bytes_per_token"] == pytest.approx(dense["kv_bytes_per_token"] * 2 / 3), "a third of the groups"
        assert row["prefill_flops"] < dense["prefill_flops"]
        assert row["decode_flops"] < dense["decode_flops"]
    assert costs.loc["flap", "calibration_tokens"] == 8 * 32
    assert costs.loc["harp", "calibration_tokens"] == 0
    assert costs.loc["harp", "searched_tokens"] == sum(finished.study.tuning_text.tokens)
    assert costs.loc["harp", "seconds"] >= finished.study.alpha.found[finished.study.corpus]["seconds"]
    windows = [
        cell["seconds"] for (_, method, task), cell in finished.cells.items() if (method, task[:5]) == ("flap", "range")
    ]
    assert costs.loc["flap", "tuning_seconds"] == pytest.approx(sum(windows))


def test_the_bias_is_left_out_and_nothing_else(finished):
    plan = finished.study.plans["flap"]
    bare = uncompensated(plan)
    assert all(lost.group_means for lost in plan.layers.values())
    assert not any(lost.group_means for lost in bare.layers.values())
    kept, before = ({k: lost.removed_groups for k, lost in p.layers.items()} for p in (bare, plan))
    assert kept == before
    task = f"{finished.study.corpus}-validation"
    with_bias, without = (finished.cells["tiny-qwen2", method, task] for method in ("flap", WITHOUT_BIAS))
    assert with_bias["inputs"]["plan"] == plan.digest
    assert without["inputs"]["plan"] == bare.digest != plan.digest
    assert with_bias["result"]["nll"] != without["result"]["nll"]


def test_the_map_knows_three_states():
    layers = {3: LayerPlan(0.5, removed_channels=(0,)), 2: LayerPlan(0.0), 1: LayerPlan(removed_groups=(1,))}
    result = {"plan": PruningPlan(4, layers, "harp").to_dict(), "groups_per_layer": 2, "ffn_channels": 4}
    frame = group_frame({("m", "harp", "plan"): {"result": result}})
    assert frame["state"].tolist() == ["kept"] * 3 + ["removed"] * 3 + ["value-only"] * 2
    assert frame["channels"].tolist() == [0.0] * 6 + [0.25] * 2
    assert read_groups(frame) == (
        "- **m, HARP**: 5 groups from 3 layers, 80 % of them in the upper half; 2 layers are left without any; "
        "FFN channels go from 1 of 4 layers."
    )


def test_references_are_read_on_the_tuning_documents(finished):
    cell = finished.cells["tiny-qwen2", "dense", f"{finished.study.corpus}-test"]["result"]
    expected = math.exp(cell["nll"][0] / cell["tokens"][0])  # one document in this profile
    assert references(finished.cells, "tiny-qwen2")["dense"] == pytest.approx(expected)


def test_tables(finished):
    assert method_properties()["method"].tolist() == ["Mag-sp", "Wanda-sp", "LLM-Pruner", "FLAP", "HARP", "HARP+FLAP"]
    assert not method_properties()["metric"].str.contains("|", regex=False).any(), "it would end a Markdown cell"
    ours = tuned_ranges(range_frame(finished.cells)).query("model == 'tiny random Qwen2'").set_index("method")
    assert ours.loc["FLAP", "end"] == finished.study.ranges["flap"].stop
    costs = method_costs(cost_frame(finished.cells)).set_index("method")
    assert costs.loc["FLAP", "heads removed"] == "1/3"
    assert costs.loc["dense", "prefill of 256 tokens"].endswith("MFLOP")
    assert re.search(r"MFLOP \(-\d", costs.loc["HARP", "prefill of 256 tokens"])
    assert (pruning_ratios()["match"] == "no").sum() == 1
    assert published_averages().query("tasks == 'generation'")["FLAP"].tolist() == ["15.05", "17.47", "25.50", "2.72"]
    assert with_error(2.0, float("nan")) == "2.00"


def test_repetition():
    assert repetition(list(range(20))) == 0
    assert repetition([7] * 20) == pytest.approx(16 / 17), "one kind of 17"
    assert repetition([1, 2, 3, 4, 1, 2, 3, 4]) == pytest.approx(1 / 5)


def test_writing_is_that_of_the_pruned_model(finished):
    """Written under the plan for a moment, and by a model that was really pruned."""
    study = finished.study
    text, length = study.alpha.texts[study.corpus, "validation"], finished.profile["baselines"]["written_tokens"]
    prompts = torch.stack([document[0].ids[:length] for document in text.documents])
    for method in ("flap", "harp"):
        model, _ = load_model("tiny-qwen2")
        apply_plan(model, study.plans[method])
        options = {"max_new_tokens": length, "min_new_tokens": length, "do_sample": False, "pad_token_id": 0}
        whole = model.generate(prompts, attention_mask=torch.ones_like(prompts), use_cache=False, **options)
        assert finished.cells["tiny-qwen2", method, "writing"]["result"]["ids"] == whole[:, length:].tolist()


def test_a_sample_stays_in_its_cell():
    assert one_line("a | b\n\n# c`d`") == "a · b · c·d·"


def test_a_plan_in_a_cell_is_the_plan(finished):
    for (model, method), plan in plans(finished.cells).items():
        assert model == "tiny-qwen2"
        assert plan == finished.study.plans[method]
        assert PruningPlan.from_dict(plan.to_dict()) == plan
