"""Benchmarks: which tasks are at hand, what lm-eval is told about them, and which rows are refused."""

import json

import pytest
import yaml
from lm_eval.tasks import TaskManager

from harp_lib import cli
from harp_lib.measure.benchmarks import (
    BENCHMARKS,
    DISCRIMINATIVE_TASKS,
    MissingTaskError,
    RowError,
    at_hand,
    check_rows,
    rows_digest,
)
from harp_lib.measure.overlays import write_overlays
from harp_lib.published import published

PIQA = {"goal": "To dry a plate,", "sol1": "use a towel.", "sol2": "use a hose.", "label": 0}


@pytest.fixture
def folder(tmp_path):
    """A folder of benchmarks: PIQA, and two subjects of MMLU."""
    question = {"question": "2 + 2?", "subject": "algebra", "choices": ["1", "2", "3", "4"], "answer": 3}
    write(tmp_path / "piqa", train=[PIQA] * 3, validation=[PIQA] * 2)
    write(tmp_path / "mmlu_anatomy", dev=[question], test=[question])
    write(tmp_path / "mmlu_astronomy", dev=[question], test=[question])
    return tmp_path


def write(folder, **splits):
    folder.mkdir(exist_ok=True)
    for split, rows in splits.items():
        (folder / f"{split}.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n", encoding="utf-8")


def test_the_benchmarks_are_the_papers():
    printed = {*published("generation")["task"], *published("discriminative")["task"]} - {"all", "Average"}
    assert {benchmark.title for benchmark in BENCHMARKS.values()} == printed
    stats = published("dataset_statistics").query("metric == 'choices'")
    choices = dict(zip(stats["task"], stats["value"], strict=True))
    assert {benchmark.title: benchmark.choices for benchmark in DISCRIMINATIVE_TASKS} == choices


def test_the_hub_has_every_official_task():
    counts = {name: len(at_hand(benchmark, "hub")) for name, benchmark in BENCHMARKS.items() if benchmark.is_group}
    assert counts == {"leaderboard_math_hard": 7, "bbh_cot_fewshot": 27, "mmlu": 57}
    for benchmark in BENCHMARKS.values():
        for name, official in at_hand(benchmark, "hub").items():
            assert f"task: {name}" in official.read_text().replace('"', ""), "the file is that task's"
    assert rows_digest(BENCHMARKS["mmlu"], "hub") == "hub"


def test_a_folder_has_what_it_has(folder):
    assert list(at_hand(BENCHMARKS["mmlu"], str(folder))) == ["mmlu_anatomy", "mmlu_astronomy"]
    assert list(at_hand(BENCHMARKS["mmlu"], str(folder), most=1)) == ["mmlu_anatomy"]
    with pytest.raises(MissingTaskError, match=r"has no folder bbh_cot_fewshot_\*"):
        at_hand(BENCHMARKS["bbh_cot_fewshot"], str(folder))
    (folder / "piqa" / "train.jsonl").unlink()
    with pytest.raises(MissingTaskError, match=r"piqa has no train\.jsonl"):
        at_hand(BENCHMARKS["piqa"], str(folder))


def test_the_digest_follows_the_rows(folder):
    before = rows_digest(BENCHMARKS["mmlu"], str(folder))
    assert before != rows_digest(BENCHMARKS["mmlu"], str(folder), most=1)
    (folder / "mmlu_astronomy" / "dev.jsonl").write_text("{}\n", encoding="utf-8")
    assert before != rows_digest(BENCHMARKS["mmlu"], str(folder))


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        (json.dumps({**PIQA, "sol2": None}), "line 3: no field 'sol2'; PIQA needs goal, sol1, sol2, label"),
        (json.dumps(["goal"]), "line 3: no field 'goal'"),
        ('{"goal": ', "line 3: not JSON"),
    ],
)
def test_a_bad_row_is_refused_by_file_and_line(folder, line, complaint, capsys):
    check_rows(str(folder))
    with (folder / "piqa" / "validation.jsonl").open("a", encoding="utf-8") as file:
        file.write(line + "\n")
    with pytest.raises(RowError, match=rf"piqa/validation\.jsonl, {complaint}"):
        check_rows(str(folder))
    assert cli.main(["run", "--profile", "smoke", "--datasets", str(folder)]) == 2, "before anything runs"
    assert f"piqa/validation.jsonl, {complaint}" in capsys.readouterr().err


def test_a_folder_without_benchmarks_is_refused(tmp_path, capsys):
    assert cli.main(["run", "--profile", "smoke", "--datasets", str(tmp_path)]) == 2, "before anything runs"
    assert f"{tmp_path} holds no benchmark and no text; expected folders such as piqa" in capsys.readouterr().err
    (tmp_path / "wikitext").mkdir()
    check_rows(str(tmp_path))


def test_a_nested_field(tmp_path):
    write(tmp_path / "triviaqa", train=[{"question": "Who?", "answer": {"aliases": ["me"]}}])
    with pytest.raises(RowError, match=r"triviaqa/train\.jsonl, line 1: no field 'answer\.value'"):
        check_rows(str(tmp_path))


def test_the_embedded_rows_are_sound():
    check_rows("embedded")


def test_an_overlay_changes_rows_shots_and_length_alone(tmp_path):
    """Everything else of a task is as in lm-eval's own file."""
    for benchmark in BENCHMARKS.values():
        here = tmp_path / benchmark.name
        names = write_overlays(benchmark, "embedded", {"shots": 2, "new_tokens": 7}, here)
        loaded = TaskManager(include_path=here, include_defaults=False).load(benchmark.name)
        assert list(loaded["tasks"]) == names
        assert bool(loaded["groups"]) == benchmark.is_group
        official = TaskManager(include_path=benchmark.subtasks()[names[0]].parent, include_defaults=False).task_index
        task, mine = loaded["tasks"][names[0]].config, yaml.safe_load((here / f"{names[0]}.yaml").read_text())
        assert task.num_fewshot == 2
        for key in ("doc_to_text", "doc_to_choice", "description", "filter_list", "metric_list", "target_delimiter"):
            if isinstance(value := official[names[0]].cfg.get(key), str | list) and "utils" not in str(value):
                assert getattr(task, key) == value or callable(getattr(task, key)), key
        if benchmark.choices == 0:
            theirs = official[names[0]].cfg["generation_kwargs"]
            assert mine["generation_kwargs"] == {**theirs, "max_gen_toks": 7}
