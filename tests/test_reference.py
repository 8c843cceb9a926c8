"""Committed cells: that they are as they are packed, and that the store reads them."""

import json
import shutil

import pytest
from helpers import load_script

from harp_lib import config
from harp_lib.results import (
    Cell,
    Store,
    digest,
    fill,
    listed_cells,
    read_cell,
    read_lines,
    read_unit,
)
from harp_lib.units import UNITS

pytestmark = pytest.mark.usefixtures("only_committed")

COMMITTED = config.REFERENCE
PROFILES = ("mini", "small")
pack = load_script("data/reference/pack.py")


@pytest.fixture
def reference(tmp_path, monkeypatch):
    """The folder of committed cells, which is empty."""
    monkeypatch.setattr(config, "REFERENCE", tmp_path / "reference")
    return tmp_path / "reference"


def fill_unit(profile, unit, model, *cells):
    fill(Store(), config.RESULTS / profile / unit, model, cells)


@pytest.mark.parametrize("profile", PROFILES)
def test_units_list_committed_cells_and_equal_inputs_have_one_result(profile):
    results = {}
    for unit in (folder.name for folder in (COMMITTED / profile).iterdir()):
        assert unit in UNITS
        cells = read_unit(profile, unit)
        digests = [digest(cell["inputs"]) for cell in cells]
        assert sorted(listed_cells(profile, unit)) == sorted(digests)
        for cell_digest, cell in zip(digests, cells, strict=True):
            assert {"about", "inputs", "result", "seconds", "time"} <= set(cell)
            assert "what" in cell["inputs"]
            result = json.dumps(cell["result"])
            assert results.setdefault(cell_digest, result) == result, cell["about"]


@pytest.mark.parametrize("profile", PROFILES)
def test_unpacked_cells_are_read_and_packed_as_they_were(profile, reference):
    for source in (COMMITTED / profile).rglob("*.jsonl"):
        packed = reference / source.relative_to(COMMITTED)
        packed.parent.mkdir(parents=True, exist_ok=True)
        packed.write_bytes(source.read_bytes())
    before = contents(reference)
    assert before == contents(COMMITTED, profile), "nothing else is committed"
    pack.unpack(profile)
    store = Store()
    for packed in reference.rglob("*.jsonl"):
        for cell in read_lines(packed):
            assert store.get(Cell(cell["inputs"], compute=pytest.fail)) == cell["result"]
    shutil.rmtree(reference)
    pack.pack(profile)
    after = contents(reference)
    assert before.keys() == after.keys()
    for name, text in before.items():
        assert after[name] == text, f"{name} is not as data/reference/pack.py writes it"


def contents(folder, *parts):
    files = [file for file in folder.joinpath(*parts).rglob("*") if file.is_file()]
    return {str(file.relative_to(folder)): file.read_bytes() for file in files}


def test_what_is_there_is_not_unpacked():
    """Neither the list of a unit nor a result."""
    committed, other = read_unit("mini", "similarity")[:2]
    fill_unit("mini", "similarity", "smollm2-135m", Cell(committed["inputs"], dict))
    pack.unpack("mini")
    (cell,) = read_unit("mini", "similarity")
    assert cell["result"] == {}
    unpacked = read_cell(Store().file(digest(other["inputs"])))
    assert unpacked["result"] == other["result"], "it was not there"
    assert len(read_unit("mini", "norms")) > 1


def test_a_list_is_replaced_and_others_stay(reference, capsys):
    for unit in ("norms", "similarity"):
        shutil.copytree(COMMITTED / "mini" / unit, reference / "mini" / unit)
    before = contents(reference)
    fill_unit("mini", "similarity", "smollm2-135m", Cell({"what": "draws"}, lambda: {"rows": []}))
    Store().get(Cell({"what": "of an interrupted run"}, lambda: {"rows": []}))
    pack.pack("mini")
    assert capsys.readouterr().out == "similarity of smollm2-135m: 3 cells before, 1 now\n"
    after = contents(reference)
    assert before.keys() == after.keys()
    assert [name for name in before if before[name] != after[name]] == [
        "mini/similarity/smollm2-135m.jsonl"
    ]
    (cell,) = read_lines(reference / "mini" / "similarity" / "smollm2-135m.jsonl")
    assert cell["inputs"] == {"what": "draws"}


@pytest.mark.parametrize(("profile", "is_kept"), [("mini", True), ("small", False)])
def test_answers_to_questions_of_others_are_not_packed(profile, is_kept, reference):
    result = {"rows": [], "answers": {"triviaqa": ["Rome"]}}
    fill_unit(profile, "scores", "model", Cell({"what": "scores"}, lambda: result))
    pack.pack(profile)
    (cell,) = read_lines(reference / profile / "scores" / "model.jsonl")
    assert ("answers" in cell["result"]) == is_kept
