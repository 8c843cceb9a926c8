"""The rehearsal of the profile ``paper``: what it changes, what it is served, and that it ends."""

import fnmatch
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request

import pytest
import yaml
from checkouts import Checkout
from helpers import CHECKOUT
from rehearse import make_hub, slurm, start
from rehearse.shorten import shortened, tried

from harp_lib import cli, config

CUT = (  # what a rehearsal may change beside the dtypes on a CPU; a star is any name
    "alpha_search.documents",
    "alpha_search.held_out",
    "theory.documents",
    "theory.tokens",
    "baselines.calibration.*",
    "baselines.groups_per_layer.*",
    "baselines.flap_layers.*",
    "baselines.cost_tokens",
    "evaluation.subtasks",
    "evaluation.tasks.*.new_tokens",
    "likelihoods.subtasks",
    "likelihoods.context",
    "likelihoods.tasks.*.new_tokens",
    "ablations.calibration",
    "ablations.gain",
    "ablations.single_layer",
    "longbench.context",
    "longbench.tasks.*.new_tokens",
    "efficiency.shapes.*.layers",
    "efficiency.prefill",
    "efficiency.decode.contexts",
    "efficiency.decode.steps",
    "efficiency.decode.repetitions",
    "efficiency.split",
    "frontier.calibration",
    "frontier.greedy",
    "frontier.held_out",
    "frontier.passkey.lengths",
    "frontier.passkey.depths",
    "frontier.passkey.keys",
)
CUT_IN_A_TRIAL = (*CUT, "models", "alpha_search.extra_models", "*.tasks.*.rows")


def paper():
    return yaml.safe_load((config.PROFILES / "paper.yaml").read_text(encoding="utf-8"))


def changed(before, after, path=""):
    """The paths of the values that differ; a mapping with other keys is one value."""
    if isinstance(before, dict) and isinstance(after, dict) and (before.keys() == after.keys()):
        paths = []
        for key, value in before.items():
            paths += changed(value, after[key], f"{path}.{key}".removeprefix("."))
        return paths
    return [] if before == after else [path]


@pytest.mark.parametrize(("shorten", "allowed"), [(shortened, CUT), (tried, CUT_IN_A_TRIAL)])
def test_only_counts_and_lengths_differ_from_the_paper(shorten, allowed):
    short = shorten(paper())
    if shorten is shortened:
        assert short.pop("dtype_on_cpu") == paper()["dtype"]
        assert short.pop("dtype_of") == {"LLaMA3.1-8B (random weights)": "float32"}
    paths = changed(paper(), short)
    assert paths
    for path in paths:
        assert any(fnmatch.fnmatchcase(path, pattern) for pattern in allowed), path


def test_what_is_null_or_empty_stays_so():
    """Except for most written answers, and for subtasks: a null is what crashes."""
    short = shortened(paper())
    assert short["alpha_search"]["tokens"] is None
    assert short["ablations"]["gain"][1] is None
    assert short["efficiency"]["models"] == []
    assert short["efficiency"]["llama_cpp"] == {}
    tasks = short["evaluation"]["tasks"]
    assert {task["rows"] for task in tasks.values()} == {None}
    assert tasks["nq_open"]["new_tokens"] is None
    assert tasks["gsm8k"]["new_tokens"] is not None


def test_a_trial_is_of_one_model_that_needs_no_licence():
    assert tried(paper())["models"] == ["Qwen/Qwen2-7B"]
    others = paper() | {"models": ["owner/one", "owner/two"]}
    assert tried(others)["models"] == ["owner/one"]


def test_a_trial_is_a_run_in_a_folder_of_its_own(tmp_path, monkeypatch):
    """With the user's own hub, so that what it downloads stays for the whole run."""
    started = []
    monkeypatch.setattr(config, "ROOT", tmp_path)
    monkeypatch.setattr(start, "_become_run", lambda *run: started.append(run))
    monkeypatch.setenv("HF_HOME", "the user's")
    arguments = ["--profile", "paper", "--only", "03"]
    start.try_out(cli.parse([*arguments, "--trial"]), arguments)
    [(passed_on, environment)] = started
    assert passed_on == arguments
    assert environment["HARP_ROOT"] == str(tmp_path / "trial")
    assert environment["HF_HOME"] == "the user's"
    profile = yaml.safe_load((tmp_path / "trial" / "data" / "profiles" / "paper.yaml").read_text())
    assert profile == tried(paper())


@pytest.mark.parametrize("profile", ["mini", "small"])
def test_a_profile_without_hub_models_is_not_rehearsed(profile, capsys, tmp_path, monkeypatch):
    options = cli.parse(["--profile", profile, "--rehearse"])
    monkeypatch.setattr(config, "ROOT", tmp_path)
    assert start.rehearse(options, []) == 2
    refusal = "run_all.sh: error: smollm2-135m has no double: a rehearsal is of a profile with"
    assert refusal in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_run_is_rehearsed_or_tried_but_not_both(capsys):
    assert cli.main(["--check", "--rehearse", "--trial"]) == 2
    assert "not allowed with argument" in capsys.readouterr().err


