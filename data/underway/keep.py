"""Keep the cells of a long run that is under way, and continue it elsewhere.

    python data/underway/keep.py keep       # in the clone that computes
    python data/underway/keep.py restore    # in a new clone, before it goes on

What is computed is said in ``README.md`` beside this file. This folder holds the finished cells of
that run, a JSON Lines file for each model, without the answers that models wrote, as in
``data/reference``.
"""

import json
import sys
from collections import defaultdict
from pathlib import Path

from harp_lib import config
from harp_lib.results import (
    Store,
    digest,
    read_cell,
    read_lines,
    write_json,
    write_text,
)

HERE = Path(__file__).parent
SINCE = "2026-11-28"  # when this run began; older cells are of the run before it


def keep() -> None:
    """Write every finished cell that the committed reference does not have."""
    committed = set()
    for file in (config.REFERENCE / "small").glob("*/*.jsonl"):
        committed |= {digest(cell["inputs"]) for cell in read_lines(file)}
    lines = defaultdict(list)
    for file in sorted(Store().folder.glob("[!.]*.json")):
        stored = read_cell(file)
        of_small = stored["inputs"]["model"] in config.read_profile("small")["models"]
        is_old = stored["time"] < SINCE
        if file.stem in committed or is_old or "failed" in stored["result"] or not of_small:
            continue
        stored["result"].pop("answers", None)
        lines[stored["inputs"]["model"]].append(json.dumps(stored) + "\n")
    for model, of_model in lines.items():
        write_text(HERE / f"{config.slug(model)}.jsonl", "".join(of_model))
        print(f"{model}: {len(of_model)} cells")


def restore() -> None:
    """Write the kept cells into the result store."""
    store = Store()
    for kept in sorted(HERE.glob("*.jsonl")):
        for stored in read_lines(kept):
            write_json(store.file(digest(stored["inputs"])), stored)


if __name__ == "__main__":
    {"keep": keep, "restore": restore}[sys.argv[1]]()
