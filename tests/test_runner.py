"""Whole runs of notebooks of two cells, which need no model: what is shown at the end, and that nothing is left behind.

A run costs an engine, and a kernel for each notebook, so several tests look at one.
"""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from test_execution import write_notebook

from harp_lib import paths, runner
from harp_lib.notebooks import RefusedError

PARAMETERS = "profile = 'mini'\nseed = 0"
MEET = """
import pathlib, time
pathlib.Path("{mine}").write_text(str(time.time()))
end = time.time() + 60
while not pathlib.Path("{other}").exists() and time.time() < end: time.sleep(0.1)
assert pathlib.Path("{other}").exists(), "nobody came"
"""
COUNT = """
print("4 cells computed, 3 read from the result store\\n1 cells computed, 0 read from the result store, 2 failed")
"""
KILL = """
import os, pathlib, signal, time
pathlib.Path("orphan").write_text(str(os.getpid()))
os.kill(os.getppid(), signal.SIGKILL)
time.sleep(600)
"""
SLEEP = "import pathlib, time\npathlib.Path('begun').touch()\ntime.sleep(600)"
END = "import pathlib, time\npathlib.Path('end').write_text(str(time.time()))\nprint('the end of', profile, seed)"


def make_checkout(root: Path, **notebooks: str) -> Path:
    """A checkout with a few notebooks; a space in its name must do no harm."""
    (root / "data").mkdir(parents=True)
    for folder in ("configs", "profiles", "paper"):
        (root / "data" / folder).symlink_to(paths.DATA / folder)
    for name, cell in notebooks.items():
        write_notebook(root / "notebooks", f"{name.removeprefix('n')}.ipynb", PARAMETERS, cell)
    return root


def start(checkout: Path, shown: Path, *arguments: str) -> subprocess.Popen:
    command = [sys.executable, "-m", "harp_lib.cli", "run", "--profile", "smoke", *arguments]
    environ = os.environ | {"HARP_ROOT": str(checkout), "JUPYTER_PREFER_ENV_PATH": "1", "OMP_NUM_THREADS": "1"}
    with shown.open("w") as stream:
        return subprocess.Popen(command, env=environ, stdout=stream, stderr=subprocess.STDOUT)


def wait_for(condition: Callable[[], object], seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.05)


def end(process: subprocess.Popen) -> None:
    """Leave nothing behind, whatever a test found."""
    for left in [*psutil.Process(process.pid).children(recursive=True), process] if process.poll() is None else []:
        left.kill()


def table(shown: str) -> dict[str, list[str]]:
    """Outcome, seconds, … by job, of the table that ends a run."""
    lines = iter(shown[shown.rindex("\njob  ") :].splitlines()[3:])
    rows = [re.split(r"  +", line) for line in lines if "  " in line]
    return {row[0]: [item.strip() for item in row[1:]] for row in rows}


