"""Executed notebooks: what they have of their sources, and how they are drawn without a model."""

import ast
import re

import matplotlib.pyplot as plt
import nbformat
import pytest
from checkouts import Checkout

from harp_lib import config, notebooks
from harp_lib.report import judge, save
from harp_lib.results import listed_cells
from harp_lib.units import units_of


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
def test_an_executed_notebook_is_of_its_source(name, only_committed):
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
    cells = ["0a0a0a0a"]
    stamp = notebooks.digest_of(source, {"seed": 0}, cells)
    source.cells[1].source = "Another sentence."
    source.cells[2].metadata["tags"] = ["hide-input"]
    assert notebooks.digest_of(source, {"seed": 0}, cells) == stamp
    assert notebooks.digest_of(source, {"seed": 1}, cells) != stamp
    assert notebooks.digest_of(source, {"seed": 0}, [*cells, "0b0b0b0b"]) != stamp
    source.cells[2].source = "1 + 2"
    assert notebooks.digest_of(source, {"seed": 0}, cells) != stamp


def test_a_notebook_shows_the_cells_of_its_units(only_committed):
    of_units = {cell for unit in ("norms", "reasons") for cell in listed_cells("small", unit)}
    assert notebooks.cells_shown("small", "02_norm_change") == sorted(of_units)
    everything = set(notebooks.cells_shown("small", "00_start_here"))
    for name in notebooks.names():
        assert set(notebooks.cells_shown("small", name)) <= everything


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


SHOWN = """
from pathlib import Path
from IPython.display import HTML, SVG, Image, Markdown, display

print(1 / 2, f"and {folder}/x, {folder}, {folder}.", f"{folder}-2/x {folder}.bak /x{folder}/y")
print([f"{folder}/x", Path(folder)], f"file://{folder}/x km{folder}")
picture = f"iVBORw0{folder}/AAAA {folder}/x"
display({"image/svg+xml": f"<svg>{folder}/x</svg>", "image/png": picture}, raw=True)
display(HTML(f"<a href='{folder}/x'>{folder}/x</a><script>'{folder}/x'</script>"))
display(Markdown(f"{folder}/x <img src='data:image/png;base64,{folder}/x'>"))
"""


def shown_in(home, toys, monkeypatch):
    """What an executed notebook has of outputs that name a home, by kind, and its code."""
    monkeypatch.setenv("HOME", home)
    monkeypatch.setattr(config, "model_name", str)  # there need not be such a folder
    toys(**{"01_paths": f"folder = {home!r}\n{SHOWN}"})
    file = notebooks.execute("01_paths", "smoke", {"models": [f"{home}/model", "owner/name"]})
    executed = nbformat.read(file, as_version=4)
    assert notebooks.code_of(executed) == notebooks.code_of(notebooks.read("01_paths"))
    outputs = executed.cells[-1].outputs
    shown = {"text": "".join(output.get("text", "") for output in outputs)}
    for output in outputs:
        shown |= output.get("data", {})
    return shown, executed


def test_local_folders_have_names_where_outputs_are_text(toys, monkeypatch):
    home = "/home/some.body"
    shown, executed = shown_in(home, toys, monkeypatch)
    assert shown["text"] == (
        f"0.5 and ~/x, ~, ~. {home}-2/x {home}.bak /x{home}/y\n"
        f"['~/x', PosixPath('~')] file://~/x km{home}\n"
    )
    assert shown["image/svg+xml"] == f"<svg>{home}/x</svg>"
    assert shown["image/png"] == f"iVBORw0{home}/AAAA {home}/x"
    assert shown["text/html"] == f"<a href='{home}/x'>~/x</a><script>'{home}/x'</script>"
    assert shown["text/markdown"] == f"~/x <img src='data:image/png;base64,{home}/x'>"
    assert executed.metadata["harp"]["parameters"] == {"models": ["~/model", "owner/name"]}
    of_run = f'# {notebooks.OF_THE_RUN}\nmodels = ["~/model", "owner/name"]\n'
    assert executed.cells[1].source == of_run


