"""What several test files share, fixtures apart, which are in conftest.py."""

import json
import os
import subprocess
import sys
from pathlib import Path

import nbformat

CHECKOUT = Path(__file__).resolve().parents[1]
SHARED = CHECKOUT.parent / "shared"
FAMILIES = ("tiny-llama", "tiny-mistral", "tiny-qwen2", "tiny-gemma2")

NOT_LINKED = ("results", "reference", "models")
"""Folders of data that a run in a scratch checkout has to itself."""
TIMED = ("seconds", "speed", "peak_bytes", "time", "device", "versions")
"""Entries of a cell in which two runs may differ."""


class Checkout:
    """A folder with this checkout's notebooks and data and no results, in which runs take place.

    Parameters
    ----------
    root : Path
        The folder, which is made.
    notebooks : dict of str to str, optional
        In place of the real notebooks: name and the code of one cell.
    """

    def __init__(self, root, notebooks=None):
        self.root = root
        self.results = root / "data" / "results" / "smoke"
        self.shown = root / "shown.txt"
        (root / "notebooks").mkdir(parents=True)
        (root / "data").mkdir()
        for source in (CHECKOUT / "data").iterdir():
            if source.name not in NOT_LINKED:
                (root / "data" / source.name).symlink_to(source)
        if notebooks:
            for name, code in notebooks.items():
                self.write(name, code)
        else:
            for source in CHECKOUT.glob("notebooks/[0-9][0-9]_*.ipynb"):
                (root / "notebooks" / source.name).symlink_to(source)

    def write(self, name, code):
        """Write a notebook of two cells, the parameters and some code."""
        parameters = nbformat.v4.new_code_cell(
            'profile = "mini"\nmodels = None\nseed = 0',
            metadata={"tags": ["parameters"]},
            id="p",
        )
        kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
        notebook = nbformat.v4.new_notebook(
            cells=[parameters, nbformat.v4.new_code_cell(code, id="c")],
            metadata={"kernelspec": kernel},
        )
        nbformat.write(notebook, self.root / "notebooks" / f"{name}.ipynb")

    def start(self, *options, command="run"):
        """Start ``./run_all.sh run --profile smoke`` with these options, and do not wait for it."""
        module = [sys.executable, "-P", "-m", "harp_lib.cli"]
        environment = {
            **os.environ,
            "HARP_ROOT": str(self.root),
            "PYTHONPATH": str(CHECKOUT),
            "OMP_NUM_THREADS": "1",
        }
        with self.shown.open("a") as shown:  # a pipe that nobody reads would hold the run up
            return subprocess.Popen(
                [*module, command, "--profile", "smoke", *options],
                cwd=self.root,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=shown,
                stderr=shown,
            )

    def run(self, *options, command="run"):
        """Run the same to its end: the exit code, and what it showed."""
        length_before = self.shown.stat().st_size if self.shown.exists() else 0
        code = self.start(*options, command=command).wait()
        return code, self.shown.read_bytes()[length_before:].decode()

    def cell_files(self):
        """Files of the finished cells, and when they were written."""
        files = self.results.glob("[!.]*/*/*/[!.]*.json")
        return {file: file.stat().st_mtime_ns for file in files}

    def cells(self):
        """What each stored cell holds, without what is measured with a clock."""
        cells = {}
        for file in self.cell_files():
            cell = json.loads(file.read_text(encoding="utf-8"))
            cells[str(file.relative_to(self.results))] = _without_times(cell)
        return cells


def _without_times(value):
    if isinstance(value, dict):
        return {key: _without_times(item) for key, item in value.items() if key not in TIMED}
    if isinstance(value, list):
        return [_without_times(item) for item in value]
    return value
