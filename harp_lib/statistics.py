"""Perplexities with errors, and paired differences over the same documents."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy import stats


class Estimate(NamedTuple):
    """A value and its standard error."""

    value: float
    error: float


class Interval(NamedTuple):
    """A value and its 95 % interval."""

    value: float
    low: float
    high: float


def perplexity_estimate(nll: Sequence[float], counts: Sequence[int]) -> Estimate:
    """Perplexity over documents, with the standard error that comes from having few of them.

    Parameters
    ----------
    nll : sequence of float
        Negative log-likelihood of each document, in nats.
    counts : sequence of int
        What it is divided by: predicted tokens, or words, of each document.

    Returns
    -------
    Estimate
        ``exp(sum(nll) / sum(counts))``; the error of a ratio of sums by the delta method (nan for one document).
    """
    nll, counts = np.asarray(nll, float), np.asarray(counts, float)
    rate = nll.sum() / counts.sum()
    residuals, number = nll - rate * counts, len(nll)
    error = np.sqrt(number / (number - 1) * (residuals**2).sum()) / counts.sum() if number > 1 else np.nan
    value = float(np.exp(rate))
    return Estimate(value, float(value * error))


def paired_change(first: Sequence[float], second: Sequence[float], counts: Sequence[int], seed: int = 0) -> Interval:
    """How much larger the second perplexity is than the first on the same documents, as a fraction.

    Parameters
    ----------
    first, second : sequence of float
        Negative log-likelihood of each document under two models.
    counts : sequence of int
        Predicted tokens of each document.
    seed : int
        Of the bootstrap.

    Returns
    -------
    Interval
        ``second / first - 1`` and its 95 % percentile interval, documents drawn 2,000 times with replacement.
    """
    differences, counts = np.asarray(second, float) - np.asarray(first, float), np.asarray(counts, float)

    def change(picked: np.ndarray) -> np.ndarray:
        return np.expm1(differences[picked].sum(axis=-1) / counts[picked].sum(axis=-1))

    everything = np.arange(len(counts))
    if len(counts) < 2:
        return Interval(float(change(everything)), np.nan, np.nan)
    interval = stats.bootstrap(
        (everything,),
        lambda index, axis: change(index),
        n_resamples=2000,
        method="percentile",
        vectorized=True,
        rng=np.random.default_rng(seed),
    ).confidence_interval
    return Interval(float(change(everything)), float(interval.low), float(interval.high))
