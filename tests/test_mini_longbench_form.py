"""The LongBench rows of the miniature benchmark: schema, size, and what the official metrics make of them."""

import json
import re
from functools import cache
from pathlib import Path

import pytest

from harp_lib import paths
from harp_lib.measure.benchmarks import LONGBENCH
from harp_lib.results import read_results
from harp_lib.statistics import score_estimate

MINI = paths.DATA / "mini"
KEYS = ["question", "context", "answers", "length", "dataset", "language", "all_classes", "_id"]
TASKS = """narrativeqa qasper multifieldqa_en hotpotqa 2wikimqa musique gov_report qmsum multi_news trec triviaqa samsum
passage_count passage_retrieval_en lcc repobench-p"""
all_tasks = pytest.mark.parametrize("task", TASKS.split())


@cache
def rows(task):
    text = (MINI / f"longbench_{task}" / "test.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


def test_the_sixteen_tasks():
    assert {path.name for path in MINI.glob("longbench_*")} == {f"longbench_{task}" for task in TASKS.split()}
    assert sum(file.stat().st_size for file in MINI.glob("longbench_*/*")) < 900_000


@all_tasks
def test_schema(task):
    assert [file.name for file in (MINI / f"longbench_{task}").iterdir()] == ["test.jsonl"]
    (MINI / f"longbench_{task}" / "test.jsonl").read_bytes().decode("ascii")
    assert len(rows(task)) == 4
    for number, row in enumerate(rows(task)):
        assert list(row) == KEYS
        assert (row["dataset"], row["language"], row["_id"]) == (task, "en", f"{task}-{number}")
        assert row["length"] == len(row["context"].split()) + len(row["question"].split())
        assert row["answers"]
        assert all(type(answer) is str and answer.strip() for answer in row["answers"])
        assert not re.search(r"<[a-z]+>|[^{]\{[^}\n]*\|", row["context"] + row["question"]), "a template not filled"
        if task == "trec":
            assert len(set(row["all_classes"])) == len(row["all_classes"]) == 50
            assert set(re.findall(r"Type: (.+)", row["context"])) | set(row["answers"]) <= set(row["all_classes"])
        else:
            assert row["all_classes"] is None


@all_tasks
def test_rows_differ(task):
    for key in ("context", "question") if rows(task)[0]["question"] else ("context",):
        assert len({row[key] for row in rows(task)}) == 4
    assert len({json.dumps(row["answers"]) for row in rows(task)}) >= 3


@all_tasks
def test_words(task):
    for row in rows(task):
        assert 900 <= len(row["context"].split()) <= 2000


@pytest.mark.parametrize("task", [task for task in TASKS.split() if task != "samsum"])
def test_no_question_gives_its_answer_away(task):
    for row in rows(task):
        asked = row["question"].split("Question:")[-1]
        for answer in row["answers"]:
            assert not re.search(rf"\b{re.escape(answer.strip())}(?!\w)", asked)


def runs(text, length=8):
    """All runs of words within a line; what leads from line to line is the official form."""
    lines = [re.findall(r"\w+", line.lower()) for line in text.splitlines()]
    return {tuple(words[i : i + length]) for words in lines for i in range(len(words) - length + 1)}


@all_tasks
def test_nothing_is_taken_from_the_real_rows(task, shared):
    file = shared / "benchmarks" / f"longbench_{task}" / "test.jsonl"
    if not file.is_file():
        pytest.skip("no real benchmark rows beside this checkout")
    real = set()
    for line in file.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        real |= runs(row["context"]) | runs(row["question"])
    for row in rows(task):
        assert (runs(row["context"]) | runs(row["question"])).isdisjoint(real)


@all_tasks
def test_the_official_metric_knows_right_from_wrong(task):
    for package in ("jieba", "fuzzywuzzy", "rouge"):
        pytest.importorskip(package)
    import lm_eval
    from lm_eval.tasks.longbench import metrics

    text = (Path(lm_eval.__file__).parent / "tasks" / "longbench" / f"{task}.yaml").read_text(encoding="utf-8")
    metric = getattr(metrics, re.search(r"process_results: !function metrics\.(\w+)", text)[1])
    for row in rows(task):
        assert metric(row, row["answers"])["score"] == pytest.approx(1)
        assert metric(row, ["zzz"])["score"] < 0.2


def test_the_datasheet_prints_the_scores_of_the_committed_run():
    """Of the profile mini; tasks that it calls above the floor are."""
    sheet, above = (MINI / "README.md").read_text(encoding="utf-8"), []
    for (_, method, name), cell in read_results("mini", "longbench", roots=[paths.REFERENCE]).items():
        if method == "dense":
            value, error = score_estimate(cell["result"]["scores"])
            printed = f"| {LONGBENCH[name].title} | {100 * value:.1f} ± {100 * error:.1f} | {len(rows(name[10:]))} |"
            assert printed in sheet, name
            if value > 2 * error:
                above.append(LONGBENCH[name].title)
    assert sorted(above) == ["GovReport", "Lcc", "MultiNews", "RB-P", "SAMSum", "TriviaQA"]
