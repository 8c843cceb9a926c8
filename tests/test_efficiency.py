"""What notebook 08 times: variants that compute what their plans say, measured in turn; failures
that are kept.
"""

import itertools

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from harp_lib import config
from harp_lib.accounting import paper_configs, parameters, prefill_flops
from harp_lib.evaluation import timing
from harp_lib.experiments import compute, efficiency
from harp_lib.pruning.plan import LayerPlan, PruningPlan
from harp_lib.pruning.surgery import temporarily_pruned
from harp_lib.results import ResultStore, read_cell

SMALL = {"hidden_size": 64, "intermediate_size": 96, "vocab_size": 500, "num_attention_heads": 4}
PLAN = PruningPlan.value_only(6, [0.8, 0.0])
SHAPE = "LLaMA3.1-8B"


def config_of(family, groups=2, layers=6):
    return AutoConfig.for_model(
        family, **SMALL, num_key_value_heads=groups, num_hidden_layers=layers
    )


def model_of(*arguments):
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(config_of(*arguments)).eval()


@pytest.fixture
def profile(tmp_path, monkeypatch):
    """The way of the paper profile, at a small width: at the full one, one layer takes half a
    gigabyte.
    """
    monkeypatch.setattr(config, "RESULTS", tmp_path)
    monkeypatch.setattr(efficiency, "paper_configs", lambda: {SHAPE: config_of("llama", 2, 32)})
    decoding = {"contexts": [16, 48], "steps": 3, "repetitions": 2}
    measured = {
        "shapes": [SHAPE],
        "layers": 8,
        "prefill": {16: 2, 48: 3, 64: 1, 10**6: 1},
        "split": [48],
    }
    return config.load_profile("smoke") | {
        "dtype": "bfloat16",
        "efficiency": measured | {"decode": decoding, "llama_cpp": {}},
    }


def result(task):
    return read_cell(ResultStore("smoke", "efficiency").file(SHAPE, "all", task))["result"]


def test_the_shape_of_a_model_of_the_paper(profile, capsys):
    assert compute("efficiency", profile, SHAPE) == {"computed": 7, "read": 0, "failed": 0}
    assert "prefill, 48 tokens:   0%|          | 0/20" in capsys.readouterr().err, (
        "five variants, warmed up once"
    )
    counted = result("counted")
    assert len(counted["lengths"]) == len(counted["flops"]["full"]) > 10
    for tokens, repetitions in {16: 2, 48: 3, 64: 1}.items():
        cell = result(f"prefill-{tokens}")
        assert all(
            len(times) == repetitions and min(times) > 0 for times in cell["seconds"].values()
        )
        flops = [
            cell["flops"]["full"][name] for name in ("dense", "harp", "harp-folded", "harp-tail")
        ]
        assert flops == sorted(flops, reverse=True)
        assert set(cell["peak_bytes"]) == (set(cell["seconds"]) if repetitions > 1 else set()), (
            "one run is not measured twice"
        )
    held = result("prefill-16")["cache_bytes"]
    assert held["harp-tail"] * 8 == held["harp"] * 8 == held["dense"] * 6
    assert {name: len(runs) for name, runs in result("split-48")["seconds"].items()} == {
        "dense": 3,
        "harp": 3,
    }
    assert result("decode-16")["bytes"]["harp"] < result("decode-16")["bytes"]["dense"]
    assert compute("efficiency", profile, SHAPE) == {"computed": 0, "read": 7, "failed": 0}
    profile["efficiency"]["prefill"][16] = 1
    assert compute("efficiency", profile, SHAPE) == {"computed": 1, "read": 6, "failed": 0}, (
        "other repetitions"
    )


def test_a_length_that_fails_is_kept_and_tried_again(profile, monkeypatch):
    def out_of_memory(model, ids):
        if ids.shape[1] == 48:
            raise RuntimeError("DefaultCPUAllocator: not enough memory\nand where")
        return prefill(model, ids)

    prefill = timing.prefill
    end = config_of("llama").max_position_embeddings
    profile["efficiency"]["decode"]["contexts"] = [
        end - 3,
        end - 2,
    ]  # the model has no room for three more tokens
    with monkeypatch.context() as patch:
        patch.setattr(timing, "prefill", out_of_memory)
        assert compute("efficiency", profile, SHAPE) == {"computed": 4, "read": 0, "failed": 2}
    assert result("prefill-48") == {
        "failed": "RuntimeError: DefaultCPUAllocator: not enough memory"
    }
    assert compute("efficiency", profile, SHAPE) == {"computed": 2, "read": 4, "failed": 0}


