"""oneDNN for linear layers on a CPU, while a model is evaluated."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from transformers import PreTrainedModel

# In float32 torch calls MKL, which does not use all features of processors that are not Intel's and
# is up to twice as slow there.
ONEDNN = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")


def by_onednn(model: PreTrainedModel) -> AbstractContextManager:
    """Context in which oneDNN runs the linear layers of ``model``, if it is on a CPU."""
    return OneDNN() if ONEDNN and model.device.type == "cpu" else nullcontext()


class OneDNN(TorchFunctionMode):
    """Torch mode in which oneDNN computes linear layers on the CPU, unless a gradient is needed."""

    def __torch_function__(
        self, function: Any, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        if function is torch.nn.functional.linear and not kwargs and _suits_onednn(*args):
            return _linear_by_onednn(*args)
        return function(*args, **(kwargs or {}))


def _suits_onednn(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> bool:
    """Whether oneDNN can compute this product: float32 on the CPU, not empty, no gradient."""
    tensors = [x, weight]
    if bias is not None:
        tensors.append(bias)
    for tensor in tensors:
        # Subclasses of a tensor, such as quantized weights, have products of their own.
        if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
            return False
        if tensor.dtype != torch.float32 or tensor.device.type != "cpu" or not tensor.numel():
            return False
        if tensor.requires_grad and torch.is_grad_enabled():
            return False
    return weight.is_contiguous()


def _linear_by_onednn(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    return torch.ops.mkldnn._linear_pointwise(x.contiguous(), weight, bias, "none", [], "")
