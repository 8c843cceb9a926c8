"""Tables, and figures of scores and costs.

The paper's block stands whole and ours beneath it, with counts, errors and what is missing.
"""

import re

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from made_up_scores import MODEL, scored

from harp_lib import config, report
from harp_lib.config import load_profile
from harp_lib.names import METHOD_TITLES, METHODS
from harp_lib.report import (
    comparisons,
    data,
    figures_costs,
    figures_scores,
    plots,
    score_tables,
    scores,
    short_tables,
    tables,
)
from harp_lib.report.plan_tables import ranges
from harp_lib.report.tables import MISSING, block, efficiency, lines, stacked, told, written
from harp_lib.results import columns_of

PAPER = ("LLaMA3.1-8B", "Mistral-7B-v0.3", "Qwen2-7B", "Gemma2-9B")


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


@pytest.fixture
def stored(monkeypatch):
    """stored(main_tables=cells): what these stores hold, and no other store holds anything."""

    def put(**stores):
        monkeypatch.setattr(data, "cells", lambda profile, store: stores.get(store, {}))

    return put


def test_a_block_has_dashes_reasons_and_bold():
    rows = [
        ("a", "x", 1.0, 0.5, None, True),
        ("a", "y", np.nan, np.nan, "no rows | here", False),
        ("b", "x", 2.0, np.nan, None, False),
    ]
    frame = pd.DataFrame(rows, columns=["method", "task", "value", "error", "reason", "best"])
    shown = block(frame, "method", "task", "{value:.1f} ± {error:.1f}")
    assert shown.to_dict("list") == {
        "method": ["a", "b"],
        "x": ["**1.0 ± 0.5**", "2.0"],
        "y": [f"{MISSING} (no rows · here)", MISSING],
    }


def test_a_missing_interval_is_not_written():
    row = {"of dense": 0.91, "of dense low": np.nan, "of dense high": np.nan}
    form = "{of dense:.2f} [{of dense low:.2f}, {of dense high:.2f}]"
    assert written(row, form) == "0.91"
    with_interval = {**row, "of dense low": 0.9, "of dense high": 0.92}
    assert written(with_interval, form) == "0.91 [0.90, 0.92]"


def test_a_line_has_a_column_for_each_title():
    frame = pd.DataFrame([{"model": MODEL, "method": "harp+flap", "value": 3.0}])
    shown = lines(frame, {"m": "{name}", "v": "{value:.0f}"})
    assert shown.to_dict("list") == {"m": ["HARP+FLAP"], "v": ["3"]}


def test_a_number_in_a_sentence_has_its_interval():
    assert told(-1.25, -2, 3) == "−1.2 [−2.0, +3.0]"


def test_stacked_blocks_name_a_model_once():
    parts = [pd.DataFrame({"model": [name] * 2, "x": ["1", "2"]}) for name in "ab"]
    assert list(stacked(*parts)["model"]) == ["a", "", "b", ""]


def test_the_highest_printed_score_of_equals_is_bold(mini):
    shown, _ = score_tables.scores_generation(mini)
    llama = shown.iloc[:7].set_index("method")
    is_bold = llama["TriviaQA"].str.startswith("**").to_dict()
    assert is_bold == {METHOD_TITLES[m]: m == "harp+flap" for m in ("dense", *METHODS)}
    assert llama.loc["HARP", "MATH-hard"] == "1.36", "as high as the bold one, but it removes less"


def test_a_made_up_cell_stands_in_its_row(mini, stored):
    questions = {"triviaqa": [0.0, 1.0, 1.0, 1.0] * 4, "gsm8k": [0.0] * 16, "nq_open": [1.0] * 9}
    answers = {method: dict(questions) for method in ("dense", *METHODS)}
    answers["flap"]["triviaqa"] = [1.0] * 16
    stored(main_tables=scored(answers))
    shown, numbers = score_tables.scores_generation(mini)
    is_named = shown["model"] != ""
    ours = shown[is_named.cumsum() == is_named.sum()].set_index("method")  # the last model
    # Agresti and Coull: 18 of 20, and 2 of 20.
    flap = ours.loc["FLAP", ["TriviaQA", "GSM8K", "Average"]].tolist()
    assert flap == ["100.00 ± 6.71", "0.00 ± 6.71", "50.00 ± 4.74"]
    assert ours.loc["FLAP", "average without one task"] == "0.0 to 100.0"
    assert ours.loc["HARP", "TriviaQA"] == "75.00 ± 10.25"  # 14 of 20
    too_few = f"{MISSING} (9 questions)"
    assert ours.loc["HARP", "NaturalQuestions"] == too_few
    assert ours.loc["FLAP", "BBH"] == MISSING
    assert ours.loc["dense", "parameters removed"] == "0.00 %"
    assert ours.loc["HARP", "heads removed"] == "1/5"
    averages = numbers.query("source == 'ours' and task == 'average'")
    assert averages["questions"].unique() == [32]


