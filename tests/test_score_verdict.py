"""What notebook 05 says follows the numbers: made-up answers, and the shares and words that have to come out."""

import numpy as np
import pytest
from test_score_frames import EVEN, cells_with, failed

from harp_lib.measure.benchmarks import BENCHMARKS, DISCRIMINATIVE, GENERATION
from harp_lib.methods import BASELINES, METHODS
from harp_lib.score_frames import AVERAGE, score_frame
from harp_lib.score_kept import (
    by_length,
    independent_difference,
    is_above_chance,
    kept_frame,
    length_correlation,
    published_kept,
    share_kept,
)
from harp_lib.score_tables import differences_frame, kept_table
from harp_lib.score_verdict import (
    LONGER_ANSWERS,
    LONGER_TASKS,
    LOSES_LESS,
    LOSES_MORE,
    answer,
    read_claims,
    read_differences,
    read_kept,
    read_missing,
    read_scores,
    verdict,
)
from harp_lib.statistics import Interval

GENERATION_AVERAGE = "HARP+FLAP has the highest average on generation tasks, as many parameters removed"
DISCRIMINATIVE_AVERAGE = "HARP+FLAP has the highest average on discriminative tasks, as many parameters removed"
ON = "HARP+FLAP scores highest on {}, as many parameters removed"
ALIKE = {"dense": 0.9, "harp": 0.8, "harp+flap": 0.8}
QUESTIONS = 200


def judged(right, questions=QUESTIONS):
    table = verdict(cells_with(right, questions))
    return dict(zip(table["claim"], table["verdict"], strict=True))


class TestShareKept:
    def test_of_a_score_above_chance(self):
        dense, half, chance = [1.0] * 60 + [0.0] * 40, [1.0] * 40 + [0.0] * 60, 0.2
        assert share_kept([(half, dense, chance)]).value == pytest.approx(0.5)
        assert share_kept([(dense, dense, chance)]).value == 1
        both = share_kept([(half, dense, chance), (dense, dense, 0.0)])
        assert both.value == pytest.approx((0.2 + 0.6) / (0.4 + 0.6)), "a ratio of averages, not an average of ratios"

    def test_always_wrong_still_has_an_interval(self):
        found = share_kept([([0.0] * 16, [1.0] * 10 + [0.0] * 6, 0.0)])
        assert found.value == 0
        assert found.high > 0.1

    @pytest.mark.parametrize(("chance", "questions"), [(0.0, 16), (0.0, 100), (0.25, 40)])
    def test_the_interval_holds_the_truth_as_often_as_it_says(self, chance, questions):
        random, held, truth = np.random.default_rng(0), 0, 0.5
        for _ in range(500):
            tasks = []
            for level in (0.4, 0.6):
                drawn = random.random(questions)
                dense = drawn < chance + level
                mixed = np.where(random.random(questions) < 0.5, drawn, random.random(questions))
                tasks.append((mixed < chance + level * truth, dense, chance))
            found = share_kept(tasks)
            held += found.low <= truth <= found.high
        assert 460 <= held <= 495, f"{held} of 500; 475 is 95 %"

    def test_the_interval_is_as_wide_as_that_of_a_bootstrap(self):
        random = np.random.default_rng(3)
        tasks = []
        for level, number in ((0.5, 400), (0.8, 800)):
            dense = random.random(number) < level
            tasks.append((dense & (random.random(number) < 0.3), dense, 0.25))
        drawn = [[random.integers(len(dense), size=len(dense)) for _, dense, _ in tasks] for _ in range(600)]
        redrawn = [
            share_kept(
                [(first[at], dense[at], chance) for at, (first, dense, chance) in zip(places, tasks, strict=True)]
            )
            for places in drawn
        ]
        low, high = np.quantile([found.value for found in redrawn], [0.025, 0.975])
        found = share_kept(tasks)
        assert found.high - found.low == pytest.approx(high - low, rel=0.1)

    def test_a_difference_of_independent_shares(self):
        found = independent_difference(Interval(1.0, 0.7, 1.3), Interval(0.5, 0.2, 1.0))
        assert found == pytest.approx((0.5, 0.4 - 0.5, 0.4 + 0.5))

    @pytest.mark.parametrize(
        ("right", "of", "chance", "above"),
        [(4, 16, 0.0, True), (3, 16, 0.0, False), (0, 16, 0.0, False), (2, 2, 0.5, False), (16, 16, 0.5, True)],
    )
    def test_the_floor(self, right, of, chance, above):
        dense = [1.0] * right + [0.0] * (of - right)
        assert is_above_chance([(dense, dense, chance)]) == above

    def test_one_question_is_at_the_floor(self):
        assert not is_above_chance([([1.0], [1.0], 0.0)])


