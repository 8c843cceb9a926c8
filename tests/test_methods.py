"""What make_plan takes and refuses, HARP and HARP+FLAP, and what holds for every method."""

import copy
import re

import numpy as np
import pandas as pd
import pytest
import torch
from helpers import CHECKOUT, FAMILIES
from test_surgery import small_model
from transformers import AutoConfig, AutoModelForCausalLM

from harp_lib import PruningPlan, apply_plan, config, perplexity, search_alphas
from harp_lib.accounting import removed_fraction, top_groups_plan
from harp_lib.methods import make_plan, planner
from harp_lib.models.registry import SHAPE
from harp_lib.names import BASELINES, CATALOGUE, EVALUATED, METHOD_TITLES, METHODS
from harp_lib.pruning.architecture import decoder_layers
from harp_lib.pruning.layers import num_groups

CHANNEL = 3 * SHAPE["hidden_size"]  # parameters of an FFN channel


class Unread:
    """A calibration text that nobody may look at."""

    def __iter__(self):
        raise AssertionError("the calibration text was read")


def test_harp_is_the_alpha_search_over_whole_layers(tiny, tokens):
    model = tiny()
    plan = make_plan("harp", model, tokens, kv_groups=4)
    assert plan == search_alphas(model, tokens, 2, progress=False).plan
    assert make_plan(
        "harp", model, None, kv_groups=4, alphas=[0.5, 0.25]
    ) == PruningPlan.value_only(6, [0.5, 0.25])


@pytest.mark.parametrize("alphas", [[0.5, 0.25], [0.5, 0.0]])
@pytest.mark.parametrize("target", [None, 0.09, 0.31])
@pytest.mark.parametrize("name", ["tiny-llama", "tiny-qwen2"])
def test_harp_flap_meets_the_target_within_half_a_channel(tiny, tokens, name, alphas, target):
    model = tiny(name)
    plan = make_plan("harp+flap", model, tokens, kv_groups=4, alphas=alphas, target_fraction=target)
    total = sum(
        m.weight.numel() + (0 if m.bias is None else m.bias.numel())
        # fmt: skip
        for m in decoder_layers(model).modules()
        if isinstance(m, torch.nn.Linear)
    )
    wanted = target or removed_fraction(model.config, top_groups_plan(model.config, 4))
    assert abs(removed_fraction(model.config, plan) - wanted) <= CHANNEL / 2 / total + 1e-12
    assert plan.method == "harp+flap"
    assert plan.alphas == {5: alphas[0], 4: alphas[1]}
    assert (
        sum(bool(layer.removed_channels) for layer in plan.layers.values()) > 2
    )  # layers that HARP leaves as they are


def test_a_target_below_harp_names_what_harp_removes(tiny, tokens):
    arguments = {"kv_groups": 4, "alphas": [0.5, 0.0]}
    model = tiny()
    own = removed_fraction(model.config, PruningPlan.value_only(6, [0.5, 0.0]))
    with pytest.raises(ValueError, match=f"the plan alone removes {own:.6f}"):
        make_plan("harp+flap", model, tokens, target_fraction=own - 0.001, **arguments)
    plan = make_plan("harp+flap", model, tokens, target_fraction=own, **arguments)
    assert not any(layer.removed_channels for layer in plan.layers.values())
    with pytest.raises(
        ValueError, match="the plan alone removes"
    ):  # whatever alpha is: nothing has to be searched
        make_plan("harp+flap", model, Unread(), kv_groups=4, target_fraction=0.05)


def test_a_target_that_needs_every_channel_of_a_layer_is_refused(tiny, tokens):
    model = tiny()
    with pytest.raises(ValueError, match=r"layer \d would lose all of its 128 FFN channels"):
        make_plan("harp+flap", model, tokens, kv_groups=2, alphas=[1.0], target_fraction=0.688)
    with pytest.raises(ValueError, match=r"target_fraction 0\.9 .* it is 0\.689"):
        make_plan("harp+flap", model, Unread(), kv_groups=2, target_fraction=0.9)


def taken(plan, model):
    """Key/value groups that a plan takes."""
    groups = [num_groups(layer.self_attn) for layer in decoder_layers(model)]
    return sum(
        groups[i] if one.alpha is not None else len(one.removed_groups)
        for i, one in plan.layers.items()
    )


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", FAMILIES)
def test_every_method_plans_what_surgery_can_do(tiny, tokens, name, method):
    model = tiny(name)
    before = copy.deepcopy(model)
    plan = make_plan(method, model, tokens, kv_groups=6)
    assert plan.method == method
    assert taken(plan, model) == 6
    assert not model.training
    for module, twin in zip(model.modules(), before.modules(), strict=True):
        assert type(module) is type(twin)
        assert not module._forward_pre_hooks
        assert not module._forward_hooks
    for (key, weight), twin in zip(
        model.state_dict().items(), before.state_dict().values(), strict=True
    ):
        assert torch.equal(weight, twin), key
    assert all(
        parameter.requires_grad and parameter.grad is None for parameter in model.parameters()
    )
    assert make_plan(method, model, tokens, kv_groups=6) == plan
    assert np.isfinite(perplexity(apply_plan(model, plan), tokens))


@pytest.mark.parametrize("method", BASELINES)
def test_windows_visited_in_any_order_are_as_fresh_ones(tiny, tokens, method):
    model = tiny("tiny-gemma2")
    plan = planner(method, model, tokens)
    for window in ([2, 3, 4], [0, 1, 2], [3, 4, 5], [1, 2, 3]):
        assert plan(3, window) == make_plan(method, model, tokens, kv_groups=3, layers=window)
    with pytest.raises(ValueError, match="7 key/value groups cannot go"):
        plan(7, [0, 1, 2])  # which hold six


