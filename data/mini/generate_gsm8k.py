"""Word problems in the form of GSM8K: stories with drawn numbers and names, at three levels.

Easy: one step, a sum or difference of one-digit numbers or a product up to 5 x 5. Medium: one step with numbers up to
20, or two with one-digit numbers. Hard: two or three steps with larger numbers. Half of the stories told are easy, so
that a very small model can solve some.
"""

import operator
import random
import re
from typing import NamedTuple

OPERATIONS = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.floordiv}
NAMES = """Adele Bruno Chiara Dmitri Esther Farid Greta Hiro Ingrid Jonas Keiko Lars Marisol Nadia Omar Priya Quentin
Rosa Stefan Tomoko Ursula Viktor Wendy Xavier Yusuf Zoe"""


class Story(NamedTuple):
    """Placeholders are ``<letters>``; the results of the steps are called x and y."""

    question: str
    numbers: dict[str, range]
    steps: tuple[tuple[str, str], ...]


STORIES = {
    "easy": (
        Story(
            "<name> has <a> apples and buys <b> more. How many apples does <name> have now?",
            {"a": range(2, 8), "b": range(2, 6)},
            (("Now <name> has <step> apples.", "a + b"),),
        ),
        Story(
            "There are <a> birds on a fence, and <b> of them fly away. How many birds are left?",
            {"a": range(4, 10), "b": range(2, 6)},
            (("There are <step> birds left.", "a - b"),),
        ),
        Story(
            "A vase holds <a> red roses and <b> white roses. How many roses are in the vase?",
            {"a": range(2, 8), "b": range(2, 8)},
            (("The vase holds <step> roses.", "a + b"),),
        ),
        Story(
            "On the table are <a> boxes with <b> pens in each box. How many pens are on the table?",
            {"a": range(2, 6), "b": range(2, 6)},
            (("On the table are <step> pens.", "a * b"),),
        ),
        Story(
            "<name> had <a> balloons, but <b> of them popped. How many balloons does <name> still have?",
            {"a": range(4, 10), "b": range(2, 6)},
            (("<name> still has <step> balloons.", "a - b"),),
        ),
        Story(
            "In the pond, <a> ducks swim. Then <b> more ducks come. How many ducks swim in the pond now?",
            {"a": range(2, 8), "b": range(2, 6)},
            (("Now <step> ducks swim in the pond.", "a + b"),),
        ),
        Story(
            "Every day, <name> drinks <a> cups of tea. How many cups of tea is that in <b> days?",
            {"a": range(2, 5), "b": range(3, 6)},
            (("That is <step> cups of tea.", "a * b"),),
        ),
        Story(
            "<name> is <a> years old. <other> is <b> years younger. How old is <other>?",
            {"a": range(6, 10), "b": range(2, 5)},
            (("<other> is <step> years old.", "a - b"),),
        ),
    ),
    "medium": (
        Story(
            "A rope is <a> meters long, and <name> cuts off <b> meters. How many meters of rope remain?",
            {"a": range(12, 21), "b": range(3, 10)},
            (("There remain <step> meters.", "a - b"),),
        ),
        Story(
            "<name> finds <a> shells in the morning and <b> shells in the afternoon, then gives <c> of them to "
            "<other>. How many shells does <name> keep?",
            {"a": range(3, 7), "b": range(2, 5), "c": range(2, 4)},
            (("<name> finds <step> shells.", "a + b"), ("<name> keeps <step> shells.", "x - c")),
        ),
        Story(
            "<name> bakes <a> muffins before lunch and <b> muffins after lunch. How many muffins is that in all?",
            {"a": range(6, 21), "b": range(6, 21)},
            (("<name> bakes <step> muffins.", "a + b"),),
        ),
        Story(
            "In an orchard, <name> picks <a> pears, and <other> picks twice as many. How many pears do the two have "
            "together?",
            {"a": range(3, 7)},
            (("<other> picks <step> pears.", "a * 2"), ("Together they have <step> pears.", "a + x")),
        ),
        Story(
            "A room has <a> desks with <b> chairs at each desk, and <c> more chairs stand along the wall. How many "
            "chairs does the room have?",
            {"a": range(2, 5), "b": range(2, 4), "c": range(2, 7)},
            (("At the desks there are <step> chairs.", "a * b"), ("The room has <step> chairs.", "x + c")),
        ),
        Story(
            "A farm collects <a> eggs and packs them in boxes of <b>. How many boxes are needed?",
            {"a": range(12, 21), "b": range(4, 7, 2)},
            (("The farm needs <step> boxes.", "a / b"),),
        ),
        Story(
            "This story has <a> pages. By now, <name> has read <b> of them. How many pages does <name> have left to "
            "read?",
            {"a": range(14, 21), "b": range(5, 12)},
            (("<name> has <step> pages left.", "a - b"),),
        ),
        Story(
            "One ticket for the puppet show costs $<a>. How many dollars do <b> tickets cost?",
            {"a": range(6, 13), "b": range(2, 5)},
            (("The tickets cost <dollars>.", "a * b"),),
        ),
    ),
    "hard": (
        Story(
            "A bookcase has <a> shelves with <b> books on each shelf. Today, readers borrow <c> of the books. How many "
            "books stay in the bookcase?",
            {"a": range(3, 8), "b": range(10, 21), "c": range(5, 25)},
            (("The bookcase holds <step> books.", "a * b"), ("After today, <step> books are left.", "x - c")),
        ),
        Story(
            "At the school shop, a pencil costs $<a> and a notebook costs $<b>. What is the price of <c> pencils and "
            "<d> notebooks together, in dollars?",
            {"a": range(2, 4), "b": range(4, 8), "c": range(5, 10), "d": range(2, 5)},
            (
                ("The pencils cost <dollars>.", "c * a"),
                ("The notebooks cost <dollars>.", "d * b"),
                ("Together they cost <dollars>.", "x + y"),
            ),
        ),
        Story(
            "When a bus leaves the station, <a> people are on it. At the first stop, <b> people get off and <c> people "
            "get on. How many people does the bus carry then?",
            {"a": range(15, 41), "b": range(3, 15), "c": range(2, 12)},
            (("The people who stay are <step>.", "a - b"), ("With the new ones there are <step> people.", "x + c")),
        ),
        Story(
            "<name> owns <a> bags of <b> marbles each and shares all the marbles equally among <c> friends. How many "
            "marbles does every friend receive?",
            {"a": range(2, 5), "b": range(8, 31), "c": range(5, 9)},
            (("There are <step> marbles.", "a * b"), ("Every friend receives <step> marbles.", "x / c")),
        ),
        Story(
            "Admission to the zoo is $<b> a person. <name> pays for a group of <a> with a $<c> bill. How many dollars "
            "of change are given back?",
            {"a": range(2, 7), "b": range(6, 15), "c": range(50, 101, 50)},
            (("Admission for all is <dollars>.", "a * b"), ("The change is <dollars>.", "c - x")),
        ),
        Story(
            "Around a rectangular flower bed, <a> meters long and <b> meters wide, <name> builds a low fence. How many "
            "meters of fence go all the way around?",
            {"a": range(6, 16), "b": range(2, 6)},
            (("One long and one wide side are <step> meters.", "a + b"), ("The fence is <step> meters.", "x * 2")),
        ),
        Story(
            "To buy a bicycle for $<c>, <name> saves $<a> every week. After <b> weeks, an aunt gives another $<d>. How "
            "many dollars are still missing?",
            {"a": range(5, 13), "b": range(4, 9), "c": range(100, 151, 10), "d": range(10, 31, 5)},
            (
                ("The savings are <dollars>.", "a * b"),
                ("With the gift, that is <dollars>.", "x + d"),
                ("Still missing is <dollars>.", "c - y"),
            ),
        ),
        Story(
            "<name> wants to finish a novel of <a> pages. For <c> days, <name> reads <b> pages a day, and from then on "
            "<d> pages a day. How many days does the rest of the novel take?",
            {"a": range(60, 201, 10), "b": range(8, 16), "c": range(3, 7), "d": range(10, 31, 5)},
            (
                ("The first days are enough for <step> pages.", "b * c"),
                ("The rest has <step> pages.", "a - x"),
                ("It takes <step> days.", "y / d"),
            ),
        ),
    ),
}
EXAMPLES = {"easy": 4, "medium": 2, "hard": 2}  # stories that the train rows tell: each level's first ones


def _fill(template: str, values: dict[str, str | int]) -> str:
    return re.sub(r"<(\w+)>", lambda match: str(values[match[1]]), template)


def _solve(story: Story, numbers: dict[str, int]) -> list[tuple[int, str, int, int]] | None:
    """Left, sign, right, result of every step; None if a number would be broken or tiny."""
    known, solved = dict(numbers), []
    for result_name, (_, expression) in zip("xyz", story.steps, strict=False):
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
    for (sentence, _), (a, sign, b, result) in zip(story.steps, solved, strict=True):
        text = f"{a} {sign} {b} = {{}}<<{a}{sign}{b}={result}>>{result}"
        lines.append(_fill(sentence, people | {"step": text.format(""), "dollars": text.format("$")}))
    question = _fill(story.question, people | numbers)
    return {"question": question, "answer": "\n".join([*lines, f"#### {solved[-1][-1]}"])}


def rows(rng: random.Random) -> dict[str, list[dict[str, str]]]:
    """24 test rows, 12 of them easy, 6 medium and 6 hard; 8 train rows, easy ones first.

    An easy story is told twice, any other once. In the steps of the train rows, sums, differences and products are
    equally frequent.
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
