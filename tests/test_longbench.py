"""LongBench's official protocol: prompts, cuts, generation and metrics, each against the same done by hand."""

import json

import pytest
import torch

from harp_lib.measure import longbench
from harp_lib.measure.benchmarks import ALL_BENCHMARKS, CATEGORIES, LONGBENCH, RowError, check_rows
from harp_lib.measure.evaluation import Evaluator
from harp_lib.measure.tiny import tiny_tokenizer
from harp_lib.profiles import load_profile
from harp_lib.published import published

WORDS = ["river", "stone", "lantern", "orchard", "copper", "meadow", "harbour", "window", "saddle", "thunder"]
OFFICIAL_LENGTHS = {  # new tokens, by category in the order of the paper's columns
    "Single-Document QA": (128, 128, 64),
    "Multi-Document QA": (32, 32, 32),
    "Summarization": (512, 512, 512),
    "Few-shot Learning": (64, 32, 128),
    "Synthetic": (32, 32),
    "Code": (64, 64),
}


def row(number, **fields):
    context = " ".join(f"{WORDS[(number + i * i) % 10]} {i}." for i in range(120))
    whole = {"question": f"What about {number}?", "context": context, "answers": ["river stone"], "length": 240}
    whole |= {"dataset": "ours", "language": "en", "all_classes": None, "_id": str(number)}
    return whole | fields


ROWS = (row(3), row(8, context="There is a river.", question="Where?"))  # a prompt to cut, and one to pad


@pytest.fixture
def folder(tmp_path):
    """Two rows of three tasks that differ in how they are generated."""
    for task in ("hotpotqa", "samsum", "lcc"):
        (tmp_path / f"longbench_{task}").mkdir()
        lines = [json.dumps(found) for found in ROWS]
        (tmp_path / f"longbench_{task}" / "test.jsonl").write_text("\n".join(lines) + "\n")
    return str(tmp_path)


def evaluator(folder, **tasks):
    profile = load_profile("smoke", datasets=folder, limit=2)
    profile["longbench"]["context"] = 400
    for name, new_tokens in tasks.items():
        profile["longbench"]["tasks"][f"longbench_{name}"]["new_tokens"] = new_tokens
    return Evaluator(profile, section="longbench")


def loaded_task(folder, name):
    return evaluator(folder)._load(LONGBENCH[name])["tasks"][name]


def test_the_tasks_are_the_papers():
    printed = list(published("longbench")["task"].unique())
    assert [benchmark.title for benchmark in LONGBENCH.values()] == printed
    assert [len(tasks) for tasks in CATEGORIES.values()] == [3, 3, 3, 3, 2, 2]
    assert longbench.METRICS.keys() == LONGBENCH.keys()
    assert all(set(LONGBENCH) == set(load_profile(name)["longbench"]["tasks"]) for name in ("smoke", "mini", "paper"))
    assert all(len(benchmark.subtasks()) == 1 for benchmark in LONGBENCH.values()), "lm-eval has a file for each"
    assert len(ALL_BENCHMARKS) == 27


def test_the_paper_profile_is_the_official_protocol():
    section = load_profile("paper")["longbench"]
    assert section["context"] == 4096
    assert all(settings == {"rows": None, "new_tokens": None} for settings in section["tasks"].values())


def test_generation_settings_are_the_official_ones(tmp_path):
    """Lengths, no stop strings; prompts end as the official ones do."""
    ends = {
        "longbench_triviaqa": "\n\nquestion",
        "longbench_samsum": "\n\nquestion",
        "longbench_trec": "context\nquestion",
        "longbench_passage_count": "The final answer is: ",
        "longbench_passage_retrieval_en": "The answer is: ",
        "longbench_lcc": "contextNext line of code:\n",
        "longbench_repobench-p": "contextquestionNext line of code:\n",
    }
    lengths = [length for lengths in OFFICIAL_LENGTHS.values() for length in lengths]
    for (name, benchmark), length in zip(LONGBENCH.items(), lengths, strict=True):
        (tmp_path / name).mkdir()
        line = json.dumps(row(0, question="question", context="context", all_classes=["x"], answers=["Paragraph 3"]))
        (tmp_path / name / "test.jsonl").write_text(line)
        profile = load_profile("paper", datasets=str(tmp_path))
        task = Evaluator(profile, section="longbench")._load(benchmark)["tasks"][name]
        settings = task.config.generation_kwargs
        assert (settings["max_gen_toks"], settings["until"], settings["do_sample"]) == (length, [], False), name
        prompt = task.doc_to_text(task.dataset["test"][0])
        assert prompt.endswith(ends.get(name, prompt)), name
        assert "context" in prompt
        assert task.config.num_fewshot == 0
        assert task.process_results(task.dataset["test"][0], ["river stone"]).keys() == {"score"}


def test_an_unknown_prompt_of_lm_eval_is_refused():
    with pytest.raises(ValueError, match="longbench_lcc ends with"):
        longbench.official_prompt("longbench_lcc", "Complete: {{context}}")


def test_the_middle_is_cut():
    tokenizer = tiny_tokenizer()
    prompt = " ".join(f"{word} {number}" for number, word in enumerate(WORDS * 4))
    tokens = tokenizer(prompt).input_ids
    assert longbench.cut_middle(prompt, tokenizer, len(tokens)) == prompt
    cut = longbench.cut_middle(prompt, tokenizer, 20)
    assert cut == tokenizer.decode(tokens[:10]) + tokenizer.decode(tokens[-10:])
    assert prompt.startswith(cut[:10])
    assert prompt.endswith(cut[-10:])
    assert longbench.cut_middle(prompt, tokenizer, 21) == cut, "an odd length is rounded down, as int(length / 2) does"
    with pytest.raises(ValueError, match="cannot be cut to 1 tokens"):
        longbench.cut_middle(prompt, tokenizer, 1)


