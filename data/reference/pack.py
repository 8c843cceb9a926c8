"""Pack the cells of ``data/results`` into ``data/reference``, which git keeps, and unpack them.

    python data/reference/pack.py unpack small    # before computing on top of committed results
    python data/reference/pack.py pack small      # before committing what was computed

The result store has a file for each cell, and git is slow with thousands of small files. So the
cells of a model are packed into one file, ``data/reference/<profile>/<experiment>/<model>.jsonl``:
a line for each cell, with ``model``, ``method`` and ``name`` before what the cell's own file holds,
in the order of method and name. ``pandas.read_json(file, lines=True)`` reads it. The lists
``run-<unit>.json``, which say which cells are shown, lie beside it, as in ``data/results``.

``pack`` replaces each experiment that ``data/results/<profile>`` has by the cells which its runs
have listed, and prints how many there were and are. Whoever has computed only some of them unpacks
first. ``unpack`` leaves every file of ``data/results`` that is there already as it is.

What a model has answered to a question may repeat it, and not every question may be published
again. So ``pack`` leaves out the answers of all profiles but ``mini``, whose questions are our own.
"""

import argparse
import json
import shutil
from collections import defaultdict
from pathlib import Path
from typing import Any

from harp_lib import config
from harp_lib.results import Cells, ResultStore, committed_cells, computed_cells, write_json

OUR_OWN_QUESTIONS = "mini"  # the profile whose answers are packed


def unpack(profile: str) -> None:
    """Write the committed cells of a profile into the result store, a file for each."""
    for folder in sorted((config.REFERENCE / profile).iterdir()):
        store = ResultStore(profile, folder.name)
        for key, stored in committed_cells(profile, folder.name).items():
            file = store.file(*key)
            if not file.exists():
                write_json(file, stored)
        for run in sorted(folder.glob("run-*.json")):
            if not (store.folder / run.name).exists():
                shutil.copyfile(run, store.folder / run.name)


def pack(profile: str) -> None:
    """Replace the committed cells of the experiments that the result store has."""
    for source in sorted((config.RESULTS / profile).glob("[!.]*")):
        cells = computed_cells(profile, source.name)
        if not cells:
            continue
        folder = config.REFERENCE / profile / source.name
        num_before = sum(_num_lines(file) for file in folder.glob("*.jsonl"))
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        _write_lines(folder, cells, with_answers=profile == OUR_OWN_QUESTIONS)
        for run in sorted(source.glob("run-*.json")):
            shutil.copyfile(run, folder / run.name)
        print(f"{source.name}: {num_before} cells before, {len(cells)} now")


def _write_lines(folder: Path, cells: Cells, with_answers: bool) -> None:
    """Write a file for each model, with its cells in the order of method and name."""
    lines = defaultdict(list)
    for (model, method, name), stored in sorted(cells.items()):
        if not with_answers:
            stored = stored | {"result": _without_answers(stored["result"])}
        line = json.dumps({"model": model, "method": method, "name": name} | stored)
        lines[config.slug(model)].append(f"{line}\n")
    for model, of_model in lines.items():
        (folder / f"{model}.jsonl").write_text("".join(of_model), encoding="utf-8")


def _num_lines(file: Path) -> int:
    return file.read_bytes().count(b"\n")


def _without_answers(result: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in result.items() if name != "answers"}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("action", choices=["pack", "unpack"])
    parser.add_argument("profile", help="mini or small")
    options = parser.parse_args()
    if options.action == "pack":
        pack(options.profile)
    else:
        unpack(options.profile)
