"""Whether a copy of a model computes the same as the model."""

import inspect
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from transformers import PreTrainedModel

from harp_lib.pruning.architecture import evaluation_mode

NUM_TOKENS = 16
# Relative error of outputs in float32. A norm's epsilon of 1e-5 in place of 1e-6 is eight times as
# much in a small random model.
TOLERANCE = 1e-4


@contextmanager
def comparable(model: PreTrainedModel) -> Iterator[None]:
    """Context in evaluation mode without autocast, with an attention function for any dtype."""
    attention_function = model.config._attn_implementation
    with evaluation_mode(model), torch.autocast(model.device.type, enabled=False):
        if attention_function not in ("eager", "sdpa"):
            model.config._attn_implementation = "sdpa"
        try:
            yield
        finally:
            model.config._attn_implementation = attention_function


def check_same_outputs(copy: PreTrainedModel, model: PreTrainedModel) -> None:
    """Raise a ValueError if ``copy``, which has the same weights, puts out something else.

    Both read the same few tokens, at positions that are far apart.
    """
    expected = _outputs(model)
    if not expected.isfinite().all():
        return  # float16 that overflows on these tokens
    tolerance = max(TOLERANCE, 4 * torch.finfo(model.dtype).eps)
    error = relative_error(_outputs(copy), expected)
    if not error <= tolerance:
        raise ValueError(
            f"what is saved computes other outputs than the model in memory: they differ by "
            f"{error:.2%} ({tolerance:.2%} is allowed), though the weights are the same. Likely a "
            "setting was changed after the model was built, a module was replaced, or a hook is "
            "set: undo that, or make the change in the config before the model is built, then save"
        )


def relative_error(output: torch.Tensor, expected: torch.Tensor) -> float:
    """Norm of the difference, relative to the norm of ``expected``."""
    return ((output - expected).norm() / expected.norm().clamp_min(1e-30)).item()


@torch.no_grad()
def _outputs(model: PreTrainedModel) -> torch.Tensor:
    """What ``model`` puts out for a few tokens, without their batch, in float32 on the CPU."""
    ids, positions = _probe(model)
    # Without a mask, positions that are far apart would be taken for several texts.
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    if "position_ids" in inspect.signature(type(model).forward).parameters:
        inputs["position_ids"] = positions
    batch = {name: values[None].to(model.device) for name, values in inputs.items()}
    return model(**batch, use_cache=False)[0][0].float().cpu()


def _probe(model: PreTrainedModel) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens (N,) from all over the vocabulary, and positions (N,) with growing distances."""
    num_embeddings = model.get_input_embeddings().num_embeddings
    # Token 0 is often padding; a token that comes again gives attention something to look at.
    ids = torch.arange(1, NUM_TOKENS + 1) * (num_embeddings - 1) // NUM_TOKENS
    ids[NUM_TOKENS // 2 :: 2] = ids[: NUM_TOKENS // 2 : 2]
    positions = torch.arange(NUM_TOKENS)
    longest = getattr(model.config, "max_position_embeddings", NUM_TOKENS)
    step = min(4, longest // NUM_TOKENS**2)
    if step > 0:
        positions = step * positions.pow(2)
    return ids, positions
