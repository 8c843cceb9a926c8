"""One job of a run: what it says about itself, whatever happens to it."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from harp_lib import job, paths
from harp_lib.graph import build
from harp_lib.profiles import load_profile
from harp_lib.results import BEGAN, FORCED, ResultStore


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The folder of a run, in a checkout without results."""
    for name in ("RESULTS", "REFERENCE", "FIGURES", "NOTEBOOKS"):
        monkeypatch.setattr(paths, name, tmp_path / name.lower())
    monkeypatch.setattr(paths, "ROOT", tmp_path)
    for name in (BEGAN, FORCED):
        monkeypatch.setenv(name, "")  # a job sets them; afterwards they are gone again
    return tmp_path / "run"


def prepare(folder, jobs: dict[str, dict], before: dict[str, str] | None = None, runner=None, live=False) -> None:
    """Write run.json, and how the jobs fared that came before."""
    for name in [*jobs, *(before or {})]:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
    run = {"profile": load_profile("smoke"), "seed": 0, "live": live, "runner": runner, "jobs": jobs}
    run |= {"began": "2000-01-01T00:00:00+00:00", "forced": [], "asked_threads": None}
    (folder / "run.json").write_text(json.dumps(run), encoding="utf-8")
    for name, result in (before or {}).items():
        (folder / f"{name}.json").write_text(json.dumps({"result": result}), encoding="utf-8")


def outcome(folder, name: str) -> dict:
    return json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("result", ["failed", "not run", "interrupted"])
def test_what_computes_needs_all_before_it(folder, result):
    jobs = {"search/m": {"needs": []}, "plans/m": {"needs": ["search/m"], "arguments": {"model": "m"}}}
    prepare(folder, jobs, {"search/m": result})
    assert job.main(folder, "plans/m") == 0
    said = outcome(folder, "plans/m")
    assert (said["result"], said["error"]) == ("not run", "search/m did not end well")


def test_a_notebook_is_tried_whatever_came_before(folder):
    arguments = {"notebook": "03_gone.ipynb", "parameters": {}}
    prepare(folder, {"notebook/03_gone": {"needs": ["search/m"], "arguments": arguments}}, {"search/m": "failed"})
    assert job.main(folder, "notebook/03_gone") == 0
    said = outcome(folder, "notebook/03_gone")
    assert said["result"] == "failed", "but it was run"
    assert "03_gone.ipynb" in said["error"]


def test_an_exception_is_named_and_its_traceback_is_in_the_log(folder):
    prepare(folder, {"search/m": {"needs": [], "arguments": {"model": "m"}}})
    assert job.main(folder, "search/m") == 0, "so that what comes after gets its turn"
    said = outcome(folder, "search/m")
    assert said["result"] == "failed"
    assert said["error"].startswith("ValueError: unknown model 'm'")
    assert "Traceback (most recent call last)" in (folder / "search/m.log").read_text()


def test_alone_it_prints_under_a_heading(folder, capsys):
    prepare(folder, {"search/m": {"needs": [], "arguments": {"model": "m"}}}, live=True)
    job.main(folder, "search/m")
    heading, *printed = capsys.readouterr().out.splitlines()
    assert heading == "── search/m"
    assert printed[-1] == outcome(folder, "search/m")["error"]
    assert not (folder / "search/m.log").exists()


def test_what_cannot_be_said_is_printed(folder, capsys):
    prepare(folder, {"search/m": {"needs": [], "arguments": {"model": "m"}}})
    (folder / "search/m.json").mkdir()
    assert job.main(folder, "search/m") == 1
    assert "search/m: ValueError: unknown model 'm'" in capsys.readouterr().out


def test_a_job_computes_the_cells_that_the_graph_says(folder):
    ResultStore.all_counts.clear()  # of the tests before, in this process
    jobs = build(load_profile("smoke", models=["tiny-llama"]), {"06_x.ipynb": {}})
    prepare(folder, {"layers/tiny-llama": {"needs": [], "arguments": jobs["layers/tiny-llama"].arguments}})
    assert job.main(folder, "layers/tiny-llama") == 0
    said = outcome(folder, "layers/tiny-llama")
    assert said["result"] == "done", said["error"]
    files = [file.relative_to(paths.RESULTS / "smoke") for file in paths.RESULTS.rglob("*.json")]
    stored = {(*file.parts[:3], file.stem) for file in files}
    searched = stored & set(jobs["search/tiny-llama"].missing)
    assert len(searched) == 1, "one search, which no job did before"
    assert stored == {*searched, *jobs["layers/tiny-llama"].missing}
    assert (said["computed"], said["failed"]) == (len(stored), 0)


def start(folder, **environ: str) -> subprocess.Popen:
    """A job that takes some seconds, in a process group of its own as under an engine."""
    program = [sys.executable, "-m", "harp_lib.job", folder, "search/tiny-llama"]
    environ = os.environ | {"HARP_ROOT": str(folder), **environ}
    return subprocess.Popen(program, env=environ, start_new_session=True, stderr=subprocess.DEVNULL)


def test_it_ends_with_its_runner(folder):
    runner = subprocess.Popen([sys.executable, "-c", ""])
    runner.wait()
    prepare(folder, {"search/tiny-llama": {"needs": [], "arguments": {"model": "tiny-llama"}}}, runner=runner.pid)
    assert start(folder).wait(60) == -signal.SIGKILL
    assert not (folder / "search/tiny-llama.json").exists()


def test_on_a_cluster_it_ends_when_the_next_run_removes_its_files(folder):
    prepare(folder, {"search/tiny-llama": {"needs": [], "arguments": {"model": "tiny-llama"}}})
    started, begun = start(folder, SLURM_JOB_ID="17"), folder / "search/tiny-llama.begun"
    while started.poll() is None and not (begun.is_file() and begun.read_text()):
        time.sleep(0.02)
    assert begun.read_text() == "17", "by which the runner finds it"
    (folder / "run.json").unlink()
    assert started.wait(60) == -signal.SIGKILL
    assert not (folder / "search/tiny-llama.json").exists()
