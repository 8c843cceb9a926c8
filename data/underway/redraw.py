"""Execute notebooks of the profile ``small`` on its stored results, without loading a model.

    python data/underway/redraw.py 05 07 00

Cells tagged ``model`` keep the outputs that the executed notebook has. All others run, and the
notebook is stamped anew. With ``--draft`` checks that do not hold are printed, and no executed
notebook is written; figures, tables and verdicts are.
"""

import os
import sys
from contextlib import chdir

import nbformat
from nbformat import NotebookNode

from harp_lib import config, notebooks

PROFILE = "small"
FALSE = "FALSE NOW:"
DRAFT = f"""
from harp_lib.report.frames import Results
def _check(self, statement, holds):
    if not holds:
        print("{FALSE}", statement)
Results.check = _check
"""


def redraw(name: str, is_draft: bool) -> None:
    file = notebooks.executed_file(name, PROFILE)
    before = nbformat.read(file, as_version=4)
    stamp = before.metadata["harp"]
    source = notebooks.read(name)
    settings = config.read_profile(PROFILE)
    runnable = notebooks.without_left_out(notebooks.without_models(source), settings)
    if is_draft:
        runnable.cells.insert(0, nbformat.v4.new_code_cell(DRAFT))
    os.environ[config.PAGE] = str(file.parent)  # for links from figures
    with chdir(config.NOTEBOOKS):
        done = notebooks._run(runnable, {"profile": PROFILE})
    if is_draft:
        print_false_checks(done)
        return
    code = {cell.id: cell.source for cell in before.cells}
    for cell in source.cells:
        if notebooks.LOADS_A_MODEL in notebooks._tags(cell) and cell.source != code.get(cell.id):
            raise ValueError(
                f"{name}: cell {cell.id} loads a model and has changed: run {name[:2]}"
            )
    outputs = {cell.id: cell for cell in before.cells} | {cell.id: cell for cell in done.cells}
    executed = nbformat.from_dict(before)
    executed.cells = [with_outputs_of(cell, outputs) for cell in source.cells]
    counts = {cell.id: cell.get("execution_count") for cell in before.cells}
    for count, cell in enumerate(notebooks._code_cells(executed), 1):
        cell.execution_count = counts.get(cell.id, count)
        for output in cell.outputs:
            if output.output_type == "execute_result":
                output.execution_count = cell.execution_count
    executed.cells += [cell for cell in before.cells if cell.id == notebooks.INJECTED]
    written = notebooks.with_outputs(source, executed)
    notebooks._make_portable(written, stamp["parameters"], notebooks._names_of_local_folders(None))
    shown = notebooks.cells_shown(PROFILE, name)
    stamp["digest"] = notebooks.digest_of(source, stamp["parameters"], shown)
    written.metadata["harp"] = stamp
    file.write_text(nbformat.writes(written), encoding="utf-8")


def print_false_checks(done: NotebookNode) -> None:
    for cell in done.cells:
        for output in cell.get("outputs", []):
            for line in output.get("text", "").splitlines():
                if line.startswith(FALSE):
                    print(line)


def with_outputs_of(cell: NotebookNode, cells: dict[str, NotebookNode]) -> NotebookNode:
    cell = nbformat.from_dict(cell)
    if cell.cell_type == "code" and cell.id in cells:
        cell.outputs = cells[cell.id].outputs
    return cell


def main(*arguments: str) -> None:
    numbers = [word for word in arguments if not word.startswith("--")]
    for name in notebooks.names():
        if name[:2] in numbers:
            redraw(name, "--draft" in arguments)
            print(name, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
