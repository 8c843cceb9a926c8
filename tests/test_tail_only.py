"""Positions whose logits nobody asks for skip the pruned layers at the top: exactly, counted, and
only then.
"""

from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import get_ident

import pytest
import torch
from helpers import FAMILIES
from test_cache import assert_same, generate
from test_surgery import OTHER_FAMILIES, small_model
from torch.nn.modules.module import register_module_forward_hook
from transformers import DynamicCache

from harp_lib import PruningPlan, apply_plan
from harp_lib.pruning.layers import LoneAttention
from harp_lib.pruning.plan import LayerPlan

PLANS = {  # of the top four layers, and how many of these are spared
    "value-only and skipped": ({3: LayerPlan(0.5), 2: LayerPlan(0.0), 0: LayerPlan(1.0)}, 2),
    "emptied by groups": ({3: LayerPlan(removed_groups=(0, 1)), 2: LayerPlan(0.5)}, 2),
    "all": ({layer: LayerPlan(0.5) for layer in range(4)}, 4),
}


def make(tiny, family, plan):
    model = tiny(family) if family in FAMILIES else small_model(family, **OTHER_FAMILIES[family])
    below = model.config.num_hidden_layers - 4
    return apply_plan(
        model,
        PruningPlan(below + 4, {below + layer: lost for layer, lost in PLANS[plan][0].items()}),
    )


@contextmanager
def positions_entering():
    """How many positions each pruned attention reads, from the bottom; hooks on the layers would
    turn it off.
    """
    seen = []

    def count(module, args, output):
        if isinstance(module, LoneAttention):
            seen.append(output[0].shape[1])

    handle = register_module_forward_hook(count)
    try:
        yield seen
    finally:
        handle.remove()


@pytest.mark.parametrize("family", [*FAMILIES, *OTHER_FAMILIES])
@pytest.mark.parametrize("plan", PLANS)
@torch.no_grad()
def test_the_last_logits_are_those_of_the_full_pass(tiny, tokens, family, plan):
    if family == "olmo2" and plan == "emptied by groups":
        pytest.skip("groups cannot be cut out of it")
    model, ids, top = make(tiny, family, plan), tokens % 120, PLANS[plan][1]
    mask = torch.ones_like(ids)
    mask[0, :20] = mask[2, :7] = 0  # padding on the left
    full = model(ids, attention_mask=mask).logits
    for keep in (1, 3, 47):
        for inputs in ({"input_ids": ids}, {"inputs_embeds": model.get_input_embeddings()(ids)}):
            with positions_entering() as seen:
                found = model(**inputs, attention_mask=mask, logits_to_keep=keep, use_cache=True)
            assert seen[-top:] == [keep] * top
            assert set(seen[:-top]) <= {48}, "a value-only layer below a live one reads everything"
            error, scale = (found.logits - full[:, -keep:]).abs().max(), full.abs().max()
            assert error <= 1e-5 * scale
            assert (found.logits - full[:, -keep - 1 : -1]).abs().max() > 1e-2 * scale, (
                "one position beside is seen"
            )
            assert {entry.get_seq_length() for entry in found.past_key_values.layers} == {48}
    assert torch.equal(model(ids, attention_mask=mask).logits, full), "nothing stays behind"


@pytest.mark.parametrize("family", ["tiny-qwen2", "tiny-gemma2"])
@pytest.mark.parametrize("plan", PLANS)
@torch.no_grad()
def test_a_prefix_is_continued(tiny, tokens, family, plan):
    """A cache that was filled by halves, some positions of which never entered the top."""
    model, ids = make(tiny, family, plan), tokens[:2]
    cache = DynamicCache(config=model.config)
    model(ids[:, :20], past_key_values=cache, logits_to_keep=1)
    found = model(ids[:, 20:41], past_key_values=cache, logits_to_keep=2).logits
    model.tail_only_prefill = False
    torch.testing.assert_close(found, model(ids[:, :41]).logits[:, -2:], atol=2e-5, rtol=1e-4)
    expected = generate(model, ids)
    model.tail_only_prefill = True
    assert_same(generate(model, ids, cache=cache), expected)


@torch.no_grad()
def test_it_is_off_where_somebody_looks_at_every_position(tiny, tokens):
    model = make(tiny, "tiny-llama", "value-only and skipped")

    def entering(**options):
        with positions_entering() as seen:
            model(tokens, **options)
        return seen

    assert entering(logits_to_keep=1) == [48, 1, 1]
    some = torch.tensor([47])
    for options in (
        {},
        {"labels": tokens},
        {"output_hidden_states": True, "logits_to_keep": 1},
        {"logits_to_keep": some},
    ):
        assert entering(**options) == [48] * 3, options
    states = model(tokens, output_hidden_states=True, logits_to_keep=1).hidden_states
    assert {state.shape[1] for state in states} == {48}
    assert entering(logits_to_keep=1) == [48, 1, 1], (
        "transformers' own hooks are there now, and idle"
    )
    for module in (model.model.layers[5].mlp, model.model.norm, model.model):
        handle = module.register_forward_hook(lambda *_: None)
        assert entering(logits_to_keep=1) == [48] * 3
        handle.remove()
    model.train()
    assert entering(logits_to_keep=1) == [48] * 3
    model.eval()
    model.model.layers[
        4
    ].mixer = torch.nn.Identity()  # as hybrid models have beside their attention
    assert entering(logits_to_keep=1) == [48, 48, 1]
    del model.model.layers[4].mixer
    model.config.output_hidden_states = True
    assert entering(logits_to_keep=1) == [48] * 3
    model.config.output_hidden_states = False
    model.tail_only_prefill = False
    assert entering(logits_to_keep=1) == [48] * 3


@torch.no_grad()
def test_a_thread_that_reads_everything_meanwhile_is_not_disturbed(tiny, tokens):
    model, main, found = make(tiny, "tiny-llama", "value-only and skipped"), get_ident(), []
    full = model(tokens).logits
    with ThreadPoolExecutor(1) as other:

        def interrupt(module, args, output):
            if (
                module is model.model.layers[3].mlp and get_ident() == main
            ):  # below the top: its hooks are there
                found.append(
                    other.submit(lambda: torch.no_grad()(model)(tokens, use_cache=True)).result()
                )

        handle = register_module_forward_hook(interrupt)
        kept = model(tokens, logits_to_keep=1).logits
        handle.remove()
    torch.testing.assert_close(found[0].logits, full)
    assert {entry.get_seq_length() for entry in found[0].past_key_values.layers} == {48}
    torch.testing.assert_close(kept, full[:, -1:], atol=2e-5, rtol=1e-4)
