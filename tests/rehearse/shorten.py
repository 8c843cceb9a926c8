"""What a rehearsal and a trial have in place of a profile's values: counts and lengths.

All else is the profile's own: tasks, shots, metrics, what is null and what is empty. A rehearsal
keeps the models, too.
"""

import copy
from typing import Any

from harp_lib.config import SECTIONS_WITH_TASKS

WRITING = ("triviaqa", "gsm8k", "leaderboard_math_hard", "bbh_cot_fewshot", "longbench")
"""Benchmarks, by the beginnings of their names, whose answers are cut: a random model writes up to
the limit of tokens. NQ-Open keeps lm-eval's own limit, so that a null meets the code."""

REHEARSAL = {
    "dtype_on_cpu": "bfloat16",  # the profile's own, though there is no GPU
    "alpha_search": {"documents": 2, "held_out": [2, None]},
    "theory": {"documents": 2, "tokens": 64},
    "baselines": {
        "calibration": {
            "wanda-sp": [8, 64],
            "llm-pruner": [10, 64],
            "flap": [16, 64],
            "harp+flap": [16, 64],
            "harp+refit": [16, 64],
        },
        "cost_tokens": 4096,
    },
    "evaluation": {"subtasks": 1},
    "likelihoods": {"subtasks": 1, "context": 64},
    "ablations": {"calibration": [4, 64], "gain": [2, None], "single_layer": [2, 64]},
    "longbench": {"context": 64},
    "efficiency": {
        "prefill": {64: 2, 256: 2},
        "decode": {"contexts": [64], "steps": 2, "repetitions": 2},
        "split": [64],
    },
    "frontier": {
        "calibration": [16, 64],
        "greedy": [4, 64],
        "held_out": [3, 64],
        "passkey": {"lengths": [64, 128], "depths": 2, "keys": 1},
    },
}
SHAPE_LAYERS = 2  # of a shape with random weights; the others are as wide as the real ones
NEW_TOKENS = 2  # of an answer

OPEN_MODEL = "Qwen/Qwen2-7B"  # needs no licence
ROWS_OF_TRIAL = 2  # of each task
NEW_TOKENS_OF_TRIAL = 16  # of an answer
TRIAL = {
    "alpha_search": {"documents": 2, "held_out": [2, None], "extra_models": []},
    "theory": {"documents": 2},
    "evaluation": {"subtasks": 2},
    "likelihoods": {"subtasks": 2},
    "ablations": {"gain": [2, None], "single_layer": [2, 1024]},
    "efficiency": {
        "prefill": {1024: 2, 65536: 2},
        "decode": {"contexts": [1024, 65536], "steps": 8, "repetitions": 2},
        "split": [1024, 65536],
    },
    "frontier": {
        "calibration": [16, 512],
        "held_out": [2, 1024],
        "passkey": {"lengths": [1024, 4096], "depths": 2, "keys": 1},
    },
}


def shortened(profile: dict[str, Any]) -> dict[str, Any]:
    """A profile as it is rehearsed."""
    short = merged(profile, REHEARSAL)
    shapes = short["efficiency"]["shapes"]
    for shape in shapes.values():
        shape["layers"] = SHAPE_LAYERS
    short["dtype_of"] = dict.fromkeys(shapes, "float32")  # which is timed on every processor
    limit_answers(short, NEW_TOKENS)
    keep_one_candidate(short)
    return short


def merged(profile: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """A copy of a profile, with other values where ``changes`` has them.

    A section is merged entry by entry, but for one whose keys are lengths.
    """
    changed = copy.deepcopy(profile)
    for key, value in changes.items():
        if isinstance(value, dict) and all(isinstance(name, str) for name in value):
            changed[key] = merged(profile[key], value)
        else:
            changed[key] = value
    return changed


def limit_answers(profile: dict[str, Any], new_tokens: int) -> None:
    """Cut written answers, in every section."""
    for section in SECTIONS_WITH_TASKS:
        for name, task in profile[section]["tasks"].items():
            if name.startswith(WRITING) and "new_tokens" in task:
                task["new_tokens"] = new_tokens


def keep_one_candidate(profile: dict[str, Any]) -> None:
    """Leave the baselines one length of layer ranges: the one with the fewest ranges."""
    baselines = profile["baselines"]
    for model, groups in baselines["groups_per_layer"].items():
        baselines["groups_per_layer"][model] = groups[:1]
    for model, lengths in baselines["flap_layers"].items():
        baselines["flap_layers"][model] = lengths[-1:]


def tried(profile: dict[str, Any]) -> dict[str, Any]:
    """A profile as it is tried on the real hub: few rows and documents of one model."""
    short = merged(profile, TRIAL)
    model = OPEN_MODEL if OPEN_MODEL in profile["models"] else profile["models"][0]
    short["models"] = [model]
    for section in SECTIONS_WITH_TASKS:
        for task in short[section]["tasks"].values():
            task["rows"] = ROWS_OF_TRIAL
    limit_answers(short, NEW_TOKENS_OF_TRIAL)
    keep_one_candidate(short)
    return short
