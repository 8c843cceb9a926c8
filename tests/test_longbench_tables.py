"""LongBench in frames, tables and figures: made-up answers, and the numbers and signs that have to come out of them."""

import re

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
from harp_lib.longbench_claims import (
    ABOVE,
    ALL,
    AS_MANY,
    EVERY,
    PRUNED,
    category_differences,
    category_frame,
    counterpart,
    first_places,
    published_ranks,
    rank_frame,
)
from harp_lib.score_frames import AVERAGE, score_frame
from scipy import stats

from harp_lib import figures, longbench_figures, tables
from harp_lib.longbench_tables import (
    answer_lengths,
    asked,
    example_frame,
    length_frame,
    longbench_tables,
    named_once,
    paper_layout,
    rank_table,
    score_table,
)
from harp_lib.measure.benchmarks import CATEGORIES, LONGBENCH
from harp_lib.methods import METHODS

TITLES = [benchmark.title for benchmark in LONGBENCH.values()]
EVEN = dict.fromkeys(("dense", *METHODS), 0.5)


def cells_with(means, questions=8, model="m"):
    """Cells in which every answer of a method scores this: on all tasks, or task by task (as the paper prints them).

    A sequence stands for the scores of single questions.
    """
    cells = {}
    for task, benchmark in LONGBENCH.items():
        for method in ("dense", *METHODS):
            score = means[method].get(benchmark.title, 0.0) if isinstance(means[method], dict) else means[method]
            result = {
                "scores": [float(value) for value in np.broadcast_to(score, questions)],
                "versions": {task: 5.0},
                "answers": [f"{method} says\n{number} | {number}" for number in range(questions)],
                "answer_tokens": [number % 17 for number in range(questions)],
                "prompt_tokens": [700 + number for number in range(questions)],
                "removed_fraction": {"dense": 0.0, "harp": 0.031}.get(method, 0.048),
                "head_ratio": 0.0 if method == "dense" else 0.25,
            }
            inputs = {"new_tokens": 16, "context": 702, "source": "embedded", "dtype": "bfloat16", "batch_size": 4}
            cells[model, method, task] = {"result": result, "inputs": inputs | {"lm_eval": "0.4.13"}, "seconds": 1.0}
    return cells


def failed(cells, method, title, why="OutOfMemoryError: 3 | 4"):
    task = next(name for name, benchmark in LONGBENCH.items() if benchmark.title == title)
    cells["m", method, task]["result"] = {"failed": why}
    return cells


def frame(cells):
    return score_frame(cells, benchmarks=LONGBENCH)


class TestCategories:
    def test_averages_of_tasks_with_student_s_interval(self):
        asked_of = {"Lcc": [0.1, 0.2, 0.3, 0.6], "RB-P": [0.5, 0.5, 0.9, 0.5]}
        row = category_frame(frame(cells_with(EVEN | {"harp": asked_of}, 4))).set_index(["kind", "method"])
        row = row.loc[("Code", "harp")]
        assert row["score"] == pytest.approx(45)
        error = 100 * np.hypot(stats.sem(asked_of["Lcc"]), stats.sem(asked_of["RB-P"])) / 2
        assert row["high"] - row["score"] == pytest.approx(stats.t.ppf(0.975, 6) * error)
        assert row[["tasks", "questions"]].tolist() == [2, 8]

    def test_of_the_tasks_that_all_methods_have(self):
        cells = failed(cells_with({method: {"Lcc": 1.0, "RB-P": 0.5} for method in EVEN}, 4), "flap", "Lcc")
        found = category_frame(frame(cells)).set_index(["kind", "method"])
        assert found.loc[("Code", "harp"), ["score", "tasks", "questions"]].tolist() == [pytest.approx(50), 1, 4]
        assert found.loc[(ALL, "harp"), ["tasks", "questions"]].tolist() == [15, 60]

    def test_one_question_has_no_interval(self):
        found = category_frame(frame(cells_with(EVEN, 1)))
        assert found["score"].tolist() == [50] * len(found)
        assert found[["low", "high"]].isna().all(axis=None)

    def test_differences_are_positive_where_the_method_is_better_than_its_reference(self):
        cells = cells_with(EVEN | {"flap": {"PCount": 1.0, "PRe": 0.8}})
        found = category_differences(cells, frame(cells)).set_index(["reference", "method", "kind"])
        assert found.loc[("harp", "flap", "Synthetic"), "change"] == pytest.approx(40)
        assert found.loc[("harp", "flap", "Code"), "change"] == pytest.approx(-50)
        assert found.loc[("harp+flap", "flap", ALL), ["change", "questions"]].tolist() == [
            pytest.approx((0.5 + 0.3 - 14 * 0.5) / 16 * 100),
            128,
        ]
        assert ("harp", "harp", ALL) not in found.index


