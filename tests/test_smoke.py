"""All notebooks on tiny models from beginning to end, and some again, killed and continued."""

import contextlib
import json
import os
import random
import time

import nbformat
import psutil
import pytest
import yaml
from checkouts import Checkout, link_results
from helpers import CHECKOUT
from matplotlib import pyplot as plt

from harp_lib import config, notebooks

SEED = "HARP_TEST_SEED"  # an environment variable: the seed of a run that failed
SOME = ("--only", "04", "--models", "tiny-llama", "--jobs", "2")
SOURCES = "".join(file.read_text() for file in CHECKOUT.glob("notebooks/*.ipynb"))
LEFTOVERS = ("*.tmp", "*.partial", "*.error", "*.unreadable*", "*.unfinished.ipynb")


def test_every_notebook_runs(smoke):
    assert smoke.code == 0, smoke.log[-3000:]
    executed = sorted((smoke.root / "notebooks" / "executed" / "smoke").glob("*.ipynb"))
    assert [file.name[:2] for file in executed] == [f"0{number}" for number in range(10)]
    for file in executed:
        text = file.read_text(encoding="utf-8")
        assert str(smoke.root) not in text, file.name
        cells = nbformat.reads(text, as_version=4).cells
        assert all(cell.execution_count for cell in cells if cell.cell_type == "code")


def test_a_run_leaves_no_temporary_files(smoke):
    for pattern in LEFTOVERS:
        assert not list(smoke.root.rglob(pattern))


def test_figures_are_drawn_in_three_formats(smoke):
    folder = smoke.root / "figures" / "smoke"
    pngs = {file.stem for file in folder.glob("*.png")}
    pdfs = {file.stem for file in folder.glob("*.pdf")}
    svgs = {file.stem for file in folder.glob("*.svg")}
    assert pngs == pdfs == svgs
    assert len(pngs) > 20
    assert len(list((folder / "tables").glob("*.csv"))) > 20


LEFT_OUT = {  # sections that a profile may leave empty, and the notebooks that show them
    "efficiency.models": ["08"],
    "efficiency.prefill": ["08"],
    "efficiency.decode.contexts": ["08"],
    "efficiency.split": ["08"],
    "efficiency.llama_cpp": ["08"],
    "evaluation.tasks": ["05", "06"],
    "likelihoods.tasks": ["05", "06", "07", "09"],
    "longbench.tasks": ["07"],
    "longbench.models": ["07"],
    "ablations.models": ["06"],
    "baselines.calibration": ["03", "04"],
    "baselines.groups_per_layer": ["04"],
    "baselines.flap_layers": ["04"],
    "frontier.shares": ["02", "03", "09"],
    "frontier.searched": ["09"],
    "frontier.searched_again": ["09"],
    "frontier.seeds": ["09"],
    "frontier.curve": ["09"],
    "frontier.rankings": ["09"],
    "frontier.passkey.lengths": ["09"],
    "frontier.passkey_study": ["09"],
    "frontier.tasks": ["09"],
}


