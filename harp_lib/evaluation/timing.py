"""How time and memory of a model are measured; ``experiments/efficiency.py`` says of what."""

import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any, TypeVar

import torch
from torch import nn
from tqdm import tqdm
from transformers import Cache, DynamicCache, PreTrainedModel

from harp_lib.pruning.architecture import decoder_layers
from harp_lib.pruning.layers import ATTENTION_PARTS, count_tokens, num_groups

T = TypeVar("T")


def interleaved(
    measurements: Mapping[str, Callable[[], T]], repetitions: int, bar: tqdm, warm_up: bool = True
) -> dict[str, list[T]]:
    """Call measurements in turn, and return the results of each, one for each repetition.

    Results at one place of two lists were measured side by side. Each repetition begins with
    another measurement than the one before and goes the other way round, so that what a measurement
    leaves behind (heat, memory) meets all of them.

    With ``warm_up``, each measurement is called once before, and the result is forgotten: the first
    call chooses kernels and asks for memory. The bar is moved after each call.
    """
    names = list(measurements)
    results: dict[str, list[T]] = {name: [] for name in names}
    first_repetition = -1 if warm_up else 0
    for repetition in range(first_repetition, repetitions):
        first = repetition % len(names)
        order = names[first:] + names[:first]
        if repetition % 2:
            order.reverse()
        for name in order:
            result = measurements[name]()
            if repetition >= 0:
                results[name].append(result)
            bar.update()
    return results


def seconds_of(run: Callable[[], Any], device: torch.device) -> float:
    """Seconds that ``run`` takes, on a GPU until the GPU is done with it."""
    begin = _now(device)
    result = run()
    seconds = _now(device) - begin
    del result  # its memory is given back after the clock has stopped
    return seconds


def module_seconds(
    model: PreTrainedModel, run: Callable[[], Any], device: torch.device
) -> dict[str, float]:
    """Seconds that ``run``, which calls ``model``, spends in each part of the model.

    Returns
    -------
    dict
        ``attention``: scores, weighted sum of values, rotary embedding and cache; ``projections``:
        Q, K, V and O; ``ffn``; ``rest``: norms, residual sums, embeddings and output head.
    """
    stamps: dict[str, list[float]] = {"attention": [], "projections": [], "ffn": []}

    def watch(part: str, module: nn.Module) -> None:
        def stamp(*_: object) -> None:
            stamps[part].append(_now(device))

        hooks.enter_context(module.register_forward_pre_hook(stamp))
        hooks.enter_context(module.register_forward_hook(stamp))

    with ExitStack() as hooks:
        for layer in decoder_layers(model):
            for name in ATTENTION_PARTS:
                projection = getattr(layer.self_attn, name, None)
                if projection is not None:
                    watch("projections", projection)
            watch("attention", layer.self_attn)
            watch("ffn", layer.mlp)
        whole = seconds_of(run, device)

    seconds = {}
    for part, times in stamps.items():
        begins = times[::2]
        ends = times[1::2]
        seconds[part] = sum(ends) - sum(begins)
    seconds["rest"] = whole - seconds["attention"] - seconds["ffn"]
    seconds["attention"] -= seconds["projections"]  # which are inside attention
    return seconds


def _now(device: torch.device) -> float:
    """A point in time, in seconds; on a GPU, once it has done what it was given so far."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


@torch.no_grad()
def prefill(model: PreTrainedModel, ids: torch.Tensor) -> Cache:
    """Read ``ids`` (1, N) as ``generate`` does: with logits of the last position alone."""
    return model(input_ids=ids, use_cache=True, logits_to_keep=1).past_key_values


@torch.no_grad()
def decode(model: PreTrainedModel, cache: Cache, ids: torch.Tensor) -> torch.Tensor:
    """Read ``ids`` (1, S) one by one after what ``cache`` holds; return the last logits (1, V)."""
    for token in ids.split(1, dim=1):
        logits = model(input_ids=token, past_key_values=cache, use_cache=True).logits
    return logits[:, -1]


def filled_cache(model: PreTrainedModel, tokens: int) -> DynamicCache:
    """A cache such as ``generate`` makes, with random keys and values of ``tokens`` tokens.

    Layers without keys only count tokens; a sliding window keeps what it would keep.
    """
    cache = DynamicCache(config=model.config)
    for index, layer in enumerate(decoder_layers(model)):
        attention = layer.self_attn
        if hasattr(attention, "k_proj"):
            shape = (1, num_groups(attention), tokens, attention.head_dim)  # (1, K, N, Dh)
            keys = torch.randn(shape, dtype=model.dtype, device=model.device)
            values = torch.randn(shape, dtype=model.dtype, device=model.device)
            cache.update(keys, values, index)
        else:
            hidden_states = torch.empty(1, tokens, 0, dtype=model.dtype, device=model.device)
            count_tokens(cache, index, hidden_states)
    return cache


def cache_bytes(cache: Cache) -> int:
    """Bytes of keys and values in a cache; a sliding window of W tokens holds the last W - 1."""
    return sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers)
