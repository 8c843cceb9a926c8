"""A method that somebody adds as CONTRIBUTING says, by a file and an entry of the catalogue, is
planned, scored, shown.
"""

import contextlib
import copy
import json
import os
import shutil
import subprocess
import sys

import pytest
from helpers import CHECKOUT, Checkout

MODULE = '''
"""The first groups of each layer go."""

import torch

from harp_lib.methods.calibration import lowest_per_layer
from harp_lib.pruning.architecture import decoder_layers
from harp_lib.pruning.layers import num_groups


def planner(model, calibration, layers):
    found = decoder_layers(model)
    scores = {layer: torch.arange(num_groups(found[layer].self_attn)) for layer in layers}
    return lowest_per_layer(scores, len(found), "first-groups")
'''
ENTRY = """
first-groups:
  title: First groups
  module: first_groups
  colour: "#123456"
  is_baseline: true
  table:
    pruning metric: none
    calibration: none
    weight update: none
    what goes where: the first groups of each layer of the range
"""
LIKE = "flap"


def with_another(cells, name):
    """Stored cells, and those of FLAP once more as those of another method with another plan."""
    more = dict(cells)
    for (model, method, task), cell in cells.items():
        if method == LIKE:
            copied = copy.deepcopy(cell)
            plan = copied["result"].get("plan")
            if plan:
                plan["layers"] = plan["layers"][1:]
            more[model, name, task] = copied
    return more


def observe():
    """Where the catalogue's last method is seen; printed by the process that has it in its
    catalogue.
    """
    import nbformat
    import torch
    from matplotlib import pyplot

    from harp_lib import METHODS, config, make_plan, notebooks
    from harp_lib.config import load_profile
    from harp_lib.experiments import job, plans
    from harp_lib.models.registry import tiny_model
    from harp_lib.names import CATALOGUE
    from harp_lib.report import frames
    from harp_lib.results import read_results

    pyplot.switch_backend("agg")
    name = list(CATALOGUE)[-1]
    frames.read_results = lambda *of: with_another(read_results(*of), name)
    plan = make_plan(name, tiny_model("tiny-llama"), torch.arange(96).view(2, 48), kv_groups=6)
    setting = plans.Setting(
        job.Job("baselines", load_profile("smoke", models=["tiny-llama"]), "tiny-llama")
    )
    for name_of_notebook in ("04_baselines", "05_main_tables"):
        notebook = nbformat.read(CHECKOUT / "notebooks" / f"{name_of_notebook}.ipynb", 4)
        draw(notebooks.without_models(notebook))
    tables = {}
    for file in (config.FIGURES / "mini" / "tables").glob("*.csv"):
        tables[file.stem] = file.read_text(encoding="utf-8")
    return {
        "name": name,
        "METHODS": METHODS,
        "removed": {layer: part.removed_groups for layer, part in plan.layers.items()},
        "ranges": [len(window) for window in setting.windows(name)],
        "tables": tables,
    }


def draw(notebook):
    """Run the cells of a notebook in this process."""
    names = {}
    for cell in notebook.cells:
        if cell.cell_type == "code":
            with contextlib.redirect_stdout(sys.stderr):
                exec(cell.source, names)


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    """What a copy of the library shows whose catalogue has one more row."""
    folder = tmp_path_factory.mktemp("new_method")
    library = folder / "code" / "harp_lib"
    shutil.copytree(CHECKOUT / "harp_lib", library, ignore=shutil.ignore_patterns("__pycache__"))
    (library / "methods" / "first_groups.py").write_text(MODULE, encoding="utf-8")
    work = Checkout(folder / "work", {"01_one": ""})
    (work.root / "data" / "reference").symlink_to(CHECKOUT / "data" / "reference")
    catalogue = work.root / "data" / "methods.yaml"
    entries = catalogue.read_text(encoding="utf-8") + ENTRY
    catalogue.unlink()  # it may be a link to the repository's
    catalogue.write_text(entries, encoding="utf-8")
    environment = {
        "HARP_ROOT": str(work.root),
        "PYTHONPATH": str(library.parent),
        "OMP_NUM_THREADS": "1",
    }
    done = subprocess.run(
        [sys.executable, __file__],
        env=os.environ | environment,
        cwd=folder,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_it_is_planned(seen):
    assert seen["name"] == "first-groups"
    assert "first-groups" in seen["METHODS"]
    assert seen["removed"] == {str(layer): [0] for layer in range(6)}
    assert seen["ranges"], "it is tuned among layer ranges, as every baseline is"


def test_it_stands_in_the_tables_of_the_notebooks(seen):
    assert {"baselines_against_harp", "averages", "leads_by_task"} <= set(seen["tables"])
    for table, called in {
        "baselines_against_harp": "First groups",
        "averages": "first-groups",
    }.items():
        assert called in seen["tables"][table], table


if __name__ == "__main__":
    print(json.dumps(observe()))
