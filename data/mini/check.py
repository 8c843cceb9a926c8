"""Compute every generated answer of the miniature benchmark again, from the rows alone.

    python data/mini/check.py [FOLDER]

The tasks are GSM8K, four subjects of MATH, six subtasks of BBH and six tasks of LongBench. The
answers are computed in another way than in the generators, so an error would have to be made twice.
The script fails at the first answer that differs. Standard library only.
"""

import ast
import json
import re
import sys
from fractions import Fraction
from functools import partial
from itertools import product
from math import comb, factorial, gcd
from pathlib import Path

GSM8K = {  # a word of the story → its answer, from the numbers in the order of the text
    "apples": lambda a, b: a + b,
    "birds": lambda a, b: a - b,
    "roses": lambda a, b: a + b,
    "pens": lambda a, b: a * b,
    "balloons": lambda a, b: a - b,
    "ducks": lambda a, b: a + b,
    "tea": lambda a, b: a * b,
    "younger": lambda a, b: a - b,
    "rope": lambda a, b: a - b,
    "shells": lambda morning, afternoon, given: morning + afternoon - given,
    "muffins": lambda before, after: before + after,
    "orchard": lambda pears: 3 * pears,
    "desks": lambda desks, each, more: desks * each + more,
    "eggs": Fraction,
    "This story": lambda pages, read: pages - read,
    "ticket": lambda price, tickets: price * tickets,
    "bookcase": lambda shelves, books, lent: shelves * books - lent,
    "notebook": lambda pencil, notebook, pencils, notebooks: (
        pencil * pencils + notebook * notebooks
    ),
    "bus": lambda people, off, on: people - off + on,
    "marbles": lambda bags, each, friends: Fraction(bags * each, friends),
    "zoo": lambda price, people, bill: bill - price * people,
    "flower bed": lambda length, width: 2 * length + 2 * width,
    "bicycle": lambda price, saved, weeks, gift: price - gift - saved * weeks,
    "novel": lambda pages, days, at_first, later: Fraction(pages - days * at_first, later),
}
MATH = {  # words of the problem → its answer, from the numbers in the order of the text
    "the value of $x +": lambda a, x: x + a,
    "Solve $x +": lambda a, c: c - a,
    "What is $x$ if": lambda a, c: Fraction(c, a),
    "Compute": pow,
    "the sum of $": lambda a, b: a + b,
    "half of": lambda number: Fraction(number, 2),
    "Divide": lambda number, divisor: number % divisor,
    "even number": lambda number: number + 2 - number % 2,
    "ones digit": lambda number: number % 10,
    "hats": lambda shirts, hats: shirts * hats,
    "one fruit": lambda apples, pears: apples + pears,
    "in a line": factorial,
    "makes the equation": lambda a, b, c: Fraction(c - b, a),
    "f(g(": lambda a, b, power, c, k: a * (k**power + c) - b,
    "their difference": lambda total, difference: Fraction(total + difference, 2),
    "Suppose that": lambda a, b, c: a * Fraction(b, c),
    r"\%$ of": lambda percent, number: Fraction(percent * number, 100),
    "Add $": lambda a, b, c, d: Fraction(a, b) + Fraction(c, d),
    "have a mean": lambda mean, a, b: 3 * mean - a - b,
    "Evaluate": lambda a, b, c, d: a + b * c - b * d,
    "common divisor": gcd,
    "remainder when": pow,
    "integers divide": lambda number: sum(
        number % divisor == 0 for divisor in range(1, number + 1)
    ),
    "base two": lambda digits, base: int(str(digits), base),
    "soups": lambda a, b, c: a * b * c,
    "shakes hands": lambda people: comb(people, 2),
    "red and": lambda red, blue: Fraction(red, red + blue),
    "fair dice": lambda total: Fraction(
        sum(a + b == total for a, b in product(range(1, 7), repeat=2)), 36
    ),
}


def only(items):
    """The one item of an iterable; an error if there are several or none."""
    (item,) = items
    return item


def compute(table, text):
    """The answer by the one rule of a table whose words are in the text."""
    rule = only(rule for words, rule in table.items() if words in text)
    numbers = map(int, re.findall(r"\d+", text))
    return rule(*numbers)


def gsm8k(row):
    """Answer and written answer of a word problem, whose written steps have to be right too."""
    *steps, last = row["answer"].split("\n")
    for expression, result in re.findall(r"<<(.+?)=(\d+)>>", "".join(steps)):
        assert eval(expression) == int(result)
    return compute(GSM8K, row["question"]), int(last.removeprefix("#### "))


def math(row):
    """Answer and written answer of a problem of MATH."""
    boxed = only(re.findall(r"\\boxed\{(.+)\}\$", row["solution"]))
    written = Fraction(re.sub(r"\\frac\{(\d+)\}\{(\d+)\}", r"\1/\2", boxed))
    return compute(MATH, row["problem"]), written