def test_a_rehearsal_leaves_the_users_hub_alone(monkeypatch):
    for name in ("HF_HOME", "HF_HUB_CACHE", "HF_DATASETS_CACHE", "TRANSFORMERS_CACHE", "HF_TOKEN"):
        monkeypatch.setenv(name, "the user's")
    environment = start.without_hub_settings()
    of_hub = {name for name in environment if name.startswith(("HF_", "TRANSFORMERS_CACHE"))}
    assert of_hub <= {"HF_TOKEN", "HF_HUB_OFFLINE"}
    assert environment["NO_PROXY"] == "127.0.0.1"


# ---- the double of the hub


@pytest.fixture
def hub(tmp_path):
    """The address of a hub of one data set."""
    make_hub.add_dataset(tmp_path, "owner/rows", "first", {"test": [{"n": 1}, {"n": 2}]})
    make_hub.add_dataset(tmp_path, "owner/rows", "second", {"test": [{"n": 3}]})
    server = start.start_hub(tmp_path)
    yield server.stdout.readline().strip()
    server.kill()
    server.wait()


def test_the_library_reads_data_sets_from_the_double(hub, tmp_path):
    code = """
from datasets import load_dataset
for name in ("first", "second"):
    print(load_dataset("owner/rows", name, split="test")["n"][:])
"""
    environment = start.without_hub_settings() | {
        "HF_ENDPOINT": hub,
        "HF_HOME": str(tmp_path / "home"),
    }
    environment.pop("HF_HUB_OFFLINE", None)
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.split("\n") == ["[1, 2]", "[3]", ""]


def test_the_double_ends_with_who_started_it(tmp_path):
    code = f"""
import sys
sys.path.insert(0, {str(CHECKOUT / "tests")!r})
from pathlib import Path
from rehearse import start
server = start.start_hub(Path({str(tmp_path)!r}))
print(server.stdout.readline().strip())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    address = done.stdout.strip()
    for _ in range(100):
        try:
            urllib.request.urlopen(address, timeout=20).close()
        except urllib.error.HTTPError:
            continue
        except urllib.error.URLError:
            return
    raise AssertionError("it still answers")


# ---- the double of Slurm


def test_the_double_of_slurm_runs_jobs_and_may_end_one(tmp_path):
    environment = os.environ | slurm.install(tmp_path) | {"FAKE_SLURM_FAIL": "second=TIMEOUT"}

    def call(*command):
        done = subprocess.run(
            command, env=environment, cwd=tmp_path, capture_output=True, text=True
        )
        return done.stdout.strip() or done.stderr.strip()

    def submit(comment, script):
        options = ("--job-name", "ours", "--output", "job-%j.log", "--comment", comment)
        return call("sbatch", *options, f"--wrap={script}")

    first = submit("the first", "echo $SLURM_JOB_ID")
    second = submit("the second", "true")
    expected = f"{first}|COMPLETED\n{second}|TIMEOUT"
    for _ in range(200):
        if call("squeue", "--name", "ours") == expected:
            break
        time.sleep(0.1)
    assert call("squeue", "--name", "ours") == expected
    assert (tmp_path / f"job-{first}.log").read_text() == f"{first}\n"
    assert call("sacct", "-X") == "Slurm accounting storage is disabled"


# ---- the rehearsal itself


ONE_MODEL = ("--models", "meta-llama/Llama-3.1-8B")  # of which notebook 06 has ablations


@pytest.mark.slow
def test_the_profile_paper_comes_to_its_end_without_a_network(tmp_path, monkeypatch):
    work = Checkout(tmp_path / "work")
    monkeypatch.delenv("HF_HUB_OFFLINE")  # which is set for all other tests
    code, shown = work.run("--profile", "paper", "--rehearse", *ONE_MODEL, command="fetch")
    assert code == 0, shown[-3000:]
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert_all_notebooks_are_rehearsed(work, *ONE_MODEL)


@pytest.mark.release  # four times as long
def test_the_profile_paper_comes_to_its_end_with_all_models(tmp_path, monkeypatch):
    monkeypatch.delenv("HF_HUB_OFFLINE")
    assert_all_notebooks_are_rehearsed(Checkout(tmp_path / "work"))


def assert_all_notebooks_are_rehearsed(work, *options):
    code, shown = work.run("--profile", "paper", "--rehearse", "--jobs", "2", *options)
    assert code == 0, shown[-3000:]
    root = work.root / "rehearsal"
    executed = sorted((root / "notebooks" / "executed" / "paper").glob("*.ipynb"))
    assert [file.name[:2] for file in executed] == [f"0{number}" for number in range(10)]
    assert len(list((root / "figures" / "paper").glob("*.png"))) > 30
    assert not (work.root / "figures").exists()
    requests = (root / "hub" / "requests.log").read_text()
    for name in make_hub.SECOND_COPIES.values():
        assert name not in requests, "a second copy of the weights was fetched"
