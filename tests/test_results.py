import json
import subprocess
import sys
import time
from datetime import UTC, datetime

import pytest

from harp_lib import __version__, paths
from harp_lib.results import ResultStore, is_stored, read_results, write_json


def make(store, inputs=None, value=1.5, calls=None):
    def compute(partial):
        if calls is not None:
            calls.append(partial)
        return {"score": value}

    return store.cell("owner/model", "harp", "task", inputs or {"model": "owner/model", "seed": 0}, compute)


@pytest.fixture
def store(tmp_path):
    return ResultStore("mini", "experiment", root=tmp_path)


def test_equal_inputs_are_read(store, tmp_path):
    calls = []
    assert make(store, calls=calls) == make(store, calls=calls) == {"score": 1.5}
    assert len(calls) == 1
    assert store.summary == "1 cells computed, 1 read from the result store"
    cell = json.loads((tmp_path / "mini/experiment/owner--model/harp/task.json").read_text())
    assert {"inputs", "result", "seconds", "device", "versions", "time"} <= set(cell)
    assert {"torch", "transformers", "lm_eval", "harp_lib", "python"} <= set(cell["versions"])


def test_other_inputs_are_computed_again(store):
    make(store, {"model": "owner/model", "seed": 0}, 1.0)
    assert make(store, {"model": "owner/model", "seed": 1}, 2.0) == {"score": 2.0}
    assert make(store, {"model": "owner/model", "seed": 1}, 3.0) == {"score": 2.0}


def test_in_one_run_force_computes_once(store, tmp_path, monkeypatch):
    make(store, value=1.0)
    monkeypatch.setenv("HARP_RUN_BEGAN", "2100-01-01T00:00:00+00:00")
    assert make(ResultStore("mini", "experiment", root=tmp_path), value=2.0) == {"score": 1.0}
    monkeypatch.setenv("HARP_FORCED", "another experiment")
    assert make(ResultStore("mini", "experiment", root=tmp_path), value=2.0) == {"score": 2.0}
    monkeypatch.setenv("HARP_RUN_BEGAN", datetime.now(UTC).isoformat(timespec="seconds"))
    for forced in (ResultStore("mini", "experiment", root=tmp_path, force=force) for force in (False, True)):
        assert make(forced, value=3.0) == {"score": 2.0}, "computed in this run"


def test_what_failed_in_a_run_is_not_tried_again_in_it(store, tmp_path, monkeypatch):
    store.cell("model", "harp", "task", {}, lambda partial: {"failed": "out of memory"})
    for began, result in (("2000-01-01", {"failed": "out of memory"}), ("2100-01-01", {"score": 1})):
        monkeypatch.setenv("HARP_RUN_BEGAN", f"{began}T00:00:00+00:00")
        again = ResultStore("mini", "experiment", root=tmp_path)
        assert again.cell("model", "harp", "task", {}, lambda partial: {"score": 1}) == result


def test_force_computes_again(store, tmp_path):
    make(store, value=1.0)
    assert make(ResultStore("mini", "experiment", root=tmp_path, force=True), value=2.0) == {"score": 2.0}


@pytest.mark.parametrize("content", ["", "{", '{"inputs": {"seed": 0}, "result": {"sco', '{"inputs": 1}', "[1]"])
def test_an_unreadable_cell_is_moved_aside_and_computed_again(store, tmp_path, content):
    make(store)
    file = tmp_path / "mini/experiment/owner--model/harp/task.json"
    file.write_text(content)
    with pytest.warns(UserWarning, match=r"task.json could not be read; moved to task.unreadable"):
        assert make(store, value=2.0) == {"score": 2.0}
    (aside,) = file.parent.glob("*.unreadable-*")
    assert aside.read_text() == content, "nothing is lost"


def test_a_failed_computation_leaves_no_cell_but_what_it_kept(store, tmp_path):
    def failing(partial):
        partial.parent.mkdir(parents=True, exist_ok=True)
        partial.write_text("half")
        raise RuntimeError("out of memory")

    with pytest.raises(RuntimeError, match="out of memory"):
        store.cell("model", "harp", "task", {}, failing)
    (file,) = (file for file in tmp_path.rglob("*") if file.is_file())
    assert file.name.split(".")[::2] == ["task", "partial"]
    kept = store.cell("model", "harp", "task", {}, lambda partial: {"kept": partial.read_text()})
    assert kept == {"kept": "half"}
    assert [file.name for file in tmp_path.rglob("*") if file.is_file()] == ["task.json"]


