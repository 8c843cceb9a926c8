"""A pruned model as a Hugging Face folder that says how it was pruned."""

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from harp_lib.models.load import from_pretrained
from harp_lib.models.registry import quiet
from harp_lib.pruning import remote
from harp_lib.pruning.plan import PruningPlan

PLAN_FILE = "pruning_plan.json"


def save_pruned(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, path: str | Path
) -> None:
    """Write a model that :func:`harp_lib.apply_plan` pruned, and its tokenizer, as a Hugging Face
    folder.

    The folder holds safetensors, config, tokenizer, the plan (``pruning_plan.json``) and the files
    of this library that ``trust_remote_code=True`` needs. It appears complete or not at all; an
    earlier pruned checkpoint at ``path`` is replaced.

    Raises
    ------
    ValueError
        If the model is not pruned: ``model.save_pretrained`` does for it.
    FileExistsError
        If ``path`` holds something else than a pruned checkpoint.
    """
    if getattr(model.config, "pruning_plan", None) is None:
        raise ValueError(
            "this model is not pruned: call apply_plan first, or save it with model.save_pretrained"
        )
    path = Path(path).resolve()
    if path.exists() and not (
        path.is_dir() and ((path / PLAN_FILE).exists() or not any(path.iterdir()))
    ):
        raise FileExistsError(
            f"{path} exists and is not a pruned checkpoint; choose another folder"
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=path.parent, prefix=f".{path.name}-") as temporary, quiet():
        folder = Path(temporary, "checkpoint")
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        PruningPlan.from_dict(model.config.pruning_plan).to_json(folder / PLAN_FILE)
        if path.exists():
            path.rename(Path(temporary, "replaced"))
        folder.rename(path)


def load_pruned(
    path: str | Path, dtype: str = "auto", **options: Any
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Load the model, in evaluation mode, and the tokenizer that :func:`save_pruned` wrote; no code
    of the folder runs.

    ``dtype`` and other options, as ``device_map``, go to ``from_pretrained``: by default the dtype
    that was saved, on the CPU. A ValueError says that the folder holds no pruned checkpoint, or not
    all of its weights.
    """
    config_file = Path(path, "config.json")
    config = json.loads(config_file.read_text(encoding="utf-8")) if config_file.is_file() else {}
    if "pruning_plan" not in config:
        raise ValueError(
            f"{path} holds no pruned checkpoint (no config.json with a pruning plan); try load_model"
        )
    return from_pretrained(
        str(path), getattr(remote, config["architectures"][0]), dtype=dtype, **options
    )
