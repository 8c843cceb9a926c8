"""Gate-Norm: layers ranked by their weights alone (Saikumar and Varghese, arXiv 2512.20636)."""

import torch
from transformers import PreTrainedModel

from harp_lib.pruning.architecture import decoder_layers


@torch.no_grad()
def gate_norms(model: PreTrainedModel) -> list[float]:
    r"""How strongly queries and keys of each layer are coupled, bottom to top; no text is read.

    For a query head h with projection W_Q (Dh, d), and W_K of the key head that it attends with,

    .. math:: S = \operatorname{mean}_h \lVert W_Q^\top W_K \rVert_F .

    A low score means that the attention is unimportant. The paper has as many key heads as query
    heads; here query heads that share a key head are taken one by one.
    """
    scores = []
    for layer in decoder_layers(model):
        attention = layer.self_attn
        queries = _by_head(attention.q_proj.weight, attention.head_dim)  # (H, Dh, d)
        keys = _by_head(attention.k_proj.weight, attention.head_dim)  # (K, Dh, d)
        keys = keys.repeat_interleave(len(queries) // len(keys), dim=0)  # (H, Dh, d)
        # The norm of a product (d, d) from two Gram matrices (Dh, Dh):
        # ‖W_Qᵀ W_K‖² = trace(W_Q W_Qᵀ W_K W_Kᵀ).
        query_gram = queries @ queries.mT  # (H, Dh, Dh)
        key_gram = keys @ keys.mT  # (H, Dh, Dh)
        squares = (query_gram * key_gram).sum(dim=(1, 2))  # (H,)
        scores.append(squares.sqrt().mean().item())
    return scores


def _by_head(weight: torch.Tensor, head_dim: int) -> torch.Tensor:
    """A projection (heads · Dh, d) as (heads, Dh, d), float64."""
    return weight.double().unflatten(0, (-1, head_dim))
