"""Find every generated answer of the miniature benchmark again, in another way than it was
generated.

    python data/mini/check.py [FOLDER]

Reads the rows alone: GSM8K, four MATH subjects, six BBH subtasks, six LongBench tasks. Fails at the
first answer that differs. Standard library only.
"""

import ast
import json
import re
import sys
from fractions import Fraction
from itertools import product
from math import comb, factorial, gcd
from pathlib import Path

GSM8K = {  # a word of the story → its answer, of the numbers in the order of the text
    **{"apples": lambda a, b: a + b, "birds": lambda a, b: a - b, "roses": lambda a, b: a + b},
    **{"pens": lambda a, b: a * b, "balloons": lambda a, b: a - b, "ducks": lambda a, b: a + b},
    **{"tea": lambda a, b: a * b, "younger": lambda a, b: a - b, "rope": lambda a, b: a - b},
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
MATH = {  # words of the problem → its answer
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


def only(found):
    """The one thing that is found."""
    (thing,) = found
    return thing


def compute(table, text):
    """The answer by the one entry of a table whose words are in a text."""
    rule = only(rule for words, rule in table.items() if words in text)
    return rule(*map(int, re.findall(r"\d+", text)))


def gsm8k(row):
    *steps, last = row["answer"].split("\n")
    for expression, result in re.findall(r"<<(.+?)=(\d+)>>", "".join(steps)):
        assert eval(expression) == int(result)
    return compute(GSM8K, row["question"]), int(last.removeprefix("#### "))


def math(row):
    boxed = only(re.findall(r"\\boxed\{(.+)\}\$", row["solution"]))
    return compute(MATH, row["problem"]), Fraction(
        re.sub(r"\\frac\{(\d+)\}\{(\d+)\}", r"\1/\2", boxed)
    )


KINDS = {
    "fruits": "apple orange banana plum pear lemon apricot lime grape melon",
    "vegetables": "onion carrot turnip yam leek cabbage parsnip beet artichoke cauliflower",
    "musical instruments": "flute drum trumpet violin guitar harp oboe trombone accordion banjo",
    "animals": "dog cat goat rabbit duck cow horse owl snail ant",
    "tools": "hammer saw rake shovel drill wrench chisel screwdriver spade axe",
}


def count(text):
    listed, kind = re.fullmatch(r"I have (.+)\. How many (.+) do I have\?", text).groups()
    words, nouns = ["a", "two", "three", "four", "five"], KINDS[kind].split()
    pairs = re.findall(r"\b(a|two|three|four|five) ([a-z]+)", listed.replace("an ", "a "))
    return str(
        sum(
            words.index(n) + 1
            for n, noun in pairs
            if (noun if n == "a" else noun.removesuffix("s")) in nouns
        )
    )


def walk(text):
    place, ahead = 0, 1j
    for turn, steps, direction in re.findall(r"Turn (\w+)|Take (\d+) steps?(?: (\w+))?\.", text):
        ahead *= {"left": 1j, "right": -1j, "around": -1}.get(turn, 1)
        place += int(steps or 0) * {"forward": 1j, "backward": -1j, "left": -1, "right": 1}.get(
            direction, ahead
        )
    return "Yes" if place == 0 else "No"


def truth(text):
    """Every assignment of truth and lies is tried; exactly one may fit all the sentences."""
    said = re.findall(r"(\w+) (?:says (\w+) )?(tells the truth|lies)\.", text)
    people = [
        dict(zip([one for one, _, _ in said], v, strict=True))
        for v in product([True, False], repeat=len(said))
    ]
    fit = [
        h
        for h in people
        if all((h[a] == h[b] if b else h[a]) == (claim != "lies") for a, b, claim in said)
    ]
    return "Yes" if only(fit)[re.search(r"Does (\w+) tell", text)[1]] else "No"


def colored(text):
    listed, asked, options = re.fullmatch(
        r"(?s)On the [^.]+? (an? [^.]+)\. (.+)\?\nOptions:\n(.+)", text
    ).groups()
    colors = {item: color for color, item in re.findall(r"\ban? (\w+) (\w+)", listed)}
    *_, named, item = asked.split()
    if asked.startswith("Is the"):
        answer = "yes" if colors[named] == item else "no"
    else:
        answer = (
            colors[item]
            if asked.startswith("What color")
            else colors[[*colors][[*colors].index(item) + 1]]
        )
    return only(
        option.split()[0] for option in options.splitlines() if option.endswith(f" {answer}")
    )


BBH = {
    "boolean_expressions": lambda text: str(eval(text.removesuffix(" is"))),
    "object_counting": count,
    "navigate": walk,
    "word_sorting": lambda text: " ".join(sorted(text.split("List: ")[1].split())),
    "web_of_lies": truth,
    "reasoning_about_colored_objects": colored,
}

STORY = {  # form of a question → where the answer is
    r"Who gave (\w+) (.+)\?": r"(\w+ \w+) gave {} {}\.",
    r"What did (.+) give to (\w+)\?": r"{} gave {} (.+?)\.",
    r"Where did (\w+) meet (.+)\?": r"{} came to ([^.]+)\. \w+ \w+ met {},",
    r"What work did (\w+) do for (.+)\?": r"met {1}, [^.]+\. So {0} (.+?)\.",
}
HOPS = {  # what is looked for, in the passage of what is known
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


def story(row):
    found, where = only(
        (m, w) for form, w in STORY.items() if (m := re.fullmatch(form, row["question"]))
    )
    return only(re.findall(where.format(*found.groups()), row["context"]))


def hops(row):
    thing, chain = only(
        (m[1], c) for form, c in CHAINS.items() if (m := re.fullmatch(form, row["question"]))
    )
    passages = dict(
        part.split("\n")[1:] for part in re.split(r"(?:^|\n)(?=Passage \d+:\n)", row["context"])[1:]
    )
    for hop in chain:
        thing = only(re.findall(HOPS[hop], passages[thing]))
    return thing


def report(row):
    checked, wrong = zip(
        *re.findall(r"We checked (\d+) .+?, and (\d+)", row["context"]), strict=True
    )
    block = only(part for part in row["context"].split("\n\n") if "five districts" in part)
    assert [*map(int, re.findall(r"\d+", block))] == [sum(map(int, checked)), sum(map(int, wrong))]
    return block


def trivia(row):
    kinds = {
        "Where was": "birthplace",
        "Who was the": "founder",
        "On which river": "river",
        "Into which": "lake",
    }
    text, asked = re.fullmatch(
        r"(?s)Passage:\n(.+)\nQuestion:\n(.+)\nAnswer:\n", row["question"]
    ).groups()
    return only(
        re.findall(
            HOPS[only(kind for start, kind in kinds.items() if asked.startswith(start))], text
        )
    )


def retrieval(row):
    words = set(re.findall(r"\b[A-Z]\w+|\b\d{4}\b", row["question"])) - {"A", "An", "The", "Its"}
    texts = re.split(r"(?:^|\n\n)Paragraph \d+: ", row["context"])[1:]
    found = only(
        i for i, text in enumerate(texts, start=1) if words <= set(re.findall(r"\w+", text))
    )
    return f"Paragraph {found}"


def next_line(row):
    """The line for the first part of the class that the last function has not come to."""
    parts = only(re.findall(r"def __init__\(self, (.+)\):", row["context"])).split(", ")
    end = row["context"].split("\n\n")[-1].splitlines()
    at = next(i for i, line in enumerate(end) if re.search(rf"\.{parts[0]}\b", line))
    line = re.sub(rf"\b{parts[0]}\b", parts[len(end) - at], end[at])
    ast.parse(row["context"] + line + (")" if line.endswith(",") else ""))
    return line


LONGBENCH = {"narrativeqa": story, "hotpotqa": hops, "gov_report": report, "triviaqa": trivia}
LONGBENCH |= {"passage_retrieval_en": retrieval, "lcc": next_line}


def check(folder: Path) -> int:
    """How many answers were found again."""
    tasks = {"gsm8k": gsm8k}
    tasks |= {
        f"leaderboard_math_{name}_hard": math for name in ("algebra", "prealgebra", "num_theory")
    }
    tasks["leaderboard_math_counting_and_prob_hard"] = math
    tasks |= {
        f"bbh_cot_fewshot_{n}": lambda r, f=f: (f(r["input"]), r["target"]) for n, f in BBH.items()
    }
    tasks |= {f"longbench_{n}": lambda r, f=f: ([f(r)], r["answers"]) for n, f in LONGBENCH.items()}
    found = 0
    for task, solve in tasks.items():
        for file in sorted((folder / task).glob("*.jsonl")):
            for line in file.read_text(encoding="utf-8").splitlines():
                computed, written = solve(json.loads(line))
                assert computed == written, (
                    f"{task}: computed {computed!r}, written {written!r}, in {line}"
                )
                found += 1
    return found


if __name__ == "__main__":
    print(
        check(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent),
        "answers found again",
    )
