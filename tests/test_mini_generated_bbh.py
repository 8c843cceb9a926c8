"""The BBH tasks of the miniature benchmark: every answer is found again in another way than it was generated."""

import re
from collections import Counter
from itertools import product
from pathlib import Path

import pytest
import yaml
from test_mini_generated import BBH, rows

NAME, ITEM = "[A-Z][a-z]+", "an? [a-z]+ [a-z ]+?"
TRUTH = "(?:tells the truth|lies)"
FORMS = {
    "boolean_expressions": r"(?:(?:True|False|not|and|or|\(|\)) )+is",
    "object_counting": r"I have (?:(?:an?|two|three|four|five) [a-z ]+, )+and [a-z ]+\. How many [a-z ]+ do I have\?",
    "navigate": r"If you follow these instructions, do you return to the starting point\?(?: Always face forward\.)?"
    r"(?: Turn (?:left|right|around)\.| Take \d+ steps?(?: (?:left|right|forward|backward))?\.)+"
    r"\nOptions:\n- Yes\n- No",
    "word_sorting": r"Sort the following words alphabetically: List: [a-z]+(?: [a-z]+)+",
    "web_of_lies": rf"Question: {NAME} {TRUTH}\.(?: {NAME} says {NAME} {TRUTH}\.){{4}} Does {NAME} tell the truth\?",
    "reasoning_about_colored_objects": r"On the [a-z]+, (?:there is|you see [a-z ]+:) "
    rf"{ITEM}(?:, {ITEM})*,? and {ITEM}\. "
    r"[A-Z][-a-z ]+\?\nOptions:(?:\n\([A-R]\) [a-z]+)+",
}


@pytest.mark.parametrize("name", BBH)
def test_bbh_has_the_form_of_the_official_exemplars(name):
    import lm_eval

    file = Path(lm_eval.__file__).parent / "tasks" / "bbh" / "cot_fewshot" / f"{name}.yaml"
    exemplars = yaml.safe_load(file.read_text(encoding="utf-8"))["fewshot_config"]["samples"]
    inputs = [row["input"] for row in rows(f"bbh_cot_fewshot_{name}")]
    assert len(exemplars) == 3
    assert len(inputs) == 5
    for text in [exemplar["input"] for exemplar in exemplars] + inputs:
        assert re.fullmatch(FORMS[name], text), text
    assert set(inputs).isdisjoint(exemplar["input"] for exemplar in exemplars)


KINDS = {
    "fruits": "apple orange banana plum pear lemon apricot lime grape melon",
    "vegetables": "onion carrot turnip yam leek cabbage parsnip beet artichoke cauliflower",
    "musical instruments": "flute drum trumpet violin guitar harp oboe trombone accordion banjo",
    "animals": "dog cat goat rabbit duck cow horse owl snail ant",
    "tools": "hammer saw rake shovel drill wrench chisel screwdriver spade axe",
}


def count(text):
    listed, kind = re.fullmatch(r"I have (.+)\. How many (.+) do I have\?", text).groups()
    total = 0
    for number, noun in re.findall(r"\b(an?|two|three|four|five) ([a-z]+)", listed):
        singular = noun if number in ("a", "an") else noun.removesuffix("s")
        assert (number == "an") == (noun[0] in "aeiou" and noun == singular)
        assert sum(singular in nouns.split() for nouns in KINDS.values()) == 1
        total += (
            ["a", "two", "three", "four", "five"].index(number.replace("an", "a")) + 1 if singular in KINDS[kind] else 0
        )
    return str(total)


def walk(text):
    x, y, (dx, dy) = 0, 0, (0, 1)
    sideways = {"forward": (0, 1), "backward": (0, -1), "left": (-1, 0), "right": (1, 0)}
    for turn, steps, direction in re.findall(r"Turn (\w+)|Take (\d+) steps?(?: (\w+))?\.", text):
        if turn:
            dx, dy = {"left": (-dy, dx), "right": (dy, -dx), "around": (-dx, -dy)}[turn]
        else:
            along = sideways.get(direction, (dx, dy))
            x, y = x + int(steps) * along[0], y + int(steps) * along[1]
    return "Yes" if (x, y) == (0, 0) else "No"


