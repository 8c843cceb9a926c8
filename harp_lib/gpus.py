"""How many GPUs a model takes, and whether its weights fit on them."""

import os
import subprocess
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

from harp_lib.config import NAMED_MODELS, dtype_on_cpu, slug

NEED_TWO = ("meta-llama/Llama-3.1-70B",)
"""Models whose weights no single GPU of 80 GB holds."""
QUERY = ("nvidia-smi", "--query-gpu=index,uuid,memory.free", "--format=csv,noheader,nounits")
GIB = 2**30


def gpus_of(model_slug: str) -> int:
    """How many GPUs a job on a model reserves; on a cluster, all on one node."""
    return 2 if model_slug in map(slug, NEED_TWO) else 1


def warnings_of(profile: dict[str, Any], models: Iterable[str], jobs: int) -> list[str]:
    """A warning for each of the models of a run whose weights do not fit on the GPUs it gets."""
    free = free_memory()
    if not free:
        return []
    warnings = []
    for model in models:
        if model in NAMED_MODELS:
            continue  # they are small
        number = gpus_of(slug(model))
        if jobs == 1 and model in profile["alpha_search"]["extra_models"]:
            number = len(free)  # it is spread over all of them
        with suppress(OSError, ValueError):  # no config, or none that can be counted
            others = [name for name in profile["models"] if name != model]
            weights = bytes_of_weights(model, profile["dtype"])
            warnings.append(shortage(model, weights, free, number, others))
    return [warning for warning in warnings if warning]


def check_usable(profile: dict[str, Any]) -> None:
    """Raise a ValueError if torch cannot use the GPUs of this machine, and that changes the dtype.

    ``profile`` is as ``config.read_profile`` returns it.
    """
    if dtype_on_cpu(profile) == profile["dtype"] or not free_memory():
        return
    import torch

    if torch.cuda.is_available():
        return
    try:
        torch.cuda.init()
    except (RuntimeError, AssertionError) as error:  # an old driver; a build for CPUs
        raise ValueError(
            f"torch {torch.__version__} cannot use the GPU of this machine: {error}\nUpdate its "
            "driver, or set HARP_PYTHON to an environment whose torch fits it. With "
            "CUDA_VISIBLE_DEVICES= everything is computed on the CPU."
        ) from None


def free_memory() -> list[int]:
    """Free bytes of each visible GPU; none where there is no nvidia-smi.

    CUDA itself would keep some memory of each GPU for as long as the process that asks lives.
    """
    try:
        answer = subprocess.run(QUERY, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return []
    return free_of_visible(answer, os.environ.get("CUDA_VISIBLE_DEVICES"))


def free_of_visible(answer: str, visible: str | None) -> list[int]:
    """Free bytes of each GPU that CUDA_VISIBLE_DEVICES names, of what nvidia-smi answers."""
    free = []
    for line in answer.splitlines():
        index, uuid, mebibytes = line.split(", ")
        names = [index, uuid] if visible is None else visible.split(",")
        if (index in names or uuid in names) and mebibytes.isdecimal():
            free.append(int(mebibytes) * 2**20)
    return free


def bytes_of_weights(model: str, dtype: str) -> int:
    """Bytes of a model's weights in ``dtype``, counted from its config."""
    from transformers import AutoConfig

    from harp_lib.accounting import parameters
    from harp_lib.models.load import floating_dtype

    config = AutoConfig.from_pretrained(model)
    return parameters(config) * floating_dtype(dtype).itemsize


def shortage(
    model: str, weights: int, free: Sequence[int], number: int, others: Sequence[str]
) -> str | None:
    """What is wrong, and the way out, where weights do not fit on GPUs; None where they do.

    ``weights`` are the model's bytes and ``free`` those of each GPU, of which the model gets
    ``number``, those with the least. ``others`` are the other models of the run.
    """
    given = sorted(free)[:number]
    if weights <= sum(given):
        return None
    way_out = "use larger GPUs"
    if others:
        way_out = f"leave it out by --models {','.join(others)}"
    return (
        f"warning: {model} has {weights / GIB:.0f} GiB of weights, and {len(given)} GPU with "
        f"{sum(given) / GIB:.0f} GiB free: its cells fail, or wait for weights in the machine's "
        f"memory; {way_out}"
    )
