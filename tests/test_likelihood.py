"""Likelihoods of right answers: their definitions, and slow twins that read prompts one by one."""

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
from harp_lib.evaluation.runner import ReferenceAnswer, Runner
from harp_lib.models.registry import tiny_tokenizer


def test_the_margin_is_the_log_odds_of_the_right_choice():
    probabilities = [0.2, 0.5, 0.3]
    logs = [math.log(p / 7) for p in probabilities]  # a common factor does not matter
    for right, p in enumerate(probabilities):
        assert log_odds_margin(logs, right) == pytest.approx(math.log(p / (1 - p)))
    assert log_odds_margin([-3.0, -3.0], 0) == 0
    guess_among_five = log_odds_margin([-3.0] * 5, 2)
    assert guess_among_five == pytest.approx(-math.log(4))


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


def evaluator():
    """For three questions of two subtasks."""
    profile = load_profile("smoke", limit=3)
    profile["likelihoods"]["subtasks"] = 2
    return Evaluator(profile_for("tiny-llama", profile), section="likelihoods")


@torch.no_grad()
def log_likelihood(model, tokenizer, prompt, answer):
    """Of an answer after its prompt, read as one sequence."""
    prompt_ids = tokenizer(prompt, return_tensors="pt", add_special_tokens=False).input_ids[0]
    answer_ids = tokenizer(answer, return_tensors="pt", add_special_tokens=False).input_ids[0]
    logits = model(torch.cat([prompt_ids, answer_ids])[None]).logits[0]  # (N, V)
    log_probs = logits.log_softmax(-1)
    total = 0.0
    for place, token in enumerate(answer_ids, start=len(prompt_ids) - 1):
        total += log_probs[place, token].item()
    return total


@pytest.mark.parametrize("task", ["triviaqa", "gsm8k", "leaderboard_math_hard"])
def test_references_stand_where_an_answer_would_be_written(tiny, task):
    """The prompt is the very one that an answer is written after; each is read alone here."""
    model = tiny()
    tokenizer = tiny_tokenizer()
    ours = evaluator()
    benchmark = ALL_BENCHMARKS[task]
    result = ours.likelihoods(model, tokenizer, benchmark)
    tasks = ours._loaded[task]["tasks"]
    assert result["dropped"] == 0
    assert len(result["rows"]) == 3 * len(tasks)

    requests = {}
    for subtask, loaded in tasks.items():
        loaded.set_fewshot_seed(1234)
        loaded.build_all_requests(limit=3, rank=0, world_size=1)
        for request in loaded.instances:
            assert request.request_type == "generate_until"
            requests[subtask, request.doc_id] = request
    for row in result["rows"]:
        request = requests[row["subtask"], row["question"]]
        answer = " " + reference_answer(request.doc, benchmark.reference)
        alone = log_likelihood(model, tokenizer, request.args[0], answer)
        assert row["bits_per_byte"] == pytest.approx(bits_per_byte(alone, answer), abs=1e-4)


def test_a_reference_follows_the_reasoning_of_a_reply(tiny):
    model = tiny()
    tokenizer = tiny_tokenizer()
    ours = evaluator()
    benchmark = ALL_BENCHMARKS["bbh_cot_fewshot"]
    subtasks = list(ours.evaluate(model, tokenizer, benchmark)["answers"])

    def likelihoods_after(*replies):
        return ours.likelihoods(
            model, tokenizer, benchmark, {subtask: replies for subtask in subtasks}
        )

    result = likelihoods_after("Thus. So the answer is 3.", "no end", "Hm. So the answer is")
    assert result["dropped"] == len(subtasks), "one of three has no conclusion"
    assert [row["question"] for row in result["rows"]] == [0, 2] * len(subtasks)

    request = ours._loaded[benchmark.name]["tasks"][subtasks[0]].instances[0]
    prompt = request.args[0] + "Thus. So the answer is"
    answer = f" {reference_answer(request.doc, benchmark.reference)}."
    alone = log_likelihood(model, tokenizer, prompt, answer)
    first = result["rows"][0]["bits_per_byte"]
    assert first == pytest.approx(bits_per_byte(alone, answer), abs=1e-4)

    other = likelihoods_after(*["So the answer is"] * 3)
    assert other["rows"][0]["bits_per_byte"] != first, "the reasoning is read"

    without_conclusion = likelihoods_after("", "", "")
    assert without_conclusion == {"rows": [], "dropped": 3 * len(subtasks)}


def test_white_space_at_the_end_of_a_prompt_belongs_to_the_prompt(tiny):
    """lm-eval would count it to the answer; LongBench's prompts of code end in a newline."""
    model = tiny()
    tokenizer = tiny_tokenizer()
    questions = [
        ReferenceAnswer("lcc", 0, "Next line of code:\n", "return x"),
        ReferenceAnswer("qa", 0, "Answer:", "Rome"),
    ]
    values = Runner(model, tokenizer).answer_log_likelihoods(questions)
    assert [question.answer for question in questions] == ["return x", " Rome"]
    for question, value in zip(questions, values, strict=True):
        alone = log_likelihood(model, tokenizer, question.prompt, question.answer)
        assert value == pytest.approx(alone, abs=1e-3)


def test_likelihoods_are_not_rounded_to_the_dtype_of_the_model(tiny):
    """A softmax in bfloat16 would round them by up to 1/64 at −6 nats."""
    model = tiny().to(torch.bfloat16)
    questions = [
        ReferenceAnswer("qa", number, f"Question {number}. Answer:", "a") for number in range(8)
    ]
    values = torch.tensor(Runner(model, tiny_tokenizer()).answer_log_likelihoods(questions))
    assert (values != values.bfloat16().float()).any()
