"""Folders in which runs take place, and what the cells of two runs have in common."""

import contextlib
import itertools
import json
import os
import subprocess
import sys

import nbformat
from helpers import CHECKOUT

NOT_LINKED = ("results", "reference", "models")
"""Folders of data that a run in a scratch checkout has to itself."""
TIMED = ("seconds", "time", "device", "versions")
"""Entries of a cell in which two runs may differ."""
TIMED_QUANTITIES = ("seconds", "prompt", "generation")
"""Quantities of rows in which two runs may differ."""


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
        self.code = CHECKOUT
        self.python = sys.executable
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

    def write(self, name, code, prose=""):
        """Write a notebook of three cells: the parameters, some text and some code."""
        parameters = nbformat.v4.new_code_cell(
            'profile = "mini"\nmodels = None\ndatasets = None\nseed = 0',
            metadata={"tags": ["parameters"]},
            id="p",
        )
        kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
        notebook = nbformat.v4.new_notebook(
            cells=[
                parameters,
                nbformat.v4.new_markdown_cell(prose, id="m"),
                nbformat.v4.new_code_cell(code, id="c"),
            ],
            metadata={"kernelspec": kernel},
        )
        nbformat.write(notebook, self.root / "notebooks" / f"{name}.ipynb")

    def start(self, *options, command="run", stdout=None):
        """Start ``./run_all.sh run`` with these options, and do not wait for it.

        The profile is smoke, unless the options name another.
        """
        module = [self.python, "-P", "-m", "harp_lib.cli"]
        profile = [] if "--profile" in options else ["--profile", "smoke"]
        environment = {
            **os.environ,
            "HARP_ROOT": str(self.root),
            "PYTHONPATH": str(self.code),
            "OMP_NUM_THREADS": "1",
        }
        with self.shown.open("a") as shown:  # a pipe that nobody reads would hold the run up
            return subprocess.Popen(
                [*module, command, *profile, *options],
                cwd=self.root,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=stdout or shown,
                stderr=shown,
            )

    def run(self, *options, command="run"):
        """Run the same to its end: the exit code, and what it showed."""
        length_before = self.shown.stat().st_size if self.shown.exists() else 0
        code = self.start(*options, command=command).wait()
        return code, self.shown.read_bytes()[length_before:].decode()

    def cell_files(self):
        """Files of the finished cells, and when they were written."""
        files = (self.root / "data" / "results" / "cells").glob("[!.]*.json")
        return {file: file.stat().st_mtime_ns for file in files}

    def cells(self):
        """What each stored cell holds, without what is measured with a clock."""
        cells = {}
        for file in self.cell_files():
            cell = json.loads(file.read_text(encoding="utf-8"))
            cells[file.name] = _without_times(cell)
        return cells


def link_results(source, target):
    """Add the cells and refitted weights of a folder of results to those of another one."""
    for name in ("cells", "refits"):
        (target / name).mkdir(parents=True, exist_ok=True)
        for file in (source / name).glob("[!.]*"):
            with contextlib.suppress(FileExistsError):
                os.link(file, target / name / file.name)


def _without_times(value):
    if isinstance(value, list):
        return [_without_times(item) for item in value]
    if not isinstance(value, dict):
        return value
    kept = {}
    for key, item in value.items():
        if key == "rows" and isinstance(item, dict) and "quantity" in item:
            item = _without_timed_rows(item)
        if key not in TIMED:
            kept[key] = _without_times(item)
    return kept


def _without_timed_rows(columns):
    """The columns of a cell's rows, without the rows that a clock has written."""
    keep = [quantity not in TIMED_QUANTITIES for quantity in columns["quantity"]]
    return {name: list(itertools.compress(values, keep)) for name, values in columns.items()}
