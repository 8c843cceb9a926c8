"""Keep the cells of a long run that is under way, and continue it elsewhere.

    python data/underway/keep.py keep       # in the clone that computes
    python data/underway/keep.py restore    # in a new clone, before it goes on

The profile ``small`` is computed again, at the paper's depth and on texts that begin as they should
(``README.md`` beside this file). Until a model is done the committed reference stays as it is. This
folder holds the finished cells of that run, a JSON Lines file for each store and model, without the
answers that models wrote, as in ``data/reference``.
"""

import json
import sys
from collections import defaultdict
from pathlib import Path

from harp_lib import config
from harp_lib.results import read_cell, write_json

HERE = Path(__file__).parent
STORE = config.RESULTS / "small"


def keep() -> None:
    """Write every finished cell that the committed reference does not have."""
    committed = set()
    for file in (config.REFERENCE / "small").glob("*/*.jsonl"):
        for line in file.read_text(encoding="utf-8").splitlines():
            committed.add(_identity(file.parent.name, json.loads(line)))
    lines = defaultdict(list)
    for file in sorted(STORE.glob("[!.]*/*/*/[!.]*.json")):
        stored = read_cell(file)
        if stored is None or "failed" in stored["result"]:
            continue
        store, model, method, _ = file.relative_to(STORE).parts
        stored = {"model": model, "method": method, "name": file.stem} | stored
        if _identity(store, stored) in committed:
            continue
        stored["result"].pop("answers", None)
        lines[store, model].append(json.dumps(stored) + "\n")
    for (store, model), of_model in lines.items():
        file = HERE / store / f"{model}.jsonl"
        file.parent.mkdir(exist_ok=True)
        file.write_text("".join(of_model), encoding="utf-8")
        print(f"{store}, {model}: {len(of_model)} cells")


def _identity(store: str, cell: dict) -> tuple[str, str, str, str]:
    """What tells a computation from others: a cell that only got more inputs is the same."""
    return store, cell["method"], cell["name"], cell["time"]


def restore() -> None:
    """Write the kept cells into ``data/results/small``, in place of older ones."""
    for kept in sorted(HERE.glob("*/*.jsonl")):
        for line in kept.read_text(encoding="utf-8").splitlines():
            stored = json.loads(line)
            names = [stored.pop(name) for name in ("model", "method", "name")]
            folder = STORE / kept.parent.name / names[0] / names[1]
            write_json(folder / f"{names[2]}.json", stored)


if __name__ == "__main__":
    {"keep": keep, "restore": restore}[sys.argv[1]]()
