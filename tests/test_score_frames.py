"""Scores in frames, tables and figures: made-up answers, and the numbers and signs that have to come out of them."""

import re

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
from scipy import stats

from harp_lib import score_figures, tables
from harp_lib.measure.benchmarks import BENCHMARKS, DISCRIMINATIVE, GENERATION
from harp_lib.methods import METHODS
from harp_lib.score_answers import beside_frame, example_frame, length_frame
from harp_lib.score_frames import AVERAGE, average_frame, difference, difference_frame, score_frame
from harp_lib.score_kept import counterparts, kept_frame, share_kept
from harp_lib.score_layout import COMPETING, leader, main_table
from harp_lib.score_tables import answer_lengths, asked, beside_table, difference_table, missing_scores, score_tables
from harp_lib.statistics import average_estimate, paired_difference, score_estimate

TASKS = {kind: [b.title for b in BENCHMARKS.values() if b.kind == kind] for kind in (GENERATION, DISCRIMINATIVE)}


def cells_with(right, questions=20, model="m"):
    """Cells in which a method gets this share of the first questions right: of all tasks, or task by task."""
    cells = {}
    for task, benchmark in BENCHMARKS.items():
        for method in ("dense", *METHODS):
            share = right[method] if not isinstance(right[method], dict) else right[method].get(task, 0)
            count = round(share * questions)
            result = {
                "scores": [1.0] * count + [0.0] * (questions - count),
                "subtasks": {task: questions},
                "versions": {task: 2.0},
                "removed_fraction": {"dense": 0.0, "harp": 0.031}.get(method, 0.048),
                "head_ratio": 0.0 if method == "dense" else 0.25,
            }
            if benchmark.beside:
                result["beside"] = [1.0] * questions
            if not benchmark.choices:
                length = 2 if task in ("triviaqa", "nq_open") else 50
                result["answers"] = [f"{method} says\n{number} | {number}" for number in range(questions)]
                result["answer_tokens"] = [length + number % 4 for number in range(questions)]
            inputs = {
                "shots": 3,
                "new_tokens": None if benchmark.choices else 64,
                "source": "embedded",
                "dtype": "bfloat16",
            }
            cells[model, method, task] = {"result": result, "inputs": inputs, "seconds": 1.0}
    return cells


EVEN = dict.fromkeys(("dense", *METHODS), 0.5)


def failed(cells, method, task, why="OutOfMemoryError: 3 | 4"):
    cells["m", method, task]["result"] = {"failed": why}
    return cells


class TestStatistics:
    def test_the_error_of_a_score_is_that_of_a_mean(self):
        scores = [1, 0, 0, 1, 1, 0, 1]
        assert score_estimate(scores) == pytest.approx((np.mean(scores), stats.sem(scores)))
        assert np.isnan(score_estimate([1]).error)

    def test_averages_of_independent_tasks(self):
        random = np.random.default_rng(0)
        draws = [[score_estimate(random.random(30) < share) for share in (0.2, 0.5, 0.9)] for _ in range(400)]
        averages = [average_estimate(tasks) for tasks in draws]
        assert np.mean([a.value for a in averages]) == pytest.approx(np.mean([0.2, 0.5, 0.9]), abs=0.01)
        assert np.std([a.value for a in averages]) == pytest.approx(np.mean([a.error for a in averages]), rel=0.1)

    def test_paired_difference_of_one_task_is_agresti_and_min(self):
        first, second = [1, 1, 1, 0, 1, 0, 0, 1], [1, 0, 0, 0, 1, 1, 0, 0]
        gained, lost, number = 3 + 0.5, 1 + 0.5, 8 + 2
        centre = (gained - lost) / number
        reach = stats.norm.ppf(0.975) * np.sqrt(gained + lost - (gained - lost) ** 2 / number) / number
        assert paired_difference([(first, second)]) == pytest.approx((0.25, centre - reach, centre + reach))

    @pytest.mark.parametrize("rate", [0.1, 0.6])
    def test_the_interval_holds_the_truth_as_often_as_it_says(self, rate):
        random, held = np.random.default_rng(1), 0
        for _ in range(600):
            pairs = []
            for ahead in (0.0, 0.1, 0.3):
                drawn = random.random(16)
                pairs.append((drawn < rate + ahead, np.where(random.random(16) < 0.5, drawn, random.random(16)) < rate))
            found = paired_difference(pairs)
            held += found.low <= 0.4 / 3 <= found.high
        assert 560 <= held <= 594, f"{held} of 600; 570 is 95 %"

    @pytest.mark.parametrize(
        ("sizes", "dense", "kept"), [((40, 40, 24, 16, 12), 0.7, 0.1), ((16,) * 5, 0.6, 0.2), ((40,) * 6, 0.6, 0.5)]
    )
    def test_so_do_those_of_averages_at_the_sizes_of_mini(self, sizes, dense, kept):
        random, held = np.random.default_rng(0), np.zeros(2)
        for _ in range(400):
            drawn = [random.random(size) for size in sizes]
            right = [(values < kept, values < dense) for values in drawn]  # what is kept is what the dense model knows
            gap = paired_difference([(whole, part) for part, whole in right])
            share = share_kept([(part, whole, 0.0) for part, whole in right])
            held += [gap.low <= dense - kept <= gap.high, share.low <= kept / dense <= share.high]
        assert np.all((held >= 366) & (held <= 398)), f"{held} of 400; 380 is 95 %"

    def test_always_wrong_together_does_not_prove_equality(self):
        found = paired_difference([([0] * 16, [0] * 16)])
        assert found.value == 0
        assert found.low < -0.05 < 0.05 < found.high


