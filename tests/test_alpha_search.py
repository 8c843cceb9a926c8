"""Algorithm 1: the fast search against the literal one, interruptions, and bad input."""

import pytest
import torch
from helpers import FAMILIES
from test_surgery import OTHER_FAMILIES, small_model
from transformers import LlamaConfig, LlamaForCausalLM

from harp_lib import ALPHA_GRID, PruningPlan, apply_plan, perplexity, search_alphas
from harp_lib.methods import alpha_search
from harp_lib.methods.alpha_search import model_digest


def state(model):
    return {name: weight.clone() for name, weight in model.state_dict().items()}


@pytest.mark.parametrize("family", FAMILIES)
def test_fast_and_literal_search_agree(tiny, tokens, family):
    model = tiny(family)
    before, modules = state(model), [type(m) for m in model.modules()]
    fast = search_alphas(model, tokens, 3, progress=False)
    literal = search_alphas(model, tokens, 3, reuse_prefix=False, progress=False)
    assert fast.alphas == literal.alphas
    assert list(fast.perplexities) == list(literal.perplexities) == [5, 4, 3]
    for layer, curve in fast.perplexities.items():
        assert list(curve) == list(ALPHA_GRID)
        assert curve == pytest.approx(literal.perplexities[layer], rel=1e-5)
    assert fast.layer_passes == 6 + 11 * (1 + 2 + 3)
    assert literal.layer_passes == 3 * 11 * 6
    assert [type(m) for m in model.modules()] == modules
    assert all(torch.equal(weight, before[name]) for name, weight in model.state_dict().items())


@pytest.mark.parametrize("family", OTHER_FAMILIES)
def test_other_families_and_unequal_texts(tokens, family):
    model = small_model(family, vocab_size=512, **OTHER_FAMILIES[family])
    texts, options = (
        [tokens[0], tokens[1, :20], tokens[2, :20]],
        {"cache_device": "cpu", "progress": False},
    )
    fast, literal = (
        search_alphas(model, texts, 2, (0, 0.3, 1), reuse_prefix=r, **options)
        for r in (True, False)
    )
    assert fast.alphas == literal.alphas
    for layer, curve in fast.perplexities.items():
        assert curve == pytest.approx(literal.perplexities[layer], rel=1e-5)


def test_what_was_found_is_what_the_pruned_model_gives(tiny, tokens):
    model = tiny()
    found = search_alphas(model, tokens, 3, progress=False)
    assert found.plan == PruningPlan.value_only(6, found.alphas)
    pruned = apply_plan(model, found.plan)
    assert perplexity(pruned, tokens) == pytest.approx(
        min(found.perplexities[3].values()), rel=1e-5
    )
    torch.nn.init.zeros_((model := tiny()).model.layers[5].self_attn.o_proj.weight)
    assert search_alphas(model, tokens, 1, progress=False).alphas == [0.0], (
        "the smaller alpha wins a tie"
    )


def test_the_digest_sees_every_weight_and_the_config(tiny):
    digests = [model_digest(tiny())]
    for name, _ in tiny().named_parameters():
        model = tiny()
        with torch.no_grad():
            model.get_parameter(name).view(-1)[-1] += 0.01
        digests.append(model_digest(model))
    model = tiny()
    model.config.rope_parameters = {"rope_type": "default", "rope_theta": 10.0}
    digests.append(model_digest(model))
    assert len(set(digests)) == len(digests)
    assert model_digest(tiny()) == digests[0]


def test_counted_passes_at_the_depth_of_llama_8b():
    config = LlamaConfig(
        num_hidden_layers=32,
        hidden_size=8,
        intermediate_size=8,
        num_attention_heads=2,
        vocab_size=16,
    )
    model, ids, run = LlamaForCausalLM(config), torch.randint(0, 16, (1, 8)), []
    handles = [
        layer.register_forward_hook(lambda *_: run.append(1)) for layer in model.model.layers
    ]
    fast = search_alphas(model, ids, 8, progress=False)
    for handle in handles:
        handle.remove()
    literal = search_alphas(model, ids, 8, reuse_prefix=False, progress=False)
    assert len(run) - 32 == fast.layer_passes, (
        "the check of the architecture is one pass over three tokens"
    )
    assert (literal.layer_passes, fast.layer_passes) == alpha_search.count_passes(32, 8, 11)
    assert literal.layer_passes >= 5 * fast.layer_passes


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_layers": 7}, "not in a model of 6 layers"),
        ({"grid": []}, "one at least"),
        ({"grid": [0.5, 0.1]}, "rising"),
        ({"grid": [0.1, 0.1]}, "each once"),
        ({"grid": [0.0, float("nan")]}, "finite"),
        ({"tokens": []}, "corpus is empty"),
    ],
)
def test_bad_input_is_refused(tiny, tokens, arguments, message):
    arguments = {"tokens": tokens, "num_layers": 2, "progress": False} | arguments
    with pytest.raises(ValueError, match=message):
        search_alphas(tiny(), **arguments)