THINGS = {
    "fruits": "apple orange banana plum pear lemon apricot lime grape melon",
    "vegetables": "onion carrot turnip yam leek cabbage parsnip beet artichoke cauliflower",
    "musical instruments": "flute drum trumpet violin guitar harp oboe trombone accordion banjo",
    "animals": "dog cat goat rabbit duck cow horse owl snail ant",
    "tools": "hammer saw rake shovel drill wrench chisel screwdriver spade axe",
}
NUMERALS = {"a": 1, "two": 2, "three": 3, "four": 4, "five": 5}


def boolean_expressions(text):
    """The value of the expression, by Python."""
    return str(eval(text.removesuffix(" is")))


def object_counting(text):
    """How many things of a kind are listed."""
    listed, kind = re.fullmatch(r"I have (.+)\. How many (.+) do I have\?", text).groups()
    nouns = THINGS[kind].split()
    total = 0
    for numeral, noun in re.findall(
        r"\b(a|two|three|four|five) ([a-z]+)", listed.replace("an ", "a ")
    ):
        if numeral != "a":
            noun = noun.removesuffix("s")
        if noun in nouns:
            total += NUMERALS[numeral]
    return str(total)


def navigate(text):
    """Whether a walk ends where it began; positions and directions are complex numbers."""
    turns = {"left": 1j, "right": -1j, "around": -1}
    directions = {"forward": 1j, "backward": -1j, "left": -1, "right": 1}
    position = 0
    ahead = 1j
    for turn, steps, direction in re.findall(r"Turn (\w+)|Take (\d+) steps?(?: (\w+))?\.", text):
        if turn:
            ahead *= turns[turn]
        elif direction:
            position += int(steps) * directions[direction]
        else:
            position += int(steps) * ahead
    if position == 0:
        return "Yes"
    return "No"


def word_sorting(text):
    """The words in alphabetical order."""
    words = text.split("List: ")[1].split()
    return " ".join(sorted(words))


def web_of_lies(text):
    """Whether the last person tells the truth, from all assignments of truth and lies.

    Exactly one assignment may fit all sentences.
    """
    statements = re.findall(r"(\w+) (?:says (\w+) )?(tells the truth|lies)\.", text)
    people = [speaker for speaker, _, _ in statements]
    fitting = []
    for values in product([True, False], repeat=len(people)):
        is_honest = dict(zip(people, values, strict=True))
        if all(_fits(is_honest, *statement) for statement in statements):
            fitting.append(is_honest)
    person = re.search(r"Does (\w+) tell", text)[1]
    if only(fitting)[person]:
        return "Yes"
    return "No"


def _fits(is_honest, speaker, subject, verb):
    """Whether "speaker says subject lies" or, without a subject, "speaker lies" can be the case."""
    claims_truth = verb == "tells the truth"
    if not subject:
        return is_honest[speaker] == claims_truth
    claim_is_right = is_honest[subject] == claims_truth
    return is_honest[speaker] == claim_is_right


def reasoning_about_colored_objects(text):
    """The letter of the option that is right."""
    listed, question, options = re.fullmatch(
        r"(?s)On the [^.]+? (an? [^.]+)\. (.+)\?\nOptions:\n(.+)", text
    ).groups()
    colors = {item: color for color, item in re.findall(r"\ban? (\w+) (\w+)", listed)}
    *_, named, last_word = question.split()
    if question.startswith("Is the"):
        answer = "no"
        if colors[named] == last_word:
            answer = "yes"
    elif question.startswith("What color"):
        answer = colors[last_word]
    else:  # the neighbor on the right
        items = list(colors)
        answer = colors[items[items.index(last_word) + 1]]
    right = only(option for option in options.splitlines() if option.endswith(f" {answer}"))
    return right.split()[0]


BBH = (
    boolean_expressions,
    object_counting,
    navigate,
    word_sorting,
    web_of_lies,
    reasoning_about_colored_objects,
)

STORY = {  # form of a question → where the answer is
    r"Who gave (\w+) (.+)\?": r"(\w+ \w+) gave {} {}\.",
    r"What did (.+) give to (\w+)\?": r"{} gave {} (.+?)\.",
    r"Where did (\w+) meet (.+)\?": r"{} came to ([^.]+)\. \w+ \w+ met {},",
    r"What work did (\w+) do for (.+)\?": r"met {1}, [^.]+\. So {0} (.+?)\.",
}
HOPS = {  # what is looked for → the sentence of the passage that says it
    "founder": r"was (?:founded|set up) in \d+ by (.+?)\.",
    "birthplace": r"was born in (\w+) in \d+\.",
    "birth year": r"was born in \w+ in (\d+)\.",
    "river": r"lies on the river (\w+)\.",
    "lake": r"flows into (.+?)\.",
}
CHAINS = {  # form of a question → the hops from the thing that it names
    r"In which town was the founder of (.+) born\?": ("founder", "birthplace"),
    r"On which river lies the town where (.+) was born\?": ("birthplace", "river"),
    r"Into which lake flows the river on which (.+) lies\?": ("river", "lake"),
    r"In which year was the founder of (.+) born\?": ("founder", "birth year"),
}
TRIVIA = {  # how a question starts → what it asks for
    "Where was": "birthplace",
    "Who was the": "founder",
    "On which river": "river",
    "Into which": "lake",
}