@pytest.mark.parametrize("family", ["llama", "gemma2"])
def test_variants_compute_what_their_plans_say(family):
    model = model_of(family)
    ids, variants = torch.arange(14)[None], efficiency.make_variants(model, PLAN)
    plans = {name: variant.plan for name, variant in variants.items()} | {
        "dense": PruningPlan(6, {})
    }
    for name in ("harp", "harp-tail", "harp-folded"):
        plans[name] = PruningPlan.value_only(
            6, [1.0, 0.0]
        )  # alpha is in no variant: it takes no time
    for name, variant in variants.items():
        with torch.no_grad(), temporarily_pruned(model, plans[name]):
            expected = model(ids, use_cache=False).logits[:, -1]
        found = timing.decode(
            variant.model, timing.prefill(variant.model, ids[:, :-1]), ids[:, -1:]
        )
        torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
        shared = {id(weight) for weight in model.parameters()} & {
            id(weight) for weight in variant.model.parameters()
        }
        assert len(shared) > 30, "the weights are not copied"


def test_only_the_tail_variant_spares_positions(monkeypatch):
    """HARP is timed as the paper runs it: every position passes every layer."""
    seen = []
    for name, variant in efficiency.make_variants(model_of("llama"), PLAN).items():
        gate = variant.model.model.layers[5].mlp.gate_proj  # a hook would turn it off
        monkeypatch.setattr(
            gate,
            "forward",
            lambda hidden, of=gate: seen.append(hidden.shape[1]) or hidden @ of.weight.T,
        )
        timing.prefill(variant.model, torch.arange(12)[None])
        assert seen.pop() == (1 if name == "harp-tail" else 12), name
        monkeypatch.undo()


@pytest.mark.parametrize(
    ("family", "groups", "alphas", "names"),
    [
        (
            "olmo2",
            2,
            [0.8, 0.0],
            ["dense", "harp", "harp-tail", "harp-folded"],
        ),  # a norm over all heads
        (
            "llama",
            4,
            [0.8, 0.0],
            ["dense", "harp", "harp-tail", "thinned"],
        ),  # a value head for each query head
        ("llama", 2, [0.0], ["dense", "harp", "harp-tail", "thinned"]),  # no layer keeps its values
    ],
)
def test_what_a_model_cannot_have_is_left_out(family, groups, alphas, names):
    variants = efficiency.make_variants(model_of(family, groups), PruningPlan.value_only(6, alphas))
    assert list(variants) == names
    for variant in variants.values():
        timing.prefill(variant.model, torch.arange(12)[None])


@pytest.mark.parametrize(("model", "layers", "pruned"), [(SHAPE, 32, 8), ("Qwen2-7B", 28, 4)])
def test_thinning_is_even_and_does_the_same_work_on_pairs(model, layers, pruned):
    shape = paper_configs()[model]
    plan = PruningPlan.value_only(layers, dict.fromkeys(range(layers - pruned, layers), 0.5))
    thinned, groups = efficiency.thinned_plan(shape, plan), shape.num_key_value_heads
    per_layer = [
        len(thinned.layers.get(layer, LayerPlan()).removed_groups) for layer in range(layers)
    ]
    assert sum(per_layer) == pruned * groups
    for layer, taken in enumerate(itertools.accumulate(per_layer), start=1):
        assert abs(taken - layer * pruned * groups / layers) < 1

    def quadratic(plan):  # what is left of a second difference is the work on pairs
        once, twice, thrice = (prefill_flops(shape, plan, times * 64) for times in (1, 2, 3))
        return thrice - 2 * twice + once

    assert quadratic(thinned) == quadratic(plan) < quadratic(None)


def test_a_random_shape_has_the_published_alphas(profile):
    (model, plan), (again, _), (other, _) = (
        efficiency.random_shape(SHAPE, profile, seed) for seed in (0, 0, 1)
    )
    assert plan.alphas == {7: 0.8, 6: 0.2}, "a quarter of eight layers, from the top"
    assert {weight.dtype for weight in model.parameters()} == {torch.bfloat16}
    assert parameters(model.config) == model.num_parameters()
    first, second, third = (next(each.parameters()) for each in (model, again, other))
    assert torch.equal(first, second)
    assert not torch.equal(first, third)
