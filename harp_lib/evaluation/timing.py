"""How long a model takes and how much memory: what is measured, and how; the experiment is
elsewhere.
"""

import copy
import ctypes
import re
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeVar

import torch
from tqdm import tqdm
from transformers import Cache, DynamicCache, PreTrainedModel

from harp_lib.pruning.architecture import decoder_layers
from harp_lib.pruning.layers import ATTENTION_PARTS, count_tokens, num_groups

T = TypeVar("T")


def interleaved(
    measurements: Mapping[str, Callable[[], T]], repetitions: int, bar: tqdm, warm_up: bool = True
) -> dict[str, list[T]]:
    """Results by name, measured in turn: what stands at one place in two lists was measured side by
    side.

    Each repetition calls every measurement once, begins with another one than the last and goes the
    other way round, so that what one leaves behind (heat, memory) meets them all. ``warm_up`` calls
    every one once before and forgets the result: the first call chooses kernels and asks for
    memory.
    """
    names = list(measurements)
    results: dict[str, list[T]] = {name: [] for name in names}
    for repetition in range(-int(warm_up), repetitions):
        first = repetition % len(names)
        order = names[first:] + names[:first]
        for name in reversed(order) if repetition % 2 else order:
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
    del result  # whose memory is given back after the clock has stopped
    return seconds


def module_seconds(
    model: PreTrainedModel, run: Callable[[], Any], device: torch.device
) -> dict[str, float]:
    """Seconds that ``run``, which calls ``model``, spends in each part of it.

    ``attention`` is scores, weighted sum of values, rotary embedding and cache; ``projections`` Q,
    K, V and O; ``rest`` norms, residual sums, embeddings and output head.
    """
    stamps: dict[str, list[float]] = {"attention": [], "projections": [], "ffn": []}
    with ExitStack() as hooks:
        for layer in decoder_layers(model):
            inner = [getattr(layer.self_attn, name, None) for name in ATTENTION_PARTS]
            timed = [("projections", module) for module in inner if module is not None]
            for part, module in (*timed, ("attention", layer.self_attn), ("ffn", layer.mlp)):

                def stamp(*_: object, part: str = part) -> None:
                    stamps[part].append(_now(device))

                hooks.enter_context(module.register_forward_pre_hook(stamp))
                hooks.enter_context(module.register_forward_hook(stamp))
        whole = seconds_of(run, device)
    parts = {part: sum(marks[1::2]) - sum(marks[::2]) for part, marks in stamps.items()}
    rest = whole - parts["attention"] - parts["ffn"]
    return parts | {"attention": parts["attention"] - parts["projections"], "rest": rest}


def _now(device: torch.device) -> float:
    """A point in time, in seconds: on a GPU, after it has done what it was given so far."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


@torch.no_grad()
def prefill(model: PreTrainedModel, ids: torch.Tensor) -> Cache:
    """Read ``ids`` (1, N) as ``generate`` does before the first new token, with logits of the last
    position alone.
    """
    return model(input_ids=ids, use_cache=True, logits_to_keep=1).past_key_values


@torch.no_grad()
def decode(model: PreTrainedModel, cache: Cache, ids: torch.Tensor) -> torch.Tensor:
    """Read ``ids`` (1, S) one by one after what ``cache`` holds, as they would be generated: the
    last logits (1, V).
    """
    for token in ids.split(1, dim=1):
        logits = model(input_ids=token, past_key_values=cache, use_cache=True).logits
    return logits[:, -1]


def filled_cache(model: PreTrainedModel, tokens: int) -> DynamicCache:
    """A cache of the kind that ``generate`` makes, filled with random keys and values of so many
    tokens.

    Layers without keys count tokens only; a sliding window keeps what it would keep.
    """
    cache, place = DynamicCache(config=model.config), {"dtype": model.dtype, "device": model.device}
    for index, layer in enumerate(decoder_layers(model)):
        attention = layer.self_attn
        if hasattr(attention, "k_proj"):
            shape = (1, num_groups(attention), tokens, attention.head_dim)  # (1, K, N, Dh)
            cache.update(torch.randn(shape, **place), torch.randn(shape, **place), index)
        else:
            count_tokens(cache, index, torch.empty(1, tokens, 0, **place))
    return cache


def continued(cache: DynamicCache) -> DynamicCache:
    """A cache that begins with what ``cache`` holds and leaves it as it is: new tokens make new
    tensors.
    """
    twin = copy.copy(cache)
    twin.layers = [copy.copy(layer) for layer in cache.layers]
    return twin


def cache_bytes(cache: Cache) -> int:
    """Bytes of the keys and values in a cache; a sliding window of W tokens refers to the last W -
    1.
    """
    return sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers)


def peak_memory(run: Callable[[], T], device: torch.device) -> tuple[T, int | None]:
    """What ``run`` returns, and how many bytes it has at most beyond those in use before.

    On a GPU, of tensors. Elsewhere of the whole process, in resident memory, which Linux alone
    tells; else None.
    """
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        result = run()
        return result, torch.cuda.max_memory_allocated(device) - before
    try:
        ctypes.CDLL(None).malloc_trim(
            0
        )  # what was freed before would be used again, and not be seen
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # the peak begins anew
        before = _resident("VmRSS")
    except (AttributeError, OSError, TypeError):  # another C library, another system
        return run(), None
    result = run()
    return result, _resident("VmHWM") - before


def _resident(field: str) -> int:
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return 1024 * int(re.search(rf"^{field}:\s+(\d+) kB$", status, re.MULTILINE).group(1))
