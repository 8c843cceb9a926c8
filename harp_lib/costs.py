"""What a run costs before it runs: seconds of each cell, measured or counted, and what the paper profile needs."""

import json
from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

import pandas as pd

from harp_lib import paths
from harp_lib.expected_cells import NOTEBOOK_OF, expected_cells, experiment_models
from harp_lib.measure.models import display_name, slug

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

    from harp_lib.counted_costs import GpuModel

COUNTED = "paper"  # the profile that is counted: for GPUs like the paper's
GIB = 2**30


class Estimate(NamedTuple):
    """Seconds of one cell, None where nobody knows, and where they are from.

    ``measured`` is what the same cell of the same profile took in this checkout or in the reference run, on whatever
    device that was, with as many rows, examples and new tokens; ``counted`` is explained in
    :mod:`harp_lib.counted_costs`; else ``unknown``.
    """

    seconds: float | None
    source: str


UNKNOWN = Estimate(None, "unknown")


def cell_seconds(profile: dict[str, Any], experiment: str, model: str) -> dict[tuple[str, str], Estimate]:
    """What each cell of a model costs, if it is computed.

    Parameters
    ----------
    profile, experiment, model
        As in :func:`harp_lib.expected_cells.expected_cells`.

    Returns
    -------
    dict
        By method and task. Scores that notebook 06 copies from notebook 05 cost nothing.
    """
    counted = {}
    if profile["name"] == COUNTED:
        from harp_lib.counted_costs import counted_seconds

        counted = counted_seconds(profile, experiment, model)
    estimates = {}
    for method, task in expected_cells(profile, experiment, model):
        seconds = _measured(profile, experiment, model, method, task)
        if _is_copy(profile, experiment, method, task):
            estimates[method, task] = Estimate(0.0, "counted")
        elif seconds is not None:
            estimates[method, task] = Estimate(seconds, "measured")
        elif (method, task) in counted:
            estimates[method, task] = Estimate(counted[method, task], "counted")
        else:
            estimates[method, task] = UNKNOWN
    return estimates


def _measured(profile: dict[str, Any], experiment: str, model: str, method: str, task: str) -> float | None:
    section = profile["longbench" if experiment == "longbench" else "evaluation"]
    asked = section["tasks"].get(task, {}).items()  # of a benchmark: its rows, say, which may have been limited
    for root in (paths.RESULTS, paths.REFERENCE):
        file = root / profile["name"] / experiment / slug(model) / method / f"{task}.json"
        try:
            cell = json.loads(file.read_text(encoding="utf-8"))
            alike = all(cell["inputs"].get(name, value) == value for name, value in asked)
            if alike and "failed" not in cell["result"]:
                return cell["seconds"]
        except (OSError, ValueError, KeyError, TypeError):  # not there, or not whole
            continue
    return None


def _is_copy(profile: dict[str, Any], experiment: str, method: str, task: str) -> bool:
    if experiment != "ablations":
        return False
    from harp_lib.experiments.ablation_study import SHARED

    return method in SHARED and task in profile["evaluation"]["tasks"]


def full_size() -> pd.DataFrame:
    """What each notebook of the paper profile needs, counted.

    Returns
    -------
    DataFrame
        One row for each notebook. ``models``: how many, and which takes most memory. ``cells``. ``GPU memory (GiB)``:
        of that model, as :func:`memory_bytes` counts it. ``GPU hours``: of all models on one GPU like the paper's, if
        every written answer is as long as it may get; nan where not all cells are counted. ``what dominates``: the
        largest part of the hours, or how many cells are not counted.
    """
    from harp_lib.counted_costs import counted_seconds, gpu_model
    from harp_lib.profiles import load_profile

    profile, rows = load_profile(COUNTED), []
    for notebook in dict.fromkeys(NOTEBOOK_OF.values()):
        parts: Counter[str] = Counter()
        memory: dict[str, float] = {}
        cells = uncounted = 0
        for experiment in (name for name, number in NOTEBOOK_OF.items() if number == notebook):
            for model in experiment_models(profile, experiment):
                expected = expected_cells(profile, experiment, model)
                found = counted_seconds(profile, experiment, model)
                cells, uncounted = cells + len(expected), uncounted + len(expected) - len(found)
                for (_, task), seconds in found.items():
                    parts[_part(task)] += seconds
                if gpu := gpu_model(model):
                    memory[model] = memory_bytes(profile, notebook, gpu) / GIB
        largest = max(memory, key=memory.get)
        rows.append(
            {
                "notebook": notebook,
                "models": f"{len(memory)}, the largest {display_name(largest)}" if len(memory) > 1 else largest,
                "cells": cells,
                "GPU memory (GiB)": memory[largest],
                "GPU hours": float("nan") if uncounted else parts.total() / 3600,
                "what dominates": f"{uncounted} of {cells} cells are not counted" if uncounted else _dominating(parts),
            }
        )
    return pd.DataFrame(rows)


