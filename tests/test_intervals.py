"""Intervals and differences of pairs, each against a twin."""

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from harp_lib.report import intervals
from harp_lib.report.intervals import Interval
from harp_lib.report.paired import paired


def test_ends_stay_in_their_order():
    ratio = Interval(0.9, 0.8, 1.1, 7, p=0.3, effect="time")
    opposite = ratio.times(100).opposite()
    assert (opposite.value, opposite.low, opposite.high) == pytest.approx((-90, -110, -80))
    assert (opposite.n, opposite.p, opposite.effect) == (7, 0.3, "time")
    assert f"{ratio:.1f}" == "0.9 [0.8, 1.1]"
    assert ratio.times(-100) == opposite


def test_the_error_of_a_log_change_is_near_the_jackknife_s():
    random = np.random.default_rng(0)
    first, second = random.uniform(100, 300, (2, 40))
    tokens = random.integers(80, 120, 40)
    ours = intervals.log_change(first, second, tokens)
    differences = second - first
    assert ours.value == pytest.approx(differences.sum() / tokens.sum())
    left_out = (differences.sum() - differences) / (tokens.sum() - tokens)
    error = np.sqrt(39 / 40 * ((left_out - left_out.mean()) ** 2).sum())
    assert ours.high - ours.value == pytest.approx(stats.t.ppf(0.975, 39) * error, rel=0.02)


def test_the_p_value_of_a_mean_is_that_of_the_t_test():
    amounts = np.random.default_rng(1).normal(0.5, 1, 12)
    ours = intervals.mean_interval(amounts)
    twin = stats.ttest_1samp(amounts, 0)
    assert ours.p == pytest.approx(twin.pvalue)
    assert (ours.low, ours.high) == pytest.approx(tuple(twin.confidence_interval()))


@pytest.mark.parametrize("sizes", [(40,), (40, 15)])
def test_a_score_difference_is_that_of_scores_with_two_pairs_more(sizes):
    random = np.random.default_rng(2)
    pairs = [random.integers(0, 2, (2, number)) for number in sizes]
    ours = intervals.paired_scores(pairs)
    middles, squared_errors = [], []
    for first, second in pairs:
        differences = np.append(first - second, [1, -1, 0, 0])
        weights = np.append(np.ones(len(first)), np.full(4, 0.5 / len(pairs)))
        middle = np.average(differences, weights=weights)
        variance = np.average((differences - middle) ** 2, weights=weights)
        middles.append(middle)
        squared_errors.append(variance / weights.sum())
    assert ours.value == pytest.approx(np.mean([(one - two).mean() for one, two in pairs]))
    assert (ours.low + ours.high) / 2 == pytest.approx(np.mean(middles))
    error = np.sqrt(np.sum(squared_errors)) / len(pairs)
    assert (ours.high - ours.low) / 2 == pytest.approx(stats.norm.ppf(0.975) * error)


def test_a_mean_over_two_tasks_is_half_of_welch_s_sum():
    random = np.random.default_rng(3)
    (first, second), (third, fourth) = (random.normal(0, 1, (2, number)) for number in (12, 5))
    ours = intervals.paired_means([(first, second), (third, fourth)])
    twin = stats.ttest_ind(first - second, fourth - third, equal_var=False)
    interval = twin.confidence_interval()
    assert ours.p == pytest.approx(twin.pvalue)
    assert (ours.low, ours.high) == pytest.approx((interval.low / 2, interval.high / 2))


def test_few_ranks_have_the_p_value_of_scipy_s_permutation_test():
    first = [1, 2, 3, 4, 5, 6]
    second = [0.1, 0.4, 0.3, 0.3, 0.7, 0.6]

    def rho(order):
        return stats.spearmanr(order, second).statistic

    twin = stats.permutation_test((first,), rho, permutation_type="pairings", n_resamples=np.inf)
    ours = intervals.rank_correlation(first, second)
    assert ours.value == pytest.approx(twin.statistic)
    assert ours.p == pytest.approx(twin.pvalue)
    assert np.isnan(ours.low)


def test_many_ranks_have_an_interval_and_constant_ones_nothing():
    first = np.arange(20)
    second = first + np.random.default_rng(3).normal(0, 3, 20)
    ours = intervals.rank_correlation(first, second)
    twin = stats.pearsonr(stats.rankdata(first), stats.rankdata(second))
    assert ours.value == pytest.approx(twin.statistic)
    wider = np.sqrt(1 + ours.value**2 / 2)  # Fisher's interval is for values, this one for ranks
    reach = wider * (np.arctanh(twin.confidence_interval().high) - np.arctanh(twin.statistic))
    assert ours.high == pytest.approx(np.tanh(np.arctanh(ours.value) + reach), abs=1e-4)
    assert np.isnan(intervals.rank_correlation(first, np.ones(20)).value)


@pytest.mark.parametrize(("rounds", "beyond"), [(6, 0), (8, 0), (9, 1), (10, 1), (20, 5)])
def test_a_ratio_of_times_lies_between_order_statistics(rounds, beyond):
    random = np.random.default_rng(rounds)
    first, second = random.uniform(1, 2, (2, rounds))
    ratios = sorted(second / first)
    ours = intervals.time_ratio(first, second)
    assert ours.value == pytest.approx(np.median(ratios))
    assert (ours.low, ours.high) == (ratios[beyond], ratios[-1 - beyond])
    inside = stats.binom.cdf(rounds - beyond - 1, rounds, 0.5) - stats.binom.cdf(
        beyond, rounds, 0.5
    )
    assert inside >= 0.95


