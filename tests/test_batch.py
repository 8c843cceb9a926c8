"""Runs of the notebooks: what continues after what, and how a failure is reported.

The notebooks are toys, which no model slows down.
"""

import json
import os
import shutil
import signal
import sys
import time
from pathlib import Path

import nbformat
import psutil
import pytest
from checkouts import Checkout
from helpers import CHECKOUT, ODD_NAME

from harp_lib import batch, cli, config

UNITS = """\
first: {module: toys, notebooks: ["01"]}
second: {module: toys, notebooks: ["02"]}
"""
CELLS = """\
import json
import time
from harp_lib.config import ROOT
from harp_lib.results import Cell


def cells_of(context, unit):
    seconds, result = json.loads((ROOT / "toys.json").read_text()).get(unit, (0, {"rows": []}))

    def one():
        return result

    def two():
        time.sleep(seconds)
        return result

    for compute in (one, two):
        inputs = {"what": f"toy {unit}", "model": context.name, "task": compute.__name__}
        yield Cell(inputs, compute, {"task": compute.__name__})


def first(context):
    return cells_of(context, "first")


def second(context):
    return cells_of(context, "second")
"""
LOGS_ITSELF = """
from harp_lib.config import ROOT

with (ROOT / "executed").open("a") as file:
    file.write("{number} ")
{more}
"""


class Toys(Checkout):
    """A scratch checkout with toys in place of notebooks; 01 and 02 show two cells of a model."""

    def __init__(self, root, notebooks):
        super().__init__(root, notebooks)
        self.code = root  # a copy of the library, to which units are added
        shutil.copytree(CHECKOUT / "harp_lib", root / "harp_lib")
        shutil.copy(CHECKOUT / "Snakefile", root)
        (root / "harp_lib" / "experiments" / "toys.py").write_text(CELLS)
        (root / "data" / "experiments.yaml").unlink()
        (root / "data" / "experiments.yaml").write_text(UNITS)
        self.compute()

    def compute(self, **units):
        """Let the second cell of a unit take so many seconds, and both have a result."""
        (self.root / "toys.json").write_text(json.dumps(units))


def toy(number, more=""):
    """Code of a notebook that logs that it ran."""
    return LOGS_ITSELF.format(number=number, more=more)


def executed_since(checkout):
    """Which toys ran since the last call, in order."""
    file = checkout.root / "executed"
    if not file.exists():
        return []
    numbers = file.read_text().split()
    file.unlink()
    return numbers


def processes_of(checkout):
    """Ids of the processes that work for a checkout."""
    ids = set()
    for process in psutil.process_iter():
        try:
            works_here = process.environ().get("HARP_ROOT") == str(checkout.root)
            if works_here and process.status() != psutil.STATUS_ZOMBIE:
                ids.add(process.pid)
        except psutil.Error:
            continue
    return ids


def wait_until(holds, seconds=300):
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.1)


def interpreter_in(folder):
    """This interpreter in another folder, as ``.venv`` is one in a checkout."""
    python = folder / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.symlink_to(sys.executable)
    for source in Path(sys.prefix).iterdir():
        if source.name in ("lib", "share", "pyvenv.cfg"):
            (folder / source.name).symlink_to(source)
    return python


def test_failures_are_named_and_the_same_command_continues(tmp_path):
    notebooks = {
        "01_good": toy("01"),
        "02_cells": toy("02"),
        "03_raises": toy("03", more='raise ValueError("on purpose")'),
    }
    work = Toys(tmp_path / "a b", notebooks)
    work.compute(second=(0, {"failed": "no memory"}))
    code, shown = work.run("--only", "01,02,03")
    assert code == 1
    assert executed_since(work) == ["01", "02", "03"], "in order, whatever failed before"
    failure = "03_raises            failed: cell [3] raised ValueError: on purpose; see notebooks/"
    assert f"{failure}executed/" in shown
    assert "second/tiny-llama/one: no memory" in shown
    executed = work.root / "notebooks" / "executed" / "smoke"
    assert sorted(file.name for file in executed.iterdir()) == [
        "01_good.ipynb",
        "02_cells.ipynb",
        "03_raises.unfinished.ipynb",
    ]

    work.write("03_raises", toy("03"))
    for listing in work.results.glob("first/*.jsonl"):
        listing.touch()  # as by whoever runs a notebook by hand, which reads all cells
    code, shown = work.run("--only", "01,02,03")
    assert code == 1, "the cells of 02 fail again"
    assert executed_since(work) == ["02", "03"], "cells failed, it raised"
    assert "01_good              up to date" in shown
    text = (executed / "03_raises.ipynb").read_text(encoding="utf-8")
    assert str(tmp_path) not in text


