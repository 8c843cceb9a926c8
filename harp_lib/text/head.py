"""A model's output head: logits from what its decoder returns, where that is all of the model."""

import torch
from transformers import PreTrainedModel

from harp_lib.pruning.architecture import few_tokens
from harp_lib.text.evaluating import evaluating


@torch.no_grad()
def is_decoder_and_head(model: PreTrainedModel) -> bool:
    """Whether the logits of ``model`` are its output head on its decoder's output, scaled.

    Families differ: BERT transforms the hidden states before the head, and some decoders do not
    return any. Three tokens are run through the model and through its parts.
    """
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
    return agree_to_rounding(logits, expected)


def agree_to_rounding(values: torch.Tensor, expected: torch.Tensor) -> bool:
    """Whether two computations of the same logits or hidden states agree to rounding."""
    if values.shape != expected.shape:
        return False
    if not expected.isfinite().all():
        return True  # such weights do not tell anything about the architecture
    tolerance = max(1e-5, 2 * torch.finfo(expected.dtype).eps)
    expected = expected.float()
    error = (values.float().to(expected.device) - expected).abs().max()
    return bool(error <= tolerance * expected.abs().max())


def head_logits(model: PreTrainedModel, hidden: torch.Tensor) -> torch.Tensor:
    """Logits (…, V) of a model from its decoder's output (…, d), in the model's dtype.

    Some model families scale them between output head and softmax.
    """
    logits = model.get_output_embeddings()(hidden)
    config = model.config.get_text_config()
    scale = getattr(config, "logit_scale", None)  # Cohere
    if scale is not None:
        logits = logits * scale
    divisor = getattr(config, "logits_scaling", None)  # Granite
    if divisor is not None:
        logits = logits / divisor
    cap = getattr(config, "final_logit_softcapping", None)  # Gemma-2
    if cap is not None:
        logits = cap * (logits / cap).tanh()
    return logits
