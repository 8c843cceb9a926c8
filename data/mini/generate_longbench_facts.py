"""LongBench tasks over one world of facts: questions across passages, finding a paragraph, counting paragraphs.

A world has eight people, the eight firms they founded, the eight towns they were born in, and six rivers: thirty short
passages. Firm leads to founder, person to birthplace, town to river, river to lake and hill; the first two sentences of
a passage hold all of these. No two things share a name, so that every chain of facts has one end.
"""

import random
from typing import NamedTuple

from generate_longbench_words import TOWNS, Deck, names, put, say

Row = tuple[str, str, list[str]]  # context, question, answers

FIRMS = """Bluebell Northwind Redstart Silverline Greenleaf Starling Goldcrest Whitecap Blackthorn Sunrise Foxglove
Kingfisher"""
PRODUCTS = ("lamps", "clocks", "kettles", "violins", "raincoats", "bicycles", "saddles", "paper bags", "candles")
PRODUCTS += ("wooden toys", "garden chairs", "pocket knives")
RIVERS = "Lenna Tarrow Ister Morva Calder Wenlow Arrin Sable"
LAKES = "Lake Orrin|Lake Maple|Lake Hollow|Lake Ember|Lake Pike|Lake Juniper|Lake Tamar|Lake Velda"
HILLS = "Crow Hill|Saddle Hill|Beacon Hill|Granite Hill|Windy Hill|Badger Hill|Copper Hill|Chapel Hill"
SIGHTS = ("an old windmill", "a round tower", "a glass bridge", "a rose garden", "a stone lighthouse", "a clock museum")
SIGHTS += ("a painted church", "a steam engine")
TRADES = "weaver printer baker potter joiner tailor cooper glazier"
FISH = "trout perch salmon bream eels chub"

TOLD = {  # kind → the sentences that come first, and those of which three follow
    "person": (
        ("<name> was born in <town> in <year>.",),
        (
            "The family {lived above|owned} a small shop and had <n> children.",
            "Trained as a <trade>, <first> {worked in one workshop|moved from job to job} for <n> years before leaving "
            "home.",
            "In the evenings, <first> liked to {sing in a choir|play chess|paint birds|grow beans|read maps}, often "
            "together with the neighbours.",
            "Friends remembered someone {quiet and patient|cheerful and loud|careful and kind} who {wrote long letters|"
            "never wore a hat|walked to work every day|kept a large dog}.",
            "Late in life, <first> gave {a large sum|a fine building|some land} to the {school|hospital|library}.",
            "A {street|park|square} near the station {still bears|was later given} this name.",
        ),
    ),
    "firm": (
        ("<name> is a firm that makes <product>.", "It was {founded|set up} in <year> by <founder>."),
        (
            "The first <n> workers met in a rented {barn|cellar|mill} that had no heating.",
            "Today the firm sells its goods in <n> countries, most of them {by the sea|far away|in the north}.",
            "A fire once closed the {workshop|store} for a whole {winter|summer}, but no one was hurt.",
            "Every new worker is given {a cup|a coat|a key ring|a pair of boots} on the first day.",
            "The sign above the gate is painted in {blue and white|green and gold|red and black}.",
            "On Fridays the gate is open, and {children|visitors} may watch how the goods are {packed|tested}.",
        ),
    ),
    "town": (
        ("<name> is a town that lies on the river <river>.",),
        (
            "About <thousands>,000 people live there, {more|fewer} than a hundred years ago.",
            "Visitors come to see <sight>, which stands {close to the market|behind the station|on the old wall}.",
            "The market is held every {Monday|Tuesday|Thursday|Saturday}, except in {January|August}.",
            "Local bakers are known for {plum cake|rye bread|cheese rolls|apple pie|honey biscuits}.",
            "A {bus|tram} leaves for the {coast|hills} <n> times a day.",
            "Its school {won a prize for|is proud of} its {brass band|garden|chess club|swimming team}.",
        ),
    ),
    "river": (
        ("The <name> is a river that rises on <hill>.", "It flows into <lake>."),
        (
            "From the first spring to the mouth it is <n>0 kilometres long.",
            "Anglers go there for <fish>, above all in {May|June|September}.",
            "In dry summers {boats have to stop|one can wade across}, while in spring the meadows are under water.",
            "There are <n> bridges, the oldest of them built of {stone|oak|iron}.",
            "Otters came back <n> years ago and {are counted every autumn|can be seen at dawn}.",
        ),
    ),
}
ABSTRACTS = {
    "person": "A short life of <name>, a native of <town> whose birth year was <year>.",
    "firm": "An account of <name>, whose trade is <product> and whose founder, in <year>, was <founder>.",
    "town": "A portrait of <name>, with what one can see there: <sight>. Its river is the <river>.",
    "river": "The course of the <name>, from its source on <hill> to its end in <lake>.",
}


class Thing(NamedTuple):
    kind: str
    facts: dict[str, str | int]