class TestFrames:
    def test_scores_in_per_cent_and_in_the_paper_s_order(self):
        cells = cells_with(EVEN | {"flap": {"gsm8k": 0.35}}, questions=20)
        frame = score_frame(dict(reversed(cells.items())))
        assert list(frame["task"].unique()) == [benchmark.title for benchmark in BENCHMARKS.values()]
        assert list(frame["method"][:7]) == ["dense", *METHODS]
        row = frame[(frame["method"] == "flap") & (frame["task"] == "GSM8K")].iloc[0]
        assert row["score"] == pytest.approx(35)
        assert row["error"] == pytest.approx(100 * stats.sem([1] * 7 + [0] * 13))
        assert row[["questions", "chance"]].tolist() == [20, 0]
        assert row["removed_fraction"] == 0.048

    def test_a_failed_score_says_why_and_knows_its_method_s_ratios(self):
        frame = score_frame(failed(cells_with(EVEN), "harp", "mmlu")).set_index(["method", "task"])
        row = frame.loc["harp", "MMLU"]
        assert np.isnan(row["score"])
        assert row["failed"] == "OutOfMemoryError: 3 | 4"
        assert row["removed_fraction"] == 0.031

    def test_averages_are_of_the_tasks_that_all_methods_have(self):
        cells = failed(cells_with({m: {"mmlu": 1.0, "piqa": 0.5} for m in ("dense", *METHODS)}), "flap", "mmlu")
        means = average_frame(score_frame(cells)).set_index(["kind", "method"])
        assert means.loc[(DISCRIMINATIVE, "harp"), ["score", "tasks"]].tolist() == [pytest.approx(10), 5]
        assert means.loc[(GENERATION, "harp"), "tasks"] == 5

    def test_differences_are_positive_where_the_method_is_better_than_its_reference(self):
        cells = cells_with(EVEN | {"dense": 0.9, "flap": 0.1})
        frame = difference_frame(cells, score_frame(cells)).set_index(["kind", "task", "method"])
        assert frame.loc[(GENERATION, "BBH", "dense"), "change"] == pytest.approx(40)
        assert frame.loc[(GENERATION, "BBH", "flap"), "change"] == pytest.approx(-40)
        assert frame.loc[(DISCRIMINATIVE, AVERAGE, "flap"), ["change", "questions"]].tolist() == [
            pytest.approx(-40),
            120,
        ]
        assert "harp" not in frame.index.get_level_values("method")
        whole = difference(cells, "m", "flap", "harp", TASKS[GENERATION])
        assert list(whole) == frame.loc[(GENERATION, AVERAGE, "flap"), ["change", "low", "high"]].tolist()
        assert difference(failed(cells, "flap", "gsm8k"), "m", "flap", "harp", ["GSM8K"]) is None


