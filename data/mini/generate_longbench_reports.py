"""Texts by several people: news passages with a summary (multi_news) and the transcript of a meeting (qmsum)."""

import random

from generate_longbench_facts import Row, passage, world
from generate_longbench_words import Deck, names, put, say

EVENTS = (  # what happened, why, what it means, what is next; <town>, <person>, <count>, <day>
    (
        "A footbridge over the river in <town> was closed on <day> after a barge hit one of its pillars.",
        "Nobody was hurt, but <count> people have to find another way to work.",
        "Engineer <person> said that the repair will take six weeks.",
        "Until then, a free ferry will cross the river every ten minutes.",
    ),
    (
        "A storm cut off the power in <town> on <day> and left <count> homes in the dark.",
        "Fallen trees blocked the railway, so that no train ran until the evening.",
        "Mayor <person> opened the sports hall to families who needed a warm place.",
        "Most of the homes had light again by the next morning.",
    ),
    (
        "The school in <town> won the national prize for gardens on <day>.",
        "Its pupils grew <count> kinds of vegetables on the roof and cooked with them.",
        "Teacher <person> said that the children did all of the work themselves.",
        "They will spend the prize money on a greenhouse.",
    ),
    (
        "A painting that was stolen from the museum in <town> was found in a barn on <day>.",
        "It shows a ship in a storm and is worth <count> crowns.",
        "Farmer <person> saw it behind a heap of straw and called the police at once.",
        "The museum will hang it in its old place next month.",
    ),
)
QUOTES = (
    '"I heard it from my neighbour," said <name>, who works at the {bakery|station}. "I took it for a joke."',
    '"Everybody here is talking about it," said <name>. "My phone has not been silent since {breakfast|noon}."',
    '"It is good to see how people {stand together|help each other}," said <name>, a young {nurse|driver|cook}.',
    '"I have lived here for <n> years, and I do not remember anything like it," said <name>.',
    "<name>, who sells {flowers|newspapers|fruit} in the main street, has noticed more strangers than usual.",
    '"We will see what comes of it," said <name>, and went on {sweeping the steps|washing the car|feeding the birds}.',
    "A radio station asked its listeners what they think, and <name> was the first of <n>0 callers.",
    "<name> wrote a {song|poem} about it and sang it in front of the town hall.",
    "Asked about it, <name> of the town council did not want to say more than what is known.",
    '"My children asked me to drive by so that they could see it," said <name>.',
)
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday")


def multi_news(rng: random.Random, number: int, where: str) -> Row:
    """Six passages on one event: what happened, in four sentences, and besides it voices and background."""
    things = world(rng)
    *witnesses, person = names(rng, 21)
    values = {"town": things["town"][0].facts["name"], "person": person, "count": rng.randrange(12, 90) * 10}
    if "kinds" in EVENTS[number][1]:
        values["count"] //= 10
    summary = [say(rng, sentence, day=rng.choice(DAYS), **values) for sentence in EVENTS[number]]
    quotes, witness = Deck(rng, QUOTES), Deck(rng, witnesses)
    voices = [say(rng, quotes.draw(), name=witness.draw(), n=rng.randrange(11, 40)) for _ in range(20)]
    background = [passage(rng, thing) for kind in ("town", "river", "firm") for thing in things[kind]][:22]
    rng.shuffle(background)
    blocks = [" NEWLINE_CHAR NEWLINE_CHAR ".join(pair) for pair in zip(voices, background, strict=False)]
    blocks = put(blocks, [" ".join(summary)], where)
    per_passage = -(-len(blocks) // 6)
    passages = [blocks[first : first + per_passage] for first in range(0, len(blocks), per_passage)]
    texts = [" NEWLINE_CHAR NEWLINE_CHAR ".join(part) for part in passages]
    return "\n".join(f"Passage {k}:\n{text}" for k, text in enumerate(texts, start=1)), "", [" ".join(summary)]


TOPICS = (  # what is decided on, two proposals, a reason for the second and against the first
    ("the colour of the new bus", "dark grey", "bright yellow", "it is easy to see in fog"),
    ("the date of the summer party", "the last day of June", "the first day of July", "exams are over by then"),
    ("the food for the trip", "a hot lunch", "sandwiches", "they can be made the day before"),
    ("the prize for the contest", "a silver cup", "a book", "the winner can use it"),
    ("the place for the bicycles", "the front yard", "the cellar", "it stays dry there"),
    ("the name of the boat", "Seagull", "Little Wave", "the children voted for it"),
    ("the music at the opening", "a string trio", "the brass band", "it can be heard outdoors"),
    ("the material of the benches", "steel", "oak", "it does not get hot in the sun"),
    ("the opening hours of the workshop", "nine to five", "noon to eight", "most members work in the morning"),
    ("the cover of the yearbook", "a photograph", "a drawing", "it costs half as much to print"),
    ("the plants along the fence", "roses", "raspberries", "one can eat them"),
    ("the floor of the hall", "carpet", "cork", "it is easy to clean"),
    ("the gift for the cleaner", "flowers", "a concert ticket", "that was a secret wish"),
    ("the heating of the glass house", "gas", "a heat pump", "the roof makes enough power for it"),
)
TURNS = (
    "Before we vote , does anyone know what they did {last year|at the other school|in the old house} ?",
    "I asked around , and {most people|the parents|the neighbours} have no strong opinion .",
    "Hmm , that sounds fine , but I would like to hear more .",
    "We talked about this {last week|in March} and did not come to an end .",
    "Sorry , I was late , could you say that again ?",
    "Yeah , okay . And who would take care of it ?",
    "I can do that , if someone {lends me a car|helps me with the letters} .",
    "Let us not spend the whole {morning|meeting} on this .",
    "Right . I will write that down .",
    "Um , there was a letter about it , I think I have it here .",
)
ROLES = ("Chair", "Treasurer", "Secretary", "Builder")


def qmsum(rng: random.Random, number: int, where: str) -> Row:
    """A meeting with fourteen topics, each with two proposals and a decision; asked is the decision on one."""
    turns, asides, parts = Deck(rng, TURNS), Deck(rng, ROLES), []
    topics = rng.sample(TOPICS, len(TOPICS))
    for topic, first, second, reason in topics:
        one, other = rng.sample(ROLES[1:], 2)
        lines = [f"Chair: {{Next|Now|Then}} we come to {topic} . {{Who wants to start ?|Any ideas ?}}"]
        lines += [f"{one}: {{I would take|My idea is|I am for}} {first} ."]
        lines += [f"{asides.draw()}: {turns.draw()}" for _ in range(2)]
        lines += [f"{other}: I would rather have {second} , because {reason} ."]
        lines += [f"{asides.draw()}: {turns.draw()}" for _ in range(2)]
        lines += [f"Chair: {{Okay|Good|Fine}} , so we decide on {second} for {topic} ."]
        lines += [f"{one}: {{Fine with me|All right|I can live with that}} ."]
        parts.append((topic, one, first, other, second, reason, say(rng, "\n".join(lines))))
    topic, one, first, other, second, reason, _ = parts[0]
    answer = (
        f"The {one} proposed {first}, but the {other} wanted {second}, because {reason}. The group decided on {second}."
    )
    transcript = [part[-1] for part in put(parts[1:], parts[:1], where)]
    context = "\n".join(
        ["Chair: Welcome , everybody . Let us begin .", *transcript, "Chair: That is all . Thank you ."]
    )
    return context, f"What did the group discuss and decide about {topic}?", [answer]
