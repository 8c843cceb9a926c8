"""Intervals hold what they should: by simulation, and against what can be worked out by hand."""

import numpy as np
import pytest
from scipy import stats

from harp_lib.report.comparisons import (
    FEW,
    FLOOR,
    Interval,
    bootstrap,
    change,
    floor,
    holm,
    log_change,
    mean_interval,
    paired_difference,
    paired_mean_difference,
    perplexity,
    rank_correlation,
    resampled,
    score_error,
    time_ratio,
)


def coverage(draw, truth, repetitions=400):
    """How often an interval of made-up data holds the truth."""
    found = [draw(np.random.default_rng(seed)) for seed in range(repetitions)]
    return np.mean([interval.low <= truth <= interval.high for interval in found])


def answers(random, number, first, second):
    """Right or wrong on the same questions, whose difficulty both models share."""
    difficulty = random.random(number)
    return (difficulty < first).astype(float), (
        0.7 * difficulty + 0.3 * random.random(number) < second
    ).astype(float)


@pytest.mark.parametrize(("number", "tasks"), [(12, 1), (40, 1), (4, 16), (40, 5)])
@pytest.mark.parametrize("rate", [0.02, 0.3, 0.9])
def test_differences_of_equal_models_hold_zero(number, tasks, rate):
    def draw(random):
        pairs = []
        for _ in range(tasks):
            same = random.random((2, number)) < rate
            pairs.append((same[0], same[1]))
        return paired_difference(pairs)

    assert coverage(draw, 0.0) >= 0.92


def test_a_difference_has_a_width_where_both_always_fail():
    zero = np.zeros(16)
    found = paired_difference([(zero, zero)])
    assert found.value == 0
    assert found.low == pytest.approx(-found.high)
    assert 0.08 < found.high < 0.14
    drawn = bootstrap([np.array([zero, zero])])
    assert (
        0.05 < np.percentile(drawn[:, 0, 0] - drawn[:, 1, 0], 97.5) < 0.2
    )  # a bootstrap alone would have none


def test_many_tasks_share_what_is_added():
    found = paired_difference([(np.ones(10), np.zeros(10))] * 8)
    assert found.low < found.value < found.high  # two in each task would shrink it to 10 / 12


def test_the_bootstrap_agrees_with_the_formula():
    random = np.random.default_rng(0)
    pairs = [answers(random, 60, 0.7, 0.5) for _ in range(5)]
    formula, drawn = (
        paired_difference(pairs),
        bootstrap([np.array(pair) for pair in pairs]).mean(axis=-1),
    )
    low, high = np.percentile(drawn[:, 0] - drawn[:, 1], (2.5, 97.5))
    assert (low, high) == pytest.approx((formula.low, formula.high), abs=0.02)
    again = bootstrap([np.array(pair) for pair in pairs]).mean(axis=-1)
    assert (again == drawn).all()


def share(means):
    return means[..., 0, :].sum(axis=-1) / means[..., 1, :].sum(axis=-1)


@pytest.mark.parametrize("kept", [0.4, 0.9])
def test_shares_kept_hold_the_truth(kept):
    def draw(random):
        dense = (random.random((2, 60)) < 0.5).astype(float)
        return resampled(
            (share, [np.stack([task * (random.random(60) < kept), task]) for task in dense])
        )

    assert coverage(draw, kept, 200) >= 0.9


def test_a_gap_of_shares_is_that_of_its_sides():
    right, wrong = np.ones(40), np.r_[np.ones(20), np.zeros(20)]
    easy, hard = (share, [np.stack([right, right])]), (share, [np.stack([wrong, right])])
    assert resampled(easy, hard).value == pytest.approx(0.5)
    assert resampled(easy, hard).low > 0.25
    assert resampled(hard, easy).high < -0.25


@pytest.mark.parametrize("documents", [6, 16])
def test_changes_of_perplexity_hold_the_truth(documents):
    def draw(random):
        counts = random.integers(100, 600, documents)
        rates = 3 + random.normal(0, 0.4, documents)
        changes = 0.1 + random.normal(0, 0.05, documents)  # of documents, which differ
        return change(rates * counts, (rates + changes) * counts, counts)

    assert coverage(draw, np.expm1(0.1)) >= 0.92


def test_numbers_worked_out_by_hand():
    assert perplexity([2.0, 4.0], [1, 1]) == pytest.approx(
        (np.exp(3), np.exp(3))
    )  # the rates are 3 ± 1
    assert mean_interval([2.0, 4.0], [1, 2]).mapped(np.exp)[:3] == pytest.approx([np.exp(2)] * 3)
    assert log_change([1.0, 2.0], [2.0, 4.0], [1, 2]).value == pytest.approx(1)
    assert mean_interval([1, 2, 3]) == pytest.approx(
        (2, 2 - 4.30265 / 3**0.5, 2 + 4.30265 / 3**0.5, 3), abs=1e-4
    )
    assert np.isnan(mean_interval([1.0]).low)
    times = [1.0, 2.0, 4.0], [2.0, 3.0, 4.0]
    assert time_ratio(*times).low == pytest.approx(1 + change(*np.log(times), np.ones(3)).low)
    assert 1 - Interval(1, 0, 3, 7) == (0, -2, 1, 7)
    assert Interval(1, 0, 3, 7) * 2 == (2, 0, 6, 7)


