"""What notebooks share: frames, intervals, the rule of claims, and what is written."""

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from matplotlib import pyplot as plt
from scipy import stats

from harp_lib import config
from harp_lib.report import intervals, judge, ledger, save
from harp_lib.report.frames import Results, with_plain_types
from harp_lib.report.intervals import Interval
from harp_lib.report.paired import paired
from harp_lib.report.style import dot_panels, dots, model_colours, use_style
from harp_lib.results import Cell, Store, digest, fill

ABOVE = Interval(0.2, 0.1, 0.3, 9, p=0.001)
BELOW = ABOVE.opposite()
AROUND = Interval(0.1, -0.1, 0.3, 9, p=0.3)


@pytest.fixture
def results(only_committed, tmp_path, monkeypatch):
    monkeypatch.setattr(config, "FIGURES", tmp_path)
    return Results("small")


# Frames


@pytest.mark.parametrize("unit", ["norms", "frontier", "efficiency", "baselines"])
def test_rows_have_plain_types(results, unit):
    rows = results.rows(unit)
    assert len(rows) > 100
    assert {str(dtype) for dtype in rows.dtypes} <= {"int64", "float64", "bool", "str"}
    assert {"SmolLM2", "Gemma", "Qwen 0.5B", "Qwen 1.5B"} <= set(rows["model"])


def test_whole_numbers_stay_whole_and_missing_ones_are_nan():
    frame = pd.DataFrame(
        {"layer": [1, 2], "head": [3, None], "text": ["a", None], "nothing": [None, None]},
        dtype=object,
    )
    plain = with_plain_types(frame)
    assert [str(dtype) for dtype in plain.dtypes] == ["int64", "float64", "str"]
    assert plain["text"].isna().tolist() == [False, True]


def test_rows_are_those_of_the_cells(results):
    rows = results.rows("norms", "alpha").query("model == 'Gemma' and method == 'searched'")
    (cell,) = [
        cell
        for cell in results.cells("norms")
        if (cell["about"]["model"], cell["about"]["method"]) == ("gemma3-270m", "searched")
    ]
    stored = cell["result"]["rows"]
    alphas = {}
    for quantity, layer, value in zip(
        stored["quantity"], stored["layer"], stored["value"], strict=True
    ):
        if quantity == "alpha":
            alphas[layer] = value
    assert dict(zip(rows["layer"], rows["value"], strict=True)) == alphas
    assert set(rows["corpus"]) == {cell["about"]["corpus"]}


def test_an_unknown_quantity_is_named_with_those_that_there_are(results):
    with pytest.raises(ValueError, match=r"norms has no quantity 'entropy'; it has alpha,"):
        results.rows("norms", "entropy")


def test_documents_have_their_likelihood_and_their_tokens(results):
    documents = results.documents("frontier").query("text == 'News'")
    of_dense = documents.query("model == 'SmolLM2' and method == 'dense'")
    assert len(of_dense) == 12
    assert 5 < np.exp(of_dense["nll"].sum() / of_dense["tokens"].sum()) < 50


def test_baselines_with_equal_plans_share_a_title(results):
    plans = results.plans().set_index(["model", "method"])
    assert plans.loc[("Gemma", "mag-sp"), "title"] == "Mag-sp = LLM-Pruner = Wanda-sp"
    assert not plans.loc[("Gemma", "wanda-sp"), "first"]
    assert plans.loc[("SmolLM2", "mag-sp"), "title"] == "Mag-sp"
    assert plans.loc[("SmolLM2", "mag-sp"), "groups_per_layer"] == 3


ALIKE = ("owner/model", "other/model", "/home/me/SmolLM2", "smollm2-135m")
"""Models whose last names, or names in figures, are the same."""


@pytest.fixture
def alike(results):
    """Results of a profile that holds these models, each with a value of its own."""
    for number, model in enumerate(ALIKE):
        rows = [{"quantity": "nll", "value": number}, {"quantity": "tokens", "value": 1}]
        row_of_question = {"question": 0, "score": number}
        result = {
            "rows": [row | {"document": 0} | row_of_question for row in rows],
            "plan": {"layers": [number]},
        }
        cells = []
        for method in ("flap", "mag-sp"):
            inputs = {"what": "plan", "model": model, "method": method}
            cells.append(Cell(inputs, lambda made=result: made, {"method": method}))
        fill(Store(), config.RESULTS / "mini" / "plans", model, cells)
    return Results("mini")


