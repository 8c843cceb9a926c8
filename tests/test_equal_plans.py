"""Baselines that made the same plan are one plan: one row, one name, counted once; and what plans
drop, in words.
"""

import copy
import re

import matplotlib.pyplot as plt
import pandas as pd
import pytest
from test_tables import scored

from harp_lib import config
from harp_lib.config import load_profile
from harp_lib.names import METHODS
from harp_lib.report import claims, data, figures_costs, figures_scores, plots, scores
from harp_lib.report.claims.score_tests import Finding, closest, score_lead
from harp_lib.report.comparisons import Interval
from harp_lib.report.plans import distinct_plans, dropped_attention, equal_plans, one_row_per_plan

MODEL, OTHER = "smollm2-135m", "gemma3-270m"
SAME = "Mag-sp = LLM-Pruner"


@pytest.fixture(autouse=True)
def style(tmp_path, monkeypatch):
    """The committed reference is read, whatever this checkout has computed."""
    monkeypatch.setattr(config, "RESULTS", tmp_path / "results")
    plots.use_style()
    yield
    plt.close("all")


def planned(model, **groups):
    """Cells of plans: of each method the key/value groups that it removes from layer 5, of three."""
    cells = {}
    for method, removed in groups.items():
        name = method.replace("_", "-").replace("harp-flap", "harp+flap")
        plan = {
            "method": name,
            "num_layers": 30,
            "layers": [{"layer": 5, "removed_groups": removed}],
        }
        result = {"plan": plan, "groups_per_layer": 3}
        cells[model, name, "plan"] = {"inputs": {}, "result": result}
    return cells


@pytest.fixture
def stored(monkeypatch):
    """Two baselines with the same plan for one model, and none for the other; HARP scores in
    between.
    """
    plans = planned(MODEL, mag_sp=[0], llm_pruner=[0], wanda_sp=[1], flap=[2], harp_flap=[0, 1])
    plans |= planned(OTHER, mag_sp=[0], llm_pruner=[1], wanda_sp=[2], flap=[0, 1], harp_flap=[0, 2])
    for model, method in [key[:2] for key in plans] + [
        (name, method) for name in (MODEL, OTHER) for method in ("dense", "harp")
    ]:
        for corpus in ("wikitext", "python-docs"):
            likelihood = {"nll": [300.0, 310.0], "tokens": [100, 100]}
            plans[model, method, f"{corpus}-validation"] = {"inputs": {}, "result": likelihood}
    right = {
        "dense": 20,
        "mag-sp": 14,
        "llm-pruner": 14,
        "wanda-sp": 5,
        "flap": 3,
        "harp": 12,
        "harp+flap": 8,
    }
    tasks = [*scores.of_kind("generation"), *scores.of_kind("discriminative")]
    answers = {
        m: {t: [1.0] * right[m] + [0.0] * (20 - right[m]) for t in tasks}
        for m in ("dense", *METHODS)
    }
    stores = {"baselines": plans, "main_tables": scored(answers, MODEL) | scored(answers, OTHER)}
    monkeypatch.setattr(data, "cells", lambda profile, store: stores.get(store, {}))
    return stores


def test_the_name_of_a_method_is_no_part_of_its_plan(stored):
    found = equal_plans(stored["baselines"])
    assert found[MODEL, "mag-sp"] == found[MODEL, "llm-pruner"] == ("mag-sp", "llm-pruner")
    assert found[MODEL, "flap"] == ("flap",)
    assert found[OTHER, "mag-sp"] == ("mag-sp",), "plans are compared within a model"
    assert (MODEL, "harp+flap") not in found, "baselines only"
    other = copy.deepcopy(stored["baselines"])
    other[MODEL, "llm-pruner", "plan"]["result"]["plan"]["layers"][0]["group_means"] = [0.5]
    assert equal_plans(other)[MODEL, "mag-sp"] == ("mag-sp",), "what stays behind is a part of it"


