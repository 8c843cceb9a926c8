"""Executed notebooks: what they have of their sources, and how they are drawn without a model."""

import matplotlib.pyplot as plt
import nbformat
import pytest
from helpers import Checkout

from harp_lib import config, notebooks


@pytest.fixture
def toys(tmp_path, monkeypatch):
    """A function that makes notebooks of one cell of code, given by name, and its checkout."""

    def make(**codes):
        checkout = Checkout(tmp_path / "work", codes)
        monkeypatch.setattr(config, "ROOT", checkout.root)
        monkeypatch.setattr(config, "NOTEBOOKS", checkout.root / "notebooks")
        return checkout

    return make


@pytest.mark.parametrize("name", notebooks.names())
def test_an_executed_notebook_is_of_its_source(name, tmp_path, monkeypatch):
    monkeypatch.setattr(config, "RESULTS", tmp_path)  # what is committed decides
    source = notebooks.read(name)
    executed = nbformat.read(notebooks.executed_file(name, "small"), as_version=4)
    again = f"./run_all.sh --profile small --only {name[:2]}"
    stamp = executed.metadata["harp"]
    cells = notebooks.cells_shown("small", name)
    assert cells
    assert notebooks.code_of(executed) == notebooks.code_of(source), again
    assert notebooks.digest_of(source, stamp["parameters"], cells) == stamp["digest"], again
    assert prose_of(executed) == prose_of(source), "python -m harp_lib.notebooks"
    assert notebooks.with_outputs(source, executed) == executed, "no bars, no times, all tags"
    for cell in executed.cells:
        for output in cell.get("outputs", []):
            assert output.output_type != "error"


def prose_of(notebook):
    return [cell.source for cell in notebook.cells if cell.cell_type == "markdown"]


def test_the_stamp_depends_on_code_parameters_and_cells_alone(toys):
    toys(**{"01_one": "1 + 1"})
    source = notebooks.read("01_one")
    cells = {"theory/synthetic/any/one": "0a0a0a0a"}
    stamp = notebooks.digest_of(source, {"seed": 0}, cells)
    source.cells[1].source = "Another sentence."
    source.cells[2].metadata["tags"] = ["hide-input"]
    assert notebooks.digest_of(source, {"seed": 0}, cells) == stamp
    assert notebooks.digest_of(source, {"seed": 1}, cells) != stamp
    assert notebooks.digest_of(source, {"seed": 0}, {**cells, "another": "0b0b0b0b"}) != stamp
    source.cells[2].source = "1 + 2"
    assert notebooks.digest_of(source, {"seed": 0}, cells) != stamp


def test_a_notebook_shows_the_cells_of_its_units(tmp_path, monkeypatch):
    monkeypatch.setattr(config, "RESULTS", tmp_path)
    stores = {name.partition("/")[0] for name in notebooks.cells_shown("small", "02_norm_change")}
    assert stores == {"theory", "norm_change", "paper_ratios"}
    everything = notebooks.cells_shown("small", "00_start_here")
    for name in notebooks.names():
        assert notebooks.cells_shown("small", name).items() <= everything.items()


def test_what_goes_to_stderr_is_not_kept_and_paths_neither(toys, tmp_path, capsys):
    rows = tmp_path / "elsewhere" / "rows"
    code = """
import sys
from tqdm import tqdm
for number in tqdm(range(3), desc="a bar"):
    print(number)
print(datasets)
"""
    toys(**{"01_bar": code})
    file = notebooks.execute("01_bar", "smoke", {"datasets": str(rows)})
    executed = nbformat.read(file, as_version=4)
    assert "a bar" in capsys.readouterr().out, "the terminal shows it"
    assert "".join(output.text for output in executed.cells[-1].outputs) == "0\n1\n2\nrows\n"
    text = file.read_text(encoding="utf-8")
    assert str(rows.parent) not in text
    assert executed.metadata["harp"]["parameters"] == {"datasets": "rows"}
    assert 'datasets = \\"rows\\"' in text
    assert "papermill" not in text


# ---- without a model

OPEN = """
from pathlib import Path

class Results:
    def __init__(self, profile):
        self.profile = profile

results = Results(profile)
"""


def add_cells(name, *cells):
    """Append cells of code, each given by its code and its tags, to a notebook."""
    notebook = notebooks.read(name)
    for number, (code, *tags) in enumerate(cells):
        cell = nbformat.v4.new_code_cell(code, metadata={"tags": tags}, id=f"added-{number}")
        notebook.cells.append(cell)
    nbformat.write(notebook, config.NOTEBOOKS / f"{name}.ipynb")


def test_opened_notebooks_are_drawn_without_a_model_and_nothing_is_executed(toys):
    names = ("01_open", "02_closed", "03_fails", "04_uses_a_model")
    toys(**dict.fromkeys(names, OPEN) | {"02_closed": "Path('closed').touch()"})
    loads = ("model = Path('loaded').touch()", "model", "hide-input")
    add_cells("01_open", loads, ("Path('drawn').write_text(results.profile)",))
    add_cells("03_fails", ("1 / 0",))
    add_cells("04_uses_a_model", loads, ("model",))
    failures = dict(notebooks.draw_opened("small"))
    assert list(failures) == ["01_open", "03_fails", "04_uses_a_model"]
    assert failures["01_open"] == ""
    assert "raised ZeroDivisionError: division by zero" in failures["03_fails"]
    assert "raised NameError: name 'model' is not defined" in failures["04_uses_a_model"]
    assert (config.NOTEBOOKS / "drawn").read_text() == "small"
    assert not (config.NOTEBOOKS / "loaded").exists()
    assert not (config.NOTEBOOKS / "executed").exists()


def run_without_models(name, profile, monkeypatch):
    """Run the cells of a notebook that are not tagged ``model``, in this process."""

    def refuse(*arguments, **options):
        raise AssertionError("a cell without the tag model loads one, or computes results")

    monkeypatch.setattr("harp_lib.models.load.load_model", refuse)
    monkeypatch.setattr("harp_lib.experiments.run", refuse)
    monkeypatch.chdir(config.NOTEBOOKS)
    names = {}
    for cell in notebooks.without_models(notebooks.read(name)).cells:
        if cell.cell_type == "code":
            exec(compile(cell.source, f"{name}, cell {cell.id}", "exec"), names)
            if notebooks.PARAMETERS in cell.metadata.get("tags", []):
                names["profile"] = profile
    plt.close("all")


@pytest.mark.parametrize("name", notebooks.opened())
def test_an_opened_notebook_needs_no_model_to_draw(name, tmp_path, monkeypatch):
    """Its checks hold in the committed results, too."""
    monkeypatch.setattr(config, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(config, "FIGURES", tmp_path / "figures")
    run_without_models(name, "small", monkeypatch)
    assert list((tmp_path / "figures" / "small").glob("*.png"))
    assert list((tmp_path / "figures" / "small" / "tables").glob("*.csv"))


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("model", NameError),
        ("from harp_lib import load_model\nload_model('tiny-llama')", AssertionError),
        ("from harp_lib import experiments\nexperiments.run('search')", AssertionError),
        ("assert profile == 'mini'", AssertionError),
    ],
)
def test_a_cell_that_needs_a_model_is_found(code, error, toys, monkeypatch):
    toys(**{"01_open": OPEN})
    add_cells("01_open", ("model = 1", "model"), (code,))
    with pytest.raises(error):
        run_without_models("01_open", "small", monkeypatch)
