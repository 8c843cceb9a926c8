"""Six BBH subtasks in the form of the official prompts' exemplars, with drawn contents.

Each has rows at three levels: an easy one is short (few operators, things, instructions or words)
or, where the form fixes the length, has at most one lie; a medium and a hard one are longer. Three
of five rows are easy, so that a very small model can solve some.
"""

import random
from collections.abc import Callable, Sequence
from itertools import pairwise
from string import ascii_uppercase
from typing import NamedTuple

Row = dict[str, str]

LEVELS = ("easy", "easy", "easy", "medium", "hard")  # of the five rows of a subtask

# No name begins with Q: the official tasks end an answer at this letter.
NAMES = """Adele Bruno Chiara Dmitri Esther Farid Greta Hiro Ingrid Jonas Keiko Lars Marisol
Nadia Omar Priya Pavel Rosa Stefan Tomoko Ursula Viktor Wendy Yusuf"""
WORDS = """acorn anchor apron arrow basket beetle blanket bottle bridge bucket candle canoe
carpet chimney cloud copper cradle curtain dagger dolphin drawer engine falcon feather fiddle
forest fossil garden glacier hammer harbor hazel island jacket kettle ladder lantern lemon
magnet marble meadow mirror needle nickel orchard paddle pebble pepper pigeon pillow quilt
ribbon river saddle shadow shovel silver spoon stable thimble thunder tunnel valley velvet
violet whistle window winter yellow"""
THINGS = {  # kind → nouns, whose plurals all end in -s
    "fruits": "apple orange banana plum pear lemon apricot lime grape melon",
    "vegetables": "onion carrot turnip yam leek cabbage parsnip beet artichoke cauliflower",
    "musical instruments": "flute drum trumpet violin guitar harp oboe trombone accordion banjo",
    "animals": "dog cat goat rabbit duck cow horse owl snail ant",
    "tools": "hammer saw rake shovel drill wrench chisel screwdriver spade axe",
}
# In the order of the official options.
COLORS = """red orange yellow green blue brown magenta fuchsia mauve teal turquoise burgundy
silver gold black grey purple pink"""
ITEMS = "mug pencil keychain plate notebook bracelet cup jug pen booklet puzzle envelope"
NUMERALS = {2: "two", 3: "three", 4: "four", 5: "five"}
TURNS = {"Turn left.": 1j, "Turn right.": -1j, "Turn around.": -1}
DIRECTIONS = {"forward": 1j, "backward": -1j, "left": -1, "right": 1}


def _with_targets(targets: str, draw: Callable[[str], Row]) -> list[Row]:
    """A row of every level, drawn until it has its target and is unlike the rows before it."""
    result = []
    for level, target in zip(LEVELS, targets.split(), strict=True):
        row = draw(level)
        while row["target"] != target or row in result:
            row = draw(level)
        result.append(row)
    return result


def _yes_or_no(value: bool) -> str:
    if value:
        return "Yes"
    return "No"


def _with_article(word: str) -> str:
    if word[0] in "aeiou":
        return f"an {word}"
    return f"a {word}"


def _operand(rng: random.Random, depth: int) -> tuple[str, bool]:
    """A constant, a negation or a bracket, nested up to a depth, and its value."""
    kinds = ["constant"]
    if depth:
        kinds = ["constant", "constant", "not", "brackets"]
    kind = rng.choice(kinds)
    if kind == "not":
        text, value = _operand(rng, depth - 1)
        return f"not {text}", not value
    if kind == "brackets":
        text, value = _disjunction(rng, depth - 1, rng.randrange(1, 3))
        return f"( {text} )", value
    value = rng.choice([True, False])
    return str(value), value


def _disjunction(rng: random.Random, depth: int, operands: int) -> tuple[str, bool]:
    """Operands joined by "and" and "or", of which "and" binds more strongly, and their value."""
    text, product = _operand(rng, depth)  # the value of the operands since the last "or"
    value = False  # of all operands before it
    for _ in range(operands - 1):
        word = rng.choice(["and", "or"])
        right, right_value = _operand(rng, depth)
        text = f"{text} {word} {right}"
        if word == "and":
            product = product and right_value
        else:
            value = value or product
            product = right_value
    return text, value or product


