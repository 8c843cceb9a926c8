"""Scores: which rows and examples they are of, and that lm-eval itself finds the same.

Scores of choices by hand are in notebook 05.
"""

import json
from types import SimpleNamespace

import numpy as np
import pytest
import yaml
from lm_eval import simple_evaluate
from lm_eval.models.huggingface import HFLM
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
)
from harp_lib.evaluation.evaluator import Evaluator
from harp_lib.evaluation.runner import Runner, load_tasks
from harp_lib.models.registry import tiny_tokenizer
from harp_lib.report.frames import paper

PIQA = {"goal": "To dry a plate,", "sol1": "use a towel.", "sol2": "use a hose.", "label": 0}
MMLU = {"question": "2 + 2?", "subject": "algebra", "choices": ["1", "2", "3", "4"], "answer": 3}


def write_rows(folder, **splits):
    """Rows of each split, as JSONL."""
    folder.mkdir(exist_ok=True, parents=True)
    for split, rows in splits.items():
        lines = [json.dumps(row) for row in rows]
        (folder / f"{split}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")


class TestBenchmarks:
    @pytest.fixture
    def folder(self, tmp_path):
        """A folder of benchmarks: PIQA, and two subjects of MMLU."""
        write_rows(tmp_path / "piqa", train=[PIQA] * 3, validation=[PIQA] * 2)
        write_rows(tmp_path / "mmlu_anatomy", dev=[MMLU], test=[MMLU])
        write_rows(tmp_path / "mmlu_astronomy", dev=[MMLU], test=[MMLU])
        return tmp_path

    def test_they_are_the_papers(self):
        in_tables = {*paper("generation")["task"], *paper("discriminative")["task"]}
        assert set(BENCHMARKS) == in_tables - {"all", "average"}
        assert set(LONGBENCH) <= set(paper("longbench")["task"])
        assert [len(tasks) for tasks in CATEGORIES.values()] == [3, 3, 3, 3, 2, 2]

    def test_the_hub_has_every_official_task(self):
        counts = {
            name: len(available_tasks(benchmark, "hub"))
            for name, benchmark in BENCHMARKS.items()
            if benchmark.subtask
        }
        assert counts == {"leaderboard_math_hard": 7, "bbh_cot_fewshot": 27, "mmlu": 57}
        assert rows_digest(BENCHMARKS["mmlu"], "hub").startswith("hub: cais/mmlu@")

    def test_the_official_file_is_that_of_the_task(self):
        for benchmark in ALL_BENCHMARKS.values():
            for name, official in available_tasks(benchmark, "hub").items():
                assert f"task: {name}" in official.read_text().replace('"', "")

    def test_a_folder_has_the_tasks_that_it_has_rows_of(self, folder):
        mmlu = BENCHMARKS["mmlu"]
        source = str(folder)
        assert list(available_tasks(mmlu, source)) == ["mmlu_anatomy", "mmlu_astronomy"]
        assert list(available_tasks(mmlu, source, 1)) == ["mmlu_anatomy"]
        assert list(available_tasks(mmlu, source, ["mmlu_astronomy"])) == ["mmlu_astronomy"]
        complaint = "mmlu has no subtask 'mmlu_alchemy'; choose from mmlu_abstract_algebra"
        with pytest.raises(ValueError, match=complaint):
            available_tasks(mmlu, source, ["mmlu_alchemy"])

    def test_the_digest_follows_the_rows(self, folder):
        mmlu = BENCHMARKS["mmlu"]
        before = rows_digest(mmlu, str(folder))
        assert rows_digest(mmlu, str(folder), 1) != before
        write_rows(folder / "mmlu_astronomy", dev=[{}])
        assert rows_digest(mmlu, str(folder)) != before

    def test_missing_folders_and_files_are_named(self, folder):
        with pytest.raises(MissingTaskError, match=r"has no folder bbh_cot_fewshot_\*"):
            available_tasks(BENCHMARKS["bbh_cot_fewshot"], str(folder))
        (folder / "piqa" / "train.jsonl").unlink()
        evaluator = Evaluator(load_profile("smoke", datasets=str(folder)))
        with pytest.raises(MissingTaskError, match=r"piqa has no train\.jsonl"):
            evaluator.inputs(BENCHMARKS["piqa"])

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

    def test_a_folder_without_benchmarks_is_refused_unless_it_has_a_text(self, tmp_path):
        complaint = "holds no benchmark and no text; expected folders such as piqa"
        with pytest.raises(MissingTaskError, match=complaint):
            check_rows(str(tmp_path))
        (tmp_path / "wikitext").mkdir()
        check_rows(str(tmp_path))

    def test_a_missing_nested_field_is_named(self, tmp_path):
        row = {"question": "Who?", "answer": {"aliases": ["me"]}}
        write_rows(tmp_path / "triviaqa", train=[row])
        complaint = r"triviaqa/train\.jsonl, line 1: no field 'answer\.value'"
        with pytest.raises(ValueError, match=complaint):
            check_rows(str(tmp_path))

    @pytest.mark.parametrize("benchmark", BENCHMARKS.values(), ids=list(BENCHMARKS))
    def test_rows_examples_and_length_alone_are_ours(self, benchmark, tmp_path):
        """Everything else of a task is as in lm-eval's own file."""
        settings = {"shots": 2, "new_tokens": 7}
        loaded = load_tasks(benchmark, "embedded", settings, tmp_path)["tasks"]
        assert list(loaded) == list(available_tasks(benchmark, "embedded"))
        name = next(iter(loaded))
        task = loaded[name].config
        folder = benchmark.subtasks()[name].parent
        manager = TaskManager(include_path=folder, include_defaults=False)
        official = manager.task_index[name].cfg
        assert task.num_fewshot == 2
        for key in ("doc_to_text", "doc_to_choice", "description", "filter_list", "metric_list"):
            value = official.get(key)
            if isinstance(value, str | list) and "utils" not in str(value):
                ours = getattr(task, key)
                assert ours == value or callable(ours), key
        if benchmark.choices == 0:
            assert task.generation_kwargs == {**official["generation_kwargs"], "max_gen_toks": 7}