def test_rank_correlations():
    assert (
        rank_correlation(range(8), [0.0, 0.0, 0.1, 0.0, 0.1, 0.1, 0.2, 0.8]).low > 0
    )  # LLaMA3.1-8B's α, printed
    assert np.isnan(rank_correlation([1, 2, 3, 4], [5, 5, 5, 5]).value)
    assert np.isnan(rank_correlation([1, 2, 3], [1, 2, 3]).low)

    def draw(random):
        return rank_correlation(*random.normal(size=(2, 12)))

    assert coverage(draw, 0.0) >= 0.92


@pytest.mark.parametrize(
    ("right", "number", "chance", "reason"),
    [
        (10, 40, 0.0, None),
        (0, 24, 0.0, FEW),  # nobody can tell 0 from 10 % by 24 questions
        (0, 400, 0.0, FLOOR),
        (22, 40, 0.5, FEW),
        (2520, 5000, 0.5, FLOOR),
        (2700, 5000, 0.5, None),
        (32, 108, 0.264, FEW),  # BBH, whose options can be guessed
        (32, 108, 0.0, None),
        (1, 1, 0.0, FEW),
        (0, 0, 0.0, FEW),
    ],
)
def test_the_floor_is_told_from_too_few_questions(right, number, chance, reason):
    dense = np.r_[np.ones(right), np.zeros(number - right)]
    assert floor(dense, np.full(number, chance)) == reason


def test_a_guess_has_a_rate_for_each_question():
    dense = np.r_[np.ones(70), np.zeros(30)]
    assert floor(dense, np.r_[np.full(50, 1.0), np.zeros(50)]) is None, "0.7 against 0.5 on average"
    assert floor(dense, np.r_[np.full(70, 1.0), np.zeros(30)]) == FEW


def test_no_share_is_known_exactly():
    """Agresti and Coull: also where all answers are wrong."""
    assert score_error([0.0] * 10) == pytest.approx(np.sqrt(2 / 14 * 12 / 14 / 14))
    assert score_error([1.0] * 10) == pytest.approx(score_error([0.0] * 10))
    assert score_error([0.2, 0.4, 0.9]) == pytest.approx(
        np.std([0.2, 0.4, 0.9], ddof=1) / 3**0.5
    ), "no shares"
    assert np.isnan(score_error([1.0]))


def test_holm_widens_until_the_first_that_does_not_decide():
    """The p-values times 3, 2 and 1, as Holm has them."""
    error = 1 / 1.959964
    middles = (4 * error, 2.1 * error, 0.1 * error)
    clear, edge, open_ = (Interval(z, z - 1.959964 * error, z + 1.959964 * error) for z in middles)
    found = holm([edge, clear, open_], [0.0] * 3)
    levels = [(interval.high - interval.low) / 2 / error for interval in found]
    assert levels[1] == pytest.approx(stats.norm.ppf(1 - 0.05 / 6), abs=1e-4), "the first of three"
    assert levels[0] == pytest.approx(stats.norm.ppf(1 - 0.05 / 4), abs=1e-4), (
        "the next of two: 2.1 < 2.24"
    )
    assert levels[2] == pytest.approx(levels[0]), "and there it stays"
    assert found[1].low > 0 > found[0].low
    assert holm([clear], [0.0])[0].low == pytest.approx(clear.low)

    def no_false_lead(random):
        means = random.normal(size=5)
        intervals = [Interval(mean, mean - 1.96, mean + 1.96) for mean in means]
        return Interval(0.0, *(max(i.low for i in holm(intervals, [0.0] * 5)), 1.0))

    assert coverage(no_false_lead, 0.0) >= 0.92, "of five true nulls, none is told with 95 %"


def test_means_of_tasks_are_compared_question_by_question():
    random = np.random.default_rng(0)
    first, second = random.normal(size=(2, 40)), random.normal(size=(2, 7))
    found = paired_mean_difference([first, second])
    parts = [first[0] - first[1], second[0] - second[1]]
    assert found.value == pytest.approx(np.mean([part.mean() for part in parts]))
    error = np.sqrt(sum(part.var(ddof=1) / len(part) for part in parts)) / 2
    assert found.high - found.value == pytest.approx(1.959964 * error)
    assert found.n == 47
    assert np.isnan(paired_mean_difference([([1.0], [0.0])]).low)

    def draw(random):
        noise = random.normal(size=(2, 2, 30))
        return paired_mean_difference([(noise[0, 0], noise[0, 1]), (noise[1, 0], noise[1, 1])])

    assert coverage(draw, 0.0) >= 0.92


def test_draws_without_a_value_are_left_out():
    """A share of nothing: 0/0 in some draws."""

    def share(means):
        return means[..., 0, :].mean(-1) / means[..., 1, :].mean(-1)

    scores = np.zeros((2, 6))
    scores[:, 0] = 1
    found = resampled((share, [scores]))
    assert found.value == 1
    assert np.isfinite([found.low, found.high]).all()
