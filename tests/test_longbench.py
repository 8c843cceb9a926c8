"""LongBench by its protocol: prompts, cuts, what ends an answer, metrics."""

import pytest
import torch
from test_evaluation import write
from test_fast import WORDS

from harp_lib.config import load_profile
from harp_lib.evaluation import longbench
from harp_lib.evaluation.benchmarks import LONGBENCH, check_rows
from harp_lib.evaluation.evaluator import Evaluator
from harp_lib.evaluation.runner import load_tasks
from harp_lib.models.registry import tiny_tokenizer


def row(number, **fields):
    context = " ".join(f"{WORDS[(number + i * i) % 10]} {i}." for i in range(120))
    whole = {
        "question": f"What about {number}?",
        "context": context,
        "answers": ["river stone"],
        "length": 240,
    }
    return (
        whole
        | {"dataset": "ours", "language": "en", "all_classes": None, "_id": str(number)}
        | fields
    )


ROWS = (
    row(3),
    row(8, context="There is a river.", question="Where?"),
)  # a prompt to cut, and one to pad


@pytest.fixture
def folder(tmp_path):
    """Two rows of three tasks that differ in how they are generated."""
    for task in ("hotpotqa", "samsum", "lcc"):
        write(tmp_path / f"longbench_{task}", test=ROWS)
    return str(tmp_path)


def evaluator(folder, **tasks):
    profile = load_profile("smoke", datasets=folder, limit=2)
    new_tokens = {"hotpotqa": 4, "samsum": 4, "lcc": 4} | tasks
    settings = {
        f"longbench_{name}": {"rows": 2, "new_tokens": number}
        for name, number in new_tokens.items()
    }
    profile["longbench"] |= {"context": 400, "tasks": settings}
    return Evaluator(profile, section="longbench")


def test_the_paper_profile_is_the_official_protocol(tmp_path):
    """All sixteen tasks: lengths, no stop strings; prompts end as the official ones do."""
    section = load_profile("paper")["longbench"]
    assert (section["context"], set(section["tasks"])) == (4096, set(LONGBENCH))
    assert all(
        settings == {"rows": None, "new_tokens": None} for settings in section["tasks"].values()
    )
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
        asked = row(
            0, question="question", context="context", all_classes=["x"], answers=["Paragraph 3"]
        )
        write(tmp_path / name, test=[asked])
        task = load_tasks(
            benchmark, str(tmp_path), {"new_tokens": None}, tmp_path / "tasks" / name
        )["tasks"][name]
        settings = task.config.generation_kwargs
        assert (settings["max_gen_toks"], settings["until"], settings["do_sample"]) == (
            length,
            [],
            False,
        ), name
        prompt = task.doc_to_text(task.dataset["test"][0])
        assert prompt.endswith(ends.get(name, prompt)), name
        assert "context" in prompt
        assert task.config.num_fewshot == 0
        assert task.process_results(task.dataset["test"][0], ["river stone"]).keys() == {"score"}
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


@pytest.mark.parametrize("name", ["tiny-llama", "tiny-gemma2"])
def test_answers_are_those_of_one_row_at_a_time_without_a_cache(folder, tiny, name):
    model, tokenizer = tiny(name), tiny_tokenizer()
    ours = evaluator(folder, hotpotqa=6, samsum=6)
    newline = tokenizer.encode("\n")[-1]
    for task in ("longbench_hotpotqa", "longbench_samsum"):
        found = ours.evaluate(model, tokenizer, LONGBENCH[task])
        config = ours._loaded[task]["tasks"][task]
        for asked, answer in zip(ROWS, found["answers"][task], strict=True):
            prompt = longbench.cut_middle(config.doc_to_text(asked), tokenizer, 400)
            ids = tokenizer(prompt, return_tensors="pt").input_ids
            written = []
            for step in range(6):
                with torch.no_grad():
                    logits = model(
                        torch.cat([ids[0], torch.tensor(written, dtype=torch.long)])[None]
                    ).logits[0, -1]
                ends = {tokenizer.eos_token_id} | (
                    {newline} if task == longbench.ENDS_AT_NEWLINE else set()
                )
                if task == longbench.ENDS_AT_NEWLINE and step == 0:
                    logits[list(ends)] = -torch.inf
                written.append(int(logits.argmax()))
                if written[-1] in ends:
                    break
            assert answer == tokenizer.decode(written, skip_special_tokens=True)
        assert found["rows"][0]["prompt_tokens"] > 400, "cut"
        assert found["rows"][1]["prompt_tokens"] < 390, "padded"