class TestFirstPlaces:
    def test_counts_are_those_of_a_loop(self):
        means = np.random.default_rng(0).integers(0, 3, (40, 4, 9)) / 2
        alone, tied = first_places(means)
        for draw, block in enumerate(means):
            slow = np.zeros((2, 4), int)
            for task in range(9):
                winners = [method for method in range(4) if block[method, task] == block[:, task].max()]
                if len(winners) < 4:
                    for method in winners:
                        slow[int(len(winners) > 1), method] += 1
            assert [list(alone[draw]), list(tied[draw])] == slow.tolist()

    def test_all_alike_is_no_first_place(self):
        assert np.sum(first_places(np.zeros((5, 16)))) == 0

    def test_of_the_paper_s_table(self):
        found = published_ranks().set_index(["model", "among", "method"])[["alone", "tied"]]
        assert found.loc[("LLaMA3.1-8B", AS_MANY, "harp+flap")].tolist() == [8, 0], "half of 16, not most"
        assert found.loc[("LLaMA3.1-8B", AS_MANY, "mag-sp")].tolist() == [5, 0]
        assert found.loc[("LLaMA3.1-8B", PRUNED, "harp")].tolist() == [8, 1], "MF-en is shared with Mag-sp"
        assert found.loc[("Mistral-7B-v0.3", AS_MANY, "harp+flap")].tolist() == [9, 0]
        assert "llm-pruner" not in found.loc["Mistral-7B-v0.3"].index.get_level_values("method")
        assert found.loc["Mistral-7B-v0.3"].loc[AS_MANY, "alone"].sum() == 16

    def test_always_ahead_is_always_first(self):
        cells = cells_with(EVEN | {"dense": {title: 0.5 for title in TITLES[:10]}, "flap": 0.6})
        found = rank_frame(cells, frame(cells)).set_index(["among", "of", "method"])
        first = found.loc[(AS_MANY, EVERY, "flap")]
        assert first[["alone", "low", "high", "most", "tasks"]].tolist() == [16, 16, 16, 1, 16]
        assert found.loc[(PRUNED, ABOVE, "flap"), ["alone", "tasks", "questions"]].tolist() == [10, 10, 80]
        assert found.loc[(AS_MANY, EVERY, "mag-sp"), ["alone", "high", "most", "beaten"]].tolist() == [0, 0, 0, 1]
        assert "harp" not in found.loc[AS_MANY].index.get_level_values("method")

    def test_questions_are_drawn_for_all_methods_together(self):
        """Two methods know the same one of four questions, the second a little less: it is never ahead."""
        known, less = np.array([1, 0, 0, 0]), np.array([0.9, 0, 0, 0])
        cells = cells_with(dict.fromkeys(EVEN, 0.0) | {"harp+flap": {"TREC": known}, "flap": {"TREC": less}}, 4)
        found = rank_frame(cells, frame(cells)).query("among == @AS_MANY and of == @EVERY").set_index("method")
        drawn = 1 - 0.75**4  # the chance that the question is among the four of a draw; else all score 0
        assert found.loc["harp+flap", ["alone", "tied", "low", "high", "beaten"]].tolist() == [1, 0, 0, 1, 0]
        assert found.loc["harp+flap", "most"] == found.loc["flap", "beaten"] == pytest.approx(drawn, abs=0.04)
        assert found.loc["flap", ["alone", "high", "most"]].tolist() == [0, 0, 0]

    def test_one_question_draws_nothing(self):
        cells = cells_with(EVEN | {"flap": 0.6}, 1)
        found = rank_frame(cells, frame(cells))
        assert found.loc[found["method"] == "flap", "alone"].tolist() == [16, 0, 16, 0]
        assert found[["low", "most"]].isna().all(axis=None)