def test_models_of_one_last_name_stay_apart(alike):
    short = ["SmolLM2", "owner/model", "other/model", "me/SmolLM2"]
    numbers = {"owner/model": 0, "other/model": 1, "me/SmolLM2": 2, "SmolLM2": 3}
    rows = alike.rows("plans", "nll").groupby("model", sort=False)["value"]
    assert rows.nunique().to_dict() == dict.fromkeys(short, 1)
    assert rows.first().to_dict() == numbers
    for frame in (alike.documents("plans"), alike.plans(), alike.questions("plans")):
        assert frame.groupby(["model", "method"]).size().max() <= 2
        assert set(frame["model"]) == set(short)
    colours = model_colours(short)
    assert len(set(map(str, colours.values()))) == len(short)


def test_verdicts_have_full_names_because_other_notebooks_know_other_models(alike, monkeypatch):
    entries = dict(list(judge.claims().items()))
    claim = next(name for name, entry in entries.items() if entry["kind"] == "measured")
    monkeypatch.setattr(judge, "claims", lambda: {claim: entries[claim]})
    alike = Results("mini", entries[claim]["notebook"])
    assert "model" in alike.rows("plans")
    for model in ("SmolLM2", "me/SmolLM2"):
        alike.judge(claim, model, ABOVE)
    assert "me/SmolLM2" in alike.verdict().data
    (file,) = config.FIGURES.glob("mini/verdicts/*.csv")
    assert pd.read_csv(file)["model"].tolist() == ["smollm2-135m", "/home/me/SmolLM2"]
    other = file.with_name("99.csv")
    for model in ("/your/SmolLM2", "007"):
        frame = pd.read_csv(file).assign(model=model)
        frame.to_csv(other, index=False)
        names = ledger.verdicts("mini")["model"].unique()
        assert len(names) == 3
    assert names[-1] == "007", "not 7"


# Intervals, each with a twin


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


def test_rows_are_judged_as_their_effects_are_and_said_in_words(results, capsys):
    frame = pd.concat([asked("harp", "a", [5, 7, 8]), asked("flap", "a", [4, 5, 7])])
    rows = paired(frame, ["model"], [("harp", "flap")], "bits")
    (effect,) = judge.effects_of(rows)
    assert effect == intervals.paired_means([([5, 7, 8], [4, 5, 7])]).named("flap")
    assert judge.effects_of(rows.iloc[0]) == [effect]
    assert judge.effects_of(rows.assign(effect="FLAP")) == [effect.named("FLAP")]

    results.judge("alpha-beats-one", "Gemma", rows)
    results.judge("alpha-beats-one", "SmolLM2", reason="not run")
    statement, of_gemma, of_smollm2 = capsys.readouterr().out.splitlines()
    assert statement == judge.claims()["alpha-beats-one"]["statement"].strip()
    assert of_gemma == "  ? Gemma: flap +1.33 [−0.101, +2.77], n = 3"
    assert of_smollm2 == "  – SmolLM2: not run"


def test_a_baseline_with_an_equal_plan_is_left_out(results):
    frame = pd.DataFrame({"model": "Gemma", "method": ["dense", "mag-sp", "wanda-sp", "harp"]})
    distinct = results.distinct_plans(frame.assign(value=[1, 2, 3, 4]))
    assert distinct["method"].tolist() == ["dense", "Mag-sp = LLM-Pruner = Wanda-sp", "HARP"]
    assert distinct["value"].tolist() == [1, 2, 4]
    assert list(distinct) == ["model", "method", "value"]


@pytest.mark.parametrize(
    ("ends", "text"),
    [((1.0, 0.5, 2.0), "+1.0 [+0.5, +2.0]"), ((1.0, np.nan, np.nan), "+1.0"), ((np.nan,) * 3, "–")],
)
def test_an_interval_without_ends_is_its_value(ends, text):
    assert f"{Interval(*ends):+.1f}" == text


# The rule


@pytest.mark.parametrize(
    ("effects", "mark"),
    [
        ([], "–"),
        ([ABOVE], "✓"),
        ([ABOVE, ABOVE], "✓"),
        ([ABOVE, AROUND], "?"),
        ([ABOVE, BELOW], "✗"),
        ([AROUND], "?"),
        ([BELOW], "✗"),
        ([replace(BELOW, p=0.03)], "✗"),
        ([replace(BELOW, p=0.03), AROUND], "?"),  # two effects: 0.06
        ([Interval(0.9, np.nan, np.nan, 5, p=0.02)], "✓"),  # few ranks
        ([Interval(0.9, np.nan, np.nan, 5, p=0.08)], "?"),
        ([Interval(np.nan, np.nan, np.nan, 5)], "?"),
    ],
)
def test_the_sign_of_the_effects_decides(effects, mark):
    assert judge.mark(effects) == mark


@pytest.mark.parametrize(
    ("ends", "mark"), [((-1, 4), "✓"), ((6, 9), "✗"), ((3, 7), "?"), ((-np.inf, 9), "?")]
)
def test_a_margin_decides_what_is_comparable(ends, mark):
    effect = Interval(sum(ends) / 2, *ends, 9, p=0.001)
    assert judge.mark([effect], within=(-np.inf, 5)) == mark


