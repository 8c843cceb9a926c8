"""Problems in the form of MATH, in four of its subjects, at three levels.

Easy: one step of primary-school arithmetic, with an answer of one digit. Medium: one or two steps
with larger numbers. Hard: several steps, fractions, or a rule that one has to know. Three of five
problems are easy, so that a very small model can solve some.
"""

import math
import random
import re
from fractions import Fraction

from generate_gsm8k import read_templates

PROBLEMS = read_templates("math.txt")  # subject and level → templates
SUBJECTS = {  # as the official tasks are called → what their rows say
    "algebra": "Algebra",
    "prealgebra": "Prealgebra",
    "num_theory": "Number Theory",
    "counting_and_prob": "Counting & Probability",
}


def _frac(numerator: int | str, denominator: int) -> str:
    return f"\\frac{{{numerator}}}{{{denominator}}}"


def _boxed(numerator: int, denominator: int = 1) -> str:
    value = Fraction(numerator, denominator)
    if value.denominator == 1:
        return f"\\boxed{{{value}}}"
    return f"\\boxed{{{_frac(value.numerator, value.denominator)}}}"


def draw(rng: random.Random, template: list[str]) -> tuple[str, str]:
    """A problem and its solution, from a line of Python that draws numbers, and two texts."""
    code, problem, solution = template
    names = {
        "between": lambda low, high: rng.randrange(low, high + 1),
        "choice": rng.choice,
        "sample": rng.sample,
        "boxed": _boxed,
        "frac": _frac,
        "comb": math.comb,
        "factorial": math.factorial,
    }
    exec(code, names)

    def fill(text: str) -> str:
        return re.sub("<(.+?)>", lambda match: str(eval(match[1], names)), text)

    return fill(problem), fill(solution)


def _row(rng: random.Random, subject: str, template: list[str]) -> dict[str, str]:
    """A row whose "level" is the one that the official tasks keep, whatever the level here."""
    problem, solution = draw(rng, template)
    return {
        "problem": problem,
        "level": "Level 5",
        "solution": solution,
        "type": SUBJECTS[subject],
    }


def rows(rng: random.Random, subject: str) -> dict[str, list[dict[str, str]]]:
    """Test and train rows of a subject.

    The five test rows are a problem of each easy template, a medium and a hard one. The three train
    rows are one of every level.
    """
    easy = PROBLEMS[f"{subject} easy"]
    medium_test, medium_train = rng.sample(PROBLEMS[f"{subject} medium"], 2)
    hard_test, hard_train = rng.sample(PROBLEMS[f"{subject} hard"], 2)
    test = [_row(rng, subject, template) for template in (*easy, medium_test, hard_test)]

    easy_train = rng.choice(easy)
    example = _row(rng, subject, easy_train)
    while example in test:
        example = _row(rng, subject, easy_train)
    train = [example, _row(rng, subject, medium_train), _row(rng, subject, hard_train)]
    rng.shuffle(test)
    return {"train": train, "test": test}