def test_what_was_kept_for_other_inputs_is_not_used(store, tmp_path):
    def killed(partial):
        partial.parent.mkdir(parents=True, exist_ok=True)
        partial.write_text("half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store.cell("model", "harp", "task", {"seed": 0}, killed)
    (half,) = tmp_path.rglob("*.partial")
    half.with_name(".task-_0aZ9xy1.tmp").write_text("{")  # of a process that was killed while writing the cell
    found = store.cell("model", "harp", "task", {"seed": 1}, lambda partial: {"left": partial.exists()})
    assert found == {"left": False}
    assert len([file for file in tmp_path.rglob("*") if file.is_file()]) == 1, "leftovers are removed"


def test_a_failure_is_kept_but_not_read_again(store):
    assert store.cell("model", "harp", "task", {}, lambda partial: {"failed": "out of memory"})["failed"]
    assert not store.has("model", "harp", "task", {})
    assert store.cells["model", "harp", "task"]["result"] == {"failed": "out of memory"}
    assert store.cell("model", "harp", "task", {}, lambda partial: {"scores": [1]}) == {"scores": [1]}
    assert store.has("model", "harp", "task", {})
    assert store.summary == "1 cells computed, 0 read from the result store, 1 failed"


def test_folders_of_the_same_name_do_not_share_cells(store, tmp_path):
    for folder in ("a", "b"):
        (tmp_path / folder / "model").mkdir(parents=True)
        store.cell(str(tmp_path / folder / "model"), "dense", "task", {}, lambda partial, folder=folder: {"in": folder})
    assert len(list((tmp_path / "mini").rglob("task.json"))) == 2


def test_a_result_that_is_not_json_leaves_nothing(tmp_path):
    with pytest.raises(TypeError):
        write_json(tmp_path / "cell.json", {"result": object()})
    assert not list(tmp_path.iterdir())


def test_killed_while_writing(tmp_path):
    script = (
        "import sys; from pathlib import Path; from harp_lib.results import write_json\n"
        "while True: write_json(Path(sys.argv[1]), {'result': list(range(100_000))})"
    )
    process = subprocess.Popen([sys.executable, "-c", script, tmp_path / "cell.json"])
    while not (tmp_path / "cell.json").exists():
        time.sleep(0.05)
    time.sleep(0.3)
    process.kill()
    process.wait()
    assert len(json.loads((tmp_path / "cell.json").read_text())["result"]) == 100_000


TWICE = """
import sys, time
from pathlib import Path
from harp_lib.results import ResultStore

def compute(partial):
    print("computing", flush=True)
    sys.stdin.readline()
    return {"by": sys.argv[2]}

store = ResultStore("mini", "experiment", root=Path(sys.argv[1]))
print("ready", flush=True)
sys.stdin.readline()
print(store.cell("model", "harp", "task", {}, compute)["by"], store.summary)
"""


def test_two_processes_that_want_a_cell_compute_it_once(tmp_path):
    def start(name):
        command = [sys.executable, "-c", TWICE, tmp_path, name]
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)

    first, second = start("first"), start("second")
    try:
        assert [first.stdout.readline(), second.stdout.readline()] == ["ready\n"] * 2
        first.stdin.write("go\n")
        assert first.stdout.readline() == "computing\n"
        second.stdin.write("go\n")
        time.sleep(0.5)  # for it to find that the cell is not there
        first.stdin.write("go\n")
        assert first.communicate(timeout=60)[0] == "first 1 cells computed, 0 read from the result store\n"
        waited, told = second.communicate(timeout=60)[0].splitlines()
        assert waited == "another process computes task of harp: waiting for it"
        assert told == "first 0 cells computed, 1 read from the result store"
    finally:
        first.kill()
        second.kill()
    assert [file.name for file in tmp_path.rglob("*") if file.is_file()] == ["task.json"], "and no lock"


def test_stored_is_what_this_version_can_read(monkeypatch, tmp_path):
    monkeypatch.setattr(paths, "RESULTS", tmp_path)
    cell = ("mini", "experiment", "owner/model", "harp", "task")
    assert not is_stored(*cell)
    make(ResultStore("mini", "experiment"))
    assert is_stored(*cell)
    file = tmp_path / "mini/experiment/owner--model/harp/task.json"
    whole = file.read_text()
    for other in (whole[:-20], whole.replace(__version__, "0.0.1"), "[]", whole.replace('"score"', '"failed"')):
        assert other != whole
        file.write_text(other)
        assert not is_stored(*cell)
    assert [path.name for path in file.parent.iterdir()] == ["task.json"], "asking moves nothing"


def test_only_the_last_run_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "RESULTS", tmp_path)
    first = ResultStore("mini", "experiment")
    make(first)
    first.cell("another", "harp", "task", {}, lambda partial: {"score": 0})
    first.finish()
    assert len(read_results("mini", "experiment")) == 2
    second = ResultStore("mini", "experiment")
    make(second)
    third = ResultStore("mini", "experiment")
    make(third, {"model": "owner/model", "seed": 7})
    with pytest.raises(FileNotFoundError, match="is gone or of an unfinished run"):
        read_results("mini", "experiment")
    make(second)
    assert second.finish() == read_results("mini", "experiment")
    assert list(second.cells) == [("owner/model", "harp", "task")]
    (tmp_path / "mini/experiment/owner--model/harp/task.json").unlink()
    with pytest.raises(FileNotFoundError, match="owner/model/harp/task of experiment is gone"):
        read_results("mini", "experiment")


def test_reading_without_results_says_what_to_do():
    with pytest.raises(
        FileNotFoundError, match=r"no stored results of nothing .* run ./run_all.sh --profile smoke first"
    ):
        read_results("smoke", "nothing")
