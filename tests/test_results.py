import json
import subprocess
import sys
import time
from datetime import UTC, datetime

import pytest

from harp_lib import __version__, config
from harp_lib.results import BEGAN, ResultStore, provenance_table, read_results


@pytest.fixture(autouse=True)
def root(tmp_path, monkeypatch):
    monkeypatch.setattr(config, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(config, "REFERENCE", tmp_path / "reference")
    monkeypatch.delenv(BEGAN, raising=False)
    return tmp_path / "results/mini/experiment"


def ask(value=1.5, seed=0, task="task", **options):
    """Ask a new store for a cell that would come to ``value``: the result, and how often it was
    computed.
    """
    store, calls = ResultStore("mini", "experiment", **options), []

    def compute(partial):
        calls.append(partial)
        return {"score": value}

    found = store.cell("owner/model", "harp", task, {"model": "owner/model", "seed": seed}, compute)
    store.finish("unit")
    return found["score"], len(calls)


def files(folder):
    return sorted(
        file.name
        for file in folder.rglob("*")
        if file.is_file() and not file.name.startswith("run-")
    )


def test_equal_inputs_are_read_and_others_computed(root):
    assert [ask(1.0), ask(2.0), ask(3.0, seed=1), ask(4.0, seed=1)] == [
        (1.0, 1),
        (1.0, 0),
        (3.0, 1),
        (3.0, 0),
    ]
    assert [ask(5.0, seed=1, force=True), ask(6.0, seed=1)] == [(5.0, 1), (5.0, 0)]
    cell = json.loads((root / "owner--model/harp/task.json").read_text())
    assert cell.keys() == {"inputs", "result", "seconds", "device", "versions", "time"}
    assert cell["versions"].keys() == {"torch", "transformers", "lm_eval", "harp_lib", "python"}
    assert files(root) == ["task.json"], "no lock and nothing half"


@pytest.mark.parametrize(
    ("computed", "stored"),
    [
        (
            [{"score": 1.0}, {"score": 0.0, "choice": 2}],
            {"score": [1.0, 0.0], "choice": [None, 2.0]},
        ),
        ([], {}),
        (
            ["independent", "half in common"],
            ["independent", "half in common"],
        ),  # a column of a table of that name
    ],
)
def test_records_are_stored_column_by_column_and_other_rows_as_they_are(computed, stored):
    cell = ResultStore("mini", "experiment").cell(
        "model", "harp", "task", {}, lambda partial: {"rows": computed}
    )
    columns = json.loads(json.dumps(cell["rows"]).replace("NaN", "null"))
    assert columns == stored


def test_a_failure_is_kept_and_tried_again_by_the_next_run_only(monkeypatch):
    def fail(store):
        return store.cell("model", "harp", "task", {}, lambda partial: {"failed": "out of memory"})

    store = ResultStore("mini", "experiment")
    assert fail(store) == {"failed": "out of memory"}
    assert store.counts == {"failed": 1}
    monkeypatch.setenv(BEGAN, "2000-01-01T00:00:00+00:00")
    same = ResultStore("mini", "experiment")
    assert same.cell("model", "harp", "task", {}, lambda partial: {"score": 1}) == {
        "failed": "out of memory"
    }
    assert same.counts == {"failed": 1}
    for began in ("2100-01-01T00:00:00+00:00", None):
        monkeypatch.setenv(BEGAN, began) if began else monkeypatch.delenv(BEGAN)
        fail(ResultStore("mini", "experiment", force=True))
        time.sleep(1.1)  # times are stored in seconds
        again = ResultStore("mini", "experiment")
        assert again.cell("model", "harp", "task", {}, lambda partial: {"score": 1}) == {"score": 1}


@pytest.mark.parametrize(
    "content", ["", "{", '{"inputs": {"seed": 0}, "result": {"sco', '{"inputs": 1}', "[1]"]
)
def test_an_unreadable_cell_is_moved_aside_and_computed_again(root, content):
    ask()
    file = root / "owner--model/harp/task.json"
    file.write_text(content)
    with pytest.warns(UserWarning, match=r"task.json could not be read; moved to task.unreadable"):
        assert ask(2.0) == (2.0, 1)
    (aside,) = file.parent.glob("*.unreadable-*")
    assert aside.read_text() == content, "nothing is lost"


def test_what_an_interrupted_computation_kept_is_there_for_equal_inputs_only(root):
    def killed(partial):
        partial.write_text("half")
        raise KeyboardInterrupt

    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            ResultStore("mini", "experiment").cell("model", "harp", "task", {"seed": 0}, killed)
    (half,) = root.rglob("*.partial")
    half.with_name(".task-_0aZ9xy1.tmp").write_text(
        "{"
    )  # of a process that was killed while writing the cell
    read = ResultStore("mini", "experiment").cell(
        "model", "harp", "task", {"seed": 0}, lambda kept: {"kept": kept.read_text()}
    )
    assert read == {"kept": "half"}
    assert files(root) == ["task.json"], "leftovers are removed"
    with pytest.raises(KeyboardInterrupt):
        ResultStore("mini", "experiment").cell("model", "harp", "task", {"seed": 1}, killed)
    other = ResultStore("mini", "experiment").cell(
        "model", "harp", "task", {"seed": 2}, lambda kept: {"kept": kept.exists()}
    )
    assert other == {"kept": False}


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
import sys
from pathlib import Path
from harp_lib import __version__, config
from harp_lib.results import ResultStore

def compute(partial):
    print("computing", flush=True)
    sys.stdin.readline()
    return {"by": sys.argv[2]}

config.RESULTS = Path(sys.argv[1])
store = ResultStore("mini", "experiment")
print("ready", flush=True)
sys.stdin.readline()
print(store.cell("model", "harp", "task", {}, compute)["by"], dict(store.counts))
"""


def test_two_processes_that_want_a_cell_compute_it_once(root):
    def start(name):
        command = [sys.executable, "-c", TWICE, config.RESULTS, name]
        return subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )

    first, second = start("first"), start("second")
    try:
        assert [first.stdout.readline(), second.stdout.readline()] == ["ready\n"] * 2
        first.stdin.write("go\n")
        assert first.stdout.readline() == "computing\n"
        second.stdin.write("go\n")
        time.sleep(0.5)  # for it to find that the cell is not there
        first.stdin.write("go\n")
        assert first.communicate(timeout=60)[0] == "first {'computed': 1}\n"
        assert second.communicate(timeout=60)[0] == "first {'read': 1}\n"
    finally:
        first.kill()
        second.kill()
    assert files(root) == ["task.json"]


def test_the_report_reads_the_cells_of_the_last_run_of_each_unit(root):
    ask(1.0), ask(2.0, task="another")
    assert [key[2] for key in read_results("mini", "experiment")] == ["another"], (
        "the last run had no other"
    )
    second = ResultStore("mini", "experiment")
    second.cell("owner/model", "flap", "third", {}, lambda partial: {"score": 3})
    second.finish("second")
    assert {key[1:] for key in read_results("mini", "experiment")} == {
        ("harp", "another"),
        ("flap", "third"),
    }
    other = ResultStore("mini", "experiment")
    other.cell("other", "flap", "third", {}, lambda partial: {"score": 4})
    other.finish("second", ["owner/model", "other"])
    assert ("owner/model", "flap", "third") in read_results("mini", "experiment"), (
        "this run had no need of that model"
    )
    other.finish("second")
    assert ("owner/model", "flap", "third") not in read_results("mini", "experiment")
    ResultStore("mini", "experiment").finish("second")
    assert {key[1:] for key in read_results("mini", "experiment")} == {("harp", "another")}
    ResultStore("mini", "experiment").cell(
        "owner/model", "harp", "another", {"seed": 7}, lambda partial: {}
    )
    with pytest.raises(
        FileNotFoundError,
        match="owner/model/harp/another of experiment is gone or of an unfinished",
    ):
        read_results("mini", "experiment")
    config.RESULTS.rename(config.REFERENCE)
    ask(4.0)
    assert [cell["result"]["score"] for cell in read_results("mini", "experiment").values()] == [
        4.0
    ], "not both"


def test_reading_without_results_says_what_to_do():
    with pytest.raises(
        FileNotFoundError, match=r"no stored results of nothing .* run ./run_all.sh --profile smoke"
    ):
        read_results("smoke", "nothing")


def test_provenance():
    ask()
    profile = {"name": "mini", "datasets": "/some/where/rows"}
    table = provenance_table(profile, "experiment", seed=3).set_index("what")["value"]
    assert table[["profile", "datasets", "seed", "harp_lib"]].tolist() == [
        "mini",
        "rows",
        "3",
        __version__,
    ]
    assert table["day"].startswith(str(datetime.now(UTC).year))
