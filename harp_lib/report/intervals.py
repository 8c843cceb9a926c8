"""Estimates with their 95 % intervals and p values.

Perplexities are compared by document, scores by question and times by round, so that what two
methods have in common cancels.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
from scipy import stats

NORMAL_QUANTILE = stats.norm.ppf(0.975)  # of a 95 % interval on both sides
DRAWS = 2000  # of the bootstrap
FEW_POINTS = 10  # a rank correlation of fewer is decided by an exact permutation test


@dataclass(frozen=True)
class Interval:
    """An estimate and its 95 % interval.

    Attributes
    ----------
    value, low, high : float
        The ends are nan where there is no interval.
    n : int
        Number of documents, questions, layers or rounds.
    p : float
        Two-sided p value of the hypothesis that there is no effect; nan without a test.
    effect : str
        What was estimated, where a claim has several effects.
    """

    value: float
    low: float
    high: float
    n: int = 0
    p: float = np.nan
    effect: str = ""

    def __format__(self, spec: str) -> str:
        if np.isnan(self.value):
            return "–"
        if np.isnan(self.low):
            return f"{self.value:{spec}}"
        return f"{self.value:{spec}} [{self.low:{spec}}, {self.high:{spec}}]"

    def mapped(self, rising: Callable[[float], float]) -> "Interval":
        """Apply a rising function, which keeps the order and so the p value."""
        low = float(rising(self.low))
        high = float(rising(self.high))
        return replace(self, value=float(rising(self.value)), low=low, high=high)

    def opposite(self) -> "Interval":
        """The effect with the other sign."""
        return replace(self, value=-self.value, low=-self.high, high=-self.low)

    def times(self, factor: float) -> "Interval":
        """A multiple of the effect."""
        if factor < 0:
            return self.opposite().times(-factor)
        return self.mapped(lambda end: end * factor)

    def as_row(self) -> dict[str, float]:
        """Value, low, high and n, as columns of a frame."""
        return {"value": self.value, "low": self.low, "high": self.high, "n": self.n}

    def named(self, effect: str) -> "Interval":
        """The same interval with a name."""
        return replace(self, effect=effect)


def in_brackets(frame: pd.DataFrame, spec: str = ".1f") -> list[str]:
    """The columns value, low and high of each row as text: ``2.9 [-4.2, 10.5]``."""
    columns = frame[["value", "low", "high"]].itertuples(index=False)
    return [format(Interval(*row), spec) for row in columns]


def mean_interval(amounts: Sequence[float], counts: Sequence[float] | None = None) -> Interval:
    """Mean over documents or rounds with the interval and test of Student's t.

    With ``counts``, one for each amount, it is the sum of the amounts over the sum of the counts,
    and its standard error is by the delta method.
    """
    amounts = np.asarray(amounts, float)
    number = len(amounts)
    counts = np.ones(number) if counts is None else np.asarray(counts, float)
    rate = float(amounts.sum() / counts.sum())
    if number < 2:
        return Interval(rate, np.nan, np.nan, number)
    residuals = amounts - rate * counts
    error = float(np.sqrt(number / (number - 1) * (residuals**2).sum()) / counts.sum())
    reach = stats.t.ppf(0.975, number - 1) * error
    p = float(rate == 0)  # of amounts that are all equal
    if error > 0:
        p = float(2 * stats.t.sf(abs(rate) / error, number - 1))
    return Interval(rate, rate - reach, rate + reach, number, p)


def log_change(first: Sequence[float], second: Sequence[float], counts: Sequence[int]) -> Interval:
    """Second log perplexity less the first, in nats per token, over the same documents.

    Parameters
    ----------
    first, second : sequence of float
        Negative log-likelihood of each document in nats.
    counts : sequence of int
        Tokens of each document.
    """
    return mean_interval(np.asarray(second, float) - np.asarray(first, float), counts)


def change(first: Sequence[float], second: Sequence[float], counts: Sequence[int]) -> Interval:
    """Change of perplexity in per cent: ``100 (second / first - 1)`` (:func:`log_change`)."""
    return log_change(first, second, counts).mapped(lambda nats: 100 * np.expm1(nats))


def time_ratio(first: Sequence[float], second: Sequence[float]) -> Interval:
    """Median of ``second / first`` over rounds, with its order-statistic interval.

    The ends are ratios of single rounds, so that one slow round cannot move them far. An interval
    of 95 % needs six rounds; with fewer the ends are nan. The p value is the sign test's.

    Parameters
    ----------
    first, second : sequence of float
        Seconds of each round, in the same order.
    """
    ratios = np.asarray(second, float) / np.asarray(first, float)
    test = stats.quantile_test(ratios, q=1, p=0.5)
    low, high = test.confidence_interval(0.95)
    return Interval(
        float(np.median(ratios)), float(low), float(high), len(ratios), float(test.pvalue)
    )


def rank_correlation(first: Sequence[float], second: Sequence[float]) -> Interval:
    """Spearman's ρ of two series.

    From ten points on it has the interval of Bonett and Wright (2000). Fewer points have the p
    value of an exact permutation test, and no interval. ρ is nan where a series is constant.
    """
    number = len(first)
    if len(set(first)) < 2 or len(set(second)) < 2:
        return Interval(np.nan, np.nan, np.nan, number)
    rho = float(stats.spearmanr(first, second).statistic)
    if number < FEW_POINTS:
        every_order = stats.PermutationMethod(n_resamples=np.inf)
        test = stats.pearsonr(stats.rankdata(first), stats.rankdata(second), method=every_order)
        return Interval(rho, np.nan, np.nan, number, float(test.pvalue))
    error = np.sqrt((1 + rho**2 / 2) / (number - 3))
    centre = np.arctanh(np.clip(rho, -1 + 1e-9, 1 - 1e-9))
    low, high = np.tanh([centre - NORMAL_QUANTILE * error, centre + NORMAL_QUANTILE * error])
    p = 2 * stats.norm.sf(abs(centre) / error)
    return Interval(rho, float(low), float(high), number, float(p))


def paired_scores(pairs: Sequence[tuple[Sequence[float], Sequence[float]]]) -> Interval:
    """Mean score of the first of two models less that of the second, averaged over tasks.

    The interval adds half an observation to each of the four outcomes of a pair (Agresti and Min,
    2005), so that it has a width where both models are always wrong, which a bootstrap has not.
    All tasks share these two observations, because two in each task would add up to a bias.

    Parameters
    ----------
    pairs : sequence of (first, second)
        For each task, the scores (0 to 1) of both models on the same questions.
    """
    added = 2 / len(pairs)  # observations; half of them disagree, as often one way as the other
    value = 0.0
    middle = 0.0
    squared_error = 0.0
    total = 0
    for first, second in pairs:
        differences = np.asarray(first, float) - np.asarray(second, float)
        number = len(differences)
        total += number
        mean = differences.sum() / (number + added)
        mean_square = ((differences**2).sum() + added / 2) / (number + added)
        value += differences.mean() / len(pairs)
        middle += mean / len(pairs)
        squared_error += (mean_square - mean**2) / (number + added) / len(pairs) ** 2
    error = np.sqrt(squared_error)
    reach = NORMAL_QUANTILE * error
    p = 2 * stats.norm.sf(abs(middle) / error)
    return Interval(float(value), float(middle - reach), float(middle + reach), total, float(p))


def paired_means(pairs: Sequence[tuple[Sequence[float], Sequence[float]]]) -> Interval:
    """Mean of the first of two measures less that of the second, averaged over tasks.

    The tasks have equal weight. The interval is Student's, with the degrees of freedom of Welch and
    Satterthwaite, so that a task with few questions makes it wide. A task with one question has no
    standard error, and then the interval is nan.

    Parameters
    ----------
    pairs : sequence of (first, second)
        For each task, both measures on the same questions.
    """
    differences = [np.asarray(first, float) - np.asarray(second, float) for first, second in pairs]
    value = float(np.mean([of_task.mean() for of_task in differences]))
    sizes = np.array([len(of_task) for of_task in differences])
    if sizes.min() == 1:
        return Interval(value, np.nan, np.nan, int(sizes.sum()))
    squared_errors = np.array([stats.sem(of_task) ** 2 for of_task in differences])
    if not squared_errors.any():
        return Interval(value, value, value, int(sizes.sum()), float(value == 0))
    freedom = squared_errors.sum() ** 2 / np.sum(squared_errors**2 / (sizes - 1))
    error = np.sqrt(squared_errors.sum()) / len(pairs)
    reach = stats.t.ppf(0.975, freedom) * error
    p = 2 * stats.t.sf(abs(value) / error, freedom)
    return Interval(value, value - reach, value + reach, int(sizes.sum()), float(p))


def bootstrap(statistic: Callable[..., float], *groups: int) -> Interval:
    """A statistic of items that are drawn with replacement, with its percentile interval.

    Parameters
    ----------
    statistic : callable
        Takes an array of places for each group, as ``arange(number)`` is, and returns a number.
    *groups : int
        Number of items in each group; groups (tasks, say) are drawn one by one.
    """
    random = np.random.default_rng(0)
    value = statistic(*(np.arange(number) for number in groups))
    drawn = []
    for _ in range(DRAWS):
        drawn.append(statistic(*(random.integers(number, size=number) for number in groups)))
    drawn = np.asarray(drawn, float)
    drawn = drawn[np.isfinite(drawn)]  # a share has no value where its denominator is 0
    if not len(drawn):
        return Interval(float(value), np.nan, np.nan, sum(groups))
    low, high = np.percentile(drawn, (2.5, 97.5), method="inverted_cdf")
    tail = min((drawn <= 0).mean(), (drawn >= 0).mean())
    p = min(1.0, 2 * max(tail, 1 / (len(drawn) + 1)))
    return Interval(float(value), float(low), float(high), sum(groups), float(p))


def holm(p_values: Sequence[float]) -> list[float]:
    """P values adjusted for their number (Holm, 1979); nan stays nan and is not counted."""
    p_values = np.asarray(p_values, float)
    known = np.flatnonzero(~np.isnan(p_values))
    adjusted = np.full(len(p_values), np.nan)
    largest = 0.0
    for place, index in enumerate(known[np.argsort(p_values[known], kind="stable")]):
        largest = max(largest, (len(known) - place) * p_values[index])
        adjusted[index] = min(1.0, largest)
    return adjusted.tolist()
