"""Intervals hold the truth as often as they say, and numbers agree with those made by hand."""

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
    perplexity_and_error,
    rank_correlation,
    resampled,
    score_error,
    time_ratio,
)


def coverage(draw, truth, repetitions=400):
    """How often an interval of made-up data holds the truth."""
    intervals = [draw(np.random.default_rng(seed)) for seed in range(repetitions)]
    return np.mean([interval.low <= truth <= interval.high for interval in intervals])


def answers(random, number, first, second):
    """Right or wrong on the same questions, whose difficulty both models share."""
    difficulty = random.random(number)
    similar_difficulty = 0.7 * difficulty + 0.3 * random.random(number)
    return (difficulty < first).astype(float), (similar_difficulty < second).astype(float)


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
    interval = paired_difference([(zero, zero)])
    assert interval.value == 0
    assert interval.low == pytest.approx(-interval.high)
    assert 0.08 < interval.high < 0.14
    means = bootstrap([np.array([zero, zero])])
    highest = np.percentile(means[:, 0, 0] - means[:, 1, 0], 97.5)
    assert 0.05 < highest < 0.2, "a bootstrap of the questions alone would have no width"


def test_many_tasks_share_the_added_observations():
    interval = paired_difference([(np.ones(10), np.zeros(10))] * 8)
    assert interval.low < interval.value < interval.high, "two in each task would shrink it to 5/6"


def test_the_bootstrap_agrees_with_the_formula():
    random = np.random.default_rng(0)
    pairs = [answers(random, 60, 0.7, 0.5) for _ in range(5)]
    formula = paired_difference(pairs)
    means = bootstrap([np.array(pair) for pair in pairs]).mean(axis=-1)
    low, high = np.percentile(means[:, 0] - means[:, 1], (2.5, 97.5))
    assert (low, high) == pytest.approx((formula.low, formula.high), abs=0.02)
    again = bootstrap([np.array(pair) for pair in pairs]).mean(axis=-1)
    assert (again == means).all()


def share(means):
    return means[..., 0, :].sum(axis=-1) / means[..., 1, :].sum(axis=-1)


@pytest.mark.parametrize("kept", [0.4, 0.9])
def test_shares_kept_hold_the_truth(kept):
    def draw(random):
        tasks = []
        for dense in (random.random((2, 60)) < 0.5).astype(float):
            is_kept = random.random(60) < kept
            tasks.append(np.stack([dense * is_kept, dense]))
        return resampled((share, tasks))

    assert coverage(draw, kept, 200) >= 0.9


def test_a_gap_of_shares_is_the_difference_of_its_sides():
    right = np.ones(40)
    half_right = np.r_[np.ones(20), np.zeros(20)]
    easy = (share, [np.stack([right, right])])
    hard = (share, [np.stack([half_right, right])])
    assert resampled(easy, hard).value == pytest.approx(0.5)
    assert resampled(easy, hard).low > 0.25
    assert resampled(hard, easy).high < -0.25


@pytest.mark.parametrize("documents", [6, 16])
def test_changes_of_perplexity_hold_the_truth(documents):
    def draw(random):
        counts = random.integers(100, 600, documents)
        rates = 3 + random.normal(0, 0.4, documents)
        changes = 0.1 + random.normal(0, 0.05, documents)  # documents differ
        return change(rates * counts, (rates + changes) * counts, counts)

    assert coverage(draw, np.expm1(0.1)) >= 0.92


def test_means_and_perplexities_agree_with_numbers_worked_out_by_hand():
    # The rates of the two documents are 3 ± 1.
    assert perplexity_and_error([2.0, 4.0], [1, 1]) == pytest.approx((np.exp(3), np.exp(3)))
    interval = mean_interval([2.0, 4.0], [1, 2]).mapped(np.exp)
    assert interval[:3] == pytest.approx([np.exp(2)] * 3)
    assert log_change([1.0, 2.0], [2.0, 4.0], [1, 2]).value == pytest.approx(1)
    reach = 4.30265 / 3**0.5
    assert mean_interval([1, 2, 3]) == pytest.approx((2, 2 - reach, 2 + reach, 3), abs=1e-4)
    assert np.isnan(mean_interval([1.0]).low)


def test_a_ratio_of_times_is_a_change_of_their_logarithms():
    first = [1.0, 2.0, 4.0]
    second = [2.0, 3.0, 4.0]
    logs = np.log(first), np.log(second)
    assert time_ratio(first, second).low == pytest.approx(1 + change(*logs, np.ones(3)).low)