def test_a_missing_score_is_a_dash_with_its_reason_and_in_no_average(mini, stored):
    answers = {}
    for method in ("dense", "mag-sp", "harp"):
        answers[method] = {"triviaqa": [1.0] * 10, "gsm8k": [0.0] * 10}
    answers["mag-sp"]["gsm8k"] = "out of memory"
    stored(main_tables=scored(answers))
    frame = scores.scores(mini, "main_tables", ["triviaqa", "gsm8k"])
    averages = frame.query("task == 'average'")["value"].tolist()
    assert averages == [100.0] * 3, "of the one task that all have"
    shown, _ = score_tables.scores_generation(mini)
    assert f"{MISSING} (out of memory)" in shown["GSM8K"].tolist()


def test_scores_of_two_stores_are_of_models_that_both_have(mini, stored):
    answers = {"dense": {"triviaqa": [1.0] * 10}, "harp": {"triviaqa": [1.0] * 10}}
    stored(
        main_tables={**scored(answers), **scored(answers, "other")},
        ablations=scored({"top": answers["harp"]}),
    )
    frame = scores.scores(mini, ("ablations", "main_tables"), ["triviaqa"])
    assert set(frame["model"]) == {MODEL}


def test_our_questions_stand_beside_those_of_the_paper(mini):
    shown = score_tables.dataset_statistics(mini).set_index("task")
    assert shown.loc[["mini-WinoGrande", "mini-MMLU"], "choices"].tolist() == ["2", "4"]
    assert shown.loc["mini-TriviaQA", "questions in the paper"] == "17,944"
    assert int(shown.loc["mini-TriviaQA", "questions here"]) < 100


def test_tuned_ranges_are_the_best_and_say_by_how_little(mini):
    tried = ranges(mini)
    if tried.empty:
        pytest.skip("no reference")
    for _, part in tried.groupby(["model", "method"]):
        assert part["value"].idxmin() == part["tuned"].idxmax()
        assert part["tuned"].sum() == 1
        assert (part["alike"] == ~(part["above low"] > 0)).all()


def timed(seconds: dict[str, list[float]], tokens: int = 64) -> dict:
    """A cell of prefill times."""
    rows = []
    for place, (variant, values) in enumerate(seconds.items()):
        for number, value in enumerate(values):
            row = {"quantity": "seconds", "variant": variant, "repetition": number}
            rows.append(row | {"value": value})
        for quantity in ("flops full", "flops causal"):
            row = {"quantity": quantity, "variant": variant, "value": 100 - 10 * place}
            rows.append(row)
    cell = {
        "coordinates": {"kind": "prefill", "length": tokens},
        "inputs": {"tokens": tokens},
        "result": {"rows": columns_of(rows)},
    }
    return {(MODEL, "all", f"prefill-{tokens}"): cell}


def test_times_are_paired_by_repetition(mini, stored):
    dense = [1.0, 2.0, 4.0]
    harp = [0.5, 1.1, 2.0]
    stored(efficiency=timed({"dense": dense, "harp": harp, "thinned": harp[::-1]}))
    frame = efficiency(mini, "prefill").set_index("variant")
    geometric_mean = np.exp(np.mean(np.log(harp) - np.log(dense)))
    assert frame.loc["harp", "of dense"] == pytest.approx(geometric_mean)
    low = comparisons.time_ratio(dense, harp).low
    assert frame.loc["harp", "of dense low"] == pytest.approx(low)
    assert frame.loc["harp", "of thinned"] == pytest.approx(1)
    assert frame.loc["thinned", "flops full of dense"] == pytest.approx(0.8)


def test_the_papers_times_are_of_the_dense_model(mini):
    assert tables.paper_times()[1024] == pytest.approx(0.0355 / 0.0371)


