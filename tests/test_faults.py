"""Runs that are killed or out of disk come to the same tables, by the same command: a little of tests/faults.py."""

import io
import random

import pytest
from checkouts import Checkout
from faults import full_disk, kills

from harp_lib.console import KernelText
from harp_lib.results import ResultStore

OPTIONS = ("--only", "03", "--models", "tiny-llama")


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """A finished run that nothing happened to: a job that searches, and the notebook that reads what it found."""
    work = Checkout(tmp_path_factory.mktemp("faults") / "undisturbed", OPTIONS)
    code, shown = work.run()
    assert code == 0, shown
    assert work.files()
    return work


def test_killed_runs_come_to_the_same_tables(undisturbed, tmp_path):
    said = []
    assert kills(Checkout(tmp_path / "killed", OPTIONS), undisturbed, 2, random.Random(6), said.append) == []
    assert sum("killed" in line for line in said) == 2


def test_a_full_disk_is_named_and_costs_no_result(undisturbed, tmp_path):
    if (faults := full_disk(tmp_path / "disk", undisturbed, print)) is None:
        pytest.skip("no disk can be mounted here")
    assert faults == []


def test_what_a_killed_writer_left_goes_with_its_cell(tmp_path):
    store = ResultStore("smoke", "experiment", root=tmp_path)
    folder = tmp_path / "smoke" / "experiment" / "model" / "harp"
    folder.mkdir(parents=True)
    left = [folder / name for name in (".task-0a_b1c2d.tmp", ".task-2-0a_b1c2d.tmp", "task.0a1b2c3d.partial")]
    for file in left:
        file.touch()
    store.cell("model", "harp", "task", {}, lambda partial: {"score": 1.0})
    assert [file.exists() for file in left] == [False, True, False]


def test_a_log_shows_what_is_written_after_a_bar():
    stream = io.StringIO()
    text = KernelText(stream)
    text.write("\rperplexities:   0%|    | 0/20 [00:00<?, ?cell/s]results.py:120: UserWarning: dense/reading.json\n")
    text.write("\rperplexities:  50%|##  | 10/20 [00:01<00:01, 9.11cell/s, dense]\n")
    text.close()
    assert "UserWarning: dense/reading.json" in stream.getvalue()
    assert "50%" not in stream.getvalue()
