"""What notebook 07 says follows the numbers: made-up answers, and the words that have to come out of them."""

import numpy as np
import pytest
from test_longbench_tables import EVEN, TITLES, cells_with, failed, frame

from harp_lib.longbench_claims import ABOVE, MULTI_HOP, above_floor, category_differences, larger_lead, rank_frame
from harp_lib.longbench_tables import length_frame
from harp_lib.longbench_verdict import (
    AVERAGE_CLAIM,
    FIRST_CLAIM,
    HARP_CLAIM,
    LEAD_CLAIM,
    MOST_CLAIM,
    NOT_BOLD,
    STRONG_CLAIM,
    answer,
    read_differences,
    read_lengths,
    read_paper,
    read_ranks,
    read_scores,
    read_setting,
    verdict,
)
from harp_lib.published import published_scores
from harp_lib.score_layout import COMPETING

QUESTIONS = 60


def judged(means, questions=QUESTIONS):
    table = verdict(cells_with(means, questions))
    return dict(zip(table["claim"], table["verdict"], strict=True))


def on(tasks, there, elsewhere):
    return {title: there if title in tasks else elsewhere for title in TITLES}


class TestVerdict:
    @pytest.mark.parametrize(("score", "expected"), [(0.9, "holds"), (0.1, "does not hold")])
    def test_first_on_all_tasks_and_on_none(self, score, expected):
        found = judged(EVEN | {"flap": 0.6, "harp": score, "harp+flap": score - 0.05})
        assert {found[claim] for claim in (MOST_CLAIM, FIRST_CLAIM, HARP_CLAIM, AVERAGE_CLAIM)} == {expected}

    def test_half_is_not_most(self):
        assert judged(EVEN | {"harp+flap": on(TITLES[:8], 0.9, 0.1)})[MOST_CLAIM] == "does not hold"
        assert judged(EVEN | {"harp+flap": on(TITLES[:9], 0.9, 0.1)})[MOST_CLAIM] == "holds"

    def test_most_first_places_can_go_with_a_low_average(self):
        found = judged(EVEN | {"harp+flap": on(TITLES[:9], 0.55, 0.0), "flap": on(TITLES[:9], 0.5, 0.6)})
        assert (found[FIRST_CLAIM], found[AVERAGE_CLAIM]) == ("holds", "does not hold")

    def test_a_baseline_with_more_first_places_refutes(self):
        assert judged(EVEN | {"harp+flap": on(TITLES[:2], 0.9, 0.1), "flap": 0.6})[FIRST_CLAIM] == "does not hold"

    def test_what_hangs_on_chance_is_too_small_to_tell(self):
        random = np.random.default_rng(0)
        means = {method: {title: random.random(4) for title in TITLES} for method in EVEN}
        assert {judged(means, 4)[claim] for claim in (FIRST_CLAIM, LEAD_CLAIM, STRONG_CLAIM)} == {"too small to tell"}

    @pytest.mark.parametrize(
        ("there", "elsewhere", "expected"),
        [(0.9, 0.6, "holds"), (0.6, 0.9, "does not hold"), (0.7, 0.7, "too small to tell")],
    )
    def test_a_larger_lead(self, there, elsewhere, expected):
        """Over the baseline with the highest average, also where another one is the best on these tasks."""
        baselines = {"wanda-sp": 0.5, "flap": on(MULTI_HOP, 0.95, 0.1)}
        table = verdict(cells_with(EVEN | baselines | {"harp+flap": on(MULTI_HOP, there, elsewhere)}, QUESTIONS))
        row = table.set_index("claim").loc[LEAD_CLAIM]
        assert row["verdict"] == expected
        assert f"{100 * (there - 0.5):+.1f} [" in row["evidence"].split("points on HotpotQA and 2WikiMQA")[0]
        assert f"by {100 * (elsewhere - 0.5):+.1f} [" in row["evidence"].split("points on HotpotQA")[1]

    def test_strong_on_one_task(self):
        assert judged(EVEN | {"mag-sp": {"MF-en": 0.9}, "harp": 1.0})[STRONG_CLAIM] == "holds"
        assert judged(EVEN | {"harp+flap": 0.9})[STRONG_CLAIM] == "does not hold"

    def test_nothing_is_judged_at_the_floor(self):
        found = judged(EVEN | {"dense": 0.0, "harp+flap": 0.9})
        assert set(found.values()) == {"at the floor"}

    def test_tasks_at_the_floor_are_not_counted(self):
        means = EVEN | {"dense": on(TITLES[-5:], 0.5, 0.0)}
        found = verdict(cells_with(means | {"harp+flap": on(TITLES[-3:], 0.9, 0.1)}, QUESTIONS)).set_index("claim")
        assert found.loc[MOST_CLAIM, "verdict"] == "holds"
        assert found.loc[MOST_CLAIM, "evidence"] == f"alone at the head on 3 of 5 {ABOVE} [3, 3]"
        assert above_floor(cells_with(means), "m", TITLES) == TITLES[-5:]

    def test_missing_scores(self):
        cells = cells_with(EVEN | {"harp+flap": 0.9}, QUESTIONS)
        for title in TITLES:
            failed(cells, "harp+flap", title)
        assert set(verdict(cells)["verdict"]) == {"missing"}
        cells = failed(cells_with(EVEN | {"harp+flap": 0.9}, QUESTIONS), "flap", "MF-en")
        found = verdict(cells).set_index("claim")
        assert found.loc[MOST_CLAIM, "evidence"] == f"alone at the head on 15 of 15 {ABOVE} [15, 15]"
        assert found.loc[STRONG_CLAIM, "verdict"] == "does not hold"

    def test_what_the_paper_s_own_table_says(self):
        printed = verdict(cells_with(EVEN, 2)).set_index("claim")["in the paper's table"]
        assert printed[MOST_CLAIM].startswith("8 of 16 on LLaMA3.1-8B, 9 of 16 on Mistral-7B-v0.3")
        assert printed[MOST_CLAIM].endswith("more than half on 1 of 2 models")
        assert printed[[FIRST_CLAIM, HARP_CLAIM, STRONG_CLAIM]].tolist() == ["so on 2 of 2 models"] * 3
        assert printed[AVERAGE_CLAIM] == "so on 1 of 2 models", "on LLaMA3.1-8B Mag-sp is higher"
        assert "LLaMA3.1-8B +2.5 against -2.4 points over Mag-sp, more on 3 of the 14 others" in printed[LEAD_CLAIM]

    def test_one_question_a_task_is_no_ground_for_a_verdict(self):
        """Nor for saying that the dense model, which answers all of them, has nothing to lose."""
        cells = cells_with(EVEN | {"dense": 1.0, "harp+flap": 0.9}, 1)
        table = verdict(cells)
        assert set(table["verdict"]) == {"not judged"}
        assert set(table["evidence"]) == {"one question a task: no error to judge by"}
        said = read_scores(cells, frame(cells))
        assert said.endswith("Which tasks are at the floor cannot be said (one question a task: no error to judge by).")
        assert "**m, as many parameters removed.** One question a task" in read_ranks(rank_frame(cells, frame(cells)))

    def test_without_dense_scores_all_is_missing(self):
        cells = cells_with(EVEN | {"harp+flap": 0.9})
        for title in TITLES:
            failed(cells, "dense", title)
        assert set(verdict(cells)["verdict"]) == {"missing"}
        assert "above the floor" not in read_ranks(rank_frame(cells, frame(cells)))
        for title in TITLES:
            failed(cells, "flap", title)
        assert read_ranks(rank_frame(cells, frame(cells))).count("No task has a score of every method.") == 2
        said = read_lengths(length_frame(cells))
        assert "up to 128 answers of a method, and none of the dense model. Most empty answers: " in said
        assert "nan" not in said


