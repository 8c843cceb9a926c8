"""Scores: one question at a time against the model's own likelihoods, and all of it against lm-eval's command line."""

import json
import os
import subprocess
import sys

import pytest
import torch
import yaml

from harp_lib import load_model
from harp_lib.measure.benchmarks import BENCHMARKS, MissingTaskError
from harp_lib.measure.evaluation import Evaluator
from harp_lib.measure.tiny import tiny_tokenizer
from harp_lib.profiles import load_profile


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


def rows(task, split):
    from harp_lib import paths

    return [json.loads(line) for line in (paths.DATA / "mini" / task / f"{split}.jsonl").read_text().splitlines()]


def test_choices_are_scored_by_likelihood(evaluator, tiny):
    """OpenBookQA, by hand."""
    model, tokenizer = tiny(), tiny_tokenizer()
    found = evaluator.evaluate(model, tokenizer, BENCHMARKS["openbookqa"])
    for row, score in zip(rows("openbookqa", "test"), found["scores"], strict=False):
        likelihoods = [
            log_likelihood(model, tokenizer, row["question_stem"], f" {text}") for text in row["choices"]["text"]
        ]
        best = likelihoods.index(max(likelihoods))
        assert score == (row["choices"]["label"][best] == row["answerKey"])
    assert len(found["scores"]) == len(found["beside"]) == 4
    assert found["subtasks"] == {"openbookqa": 4}
    assert "answers" not in found


def test_answers_are_written_greedily(evaluator, tiny):
    """NaturalQuestions with one example: the prompt and the answer, by hand."""
    model, tokenizer = tiny(), tiny_tokenizer()
    found = evaluator.evaluate(model, tokenizer, BENCHMARKS["nq_open"])
    assert len(found["answers"]) == len(found["answer_tokens"]) == 4
    assert set(found["scores"]) <= {0.0, 1.0}
    question, candidates = rows("nq_open", "validation")[0]["question"], []
    for example in rows("nq_open", "train"):  # one of these was drawn
        shown = f"Q: {example['question']}?\nA: {example['answer'][0]}\n"
        prompt = f"Answer these questions:\n\n{shown}Q: {question}?\nA:"
        ids = tokenizer(prompt, return_tensors="pt").input_ids
        for _ in range(8):
            with torch.no_grad():
                ids = torch.cat([ids, model(ids).logits[:, -1:].argmax(-1)], dim=1)
        text = tokenizer.decode(ids[0, -8:])
        for stop in ("\n", ".", ","):
            text = text.split(stop)[0]
        candidates.append(text)
    assert found["answers"][0] in candidates


def test_the_same_seed_draws_the_same_examples(tiny):
    model, tokenizer = tiny(), tiny_tokenizer()
    first, again = (
        Evaluator(load_profile("smoke", limit=6)).evaluate(model, tokenizer, BENCHMARKS["nq_open"])["answers"]
        for _ in range(2)
    )
    evaluator = Evaluator(load_profile("smoke", limit=6))
    twice = [evaluator.evaluate(model, tokenizer, BENCHMARKS["nq_open"])["answers"] for _ in range(2)]
    other = Evaluator(load_profile("smoke", limit=6), seed=1)
    assert first == again == twice[0] == twice[1], "also when tasks are used again"
    assert other.evaluate(model, tokenizer, BENCHMARKS["nq_open"])["answers"] != first
    assert other.inputs(BENCHMARKS["nq_open"])["shots_seed"] == 1235


def test_a_group_is_its_subtasks(tiny):
    profile = load_profile("smoke", limit=3)
    profile["evaluation"]["subtasks"] = None
    found = Evaluator(profile).evaluate(tiny(), tiny_tokenizer(), BENCHMARKS["mmlu"])
    assert list(found["subtasks"].values()) == [3] * len(found["subtasks"])
    assert len(found["subtasks"]) >= 4
    assert len(found["scores"]) == 3 * len(found["subtasks"])
    assert found["versions"].keys() == found["subtasks"].keys()


def test_nothing_is_printed(evaluator, tiny, capfd):
    evaluator.evaluate(tiny(), tiny_tokenizer(), BENCHMARKS["mmlu"])
    evaluator.evaluate(tiny(), tiny_tokenizer(), BENCHMARKS["gsm8k"])
    assert capfd.readouterr() == ("", "")


def test_a_task_without_rows(tmp_path):
    evaluator = Evaluator(load_profile("smoke", datasets=str(tmp_path)))
    with pytest.raises(MissingTaskError, match="has no folder gsm8k"):
        evaluator.inputs(BENCHMARKS["gsm8k"])


@pytest.mark.real_model
def test_scores_are_those_of_the_lm_eval_command(shared, tmp_path):
    """Dense SmolLM2 on real rows: chosen answers with and without examples, and written ones."""
    tasks, limit = ("piqa", "arc_challenge", "triviaqa"), 16
    profile = load_profile("mini", datasets=str(shared / "benchmarks"), limit=limit)
    profile["evaluation"]["tasks"]["triviaqa"]["new_tokens"] = 12
    for task in tasks:
        profile["evaluation"]["tasks"][task]["shots"] = 1
    model, tokenizer = load_model("smollm2-135m")
    evaluator = Evaluator(profile)
    ours = {task: evaluator.evaluate(model, tokenizer, BENCHMARKS[task]) for task in tasks}
    for folder in ("tasks", "model"):
        (tmp_path / folder).mkdir()
    model.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    for task in tasks:  # by hand, not by our overlays
        splits = {file.stem: str(file) for file in (shared / "benchmarks" / task).glob("*.jsonl")}
        official = next(iter(BENCHMARKS[task].subtasks().values()))
        data = {"dataset_path": "json", "dataset_name": None, "dataset_kwargs": {"data_files": splits}}
        (tmp_path / "tasks" / f"{task}.yaml").write_text(
            yaml.safe_dump({"include": str(official), "task": task} | data)
        )
    command = ["-m", "lm_eval", "--model", "hf", "--model_args", f"pretrained={tmp_path / 'model'},dtype=float32"]
    command += ["--device", str(model.device), "--tasks", ",".join(tasks), "--include_path", str(tmp_path / "tasks")]
    command += ["--num_fewshot", "1", "--gen_kwargs", "max_gen_toks=12", "--limit", str(limit), "--batch_size", "8"]
    command += ["--log_samples", "--output_path", str(tmp_path / "out")]
    subprocess.run(
        [sys.executable, *command], check=True, capture_output=True, env=os.environ | {"HF_HUB_OFFLINE": "1"}
    )
    report = json.loads(next((tmp_path / "out").rglob("results_*.json")).read_text())["results"]
    for task in tasks:
        theirs = report[task][f"{BENCHMARKS[task].metric},{BENCHMARKS[task].filter}"]
        assert sum(ours[task]["scores"]) / limit == theirs, task
        samples = next((tmp_path / "out").rglob(f"samples_{task}_*.jsonl")).read_text().splitlines()
        rows = sorted(map(json.loads, samples), key=lambda row: row["doc_id"])
        assert ours[task]["scores"] == [row[BENCHMARKS[task].metric] for row in rows], "question by question"
    assert 0 < report["piqa"]["acc,none"] < 1, "a number that could have differed"
    assert ours["triviaqa"]["answers"] == [row["resps"][0][0] for row in rows], "also what was written"
