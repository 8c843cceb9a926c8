"""Reads a pruned checkpoint back and compares it with the model that it was written from."""

import inspect
from collections import Counter
from pathlib import Path

import psutil
import torch
from transformers import PreTrainedModel

from harp_lib.models.same_logits import TOLERANCE, comparable, probe


def check_checkpoint(folder: Path, model: PreTrainedModel) -> None:
    """Raise a ValueError if ``folder`` would be loaded as another model than ``model``.

    The names and shapes in the files have to be those that loading asks for. Where a second copy
    takes less than half of the free memory, the checkpoint is loaded, and its weights and its
    outputs for a few tokens have to be those of the model as well.
    """
    with comparable(model):
        fits = _copy_fits(model)
        loaded = _load(folder, model, "meta" if not fits else None)
        if fits:
            _check_weights(loaded, model)
            _check_outputs(loaded, model)


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


def _load(folder: Path, model: PreTrainedModel, device: str | None) -> PreTrainedModel:
    """Load ``folder`` to ``device``, by default to the devices of ``model``."""
    device_map = device or getattr(model, "hf_device_map", None) or {"": model.device}
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


@torch.no_grad()
def _check_outputs(loaded: PreTrainedModel, model: PreTrainedModel) -> None:
    ids, positions = probe(model)
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    if "position_ids" in inspect.signature(type(model).forward).parameters:
        inputs["position_ids"] = positions
    batch = {name: values[None].to(model.device) for name, values in inputs.items()}
    expected = model(**batch, use_cache=False)[0].float()
    output = loaded(**batch, use_cache=False)[0].float()
    if not expected.isfinite().all():
        return  # float16 that overflows on these tokens; the weights are the same
    tolerance = max(TOLERANCE, 4 * torch.finfo(model.dtype).eps)
    error = (output - expected).norm() / expected.norm().clamp_min(1e-30)
    if not error <= tolerance:
        raise ValueError(
            f"the checkpoint computes other outputs than the model in memory: they differ by "
            f"{error:.2%} ({tolerance:.2%} is allowed), though the weights are the same. Likely a "
            "setting was changed after the model was built, a module was replaced, or a hook is "
            "set: undo that, or make the change in the config before the model is built, then save"
        )
