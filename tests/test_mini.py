"""The embedded rows can be written again, their answers are right, and they hold no hint."""

import json
import os
import re
import subprocess
import sys
from collections import Counter, defaultdict
from typing import NamedTuple

import pytest

from harp_lib import config
from harp_lib.config import load_profile
from harp_lib.evaluation.benchmarks import BENCHMARKS, CATEGORIES, LONGBENCH, check_rows
from harp_lib.evaluation.evaluator import Evaluator
from harp_lib.evaluation.runner import load_tasks

MINI = config.DATA / "mini"
TEXT_FIELDS = (
    "question",
    "question_stem",
    "sentence",
    "goal",
    "passage",
    "problem",
    "context",
)


class Question(NamedTuple):
    """A row of multiple choice."""

    choices: list[str]
    right: int  # index of the right choice
    text: str  # the question, sentence or goal


def winogrande(row):
    return Question([row["option1"], row["option2"]], int(row["answer"]) - 1, row["sentence"])


def piqa(row):
    return Question([row["sol1"], row["sol2"]], row["label"], row["goal"])


def boolq(row):
    return Question(["no", "yes"], row["label"], row["question"])


def arc_challenge(row):
    return Question(row["choices"]["text"], "ABCD".index(row["answerKey"]), row["question"])


def openbookqa(row):
    return Question(row["choices"]["text"], "ABCD".index(row["answerKey"]), row["question_stem"])


def mmlu(row):
    return Question(row["choices"], row["answer"], row["question"])


CHOICE_TASKS = (winogrande, piqa, boolq, arc_challenge, openbookqa, mmlu)


def read_rows(task, split="*", root=MINI):
    rows = []
    for file in sorted(root.glob(f"{task}/{split}.jsonl")):
        rows.extend(json.loads(line) for line in file.read_text(encoding="utf-8").splitlines())
    return rows


def run_script(name, *arguments, **options):
    script = [sys.executable, "-B", str(MINI / name), *map(str, arguments)]
    return subprocess.run(script, capture_output=True, text=True, **options)


def test_rows_have_the_schema_of_their_tasks():
    check_rows("embedded")


def test_generated_rows_are_written_again_to_the_byte(tmp_path):
    environment = {**os.environ, "PYTHONHASHSEED": "1"}
    run_script("generate.py", "--out", tmp_path, check=True, env=environment)
    written = sorted(file.relative_to(tmp_path) for file in tmp_path.rglob("*.jsonl"))
    written_tasks = {file.parts[0] for file in written}
    assert written_tasks >= {"gsm8k", *(path.name for path in MINI.glob("longbench_*"))}
    for file in written:
        assert (tmp_path / file).read_bytes() == (MINI / file).read_bytes(), file


def test_the_check_computes_all_generated_answers_again():
    assert run_script("check.py", check=True).stdout == "118 answers found again\n"


def test_the_check_refuses_a_wrong_answer(tmp_path):
    row = read_rows("gsm8k", "test")[0]
    right = row["answer"]
    row["answer"] = re.sub(r"#### (\d+)", lambda match: f"#### {int(match[1]) + 1}", right)
    assert row["answer"] != right
    (tmp_path / "gsm8k").mkdir()
    (tmp_path / "gsm8k" / "test.jsonl").write_text(json.dumps(row) + "\n", encoding="utf-8")
    process = run_script("check.py", tmp_path)
    assert process.returncode == 1
    assert "gsm8k: computed" in process.stderr


@pytest.mark.parametrize("read", CHOICE_TASKS, ids=lambda read: read.__name__)
def test_no_question_comes_twice_and_whoever_sees_only_the_answers_is_at_chance(read):
    """Within each set of answers every one is right equally often; positions are balanced.

    BoolQ's answers are always no and yes; there the sets belong to a passage.
    """
    task = read.__name__
    texts = [read(row).text for row in read_rows(f"{task}*")]
    assert len(set(texts)) == len(texts)
    num_choices = BENCHMARKS[task].choices
    times_right = defaultdict(Counter)  # set of answers → answer → how often it is right
    positions = Counter()
    for row in read_rows(f"{task}*", BENCHMARKS[task].split):
        choices, right, _ = read(row)
        answers = row["passage"] if task == "boolq" else frozenset(choices)
        times_right[answers][choices[right]] += 1
        positions[right] += 1
    for counts in times_right.values():
        assert len(counts) == num_choices
        assert len(set(counts.values())) == 1
    assert max(positions.values()) - min(positions.values()) <= 1


def word_runs(rows, length=8):
    """All that so many words in a row say in the texts of some rows."""
    runs = set()
    for row in rows:
        for name in TEXT_FIELDS:
            for line in str(row.get(name, "")).lower().split("\n"):
                words = re.findall(r"\w+", line)
                for start in range(len(words) - length + 1):
                    runs.add(tuple(words[start : start + length]))
    return runs


def test_nothing_is_taken_from_the_real_benchmarks(shared):
    """No eight words in a row are the same, except in BBH, whose form is the official one."""
    tasks = {file.parent.name for file in MINI.glob("*/*.jsonl")}
    for task in sorted(tasks):
        if task.startswith("bbh_"):
            continue
        ours = word_runs(read_rows(task))
        real = word_runs(read_rows(task, root=shared / "benchmarks"))
        assert ours.isdisjoint(real), task


@pytest.mark.real_model
def test_prompts_of_mini_longbench_are_read_uncut(smollm2, tmp_path):
    """One task of each category, by SmolLM2's tokenizer, with room for the answer."""
    _, tokenizer = smollm2
    profile = load_profile("mini")
    section = Evaluator(profile, section="longbench").settings
    assert [LONGBENCH[name].kind for name in section["tasks"]] == list(CATEGORIES)
    for name, settings in section["tasks"].items():
        loaded = load_tasks(LONGBENCH[name], "embedded", settings, tmp_path / name)
        task = loaded["tasks"][name]
        for row in task.dataset["test"]:
            prompt_tokens = len(tokenizer(task.doc_to_text(row)).input_ids)
            total_tokens = prompt_tokens + settings["new_tokens"]
            assert total_tokens <= 600 <= section["context"], name
