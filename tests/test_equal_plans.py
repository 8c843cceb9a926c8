"""Baselines that made the same plan are one plan: one row, one name, counted once.

Also what plans drop, in words.
"""

import copy

import matplotlib.pyplot as plt
import pandas as pd
import pytest
from made_up_scores import MODEL, scored

from harp_lib import config
from harp_lib.config import load_profile
from harp_lib.experiments.texts import document_rows
from harp_lib.names import METHODS
from harp_lib.report import claims, data, figures_scores, plots, score_tables, scores
from harp_lib.report.claims.findings import Finding
from harp_lib.report.claims.score_tests import closest, score_lead
from harp_lib.report.comparisons import Interval
from harp_lib.report.plans import (
    distinct_plans,
    dropped_attention,
    equal_plans,
    is_arbitrary,
    one_row_per_plan,
)
from harp_lib.results import columns_of

OTHER = "gemma3-270m"
SAME = "Mag-sp = LLM-Pruner"


@pytest.fixture(autouse=True)
def style(tmp_path, monkeypatch):
    """The committed reference is read, whatever this checkout has computed."""
    monkeypatch.setattr(config, "RESULTS", tmp_path / "results")
    plots.use_style()
    yield
    plt.close("all")


def planned(model, removed_groups):
    """Cells of plans; each method removes some of the three key/value groups of layer 5."""
    cells = {}
    for method, removed in removed_groups.items():
        layers = [{"layer": 5, "removed_groups": removed}]
        plan = {"method": method, "num_layers": 30, "layers": layers}
        result = {"plan": plan, "groups_per_layer": 3}
        cells[model, method, "plan"] = {"inputs": {}, "result": result}
    return cells


@pytest.fixture
def stored(monkeypatch):
    """Two baselines with the same plan for one model, and none for the other.

    HARP's scores are between those of the baselines.
    """
    plans = planned(
        MODEL,
        {"mag-sp": [0], "llm-pruner": [0], "wanda-sp": [1], "flap": [2], "harp+flap": [0, 1]},
    )
    plans.update(
        planned(
            OTHER,
            {
                "mag-sp": [0],
                "llm-pruner": [1],
                "wanda-sp": [2],
                "flap": [0, 1],
                "harp+flap": [0, 2],
            },
        )
    )
    models_and_methods = [(model, method) for model, method, _ in plans]
    for model in (MODEL, OTHER):
        models_and_methods.extend([(model, "dense"), (model, "harp")])
    for model, method in models_and_methods:
        for corpus in ("wikitext", "python-docs"):
            rows = columns_of(document_rows([300.0, 310.0], [100, 100]))
            plans[model, method, f"{corpus}-validation"] = {
                "coordinates": {"corpus": corpus, "split": "validation"},
                "inputs": {},
                "result": {"rows": rows},
            }
    right = {  # of 20 questions of each task
        "dense": 20,
        "mag-sp": 14,
        "llm-pruner": 14,
        "wanda-sp": 5,
        "flap": 3,
        "harp": 12,
        "harp+flap": 8,
    }
    tasks = [*scores.of_kind("generation"), *scores.of_kind("discriminative")]
    answers = {}
    for method in ("dense", *METHODS):
        answers_of_task = [1.0] * right[method] + [0.0] * (20 - right[method])
        answers[method] = {task: answers_of_task for task in tasks}
    main_tables = {**scored(answers, MODEL), **scored(answers, OTHER)}
    stores = {"baselines": plans, "main_tables": main_tables}
    monkeypatch.setattr(data, "cells", lambda profile, store: stores.get(store, {}))
    return stores


def test_the_name_of_a_method_is_no_part_of_its_plan(stored):
    equal = equal_plans(stored["baselines"])
    assert equal[MODEL, "mag-sp"] == equal[MODEL, "llm-pruner"] == ("mag-sp", "llm-pruner")
    assert equal[MODEL, "flap"] == ("flap",)
    assert equal[OTHER, "mag-sp"] == ("mag-sp",), "plans are compared within a model"
    assert (MODEL, "harp+flap") not in equal, "baselines only"


