"""What has to hold for the miniature benchmark as a whole; the procedural tasks have tests of their own."""

import json
import math
import re
from collections import Counter
from functools import cache
from itertools import pairwise

import pytest

from harp_lib import paths
from harp_lib.measure.benchmarks import BENCHMARKS
from harp_lib.results import read_results
from harp_lib.statistics import score_estimate

MINI = paths.DATA / "mini"
ARC = ["id", "question", "choices", "answerKey"]
SCHEMAS = {  # family → keys in the order of the hub datasets
    "winogrande": ["sentence", "option1", "option2", "answer"],
    "piqa": ["goal", "sol1", "sol2", "label"],
    "boolq": ["question", "passage", "idx", "label"],
    "arc_challenge": ARC,
    "openbookqa": ["id", "question_stem", *ARC[2:]],
    "mmlu": ["question", "subject", "choices", "answer"],
    "triviaqa": ["question", "question_id", "question_source", "entity_pages", "search_results", "answer"],
    "nq_open": ["question", "answer"],
    "gsm8k": ["question", "answer"],
    "leaderboard_math": ["problem", "level", "solution", "type"],
    "bbh_cot_fewshot": ["input", "target"],
}
DISCRIMINATIVE = list(SCHEMAS)[:6]
GENERATION = list(SCHEMAS)[6:]
SUBTASKS = ("mmlu", "leaderboard_math", "bbh_cot_fewshot")
TESTED_ON_VALIDATION = ("winogrande", "piqa", "boolq", "triviaqa", "nq_open")
FEW_SHOT = {"mmlu": "dev", "bbh_cot_fewshot": None}  # BBH has its exemplars in the task; the others a split "train"
TEXT = {
    "winogrande": "sentence",
    "piqa": "goal",
    "openbookqa": "question_stem",
    "leaderboard_math": "problem",
    "bbh_cot_fewshot": "input",
}
TQA_ANSWER = ["aliases", "normalized_aliases", "matched_wiki_entity_name", "normalized_matched_wiki_entity_name"]
TQA_ANSWER += ["normalized_value", "type", "value"]
FUNCTION_WORDS = """a an the this that these those some any all every each no one it its he his him she her they them
their you your we our us i my is are was were be been being am do does did has have had can could may might must should
will would and or but nor if when while where which what who whom whose why how because so as than then of in on at by
for from to into onto with without about over under up down out off through between after before during near not only
more most many much there here also"""


def family_of(task):
    return next((name for name in SUBTASKS if task.startswith(f"{name}_")), task)


OTHERS = ("_", "longbench_")  # folders; LongBench's rows have tests of their own
TASKS = sorted(path.name for path in MINI.iterdir() if path.is_dir() and not path.name.startswith(OTHERS))


@cache
def read(file):
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def rows(task, split=None):
    """The rows of one split, or of all."""
    return [row for file in sorted((MINI / task).glob(f"{split or '*'}.jsonl")) for row in read(file)]


def scored(name):
    """The test rows of a task, or of all tasks of a family."""
    split = "validation" if name in TESTED_ON_VALIDATION else "test"
    return [row for task in TASKS if name in (task, family_of(task)) for row in rows(task, split)]


def question(row, task):
    return row[TEXT.get(family_of(task), "question")]


def words(text):
    return re.findall(r"\w+", text.lower())


def answers(row, family):
    """What there is to choose from, and the index of the right one."""
    if family == "winogrande":
        return [row["option1"], row["option2"]], int(row["answer"]) - 1
    if family == "piqa":
        return [row["sol1"], row["sol2"]], row["label"]
    if family == "boolq":
        return ["no", "yes"], row["label"]
    if family == "mmlu":
        return row["choices"], row["answer"]
    return row["choices"]["text"], row["choices"]["label"].index(row["answerKey"])


def test_the_eleven_tasks():
    assert {family_of(task) for task in TASKS} == set(SCHEMAS)
    for family in SUBTASKS:
        assert sum(family_of(task) == family for task in TASKS) >= 4, family
    for family in SCHEMAS:
        assert len(scored(family)) >= (32 if family in DISCRIMINATIVE else 12), family


