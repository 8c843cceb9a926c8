"""Positions without requested logits skip the pruned layers at the top, with the same result."""

import itertools
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import get_ident

import pytest
import torch
from helpers import OTHER_FAMILIES, ROUNDING, assert_same, generate, model_of
from torch.nn.modules.module import register_module_forward_hook
from transformers import DynamicCache

from harp_lib import PruningPlan, apply_plan
from harp_lib.pruning.layers import LoneAttention
from harp_lib.pruning.plan import LayerPlan

PLANS = {  # of the top four layers, and how many layers at the top most positions skip
    "value-only and skipped": ({3: LayerPlan(0.5), 2: LayerPlan(0.0), 0: LayerPlan(1.0)}, 2),
    "emptied by groups": ({3: LayerPlan(removed_groups=(0, 1)), 2: LayerPlan(0.5)}, 2),
    "all": ({layer: LayerPlan(0.5) for layer in range(4)}, 4),
}


def make(tiny, family, plan_name):
    """A model of four layers or more whose top four are pruned as ``PLANS`` says."""
    model = model_of(tiny, family)
    num_layers = model.config.num_hidden_layers
    top_plans, _ = PLANS[plan_name]
    layers = {num_layers - 4 + layer: layer_plan for layer, layer_plan in top_plans.items()}
    return apply_plan(model, PruningPlan(num_layers, layers))


@contextmanager
def positions_entering():
    """How many positions each pruned attention reads, from the bottom.

    The hook is global, because hooks on the layers would switch the shortcut off.
    """
    counts = []

    def count(module, args, output):
        if isinstance(module, LoneAttention):
            counts.append(output[0].shape[1])

    handle = register_module_forward_hook(count)
    try:
        yield counts
    finally:
        handle.remove()


@pytest.mark.parametrize(
    ("family", "plan"),
    [
        *itertools.product(("tiny-llama", "tiny-gemma2"), PLANS),
        *((family, "value-only and skipped") for family in OTHER_FAMILIES),
    ],
)
@torch.no_grad()
def test_the_last_logits_are_those_of_the_full_pass(tiny, tokens, family, plan):
    model = make(tiny, family, plan)
    _, num_top = PLANS[plan]
    ids = tokens % 120
    mask = torch.ones_like(ids)
    mask[0, :20] = 0  # padding on the left
    mask[2, :7] = 0
    full = model(ids, attention_mask=mask).logits
    scale = full.abs().max()
    for keep in (1, 3, 47):
        for inputs in ({"input_ids": ids}, {"inputs_embeds": model.get_input_embeddings()(ids)}):
            with positions_entering() as counts:
                output = model(**inputs, attention_mask=mask, logits_to_keep=keep, use_cache=True)
            assert counts[-num_top:] == [keep] * num_top
            assert set(counts[:-num_top]) <= {48}, (
                "a value-only layer below one that attends reads everything"
            )
            error = (output.logits - full[:, -keep:]).abs().max()
            assert error <= ROUNDING["atol"] * scale
            shifted_error = (output.logits - full[:, -keep - 1 : -1]).abs().max()
            assert shifted_error > 1e-2 * scale, "a shift by one position would be noticed"
            assert {entry.get_seq_length() for entry in output.past_key_values.layers} == {48}
    assert torch.equal(model(ids, attention_mask=mask).logits, full), "nothing stays behind"


@pytest.mark.parametrize("plan", PLANS)
@torch.no_grad()
def test_a_prefix_is_continued(tiny, tokens, plan):
    """A cache filled in two parts, of which some positions never entered the top layers."""
    model = make(tiny, "tiny-gemma2", plan)
    ids = tokens[:2]
    cache = DynamicCache(config=model.config)
    model(ids[:, :20], past_key_values=cache, logits_to_keep=1)
    continued = model(ids[:, 20:41], past_key_values=cache, logits_to_keep=2).logits
    model.tail_only_prefill = False
    torch.testing.assert_close(continued, model(ids[:, :41]).logits[:, -2:], **ROUNDING)
    expected = generate(model, ids)
    model.tail_only_prefill = True
    assert_same(generate(model, ids, cache=cache), expected)


@torch.no_grad()
def test_it_is_off_where_somebody_looks_at_every_position(tiny, tokens):
    model = make(tiny, "tiny-llama", "value-only and skipped")

    def entering(**options):
        with positions_entering() as counts:
            model(tokens, **options)
        return counts

    assert entering(logits_to_keep=1) == [48, 1, 1]
    for options in (
        {},
        {"labels": tokens},
        {"output_hidden_states": True, "logits_to_keep": 1},
        {"logits_to_keep": torch.tensor([47])},
    ):
        assert entering(**options) == [48] * 3, options
    states = model(tokens, output_hidden_states=True, logits_to_keep=1).hidden_states
    assert {state.shape[1] for state in states} == {48}
    # transformers' own hooks are there now, and idle.
    assert entering(logits_to_keep=1) == [48, 1, 1]
    for module in (model.model.layers[5].mlp, model.model.norm, model.model):
        handle = module.register_forward_hook(lambda *_: None)
        assert entering(logits_to_keep=1) == [48] * 3
        handle.remove()
    model.train()
    assert entering(logits_to_keep=1) == [48] * 3
    model.eval()
    layer = model.model.layers[4]
    layer.mixer = torch.nn.Identity()  # hybrid models have one beside their attention
    assert entering(logits_to_keep=1) == [48, 48, 1]
    del layer.mixer
    model.config.output_hidden_states = True
    assert entering(logits_to_keep=1) == [48] * 3
    model.config.output_hidden_states = False
    model.tail_only_prefill = False
    assert entering(logits_to_keep=1) == [48] * 3


@torch.no_grad()
def test_a_thread_that_reads_everything_meanwhile_is_not_disturbed(tiny, tokens):
    model = make(tiny, "tiny-llama", "value-only and skipped")
    main_thread = get_ident()
    below_the_top = model.model.layers[3].mlp
    full = model(tokens).logits
    outputs_of_other_thread = []

    @torch.no_grad()
    def read_everything():
        return model(tokens, use_cache=True)

    with ThreadPoolExecutor(1) as other_thread:

        def interrupt(module, args, output):
            # The hooks of the top layers are set when the pass of the main thread is here.
            if module is below_the_top and get_ident() == main_thread:
                outputs_of_other_thread.append(other_thread.submit(read_everything).result())

        handle = register_module_forward_hook(interrupt)
        kept = model(tokens, logits_to_keep=1).logits
        handle.remove()
    (output,) = outputs_of_other_thread
    torch.testing.assert_close(output.logits, full, **ROUNDING)
    assert {entry.get_seq_length() for entry in output.past_key_values.layers} == {48}
    torch.testing.assert_close(kept, full[:, -1:], **ROUNDING)


@pytest.mark.parametrize("use_cache", [False, True])
def test_a_prefill_is_compiled_as_one_graph(tiny, tokens, use_cache):
    model = make(tiny, "tiny-llama", "all")
    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    with torch.no_grad():
        output = compiled(tokens, use_cache=use_cache, logits_to_keep=1)
        expected = model(tokens, use_cache=use_cache, logits_to_keep=1)
    torch._dynamo.reset()
    torch.testing.assert_close(output.logits, expected.logits, atol=1e-5, rtol=1e-5)
    if use_cache:
        cached = [cache.past_key_values.get_seq_length(5) for cache in (output, expected)]
        assert cached == [tokens.shape[1]] * 2