def test_one_method_stands_for_a_plan(stored):
    methods = ["dense", "mag-sp", "llm-pruner", "wanda-sp"]
    found = distinct_plans(stored["baselines"], MODEL, methods)
    assert found == {"dense": "dense", "mag-sp": SAME, "wanda-sp": "Wanda-sp"}
    without = distinct_plans(stored["baselines"], MODEL, ["llm-pruner"])
    assert without == {"llm-pruner": SAME}, "the first that there is"
    frame = pd.DataFrame(
        {"model": [OTHER, MODEL, MODEL], "method": ["llm-pruner", "llm-pruner", "mag-sp"]}
    )
    found = one_row_per_plan(frame, stored["baselines"])
    assert found.to_numpy().tolist() == [
        [OTHER, "llm-pruner", "LLM-Pruner"],
        [MODEL, "mag-sp", SAME],
    ]
    assert one_row_per_plan(frame.iloc[:0], {}).columns.tolist() == ["model", "method", "methods"]


@pytest.mark.parametrize("name", ["scores_generation", "scores_discriminative", "at_a_glance"])
def test_tables_have_one_row_for_it(stored, name):
    shown, numbers = getattr(scores, name)(load_profile("mini"))
    starts = [place for place, method in enumerate(shown["method"]) if method == "dense"][-2:]
    other, mine = list(shown["method"][starts[0] : starts[1]]), list(shown["method"][starts[1] :])
    assert mine[1:4] == [SAME, "Wanda-sp", "FLAP"]
    assert other[1:5] == ["Mag-sp", "LLM-Pruner", "Wanda-sp", "FLAP"]
    ours = numbers[(numbers["model"] == MODEL) & (numbers["method"].isin(["mag-sp", "llm-pruner"]))]
    assert set(ours["methods"]) == {SAME}


def test_figures_show_and_count_it_once(stored):
    profile = load_profile("mini")
    drawn = figures_scores.score_differences(profile)
    tasks = len(scores.of_kind("generation")) + len(scores.of_kind("discriminative"))
    assert f"of {tasks * (3 + 4)} comparisons" in drawn.texts[0].get_text()
    legend = [text.get_text() for text in drawn.legends[0].get_texts()]
    assert {SAME, "Mag-sp", "LLM-Pruner"} <= set(legend)
    for axis in figures_costs.baseline_change(profile).axes:
        names = [text.get_text() for text in axis.get_yticklabels()]
        if len(names) == 3:
            assert names == [SAME.replace("= ", "=\n"), "Wanda-sp", "FLAP"]
        else:
            assert names == ["Mag-sp", "LLM-Pruner", "Wanda-sp", "FLAP"]


def test_the_closest_baseline_has_one_name_everywhere(stored):
    """Equal plans are joined; different plans that score the same tie, and both are named."""
    profile = load_profile("mini")
    closest_ones = scores.closest_baselines(profile).set_index("model")["rival"]
    assert closest_ones.to_dict() == {MODEL: SAME, OTHER: "Mag-sp and LLM-Pruner"}
    title = re.sub(r"\s+", " ", figures_scores.teaser_left(profile).texts[0].get_text()).replace(
        "LLM- Pruner", "LLM-Pruner"
    )
    verdict = claims.headline(profile)
    for name in closest_ones:
        assert f"({name}, " in title
        assert f"against {name}, the closest baseline" in verdict
    worst = scores.closest_baselines(profile).set_index("model").loc[MODEL]
    leads = scores.differences(
        profile, "main_tables", {"all": scores.of_kind("generation")}, "harp+flap"
    )
    mine = leads[(leads["model"] == MODEL) & (leads["method"] == "mag-sp")].iloc[0]
    assert [worst["value"], worst["low"], worst["high"]] == pytest.approx(
        [mine["value"], mine["low"], mine["high"]]
    )


def test_the_rival_that_decides_is_the_closest():
    ahead = Finding(Interval(2.0, 1.0, 3.0), rival="A")
    behind = Finding(Interval(-3.0, -4.0, -2.0), rival="B")
    open_ = Finding(Interval(-3.0, -9.0, 3.0), rival="C")
    assert closest([ahead, behind]).rival == "B"
    assert closest([open_, behind]).rival == "B", "who is clearly ahead decides"
    assert closest([ahead, ahead._replace(rival="D")]).rival == "A and D"


