"""Generation with a cache equals generation without one, whatever layers are pruned."""

import pytest
import torch
from helpers import assert_same, generate
from transformers import DynamicCache

from harp_lib import PruningPlan, apply_plan
from harp_lib.pruning.plan import LayerPlan

PRUNED = {  # alpha, or removed groups, by layer
    "top": {5: 0.8, 4: 0.3, 3: 0.0},
    "first": {0: 0.5},
    "first and another": {0: 0.5, 3: 0.0},
    "all but one": {i: 0.5 for i in range(6) if i != 2},
    "all": dict.fromkeys(range(6), 0.5),
    "groups and value-only": {0: (0, 1), 1: (1,), 2: (0,), 5: 0.8, 4: 0.0},
}
OPTIONS = [
    {},
    {"num_beams": 3},
    {"cache_implementation": "static"},
    {"cache_implementation": "static", "prefill_chunk_size": 16},
]
FAMILIES = ("tiny-llama", "tiny-qwen2", "tiny-gemma2")

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
    ("family", "options"),
    [*(("tiny-gemma2", options) for options in OPTIONS), ("tiny-llama", {"num_beams": 3})],
)
@pytest.mark.parametrize("which", PRUNED)
def test_cached_generation_equals_uncached(tiny, tokens, family, which, options):
    model = pruned(tiny, family, which)
    ids = tokens[:2, :40]  # longer than Gemma-2's sliding window of 32
    cached = generate(model, ids, **options)
    model.tail_only_prefill = False
    beams = {"num_beams": options.get("num_beams", 1)}
    assert_same(cached, generate(model, ids, use_cache=False, **beams))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("which", PRUNED)
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
            torch.testing.assert_close(a[row], b[0], atol=2e-5, rtol=1e-4)


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
