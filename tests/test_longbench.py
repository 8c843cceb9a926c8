"""LongBench by its protocol: prompts, cuts, what ends an answer, metrics."""

import pytest
import torch
from lm_twins import WORDS
from test_evaluation import write_rows

from harp_lib.config import load_profile
from harp_lib.evaluation import longbench
from harp_lib.evaluation.benchmarks import LONGBENCH, check_rows
from harp_lib.evaluation.evaluator import Evaluator
from harp_lib.evaluation.runner import load_tasks
from harp_lib.models.registry import tiny_tokenizer


def question_row(number, **fields):
    """A row in the hub's schema, with ``fields`` of one's own."""
    words = [f"{WORDS[(number + i * i) % len(WORDS)]} {i}." for i in range(120)]
    row = {
        "question": f"What about {number}?",
        "context": " ".join(words),
        "answers": ["river stone"],
        "length": 240,
        "dataset": "ours",
        "language": "en",
        "all_classes": None,
        "_id": str(number),
    }
    row.update(fields)
    return row


TOO_LONG = question_row(3)
SHORT = question_row(8, context="There is a river.", question="Where?")


@pytest.fixture
def folder(tmp_path):
    """Two rows of three tasks that differ in how answers are generated."""
    for task in ("hotpotqa", "samsum", "lcc"):
        write_rows(tmp_path / f"longbench_{task}", test=[TOO_LONG, SHORT])
    return str(tmp_path)


def evaluator(folder, **new_tokens):
    """LongBench's evaluator for a folder, with lengths of answers by task."""
    profile = load_profile("smoke", datasets=folder, limit=2)
    new_tokens = {"hotpotqa": 4, "samsum": 4, "lcc": 4} | new_tokens
    profile["longbench"]["context"] = 400
    profile["longbench"]["tasks"] = {
        f"longbench_{name}": {"rows": 2, "new_tokens": number}
        for name, number in new_tokens.items()
    }
    return Evaluator(profile, section="longbench")


def test_the_paper_profile_is_the_official_protocol(tmp_path):
    """All sixteen tasks: lengths, no stop strings; prompts end as the official ones do."""
    section = load_profile("paper")["longbench"]
    assert section["context"] == 4096
    assert set(section["tasks"]) == set(LONGBENCH)
    for settings in section["tasks"].values():
        assert settings == {"rows": None, "new_tokens": None}
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
    row = question_row(
        0, question="question", context="context", all_classes=["x"], answers=["Paragraph 3"]
    )
    for (name, benchmark), length in zip(LONGBENCH.items(), lengths, strict=True):
        write_rows(tmp_path / name, test=[row])
        cache = tmp_path / "tasks" / name
        loaded = load_tasks(benchmark, str(tmp_path), {"new_tokens": None}, cache)
        task = loaded["tasks"][name]
        doc = task.dataset["test"][0]
        settings = task.config.generation_kwargs
        assert settings["max_gen_toks"] == length, name
        assert settings["until"] == [], name
        assert settings["do_sample"] is False, name
        prompt = task.doc_to_text(doc)
        assert "context" in prompt
        if name in ends:
            assert prompt.endswith(ends[name]), name
        assert task.config.num_fewshot == 0
        assert task.process_results(doc, ["river stone"]).keys() == {"score"}


def test_a_prompt_of_another_lm_eval_is_refused():
    with pytest.raises(ValueError, match="longbench_lcc ends with"):
        longbench.official_task(
            LONGBENCH["longbench_lcc"], {"doc_to_text": "Complete: {{context}}"}
        )


