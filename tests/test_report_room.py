"""What notebooks share: frames, the rule of claims, and what is written and drawn."""

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from matplotlib import pyplot as plt
from test_intervals import asked

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


def test_a_baseline_with_an_equal_plan_is_left_out(results):
    frame = pd.DataFrame({"model": "Gemma", "method": ["dense", "mag-sp", "wanda-sp", "harp"]})
    distinct = results.distinct_plans(frame.assign(value=[1, 2, 3, 4]))
    assert distinct["method"].tolist() == ["dense", "Mag-sp = LLM-Pruner = Wanda-sp", "HARP"]
    assert distinct["value"].tolist() == [1, 2, 4]
    assert list(distinct) == ["model", "method", "value"]


def test_plans_that_are_equal_with_some_layers_are_not_with_others(results):
    methods = ["mag-sp", "llm-pruner", "wanda-sp"]
    frame = pd.DataFrame({"model": "Qwen 1.5B", "depth": [2] * 3 + [4] * 3, "method": methods * 2})
    distinct = results.distinct_plans(frame, "depths")
    titles = distinct.groupby("depth")["method"].agg(list)
    assert titles[2] == ["Mag-sp", "LLM-Pruner = Wanda-sp"]
    assert titles[4] == ["Mag-sp = Wanda-sp", "LLM-Pruner"]


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
    results.judge("a", "Gemma", ABOVE)
    with pytest.raises(ValueError, match=r"not judged: \['b'\]"):
        results.verdict()
    results.judge("b", "Gemma", reason="needs a GPU")
    page = results.verdict().data
    assert "| A." in page
    stored = pd.read_csv(tmp_path / "small" / "verdicts" / "02.csv", keep_default_na=False)
    assert list(stored) == judge.COLUMNS
    assert stored["mark"].tolist() == ["✓", "–"]
    results.judge("c", "Gemma", ABOVE)
    with pytest.raises(ValueError, match="not one"):
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