def test_a_newline_ends_samsum_from_the_second_token_on(folder, tiny):
    model, tokenizer = tiny(), tiny_tokenizer()
    newline = tokenizer.encode("\n")[-1]
    seen = []

    def prefer_newlines(module, inputs, logits):
        seen.append(logits.shape[1])
        logits[..., newline] += 1000
        return logits

    model.lm_head.register_forward_hook(prefer_newlines)
    ours = evaluator(folder, hotpotqa=5, samsum=5)
    for answer in ours.evaluate(model, tokenizer, LONGBENCH["longbench_samsum"])["answers"][
        "longbench_samsum"
    ]:
        assert len(answer) > 1
        assert answer.count("\n") == 1
        assert answer.endswith("\n")
    name = "longbench_hotpotqa"
    assert ours.evaluate(model, tokenizer, LONGBENCH[name])["answers"] == {name: ["\n" * 5] * 2}
    assert max(seen) <= 2, "of both prompts in a pass, logits are computed for the last token alone"


@pytest.mark.parametrize(
    (
        "task",
        "answer",
        "references",
        "score",
    ),  # by hand, from the definitions of the official metrics
    [
        # F1 of bags of words: "The" and the comma go; 2 words in common, 4 written, 2 wanted
        (
            "qasper",
            "The river, stone and sand",
            ["river stone"],
            2 * (2 / 4) * (2 / 2) / (2 / 4 + 2 / 2),
        ),
        ("qasper", "nothing", ["river", "Nothing."], 1.0),  # the best reference counts
        ("qasper", "", ["river"], 0.0),
        ("triviaqa", "\n\nriver stone\nQuestion: more", ["river stone"], 1.0),
        ("qasper", "\n\nriver stone\nQuestion: more", ["river stone"], 2 * (2 / 4) / (2 / 4 + 1)),
        # ROUGE-L: longest common subsequence "the river runs" of 4 written and 5 wanted words
        (
            "gov_report",
            "the river runs fast",
            ["the cold river runs west"],
            2 * (3 / 4) * (3 / 5) / (3 / 4 + 3 / 5),
        ),
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
def test_metrics(task, answer, references, score):
    doc = {"answers": references, "all_classes": ["Date", "Event", "Person", "Other entity"]}
    assert longbench.score(LONGBENCH[f"longbench_{task}"], doc, [answer]) == {
        "score": pytest.approx(score, abs=1e-8)
    }


def test_a_short_context_leaves_room_for_the_answer(folder, tiny, capfd):
    """The tiny models read 512 tokens; scores are those of the answers, and nothing is said on the
    way.
    """
    ours, model, tokenizer, read = evaluator(folder, lcc=100), tiny(), tiny_tokenizer(), []
    ours.settings |= {"context": 4096, "batch_size": 1}
    model.model.register_forward_pre_hook(
        lambda _, a, inputs: read.append(inputs["input_ids"][0]), with_kwargs=True
    )
    found = ours.evaluate(model, tokenizer, LONGBENCH["longbench_lcc"])
    before = [asked["prompt_tokens"] for asked in found["rows"]]
    assert sorted(length > 412 for length in before) == [False, True], "one to be cut, one short"
    assert sum(len(ids) for ids in read if len(ids) > 1) <= sum(
        min(length, 412) for length in before
    )
    assert found["context"] == 412
    assert [asked["score"] for asked in found["rows"]] == [
        longbench.score(LONGBENCH["longbench_lcc"], row(0), [answer])["score"]
        for answer in found["answers"]["longbench_lcc"]
    ]
    assert capfd.readouterr() == ("", "")


def test_real_rows(shared, tiny):
    """The official rows in the hub's schema go through all sixteen tasks."""
    check_rows(str(shared / "benchmarks"))
    names = (name.removeprefix("longbench_") for name in LONGBENCH)
    ours = evaluator(str(shared / "benchmarks"), **dict.fromkeys(names, 2))
    ours.settings |= {
        "tasks": {name: s | {"rows": 1} for name, s in ours.settings["tasks"].items()}
    }
    model, tokenizer = tiny(), tiny_tokenizer()
    for name, benchmark in LONGBENCH.items():
        found = ours.evaluate(model, tokenizer, benchmark)
        assert 0 <= found["rows"][0]["score"] <= 1, name
        assert found["rows"][0]["prompt_tokens"] > 1000, name
