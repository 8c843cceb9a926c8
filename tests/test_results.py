"""The result store: cells are computed once, kept as rows, and survive kills."""

import json
import re
import shutil
import subprocess
import sys
import time

import pytest
from helpers import load_script

from harp_lib import __version__, config, results
from harp_lib.results import (
    BEGAN,
    Cell,
    ResultStore,
    read_results,
    rows_of,
    values_of,
)

MODEL = "owner/model"


@pytest.fixture(autouse=True)
def root(tmp_path, monkeypatch):
    """The folder of the experiment's cells, which is empty."""
    monkeypatch.setattr(config, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(config, "REFERENCE", tmp_path / "reference")
    monkeypatch.delenv(BEGAN, raising=False)
    return tmp_path / "results/mini/experiment"


def open_store(**options):
    return ResultStore("mini", "experiment", **options)


def returns(result):
    """A computation that comes to ``result``."""
    return lambda: result


def score_of(value):
    """A result of one row."""
    return {"rows": [{"quantity": "score", "value": value}]}


def harp_cell(result, seed=0, name="task", **options):
    """A cell that comes to ``result``."""
    return Cell("harp", name, {"seed": seed}, returns(result), **options)


def compute_or_read(value=1.5, seed=0, name="task", **options):
    """The score in a cell that a new store is asked for, and whether it was computed."""
    store = open_store(**options)
    result = store.result(MODEL, harp_cell(score_of(value), seed, name))
    store.finish("unit")
    (score,) = values_of(result, "score")
    return score, store.counts["computed"] == 1


def cell_files(folder):
    names = [file.name for file in folder.rglob("*") if file.is_file()]
    return sorted(name for name in names if not name.startswith("run-"))


def read_file(root, name="task"):
    return json.loads((root / f"owner--model/harp/{name}.json").read_text(encoding="utf-8"))


def test_equal_inputs_are_read_and_others_computed(root):
    assert compute_or_read(1.0) == (1.0, True)
    assert compute_or_read(2.0) == (1.0, False)
    assert compute_or_read(3.0, seed=1) == (3.0, True)
    assert compute_or_read(4.0, seed=1) == (3.0, False)
    assert compute_or_read(5.0, seed=1, force=True) == (5.0, True)
    assert compute_or_read(6.0, seed=1) == (5.0, False)
    assert cell_files(root) == ["task.json"], "no lock and nothing half"


def test_a_new_version_of_the_library_reads_what_older_ones_have_computed(root, monkeypatch):
    compute_or_read(1.0)
    monkeypatch.setattr(results, "__version__", "99.0")
    assert compute_or_read(2.0) == (1.0, False)
    assert compute_or_read(3.0, seed=1) == (3.0, True)
    assert read_file(root)["inputs"] == {"seed": 1, "harp_lib": "99.0"}


def test_a_file_holds_coordinates_inputs_rows_and_their_provenance(root):
    result = score_of(0.5) | {"plan": {"layers": [1, 2]}}
    coordinates = {"corpus": "wikitext", "layers": 6}
    open_store().result(MODEL, harp_cell(result, coordinates=coordinates))
    stored = read_file(root)
    assert list(stored) == [
        "coordinates",
        "inputs",
        "result",
        "seconds",
        "device",
        "hardware",
        "commit",
        "versions",
        "time",
    ]
    assert "cores" in stored["hardware"]
    assert re.match(r"unknown|[0-9a-f]{40}", stored["commit"])
    assert stored["coordinates"] == coordinates
    assert stored["inputs"] == {"seed": 0, "harp_lib": __version__}
    assert stored["result"] == {
        "rows": {"quantity": ["score"], "value": [0.5]},
        "plan": {"layers": [1, 2]},
    }
    packages = {"torch", "transformers", "lm_eval", "harp_lib", "python"}
    assert stored["versions"].keys() == packages


def test_coordinates_are_columns_and_do_not_decide_whether_a_cell_is_read(root):
    """Inputs do: a coordinate that a number depends on has to be among them."""
    store = open_store()
    store.result(MODEL, harp_cell(score_of(1.0), coordinates={"layers": 6}))
    store.result(MODEL, harp_cell(score_of(2.0), coordinates={"layers": 7}))
    assert store.counts == {"computed": 1, "read": 1}
    assert read_file(root)["coordinates"] == {"layers": 6}


@pytest.mark.parametrize(
    ("computed", "stored"),
    [
        (
            [{"score": 1.0}, {"score": 0.0, "choice": 2}],
            {"score": [1.0, 0.0], "choice": [None, 2]},
        ),
        ([], {}),
        # As a result that was read from another cell has them.
        ({"score": [1.0, 0.0]}, {"score": [1.0, 0.0]}),
    ],
)
def test_records_are_stored_column_by_column_and_columns_as_they_are(root, computed, stored):
    result = open_store().result(MODEL, harp_cell({"rows": computed}))
    assert result == {"rows": stored}
    assert read_file(root)["result"] == {"rows": stored}


def test_rows_of_a_result_read_again_are_the_records_that_were_computed():
    records = [
        {"layer": 0, "quantity": "nll", "value": 2.5},
        {"layer": 1, "quantity": "nll", "value": 3.5},
        {"layer": 1, "quantity": "tokens", "value": 4},
    ]
    open_store().result(MODEL, harp_cell({"rows": records}))
    result = open_store().result(MODEL, harp_cell({"rows": []}))
    assert rows_of(result).to_dict("records") == records
    assert values_of(result, "nll") == [2.5, 3.5]
    assert values_of(result, "tokens") == [4]
    assert values_of(result, "score") == []


def test_what_is_returned_is_what_the_next_process_reads():
    """A computed result has gone through JSON too, which makes text of integer keys."""
    computed = {"rows": [], "plan": {5: (1, 2)}}
    first = open_store().result(MODEL, harp_cell(computed))
    second = open_store().result(MODEL, harp_cell(computed))
    assert first == second == {"rows": {}, "plan": {"5": [1, 2]}}


def test_a_failure_is_kept_and_tried_again_by_the_next_run_only(monkeypatch):
    failure = {"failed": "out of memory"}
    success = {"rows": {"score": [1]}}
    store = open_store()
    assert store.result(MODEL, harp_cell(failure)) == failure
    assert store.counts == {"failed": 1}

    monkeypatch.setenv(BEGAN, "2000-01-01T00:00:00+00:00")
    store_of_same_run = open_store()
    assert store_of_same_run.result(MODEL, harp_cell(success)) == failure
    assert store_of_same_run.counts == {"failed": 1}

    for began in ("2100-01-01T00:00:00+00:00", None):
        if began is None:
            monkeypatch.delenv(BEGAN)
        else:
            monkeypatch.setenv(BEGAN, began)
        open_store(force=True).result(MODEL, harp_cell(failure))
        time.sleep(1.1)  # times are stored in seconds
        store_of_next_run = open_store()
        assert store_of_next_run.result(MODEL, harp_cell(success)) == success
        assert store_of_next_run.counts == {"computed": 1}


@pytest.mark.parametrize(
    "content",
    [
        '{"inputs": {"seed": 0}, "result": {"sco',
        '{"inputs": {"seed": 0}, "result": {"score": 1}}',  # without coordinates
        "1",
    ],
)
def test_an_unreadable_cell_is_moved_aside_and_computed_again(root, content):
    compute_or_read()
    file = root / "owner--model/harp/task.json"
    file.write_text(content)
    with pytest.warns(UserWarning, match=r"task.json could not be read; moved to task.unreadable"):
        assert compute_or_read(2.0) == (2.0, True)
    (aside,) = file.parent.glob("*.unreadable-*")
    assert aside.read_text() == content, "nothing is lost"


def resuming_cell(compute, seed=0):
    return Cell("harp", "task", {"seed": seed}, compute, resumes=True)


def test_what_an_interrupted_computation_kept_is_there_for_equal_inputs_only(root):
    def interrupted(partial):
        partial.write_text("half")
        raise KeyboardInterrupt

    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            open_store().result(MODEL, resuming_cell(interrupted))
    (half,) = root.rglob("*.partial")
    # Of a process that was killed while writing the cell.
    half.with_name(".task-_0aZ9xy1.tmp").write_text("{")

    def read_kept(partial):
        return {"kept": partial.read_text()}

    assert open_store().result(MODEL, resuming_cell(read_kept)) == {"kept": "half"}
    assert cell_files(root) == ["task.json"], "leftovers are removed"

    with pytest.raises(KeyboardInterrupt):
        open_store().result(MODEL, resuming_cell(interrupted, seed=1))

    def is_anything_kept(partial):
        return {"kept": partial.exists()}

    assert open_store().result(MODEL, resuming_cell(is_anything_kept, seed=2)) == {"kept": False}


def test_a_forced_computation_begins_anew(root):
    def interrupted(partial):
        partial.write_text("half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        open_store().result(MODEL, resuming_cell(interrupted))
    assert len(list(root.rglob("*.partial"))) == 1

    def is_anything_kept(partial):
        return {"kept": partial.exists()}

    store = open_store(force=True)
    assert store.result(MODEL, resuming_cell(is_anything_kept)) == {"kept": False}


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
from harp_lib import config
from harp_lib.results import Cell, ResultStore

def compute():
    print("computing", flush=True)
    sys.stdin.readline()
    return {"by": sys.argv[2]}

config.RESULTS = Path(sys.argv[1])
store = ResultStore("mini", "experiment")
print("ready", flush=True)
sys.stdin.readline()
result = store.result("model", Cell("harp", "task", {}, compute))
print(result["by"], dict(store.counts))
"""


def test_two_processes_that_ask_for_a_cell_compute_it_once(root):
    def start(name):
        command = [sys.executable, "-c", TWICE, config.RESULTS, name]
        return subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )

    first = start("first")
    second = start("second")
    try:
        assert first.stdout.readline() == "ready\n"
        assert second.stdout.readline() == "ready\n"
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
    assert cell_files(root) == ["task.json"]


def listed_cells():
    """Method and name of the cells that the report reads."""
    return {(method, name) for _, method, name in read_results("mini", "experiment")}


def flap_cell(value):
    return Cell("flap", "third", {}, returns(score_of(value)))


def test_the_report_reads_the_cells_of_the_last_run_of_each_unit():
    compute_or_read(1.0)
    compute_or_read(2.0, name="another")
    assert listed_cells() == {("harp", "another")}, "the last run had no other"
    store = open_store()
    store.result(MODEL, flap_cell(3))
    store.finish("second")
    assert listed_cells() == {("harp", "another"), ("flap", "third")}


def test_cells_of_one_unit_are_read_wherever_they_were_computed():
    for unit in ("first", "second", "second-elsewhere", "second_scores"):
        store = open_store()
        store.result(MODEL, harp_cell(score_of(1.0), name=f"of {unit}"))
        store.finish(unit)
    cells = read_results("mini", "experiment", ["second"])
    assert {name for _, _, name in cells} == {"of second", "of second-elsewhere"}
    of_none = read_results("mini", "experiment", ["another"])
    assert of_none == read_results("mini", "experiment"), "it has filled other stores"


def test_a_cell_that_units_share_is_of_the_run_that_came_last():
    compute_or_read(1.0)
    store = open_store()
    store.result(MODEL, harp_cell(score_of(2.0), seed=1))
    store.finish("second")
    (stored,) = read_results("mini", "experiment", ["unit"]).values()
    assert values_of(stored["result"], "score") == [2.0]


def test_cells_of_models_that_a_run_had_no_need_of_stay_listed():
    compute_or_read(2.0, name="another")
    store = open_store()
    store.result(MODEL, flap_cell(3))
    store.finish("second")
    later = open_store()
    later.result("other", flap_cell(4))
    later.finish("second", [MODEL, "other"])
    assert (MODEL, "flap", "third") in read_results("mini", "experiment")
    later.finish("second")
    assert (MODEL, "flap", "third") not in read_results("mini", "experiment")
    open_store().finish("second")
    assert listed_cells() == {("harp", "another")}


def test_a_listed_cell_that_was_computed_from_other_inputs_since_is_an_error():
    compute_or_read(2.0, name="another")
    open_store().result(MODEL, harp_cell({}, seed=7, name="another"))
    message = "owner/model/harp/another of experiment is gone or of an unfinished"
    with pytest.raises(FileNotFoundError, match=message):
        read_results("mini", "experiment")


def test_own_cells_take_the_place_of_all_committed_ones():
    compute_or_read(2.0, name="another")
    load_script("data/reference/pack.py").pack("mini")
    shutil.rmtree(config.RESULTS)
    assert listed_cells() == {("harp", "another")}
    compute_or_read(4.0)
    (stored,) = read_results("mini", "experiment").values()
    assert values_of(stored["result"], "score") == [4.0], "not both"


def test_reading_without_results_says_what_to_do():
    message = r"no stored results of nothing .* run ./run_all.sh --profile smoke"
    with pytest.raises(FileNotFoundError, match=message):
        read_results("smoke", "nothing")