def test_a_difference_of_two_leads_names_the_plan(stored):
    source = data.Source("mini", "main_tables", MODEL, data.cells)
    (lead,) = score_lead(source, "harp", "baselines", ["triviaqa"])
    assert lead.about == f"against {SAME}"
    found = claims.TESTS["gap"](source, "harp", "baselines", "generation", "discriminative")
    assert next(found).about == f"against {SAME}"


def test_the_stored_comparisons_of_small():
    """Of 97 comparisons, among them equal plans, 69 are different ones."""
    profile = load_profile("small")
    if not data.cells("small", "main_tables"):
        pytest.skip("no reference")
    title = figures_scores.score_differences(profile).texts[0].get_text()
    assert title == "HARP+FLAP leads in 3 of 69 comparisons and is led in 6"
    groups = equal_plans(data.cells("small", "baselines"))
    assert groups["gemma3-270m", "mag-sp"] == ("mag-sp", "llm-pruner", "wanda-sp")
    assert groups["qwen2.5-coder-0.5b", "wanda-sp"] == ("llm-pruner", "wanda-sp")
    assert all(
        len(methods) == 1 for (model, _), methods in groups.items() if model == "smollm2-135m"
    )
    for model in ("gemma3-270m", "qwen2.5-coder-0.5b"):
        for store in ("main_tables", "longbench"):
            cells = data.cells("small", store)
            for (name, method, task), cell in cells.items():
                if name == model and method in ("llm-pruner", "wanda-sp"):
                    twin = cells[model, groups[model, method][0], task]
                    scores_of = [each["result"]["rows"]["score"] for each in (cell, twin)]
                    assert scores_of[0] == scores_of[1], "equal plans score the same"


def whole(*layers):
    """Layers that lose both of their groups."""
    return [{"layer": layer, "removed_groups": [0, 1]} for layer in layers]


@pytest.mark.parametrize(
    ("layers", "words"),
    [
        (whole(14, 15, 16, 17), "attention of layers 14 to 17 dropped"),
        (whole(16, 17, 18, 19), "attention of layers 16 to 19 dropped (HARP with α = 0)"),
        ([*whole(3), {"layer": 5, "removed_groups": [1]}], "attention of layer 3 dropped"),
        (
            [{"layer": i, "removed_groups": [0, 1]} for i in (1, 2, 7, 8, 9)],
            "attention of layers 1, 2 and 7 to 9 dropped",
        ),
        ([{"layer": 5, "alpha": 0.0}, {"layer": 4, "alpha": 0.5}], "attention of layer 5 dropped"),
        ([{"layer": 5, "removed_channels": [0, 1]}], ""),
    ],
)
def test_layers_without_attention_are_told(layers, words):
    assert dropped_attention({"layers": layers, "num_layers": 20}, groups_per_layer=2) == words
    assert dropped_attention(None, groups_per_layer=2) == ""


def test_the_numbers_of_a_glance_tell_what_is_dropped(stored):
    stored["baselines"][MODEL, "flap", "plan"]["result"]["plan"]["layers"][0]["removed_groups"] = [
        0,
        1,
        2,
    ]
    numbers = scores.at_a_glance(load_profile("mini"))[1].set_index(["model", "method"])
    assert set(numbers.loc[(MODEL, "flap"), "note"]) == {"attention of layer 5 dropped"}
    assert set(numbers.loc[(OTHER, "flap"), "note"]) == {""}


def test_tasks_of_few_questions_leave_perplexities_and_what_they_ask_together(stored):
    """Two questions of each task, as in the profile smoke: no score, and no comparison on a single
    task.
    """
    for cell in stored["main_tables"].values():
        rows = cell["result"]["rows"]
        cell["result"]["rows"] = {name: values[:1] + values[-1:] for name, values in rows.items()}
    profile = load_profile("mini")
    shown = scores.at_a_glance(profile)[0]
    assert not [column for column in shown if column.startswith(scores.KINDS)]
    removed = shown.loc[shown["method"].isin(["dense", "HARP+FLAP"]), "parameters removed (%)"]
    assert removed.tolist() == ["0.0", "5.0"] * 2, "known without a score"
    drawn = figures_scores.score_differences(profile)
    assert drawn.texts[0].get_text() == "No single comparison has 10 questions"
    assert set(drawn.numbers["group"]) <= set(figures_scores.AVERAGES)
