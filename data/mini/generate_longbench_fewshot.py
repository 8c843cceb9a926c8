"""Tasks with examples in the context: types of questions (trec), short answers (triviaqa), dialogues (samsum)."""

import random

from generate_longbench_facts import Row, passage, world
from generate_longbench_words import Deck, names, put, say

# The label set of TREC, as in LongBench's rows: the metric looks for each of these names in an answer.
CLASSES = """Food|Date|Order, rank|Speed|Disease and medicine|Word with a special
property|Abbreviation|Language|Letter like a-z|Other entity|Animal|Expression abbreviated|Price|Techniques and
method|Musical instrument|Mountain|Currency name|Event|Product|State|Individual|Organ of body|Reason|Manner of an
action|City|Religion|Invention, book and other creative piece|Distance, linear measure|Temperature|Postcode or other
code|Size, area and volume|Sport|Country|Other location|Lasting time of somethin|Equivalent term|Description of
something|Weight|Vehicle|Color|Other number|Definition of something|Element and substance|Description of a
person|Symbols and sign|Number of something|Plant|Percent, fraction|Group or organization of person|Title of a person"""
QUESTIONS = {  # of some of the classes
    "Food": (
        "What {soup|cake|bread|sauce} is made with {carrots|rye|onions|walnuts} ?",
        "What do people in {Norway|Mexico|Greece|Japan} eat for {breakfast|lunch|supper} ?",
        "Which {fruit|vegetable|cheese} is best in a {pie|salad|stew} ?",
    ),
    "Animal": (
        "What {bird|lizard|insect|snake} lives {in caves|on islands|in deserts|in treetops} ?",
        "Which {mammal|bird|frog} {sleeps the longest|jumps the farthest|swims the fastest|lives the longest} ?",
        "What animal {eats only leaves|carries its house|changes its coat|builds dams} ?",
    ),
    "City": (
        "What city in {France|Chile|Kenya|India} has the {oldest|largest|busiest} {harbor|market|theater} ?",
        "In which city was {the first|a famous} {subway|zoo|opera house} built ?",
        "What is the capital city of {Finland|Peru|Ghana|Nepal} ?",
    ),
    "Country": (
        "What country {exports|grows|buys} the most {tea|coffee|cotton|timber} ?",
        "Which country has the {longest|shortest} {coast|border|railway} ?",
        "What country {lies between|shares a lake with} {Spain and France|China and India|Peru and Brazil} ?",
    ),
    "Date": (
        "When was the {first|last} {telegraph|airship|steamboat|typewriter} {built|sold|repaired} ?",
        "In what year did {Iceland|Canada|Cuba} print its first {coin|stamp|newspaper} ?",
        "What day is {harvest|children 's|flag} day in {Poland|Brazil|Sweden} ?",
    ),
    "Color": (
        "What color is {the flag|the mailbox|a taxi} in {Ireland|Turkey|Italy} ?",
        "What color are the {eggs|feathers|eyes} of a {robin|flamingo|raven} ?",
        "Which color do you get from {red and blue|yellow and blue|black and white} ?",
    ),
    "Individual": (
        "Who {invented|drew|patented} the {zipper|umbrella|paper clip|pencil sharpener} ?",
        "Who was the first {pilot|woman|sailor} to {cross|circle} the {Atlantic|Pacific|Sahara} ?",
        "What {poet|painter|composer} lived in {Vienna|Lisbon|Dublin} ?",
    ),
    "Number of something": (
        "How many {teeth|bones|legs|eyes} does a {spider|whale|crab|horse} have ?",
        "How many {islands|lakes|provinces} belong to {Greece|Canada|Finland} ?",
        "How many {players|strings|keys} are there {on a team|on a harp|on a piano} ?",
    ),
    "Reason": (
        "Why do {cats purr|leaves fall|onions make us cry|geese fly south|roosters crow} ?",
        "Why is {the sea salty|the moon bright|old copper green|the sky blue|ice slippery} ?",
        "Why did {sailors|farmers|monks} {wear rings|keep bees|carry candles|own bells} ?",
    ),
    "Definition of something": (
        "What is {a fjord|a sonnet|a barometer|a glacier|an atoll|a quartet} ?",
        "What does {fragile|nocturnal|amphibious|vintage} mean ?",
        "What are {isobars|stalactites|sundials|molars|proverbs} ?",
    ),
    "Manner of an action": (
        "How do you {clean|store|pack|repair} a {kettle|violin|chisel|carpet} ?",
        "How can I {grow|dry|freeze} {basil|plums|beans} ?",
        "How is {glass|soap|paper|cheese} made ?",
    ),
    "Sport": (
        "What sport is played with a {net|stick|broom|shuttlecock} ?",
        "Which {winter|team|water} sport is {oldest|most popular} in {Norway|Cuba|Samoa} ?",
        "What game did {sailors|soldiers|students} play {on deck|in camp|in the yard} ?",
    ),
}