@pytest.mark.parametrize("home", ["/", "/root"])
def test_a_root_and_a_folder_in_it_are_shown_as_they_are(home, toys, monkeypatch):
    shown, executed = shown_in(home, toys, monkeypatch)
    assert shown["text"].startswith(f"0.5 and {home}/x, {home}, {home}. {home}-2/x")
    assert "~" not in str(executed.cells)


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


def test_notebooks_are_drawn_without_a_model_and_nothing_is_executed(toys):
    names = ("00_last", "01_open", "03_fails", "04_uses_a_model")
    toys(**dict.fromkeys(names, OPEN))
    loads = ("model = Path('loaded').touch()", "model", "hide-input")
    add_cells("01_open", loads, ("Path('drawn').write_text(results.profile)",))
    add_cells("00_last", ("assert Path('drawn').is_file()",))
    add_cells("03_fails", ("1 / 0",))
    add_cells("04_uses_a_model", loads, ("model",))
    failures = dict(notebooks.draw_all("small"))
    assert list(failures) == ["01_open", "03_fails", "04_uses_a_model", "00_last"]
    assert failures["01_open"] == failures["00_last"] == ""
    assert "raised ZeroDivisionError: division by zero" in failures["03_fails"]
    assert "raised NameError: name 'model' is not defined" in failures["04_uses_a_model"]
    assert (config.NOTEBOOKS / "drawn").read_text() == "small"
    assert not (config.NOTEBOOKS / "loaded").exists()
    assert not (config.NOTEBOOKS / "executed").exists()


JUDGES = [name for name in notebooks.names() if not name.startswith(notebooks.LAST)]
"""The notebooks that judge; test_front_page.py is about 00, which shows what they find."""


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
    return names


@pytest.mark.parametrize("name", JUDGES)
def test_a_notebook_needs_no_model_to_draw(name, only_committed, tmp_path, monkeypatch):
    """Its checks hold in the committed results, too."""
    monkeypatch.setattr(config, "FIGURES", tmp_path / "figures")
    monkeypatch.setattr(save, "FORMATS", {"png": None})  # the smoke run writes all of them
    names = run_without_models(name, "small", monkeypatch)
    declared = set(units_of(name))
    assert set(names["results"].read) <= declared, "data/experiments.yaml says what it reads"
    assert list((tmp_path / "figures" / "small").glob("*.png"))
    assert list((tmp_path / "figures" / "small" / "tables").glob("*.csv"))


# ---- what a profile leaves out


def needs_of(cell):
    tags = cell.metadata.get("tags", [])
    return [tag.removeprefix(notebooks.NEEDS) for tag in tags if tag.startswith(notebooks.NEEDS)]


@pytest.mark.parametrize(
    ("changes", "is_left_out"),
    [
        ({}, False),
        ({"split": []}, True),
        ({"split": None}, False),
        ({"models": []}, True),
        ({"models": ["tiny-llama"]}, False),
    ],
)
def test_a_cell_says_what_the_profile_leaves_out(changes, is_left_out):
    profile = config.read_profile("smoke")
    profile["efficiency"] |= changes
    cell = nbformat.v4.new_code_cell("show()", metadata={"tags": ["needs:efficiency.split"]})
    other = nbformat.v4.new_code_cell("show()")
    source = nbformat.v4.new_notebook(cells=[cell, other])
    first, second = notebooks.without_left_out(source, profile).cells
    shown = "results.leave_out('efficiency.split')" if is_left_out else "show()"
    assert (first.source, second.source, cell.source) == (shown, "show()", "show()")


@pytest.mark.parametrize(
    ("task", "kinds"),
    [
        ("gsm8k", ["generation"]),
        ("piqa", ["discriminative"]),
        ("longbench_lcc", ["longbench"]),
    ],
)
def test_a_cell_may_need_tasks_of_a_kind(task, kinds):
    profile = config.read_profile("smoke")
    profile["likelihoods"]["tasks"] = {task: {}}
    every = ("generation", "discriminative", "longbench")
    assert kinds == [
        kind for kind in every if not notebooks._is_left_out(profile, f"likelihoods.tasks:{kind}")
    ]


