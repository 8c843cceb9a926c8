"""Scores: which rows, which examples, and that they are those of lm-eval (choices by hand: notebook
05).
"""

import json
import subprocess
import sys

import numpy as np
import pytest
import yaml
from lm_eval.tasks import TaskManager
from test_text import adding_bos

from harp_lib import config
from harp_lib.config import load_profile
from harp_lib.evaluation.benchmarks import (
    ALL_BENCHMARKS,
    BENCHMARKS,
    CATEGORIES,
    LONGBENCH,
    MissingTaskError,
    available_tasks,
    check_rows,
    rows_digest,
    task_title,
)
from harp_lib.evaluation.evaluator import Evaluator, _revisions
from harp_lib.evaluation.runner import Runner, load_tasks
from harp_lib.models.registry import tiny_tokenizer
from harp_lib.report.data import paper

PIQA = {"goal": "To dry a plate,", "sol1": "use a towel.", "sol2": "use a hose.", "label": 0}


def write(folder, **splits):
    folder.mkdir(exist_ok=True, parents=True)
    for split, rows in splits.items():
        (folder / f"{split}.jsonl").write_text(
            "\n".join(map(json.dumps, rows)) + "\n", encoding="utf-8"
        )


class TestBenchmarks:
    @pytest.fixture
    def folder(self, tmp_path):
        """A folder of benchmarks: PIQA, and two subjects of MMLU."""
        question = {
            "question": "2 + 2?",
            "subject": "algebra",
            "choices": ["1", "2", "3", "4"],
            "answer": 3,
        }
        write(tmp_path / "piqa", train=[PIQA] * 3, validation=[PIQA] * 2)
        write(tmp_path / "mmlu_anatomy", dev=[question], test=[question])
        write(tmp_path / "mmlu_astronomy", dev=[question], test=[question])
        return tmp_path

    def test_they_are_the_papers(self):
        assert set(BENCHMARKS) == {
            *paper("generation")["task"],
            *paper("discriminative")["task"],
        } - {"all", "average"}
        assert set(LONGBENCH) <= set(paper("longbench")["task"])
        assert [len(tasks) for tasks in CATEGORIES.values()] == [3, 3, 3, 3, 2, 2]
        assert task_title("triviaqa", "hub") == "TriviaQA"
        assert task_title("longbench_trec", "embedded") == "mini-TREC"

    def test_the_hub_has_every_official_task(self):
        counts = {
            name: len(available_tasks(task, "hub")) for name, task in BENCHMARKS.items() if task.subtask
        }
        assert counts == {"leaderboard_math_hard": 7, "bbh_cot_fewshot": 27, "mmlu": 57}
        for benchmark in ALL_BENCHMARKS.values():
            for name, official in available_tasks(benchmark, "hub").items():
                assert f"task: {name}" in official.read_text().replace('"', ""), (
                    "the file is that task's"
                )
        assert rows_digest(BENCHMARKS["mmlu"], "hub") == "hub"

    def test_a_folder_has_what_it_has(self, folder):
        mmlu, before = BENCHMARKS["mmlu"], rows_digest(BENCHMARKS["mmlu"], str(folder))
        assert list(available_tasks(mmlu, str(folder))) == ["mmlu_anatomy", "mmlu_astronomy"]
        assert list(available_tasks(mmlu, str(folder), 1)) == ["mmlu_anatomy"]
        assert list(available_tasks(mmlu, str(folder), ["mmlu_astronomy"])) == ["mmlu_astronomy"]
        with pytest.raises(
            ValueError,
            match="mmlu has no subtask 'mmlu_alchemy'; choose from mmlu_abstract_algebra",
        ):
            available_tasks(mmlu, str(folder), ["mmlu_alchemy"])
        assert before != rows_digest(mmlu, str(folder), 1)
        write(folder / "mmlu_astronomy", dev=[{}])
        assert before != rows_digest(mmlu, str(folder)), "the digest follows the rows"
        with pytest.raises(MissingTaskError, match=r"has no folder bbh_cot_fewshot_\*"):
            available_tasks(BENCHMARKS["bbh_cot_fewshot"], str(folder))
        (folder / "piqa" / "train.jsonl").unlink()
        with pytest.raises(MissingTaskError, match=r"piqa has no train\.jsonl"):
            Evaluator(load_profile("smoke", datasets=str(folder))).inputs(BENCHMARKS["piqa"])

    @pytest.mark.parametrize(
        ("line", "complaint"),
        [
            (
                json.dumps({**PIQA, "sol2": None}),
                "line 3: no field 'sol2'; PIQA needs goal, sol1, sol2, label",
            ),
            (json.dumps(["goal"]), "line 3: no field 'goal'"),
            ('{"goal": ', "line 3: not JSON"),
        ],
    )
    def test_a_bad_row_is_refused_by_file_and_line(self, folder, line, complaint):
        check_rows(str(folder))
        with (folder / "piqa" / "validation.jsonl").open("a", encoding="utf-8") as file:
            file.write(line + "\n")
        with pytest.raises(ValueError, match=rf"piqa/validation\.jsonl, {complaint}"):
            check_rows(str(folder))

    def test_folders_without_benchmarks_or_nested_fields(self, tmp_path):
        with pytest.raises(
            MissingTaskError, match="holds no benchmark and no text; expected folders such as piqa"
        ):
            check_rows(str(tmp_path))
        (tmp_path / "wikitext").mkdir()
        check_rows(str(tmp_path))
        write(tmp_path / "triviaqa", train=[{"question": "Who?", "answer": {"aliases": ["me"]}}])
        with pytest.raises(
            ValueError, match=r"triviaqa/train\.jsonl, line 1: no field 'answer\.value'"
        ):
            check_rows(str(tmp_path))

    def test_rows_shots_and_length_alone_are_ours(self, tmp_path):
        """Everything else of a task is as in lm-eval's own file."""
        for benchmark in BENCHMARKS.values():
            loaded = load_tasks(benchmark, "embedded", {"shots": 2, "new_tokens": 7}, tmp_path)[
                "tasks"
            ]
            assert list(loaded) == list(available_tasks(benchmark, "embedded"))
            name = next(iter(loaded))
            official = TaskManager(
                include_path=benchmark.subtasks()[name].parent, include_defaults=False
            )
            official, task = official.task_index[name].cfg, loaded[name].config
            assert task.num_fewshot == 2
            for key in (
                "doc_to_text",
                "doc_to_choice",
                "description",
                "filter_list",
                "metric_list",
            ):
                if isinstance(value := official.get(key), str | list) and "utils" not in str(value):
                    assert getattr(task, key) == value or callable(getattr(task, key)), key
            if benchmark.choices == 0:
                assert task.generation_kwargs == {
                    **official["generation_kwargs"],
                    "max_gen_toks": 7,
                }

    def test_commits_of_hub_datasets_are_recorded(self):
        class Split:
            info = type(
                "",
                (),
                {"download_checksums": {f"hf://datasets/Xn/Long@{'a' * 40}/qasper.jsonl": {}}},
            )

        task = type("", (), {"dataset": {"test": Split}})
        local = type(
            "",
            (),
            {
                "dataset": {
                    "test": type("", (), {"info": type("", (), {"download_checksums": None})})
                }
            },
        )
        assert _revisions([task, local]) == {"Xn/Long": "a" * 40}