class TestKept:
    def test_the_average_is_of_the_tasks_above_the_floor(self):
        cells = cells_with(EVEN | {"dense": {"gsm8k": 0.8, "triviaqa": 0.4, "bbh_cot_fewshot": 0.0}, "harp": 0.2})
        kept = kept_frame(cells, score_frame(cells)).set_index(["method", "task"])
        assert kept.loc[("harp", "GSM8K"), "kept"].item() == pytest.approx(0.25)
        assert kept.loc[("harp", "BBH"), "floor"].item()
        average = kept[kept["kind"] == GENERATION].loc[("harp", AVERAGE)]
        assert average["kept"].item() == pytest.approx(0.4 / 1.2)
        assert average["questions"].item() == 40
        table = kept_table(kept.reset_index().query("kind == 'generation'")).set_index(["model", "method"])
        assert table.loc[("m", "HARP"), "GSM8K"].startswith("25 % [")
        assert table.loc[("m", "HARP"), "BBH"] == "at the floor"
        assert table.loc[("LLaMA3.1-8B (paper)", "HARP"), "GSM8K"] == "73 %"

    def test_the_paper_s_shares_are_above_chance(self):
        kept = published_kept().set_index(["model", "method", "kind", "task"])["kept"]
        assert kept["LLaMA3.1-8B", "harp", DISCRIMINATIVE, "BoolQ"] == pytest.approx((75.02 - 50) / (82.05 - 50))
        assert kept["LLaMA3.1-8B", "harp", DISCRIMINATIVE, AVERAGE] == pytest.approx((63.96 - 37.5) / (65.55 - 37.5))
        assert kept["Gemma2-9B", "flap", GENERATION, AVERAGE] == pytest.approx(2.72 / 51.18)

    def test_rank_correlation_over_all_orders(self):
        assert length_correlation([5, 4, 3, 2, 1], [1, 2, 3, 4, 5]) == pytest.approx((-1, 1 / 120))
        assert length_correlation([1, 2, 3], [1, 2, 3]) == pytest.approx((1, 1))
        assert np.isnan(length_correlation([1, 1, 1], [1, 2, 3])).all()

    def test_questions_are_parted_at_the_median_length_of_their_task(self):
        cells = cells_with(EVEN)
        cells["m", "dense", "gsm8k"]["result"] |= {
            "scores": [1.0, 0.0, 1.0, 0.0],
            "answer_tokens": [9, 2, 3, 8],
        }
        cells["m", "harp", "gsm8k"]["result"]["scores"] = [0.25, 0.5, 0.75, 1.0]  # to be recognised
        cells["m", "dense", "triviaqa"]["result"]["answer_tokens"] = [2] * 20
        short, long = by_length(cells, "m", "harp", ["GSM8K", "TriviaQA"])
        assert [list(part) for part in short[0][:2]] == [[0.5, 0.75], [0.0, 1.0]]
        assert [list(part) for part in long[0][:2]] == [[0.25, 1.0], [1.0, 0.0]]
        assert len(short) == len(long) == 1, "TriviaQA cannot be parted"


