"""Stored cells as one long frame."""

import pytest

from harp_lib import config
from harp_lib.experiments import UNITS
from harp_lib.report.data import AXES, Missing, Source, cells, questions, table, tidy

STORES = dict.fromkeys(unit.store for unit in UNITS.values())


@pytest.fixture(autouse=True)
def reference(tmp_path, monkeypatch):
    """The committed reference, whatever this checkout has computed."""
    monkeypatch.setattr(config, "RESULTS", tmp_path)


def test_questions_as_a_loop_has_them():
    columns = ["model", "method", "task", "subtask", "question", "score"]
    expected = [
        (model, method, task, *row)
        for (model, method, task), cell in cells("mini", "main_tables").items()
        for row in zip(*(cell["result"]["rows"][name] for name in columns[3:]), strict=True)
    ]
    found = questions(cells("mini", "main_tables"))
    assert list(found[columns].itertuples(index=False, name=None)) == expected
    assert not found.duplicated(columns[:5]).any()


def test_nested_quantities_as_a_loop_has_them():
    frame = tidy("mini", "similarity", "entropy").query(
        "method == 'trained' and task == 'python-docs'"
    )
    stored = cells("mini", "similarity")["smollm2-135m", "trained", "python-docs"]["result"][
        "entropy"
    ]
    assert frame.set_index(["document", "layer", "head"])["value"].to_dict() == {
        (d, layer, h): value
        for d, layers in enumerate(stored)
        for layer, heads in enumerate(layers)
        for h, value in enumerate(heads)
    }


def test_alphas_have_the_layers_that_their_search_has():
    frame = tidy("mini", "alpha_search", "alphas", "perplexities").query(
        "task == 'search-python-docs'"
    )
    alphas = frame[frame["quantity"] == "alphas"].set_index("layer")["value"]
    curves = frame[frame["quantity"] == "perplexities"]
    best = curves.loc[curves.groupby("layer")["value"].idxmin()].set_index("layer")["alpha"]
    assert alphas.to_dict() == best.to_dict()
    assert max(alphas.index) == 29


def test_what_the_names_of_cells_say():
    assert {"corpus", "split"} <= set(tidy("mini", "alpha_search", "nll"))
    gain = tidy("mini", "ablations", "nll")
    assert set(gain["document"]) == set(range(gain["document"].nunique()))
    assert "top-0" in set(gain["plan"])
    assert set(tidy("mini", "ablations", "inputs.alphas", "dense")["quantity"]) == {
        "inputs.alphas",
        "dense",
    }


@pytest.mark.parametrize("store", [store for store in STORES if store != "theory"])
def test_every_quantity_is_as_long_as_its_axes_say(store):
    quantities = {name for cell in cells("mini", store).values() for name in cell["result"]} & set(
        AXES
    )
    frame = tidy("mini", store, *quantities)
    assert not frame["value"].isna().any()
    assert set(frame["quantity"]) <= quantities
    assert not frame.duplicated([name for name in frame if name != "value"]).any()


def test_tables_of_the_theory():
    assert {"check", "violations", "model"} <= set(table("mini", "theory", "draws"))
    assert table("none", "theory", "draws").empty


def test_nothing_stored_is_an_empty_frame():
    frame = tidy("none", "main_tables", "alphas")
    assert frame.empty
    assert list(frame) == ["model", "method", "task", "quantity", "value"]
    source = Source("none", "main_tables", "m", cells)
    with pytest.raises(Missing, match="needs harp/boolq of main_tables"):
        source.result("harp", "boolq")
    with pytest.raises(Missing, match=r"needs harp/search-… of main_tables"):
        source.of("harp", "search-")
    with pytest.raises(Missing, match="needs scores of main_tables"):
        source.answers(["harp"], ["boolq"])


def test_answers_are_of_the_tasks_that_all_methods_have():
    known = {
        (method, task): {"rows": {"score": [1.0]}}
        for method in ("dense", "harp")
        for task in ("boolq", "piqa")
    }
    known |= {("harp", "boolq"): {"failed": "out of memory"}}
    known = {("m", *key): {"result": result} for key, result in known.items()}
    source = Source(
        "none", "ablations", "m", lambda profile, store: known if store == "main_tables" else {}
    )
    assert list(source.answers(["harp"], ["boolq", "piqa"])) == ["piqa"]  # those of the main tables