def test_a_judgement_keeps_intervals_and_adjusts_p_values():
    effects = [ABOVE.named("WikiText-2"), AROUND.named("News")]
    rows = judge.judgement("alpha-beats-one", "Gemma", effects)
    assert [row["effect"] for row in rows] == ["WikiText-2", "News"]
    assert [row["high"] for row in rows] == [0.3, 0.3]
    assert [row["p"] for row in rows] == pytest.approx([0.002, 0.3])
    assert {row["mark"] for row in rows} == {"?"}


def test_a_wrong_claim_and_a_missing_reason_are_named():
    with pytest.raises(ValueError, match="unknown claim 'alpha-beats-two'"):
        judge.judgement("alpha-beats-two", "Gemma", [ABOVE])
    with pytest.raises(ValueError, match="say why"):
        judge.judgement("alpha-beats-one", "Gemma", [])


def test_statements_of_ours_have_no_mark():
    (row,) = judge.judgement("alpha-of-a-second-sample", "Gemma", [ABOVE])
    assert row["mark"] == ""


# What is written


def test_a_check_raises_in_small_and_speaks_elsewhere(results, capsys, monkeypatch):
    results.check("two is even", True)
    with pytest.raises(AssertionError, match="three is even"):
        results.check("three is even", False)
    monkeypatch.setattr(results, "profile", "mini")
    results.check("three is even", False)
    shown = "same in this run: two is even\nnot in this run: three is even\n"
    assert capsys.readouterr().out == shown


def test_a_check_says_which_models_were_not_run(only_committed, capsys):
    mini = Results("mini")
    mini.cells("norms")
    mini.check("α rises on SmolLM2", False)
    mini.check("α rises on Gemma and SmolLM2", False)
    assert capsys.readouterr().out == (
        "not in this run: α rises on SmolLM2\nGemma not in this run: α rises on Gemma and SmolLM2\n"
    )


def test_a_figure_is_written_with_its_numbers_and_its_cells(results, tmp_path, monkeypatch):
    displayed = []
    monkeypatch.setattr(save, "display", lambda *objects: displayed.extend(objects))
    rows = results.rows("norms", "alpha")
    figure, _ = plt.subplots()
    results.save(figure, "alphas", rows)
    assert not plt.fignum_exists(figure.number)
    assert displayed[0] is figure
    assert "alphas.csv" in displayed[1].data
    folder = tmp_path / "small"
    written = {file.name for file in folder.rglob("*") if file.is_file()}
    assert written == {"alphas.png", "alphas.pdf", "alphas.svg", "alphas.json", "alphas.csv"}
    sources = json.loads((folder / "alphas.json").read_text("utf-8"))
    named = [cell for run in sources["runs"] for cell in run["cells"]]
    assert sorted(named) == sorted(digest(cell["inputs"]) for cell in results.cells("norms"))
    assert all("commit" in run for run in sources["runs"])
    assert len(pd.read_csv(folder / "tables" / "alphas.csv")) == len(rows)


def test_a_table_is_read_rounded_and_written_whole(results, tmp_path):
    frame = pd.DataFrame({"model": ["Gemma"], "value": [1 / 3]})
    page = results.table(frame, "thirds", shown=frame.round(2)).data
    assert "0.33" in page
    assert "0.333" not in page
    stored = pd.read_csv(tmp_path / "small" / "tables" / "thirds.csv")
    assert stored["value"].item() == 1 / 3
    assert (tmp_path / "small" / "tables" / "thirds.tex").is_file()


def test_a_verdict_holds_every_claim_of_one_notebook(results, tmp_path, monkeypatch):
    entries = {
        "a": {"kind": "measured", "notebook": "02", "statement": "A.", "effect": "…"},
        "b": {"kind": "measured", "notebook": "02", "statement": "B.", "effect": "…"},
        "c": {"kind": "measured", "notebook": "03", "statement": "C.", "effect": "…"},
    }
    monkeypatch.setattr(judge, "claims", lambda: entries)
    results = Results("small", "02")
    results.judge("a", "Gemma", ABOVE)
    with pytest.raises(ValueError, match=r"not judged, .*: \['b'\]"):
        results.verdict()
    results.judge("b", "Gemma", reason="needs a GPU")
    page = results.verdict().data
    assert "| A." in page
    stored = pd.read_csv(tmp_path / "small" / "verdicts" / "02.csv", keep_default_na=False)
    assert list(stored) == judge.COLUMNS
    assert stored["mark"].tolist() == ["✓", "–"]
    results.judge("c", "Gemma", ABOVE)
    with pytest.raises(ValueError, match=r"no claims of notebook 02 .*: \['c'\]"):
        results.verdict()