class TestBold:
    @pytest.mark.parametrize(
        ("others", "on_one_task", "on_average"),
        [
            ({"flap": 0.6}, "flap", "flap"),
            ({"flap": 0.55}, None, "flap"),  # one question, which is as large as its error, and one on each task
            ({"flap": 0.8, "wanda-sp": 0.8}, None, None),
            ({"dense": 1.0, "harp": 1.0}, None, None),  # these do not compete
        ],
    )
    def test_the_best_leads_by_more_than_the_error_of_its_lead(self, others, on_one_task, on_average):
        cells = cells_with(EVEN | others)
        assert leader(cells, "m", COMPETING, ["GSM8K"]) == on_one_task
        assert leader(cells, "m", COMPETING, TASKS[DISCRIMINATIVE]) == on_average

    def test_nothing_leads_nothing(self):
        assert leader(cells_with(EVEN), "m", COMPETING, []) is None

    def test_it_is_bold_in_markdown_and_in_latex(self, tmp_path, monkeypatch):
        monkeypatch.setattr("harp_lib.paths.FIGURES", tmp_path)
        cells = cells_with(EVEN | {"harp+flap": 0.8})
        table = main_table(cells, score_frame(cells), GENERATION)
        files = tables.save(table, "scores", "mini")
        for file in files[1:]:
            line = next(line for line in file.read_text().splitlines() if "HARP+FLAP" in line)
            assert line.count(r"$\mathbf{80.00 \pm 9.18}$") == 5


