"""What make_plan takes and refuses, HARP and HARP+FLAP, and what holds for every method."""

import re

import numpy as np
import pandas as pd
import pytest
import torch
from helpers import CHECKOUT, small_model, unchanged
from transformers import AutoConfig, AutoModelForCausalLM

from harp_lib import PruningPlan, apply_plan, config, perplexity, search_alphas
from harp_lib.accounting import linear_parameters, removed_fraction, top_groups_plan
from harp_lib.methods import make_plan, planner
from harp_lib.models.registry import SHAPE
from harp_lib.names import BASELINES, CATALOGUE, EVALUATED, METHOD_TITLES, METHODS
from harp_lib.pruning.architecture import decoder_layers
from harp_lib.pruning.layers import num_groups

CHANNEL = 3 * SHAPE["hidden_size"]  # parameters of an FFN channel


class Unread(list):
    """A calibration text that nobody may look at."""

    def __iter__(self):
        raise AssertionError("the calibration text was read")


def test_harp_is_the_alpha_search_over_whole_layers(tiny, tokens):
    model = tiny()
    plan = make_plan("harp", model, tokens, kv_groups=4)
    assert plan == search_alphas(model, tokens, 2, progress=False).plan
    given_alphas = make_plan("harp", model, None, kv_groups=4, alphas=[0.5, 0.25])
    assert given_alphas == PruningPlan.value_only(6, [0.5, 0.25])


@pytest.mark.parametrize("alphas", [[0.5, 0.25], [0.5, 0.0]])
@pytest.mark.parametrize("target", [None, 0.09, 0.31])
@pytest.mark.parametrize("name", ["tiny-llama", "tiny-qwen2"])
def test_harp_flap_meets_the_target_within_half_a_channel(tiny, tokens, name, alphas, target):
    model = tiny(name)
    plan = make_plan("harp+flap", model, tokens, kv_groups=4, alphas=alphas, target_fraction=target)
    whole_groups = removed_fraction(model.config, top_groups_plan(model.config, 4))
    missed = abs(removed_fraction(model.config, plan) - (target or whole_groups))
    assert missed <= CHANNEL / 2 / linear_parameters(model.config) + 1e-12
    assert plan.method == "harp+flap"
    assert plan.alphas == {5: alphas[0], 4: alphas[1]}
    thinned = [layer for layer in plan.layers.values() if layer.removed_channels]
    assert len(thinned) > 2, "channels are removed from layers that HARP leaves as they are"


def test_a_target_below_harp_names_what_harp_removes(tiny, tokens):
    arguments = {"kv_groups": 4, "alphas": [0.5, 0.0]}
    model = tiny()
    harp_fraction = removed_fraction(model.config, PruningPlan.value_only(6, [0.5, 0.0]))
    with pytest.raises(ValueError, match=f"the plan alone removes {harp_fraction:.6f}"):
        make_plan("harp+flap", model, tokens, target_fraction=harp_fraction - 0.001, **arguments)
    plan = make_plan("harp+flap", model, tokens, target_fraction=harp_fraction, **arguments)
    assert not any(layer.removed_channels for layer in plan.layers.values())


def test_a_target_below_harp_at_any_alpha_is_refused_before_the_search(tiny):
    with pytest.raises(ValueError, match="the plan alone removes"):
        make_plan("harp+flap", tiny(), Unread(), kv_groups=4, target_fraction=0.05)


def test_a_target_that_needs_every_channel_of_a_layer_is_refused(tiny, tokens):
    model = tiny()
    with pytest.raises(ValueError, match=r"layer \d would lose all of its 128 FFN channels"):
        make_plan("harp+flap", model, tokens, kv_groups=2, alphas=[1.0], target_fraction=0.688)
    with pytest.raises(ValueError, match=r"target_fraction 0\.9 .* it is 0\.689"):
        make_plan("harp+flap", model, Unread(), kv_groups=2, target_fraction=0.9)