def test_the_middle_is_cut():
    tokenizer = tiny_tokenizer()
    prompt = " ".join(f"{word} {number}" for number, word in enumerate(WORDS * 4))
    tokens = tokenizer(prompt).input_ids
    assert longbench.cut_middle(prompt, tokenizer, len(tokens)) == prompt
    cut = longbench.cut_middle(prompt, tokenizer, 20)
    assert cut == tokenizer.decode(tokens[:10]) + tokenizer.decode(tokens[-10:])
    assert longbench.cut_middle(prompt, tokenizer, 21) == cut, "an odd length is rounded down"
    with pytest.raises(ValueError, match="cannot be cut to 1 tokens"):
        longbench.cut_middle(prompt, tokenizer, 1)


@torch.no_grad()
def written_without_cache(model, tokenizer, prompt, end_tokens, ends_first):
    """Six tokens at most, each chosen after reading everything again."""
    ids = tokenizer(prompt, return_tensors="pt").input_ids[0]
    written = []
    for step in range(6):
        so_far = torch.cat([ids, torch.tensor(written, dtype=torch.long)])
        logits = model(so_far[None]).logits[0, -1]
        if step == 0 and not ends_first:
            logits[end_tokens] = -torch.inf
        written.append(int(logits.argmax()))
        if written[-1] in end_tokens:
            break
    return tokenizer.decode(written, skip_special_tokens=True)


@pytest.mark.parametrize("name", ["tiny-llama", "tiny-gemma2"])
def test_answers_are_those_of_one_row_at_a_time_without_a_cache(folder, tiny, name):
    model = tiny(name)
    tokenizer = tiny_tokenizer()
    ours = evaluator(folder, hotpotqa=6, samsum=6)
    newline = tokenizer.encode("\n")[-1]
    for task in ("longbench_hotpotqa", "longbench_samsum"):
        end_tokens = [tokenizer.eos_token_id]
        if task == longbench.ENDS_AT_NEWLINE:
            end_tokens.append(newline)
        result = ours.evaluate(model, tokenizer, LONGBENCH[task])
        loaded = ours._loaded[task]["tasks"][task]
        for row, answer in zip([TOO_LONG, SHORT], result["answers"][task], strict=True):
            prompt = longbench.cut_middle(loaded.doc_to_text(row), tokenizer, 400)
            assert answer == written_without_cache(
                model, tokenizer, prompt, end_tokens, task != longbench.ENDS_AT_NEWLINE
            )
        assert result["rows"][0]["prompt_tokens"] > 400, "cut"
        assert result["rows"][1]["prompt_tokens"] < 390, "padded"


def test_a_newline_ends_samsum_from_the_second_token_on(folder, tiny):
    model = tiny()
    tokenizer = tiny_tokenizer()
    newline = tokenizer.encode("\n")[-1]
    num_logits = []

    def prefer_newlines(module, inputs, logits):
        num_logits.append(logits.shape[1])
        logits[..., newline] += 1000
        return logits

    model.lm_head.register_forward_hook(prefer_newlines)
    ours = evaluator(folder, hotpotqa=5, samsum=5)
    samsum = ours.evaluate(model, tokenizer, LONGBENCH["longbench_samsum"])
    for answer in samsum["answers"]["longbench_samsum"]:
        assert len(answer) > 1
        assert answer.count("\n") == 1
        assert answer.endswith("\n")
    hotpotqa = ours.evaluate(model, tokenizer, LONGBENCH["longbench_hotpotqa"])
    assert hotpotqa["answers"] == {"longbench_hotpotqa": ["\n" * 5] * 2}
    assert max(num_logits) <= 2, "the last token alone, of both prompts in a pass"


def f1(precision, recall):
    return 2 * precision * recall / (precision + recall)