class TestTables:
    def test_layout_is_the_paper_s(self):
        cells = cells_with(EVEN | {"dense": {"mmlu": 0.5}})
        table = main_table(cells, score_frame(cells), DISCRIMINATIVE)
        ours = table[table["model"] == "m"].set_index("method")
        order = ["dense", "Mag-sp", "LLM-Pruner", "Wanda-sp", "FLAP", "HARP+FLAP", "HARP", "questions", "chance"]
        assert list(ours.index) == [*order, "at the floor"]
        assert list(ours.columns) == ["model", "parameters removed", "heads removed", *TASKS[DISCRIMINATIVE], AVERAGE]
        assert ours.loc["HARP", ["parameters removed", "heads removed"]].tolist() == ["3.10 %", "1/4"]
        assert ours.loc["questions", ["BoolQ", AVERAGE]].tolist() == ["20", "120"]
        assert ours.loc["chance", ["BoolQ", "MMLU", AVERAGE]].tolist() == ["50.00", "25.00", "37.50"]
        assert ours.loc["at the floor", ["BoolQ", "MMLU"]].tolist() == ["yes", "no"]

    def test_the_paper_s_block_is_of_the_same_model_where_there_is_one(self):
        assert counterparts(["smollm2-135m"]) == ["LLaMA3.1-8B"]
        assert counterparts(["smollm2-135m", "Qwen/Qwen2-7B"]) == ["Qwen2-7B"]
        table = main_table(cells := cells_with(EVEN, model="Qwen/Qwen2-7B"), score_frame(cells), GENERATION)
        paper = table[table["model"] == "Qwen2-7B (paper)"].set_index("method")
        assert paper.loc["FLAP", ["parameters removed", "heads removed", "BBH"]].tolist() == [
            *("1.8 %", "1/7", r"$\mathbf{37.69}$")
        ]
        assert paper.loc["HARP+FLAP", ["BBH", AVERAGE]].tolist() == ["36.20", r"$\mathbf{38.79}$"]
        assert paper.loc["questions", "BBH"] == "6,511"
        table = main_table(cells := cells_with(EVEN), score_frame(cells), GENERATION)
        paper = table[table["model"] == "LLaMA3.1-8B (paper)"].set_index("method")
        assert paper.loc[["HARP+FLAP", "HARP"], "MATH-hard"].tolist() == [r"$\mathbf{1.36}$", "1.36"]

    def test_a_missing_score_is_a_dash_and_a_reason(self):
        cells = failed(failed(cells_with(EVEN), "harp", "mmlu"), "dense", "piqa")
        scores = score_frame(cells)
        ours = main_table(cells, scores, DISCRIMINATIVE).set_index("method").query("model == 'm'")
        assert ours.loc["HARP", ["MMLU", "PIQA"]].tolist() == ["–", "50.00 ± 11.47"]
        assert ours.loc["questions", AVERAGE] == "80 in 4 tasks"
        table = missing_scores(scores)
        assert table[["task", "method"]].to_numpy().tolist() == [["PIQA", "dense"], ["MMLU", "HARP"]]
        assert "|" not in table.to_csv()
        assert "missing_scores" in {name for _, name, _ in score_tables(cells)}
        assert "missing_scores" not in {name for _, name, _ in score_tables(cells_with(EVEN))}

    def test_what_is_asked(self):
        cells = cells_with(EVEN)
        cells["m", "dense", "bbh_cot_fewshot"]["result"]["subtasks"] = {"one": 5, "two": 6}
        table = asked(cells).set_index("task")
        assert table.loc["BBH", ["questions", "subtasks", "version", "filter"]].tolist() == [
            *("11", "2 of 27", "2", "get-answer")
        ]
        assert table.loc["BBH", ["questions in the paper", "shots", "new tokens"]].tolist() == ["6,511", "3", "64"]
        for method in ("dense", *METHODS):
            failed(cells, method, "gsm8k")
        assert asked(cells).set_index("task").loc["GSM8K", "questions"] == "–"

    def test_differences_beside_metrics_and_lengths(self):
        cells = cells_with(EVEN | {"flap": 0.1})
        differences = difference_frame(cells, score_frame(cells)).assign(reference="harp")
        row = difference_table(differences[differences["kind"] == GENERATION]).set_index("method").loc["FLAP"]
        assert row["GSM8K"].startswith("-40.0 [")
        beside = beside_table(beside_frame(cells)).set_index("method")
        assert beside.loc["FLAP", "PIQA (acc / acc_norm)"] == "10.00 ± 6.88 / 100.00 ± 0.00"
        lengths = answer_lengths(length_frame(cells)).set_index("method")
        assert lengths.loc["FLAP", "GSM8K"] == f"51.50 ± {stats.sem([0, 1, 2, 3] * 5):.2f}"
        assert lengths.loc["new tokens at most", "GSM8K"] == "64"

    def test_the_example_is_one_that_the_dense_model_gets_right(self):
        cells = cells_with(EVEN)
        cells["m", "dense", "gsm8k"]["result"]["scores"] = [0.0] * 3 + [1.0] * 17
        cells["m", "dense", "gsm8k"]["result"]["answer_tokens"] = [60] * 20
        cells["m", "dense", "bbh_cot_fewshot"]["result"] |= {"answer_tokens": [90] * 20, "scores": [0.0] * 20}
        examples = example_frame(cells)
        assert set(examples["task"]) == {"GSM8K"}
        assert set(examples["question"]) == {4}
        assert list(examples["method"]) == ["dense", *METHODS]
        assert examples.iloc[-1]["answer"] == "harp+flap says\n3 | 3"

    def test_files_hold_what_they_should(self, tmp_path, monkeypatch):
        monkeypatch.setattr("harp_lib.paths.FIGURES", tmp_path)
        cells = cells_with(EVEN | {"flap": 1 / 3}, questions=21)
        for table, name, numbers in score_tables(cells):
            tables.save(table, name, "mini", numbers)
            markdown = (tmp_path / "mini" / "tables" / f"{name}.md").read_text()
            assert not re.search(r"\bnan\b", markdown), name
            assert len({line.count("|") for line in markdown.splitlines()}) == 1, f"{name}: ragged"
            latex = (tmp_path / "mini" / "tables" / f"{name}.tex").read_text()
            assert latex.count("{") == latex.count("}")
            assert latex.count("$") % 2 == 0
            assert all(rule in latex for rule in (r"\toprule", r"\midrule", r"\bottomrule"))
        stored = pd.read_csv(tmp_path / "mini" / "tables" / "scores_generation.csv")
        row = stored[(stored["method"] == "flap") & (stored["task"] == AVERAGE)].iloc[0]
        assert row["score"] == pytest.approx(100 / 3, abs=1e-10), "unrounded"


def test_figures_say_what_is_missing_and_what_is_at_the_floor():
    mpl.use("agg")
    cells = failed(cells_with(EVEN | {"dense": {"gsm8k": 0.9, "triviaqa": 0.9}}), "harp", "gsm8k")
    found = dict(score_figures.all_figures(cells))
    names = ["teaser_left", "discriminative_scores", "score_differences", "score_kept", "score_kept_by_length"]
    assert list(found) == [f"{name}_m" for name in names]
    axis = found["teaser_left_m"].axes[0]
    assert [text.get_text() for text in axis.texts] == ["missing"]
    assert len(axis.patches) == 6 * 7 - 1
    labels = [label.get_text().replace("\n", ", ") for label in axis.get_xticklabels()]
    assert labels[0] == "TriviaQA, 20 questions"
    assert labels[1] == "NaturalQuestions, 20 questions, (at the floor)"
    kept = kept_frame(cells, score_frame(cells))
    assert set(kept[kept["floor"]]["task"]) >= {"BBH", "MMLU"}
    for figure in found.values():
        figure.canvas.draw()
        mpl.pyplot.close(figure)