def test_what_a_profile_leaves_out_is_a_sentence_and_its_claims_are_not_run(
    only_committed, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(config, "FIGURES", tmp_path)
    results = Results("small", "08")
    results.judge("faster", "Gemma", ABOVE)
    capsys.readouterr()
    for _ in range(2):
        results.leave_out("efficiency.split")
    sentence = "The profile small leaves out efficiency.split: there is nothing to show.\n"
    assert capsys.readouterr().out == sentence
    results.cells("efficiency")
    results.verdict()
    stored = pd.read_csv(tmp_path / "small" / "verdicts" / "08.csv", keep_default_na=False)
    assert set(stored["claim"]) == set(judge.claims_of("08"))
    timed = stored[stored["claim"] == "overtaking-timed"]
    assert {"gemma3-270m", "smollm2-135m"} <= set(timed["model"])
    assert set(timed["mark"]) == {"–"}
    assert set(timed["reason"]) == {"the profile leaves out efficiency.split"}


def test_a_cell_that_two_units_show_counts_once(results):
    shared = [cell["seconds"] for unit in ("alpha", "baselines") for cell in results.cells(unit)]
    num_cells = len({digest(cell["inputs"]) for cells in results.read.values() for cell in cells})
    assert num_cells < len(shared)
    assert f": {num_cells} cells of alpha, baselines," in results.provenance().data


def test_a_notebook_without_cells_says_where_none_come_from():
    assert save.provenance_line("smoke", {}).data == "<small>Profile `smoke`: no cells.</small>"


def test_links_lead_from_the_page_to_the_file(tmp_path, monkeypatch):
    monkeypatch.setenv(config.PAGE, str(tmp_path / "notebooks" / "executed"))
    line = save.caption("x", tmp_path / "figures" / "x.csv")
    assert "(../../figures/x.csv)" in line


# Style


def test_figures_look_the_same_whatever_matplotlibrc_says():
    with plt.rc_context():
        plt.rcdefaults()
        use_style()
        usual = dict(plt.rcParams)
        theirs = {"text.usetex": True, "savefig.facecolor": "black", "figure.dpi": 40}
        plt.rcParams.update(theirs | {"font.sans-serif": ["Arial"], "savefig.bbox": None})
        use_style()
        assert dict(plt.rcParams) == usual
        assert plt.rcParams["font.sans-serif"] == ["DejaVu Sans"], "which matplotlib brings"


def test_dots_stand_at_their_values_and_reach_to_the_ends():
    frame = pd.DataFrame(
        {
            "text": ["News", "News", "WikiText-2"],
            "α": ["α = 1", "α = 0", "α = 1"],
            "model": ["Gemma", "Gemma", "SmolLM2"],
            "value": [3.0, 4.0, 5.0],
            "low": [2.0, 1.0, 5.0],
            "high": [7.0, 5.0, 6.0],
        }
    )
    axes = dot_panels(frame, "α", "model", "text", {"Gemma": "#000000", "SmolLM2": "#ff0000"})
    assert [axis.get_title() for axis in axes] == ["News", "WikiText-2"]
    (container,) = axes[0].containers
    dots_drawn, _, (bars,) = container
    assert list(dots_drawn.get_xdata()) == [3.0, 4.0]
    assert [(start[0], end[0]) for start, end in bars.get_segments()] == [(2.0, 7.0), (1.0, 5.0)]
    plt.close(axes[0].figure)


def test_a_dot_is_hollow_where_its_interval_holds_no_effect_and_panels_share_lines():
    columns = {"task": ["a", "b", "b"], "kind": ["x", "x", "y"], "rival": ["M", "F", "M"]}
    ends = {"value": [1.0, 2.0, 3.0], "low": [-1.0, 1.0, 2.0], "high": [3.0, 4.0, 5.0]}
    frame = pd.DataFrame(columns | ends).assign(model="Gemma")
    first, second = dot_panels(frame, "task", "model", "kind", no_effect=0)
    (white,) = first.collections[1:]  # after the intervals
    assert white.get_offsets().data.tolist() == [[1.0, 0.0]]
    assert [text.get_text() for text in first.get_yticklabels()] == ["a", "b"]
    ((dot, _, _),) = second.containers
    assert dot.get_ydata().tolist() == [1.0], "b stands in the second line, though a is absent"
    plt.close(first.figure)
    _, ax = plt.subplots()
    dots(ax, frame, "task", "model", text="rival")
    assert [text.get_text() for text in ax.texts] == ["M", "F", "M"]
    plt.close(ax.figure)


def test_panels_of_nothing_are_one_empty_panel():
    """A small run may leave nothing to compare; its notebook is drawn to the end."""
    nothing = pd.DataFrame(columns=["α", "model", "text", "value", "low", "high"])
    axes = dot_panels(nothing, "α", "model", "text")
    assert len(axes) == 1
    assert not axes[0].lines
    plt.close("all")