def test_intervals_are_subtracted_and_scaled():
    assert 1 - Interval(1, 0, 3, 7) == (0, -2, 1, 7)
    assert Interval(1, 0, 3, 7) * 2 == (2, 0, 6, 7)


def test_rank_correlations():
    printed_alphas = [0.0, 0.0, 0.1, 0.0, 0.1, 0.1, 0.2, 0.8]  # of LLaMA3.1-8B
    assert rank_correlation(range(8), printed_alphas).low > 0
    assert np.isnan(rank_correlation([1, 2, 3, 4], [5, 5, 5, 5]).value)
    assert np.isnan(rank_correlation([1, 2, 3], [1, 2, 3]).low)

    def draw(random):
        return rank_correlation(*random.normal(size=(2, 12)))

    assert coverage(draw, 0.0) >= 0.92


@pytest.mark.parametrize(
    ("right", "number", "chance", "reason"),
    [
        (10, 40, 0.0, None),
        (0, 24, 0.0, FEW),  # 24 questions cannot tell 0 from 10 %
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
def test_the_floor_differs_from_too_few_questions(right, number, chance, reason):
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
    scores = [0.2, 0.4, 0.9]
    assert score_error(scores) == pytest.approx(np.std(scores, ddof=1) / 3**0.5), "no shares"
    assert np.isnan(score_error([1.0]))


def test_holm_widens_until_the_first_that_does_not_decide():
    """The p-values times 3, 2 and 1, as Holm has them."""
    error = 1 / 1.959964
    clear, edge, unclear = (
        Interval(z * error, z * error - 1, z * error + 1) for z in (4, 2.1, 0.1)
    )
    widened_edge, widened_clear, widened_unclear = holm([edge, clear, unclear], [0.0] * 3)

    def level(interval):
        return (interval.high - interval.low) / 2 / error

    first_of_three = stats.norm.ppf(1 - 0.05 / 6)
    next_of_two = stats.norm.ppf(1 - 0.05 / 4)
    assert level(widened_clear) == pytest.approx(first_of_three, abs=1e-4)
    assert level(widened_edge) == pytest.approx(next_of_two, abs=1e-4), "2.1 < 2.24"
    assert level(widened_unclear) == pytest.approx(level(widened_edge)), "and there it stays"
    assert widened_clear.low > 0 > widened_edge.low
    assert holm([clear], [0.0])[0].low == pytest.approx(clear.low)


def test_holm_finds_a_false_lead_in_one_of_twenty_studies():
    """Each study has five comparisons without any difference."""

    def highest_low_end(random):
        means = random.normal(size=5)
        intervals = [Interval(mean, mean - 1.96, mean + 1.96) for mean in means]
        highest = max(interval.low for interval in holm(intervals, [0.0] * 5))
        return Interval(0.0, highest, 1.0)

    assert coverage(highest_low_end, 0.0) >= 0.92


def test_means_of_tasks_are_compared_question_by_question():
    random = np.random.default_rng(0)
    first = random.normal(size=(2, 40))
    second = random.normal(size=(2, 7))
    interval = paired_mean_difference([first, second])
    parts = [first[0] - first[1], second[0] - second[1]]
    assert interval.value == pytest.approx(np.mean([part.mean() for part in parts]))
    # Welch's interval of a difference is twice as wide as that of the mean of both.
    welch = stats.ttest_ind(parts[0], -parts[1], equal_var=False).confidence_interval()
    assert interval[:3] == pytest.approx((interval.value, welch.low / 2, welch.high / 2))
    assert interval.n == 47
    one_task = stats.ttest_rel(*second).confidence_interval()
    assert paired_mean_difference([second])[1:3] == pytest.approx((one_task.low, one_task.high))
    assert np.isnan(paired_mean_difference([([1.0], [0.0])]).low)
    assert paired_mean_difference([(second[0], second[0])])[:3] == (0, 0, 0)

    def draw(random):
        noise = random.normal(size=(2, 2, 5))
        return paired_mean_difference([(noise[0, 0], noise[0, 1]), (noise[1, 0], noise[1, 1])])

    assert coverage(draw, 0.0) >= 0.92


def test_draws_without_a_value_are_left_out():
    """In some draws the share is 0/0."""

    def share_of_means(means):
        return means[..., 0, :].mean(-1) / means[..., 1, :].mean(-1)

    scores = np.zeros((2, 6))
    scores[:, 0] = 1
    interval = resampled((share_of_means, [scores]))
    assert interval.value == 1
    assert np.isfinite([interval.low, interval.high]).all()
