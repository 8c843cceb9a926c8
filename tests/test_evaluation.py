"""Scores: which rows, one question at a time against the model's own likelihoods, LongBench by its protocol."""

import csv
import json
import os
import subprocess
import sys

import pytest
import torch
import yaml
from lm_eval.tasks import TaskManager

from harp_lib import config, load_model
from harp_lib.config import load_profile
from harp_lib.measure import longbench
from harp_lib.measure.evaluation import (
    ALL_BENCHMARKS,
    BENCHMARKS,
    CATEGORIES,
    LONGBENCH,
    Evaluator,
    MissingTaskError,
    RowError,
    _revisions,
    at_hand,
    check_rows,
    rows_digest,
    task_title,
)
from harp_lib.measure.registry import tiny_tokenizer
from harp_lib.measure.runner import Runner, load_tasks, write_overlays

PIQA = {"goal": "To dry a plate,", "sol1": "use a towel.", "sol2": "use a hose.", "label": 0}
WORDS = ["river", "stone", "lantern", "orchard", "copper", "meadow", "harbour", "window", "saddle", "thunder"]


def write(folder, **splits):
    folder.mkdir(exist_ok=True, parents=True)
    for split, rows in splits.items():
        (folder / f"{split}.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n", encoding="utf-8")


def printed(table, column="task"):
    with (config.PAPER / f"{table}.csv").open(encoding="utf-8") as file:
        return list(dict.fromkeys(row[column] for row in csv.DictReader(file)))


