"""The harness of notebook 08: order, hooks, caches and bytes. No test depends on how fast the
machine is.
"""

from types import SimpleNamespace

import pytest
import torch

from harp_lib import PruningPlan, apply_plan
from harp_lib.evaluation import timing
from harp_lib.evaluation.timing import (
    cache_bytes,
    continued,
    decode,
    filled_cache,
    interleaved,
    module_seconds,
    peak_memory,
    prefill,
)
from harp_lib.pruning.plan import LayerPlan

CPU = torch.device("cpu")
PLANS = {
    "dense": {},
    "value-only": {5: LayerPlan(0.8), 4: LayerPlan(0.0)},
    "first value-only": {0: LayerPlan(0.5), 3: LayerPlan(0.5)},
    "thinned": {
        0: LayerPlan(removed_groups=(0,)),
        2: LayerPlan(removed_groups=(0, 1)),
        3: LayerPlan(removed_groups=(1,)),
    },
}
FAMILIES = ("tiny-llama", "tiny-qwen2", "tiny-gemma2")


class Bar:
    moves = 0

    def update(self):
        self.moves += 1


def test_each_repetition_begins_with_another():
    calls, bar = [], Bar()

    def measurement(name):
        return lambda: calls.append(name) or (name, len(calls))

    found = interleaved({name: measurement(name) for name in "abc"}, 4, bar)
    assert calls[:3] == list("bac"), "the warm-up"
    assert calls[3:] == list("abc" + "acb" + "cab" + "cba")
    assert bar.moves == len(calls) == 15
    assert {name: len(results) for name, results in found.items()} == dict.fromkeys("abc", 4)
    for name, results in found.items():
        assert all(result[0] == name for result in results)
    first, second = ([place for _, place in found[name]] for name in "ab")
    assert all(abs(one - other) < 3 for one, other in zip(first, second, strict=True)), (
        "one repetition, side by side"
    )


def test_module_times_are_those_of_the_modules(tiny, tokens, monkeypatch):
    model, clock = tiny(), SimpleNamespace(now=0.0)
    monkeypatch.setattr(timing, "time", SimpleNamespace(perf_counter=lambda: clock.now))
    for layer in model.model.layers:
        layer.mlp.act_fn = torch.nn.Sequential(layer.mlp.act_fn, Takes(2, clock))
        layer.self_attn.o_proj = torch.nn.Sequential(layer.self_attn.o_proj, Takes(3, clock))
        layer.self_attn.forward = after(7, clock, layer.self_attn.forward)
    model.model.norm = torch.nn.Sequential(model.model.norm, Takes(5, clock))
    parts = module_seconds(model, lambda: prefill(model, tokens[:1]), CPU)
    assert parts == {"attention": 6 * 7, "projections": 6 * 3, "ffn": 6 * 2, "rest": 5}
    assert not hooks(model)


class Takes(torch.nn.Module):
    """Some seconds of a clock pass in it."""

    def __init__(self, seconds, clock):
        super().__init__()
        self.seconds, self.clock = float(seconds), clock

    def forward(self, x):
        self.clock.now += self.seconds
        return x


def after(seconds, clock, run):
    """``run``, some seconds of a clock later."""

    def late(*args, **kwargs):
        clock.now += seconds
        return run(*args, **kwargs)

    return late


def hooks(model):
    return [
        module for module in model.modules() if module._forward_hooks or module._forward_pre_hooks
    ]


def pruned(tiny, family, which):
    model = tiny(family)
    return apply_plan(model, PruningPlan(6, PLANS[which])) if PLANS[which] else model


def test_a_prefill_computes_one_position(tiny, tokens):
    model, shapes = tiny(), []
    model.lm_head.register_forward_hook(lambda module, inputs, output: shapes.append(output.shape))
    cache = prefill(model, tokens[:1])
    assert shapes == [(1, 1, 512)]
    assert cache.get_seq_length() == 48
    assert not any(layer.keys.requires_grad for layer in cache.layers)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("which", PLANS)
def test_a_filled_cache_is_like_that_of_a_prefill(tiny, tokens, family, which):
    """The same entries and shapes, and tokens that come after it are placed and masked right."""
    model, ids = pruned(tiny, family, which), tokens[:1]
    filled, real = filled_cache(model, 48), prefill(model, ids)
    assert [type(layer) for layer in filled.layers] == [type(layer) for layer in real.layers]
    assert [layer.keys.shape for layer in filled.layers] == [
        layer.keys.shape for layer in real.layers
    ]
    assert [layer.values.shape for layer in filled.layers] == [
        layer.values.shape for layer in real.layers
    ]
    assert filled.get_seq_length() == 48
    assert cache_bytes(filled) == cache_bytes(real)
    with torch.no_grad():
        at_once = model(ids[:, :5], past_key_values=continued(filled), use_cache=True).logits[:, -1]
    torch.testing.assert_close(
        decode(model, continued(filled), ids[:, :5]), at_once, atol=2e-5, rtol=1e-4
    )


@pytest.mark.parametrize("family", FAMILIES)
def test_every_repetition_begins_with_the_same_cache(tiny, tokens, family):
    model = pruned(tiny, family, "value-only")
    filled = filled_cache(model, 40)
    kept = [layer.keys.clone() for layer in filled.layers]
    first = decode(model, continued(filled), tokens[:1, :4])
    assert filled.get_seq_length() == 40
    assert all(
        torch.equal(layer.keys, keys) for layer, keys in zip(filled.layers, kept, strict=True)
    )
    assert torch.equal(decode(model, continued(filled), tokens[:1, :4]), first)


def test_the_peak_counts_what_was_freed_again():
    result, peak = peak_memory(lambda: torch.ones(2**24).sum().item(), CPU)
    assert result == 2**24
    if peak is None:
        pytest.skip("this system does not tell the peak of resident memory")
    assert peak > 60 * 2**20, "64 MiB of numbers; the kernel counts resident pages roughly"
