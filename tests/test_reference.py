"""Committed cells: that they are as they are packed, and that a later version reads them."""

import json
import shutil

import pytest
from helpers import load_script

from harp_lib import config, results
from harp_lib.results import (
    Cell,
    ResultStore,
    committed_cells,
    computed_cells,
    digest,
    read_results,
)

pytestmark = pytest.mark.usefixtures("only_committed")

COMMITTED = config.REFERENCE
PROFILES = ("mini", "small")
STORES = [
    (profile, folder.name)
    for profile in PROFILES
    for folder in sorted((COMMITTED / profile).iterdir())
]
pack = load_script("data/reference/pack.py")


@pytest.mark.parametrize(("profile", "store"), STORES)
def test_each_committed_cell_is_listed_with_the_digest_of_its_inputs(profile, store):
    folder = COMMITTED / profile / store
    cells = read_results(profile, store)
    runs = list(folder.glob("run-*.json"))
    for run in runs:
        for *key, inputs_digest in json.loads(run.read_bytes())["cells"]:
            assert digest(cells[tuple(key)]["inputs"]) == inputs_digest
    packed = list(folder.glob("*.jsonl"))
    assert sum(len(file.read_bytes().splitlines()) for file in packed) == len(cells)
    assert sorted(folder.iterdir()) == sorted([*runs, *packed])


@pytest.mark.parametrize("profile", PROFILES)
def test_unpacked_cells_are_packed_as_they_were(profile, tmp_path, monkeypatch):
    pack.unpack(profile)
    files = [file for file in config.RESULTS.rglob("*") if file.is_file()]
    assert {file.suffix for file in files} == {".json"}
    monkeypatch.setattr(config, "REFERENCE", tmp_path / "reference")
    pack.pack(profile)
    before = contents(COMMITTED / profile)
    after = contents(config.REFERENCE / profile)
    assert before.keys() == after.keys()
    for name, text in before.items():
        assert after[name] == text, f"{name} is not as data/reference/pack.py writes it"


def contents(folder):
    return {
        str(file.relative_to(folder)): file.read_bytes()
        for file in folder.rglob("*")
        if file.is_file()
    }


@pytest.mark.parametrize("profile", PROFILES)
def test_a_later_version_computes_no_committed_cell_again(profile, monkeypatch):
    pack.unpack(profile)
    monkeypatch.setattr(results, "__version__", "99.0")
    for folder in (COMMITTED / profile).iterdir():
        store = ResultStore(profile, folder.name)
        committed = committed_cells(profile, folder.name)
        for (model, method, name), stored in committed.items():
            inputs = {key: value for key, value in stored["inputs"].items() if key != "harp_lib"}
            result = store.result(model, Cell(method, name, inputs, compute=pytest.fail))
            assert result == stored["result"]
        store.finish("all")
        assert computed_cells(profile, folder.name) == committed


def test_a_file_that_is_there_is_not_unpacked():
    store = ResultStore("mini", "similarity")
    computed = Cell("trained", "python-docs", {}, lambda: {"rows": []})
    store.result("smollm2-135m", computed)
    store.finish("similarity")
    pack.unpack("mini")
    (cell,) = computed_cells("mini", "similarity").values()
    assert cell["result"] == {"rows": {}}
    repeated = store.file("smollm2-135m", "trained", "repeated-tokens")
    assert repeated.is_file(), "it was not there"


def test_an_experiment_is_replaced_and_others_stay(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(config, "REFERENCE", tmp_path / "reference")
    shutil.copytree(COMMITTED / "mini" / "norm_change", tmp_path / "reference/mini/norm_change")
    shutil.copytree(COMMITTED / "mini" / "similarity", tmp_path / "reference/mini/similarity")
    before = committed_cells("mini", "norm_change")
    store = ResultStore("mini", "similarity")
    store.result("owner/model", Cell("trained", "draws", {}, lambda: {"rows": []}))
    store.finish("similarity")
    store.result("owner/model", Cell("trained", "interrupted", {}, lambda: {"rows": []}))
    pack.pack("mini")
    assert capsys.readouterr().out == "similarity: 3 cells before, 1 now\n"
    assert committed_cells("mini", "norm_change") == before
    (key,) = committed_cells("mini", "similarity")
    assert key == ("owner/model", "trained", "draws")
    names = sorted(file.name for file in (config.REFERENCE / "mini" / "similarity").iterdir())
    assert names == ["owner--model.jsonl", "run-similarity.json"]


@pytest.mark.parametrize(("profile", "is_kept"), [("mini", True), ("small", False)])
def test_answers_to_questions_of_others_are_not_packed(profile, is_kept, tmp_path, monkeypatch):
    monkeypatch.setattr(config, "REFERENCE", tmp_path / "reference")
    store = ResultStore(profile, "main_tables")
    result = {"rows": [], "answers": {"triviaqa": ["Rome"]}}
    store.result("model", Cell("dense", "triviaqa", {}, lambda: result))
    store.finish("scores")
    pack.pack(profile)
    (cell,) = committed_cells(profile, "main_tables").values()
    assert ("answers" in cell["result"]) == is_kept