def test_what_stays_behind_is_a_part_of_a_plan(stored):
    other = copy.deepcopy(stored["baselines"])
    other[MODEL, "llm-pruner", "plan"]["result"]["plan"]["layers"][0]["group_means"] = [0.5]
    assert equal_plans(other)[MODEL, "mag-sp"] == ("mag-sp",)


def test_one_method_stands_for_a_plan(stored):
    methods = ["dense", "mag-sp", "llm-pruner", "wanda-sp"]
    titles = distinct_plans(stored["baselines"], MODEL, methods)
    assert titles == {"dense": "dense", "mag-sp": SAME, "wanda-sp": "Wanda-sp"}
    titles = distinct_plans(stored["baselines"], MODEL, ["llm-pruner"])
    assert titles == {"llm-pruner": SAME}, "the first of those that are shown"


def test_a_frame_has_one_row_for_a_plan(stored):
    models = [OTHER, MODEL, MODEL]
    frame = pd.DataFrame({"model": models, "method": ["llm-pruner", "llm-pruner", "mag-sp"]})
    rows = one_row_per_plan(frame, stored["baselines"])
    assert rows.to_numpy().tolist() == [
        [OTHER, "llm-pruner", "LLM-Pruner"],
        [MODEL, "mag-sp", SAME],
    ]
    assert one_row_per_plan(frame.iloc[:0], {}).columns.tolist() == ["model", "method", "methods"]


@pytest.mark.parametrize(
    ("method", "groups", "title"),
    [("flap", 1, "FLAP*"), ("flap", 2, "FLAP"), ("wanda-sp", 1, "Wanda-sp")],
)
def test_a_plan_without_a_ranking_of_layers_has_a_star(stored, method, groups, title):
    plans = stored["baselines"]
    plans[MODEL, method, "plan"]["result"]["groups_per_layer"] = groups
    assert is_arbitrary(plans, MODEL, method) == title.endswith("*")
    (row,) = one_row_per_plan(pd.DataFrame([{"model": MODEL, "method": method}]), plans).methods
    assert row == title


@pytest.mark.parametrize("name", ["scores_generation", "scores_discriminative", "at_a_glance"])
def test_tables_have_one_row_for_it(stored, name):
    shown, numbers = getattr(score_tables, name)(load_profile("mini"))
    methods = list(shown["method"])
    starts = [place for place, method in enumerate(methods) if method == "dense"]
    of_model = methods[starts[-2] : starts[-1]]
    of_other = methods[starts[-1] :]
    assert of_model[1:4] == [SAME, "Wanda-sp", "FLAP"]
    assert of_other[1:5] == ["Mag-sp", "LLM-Pruner", "Wanda-sp", "FLAP"]
    is_one = (numbers["model"] == MODEL) & numbers["method"].isin(["mag-sp", "llm-pruner"])
    assert set(numbers[is_one]["methods"]) == {SAME}


def test_figures_show_and_count_it_once(stored):
    profile = load_profile("mini")
    drawn = figures_scores.score_differences(profile)
    tasks = len(scores.of_kind("generation")) + len(scores.of_kind("discriminative"))
    assert f"of {tasks * (3 + 4)} comparisons" in drawn.texts[0].get_text()
    legend = [text.get_text() for text in drawn.legends[0].get_texts()]
    assert {SAME, "Mag-sp", "LLM-Pruner"} <= set(legend)


def test_the_best_baseline_has_one_name_everywhere(stored):
    """Equal plans are joined; different plans that score the same tie, and both are named."""
    profile = load_profile("mini")
    verdict = claims.headline(profile)
    for rival in (SAME, "Mag-sp and LLM-Pruner"):
        assert f"against {rival}, the best baseline" in verdict


