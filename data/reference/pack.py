"""Pack the results of ``data/results`` into ``data/reference``, which git keeps, and unpack them.

    python data/reference/pack.py unpack small    # before computing on top of committed results
    python data/reference/pack.py pack small      # before committing what was computed

The result store has a file for each cell, and git is slow with thousands of small files. So the
cells of a unit are packed into one file for each model, ``data/reference/<profile>/<unit>/
<model>.jsonl``: a line for each cell, with what it is about, its inputs and its rows.
``pandas.read_json(file, lines=True)`` reads it.

``pack`` replaces each list that ``data/results/<profile>`` has, and prints how many cells there
were and are; units and models without a list here stay. ``unpack`` leaves every file of
``data/results`` that is there already as it is.

What a model has answered to a question may repeat it, and not every question may be published
again. So ``pack`` leaves out the answers of all profiles but ``mini``, whose questions are our own.
"""

import argparse
import json
from pathlib import Path
from typing import Any

from harp_lib import config
from harp_lib.results import Store, digest, listed, read_lines, write_json, write_text

OUR_OWN_QUESTIONS = "mini"  # the profile whose answers are packed


def unpack(profile: str) -> None:
    """Write the committed cells of a profile into the result store, and their lists."""
    store = Store()
    for packed in sorted((config.REFERENCE / profile).glob("*/*.jsonl")):
        lines = []
        for cell in read_lines(packed):
            about = cell.pop("about")
            name = digest(cell["inputs"])
            if not store.file(name).exists():
                write_json(store.file(name), cell)
            entry = {"about": about, "cell": name}
            lines.append(f"{json.dumps(entry)}\n")
        list_file = config.RESULTS / profile / packed.parent.name / packed.name
        if not list_file.exists():
            write_text(list_file, "".join(lines))


def pack(profile: str) -> None:
    """Replace the committed cells of the units and models that the result store has."""
    for list_file in sorted((config.RESULTS / profile).glob("[!.]*/*.jsonl")):
        packed = config.REFERENCE / profile / list_file.parent.name / list_file.name
        before = len(read_lines(packed)) if packed.is_file() else 0
        cells = listed(list_file)
        lines = []
        for cell in cells:
            if profile != OUR_OWN_QUESTIONS:
                cell["result"] = _without_answers(cell["result"])
            lines.append(f"{json.dumps(cell)}\n")
        write_text(packed, "".join(lines))
        unit_and_model = f"{list_file.parent.name} of {Path(list_file).stem}"
        print(f"{unit_and_model}: {before} cells before, {len(cells)} now")


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