def test_a_ratio_of_fewer_than_six_rounds_has_no_interval():
    assert np.isnan(intervals.time_ratio(np.ones(5), np.arange(5)).low)


def test_the_bootstrap_of_a_mean_is_close_to_student_s():
    amounts = np.random.default_rng(4).normal(1, 1, 60)
    drawn = intervals.bootstrap(lambda places: amounts[places].mean(), 60)
    student = intervals.mean_interval(amounts)
    assert drawn.value == pytest.approx(student.value)
    assert (drawn.low, drawn.high) == pytest.approx((student.low, student.high), abs=0.05)
    assert drawn.p < 0.01


def test_p_values_are_adjusted_as_by_hand():
    assert intervals.holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert intervals.holm([0.02, np.nan])[0] == pytest.approx(0.02)


@pytest.mark.parametrize(
    ("ends", "text"),
    [((1.0, 0.5, 2.0), "+1.0 [+0.5, +2.0]"), ((1.0, np.nan, np.nan), "+1.0"), ((np.nan,) * 3, "–")],
)
def test_an_interval_without_ends_is_its_value(ends, text):
    assert f"{Interval(*ends):+.1f}" == text


# Pairs


def asked(method, task, values, measure="bits"):
    """Rows of a method's answers to the first questions of a task."""
    questions = range(len(values))
    frame = pd.DataFrame({"method": method, "task": task, "subtask": task, "question": questions})
    return frame.assign(model="Gemma", **{measure: values})


def test_pairs_are_of_the_same_questions_and_tasks_weigh_alike():
    """By hand: +1 and +2 on the first task, where a third question was asked of one method alone;

    +3, +4, +5 on the second. Means 1.5 and 4, so 2.75 on average; squared errors 1/4 and 1/3, so
    the error is half of the root of 7/12, on 3.0 degrees of freedom (Welch).
    """
    frame = pd.concat(
        [
            asked("harp", "a", [5, 7, 100]),
            asked("flap", "a", [4, 5]),
            asked("flap", "b", [0, 0, 0]),
            asked("harp", "b", [3, 4, 5])[::-1],
        ]
    )
    pairs = [("harp", "flap"), ("flap", "harp"), ("harp", "absent")]
    rows = paired(frame, ["model"], pairs, "bits")
    columns = ["model", "method", "against", "value", "low", "high", "n", "p"]
    assert rows.columns.tolist() == columns
    assert rows["against"].tolist() == ["flap", "harp"]
    assert rows["value"].tolist() == [2.75, -2.75]
    assert rows["n"].tolist() == [5, 5]
    freedom = (7 / 12) ** 2 / ((1 / 4) ** 2 / 1 + (1 / 3) ** 2 / 2)
    reach = stats.t.ppf(0.975, freedom) * np.sqrt(7 / 12) / 2
    assert rows["low"].tolist() == pytest.approx([2.75 - reach, -2.75 - reach])
    by_task = paired(frame, ["model", "task"], pairs[:1], "bits")
    assert dict(zip(by_task["task"], by_task["value"], strict=True)) == {"a": 1.5, "b": 4.0}


def test_scores_are_paired_in_points_and_likelihoods_as_ratios():
    scores = pd.concat(
        [asked("harp", "a", [1, 1, 0, 1], "score"), asked("flap", "a", [1, 0, 0, 0], "score")]
    )
    (points,) = paired(scores, ["model"], [("harp", "flap")], "score").to_dict("records")
    by_hand = intervals.paired_scores([([1, 1, 0, 1], [1, 0, 0, 0])])
    assert points["value"] == 50
    assert (points["low"], points["p"]) == pytest.approx((100 * by_hand.low, by_hand.p))

    nll = {"method": ["harp", "harp", "dense", "dense"], "document": [0, 1, 1, 0]}
    texts = pd.DataFrame(nll | {"nll": [30, 50, 40, 20], "tokens": [10, 30, 30, 10]})
    texts["text"] = "News"
    (ratio,) = paired(texts, ["text"], [("harp", "dense")], "nll").to_dict("records")
    assert ratio["value"] == pytest.approx(np.exp((30 + 50 - 20 - 40) / 40))
    assert ratio["n"] == 2


def test_times_are_paired_by_round_and_one_slow_round_does_not_decide():
    times = {"harp": [8, 90, 9, 7, 8, 8], "dense": [10, 10, 10, 10, 16, 10]}
    rounds = pd.DataFrame(times).rename_axis("repetition").reset_index()
    rounds = rounds.melt("repetition", var_name="method", value_name="seconds")[::-1]
    rows = paired(rounds.assign(model="Gemma"), ["model"], [("harp", "dense")], "seconds")
    (ratio,) = rows.to_dict("records")
    assert (ratio["value"], ratio["n"]) == (0.8, 6)
    assert (ratio["low"], ratio["high"]) == (0.5, 9)
    assert ratio["p"] == pytest.approx(14 / 64)  # five of six are below 1


def test_two_values_of_a_question_are_refused():
    frame = pd.concat([asked("harp", "a", [1, 2]), asked("harp", "a", [3])])
    with pytest.raises(ValueError, match=r"two rows have model Gemma, .*question 0, method harp"):
        paired(frame, ["model"], [("harp", "flap")], "bits")
