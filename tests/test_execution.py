"""Running one notebook: what is refused, what is kept, what is said when it fails."""

import hashlib
import io
from pathlib import Path

import nbformat
import pytest

from harp_lib.console import KernelText
from harp_lib.notebooks import RefusedError, execute, parameters_of, select


def write_notebook(folder: Path, name: str, parameters: str, *cells: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    first = nbformat.v4.new_code_cell(parameters, metadata={"tags": ["parameters"]})
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    notebook = nbformat.v4.new_notebook(
        cells=[first, *map(nbformat.v4.new_code_cell, cells)], metadata={"kernelspec": kernel}
    )
    nbformat.write(notebook, folder / name)
    return folder / name


def run(source: Path, **parameters):
    """Outcome, what was shown, and where the executed notebook is."""
    stream, output = io.StringIO(), source.parent / "executed" / "smoke" / source.name
    text = KernelText(stream)
    outcome = execute(source, output, {"profile": "smoke", **parameters}, text)
    text.close()
    return outcome, stream.getvalue(), output


@pytest.fixture(scope="module")
def works(tmp_path_factory):
    source = write_notebook(
        tmp_path_factory.mktemp("a checkout") / "notebooks",
        "01_works.ipynb",
        "profile = 'mini'\nmodels = None\nseed = 0",
        "import os, pathlib\nprint(repr((profile, models, seed)))\nprint('at', os.getcwd(), pathlib.Path.home())",
    )
    return source, *run(source, models=["a", "b"])


@pytest.fixture(scope="module")
def fails(tmp_path_factory):
    source = write_notebook(
        tmp_path_factory.mktemp("a checkout") / "notebooks",
        "02_fails.ipynb",
        "profile = 'mini'",
        "print('before')",
        "raise ValueError('first line\\nno such thing')",
        "print('never')",
    )
    return run(source)


def test_a_notebook_gets_its_parameters_and_runs_in_its_folder(works):
    source, outcome, shown, _ = works
    assert outcome == {"result": "done", "error": ""}
    assert shown == f"('smoke', ['a', 'b'], 0)\nat {source.parent} {Path.home()}\n", "and nothing of papermill"


def test_an_executed_notebook_records_its_source_and_no_path_of_this_machine(works):
    source, _, _, output = works
    metadata = nbformat.read(output, as_version=4).metadata
    assert metadata["harp"]["source_sha256"] == hashlib.sha256(source.read_bytes()).hexdigest()
    assert metadata["papermill"]["input_path"] == "01_works.ipynb"
    text = output.read_text(encoding="utf-8")
    assert "at ./notebooks ~" in text
    assert str(source.parents[1]) not in text
    assert str(Path.home()) + "/" not in text


def test_a_failing_cell_is_named_with_all_of_its_message(fails):
    outcome, shown, output = fails
    assert outcome == {"result": "failed", "error": "cell [4] raised ValueError: first line\nno such thing"}
    assert shown.startswith("before\n")
    assert "never" not in shown
    notebook = nbformat.read(output, as_version=4)
    assert [o.ename for cell in notebook.cells for o in cell.get("outputs", []) if "ename" in o] == ["ValueError"]
    assert "harp" not in notebook.metadata, "it has no stamp"


def test_a_kernel_that_dies_is_named_on_top_of_the_notebook(tmp_path):
    source = write_notebook(tmp_path, "03_dies.ipynb", "profile = 'mini'", "import os; os._exit(1)")
    outcome, shown, output = run(source)
    assert outcome["result"] == "failed"
    assert outcome["error"].startswith("the kernel died: as a rule the machine ran out of memory")
    assert "Kernel died" not in shown, "said once, by the table"
    notebook = nbformat.read(output, as_version=4)
    assert outcome["error"] in notebook.cells[0].source
    assert "harp" not in notebook.metadata


def test_an_output_that_cannot_be_written_is_said(tmp_path):
    source = write_notebook(tmp_path, "04_full.ipynb", "profile = 'mini'")
    (tmp_path / "executed" / "smoke" / source.name).mkdir(parents=True)
    outcome, _, _ = run(source)
    assert outcome["result"] == "failed"
    assert outcome["error"].startswith("IsADirectoryError: ")


def two_notebooks(folder: Path) -> list[Path]:
    return [
        write_notebook(folder, "01_one.ipynb", "profile = 'mini'\nseed = 0"),
        write_notebook(folder, "02_two.ipynb", "profile = 'mini'"),
    ]


@pytest.mark.parametrize(
    ("shared", "explicit", "message"),
    [
        ({}, {"sede": 1}, "01_one has no parameter 'sede'; it has profile, seed"),
        ({}, {"seed": 1}, "02_two has no parameter 'seed'; it has profile"),
        ({"models": ["a"]}, {}, "no selected notebook has a parameter 'models': 01_one has profile, seed; 02_two has"),
    ],
)
def test_unknown_parameters_are_refused(tmp_path, shared, explicit, message):
    with pytest.raises(RefusedError, match=message):
        parameters_of(two_notebooks(tmp_path), {"profile": "smoke"}, shared, explicit)


def test_parameters_go_to_the_notebooks_that_have_them(tmp_path):
    sources = two_notebooks(tmp_path)
    assert parameters_of(sources, {"profile": "smoke"}, {"seed": 3}, {}) == {
        "01_one.ipynb": {"profile": "smoke", "seed": 3},
        "02_two.ipynb": {"profile": "smoke"},
    }


def test_the_last_notebook_needs_no_parameter_of_the_others_beside_them(tmp_path):
    first, last = two_notebooks(tmp_path)[0], write_notebook(tmp_path, "00_last.ipynb", "profile = 'mini'")
    assert parameters_of([last, first], {}, {}, {"seed": 3}) == {"00_last.ipynb": {}, "01_one.ipynb": {"seed": 3}}
    with pytest.raises(RefusedError, match="00_last has no parameter 'seed'"):
        parameters_of([last], {}, {}, {"seed": 3})


def test_what_is_no_notebook_is_refused(tmp_path):
    (tmp_path / "01_broken.ipynb").write_text("{", encoding="utf-8")
    with pytest.raises(RefusedError, match=r"01_broken\.ipynb cannot be read"):
        parameters_of([tmp_path / "01_broken.ipynb"], {}, {}, {})


def test_notebooks_are_selected_by_number_in_their_order(tmp_path):
    sources = two_notebooks(tmp_path)
    write_notebook(tmp_path, "notes.ipynb", "profile = 'mini'")
    assert select(tmp_path) == sources
    assert select(tmp_path, ["02"]) == sources[1:]
    assert select(tmp_path, ["07"]) == []
