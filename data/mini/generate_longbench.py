"""Six of LongBench's tasks in small, one of each category: four rows each, whose prompts a short
context holds uncut.

All texts are put together from templates (``templates/longbench.txt``) and word lists of our own.
What decides the answer stands at the start, at the end or in the middle of the context, in each
task in all three places. In triviaqa it is the last passage, which belongs to the question.
"""

import random
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from generate_gsm8k import read_templates

Row = tuple[str, str, list[str]]  # context, question, answers
TEXTS = read_templates("longbench.txt")  # heading → lists of sentences or things to choose from
FIRST = """Ada Bert Cora Dylan Edith Felix Gwen Hugo Iris Jasper Klara Leon Mabel Nolan Opal Peter Ruby Simon Tilda
Walter Yvonne Alfred Bella Conrad Dora Emil Flora Gilbert Hazel Ivan"""
LAST = """Alcott Barlow Carver Denby Ellery Fenwick Garrick Holt Ingram Jessop Kendal Lowry Marsh Norling Osborne Pryor
Radley Selwyn Tarrant Upton Vickers Wexler Yardley Ashdown Birch Crane Dunmore Eastman Fairley Grady"""
TOWNS = """Alderford Bramley Coldbrook Dunholt Eastmere Fernley Goldwick Harrowby Ivybridge Kettering Larkfield Millbury
Northam Oakhurst Penfield Quarrydale Redcliff Stonegate Thornbury Underhill Westbourne Yarrowdale Ashcombe Birchwood"""


class Deck:
    """Items in random order; none comes a second time before all have come once."""

    def __init__(self, rng: random.Random, items: Sequence[Any]):
        self.rng, self.items, self.left = rng, items, []

    def draw(self) -> Any:
        self.left = self.left or self.rng.sample(self.items, len(self.items))
        return self.left.pop()


def names(rng: random.Random, number: int) -> list[str]:
    """First and last names of people; neither is shared by two of them."""
    pairs = zip(rng.sample(FIRST.split(), number), rng.sample(LAST.split(), number), strict=True)
    return [f"{first} {last}" for first, last in pairs]


def fill(text: str, values: dict[str, Any]) -> str:
    """``text`` with each ``<name>`` replaced by its value."""
    return re.sub(r"<(\w+)>", lambda match: str(values[match[1]]), text)


def say(rng: random.Random, text: str, **values: Any) -> str:
    """``text`` with one of each ``{this|that}``, and each ``<name>`` replaced by its value."""
    return fill(
        re.sub(r"\{([^{}]*)\}", lambda match: rng.choice(match[1].split("|")), text), values
    )


