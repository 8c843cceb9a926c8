"""Intervals hold what they should: by simulation, and against what can be worked out by hand."""

import numpy as np
import pytest

from harp_lib.report.comparisons import (
    FEW,
    FLOOR,
    Interval,
    bootstrap,
    change,
    floor,
    log_change,
    mean_interval,
    paired_difference,
    perplexity,
    rank_correlation,
    resampled,
    time_ratio,
)


def coverage(draw, truth, repetitions=400):
    """How often an interval of made-up data holds the truth."""
    found = [draw(np.random.default_rng(seed)) for seed in range(repetitions)]
    return np.mean([interval.low <= truth <= interval.high for interval in found])


def answers(random, number, first, second):
    """Right or wrong on the same questions, whose difficulty both models share."""
    difficulty = random.random(number)
    return (difficulty < first).astype(float), (0.7 * difficulty + 0.3 * random.random(number) < second).astype(float)


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
    assert 0.05 < np.percentile(drawn[:, 0, 0] - drawn[:, 1, 0], 97.5) < 0.2  # a bootstrap alone would have none


def test_many_tasks_share_what_is_added():
    found = paired_difference([(np.ones(10), np.zeros(10))] * 8)
    assert found.low < found.value < found.high  # two in each task would shrink it to 10 / 12


def test_the_bootstrap_agrees_with_the_formula():
    random = np.random.default_rng(0)
    pairs = [answers(random, 60, 0.7, 0.5) for _ in range(5)]
    formula, drawn = paired_difference(pairs), bootstrap([np.array(pair) for pair in pairs]).mean(axis=-1)
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
        return resampled((share, [np.stack([task * (random.random(60) < kept), task]) for task in dense]))

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
    assert perplexity([2.0, 4.0], [1, 1]) == pytest.approx((np.exp(3), np.exp(3)))  # the rates are 3 ± 1
    assert mean_interval([2.0, 4.0], [1, 2]).mapped(np.exp)[:3] == pytest.approx([np.exp(2)] * 3)
    assert log_change([1.0, 2.0], [2.0, 4.0], [1, 2]).value == pytest.approx(1)
    assert mean_interval([1, 2, 3]) == pytest.approx((2, 2 - 4.30265 / 3**0.5, 2 + 4.30265 / 3**0.5, 3), abs=1e-4)
    assert np.isnan(mean_interval([1.0]).low)
    times = [1.0, 2.0, 4.0], [2.0, 3.0, 4.0]
    assert time_ratio(*times).low == pytest.approx(1 + change(*np.log(times), np.ones(3)).low)
    assert 1 - Interval(1, 0, 3, 7) == (0, -2, 1, 7)
    assert Interval(1, 0, 3, 7) * 2 == (2, 0, 6, 7)


def test_rank_correlations():
    assert rank_correlation(range(8), [0.0, 0.0, 0.1, 0.0, 0.1, 0.1, 0.2, 0.8]).low > 0  # LLaMA3.1-8B's α, printed
    assert np.isnan(rank_correlation([1, 2, 3, 4], [5, 5, 5, 5]).value)
    assert np.isnan(rank_correlation([1, 2, 3], [1, 2, 3]).low)

    def draw(random):
        return rank_correlation(*random.normal(size=(2, 12)))

    assert coverage(draw, 0.0) >= 0.92


def task(right, number, chance=0.0):
    dense = np.r_[np.ones(right), np.zeros(number - right)]
    return [(dense, chance)]


@pytest.mark.parametrize(
    ("dense", "reason"),
    [
        (task(10, 40), None),
        (task(0, 24), FEW),  # nobody can tell 0 from 10 % by 24 questions
        (task(0, 400), FLOOR),
        (task(22, 40, 0.5), FEW),
        (task(2520, 5000, 0.5), FLOOR),
        (task(2700, 5000, 0.5), None),
        (task(1, 1), FEW),
        ([], FEW),
        (task(0, 24) + task(30, 40), None),  # together
    ],
)
def test_the_floor_is_told_from_too_few_questions(dense, reason):
    assert floor(dense) == reason
