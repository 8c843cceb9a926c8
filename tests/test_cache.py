"""Generation with a cache is the generation without one, whatever layers are value-only or have
lost groups.
"""

import pytest
import torch
from transformers import DynamicCache, GenerationConfig

from harp_lib import PruningPlan, apply_plan
from harp_lib.pruning.plan import LayerPlan

NEW = 12
PRUNED = {
    "top": {5: 0.8, 4: 0.3, 3: 0.0},
    "first": {0: 0.5},
    "first and another": {0: 0.5, 3: 0.0},
    "all but one": {i: 0.5 for i in range(6) if i != 2},
    "all": dict.fromkeys(range(6), 0.5),
    "groups and value-only": {0: (0, 1), 1: (1,), 2: (0,), 5: 0.8, 4: 0.0},
}
OPTIONS = [{}, {"num_beams": 3}, {"cache_implementation": "static"}]
OPTIONS += [{"cache_implementation": "static", "prefill_chunk_size": 16}]
FAMILIES = ("tiny-llama", "tiny-qwen2", "tiny-gemma2")

pytestmark = pytest.mark.filterwarnings("ignore:.*generation flags.*")


def layer_plans(lost):
    return PruningPlan(
        6,
        {
            layer: LayerPlan(removed_groups=of) if isinstance(of, tuple) else LayerPlan(of)
            for layer, of in lost.items()
        },
    )


def pruned(tiny, family, which):
    return apply_plan(tiny(family), layer_plans(PRUNED[which]))


def generate(model, ids, mask=None, cache=None, **options):
    options |= {
        "max_new_tokens": NEW,
        "min_new_tokens": NEW,
        "do_sample": False,
        "pad_token_id": 0,
        "eos_token_id": 2,
    }
    return model.generate(
        **({} if cache is None else {"past_key_values": cache}),
        input_ids=ids,
        attention_mask=torch.ones_like(ids) if mask is None else mask,
        generation_config=GenerationConfig(
            return_dict_in_generate=True, output_logits=True, **options
        ),
    )


def assert_same(first, second):
    assert torch.equal(first.sequences, second.sequences)
    for a, b in zip(first.logits, second.logits, strict=True):
        torch.testing.assert_close(a, b, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize(
    ("family", "options"), [*(("tiny-gemma2", o) for o in OPTIONS), ("tiny-llama", OPTIONS[1])]
)
@pytest.mark.parametrize("which", PRUNED)
def test_cached_generation_equals_uncached(tiny, tokens, family, which, options):
    model = pruned(tiny, family, which)
    ids = tokens[:2, :40]  # longer than Gemma-2's sliding window of 32
    uncached = {key: value for key, value in options.items() if key == "num_beams"}
    found, model.tail_only_prefill = generate(model, ids, **options), False
    assert_same(found, generate(model, ids, use_cache=False, **uncached))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("which", PRUNED)
def test_left_padding_changes_nothing(tiny, tokens, family, which):
    model = pruned(tiny, family, which)
    short, long = tokens[0, :17], tokens[1, :40]
    ids = torch.stack([torch.cat([torch.zeros(23, dtype=torch.long), short]), long])
    mask = torch.stack([torch.cat([torch.zeros(23), torch.ones(17)]), torch.ones(40)]).long()
    together, model.tail_only_prefill = generate(model, ids, mask), False
    for row, alone in enumerate((short, long)):
        single = generate(model, alone[None], use_cache=False)
        assert torch.equal(together.sequences[row, 40:], single.sequences[0, len(alone) :])
        for a, b in zip(together.logits, single.logits, strict=True):
            torch.testing.assert_close(a[row], b[0], atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("which", PRUNED)
def test_a_text_in_pieces_cropped_and_reordered_equals_the_text_at_once(tiny, tokens, which):
    model = pruned(tiny, "tiny-llama", which)
    cache, order = (
        DynamicCache(),
        torch.tensor([1, 0, 3, 2]),
    )  # without a config: grows as it is used
    with torch.no_grad():
        whole = model(tokens).logits
        parts = [
            model(part, past_key_values=cache).logits for part in tokens.split([20, 1, 27], dim=1)
        ]
        torch.testing.assert_close(torch.cat(parts, dim=1), whole, atol=2e-5, rtol=1e-4)
        assert cache.get_seq_length() == tokens.shape[1]
        cache.crop(-8)
        cache.reorder_cache(order)
        again = model(tokens[order, -8:], past_key_values=cache).logits
    torch.testing.assert_close(again, whole[order, -8:], atol=2e-5, rtol=1e-4)


def test_a_cache_of_another_model_is_refused(tiny, tokens):
    with torch.no_grad():
        cache = tiny()(tokens, use_cache=True).past_key_values
        with pytest.raises(ValueError, match="another model filled it"):
            pruned(tiny, "tiny-llama", "top")(tokens, past_key_values=cache)
