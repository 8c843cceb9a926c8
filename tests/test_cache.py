"""Generation with a cache equals generation without one, whatever layers are pruned."""

import copy

import pytest
import torch
from helpers import ROUNDING, assert_same, generate
from transformers import DynamicCache, GenerationConfig, QuantizedCache, StaticCache
from transformers.generation import ContinuousBatchingConfig

from harp_lib import PruningPlan, apply_plan
from harp_lib.pruning.plan import LayerPlan
from harp_lib.pruning.surgery import temporarily_pruned

PRUNED = {  # alpha, or removed groups, by layer
    "top": {5: 0.8, 4: 0.3, 3: 0.0},
    "first and another": {0: 0.5, 3: 0.0},
    "all": dict.fromkeys(range(6), 0.5),
    "groups and value-only": {0: (0, 1), 1: (1,), 2: (0,), 5: 0.8, 4: 0.0},
}
HARD = ("first and another", "groups and value-only")

pytestmark = pytest.mark.filterwarnings("ignore:.*generation flags.*")


def pruned(tiny, family, which):
    """A tiny model, pruned as ``PRUNED[which]`` says."""
    layers = {}
    for layer, loss in PRUNED[which].items():
        if isinstance(loss, tuple):
            layers[layer] = LayerPlan(removed_groups=loss)
        else:
            layers[layer] = LayerPlan(alpha=loss)
    return apply_plan(tiny(family), PruningPlan(6, layers))


@pytest.mark.parametrize(
    ("which", "options"),
    [
        *((which, {}) for which in PRUNED),
        *((which, {"cache_implementation": "static"}) for which in HARD),
        (HARD[0], {"num_beams": 3}),
        (HARD[1], {"cache_implementation": "static", "prefill_chunk_size": 16}),
    ],
)
def test_cached_generation_equals_uncached(tiny, tokens, which, options):
    model = pruned(tiny, "tiny-gemma2", which)
    ids = tokens[:2, :40]  # longer than Gemma-2's sliding window of 32
    cached = generate(model, ids, **options)
    model.tail_only_prefill = False
    beams = {"num_beams": options.get("num_beams", 1)}
    assert_same(cached, generate(model, ids, use_cache=False, **beams))


@pytest.mark.parametrize(("family", "which"), [("tiny-llama", HARD[0]), ("tiny-gemma2", HARD[1])])
def test_left_padding_changes_nothing(tiny, tokens, family, which):
    model = pruned(tiny, family, which)
    short = tokens[0, :17]
    long = tokens[1, :40]
    ids = torch.stack([torch.cat([torch.zeros(23, dtype=torch.long), short]), long])
    mask = torch.stack([torch.cat([torch.zeros(23), torch.ones(17)]), torch.ones(40)]).long()
    together = generate(model, ids, mask)
    model.tail_only_prefill = False
    for row, alone in enumerate((short, long)):
        single = generate(model, alone[None], use_cache=False)
        assert torch.equal(together.sequences[row, 40:], single.sequences[0, len(alone) :])
        for a, b in zip(together.logits, single.logits, strict=True):
            torch.testing.assert_close(a[row], b[0], **ROUNDING)


@pytest.mark.parametrize("which", PRUNED)
def test_a_text_in_pieces_cropped_and_reordered_equals_the_text_at_once(tiny, tokens, which):
    model = pruned(tiny, "tiny-llama", which)
    cache = DynamicCache()  # without a config it grows as it is used
    order = torch.tensor([1, 0, 3, 2])
    with torch.no_grad():
        whole = model(tokens).logits
        parts = [
            model(part, past_key_values=cache).logits for part in tokens.split([20, 1, 27], dim=1)
        ]
        torch.testing.assert_close(torch.cat(parts, dim=1), whole, **ROUNDING)
        assert cache.get_seq_length() == tokens.shape[1]
        cache.crop(-8)
        cache.reorder_cache(order)
        again = model(tokens[order, -8:], past_key_values=cache).logits
    torch.testing.assert_close(again, whole[order, -8:], **ROUNDING)