class TestVerdict:
    @pytest.mark.parametrize(
        ("baseline", "expected"), [(0.5, "holds"), (0.9, "does not hold"), (0.8, "too small to tell")]
    )
    def test_the_highest(self, baseline, expected):
        found = judged(dict.fromkeys(METHODS, baseline) | ALIKE)
        assert found[GENERATION_AVERAGE] == found[DISCRIMINATIVE_AVERAGE] == found[ON.format("BBH")] == expected
        assert found["HARP has the highest average on generation tasks, as many heads removed"] == expected

    def test_one_better_baseline_refutes_and_one_equal_baseline_leaves_open(self):
        assert judged(dict.fromkeys(METHODS, 0.5) | ALIKE | {"flap": 0.9})[GENERATION_AVERAGE] == "does not hold"
        assert judged(dict.fromkeys(METHODS, 0.5) | ALIKE | {"flap": 0.8})[GENERATION_AVERAGE] == "too small to tell"

    def test_nothing_is_judged_at_the_floor(self):
        right = dict.fromkeys(METHODS, 0.5) | ALIKE
        found = judged(right | {"dense": {"triviaqa": 0.9, "mmlu": 0.9, "boolq": 0.5}})
        assert found[ON.format("TriviaQA")] == "holds"
        assert found[ON.format("GSM8K")] == found[LOSES_MORE] == found[LONGER_TASKS] == "at the floor"
        nothing = judged(right | {"dense": 0.0})
        assert set(nothing.values()) == {"at the floor"}

    def test_a_missing_score_is_not_judged(self):
        cells = failed(cells_with(dict.fromkeys(METHODS, 0.5) | ALIKE, QUESTIONS), "flap", "gsm8k")
        cells["m", "mag-sp", "gsm8k"]["result"]["scores"] = [1.0] * QUESTIONS
        table = verdict(cells).set_index("claim")
        found = table["verdict"]
        assert found[ON.format("BBH")] == found[GENERATION_AVERAGE] == "holds"
        assert "Mag-sp +30.0" in table.loc[GENERATION_AVERAGE, "evidence"], "of the four tasks that all have"
        cells["m", "mag-sp", "gsm8k"]["result"]["scores"] = [0.0] * QUESTIONS
        found = verdict(cells).set_index("claim")["verdict"]
        assert found[ON.format("GSM8K")] == "missing"
        found = verdict(failed(cells, "harp", "gsm8k")).set_index("claim")["verdict"]
        assert found[LOSES_MORE] == "missing"

    def test_what_the_paper_s_own_tables_say(self):
        printed = verdict(cells_with(EVEN)).set_index("claim")["in the paper's tables"]
        assert printed[GENERATION_AVERAGE] == "so on 4 of 4 models"
        assert printed[DISCRIMINATIVE_AVERAGE] == "so on 3 of 4 models", "on Gemma2-9B Wanda-sp is higher"
        assert printed[ON.format("BBH")] == "so on 3 of 4 models", "on Qwen2-7B FLAP is higher"
        assert printed[LOSES_LESS] == printed[LOSES_MORE] == "so for HARP on 4 of 4 models"

    @pytest.mark.parametrize(
        ("generation", "discriminative", "expected"),
        [(0.4, 0.9, "holds"), (0.9, 0.4, "does not hold"), (0.7, 0.7, "too small to tell")],
    )
    def test_discriminative_tasks_lose_less(self, generation, discriminative, expected):
        """Shares above chance; in the last case fewer points are lost on the discriminative tasks."""
        shares = {}
        for task, benchmark in BENCHMARKS.items():
            chance = 1 / benchmark.choices if benchmark.choices else 0.0
            kept = discriminative if benchmark.choices else generation
            shares[task] = chance + kept * (0.9 - chance)
        found = judged(EVEN | {"dense": 0.9, "harp": shares})
        assert found[LOSES_LESS] == expected

    @pytest.mark.parametrize(("long", "expected"), [(0.2, "holds"), (0.9, "does not hold"), (0.7, "too small to tell")])
    def test_long_answers_lose_more(self, long, expected):
        """GSM8K keeps ``long``, TriviaQA 0.7; all five lie on a line from the shortest answers to the longest."""
        tasks = ("triviaqa", "nq_open", "bbh_cot_fewshot", "leaderboard_math_hard", "gsm8k")
        shares = dict(zip(tasks, np.linspace(0.7, long, 5), strict=True))
        cells = cells_with(EVEN | {"dense": 1.0, "harp": shares}, QUESTIONS)
        for length, task in enumerate(tasks, start=1):
            cells["m", "dense", task]["result"]["answer_tokens"] = [10 * length] * QUESTIONS
        found = verdict(cells).set_index("claim")
        assert found.loc[LOSES_MORE, "verdict"] == expected
        assert found.loc[LONGER_TASKS, "verdict"] == expected
        assert found.loc[LONGER_ANSWERS, "verdict"] == "at the floor", "all of a length"

    @pytest.mark.parametrize(
        ("lost", "expected"), [("long", "holds"), ("short", "does not hold"), ("both", "too small to tell")]
    )
    def test_within_a_task(self, lost, expected):
        cells = cells_with(EVEN | {"dense": 1.0, "harp": 1.0}, QUESTIONS)
        for (_, method, _), cell in cells.items():
            if method == "harp" and "answers" in cell["result"]:
                kept = {"long": (1, 1, 0, 0), "short": (0, 0, 1, 1), "both": (0, 1, 0, 1)}[
                    lost
                ]  # lengths rise in fours
                cell["result"]["scores"] = [float(kept[number % 4]) for number in range(QUESTIONS)]
        assert verdict(cells).set_index("claim").loc[LONGER_ANSWERS, "verdict"] == expected


