"""Units of experiments: their order, one that is interrupted, and which notebooks run them."""

import ast

import nbformat
import pytest

from harp_lib import config
from harp_lib.experiments import compute, models_of, run
from harp_lib.methods import alpha_search
from harp_lib.results import listed_cells
from harp_lib.units import UNITS, units_of

MODEL = "tiny-gemma2"
NUMBERS = sorted({number for unit in UNITS.values() for number in unit.notebooks})


def profile():
    return config.load_profile("smoke", models=[MODEL])


def test_an_unknown_unit_is_refused():
    with pytest.raises(ValueError, match="unknown unit 'alphas'; choose from similarity, search"):
        run("alphas", profile=profile())


def test_any_unit_may_be_computed_first(tmp_path, monkeypatch):
    settings = profile()
    settings["frontier"]["searched_again"] = []
    listed = []
    units = ["search", "reasons", "norms"]
    for order in (units, units[::-1]):
        monkeypatch.setattr(config, "RESULTS", tmp_path / order[0])
        counts = {unit: compute(unit, settings, MODEL) for unit in order}
        assert counts[order[-1]]["read"] > 0, "what an earlier unit needed, too"
        listed.append({unit: listed_cells("smoke", unit) for unit in units})
        files = {file.stem for file in (config.RESULTS / "cells").iterdir()}
        assert files == set().union(*listed[-1].values())
    assert listed[0] == listed[1]


def test_a_search_that_is_interrupted_goes_on_where_it_was(tmp_path, monkeypatch):
    total_nll_with = alpha_search.total_nll_with
    candidates = []

    def stopping(*arguments):
        candidates.append(arguments)
        if len(candidates) == 6:
            raise KeyboardInterrupt
        return total_nll_with(*arguments)

    monkeypatch.setattr(config, "RESULTS", tmp_path)
    monkeypatch.setattr(alpha_search, "total_nll_with", stopping)
    settings = profile() | {"corpora": ["python-docs"]}
    with pytest.raises(KeyboardInterrupt):
        compute("search", settings, MODEL)
    assert compute("search", settings, MODEL) == {"computed": 2, "read": 0, "failed": 0}
    assert len(candidates) == 1 + 2 * 2 * 11, "one candidate of two searches is begun again"
    assert not list(tmp_path.rglob("*.partial"))


def calls(notebook, function):
    """The plain names that a notebook gives to each call of a function."""
    cells = nbformat.read(notebook, 4).cells
    tree = ast.parse("\n".join(cell.source for cell in cells if cell.cell_type == "code"))
    names = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == function:
            plain = [part.value for part in node.args if isinstance(part, ast.Constant)]
            names.append(tuple(plain))
    return names


@pytest.mark.parametrize("number", NUMBERS)
def test_a_notebook_runs_what_is_computed_for_it(number):
    """In Jupyter it computes by itself what a run of everything computes before it."""
    (notebook,) = config.NOTEBOOKS.glob(f"{number}_*.ipynb")
    assert calls(notebook, "experiments.run") == [units_of(number)]


def test_units_and_notebooks_fit_together():
    assert all(unit.notebooks for unit in UNITS.values()), "a notebook asks for each"
    order = list(UNITS)
    for name, unit in UNITS.items():
        assert all(order.index(needed) < order.index(name) for needed in unit.needs)
        models = models_of(profile(), name)
        assert models == [MODEL]
    extra = profile()
    extra["alpha_search"]["extra_models"] = ["owner/large"]
    assert [unit for unit in UNITS if "owner/large" in models_of(extra, unit)] == ["search"]
