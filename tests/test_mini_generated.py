"""The procedural tasks of the miniature benchmark: every answer is found again in another way than it was generated."""

import json
import os
import re
import subprocess
import sys
from collections import Counter
from fractions import Fraction
from itertools import combinations, permutations, product
from math import gcd
from pathlib import Path

import pytest

from harp_lib import paths

MINI = paths.DATA / "mini"
MATH = tuple(f"leaderboard_math_{name}_hard" for name in ("algebra", "prealgebra", "num_theory", "counting_and_prob"))
LONGBENCH = sorted(path.name for path in MINI.glob("longbench_*"))  # tested in a file of their own
BBH = (
    "boolean_expressions",
    "object_counting",
    "navigate",
    "word_sorting",
    "web_of_lies",
    "reasoning_about_colored_objects",
)


def rows(task, split="*"):
    files = sorted((MINI / task).glob(f"{split}.jsonl"))
    assert files
    return [json.loads(line) for file in files for line in file.read_text(encoding="utf-8").splitlines()]


def integers(text):
    return [int(number) for number in re.findall(r"\d+", text)]


def only_match(table, text):
    (value,) = [value for key, value in table.items() if key in text]
    return value


def test_generating_again_gives_the_same_files(tmp_path):
    script = Path(__file__).resolve().parents[1] / "data" / "mini" / "generate.py"
    subprocess.run(
        [sys.executable, "-B", str(script), "--out", str(tmp_path)],
        check=True,
        env=os.environ | {"PYTHONHASHSEED": "1"},
    )
    written = sorted(file.relative_to(tmp_path) for file in tmp_path.rglob("*.jsonl"))
    tasks = {"gsm8k", *MATH, *LONGBENCH, *(f"bbh_cot_fewshot_{name}" for name in BBH)}
    assert {file.parts[0] for file in written} == tasks
    assert written == sorted(file.relative_to(MINI) for task in tasks for file in (MINI / task).iterdir())
    assert [file for file in written if (tmp_path / file).read_bytes() != (MINI / file).read_bytes()] == []


EASY = {  # a word of the story → its answer, of the numbers in the order of the text
    "apples": lambda had, bought: had + bought,
    "birds": lambda there, gone: there - gone,
    "roses": lambda red, white: red + white,
    "pens": lambda boxes, each: boxes * each,
    "balloons": lambda had, popped: had - popped,
    "ducks": lambda there, coming: there + coming,
    "tea": lambda cups, days: cups * days,
    "younger": lambda age, difference: age - difference,
}
MEDIUM = {
    "rope": lambda length, cut: length - cut,
    "shells": lambda morning, afternoon, given: morning + afternoon - given,
    "muffins": lambda before, after: before + after,
    "orchard": lambda pears: 3 * pears,
    "desks": lambda desks, each, more: desks * each + more,
    "eggs": lambda eggs, box: Fraction(eggs, box),
    "This story": lambda pages, read: pages - read,
    "ticket": lambda price, tickets: price * tickets,
}
HARD = {
    "bookcase": lambda shelves, books, lent: shelves * books - lent,
    "notebook": lambda pencil, notebook, pencils, notebooks: pencil * pencils + notebook * notebooks,
    "bus": lambda people, off, on: people - off + on,
    "marbles": lambda bags, each, friends: Fraction(bags * each, friends),
    "zoo": lambda price, people, bill: bill - price * people,
    "flower bed": lambda length, width: 2 * length + 2 * width,
    "bicycle": lambda price, saved, weeks, gift: price - gift - saved * weeks,
    "novel": lambda pages, days, at_first, later: Fraction(pages - days * at_first, later),
}


def test_gsm8k():
    for row in rows("gsm8k"):
        *steps, last = row["answer"].split("\n")
        answer = only_match(EASY | MEDIUM | HARD, row["question"])(*integers(row["question"]))
        assert last == f"#### {answer}"
        for step in steps:
            ((spaced, expression, marked, shown),) = re.findall(r"(\S+ \S+ \S+) = \$?<<(.+)=(\d+)>>(\d+)", step)
            assert spaced.replace(" ", "") == expression
            assert eval(expression) == int(marked) == int(shown)
        assert shown == str(answer)


@pytest.mark.parametrize(("split", "numbers"), [("test", (12, 6, 6)), ("train", (4, 2, 2))])
def test_gsm8k_has_three_levels(split, numbers):
    for stories, number in zip((EASY, MEDIUM, HARD), numbers, strict=True):
        told = [row for row in rows("gsm8k", split) if any(story in row["question"] for story in stories)]
        assert len(told) == number
        for row in told:
            steps = re.findall(r"<<(\d+)(.)(\d+)=", row["answer"])
            largest = max(integers(row["question"]))
            if stories is EASY:
                ((_, sign, _),) = steps
                assert largest <= (5 if sign == "*" else 9)
                assert sign in "+-*"
            elif stories is MEDIUM:
                assert largest <= {1: 20, 2: 9}[len(steps)]
            else:
                assert len(steps) >= 2
                assert max(integers(row["answer"])) > 9