def boolean_expressions(rng: random.Random) -> list[Row]:
    """An easy row has one operator, "and" or "or"; the others have several, "not" and brackets."""
    depths = {"easy": 0, "medium": 2, "hard": 2}
    numbers_of_operators = {"easy": range(1, 2), "medium": range(3, 5), "hard": range(5, 9)}

    def draw(level: str) -> Row:
        operators = 0
        while operators not in numbers_of_operators[level]:
            text, value = _disjunction(rng, depths[level], rng.randrange(2, 5))
            operators = sum(word in ("not", "and", "or") for word in text.split())
        return {"input": f"{text} is", "target": str(value)}

    return _with_targets("True False True False True", draw)


class Things(NamedTuple):
    """How many things a row of object_counting lists."""

    nouns: tuple[tuple[int, int], ...]  # of the kind asked for, and of another kind
    counts: tuple[int, ...]  # of each noun


def _counted(noun: str, count: int) -> str:
    if count > 1:
        return f"{NUMERALS[count]} {noun}s"
    return _with_article(noun)


def object_counting(rng: random.Random) -> list[Row]:
    """One question for each kind of thing. No two have the same answer.

    An easy row lists things of the kind that it asks for only; the others have things of another
    kind in between.
    """
    sizes = {
        "easy": Things(nouns=((3, 0),), counts=(1, 1, 2)),
        "medium": Things(nouns=((3, 1), (3, 2), (4, 1)), counts=(1, 1, 2, 3)),
        "hard": Things(nouns=((4, 2), (5, 3), (6, 2)), counts=(1, 1, 1, 2, 3, 4, 5)),
    }
    rows_by_target = {}
    for kind, level in zip(rng.sample(list(THINGS), len(LEVELS)), LEVELS, strict=True):
        size = sizes[level]
        target = None
        while target is None or target in rows_by_target:
            num_nouns, num_other_nouns = rng.choice(size.nouns)
            nouns = rng.sample(THINGS[kind].split(), num_nouns)
            things = [(noun, rng.choice(size.counts)) for noun in nouns]
            target = str(sum(count for _, count in things))

        other_kind = rng.choice([name for name in THINGS if name != kind])
        other_nouns = rng.sample(THINGS[other_kind].split(), num_other_nouns)
        things += [(noun, rng.choice(size.counts)) for noun in other_nouns]
        rng.shuffle(things)
        *most, last = (_counted(noun, count) for noun, count in things)
        text = f"I have {', '.join(most)}, and {last}. How many {kind} do I have?"
        rows_by_target[target] = {"input": text, "target": target}
    return list(rows_by_target.values())


class Walk(NamedTuple):
    """What a walk of navigate is drawn from."""

    turns: bool  # or always facing forward
    instructions: range
    longest: int  # steps in one instruction


def _walk(rng: random.Random, walk: Walk) -> Row:
    """A walk, and whether it ends where it began; positions and directions are complex numbers."""
    position = 0
    heading = 1j
    sentences = []
    if not walk.turns:
        sentences.append("Always face forward.")
    for _ in range(rng.choice(walk.instructions)):
        if walk.turns and sentences and rng.choice([True, False]):
            turn = rng.choice(list(TURNS))
            heading *= TURNS[turn]
            sentences.append(turn)
            continue
        steps = rng.randrange(1, walk.longest + 1)
        unit = "step" if steps == 1 else "steps"
        if walk.turns:
            position += steps * heading
            sentences.append(f"Take {steps} {unit}.")
        else:
            direction = rng.choice(list(DIRECTIONS))
            position += steps * DIRECTIONS[direction]
            sentences.append(f"Take {steps} {unit} {direction}.")
    question = "If you follow these instructions, do you return to the starting point?"
    text = f"{question} {' '.join(sentences)}\nOptions:\n- Yes\n- No"
    return {"input": text, "target": _yes_or_no(position == 0)}


def navigate(rng: random.Random) -> list[Row]:
    """A level is a number of instructions and of steps in each, and only the hard one has turns."""
    walks = {
        "easy": Walk(turns=False, instructions=range(2, 3), longest=5),
        "medium": Walk(turns=False, instructions=range(4, 6), longest=10),
        "hard": Walk(turns=True, instructions=range(4, 8), longest=10),
    }
    return _with_targets("Yes No Yes No Yes", lambda level: _walk(rng, walks[level]))


