"""The script that times the paper's shape on a GPU: here at a small width, on any device."""

import subprocess
import sys

import pytest
from helpers import CHECKOUT, load_script

from harp_lib import config
from harp_lib.circumstances import device_name
from harp_lib.results import read_unit

SCRIPT = CHECKOUT / "data" / "costs" / "paper_times.py"

TRY = """
import sys

BLOCKED = {blocked}

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in BLOCKED:
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Missing())
import runpy
from pathlib import Path
from transformers import AutoConfig
from harp_lib import accounting, config

config.RESULTS = Path({results!r})
sizes = dict(hidden_size=64, intermediate_size=96, vocab_size=500, num_attention_heads=4)
shape = AutoConfig.for_model("llama", **sizes, num_key_value_heads=2, num_hidden_layers=8)
configs = accounting.paper_configs
accounting.paper_configs = lambda: configs() | {{"LLaMA3.1-8B": shape}}
sys.argv = ["paper_times.py", "--lengths", "16", "48", "--contexts", "16"]
runpy.run_path({script!r}, run_name="__main__")
"""


@pytest.fixture
def script():
    return load_script("data/costs/paper_times.py")


def test_it_runs_on_few_packages_and_lists_its_cells(tmp_path, monkeypatch):
    """Its docstring says what it needs."""
    blocked = ("lm_eval", "IPython", "snakemake", "gguf", "matplotlib", "seaborn", "papermill")
    code = TRY.format(blocked=blocked, results=str(tmp_path), script=str(SCRIPT))
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    lines = run.stdout.splitlines()
    assert len(lines) == 5, "a heading, three measurements, seconds in all"
    assert lines[2].startswith("prefill 16 tokens, 10 of 10 rounds: dense ")
    assert ", harp-tail " in lines[2]

    monkeypatch.setattr(config, "RESULTS", tmp_path)
    cells = {}
    for cell in read_unit("small", "efficiency"):  # which notebook 08 shows
        cells[cell["about"]["kind"], cell["about"].get("length")] = cell
    assert set(cells) == {("counted", None), ("decode", 16), ("prefill", 16), ("prefill", 48)}
    name = f"LLaMA3.1-8B (random weights), {device_name()}"
    assert {cell["about"]["model"] for cell in cells.values()} == {name}
    stored = cells["prefill", 48]
    assert list(stored["inputs"]["plans"]) == ["dense", "harp", "harp-tail", "thinned"]
    assert stored["result"]["rows"]["quantity"].count("seconds") == 40, "four variants, ten rounds"


def test_where_the_time_is_short_there_are_fewer_rounds_of_everything(script, monkeypatch):
    monkeypatch.setattr(script.time, "monotonic", lambda: 100.0)
    short = ("prefill", 16)
    long = ("prefill", 64)

    def rounds(seconds_left):
        return script.Rounds(100.0 + seconds_left, {short: 1.0, long: 10.0})

    # Six rounds of everything, and one that warms up, take 77 seconds.
    assert rounds(1000).of_next(short, 10) == 10
    assert rounds(1000).of_next(short, 6) == 6
    assert rounds(77).of_next(short, 10) == 6
    assert rounds(79.5).of_next(short, 10) == 8, "more rounds, of what the longer one leaves"
    assert rounds(90).of_next(long, 10) == 7
    assert rounds(44).of_next(short, 10) == rounds(44).of_next(long, 10) == 3
    assert rounds(-1).of_next(short, 10) == 1


def test_what_was_measured_corrects_the_other_estimates(script):
    estimates = {("decode", 16): 1.0, ("prefill", 16): 1.0, ("prefill", 64): 10.0}
    rounds = script.Rounds(0.0, estimates)
    rounds.correct(("prefill", 16), 2.0)
    assert rounds.seconds == {("decode", 16): 1.0, ("prefill", 64): 20.0}
