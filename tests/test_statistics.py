import numpy as np
import pytest
from scipy import stats

from harp_lib.statistics import mean_interval, paired_change, perplexity_estimate


def test_perplexity_of_documents():
    value, error = perplexity_estimate([20.0, 33.0, 11.0], [10, 11, 5])
    assert value == pytest.approx(np.exp(64 / 26))
    assert error > 0


def test_the_error_is_that_of_repeated_draws():
    random = np.random.default_rng(0)

    def draw():
        counts = random.integers(50, 150, 40)
        return perplexity_estimate(counts * random.normal(3, 0.3, 40), counts)

    draws = [draw() for _ in range(400)]
    assert np.std([d.value for d in draws]) == pytest.approx(np.mean([d.error for d in draws]), rel=0.1)


def test_one_document_has_no_error():
    assert np.isnan(perplexity_estimate([3.0], [2]).error)
    assert np.isnan(paired_change([3.0], [4.0], [2]).low)


def test_paired_change_of_a_common_factor():
    counts = [10, 20, 30, 25]
    first = [25.0, 61.0, 70.0, 80.0]
    second = [nll + np.log(1.1) * count for nll, count in zip(first, counts, strict=True)]
    assert paired_change(first, second, counts) == pytest.approx((0.1, 0.1, 0.1))


def test_no_change_is_not_called_one():
    random = np.random.default_rng(1)
    counts, first = np.full(30, 100), random.normal(300, 30, 30)
    change = paired_change(first, first + random.normal(0, 3, 30), counts)
    assert change.low < 0 < change.high
    assert change.low < change.value < change.high


def test_the_interval_holds_the_truth_as_often_as_it_says():
    random = np.random.default_rng(2)
    for documents in (3, 8, 30):
        held = 0
        for _ in range(500):
            first = random.normal(300, 30, documents)
            change = paired_change(first, first + random.normal(5, 10, documents), np.full(documents, 100))
            held += change.low <= np.expm1(0.05) <= change.high
        assert 460 <= held <= 490, f"{held} of 500 with {documents} documents; 475 is 95 %"


def test_mean_interval_is_students():
    values = [0.3, 0.1, 0.4, 0.15]
    low, high = stats.t.interval(0.95, 3, loc=np.mean(values), scale=stats.sem(values))
    assert mean_interval(values) == pytest.approx((np.mean(values), low, high))
    assert np.isnan(mean_interval([0.3]).low)