def put(parts: list[Any], keys: list[Any], where: str) -> list[Any]:
    """``parts`` with ``keys`` before them ("start"), after them ("end") or in their middle
    ("middle").
    """
    index = {"start": 0, "middle": len(parts) // 2, "end": len(parts)}[where]
    return [*parts[:index], *keys, *parts[index:]]


# A world of facts (hotpotqa, triviaqa, passage_retrieval_en): firm leads to founder, person to
# birthplace, town to river, river to lake and hill; the first two sentences of a passage hold all
# of these. No two things share a name.
FIRMS = """Bluebell Northwind Redstart Silverline Greenleaf Starling Goldcrest Whitecap Blackthorn Sunrise Foxglove
Kingfisher"""
RIVERS = "Lenna Tarrow Ister Morva Calder Wenlow Arrin Sable"


class Thing(NamedTuple):
    kind: str
    facts: dict[str, str | int]


def world(rng: random.Random) -> dict[str, list[Thing]]:
    """Kind → things, four of each. The founder of a firm, and the birthplace of a person, has the
    same index.
    """
    people, towns, years = (
        names(rng, 4),
        rng.sample(TOWNS.split(), 4),
        rng.sample(range(1890, 1940), 4),
    )
    rivers, firms = rng.sample(RIVERS.split(), 4), rng.sample(FIRMS.split(), 4)
    lakes, hills, products, sights = (
        rng.sample(TEXTS[of][0], 4) for of in ("lakes", "hills", "products", "sights")
    )
    made = {"person": [], "firm": [], "town": [], "river": []}
    for i, (name, town) in enumerate(zip(people, towns, strict=True)):
        firm, first, later = (
            f"{firms[i]} {products[i].split()[-1].title()}",
            name.split()[0],
            years[i] + 30,
        )
        made["person"].append({"name": name, "first": first, "town": town, "year": years[i]})
        made["firm"].append({"name": firm, "product": products[i], "founder": name, "year": later})
        made["town"].append({"name": town, "river": rivers[i], "sight": sights[i]})
        made["river"].append({"name": rivers[i], "lake": lakes[i], "hill": hills[i]})
    return {kind: [Thing(kind, facts) for facts in things] for kind, things in made.items()}


def passage(rng: random.Random, thing: Thing) -> str:
    """What defines a thing, and another sentence."""
    first, *more = TEXTS[thing.kind][0]
    return say(rng, f"{first} {rng.choice(more)}", **thing.facts, n=rng.randrange(3, 15))


def hotpotqa(rng: random.Random, number: int, where: str) -> Row:
    """Ten passages, two of which the question needs, in the order of its two hops."""
    things = world(rng)
    firm, person, town, river = (things[kind][0] for kind in ("firm", "person", "town", "river"))
    text, answer, needed = (
        ("In which town was the founder of {firm} born?", "town", [firm, person]),
        ("On which river lies the town where {person} was born?", "river", [person, town]),
        ("Into which lake flows the river on which {town} lies?", "lake", [town, river]),
        ("In which year was the founder of {firm} born?", "year", [firm, person]),
    )[number]
    question = text.format(
        firm=firm.facts["name"], person=person.facts["name"], town=town.facts["name"]
    )
    others = rng.sample([thing for kind in things.values() for thing in kind[1:]], 8)
    order = enumerate(put(others, needed, where), start=1)
    context = "\n".join(
        f"Passage {k}:\n{thing.facts['name']}\n{passage(rng, thing)}" for k, thing in order
    )
    return context, question, [str(needed[-1].facts[answer])]


def passage_retrieval_en(rng: random.Random, number: int, where: str) -> Row:
    """Ten paragraphs, and the abstract of one of them."""
    things = world(rng)
    asked = things[("firm", "person", "river", "town")[number]][0]
    others = rng.sample([thing for kind in things.values() for thing in kind if thing != asked], 9)
    order = put(others, [asked], where)
    context = "\n\n".join(
        f"Paragraph {k}: {passage(rng, thing)}" for k, thing in enumerate(order, start=1)
    )
    return (
        context,
        say(rng, TEXTS[asked.kind][1][0], **asked.facts),
        [f"Paragraph {order.index(asked) + 1}"],
    )


TRIVIA = {  # kind of thing → a question, and which fact is its answer
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


def triviaqa(rng: random.Random, number: int, where: str) -> Row:
    """Six passages with a question and an answer; the last question comes with its own passage.

    The example that asks the same of another thing stands at ``where``; the other examples ask
    other things.
    """
    things, kind = world(rng), list(TRIVIA)[number]
    form, fact = TRIVIA[kind][number % 2]

    def example(thing: Thing, form: str, fact: str) -> tuple[str, str]:
        text = f"Passage:\n{thing.facts['name']}\n{passage(rng, thing)}\n"
        return f"{text}Question:\n{form.format(**thing.facts)}\nAnswer:\n", str(thing.facts[fact])

    asked, same = rng.sample(things[kind], 2)
    others = rng.sample([thing for other in TRIVIA if other != kind for thing in things[other]], 5)
    shown = ["".join(example(thing, *rng.choice(TRIVIA[thing.kind]))) for thing in others]
    question, right = example(asked, form, fact)
    return (
        "\n".join(put(shown, ["".join(example(same, form, fact))], where)) + "\n",
        question,
        [right],
    )


PLACE = ("place", "job", "doing")
ASKED = (
    ("Who gave <hero> <object>?", "host"),
    ("What did <host> give to <hero>?", "object"),
    ("Where did <hero> meet <host>?", "place"),
    ("What work did <hero> do for <host>?", "task"),
)


def narrativeqa(rng: random.Random, number: int, where: str) -> Row:
    """A journey in five scenes; in each the hero meets someone at a place, does some work and is
    given something.
    """
    hero, *hosts = names(rng, 6)
    hero, lost, said = hero.split()[0], TEXTS["lost"][0][number], Deck(rng, TEXTS["said"][0])
    drawn = zip(
        hosts,
        *(rng.sample(TEXTS[name][0], 5) for name in ("places", "objects", "tasks")),
        strict=True,
    )
    scenes = [
        {
            "hero": hero,
            "host": host,
            "object": gift,
            "task": task,
            **dict(zip(PLACE, there.split("|"), strict=True)),
        }
        for host, there, gift, task in drawn
    ]
    text = "{In the evening|Around noon|Two days later|Before long}, <hero> came to <place>. {Here|There} <hero> met "
    text += "<host>, the <job>, who was <doing>. So <hero> <task>. {As thanks|In return}, <host> gave <hero> <object>."
    told = [say(rng, f"{text} {said.draw()}", **scene) for scene in scenes]
    opening = f"{hero} left home {rng.choice(['in spring', 'one autumn', 'at midsummer'])} to look for {lost}."
    ending = f"At last {hero} turned home, without {lost}, but with a full bag and many friends."
    question, answer = ASKED[number]
    story = [opening, *put(told[1:], told[:1], where), ending]
    return "\n\n".join(story), say(rng, question, **scenes[0]), [scenes[0][answer]]


def gov_report(rng: random.Random, number: int, where: str) -> Row:
    """A report on five districts, with totals that are their sums; the four statements are the
    summary.
    """
    agency, things, state, harm, remedy = TEXTS["reports"][0][number].split("|")
    counts = [(rng.randrange(14, 40), rng.randrange(2, 13)) for _ in range(5)]
    total, bad = map(sum, zip(*counts, strict=True))
    summary = f"The {agency} looks after {total} {things} in five districts. Of these, {bad} were {state} when they "
    summary += (
        f"were checked. As a result, {harm}. The report recommends that the {agency} {remedy}."
    )
    visits, parts = Deck(rng, TEXTS["visits"][0]), []
    for district, (checked, wrong) in zip(rng.sample(TOWNS.split(), 5), counts, strict=True):
        text = f"District of {district}: We checked {checked} {things}, and {wrong} of them were {state}. "
        parts.append(say(rng, text + f"{visits.draw()} {visits.draw()}"))
    method = "We visited every district once, between March and October. Each site was looked at by two people."
    note = "A draft of this report was sent to all districts, and their answers are printed in a separate volume."
    return "\n\n".join(put([method, *parts, note], [summary], where)), "", [summary]


PARTS = ("boat hull mast sail keel", "house roof wall floor window", "meal soup salad bread cheese")
PARTS += ("engine piston valve pump filter",)  # a thing, and the parts that its class takes
CLASS = '''class <Thing>:
    """A <thing> and its parts."""

    def __init__(self, <signature>):
        self.parts = (<signature>)
        for name, value in zip("<names>".split(), self.parts):
            setattr(self, name, value)
'''
ENDS = (  # what the file ends with: up to the loop, and the line for each part
    (
        'def copy_<thing>(<thing>):\n    """Another <thing> of the same parts."""\n    return <Thing>(',
        "        <thing>.<part>,",
    ),
    (
        'def <thing>_row(<thing>):\n    """The parts of a <thing>, for a table."""\n    row = {}',
        '    row["<part>"] = <thing>.<part>',
    ),
    (
        'def check_<thing>(<thing>):\n    """Refuse a <thing> that lacks a part."""',
        '    require(<thing>.<part>, "<part>")',
    ),
    (
        'def show_<thing>(<thing>):\n    """Print the parts of a <thing>."""',
        '    print("<part>:", <thing>.<part>)',
    ),
)
FUNCTIONS = (
    '''def total_<field>(<thing>s):
    """The sum of the <field> of all <thing>s."""
    return sum(<thing>["<field>"] for <thing> in <thing>s)
''',
    '''def <thing>s_above(<thing>s, limit):
    """Those <thing>s whose <field> is above a limit."""
    return [<thing> for <thing> in <thing>s if <thing>["<field>"] > limit]
''',
    '''def sort_<thing>s(<thing>s, reverse=False):
    """The <thing>s in the order of their <field>."""
    return sorted(<thing>s, key=lambda <thing>: <thing>["<field>"], reverse=reverse)
''',
    '''def find_<thing>(<thing>s, name):
    """The <thing> of a name; KeyError if there is none."""
    for <thing> in <thing>s:
        if <thing>["name"] == name:
            return <thing>
    raise KeyError(name)
''',
)


def lcc(rng: random.Random, number: int, where: str) -> Row:
    """One file; it ends in a function that goes through the parts of a class, before the last of
    them.
    """
    thing, *words = PARTS[number].split()
    parts, field = rng.sample(words, 4), rng.choice(("price", "weight", "length", "age"))
    other = rng.choice(("crate", "ticket", "parcel", "bottle"))
    others = [fill(text, {"thing": other, "field": field}) for text in rng.sample(FUNCTIONS, 4)]
    values = {
        "thing": thing,
        "Thing": thing.title(),
        "signature": ", ".join(parts),
        "names": " ".join(parts),
    }
    head, line = ENDS[number]
    *done, last = [fill(line, values | {"part": part}) for part in parts]
    end = "\n".join([fill(head, values), *done])
    return "\n\n".join([*put(others, [fill(CLASS, values)], where), end]) + "\n", "", [last]


MAKERS: dict[str, Callable[[random.Random, int, str], Row]] = {
    "narrativeqa": narrativeqa,
    "hotpotqa": hotpotqa,
    "gov_report": gov_report,
    "triviaqa": triviaqa,
    "passage_retrieval_en": passage_retrieval_en,
    "lcc": lcc,
}


def rows(rng: random.Random, name: str) -> dict[str, list[dict]]:
    """Four test rows in the schema of the real ones; ``length`` counts the words of context and
    question.
    """
    places = ["start", "end", "middle", rng.choice(["start", "end"])]
    rng.shuffle(places)
    made = []
    for number, where in enumerate(places):
        context, question, answers = MAKERS[name](rng, number, where)
        row = {"question": question, "context": context, "answers": answers}
        row |= {"length": len(f"{context} {question}".split()), "dataset": name, "language": "en"}
        made.append(row | {"all_classes": None, "_id": f"{name}-{number}"})
    return {"test": made}