def test_the_rival_that_decides_is_the_closest():
    ahead = Finding(Interval(2.0, 1.0, 3.0), rival="A")
    behind = Finding(Interval(-3.0, -4.0, -2.0), rival="B")
    unclear = Finding(Interval(-3.0, -9.0, 3.0), rival="C")
    assert closest([ahead, behind]).rival == "B"
    assert closest([unclear, behind]).rival == "B", "who is clearly ahead decides"
    assert closest([ahead, ahead._replace(rival="D")]).rival == "A and D"


def test_a_difference_of_two_leads_names_the_plan(stored):
    source = data.Source("mini", "main_tables", MODEL, data.cells)
    (lead,) = score_lead(source, "harp", "baselines", ["triviaqa"])
    assert lead.about == f"against {SAME}"
    findings = claims.TESTS["gap"](source, "harp", "baselines", "generation", "discriminative")
    assert next(findings).about == f"against {SAME}"


def test_the_stored_comparisons_of_small():
    """Equal plans are counted once, and tasks on which both score zero are not."""
    profile = load_profile("small")
    if not data.cells("small", "main_tables"):
        pytest.skip("no reference")
    title = figures_scores.score_differences(profile).texts[0].get_text()
    assert title == "HARP+FLAP leads in 11 of 101 comparisons and is led in 7"


def test_the_stored_plans_of_small():
    equal = equal_plans(data.cells("small", "baselines"))
    if not equal:
        pytest.skip("no reference")
    assert equal["gemma3-270m", "mag-sp"] == ("mag-sp", "llm-pruner", "wanda-sp")
    assert equal["qwen2.5-coder-0.5b", "wanda-sp"] == ("llm-pruner", "wanda-sp")
    for (model, method), methods in equal.items():
        if model == "smollm2-135m":
            assert methods == (method,)


@pytest.mark.parametrize("store", ["main_tables", "longbench"])
@pytest.mark.parametrize("model", ["gemma3-270m", "qwen2.5-coder-0.5b"])
def test_equal_plans_score_the_same(model, store):
    equal = equal_plans(data.cells("small", "baselines"))
    cells = data.cells("small", store)
    if not cells:
        pytest.skip("no reference")
    for (of_model, method, task), cell in cells.items():
        if of_model == model and method in ("llm-pruner", "wanda-sp"):
            twin = cells[model, equal[model, method][0], task]
            assert cell["result"]["rows"]["score"] == twin["result"]["rows"]["score"]


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
def test_layers_without_attention_are_named(layers, words):
    assert dropped_attention({"layers": layers, "num_layers": 20}, groups_per_layer=2) == words
    assert dropped_attention(None, groups_per_layer=2) == ""


def test_the_numbers_of_a_glance_say_what_is_dropped(stored):
    plan = stored["baselines"][MODEL, "flap", "plan"]["result"]["plan"]
    plan["layers"][0]["removed_groups"] = [0, 1, 2]
    _, numbers = score_tables.at_a_glance(load_profile("mini"))
    numbers = numbers.set_index(["model", "method"])
    assert set(numbers.loc[(MODEL, "flap"), "note"]) == {"attention of layer 5 dropped"}
    assert set(numbers.loc[(OTHER, "flap"), "note"]) == {""}


def test_tasks_of_few_questions_have_no_score_and_no_comparison(stored):
    """Two questions of each task, as in the profile smoke; perplexities and averages remain."""
    for cell in stored["main_tables"].values():
        rows = cell["result"]["rows"]
        cell["result"]["rows"] = {name: values[:1] + values[-1:] for name, values in rows.items()}
    profile = load_profile("mini")
    shown, _ = score_tables.at_a_glance(profile)
    assert not [column for column in shown if column.startswith(scores.KINDS)]
    removed = shown.loc[shown["method"].isin(["dense", "HARP+FLAP"]), "parameters removed (%)"]
    assert removed.tolist() == ["0.0", "5.0"] * 2, "known without a score"
    drawn = figures_scores.score_differences(profile)
    assert drawn.texts[0].get_text() == "No single comparison has 10 questions"
    assert set(drawn.numbers["group"]) <= set(figures_scores.AVERAGES)
