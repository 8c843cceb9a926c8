"""What the batch engine asks of a cluster, and, where there is a Slurm, the smoke profile through it."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from harp_lib import batch_report as report
from harp_lib import paths, runner

HERE = Path(__file__).parent
CONFIG = yaml.safe_load((HERE.parent / "data/slurm/config.yaml").read_text(encoding="utf-8"))
RULES = [
    rule
    for rule in re.findall(r"^rule (\w+):", (HERE.parent / "Snakefile").read_text(encoding="utf-8"), re.MULTILINE)
    if rule != "all"
]


@pytest.mark.parametrize("rule", RULES)
def test_every_rule_has_its_resources(rule):
    asked = CONFIG["default-resources"] | CONFIG["set-resources"].get(rule, {})
    assert {"slurm_partition", "gpu", "mem_mb", "runtime"} <= set(asked)
    assert CONFIG["set-threads"][rule] >= 1


def test_no_rule_is_named_that_is_not_there():
    assert {*CONFIG["set-resources"], *CONFIG["set-threads"]} <= set(RULES)


@pytest.fixture(scope="module")
def planned(tmp_path_factory):
    """planned[rule, wildcard]: what the engine would ask Slurm for, for each job of the paper profile."""
    results = tmp_path_factory.mktemp("results")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(paths, "RESULTS", results)
        run = runner.Run("paper", executor="slurm")
        (results / "run.json").write_text(json.dumps(run._configuration(run.jobs())), encoding="utf-8")
        command = [*run._command(results), "--dry-run", "--cores", "64"]
    shown = subprocess.run(command, capture_output=True, text=True)
    assert shown.returncode == 0, shown.stderr
    found = {}
    for rule, text in re.findall(r"^rule (\w+):\n(.*?resources: .*?)$", shown.stdout, re.MULTILINE | re.DOTALL):
        wildcard = re.search(r"wildcards: \w+=(\S+)", text)
        found[rule, wildcard and wildcard[1]] = dict(re.findall(r"(\w+)(?:=|: )(\d+)\b", text))
    return {job: asked for job, asked in found.items() if job[0] != "all"}


def test_the_engine_takes_the_file(planned):
    assert {rule for rule, _ in planned} == set(RULES)
    for asked in planned.values():
        assert int(asked["runtime"]) >= 60
        assert int(asked["mem_mb"]) >= 8000


def test_only_what_loads_70_billion_weights_has_two_gpus(planned):
    two = {job for job, asked in planned.items() if asked["gpu"] == "2"}
    assert two == {("search", "meta-llama--Llama-3.1-70B"), ("notebook", "03_alpha_search")}
    none = {rule for (rule, _), asked in planned.items() if asked["gpu"] == "0"}
    assert none == {"figures", "last"}, "they draw what is stored"


def test_cores_are_those_of_the_file(planned):
    for (rule, _), asked in planned.items():
        assert int(asked["threads"]) == CONFIG["set-threads"][rule]


def test_the_final_table_says_how_slurm_ended_a_job(tmp_path):
    (tmp_path / "search").mkdir()
    for model, number in (("a", "12"), ("b", "13")):
        (tmp_path / f"search/{model}.begun").write_text(number)
    told = "SLURM-job '12' failed, SLURM status is: 'TIMEOUT'. Detailed failure reason unavailable"
    (tmp_path / "snakemake.log").write_text(told)
    found = [report.read_outcome(tmp_path, f"search/{model}", interrupted=False) for model in "ab"]
    assert [outcome["result"] for outcome in found] == ["failed", "failed"]
    assert "Slurm ended it: TIMEOUT" in found[0]["error"]
    assert "Slurm" not in found[1]["error"]


def test_smoke_runs_through_slurm():
    """See tests/slurm_smoke.log for how that looks. Takes twenty minutes on two cores."""
    sys.path.insert(0, str(HERE))
    from slurm_node import answers, why_not

    if not answers():
        if "HARP_SLURM" not in os.environ:
            pytest.skip("no Slurm answers here; HARP_SLURM=1 sets one up, as root with slurm-wlm and munge")
        if reason := why_not():
            pytest.skip(f"no Slurm here: {reason}")
    done = subprocess.run([sys.executable, HERE / "slurm_smoke.py"], stdout=subprocess.PIPE, text=True)
    assert done.returncode == 0, done.stdout[-4000:]