class TestScores:
    def test_the_same_seed_draws_the_same_examples(self, tiny):
        model = tiny()
        tokenizer = tiny_tokenizer()
        task = BENCHMARKS["nq_open"]

        def evaluator(seed):
            return Evaluator(load_profile("smoke", limit=6), seed=seed)

        def answers(evaluator):
            return evaluator.evaluate(model, tokenizer, task)["answers"]

        first = evaluator(0)
        once = answers(first)
        assert answers(first) == once, "also when tasks are used again"
        assert answers(evaluator(0)) == once
        other = evaluator(1)
        assert answers(other) != once
        assert other.inputs(task)["shots_seed"] == 1235

    def test_the_same_examples_for_all_questions_depend_on_no_seed(self, tiny):
        model = tiny()
        tokenizer = tiny_tokenizer()
        task = BENCHMARKS["nq_open"]
        inputs = []
        results = []
        for seed in (0, 1):
            evaluator = Evaluator(load_profile("smoke", limit=6), seed=seed)
            evaluator.settings["same_shots"] = True
            inputs.append(evaluator.inputs(task))
            results.append(evaluator.evaluate(model, tokenizer, task))
        assert inputs[0] == inputs[1]
        assert results[0] == results[1]

    def test_a_group_is_its_subtasks_and_nothing_is_printed(self, tiny, capfd):
        profile = load_profile("smoke", limit=3)
        profile["evaluation"]["subtasks"] = None
        result = Evaluator(profile).evaluate(tiny(), tiny_tokenizer(), BENCHMARKS["mmlu"])
        subtasks = list(result["versions"])
        assert len(subtasks) >= 4
        questions = [(row["subtask"], row["question"]) for row in result["rows"]]
        assert questions == [(subtask, number) for subtask in subtasks for number in range(3)]
        assert "answers" not in result
        assert capfd.readouterr() == ("", "")

    @pytest.mark.parametrize(
        ("family", "context", "begins_with_bos"),
        [
            ("tiny-llama", None, False),
            ("tiny-gemma2", None, True),
            ("tiny-llama", 64, True),
            ("tiny-gemma2", 64, True),
        ],
    )
    def test_a_token_begins_the_prompts_of_gemma_and_of_longbench_alone(
        self, tiny, family, context, begins_with_bos
    ):
        runner = Runner(tiny(family), adding_bos(), context=context)
        assert (runner.tok_encode("a")[0] == 1) == begins_with_bos

    @pytest.mark.parametrize("shared", [True, False])
    def test_the_task_limits_an_answer_whatever_the_model_says(self, tiny, monkeypatch, shared):
        model = tiny("tiny-llama")
        runner = Runner(model, tiny_tokenizer())
        if not shared:  # lm-eval's own way to write
            monkeypatch.setattr(runner, "_write", lambda *args: None)
        request = SimpleNamespace(args=("Once", {"until": [], "max_gen_toks": 5}))
        answers = []
        for own_limit in (None, 2, 50):
            model.generation_config.max_new_tokens = own_limit
            answers += runner.generate_until([request])
            assert model.generation_config.max_new_tokens == own_limit
        assert answers[0]
        assert answers == [answers[0]] * 3


