"""The result store: a cell is computed once, kept under what it depends on, and survives kills."""

import json
import os
import re
import shutil
import subprocess
import sys
import time

import pytest
from helpers import load_script

from harp_lib import __version__, config
from harp_lib.results import (
    BEGAN,
    Cell,
    Store,
    drop_others,
    fill,
    incomplete_lists,
    list_file,
    listed_cells,
    read_unit,
    rows_of,
    values_of,
    write_json,
    write_text,
)

MODEL = "owner/model"
UNIT = "scores"


@pytest.fixture(autouse=True)
def results(tmp_path, monkeypatch):
    """The folder of results, which is empty."""
    monkeypatch.setattr(config, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(config, "REFERENCE", tmp_path / "reference")
    monkeypatch.delenv(BEGAN, raising=False)
    return tmp_path / "results"


def score_of(value):
    """A result of one row."""
    return {"rows": [{"quantity": "score", "value": value}]}


def cell_of(result, seed=0, about=()):
    """A cell that comes to ``result``."""
    return Cell({"what": "score", "seed": seed}, lambda: result, dict(about))


def compute_or_read(value=1.5, seed=0, force=False):
    """The score in a cell that a new store is asked for, and whether it was computed."""
    store = Store()
    (score,) = values_of(store.get(cell_of(score_of(value), seed), force), "score")
    return score, store.counts["computed"] == 1


def fill_unit(*cells, unit=UNIT, model=MODEL, **options):
    """The store that has computed what was missing of a unit, and has listed it."""
    store = Store()
    fill(store, config.RESULTS / "mini" / unit, model, cells, **options)
    return store


def files_in(folder):
    return sorted(file.name for file in folder.rglob("*") if file.is_file())


# A cell


def test_equal_inputs_are_read_and_others_computed(results):
    assert compute_or_read(1.0) == (1.0, True)
    assert compute_or_read(2.0) == (1.0, False)
    assert compute_or_read(3.0, seed=1) == (3.0, True)
    assert compute_or_read(4.0, seed=1) == (3.0, False)
    assert compute_or_read(5.0, seed=1, force=True) == (5.0, True)
    assert compute_or_read(6.0, seed=1) == (5.0, False)
    digests = {cell_of({}, seed).digest for seed in (0, 1)}
    assert set(files_in(results)) == {f"{digest}.json" for digest in digests}, "nothing half"


def test_inputs_are_equal_as_json_whatever_their_order():
    inputs = {"alphas": {3: 0.5, 12: 0.1}, "size": (8, 128)}
    read_back = {"size": [8, 128], "alphas": {"12": 0.1, "3": 0.5}}
    assert Cell(inputs, dict).digest == Cell(read_back, dict).digest
    assert Cell(inputs, dict).digest != Cell(inputs | {"size": (8, 127)}, dict).digest


def test_a_file_holds_inputs_and_rows_and_their_provenance():
    cell = cell_of(score_of(0.5) | {"plan": {"layers": [1, 2]}}, about={"method": "harp"})
    store = Store()
    store.get(cell)
    stored = json.loads(store.file(cell.digest).read_text(encoding="utf-8"))
    circumstances = ["seconds", "device", "hardware", "commit", "versions", "time"]
    assert list(stored) == ["inputs", "result", *circumstances]
    assert "cores" in stored["hardware"]
    assert re.match(r"unknown|[0-9a-f]{40}", stored["commit"])
    assert stored["inputs"] == {"what": "score", "seed": 0}
    assert stored["result"] == {
        "rows": {"quantity": ["score"], "value": [0.5]},
        "plan": {"layers": [1, 2]},
    }
    packages = {"torch", "transformers", "lm_eval", "harp_lib", "python"}
    assert stored["versions"].keys() == packages
    assert stored["versions"]["harp_lib"] == __version__


def test_what_is_returned_is_what_the_next_process_reads():
    """A computed result has gone through JSON too, which makes text of integer keys."""
    records = [
        {"layer": 0, "quantity": "nll", "value": 2.5},
        {"layer": 1, "quantity": "nll", "value": 3.5},
        {"layer": 1, "quantity": "tokens", "value": 4},
    ]
    first = Store().get(cell_of({"rows": records, "plan": {5: (1, 2)}}))
    result = Store().get(cell_of({"rows": []}))
    assert first == result
    assert result["plan"] == {"5": [1, 2]}
    assert rows_of(result).to_dict("records") == records
    assert values_of(result, "nll") == [2.5, 3.5]
    assert values_of(result, "tokens") == [4]
    assert values_of(result, "score") == []
    uneven = cell_of({"rows": [{"score": 1.0}, {"score": 0.0, "choice": 2}]}, seed=1)
    assert Store().get(uneven) == {"rows": {"score": [1.0, 0.0], "choice": [None, 2]}}


def test_a_failure_is_kept_and_tried_again_by_the_next_run_only(monkeypatch):
    failure = {"failed": "out of memory"}
    success = {"answers": ["Rome"]}
    store = Store()
    assert store.get(cell_of(failure)) == store.get(cell_of(success)) == failure
    assert store.counts == {"failed": 1}
    assert store.has(cell_of(success))

    monkeypatch.setenv(BEGAN, "2000-01-01T00:00:00+00:00")
    store_of_same_run = Store()
    assert store_of_same_run.get(cell_of(success)) == failure
    assert store_of_same_run.counts == {"failed": 1}

    monkeypatch.setenv(BEGAN, "2100-01-01T00:00:00+00:00")
    store_of_next_run = Store()
    assert not store_of_next_run.has(cell_of(success))
    assert store_of_next_run.get(cell_of(success)) == success
    assert store_of_next_run.counts == {"computed": 1}


def test_force_computes_each_cell_once_a_run(monkeypatch):
    """Units share cells, and each is counted once."""
    times = []
    cell = Cell({"what": "score"}, lambda: {"times": times.append(1) or len(times)})
    store = Store()
    for _ in range(2):
        assert store.get(cell, force=True) == {"times": 1}
    assert store.get(cell) == {"times": 1}
    assert store.counts == {"computed": 1}
    assert Store().get(cell, force=True) == {"times": 2}, "another run"
    monkeypatch.setenv(BEGAN, "2000-01-01T00:00:00+00:00")
    assert Store().get(cell, force=True) == {"times": 2}, "another process of this run"


@pytest.mark.parametrize(
    "content",
    [
        '{"inputs": {"seed": 0}, "result": {"sco',
        '{"inputs": {"seed": 0}, "result": {"score": 1}}',  # without a time
        "1",
    ],
)
def test_an_unreadable_cell_is_moved_aside_and_computed_again(content):
    compute_or_read()
    file = Store().file(cell_of({}).digest)
    file.write_text(content)
    message = rf"cells/{file.stem}.json could not be read; moved to {file.stem}.unreadable"
    with pytest.warns(UserWarning, match=message):
        assert compute_or_read(2.0) == (2.0, True)
    (aside,) = file.parent.glob("*.unreadable-*")
    assert aside.read_text() == content, "nothing is lost"


# Interruptions


def resuming_cell(compute, seed=0):
    return Cell({"what": "search", "seed": seed}, compute, resumes=True)


def interrupted(partial):
    partial.write_text("half")
    raise KeyboardInterrupt


def is_anything_kept(partial):
    return {"kept": partial.exists()}


def test_what_an_interrupted_computation_kept_is_there_for_equal_inputs_only(results):
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            Store().get(resuming_cell(interrupted))
    (half,) = results.rglob("*.partial")
    assert Store().get(resuming_cell(is_anything_kept, seed=1)) == {"kept": False}
    # Of a process that was killed while writing the cell.
    half.with_name(f".{half.stem}-_0aZ9xy1.tmp").write_text("{")

    def read_kept(partial):
        return {"kept": partial.read_text()}

    assert Store().get(resuming_cell(read_kept)) == {"kept": "half"}
    assert {file.rpartition(".")[2] for file in files_in(results)} == {"json"}, "no leftovers"


def test_a_forced_computation_begins_anew(results):
    with pytest.raises(KeyboardInterrupt):
        Store().get(resuming_cell(interrupted))
    assert len(list(results.rglob("*.partial"))) == 1
    assert Store().get(resuming_cell(is_anything_kept), force=True) == {"kept": False}


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
from harp_lib.results import Cell, Store

def compute():
    print("computing", flush=True)
    sys.stdin.readline()
    return {"by": sys.argv[2]}

config.RESULTS = Path(sys.argv[1])
store = Store()
print("ready", flush=True)
sys.stdin.readline()
result = store.get(Cell({"what": "score"}, compute))
print(result["by"], dict(store.counts))
"""


def test_two_processes_that_ask_for_a_cell_compute_it_once(results):
    def start(name):
        command = [sys.executable, "-c", TWICE, results, name]
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
    assert files_in(results) == [f"{Cell({'what': 'score'}, dict).digest}.json"], "and no lock"


# The list of a unit


def abouts(unit=UNIT):
    """What the cells are about that the report reads."""
    return [cell["about"] for cell in read_unit("mini", unit)]


def test_cells_of_equal_inputs_share_a_file_and_keep_what_they_are_about(results):
    """As plans that remove the same, in one unit or in several."""
    first = cell_of(score_of(1), about={"method": "mag-sp", "task": "piqa"})
    same = cell_of(score_of(2), about={"method": "wanda-sp", "task": "piqa"})
    assert fill_unit(first, same, first).counts == {"computed": 1}
    assert fill_unit(same, unit="ablations").counts == {"read": 1}
    assert len(list((results / "cells").iterdir())) == 1
    assert abouts() == [
        {"model": MODEL, "method": "mag-sp", "task": "piqa"},
        {"model": MODEL, "method": "wanda-sp", "task": "piqa"},
    ]
    assert {tuple(values_of(cell["result"], "score")) for cell in read_unit("mini", UNIT)} == {(1,)}
    assert listed_cells("mini", UNIT) == [first.digest] * 2


def test_a_list_is_written_when_all_is_computed(results):
    def stopped():
        raise KeyboardInterrupt

    cells = [cell_of(score_of(1)), Cell({"what": "another"}, stopped)]
    with pytest.raises(KeyboardInterrupt):
        fill_unit(*cells)
    assert len(list((results / "cells").glob("*.json"))) == 1
    assert not (results / "mini").exists()
    assert fill_unit(cells[0]).counts == {"read": 1}


def test_the_last_list_of_a_unit_is_read_and_forced_cells_are_computed_again():
    fill_unit(cell_of(score_of(1)), cell_of(score_of(1), seed=1))
    assert fill_unit(cell_of(score_of(2)), force=True).counts == {"computed": 1}
    (cell,) = read_unit("mini", UNIT)
    assert values_of(cell["result"], "score") == [2]
    fill_unit()
    with pytest.raises(FileNotFoundError):
        read_unit("mini", UNIT)


def test_a_failed_cell_is_listed():
    assert fill_unit(cell_of({"failed": "no memory"})).counts == {"failed": 1}
    (cell,) = read_unit("mini", UNIT)
    assert cell["result"] == {"failed": "no memory"}
    assert [file.stem for file in incomplete_lists("mini")] == ["owner--model"]
    fill_unit(cell_of(score_of(1)))
    assert incomplete_lists("mini") == []


def test_a_list_whose_cells_are_gone_or_newer_is_incomplete(results):
    cells = [cell_of({}, seed=seed) for seed in (0, 1)]
    fill_unit(*cells, part=(0, 2))
    fill_unit(*cells)
    assert incomplete_lists("mini") == []
    both = [
        results / "mini" / UNIT / f"owner--model{end}" for end in (".jsonl", ".parts/1of2.jsonl")
    ]
    Store().get(cells[1], force=True)
    assert incomplete_lists("mini") == both
    fill_unit(*cells)
    assert incomplete_lists("mini") == both[1:]
    Store().file(cells[0].digest).unlink()
    assert incomplete_lists("mini") == both


def test_the_lists_of_parts_are_no_list_of_the_unit(results):
    """Who runs the parts joins them."""
    fill_unit(cell_of({}), part=(0, 2))
    fill_unit(cell_of({}, seed=1), part=(1, 2))
    assert files_in(results / "mini") == ["1of2.jsonl", "2of2.jsonl"]
    with pytest.raises(FileNotFoundError):
        read_unit("mini", UNIT)


def test_models_are_read_in_the_registry_s_order_and_others_dropped():
    models = ["owner/model", "gemma3-270m", "smollm2-135m"]
    for model in models:
        fill_unit(cell_of({}, seed=model), model=model)
    ordered = ["smollm2-135m", "gemma3-270m", "owner/model"]
    assert [about["model"] for about in abouts()] == ordered
    on_device = "owner/model, NVIDIA H200"  # measured elsewhere, it stays with its model
    fill_unit(cell_of({}, seed=on_device), model=on_device)
    drop_others("mini", UNIT, models[:2])
    kept = {about["model"] for about in abouts()}
    assert kept == {"gemma3-270m", "owner/model", on_device}
    drop_others("mini", UNIT, ["gemma3-270m"])
    assert [about["model"] for about in abouts()] == ["gemma3-270m"]


def test_a_list_that_names_a_result_that_is_gone_is_an_error():
    cell = cell_of({}, about={"method": "harp", "task": "piqa"})
    store = fill_unit(cell)
    store.file(cell.digest).unlink()
    message = (
        r"a result of scores is gone \(owner/model, harp, piqa\); "
        r"run ./run_all.sh --profile mini first"
    )
    with pytest.raises(FileNotFoundError, match=message):
        read_unit("mini", UNIT)


def test_own_cells_take_the_place_of_all_committed_ones(results):
    fill_unit(cell_of(score_of(2.0), seed=1), model="other")
    load_script("data/reference/pack.py").pack("mini")
    shutil.rmtree(results)
    assert [about["model"] for about in abouts()] == ["other"]
    assert listed_cells("mini", UNIT) == [cell_of({}, seed=1).digest]
    fill_unit(cell_of(score_of(4.0)))
    (cell,) = read_unit("mini", UNIT)
    assert values_of(cell["result"], "score") == [4.0], "not both"
    assert listed_cells("mini", UNIT) == [cell_of({}).digest]


def test_reading_without_results_says_what_to_do():
    message = r"no stored results of nothing .* run ./run_all.sh --profile smoke"
    with pytest.raises(FileNotFoundError, match=message):
        read_unit("smoke", "nothing")


def test_a_thousand_cells_among_fifty_thousand_are_read_in_a_second(results):
    """All profiles and units share a folder."""
    store = Store()
    store.folder.mkdir(parents=True)
    for number in range(49_000):
        os.close(os.open(store.folder / f"{number:016x}.json", os.O_CREAT))
    cells = [cell_of({}, seed) for seed in range(1000)]
    for cell in cells:
        write_json(store.file(cell.digest), {"inputs": cell.inputs, "result": {}, "time": ""})
    lines = [json.dumps({"about": {"model": MODEL}, "cell": cell.digest}) for cell in cells]
    write_text(list_file(results / "mini" / UNIT, MODEL), "\n".join(lines))
    begin = time.process_time()
    assert len(read_unit("mini", UNIT)) == 1000
    for cell in cells:
        store.get(cell)
    assert time.process_time() - begin < 1
    assert store.counts == {"read": 1000}