@pytest.mark.parametrize("task", TASKS)
def test_splits(task):
    family = family_of(task)
    assert scored(task), "the split that lm-eval tests on"
    few_shot = FEW_SHOT.get(family, "train")
    if few_shot:
        assert len(rows(task, few_shot)) >= 2


@pytest.mark.parametrize("task", TASKS)
def test_files_are_clean(task):
    for file in (MINI / task).iterdir():
        assert file.name in ("train.jsonl", "validation.jsonl", "test.jsonl", "dev.jsonl")
        text = file.read_bytes().decode("ascii")
        assert text.endswith("}\n")
        assert "\r" not in text


@pytest.mark.parametrize("task", TASKS)
def test_schema(task):
    family = family_of(task)
    for row in rows(task):
        assert list(row) == SCHEMAS[family]
        text = question(row, task)
        assert text == text.strip() != ""
        assert "  " not in text
        if family in DISCRIMINATIVE:
            check_choices(row, family, task)
    if "id" in SCHEMAS[family] or "idx" in SCHEMAS[family]:
        ids = [row["id"] if "id" in row else row["idx"] for row in rows(task)]
        assert len(set(ids)) == len(ids)
        assert family != "boolq" or sorted(ids) == list(range(len(ids)))


def check_choices(row, family, task):
    choices, right = answers(row, family)
    assert len(choices) == len({choice.lower() for choice in choices}) == (2 if family in DISCRIMINATIVE[:3] else 4)
    assert all(isinstance(choice, str) and choice == choice.strip() != "" for choice in choices)
    assert type(right) is int
    assert 0 <= right < len(choices)
    if family == "winogrande":
        assert type(row["answer"]) is str
        before, after = row["sentence"].split("_")
        assert len(after.split()) >= 4, "only the text after the blank is scored"
        assert all(option in before for option in choices), "both options are named"
    elif family == "boolq":
        assert re.fullmatch(r"[^A-Z?]+", row["question"])
        assert " -- " in row["passage"]
    elif family == "mmlu":
        assert task == f"mmlu_{row['subject']}"
    elif family != "piqa":
        assert row["choices"] == {"text": choices, "label": ["A", "B", "C", "D"]}


def test_short_answers():
    for row in rows("triviaqa"):
        answer = row["answer"]
        assert list(answer) == TQA_ANSWER
        assert answer["value"] == answer["aliases"][0]
        assert len(set(answer["aliases"])) == len(answer["aliases"])
        assert row["question"].endswith("?")
        assert not set(words(answer["value"])) <= set(words(row["question"])), "the question gives it away"
    ids = [row["question_id"] for row in rows("triviaqa")]
    assert len(set(ids)) == len(ids)
    for row in rows("nq_open"):
        assert re.fullmatch(r"[a-z0-9' ]+", row["question"])
        assert row["answer"]
        assert len(set(row["answer"])) == len(row["answer"])
        assert not set(words(row["answer"][0])) <= set(words(row["question"])), "the question gives it away"


@pytest.mark.parametrize("task", TASKS)
def test_no_question_twice(task):
    texts = [question(row, task) for row in rows(task)]
    if family_of(task) not in ("leaderboard_math", "bbh_cot_fewshot"):  # where signs and brackets matter
        texts = [" ".join(words(text)) for text in texts]
    assert [text for text, count in Counter(texts).items() if count > 1] == []


@pytest.mark.parametrize("task", [task for task in TASKS if family_of(task) in DISCRIMINATIVE])
def test_positions_are_balanced(task):
    family = family_of(task)
    positions = [answers(row, family)[1] for row in scored(task)]
    number = len(answers(scored(task)[0], family)[0])
    counts = [positions.count(position) for position in range(number)]
    assert max(counts) - min(counts) <= 1
    turns = sum(a != b for a, b in pairwise(positions))
    assert len(positions) / number / 2 < turns < len(positions) - 1, "sorted, or in turns"


def baseline(family, score):
    """Share of right answers of one who sees only the answers; a tie is a draw among the best."""
    documents = scored(family)
    total = 0
    for row in documents:
        choices, right = answers(row, family)
        scores = [round(score(choice, row), 9) for choice in choices]
        best = [index for index, value in enumerate(scores) if value == max(scores)]
        total += (right in best) / len(best)
    return total / len(documents), 1 / len(choices), len(documents)