@pytest.mark.parametrize("name", notebooks.names())
def test_what_cells_need_is_in_the_profile_smoke(name):
    """A name that is misspelt would be left out everywhere."""
    for cell in notebooks.read(name).cells:
        for section in needs_of(cell):
            assert not notebooks._is_left_out(config.read_profile("smoke"), section), section


# ---- the parts of a notebook


@pytest.mark.parametrize("name", JUDGES)
def test_a_notebook_has_its_parts(name):
    source = notebooks.read(name)
    code = [cell for cell in source.cells if cell.cell_type == "code"]
    assert source.metadata.kernelspec.name == "python3"
    assert "**The answer.**" in source.cells[0].source
    assert code[-1].source == "results.provenance()"
    prose = "\n".join(prose_of(source))
    heads = re.findall(r"^## .*$", prose, flags=re.MULTILINE)
    assert heads[-3:] == ["## Verdict", "## Exercises", "## Where these numbers come from"]
    everything = "\n".join(notebooks.code_of(source))
    found = len(re.findall(r"\*\*What we found", prose))
    assert f'results = Results(profile, "{name[:2]}")' in everything
    assert everything.count("results.check(") >= 1
    assert len(re.findall(r"results\.(?:save|table)\(", everything)) >= 2
    assert found >= 2


@pytest.mark.parametrize("name", notebooks.names())
def test_the_parameters_are_plain_literals(name):
    (cell,) = [
        cell
        for cell in notebooks.read(name).cells
        if notebooks.PARAMETERS in cell.metadata.get("tags", [])
    ]
    parameters = {}
    for node in ast.parse(cell.source).body:
        parameters[node.targets[0].id] = ast.literal_eval(node.value)
    expected = {"profile": "mini", "models": None, "datasets": None, "force": False, "seed": 0}
    if name[:2] in ("05", "06", "07"):
        expected["limit"] = None
    assert parameters == expected


def literals(method, name):
    """The first arguments of a method of ``results`` in a notebook; of figures, the second."""
    place = 1 if method in ("save", "table") else 0
    found = []
    for code in notebooks.code_of(notebooks.read(name)):
        for node in ast.walk(ast.parse(code)):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == f"results.{method}":
                found.append(ast.literal_eval(node.args[place]))
    return found


def test_names_of_figures_and_tables_are_literals_and_their_own():
    names = []
    for name in notebooks.names():
        names += literals("save", name) + literals("table", name)
    assert sorted(set(names)) == sorted(names)


@pytest.mark.parametrize("name", JUDGES)
def test_a_notebook_judges_its_claims(name):
    code = "\n".join(notebooks.code_of(notebooks.read(name)))
    judged = set(re.findall(r'"([a-z0-9-]+)"', code)) & set(judge.claims())
    due = {
        claim
        for claim, entry in judge.claims().items()
        if entry["notebook"] == name[:2] and "effect" in entry
    }
    assert judged == due
    assert ("results.verdict()" in code) == bool(due), "beyond the paper there is no verdict"


# ---- what a reader writes by hand


@pytest.mark.parametrize("name", JUDGES)
def test_what_a_reader_writes_by_hand_is_what_the_library_does(name):
    """Up to the first rows that are read after it, a notebook computes by hand and asserts.

    The smoke run does so on the tiny Llama, and the rehearsal in bfloat16.
    """
    names = {"profile": "smoke", "models": ["tiny-gemma2"], "datasets": None, "limit": None}
    names |= {"force": False, "seed": 0}
    num_assertions = 0
    for cell in notebooks.read(name).cells:
        tags = cell.metadata.get("tags", [])
        if cell.cell_type != "code" or notebooks.PARAMETERS in tags:
            continue
        if notebooks.LOADS_A_MODEL not in tags and num_assertions:
            break
        source = re.sub(r"^experiments\.run\(.*$", "", cell.source, flags=re.MULTILINE)
        exec(compile(source, name, "exec"), names)
        num_assertions += source.count("assert")
    plt.close("all")
    assert num_assertions > 0
