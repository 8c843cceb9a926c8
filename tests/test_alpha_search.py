"""Algorithm 1: the fast search against the literal one, interruptions, and bad input."""

from contextlib import ExitStack

import pytest
import torch
from helpers import model_of, unchanged, with_embeddings_everywhere
from transformers import LlamaConfig, LlamaForCausalLM

from harp_lib import ALPHA_GRID, PruningPlan, apply_plan, perplexity, search_alphas
from harp_lib.methods import alpha_search
from harp_lib.methods.alpha_search import model_digest


def test_fast_and_literal_search_agree(tiny, tokens):
    model = tiny()
    with unchanged(model):
        fast = search_alphas(model, tokens, 3, progress=False)
        literal = search_alphas(model, tokens, 3, reuse_prefix=False, progress=False)
    assert fast.alphas == literal.alphas
    assert list(fast.perplexities) == list(literal.perplexities) == [5, 4, 3]
    for layer, curve in fast.perplexities.items():
        assert list(curve) == list(ALPHA_GRID)
        assert curve == pytest.approx(literal.perplexities[layer], rel=1e-5)
    assert fast.layer_passes == 6 + 11 * (1 + 2 + 3)
    assert literal.layer_passes == 3 * 11 * 6
    assert fast.plan == PruningPlan.value_only(6, fast.alphas)
    pruned = apply_plan(model, fast.plan)
    best = min(fast.perplexities[3].values())
    assert perplexity(pruned, tokens) == pytest.approx(best, rel=1e-5)


# Norms after attention, two kinds of positions, experts, and attention beside the FFN.
@pytest.mark.parametrize("family", ["tiny-gemma2", "gemma3_text", "granitemoe", "cohere"])
def test_fast_and_literal_search_agree_in_other_families_and_on_unequal_texts(tiny, tokens, family):
    model = model_of(tiny, family)
    texts = [tokens[0], tokens[1, :20], tokens[2, :20]]
    options = {"grid": (0, 0.3, 1), "cache_device": "cpu", "progress": False}
    fast = search_alphas(model, texts, 2, **options)
    literal = search_alphas(model, texts, 2, reuse_prefix=False, **options)
    assert fast.alphas == literal.alphas
    assert fast.layer_passes < literal.layer_passes
    for layer, curve in fast.perplexities.items():
        assert curve == pytest.approx(literal.perplexities[layer], rel=1e-5)


def test_a_family_whose_layers_take_more_than_hidden_states_is_searched_literally(tiny, tokens):
    model = with_embeddings_everywhere(tiny())
    fast = search_alphas(model, tokens, 2, grid=[0, 0.5], progress=False)
    literal = search_alphas(model, tokens, 2, [0, 0.5], reuse_prefix=False, progress=False)
    assert fast.perplexities == literal.perplexities
    assert fast.layer_passes == literal.layer_passes


def test_of_equal_perplexities_the_smallest_alpha_wins(tiny, tokens):
    model = tiny()
    torch.nn.init.zeros_(model.model.layers[5].self_attn.o_proj.weight)
    assert search_alphas(model, tokens, 1, progress=False).alphas == [0.0]


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
    model = LlamaForCausalLM(config)
    ids = torch.randint(0, 16, (1, 8))
    runs = []

    def count(layer, args, output):
        if args[0].shape[1] == 8:  # not the three tokens on which the model is checked
            runs.append(1)

    with ExitStack() as hooks:
        for layer in model.model.layers:
            hooks.enter_context(layer.register_forward_hook(count))
        fast = search_alphas(model, ids, 8, progress=False)
    literal_passes, reusing_passes = alpha_search.count_passes(32, 8, 11)
    assert len(runs) == fast.layer_passes == reusing_passes
    assert literal_passes >= 5 * reusing_passes


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_layers": 7}, "not in a model of 6 layers"),
        ({"num_layers": 0}, "num_layers is 0"),
        ({"num_layers": -1}, "num_layers is -1"),
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


def test_a_pruned_model_is_refused(tiny, tokens):
    model = apply_plan(tiny(), PruningPlan.value_only(6, [0.5]))
    with pytest.raises(ValueError, match="pruned already"):
        search_alphas(model, tokens, 2, progress=False)


def test_a_perplexity_that_is_not_finite_names_layer_and_alpha(tiny, tokens):
    model = tiny()
    model.model.layers[4].self_attn.v_proj.weight.data[0, 0] = torch.inf
    with pytest.raises(ValueError, match=r"perplexity is nan with alpha = 0.0 in layer 5"):
        search_alphas(model, tokens, 2, progress=False)


def test_an_interrupted_search_leaves_the_model_whole_and_is_resumed(
    tiny, tokens, monkeypatch, tmp_path
):
    model = tiny()
    journal = tmp_path / "search.jsonl"
    head_nll = alpha_search.head_nll
    calls = []

    def counting(*args):
        calls.append(1)
        return head_nll(*args)

    def interrupting(*args):
        if len(calls) == 15:
            raise KeyboardInterrupt
        return counting(*args)

    monkeypatch.setattr(alpha_search, "head_nll", interrupting)
    with unchanged(model), pytest.raises(KeyboardInterrupt):
        search_alphas(model, tokens, 2, progress=False, resume=journal)

    calls.clear()
    monkeypatch.setattr(alpha_search, "head_nll", counting)
    resumed = search_alphas(model, tokens, 2, progress=False, resume=journal)
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
        resumed = search_alphas(tiny(), tokens, 1, resume=journal, progress=False)
        assert resumed.perplexities == expected.perplexities
        written = journal.read_bytes()
        assert search_alphas(tiny(), tokens, 1, resume=journal, progress=False).seconds > 0
        assert journal.read_bytes() == written, "all of it was read"


@pytest.mark.parametrize("change", ["tokens", "grid", "weights"])
def test_entries_of_another_search_are_ignored(tiny, tokens, tmp_path, change):
    model = tiny()
    journal = tmp_path / "search.jsonl"
    search_alphas(model, tokens, 1, resume=journal, progress=False)
    before = journal.read_text()
    grid = ALPHA_GRID
    if change == "tokens":
        tokens = tokens.flip(0)
    elif change == "grid":
        grid = (0.0, 1.0)
    else:
        with torch.no_grad():
            model.model.norm.weight.mul_(1.01)
    resumed = search_alphas(model, tokens, 1, grid, resume=journal, progress=False)
    fresh = search_alphas(model, tokens, 1, grid, progress=False)
    assert resumed.perplexities == fresh.perplexities
    assert journal.read_text().startswith(before)
    assert len(journal.read_text().splitlines()) == 1 + 11 + len(grid)