class TestSentences:
    def test_averages_and_floor(self):
        cells = cells_with(EVEN | {"dense": on(TITLES[:14], 0.5, 0.0), "flap": 0.6})
        said = read_scores(cells, frame(cells))
        assert "the highest average is that of FLAP, 60.00 ± 0.00 %, ahead of the next by more than" in said
        assert "the dense model scores 43.75 ± 0.00 %" in said
        assert said.endswith("standard errors: Lcc and RB-P.")

    def test_first_places(self):
        cells = cells_with(EVEN | {"dense": on(TITLES[:14], 0.5, 0.0), "flap": 0.6, "mag-sp": on(["Lcc"], 0.7, 0.1)})
        said = read_ranks(rank_frame(cells, frame(cells))).splitlines()
        as_many, pruned = "as many parameters removed", "all pruned models"
        assert said == [
            f"- **m, {as_many}, 16 tasks.** Most first places: FLAP with 15; HARP+FLAP has 0.",
            f"- **m, {as_many}, 14 tasks above the floor.** Most first places: FLAP with 14; HARP+FLAP has 0.",
            f"- **m, {pruned}, 16 tasks.** Most first places: FLAP with 15; HARP has 0.",
            f"- **m, {pruned}, 14 tasks above the floor.** Most first places: FLAP with 14; HARP has 0.",
            f"- **LLaMA3.1-8B (paper), {as_many}, 16 tasks.** Most first places: HARP+FLAP with 8.",
            f"- **LLaMA3.1-8B (paper), {pruned}, 16 tasks.** Most first places: HARP with 8 + 1 tied.",
            f"- **Mistral-7B-v0.3 (paper), {as_many}, 16 tasks.** Most first places: HARP+FLAP with 9.",
            f"- **Mistral-7B-v0.3 (paper), {pruned}, 16 tasks.** Most first places: HARP with 10.",
        ]
        cells = cells_with(dict.fromkeys(EVEN, 0.0))
        said = read_ranks(rank_frame(cells, frame(cells)))
        assert "**m, as many parameters removed, 16 tasks.** No method has a first place" in said
        assert "**m, all pruned models.** No task above the floor." in said

    def test_the_paper_s_columns_without_bold_have_a_baseline_on_top(self):
        for model, tasks in NOT_BOLD.items():
            block = published_scores("longbench", model)
            for task in tasks:
                assert block.loc[block.index.isin(COMPETING), task].idxmax() == "mag-sp"
        said = read_paper()
        assert "No number is bold in the column Lcc, where Mag-sp is the highest with 36.72 %" in said
        assert "HARP+FLAP 20.92 %, the best baseline, Mag-sp, 22.74 %, and HARP 21.82 %" in said
        assert said.endswith("2.35 % on LLaMA3.1-8B and 25.88 % on Mistral-7B-v0.3.")

    def test_prompts_that_were_cut(self):
        cells = failed(cells_with(EVEN, 8), "dense", "Lcc")
        assert "Prompts have 700 to 707 tokens; 80 of 128 were longer than 702" in read_setting(cells)
        for name in ("longbench_trec", "longbench_lcc"):
            for method in EVEN:
                cells["m", method, name]["result"]["context"] = 699
        said = read_setting(cells)
        assert "86 of 128 were longer than 699 to 702 tokens (fewer where a model cannot read more" in said
        for title in TITLES:
            for method in EVEN:
                failed(cells, method, title)
        assert read_setting(cells) == "There is no score."

    def test_differences(self):
        cells = cells_with(EVEN | {"flap": 0.0, "mag-sp": 1.0}, QUESTIONS)
        said = read_differences(category_differences(cells, frame(cells)))
        assert said.count("Of 24 differences") == 2
        assert said.count("12 are too small to tell, 6 below zero with their whole interval") == 2
        kinds = "Single-Document QA, Multi-Document QA, Summarization, Few-shot Learning, Synthetic and Code"
        assert (
            f"(HARP+FLAP is better than FLAP in {kinds}), and 6 above it (HARP+FLAP is worse than Mag-sp in {kinds})."
            in said
        )
        cells = cells_with(EVEN)
        assert "0 below zero with their whole interval, and 0 above it." in read_differences(
            category_differences(cells, frame(cells))
        )

    def test_lengths(self):
        cells = cells_with(EVEN, 17)
        cells["m", "flap", "longbench_trec"]["result"]["answer_tokens"] = [0] * 17
        said = read_lengths(length_frame(cells))
        assert "Of 272 answers, the dense model leaves 16 empty and writes 16 up to the limit." in said
        assert "Most empty answers: FLAP with 32." in said
        assert "Most answers up to the limit: dense, Mag-sp, Wanda-sp, LLM-Pruner, HARP and HARP+FLAP with 16." in said

    def test_the_answer_is_the_verdict(self):
        said = answer(cells_with(EVEN | {"harp+flap": 0.9}, QUESTIONS))
        assert "outperforms the baselines in most benchmarks, as many parameters removed: holds." in said
        assert "Of the 6 claims" in said


def test_lead_where_one_of_the_two_tasks_is_at_the_floor():
    cells = cells_with(EVEN | {"dense": on(["HotpotQA"], 0.0, 0.5), "harp+flap": 0.7}, QUESTIONS)
    found = larger_lead(cells, frame(cells), "m")
    assert "points on 2WikiMQA and by +20.0" in found.evidence
    cells = cells_with(EVEN | {"dense": on(MULTI_HOP, 0.0, 0.5)}, QUESTIONS)
    assert larger_lead(cells, frame(cells), "m").verdict == "at the floor"