def world(rng: random.Random) -> dict[str, list[Thing]]:
    """Kind → things. The founder of a firm, and the birthplace of a person, has the same index."""
    people, towns, years = names(rng, 8), rng.sample(TOWNS.split(), 8), rng.sample(range(1890, 1940), 8)
    rivers = rng.sample(RIVERS.split(), 6)
    lakes, hills = rng.sample(LAKES.split("|"), 6), rng.sample(HILLS.split("|"), 6)
    firms, products = rng.sample(FIRMS.split(), 8), rng.sample(PRODUCTS, 8)
    sights, fish = rng.sample(SIGHTS, 8), Deck(rng, FISH.split())
    made = {"person": [], "firm": [], "town": [], "river": []}
    for i, (name, town) in enumerate(zip(people, towns, strict=True)):
        firm, first = f"{firms[i]} {products[i].split()[-1].title()}", name.split()[0]
        trade, later = rng.choice(TRADES.split()), years[i] + rng.randrange(22, 45)
        made["person"].append({"name": name, "first": first, "town": town, "year": years[i], "trade": trade})
        made["firm"].append({"name": firm, "product": products[i], "founder": name, "year": later})
        made["town"].append({"name": town, "river": rivers[i % 6], "sight": sights[i]})
    for river, lake, hill in zip(rivers, lakes, hills, strict=True):
        made["river"].append({"name": river, "lake": lake, "hill": hill, "fish": fish.draw()})
    return {kind: [Thing(kind, facts) for facts in things] for kind, things in made.items()}


def passage(rng: random.Random, thing: Thing) -> str:
    """Five or four sentences about a thing, the defining ones first."""
    first, more = TOLD[thing.kind]
    sentences = [*first, *rng.sample(more, 4 if len(first) == 1 else 3)]
    drawn = [thing.facts | {"n": rng.randrange(3, 15), "thousands": rng.randrange(4, 60)} for _ in sentences]
    return " ".join(say(rng, text, **values) for text, values in zip(sentences, drawn, strict=True))


def _asked(rng: random.Random, things: dict[str, list[Thing]], task: str, number: int) -> tuple[str, str, list[Thing]]:
    """A question of the task, its answer, and the things whose passages it needs, in the order of the hops."""
    i, j = rng.sample(range(8), 2)
    firm, person, town = (things[kind][i] for kind in ("firm", "person", "town"))
    river = things["river"][i % 6]
    if task == "2wikimqa":
        other_firm, other = things["firm"][j], things["person"][j]
        earlier = number % 2 == 0
        winner = (min if earlier else max)(person, other, key=lambda thing: thing.facts["year"])
        asked = f"Who was born {'earlier' if earlier else 'later'}, the founder of {{}} or the founder of {{}}?"
        question = asked.format(firm.facts["name"], other_firm.facts["name"])
        return question, winner.facts["name"], [firm, person, other_firm, other]
    chains = {
        "hotpotqa": (
            ("In which town was the founder of {firm} born?", "town", [firm, person]),
            ("On which river lies the town where {person} was born?", "river", [person, town]),
            ("Into which lake flows the river on which {town} lies?", "lake", [town, river]),
            ("In which year was the founder of {firm} born?", "year", [firm, person]),
        ),
        "musique": (
            ("On which river lies the town where the founder of {firm} was born?", "river", [firm, person, town]),
            ("Into which lake flows the river of the town where {person} was born?", "lake", [person, town, river]),
            ("On which hill rises the river of the town where {person} was born?", "hill", [person, town, river]),
            ("Which river flows through the birthplace of the founder of {firm}?", "river", [firm, person, town]),
        ),
    }
    text, answer, needed = chains[task][number]
    question = text.format(firm=firm.facts["name"], person=person.facts["name"], town=town.facts["name"])
    return question, str(needed[-1].facts[answer]), needed


def multi_hop(task: str, rng: random.Random, number: int, where: str) -> Row:
    """Passages that a question needs, among all the others of their world.

    At the start or the end of the context stand two of them, the rest at the other end; or all in the middle.
    """
    things = world(rng)
    question, answer, needed = _asked(rng, things, task, number)
    others = [thing for kind in things.values() for thing in kind if thing not in needed]
    rng.shuffle(others)
    if where == "middle":
        order = put(others, needed, where)
    else:
        near, far = (needed[:2], needed[2:])
        order = put(put(others, near, where), far, "end" if where == "start" else "start")
    numbered = enumerate(order, start=1)
    context = "\n".join(f"Passage {k}:\n{thing.facts['name']}\n{passage(rng, thing)}" for k, thing in numbered)
    return context, question, [answer]


def _paragraphs(texts: list[str]) -> str:
    return "\n\n".join(f"Paragraph {number}: {text}" for number, text in enumerate(texts, start=1))


def passage_retrieval_en(rng: random.Random, number: int, where: str) -> Row:
    """Thirty paragraphs; the one of the abstract is among the first two, the last two, or in the middle."""
    things = world(rng)
    asked = things[("firm", "person", "river", "town")[number]][rng.randrange(6)]
    others = [thing for kind in things.values() for thing in kind if thing != asked]
    rng.shuffle(others)
    index = {"start": 0, "middle": 14, "end": 28}[where] + rng.randrange(2)
    order = [*others[:index], asked, *others[index:]]
    abstract = say(rng, ABSTRACTS[asked.kind], **asked.facts)
    return _paragraphs([passage(rng, thing) for thing in order]), abstract, [f"Paragraph {index + 1}"]


def passage_count(rng: random.Random, number: int, where: str) -> Row:
    """Paragraphs of which one is there two or three times, without others in between.

    Who sees these knows the answer: the number of the last paragraph, less the repetitions.
    """
    things = [thing for kind in world(rng).values() for thing in kind]
    texts = [passage(rng, thing) for thing in rng.sample(things, 24 + number)]
    return _paragraphs(put(texts[1:], texts[:1] * (2 + number % 2), where)), "", [str(len(texts))]
