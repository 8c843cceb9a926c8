"""What notebook 08 times: variants that compute what their plans say, measured in turn."""

import itertools
from types import SimpleNamespace

import pytest
import torch
from helpers import ROUNDING
from transformers import AutoConfig, AutoModelForCausalLM

from harp_lib import config
from harp_lib.accounting import paper_configs, parameters, prefill_flops
from harp_lib.evaluation import timing
from harp_lib.experiments import compute
from harp_lib.experiments.variants import make_variants, random_shape, thinned_plan
from harp_lib.pruning.plan import LayerPlan, PruningPlan
from harp_lib.pruning.surgery import temporarily_pruned
from harp_lib.results import read_unit, rows_of

SMALL = {"hidden_size": 64, "intermediate_size": 96, "vocab_size": 500, "num_attention_heads": 4}
PLAN = PruningPlan.value_only(6, [0.8, 0.0])
SHAPE = "LLaMA3.1-8B"
MODEL = "LLaMA3.1-8B (random weights)"


def config_of(family, groups=2, layers=6):
    return AutoConfig.for_model(
        family, **SMALL, num_key_value_heads=groups, num_hidden_layers=layers
    )


def model_of(*arguments):
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(config_of(*arguments)).eval()


@pytest.fixture
def profile(tmp_path, monkeypatch):
    """The profile paper's way, at a small width: at full width a layer takes half a gigabyte."""
    monkeypatch.setattr(config, "RESULTS", tmp_path)
    monkeypatch.setattr(
        "harp_lib.experiments.variants.paper_configs", lambda: {SHAPE: config_of("llama", 2, 32)}
    )
    monkeypatch.setattr("harp_lib.experiments.variants.multiplies_bfloat16", lambda: True)
    settings = {
        "shapes": {MODEL: {"config": SHAPE, "layers": 8}},
        "prefill": {16: 2, 48: 3, 64: 1, 10**6: 1},
        "split": [48],
        "decode": {"contexts": [16, 48], "steps": 3, "repetitions": 2},
        "llama_cpp": {},
    }
    return config.load_profile("smoke") | {"dtype": "bfloat16", "efficiency": settings}


def read(name):
    """The cell of ``counted``, or of a kind and a length as ``prefill-48``."""
    kind, _, length = name.partition("-")
    about = {"model": MODEL, "kind": kind}
    if length:
        about["length"] = int(length)
    (cell,) = [cell for cell in read_unit("smoke", "efficiency") if cell["about"] == about]
    return cell


def rows(name, quantity):
    """The rows of one quantity of a cell."""
    stored_rows = rows_of(read(name)["result"])
    return stored_rows[stored_rows["quantity"] == quantity].dropna(axis="columns", how="all")


def by_variant(name, quantity):
    """A quantity of a cell that every variant has once."""
    return rows(name, quantity).set_index("variant")["value"].to_dict()


VARIANTS = ["dense", "harp", "harp-tail", "harp-folded", "thinned"]


def test_the_shape_of_a_model_of_the_paper(profile, capsys):
    assert compute("efficiency", profile, MODEL) == {"computed": 7, "read": 0, "failed": 0}
    shown = capsys.readouterr().err
    assert "prefill, 48 tokens:   0%|          | 0/20" in shown, "five variants, warmed up once"
    check_counted()
    check_prefills({16: 2, 48: 3, 64: 1})
    check_split()
    check_decoding()

    assert compute("efficiency", profile, MODEL) == {"computed": 0, "read": 7, "failed": 0}
    profile["efficiency"]["prefill"][16] = 1  # other repetitions
    assert compute("efficiency", profile, MODEL) == {"computed": 1, "read": 6, "failed": 0}


def check_counted():
    """Operations of each part of the dense model at each length of a curve."""
    curves = {}
    for pairs in ("full", "causal"):
        flops = rows("counted", f"flops {pairs}")
        curves[pairs] = flops.pivot(index="length", columns="part", values="value")
        assert len(curves[pairs]) > 10
        assert curves[pairs].notna().all(axis=None)
        assert (curves[pairs].diff().dropna() >= 0).all(axis=None), "more tokens, more operations"
    assert (curves["full"] >= curves["causal"]).all(axis=None)
    assert min(curves["full"].index) == 8, "half of the shortest length that is timed"
    assert rows("counted", "intermediate_size")["value"].tolist() == [96]


