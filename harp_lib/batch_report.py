"""How the jobs of a run fared: what each said of itself, or what can be told of one that could not."""

import json
import os
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tabulate import tabulate

from harp_lib import paths

_NO_SPACE = 2**20  # bytes; less is a full disk


def show_new(folder: Path, names: Sequence[str], shown: set[str]) -> None:
    """Print a line for each job that ended since the last call, and add it to ``shown``."""
    for name in names:
        if name not in shown and (folder / f"{name}.json").is_file():
            shown.add(name)
            outcome = read_outcome(folder, name, interrupted=False)
            print(
                f"[{len(shown)}/{len(names)}] {name}: {outcome['result']}, {outcome.get('seconds', 0):.0f} s",
                flush=True,
            )


def read_outcome(folder: Path, name: str, interrupted: bool) -> dict[str, Any]:
    """How a job fared, as :func:`harp_lib.job.main` says, also if it could not say so itself."""
    try:
        return json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        pass
    if not (folder / f"{name}.begun").is_file():
        return {"result": "not run", "error": ""}
    if interrupted:
        return {"result": "interrupted", "error": ""}
    if shutil.disk_usage(folder).free < _NO_SPACE:
        return {"result": "failed", "error": f"no space left on the disk of {folder.parent}"}
    if state := _slurm_state(folder, name):
        return {"result": "failed", "error": f"Slurm ended it: {state}; data/slurm/config.yaml says what it may use"}
    return {"result": "failed", "error": "its process was killed: as a rule the machine ran out of memory"}


def _slurm_state(folder: Path, name: str) -> str:
    """In which state its job of Slurm ended that could not say so itself; empty if that is not known."""
    number = (folder / f"{name}.begun").read_text()
    told = (folder / "snakemake.log").read_text(errors="replace")
    found = re.search(rf"SLURM-job '{number}' failed, SLURM status is: '(\w+)'", told)
    return found[1] if found else ""


def show_table(outcomes: Mapping[str, Mapping[str, Any]]) -> None:
    """Print how each job fared, and how many cells it computed and read."""
    rows = [
        [
            name.removeprefix("notebook/").removeprefix("last/"),
            outcome["result"],
            f"{outcome['seconds']:.0f}" if "seconds" in outcome else "",
            _counted(outcome),
            outcome.get("output", ""),
        ]
        for name, outcome in outcomes.items()
    ]
    headers = ["job", "outcome", "seconds", "cells", "output"]
    align = ("left", "left", "right", "left", "left")
    print(f"\n{tabulate(rows, headers, disable_numparse=True, colalign=align)}")


def _counted(outcome: Mapping[str, Any]) -> str:
    counts = [f"{outcome[what]} {what}" for what in ("computed", "read", "failed") if outcome.get(what)]
    return ", ".join(counts)


def explain(folder: Path, outcomes: Mapping[str, Mapping[str, Any]], interrupted: bool) -> None:
    """Print why not all is done, and what to do."""
    for name, outcome in outcomes.items():
        if outcome["error"]:
            print(f"{name}: {outcome['error']}")
    left = [name for name, outcome in outcomes.items() if outcome["result"] != "done"]
    if left and not interrupted and not any(outcomes[name]["error"] for name in left):
        print("the batch engine stopped:")
        print("\n".join((folder / "snakemake.log").read_text(errors="replace").splitlines()[-20:]))
    if left:
        print(f"the same command continues; logs, until then: {os.path.relpath(folder, paths.ROOT)}")
    sys.stdout.flush()