class TestBenchmarks:
    @pytest.fixture
    def folder(self, tmp_path):
        """A folder of benchmarks: PIQA, and two subjects of MMLU."""
        question = {"question": "2 + 2?", "subject": "algebra", "choices": ["1", "2", "3", "4"], "answer": 3}
        write(tmp_path / "piqa", train=[PIQA] * 3, validation=[PIQA] * 2)
        write(tmp_path / "mmlu_anatomy", dev=[question], test=[question])
        write(tmp_path / "mmlu_astronomy", dev=[question], test=[question])
        return tmp_path

    def test_they_are_the_papers(self):
        assert set(BENCHMARKS) == {*printed("generation"), *printed("discriminative")} - {"all", "average"}
        assert set(LONGBENCH) <= set(printed("longbench"))
        assert [len(tasks) for tasks in CATEGORIES.values()] == [3, 3, 3, 3, 2, 2]
        assert all(hasattr(longbench, task.scorer) for task in LONGBENCH.values())
        assert len(ALL_BENCHMARKS) == 27
        assert task_title("triviaqa", "hub") == "TriviaQA"
        assert task_title("longbench_trec", "embedded") == "mini-TREC"

    def test_the_hub_has_every_official_task(self):
        counts = {name: len(at_hand(task, "hub")) for name, task in BENCHMARKS.items() if task.is_group}
        assert counts == {"leaderboard_math_hard": 7, "bbh_cot_fewshot": 27, "mmlu": 57}
        for benchmark in ALL_BENCHMARKS.values():
            for name, official in at_hand(benchmark, "hub").items():
                assert f"task: {name}" in official.read_text().replace('"', ""), "the file is that task's"
        assert rows_digest(BENCHMARKS["mmlu"], "hub") == "hub"

    def test_a_folder_has_what_it_has(self, folder):
        mmlu, before = BENCHMARKS["mmlu"], rows_digest(BENCHMARKS["mmlu"], str(folder))
        assert list(at_hand(mmlu, str(folder))) == ["mmlu_anatomy", "mmlu_astronomy"]
        assert list(at_hand(mmlu, str(folder), most=1)) == ["mmlu_anatomy"]
        assert before != rows_digest(mmlu, str(folder), most=1)
        write(folder / "mmlu_astronomy", dev=[{}])
        assert before != rows_digest(mmlu, str(folder)), "the digest follows the rows"
        with pytest.raises(MissingTaskError, match=r"has no folder bbh_cot_fewshot_\*"):
            at_hand(BENCHMARKS["bbh_cot_fewshot"], str(folder))
        (folder / "piqa" / "train.jsonl").unlink()
        with pytest.raises(MissingTaskError, match=r"piqa has no train\.jsonl"):
            Evaluator(load_profile("smoke", datasets=str(folder))).inputs(BENCHMARKS["piqa"])

    @pytest.mark.parametrize(
        ("line", "complaint"),
        [
            (json.dumps({**PIQA, "sol2": None}), "line 3: no field 'sol2'; PIQA needs goal, sol1, sol2, label"),
            (json.dumps(["goal"]), "line 3: no field 'goal'"),
            ('{"goal": ', "line 3: not JSON"),
        ],
    )
    def test_a_bad_row_is_refused_by_file_and_line(self, folder, line, complaint):
        check_rows(str(folder))
        with (folder / "piqa" / "validation.jsonl").open("a", encoding="utf-8") as file:
            file.write(line + "\n")
        with pytest.raises(RowError, match=rf"piqa/validation\.jsonl, {complaint}"):
            check_rows(str(folder))

    def test_folders_without_benchmarks_or_nested_fields(self, tmp_path):
        with pytest.raises(MissingTaskError, match="holds no benchmark and no text; expected folders such as piqa"):
            check_rows(str(tmp_path))
        (tmp_path / "wikitext").mkdir()
        check_rows(str(tmp_path))
        write(tmp_path / "triviaqa", train=[{"question": "Who?", "answer": {"aliases": ["me"]}}])
        with pytest.raises(RowError, match=r"triviaqa/train\.jsonl, line 1: no field 'answer\.value'"):
            check_rows(str(tmp_path))

    def test_an_overlay_changes_rows_shots_and_length_alone(self, tmp_path):
        """Everything else of a task is as in lm-eval's own file."""
        for benchmark in BENCHMARKS.values():
            here = tmp_path / benchmark.name
            names = write_overlays(benchmark, "embedded", {"shots": 2, "new_tokens": 7}, here)
            loaded = TaskManager(include_path=here, include_defaults=False).load(benchmark.name)
            assert list(loaded["tasks"]) == names
            assert bool(loaded["groups"]) == benchmark.is_group
            official = TaskManager(include_path=benchmark.subtasks()[names[0]].parent, include_defaults=False)
            official = official.task_index[names[0]].cfg
            task, mine = loaded["tasks"][names[0]].config, yaml.safe_load((here / f"{names[0]}.yaml").read_text())
            assert task.num_fewshot == 2
            for key in ("doc_to_text", "doc_to_choice", "description", "filter_list", "metric_list"):
                if isinstance(value := official.get(key), str | list) and "utils" not in str(value):
                    assert getattr(task, key) == value or callable(getattr(task, key)), key
            if benchmark.choices == 0:
                assert mine["generation_kwargs"] == {**official["generation_kwargs"], "max_gen_toks": 7}

    def test_commits_of_hub_datasets_are_recorded(self):
        class Split:
            info = type("", (), {"download_checksums": {f"hf://datasets/Xn/Long@{'a' * 40}/qasper.jsonl": {}}})

        task = type("", (), {"dataset": {"test": Split}})
        local = type("", (), {"dataset": {"test": type("", (), {"info": type("", (), {"download_checksums": None})})}})
        assert _revisions([task, local]) == {"Xn/Long": "a" * 40}


@pytest.fixture
def evaluator():
    return Evaluator(load_profile("smoke", limit=4))


def log_likelihood(model, tokenizer, context, continuation):
    """The obvious way: one sequence, no batch, no padding."""
    before, whole = (tokenizer(text, return_tensors="pt").input_ids for text in (context, context + continuation))
    with torch.no_grad():
        scores = model(whole).logits.log_softmax(-1)
    after = whole[0, before.shape[1] :]
    return scores[0, before.shape[1] - 1 : -1].gather(-1, after[:, None]).sum().item()