# Scores by hand, from the definitions of the official metrics.
@pytest.mark.parametrize(
    ("task", "answer", "references", "score"),
    [
        # F1 of bags of words: "The" and the comma go; 2 words in common, 4 written, 2 wanted
        ("qasper", "The river, stone and sand", ["river stone"], f1(2 / 4, 2 / 2)),
        ("qasper", "nothing", ["river", "Nothing."], 1.0),  # the best reference counts
        ("qasper", "", ["river"], 0.0),
        ("triviaqa", "\n\nriver stone\nQuestion: more", ["river stone"], 1.0),
        ("qasper", "\n\nriver stone\nQuestion: more", ["river stone"], f1(2 / 4, 1)),
        # ROUGE-L: longest common subsequence "the river runs" of 4 written and 5 wanted words
        ("gov_report", "the river runs fast", ["the cold river runs west"], f1(3 / 4, 3 / 5)),
        ("gov_report", "", ["the river"], 0.0),
        ("samsum", "the river runs\nDialogue: x", ["the river runs"], 1.0),
        ("passage_retrieval_en", "Paragraph 7, not 12", ["Paragraph 7"], 1 / 2),
        ("passage_retrieval_en", "no idea", ["Paragraph 7"], 0.0),
        ("passage_count", "7 of 30: 7", ["7"], 2 / 3),
        ("lcc", "\n\n# why\n`x`\nx = 1\ny", ["x = 1"], 1.0),
        ("lcc", "# why\n\nx = 1", ["x = 1"], 0.0),  # the blank line after a comment counts
        ("lcc", "x = 12345", ["x = 1"], round(100 * 2 * 5 / 14) / 100),
        ("trec", "Date\nQuestion: Who?\nType: Person", ["Date"], 1.0),
        ("trec", "Date or Event", ["Date"], 1 / 2),
        ("trec", "Update", ["Date"], 0.0),
    ],
)
def test_answers_are_scored_by_the_official_metrics(task, answer, references, score):
    benchmark = LONGBENCH[f"longbench_{task}"]
    doc = {"answers": references, "all_classes": ["Date", "Event", "Person", "Other entity"]}
    assert longbench.score(benchmark, doc, [answer]) == {"score": pytest.approx(score, abs=1e-8)}


def test_a_short_context_leaves_room_for_the_answer(folder, tiny, capfd):
    """The tiny models read 512 tokens; 32 of them are for the answer, and nothing is printed."""
    model = tiny()
    tokenizer = tiny_tokenizer()
    num_read = []

    def count(module, args, kwargs):
        num_tokens = len(kwargs["input_ids"][0])
        if num_tokens > 1:  # a single one is part of the answer
            num_read.append(num_tokens)

    model.model.register_forward_pre_hook(count, with_kwargs=True)
    ours = evaluator(folder, lcc=32)
    ours.settings["context"] = 4096
    ours.settings["batch_size"] = 1
    benchmark = LONGBENCH["longbench_lcc"]
    ours.evaluate(model, tokenizer, benchmark)  # hf-prefix tries the model before it trusts itself
    num_read.clear()
    result = ours.evaluate(model, tokenizer, benchmark)

    assert result["context"] == 480
    lengths = [row["prompt_tokens"] for row in result["rows"]]
    assert sorted(length > 480 for length in lengths) == [False, True], "one cut, one short"
    assert sum(num_read) <= sum(min(length, 480) for length in lengths)
    for row, answer in zip(result["rows"], result["answers"]["longbench_lcc"], strict=True):
        assert row["score"] == longbench.score(benchmark, question_row(0), [answer])["score"]
    assert capfd.readouterr() == ("", "")


def test_official_rows_go_through_all_tasks(shared, tiny):
    """They have the hub's schema."""
    folder = str(shared / "benchmarks")
    check_rows(folder)
    names = [name.removeprefix("longbench_") for name in LONGBENCH]
    ours = evaluator(folder, **dict.fromkeys(names, 2))
    for settings in ours.settings["tasks"].values():
        settings["rows"] = 1
    model = tiny()
    tokenizer = tiny_tokenizer()
    for name, benchmark in LONGBENCH.items():
        (row,) = ours.evaluate(model, tokenizer, benchmark)["rows"]
        assert 0 <= row["score"] <= 1, name
        assert row["prompt_tokens"] > 1000, name