def test_models_that_cannot_be_searched_are_refused_before_anything_is_computed(tiny, tokens):
    model = apply_plan(tiny(), PruningPlan.value_only(6, [0.5]))
    with pytest.raises(ValueError, match="pruned already"):
        search_alphas(model, tokens, 2, progress=False)
    model = tiny()
    model.model.layers[4].self_attn.o_proj.to("meta")
    with pytest.raises(ValueError, match="layer 4: weights that are offloaded"):
        search_alphas(model, tokens, 2, progress=False)


def test_a_perplexity_that_is_not_finite_names_layer_and_alpha(tiny, tokens):
    model = tiny()
    model.model.layers[4].self_attn.v_proj.weight.data[0, 0] = torch.inf
    with pytest.raises(ValueError, match=r"perplexity is nan with alpha = 0.0 in layer 5"):
        search_alphas(model, tokens, 2, progress=False)
    assert type(model.model.layers[5].self_attn).__name__ == "LlamaAttention"


def test_the_model_is_unchanged_after_an_error_in_the_middle(tiny, tokens, monkeypatch, tmp_path):
    model, calls = tiny(), []
    original = alpha_search.head_nll

    def failing(*args):
        calls.append(1)
        if len(calls) > 15:
            raise KeyboardInterrupt
        return original(*args)

    monkeypatch.setattr(alpha_search, "head_nll", failing)
    with pytest.raises(KeyboardInterrupt):
        search_alphas(model, tokens, 2, progress=False, resume=tmp_path / "search.jsonl")
    assert {type(layer.self_attn).__name__ for layer in model.model.layers} == {"LlamaAttention"}
    assert not any(layer.self_attn._forward_hooks for layer in model.model.layers)

    calls.clear()
    monkeypatch.setattr(
        alpha_search, "head_nll", lambda *args: (calls.append(1), original(*args))[1]
    )
    resumed = search_alphas(model, tokens, 2, progress=False, resume=tmp_path / "search.jsonl")
    assert len(calls) == 22 - 15, "finished candidates are not computed again"
    fresh = search_alphas(model, tokens, 2, progress=False)
    assert resumed.alphas == fresh.alphas
    assert resumed.perplexities == fresh.perplexities


def test_a_line_that_a_kill_cut_off_is_computed_again(tiny, tokens, tmp_path):
    journal = tmp_path / "search.jsonl"
    expected = search_alphas(tiny(), tokens, 1, resume=journal, progress=False)
    content = journal.read_bytes()
    for cut in (len(content) - 7, 30, 0):
        journal.write_bytes(content[:cut])
        assert (
            search_alphas(tiny(), tokens, 1, resume=journal, progress=False).perplexities
            == expected.perplexities
        )
        written = journal.read_bytes()
        assert search_alphas(tiny(), tokens, 1, resume=journal, progress=False).seconds > 0
        assert journal.read_bytes() == written, "all of it was read"


@pytest.mark.parametrize("change", ["tokens", "grid", "weights"])
def test_what_another_search_has_found_is_not_taken(tiny, tokens, tmp_path, change):
    model, journal = tiny(), tmp_path / "search.jsonl"
    search_alphas(model, tokens, 1, resume=journal, progress=False)
    before = journal.read_text()
    if change == "weights":
        with torch.no_grad():
            model.model.norm.weight.mul_(1.01)
    tokens, grid = (
        tokens.flip(0) if change == "tokens" else tokens,
        (0.0, 1.0) if change == "grid" else ALPHA_GRID,
    )
    found = search_alphas(model, tokens, 1, grid, resume=journal, progress=False)
    assert found.perplexities == search_alphas(model, tokens, 1, grid, progress=False).perplexities
    assert journal.read_text().startswith(before)
    assert len(journal.read_text().splitlines()) == 1 + 11 + len(grid)
