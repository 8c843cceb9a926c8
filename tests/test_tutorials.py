"""The tutorials of CONTRIBUTING are carried out as they stand, in a copy of the repository.

The copy runs this file to show what it makes of the tutorial's method.
"""

import contextlib
import copy
import json
import os
import re
import shutil
import subprocess
import sys

import pytest
from helpers import CHECKOUT

pytestmark = pytest.mark.slow

BLOCK = re.compile(r"<!-- (file|append): (\S+) -->\n```\w+\n(.*?)```", re.DOTALL)
ADDED = "first-groups"  # the tutorial's method
PARTS = re.split(r"^## ", (CHECKOUT / "CONTRIBUTING.md").read_text(encoding="utf-8"), flags=re.M)


def blocks_of(heading):
    """What a tutorial writes: whether it is a file or the end of one, its path, the text."""
    (tutorial,) = (part for part in PARTS if part.startswith(heading))
    blocks = BLOCK.findall(tutorial)
    assert blocks, f"no file in the tutorial {heading!r}"
    return blocks


@pytest.fixture
def repository(tmp_path):
    """A copy of the repository without its results."""
    root = tmp_path / "repository"
    for name, left_out in {
        "harp_lib": ["__pycache__"],
        "notebooks": ["executed"],
        "data": ["__pycache__", "results", "reference", "models"],
    }.items():
        ignore = shutil.ignore_patterns(*left_out)
        shutil.copytree(CHECKOUT / name, root / name, ignore=ignore)
    (root / "tests").mkdir()
    shutil.copy(CHECKOUT / "Snakefile", root)
    return root


def follow(tutorial, root):
    """Write the files of a tutorial."""
    for kind, path, text in blocks_of(tutorial):
        file = root / path
        if kind == "append":
            text = file.read_text(encoding="utf-8").rstrip("\n") + "\n" + text
        else:
            assert not file.exists(), f"{path} is a new file"
        file.write_text(text, encoding="utf-8")


def run(root, *command):
    """Run Python in the copy; what it printed."""
    environment = os.environ | {"PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"}
    environment.pop("HARP_ROOT", None)
    done = subprocess.run(
        [sys.executable, *command], cwd=root, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


def test_a_method_takes_a_file_and_an_entry(repository):
    """It is planned, tuned among layer ranges, and stands in the tables of 04 and 05."""
    follow("Tutorial: a pruning method", repository)
    (repository / "data" / "reference").symlink_to(CHECKOUT / "data" / "reference")
    shown = json.loads(run(repository, __file__).splitlines()[-1])
    assert shown["removed"] == {str(layer): [0] for layer in range(6)}
    assert shown["ranges"]
    tables = repository / "figures" / "mini" / "tables"
    for table, name in (("baselines_against_harp", "First groups"), ("averages", ADDED)):
        assert name in (tables / f"{table}.csv").read_text(encoding="utf-8"), table


def show_added_method():
    """Plan with the tutorial's method, and draw 04 and 05 as if its cells were stored.

    These are the cells of FLAP once more, with another plan.
    """
    import nbformat
    import torch
    from matplotlib import pyplot

    from harp_lib import config, load_model, make_plan, notebooks
    from harp_lib.config import load_profile
    from harp_lib.experiments.context import Context
    from harp_lib.experiments.plans import Planning
    from harp_lib.report import frames
    from harp_lib.results import Store, read_unit

    def read_with_added(*names):
        cells = read_unit(*names)
        added = [copy.deepcopy(cell) for cell in cells if cell["about"].get("method") == "flap"]
        for cell in added:
            cell["about"]["method"] = ADDED
            plan = cell["result"].get("plan")
            if plan:
                plan["layers"] = plan["layers"][1:]
        return cells + added

    frames.read_unit = read_with_added
    pyplot.switch_backend("agg")
    for name in ("04_baselines", "05_main_tables"):
        notebook = notebooks.without_models(nbformat.read(config.NOTEBOOKS / f"{name}.ipynb", 4))
        notebook = notebooks.without_left_out(notebook, config.read_profile("mini"))
        variables = {}
        for cell in notebook.cells:
            if cell.cell_type == "code":
                with contextlib.redirect_stdout(sys.stderr):
                    exec(cell.source, variables)

    model, _ = load_model("tiny-llama")
    plan = make_plan(ADDED, model, torch.arange(96).view(2, 48), kv_groups=6)
    profile = load_profile("smoke", models=["tiny-llama"])
    ranges = Planning(Context(profile, "tiny-llama", Store())).layer_ranges(ADDED)
    return {
        "removed": {layer: part.removed_groups for layer, part in plan.layers.items()},
        "ranges": [len(layers) for layers in ranges],
    }


def test_a_notebook_takes_an_experiment_a_figure_and_a_test(repository):
    follow("Tutorial: a notebook", repository)
    run(repository, "make_notebook.py")
    run(repository, "-m", "harp_lib.cli", "--profile", "smoke", "--only", "10")
    assert (repository / "figures" / "smoke" / "first_token.png").is_file()
    executed = repository / "notebooks" / "executed" / "smoke" / "10_first_token.ipynb"
    outputs = json.dumps(json.loads(executed.read_text(encoding="utf-8"))["cells"])
    assert "the first token is longer" in outputs
    said = run(repository, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests")
    assert "1 passed" in said


if __name__ == "__main__":
    print(json.dumps(show_added_method()))