def classes() -> list[str]:
    """The names of all types."""
    return " ".join(CLASSES.split()).split("|")


def _question(rng: random.Random, label: str) -> str:
    return say(rng, rng.choice(QUESTIONS[label]))


def trec(rng: random.Random, number: int, where: str) -> Row:
    """About 110 questions with their types; four of the type that is asked, next to each other."""
    asked = ("City", "Animal", "Color", "Reason")[number]
    question, same = _question(rng, asked), []
    while len(same) < 4:
        if (drawn := _question(rng, asked)) not in (question, *same):
            same.append(drawn)
    labels, examples = Deck(rng, [label for label in QUESTIONS if label != asked]), []
    while len(examples) < 106:
        label = labels.draw()
        if (example := f"Question: {_question(rng, label)}\nType: {label}") not in examples:
            examples.append(example)
    context = put(examples, [f"Question: {text}\nType: {asked}" for text in same], where)
    return "\n".join(context), f"Question: {question}\nType:", [asked]


TRIVIA = {  # kind of thing → a question, and which fact is its answer
    "person": (("Where was {name} born?", "town"), ("In which year was {name} born?", "year")),
    "firm": (("What does {name} make?", "product"), ("Who was the founder of {name}?", "founder")),
    "town": (("On which river lies {name}?", "river"), ("Which river does one see in {name}?", "river")),
    "river": (("On which hill does the {name} rise?", "hill"), ("Into which lake does the {name} flow?", "lake")),
}


def triviaqa(rng: random.Random, number: int, where: str) -> Row:
    """Nineteen passages with a question and an answer; the last question comes with its own passage.

    The example that asks the same of another thing stands at ``where``; the other examples ask other things.
    """
    things = world(rng)
    kind = list(TRIVIA)[number]
    form, answer = TRIVIA[kind][number % 2]

    def example(thing, form, fact):
        text = f"Passage:\n{thing.facts['name']}\n{passage(rng, thing)}\n"
        return f"{text}Question:\n{form.format(**thing.facts)}\nAnswer:\n", str(thing.facts[fact])

    asked, same = rng.sample(things[kind], 2)
    others = [thing for other in TRIVIA if other != kind for thing in things[other]]
    shown = ["".join(example(thing, *rng.choice(TRIVIA[thing.kind]))) for thing in rng.sample(others, 18)]
    context = put(shown, ["".join(example(same, form, answer))], where)
    question, right = example(asked, form, answer)
    return "\n".join(context) + "\n", question, [right]


