"""The notebook runner, on notebooks of two cells; each run costs a kernel, so they share one."""

import hashlib
import io
from pathlib import Path

import nbformat
import pytest

from harp_lib import runner
from harp_lib.console import KernelText


def write_notebook(folder: Path, name: str, parameters: str, *cells: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    first = nbformat.v4.new_code_cell(parameters, metadata={"tags": ["parameters"]})
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    notebook = nbformat.v4.new_notebook(
        cells=[first, *map(nbformat.v4.new_code_cell, cells)], metadata={"kernelspec": kernel}
    )
    nbformat.write(notebook, folder / name)
    return folder / name


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """One run of three notebooks, the second of which fails: folder, exit code and what was shown."""
    notebooks = tmp_path_factory.mktemp("a checkout") / "notebooks"
    write_notebook(
        notebooks,
        "02_fails.ipynb",
        "profile = 'mini'",
        "print('before')",
        "raise ValueError('first line\\nno such thing')",
        "print('never')",
    )
    write_notebook(
        notebooks,
        "01_works.ipynb",
        "profile = 'mini'\nmodels = None\nseed = 0",
        "import os, pathlib\nprint(repr((profile, models, seed)))\nprint('at', os.getcwd(), pathlib.Path.home())",
    )
    write_notebook(notebooks, "10_also.ipynb", "profile = 'mini'\nseed = 0", "import os; os._exit(1)")
    stream = io.StringIO()
    code = runner.run_notebooks("smoke", None, {"models": ["a", "b"]}, {}, notebooks=notebooks, stream=stream)
    return notebooks, code, stream.getvalue()


def executed(notebooks: Path, name: str) -> nbformat.NotebookNode:
    return nbformat.read(notebooks / "executed" / "smoke" / name, as_version=4)


def test_goes_on_after_a_failure_and_says_so(run):
    _, code, shown = run
    assert code == 1
    table = shown[shown.index("notebook  ") :].splitlines()
    rows = [line.split() for line in table[2:5]]
    assert [row[:2] for row in rows] == [["01_works", "done"], ["02_fails", "failed"], ["10_also", "failed"]]
    assert rows[0][3] == "notebooks/executed/smoke/01_works.ipynb"
    assert "02_fails: no such thing" in table
    assert "10_also: the kernel died: as a rule the machine ran out of memory" in shown


def test_shows_what_kernels_print_and_nothing_of_papermill(run):
    _, _, shown = run
    assert "('smoke', ['a', 'b'], 0)\n" in shown
    assert "before\n" in shown
    assert "never" not in shown
    assert "Executing" not in shown
    assert "Kernel died while" not in shown


def test_a_failed_notebook_keeps_its_error(run):
    notebooks, _, _ = run
    errors = [o for c in executed(notebooks, "02_fails.ipynb").cells for o in c.get("outputs", []) if "ename" in o]
    assert [error.ename for error in errors] == ["ValueError"]
    dead = executed(notebooks, "10_also.ipynb")
    assert "the kernel died" in dead.cells[0].source
    for notebook in (dead, executed(notebooks, "02_fails.ipynb")):
        assert "harp" not in notebook.metadata


def test_records_the_source_and_no_path_of_this_machine(run):
    notebooks, _, _ = run
    metadata = executed(notebooks, "01_works.ipynb").metadata
    source = (notebooks / "01_works.ipynb").read_bytes()
    assert metadata["harp"]["source_sha256"] == hashlib.sha256(source).hexdigest()
    assert metadata["papermill"]["input_path"] == "01_works.ipynb"
    text = (notebooks / "executed" / "smoke" / "01_works.ipynb").read_text(encoding="utf-8")
    assert "at ./notebooks ~" in text
    assert str(notebooks.parent) not in text
    assert str(Path.home()) + "/" not in text


@pytest.mark.parametrize(
    ("shared", "explicit", "message"),
    [
        ({}, {"sede": 1}, "01_one has no parameter 'sede'; it has profile, seed"),
        ({}, {"seed": 1}, "02_two has no parameter 'seed'; it has profile"),
        ({"models": ["a"]}, {}, "no selected notebook has a parameter 'models': 01_one has profile, seed; 02_two has"),
    ],
)
def test_refuses_unknown_parameters_before_anything_runs(tmp_path, shared, explicit, message):
    notebooks = tmp_path / "notebooks"
    write_notebook(notebooks, "01_one.ipynb", "profile = 'mini'\nseed = 0")
    write_notebook(notebooks, "02_two.ipynb", "profile = 'mini'")
    with pytest.raises(runner.RefusedError, match=message):
        runner.run_notebooks("smoke", None, shared, explicit, notebooks=notebooks)
    assert sorted(path.name for path in notebooks.iterdir()) == ["01_one.ipynb", "02_two.ipynb"]


def test_says_when_there_is_no_notebook(tmp_path):
    with pytest.raises(runner.RefusedError, match="no notebook to run"):
        runner.run_notebooks("smoke", notebooks=tmp_path)
    assert not list(tmp_path.iterdir())


def test_refuses_what_is_no_notebook(tmp_path):
    (tmp_path / "01_broken.ipynb").write_text("{", encoding="utf-8")
    with pytest.raises(runner.RefusedError, match=r"01_broken\.ipynb cannot be read"):
        runner.run_notebooks("smoke", notebooks=tmp_path)


def test_interruption_ends_with_the_table(tmp_path, monkeypatch):
    notebooks = tmp_path / "notebooks"
    write_notebook(notebooks, "01_one.ipynb", "profile = 'mini'")
    write_notebook(notebooks, "02_two.ipynb", "profile = 'mini'")

    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(runner.papermill, "execute_notebook", interrupt)
    stream = io.StringIO()
    assert runner.run_notebooks("smoke", notebooks=notebooks, stream=stream) == 130
    rows = stream.getvalue().splitlines()[-2:]
    assert rows[0].split()[:2] == ["01_one", "interrupted"]
    assert rows[1].split() == ["02_two", "not", "run"]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def shown_by(stream: io.StringIO, pieces: list[str], seconds: float) -> str:
    now = [0.0]
    text = KernelText(stream, clock=lambda: now[0])
    for piece in pieces:
        now[0] += seconds
        text.write(piece)
        text.flush()
    text.close()
    return stream.getvalue()


BAR = ["hello\n", *(f"\r{i * 25:3d}%|#| {i}/4 [00:0{i}<?]" for i in range(5)), "\n", "wor", "ld"]


def test_a_terminal_gets_the_text_as_it_is():
    assert shown_by(Terminal(), BAR, seconds=1) == "".join(BAR) + "\n"


def test_a_log_gets_finished_lines_and_a_bar_now_and_then():
    assert shown_by(io.StringIO(), BAR, seconds=1) == "hello\n100%|#| 4/4 [00:04<?]\nworld\n"
    assert shown_by(io.StringIO(), BAR, seconds=12).splitlines() == [
        "hello",
        " 25%|#| 1/4 [00:01<?]",
        "100%|#| 4/4 [00:04<?]",
        "world",
    ]


def test_a_log_shows_nothing_of_a_bar_that_was_wiped():
    pieces = ["\r 50%|#| 1/2", "\r           \r", "done\n", "\r 50%|#| 1/2", "\r           \r"]
    assert shown_by(io.StringIO(), pieces, seconds=1) == "done\n"


def test_a_log_gets_nested_bars_now_and_then():
    outer = "\r 10%|#| 1/10"
    inner = [piece for i in range(100) for piece in ("\n", f"\r{i:3d}%|#| {i}/100", "\x1b[A")]
    assert len(shown_by(io.StringIO(), [outer, *inner], seconds=1).splitlines()) <= 11
