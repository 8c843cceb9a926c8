"""Matrices for properties of the theory: rows, and attention over them."""

import numpy as np
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

F64 = torch.float64
finite = st.floats(-50, 50, allow_nan=False, width=64)
few = settings(max_examples=200, deadline=None)
some, several = st.integers(1, 6), st.integers(2, 7)
either = st.booleans()


@st.composite
def rows(draw, tokens=several, width=some, shortest=1e-3):
    """H (N, d) without rows near zero."""
    H = torch.from_numpy(draw(arrays(np.float64, (draw(tokens), draw(width)), elements=finite)))
    short = H.norm(dim=1) < shortest
    H[short, 0] = 1.0
    return H


@st.composite
def attention(draw, tokens=several, causal=either):
    """A row-stochastic matrix, from uniform to one-hot."""
    n = draw(tokens)
    logits = torch.from_numpy(draw(arrays(np.float64, (n, n), elements=finite))) * draw(st.sampled_from([0.0, 0.02, 1]))
    if draw(causal):
        logits = logits.masked_fill(torch.ones(n, n, dtype=torch.bool).triu(1), -torch.inf)
    return logits.softmax(-1)


@st.composite
def attention_and_rows(draw):
    n = draw(st.integers(2, 7))
    return draw(attention(tokens=st.just(n))), draw(rows(tokens=st.just(n)))