def match_only(forms, question):
    """The match of the one form that a question has, and what the table says of this form."""
    matches = [(re.fullmatch(form, question), entry) for form, entry in forms.items()]
    return only((match, entry) for match, entry in matches if match)


def narrativeqa(row):
    """What a question about a journey asks for."""
    match, answer_form = match_only(STORY, row["question"])
    return only(re.findall(answer_form.format(*match.groups()), row["context"]))


def hotpotqa(row):
    """The end of a chain of two passages."""
    match, chain = match_only(CHAINS, row["question"])
    parts = re.split(r"(?:^|\n)(?=Passage \d+:\n)", row["context"])[1:]
    passages = dict(part.split("\n")[1:] for part in parts)  # title → text
    thing = match[1]
    for hop in chain:
        thing = only(re.findall(HOPS[hop], passages[thing]))
    return thing


def gov_report(row):
    """The summary, whose two totals have to be the sums over the districts."""
    districts = re.findall(r"We checked (\d+) .+?, and (\d+)", row["context"])
    total_checked = sum(int(checked) for checked, _ in districts)
    total_wrong = sum(int(wrong) for _, wrong in districts)
    summary = only(part for part in row["context"].split("\n\n") if "five districts" in part)
    assert [*map(int, re.findall(r"\d+", summary))] == [total_checked, total_wrong]
    return summary


def triviaqa(row):
    """What the question asks for, in the passage before it."""
    passage, question = re.fullmatch(
        r"(?s)Passage:\n(.+)\nQuestion:\n(.+)\nAnswer:\n", row["question"]
    ).groups()
    kind = only(kind for start, kind in TRIVIA.items() if question.startswith(start))
    return only(re.findall(HOPS[kind], passage))


def passage_retrieval_en(row):
    """The one paragraph that has all names and years of the abstract."""
    words = set(re.findall(r"\b[A-Z]\w+|\b\d{4}\b", row["question"])) - {"A", "An", "The", "Its"}
    paragraphs = re.split(r"(?:^|\n\n)Paragraph \d+: ", row["context"])[1:]
    number = only(
        number
        for number, paragraph in enumerate(paragraphs, start=1)
        if words <= set(re.findall(r"\w+", paragraph))
    )
    return f"Paragraph {number}"


def lcc(row):
    """The line for the first part of the class that the last function has not come to."""
    parts = only(re.findall(r"def __init__\(self, (.+)\):", row["context"])).split(", ")
    last_function = row["context"].split("\n\n")[-1].splitlines()
    start = next(
        index for index, line in enumerate(last_function) if re.search(rf"\.{parts[0]}\b", line)
    )
    next_part = parts[len(last_function) - start]
    line = re.sub(rf"\b{parts[0]}\b", next_part, last_function[start])
    completed = row["context"] + line
    if line.endswith(","):
        completed += ")"
    ast.parse(completed)
    return line


LONGBENCH = (narrativeqa, hotpotqa, gov_report, triviaqa, passage_retrieval_en, lcc)


def solvers():
    """Task → a function from a row to the computed and the written answer."""
    result = {"gsm8k": gsm8k}
    for subject in ("algebra", "prealgebra", "num_theory", "counting_and_prob"):
        result[f"leaderboard_math_{subject}_hard"] = math
    for solve in BBH:
        result[f"bbh_cot_fewshot_{solve.__name__}"] = partial(_bbh, solve)
    for solve in LONGBENCH:
        result[f"longbench_{solve.__name__}"] = partial(_longbench, solve)
    return result


def _bbh(solve, row):
    return solve(row["input"]), row["target"]


def _longbench(solve, row):
    return [solve(row)], row["answers"]


def check(folder: Path) -> int:
    """How many answers were found again; an AssertionError at the first that differs."""
    checked = 0
    for task, solve in solvers().items():
        for file in sorted((folder / task).glob("*.jsonl")):
            for line in file.read_text(encoding="utf-8").splitlines():
                computed, written = solve(json.loads(line))
                assert computed == written, (
                    f"{task}: computed {computed!r}, written {written!r}, in {line}"
                )
                checked += 1
    return checked


if __name__ == "__main__":
    folder = Path(__file__).parent
    if len(sys.argv) > 1:
        folder = Path(sys.argv[1])
    print(check(folder), "answers found again")