def mini_rows(task, split):
    return [json.loads(line) for line in (config.DATA / "mini" / task / f"{split}.jsonl").read_text().splitlines()]


class TestScores:
    def test_choices_are_scored_by_likelihood(self, evaluator, tiny):
        """OpenBookQA, by hand."""
        model, tokenizer = tiny(), tiny_tokenizer()
        found = evaluator.evaluate(model, tokenizer, BENCHMARKS["openbookqa"])
        for row, score in zip(mini_rows("openbookqa", "test"), found["scores"], strict=False):
            texts = row["choices"]["text"]
            likelihoods = [log_likelihood(model, tokenizer, row["question_stem"], f" {text}") for text in texts]
            best = likelihoods.index(max(likelihoods))
            assert score == (row["choices"]["label"][best] == row["answerKey"])
        assert len(found["scores"]) == len(found["beside"]) == 4
        assert found["subtasks"] == {"openbookqa": 4}
        assert "answers" not in found

    def test_the_same_seed_draws_the_same_examples(self, tiny):
        model, tokenizer, task = tiny(), tiny_tokenizer(), BENCHMARKS["nq_open"]
        first, second, other = (Evaluator(load_profile("smoke", limit=6), seed=seed) for seed in (0, 0, 1))
        answers = [e.evaluate(model, tokenizer, task)["answers"] for e in (first, first, second, other)]
        assert answers[0] == answers[1] == answers[2], "also when tasks are used again"
        assert answers[3] != answers[0]
        assert other.inputs(task)["shots_seed"] == 1235
        for e in (first, other):
            e.settings["same_shots"] = True
            e._loaded.clear()
        assert first.inputs(task) == other.inputs(task)
        assert first.evaluate(model, tokenizer, task) == other.evaluate(model, tokenizer, task), "the first ones"

    def test_a_group_is_its_subtasks_and_nothing_is_printed(self, tiny, capfd):
        profile = load_profile("smoke", limit=3)
        profile["evaluation"]["subtasks"] = None
        found = Evaluator(profile).evaluate(tiny(), tiny_tokenizer(), BENCHMARKS["mmlu"])
        assert list(found["subtasks"].values()) == [3] * len(found["subtasks"])
        assert len(found["subtasks"]) >= 4
        assert len(found["scores"]) == 3 * len(found["subtasks"])
        assert found["versions"].keys() == found["subtasks"].keys()
        assert capfd.readouterr() == ("", "")

    @pytest.mark.parametrize("family", ["tiny-llama", "tiny-gemma2"])
    def test_a_token_begins_the_prompts_of_gemma_and_of_longbench_alone(self, tiny, family):
        from tokenizers.processors import TemplateProcessing

        tokenizer = tiny_tokenizer()
        tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
            single="<bos> $A", special_tokens=[("<bos>", 1)]
        )
        assert tokenizer("a").input_ids[0] == 1
        for context in (None, 64):
            begins = Runner(tiny(family), tokenizer, context=context).tok_encode("a")[0] == 1
            assert begins == (family == "tiny-gemma2" or context is not None)

    @pytest.mark.real_model
    def test_scores_are_those_of_the_lm_eval_command(self, shared, tmp_path):
        """Dense SmolLM2 on real rows: chosen answers with and without examples, and written ones."""
        tasks, limit = ("piqa", "arc_challenge", "triviaqa"), 4
        profile = load_profile("mini", datasets=str(shared / "benchmarks"), limit=limit)
        profile["evaluation"]["tasks"]["triviaqa"]["new_tokens"] = 12
        profile["evaluation"]["same_shots"] = False
        for task in tasks:
            profile["evaluation"]["tasks"][task]["shots"] = 1
        model, tokenizer = load_model("smollm2-135m")
        evaluator = Evaluator(profile)
        ours = {task: evaluator.evaluate(model, tokenizer, BENCHMARKS[task]) for task in tasks}
        (tmp_path / "tasks").mkdir()
        model.save_pretrained(tmp_path / "model")
        tokenizer.save_pretrained(tmp_path / "model")
        for task in tasks:  # by hand, not by our overlays
            splits = {file.stem: str(file) for file in (shared / "benchmarks" / task).glob("*.jsonl")}
            official = next(iter(BENCHMARKS[task].subtasks().values()))
            data = {"dataset_path": "json", "dataset_name": None, "dataset_kwargs": {"data_files": splits}}
            overlay = {"include": str(official), "task": task} | data
            (tmp_path / "tasks" / f"{task}.yaml").write_text(yaml.safe_dump(overlay))
        command = f"""-m lm_eval --model hf --model_args pretrained={tmp_path / "model"},dtype=float32
            --device {model.device} --tasks {",".join(tasks)} --include_path {tmp_path / "tasks"} --num_fewshot 1
            --gen_kwargs max_gen_toks=12 --limit {limit} --batch_size 8 --log_samples
            --output_path {tmp_path / "out"}""".split()
        environment = os.environ | {"HF_HUB_OFFLINE": "1"}
        subprocess.run([sys.executable, *command], check=True, capture_output=True, env=environment)
        for task in tasks:
            samples = next((tmp_path / "out").rglob(f"samples_{task}_*.jsonl")).read_text().splitlines()
            rows = sorted(map(json.loads, samples), key=lambda row: row["doc_id"])
            assert ours[task]["scores"] == [row[BENCHMARKS[task].metric] for row in rows], "question by question"
        assert ours["triviaqa"]["answers"] == [row["resps"][0][0] for row in rows], "also what was written"