@pytest.mark.parametrize("how", ["reset", "copied", "repeated"])
@pytest.mark.parametrize("which", HARD)
def test_what_is_done_to_a_cache_leaves_it_right(tiny, tokens, which, how):
    model = pruned(tiny, "tiny-llama", which)
    cache = DynamicCache(config=model.config)
    with torch.no_grad():
        model(tokens[:, :30], past_key_values=cache)
        if how == "reset":
            cache.reset()
            model(tokens[:, :30], past_key_values=cache)
        elif how == "copied":
            cache = copy.deepcopy(cache)
        else:
            cache.batch_repeat_interleave(2)
            cache.batch_select_indices(torch.tensor([0, 2, 4, 6]))
        continued = model(tokens[:, 30:], past_key_values=cache).logits
        torch.testing.assert_close(continued, model(tokens).logits[:, 30:], **ROUNDING)


@pytest.mark.parametrize("layer_plan", [LayerPlan(0.5), LayerPlan(removed_groups=(1,))])
def test_a_cache_made_from_tensors_is_right_or_refused(tiny, tokens, layer_plan):
    """torch's data parallelism gathers the tensors of a cache and makes another of them."""
    model = apply_plan(tiny(), PruningPlan(6, {0: layer_plan}))
    cache = DynamicCache()
    with torch.no_grad():
        model(tokens[:, :30], past_key_values=cache)
        rebuilt = DynamicCache(list(cache))
        if layer_plan.alpha is not None:
            with pytest.raises(ValueError, match="no longer knows how many tokens layer 0"):
                model(tokens[:, 30:], past_key_values=rebuilt)
        else:
            continued = model(tokens[:, 30:], past_key_values=rebuilt).logits
            expected = model(tokens).logits[:, 30:]
            torch.testing.assert_close(continued, expected, **ROUNDING)


@pytest.mark.parametrize("family", ["tiny-llama", "tiny-gemma2"])
def test_a_static_cache_that_the_config_laid_out_is_right_or_refused(tiny, tokens, family):
    """torch.export needs caches that are allocated before the first token."""
    for which in ("top", "first and another", "groups and value-only"):
        model = pruned(tiny, family, which)
        cache = StaticCache(config=model.config, max_cache_len=64)
        heads = model.config.num_key_value_heads
        cache.early_initialization(4, heads, model.config.head_dim, torch.float32, "cpu")
        with torch.no_grad():
            if "groups" in which:
                with pytest.raises(ValueError, match="2 key/value heads in layer 1, which has 1"):
                    model(tokens, past_key_values=cache)
                continue
            parts = [
                model(part, past_key_values=cache).logits for part in tokens.split([36, 12], dim=1)
            ]
            expected = model(tokens).logits
        torch.testing.assert_close(torch.cat(parts, dim=1), expected, **ROUNDING)


@pytest.mark.parametrize("which", HARD)
def test_a_quantized_cache_changes_little(tiny, tokens, which):
    model = pruned(tiny, "tiny-llama", which)
    cache = QuantizedCache("fp8", model.config)
    with torch.no_grad():
        model(tokens[:, :40], past_key_values=cache)
        continued = model(tokens[:, 40:], past_key_values=cache).logits
        expected = model(tokens).logits[:, 40:]
    # 8 bits for keys and values that are large for a model; another token's would differ by 1.4.
    assert (continued - expected).norm() < 0.3 * expected.norm()


def in_batches(model, ids):
    """The tokens that transformers' continuous batching appends to each row."""
    outputs = model.generate_batch(
        ids.tolist(),
        GenerationConfig(max_new_tokens=12, do_sample=False, eos_token_id=-1, pad_token_id=0),
        ContinuousBatchingConfig(num_blocks=16, max_batch_tokens=256, page_size=32),
    )
    return torch.tensor([output.generated_tokens for output in outputs.values()])


@pytest.mark.parametrize("which", HARD)
def test_continuous_batching_is_right_or_refused(tiny, tokens, which):
    model = pruned(tiny, "tiny-llama", which)
    if "groups" in which:
        with pytest.raises(ValueError, match="layer 1 has fewer; call generate without paging"):
            in_batches(model, tokens[:2])
        return
    expected = generate(model, tokens[:2], use_cache=False).sequences[:, tokens.shape[1] :]
    assert torch.equal(in_batches(model, tokens[:2]), expected)