def num_removed_groups(plan, model):
    """Key/value groups that a plan removes, those of value-only layers included."""
    total = 0
    for index, layer_plan in plan.layers.items():
        if layer_plan.alpha is not None:
            total += num_groups(decoder_layers(model)[index].self_attn)
        else:
            total += len(layer_plan.removed_groups)
    return total


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", ["tiny-qwen2", "tiny-gemma2"])  # biases, norms after attention
def test_every_method_plans_what_surgery_can_do_and_changes_nothing(tiny, tokens, name, method):
    model = tiny(name)
    tokens = tokens[:, :24]
    with unchanged(model):
        plan = make_plan(method, model, tokens, kv_groups=6)
    assert plan.method == method
    assert num_removed_groups(plan, model) == 6
    assert make_plan(method, model, tokens, kv_groups=6) == plan
    assert np.isfinite(perplexity(apply_plan(model, plan), tokens))


@pytest.mark.parametrize("method", BASELINES)
def test_a_planner_gives_the_same_plans_in_any_order_of_ranges(tiny, tokens, method):
    model = tiny("tiny-gemma2")
    plan = planner(method, model, tokens)
    for layers in ([2, 3, 4], [0, 1, 2], [3, 4, 5], [1, 2, 3]):
        assert plan(3, layers) == make_plan(method, model, tokens, kv_groups=3, layers=layers)
    with pytest.raises(ValueError, match="7 key/value groups cannot go"):
        plan(7, [0, 1, 2])  # which hold six


def test_every_method_is_described():
    assert METHODS == ("mag-sp", "llm-pruner", "wanda-sp", "flap", "harp+flap", "harp")
    assert set(EVALUATED) - set(METHODS) == {"harp+refit"}
    columns = {"pruning metric", "calibration", "weight update", "what goes where"}
    for method in CATALOGUE.values():
        assert set(method.table) - {"method"} == columns
        assert all(method.table.values()), f"{method.title} has an empty column"


def test_the_library_page_names_the_methods_in_their_order():
    page = (CHECKOUT / "docs" / "library.md").read_text(encoding="utf-8")
    line = r"^from harp_lib import METHODS, make_plan  # (.+)$"
    (names,) = re.findall(line, page, re.MULTILINE)
    assert tuple(names.split(", ")) == METHODS


def test_rows_are_in_the_order_of_the_papers_tables():
    for table in ("generation", "discriminative", "longbench"):
        printed = pd.read_csv(config.PAPER / f"{table}.csv")["method"].unique()
        assert [name for name in METHOD_TITLES if name in printed] == list(printed), table


@pytest.mark.parametrize("method", METHODS)
def test_a_method_reads_text_as_it_says(tiny, method):
    """Without alphas HARP searches, so it reads the text; Mag-sp never does."""
    properties = CATALOGUE[method]
    cases = [{"kv_groups": 6}]
    if properties.takes_alphas:
        cases = [{"kv_groups": 4}, {"kv_groups": 4, "alphas": [0.5, 0.5]}]
    for arguments in cases:
        if properties.reads_text(arguments.get("alphas")):
            with pytest.raises(AssertionError, match="the calibration text was read"):
                make_plan(method, tiny(), Unread(), **arguments)
            with pytest.raises(ValueError, match="needs a calibration text"):
                make_plan(method, tiny(), None, **arguments)
        else:
            assert make_plan(method, tiny(), Unread(), **arguments).method == method


