"""Made-up cells of notebook 08, from which words, tables and figures have to follow."""

import numpy as np

VARIANTS = ("dense", "harp", "harp-folded", "thinned")
WOBBLE = np.array([1.0, 1.01, 0.99])
FLOPS = dict(zip(VARIANTS, (100, 90, 88, 80), strict=True))
SHARES = {"short": (0.05, 0.06, 0.08), "long": (0.20, 0.22, 0.17)}  # of time that each pruned variant saves


def counted(**changes):
    sizes = {"removed_groups": 4, "groups": 12, "removed_fraction": 0.05, "parameters": 1000}
    layers = dict(zip(VARIANTS, (0, 2, 2, 0), strict=True))
    kv = dict(zip(VARIANTS, (60, 40, 40, 40), strict=True))
    variants = {
        name: sizes | {"layers_without_attention": layers[name], "kv_bytes_per_token": kv[name]} for name in VARIANTS
    }
    lengths, parts = [16, 64, 512], {"projections": 30, "attention": 20, "ffn": 50}
    return {
        "layers": 6,
        "whole_layers": 6,
        "random_shape": False,
        "intermediate_size": 128,
        "windows": False,
        "variants": variants,
        "lengths": lengths,
        "flops": {pairs: [parts] * len(lengths) for pairs in ("full", "causal")},
        "overtaking": {
            "full": {"attention": 192, "with_projections": 96},
            "causal": {"attention": None, "with_projections": None},
        },
        "left_out": [],
    } | changes


def times(dense, shares, noise=0.001):
    """Seconds of every variant: the machine wobbles, and each has noise of its own."""
    own = noise * np.array([[0, 0, 0], [1, -1, 0.5], [-1, 0.5, 1], [0.5, 1, -1]])
    factors = np.array([1, *(1 - share for share in shares)])[:, None]
    return dict(zip(VARIANTS, (dense * WOBBLE * factors * (1 + own)).tolist(), strict=True))


def cells_with(noise=0.001, shares=SHARES, attention=(0.4, 0.7), **changes):
    """Cells of one model: two lengths that are repeated, one that is timed once."""
    results = {"counted": counted(**changes)}
    for tokens, dense, length in ((64, 1.0, "short"), (256, 5.0, "long"), (512, 20.0, "long")):
        seconds = times(dense, shares[length], noise)
        held = {name: counted()["variants"][name]["kv_bytes_per_token"] * tokens for name in VARIANTS}
        weighed = {"cache_bytes": held, "peak_bytes": dict.fromkeys(VARIANTS, tokens * 1000)}
        if tokens == 512:
            seconds = {name: found[:1] for name, found in seconds.items()}
            weighed = {"cache_bytes": {}, "peak_bytes": {}}
        flops = {"full": FLOPS, "causal": FLOPS | {"harp": 95}}
        results[f"prefill-{tokens}"] = {"seconds": seconds, "flops": flops, **weighed}
    read = dict(zip(VARIANTS, (1000, 900, 880, 860), strict=True))
    for tokens, length in ((64, "short"), (256, "long")):
        results[f"decode-{tokens}"] = {"seconds": times(0.1, shares[length], noise), "bytes": read}
    for tokens, share in zip((64, 256), attention, strict=True):
        runs = [
            {"attention": share + by, "projections": 0.5, "ffn": 1 - share - by, "rest": 0.1}
            for by in (-noise, 0, noise)
        ]
        results[f"split-{tokens}"] = {"seconds": {"dense": runs, "harp": runs}}
    return {("tiny-llama", "all", task): {"inputs": inputs(task), "result": result} for task, result in results.items()}


def inputs(task):
    made = {"dtype": "torch.float32"}
    if task != "counted":
        tokens = int(task.split("-")[1])
        made |= {"tokens": tokens, "repetitions": 1 if tokens == 512 else 3, "steps": 4}
        made |= {"device": "CPU (x86_64)", "threads": 2}
    return made
