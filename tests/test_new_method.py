"""A method that somebody adds as CONTRIBUTING says, by a file and an entry of the catalogue, is
planned, scored, shown.
"""

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
  marker: h
  is_baseline: true
  table:
    pruning metric: none
    calibration: none
    weight update: none
    what goes where: the first groups of each layer of the range
"""
MODEL = "smollm2-135m"


def synthetic_stores():
    """Scores, likelihoods and perplexities of every method of the catalogue, each with a plan of
    its own.
    """
    from harp_lib.evaluation.benchmarks import BENCHMARKS, LONGBENCH
    from harp_lib.experiments.texts import document_rows
    from harp_lib.names import METHOD_TITLES
    from harp_lib.results import columns_of

    ratios = {"removed_fraction": 0.05, "head_ratio": 0.2}
    questions = range(40)
    stores = {"main_tables": {}, "longbench": {}, "likelihoods": {}, "baselines": {}}
    for place, method in enumerate(METHOD_TITLES):
        for store, tasks in (("main_tables", BENCHMARKS), ("longbench", LONGBENCH)):
            for task, benchmark in tasks.items():
                asked = {"subtask": [task] * len(questions), "question": list(questions)}
                scores = [float(question % (place + 2) == 0) for question in questions]
                rows = asked | {"score": scores, "chance": [0.1] * len(questions)}
                if benchmark.choices:
                    rows |= {
                        "margin": [score - 0.1 * place for score in scores],
                        "choice": [0] * len(questions),
                    }
                else:
                    bits = [1.0 + 0.1 * place + 0.01 * question for question in questions]
                    result = {"rows": asked | {"bits_per_byte": bits}}
                    stores["likelihoods"][MODEL, method, task] = {"inputs": {}, "result": result}
                result = ratios | {"rows": rows, "versions": {task: 1.0}}
                stores[store][MODEL, method, task] = {"inputs": {}, "result": result}
        layers = [{"layer": place, "removed_groups": [0]}]
        result = {
            "plan": {"method": method, "num_layers": 30, "layers": layers},
            "groups_per_layer": 3,
        }
        stores["baselines"][MODEL, method, "plan"] = {"inputs": {}, "result": result}
        likelihood = columns_of(document_rows([300.0 + place, 310.0, 290.0], [100, 100, 100]))
        for corpus in ("wikitext", "python-docs"):
            stores["baselines"][MODEL, method, f"{corpus}-validation"] = {
                "coordinates": {"corpus": corpus, "split": "validation"},
                "inputs": {},
                "result": {"rows": likelihood},
            }
    return stores


def observe():
    """Where the catalogue's last method is seen; printed by the process that has it in its
    catalogue.
    """
    import torch

    from harp_lib import METHODS, make_plan
    from harp_lib.config import load_profile
    from harp_lib.experiments import job, plans
    from harp_lib.models.registry import tiny_model
    from harp_lib.names import CATALOGUE
    from harp_lib.report import (
        data,
        figures_scores,
        likelihoods,
        plots,
        score_tables,
    )

    name = list(CATALOGUE)[-1]
    stores = synthetic_stores()
    data.cells = lambda profile, store: stores.get(store, {})
    profile = load_profile("mini")
    plots.use_style()

    def legend(figure):
        return [text.get_text() for box in figure.legends for text in box.get_texts()]

    plan = make_plan(name, tiny_model("tiny-llama"), torch.arange(96).view(2, 48), kv_groups=6)
    setting = plans.Setting(
        job.Job("baselines", load_profile("smoke", models=["tiny-llama"]), "tiny-llama")
    )
    tables = [
        score_tables.scores_generation,
        score_tables.scores_discriminative,
        score_tables.at_a_glance,
    ]
    tables += [likelihoods.likelihood_discriminative, likelihoods.likelihood_generation]
    figures = [
        figures_scores.teaser_left,
        figures_scores.score_differences,
    ]
    figures += [likelihoods.margin_lost, likelihoods.bits_lost]
    return {
        "name": name,
        "METHODS": METHODS,
        "removed": {layer: part.removed_groups for layer, part in plan.layers.items()},
        "ranges": [len(window) for window in setting.windows(name)],
        "tables": {table.__name__: list(table(profile)[0]["method"]) for table in tables},
        "at a glance": score_tables.at_a_glance(profile)[0]
        .set_index("method")
        .loc["First groups"]
        .tolist(),
        "csv": list(score_tables.at_a_glance(profile)[1]["method"].unique()),
        "legends": {figure.__name__: legend(figure(profile)) for figure in figures},
    }


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    """What a copy of the library shows whose catalogue has one more row."""
    folder = tmp_path_factory.mktemp("new_method")
    library = folder / "code" / "harp_lib"
    shutil.copytree(CHECKOUT / "harp_lib", library, ignore=shutil.ignore_patterns("__pycache__"))
    (library / "methods" / "first_groups.py").write_text(MODULE, encoding="utf-8")
    work = Checkout(folder / "work", {"01_one": ""})
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


def test_it_stands_in_the_tables(seen):
    for name, methods in seen["tables"].items():
        ours = methods[
            len(methods) - 1 - methods[::-1].index("dense") :
        ]  # the last block, beneath the paper's
        baselines = [method for method in ours if method in ("Mag-sp", "FLAP", "First groups")]
        assert baselines == ["Mag-sp", "FLAP", "First groups"], name
        assert ours.index("First groups") < ours.index("HARP+FLAP"), name
    assert "first-groups" in seen["csv"]
    assert "–" not in seen["at a glance"], "nothing of it is missing"


def test_it_stands_in_the_figures(seen):
    for name, labels in seen["legends"].items():
        assert "First groups" in labels, name


if __name__ == "__main__":
    print(json.dumps(observe()))
