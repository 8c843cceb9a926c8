"""Six BBH subtasks: the surface form is that of the exemplars in the official prompts, the contents
are drawn.

Each has rows at three levels: an easy one is short (few operators, things, instructions or words)
or, where the form fixes the length, has at most one lie; a medium and a hard one are longer. Three
of five rows are easy, so that a very small model can solve some.
"""

import random
from collections.abc import Callable, Sequence
from itertools import pairwise
from string import ascii_uppercase

Row = dict[str, str]

LEVELS = ("easy", "easy", "easy", "medium", "hard")

# No name begins with Q: the official tasks end an answer at this letter.
NAMES = """Adele Bruno Chiara Dmitri Esther Farid Greta Hiro Ingrid Jonas Keiko Lars Marisol Nadia Omar Priya Pavel
Rosa Stefan Tomoko Ursula Viktor Wendy Yusuf"""
WORDS = """acorn anchor apron arrow basket beetle blanket bottle bridge bucket candle canoe carpet chimney cloud copper
cradle curtain dagger dolphin drawer engine falcon feather fiddle forest fossil garden glacier hammer harbor hazel
island jacket kettle ladder lantern lemon magnet marble meadow mirror needle nickel orchard paddle pebble pepper pigeon
pillow quilt ribbon river saddle shadow shovel silver spoon stable thimble thunder tunnel valley velvet violet whistle
window winter yellow"""
THINGS = {  # every plural ends in -s
    "fruits": "apple orange banana plum pear lemon apricot lime grape melon",
    "vegetables": "onion carrot turnip yam leek cabbage parsnip beet artichoke cauliflower",
    "musical instruments": "flute drum trumpet violin guitar harp oboe trombone accordion banjo",
    "animals": "dog cat goat rabbit duck cow horse owl snail ant",
    "tools": "hammer saw rake shovel drill wrench chisel screwdriver spade axe",
}
COLORS = """red orange yellow green blue brown magenta fuchsia mauve teal turquoise burgundy silver gold black grey
purple pink"""  # in the order of the official options
ITEMS = "mug pencil keychain plate notebook bracelet cup jug pen booklet puzzle envelope"
NUMERALS = {2: "two", 3: "three", 4: "four", 5: "five"}
TURNS = {"Turn left.": 1j, "Turn right.": -1j, "Turn around.": -1}
DIRECTIONS = {"forward": 1j, "backward": -1j, "left": -1, "right": 1}


def _with_targets(targets: str, draw: Callable[[str], Row]) -> list[Row]:
    """A row of every level, drawn until it has its target and is unlike the rows before it."""
    result = []
    for level, target in zip(LEVELS, targets.split(), strict=True):
        while (row := draw(level))["target"] != target or row in result:
            pass
        result.append(row)
    return result


def _yes(value: bool) -> str:
    return "Yes" if value else "No"


def _operand(rng: random.Random, depth: int) -> tuple[str, bool]:
    kind = rng.choice(["constant", "constant", "not", "brackets"] if depth else ["constant"])
    if kind == "not":
        text, value = _operand(rng, depth - 1)
        return f"not {text}", not value
    if kind == "brackets":
        text, value = _disjunction(rng, depth - 1, rng.randrange(1, 3))
        return f"( {text} )", value
    value = rng.choice([True, False])
    return str(value), value


def _disjunction(rng: random.Random, depth: int, operands: int) -> tuple[str, bool]:
    """Operands joined by "and" and "or": of these, "and" binds more strongly."""
    text, product = _operand(rng, depth)
    value = False
    for _ in range(operands - 1):
        word = rng.choice(["and", "or"])
        right, right_value = _operand(rng, depth)
        text = f"{text} {word} {right}"
        value, product = (
            (value, product and right_value) if word == "and" else (value or product, right_value)
        )
    return text, value or product


def boolean_expressions(rng: random.Random) -> list[Row]:
    """An easy row has one operator, "and" or "or"; the others have several, "not" and brackets."""
    sizes = {"easy": (0, range(1, 2)), "medium": (2, range(3, 5)), "hard": (2, range(5, 9))}

    def draw(level: str) -> Row:
        while True:
            depth, operators = sizes[level]
            text, value = _disjunction(rng, depth, rng.randrange(2, 5))
            if sum(text.split().count(word) for word in ("not", "and", "or")) in operators:
                return {"input": f"{text} is", "target": str(value)}

    return _with_targets("True False True False True", draw)


def _counted(noun: str, count: int) -> str:
    if count > 1:
        return f"{NUMERALS[count]} {noun}s"
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"


def object_counting(rng: random.Random) -> list[Row]:
    """One question for each kind of thing. No two have the same answer.

    A level has its numbers of such things, of things of another kind in between (none in an easy
    row), and counts.
    """
    sizes = {
        "easy": (((3, 0),), (1, 1, 2)),
        "medium": (((3, 1), (3, 2), (4, 1)), (1, 1, 2, 3)),
        "hard": (((4, 2), (5, 3), (6, 2)), (1, 1, 1, 2, 3, 4, 5)),
    }
    result = {}
    for kind, level in zip(rng.sample(list(THINGS), len(LEVELS)), LEVELS, strict=True):
        target = None
        while target is None or target in result:
            (many, few), counts = rng.choice(sizes[level][0]), sizes[level][1]
            wanted = [(noun, rng.choice(counts)) for noun in rng.sample(THINGS[kind].split(), many)]
            target = str(sum(count for _, count in wanted))
        others = THINGS[rng.choice([name for name in THINGS if name != kind])].split()
        things = wanted + [(noun, rng.choice(counts)) for noun in rng.sample(others, few)]
        rng.shuffle(things)
        *most, last = (_counted(noun, count) for noun, count in things)
        text = f"I have {', '.join(most)}, and {last}. How many {kind} do I have?"
        result[target] = {"input": text, "target": target}
    return list(result.values())