def test_a_changed_sentence_is_copied_and_executes_nothing(tmp_path):
    """Beside a notebook whose code has changed, too."""
    work = Checkout(tmp_path / "work", {"10_one": toy("10"), "11_two": toy("11")})
    executed = work.root / "notebooks" / "executed" / "smoke"

    def executed_notebooks():
        return [nbformat.read(executed / f"{name}.ipynb", 4) for name in ("10_one", "11_two")]

    work.run("--only", "10,11")
    assert executed_since(work) == ["10", "11"]
    stamps = [notebook.metadata["harp"] for notebook in executed_notebooks()]

    work.write("10_one", toy("10"), prose="Another sentence.")
    work.write("11_two", toy("11", more="print(2 + 3)"), prose="A third sentence.")
    code, shown = work.run("--only", "10,11")
    assert code == 0
    assert executed_since(work) == ["11"]
    assert shown.count("up to date") == 1
    assert "10_one               has the prose of its source" in shown
    first, second = executed_notebooks()
    assert "Another sentence." in [cell.source for cell in first.cells]
    assert first.metadata["harp"] == stamps[0]
    assert "A third sentence." in [cell.source for cell in second.cells]
    assert second.cells[-1].outputs[0].text == "5\n"
    assert second.metadata["harp"]["digest"] != stamps[1]["digest"]


SHOWS = """
import os
import sys
import pandas as pd
from harp_lib import config

print(pd.Series([1 / 3]), sys.flags.optimize, os.environ["PYTHONPATH"] == str(config.CHECKOUT))
1
2
"""


def test_what_the_user_has_set_up_does_not_reach_a_run(tmp_path, monkeypatch):
    """Settings of Snakemake, IPython, Jupyter and Python."""
    work = Checkout(tmp_path / "work", {"10_shows": SHOWS})
    rounding = "import pandas\npandas.set_option('display.precision', 2)\n"
    files = {
        "snakemake/config.yaml": "dry-run: true\n",
        "work/profiles/default/config.yaml": "dry-run: true\n",
        "profile_default/ipython_config.py": "c.InteractiveShell.ast_node_interactivity = 'all'",
        "profile_default/startup/00.py": rounding,
        "startup.py": rounding,
        "kernels/python3/kernel.json": '{"argv": ["false"], "display_name": "", "language": ""}',
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setenv("SNAKEMAKE_PROFILE", str(tmp_path / "snakemake"))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path))
    monkeypatch.setenv("PYTHONSTARTUP", str(tmp_path / "startup.py"))
    monkeypatch.setenv("PYTHONOPTIMIZE", "1")
    code, shown = work.run("--only", "10")
    assert code == 0, shown
    executed = work.root / "notebooks" / "executed" / "smoke" / "10_shows.ipynb"
    printed, last = nbformat.read(executed, 4).cells[-1].outputs
    assert printed.text == "0    0.333333\ndtype: float64 0 True\n"
    assert last.data["text/plain"] == "2"


def test_killed_waiting_and_interrupted_runs_leave_finished_cells(tmp_path):
    """The first run is killed while a second one waits, which goes on alone and is interrupted.

    The third one ends well.
    """
    work = Toys(tmp_path / "work", {"01_slow": toy("01")})
    work.compute(first=(100, {"rows": []}))
    first = work.start("--only", "01")
    wait_until(work.cell_files)
    (cell,) = work.cell_files()
    written = cell.stat().st_mtime_ns
    second = work.start("--only", "01")
    waiting = "another run of this checkout is at work: waiting for it"
    wait_until(lambda: waiting in work.shown.read_text())
    of_first = {child.pid for child in psutil.Process(first.pid).children(recursive=True)}
    assert len(of_first) > 1, "engine and job"
    first.kill()
    first.wait()
    wait_until(lambda: not of_first & processes_of(work), 20)
    wait_until(lambda: len(processes_of(work)) > 2)  # engine and job again
    time.sleep(1)
    second.send_signal(signal.SIGINT)
    assert second.wait(60) == 130
    assert "the same command continues" in work.shown.read_text()
    wait_until(lambda: not processes_of(work), 10)
    work.compute()
    code, _ = work.run("--only", "01")
    assert code == 0
    assert executed_since(work) == ["01"]
    assert cell.stat().st_mtime_ns == written, "a finished cell is not computed again"