def folders(checkout: Path) -> list[Path]:
    return list((checkout / "data" / "results" / "smoke").glob(".run-*"))


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two runs at once on one checkout. In the second, two jobs at once, two notebooks fail: codes and texts."""
    checkout = make_checkout(
        tmp_path_factory.mktemp("some place") / "a checkout",
        n15_first=MEET.format(mine="begun", other="go on") + COUNT,
        n00_last=END,
        n09_fails=MEET.format(mine="one", other="another") + "raise ValueError('first line\\nno such thing')",
        n10_killed=KILL,
        n13_works=MEET.format(mine="another", other="one"),
    )
    files = [checkout / "first.txt", checkout / "second.txt"]
    first = start(checkout, files[0], "--only", "00,15", "-p", "seed=7")
    second = None
    try:
        wait_for((checkout / "notebooks" / "begun").exists)
        second = start(checkout, files[1], "--only", "09,10,13", "--jobs", "2")
        wait_for(lambda: "waiting" in files[1].read_text())
        (checkout / "notebooks" / "go on").touch()
        codes = [process.wait(180) for process in (first, second)]
        yield checkout, codes, [file.read_text(encoding="utf-8") for file in files]
    finally:
        for process in filter(None, (first, second)):
            end(process)


def moment(checkout: Path, name: str) -> float:
    return float((checkout / "notebooks" / name).read_text())


def test_a_second_run_of_a_checkout_waits_and_says_so(runs):
    checkout, codes, (first, second) = runs
    assert codes == [0, 1]
    assert "waiting" not in first
    assert second.startswith("another run of this checkout is at work: waiting for it\n")
    assert moment(checkout, "end") < moment(checkout, "one")


def test_alone_each_job_shows_what_it_prints_and_00_is_last(runs):
    checkout, _, (shown, _) = runs
    assert shown.splitlines()[:5] == [
        "── 15_first",
        "4 cells computed, 3 read from the result store",
        "1 cells computed, 0 read from the result store, 2 failed",
        "── 00_last",
        "the end of smoke 7",
    ]
    rows = table(shown)
    assert list(rows) == ["15_first", "00_last"]
    assert rows["15_first"][0] == "done"
    assert float(rows["15_first"][1]) > 1
    assert rows["15_first"][2:] == ["5 computed, 3 read, 2 failed", "notebooks/executed/smoke/15_first.ipynb"]
    assert (checkout / rows["15_first"][3]).is_file()
    assert shown.rstrip().endswith("00_last.ipynb"), "nothing to explain"


def test_two_jobs_at_once_overlap_and_finish_when_others_fail(runs):
    _, _, (_, shown) = runs
    assert {job: row[0] for job, row in table(shown).items()} == {
        "09_fails": "failed",
        "10_killed": "failed",
        "13_works": "done",
    }
    assert "AssertionError" not in shown, "each waited for the other"
    said = sorted(re.findall(r"^\[[12]/3\] (\S+): (\w+), \d+ s$", shown, re.MULTILINE))
    assert said == [("notebook/09_fails", "failed"), ("notebook/13_works", "done")]
    assert "──" not in shown


def test_the_failing_cells_message_and_the_killed_job_are_named_last(runs):
    checkout, _, (_, shown) = runs
    explained = shown[shown.rindex("\njob  ") :].splitlines()[6:]
    (folder,) = folders(checkout)
    assert explained == [
        "notebook/09_fails: cell [3] raised ValueError: first line",
        "no such thing",
        "notebook/10_killed: its process was killed: as a rule the machine ran out of memory",
        f"the same command continues; logs, until then: {folder.relative_to(checkout)}",
    ]


def test_a_kernel_dies_with_its_job(runs):
    checkout, _, _ = runs
    pid = int((checkout / "notebooks" / "orphan").read_text())
    wait_for(lambda: not psutil.pid_exists(pid), seconds=5)


def test_a_run_leaves_no_lock_and_the_folder_only_if_it_failed(runs):
    checkout, _, _ = runs
    left = {file.name for file in (checkout / "data" / "results").rglob("*") if ".run-" not in str(file)}
    assert left == {"smoke", ".options.json"}
    assert len(folders(checkout)) == 1


@pytest.fixture
def sleeping(tmp_path):
    """A run that sleeps in the first of two notebooks: process, all that it started, and what it shows."""
    checkout = make_checkout(tmp_path / "checkout", n09_sleeps=SLEEP, n10_later="print('never')")
    process = start(checkout, tmp_path / "shown.txt", "--only", "09,10")
    started = []
    try:
        wait_for((checkout / "notebooks" / "begun").exists)
        started = psutil.Process(process.pid).children(recursive=True)
        assert len(started) >= 3, "an engine, a job and its kernel"
        yield process, started, tmp_path / "shown.txt"
    finally:
        for left in [process, *filter(psutil.Process.is_running, started)]:
            left.kill()
        process.wait()


def is_dead(process: psutil.Process) -> bool:
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


def processes_of(checkout: Path) -> list[psutil.Process]:
    """Those that name a checkout on their command line: engine and jobs."""
    found = psutil.process_iter(["cmdline"])
    return [process for process in found if str(checkout) in " ".join(process.info["cmdline"] or ())]


def test_ctrl_c_ends_everything_and_shows_the_table(sleeping):
    process, started, shown = sleeping
    process.send_signal(signal.SIGINT)
    assert process.wait(20) == 130
    text = shown.read_text(encoding="utf-8")
    assert "interrupted: ending what is under way\n" in text
    rows = table(text)
    assert [rows["09_sleeps"][0], rows["10_later"][0]] == ["interrupted", "not run"]
    assert "the same command continues" in text
    assert "Traceback" not in text
    wait_for(lambda: all(map(is_dead, started)), seconds=5)
    assert not processes_of(shown.parent / "checkout")


def test_nothing_outlives_a_killed_runner(sleeping):
    process, started, shown = sleeping
    process.kill()
    process.wait()
    wait_for(lambda: all(map(is_dead, started)) and not processes_of(shown.parent / "checkout"), seconds=5)
    assert "never" not in shown.read_text(encoding="utf-8")


@pytest.fixture
def scratch(tmp_path, monkeypatch):
    """A checkout of this process with one notebook."""
    for name in ("RESULTS", "NOTEBOOKS"):
        monkeypatch.setattr(paths, name, tmp_path / name.lower())
    write_notebook(
        paths.NOTEBOOKS, "03_search.ipynb", "profile = 'mini'\nmodels = None\nlimit = None\nseed = 0\nforce = False"
    )
    return tmp_path


def test_says_when_there_is_no_notebook(scratch):
    with pytest.raises(RefusedError, match=r"no notebook to run: there is no notebooks/NN_\*\.ipynb numbered 04, 05"):
        runner.Run("smoke", ["04", "05"])


def test_what_a_run_is_given_reaches_its_jobs(scratch):
    run = runner.Run("smoke", None, {"limit": 1}, {"seed": 3})
    jobs = run.jobs()
    assert {row["rows"] for row in run.profile["evaluation"]["tasks"].values()} == {1}
    assert jobs["notebook/03_search"].arguments["parameters"] == {"profile": "smoke", "limit": 1, "seed": 3}
    assert list(jobs) == ["search/tiny-llama", "search/tiny-gemma2", "notebook/03_search", "figures/all"]
    assert "figures/all" not in runner.Run("smoke", ["03"]).jobs()
    with pytest.raises(RefusedError, match="seed is a whole number, not 'one'"):
        runner.Run("smoke", None, {}, {"seed": "one"})


def test_other_options_than_last_time_are_the_reason(scratch):
    paths.RESULTS.joinpath("smoke").mkdir(parents=True)

    def why(**given):
        return runner.Run("smoke", None, given).jobs()["search/tiny-llama"].why

    last = {"alpha_search": runner.Run("smoke", None, {"limit": 1}).options}
    paths.RESULTS.joinpath("smoke", ".options.json").write_text(json.dumps(last), encoding="utf-8")
    assert why(limit=1) == why(limit=1, models=["tiny-llama"]) == why(limit=1, seed=0) == "no result stored"
    assert why(limit=2) == why(limit=1, seed=1) == why() == "stored with other options"
    assert why(limit=1, force=True) == "computed again by force"


def test_jobs_at_once_do_not_all_take_every_gpu(scratch, monkeypatch):
    monkeypatch.setattr(runner, "devices_for", lambda workers: ["0", "1"])
    with pytest.raises(RefusedError, match="--jobs 2: one job at a time uses all 2 GPUs"):
        runner.Run("paper", at_once=2)
    runner.Run("paper")
    runner.Run("smoke", at_once=2)


def test_what_waits_for_a_job_that_died_gets_its_turn(tmp_path):
    for name in ("search/a.begun", "search/a.json", "plans/a.begun"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "snakemake.log").touch()
    assert runner._bury(tmp_path, ["search/a", "plans/a", "notebook/04_baselines"])
    died = json.loads((tmp_path / "plans" / "a.json").read_text(encoding="utf-8"))
    assert (died["result"], died["error"][:22]) == ("failed", "its process was killed")
    assert not runner._bury(tmp_path, ["search/a", "plans/a", "notebook/04_baselines"]), "none died since"