class TestTables:
    def test_tasks_by_methods(self):
        cells = cells_with(EVEN | {"dense": {"PRe": 0.5}, "harp": 0.75})
        ours = score_table(cells, frame(cells)).query("model == 'm'").set_index(["category", "task"])
        methods = ["dense", "Mag-sp", "LLM-Pruner", "Wanda-sp", "FLAP", "HARP+FLAP", "HARP"]
        assert list(ours.columns) == ["model", *methods, "questions", "at the floor"]
        lines = [(kind, task) for kind, tasks in CATEGORIES.items() for task in [*tasks.values(), AVERAGE]]
        assert list(ours.index) == [*lines, (ALL, AVERAGE), ("", "parameters removed")]
        assert ours.loc[("Synthetic", "PRe"), ["HARP", "questions", "at the floor"]].tolist() == [
            *("75.00 ± 0.00", "8", "no")
        ]
        assert ours.loc[("Synthetic", "PCount"), "at the floor"] == "yes"
        assert ours.loc[(ALL, AVERAGE), ["HARP", "questions"]].tolist() == ["75.00 ± 0.00", "128"]
        assert ours.loc[("", "parameters removed"), ["HARP", "FLAP"]].tolist() == ["3.10 %", "4.80 %"]

    def test_the_best_of_those_that_remove_as_much_is_bold(self):
        cells = cells_with(EVEN | {"dense": 0.9, "harp": 0.8, "wanda-sp": {"QMSum": [0.6] * 7 + [0.5]}})
        ours = score_table(cells, frame(cells)).query("model == 'm'").set_index("task")
        assert ours.loc["QMSum", "Wanda-sp"] == r"$\mathbf{58.75 \pm 1.25}$"
        assert not any("mathbf" in text for text in ours.loc["QMSum", ["dense", "HARP", "FLAP"]])

    def test_nothing_is_bold_at_the_floor(self):
        best = {"QMSum": [0.6] * 7 + [0.5], "TREC": [0.6] * 7 + [0.5]}
        cells = cells_with(
            EVEN | {"dense": {"QMSum": 0.9}, "wanda-sp": best, "flap": 0.1, "harp+flap": 0.1, "mag-sp": 0.1}
        )
        ours = score_table(cells, frame(cells)).query("model == 'm'").set_index(["category", "task"])
        marked = ours.index[ours["Wanda-sp"].str.contains("mathbf")]
        assert list(marked) == [("Summarization", "QMSum")], "LLM-Pruner leads the averages, TREC is at the floor"
        assert ours.loc[("Few-shot Learning", "TREC"), "at the floor"] == "yes"
        assert not ours.loc[ours["at the floor"] == "yes", "LLM-Pruner"].str.contains("mathbf").any()

    def test_one_question_does_not_tell_the_floor(self):
        cells = cells_with(EVEN | {"dense": 1.0}, 1)
        ours = score_table(cells, frame(cells)).query("model == 'm'")
        assert set(ours["at the floor"]) == {"one question", ""}

    def test_a_model_is_named_once_where_it_is_shown(self):
        cells = cells_with(EVEN)
        table = score_table(cells, frame(cells))
        shown = named_once(table)
        assert shown.loc[shown["model"] != "", "model"].tolist() == ["m", "LLaMA3.1-8B (paper)"]
        assert shown.drop(columns="model").equals(table.drop(columns="model"))
        written = {name: (text, numbers) for text, name, numbers in longbench_tables(cells)}["longbench_scores"]
        assert (written[0]["model"] == "m").sum() == 1
        assert (written[1]["model"] == "m").all()

    @pytest.mark.parametrize(
        ("model", "paper"),
        [("m", "LLaMA3.1-8B"), ("mistralai/Mistral-7B-v0.3", "Mistral-7B-v0.3"), ("Qwen/Qwen2-7B", "LLaMA3.1-8B")],
    )
    def test_the_paper_s_block_stands_below(self, model, paper):
        assert counterpart(model) == paper
        cells = cells_with(EVEN, model=model)
        block = score_table(cells, frame(cells)).query("model == @paper + ' (paper)'").set_index(["category", "task"])
        assert block.loc[("Multi-Document QA", "Musique"), "HARP+FLAP"].startswith(r"$\mathbf{")
        assert block.loc[("", "parameters removed"), "HARP+FLAP"] == {"L": "4.8 %", "M": "4.8 %"}[paper[0]]
        assert block.loc[(ALL, AVERAGE), "questions"] == "3,750"
        average = {"L": r"$\mathbf{22.74}$", "M": "22.91"}[paper[0]]
        assert block.loc[(ALL, AVERAGE), "Mag-sp"] == average
        assert "mathbf" not in "".join(block[["dense", "HARP"]].to_numpy().flat), "also where it shares the first place"

    def test_the_paper_s_layout_has_the_same_cells(self):
        cells = cells_with(EVEN | {"harp": {"QMSum": 0.25}})
        table = score_table(cells, frame(cells))
        across = paper_layout(table)
        assert list(across.columns) == ["model", "method", "parameters removed", *TITLES, AVERAGE]
        assert list(across.query("model == 'm'")["method"]) == [
            *("category", "dense", "Mag-sp", "LLM-Pruner", "Wanda-sp", "FLAP", "HARP+FLAP", "HARP"),
            *("questions", "at the floor"),
        ]
        row = across.query("model == 'm' and method == 'HARP'").iloc[0]
        assert row[["parameters removed", "QMSum", AVERAGE]].tolist() == ["3.10 %", "25.00 ± 0.00", "1.56 ± 0.00"]
        heads = across.iloc[0]
        assert heads[heads != ""].tolist()[2:] == [*CATEGORIES, ALL]
        assert heads["TREC"] == "Few-shot Learning"

    def test_what_is_asked(self):
        table = asked(cells_with(EVEN, 8)).set_index("task")
        assert table.loc["MF-en", ["questions", "questions in LongBench", "version"]].tolist() == ["8", "150", "5"]
        assert table["questions in LongBench"].astype(int).sum() == 3750
        assert table.loc["GovReport", ["new tokens", "new tokens in LongBench", "metric"]].tolist() == [
            *("16", "512", "ROUGE-L")
        ]
        assert table.loc["TREC", ["metric", "category"]].tolist() == ["accuracy, first line", "Few-shot Learning"]
        assert table.loc["Lcc", "tokens of a prompt"] == "704 (5 of 8 cut to 702)"

    def test_prompts_of_two_models_and_of_a_shorter_one(self):
        cells = cells_with(EVEN, 8, "short")
        for cell in cells.values():
            cell["result"]["context"] = 701
        row = asked(cells_with(EVEN, 8) | cells).set_index("task").loc["Lcc"]
        assert row["tokens of a prompt, m"] == "704 (5 of 8 cut to 702)"
        assert row["tokens of a prompt, short"] == "704 (6 of 8 cut to 701)"

    def test_first_places_and_their_intervals(self):
        cells = cells_with(EVEN | {"flap": 0.6, "wanda-sp": {"TREC": 0.6}})
        table = rank_table(rank_frame(cells, frame(cells))).set_index(["model", "among", "counted on"])
        assert table.loc[("m", AS_MANY, "16 tasks"), "FLAP"] == "15 + 1 tied [16, 16], most in 100 %"
        assert table.loc[("LLaMA3.1-8B (paper)", PRUNED, "16 tasks"), ["HARP", "Mag-sp"]].tolist() == [
            *("8 + 1 tied", "3 + 1 tied")
        ]
        assert table.loc[("Mistral-7B-v0.3 (paper)", AS_MANY, "16 tasks"), "LLM-Pruner"] == ""

    def test_answers_that_stop_at_once_and_that_never_stop(self):
        cells = cells_with(EVEN, 17)
        found = answer_lengths(length_frame(cells)).set_index("task")
        assert found.loc["TREC", "FLAP"] == f"8.00 ± {stats.sem(range(17)):.2f}"
        assert found.loc["TREC", "new tokens at most"] == "16"
        assert found.loc[["empty answers", "as long as the limit"], "FLAP"].tolist() == ["16 of 272"] * 2

    def test_a_method_that_is_missing_altogether_has_no_lengths(self, recwarn):
        cells = cells_with(EVEN)
        for title in TITLES:
            failed(cells, "flap", title)
        assert set(answer_lengths(length_frame(cells))["FLAP"]) == {""}
        assert not recwarn.list

    def test_examples_are_what_the_dense_model_answers_best(self):
        """Only of tasks above the floor: the averages of GovReport and Qasper are higher."""
        dense = {"GovReport": [0, 1, 0.9, 0], "QMSum": [0.1, 0.4, 0.3, 0.2], "TREC": 1.0}
        dense |= {"Qasper": [0, 1, 1, 0], "HotpotQA": [0.4, 0.3, 0.4, 0.7]}
        found = example_frame(cells_with(EVEN | {"dense": dense}, 4))
        assert found[["task", "question"]].drop_duplicates().to_numpy().tolist() == [["QMSum", 2], ["HotpotQA", 4]]
        assert set(found["method"]) == {"dense", *METHODS}
        assert found.iloc[-1]["answer"] == "harp says\n3 | 3"

    def test_files_hold_what_they_should(self, tmp_path, monkeypatch):
        monkeypatch.setattr("harp_lib.paths.FIGURES", tmp_path)
        cells = failed(cells_with(EVEN | {"flap": 1 / 3}, 7), "harp", "TREC")
        names = []
        for table, name, numbers in longbench_tables(cells):
            names.append(name)
            tables.save(table, name, "mini", numbers)
            markdown = (tmp_path / "mini" / "tables" / f"{name}.md").read_text()
            assert not re.search(r"\bnan\b", markdown), name
            assert len({line.count("|") for line in markdown.splitlines()}) == 1, f"{name}: ragged"
            latex = (tmp_path / "mini" / "tables" / f"{name}.tex").read_text()
            assert latex.count("{") == latex.count("}")
            assert latex.count("$") % 2 == 0
        assert "longbench_missing_scores" in names
        stored = pd.read_csv(tmp_path / "mini" / "tables" / "longbench_scores.csv")
        row = stored[(stored["method"] == "flap") & (stored["task"] == "Code")].iloc[0]
        assert row["score"] == pytest.approx(100 / 3, abs=1e-10), "unrounded"
        assert "longbench_missing_scores" not in {name for _, name, _ in longbench_tables(cells_with(EVEN, 2))}