SCENES = (  # lines in turn, of <a> and <b>; the summary
    (
        "{Hi|Hey}, are you coming to the <event> on <day>?|Yes! When does it start?|At <hour>. Bring <thing>.|"
        "{Sure|Will do}, see you there.",
        "<a> and <b> will go to the <event> on <day> at <hour>. <b> will bring <thing>.",
    ),
    (
        "I have lost <thing>. Have you seen it?|Where did you have it last?|I think it was in the <place>.|"
        "{Wait|Just a moment}... yes, here it is!|{Great|Wonderful}, thank you so much.",
        "<a> lost <thing>. <b> found it in the <place>.",
    ),
    (
        "My train is late again.|Oh no. When will you be here?|Not before <hour>.|Then I will wait in the <place>.|"
        "{Thanks|You are a star}! I owe you a coffee.",
        "<a>'s train is late, so <a> will arrive at <hour>. <b> will wait in the <place>.",
    ),
    (
        "Can you help me on <day>?|What is it about?|I have to paint the <place>.|{Okay|Fine}, I will come at <hour>.|"
        "You are the best. There will be pizza.",
        "<b> will help <a> to paint the <place> on <day> at <hour>.",
    ),
    (
        "What shall we give <c> for the birthday?|How about <thing>?|{Good|Nice} idea. Can you buy it?|"
        "Yes, I am in town on <day> anyway.|Then I will bake a cake.",
        "<a> and <b> will give <c> <thing> for the birthday. <b> will buy it on <day>.",
    ),
    (
        "I cannot come to the <event>.|Why not?|I have caught a cold.|That is a pity. Shall I bring you soup?|"
        "{Oh|Yes}, that would be lovely. Come at <hour>.",
        "<a> has a cold and cannot come to the <event>. <b> will bring soup at <hour>.",
    ),
    (
        "Did you hear that <c> is moving out?|No! Since when?|Since <day>. I saw boxes in the <place>.|"
        "I will miss those {jokes|stories}.|Me too.",
        "<c> is moving out. <a> saw boxes in the <place>.",
    ),
    (
        "May I borrow <thing>?|What do you need it for?|For the <event> on <day>.|"
        "{All right|Sure}, but give it back afterwards.|{Promised|Of course}!",
        "<a> wants to borrow <thing> from <b> for the <event> on <day>.",
    ),
    (
        "How was the <event>?|{Lovely|Very good}! It went on until <hour>.|Who was there?|<c>, and half of my class.|"
        "Next time I will come too.",
        "<a> asks about the <event>. <b> was there with <c> until <hour>.",
    ),
    (
        "The <place> is under water!|What happened?|A pipe broke. Do you know a plumber?|"
        "Call <c>. I used the same one in <month>.|{Thanks|Great}, I will call right away.",
        "A pipe broke in <a>'s <place>. <b> tells <a> to call <c>.",
    ),
    (
        "Do you still have <thing> that I gave you?|Of course. Why?|<c> would like to have it.|"
        "No problem. I can bring it on <day>.|{Perfect|Super}.",
        "<c> would like to have <thing>. <b> will bring it on <day>.",
    ),
    (
        "I passed the exam!|{Congratulations|Hooray}! Let us celebrate.|Yes! At my place, at <hour>?|"
        "I will be there. Is <c> coming as well?|I hope so.",
        "<a> passed the exam. <a> and <b> will celebrate at <hour>.",
    ),
)
SLOTS = {
    "month": "March|April|May|June|July",
    "event": "concert|picnic|wedding|school play|chess club|flea market|film night|barbecue",
    "day": "Monday|Tuesday|Wednesday|Thursday|Friday|Saturday|Sunday",
    "hour": "noon|three|four|five|six|seven|half past two|half past eight",
    "thing": "a blanket|the green umbrella|a camera|a cookbook|the big tent|a lamp|a guitar|a pair of skates",
    "place": "kitchen|garage|hall|garden|library|cellar|bathroom|office",
}


def samsum(rng: random.Random, number: int, where: str) -> Row:
    """Thirty-two dialogues with summaries; the last dialogue has none. One told alike stands at ``where``."""

    def dialogue(scene):
        people = [name.split()[0] for name in names(rng, 3)]
        values = dict(zip("abc", people, strict=True))
        values |= {slot: rng.choice(words.split("|")) for slot, words in SLOTS.items()}
        lines, summary = (say(rng, text, **values) for text in scene)
        spoken = "\r\n".join(f"{people[turn % 2]}: {line}" for turn, line in enumerate(lines.split("|")))
        return f"Dialogue: {spoken}\nSummary: ", summary

    others = Deck(rng, [scene for scene in SCENES if scene != SCENES[number]])
    shown = ["".join(dialogue(others.draw())) for _ in range(31)]
    context = put(shown, ["".join(dialogue(SCENES[number]))], where)
    question, summary = dialogue(SCENES[number])
    return "\n".join(context) + "\n", question, [summary]