def test_every_method_is_described():
    assert METHODS == ("mag-sp", "llm-pruner", "wanda-sp", "flap", "harp+flap", "harp")
    assert set(EVALUATED) - set(METHODS) == {"harp+refit"}
    columns = {"pruning metric", "calibration", "weight update", "what goes where"}
    for method in CATALOGUE.values():
        assert set(method.table) - {"method"} == columns
        assert all(method.table.values()), f"{method.title} has an empty column"


def test_the_front_page_names_the_methods_in_their_order():
    readme = (CHECKOUT / "README.md").read_text(encoding="utf-8")
    (named,) = re.findall(
        r"^from harp_lib import METHODS, make_plan  # (.+)$", readme, re.MULTILINE
    )
    assert tuple(named.split(", ")) == METHODS


def test_rows_are_in_the_order_of_the_papers_tables():
    for table in ("generation", "discriminative", "longbench"):
        printed = pd.read_csv(config.PAPER / f"{table}.csv")["method"].unique()
        assert [name for name in METHOD_TITLES if name in printed] == list(printed), table


@pytest.mark.parametrize("method", METHODS)
def test_a_method_reads_text_as_it_says(tiny, method):
    """Without alphas HARP searches, so it reads the text; Mag-sp never does."""
    about = CATALOGUE[method]
    given = {"alphas": [0.5, 0.5]} if about.takes_alphas else {}
    budget = {"kv_groups": 4} if about.takes_alphas else {"kv_groups": 6}
    for arguments in ({}, given):
        if about.reads_text(arguments.get("alphas")):
            with pytest.raises(AssertionError, match="the calibration text was read"):
                make_plan(method, tiny(), Unread(), **budget, **arguments)
            with pytest.raises(ValueError, match="needs a calibration text"):
                make_plan(method, tiny(), None, **budget, **arguments)
        else:
            assert make_plan(method, tiny(), Unread(), **budget, **arguments).method == method


@pytest.mark.parametrize(
    ("method", "arguments", "message"),
    [
        (
            "wonda",
            {},
            "unknown method 'wonda'; choose from mag-sp, llm-pruner, wanda-sp, flap, harp.flap, harp",
        ),
        (
            "harp",
            {"layers": [4, 5]},
            "harp does not take layers; it is for mag-sp, llm-pruner, wanda-sp, flap",
        ),
        ("harp+flap", {"layers": [4, 5]}, r"harp\+flap does not take layers"),
        ("flap", {"alphas": [0.1]}, r"flap does not take alphas; it is for harp\+flap, harp"),
        (
            "harp",
            {"target_fraction": 0.1},
            r"harp does not take target_fraction; it is for harp\+flap",
        ),
        ("wanda-sp", {"target_fraction": 0.1}, "wanda-sp does not take target_fraction"),
        (
            "harp",
            {"kv_groups": 5},
            "5 key/value groups are no whole number of layers.* from 2, 4, 6, 8, 10, 12",
        ),
        ("harp+flap", {"kv_groups": 14}, "14 key/value groups are no whole number of layers"),
        ("harp", {"alphas": [0.1]}, r"1 alphas for 2 layers \(4 key/value groups\)"),
        (
            "mag-sp",
            {},
            "4 key/value groups cannot go in equal parts from 6 layers; a multiple of 6 can, 12 at most",
        ),
        (
            "llm-pruner",
            {"kv_groups": 5, "layers": [1, 2]},
            "5 .* in equal parts from 2 layers; .* 4 at most",
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
def test_models_that_cannot_be_planned_for_are_refused_before_any_work(tiny, method):
    with pytest.raises(ValueError, match="pruned already"):
        make_plan(
            method, apply_plan(tiny(), PruningPlan.value_only(6, [0.5])), Unread(), kv_groups=2
        )
    shape = {name: value for name, value in SHAPE.items() if name != "head_dim"}
    fused = AutoModelForCausalLM.from_config(
        AutoConfig.for_model("phi3", **shape, vocab_size=512, pad_token_id=0)
    )
    with pytest.raises(ValueError, match=r"Phi3ForCausalLM is not supported: layer 0 has no"):
        make_plan(method, fused, Unread(), kv_groups=6)
    reasons = {"harp": "weights that are offloaded", "harp+flap": "layer 0 has no gated FFN"}
    models = {"harp": tiny(), "harp+flap": small_model("starcoder2")}
    models["harp"].model.layers[2].self_attn.o_proj.to("meta")
    with pytest.raises(ValueError, match=reasons.get(method, "same as with these heads masked")):
        make_plan(method, models.get(method) or small_model("olmo2"), Unread(), kv_groups=4)
    if method != "mag-sp":
        with pytest.raises(ValueError, match="needs a calibration text"):
            make_plan(method, tiny(), None, kv_groups=6)


def test_other_arguments(tiny, tokens):
    with pytest.raises(
        ValueError, match="'harp' has no layer range to plan for; choose from mag-sp"
    ):
        planner("harp", tiny(), tokens)
    with pytest.raises(ValueError, match="harp does not take squared; it is for mag-sp"):
        make_plan("harp", tiny(), tokens, kv_groups=4, squared=True)
    plain = make_plan("flap", tiny(), tokens, kv_groups=3, layers=[1, 2])
    assert (
        make_plan("flap", tiny(), tokens, kv_groups=np.int64(3), layers=np.array([1, 2])) == plain
    ), "of numpy"