def test_a_run_that_a_script_put_into_the_background(tmp_path):
    """The shell lets it ignore SIGINT; SIGTERM ends its jobs within seconds all the same."""
    work = Toys(tmp_path / "work", {"01_slow": toy("01")})
    work.compute(first=(60, {"rows": []}))
    of_tests = signal.signal(signal.SIGINT, signal.SIG_IGN)  # children inherit it
    try:
        run = work.start("--only", "01")
    finally:
        signal.signal(signal.SIGINT, of_tests)
    wait_until(work.cell_files)
    run.send_signal(signal.SIGINT)
    time.sleep(1)
    assert run.poll() is None
    run.send_signal(signal.SIGTERM)
    assert run.wait(20) == 130
    wait_until(lambda: not processes_of(work), 10)
    shown = work.shown.read_text()
    assert "01_slow              not run" in shown
    assert "cells/01             interrupted" in shown


@pytest.mark.skipif(shutil.which("sacct") is not None, reason="a cluster")
def test_a_cluster_without_sacct_that_refuses_a_job(tmp_path, monkeypatch):
    """Slurm is asked all the same, and what it answers is on the screen."""
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("sbatch", "squeue", "scontrol"):
        (tools / name).write_text(f"#!/bin/sh\necho {name} says: no such partition >&2\nexit 1\n")
        (tools / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    work = Toys(tmp_path / "work", {"01_one": toy("01")})
    code, shown = work.run("--only", "01", "--executor", "slurm")
    assert code == 1
    assert "sbatch says: no such partition" in shown
    assert "the batch engine stopped:\nwhat it said is above" in shown


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_a_run_needs_no_home_no_plain_name_of_its_folder_and_no_reader(jobs, tmp_path, monkeypatch):
    work = Checkout(tmp_path / ODD_NAME, {"10_prints": "import sys; print('α', sys.executable)"})
    work.python = interpreter_in(work.root / ".venv")
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    for variable in ("HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.setenv(variable, f"{os.devnull}/nothing")
    reader, writer = os.pipe()
    os.close(reader)
    running = work.start("--only", "10", "--jobs", jobs, stdout=writer)
    os.close(writer)
    assert running.wait() == 0, work.shown.read_text()
    executed = work.root / "notebooks" / "executed" / "smoke" / "10_prints.ipynb"
    printed = nbformat.read(executed, 4).cells[-1].outputs[0].text
    assert printed == "α <environment>/bin/python\n"


def test_results_that_cannot_be_written_are_named(tmp_path, monkeypatch, capsys):
    (tmp_path / "file").touch()
    monkeypatch.setattr(config, "RESULTS", tmp_path / "file" / "results")
    for arguments in ([], ["--dry-run"]):
        assert batch.run(options("--profile", "smoke", "--only", "01", *arguments)) == 1
        message = capsys.readouterr().err
        assert message.startswith("run_all.sh: error: ")
        assert str(tmp_path / "file" / "results") in message


def options(*arguments):
    """The options of ``./run_all.sh run``."""
    return cli.parse(["run", *arguments])


def test_an_option_that_no_chosen_notebook_knows_is_refused(capsys):
    assert batch.run(options("--profile", "smoke", "--limit", "3", "--only", "01,03")) == 2
    message = "no parameter 'limit' in 01_similarity, 03_alpha_search"
    assert message in capsys.readouterr().err


def test_rows_are_checked_before_anything_runs(tmp_path, capsys):
    (tmp_path / "boolq").mkdir()
    (tmp_path / "boolq" / "validation.jsonl").write_text('{"passage": "here"}\n')
    assert batch.run(options("--profile", "smoke", "--datasets", str(tmp_path))) == 2
    assert "run_all.sh: error: " in capsys.readouterr().err


def test_a_notebook_gets_the_parameters_that_it_has():
    values = batch._parameters(options("--seed", "3", "--limit", "7"), {"limit": 7})
    assert values["05_main_tables"] == {"profile": "mini", "limit": 7, "seed": 3}
    assert values["03_alpha_search"] == {"profile": "mini", "seed": 3}
