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
NAMES = """Adele Bruno Chiara Dmitri Esther Farid Greta Hiro Ingrid Jonas Keiko Lars Marisol Nadia Omar Priya Quentin
Rosa Stefan Tomoko Ursula Viktor Wendy Xavier Yusuf Zoe"""


class Story(NamedTuple):
    numbers: dict[str, range]
    question: str
    steps: list[list[str]]  # what is computed, and the sentence that says so


def read_templates(name: str) -> dict[str, list[list[str]]]:
    """Heading → templates, each a list of lines, of a file that sets them apart by empty lines."""
    text = (Path(__file__).parent / "templates" / name).read_text(encoding="utf-8")
    parts = re.split(r"^\[(.+)\]\n", text, flags=re.MULTILINE)[1:]
    sections = zip(parts[::2], parts[1::2], strict=True)
    return {
        heading: [block.splitlines() for block in body.strip().split("\n\n")]
        for heading, body in sections
    }


def _story(lines: list[str]) -> Story:
    ranges = re.findall(r"(\w) (\d+)-(\d+)/?(\d*)", lines[0])
    numbers = {
        name: range(int(low), int(high) + 1, int(step or 1)) for name, low, high, step in ranges
    }
    return Story(numbers, lines[1], [line.split(": ") for line in lines[2:]])


STORIES = {level: list(map(_story, found)) for level, found in read_templates("gsm8k.txt").items()}
EXAMPLES = {
    "easy": 4,
    "medium": 2,
    "hard": 2,
}  # stories that the train rows tell: each level's first ones


def _fill(template: str, values: dict[str, str | int]) -> str:
    return re.sub(r"<(\w+)>", lambda match: str(values[match[1]]), template)


def _solve(story: Story, numbers: dict[str, int]) -> list[tuple[int, str, int, int]] | None:
    """Left, sign, right, result of every step; None if a number would be broken or tiny."""
    known, solved = dict(numbers), []
    for result_name, (expression, _) in zip("xyz", story.steps, strict=False):
        left, sign, right = expression.split()
        a, b = (known[token] if token in known else int(token) for token in (left, right))
        known[result_name] = result = OPERATIONS[sign](a, b)
        if result < 2 or (sign == "/" and a % b):
            return None
        solved.append((a, sign, b, result))
    return solved


def tell(rng: random.Random, story: Story) -> dict[str, str]:
    """A row of GSM8K: numbers are drawn until every step comes out even."""
    solved = None
    while solved is None:
        numbers = {name: rng.choice(values) for name, values in story.numbers.items()}
        solved = _solve(story, numbers)
    name, other = rng.sample(NAMES.split(), 2)
    people = {"name": name, "other": other}
    lines = []
    for (_, sentence), (a, sign, b, result) in zip(story.steps, solved, strict=True):
        text = f"{a} {sign} {b} = {{}}<<{a}{sign}{b}={result}>>{result}"
        lines.append(
            _fill(sentence, people | {"step": text.format(""), "dollars": text.format("$")})
        )
    question = _fill(story.question, people | numbers)
    return {"question": question, "answer": "\n".join([*lines, f"#### {solved[-1][-1]}"])}


def rows(rng: random.Random) -> dict[str, list[dict[str, str]]]:
    """24 test rows, 12 of them easy, 6 medium and 6 hard; 8 train rows, easy ones first.

    An easy story is told twice, any other once. In the steps of the train rows, sums, differences
    and products are equally frequent.
    """
    train, test = [], []
    for level, stories in STORIES.items():
        told = []
        for story in stories * 2 if level == "easy" else stories:
            while (row := tell(rng, story)) in told:
                pass
            told.append(row)
        train += told[: EXAMPLES[level]]
        test += told[EXAMPLES[level] :]
    rng.shuffle(test)
    return {"train": train, "test": test}
