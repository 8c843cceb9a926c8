"""Tables, and figures of scores and costs: the paper's block whole, ours beneath, counts, errors,
what is missing.
"""

import re

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest

from harp_lib import config, report
from harp_lib.config import load_profile
from harp_lib.evaluation.benchmarks import ALL_BENCHMARKS
from harp_lib.names import METHOD_TITLES, METHODS
from harp_lib.report import comparisons, data, figures_costs, figures_scores, plots, scores, tables
from harp_lib.report.tables import MISSING, block, efficiency, lines, ranges, stacked, told, written

MODEL, PAPER = "smollm2-135m", ("LLaMA3.1-8B", "Mistral-7B-v0.3", "Qwen2-7B", "Gemma2-9B")


@pytest.fixture
def mini() -> dict:
    return load_profile("mini")


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """The committed reference is read and nothing of this checkout is written."""
    monkeypatch.setattr(config, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(config, "FIGURES", tmp_path / "figures")
    plots.use_style()
    yield
    plt.close("all")


def scored(answers: dict[str, dict[str, list]], model: str = MODEL) -> dict:
    """Cells of method → task → scores of its questions, or the reason why there are none."""
    cells = {}
    for method, tasks in answers.items():
        for task, found in tasks.items():
            result = {"failed": found}
            if not isinstance(found, str):
                rows = {
                    "subtask": [task] * len(found),
                    "question": list(range(len(found))),
                    "score": found,
                }
                result = {"rows": rows, "versions": {task: 1.0}, "answers": {task: ["x"]}}
            result |= {
                "removed_fraction": 0.05 * (method != "dense"),
                "head_ratio": 0.2 * (method != "dense"),
            }
            cells[model, method, task] = {
                "inputs": {"new_tokens": 8},
                "result": result,
                "seconds": 1.0,
            }
    return cells


@pytest.fixture
def stored(monkeypatch):
    """stored(main_tables=cells): what these stores hold, and no other store holds anything."""

    def put(**stores):
        monkeypatch.setattr(data, "cells", lambda profile, store: stores.get(store, {}))

    return put


def test_a_block_has_dashes_reasons_and_bold():
    rows = [("a", "x", 1.0, 0.5, None, True), ("a", "y", np.nan, np.nan, "no rows | here", False)]
    rows += [("b", "x", 2.0, np.nan, None, False)]
    frame = pd.DataFrame(rows, columns=["method", "task", "value", "error", "reason", "best"])
    found = block(frame, "method", "task", "{value:.1f} ± {error:.1f}")
    assert found.to_dict("list") == {
        "method": ["a", "b"],
        "x": ["**1.0 ± 0.5**", "2.0"],
        "y": [f"{MISSING} (no rows · here)", MISSING],
    }


def test_a_line_leaves_out_an_interval_that_there_is_not():
    row = {"of dense": 0.91, "of dense low": np.nan, "of dense high": np.nan}
    cell = "{of dense:.2f} [{of dense low:.2f}, {of dense high:.2f}]"
    assert written(row, cell) == "0.91"
    assert written(row | {"of dense low": 0.9, "of dense high": 0.92}, cell) == "0.91 [0.90, 0.92]"
    frame = pd.DataFrame([{"model": MODEL, "method": "harp+flap", "value": 3.0}])
    assert lines(frame, {"m": "{name}", "v": "{value:.0f}"}).to_dict("list") == {
        "m": ["HARP+FLAP"],
        "v": ["3"],
    }
    assert told(-1.25, -2, 3) == "−1.2 [−2.0, +3.0]"
    parts = [pd.DataFrame({"model": [name] * 2, "x": ["1", "2"]}) for name in "ab"]
    assert list(stacked(*parts)["model"]) == ["a", "", "b", ""]  # a model is named once


@pytest.mark.parametrize("name", ["scores_generation", "longbench_scores"])
def test_the_paper_stands_whole_and_ours_beneath(name, mini):
    shown, numbers = report.entries()[name].make(mini)
    models = [model for model in shown["model"] if model]
    assert models[:-1] == [
        f"{model} (paper)" for model in (PAPER[:2] if "longbench" in name else PAPER)
    ]
    printed = data.paper("longbench" if "longbench" in name else "generation").query(
        "quantity == 'score'"
    )
    assert len(numbers[numbers["source"] == "paper"]) == len(printed)
    first = printed.query("model == 'LLaMA3.1-8B' and method == 'harp+flap'")["value"]
    line = shown[shown["method"] == "HARP+FLAP"].iloc[0].astype(str).str.strip("*")
    at = (
        slice(-len(first), None) if "longbench" in name else slice(-len(first) - 1, -1)
    )  # a range is behind averages
    assert [f"{value:.2f}" for value in first] == list(line[at])

    begin = list(shown["model"]).index(models[-1])
    ours = shown.iloc[begin:].set_index("method")
    assert ours.iloc[0].str.startswith("mini-").sum() >= len(first) - 1  # home-made rows say so
    assert ours.loc["HARP"].str.contains("±").any() == (
        "longbench" not in name
    )  # two questions are no score
    cells = data.cells("mini", "longbench" if "longbench" in name else "main_tables")
    for task in printed["task"].unique()[:5]:
        title = ALL_BENCHMARKS[task].title
        if (found := cells.get((MODEL, "harp", task))) is not None:
            asked = found["result"]["rows"]["score"]
            expected = f"{100 * np.mean(asked):.2f} ± {100 * comparisons.score_error(asked):.2f}"
            if len(asked) < scores.FEWEST_QUESTIONS:
                expected = f"{MISSING} ({len(asked)} questions)"
            assert ours.loc["HARP", title] == expected
            assert ours.loc["questions", title] == str(len(asked))


def test_the_highest_printed_score_of_equals_is_bold(mini):
    shown, _ = scores.scores_generation(mini)
    llama = shown.iloc[:7].set_index("method")
    printed = ("dense", *METHODS)
    assert llama["TriviaQA"].str.startswith("**").to_dict() == {
        METHOD_TITLES[m]: m == "harp+flap" for m in printed
    }
    assert llama.loc["HARP", "MATH-hard"] == "1.36"  # as high as the bold one, but it removes less


def test_a_made_up_cell_stands_in_its_row(mini, stored):
    questions = {"triviaqa": [0.0, 1.0, 1.0, 1.0] * 4, "gsm8k": [0.0] * 16, "nq_open": [1.0] * 9}
    answers = {method: dict(questions) for method in ("dense", *METHODS)}
    answers["flap"]["triviaqa"] = [1.0] * 16
    stored(main_tables=scored(answers))
    shown, numbers = scores.scores_generation(mini)
    ours = shown[(shown["model"] != "").cumsum() == (shown["model"] != "").sum()].set_index(
        "method"
    )
    told_ = ours.loc["FLAP", ["TriviaQA", "GSM8K", "Average"]].tolist()
    assert told_ == [
        "100.00 ± 6.71",
        "0.00 ± 6.71",
        "50.00 ± 4.74",
    ]  # 18 of 20 and 2 of 20: Agresti and Coull
    assert ours.loc["FLAP", "average without one task"] == "0.0 to 100.0"
    assert ours.loc["HARP", "TriviaQA"] == "75.00 ± 10.25"  # 14 of 20
    assert (
        ours.loc["HARP", "NaturalQuestions"] == f"{MISSING} (9 questions)"
    )  # too few to be a score
    assert ours.loc["FLAP", "BBH"] == MISSING
    assert ours.loc["dense", "parameters removed"] == "0.00 %"
    assert ours.loc["HARP", "heads removed"] == "1/5"
    assert numbers.query("source == 'ours' and task == 'average'")["questions"].unique() == [32]


def test_a_missing_score_is_a_dash_with_its_reason_and_in_no_average(mini, stored):
    answers = {
        method: {"triviaqa": [1.0] * 10, "gsm8k": [0.0] * 10}
        for method in ("dense", "mag-sp", "harp")
    }
    answers["mag-sp"]["gsm8k"] = "out of memory"
    stored(main_tables=scored(answers))
    frame = scores.scores(mini, "main_tables", ["triviaqa", "gsm8k"])
    assert (
        frame.query("task == 'average'")["value"].tolist() == [100.0] * 3
    )  # of the task that all have
    shown, _ = scores.scores_generation(mini)
    assert f"{MISSING} (out of memory)" in shown["GSM8K"].tolist()
    stored(
        main_tables=scored(answers) | scored(answers, "other"),
        ablations=scored({"top": answers["harp"]}),
    )
    assert set(scores.scores(mini, ("ablations", "main_tables"), ["triviaqa"])["model"]) == {
        MODEL
    }, "other has none"


def test_what_is_asked_stands_beside_what_the_paper_asked(mini):
    shown = scores.dataset_statistics(mini).set_index("what")
    assert shown.loc["# Choices", ["WinoGrande", "MMLU"]].tolist() == ["2", "4"]
    assert shown.loc["# Tasks", "TriviaQA"] == "17,944"
    assert shown.loc["called", "TriviaQA"] == "mini-TriviaQA"
    assert shown.loc["choices", "MMLU"] == 4


def test_tuned_ranges_are_the_best_and_say_by_how_little(mini):
    found = ranges(mini)
    if found.empty:
        pytest.skip("no reference")
    for _, part in found.groupby(["model", "method"]):
        assert part["value"].idxmin() == part["tuned"].idxmax()
        assert part["tuned"].sum() == 1
        assert (part["alike"] == ~(part["above low"] > 0)).all()
    shown, _ = tables.baseline_tuning(mini)
    assert shown.iloc[0].tolist()[1:4] == ["Mag-sp", "15", "31"]
    last = shown.iloc[-1]
    assert int(last["not told from the best"]) < int(last["ranges tried"])
    assert "±" in last["perplexity"]


def timed(seconds: dict[str, list[float]], tokens: int = 64) -> dict:
    flops = {name: 100.0 - 10 * place for place, name in enumerate(seconds)}
    result = {
        "seconds": seconds,
        "flops": {"full": flops, "causal": flops},
        "cache_bytes": {},
        "peak_bytes": {},
    }
    return {
        (MODEL, "all", f"prefill-{tokens}"): {
            "inputs": {"tokens": tokens},
            "result": result,
            "seconds": 1.0,
        }
    }


def test_times_are_paired_by_repetition(mini, stored):
    dense, harp = [1.0, 2.0, 4.0], [0.5, 1.1, 2.0]
    stored(efficiency=timed({"dense": dense, "harp": harp, "thinned": harp[::-1]}))
    found = efficiency(mini, "prefill").set_index("variant")
    assert found.loc["harp", "of dense"] == pytest.approx(
        np.exp(np.mean(np.log(harp) - np.log(dense)))
    )
    assert found.loc["harp", "of dense low"] == pytest.approx(
        comparisons.time_ratio(dense, harp).low
    )
    assert found.loc["harp", "of thinned"] == pytest.approx(1)
    assert found.loc["thinned", "flops full of dense"] == pytest.approx(0.8)
    assert tables.paper_times()[1024] == pytest.approx(0.0355 / 0.0371)


def test_what_was_found_of_time_follows_the_numbers(mini, stored):
    base, noise = np.array([1.0, 1.1, 1.2, 1.1]), np.array([1.01, 0.99, 1.0, 1.005])
    seconds = {
        "dense": 2 * base,
        "harp": base,
        "harp-tail": 0.5 * base,
        "thinned": 0.8 * base * noise,
    }
    stored(efficiency=timed({name: list(values) for name, values in seconds.items()}))
    against_dense, against = figures_costs.time_found(mini).to_numpy().tolist()
    assert against_dense[1:] == ["64", "dense", "0.500 [0.500, 0.500]", "0.250 [0.250, 0.250]"]
    assert re.fullmatch(r"1\.2\d\d \[1\.\d+, 1\.\d+\]", against[3])
    assert against[4].startswith("0.62")
    stored(efficiency=timed({name: list(values[:1]) for name, values in seconds.items()}))
    assert figures_costs.time_found(mini).empty, "one repetition tells nothing"


def test_nothing_is_drawn_where_both_scored_nothing(mini, stored):
    answers = {
        m: {t: [float(t == "triviaqa")] * 12 for t in scores.of_kind("generation")}
        for m in ("dense", *METHODS)
    }
    answers |= {
        m: answers[m] | {t: [1.0, 0.0] * 6 for t in scores.of_kind("discriminative")}
        for m in answers
    }
    stored(main_tables=scored(answers))
    groups = {"gsm8k": ["gsm8k"], "triviaqa": ["triviaqa"]}
    found = scores.differences(mini, "main_tables", groups, "harp")
    assert found.groupby("group")["silent"].all().to_dict() == {"gsm8k": True, "triviaqa": False}
    drawn = figures_scores.score_differences(mini)
    names = [label.get_text() for axis in drawn.axes for label in axis.get_yticklabels()]
    assert not [name for name in names if "GSM8K" in name]
    assert [name for name in names if name.startswith("mini-TriviaQA (12")]


def test_show_writes_files_and_names_what_it_does_not_know(mini):
    shown = report.show("pruning_ratios", mini)
    assert "LLaMA3.1-8B" in shown.data
    files = sorted(file.name for file in (config.FIGURES / "mini" / "tables").iterdir())
    assert files == [f"pruning_ratios.{ending}" for ending in ("csv", "md", "tex")]
    report.show("scores_generation", mini)
    assert r"\textbf{60.06}" in (
        config.FIGURES / "mini" / "tables" / "scores_generation.tex"
    ).read_text("utf-8")
    file = config.FIGURES / "mini" / "tables" / "pruning_ratios.csv"
    assert pd.read_csv(file)["harp"].iloc[0] == pytest.approx(3.305288)
    assert r"\toprule" in file.with_suffix(".tex").read_text("utf-8")
    with pytest.raises(ValueError, match="unknown figure or table 'scroes'; choose from"):
        report.show("scroes", mini)


def test_what_has_no_cells_is_said_and_redraw_writes_nothing_then(mini, stored, monkeypatch):
    stored()
    assert "has nothing to show for it" in report.show("teaser_left", mini).data
    monkeypatch.setattr(report, "entries", lambda: {"teaser_left": report._ENTRIES["teaser_left"]})
    with pytest.raises(FileNotFoundError, match="nothing is stored for the profile mini"):
        report.redraw(mini)


def test_figures_are_saved_alike_twice(mini):
    names, contents = ("png", "pdf", "svg"), []
    for _ in range(2):
        report.show("baseline_change", mini)
        contents.append(
            [
                (config.FIGURES / "mini" / f"baseline_change.{ending}").read_bytes()
                for ending in names
            ]
        )
    assert contents[0] == contents[1]
    assert len(pd.read_csv(config.FIGURES / "mini" / "tables" / "baseline_change.csv"))


def test_the_front_page_says_what_the_reference_says(mini):
    page = (config.ROOT / "README.md").read_text(encoding="utf-8")
    found = re.findall(r"<!-- begin (\w+)(?: of small)? -->\n(.+?)<!-- end \1 -->", page, re.DOTALL)
    assert {name for name, _ in found} == {"results", "claims", "time", "refit", "frontier"}
    assert report.rendered(page, mini) == page, (
        "write it again: report.write_readme(load_profile('mini'))"
    )
    emptied = re.sub(r"(<!-- begin [\w ]+ -->\n).*?(<!-- end)", r"\1\2", page, flags=re.DOTALL)
    assert report.rendered(emptied, mini) == page
    assert "LongBench" not in dict(found)["results"]