def _part(task: str) -> str:
    """What a cell's seconds go into, in words."""
    from harp_lib.measure.benchmarks import ALL_BENCHMARKS, LONGBENCH

    if task in ALL_BENCHMARKS:
        benchmark = ALL_BENCHMARKS[task]
        title = f"{benchmark.title}{' of LongBench' if task in LONGBENCH else ''}"
        return title if benchmark.choices else f"answers to {title}"
    words = {"search": "search for α", "range": "layer ranges", "prefill": "reading", "split": "reading"}
    words |= {"decode": "decoding", "document": "layers one by one", "selection": "layer selection"}
    return words.get(task.split("-")[0], "perplexities and plans")


def _dominating(parts: Counter[str]) -> str:
    name, seconds = parts.most_common(1)[0]
    return f"{name}: {seconds / parts.total():.0%} of the hours"


def memory_bytes(profile: dict[str, Any], notebook: str, gpu: "GpuModel") -> int:
    """Bytes on the GPU that a notebook takes with one model.

    Parameters
    ----------
    profile : dict
        From :func:`harp_lib.profiles.load_profile`.
    notebook : str
        A value of ``NOTEBOOK_OF``.
    gpu : GpuModel
        Of :mod:`harp_lib.counted_costs`.

    Returns
    -------
    int
        Weights in bfloat16 (twice in 01, which has an untrained twin) and, of what is beside them, the largest: the
        attention of one layer in float64 as matrix, centred and squared (01, 02); activations (02, 03, 04, and beside
        caches 07 and 08); float32 gradients of the attention (04, 06); logits of a batch and their logarithms, or its
        KV cache (05, 06); the KV cache (07), one for each variant and one that grows (08).
    """
    from harp_lib.experiments.efficiency_variants import VARIANTS
    from harp_lib.accounting import layer_flops
    from harp_lib.measure.likelihood import TOKENS_PER_BATCH

    config = gpu.config
    read = max(TOKENS_PER_BATCH, min(profile["alpha_search"]["context"], config.max_position_embeddings))
    attention = 3 * 8 * config.num_attention_heads * (profile["theory"]["tokens"] + 1) ** 2
    gradients = 4 * gpu.num_layers * layer_flops(config, 1).projections // 2
    scored = _largest_batch(profile, gpu) if notebook in ("05", "06") else 0
    longbench, longest = profile["longbench"], max(profile["efficiency"]["prefill"])
    beside = {
        "01": gpu.weight_bytes + attention,
        "02": max(attention, _activations(config, read)),
        "03": _activations(config, read),
        "04": max(gradients, _activations(config, read)),
        "05": scored,
        "06": max(gradients, scored),
        "07": longbench["batch_size"] * longbench["context"] * gpu.cache_bytes
        + _activations(config, longbench["context"]),
        "08": longest * gpu.cache_bytes * (len(VARIANTS) + 1) + _activations(config, longest),
    }
    return gpu.weight_bytes + beside[notebook]


def _activations(config: "PreTrainedConfig", tokens: int) -> int:
    """Bytes of what one layer holds at a time, for one text.

    In the FFN three tensors of its width and four of the model's. Or in attention, where scores are capped (Gemma-2)
    and so computed whole: in bfloat16, as float32 probabilities, and in bfloat16 again.
    """
    scores = 8 * config.num_attention_heads * tokens**2 if getattr(config, "attn_logit_softcapping", None) else 0
    return max(scores, 2 * tokens * (3 * config.intermediate_size + 4 * config.hidden_size))


def _largest_batch(profile: dict[str, Any], gpu: "GpuModel") -> int:
    """Bytes of the longest batch of questions: logits of all its tokens, cache of prompts and answers, activations."""
    from harp_lib.counted_costs import question_tokens
    from harp_lib.measure.benchmarks import ALL_BENCHMARKS

    batch, sizes = profile["evaluation"]["batch_size"], []
    for task in profile["evaluation"]["tasks"]:
        row = question_tokens().loc[task]
        per_token = 2 * 2 * gpu.config.vocab_size if ALL_BENCHMARKS[task].choices else gpu.cache_bytes
        tokens = int(row["longest_text"])
        sizes += [batch * (tokens + int(row["answer_tokens"])) * per_token, batch * _activations(gpu.config, tokens)]
    return max(sizes)
