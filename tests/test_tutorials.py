"""The tutorials of CONTRIBUTING are carried out as they stand, in a copy of the repository."""

import json
import os
import re
import shutil
import subprocess
import sys

import pytest
from helpers import CHECKOUT

BLOCK = re.compile(r"<!-- (file|append): (\S+) -->\n```\w+\n(.*?)```", re.DOTALL)
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
    left_out = shutil.ignore_patterns("__pycache__", "executed", "results", "reference", "models")
    for name in ("harp_lib", "notebooks", "data"):
        shutil.copytree(CHECKOUT / name, root / name, ignore=left_out)
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
    follow("Tutorial: a pruning method", repository)
    code = """
import torch
from harp_lib import METHODS, load_model, make_plan
from harp_lib.names import BASELINES
model, _ = load_model("tiny-llama")
plan = make_plan("first-groups", model, None, kv_groups=6)
print("first-groups" in METHODS, "first-groups" in BASELINES)
print(sorted((layer, part.removed_groups) for layer, part in plan.layers.items()))
"""
    said = run(repository, "-c", code).splitlines()
    assert said == ["True True", str([(layer, (0,)) for layer in range(6)])]


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