@pytest.fixture
def run_without(smoke, tmp_path, monkeypatch):
    """A function that runs notebooks with some sections of the profile smoke empty.

    It reads the cells of the smoke run, and computes in this process those that are missing.
    """
    monkeypatch.setattr(config, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(config, "FIGURES", tmp_path / "figures")
    monkeypatch.setattr(config, "PROFILES", tmp_path)
    monkeypatch.chdir(config.NOTEBOOKS)
    link_results(smoke.results.parent, config.RESULTS)

    def run(sections, numbers):
        profile = yaml.safe_load((CHECKOUT / "data" / "profiles" / "smoke.yaml").read_text())
        profile["models"] = ["tiny-llama"]
        for section in sections:
            *above, last = section.split(".")
            place = profile
            for name in above:
                place = place[name]
            is_list = place[last] is None or isinstance(place[last], list)
            place[last] = [] if is_list else {}
        (tmp_path / "smoke.yaml").write_text(yaml.safe_dump(profile))
        for name in notebooks.names():
            if name[:2] in numbers:
                _run_cells(notebooks.without_left_out(notebooks.read(name), profile))

    return run


def _run_cells(notebook):
    """Run what a notebook computes and shows, without what a reader computes by hand."""
    names = {}
    for cell in notebook.cells:
        tags = cell.metadata.get("tags", [])
        by_hand = notebooks.LOADS_A_MODEL in tags
        if cell.source.startswith("results.leave_out") or "experiments.run(" in cell.source:
            by_hand = False
        if cell.cell_type == "code" and not by_hand:
            exec(compile(cell.source, cell.id, "exec"), names)
        if notebooks.PARAMETERS in tags:
            names["profile"] = "smoke"
    plt.close("all")


def test_a_profile_may_leave_everything_out(run_without, capsys):
    sections = [name for name in LEFT_OUT if not name.endswith(".models")]
    run_without(sections, ["02", "03", "04", "05", "06", "07", "08", "09"])
    shown = capsys.readouterr().out
    for section in sections:
        if f'"needs:{section}' in SOURCES:
            assert f"The profile smoke leaves out {section}" in shown
    assert "Nothing was timed: the profile asks for nothing, or llama.cpp cannot" in shown


@pytest.mark.release
@pytest.mark.parametrize("section", LEFT_OUT)
def test_a_profile_may_leave_a_section_out(section, run_without, capsys):
    run_without([section], LEFT_OUT[section])  # which raises if a cell does
    shown = capsys.readouterr().out
    if f'"needs:{section}' in SOURCES:
        assert f"The profile smoke leaves out {section}" in shown


def test_what_is_done_is_left_alone_and_what_is_gone_comes_back(smoke):
    code, shown = smoke.run()
    assert code == 0
    assert shown.count("up to date") == 10
    before = smoke.cells()
    first, *_ = (smoke.results / "norms" / "tiny-llama.jsonl").read_text().splitlines()
    (smoke.results.parent / "cells" / f"{json.loads(first)['cell']}.json").unlink()
    code, shown = smoke.run("--only", "01,02")
    assert code == 0
    assert shown.count("up to date") == 1
    assert shown.count("1 cells computed") == 1
    assert smoke.cells() == before


@pytest.fixture
def seed():
    """Another seed in each run, unless the environment gives one.

    It is printed, because pytest shows what a failing test prints.
    """
    seed = int(os.environ.get(SEED) or random.SystemRandom().randrange(10**6))
    print(f"again with the same draws: {SEED}={seed} ./run_all.sh test -k kills")
    return seed


def kill(running, name):
    """Kill a process of a run with this argument, as soon as there is one."""
    runner = psutil.Process(running.pid)
    while running.poll() is None:
        with contextlib.suppress(psutil.NoSuchProcess):  # a process ended meanwhile
            for process in [runner, *runner.children(recursive=True)]:
                # The shell around a job is not the job.
                if process.name() != "bash" and name in process.cmdline():
                    process.kill()
                    return
        time.sleep(0.01)
    raise AssertionError(f"the run ended, and no {name} was seen")


def test_kills_and_another_way_to_run_change_nothing(smoke, tmp_path, seed):
    """Two jobs at a time compute the cells; the runner and later a job are killed somewhere.

    After each kill the same command is given again.
    """
    work = Checkout(tmp_path / "work")
    finished = {}  # cells, and when they were written
    generator = random.Random(seed)
    for name in ("harp_lib.cli", "harp_lib.jobs"):
        running = work.start(*SOME)
        enough = len(finished) + generator.randrange(1, 25)  # cells, and then it is killed
        while len(work.cell_files()) < enough:
            assert running.poll() is None
            time.sleep(0.1)
        kill(running, name)
        assert running.wait(600) != 0
        now_finished = work.cell_files()
        assert finished.items() <= now_finished.items(), "a finished cell was computed again"
        finished = now_finished
    code, shown = work.run(*SOME)
    assert code == 0, shown
    cells = work.cells()
    undisturbed = smoke.cells()
    assert len(cells) > 50
    assert cells == {name: undisturbed[name] for name in cells}
