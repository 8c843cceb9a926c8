"""Every statistic of the reports: estimates with standard errors, differences with 95 % intervals,
the floor.

Scores are compared by question, perplexities by document, times by repetition: what two methods
have in common cancels.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from scipy import stats

# standard errors that the dense model has to be above chance, for there to be something to lose
ABOVE = 2
# a lead over chance that there have to be questions enough to see, for "at the floor" to be said
SEEN = 0.05
FLOOR, FEW = "at the floor", "too few questions"
DRAWS = 2000  # of the bootstrap


class Interval(NamedTuple):
    """A value, its 95 % interval (nan where there is one item), and the number of questions,
    documents or runs.
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
        """The same in other units, or as what rises with it."""
        return Interval(*(float(rising(end, *arguments)) for end in self[:3]), self.n)


def mean_interval(amounts: Sequence[float], counts: Sequence[float] | None = None) -> Interval:
    """Mean over documents or repetitions, by Student's t; with counts of each a ratio of sums."""
    rate, error = _rate(amounts, np.ones(len(amounts)) if counts is None else counts)
    reach = stats.t.ppf(0.975, len(amounts) - 1) * error if len(amounts) > 1 else np.nan
    return Interval(float(rate), float(rate - reach), float(rate + reach), len(amounts))


def perplexity(nll: Sequence[float], counts: Sequence[int]) -> tuple[float, float]:
    """Perplexity over documents (nll in nats, for so many tokens or words), and its standard error."""
    rate, error = _rate(nll, counts)
    return float(np.exp(rate)), float(np.exp(rate) * error)


def log_change(first: Sequence[float], second: Sequence[float], counts: Sequence[int]) -> Interval:
    """How much higher the second log perplexity is than the first on the same documents, in nats
    per token.
    """
    return mean_interval(np.asarray(second, float) - np.asarray(first, float), counts)


def change(first: Sequence[float], second: Sequence[float], counts: Sequence[int]) -> Interval:
    """How much higher the second perplexity is than the first, as a fraction (``second / first -
    1``).
    """
    return log_change(first, second, counts).mapped(
        np.expm1
    )  # of few documents a bootstrap would be too narrow


def time_ratio(first: Sequence[float], second: Sequence[float]) -> Interval:
    """How many times ``first`` the times in ``second`` are: the geometric mean, paired by
    repetition.
    """
    return mean_interval(np.log(second) - np.log(first)).mapped(np.exp)


def _rate(amounts: Sequence[float], counts: Sequence[float]) -> tuple[float, float]:
    """A ratio of sums over documents and its standard error, by the delta method; nan for one
    document.
    """
    amounts, counts = np.asarray(amounts, float), np.asarray(counts, float)
    number, rate = len(amounts), amounts.sum() / counts.sum()
    residuals = amounts - rate * counts
    error = (
        np.sqrt(number / (number - 1) * (residuals**2).sum()) / counts.sum()
        if number > 1
        else np.nan
    )
    return rate, error


def rank_correlation(first: Sequence[float], second: Sequence[float]) -> Interval:
    """Spearman's ρ, with the interval of Bonett and Wright (2000) over items; nan where one side is
    constant.
    """
    number, varied = len(first), min(len(set(first)), len(set(second))) > 1
    rho = float(stats.spearmanr(first, second).statistic) if varied else np.nan
    reach = (
        stats.norm.ppf(0.975) * np.sqrt((1 + rho**2 / 2) / (number - 3)) if number > 3 else np.nan
    )
    centre = np.arctanh(np.clip(rho, -1 + 1e-9, 1 - 1e-9))
    return Interval(rho, float(np.tanh(centre - reach)), float(np.tanh(centre + reach)), number)