def test_the_table_of_time_follows_the_numbers(mini, stored):
    base = np.array([1.0, 1.1, 1.2, 1.1])
    noise = np.array([1.01, 0.99, 1.0, 1.005])
    seconds = {
        "dense": list(2 * base),
        "harp": list(base),
        "harp-tail": list(0.5 * base),
        "thinned": list(0.8 * base * noise),
    }
    stored(efficiency=timed(seconds))
    of_dense, of_thinned = figures_costs.time_found(mini).to_numpy().tolist()
    assert of_dense[1:] == ["64", "dense", "0.500 [0.500, 0.500]", "0.250 [0.250, 0.250]"]
    assert re.fullmatch(r"1\.2\d\d \[1\.\d+, 1\.\d+\]", of_thinned[3])
    assert of_thinned[4].startswith("0.62")
    stored(efficiency=timed(seconds, 64) | timed(seconds, 128))
    assert figures_costs.time_found(mini)["tokens"].tolist() == ["64", "64", "128", "128"]
    stored(efficiency=timed({name: values[:1] for name, values in seconds.items()}))
    assert figures_costs.time_found(mini).empty, "one repetition tells nothing"


def test_nothing_is_drawn_where_both_scored_nothing(mini, stored):
    answers = {}
    for method in ("dense", *METHODS):
        answers[method] = {}
        for task in scores.of_kind("generation"):
            answers[method][task] = [1.0 if task == "triviaqa" else 0.0] * 12
        for task in scores.of_kind("discriminative"):
            answers[method][task] = [1.0, 0.0] * 6
    stored(main_tables=scored(answers))
    groups = {"gsm8k": ["gsm8k"], "triviaqa": ["triviaqa"]}
    frame = scores.differences(mini, "main_tables", groups, "harp")
    is_silent = frame.groupby("group")["silent"].all().to_dict()
    assert is_silent == {"gsm8k": True, "triviaqa": False}
    drawn = figures_scores.score_differences(mini)
    names = [label.get_text() for axis in drawn.axes for label in axis.get_yticklabels()]
    assert not [name for name in names if "GSM8K" in name]
    assert [name for name in names if name.startswith("mini-TriviaQA (12")]


def test_an_average_without_bbh_and_its_lead(mini, stored):
    """HARP+FLAP is ahead of FLAP on BBH alone."""
    answers = {}
    for method in ("dense", "flap", "harp+flap"):
        answers[method] = {}
        for task in scores.of_kind("generation"):
            answers[method][task] = [1.0, 0.0] * 10
    answers["harp+flap"]["bbh_cot_fewshot"] = [1.0] * 20
    stored(main_tables=scored(answers))
    shown, _ = short_tables.averages_generation(mini)
    ours = shown.iloc[-4:].set_index("method")
    assert ours.loc["FLAP", "average"] == ours.loc["FLAP", "average without BBH"] == "50.0"
    assert ours.loc["HARP+FLAP", "average"] == "60.0"
    assert ours.loc["FLAP", "HARP+FLAP ahead"].startswith("+10.0 [+")
    assert ours.loc["FLAP", "HARP+FLAP ahead without BBH"].startswith("+0.0 [−")
    assert ours.loc["questions", "average"] == "100"
    paper = shown[shown["method"] == "HARP+FLAP"].iloc[0]
    assert paper["average"] == "29.1"


def test_show_writes_the_files_of_a_table(mini):
    shown = report.show("memory", mini)
    assert "SmolLM2 135M" in shown.data
    folder = config.FIGURES / "mini" / "tables"
    files = sorted(file.name for file in folder.iterdir())
    assert files == [f"memory.{ending}" for ending in ("csv", "json", "md", "tex")]
    assert len(pd.read_csv(folder / "memory.csv"))
    assert r"\toprule" in (folder / "memory.tex").read_text("utf-8")


def test_an_unknown_figure_is_named(mini):
    with pytest.raises(ValueError, match="unknown figure or table 'scroes'; choose from"):
        report.show("scroes", mini)


def test_a_figure_without_cells_says_so_and_redraw_writes_nothing(mini, stored, monkeypatch):
    stored()
    assert "has nothing to show for it" in report.show("time_saved", mini).data
    entry = report.entries()["time_saved"]
    monkeypatch.setattr(report, "entries", lambda: {"time_saved": entry})
    with pytest.raises(FileNotFoundError, match="nothing is stored for the profile mini"):
        report.redraw(mini)