class TestScores:
    def test_the_same_seed_draws_the_same_examples(self, tiny):
        model, tokenizer, task = tiny(), tiny_tokenizer(), BENCHMARKS["nq_open"]
        first, second, other = (
            Evaluator(load_profile("smoke", limit=6), seed=seed) for seed in (0, 0, 1)
        )
        answers = [
            e.evaluate(model, tokenizer, task)["answers"] for e in (first, first, second, other)
        ]
        assert answers[0] == answers[1] == answers[2], "also when tasks are used again"
        assert answers[3] != answers[0]
        assert other.inputs(task)["shots_seed"] == 1235
        for e in (first, other):
            e.settings["same_shots"] = True
            e._loaded.clear()
        assert first.inputs(task) == other.inputs(task)
        assert first.evaluate(model, tokenizer, task) == other.evaluate(model, tokenizer, task), (
            "the first ones"
        )

    def test_a_group_is_its_subtasks_and_nothing_is_printed(self, tiny, capfd):
        profile = load_profile("smoke", limit=3)
        profile["evaluation"]["subtasks"] = None
        found = Evaluator(profile).evaluate(tiny(), tiny_tokenizer(), BENCHMARKS["mmlu"])
        asked = [(row["subtask"], row["question"]) for row in found["rows"]]
        assert asked == [
            (subtask, question) for subtask in found["versions"] for question in range(3)
        ]
        assert len(found["versions"]) >= 4
        assert "answers" not in found
        assert capfd.readouterr() == ("", "")

    @pytest.mark.parametrize("family", ["tiny-llama", "tiny-gemma2"])
    def test_a_token_begins_the_prompts_of_gemma_and_of_longbench_alone(self, tiny, family):
        tokenizer = adding_bos()
        for context in (None, 64):
            begins = Runner(tiny(family), tokenizer, context=context).tok_encode("a")[0] == 1
            assert begins == (family == "tiny-gemma2" or context is not None)

    def test_scores_are_those_of_the_lm_eval_command(self, tiny, tmp_path):
        """Question by question: chosen answers with and without a normalisation, and written ones."""
        tasks, limit, rows = ("piqa", "arc_challenge", "triviaqa"), 4, config.DATA / "mini"
        profile = load_profile("smoke", limit=limit)
        profile["evaluation"]["tasks"] |= {
            task: {"shots": 1, "rows": limit, "new_tokens": 12} for task in tasks
        }
        model, tokenizer, evaluator = tiny(), tiny_tokenizer(), Evaluator(profile)
        ours = {task: evaluator.evaluate(model, tokenizer, BENCHMARKS[task]) for task in tasks}
        (tmp_path / "tasks").mkdir()
        model.save_pretrained(tmp_path / "model")
        tokenizer.save_pretrained(tmp_path / "model")
        for task in tasks:  # by hand, not by our overlays
            splits = {file.stem: str(file) for file in (rows / task).glob("*.jsonl")}
            official = next(iter(BENCHMARKS[task].subtasks().values()))
            data = {
                "dataset_path": "json",
                "dataset_name": None,
                "dataset_kwargs": {"data_files": splits},
            }
            overlay = {"include": str(official), "task": task} | data
            (tmp_path / "tasks" / f"{task}.yaml").write_text(yaml.safe_dump(overlay))
        command = f"""-m lm_eval --model hf --model_args pretrained={tmp_path / "model"},dtype=float32
            --device {model.device} --tasks {",".join(tasks)} --include_path {tmp_path / "tasks"} --num_fewshot 1
            --gen_kwargs max_gen_toks=12 --limit {limit} --batch_size 8 --log_samples
            --output_path {tmp_path / "out"}""".split()
        done = subprocess.run([sys.executable, *command], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        for task in tasks:
            samples = (
                next((tmp_path / "out").rglob(f"samples_{task}_*.jsonl")).read_text().splitlines()
            )
            rows = sorted(map(json.loads, samples), key=lambda row: row["doc_id"])
            asked = ours[task]["rows"]
            assert [row["score"] for row in asked] == [row[BENCHMARKS[task].metric] for row in rows]
            if name := BENCHMARKS[task].beside:
                assert [row["beside"] for row in asked] == [row[name] for row in rows]
            if BENCHMARKS[task].choices:
                for row, sample in zip(asked, rows, strict=True):
                    others = [float(response[0][0]) for response in sample["resps"]]
                    right = others.pop(int(sample["target"]))
                    assert abs(row["margin"] - (right - np.logaddexp.reduce(others))) < 1e-3
        assert ours["triviaqa"]["answers"] == {"triviaqa": [row["resps"][0][0] for row in rows]}, (
            "also what was written"
        )
