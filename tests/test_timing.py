"""Timing for notebook 08: order, hooks, caches, bytes. No test depends on the machine's speed."""

import pytest
import torch
from helpers import PLANS, ROUNDING, pruned
from torch import nn

from harp_lib.evaluation import timing
from harp_lib.evaluation.timing import (
    cache_bytes,
    decode,
    filled_cache,
    interleaved,
    module_seconds,
    prefill,
)
from harp_lib.prefix_lm.cache import continued

CPU = torch.device("cpu")


class Bar:
    """A progress bar that counts."""

    moves = 0

    def update(self):
        self.moves += 1


def test_each_repetition_begins_with_another():
    calls = []
    bar = Bar()

    def measurement(name):
        def measure():
            calls.append(name)
            return name, len(calls)

        return measure

    results = interleaved({name: measurement(name) for name in "abc"}, 4, bar)
    assert calls[:3] == list("bac"), "the warm-up"
    assert calls[3:] == list("abc" + "acb" + "cab" + "cba")
    assert bar.moves == len(calls) == 15
    assert list(results) == ["a", "b", "c"]
    for name, of_name in results.items():
        assert [result[0] for result in of_name] == [name] * 4
    for (_, first), (_, second) in zip(results["a"], results["b"], strict=True):
        assert abs(first - second) < 3, "measured in the same repetition"


class Clock:
    """A clock that goes on only when it is told to."""

    now = 0.0

    def perf_counter(self):
        return self.now


class TakesTime(nn.Module):
    """A module that returns its input some seconds later."""

    def __init__(self, seconds, clock):
        super().__init__()
        self.seconds = float(seconds)
        self.clock = clock

    def forward(self, x):
        self.clock.now += self.seconds
        return x


def delayed(seconds, clock, run):
    """``run``, some seconds later."""

    def run_later(*args, **kwargs):
        clock.now += seconds
        return run(*args, **kwargs)

    return run_later


def test_module_times_are_those_of_the_modules(tiny, tokens, monkeypatch):
    model = tiny()
    clock = Clock()
    monkeypatch.setattr(timing, "time", clock)
    for layer in model.model.layers:
        attention = layer.self_attn
        layer.mlp.act_fn = nn.Sequential(layer.mlp.act_fn, TakesTime(2, clock))
        attention.o_proj = nn.Sequential(attention.o_proj, TakesTime(3, clock))
        attention.forward = delayed(7, clock, attention.forward)
    model.model.norm = nn.Sequential(model.model.norm, TakesTime(5, clock))
    seconds = module_seconds(model, lambda: prefill(model, tokens[:1]), CPU)
    assert seconds == {"attention": 6 * 7, "projections": 6 * 3, "ffn": 6 * 2, "rest": 5}
    assert not modules_with_hooks(model)


def modules_with_hooks(model):
    return [
        module for module in model.modules() if module._forward_hooks or module._forward_pre_hooks
    ]


def test_a_prefill_computes_one_position(tiny, tokens):
    model = tiny()
    shapes = []
    model.lm_head.register_forward_hook(lambda module, inputs, output: shapes.append(output.shape))
    cache = prefill(model, tokens[:1])
    assert shapes == [(1, 1, 512)]
    assert cache.get_seq_length() == 48
    assert not any(layer.keys.requires_grad for layer in cache.layers)


@pytest.mark.parametrize(
    ("family", "plan"), [("tiny-llama", "dense"), *(("tiny-gemma2", plan) for plan in PLANS)]
)
def test_a_filled_cache_is_like_that_of_a_prefill(tiny, tokens, family, plan):
    """The same entries and shapes, and tokens that come after it are placed and masked right."""
    model = pruned(tiny, family, plan)
    ids = tokens[:1]
    filled = filled_cache(model, 48)
    real = prefill(model, ids)
    for filled_layer, real_layer in zip(filled.layers, real.layers, strict=True):
        assert type(filled_layer) is type(real_layer)
        assert filled_layer.keys.shape == real_layer.keys.shape
        assert filled_layer.values.shape == real_layer.values.shape
    assert filled.get_seq_length() == 48
    assert cache_bytes(filled) == cache_bytes(real)

    next_ids = ids[:, :5]
    with torch.no_grad():
        output = model(next_ids, past_key_values=continued(filled), use_cache=True)
    one_by_one = decode(model, continued(filled), next_ids)
    torch.testing.assert_close(one_by_one, output.logits[:, -1], **ROUNDING)


def test_every_repetition_begins_with_the_same_cache(tiny, tokens):
    model = pruned(tiny, "tiny-gemma2", "first value-only")
    filled = filled_cache(model, 40)
    keys_before = [layer.keys.clone() for layer in filled.layers]
    first = decode(model, continued(filled), tokens[:1, :4])
    assert filled.get_seq_length() == 40
    for layer, keys in zip(filled.layers, keys_before, strict=True):
        assert torch.equal(layer.keys, keys)
    assert torch.equal(decode(model, continued(filled), tokens[:1, :4]), first)
