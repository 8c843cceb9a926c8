"""Whether a model's forward pass is its decoder followed by its output head, and nothing else."""

from typing import Any
from weakref import WeakKeyDictionary

import torch
from transformers import PreTrainedConfig, PreTrainedModel

from .onednn import evaluating

# What was found out about a model, and the signature that the model had then.
_findings: WeakKeyDictionary[PreTrainedModel, tuple[tuple, bool]] = WeakKeyDictionary()


def is_decoder_and_head(model: PreTrainedModel) -> bool:
    """Whether the logits of ``model`` are its output head on its decoder's output, scaled.

    Families differ: BERT transforms the hidden states before the head, and some decoders do not
    return any. Three tokens are run through the model and through its parts when the model is seen
    for the first time, or with another forward pass than before.
    """
    signature = (
        type(model),
        id(vars(model).get("forward")),  # a reference to it would keep the model alive
        tuple(model._forward_hooks),
        tuple(model._forward_pre_hooks),
    )
    known_signature, agrees = _findings.get(model, (None, False))
    if known_signature != signature:
        agrees = _parts_agree(model)
        _findings[model] = (signature, agrees)
    return agrees


@torch.no_grad()
def _parts_agree(model: PreTrainedModel) -> bool:
    try:
        with evaluating(model):
            ids = few_tokens(model)  # (1, 3)
            decoded = model.get_decoder()(input_ids=ids, use_cache=False)
            logits = head_logits(model, decoded.last_hidden_state)  # (1, 3, V)
            expected = model(input_ids=ids, use_cache=False).logits
    except torch.OutOfMemoryError:
        raise
    except Exception:  # parts that are missing, or that want other arguments
        return False
    return same_logits(logits, expected)


def few_tokens(model: PreTrainedModel) -> torch.Tensor:
    """Three token ids (1, 3) on the model's device.

    They are from the middle of the vocabulary: token 0 is often padding, with a zero embedding.
    """
    ids = model.get_input_embeddings().num_embeddings // 2 - torch.arange(3)
    return ids[None].to(model.device)


def same_logits(logits: torch.Tensor, expected: torch.Tensor) -> bool:
    """Whether two computations of the same logits or hidden states agree to rounding."""
    if logits.shape != expected.shape:
        return False
    if not expected.isfinite().all():
        return True  # such weights do not tell anything about the architecture
    tolerance = max(1e-5, 2 * torch.finfo(expected.dtype).eps)
    expected = expected.float()
    error = (logits.float().to(expected.device) - expected).abs().max()
    return bool(error <= tolerance * expected.abs().max())


def head_logits(model: PreTrainedModel, hidden: torch.Tensor) -> torch.Tensor:
    """Logits (…, V) of a model from its decoder's output (…, d), in the model's dtype."""
    return scale_logits(model.config, model.get_output_embeddings()(hidden))


def scale_logits(config: PreTrainedConfig, logits: torch.Tensor) -> torch.Tensor:
    """Apply the scaling between output head and softmax that some model families have."""
    config = config.get_text_config()
    scale: Any = getattr(config, "logit_scale", None)  # Cohere
    if scale is not None:
        logits = logits * scale
    divisor = getattr(config, "logits_scaling", None)  # Granite
    if divisor is not None:
        logits = logits / divisor
    cap = getattr(config, "final_logit_softcapping", None)  # Gemma-2
    if cap is not None:
        logits = cap * (logits / cap).tanh()
    return logits
