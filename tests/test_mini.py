"""The embedded rows: generated again byte by byte, every generated answer found again, no hint in
the answers alone.
"""

import json
import os
import re
import subprocess
import sys
from collections import Counter, defaultdict

import pytest

from harp_lib import config
from harp_lib.config import load_profile
from harp_lib.evaluation.benchmarks import BENCHMARKS, CATEGORIES, LONGBENCH, check_rows
from harp_lib.evaluation.evaluator import Evaluator
from harp_lib.evaluation.runner import load_tasks

MINI = config.DATA / "mini"
CHOSEN = {  # task → what is chosen from and the right index; the question, passage or goal
    "winogrande": lambda r: ([r["option1"], r["option2"]], int(r["answer"]) - 1, r["sentence"]),
    "piqa": lambda r: ([r["sol1"], r["sol2"]], r["label"], r["goal"]),
    "boolq": lambda r: ([r["passage"]] * 2, r["label"], r["question"]),
    "arc_challenge": lambda r: (r["choices"]["text"], "ABCD".index(r["answerKey"]), r["question"]),
    "openbookqa": lambda r: (
        r["choices"]["text"],
        "ABCD".index(r["answerKey"]),
        r["question_stem"],
    ),
    "mmlu": lambda r: (r["choices"], r["answer"], r["question"]),
}


def rows(task, split="*", root=MINI):
    files = sorted(root.glob(f"{task}/{split}.jsonl"))
    return [
        json.loads(line) for file in files for line in file.read_text(encoding="utf-8").splitlines()
    ]


def test_rows_are_sound_and_written_again_to_the_byte(tmp_path):
    check_rows("embedded")
    script = [sys.executable, "-B", str(MINI / "generate.py"), "--out", str(tmp_path)]
    subprocess.run(script, check=True, env=os.environ | {"PYTHONHASHSEED": "1"})
    written = sorted(file.relative_to(tmp_path) for file in tmp_path.rglob("*.jsonl"))
    assert {file.parts[0] for file in written} >= {
        path.name for path in MINI.glob("longbench_*")
    } | {"gsm8k"}
    assert [
        file for file in written if (tmp_path / file).read_bytes() != (MINI / file).read_bytes()
    ] == []
    done = subprocess.run(
        [sys.executable, "-B", str(MINI / "check.py")], capture_output=True, text=True, check=True
    )
    assert done.stdout == "118 answers found again\n"


def test_the_check_finds_a_wrong_answer(tmp_path):
    (tmp_path / "gsm8k").mkdir()
    row = rows("gsm8k", "test")[0]
    row["answer"] = re.sub(r"#### (\d+)", lambda match: f"#### {int(match[1]) + 1}", row["answer"])
    (tmp_path / "gsm8k" / "test.jsonl").write_text(json.dumps(row) + "\n", encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-B", str(MINI / "check.py"), str(tmp_path)],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert "gsm8k: computed" in done.stderr


@pytest.mark.parametrize("task", CHOSEN)
def test_whoever_sees_only_the_answers_is_at_chance(task):
    """Within each set of answers every one is right equally often; positions are balanced."""
    right, positions = defaultdict(Counter), Counter()
    for row in rows(f"{task}*", BENCHMARKS[task].split):
        choices, index, _ = CHOSEN[task](row)
        key = row["passage"] if task == "boolq" else frozenset(choices)
        right[key][index if task == "boolq" else choices[index]] += 1
        positions[index] += 1
    assert all(
        len(found) == BENCHMARKS[task].choices and len(set(found.values())) == 1
        for found in right.values()
    )
    assert max(positions.values()) - min(positions.values()) <= 1
    questions = [CHOSEN[task](row)[2] for row in rows(f"{task}*")]
    assert len(set(questions)) == len(questions) or task == "boolq"


def runs(rows, length=8):
    """All that so many words in a row say in the texts of some rows."""
    found = set()
    for row in rows:
        for name in (
            "question",
            "question_stem",
            "sentence",
            "goal",
            "passage",
            "problem",
            "context",
        ):
            for line in str(row.get(name, "")).lower().split("\n"):
                words = re.findall(r"\w+", line)
                found |= {
                    tuple(words[start : start + length]) for start in range(len(words) - length + 1)
                }
    return found


def test_nothing_is_taken_from_the_real_benchmarks(shared):
    """No eight words in a row, but for BBH, whose form is the official one."""
    for folder in {file.parent.name for file in MINI.glob("*/*.jsonl")}:
        if not folder.startswith("bbh_"):
            assert runs(rows(folder)).isdisjoint(runs(rows(folder, root=shared / "benchmarks"))), (
                folder
            )


@pytest.mark.real_model
def test_prompts_of_mini_longbench_are_read_uncut(smollm2, tmp_path):
    """One task of each category, by SmolLM2's tokenizer, with room for the answer."""
    profile = load_profile("mini")
    section = Evaluator(profile, section="longbench").settings
    assert [LONGBENCH[name].kind for name in section["tasks"]] == list(CATEGORIES)
    for name, settings in section["tasks"].items():
        task = load_tasks(LONGBENCH[name], "embedded", settings, tmp_path / name)["tasks"][name]
        for row in task.dataset["test"]:
            length = len(smollm2[1](task.doc_to_text(row)).input_ids)
            assert length + settings["new_tokens"] <= 600 <= section["context"], name
