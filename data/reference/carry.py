"""Carry results of the store as it was until 2026-11-28 over into today's, no value changed.

    python data/reference/carry.py OLD NEW [--tokens DATASETS MODEL …]

OLD is a folder ``data/reference/<profile>`` of an earlier commit, or one in which a long run kept
its cells; NEW is the folder that is written. Cells were named by hand then, in the folder of the
experiment that computed them first: ``<store>/<model>.jsonl`` with ``method`` and ``name``, and
``<store>/run-<unit>.json`` with the names of the cells that a unit showed. Their inputs did not say
what is computed, so the script adds ``what``, and a plan is told by what it removes. It stops if
two cells end up with equal inputs and different results; of equal cells the earliest is kept.

With ``--tokens``, cells of these models get the inputs that were added on that day: the tokenizer,
the token that a text begins with, how a model writes, and the name of refitted weights, which
depends on them. It is right for models of which these had been the same before.
"""

import argparse
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

from harp_lib import config
from harp_lib.experiments.context import Context
from harp_lib.names import REFIT
from harp_lib.pruning.plan import PruningPlan
from harp_lib.results import Store, digest, read_lines, write_text

Cell = dict[str, Any]
Key = tuple[str, str, str, str]  # store, model, method and name
FORMER = ("model", "method", "name", "coordinates", "inputs")  # fields with another place today
LIKELIHOOD = "likelihood of documents"
# What is computed, by the first of these that knows it.
OF_NAME = {
    "repeated-tokens": "repeated tokens",
    "reading": "stream norms",
    "selection": "layer selection",
    "plan": "plan",
    "fit": "fit",
    "costs": "costs",
    "grid": "grid",
    "counted": "counted",
}
OF_PREFIX = {"search": "search", "range-": "layer range", "ranking-": "ranking"}
OF_METHOD = {"gain": "gain", "single-layer": "single layers"}
OF_STORE = {
    "similarity": "layers",
    "norm_change": "branches",
    "main_tables": "scores",
    "longbench": "scores",
    "frontier_scores": "scores",
    "likelihoods": "likelihoods",
}
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


def main(old: Path, new: Path, datasets: str = "", *models: str) -> None:
    added = {model: tokens_of(new.name, datasets, model) for model in models}
    cells = read_old(old)
    removed = removals(cells)
    computed: dict[str, Cell] = {}  # by the digest of its inputs, the one that was first
    listed = []
    for unit, key in listed_keys(old, cells):
        cell = cells[key]
        inputs = inputs_of(key, cell, removed, added.get(key[1], {}))
        other = computed.setdefault(digest(inputs), cell)
        if json.dumps(other["result"]) != json.dumps(cell["result"]):
            raise SystemExit(f"{'/'.join(key)} has the inputs of another cell, and differs")
        if cell["time"] < other["time"]:
            computed[digest(inputs)] = cell
        listed.append((unit, key, inputs))
    lines: dict[tuple[str, str], list[str]] = defaultdict(list)
    for unit, key, inputs in listed:
        line = {"about": about_of(key, cells[key]), "inputs": inputs}
        cell = computed[digest(inputs)]
        line |= {name: value for name, value in cell.items() if name not in FORMER}
        lines[unit, key[1]].append(f"{json.dumps(line)}\n")
    for (unit, model), of_model in lines.items():
        write_text(new / unit / f"{config.slug(model)}.jsonl", "".join(dict.fromkeys(of_model)))
    num_lines = sum(len(of_model) for of_model in lines.values())
    carried = {key for _, key, _ in listed}
    print(f"{len(carried)} cells carried over, in {num_lines} lines of {len(lines)} lists")
    print(f"{len(computed)} of them have different inputs")
    print(f"left out, in no list: {len(cells) - len(carried)}")


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
    for (*_, name), cell in cells.items():
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


def removal_of_alphas(alphas: dict[str, float]) -> str | None:
    """What goes with some alphas by layer, of which the highest is the model's top layer."""
    if not alphas:
        return None
    by_layer = {int(layer): alpha for layer, alpha in alphas.items()}
    return removal(PruningPlan.value_only(1 + max(by_layer), by_layer))


def inputs_of(key: Key, cell: Cell, removed: dict[str, str], added: Cell) -> Cell:
    """The inputs of a cell today."""
    store, _, method, name = key
    what = kind_of(key, cell)
    inputs = {"what": what, **cell["inputs"], **added}
    inputs.pop("harp_lib", None)  # the version, which is among the circumstances
    if "weights" not in cell["inputs"]:
        inputs.pop("weights", None)
    if inputs.get("plan"):
        inputs["plan"] = removed[inputs["plan"]]
    if what == LIKELIHOOD and store != "frontier":
        inputs.pop("documents", None)
        if "alphas" in inputs:
            inputs["plan"] = removal_of_alphas(inputs.pop("alphas"))
    if what in ("layer range", "plan"):
        inputs["method"] = cell["coordinates"].get("method", method)
    if what == "layer selection":
        inputs["strategy"] = method
    if store == "efficiency" and name != "counted":
        inputs["hardware"] = cell["hardware"]
    return inputs


def about_of(key: Key, cell: Cell) -> Cell:
    """What a cell is about."""
    store, model, method, name = key
    about = {"model": model, "method": method, **cell["coordinates"]}
    if store in ("similarity", "efficiency"):
        del about["method"]
    if kind_of(key, cell) in ("scores", "likelihoods"):
        about["task"] = name
    return about


def kind_of(key: Key, cell: Cell) -> str:
    """What a cell computes."""
    store, _, method, name = key
    if name in OF_NAME:
        return OF_NAME[name]
    for prefix, what in OF_PREFIX.items():
        if name.startswith(prefix):
            return what
    if store == "efficiency":
        return name.rpartition("-")[0]
    if method in OF_METHOD:
        return OF_METHOD[method]
    return OF_STORE.get(store) or ("scores" if "task" in cell["inputs"] else LIKELIHOOD)


def tokens_of(profile: str, datasets: str, model: str) -> Cell:
    """What cells of a model record of its tokens since 2026-11-28, and of its refitted weights."""
    settings = config.profile_for(model, config.load_profile(profile, datasets=datasets))
    context = Context(settings, model, Store())
    dense = PruningPlan(context.num_layers, {}, REFIT)
    fields = {name: context.inputs[name] for name in ("tokenizer", "first_token", "generation")}
    return fields | {"weights": context.plan_inputs(dense)["weights"]}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("--tokens", nargs="+", default=(), metavar=("DATASETS", "MODEL"))
    options = parser.parse_args()
    main(options.old, options.new, *options.tokens)
