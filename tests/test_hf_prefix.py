"""The model ``hf-prefix`` of lm-eval's command line."""

import importlib
import json
import os
import subprocess
import sys
import tomllib

import pytest
from lm_eval import simple_evaluate
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager

from harp_lib import load_model
from harp_lib.config import CHECKOUT
from harp_lib.prefix_lm import PrefixLM

ROWS = [
    {"question": "Two and two", "choices": ["four", "five"], "gold": 0},
    {"question": "Three and one", "choices": ["seven", "four"], "gold": 1},
    {"question": "One and one", "choices": ["two", "six"], "gold": 0},
    {"question": "Two and three", "choices": ["nine", "five"], "gold": 1},
]
TASK = """
task: {name}
dataset_path: json
dataset_kwargs: {{data_files: {{test: {rows}}}}}
test_split: test
fewshot_split: test
num_fewshot: 2
fewshot_config: {{sampler: first_n}}
doc_to_text: "{{{{question}}}} make"
{rest}
"""
CHOOSING = """
output_type: multiple_choice
doc_to_choice: choices
doc_to_target: gold
metric_list: [{metric: acc}]
"""
WRITING = """
output_type: generate_until
doc_to_target: "{{choices[gold]}}"
generation_kwargs: {until: ["\\n"], max_gen_toks: 6}
metric_list: [{metric: exact_match}]
"""


@pytest.fixture
def tasks(tmp_path):
    """A folder with one task of choices and one of written answers."""
    rows = tmp_path / "rows.jsonl"
    rows.write_text("\n".join(map(json.dumps, ROWS)), encoding="utf-8")
    folder = tmp_path / "tasks"
    folder.mkdir()
    for name, rest in (("choosing", CHOOSING), ("writing", WRITING)):
        text = TASK.format(name=name, rows=rows, rest=rest)
        (folder / f"{name}.yaml").write_text(text, encoding="utf-8")
    return folder


def test_the_command_line_gives_stock_scores(tasks, saved, tmp_path):
    out = tmp_path / "out"
    command = [sys.executable, "-P", "-m", "harp_lib.prefix_lm", "--model", "hf-prefix"]
    command += ["--model_args", f"pretrained={saved}", "--device", "cpu"]
    command += ["--tasks", "choosing,writing", "--include_path", str(tasks)]
    command += ["--output_path", str(out), "--batch_size", "auto"]
    environment = os.environ | {"PYTHONPATH": str(CHECKOUT), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "hf-prefix" in done.stdout

    model, tokenizer = load_model(saved)
    stock = simple_evaluate(
        HFLM(pretrained=model, tokenizer=tokenizer, device="cpu"),
        tasks=["choosing", "writing"],
        task_manager=TaskManager(include_path=str(tasks), include_defaults=False),
    )
    (file,) = out.rglob("results_*.json")
    scores = json.loads(file.read_text(encoding="utf-8"))["results"]
    for task, score in (("choosing", "acc,none"), ("writing", "exact_match,none")):
        assert scores[task][score] == stock["results"][task][score]


def test_the_entry_point_is_the_model():
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    module, _, name = project["entry-points"]["lm_eval.models"]["hf-prefix"].partition(":")
    assert getattr(importlib.import_module(module), name) is PrefixLM
