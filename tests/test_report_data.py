"""Stored cells as one long frame."""

import pandas as pd
import pytest

from harp_lib import config
from harp_lib.experiments import UNITS
from harp_lib.report.data import Missing, Source, cells, paper, table, tidy

STORES = dict.fromkeys(unit.store for unit in UNITS.values())
NESTED = {"plan", "versions", "reused", "literal"}  # dictionaries of other quantities


@pytest.fixture(autouse=True)
def reference(tmp_path, monkeypatch):
    """The committed reference, whatever this checkout has computed."""
    monkeypatch.setattr(config, "RESULTS", tmp_path)


def test_scores_as_a_loop_has_them():
    expected = [
        (model, method, task, question, value)
        for (model, method, task), cell in cells("mini", "main_tables").items()
        for question, value in enumerate(cell["result"]["scores"])
    ]
    found = tidy("mini", "main_tables", "scores")
    assert list(found[["model", "method", "task", "question", "value"]].itertuples(index=False, name=None)) == expected


def test_nested_quantities_as_a_loop_has_them():
    frame = tidy("mini", "similarity", "entropy").query("method == 'trained' and task == 'python-docs'")
    stored = cells("mini", "similarity")["smollm2-135m", "trained", "python-docs"]["result"]["entropy"]
    assert frame.set_index(["document", "layer", "head"])["value"].to_dict() == {
        (d, layer, h): value
        for d, layers in enumerate(stored)
        for layer, heads in enumerate(layers)
        for h, value in enumerate(heads)
    }


def test_alphas_have_the_layers_that_their_search_has():
    frame = tidy("mini", "alpha_search", "alphas", "perplexities").query("task == 'search-python-docs'")
    alphas = frame[frame["quantity"] == "alphas"].set_index("layer")["value"]
    curves = frame[frame["quantity"] == "perplexities"]
    best = curves.loc[curves.groupby("layer")["value"].idxmin()].set_index("layer")["alpha"]
    assert alphas.to_dict() == best.to_dict()
    assert max(alphas.index) == 29


def test_what_the_names_of_cells_say():
    frame = tidy("mini", "baselines", "nll")
    assert {"start", "end", "corpus", "split"} <= set(frame)
    assert set(tidy("mini", "efficiency", "seconds")["length"]) >= {256, 4096}
    gain = tidy("mini", "ablations", "nll")
    assert set(gain["document"]) == set(range(gain["document"].nunique()))
    assert "top-0" in set(gain["plan"])
    assert set(tidy("mini", "ablations", "inputs.alphas", "dense")["quantity"]) == {"inputs.alphas", "dense"}


@pytest.mark.parametrize("store", [store for store in STORES if store != "theory"])
def test_every_stored_quantity_has_names_for_its_axes(store):
    quantities = {name for cell in cells("mini", store).values() for name in cell["result"]} - NESTED
    frame = tidy("mini", store, *quantities)
    assert not frame["value"].isna().any()
    assert set(frame["quantity"]) <= quantities
    assert not frame.duplicated([name for name in frame if name != "value"]).any()


def test_tables_of_the_theory():
    assert {"check", "violations", "model"} <= set(table("mini", "theory", "draws"))
    assert table("none", "theory", "draws").empty


def test_nothing_stored_is_an_empty_frame():
    frame = tidy("none", "main_tables", "scores")
    assert frame.empty
    assert list(frame) == ["model", "method", "task", "quantity", "value"]
    source = Source("none")
    with pytest.raises(Missing, match="needs harp/boolq of main_tables"):
        source.scores("main_tables", "m", "harp", "boolq")
    with pytest.raises(Missing, match=r"needs harp/search-… of alpha_search"):
        source.of("alpha_search", "m", "harp", "search-")


def test_scores_of_the_ablations_are_those_of_the_main_tables():
    source = Source("mini")
    dense = source.scores("ablations", "smollm2-135m", "dense", "boolq")
    assert dense == source.scores("main_tables", "smollm2-135m", "dense", "boolq")
    source = Source("none")
    source._stores["main_tables"] = {
        ("m", method, task): {"result": {"failed": "out of memory"} if (method, task) == failed else {"scores": [1.0]}}
        for failed in [("harp", "boolq")]
        for method in ("dense", "harp")
        for task in ("boolq", "piqa")
    }
    assert source.complete("main_tables", "m", ["harp"], ["boolq", "piqa"]) == ["piqa"]


def test_paper_tables():
    assert isinstance(paper("generation"), pd.DataFrame)
    with pytest.raises(ValueError, match="unknown table 'table9'; choose from alpha_ablation, alpha_robustness"):
        paper("table9")
