"""Six of LongBench's tasks in small, one of each category.

Each has four rows, whose prompts a short context holds uncut. All texts are put together from
templates (``templates/longbench.txt``) and word lists of our own. What decides the answer stands at
the start, at the end or in the middle of the context, in each task in all three places. In triviaqa
it is the last passage, which belongs to the question.
"""

import random
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from generate_gsm8k import fill, read_templates

TEXTS = read_templates("longbench.txt")  # heading → lists of sentences or things to choose from
FIRST = """Ada Bert Cora Dylan Edith Felix Gwen Hugo Iris Jasper Klara Leon Mabel Nolan Opal
Peter Ruby Simon Tilda Walter Yvonne Alfred Bella Conrad Dora Emil Flora Gilbert Hazel Ivan"""
LAST = """Alcott Barlow Carver Denby Ellery Fenwick Garrick Holt Ingram Jessop Kendal Lowry
Marsh Norling Osborne Pryor Radley Selwyn Tarrant Upton Vickers Wexler Yardley Ashdown Birch
Crane Dunmore Eastman Fairley Grady"""
TOWNS = """Alderford Bramley Coldbrook Dunholt Eastmere Fernley Goldwick Harrowby Ivybridge
Kettering Larkfield Millbury Northam Oakhurst Penfield Quarrydale Redcliff Stonegate Thornbury
Underhill Westbourne Yarrowdale Ashcombe Birchwood"""


class Row(NamedTuple):
    """What differs between the rows of a task."""

    context: str
    question: str
    answers: list[str]


class Deck:
    """Items in random order; none comes a second time before all have come once."""

    def __init__(self, rng: random.Random, items: Sequence[Any]):
        self.rng = rng
        self.items = items
        self.left = []

    def draw(self) -> Any:
        if not self.left:
            self.left = self.rng.sample(self.items, len(self.items))
        return self.left.pop()


def names(rng: random.Random, number: int) -> list[str]:
    """First and last names of people; no two people share either."""
    first_names = rng.sample(FIRST.split(), number)
    last_names = rng.sample(LAST.split(), number)
    return [f"{first} {last}" for first, last in zip(first_names, last_names, strict=True)]


def say(rng: random.Random, text: str, **values: Any) -> str:
    """``text`` with one of each ``{this|that}``, and each ``<name>`` replaced by its value."""
    chosen = re.sub(r"\{([^{}]*)\}", lambda match: rng.choice(match[1].split("|")), text)
    return fill(chosen, values)