def check_prefills(repetitions_by_length):
    """Seconds, operations and memory of every variant."""
    for tokens, repetitions in repetitions_by_length.items():
        name = f"prefill-{tokens}"
        seconds = rows(name, "seconds")
        assert seconds["value"].min() > 0
        assert seconds["variant"].unique().tolist() == VARIANTS
        for _, of_variant in seconds.groupby("variant"):
            assert of_variant["repetition"].tolist() == list(range(repetitions))
        flops = by_variant(name, "flops full")
        assert set(flops) == set(by_variant(name, "flops causal")) == set(VARIANTS)
        assert flops["dense"] >= flops["harp"] >= flops["harp-folded"] >= flops["harp-tail"]
        has_cache = "cache_bytes" in set(rows_of(read(name)["result"])["quantity"])
        assert has_cache == (repetitions > 1), "one run is not measured twice"
    held = by_variant("prefill-16", "cache_bytes")
    assert set(held) == set(VARIANTS)
    assert held["harp-tail"] * 8 == held["harp"] * 8 == held["dense"] * 6


def check_split():
    """Seconds of each part of a prefill, which differ by variant and repetition."""
    seconds = rows("split-48", "seconds")
    parts = seconds.pivot(index=["variant", "repetition"], columns="part", values="value")
    assert parts.index.tolist() == list(itertools.product(["dense", "harp"], range(3)))
    assert len(parts.columns) >= 4
    assert parts.notna().all(axis=None)
    assert (parts.sum(axis=1) > 0).all()


def check_decoding():
    """Seconds of new tokens."""
    seconds = rows("decode-16", "seconds")
    timed = ["dense", "harp", "harp-folded", "thinned"]
    assert seconds["variant"].unique().tolist() == timed
    assert seconds.groupby("variant").size().eq(2).all()


def test_a_length_that_fails_is_kept_and_tried_again(profile, monkeypatch):
    prefill = timing.prefill

    def out_of_memory(model, ids):
        if ids.shape[1] == 48:
            raise RuntimeError("DefaultCPUAllocator: not enough memory\nand where")
        return prefill(model, ids)

    end = config_of("llama").max_position_embeddings
    profile["efficiency"] |= {"prefill": {16: 1, 48: 1}, "split": []}
    # After the second one the model has no room for three more tokens.
    profile["efficiency"]["decode"]["contexts"] = [end - 3, end - 2]
    with monkeypatch.context() as patch:
        patch.setattr(timing, "prefill", out_of_memory)
        assert compute("efficiency", profile, MODEL) == {"computed": 3, "read": 0, "failed": 1}
    reason = "RuntimeError: DefaultCPUAllocator: not enough memory"
    assert read("prefill-48")["result"] == {"failed": reason}
    assert compute("efficiency", profile, MODEL) == {"computed": 1, "read": 3, "failed": 0}


def test_a_profile_may_time_nothing_or_little(profile):
    profile["efficiency"] |= {"prefill": {}, "split": []}
    profile["efficiency"]["decode"]["contexts"] = []
    assert compute("efficiency", profile, MODEL) == {"computed": 1, "read": 0, "failed": 0}
    lengths = rows_of(read("counted")["result"])["length"].dropna()
    width = config_of("llama").intermediate_size
    assert (lengths.min(), lengths.max()) == (width / 2, 4 * width)
    profile["efficiency"]["split"] = [48]  # a length of which no prefill is timed
    assert compute("efficiency", profile, MODEL) == {"computed": 2, "read": 0, "failed": 0}


@pytest.mark.parametrize("family", ["llama", "gemma2"])
def test_variants_compute_what_their_plans_say(family):
    model = model_of(family)
    variants = make_variants(model, PLAN)
    # Alpha is in no variant: it takes no time.
    without_alpha = PruningPlan.value_only(6, [1.0, 0.0])
    plans = {
        "dense": PruningPlan(6, {}),
        "harp": without_alpha,
        "harp-tail": without_alpha,
        "harp-folded": without_alpha,
        "thinned": variants["thinned"].plan,
    }
    assert set(variants) == set(plans)
    ids = torch.arange(14)[None]
    weights = {id(weight) for weight in model.parameters()}
    for name, variant in variants.items():
        with torch.no_grad(), temporarily_pruned(model, plans[name]):
            expected = model(ids, use_cache=False).logits[:, -1]
        cache = timing.prefill(variant.model, ids[:, :-1])
        logits = timing.decode(variant.model, cache, ids[:, -1:])
        torch.testing.assert_close(logits, expected, **ROUNDING)
        shared = weights & {id(weight) for weight in variant.model.parameters()}
        assert len(shared) > 30, "the weights are not copied"


