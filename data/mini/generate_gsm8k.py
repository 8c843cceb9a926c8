"""Word problems in the form of GSM8K: stories with drawn numbers and names, at three levels.

Easy: one step, a sum or difference of one-digit numbers or a product up to 5 x 5. Medium: one step
with numbers up to 20, or two with one-digit numbers. Hard: two or three steps with larger numbers.
Half of the stories told are easy, so that a very small model can solve some.
"""

import operator
import random
import re
from pathlib import Path
from typing import NamedTuple

OPERATIONS = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.floordiv}
NAMES = """Adele Bruno Chiara Dmitri Esther Farid Greta Hiro Ingrid Jonas Keiko Lars Marisol Nadia
Omar Priya Quentin Rosa Stefan Tomoko Ursula Viktor Wendy Xavier Yusuf Zoe"""


class Step(NamedTuple):
    """One computation of a solution."""

    expression: str  # "a + b", of drawn numbers, constants and the results x, y, z of earlier steps
    sentence: str  # that says what is computed


class Story(NamedTuple):
    """The template of a word problem."""

    numbers: dict[str, range]  # name → what it is drawn from
    question: str
    steps: list[Step]


class SolvedStep(NamedTuple):
    """A step with its numbers."""

    left: int
    sign: str
    right: int
    result: int


def read_templates(name: str) -> dict[str, list[list[str]]]:
    """The templates of a file by heading, each a list of lines; empty lines separate them."""
    text = (Path(__file__).parent / "templates" / name).read_text(encoding="utf-8")
    parts = re.split(r"^\[(.+)\]\n", text, flags=re.MULTILINE)[1:]
    sections = zip(parts[::2], parts[1::2], strict=True)
    return {
        heading: [block.splitlines() for block in body.strip().split("\n\n")]
        for heading, body in sections
    }


def _story(lines: list[str]) -> Story:
    """A template of ``gsm8k.txt``: a line of ranges, the question, and a line for each step."""
    ranges, question, *steps = lines
    numbers = {}
    for name, low, high, step in re.findall(r"(\w) (\d+)-(\d+)/?(\d*)", ranges):
        numbers[name] = range(int(low), int(high) + 1, int(step or 1))
    return Story(numbers, question, [Step(*line.split(": ")) for line in steps])


STORIES = {
    level: [_story(lines) for lines in templates]
    for level, templates in read_templates("gsm8k.txt").items()
}
TRAIN_STORIES = {"easy": 4, "medium": 2, "hard": 2}
"""How many stories of each level, the first ones, make the train rows."""


def fill(template: str, values: dict[str, str | int]) -> str:
    """``template`` with each ``<name>`` replaced by its value."""
    return re.sub(r"<(\w+)>", lambda match: str(values[match[1]]), template)


def _solve(story: Story, numbers: dict[str, int]) -> list[SolvedStep] | None:
    """The solved steps, or None if a number would be a fraction or less than 2."""
    known = dict(numbers)

    def value(token: str) -> int:
        if token in known:
            return known[token]
        return int(token)

    solved = []
    for result_name, step in zip("xyz", story.steps, strict=False):
        left, sign, right = step.expression.split()
        a = value(left)
        b = value(right)
        result = OPERATIONS[sign](a, b)
        if result < 2 or (sign == "/" and a % b):
            return None
        known[result_name] = result
        solved.append(SolvedStep(a, sign, b, result))
    return solved


def tell(rng: random.Random, story: Story) -> dict[str, str]:
    """A row of GSM8K; numbers are drawn until no step gives a fraction."""
    solved = None
    while solved is None:
        numbers = {name: rng.choice(values) for name, values in story.numbers.items()}
        solved = _solve(story, numbers)

    name, other = rng.sample(NAMES.split(), 2)
    people = {"name": name, "other": other}
    lines = []
    for step, (a, sign, b, result) in zip(story.steps, solved, strict=True):
        calculator = f"<<{a}{sign}{b}={result}>>"  # GSM8K's annotation
        computed = {
            "step": f"{a} {sign} {b} = {calculator}{result}",
            "dollars": f"{a} {sign} {b} = ${calculator}{result}",
        }
        lines.append(fill(step.sentence, people | computed))
    lines.append(f"#### {solved[-1].result}")
    return {"question": fill(story.question, people | numbers), "answer": "\n".join(lines)}


def rows(rng: random.Random) -> dict[str, list[dict[str, str]]]:
    """24 test rows, 12 of them easy, 6 medium and 6 hard; 8 train rows, easy ones first.

    An easy story is told twice, any other once. In the steps of the train rows, sums, differences
    and products are equally frequent.
    """
    train = []
    test = []
    for level, stories in STORIES.items():
        if level == "easy":
            stories = [*stories, *stories]
        rows_of_level = []
        for story in stories:
            row = tell(rng, story)
            while row in rows_of_level:
                row = tell(rng, story)
            rows_of_level.append(row)
        num_train = TRAIN_STORIES[level]
        train += rows_of_level[:num_train]
        test += rows_of_level[num_train:]
    rng.shuffle(test)
    return {"train": train, "test": test}
