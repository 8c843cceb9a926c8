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

PROBLEMS = read_templates("math.txt")  # subject and level → what is drawn, problem, solution
SUBJECTS = {  # as the official tasks are called, and what their rows say
    "algebra": "Algebra",
    "prealgebra": "Prealgebra",
    "num_theory": "Number Theory",
    "counting_and_prob": "Counting & Probability",
}


def _frac(numerator: int | str, denominator: int) -> str:
    return f"\\frac{{{numerator}}}{{{denominator}}}"


def _boxed(numerator: int, denominator: int = 1) -> str:
    value = Fraction(numerator, denominator)
    return f"\\boxed{{{value if value.denominator == 1 else _frac(value.numerator, value.denominator)}}}"


def draw(rng: random.Random, template: list[str]) -> tuple[str, str]:
    """A problem and its solution."""
    drawn, *texts = template
    names = {
        "between": lambda low, high: rng.randrange(low, high + 1),
        "choice": rng.choice,
        "sample": rng.sample,
    }
    names |= {"boxed": _boxed, "frac": _frac, "comb": math.comb, "factorial": math.factorial}
    exec(drawn, names)
    problem, solution = (
        re.sub("<(.+?)>", lambda match: str(eval(match[1], names)), text) for text in texts
    )
    return problem, solution


def rows(rng: random.Random, subject: str) -> dict[str, list[dict[str, str]]]:
    """Five test rows: a problem of each easy type, one medium and one hard; a train row of every
    level.

    The field "level" is the one that the official tasks keep, whatever the level here.
    """
    easy, medium, hard = (PROBLEMS[f"{subject} {level}"] for level in ("easy", "medium", "hard"))

    def row(template: list[str]) -> dict[str, str]:
        problem, solution = draw(rng, template)
        return {
            "problem": problem,
            "level": "Level 5",
            "solution": solution,
            "type": SUBJECTS[subject],
        }

    medium, hard = rng.sample(medium, 2), rng.sample(hard, 2)
    test = [row(template) for template in (*easy, medium[0], hard[0])]
    again = rng.choice(easy)
    while (shown := row(again)) in test:
        pass
    train = [shown, row(medium[1]), row(hard[1])]
    rng.shuffle(test)
    return {"train": train, "test": test}