@pytest.mark.parametrize(
    ("method", "arguments", "message"),
    [
        (
            "wonda",
            {},
            "unknown method 'wonda'; "
            "choose from mag-sp, llm-pruner, wanda-sp, flap, harp.flap, harp",
        ),
        (
            "harp+flap",
            {"squared": True},
            r"harp\+flap does not take squared; it takes alphas, target_fraction, evenly$",
        ),
        ("flap", {"alphas": [0.1]}, "flap does not take alphas; it takes layers, squared$"),
        (
            "harp",
            {"kv_groups": 5},
            "5 key/value groups are no whole number of layers.* from 2, 4, 6, 8, 10, 12",
        ),
        ("harp", {"alphas": [0.1]}, r"1 alphas for 2 layers \(4 key/value groups\)"),
        (
            "mag-sp",
            {},
            "4 key/value groups cannot go in equal parts from 6 layers; "
            "a multiple of 6 can, 12 at most",
        ),
        ("flap", {"kv_groups": 0}, "0 key/value groups cannot go: the layers hold 12"),
        ("flap", {"layers": []}, "layers is empty"),
        ("flap", {"layers": [5, 6]}, "layer 6 is not in a model of 6 layers"),
    ],
)
def test_bad_arguments_are_refused_before_any_work(tiny, method, arguments, message):
    with pytest.raises(ValueError, match=message):
        make_plan(method, tiny(), Unread(), **{"kv_groups": 4} | arguments)


@pytest.mark.parametrize("method", METHODS)
def test_pruned_models_and_fused_projections_are_refused_before_any_work(tiny, method):
    pruned = apply_plan(tiny(), PruningPlan.value_only(6, [0.5]))
    with pytest.raises(ValueError, match="pruned already"):
        make_plan(method, pruned, Unread(), kv_groups=2)
    shape = {name: value for name, value in SHAPE.items() if name != "head_dim"}
    config = AutoConfig.for_model("phi3", **shape, vocab_size=512, pad_token_id=0)
    fused = AutoModelForCausalLM.from_config(config)
    with pytest.raises(ValueError, match=r"Phi3ForCausalLM is not supported: layer \d has no"):
        make_plan(method, fused, Unread(), kv_groups=6)


class Mean(torch.nn.Module):
    """Another kind of mixer than attention: the mean of the tokens so far."""

    def forward(self, hidden_states, **kwargs):
        counts = torch.arange(1, hidden_states.shape[1] + 1)[:, None]
        return hidden_states.cumsum(dim=1) / counts, None


def test_harp_needs_attention_in_its_own_layers_alone(tiny, tokens):
    hybrid = tiny()
    for layer in hybrid.model.layers[:3]:
        layer.self_attn = Mean()
    plan = make_plan("harp", hybrid, tokens, kv_groups=4)
    assert plan == search_alphas(hybrid, tokens, 2, progress=False).plan
    assert np.isfinite(perplexity(apply_plan(hybrid, plan), tokens))
    hybrid = tiny()
    hybrid.model.layers[2].self_attn = Mean()
    with pytest.raises(ValueError, match=r"choose from 2, 4, 6; layer 2 has no"):
        make_plan("harp", hybrid, Unread(), kv_groups=8)


def test_offloaded_weights_and_an_ffn_without_a_gate_are_refused_before_any_work(tiny):
    model = tiny()
    model.model.layers[5].self_attn.o_proj.to("meta")
    with pytest.raises(ValueError, match="weights that are offloaded"):
        make_plan("harp", model, Unread(), kv_groups=4)
    with pytest.raises(ValueError, match="layer 0 has no gated FFN"):
        make_plan("harp+flap", small_model("starcoder2"), Unread(), kv_groups=4)


@pytest.mark.parametrize("method", BASELINES)
def test_baselines_refuse_norms_over_all_heads_before_any_work(method):
    with pytest.raises(ValueError, match="same as with these heads masked"):
        make_plan(method, small_model("olmo2"), Unread(), kv_groups=4)


def test_a_planner_takes_baselines_and_their_options(tiny, tokens):
    message = "'harp' has no layer range to plan for; choose from mag-sp"
    with pytest.raises(ValueError, match=message):
        planner("harp", tiny(), tokens)
    with pytest.raises(ValueError, match="wanda-sp does not take squared; it takes layers"):
        planner("wanda-sp", tiny(), tokens, squared=True)


def test_numbers_of_numpy_are_taken(tiny, tokens):
    plain = make_plan("flap", tiny(), tokens, kv_groups=3, layers=[1, 2])
    of_numpy = make_plan("flap", tiny(), tokens, kv_groups=np.int64(3), layers=np.array([1, 2]))
    assert of_numpy == plain