def test_only_the_tail_variant_spares_positions(monkeypatch):
    """HARP is timed as the paper runs it: every position passes every layer."""
    for name, variant in make_variants(model_of("llama"), PLAN).items():
        gate = variant.model.model.layers[5].mlp.gate_proj
        positions = []

        def count_positions(hidden, weight=gate.weight, positions=positions):
            positions.append(hidden.shape[1])
            return hidden @ weight.T

        with monkeypatch.context() as patch:  # a hook would turn tail-only prefill off
            patch.setattr(gate, "forward", count_positions)
            timing.prefill(variant.model, torch.arange(12)[None])
        if name == "harp-tail":
            assert positions == [1]
        else:
            assert positions == [12], name


@pytest.mark.parametrize(
    ("family", "groups", "alphas", "names"),
    [
        # A norm over all heads.
        ("olmo2", 2, [0.8, 0.0], ["dense", "harp", "harp-tail", "harp-folded"]),
        # A value head for each query head.
        ("llama", 4, [0.8, 0.0], ["dense", "harp", "harp-tail", "thinned"]),
        # No layer keeps its values.
        ("llama", 2, [0.0], ["dense", "harp", "harp-tail", "thinned"]),
    ],
)
def test_what_a_model_cannot_have_is_left_out(family, groups, alphas, names):
    variants = make_variants(model_of(family, groups), PruningPlan.value_only(6, alphas))
    assert list(variants) == names
    for variant in variants.values():
        timing.prefill(variant.model, torch.arange(12)[None])


@pytest.mark.parametrize(("model", "layers", "pruned"), [(SHAPE, 32, 8), ("Qwen2-7B", 28, 4)])
def test_thinning_is_even_and_does_the_same_work_on_pairs(model, layers, pruned):
    shape = paper_configs()[model]
    plan = PruningPlan.value_only(layers, dict.fromkeys(range(layers - pruned, layers), 0.5))
    thinned = thinned_plan(shape, plan)
    groups = shape.num_key_value_heads
    per_layer = []
    for layer in range(layers):
        of_layer = thinned.layers.get(layer, LayerPlan())
        per_layer.append(len(of_layer.removed_groups))
    assert sum(per_layer) == pruned * groups
    for number, removed in enumerate(itertools.accumulate(per_layer), start=1):
        assert abs(removed - number * pruned * groups / layers) < 1

    def work_on_pairs(plan):
        """The second difference: it is what grows with the square of the length."""
        once, twice, thrice = (prefill_flops(shape, plan, times * 64) for times in (1, 2, 3))
        return thrice - 2 * twice + once

    assert work_on_pairs(thinned) == work_on_pairs(plan) < work_on_pairs(None)


def test_a_shape_is_left_out_where_it_cannot_be_timed(profile, monkeypatch, capsys):
    profile["efficiency"] |= {"prefill": {16: 1}, "split": []}
    profile["efficiency"]["decode"]["contexts"] = []
    with monkeypatch.context() as patch:
        patch.setattr("harp_lib.experiments.variants.multiplies_bfloat16", lambda: False)
        assert compute("efficiency", profile, MODEL)["computed"] == 0
    printed = capsys.readouterr().out
    assert printed == f"{MODEL} is left out: this processor has no instructions for bfloat16\n"
    with monkeypatch.context() as patch:
        memory = SimpleNamespace(available=100_000)
        patch.setattr("harp_lib.experiments.variants.psutil.virtual_memory", lambda: memory)
        assert compute("efficiency", profile, MODEL)["computed"] == 0
        assert "GiB of memory, and 0.0 GiB are free" in capsys.readouterr().out
    assert compute("efficiency", profile, MODEL)["computed"] == 2
    assert list(read("counted")["inputs"]["plans"]) == VARIANTS
    with monkeypatch.context() as patch:
        patch.setattr("harp_lib.experiments.variants.psutil.virtual_memory", lambda: memory)
        assert compute("efficiency", profile, MODEL)["read"] == 2, "they are read without weights"
    counted = read("counted")["result"]
    assert compute("efficiency", profile, MODEL, force=True)["computed"] == 2
    assert read("counted")["result"] == counted, "of this shape, not of its narrow twin"


def test_a_random_shape_has_the_published_alphas(profile):
    model, plan = random_shape(SHAPE, 8, "bfloat16", 0)
    again, _ = random_shape(SHAPE, 8, "bfloat16", 0)
    other, _ = random_shape(SHAPE, 8, "bfloat16", 1)
    assert plan.alphas == {7: 0.8, 6: 0.2}, "a quarter of eight layers, from the top"
    assert {weight.dtype for weight in model.parameters()} == {torch.bfloat16}
    assert parameters(model.config) == model.num_parameters()
    weight = next(model.parameters())
    assert torch.equal(weight, next(again.parameters()))
    assert not torch.equal(weight, next(other.parameters()))
