"""Layer selection: the streaming pass against the eager probe, the Hessian score against finite differences."""

import pytest
import torch
from conftest import FAMILIES
from test_surgery import small_model

from harp_lib import apply_plan
from harp_lib.measure.text import Window
from harp_lib.measure.probe import observe_layers
from harp_lib.methods import layer_selection
from harp_lib.methods.layer_selection import LAYER_SELECTIONS, SCORED, layer_scores, select_layers
from harp_lib.pruning.architecture import decoder_layers
from harp_lib.pruning.plan import PruningPlan


def observed(model, ids):
    """Both angles of each layer, token by token, from the probe's views: (layers,) sums over tokens."""
    sums = {"similarity": [], "block-influence": []}

    def visit(view):
        for strategy, after in (("similarity", view.entering + view.branch), ("block-influence", view.leaving)):
            pairs = zip(view.entering.double().flatten(0, 1), after.double().flatten(0, 1), strict=True)
            sums[strategy].append(sum(1 - (x @ y / (x.norm() * y.norm())).item() for x, y in pairs))

    observe_layers(model, ids, visit)
    return sums


@pytest.mark.parametrize("family", [*FAMILIES, "cohere", "granite"])
def test_angles_are_those_of_the_probe(tiny, tokens, family):
    if family in FAMILIES:
        model = tiny(family)
    else:  # attention and FFN in parallel; a multiplier of what is added
        model = small_model(family, vocab_size=512, **({"residual_multiplier": 0.3} if family == "granite" else {}))
    expected = observed(model, tokens)
    for strategy, sums in expected.items():
        wanted = [value / tokens.numel() for value in sums]
        assert layer_scores(strategy, model, tokens) == pytest.approx(wanted, rel=1e-4)
    assert layer_scores("similarity", model, tokens) != layer_scores("block-influence", model, tokens)


def test_texts_of_different_length_weigh_by_their_tokens(tiny, tokens):
    model = tiny()
    texts = [Window(tokens[0], 47), Window(tokens[1, :20], 19), Window(tokens[2, :33], 4)]
    sums = [observed(model, text.ids[None]) for text in texts]
    for strategy in ("similarity", "block-influence"):
        wanted = [sum(values) / (48 + 20 + 33) for values in zip(*(s[strategy] for s in sums), strict=True)]
        assert layer_scores(strategy, model, texts) == pytest.approx(wanted, rel=1e-4)


@pytest.mark.parametrize("family", FAMILIES)
def test_hessian_is_the_slope_of_the_loss_in_the_scale_of_a_matrix(tiny, tokens, family):
    model = tiny(family)
    scores = layer_scores("hessian", model, tokens)
    model, step = model.double(), 3e-3  # norms compute in float32 all the same: smaller steps drown in rounding
    for layer in (0, 3, 5):
        attention, expected = decoder_layers(model)[layer].self_attn, 0.0
        for part in ("q_proj", "k_proj", "v_proj"):
            weight = getattr(attention, part).weight
            original = weight.detach().clone()
            weight.data = original * (1 + step)
            more = double_nll(model, tokens)
            weight.data = original * (1 - step)
            expected += ((more - double_nll(model, tokens)) / (2 * step)) ** 2
            weight.data = original
        assert scores[layer] == pytest.approx(expected, rel=5e-3)


@torch.no_grad()
def double_nll(model, ids):
    """Mean negative log-likelihood of each token but the first."""
    logits = model(ids).logits[:, :-1].double()
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten()).item()


@pytest.mark.parametrize("strategy", SCORED)
def test_model_is_as_before(tiny, tokens, strategy):
    model = tiny("tiny-gemma2").train()
    before = {name: value.clone() for name, value in model.state_dict().items()}

    def assert_untouched():
        assert model.training
        assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
        assert all(parameter.requires_grad and parameter.grad is None for parameter in model.parameters())
        assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())

    for layer in decoder_layers(model):
        layer.self_attn.attention_dropout = 0.5  # in training mode
    scores = layer_scores(strategy, model, tokens)
    assert_untouched()
    assert scores == layer_scores(strategy, tiny("tiny-gemma2"), tokens), "no dropout"

    def stop(module, args, output):
        if args[0].shape[1] > 1:  # not in the check that comes first, of one token
            raise RuntimeError("stop")

    handle = decoder_layers(model)[4].mlp.register_forward_hook(stop)
    with pytest.raises(RuntimeError, match="stop"):
        layer_scores(strategy, model, tokens)
    handle.remove()
    assert_untouched()


@pytest.mark.parametrize("strategy", SCORED)
def test_the_lowest_scores_are_selected(tiny, tokens, strategy):
    model = tiny("tiny-mistral")
    scores = layer_scores(strategy, model, tokens)
    taken = select_layers(strategy, model, tokens, 2)
    assert taken == sorted(taken)
    assert max(scores[layer] for layer in taken) < min(scores[layer] for layer in range(6) if layer not in taken)
    assert select_layers(strategy, model, tokens, 6) == list(range(6))
    bfloat16 = layer_scores(strategy, model.to(torch.bfloat16), tokens)
    assert all(isinstance(score, float) for score in bfloat16)


def test_of_equal_scores_the_higher_layer_goes(tiny, tokens, monkeypatch):
    monkeypatch.setattr(layer_selection, "layer_scores", lambda *_: [0.5, 0.1, 0.3, 0.3, 0.3, 0.9])
    assert select_layers("similarity", tiny(), tokens, 3) == [1, 3, 4]


def test_top_and_bottom_need_no_text(tiny):
    model = tiny()
    assert select_layers("top", model, None, 2) == [4, 5]
    assert select_layers("bottom", model, None, 2) == [0, 1]


def test_what_cannot_be_selected_is_refused(tiny, tokens):
    model = tiny()
    assert len(LAYER_SELECTIONS) == 5
    for count in (0, 7):
        with pytest.raises(ValueError, match=f"{count} layers cannot be selected; LlamaForCausalLM has 6"):
            select_layers("top", model, None, count)
    with pytest.raises(ValueError, match="unknown strategy 'middle'; choose from top, bottom, hessian"):
        select_layers("middle", model, tokens, 2)
    with pytest.raises(ValueError, match="no scores for 'top'; choose from hessian"):
        layer_scores("top", model, tokens)
    with pytest.raises(ValueError, match="'hessian' is measured on a text"):
        select_layers("hessian", model, None, 2)
    with pytest.raises(ValueError, match="pruned already"):
        layer_scores("similarity", apply_plan(model, PruningPlan.value_only(6, [0.5])), tokens)
