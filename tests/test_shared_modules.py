"""A module or a weight that a model has at two places: the pruned layer gets one of its own."""

import pytest
import torch

from harp_lib import (
    PruningPlan,
    apply_plan,
    load_pruned,
    make_plan,
    refit_values,
    save_gguf,
    save_nemotron_nas,
    save_pruned,
    search_alphas,
)
from harp_lib.evaluation.probe import observe_layers
from harp_lib.methods.calibration import LayerStream
from harp_lib.methods.fit_alpha import fit_alphas
from harp_lib.methods.layer_selection import SCORED, layer_scores
from harp_lib.models.registry import tiny_tokenizer
from harp_lib.pruning.plan import LayerPlan
from harp_lib.pruning.surgery import temporarily_pruned

PLAN = PruningPlan(
    6,
    {
        2: LayerPlan(removed_groups=(0,)),
        3: LayerPlan(alpha=0.0),
        4: LayerPlan(alpha=0.3, removed_channels=(5,)),
        5: LayerPlan(alpha=0.5),
    },
)
SHARED_MODULES = {
    "a layer": lambda layers: layers.__setitem__(5, layers[1]),
    "all layers": lambda layers: [layers.__setitem__(i, layers[0]) for i in range(6)],
    "attention": lambda layers: setattr(layers[5], "self_attn", layers[1].self_attn),
    "FFN": lambda layers: [setattr(layer, "mlp", layers[0].mlp) for layer in layers],
    "W_O": lambda layers: setattr(layers[1].self_attn, "o_proj", layers[5].self_attn.o_proj),
    "W_O and W_Q": lambda layers: [
        setattr(layer.self_attn, "q_proj", layer.self_attn.o_proj) for layer in layers
    ],
    "both norms": lambda layers: [
        setattr(layer, "post_attention_layernorm", layer.input_layernorm) for layer in layers
    ],
}


def tie(parts_of_layers):
    """A change that gives the named parts of attention in some layers one weight."""

    def change(layers):
        linears = [getattr(layers[index].self_attn, part) for index, part in parts_of_layers]
        for linear in linears:
            linear.weight = linears[0].weight

    return change


TIED_WEIGHTS = {
    "W_O": tie([(1, "o_proj"), (4, "o_proj"), (5, "o_proj")]),
    "W_V": tie([(index, "v_proj") for index in range(6)]),
    "W_O and W_Q": tie([(5, "o_proj"), (5, "q_proj"), (2, "q_proj")]),
    "W_K and W_V": tie([(4, "k_proj"), (4, "v_proj")]),
}


def logits(model, ids):
    """Without a cache: layers that share their attention have one entry of it in stock code."""
    with torch.no_grad():
        return model(ids, use_cache=False).logits


@pytest.fixture(params=["tiny-llama", "tiny-gemma2"])
def pair(request, tiny):
    """A function that changes the layers of a model, and gives it and one that shares nothing."""

    def make(change):
        model = tiny(request.param)
        change(model.model.layers)
        twin = tiny(request.param)
        twin.load_state_dict(model.state_dict())
        return model, twin

    return make


CHANGES = [*SHARED_MODULES.values(), *TIED_WEIGHTS.values()]


@pytest.mark.parametrize(
    "change", CHANGES, ids=[*SHARED_MODULES, *map("tied {}".format, TIED_WEIGHTS)]
)
def test_the_pruned_layer_has_its_own(change, pair, tokens):
    model, twin = pair(change)
    fold = model.config.model_type == "gemma2"
    dense = logits(model, tokens)
    modules = list(model.named_modules(remove_duplicate=False))
    expected = logits(apply_plan(twin, PLAN, fold), tokens)
    with temporarily_pruned(model, PLAN, fold):
        torch.testing.assert_close(logits(model, tokens), expected, atol=1e-4, rtol=1e-4)
    assert list(model.named_modules(remove_duplicate=False)) == modules
    assert torch.equal(logits(model, tokens), dense)
    apply_plan(model, PLAN, fold)
    torch.testing.assert_close(logits(model, tokens), expected, atol=1e-4, rtol=1e-4)