@pytest.mark.parametrize("questions", [1, 4])
def test_figures_show_every_category_and_method(questions):
    mpl.use("agg")
    figures.use_style()
    cells = failed(cells_with(EVEN | {"dense": {"PRe": 0.5}}, questions), "harp", "Lcc")
    cells = failed(cells, "flap", "RB-P")
    found = dict(longbench_figures.all_figures(cells))
    assert list(found) == ["longbench_categories_m", "longbench_first_places_m", "longbench_differences_m"]
    axes = found["longbench_categories_m"].axes
    assert len(axes[0].patches) == 6 * 7, "no code, but five categories and all tasks"
    assert [len(axis.patches) for axis in axes[1:3]] == [7 * 7, 7 * 6]
    assert ("one question" in axes[0].get_title(loc="left")) == (questions == 1)
    labels = [label.get_text().replace("\n", " ") for label in axes[2].get_xticklabels()]
    single = "one question a task: no error to judge by"
    assert (
        labels[4] == f"Synthetic ours: {2 * questions} questions, {single if questions == 1 else '1 of 2 at the floor'}"
    )
    assert labels[5] == f"Code ours: missing, {single if questions == 1 else '2 of 2 at the floor'}"
    assert axes[0].get_ylim() == axes[2].get_ylim(), "bars of ours and of the paper can be compared"
    assert all(bar.get_height() < axis.get_ylim()[1] for axis in axes[:3] for bar in axis.patches)
    titles = " ".join(axis.get_title(loc="left") for axis in found["longbench_first_places_m"].axes).replace("\n", " ")
    assert ("one question a task: no error" in titles) == (questions == 1)
    for figure in found.values():
        figure.canvas.draw()
        mpl.pyplot.close(figure)


def test_a_task_without_a_dense_score_is_not_at_the_floor():
    cells = failed(cells_with(EVEN), "dense", "Lcc")
    cells = failed(failed(cells, "dense", "PRe"), "dense", "PCount")
    figure = longbench_figures.category_scores(cells, category_frame(frame(cells)), "m")
    labels = [label.get_text().replace("\n", " ") for label in figure.axes[2].get_xticklabels()]
    assert labels[3:] == [
        "Few-shot Learning ours: 24 questions, 0 of 3 at the floor",
        "Synthetic ours: missing, 0 of 2 tasks scored",
        "Code ours: 8 questions, 0 of 1 at the floor, 1 of 2 tasks scored",
        "All tasks ours: 104 questions, 0 of 13 at the floor, 13 of 16 tasks scored",
    ]
    mpl.pyplot.close(figure)
