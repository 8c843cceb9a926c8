"""A pruned model as a Hugging Face folder that says how it was pruned."""

import json
import os
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psutil
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from harp_lib.models.card import CARD_FILE, model_card
from harp_lib.models.load import floating_dtype, from_pretrained
from harp_lib.models.registry import quiet
from harp_lib.models.same_outputs import check_same_outputs, comparable
from harp_lib.models.savable import check_savable
from harp_lib.pruning import remote
from harp_lib.pruning.plan import PruningPlan

PLAN_FILE = "pruning_plan.json"
# Files of weights, configs, tokenizers and code.
CHECKPOINT_SUFFIXES = {".jinja", ".json", ".md", ".model", ".py", ".safetensors", ".txt"}


def save_pruned(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase | None, path: str | Path
) -> None:
    """Write a pruned model and its tokenizer as a Hugging Face folder.

    The folder holds safetensors, config, tokenizer, the plan (``pruning_plan.json``), a model card
    (``README.md``) and the files of this library that ``trust_remote_code=True`` needs. It appears
    complete or not at all; an earlier pruned checkpoint at ``path`` is replaced.

    What was written is read back before it appears: the names and shapes in the files are those
    that loading asks for, and where a copy of the model takes less than half of the free memory,
    the copy has the same weights and computes the same from a few tokens.

    Parameters
    ----------
    model : PreTrainedModel
        A model that :func:`harp_lib.apply_plan` pruned.
    tokenizer : PreTrainedTokenizerBase, optional
        Its tokenizer, or None: the folder then holds none.
    path : str or Path
        The folder to write.

    Raises
    ------
    ValueError
        If the model is not pruned (``model.save_pretrained`` saves a dense model), if the weights
        are not all that the model is (adapters, quantization, offloading), if the generation config
        is invalid, or if the checkpoint would be loaded as another model. ``path`` is as it was
        then.
    FileExistsError
        If ``path`` holds anything but a pruned checkpoint.
    """
    check_savable(model)
    if getattr(model.config, "pruning_plan", None) is None:
        raise ValueError(
            "this model is not pruned: call apply_plan first, or save it with model.save_pretrained"
        )
    path = Path(os.path.expanduser(path)).resolve()
    if path.exists():
        _check_replaceable(path)
    with complete_or_nothing(path) as folder, quiet():
        model.save_pretrained(folder)
        if tokenizer is not None:
            tokenizer.save_pretrained(folder)
        PruningPlan.from_dict(model.config.pruning_plan).to_json(folder / PLAN_FILE)
        model_card(model, path.name, "transformers").save(folder / CARD_FILE)
        check_checkpoint(folder, model)


@contextmanager
def complete_or_nothing(path: Path) -> Iterator[Path]:
    """Context with an empty folder that becomes ``path`` at the end, in place of what is there.

    After an error ``path`` is as it was before, and nothing else is left.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=path.parent, prefix=f".{path.name}-") as temporary:
        folder = Path(temporary, "checkpoint")
        folder.mkdir()
        yield folder
        replaced = Path(temporary, "replaced")
        try:
            if path.exists():
                path.rename(replaced)
            folder.rename(path)
        except BaseException:
            if replaced.exists() and not path.exists():
                replaced.rename(path)
            raise


def _check_replaceable(path: Path) -> None:
    """Raise a FileExistsError if ``path`` holds anything but a pruned checkpoint."""
    is_checkpoint = (path / PLAN_FILE).exists()
    if not path.is_dir() or (any(path.iterdir()) and not is_checkpoint):
        raise FileExistsError(
            f"{path} exists and is not a pruned checkpoint; choose another folder"
        )
    for file in path.iterdir():
        is_foreign = file.suffix not in CHECKPOINT_SUFFIXES or file.name.startswith("adapter_")
        if is_foreign and file.name != "__pycache__":
            raise FileExistsError(
                f"{path} also holds {file.name}, which is no part of a pruned checkpoint and would "
                "be removed; move it away, or choose another folder"
            )


def check_checkpoint(folder: Path, model: PreTrainedModel) -> None:
    """Raise a ValueError if ``folder`` would be loaded as another model than ``model``.

    The names and shapes in the files have to be those that loading asks for. Where a second copy
    takes less than half of the free memory, the checkpoint is loaded, and its weights and its
    outputs for a few tokens have to be those of the model as well.
    """
    with comparable(model):
        if not _copy_fits(model):
            _load(folder, model, "meta")
            return
        loaded = _load(folder, model, getattr(model, "hf_device_map", None) or {"": model.device})
        _check_weights(loaded, model)
        check_same_outputs(loaded, model)


def _copy_fits(model: PreTrainedModel) -> bool:
    """Whether a copy takes less than half of the free memory of each device."""
    needed: Counter[torch.device] = Counter()
    for tensor in model.state_dict().values():
        needed[tensor.device] += tensor.nbytes
    for device, num_bytes in needed.items():
        free = psutil.virtual_memory().available
        if device.type == "cuda":
            free, _ = torch.cuda.mem_get_info(device)
        if num_bytes > free / 2:
            return False
    return True


def _load(folder: Path, model: PreTrainedModel, device_map: str | dict) -> PreTrainedModel:
    """Load ``folder``; a ValueError if it lacks weights or has other ones than loading asks for."""
    try:
        loaded, report = type(model).from_pretrained(
            folder,
            dtype="auto",
            device_map=device_map,
            attn_implementation=model.config._attn_implementation,
            output_loading_info=True,
        )
    except (RuntimeError, ValueError) as error:
        raise ValueError(f"what was written cannot be loaded again: {error}") from error
    unexpected = sorted(report["unexpected_keys"])
    if unexpected:
        raise ValueError(
            f"what was written cannot be loaded again: loading does not know {len(unexpected)} "
            f"weights, {unexpected[0]} for one"
        )
    return loaded.eval()


def _check_weights(loaded: PreTrainedModel, model: PreTrainedModel) -> None:
    written = loaded.state_dict()
    for name, weight in model.state_dict().items():
        # A weight that is wider than the dtype of the config is loaded in the dtype of the config.
        expected = weight.to(written[name])
        if not torch.allclose(written[name], expected, rtol=0, atol=0, equal_nan=True):
            raise ValueError(
                f"{name} is another weight when it is loaded again than the model has in memory"
            )


def load_pruned(
    path: str | Path, dtype: str = "auto", **options: Any
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase | None]:
    """Load a model, in evaluation mode, and its tokenizer from a folder of :func:`save_pruned`.

    No code from the folder is run.

    Parameters
    ----------
    path : str or Path
        The folder.
    dtype : str or torch.dtype
        As in :func:`harp_lib.load_model`; by default the dtype that was saved.
    **options
        Other options of ``from_pretrained``, such as ``device_map``. By default the model is loaded
        on the CPU. ``torch_dtype`` is the older name of ``dtype``.

    Returns
    -------
    tuple
        The model and the tokenizer, or None in its place if the folder holds none.

    Raises
    ------
    ValueError
        If the folder holds no pruned checkpoint, or lacks some of its weights.
    """
    path = os.path.expanduser(path)
    config = {}
    config_file = Path(path, "config.json")
    if config_file.is_file():
        config = json.loads(config_file.read_text(encoding="utf-8"))
    if "pruning_plan" not in config:
        raise ValueError(
            f"{path} holds no pruned checkpoint (no config.json with a pruning plan); "
            "try load_model"
        )
    model_class = getattr(remote, config["architectures"][0])
    dtype = options.pop("torch_dtype", dtype)
    return from_pretrained(path, model_class, dtype=floating_dtype(dtype), **options)