class TestAgainstLmEval:
    """Question by question: chosen answers with and without a normalisation, and written ones."""

    TASKS = ("piqa", "arc_challenge", "triviaqa")
    LIMIT = 4

    def our_results(self, model, tokenizer):
        profile = load_profile("smoke", limit=self.LIMIT)
        for task in self.TASKS:
            settings = {"shots": 1, "rows": self.LIMIT, "new_tokens": 12}
            profile["evaluation"]["tasks"][task] = settings
        evaluator = Evaluator(profile)
        return {task: evaluator.evaluate(model, tokenizer, BENCHMARKS[task]) for task in self.TASKS}

    def samples_of_lm_eval(self, model, tokenizer, folder):
        """What lm-eval logs of each question, of tasks that are not written by ``load_tasks``."""
        for task in self.TASKS:
            (official,) = BENCHMARKS[task].subtasks().values()
            files = (config.DATA / "mini" / task).glob("*.jsonl")
            overlay = {
                "include": str(official),
                "task": task,
                "dataset_path": "json",
                "dataset_name": None,
                "dataset_kwargs": {"data_files": {file.stem: str(file) for file in files}},
            }
            (folder / f"{task}.yaml").write_text(yaml.safe_dump(overlay))
        results = simple_evaluate(
            HFLM(pretrained=model, tokenizer=tokenizer, batch_size=8),
            tasks=list(self.TASKS),
            task_manager=TaskManager(include_path=str(folder), include_defaults=False),
            num_fewshot=1,
            gen_kwargs="max_gen_toks=12",
            limit=self.LIMIT,
            bootstrap_iters=0,
        )
        return {
            task: sorted(samples, key=lambda sample: sample["doc_id"])
            for task, samples in results["samples"].items()
        }

    def test_scores_are_those_of_lm_eval(self, tiny, tmp_path):
        model = tiny()
        tokenizer = tiny_tokenizer()
        results = self.our_results(model, tokenizer)
        samples = self.samples_of_lm_eval(model, tokenizer, tmp_path)
        for task in self.TASKS:
            benchmark = BENCHMARKS[task]
            for row, sample in zip(results[task]["rows"], samples[task], strict=True):
                assert row["score"] == sample[benchmark.metric]
                if benchmark.beside:
                    assert row["beside"] == sample[benchmark.beside]
                if benchmark.choices:
                    others = [float(response[0][0]) for response in sample["resps"]]
                    right = others.pop(int(sample["target"]))
                    margin = right - np.logaddexp.reduce(others)
                    assert abs(row["margin"] - margin) < 1e-3
        written = [sample["resps"][0][0] for sample in samples["triviaqa"]]
        assert results["triviaqa"]["answers"] == {"triviaqa": written}
