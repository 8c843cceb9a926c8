"""Carry results of the store as it was until 2026-11-28 over into today's, every value as it stands.

    python data/reference/carry.py OLD NEW

OLD is a folder ``data/reference/<profile>`` of an earlier commit, or one in which a long run kept
its cells; NEW is the folder that is written. Cells were named by hand then, in the folder of the
experiment that computed them first: ``<store>/<model>.jsonl`` with ``method`` and ``name``, and
``<store>/run-<unit>.json`` with the names of the cells that a unit showed. Their inputs did not say
what is computed, so the script adds ``what``, and a plan is told by what it removes. It stops where
two cells have equal inputs then and differ.
"""

import json
import sys
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

from harp_lib import config
from harp_lib.pruning.plan import PruningPlan
from harp_lib.results import digest, read_lines, write_text

Cell = dict[str, Any]
Key = tuple[str, str, str, str]  # store, model, method and name
# Of cells that a list does not name, because their run was under way.
UNIT_OF_STORE = {
    "similarity": "similarity",
    "norm_change": "norms",
    "main_tables": "scores",
    "longbench": "longbench",
    "efficiency": "efficiency",
    "depths": "depths",
    "frontier": "frontier",
    "frontier_scores": "frontier_scores",
}


def main(old: Path, new: Path) -> None:
    cells = read_old(old)
    removed = removals(cells)
    by_digest: dict[str, str] = {}
    lines: dict[tuple[str, str], list[str]] = defaultdict(list)
    carried = set()
    for unit, key in listed_keys(old, cells):
        cell = cells[key]
        inputs, about = converted(key, cell, removed)
        name = digest(inputs)
        result = json.dumps(cell["result"])
        if by_digest.setdefault(name, result) != result:
            raise SystemExit(f"{'/'.join(key)} has the inputs of another cell, and differs")
        line = {"about": {"model": key[1], **about}, "inputs": inputs}
        line |= {
            field: value
            for field, value in cell.items()
            if field not in ("model", "method", "name", "coordinates", "inputs")
        }
        lines[unit, key[1]].append(f"{json.dumps(line)}\n")
        carried.add(key)
    for (unit, model), of_model in lines.items():
        write_text(new / unit / f"{config.slug(model)}.jsonl", "".join(dict.fromkeys(of_model)))
    num_lines = sum(len(of_model) for of_model in lines.values())
    print(f"{len(cells)} cells, {len(carried)} carried over, in {num_lines} lines of {len(lines)} lists")
    print(f"{len(by_digest)} cells differ in their inputs")
    left = Counter(key[0] for key in set(cells) - carried)
    print(f"in no list: {dict(left)}")


def read_old(old: Path) -> dict[Key, Cell]:
    """All cells of the old form."""
    cells = {}
    for file in sorted(old.glob("*/*.jsonl")):
        for cell in read_lines(file):
            cells[file.parent.name, cell["model"], cell["method"], cell["name"]] = cell
    return cells


def listed_keys(old: Path, cells: dict[Key, Cell]) -> list[tuple[str, Key]]:
    """Which cells each unit shows; without lists, all cells under the unit of their store."""
    listed = []
    for file in sorted(old.glob("*/run-*.json")):
        unit = file.stem.split("-")[1]
        for model, method, name, _ in json.loads(file.read_bytes())["cells"]:
            listed.append((unit, (file.parent.name, model, method, name)))
    if not listed:
        listed = [(unit_of(key), key) for key in cells]
    return listed


def unit_of(key: Key) -> str:
    """The unit of a cell that no list names."""
    store, _, _, name = key
    if store == "alpha_search":
        return "search" if name.startswith("search-") else "alpha"
    if store == "baselines":
        return "plans" if name == "plan" or name.startswith("range-") else "baselines"
    if store == "ablations":
        return "layers" if name == "selection" or name.startswith("document-") else "ablations"
    if store == "likelihoods":
        return "longbench_likelihoods" if name.startswith("longbench_") else "likelihoods"
    return UNIT_OF_STORE[store]


def removals(cells: dict[Key, Cell]) -> dict[str, str]:
    """By the former digest of each plan, which also told the method, that of what it removes."""
    plans = []
    for (_, _, method, name), cell in cells.items():
        if name == "plan" and cell["result"]["plan"]:
            plans.append(PruningPlan.from_dict(cell["result"]["plan"]))
        if name == "selection":
            layers = dict.fromkeys(cell["result"]["layers"], 1.0)
            plans.append(PruningPlan.value_only(cell["inputs"]["total"], layers))
    return {plan.digest: removal(plan) for plan in plans}


def removal(plan: PruningPlan) -> str:
    """As ``Context.plan_inputs`` has it."""
    removed = plan.to_dict()
    del removed["method"]
    return digest(removed)


def converted(key: Key, cell: Cell, removed: dict[str, str]) -> tuple[Cell, Cell]:
    """The inputs of a cell today, and what it is about."""
    store, _, method, name = key
    inputs = dict(cell["inputs"])
    inputs.pop("harp_lib", None)  # the version, which is among the circumstances
    about = dict(cell["coordinates"])
    about = {"method": about.pop("method", method), **about}
    if store == "depths":
        about = {"depth": about.pop("depth", None), **about}
        if about["depth"] is None:  # the search to the greatest depth
            del about["depth"]
    what = kind_of(store, method, name, inputs)
    if inputs.get("plan"):
        inputs["plan"] = removed[inputs["plan"]]
    if what == "likelihood of documents" and store not in ("frontier",):
        inputs.pop("documents", None)
        if "alphas" in inputs:
            inputs["plan"] = removal_of_alphas(inputs.pop("alphas"), cell, inputs["model"])
    if what in ("layer range", "plan"):
        inputs["method"] = about["method"]
    if what == "layer selection":
        inputs["strategy"] = method
    if what in ("scores", "likelihoods"):
        about["task"] = name
    if store == "similarity":
        del about["method"]
    if store == "efficiency":
        del about["method"]
        if what != "counted":
            inputs["hardware"] = cell["hardware"]
    return {"what": what, **inputs}, about


def removal_of_alphas(alphas: dict[str, float], cell: Cell, model: str) -> str | None:
    """What goes with some alphas by layer."""
    if not alphas:
        return None
    by_layer = {int(layer): alpha for layer, alpha in alphas.items()}
    return removal(PruningPlan.value_only(1 + max(by_layer), by_layer))


def kind_of(store: str, method: str, name: str, inputs: Cell) -> str:
    """What a cell computes."""
    if store == "similarity":
        return "repeated tokens" if name == "repeated-tokens" else "layers"
    if store == "norm_change":
        return "stream norms" if name == "reading" else "branches"
    if store == "efficiency":
        return name.rpartition("-")[0] or name
    if store in ("main_tables", "longbench", "frontier_scores"):
        return "scores"
    if store == "likelihoods":
        return "likelihoods"
    for prefix, what in (("search", "search"), ("range-", "layer range"), ("ranking-", "ranking")):
        if name.startswith(prefix):
            return what
    if name in ("plan", "fit", "costs", "grid"):
        return name
    if name == "selection":
        return "layer selection"
    if method in ("gain", "single-layer"):
        return {"gain": "gain", "single-layer": "single layers"}[method]
    return "scores" if "task" in inputs else "likelihood of documents"


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:3]))