def naive_bayes(family):
    """Words of right against words of wrong answers, learned from rows of other answer sets.

    Leaving out one row alone would measure the balance of its set: where each answer of four is right once, the
    one that was never right in the other three is the answer.
    """

    def answer_set(row):
        return row["passage"] if family == "boolq" else frozenset(answers(row, family)[0])

    @cache
    def learned(key):
        counts = Counter(), Counter()
        for row in scored(family):
            if answer_set(row) != key:
                choices, right = answers(row, family)
                for index, choice in enumerate(choices):
                    counts[index == right].update(words(choice))
        return counts

    def score(choice, row):
        wrong, right = learned(answer_set(row))
        vocabulary = len(wrong | right) + 1
        per_word = math.log(wrong.total() + vocabulary) - math.log(right.total() + vocabulary)
        return sum(math.log(right[word] + 1) - math.log(wrong[word] + 1) + per_word for word in words(choice))

    return score


BASELINES = {
    "longest": lambda family: lambda choice, row: len(choice),
    "shortest": lambda family: lambda choice, row: -len(choice),
    "naive Bayes": naive_bayes,
}


@pytest.mark.parametrize("name", BASELINES)
@pytest.mark.parametrize("family", DISCRIMINATIVE)
def test_answers_alone_do_not_help(family, name):
    share, chance, number = baseline(family, BASELINES[name](family))
    assert abs(share - chance) <= 2 * math.sqrt(chance * (1 - chance) / number)


def skeleton(text):
    return " ".join(word if word in FUNCTION_WORDS.split() else "_" for word in words(text))


@pytest.mark.parametrize("task", [task for task in TASKS if family_of(task) != "bbh_cot_fewshot"])
def test_no_template_more_than_three_times(task):
    texts = [question(row, task) for row in rows(task)]
    for pattern in (lambda text: " ".join(words(text)[:4]), skeleton):
        counts = Counter(map(pattern, texts))
        assert {form: count for form, count in counts.items() if count > 3} == {}


def runs(text, length=8):
    tokens = words(text)
    return {tuple(tokens[start : start + length]) for start in range(len(tokens) - length + 1)}


@pytest.mark.parametrize("family", SCHEMAS)
def test_nothing_is_taken_from_the_real_benchmarks(family, shared):
    folder = shared / "benchmarks"
    if not folder.is_dir():
        pytest.skip("no real benchmark rows beside this checkout")
    tasks = [path.name for path in sorted(folder.iterdir()) if family_of(path.name) == family]
    real = [(row, task) for task in tasks for file in sorted((folder / task).glob("*.jsonl")) for row in read(file)]
    assert real
    ours = [(row, task) for task in TASKS if family_of(task) == family for row in rows(task)]
    texts, real_texts = ([question(row, task) for row, task in part] for part in (ours, real))
    assert set(texts).isdisjoint(real_texts)
    if family == "bbh_cot_fewshot":
        return  # their surface form is the official one
    real_runs = set().union(*map(runs, real_texts))
    assert [text for text in texts if runs(text) & real_runs] == []
    if family == "boolq":
        real_runs = set().union(*(runs(row["passage"]) for row, _ in real))
        assert [row["passage"] for row, _ in ours if runs(row["passage"]) & real_runs] == []


def test_the_dense_model_is_above_chance_on_at_least_four_tasks():
    """By two standard errors, in the committed run of the profile mini; the datasheet prints these scores."""
    cells = read_results("mini", "main_tables", roots=[paths.REFERENCE])
    sheet, above = (MINI / "README.md").read_text(encoding="utf-8"), []
    for (_, method, name), cell in cells.items():
        if method == "dense":
            benchmark, scores = BENCHMARKS[name], cell["result"]["scores"]
            value, error = score_estimate(scores)
            printed = f"| {100 * value:.1f} ± {100 * error:.1f} | {len(scores)} |"
            assert re.search(rf"\| {benchmark.title} \| \d* {re.escape(printed)}", sheet), name
            if value - (1 / benchmark.choices if benchmark.choices else 0) > 2 * error > 0:
                above.append(name)
    assert len(above) >= 4, above
