"""Before a run from the hub: who may read what, what is fetched, and which commit it is."""

import json
import subprocess
import sys

import pytest
from helpers import CHECKOUT
from rehearse import make_hub, start

from harp_lib import config
from harp_lib.evaluation.benchmarks import BENCHMARKS, repositories_of
from harp_lib.models.registry import tiny_model, tiny_tokenizer

GATED = "owner/gated"
OPEN = "owner/open"
ASK = """
import json, os, sys
from pathlib import Path
from harp_lib import config, hub
from harp_lib.evaluation.benchmarks import BENCHMARKS, rows_digest
from harp_lib.models.repository import models_of_hub

profile = json.loads(sys.argv[1])
config.RESULTS = Path(sys.argv[2])
try:
    refused = hub.prepare(profile)
except ValueError as error:
    print(json.dumps({"error": str(error)}))
else:
    commits = {entry.name: entry.commit for entry in models_of_hub(profile["models"])}
    rows = rows_digest(BENCHMARKS["piqa"], "hub")
    offline = os.environ["HF_HUB_OFFLINE"]
    print(json.dumps({"refused": refused, "commits": commits, "rows": rows, "offline": offline}))
"""


@pytest.fixture(scope="module")
def hub(tmp_path_factory):
    """A hub of two models and PIQA, and a function that asks it as a run does."""
    folder = tmp_path_factory.mktemp("hub")
    rows = [json.loads(line) for line in (config.DATA / "mini/piqa/validation.jsonl").open()]
    [repository] = repositories_of(BENCHMARKS["piqa"])
    make_hub.add_dataset(folder, repository, None, {"train": rows, "validation": rows})
    for name in (OPEN, GATED):
        model = folder / "models" / name
        tiny_model("tiny-llama").save_pretrained(model)
        tiny_tokenizer().save_pretrained(model)
        (model / "original").mkdir()
        (model / "original" / "consolidated.00.pth").write_bytes(b"a second copy")  # as of LLaMA
        (model / "consolidated.safetensors").write_bytes(b"a second copy")  # as of Mistral
    server = start.start_hub(folder)
    address = server.stdout.readline().strip()
    home = tmp_path_factory.mktemp("home")

    def ask(faults=None, home=home, offline=False, **environment):
        (folder / "faults.json").write_text(json.dumps(faults or {}))
        tasks = {"tasks": {"piqa": {}}, "subtasks": None}
        profile = {
            "name": "tried",
            "models": [OPEN, GATED],
            "alpha_search": {"extra_models": []},
            "datasets": "hub",
            "corpora": ["python-docs", "scipy-docs"],
            "frontier": {"unseen": "scipy-docs", **tasks},
            **dict.fromkeys(("evaluation", "likelihoods", "longbench"), tasks),
        }
        environment = {
            **start.without_hub_settings(),
            "HF_ENDPOINT": address,
            "HF_HOME": str(home),
            "HARP_ROOT": str(CHECKOUT),
            "PYTHONPATH": str(CHECKOUT),
            "HF_HUB_OFFLINE": str(int(offline)),
            **environment,
        }
        done = subprocess.run(
            [sys.executable, "-P", "-c", ASK, json.dumps(profile), str(home / "results")],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-2000:]
        return json.loads(done.stdout.splitlines()[-1]), done.stdout

    yield folder, ask
    server.kill()
    server.wait()


def test_what_is_missing_is_known_before_anything_is_computed(hub, tmp_path):
    folder, ask = hub
    answer, _ = ask(faults={"gated": [GATED]}, home=tmp_path)
    assert list(answer["refused"]) == [GATED]
    assert "needs a token" in answer["refused"][GATED]
    assert "hf auth login" in answer["refused"][GATED]
    assert answer["offline"] == "1"
    answer, _ = ask(faults={"gated": [OPEN, GATED]}, home=tmp_path / "other", HF_TOKEN="made-up")
    assert answer["error"].count("accept it on") == 2, "no model is left"
    assert f"/{OPEN}" in answer["error"]
    assert f"/{GATED}" in answer["error"]
    [rows] = repositories_of(BENCHMARKS["piqa"])
    answer, _ = ask(faults={"missing": [rows]}, home=tmp_path / "third")
    assert rows in answer["error"]
    requests = (folder / "requests.log").read_text()
    assert "consolidated" not in requests, "a second copy of the weights was fetched"


def test_cells_know_commits_and_a_second_run_asks_no_files(hub, tmp_path):
    folder, ask = hub
    answer, _ = ask(faults={"once": {"open/resolve": 429, "piqa/resolve": 500}})
    assert answer["refused"] == {}
    assert all(len(commit) == 40 for commit in answer["commits"].values())
    [rows] = repositories_of(BENCHMARKS["piqa"])
    assert answer["rows"].startswith(f"hub: {rows}@")
    assert len(answer["rows"].rpartition("@")[2]) == 40
    (folder / "requests.log").write_text("")
    again, _ = ask()
    assert again == answer
    requests = (folder / "requests.log").read_text()
    assert requests.count("/resolve/") == 3, "one for each repository"
    without_network, shown = ask(faults={"down": True})
    assert "the hub cannot be reached" in shown
    assert without_network == answer
    nowhere, _ = ask(home=tmp_path, offline=True)
    assert "run_all.sh fetch" in nowhere["error"]


@pytest.mark.parametrize(("status", "model"), [(401, OPEN), (403, GATED)])
def test_a_refused_token_is_not_taken_for_a_hub_that_is_down(hub, tmp_path, status, model):
    _, ask = hub
    answer, _ = ask(faults={"once": {f"{model}/resolve": status}}, home=tmp_path, HF_TOKEN="old")
    assert list(answer["refused"]) == [model]
    assert "refuses the token" in answer["refused"][model]
    assert str(status) in answer["refused"][model]


def test_a_model_whose_copy_was_interrupted_is_left_out(hub, tmp_path):
    _, ask = hub
    assert ask(home=tmp_path)[0]["refused"] == {}
    [weights] = tmp_path.glob("hub/models--owner--open/snapshots/*/model.safetensors")
    half = weights.read_bytes()[: weights.stat().st_size // 2]
    weights.unlink()
    weights.write_bytes(half)
    answer, _ = ask(home=tmp_path, offline=True)
    assert list(answer["refused"]) == [OPEN]
    assert "deserializing header" in answer["refused"][OPEN]
    assert f"delete {tmp_path}/hub/models--owner--open, and" in answer["refused"][OPEN]


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        ("half of the weights", "deserializing header"),
        ("no tokenizer", "has no tokenizer"),
        ("another config", "does not fit its config.json"),
    ],
)
def test_a_folder_that_cannot_be_loaded_is_left_out(damage, reason, tmp_path):
    from harp_lib import hub

    model = tiny_model("tiny-llama")
    model.save_pretrained(tmp_path)
    if damage != "no tokenizer":
        tiny_tokenizer().save_pretrained(tmp_path)
    if damage == "half of the weights":
        weights = tmp_path / "model.safetensors"
        weights.write_bytes(weights.read_bytes()[: weights.stat().st_size // 2])
    if damage == "another config":
        model.config.intermediate_size *= 2
        model.config.save_pretrained(tmp_path)
    folder = str(tmp_path)
    profile = config.read_profile("smoke", models=[folder, "tiny-llama"])
    refused = hub.prepare(profile)
    assert list(refused) == [folder]
    assert reason in refused[folder]
    with pytest.raises(ValueError, match=f"(?s)the run cannot read.*{reason}"):
        hub.prepare(config.read_profile("smoke", models=[folder]))