def word_sorting(rng: random.Random) -> list[Row]:
    """Lists of words out of order. The words of an easy row begin with different letters."""
    result = []
    for length in (2, 2, 3, 5, 7):
        is_easy = length <= 3
        words = []
        initials = set()
        while words == sorted(words) or (is_easy and len(initials) < length):
            words = rng.sample(WORDS.split(), length)
            initials = {word[0] for word in words}
        text = f"Sort the following words alphabetically: List: {' '.join(words)}"
        result.append({"input": text, "target": " ".join(sorted(words))})
    return result


def web_of_lies(rng: random.Random) -> list[Row]:
    """Five people, as in the official rows; a level is how often one is said to lie."""
    numbers_of_lies = {"easy": range(2), "medium": range(3, 5), "hard": range(4, 6)}
    verbs = {True: "tells the truth", False: "lies"}

    def draw(level: str) -> Row:
        people = rng.sample(NAMES.split(), 5)
        claims = [rng.choice([True, False]) for _ in people]
        while claims.count(False) not in numbers_of_lies[level]:
            claims = [rng.choice([True, False]) for _ in people]
        sentences = [f"{people[0]} {verbs[claims[0]]}."]
        for (before, name), claim in zip(pairwise(people), claims[1:], strict=True):
            sentences.append(f"{name} says {before} {verbs[claim]}.")
        text = f"Question: {' '.join(sentences)} Does {people[-1]} tell the truth?"
        return {"input": text, "target": _yes_or_no(claims.count(False) % 2 == 0)}

    return _with_targets("No Yes No Yes No", draw)


def _options(choices: Sequence[str]) -> str:
    lines = ["Options:"]
    for letter, choice in zip(ascii_uppercase, choices, strict=False):
        lines.append(f"({letter}) {choice}")
    return "\n".join(lines)


def _listed(things: Sequence[str]) -> str:
    """Two things joined by "and", or more of them with a comma before the "and"."""
    comma = "," if len(things) > 2 else ""
    return f"{', '.join(things[:-1])}{comma} and {things[-1]}"


def _colored_objects(rng: random.Random, question: str, number: int) -> Row:
    """A question about one of a number of objects: its color ("yes" or "no") or its neighbor's."""
    all_colors = COLORS.split()
    colors = rng.sample(all_colors, number)
    items = rng.sample(ITEMS.split(), number)
    things = [f"{_with_article(color)} {item}" for color, item in zip(colors, items, strict=True)]
    listed = _listed(things)

    num_candidates = number
    if question == "neighbor":
        num_candidates -= 1  # the last object has no neighbor on its right
    index = rng.randrange(num_candidates)
    item = items[index]

    scene = f"there is {listed}"
    choices = all_colors
    if question == "neighbor":
        scene = f"you see a bunch of objects arranged in a row: {listed}"
        asked = f"What is the color of the object directly to the right of the {item}"
        answer = colors[index + 1]
    elif question == "color":
        asked = f"What color is the {item}"
        answer = colors[index]
    else:
        color = colors[index] if question == "yes" else colors[index - 1]
        asked = f"Is the {item} {color}"
        choices = ["yes", "no"]
        answer = question
    place = rng.choice(["desk", "table", "floor", "nightstand"])
    text = f"On the {place}, {scene}. {asked}?\n{_options(choices)}"
    return {"input": text, "target": f"({ascii_uppercase[choices.index(answer)]})"}


def reasoning_about_colored_objects(rng: random.Random) -> list[Row]:
    """An easy row has two objects and asks for one of them; the medium and the hard one have five.

    The hard one asks for the color of a neighbor. No two rows have the same answer.
    """
    rows_by_target = {}
    for question, number in (("yes", 2), ("no", 2), ("color", 2), ("color", 5), ("neighbor", 5)):
        row = _colored_objects(rng, question, number)
        while row["target"] in rows_by_target or row["target"] == "(Q)":  # an answer ends at a Q
            row = _colored_objects(rng, question, number)
        rows_by_target[row["target"]] = row
    return list(rows_by_target.values())


SUBTASKS: dict[str, Callable[[random.Random], list[Row]]] = {
    "boolean_expressions": boolean_expressions,
    "object_counting": object_counting,
    "navigate": navigate,
    "word_sorting": word_sorting,
    "web_of_lies": web_of_lies,
    "reasoning_about_colored_objects": reasoning_about_colored_objects,
}


def rows(rng: random.Random, subtask: str) -> dict[str, list[Row]]:
    """Five test rows; the official prompts bring their exemplars along."""
    test = SUBTASKS[subtask](rng)
    rng.shuffle(test)
    return {"test": test}
