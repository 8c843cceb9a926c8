"""Sweeps over synthetic matrices: when attention becomes uniform, and what averaging does to the norm."""

import math

import pandas as pd
import torch
from torch import Tensor
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

from harp_lib import theory

TOKENS, WIDTH = 64, 64  # of the sweeps


def attention(H: Tensor, W_Q: Tensor, W_K: Tensor, rotary: bool = False, causal: bool = True) -> Tensor:
    """Attention weights of one head (appendix, proof of Theorem 1): softmax of q·k / √d_k over what is visible.

    Parameters
    ----------
    H : Tensor (..., N, d)
    W_Q, W_K : Tensor (d, d_k)
    rotary : bool
        Turn queries and keys by their position first, as the paper's four models do (base 10,000).
    causal : bool
        Let token i see positions 0 … i only.

    Returns
    -------
    Tensor (..., N, N)
    """
    queries, keys = H @ W_Q, H @ W_K
    tokens, width = queries.shape[-2:]
    if rotary:
        config = LlamaConfig(head_dim=width, max_position_embeddings=tokens)
        cos, sin = LlamaRotaryEmbedding(config)(H, torch.arange(tokens)[None])
        queries, keys = (
            x.squeeze(1) for x in apply_rotary_pos_emb(queries[..., None, :, :], keys[..., None, :, :], cos, sin)
        )
    logits = queries @ keys.mT / math.sqrt(width)
    if causal:
        logits = logits.masked_fill(torch.ones(tokens, tokens, dtype=torch.bool).triu(1), -torch.inf)
    return logits.softmax(-1)


def nearly_parallel_rows(spread: float, equal_lengths: bool, generator: torch.Generator) -> Tensor:
    """Rows (N, d) around one direction, further from it with ``spread``; of length √d, or of very different lengths."""
    H = torch.randn(WIDTH, generator=generator) + spread * torch.randn(TOKENS, WIDTH, generator=generator)
    H = math.sqrt(WIDTH) * H / H.norm(dim=-1, keepdim=True)
    return H if equal_lengths else H * torch.exp(0.7 * torch.randn(TOKENS, 1, generator=generator))


def uniformity_sweep(draws: int, seed: int) -> pd.DataFrame:
    """Normalised entropy of random heads while Sim(H) → 1: lengths, positions, draw, spread, similarity, entropy."""
    visible, rows = theory.visible_positions(TOKENS), []
    for draw in range(draws):
        W_Q, W_K = 2 * torch.randn(2, WIDTH, WIDTH, generator=_seeded(seed, draw)) / math.sqrt(WIDTH)
        for spread in torch.logspace(-3, 0.5, 15).tolist():
            for equal in (True, False):
                H = nearly_parallel_rows(spread, equal, _seeded(seed, draw, 1))
                for rotary in (False, True):
                    entropy = theory.attention_entropies(attention(H, W_Q, W_K, rotary), visible).item()
                    rows.append((equal, rotary, draw, spread, theory.similarity(H), entropy))
    return pd.DataFrame(rows, columns=["equal lengths", "rotary", "draw", "spread", "similarity", "entropy"])


def norm_sweep(draws: int, seed: int) -> pd.DataFrame:
    """‖AH‖/‖H‖ from one-hot rows to uniform ones: mask, rows of H, draw, temperature, entropy, ratio.

    The rows of A are the softmax of random logits at a temperature, full or causal. The rows of H are independent, or
    have half of their squared length in common, or the first of them is as long as all others together.
    """
    rows = []
    for draw in range(draws):
        logits = torch.randn(TOKENS, TOKENS, generator=_seeded(seed, draw)).double()
        own = torch.randn(TOKENS, WIDTH, generator=_seeded(seed, draw, 1))
        common = torch.randn(1, WIDTH, generator=_seeded(seed, draw, 2))
        long = own.clone()
        long[0] *= math.sqrt(TOKENS)
        for mask in ("full", "causal"):
            hidden = torch.ones(TOKENS, TOKENS, dtype=torch.bool).triu(1 if mask == "causal" else TOKENS)
            visible = (~hidden).sum(-1)
            for temperature in torch.logspace(-2, 1.5, 15, dtype=torch.float64).tolist():
                A = (logits / temperature).masked_fill(hidden, -torch.inf).softmax(-1)
                entropy = theory.attention_entropies(A, visible).item()
                for kind, H in (("independent", own), ("half in common", own + common), ("a long first row", long)):
                    rows.append((mask, kind, draw, temperature, entropy, theory.norm_ratio(A, H)))
    return pd.DataFrame(rows, columns=["mask", "rows", "draw", "temperature", "entropy", "ratio"])


def _seeded(*numbers: int) -> torch.Generator:
    return torch.Generator().manual_seed(sum(number * 1000**place for place, number in enumerate(numbers)))