def test_gsm8k_tells_many_stories():
    stories = EASY | MEDIUM | HARD
    told = Counter(story for row in rows("gsm8k") for story in stories if story in row["question"])
    assert told == dict.fromkeys(EASY, 2) | dict.fromkeys(MEDIUM | HARD, 1)
    assert {row["answer"].count("<<") for row in rows("gsm8k", "test")} == {1, 2, 3}


def test_gsm8k_shows_sums_differences_and_products_equally_often():
    shown = Counter(re.findall(r"<<\d+(.)", "".join(row["answer"] for row in rows("gsm8k", "train"))))
    assert shown["+"] == shown["-"] == shown["*"] > 0


def faces(total):
    return Fraction(sum(a + b == total for a, b in product(range(1, 7), repeat=2)), 36)


EASY_PROBLEMS = {  # words of the problem → its answer, of the numbers in the order of the text
    "the value of $x +": lambda a, x: x + a,
    "Solve $x +": lambda a, c: next(x for x in range(c) if x + a == c),
    "What is $x$ if": lambda a, c: next(x for x in range(c) if a * x == c),
    "Compute": pow,
    "the sum of $": lambda a, b: a + b,
    "half of": lambda number: Fraction(number, 2),
    "Divide": lambda number, divisor: number % divisor,
    "even number": lambda number: next(x for x in range(number + 1, number + 9) if x % 2 == 0),
    "ones digit": lambda number: int(str(number)[-1]),
    "hats": lambda shirts, hats: len(list(product(range(shirts), range(hats)))),
    "one fruit": lambda apples, pears: len([*range(apples), *range(pears)]),
    "in a line": lambda friends: len(list(permutations(range(friends)))),
}
OTHER_PROBLEMS = {
    "makes the equation": lambda a, b, c: next(x for x in range(100) if a * x + b == c),
    "f(g(": lambda a, b, power, c, k: a * (k**power + c) - b,
    "their difference": lambda total, difference: next(x for x in range(total) if x - (total - x) == difference),
    "Suppose that": lambda a, b, c: a * Fraction(b, c),
    r"\%$ of": lambda percent, number: Fraction(percent * number, 100),
    "Add $": lambda a, b, c, d: Fraction(a, b) + Fraction(c, d),
    "have a mean": lambda mean, a, b: next(x for x in range(-99, 100) if Fraction(a + b + x, 3) == mean),
    "Evaluate": lambda a, b, c, d: a + b * c - b * d,
    "common divisor": gcd,
    "remainder when": pow,
    "integers divide": lambda number: sum(number % divisor == 0 for divisor in range(1, number + 1)),
    "base two": lambda digits, base: int(str(digits), base),
    "soups": lambda *courses: len(list(product(*map(range, courses)))),
    "shakes hands": lambda people: len(list(combinations(range(people), 2))),
    "red and": lambda red, blue: Fraction(red, red + blue),
    "fair dice": faces,
}


@pytest.mark.parametrize("task", MATH)
def test_math(task):
    types = Counter()
    for row in rows(task, "test") + rows(task, "train"):
        answer = only_match(EASY_PROBLEMS | OTHER_PROBLEMS, row["problem"])(*integers(row["problem"]))
        types[only_match({key: key for key in EASY_PROBLEMS | OTHER_PROBLEMS}, row["problem"])] += 1
        assert boxed(row["solution"]) == Fraction(answer)
        assert row["level"] == "Level 5", "what the official tasks keep"
        assert row["solution"].count("$") % 2 == row["problem"].count("$") % 2 == 0
    assert len(types) == 7
    assert max(types.values()) == 2


@pytest.mark.parametrize(("split", "number", "easy"), [("test", 5, 3), ("train", 3, 1)])
@pytest.mark.parametrize("task", MATH)
def test_math_has_easy_problems(task, split, number, easy):
    assert len(rows(task, split)) == number
    answers = [boxed(row["solution"]) for row in rows(task, split) for key in EASY_PROBLEMS if key in row["problem"]]
    assert len(answers) == easy
    assert set(answers) <= set(range(1, 10))


def boxed(solution):
    (text,) = re.findall(r"\\boxed\{(.+)\}\$", solution)
    return Fraction(re.sub(r"\\frac\{(\d+)\}\{(\d+)\}", r"\1/\2", text))


@pytest.mark.parametrize("task", MATH)
def test_math_is_scored_by_the_official_code(task):
    pytest.importorskip("math_verify")
    from datasets import Dataset
    from lm_eval.tasks.leaderboard.math import utils

    documents = utils.process_docs(Dataset.from_list(rows(task, "test")))
    assert len(documents) == len(rows(task, "test")) == 5
    for document, row in zip(documents, rows(task, "test"), strict=True):
        answer = document["answer"]
        assert boxed(f"\\boxed{{{answer}}}$") == boxed(row["solution"])
        for said, right in ((answer, 1), ("-1", 0)):
            reply = f" Final Answer: The final answer is ${said}$. I hope it is correct."
            assert utils.process_results(row | document, [reply]) == {
                "exact_match": right,
                "exact_match_original": right,
            }