def truth(text):
    """Every assignment of truth and lies is tried; exactly one may fit all the sentences."""
    statements = re.findall(r"(\w+) (?:says (\w+) )?(tells the truth|lies)\.", text)
    names = [name for name, _, _ in statements]
    found = []
    for values in product([True, False], repeat=len(names)):
        honest = dict(zip(names, values, strict=True))
        if all(
            honest[name] == (honest[about] == (claim != "lies")) if about else honest[name] == (claim != "lies")
            for name, about, claim in statements
        ):
            found.append(honest)
    (honest,) = found
    return "Yes" if honest[re.search(r"Does (\w+) tell", text)[1]] else "No"


def colored(text):
    listed, question, options = re.fullmatch(
        r"On the [^.]+? (an? [^.]+)\. (.+)\?\nOptions:\n(.+)", text, re.DOTALL
    ).groups()
    things = re.findall(r"\b(an?) (\w+) (\w+)", listed)
    colors = {item: color for _, color, item in things}
    assert len(colors) == len(set(colors.values())) == len(things)
    assert all((article == "an") == (color == "orange") for article, color, _ in things)
    *_, item = question.split()
    if question.startswith("Is the"):
        _, _, named, item = question.split()
        answer = "yes" if colors[named] == item else "no"
    elif question.startswith("What color"):
        answer = colors[item]
    else:
        items = list(colors)
        answer = colors[items[items.index(item) + 1]]
    ((letter, _),) = [option.split() for option in options.splitlines() if option.endswith(f" {answer}")]
    return letter


SOLVERS = {
    "boolean_expressions": lambda text: str(eval(text.removesuffix(" is"))),
    "object_counting": count,
    "navigate": walk,
    "word_sorting": lambda text: " ".join(sorted(text.split("List: ")[1].split())),
    "web_of_lies": truth,
    "reasoning_about_colored_objects": colored,
}


@pytest.mark.parametrize("name", BBH)
def test_bbh(name):
    for row in rows(f"bbh_cot_fewshot_{name}"):
        assert row["target"] == SOLVERS[name](row["input"])
    targets = Counter(row["target"] for row in rows(f"bbh_cot_fewshot_{name}"))
    assert set(targets.values()) == ({2, 3} if name in ("boolean_expressions", "navigate", "web_of_lies") else {1})


LENGTHS = {  # what makes a row long, and the most of it in an easy one
    "boolean_expressions": (r"\b(?:not|and|or)\b", 1),
    "object_counting": (r",", 2),
    "navigate": (r"Turn|Take", 2),
    "word_sorting": (r" (?=[a-z]+(?: [a-z]+)*$)", 3),
    "web_of_lies": (r"lies\.", 1),
    "reasoning_about_colored_objects": (r"\ban? [a-z]+ [a-z]+\b(?=[,.]| and)", 2),
}


@pytest.mark.parametrize("name", BBH)
def test_three_of_five_bbh_rows_are_easy(name):
    pattern, most = LENGTHS[name]
    lengths = sorted(len(re.findall(pattern, row["input"])) for row in rows(f"bbh_cot_fewshot_{name}"))
    assert 0 <= lengths[2] <= most < lengths[3] <= lengths[4]


@pytest.mark.parametrize("name", BBH)
def test_no_bbh_answer_is_cut_short(name):
    for row in rows(f"bbh_cot_fewshot_{name}"):
        asked = row["input"].removeprefix("Question:").split("\nOptions:")[0]
        assert "Q" not in asked + row["target"], "where the official tasks end an answer"


def test_no_list_of_words_is_in_order():
    for row in rows("bbh_cot_fewshot_word_sorting"):
        assert not row["input"].endswith(f": {row['target']}")