def test_another_model_with_the_same_weights_keeps_them(tiny, tokens):
    model = tiny()
    other = tiny()
    for name, parameter in model.named_parameters():
        module, _, attribute = name.rpartition(".")
        setattr(other.get_submodule(module), attribute, parameter)
    dense = logits(other, tokens)
    apply_plan(model, PLAN)
    assert torch.equal(logits(other, tokens), dense)


@pytest.mark.parametrize("name", ["a layer", "all layers", "attention"])
def test_alphas_are_searched_and_magnitudes_compared(name, pair, tokens):
    model, twin = pair(SHARED_MODULES[name])
    plans = [make_plan("mag-sp", each, None, kv_groups=6) for each in (model, twin)]
    assert plans[0] == plans[1]
    searches = [
        search_alphas(each, tokens, 2, grid=[0.3, 1.0], progress=False) for each in (model, twin)
    ]
    for layer, perplexities in searches[1].perplexities.items():
        assert searches[0].perplexities[layer] == pytest.approx(perplexities, rel=1e-4)


@pytest.mark.parametrize("name", TIED_WEIGHTS)
def test_tied_weights_have_gradients_of_their_own(name, pair, tokens):
    models = pair(TIED_WEIGHTS[name])
    plans = [make_plan("llm-pruner", model, tokens, kv_groups=6) for model in models]
    assert plans[0] == plans[1]
    scores, expected = [layer_scores("hessian", model, tokens) for model in models]
    assert scores == pytest.approx(expected, rel=1e-3)


READERS = {
    **{
        method: lambda model, ids, method=method: make_plan(method, model, ids, kv_groups=6)
        for method in ("flap", "wanda-sp", "llm-pruner", "harp+flap")
    },
    **{score: lambda model, ids, score=score: layer_scores(score, model, ids) for score in SCORED},
    "refit": lambda model, ids: refit_values(model, ids, 2),
    "fitted alpha": lambda model, ids: fit_alphas(model, ids, 2),
    "probe": lambda model, ids: observe_layers(model, ids, print),
    "norm alpha and rivals": LayerStream,
}


@pytest.mark.parametrize("read", READERS.values(), ids=READERS)
def test_who_looks_into_layers_refuses_a_module_at_two_places(read, tiny, tokens):
    for name, places in {
        "a layer": "layers.1 and layers.5",
        "FFN": "layers.0.mlp and layers.1.mlp",
        "W_O and W_Q": "layers.0.self_attn.q_proj and layers.0.self_attn.o_proj",
    }.items():
        model = tiny()
        SHARED_MODULES[name](model.model.layers)
        with pytest.raises(ValueError, match=f"{places} of this LlamaForCausalLM are one module"):
            read(model, tokens)


@pytest.mark.parametrize("save", [save_pruned, save_gguf, save_nemotron_nas])
def test_what_is_shared_is_named_before_it_is_saved(save, tiny, tmp_path):
    changes = {"W_V": TIED_WEIGHTS["W_V"], "a layer": SHARED_MODULES["a layer"]}
    for change in changes.values():
        model = tiny()
        change(model.model.layers)
        apply_plan(model, PruningPlan.value_only(6, [0.5]))
        with pytest.raises(ValueError, match=r"is the same weight as .* give one of them a copy"):
            save(model, tiny_tokenizer(), tmp_path / "saved")
        assert not [*tmp_path.iterdir()]


def test_a_layer_that_became_a_copy_is_saved(tiny, tokens, tmp_path):
    """Only W_O was shared, and alpha gives the pruned layer another one."""
    model = tiny()
    SHARED_MODULES["W_O"](model.model.layers)
    apply_plan(model, PruningPlan.value_only(6, [0.5]))
    save_pruned(model, None, tmp_path / "saved")
    loaded, _ = load_pruned(tmp_path / "saved")
    with torch.no_grad():
        torch.testing.assert_close(loaded(tokens).logits, model(tokens).logits)