class TestWords:
    def test_scores(self):
        cells = cells_with(EVEN | {"dense": 0.9, "flap": 0.7, "harp": 0.6})
        text = read_scores(cells, score_frame(cells), GENERATION)
        assert text == (
            "- **m.** The dense model averages 90.00 ± 3.08 %. Of the methods that remove as many parameters, the "
            "highest average is 70.00 ± 4.70 %: FLAP is ahead of the next by more than the error of its lead. "
            "HARP+FLAP averages 50.00 ± 5.13 %; HARP, which removes fewer parameters, 60.00 ± 5.03 %. No task is at "
            "the floor."
        )
        cells = cells_with(EVEN | {"dense": {"gsm8k": 0.9}, "harp+flap": 0.1})
        text = read_scores(cells, score_frame(cells), GENERATION)
        assert "Mag-sp, Wanda-sp, LLM-Pruner and FLAP share it" in text
        assert text.endswith("two standard errors): TriviaQA, NaturalQuestions, MATH-hard and BBH.")

    def test_differences(self):
        cells = cells_with(EVEN | {"flap": 1.0, "mag-sp": 0.0, "wanda-sp": 0.0})
        lines = read_differences(differences_frame(cells, score_frame(cells))).splitlines()
        assert lines[0] == (
            "- **m, against HARP.** Of 44 differences between a baseline and HARP on one task, 22 are below zero with "
            "their whole interval (HARP is better), 11 above it, and 11 too small to tell."
        )
        assert lines[1].startswith("- **m, against HARP+FLAP.**")

    def test_kept_and_missing(self):
        cells = cells_with(EVEN | {"dense": 1.0})
        text = read_kept(kept_frame(cells, score_frame(cells)))
        assert "- **m, generation tasks.** HARP 50 % [" in text
        assert "(72 to 82 % in the paper)" in text
        assert read_missing(score_frame(cells)) == "Every method has a score on every benchmark."
        assert read_missing(score_frame(failed(cells, "flap", "mmlu"))).startswith("1 of 77 scores are missing")

    def test_claims_and_the_answer(self):
        cells = cells_with(dict.fromkeys(BASELINES, 0.5) | ALIKE, QUESTIONS)
        text = answer(cells)
        assert "on generation tasks, holds; on discriminative tasks, holds." in text
        assert "Of the 13 claims of the table below: holds 9" in text
        lines = read_claims(verdict(cells), LOSES_LESS, LOSES_MORE).splitlines()
        assert len(lines) == 2
        assert lines[1].startswith(f"- *{LOSES_MORE}* (m): HARP keeps 89 % [")
        assert lines[1].endswith("**Too small to tell.**")
