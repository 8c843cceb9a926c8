"""What a run would do, without doing it."""

import pytest
from test_execution import write_notebook

from harp_lib import cli, paths
from harp_lib.dry_run import duration, show
from harp_lib.graph import Job

CELLS = [("main_tables", "owner/model", "harp", task) for task in ("piqa", "boolq", "gsm8k")]


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (None, "unknown"),
        (0.0, ""),
        (0.9, ""),
        (1.0, "1 s"),
        (119.0, "119 s"),
        (120.0, "2 min"),
        (7199.0, "120 min"),
        (7200.0, "2 h"),
        (360_000.0, "100 h"),
    ],
)
def test_a_duration_has_the_unit_that_suits_it(seconds, shown):
    assert duration(seconds) == shown


def test_each_job_is_shown_with_its_reason_cells_and_estimate():
    jobs = {
        "search/m": Job("search/m", {}, [], CELLS[:2], CELLS[1:2], 300.0, "1 of 2 results missing"),
        "notebook/05": Job("notebook/05", {}, ["search/m"], CELLS, CELLS[2:], 90.0, "because"),
        "figures/all": Job("figures/all", {}, ["notebook/05"], why="draws stored results"),
    }
    header, _, *rows, _, total, last = show(jobs).splitlines()
    assert header.split("  ")[0] == "job"
    assert [row.split() for row in rows] == [
        ["search/m", "1", "of", "2", "results", "missing", "1", "of", "2", "5", "min"],
        ["notebook/05", "because", "1", "of", "3", "90", "s"],
        ["figures/all", "draws", "stored", "results"],
    ]
    assert total == "3 jobs, 2 of 3 cells to compute, 6 min in all if one follows the other"
    assert last == "Nothing was run."


def test_what_was_never_measured_is_not_in_the_sum():
    jobs = {name: Job(name, {}, [], CELLS, CELLS, seconds) for name, seconds in [("a", 60.0), ("b", 30.0), ("c", None)]}
    assert (
        show(jobs)
        .splitlines()[-2]
        .endswith("90 s in all if one follows the other; without 1 of the jobs, of which that is not known")
    )


def test_it_shows_cells_and_estimates_and_writes_nothing(tmp_path, monkeypatch, capsys):
    for name in ("RESULTS", "FIGURES", "NOTEBOOKS"):
        monkeypatch.setattr(paths, name, tmp_path / name.lower())
    for name in ("01_one", "03_three", "00_zero"):
        write_notebook(paths.NOTEBOOKS, f"{name}.ipynb", "profile = 'mini'\nlimit = None")
    before = {file: file.read_bytes() for file in tmp_path.rglob("*.*")}
    assert cli.main(["--profile", "mini", "--dry-run"]) == 0
    shown = [line.split() for line in capsys.readouterr().out.splitlines()]
    rows = {row[0]: row for row in shown[2 : shown.index([])]}
    assert list(rows) == [
        "search/smollm2-135m",
        "notebook/01_one",
        "notebook/03_three",
        "figures/all",
        "last/00_zero",
    ]
    assert rows["notebook/01_one"][1:7] == ["no", "result", "stored", "13", "of", "13"]
    assert float(rows["notebook/01_one"][7]) > 1, "the reference run took some seconds"
    assert rows["notebook/01_one"][8:] == ["s"]
    assert "5 jobs, 36 of 36 cells to compute, " in " ".join(shown[-2])
    assert {file: file.read_bytes() for file in tmp_path.rglob("*.*")} == before
    assert [path.name for path in tmp_path.iterdir()] == ["notebooks"]
