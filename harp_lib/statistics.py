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
    rate, error = _ratio(np.asarray(nll, float), np.asarray(counts, float))
    value = float(np.exp(rate))
    return Estimate(value, float(value * error))


def perplexity_interval(nll: Sequence[float], counts: Sequence[int]) -> Interval:
    """Perplexity over documents and its 95 % interval: Student's t on the logarithm (nan for one document)."""
    return Interval(*(float(value) for value in np.exp(_t_interval(np.asarray(nll, float), np.asarray(counts, float)))))


def paired_change(first: Sequence[float], second: Sequence[float], counts: Sequence[int]) -> Interval:
    """How much larger the second perplexity is than the first on the same documents, as a fraction.

    Parameters
    ----------
    first, second : sequence of float
        Negative log-likelihood of each document under two models.
    counts : sequence of int
        Predicted tokens of each document.

    Returns
    -------
    Interval
        ``second / first - 1`` and its 95 % interval: Student's t on the logarithm of the ratio, paired by document.
        With few documents a bootstrap interval would be too narrow.
    """
    return Interval(*(float(np.expm1(value)) for value in paired_log_change(first, second, counts)))


def paired_log_change(first: Sequence[float], second: Sequence[float], counts: Sequence[int]) -> Interval:
    """The same in nats per token: how much higher the second log perplexity is, with its 95 % interval."""
    difference = np.asarray(second, float) - np.asarray(first, float)
    return Interval(*(float(value) for value in _t_interval(difference, np.asarray(counts, float))))


def _t_interval(amounts: np.ndarray, counts: np.ndarray) -> tuple[float, float, float]:
    rate, error = _ratio(amounts, counts)
    reach = stats.t.ppf(0.975, len(counts) - 1) * error if len(counts) > 1 else np.nan
    return rate, rate - reach, rate + reach


def _ratio(amounts: np.ndarray, counts: np.ndarray) -> tuple[float, float]:
    """A ratio of sums over documents and its standard error, by the delta method."""
    number, rate = len(amounts), amounts.sum() / counts.sum()
    residuals = amounts - rate * counts
    error = np.sqrt(number / (number - 1) * (residuals**2).sum()) / counts.sum() if number > 1 else np.nan
    return rate, error


def mean_interval(values: Sequence[float]) -> Interval:
    """Mean over documents and its 95 % interval (Student's t; nan for one document)."""
    values = np.asarray(values, float)
    error = values.std(ddof=1) / np.sqrt(len(values)) if len(values) > 1 else np.nan
    reach = stats.t.ppf(0.975, len(values) - 1) * error if len(values) > 1 else np.nan
    return Interval(*(float(value) for value in (values.mean(), values.mean() - reach, values.mean() + reach)))


def score_estimate(scores: Sequence[float]) -> Estimate:
    """Mean score of independent questions and its standard error, as lm-eval has it (nan for one question)."""
    scores = np.asarray(scores, float)
    error = scores.std(ddof=1) / np.sqrt(len(scores)) if len(scores) > 1 else np.nan
    return Estimate(float(scores.mean()), float(error))


def average_estimate(estimates: Sequence[Estimate]) -> Estimate:
    """Unweighted mean over tasks, whose questions are independent."""
    values, errors = np.asarray(estimates, float).T
    return Estimate(float(values.mean()), float(np.sqrt((errors**2).sum()) / len(errors)))


def paired_difference(pairs: Sequence[tuple[Sequence[float], Sequence[float]]]) -> Interval:
    """How much higher the first of two models scores, averaged over tasks, from their answers to the same questions.

    Parameters
    ----------
    pairs : sequence of (first, second)
        For each task, the scores (from 0 to 1) of both models, question by question.

    Returns
    -------
    Interval
        Mean over tasks of the difference of their mean scores; the 95 % interval adds half an observation to each of
        the four outcomes of a pair (Agresti and Min, 2005), so that it has a width where both models are always wrong,
        as a bootstrap has not. Several tasks share these two observations: two in each would add up to a bias.
    """
    added = 2 / len(pairs)
    means, shrunk, variances = [], [], []
    for first, second in pairs:
        differences = np.asarray(first, float) - np.asarray(second, float)
        total, number = differences.sum(), len(differences) + added
        means.append(differences.mean())
        shrunk.append(total / number)
        variances.append(((differences**2).sum() + added / 2 - total**2 / number) / number**2)
    centre, reach = np.mean(shrunk), stats.norm.ppf(0.975) * np.sqrt(np.sum(variances)) / len(pairs)
    return Interval(float(np.mean(means)), float(centre - reach), float(centre + reach))
