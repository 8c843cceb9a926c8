"""The likelihood of the right answer: its definitions, and slow twins that read one prompt at a
time.
"""

import math

import pytest
import torch

from harp_lib.config import load_profile, profile_for
from harp_lib.evaluation.benchmarks import ALL_BENCHMARKS
from harp_lib.evaluation.evaluator import Evaluator
from harp_lib.evaluation.likelihood import (
    bits_per_byte,
    guess_rate,
    log_odds_margin,
    reasoning_before_conclusion,
    reference_answer,
)
from harp_lib.models.registry import tiny_tokenizer


def test_the_margin_is_the_log_odds_of_the_right_choice():
    probabilities = [0.2, 0.5, 0.3]
    logs = [math.log(p / 7) for p in probabilities]  # a common factor is no matter
    for right, p in enumerate(probabilities):
        assert log_odds_margin(logs, right) == pytest.approx(math.log(p / (1 - p)))
    assert log_odds_margin([-3.0, -3.0], 0) == 0
    assert log_odds_margin([-3.0] * 5, 2) == pytest.approx(-math.log(4)), (
        "what a guess among five has"
    )


def test_bits_per_byte_count_bytes_not_letters():
    assert bits_per_byte(-6 * math.log(2), "für") == pytest.approx(1.5), "four bytes"


@pytest.mark.parametrize(
    ("question", "target", "rate"),
    [
        ("Which?\nOptions:\n(A) one\n(B) two\n(C) three", "(B)", 1 / 3),
        ("Is it so? (A) is no option in the middle of a line", "Yes", 0.5),
        ("not ( True ) is", "False", 0.5),
        ("Is the argument valid?\nOptions:\n- valid \n- invalid", "invalid", 0.5),
        ("How many?", "7", 0.0),
        ("Sort: b a", "a b", 0.0),
    ],
)
def test_guessing_is_as_good_as_the_list_of_options_is_short(question, target, rate):
    assert guess_rate({"input": question, "target": target}) == pytest.approx(rate)


def test_reasoning_ends_before_the_answer():
    reply = "Two and two is four. So the answer is 4. So the answer is 5."
    assert reasoning_before_conclusion(reply) == "Two and two is four. So the answer is"
    assert reasoning_before_conclusion("Two and two is four.") is None


def test_a_reference_is_found_by_its_path():
    row = {"answer": {"aliases": [" first ", "second"]}, "target": 4}
    assert reference_answer(row, "answer.aliases.0") == "first"
    assert reference_answer(row, "target") == "4"


def evaluator(rows=3):
    profile = load_profile("smoke", limit=rows)
    profile["likelihoods"]["subtasks"] = 2
    return Evaluator(profile_for("tiny-llama", profile), section="likelihoods")


@torch.no_grad()
def log_likelihood(model, tokenizer, prompt, answer):
    """One sequence, read whole."""
    begins = tokenizer(prompt, return_tensors="pt", add_special_tokens=False).input_ids[0]
    ends = tokenizer(answer, return_tensors="pt", add_special_tokens=False).input_ids[0]
    logs = model(torch.cat([begins, ends])[None]).logits[0].log_softmax(-1)
    return sum(logs[len(begins) - 1 + i, token].item() for i, token in enumerate(ends))


@pytest.mark.parametrize("task", ["triviaqa", "gsm8k", "leaderboard_math_hard"])
def test_references_stand_where_an_answer_would_be_written(tiny, task):
    """The prompt is the very one that an answer is written after; each is read alone here."""
    model, tokenizer, ours = tiny(), tiny_tokenizer(), evaluator()
    benchmark = ALL_BENCHMARKS[task]
    found = ours.likelihoods(model, tokenizer, benchmark)
    assert found["dropped"] == 0
    assert len(found["rows"]) == 3 * len(ours._loaded[task]["tasks"])
    prompts = {}
    for subtask, loaded in ours._loaded[task]["tasks"].items():
        loaded.set_fewshot_seed(1234)
        loaded.build_all_requests(limit=3, rank=0, world_size=1)
        for request in loaded.instances:
            assert request.request_type == "generate_until"
            prompts[subtask, request.doc_id] = request.args[0], request.doc
    for row in found["rows"]:
        prompt, question = prompts[row["subtask"], row["question"]]
        answer = " " + reference_answer(question, benchmark.reference)
        alone = bits_per_byte(log_likelihood(model, tokenizer, prompt, answer), answer)
        assert row["bits_per_byte"] == pytest.approx(alone, abs=1e-4)


def test_a_chain_of_thought_is_the_dense_models_own(tiny):
    model, tokenizer, ours = tiny(), tiny_tokenizer(), evaluator()
    benchmark = ALL_BENCHMARKS["bbh_cot_fewshot"]
    written = ours.evaluate(model, tokenizer, benchmark)["answers"]
    thoughts = {
        subtask: ["Thus. So the answer is 3.", "no end", "Hm. So the answer is"]
        for subtask in written
    }
    found = ours.likelihoods(model, tokenizer, benchmark, thoughts)
    assert found["dropped"] == len(written), "one of three has no conclusion"
    assert [row["question"] for row in found["rows"]] == [0, 2] * len(written)
    other = ours.likelihoods(
        model, tokenizer, benchmark, {name: ["So the answer is"] * 3 for name in written}
    )
    assert other["rows"][0]["bits_per_byte"] != found["rows"][0]["bits_per_byte"], (
        "the reasoning is read"
    )
    nothing = ours.likelihoods(model, tokenizer, benchmark, {name: [""] * 3 for name in written})
    assert nothing == {"rows": [], "dropped": 3 * len(written)}


def test_white_space_at_the_end_of_a_prompt_is_the_prompts(tiny):
    """lm-eval would count it to the answer; LongBench's prompts of code end in a newline."""
    from harp_lib.evaluation.runner import ReferenceAnswer, Runner

    model, tokenizer = tiny(), tiny_tokenizer()
    runner = Runner(model, tokenizer)
    asked = [
        ReferenceAnswer("lcc", 0, "Next line of code:\n", "return x"),
        ReferenceAnswer("qa", 0, "Answer:", "Rome"),
    ]
    found = runner.answer_log_likelihoods(asked)
    assert [question.answer for question in asked] == ["return x", " Rome"]
    for question, value in zip(asked, found, strict=True):
        assert value == pytest.approx(
            log_likelihood(model, tokenizer, question.prompt, question.answer), abs=1e-3
        )
