"""The theory on random matrices: its inequalities and identities, and two sweeps of attention.

The first sweep asks when attention becomes uniform (Theorem 1), the second what aggregation does to
the norm (Proposition 1).
"""

import itertools
import math
from functools import partial

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from tqdm import tqdm

from harp_lib.theory import attention_entropies, norm_ratio, similarity, visible_positions
from harp_lib.theory.inequalities import attention, identities, inequalities

TOKENS = 64  # N of the sweeps
WIDTH = 64  # d of the sweeps


def draw_matrices(
    generator: torch.Generator,
) -> tuple[Tensor, Tensor, Tensor, Tensor, tuple[float, float]]:
    """The arguments of :func:`inequalities`, of random size.

    A is from uniform to one-hot, and in half of the draws causal.
    """
    tokens, width, out_width = torch.randint(2, 13, (3,), generator=generator).tolist()
    normal = partial(torch.randn, generator=generator, dtype=torch.float64)
    offset = 3 * normal(1)
    scale = torch.exp(1.5 * normal(1))
    sharpness = torch.exp(1.5 * normal(1))
    logits = sharpness * normal(tokens, tokens)
    if torch.rand(1, generator=generator) < 0.5:
        is_later = torch.ones(tokens, tokens, dtype=torch.bool).triu(1)
        logits = logits.masked_fill(is_later, -torch.inf)
    a_1, a_2 = normal(2).abs().tolist()
    H = offset + scale * normal(tokens, width)
    B = scale * normal(tokens, width)
    W = normal(width, out_width)
    return H, B, W, logits.softmax(-1), (a_1, a_2)


def check_on_draws(draws: int, seed: int) -> pd.DataFrame:
    """Every inequality and identity on the same random draws.

    Parameters
    ----------
    draws
        How often matrices are drawn.
    seed
        Of the random numbers.

    Returns
    -------
    DataFrame
        With the columns check, kind, draws, violations, largest. ``largest`` is the largest
        quotient of the smaller and the larger side of an inequality (1: the bound is attained). For
        an identity it is the largest difference of the two sides, divided by the right side where
        that is above 1.
    """
    generator = torch.Generator().manual_seed(seed)
    of_inequalities = []
    of_identities = []
    for _ in tqdm(range(draws), desc="random draws", unit="draw"):
        matrices = draw_matrices(generator)
        of_inequalities.append(inequalities(*matrices))
        of_identities.append(identities(matrices[0]))

    records = []
    for name, sides in pd.DataFrame(of_inequalities).items():
        smaller, larger = np.transpose(sides.tolist())  # (draws,) each
        violations = smaller > larger * (1 + 1e-9) + 1e-9  # beyond rounding
        not_zero = larger > 1e-6
        quotients = smaller[not_zero] / larger[not_zero]
        records.append((name, "inequality", draws, violations.sum(), quotients.max()))
    for name, sides in pd.DataFrame(of_identities).items():
        left, right = np.transpose(sides.tolist())
        differences = np.abs(left - right) / np.maximum(1, np.abs(right))
        violations = differences > 1e-9
        records.append((name, "identity", draws, violations.sum(), differences.max()))
    return pd.DataFrame(records, columns=["check", "kind", "draws", "violations", "largest"])


def uniformity_sweep(draws: int, seed: int) -> pd.DataFrame:
    """Normalised attention entropy of random heads while Sim(H) → 1 (Theorem 1).

    The rows of H deviate from one direction by a spread, from 3.2 down to 0.001 times it. They have
    equal lengths or random ones, and queries and keys have rotary positions or none.

    Parameters
    ----------
    draws
        How many heads are drawn.
    seed
        Of the random numbers.

    Returns
    -------
    DataFrame
        With the columns equal lengths, rotary, draw, spread, similarity, entropy.
    """
    visible = visible_positions(TOKENS)
    records = []
    for draw in range(draws):
        projections = torch.randn(2, WIDTH, WIDTH, generator=_seeded_generator(seed, draw))
        W_Q, W_K = 2 * projections / math.sqrt(WIDTH)

        normal = partial(torch.randn, generator=_seeded_generator(seed, draw, 1))
        direction = normal(WIDTH)
        deviations = normal(TOKENS, WIDTH)
        lengths = torch.exp(0.7 * normal(TOKENS, 1))

        for spread in torch.logspace(-3, 0.5, 15).tolist():
            H = direction + spread * deviations  # (N, d)
            H = math.sqrt(WIDTH) * H / H.norm(dim=-1, keepdim=True)  # every row has length √d
            for has_equal_lengths, rotary in itertools.product((True, False), (False, True)):
                states = H
                if not has_equal_lengths:
                    states = H * lengths
                A = attention(states, W_Q, W_K, rotary)  # (N, N)
                records.append(
                    {
                        "equal lengths": has_equal_lengths,
                        "rotary": rotary,
                        "draw": draw,
                        "spread": spread,
                        "similarity": similarity(states),
                        "entropy": attention_entropies(A, visible).item(),
                    }
                )
    return pd.DataFrame(records)


def norm_sweep(draws: int, seed: int) -> pd.DataFrame:
    """‖AH‖/‖H‖ while the rows of A go from one-hot to uniform (Proposition 1).

    The rows of A are the softmax of random logits at a temperature. The rows of H are independent,
    or have half of their squared length in common, or the first of them is as long as all others
    together.

    Parameters
    ----------
    draws
        How often A and H are drawn.
    seed
        Of the random numbers.

    Returns
    -------
    DataFrame
        With the columns mask, rows, draw, temperature, entropy, ratio.
    """
    everything = torch.ones(TOKENS, TOKENS, dtype=torch.bool)
    masks = {"full": everything, "causal": everything.tril()}
    records = []
    for draw in range(draws):
        logits = torch.randn(TOKENS, TOKENS, generator=_seeded_generator(seed, draw)).double()
        independent = torch.randn(TOKENS, WIDTH, generator=_seeded_generator(seed, draw, 1))
        common_row = torch.randn(1, WIDTH, generator=_seeded_generator(seed, draw, 2))
        long_first_row = math.sqrt(TOKENS) * independent[:1]
        states = {
            "independent": independent,
            "half in common": independent + common_row,
            "a long first row": torch.cat([long_first_row, independent[1:]]),
        }
        temperatures = torch.logspace(-2, 1.5, 15, dtype=torch.float64).tolist()
        for (mask, is_visible), temperature in itertools.product(masks.items(), temperatures):
            A = (logits / temperature).masked_fill(~is_visible, -torch.inf).softmax(-1)
            entropy = attention_entropies(A, is_visible.sum(-1)).item()
            for rows, H in states.items():
                records.append(
                    {
                        "mask": mask,
                        "rows": rows,
                        "draw": draw,
                        "temperature": temperature,
                        "entropy": entropy,
                        "ratio": norm_ratio(A, H),
                    }
                )
    return pd.DataFrame(records)


def _seeded_generator(*numbers: int) -> torch.Generator:
    """Random numbers of their own for each combination of numbers below 1000."""
    seed = sum(number * 1000**place for place, number in enumerate(numbers))
    return torch.Generator().manual_seed(seed)