@pytest.mark.parametrize("name", ["tiny-llama", "tiny-gemma2"])
def test_answers_are_those_of_one_row_at_a_time_without_a_cache(folder, tiny, name):
    model, tokenizer = tiny(name), tiny_tokenizer()
    ours = evaluator(folder, hotpotqa=6, samsum=6)
    newline = tokenizer.encode("\n")[-1]
    for task in ("longbench_hotpotqa", "longbench_samsum"):
        found = ours.evaluate(model, tokenizer, LONGBENCH[task])
        config = loaded_task(folder, task)
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
    for answer in ours.evaluate(model, tokenizer, LONGBENCH["longbench_samsum"])["answers"]:
        assert len(answer) > 1
        assert answer.count("\n") == 1
        assert answer.endswith("\n")
    assert ours.evaluate(model, tokenizer, LONGBENCH["longbench_hotpotqa"])["answers"] == ["\n" * 5] * 2
    assert set(seen) == {1}, "logits of a long prompt are computed for its last token alone"


# Scores by hand, from the definitions of the official metrics.
SCORES = [
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
    # difflib: 5 of 5 + 9 characters match twice over
    ("code_similarity", "x = 1", ["x = 1"], 1.0),
    ("code_similarity", "\n\n# why\n`x`\nx = 1\ny", ["x = 1"], 1.0),
    ("code_similarity", "# why\n\nx = 1", ["x = 1"], 0.0),  # the blank line after a comment is the line that counts
    ("code_similarity", "x = 12345", ["x = 1"], round(100 * 2 * 5 / 14) / 100),
]


@pytest.mark.parametrize(("metric", "answer", "references", "score"), SCORES)
def test_metrics(metric, answer, references, score):
    found = getattr(longbench, metric)({"answers": references, "all_classes": None}, [answer])
    assert found == {"score": pytest.approx(score, abs=1e-8)}


@pytest.mark.parametrize(
    ("answer", "score"),
    [
        ("Date\nQuestion: Who?\nType: Person", 1.0),
        ("Date or Event", 1 / 2),
        ("Event", 0.0),
        ("date", 0.0),
        ("Update", 0.0),
        ("Other entity", 0.0),
    ],
)
def test_classification(answer, score):
    doc = {"answers": ["Date"], "all_classes": ["Date", "Event", "Person", "Other entity"]}
    assert longbench.first_line_classification(doc, [answer]) == {"score": score}


def test_a_short_context_leaves_room_for_the_answer(folder, tiny):
    """The tiny models read 512 tokens."""
    profile = load_profile("smoke", datasets=folder)
    profile["longbench"] |= {"context": 4096, "batch_size": 1}
    profile["longbench"]["tasks"]["longbench_lcc"] = {"rows": 2, "new_tokens": 100}
    ours, model, tokenizer, read = Evaluator(profile, section="longbench"), tiny(), tiny_tokenizer(), []
    model.model.register_forward_pre_hook(lambda _, args, inputs: read.append(inputs["input_ids"][0]), with_kwargs=True)
    found = ours.evaluate(model, tokenizer, LONGBENCH["longbench_lcc"])
    prompts = [tokenizer.decode(ids) for ids in read if len(ids) > 1]
    assert [400 < len(ids) <= 412 for ids in read if len(ids) > 1] == [True, False], "one is cut, the other short"
    assert all(prompt.startswith("Please complete") and prompt.endswith("line of code:\n") for prompt in prompts)
    assert len(prompts) == 2
    assert found["context"] == 412


def test_scores_of_a_run_are_those_of_its_answers(folder, tiny):
    found = evaluator(folder, lcc=8).evaluate(tiny(), tiny_tokenizer(), LONGBENCH["longbench_lcc"])
    doc = row(0)
    assert found["scores"] == [longbench.code_similarity(doc, [answer])["score"] for answer in found["answers"]]
    assert found["subtasks"] == {"longbench_lcc": 2}
    assert len(found["answer_tokens"]) == 2


def test_inputs_say_to_what_prompts_are_cut(folder):
    inputs = evaluator(folder).inputs(LONGBENCH["longbench_lcc"])
    assert (inputs["context"], inputs["rows"], inputs["task"]) == (400, 2, "longbench_lcc")


def test_bad_rows_are_named(folder, tmp_path):
    check_rows(folder)
    file = tmp_path / "longbench_lcc" / "test.jsonl"
    for fields, missing in (({"context": "a", "question": ""}, "answers"), ({"context": "a", "input": ""}, "question")):
        file.write_text(json.dumps(fields) + "\n")
        with pytest.raises(
            RowError, match=rf"longbench_lcc/test.jsonl, line 1: no field '{missing}'; Lcc needs context"
        ):
            check_rows(folder)


def test_nothing_is_said_on_the_way(folder, tiny, capfd, recwarn):
    evaluator(folder).evaluate(tiny(), tiny_tokenizer(), LONGBENCH["longbench_lcc"])
    assert capfd.readouterr() == ("", "")
    assert [str(warning.message) for warning in recwarn if "SequenceMatcher" in str(warning.message)] == []


def test_real_rows(shared, tiny):
    """The official rows in the hub's schema go through all sixteen tasks."""
    profile = load_profile("smoke", datasets=str(shared / "benchmarks"), limit=1)
    check_rows(str(shared / "benchmarks"))
    ours, model, tokenizer = Evaluator(profile, section="longbench"), tiny(), tiny_tokenizer()
    for name, benchmark in LONGBENCH.items():
        found = ours.evaluate(model, tokenizer, benchmark)
        assert 0 <= found["scores"][0] <= 1, name
        assert found["prompt_tokens"][0] > 1000, name