def row(number, **fields):
    context = " ".join(f"{WORDS[(number + i * i) % 10]} {i}." for i in range(120))
    whole = {"question": f"What about {number}?", "context": context, "answers": ["river stone"], "length": 240}
    return whole | {"dataset": "ours", "language": "en", "all_classes": None, "_id": str(number)} | fields


ROWS = (row(3), row(8, context="There is a river.", question="Where?"))  # a prompt to cut, and one to pad


class TestLongBench:
    @pytest.fixture
    def folder(self, tmp_path):
        """Two rows of three tasks that differ in how they are generated."""
        for task in ("hotpotqa", "samsum", "lcc"):
            write(tmp_path / f"longbench_{task}", test=ROWS)
        return str(tmp_path)

    @staticmethod
    def evaluator(folder, **tasks):
        profile = load_profile("smoke", datasets=folder, limit=2)
        new_tokens = {"hotpotqa": 4, "samsum": 4, "lcc": 4} | tasks
        settings = {f"longbench_{name}": {"rows": 2, "new_tokens": number} for name, number in new_tokens.items()}
        profile["longbench"] |= {"context": 400, "tasks": settings}
        return Evaluator(profile, section="longbench")

    def test_the_paper_profile_is_the_official_protocol(self, tmp_path):
        """All sixteen tasks: lengths, no stop strings; prompts end as the official ones do."""
        section = load_profile("paper")["longbench"]
        assert (section["context"], set(section["tasks"])) == (4096, set(LONGBENCH))
        assert all(settings == {"rows": None, "new_tokens": None} for settings in section["tasks"].values())
        ends = {
            "longbench_triviaqa": "\n\nquestion",
            "longbench_samsum": "\n\nquestion",
            "longbench_trec": "context\nquestion",
            "longbench_passage_count": "The final answer is: ",
            "longbench_passage_retrieval_en": "The answer is: ",
            "longbench_lcc": "contextNext line of code:\n",
            "longbench_repobench-p": "contextquestionNext line of code:\n",
        }
        lengths = (128, 128, 64, 32, 32, 32, 512, 512, 512, 64, 32, 128, 32, 32, 64, 64)
        for (name, benchmark), length in zip(LONGBENCH.items(), lengths, strict=True):
            asked = row(0, question="question", context="context", all_classes=["x"], answers=["Paragraph 3"])
            write(tmp_path / name, test=[asked])
            task = load_tasks(benchmark, str(tmp_path), {"new_tokens": None}, tmp_path / "tasks" / name)["tasks"][name]
            settings = task.config.generation_kwargs
            assert (settings["max_gen_toks"], settings["until"], settings["do_sample"]) == (length, [], False), name
            prompt = task.doc_to_text(task.dataset["test"][0])
            assert prompt.endswith(ends.get(name, prompt)), name
            assert "context" in prompt
            assert task.config.num_fewshot == 0
            assert task.process_results(task.dataset["test"][0], ["river stone"]).keys() == {"score"}
        with pytest.raises(ValueError, match="longbench_lcc ends with"):
            longbench.official_prompt("longbench_lcc", "Complete: {{context}}")

    def test_the_middle_is_cut(self):
        tokenizer = tiny_tokenizer()
        prompt = " ".join(f"{word} {number}" for number, word in enumerate(WORDS * 4))
        tokens = tokenizer(prompt).input_ids
        assert longbench.cut_middle(prompt, tokenizer, len(tokens)) == prompt
        cut = longbench.cut_middle(prompt, tokenizer, 20)
        assert cut == tokenizer.decode(tokens[:10]) + tokenizer.decode(tokens[-10:])
        assert longbench.cut_middle(prompt, tokenizer, 21) == cut, "an odd length is rounded down"
        with pytest.raises(ValueError, match="cannot be cut to 1 tokens"):
            longbench.cut_middle(prompt, tokenizer, 1)

    @pytest.mark.parametrize("name", ["tiny-llama", "tiny-gemma2"])
    def test_answers_are_those_of_one_row_at_a_time_without_a_cache(self, folder, tiny, name):
        model, tokenizer = tiny(name), tiny_tokenizer()
        ours = self.evaluator(folder, hotpotqa=6, samsum=6)
        newline = tokenizer.encode("\n")[-1]
        for task in ("longbench_hotpotqa", "longbench_samsum"):
            found = ours.evaluate(model, tokenizer, LONGBENCH[task])
            config = ours._loaded[task]["tasks"][task]
            for asked, answer in zip(ROWS, found["answers"], strict=True):
                prompt = longbench.cut_middle(config.doc_to_text(asked), tokenizer, 400)
                ids = tokenizer(prompt, return_tensors="pt").input_ids
                written = []
                for step in range(6):
                    with torch.no_grad():
                        logits = model(torch.cat([ids[0], torch.tensor(written, dtype=torch.long)])[None]).logits[0, -1]
                    ends = {tokenizer.eos_token_id} | ({newline} if task == longbench.ENDS_AT_NEWLINE else set())
                    if task == longbench.ENDS_AT_NEWLINE and step == 0:
                        logits[list(ends)] = -torch.inf
                    written.append(int(logits.argmax()))
                    if written[-1] in ends:
                        break
                assert answer == tokenizer.decode(written, skip_special_tokens=True)
            assert found["prompt_tokens"][0] > 400, "cut"
            assert found["prompt_tokens"][1] < 390, "padded"

    def test_a_newline_ends_samsum_from_the_second_token_on(self, folder, tiny):
        model, tokenizer = tiny(), tiny_tokenizer()
        newline = tokenizer.encode("\n")[-1]
        seen = []

        def prefer_newlines(module, inputs, logits):
            seen.append(logits.shape[1])
            logits[..., newline] += 1000
            return logits

        model.lm_head.register_forward_hook(prefer_newlines)
        ours = self.evaluator(folder, hotpotqa=5, samsum=5)
        for answer in ours.evaluate(model, tokenizer, LONGBENCH["longbench_samsum"])["answers"]:
            assert len(answer) > 1
            assert answer.count("\n") == 1
            assert answer.endswith("\n")
        assert ours.evaluate(model, tokenizer, LONGBENCH["longbench_hotpotqa"])["answers"] == ["\n" * 5] * 2
        assert max(seen) <= 2, "of both prompts in a pass, logits are computed for the last token alone"

    @pytest.mark.parametrize(
        ("metric", "answer", "references", "score"),  # by hand, from the definitions of the official metrics
        [
            # F1 of bags of words: "The" and the comma go; 2 words in common, 4 written, 2 wanted
            ("qa_f1", "The river, stone and sand", ["river stone"], 2 * (2 / 4) * (2 / 2) / (2 / 4 + 2 / 2)),
            ("qa_f1", "nothing", ["river", "Nothing."], 1.0),  # the best reference counts
            ("qa_f1", "", ["river"], 0.0),
            ("first_line_qa_f1", "\n\nriver stone\nQuestion: more", ["river stone"], 1.0),
            ("qa_f1", "\n\nriver stone\nQuestion: more", ["river stone"], 2 * (2 / 4) / (2 / 4 + 1)),
            # ROUGE-L: longest common subsequence "the river runs" of 4 written and 5 wanted words
            ("rouge", "the river runs fast", ["the cold river runs west"], 2 * (3 / 4) * (3 / 5) / (3 / 4 + 3 / 5)),
            ("rouge", "", ["the river"], 0.0),
            ("first_line_rouge", "the river runs\nDialogue: x", ["the river runs"], 1.0),
            ("retrieval", "Paragraph 7, not 12", ["Paragraph 7"], 1 / 2),
            ("retrieval", "no idea", ["Paragraph 7"], 0.0),
            ("count", "7 of 30: 7", ["7"], 2 / 3),
            ("code_similarity", "\n\n# why\n`x`\nx = 1\ny", ["x = 1"], 1.0),
            ("code_similarity", "# why\n\nx = 1", ["x = 1"], 0.0),  # the blank line after a comment counts
            ("code_similarity", "x = 12345", ["x = 1"], round(100 * 2 * 5 / 14) / 100),
            ("first_line_classification", "Date\nQuestion: Who?\nType: Person", ["Date"], 1.0),
            ("first_line_classification", "Date or Event", ["Date"], 1 / 2),
            ("first_line_classification", "Update", ["Date"], 0.0),
        ],
    )
    def test_metrics(self, metric, answer, references, score):
        doc = {"answers": references, "all_classes": ["Date", "Event", "Person", "Other entity"]}
        assert getattr(longbench, metric)(doc, [answer]) == {"score": pytest.approx(score, abs=1e-8)}

    def test_a_short_context_leaves_room_for_the_answer(self, folder, tiny, capfd):
        """The tiny models read 512 tokens; scores are those of the answers, and nothing is said on the way."""
        ours, model, tokenizer, read = self.evaluator(folder, lcc=100), tiny(), tiny_tokenizer(), []
        ours.settings |= {"context": 4096, "batch_size": 1}
        model.model.register_forward_pre_hook(
            lambda _, a, inputs: read.append(inputs["input_ids"][0]), with_kwargs=True
        )
        found = ours.evaluate(model, tokenizer, LONGBENCH["longbench_lcc"])
        before = found["prompt_tokens"]
        assert sorted(length > 412 for length in before) == [False, True], "one to be cut, one short"
        assert sum(len(ids) for ids in read if len(ids) > 1) <= sum(min(length, 412) for length in before)
        assert found["context"] == 412
        assert found["scores"] == [longbench.code_similarity(row(0), [answer])["score"] for answer in found["answers"]]
        assert capfd.readouterr() == ("", "")

    def test_real_rows(self, shared, tiny):
        """The official rows in the hub's schema go through all sixteen tasks."""
        check_rows(str(shared / "benchmarks"))
        names = (name.removeprefix("longbench_") for name in LONGBENCH)
        ours = self.evaluator(str(shared / "benchmarks"), **dict.fromkeys(names, 2))
        ours.settings |= {"tasks": {name: s | {"rows": 1} for name, s in ours.settings["tasks"].items()}}
        model, tokenizer = tiny(), tiny_tokenizer()
        for name, benchmark in LONGBENCH.items():
            found = ours.evaluate(model, tokenizer, benchmark)
            assert 0 <= found["scores"][0] <= 1, name
            assert found["prompt_tokens"][0] > 1000, name