@pytest.mark.parametrize("which", HARD)
@pytest.mark.parametrize("helper", ["assistant", "early exit", "prompt"])
def test_assisted_generation_equals_uncached(tiny, tokens, which, helper):
    model = pruned(tiny, "tiny-llama", which)
    options = {
        "assistant": {"assistant": tiny()},
        "early exit": {"assistant_early_exit": 3},
        "prompt": {"prompt_lookup_num_tokens": 4},
    }
    assisted = generate(model, tokens[:1], **options[helper])
    assert_same(assisted, generate(model, tokens[:1], use_cache=False))
    if helper == "assistant":
        by_pruned = generate(tiny(), tokens[:1], assistant=model)
        assert_same(by_pruned, generate(tiny(), tokens[:1], use_cache=False))


@pytest.mark.parametrize("which", HARD)
def test_attention_map_i_is_that_of_layer_i(tiny, tokens, which):
    model = pruned(tiny, "tiny-llama", which)
    model.set_attn_implementation("eager")
    recorded = []
    for layer in model.model.layers:
        layer.self_attn.register_forward_hook(lambda _, __, output: recorded.append(output[1]))
    with torch.no_grad():
        maps = model(tokens, output_attentions=True).attentions
        as_tuple = model(tokens, output_attentions=True, return_dict=False)
    assert len(maps) == 6
    for attention_map, expected in zip(maps, recorded, strict=False):
        if expected is None:
            assert attention_map.shape == (4, 0, 48, 48)
        else:
            assert torch.equal(attention_map, expected)
    assert [entry.shape for entry in as_tuple[-1]] == [entry.shape for entry in maps]


def test_attention_maps_of_assisted_generation_are_of_each_layer(tiny, tokens):
    model = pruned(tiny, "tiny-llama", "top")
    assistant = tiny()
    for each in (model, assistant):
        each.set_attn_implementation("eager")
    output = generate(model, tokens[:1], assistant=assistant, output_attentions=True)
    assert {len(maps) for maps in output.attentions} == {6}
    assert [entry.shape[1] for entry in output.attentions[0]] == [4, 4, 4, 0, 0, 0]


def test_a_cache_of_another_model_is_refused(tiny, tokens):
    with torch.no_grad():
        cache = tiny()(tokens, use_cache=True).past_key_values
        with pytest.raises(ValueError, match="another model filled it"):
            pruned(tiny, "tiny-llama", "top")(tokens, past_key_values=cache)


@pytest.mark.parametrize("says_so", [False, True], ids=["config as it was", "config says so"])
@pytest.mark.parametrize("family", ["tiny-llama", "tiny-gemma2"])
def test_layers_keep_their_entries_after_another_was_dropped(tiny, tokens, family, says_so):
    """The config may say how many layers are left; a dense model has no entry for the top then."""
    model = tiny(family)
    del model.model.layers[3]
    if says_so:
        model.config.num_hidden_layers = 5
    loss = {4: LayerPlan(alpha=0.5), 3: LayerPlan(alpha=0.0), 1: LayerPlan(removed_groups=(0,))}
    plan = PruningPlan(5, loss)
    ids = tokens[:2, :40]
    with temporarily_pruned(model, plan):
        expected = generate(model, ids, use_cache=False)
        assert_same(generate(model, ids), expected)
        assert_same(generate(model, ids, cache_implementation="static"), expected)
    apply_plan(model, plan)
    assert_same(generate(model, ids), expected)
    assert_same(generate(model, ids, cache=DynamicCache()), expected)


@pytest.mark.parametrize("pruned_layers", [{}, {4: 0.5, 3: 0.0, 0: 0.5}], ids=["dense", "pruned"])
@pytest.mark.parametrize("family", ["tiny-llama", "tiny-qwen2"])
def test_without_layer_0_a_static_cache_needs_new_numbers(tiny, tokens, family, pruned_layers):
    """transformers asks entry 0 of a cache how long the text is, which nobody fills then."""
    model = tiny(family)
    del model.model.layers[0]
    if pruned_layers:
        apply_plan(model, PruningPlan.value_only(5, pruned_layers))
    ids = tokens[:2, :40]
    expected = generate(model, ids, use_cache=False)
    assert_same(generate(model, ids), expected)
    static = generate(model, ids, cache_implementation="static")
    assert not torch.equal(static.sequences, expected.sequences)
    for place, layer in enumerate(model.model.layers):
        layer.self_attn.layer_idx = place
    assert_same(generate(model, ids, cache_implementation="static"), expected)