def put(parts: list[Any], keys: list[Any], where: str) -> list[Any]:
    """``parts`` with ``keys`` before them ("start"), after them ("end") or in their "middle"."""
    index = {"start": 0, "middle": len(parts) // 2, "end": len(parts)}[where]
    return [*parts[:index], *keys, *parts[index:]]


# A world of facts (hotpotqa, triviaqa, passage_retrieval_en). A firm leads to its founder, a person
# to a birthplace, a town to a river, and a river to a lake and a hill; the first two sentences of a
# passage hold all of these. No two things share a name.
FIRMS = """Bluebell Northwind Redstart Silverline Greenleaf Starling Goldcrest Whitecap
Blackthorn Sunrise Foxglove Kingfisher"""
RIVERS = "Lenna Tarrow Ister Morva Calder Wenlow Arrin Sable"


class Thing(NamedTuple):
    """A person, firm, town or river, and the facts about it by name."""

    kind: str
    facts: dict[str, str | int]


def world(rng: random.Random) -> dict[str, list[Thing]]:
    """Four things of each kind.

    The founder of a firm is the person of the same index, whose birthplace is the town of the same
    index, and so on.
    """
    people = names(rng, 4)
    towns = rng.sample(TOWNS.split(), 4)
    years = rng.sample(range(1890, 1940), 4)
    rivers = rng.sample(RIVERS.split(), 4)
    firms = rng.sample(FIRMS.split(), 4)
    lakes = rng.sample(TEXTS["lakes"][0], 4)
    hills = rng.sample(TEXTS["hills"][0], 4)
    products = rng.sample(TEXTS["products"][0], 4)
    sights = rng.sample(TEXTS["sights"][0], 4)

    things = {"person": [], "firm": [], "town": [], "river": []}
    for i in range(4):
        facts_by_kind = {
            "person": {
                "name": people[i],
                "first": people[i].split()[0],
                "town": towns[i],
                "year": years[i],
            },
            "firm": {
                "name": f"{firms[i]} {products[i].split()[-1].title()}",
                "product": products[i],
                "founder": people[i],
                "year": years[i] + 30,
            },
            "town": {"name": towns[i], "river": rivers[i], "sight": sights[i]},
            "river": {"name": rivers[i], "lake": lakes[i], "hill": hills[i]},
        }
        for kind, facts in facts_by_kind.items():
            things[kind].append(Thing(kind, facts))
    return things


def passage(rng: random.Random, thing: Thing) -> str:
    """What defines a thing, and another sentence."""
    first, *others = TEXTS[thing.kind][0]
    text = f"{first} {rng.choice(others)}"
    return say(rng, text, **thing.facts, n=rng.randrange(3, 15))


class TwoHops(NamedTuple):
    """A question of hotpotqa."""

    question: str
    fact: str  # of the second thing, the answer
    needed: tuple[str, str]  # kinds of the two things, in the order of the hops


TWO_HOPS = (
    TwoHops("In which town was the founder of {firm} born?", "town", ("firm", "person")),
    TwoHops("On which river lies the town where {person} was born?", "river", ("person", "town")),
    TwoHops("Into which lake flows the river on which {town} lies?", "lake", ("town", "river")),
    TwoHops("In which year was the founder of {firm} born?", "year", ("firm", "person")),
)


def hotpotqa(rng: random.Random, number: int, where: str) -> Row:
    """Ten passages, two of which the question needs, in the order of its two hops."""
    things = world(rng)
    question, fact, kinds = TWO_HOPS[number]
    needed = [things[kind][0] for kind in kinds]
    others = rng.sample([thing for kind in things.values() for thing in kind[1:]], 8)
    passages = []
    for position, thing in enumerate(put(others, needed, where), start=1):
        passages.append(f"Passage {position}:\n{thing.facts['name']}\n{passage(rng, thing)}")
    subjects = {kind: things[kind][0].facts["name"] for kind in things}
    answer = str(needed[-1].facts[fact])
    return Row("\n".join(passages), question.format(**subjects), [answer])


def passage_retrieval_en(rng: random.Random, number: int, where: str) -> Row:
    """Ten paragraphs, and the abstract of one of them."""
    things = world(rng)
    kind = ("firm", "person", "river", "town")[number]
    target = things[kind][0]
    all_things = [thing for kind in things.values() for thing in kind]
    others = rng.sample([thing for thing in all_things if thing != target], 9)
    order = put(others, [target], where)
    paragraphs = []
    for position, thing in enumerate(order, start=1):
        paragraphs.append(f"Paragraph {position}: {passage(rng, thing)}")
    abstract = say(rng, TEXTS[kind][1][0], **target.facts)
    return Row("\n\n".join(paragraphs), abstract, [f"Paragraph {order.index(target) + 1}"])


TRIVIA = {  # kind of thing → two questions, each with the fact that is its answer
    "person": (("Where was {name} born?", "town"), ("In which year was {name} born?", "year")),
    "firm": (("What does {name} make?", "product"), ("Who was the founder of {name}?", "founder")),
    "town": (
        ("On which river lies {name}?", "river"),
        ("Which river does one see in {name}?", "river"),
    ),
    "river": (
        ("On which hill does the {name} rise?", "hill"),
        ("Into which lake does the {name} flow?", "lake"),
    ),
}


def _trivia(rng: random.Random, thing: Thing, question: str, fact: str) -> tuple[str, str]:
    """A passage with a question, and the answer."""
    text = (
        f"Passage:\n{thing.facts['name']}\n{passage(rng, thing)}\n"
        f"Question:\n{question.format(**thing.facts)}\nAnswer:\n"
    )
    return text, str(thing.facts[fact])


def triviaqa(rng: random.Random, number: int, where: str) -> Row:
    """Six passages with a question and an answer; the last question comes with its own passage.

    The example that asks the same of another thing stands at ``where``; the other examples ask
    other things.
    """
    things = world(rng)
    kind = list(TRIVIA)[number]
    question, fact = TRIVIA[kind][number % 2]
    thing, similar_thing = rng.sample(things[kind], 2)
    things_of_other_kinds = [
        other for other_kind in TRIVIA if other_kind != kind for other in things[other_kind]
    ]
    examples = []
    for other in rng.sample(things_of_other_kinds, 5):
        other_question, other_fact = rng.choice(TRIVIA[other.kind])
        examples.append("".join(_trivia(rng, other, other_question, other_fact)))
    text, answer = _trivia(rng, thing, question, fact)
    similar_example = "".join(_trivia(rng, similar_thing, question, fact))
    context = "\n".join(put(examples, [similar_example], where)) + "\n"
    return Row(context, text, [answer])


ASKED = (  # question of narrativeqa, and which part of the scene answers it
    ("Who gave <hero> <object>?", "host"),
    ("What did <host> give to <hero>?", "object"),
    ("Where did <hero> meet <host>?", "place"),
    ("What work did <hero> do for <host>?", "task"),
)
SCENE = (
    "{In the evening|Around noon|Two days later|Before long}, <hero> came to <place>. "
    "{Here|There} <hero> met <host>, the <job>, who was <doing>. So <hero> <task>. "
    "{As thanks|In return}, <host> gave <hero> <object>."
)


def _scenes(rng: random.Random) -> list[dict[str, str]]:
    """The five scenes of a journey: in each the hero meets someone at a place.

    The hero does some work there and is given something.
    """
    name, *hosts = names(rng, 6)
    places = rng.sample(TEXTS["places"][0], 5)
    objects = rng.sample(TEXTS["objects"][0], 5)
    tasks = rng.sample(TEXTS["tasks"][0], 5)
    scenes = []
    for index, host in enumerate(hosts):
        place, job, doing = places[index].split("|")
        scenes.append(
            {
                "hero": name.split()[0],
                "host": host,
                "object": objects[index],
                "task": tasks[index],
                "place": place,
                "job": job,
                "doing": doing,
            }
        )
    return scenes


def narrativeqa(rng: random.Random, number: int, where: str) -> Row:
    """A journey in five scenes, and a question about the one at ``where``."""
    scenes = _scenes(rng)
    hero = scenes[0]["hero"]
    remarks = Deck(rng, TEXTS["said"][0])
    paragraphs = [say(rng, f"{SCENE} {remarks.draw()}", **scene) for scene in scenes]
    lost = TEXTS["lost"][0][number]
    season = rng.choice(["in spring", "one autumn", "at midsummer"])
    opening = f"{hero} left home {season} to look for {lost}."
    ending = f"At last {hero} turned home, without {lost}, but with a full bag and many friends."
    story = [opening, *put(paragraphs[1:], paragraphs[:1], where), ending]
    question, answer = ASKED[number]
    return Row("\n\n".join(story), fill(question, scenes[0]), [scenes[0][answer]])


def gov_report(rng: random.Random, number: int, where: str) -> Row:
    """A report on five districts with a summary, which is the answer and sums their numbers up."""
    agency, things, state, harm, remedy = TEXTS["reports"][0][number].split("|")
    counts = [(rng.randrange(14, 40), rng.randrange(2, 13)) for _ in range(5)]
    total_checked = sum(checked for checked, _ in counts)
    total_wrong = sum(wrong for _, wrong in counts)
    summary = (
        f"The {agency} looks after {total_checked} {things} in five districts. "
        f"Of these, {total_wrong} were {state} when they were checked. "
        f"As a result, {harm}. The report recommends that the {agency} {remedy}."
    )
    method = (
        "We visited every district once, between March and October. "
        "Each site was looked at by two people."
    )
    note = (
        "A draft of this report was sent to all districts, "
        "and their answers are printed in a separate volume."
    )
    visits = Deck(rng, TEXTS["visits"][0])
    parts = [method]
    for district, (checked, wrong) in zip(rng.sample(TOWNS.split(), 5), counts, strict=True):
        text = (
            f"District of {district}: We checked {checked} {things}, "
            f"and {wrong} of them were {state}. {visits.draw()} {visits.draw()}"
        )
        parts.append(say(rng, text))
    parts.append(note)
    return Row("\n\n".join(put(parts, [summary], where)), "", [summary])


# Code of lcc, in which a class takes the parts of a thing.
CLASS = "\n\n".join("\n".join(lines) for lines in TEXTS["class"]) + "\n"
FUNCTIONS = ["\n".join(lines) + "\n" for lines in TEXTS["functions"]]


def lcc(rng: random.Random, number: int, where: str) -> Row:
    """A file whose last function goes through the parts of a class; the last line is missing."""
    thing, *part_names = TEXTS["things and their parts"][0][number].split()
    parts = rng.sample(part_names, 4)
    field = rng.choice(("price", "weight", "length", "age"))
    other_thing = rng.choice(("crate", "ticket", "parcel", "bottle"))
    functions = [
        fill(text, {"thing": other_thing, "field": field}) for text in rng.sample(FUNCTIONS, 4)
    ]
    values = {
        "thing": thing,
        "Thing": thing.title(),
        "signature": ", ".join(parts),
        "names": " ".join(parts),
    }
    *head, line = TEXTS["last functions"][number]
    *lines, last_line = [fill(line, values | {"part": part}) for part in parts]
    last_function = "\n".join([fill("\n".join(head), values), *lines])
    blocks = [*put(functions, [fill(CLASS, values)], where), last_function]
    return Row("\n\n".join(blocks) + "\n", "", [last_line])


MAKERS: dict[str, Callable[[random.Random, int, str], Row]] = {
    "narrativeqa": narrativeqa,
    "hotpotqa": hotpotqa,
    "gov_report": gov_report,
    "triviaqa": triviaqa,
    "passage_retrieval_en": passage_retrieval_en,
    "lcc": lcc,
}


def rows(rng: random.Random, name: str) -> dict[str, list[dict]]:
    """Four test rows in the schema of the real ones.

    ``length`` counts the words of context and question.
    """
    places = ["start", "end", "middle", rng.choice(["start", "end"])]
    rng.shuffle(places)
    test = []
    for number, where in enumerate(places):
        context, question, answers = MAKERS[name](rng, number, where)
        test.append(
            {
                "question": question,
                "context": context,
                "answers": answers,
                "length": len(f"{context} {question}".split()),
                "dataset": name,
                "language": "en",
                "all_classes": None,
                "_id": f"{name}-{number}",
            }
        )
    return {"test": test}