def _walk(rng: random.Random, turning: bool, instructions: Sequence[int], longest: int) -> Row:
    """A walk with turns, or one that always faces forward; a position is a complex number."""
    position, heading = 0, 1j
    sentences = [] if turning else ["Always face forward."]
    for _ in range(rng.choice(instructions)):
        if turning and sentences and rng.choice([True, False]):
            turn = rng.choice(list(TURNS))
            heading *= TURNS[turn]
            sentences.append(turn)
            continue
        steps = rng.randrange(1, longest + 1)
        plural = "step" if steps == 1 else "steps"
        if turning:
            position += steps * heading
            sentences.append(f"Take {steps} {plural}.")
        else:
            direction = rng.choice(list(DIRECTIONS))
            position += steps * DIRECTIONS[direction]
            sentences.append(f"Take {steps} {plural} {direction}.")
    question = f"If you follow these instructions, do you return to the starting point? {' '.join(sentences)}"
    return {"input": f"{question}\nOptions:\n- Yes\n- No", "target": _yes(position == 0)}


def navigate(rng: random.Random) -> list[Row]:
    """A level is a number of instructions and of steps in each, and only the hard one has turns."""
    walks = {
        "easy": (False, range(2, 3), 5),
        "medium": (False, range(4, 6), 10),
        "hard": (True, range(4, 8), 10),
    }
    return _with_targets("Yes No Yes No Yes", lambda level: _walk(rng, *walks[level]))


def word_sorting(rng: random.Random) -> list[Row]:
    """Two or three words for an easy row, which all begin with different letters. No list is in
    order.
    """
    result = []
    for length in (2, 2, 3, 5, 7):
        words = initials = []
        while words == sorted(words) or (length <= 3 and len(initials) < length):
            words = rng.sample(WORDS.split(), length)
            initials = {word[0] for word in words}
        text = f"Sort the following words alphabetically: List: {' '.join(words)}"
        result.append({"input": text, "target": " ".join(sorted(words))})
    return result


def web_of_lies(rng: random.Random) -> list[Row]:
    """Five people, as in the official rows; a level is how often one is said to lie."""
    lies = {"easy": range(2), "medium": range(3, 5), "hard": range(4, 6)}

    def draw(level: str) -> Row:
        people = rng.sample(NAMES.split(), 5)
        claims = [rng.choice([True, False]) for _ in people]
        while claims.count(False) not in lies[level]:
            claims = [rng.choice([True, False]) for _ in people]
        first, *verbs = ("tells the truth" if claim else "lies" for claim in claims)
        sentences = [f"{people[0]} {first}."]
        sentences += [
            f"{name} says {before} {verb}."
            for (before, name), verb in zip(pairwise(people), verbs, strict=True)
        ]
        text = f"Question: {' '.join(sentences)} Does {people[-1]} tell the truth?"
        return {"input": text, "target": _yes(claims.count(False) % 2 == 0)}

    return _with_targets("No Yes No Yes No", draw)


def _options(choices: Sequence[str]) -> str:
    return "\n".join(
        [
            "Options:",
            *(
                f"({letter}) {choice}"
                for letter, choice in zip(ascii_uppercase, choices, strict=False)
            ),
        ]
    )


def reasoning_about_colored_objects(rng: random.Random) -> list[Row]:
    """An easy row has two objects and asks for one; the medium one has five, the hard one asks for
    a neighbor.

    No two rows have the same answer.
    """
    colors, result = COLORS.split(), {}
    for question, number in (("yes", 2), ("no", 2), ("color", 2), ("color", 5), ("neighbor", 5)):
        target = None
        while target is None or target in result or target == "(Q)":  # an answer ends at a Q
            shown, items = rng.sample(colors, number), rng.sample(ITEMS.split(), number)
            index = rng.randrange(number - 1 if question == "neighbor" else number)
            things = [
                f"{'an' if color[0] == 'o' else 'a'} {color} {item}"
                for color, item in zip(shown, items, strict=True)
            ]
            listed = f"{', '.join(things[:-1])}{',' if number > 2 else ''} and {things[-1]}"
            scene, asked = f"there is {listed}", f"What color is the {items[index]}"
            choices, answer = colors, shown[index]
            if question == "neighbor":
                scene = f"you see a bunch of objects arranged in a row: {listed}"
                asked = (
                    f"What is the color of the object directly to the right of the {items[index]}"
                )
                answer = shown[index + 1]
            elif question != "color":
                asked = f"Is the {items[index]} {shown[index if question == 'yes' else index - 1]}"
                choices, answer = ["yes", "no"], question
            place = rng.choice(["desk", "table", "floor", "nightstand"])
            text = f"On the {place}, {scene}. {asked}?\n{_options(choices)}"
            target = f"({ascii_uppercase[choices.index(answer)]})"
        result[target] = {"input": text, "target": target}
    return list(result.values())


SUBTASKS = {
    make.__name__: make
    for make in (
        boolean_expressions,
        object_counting,
        navigate,
        word_sorting,
        web_of_lies,
        reasoning_about_colored_objects,
    )
}


def rows(rng: random.Random, subtask: str) -> dict[str, list[Row]]:
    """Five test rows; the official prompts bring their exemplars along."""
    test = SUBTASKS[subtask](rng)
    rng.shuffle(test)
    return {"test": test}
