"""A pruned model as a Hugging Face folder that says how it was pruned."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from harp_lib.models.card import CARD_FILE, pruned_card
from harp_lib.models.load import from_pretrained
from harp_lib.models.registry import quiet
from harp_lib.pruning import remote
from harp_lib.pruning.plan import PruningPlan

PLAN_FILE = "pruning_plan.json"


def save_pruned(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, path: str | Path
) -> None:
    """Write a pruned model and its tokenizer as a Hugging Face folder.

    The folder holds safetensors, config, tokenizer, the plan (``pruning_plan.json``), a model card
    (``README.md``) and the files of this library that ``trust_remote_code=True`` needs. It appears
    complete or not at all; an earlier pruned checkpoint at ``path`` is replaced.

    Parameters
    ----------
    model : PreTrainedModel
        A model that :func:`harp_lib.apply_plan` pruned.
    tokenizer : PreTrainedTokenizerBase
        Its tokenizer.
    path : str or Path
        The folder to write.

    Raises
    ------
    ValueError
        If the model is not pruned; ``model.save_pretrained`` saves a dense model.
    FileExistsError
        If ``path`` holds anything but a pruned checkpoint.
    """
    if getattr(model.config, "pruning_plan", None) is None:
        raise ValueError(
            "this model is not pruned: call apply_plan first, or save it with model.save_pretrained"
        )
    path = Path(path).resolve()
    if path.exists() and not _is_replaceable(path):
        raise FileExistsError(
            f"{path} exists and is not a pruned checkpoint; choose another folder"
        )
    with complete_or_nothing(path) as folder, quiet():
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        PruningPlan.from_dict(model.config.pruning_plan).to_json(folder / PLAN_FILE)
        (folder / CARD_FILE).write_text(pruned_card(model, path.name), encoding="utf-8")


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
        if path.exists():
            path.rename(Path(temporary, "replaced"))
        folder.rename(path)


def _is_replaceable(path: Path) -> bool:
    """Whether ``path`` is a folder that is empty or holds a pruned checkpoint."""
    if not path.is_dir():
        return False
    return (path / PLAN_FILE).exists() or not any(path.iterdir())


def load_pruned(
    path: str | Path, dtype: str = "auto", **options: Any
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Load a model, in evaluation mode, and its tokenizer from a folder of :func:`save_pruned`.

    No code from the folder is run.

    Parameters
    ----------
    path : str or Path
        The folder.
    dtype : str
        As in ``from_pretrained``; by default the dtype that was saved.
    **options
        Other options of ``from_pretrained``, such as ``device_map``. By default the model is loaded
        on the CPU.

    Returns
    -------
    tuple
        The model and the tokenizer.

    Raises
    ------
    ValueError
        If the folder holds no pruned checkpoint, or lacks some of its weights.
    """
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
    return from_pretrained(str(path), model_class, dtype=dtype, **options)