def paired_difference(pairs: Sequence[tuple[Sequence[float], Sequence[float]]]) -> Interval:
    """How much higher the first of two models scores, averaged over tasks, from their answers to
    the same questions.

    Of each task it takes the scores (0 to 1) of both, question by question. The 95 % interval adds
    half an observation to each of the four outcomes of a pair (Agresti and Min, 2005), so that it
    has a width where both models are always wrong, as a bootstrap has not. Several tasks share
    these two observations: two in each would add up to a bias.
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
    return Interval(
        float(np.mean(means)),
        float(centre - reach),
        float(centre + reach),
        sum(len(a) for a, _ in pairs),
    )


def paired_mean_difference(pairs: Sequence[tuple[Sequence[float], Sequence[float]]]) -> Interval:
    """How much larger the first of two measures is than the second, averaged over tasks, on the
    same questions.

    Of each task it takes both measures, question by question. The tasks have equal weight; the
    standard error is that of independent questions within each task. A task with one question has
    no error, and so the interval is nan.
    """
    means = []
    squared_errors = []
    for first, second in pairs:
        differences = np.asarray(first, float) - np.asarray(second, float)
        means.append(differences.mean())
        squared_errors.append(stats.sem(differences) ** 2 if len(differences) > 1 else np.nan)
    value = np.mean(means)
    reach = stats.norm.ppf(0.975) * np.sqrt(np.sum(squared_errors)) / len(pairs)
    number = sum(len(first) for first, _ in pairs)
    return Interval(float(value), float(value - reach), float(value + reach), number)


def bootstrap(tasks: Sequence[np.ndarray], seed: int = 0) -> np.ndarray:
    """Mean scores (DRAWS, M, T) on questions drawn with replacement, the same questions for all
    methods.

    Of each of T tasks it takes the scores (M, questions) of M methods, from 0 to 1. As in
    :func:`paired_difference` two more observations are shared by the tasks; on these each method is
    right or wrong by a toss of a coin.
    """
    random, drawn = np.random.default_rng(seed), []
    for scores in tasks:
        patterns, counts = np.unique(np.asarray(scores, float), axis=1, return_counts=True)
        number, added = counts.sum(), 2 / len(tasks)
        tossed = random.binomial(
            number, added / (number + added), DRAWS
        )  # how many are none of the task's own
        own = random.multinomial(number - tossed, counts / number) @ patterns.T  # (DRAWS, M)
        drawn.append((own + random.binomial(tossed[:, None], 0.5, own.shape)) / number)
    return np.stack(drawn, axis=-1)


def resampled(*sides: tuple[Callable[[np.ndarray], np.ndarray], Sequence[np.ndarray]]) -> Interval:
    """A statistic of mean scores with its :func:`bootstrap` interval; of two sides, the first's
    less the second's.

    A side is the statistic, which takes means (…, M, T) and gives (…), and for each task the scores
    (M, questions).
    """
    found = []
    for seed, (statistic, tasks) in enumerate(sides):
        means = np.stack([scores.mean(axis=1) for scores in tasks], axis=-1)
        with np.errstate(
            divide="ignore", invalid="ignore"
        ):  # a draw in which a share is of nothing
            found.append((statistic(means), statistic(bootstrap(tasks, seed))))
    value, draws = (first - sum(second) for first, *second in zip(*found, strict=True))
    defined = draws[np.isfinite(draws)]
    low, high = (
        np.percentile(defined, (2.5, 97.5), method="inverted_cdf")
        if len(defined)
        else (np.nan, np.nan)
    )
    number = sum(scores.shape[1] for _, tasks in sides for scores in tasks)
    return Interval(float(value), float(low), float(high), number)


def floor(dense: Sequence[float], chances: Sequence[float]) -> str | None:
    """Why nothing can be lost on a task: ``FLOOR``, ``FEW``, or None if the dense model is above
    chance.

    It takes the scores of the dense model (0 to 1, by question) and what a guess in the right
    format would get. Above is by two standard errors, at least those of guessing, so that a few
    lucky guesses are not taken for skill. At the floor means that there were questions enough to
    see a lead of five points, and there is none.
    """
    number = len(dense)
    if number < 2:
        return FEW
    chance = np.mean(chances)
    error_of_guessing = np.sqrt(np.mean(chances) * (1 - np.mean(chances)) / number)
    error = max(stats.sem(dense), error_of_guessing)
    if np.mean(dense) - chance > ABOVE * error:
        return None
    rate, error = _agresti_coull(np.sum(dense), number)
    highest = rate + stats.norm.ppf(0.975) * error
    return FLOOR if highest - chance < SEEN else FEW


def score_error(scores: Sequence[float]) -> float:
    """Standard error of a mean score, nan for one question.

    Of scores that are all 0 or 1 it is that of Agresti and Coull (1998), so that 0 of 10 is not
    known exactly.
    """
    scores = np.asarray(scores, float)
    if len(scores) < 2:
        return np.nan
    if np.isin(scores, (0, 1)).all():
        return float(_agresti_coull(scores.sum(), len(scores))[1])
    return float(stats.sem(scores))


def _agresti_coull(successes: float, number: int) -> tuple[float, float]:
    """A share with two successes and two failures added, and its standard error."""
    rate = (successes + 2) / (number + 4)
    return rate, np.sqrt(rate * (1 - rate) / (number + 4))


def holm(intervals: Sequence[Interval], goals: Sequence[float]) -> list[Interval]:
    """Intervals of several comparisons, widened after Holm (1979), so that all hold together at 95
    %.

    The comparison that is furthest from its goal, in standard errors, is judged at 0.05 divided by
    their number, the next at 0.05 divided by one less, and so on; from the first that does not
    decide, all others have its level. An interval without width stays as it is.
    """
    usual = stats.norm.ppf(0.975)
    distances = []
    for interval, goal in zip(intervals, goals, strict=True):
        error = (interval.high - interval.low) / (2 * usual)
        distances.append(
            abs((interval.low + interval.high) / 2 - goal) / error if error > 0 else np.inf
        )
    widened = list(intervals)
    left = len(intervals)
    for place in np.argsort(distances)[::-1]:
        interval = intervals[place]
        needed = stats.norm.ppf(1 - 0.05 / (2 * left))
        middle = (interval.low + interval.high) / 2
        reach = (interval.high - interval.low) / 2 * needed / usual
        widened[place] = interval._replace(low=float(middle - reach), high=float(middle + reach))
        if distances[place] > needed:
            left = max(1, left - 1)
    return widened
