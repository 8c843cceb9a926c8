"""Every statistic of the reports: estimates, their standard errors and their 95 % intervals.

Scores are compared by question, perplexities by document and times by repetition, so that what two
methods have in common cancels.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from scipy import stats

NORMAL_QUANTILE = stats.norm.ppf(0.975)  # of a 95 % interval on both sides
# The dense model is above chance by so many standard errors where it has something to lose.
ERRORS_ABOVE_CHANCE = 2
# "At the floor" needs enough questions to see such a lead over chance.
VISIBLE_LEAD = 0.05
FLOOR = "at the floor"
FEW = "too few questions"
DRAWS = 2000  # of the bootstrap


class Interval(NamedTuple):
    """A value and its 95 % interval, which is nan where there is only one item.

    ``n`` is the number of questions, documents or runs.
    """

    value: float
    low: float
    high: float
    n: int = 0

    def __rsub__(self, whole: float) -> "Interval":
        return Interval(whole - self.value, whole - self.high, whole - self.low, self.n)

    def __mul__(self, factor: float) -> "Interval":
        return self.mapped(lambda end: end * factor)

    def mapped(self, rising: Callable[..., float], *arguments: float) -> "Interval":
        """Apply a rising function to the value and to both ends."""
        value = float(rising(self.value, *arguments))
        low = float(rising(self.low, *arguments))
        high = float(rising(self.high, *arguments))
        return Interval(value, low, high, self.n)


def mean_interval(amounts: Sequence[float], counts: Sequence[float] | None = None) -> Interval:
    """Mean over documents or repetitions with the interval of Student's t.

    With ``counts``, one for each amount, it is the sum of the amounts over the sum of the counts.
    """
    if counts is None:
        counts = np.ones(len(amounts))
    rate, error = _rate(amounts, counts)
    reach = np.nan
    if len(amounts) > 1:
        reach = stats.t.ppf(0.975, len(amounts) - 1) * error
    return Interval(float(rate), float(rate - reach), float(rate + reach), len(amounts))


def perplexity_and_error(nll: Sequence[float], counts: Sequence[int]) -> tuple[float, float]:
    """Perplexity over documents, and its standard error.

    ``nll`` is in nats, one for each document; ``counts`` are the tokens or words of each document.
    """
    rate, error = _rate(nll, counts)
    return float(np.exp(rate)), float(np.exp(rate) * error)


def log_change(first: Sequence[float], second: Sequence[float], counts: Sequence[int]) -> Interval:
    """Second log perplexity less the first, on the same documents, in nats per token."""
    return mean_interval(np.asarray(second, float) - np.asarray(first, float), counts)


def change(first: Sequence[float], second: Sequence[float], counts: Sequence[int]) -> Interval:
    """Change of perplexity from the first to the second as a fraction: ``second / first - 1``.

    The interval is Student's t, because a bootstrap of few documents would be too narrow.
    """
    return log_change(first, second, counts).mapped(np.expm1)


def time_ratio(first: Sequence[float], second: Sequence[float]) -> Interval:
    """Geometric mean of ``second / first`` over repetitions, paired by repetition."""
    return mean_interval(np.log(second) - np.log(first)).mapped(np.exp)


def _rate(amounts: Sequence[float], counts: Sequence[float]) -> tuple[float, float]:
    """Ratio of two sums over documents, and its standard error by the delta method.

    The error is nan for one document.
    """
    amounts = np.asarray(amounts, float)
    counts = np.asarray(counts, float)
    number = len(amounts)
    rate = amounts.sum() / counts.sum()
    error = np.nan
    if number > 1:
        residuals = amounts - rate * counts
        error = np.sqrt(number / (number - 1) * (residuals**2).sum()) / counts.sum()
    return rate, error


def rank_correlation(first: Sequence[float], second: Sequence[float]) -> Interval:
    """Spearman's ρ of two series, with the interval of Bonett and Wright (2000) over their items.

    It is nan where one of the series is constant.
    """
    number = len(first)
    rho = np.nan
    if len(set(first)) > 1 and len(set(second)) > 1:
        rho = float(stats.spearmanr(first, second).statistic)
    reach = np.nan
    if number > 3:
        reach = NORMAL_QUANTILE * np.sqrt((1 + rho**2 / 2) / (number - 3))
    centre = np.arctanh(np.clip(rho, -1 + 1e-9, 1 - 1e-9))
    return Interval(rho, float(np.tanh(centre - reach)), float(np.tanh(centre + reach)), number)


def paired_difference(pairs: Sequence[tuple[Sequence[float], Sequence[float]]]) -> Interval:
    """Mean score of the first of two models less that of the second, averaged over tasks.

    The interval adds half an observation to each of the four outcomes of a pair (Agresti and Min,
    2005), so that it has a width where both models are always wrong, which a bootstrap has not.
    All tasks share these two observations, because two in each task would add up to a bias.

    Parameters
    ----------
    pairs : sequence of (first, second)
        For each task, the scores (0 to 1) of both models on the same questions.
    """
    added = 2 / len(pairs)
    means = []
    shrunk_means = []
    variances = []
    for first, second in pairs:
        differences = np.asarray(first, float) - np.asarray(second, float)
        total = differences.sum()
        number = len(differences) + added
        means.append(differences.mean())
        shrunk_means.append(total / number)
        squares = (differences**2).sum() + added / 2
        variances.append((squares - total**2 / number) / number**2)
    centre = np.mean(shrunk_means)
    reach = NORMAL_QUANTILE * np.sqrt(np.sum(variances)) / len(pairs)
    questions = sum(len(first) for first, _ in pairs)
    return Interval(float(np.mean(means)), float(centre - reach), float(centre + reach), questions)


def paired_mean_difference(pairs: Sequence[tuple[Sequence[float], Sequence[float]]]) -> Interval:
    """Mean of the first of two measures less that of the second, averaged over tasks.

    The tasks have equal weight. The standard error takes the questions within each task as
    independent; the interval is Student's, with the degrees of freedom of Welch and Satterthwaite,
    so that a task with few questions makes it wide. A task with one question has no error, and then
    the interval is nan.

    Parameters
    ----------
    pairs : sequence of (first, second)
        For each task, both measures on the same questions.
    """
    differences = [np.asarray(first, float) - np.asarray(second, float) for first, second in pairs]
    value = np.mean([of_task.mean() for of_task in differences])
    sizes = np.array([len(of_task) for of_task in differences])
    if sizes.min() == 1:
        return Interval(float(value), np.nan, np.nan, int(sizes.sum()))
    squared_errors = np.array([stats.sem(of_task) ** 2 for of_task in differences])
    reach = 0.0
    if squared_errors.any():
        freedom = squared_errors.sum() ** 2 / np.sum(squared_errors**2 / (sizes - 1))
        reach = stats.t.ppf(0.975, freedom) * np.sqrt(squared_errors.sum()) / len(pairs)
    return Interval(float(value), float(value - reach), float(value + reach), int(sizes.sum()))


def bootstrap(tasks: Sequence[np.ndarray], seed: int = 0) -> np.ndarray:
    """Draw questions with replacement, the same ones for all methods, and average their scores.

    As in :func:`paired_difference` the tasks share two more observations, in which each method is
    right or wrong by the toss of a coin.

    Parameters
    ----------
    tasks : sequence of arrays (M, questions)
        The scores (0 to 1) of M methods on each of T tasks.

    Returns
    -------
    array (DRAWS, M, T)
        The mean scores in each draw.
    """
    random = np.random.default_rng(seed)
    added = 2 / len(tasks)
    means = []
    for scores in tasks:
        patterns, counts = np.unique(np.asarray(scores, float), axis=1, return_counts=True)
        number = counts.sum()
        # How many of the drawn questions are tosses of a coin, in each draw.
        tossed = random.binomial(number, added / (number + added), DRAWS)
        answered = random.multinomial(number - tossed, counts / number) @ patterns.T  # (DRAWS, M)
        guessed = random.binomial(tossed[:, None], 0.5, answered.shape)  # (DRAWS, M)
        means.append((answered + guessed) / number)
    return np.stack(means, axis=-1)


def resampled(*sides: tuple[Callable[[np.ndarray], np.ndarray], Sequence[np.ndarray]]) -> Interval:
    """A statistic of mean scores with its :func:`bootstrap` interval.

    Parameters
    ----------
    *sides : (statistic, tasks)
        A statistic takes means (…, M, T) and returns (…); ``tasks`` are scores (M, questions) of
        each task. With two sides the result is the first statistic less the second.
    """
    values = []
    draws = []
    for seed, (statistic, tasks) in enumerate(sides):
        means = np.stack([scores.mean(axis=1) for scores in tasks], axis=-1)  # (M, T)
        # A share has no value in a draw in which its denominator is 0.
        with np.errstate(divide="ignore", invalid="ignore"):
            values.append(statistic(means))
            draws.append(statistic(bootstrap(tasks, seed)))
    value = values[0] - sum(values[1:])
    drawn = draws[0] - sum(draws[1:])
    drawn = drawn[np.isfinite(drawn)]
    low = np.nan
    high = np.nan
    if len(drawn):
        low, high = np.percentile(drawn, (2.5, 97.5), method="inverted_cdf")
    number = sum(scores.shape[1] for _, tasks in sides for scores in tasks)
    return Interval(float(value), float(low), float(high), number)


def floor(dense: Sequence[float], chances: Sequence[float]) -> str | None:
    """Say why nothing can be lost on a task, or None if the dense model is above chance.

    The dense model has to be above chance by two standard errors, and these are at least the
    errors of guessing, so that a few lucky guesses are not taken for skill. ``FLOOR`` means that
    there were questions enough to see a lead of five points, and that there is none.

    Parameters
    ----------
    dense : sequence of float
        Scores of the dense model (0 to 1) by question.
    chances : sequence of float
        What a guess in the right format would score, by question.

    Returns
    -------
    str or None
        ``FLOOR``, ``FEW`` or None.
    """
    number = len(dense)
    if number < 2:
        return FEW
    chance = np.mean(chances)
    error_of_guessing = np.sqrt(chance * (1 - chance) / number)
    error = max(stats.sem(dense), error_of_guessing)
    if np.mean(dense) - chance > ERRORS_ABOVE_CHANCE * error:
        return None
    rate, error = _agresti_coull(np.sum(dense), number)
    highest = rate + NORMAL_QUANTILE * error
    return FLOOR if highest - chance < VISIBLE_LEAD else FEW


def score_error(scores: Sequence[float]) -> float:
    """Standard error of a mean score, nan for one question.

    For scores that are all 0 or 1 it is the error of Agresti and Coull (1998), so that 0 of 10 is
    not taken for exact.
    """
    scores = np.asarray(scores, float)
    if len(scores) < 2:
        return np.nan
    if np.isin(scores, (0, 1)).all():
        _, error = _agresti_coull(scores.sum(), len(scores))
        return float(error)
    return float(stats.sem(scores))


def _agresti_coull(successes: float, number: int) -> tuple[float, float]:
    """A share with two successes and two failures added, and its standard error."""
    rate = (successes + 2) / (number + 4)
    return rate, np.sqrt(rate * (1 - rate) / (number + 4))


def holm(intervals: Sequence[Interval], goals: Sequence[float]) -> list[Interval]:
    """Widen the intervals of several comparisons, so that all of them hold together at 95 %.

    This is the method of Holm (1979). The comparison that is furthest from its goal, in standard
    errors, is judged at 0.05 divided by their number, the next one at 0.05 divided by one less,
    and so on. From the first comparison that does not decide, all others have its level. An
    interval without width stays as it is.
    """
    distances = []
    for interval, goal in zip(intervals, goals, strict=True):
        error = (interval.high - interval.low) / (2 * NORMAL_QUANTILE)
        middle = (interval.low + interval.high) / 2
        distances.append(abs(middle - goal) / error if error > 0 else np.inf)
    widened = list(intervals)
    undecided = len(intervals)
    for place in np.argsort(distances)[::-1]:
        interval = intervals[place]
        quantile = stats.norm.ppf(1 - 0.05 / (2 * undecided))
        middle = (interval.low + interval.high) / 2
        reach = (interval.high - interval.low) / 2 * quantile / NORMAL_QUANTILE
        widened[place] = interval._replace(low=float(middle - reach), high=float(middle + reach))
        if distances[place] > quantile:
            undecided = max(1, undecided - 1)
    return widened
