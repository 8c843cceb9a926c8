"""Long prose with a question: a story (narrativeqa) and a guide to a place (multifieldqa_en).

A story is a journey of fourteen scenes, a guide has fourteen parts. The scene or part that is asked about comes first,
last or in the middle; no two have the same host, place, object or work, or the same year, planner, colour or team.
"""

import random
import re

from generate_longbench_facts import Row
from generate_longbench_words import TOWNS, Deck, names, put, say

PLACES = (  # where, what one sees there, who lives there, and what that person is doing
    ("the old mill", "Its wheel turned slowly, though there was no grain to be seen.", "miller", "mending a sack"),
    ("the ferry house", "Two boats lay upside down on the grass beside it.", "ferryman", "tarring a plank"),
    ("the glass shop", "Light in every colour fell on the floor.", "glass blower", "sweeping up splinters"),
    ("the bell tower", "Pigeons flew up each time the clock struck.", "bell ringer", "oiling a heavy chain"),
    ("the salt caves", "The walls were white and tasted of the sea.", "salt digger", "filling a barrow"),
    ("the walled orchard", "Ripe pears hung so low that they touched the path.", "gardener", "tying up a branch"),
    ("the toll bridge", "A red bar lay across the road, and a bell hung next to it.", "toll keeper", "counting coins"),
    ("the shepherd's hut", "Smoke rose from a chimney made of flat stones.", "shepherd", "carving a spoon"),
    ("the charcoal camp", "Black heaps glowed between the trees.", "charcoal burner", "raking the embers"),
    ("the quarry", "Blocks of stone stood in rows like sleeping cattle.", "mason", "sharpening a chisel"),
    ("the beach of shells", "The tide had left long lines of foam.", "fisher", "mending a net"),
    ("the night market", "Lanterns swung above the stalls although it was late.", "spice seller", "weighing pepper"),
    ("the snow pass", "Poles marked the way, for the path itself was gone.", "guide", "waxing a pair of skis"),
    ("the clay pits", "Rain had turned the whole slope yellow.", "potter", "turning a tall jar"),
    ("the small theatre", "A painted sea filled the back of the stage.", "actor", "learning a long part"),
    ("the lock by the canal", "Three barges waited for the water to rise.", "lock keeper", "feeding ducks"),
)
TASKS = """carried twelve buckets of water up the stairs|swept the chimney|painted the front door green|cut a
winter's worth of firewood|caught the goat that had run away|wrote a letter to a cousin abroad|stopped the leak in
the roof|sorted a drawer full of nails|washed all the windows|taught the youngest child to whistle|dug a ditch
around the vegetables|brought the washing in before the storm|repaired the broken ladder|read the newspaper
aloud|built a box for the hens|found the spectacles under the stove"""
OBJECTS = """a brass key|a blue kite|a clay flute|a tin whistle|a silver thimble|a jar of honey|a leather map case|a
wooden horse|a pair of red gloves|a small telescope|a striped umbrella|an ivory comb|a copper lantern|a book of
songs|a bag of walnuts|a white feather"""
LOST = "the stolen church bell|the mayor's music box|the chart of a sunken ship|the king's last letter"
WEATHER = """A fine rain fell, and the road was soft.|The sun had burned the grass brown.|Fog hid everything farther
off than a stone's throw.|The wind came from the north and smelled of snow.|It was so still that one could hear a
leaf fall.|Clouds chased each other over the hills.|Thunder had rolled since noon, but not a drop had come down.|The
evening was warm, and bats were out."""
TALK = """"Nobody has asked me that for years," said <host>. "People here keep to themselves, and strangers are
rare."|"I heard something of the kind when I was a child," said <host>. "But those who knew the whole story are
gone."|"First you will eat," said <host>, and put bread and soup on the table. They talked until the candle was
short.|"You had better ask farther down the road," said <host>. "All I can offer is work and a dry bed."|<host>
laughed at the question at first, then grew serious and looked out of the window for a while.|"My brother went
looking for it once," said <host>. "He came home thin and happy, and never said a word about it."|<host> did not
believe a word of it, but was glad to have company and told stories about the neighbours.|"There are two roads from
here," said <host>, "a short one and a safe one. The choice is yours." """
NEED = """There was work to be done before dark.|<host> had hurt a hand and needed help.|A guest, it was said,
should be of use.|The help that had been promised for the week had not come.|It seemed only fair to do something in
return for the meal."""
LEAVE = """The next stretch of road led through fields, and it was long.|In the morning the dog of the house came
along as far as the first bend.|They shook hands, and neither looked back.|That night sleep came at once.|The way
went downhill now, and the bag felt lighter.|A cart stopped and took the traveller along for some miles."""
ASKED = (
    ("Who gave <hero> <object>?", "host"),
    ("What did <host> give to <hero>?", "object"),
    ("Where did <hero> meet <host>?", "place"),
    ("What work did <hero> do for <host>?", "task"),
)


def _choices(text: str) -> list[str]:
    """The parts of a text between bars, but for those within braces."""
    return re.split(r"\|(?![^{}]*\})", " ".join(text.split()))


def _scene(rng: random.Random, values: dict[str, str], decks: dict[str, Deck]) -> str:
    text = "{In the evening|Around noon|Two days later|Before long|The day after}, <hero> came to <place>. <view> "
    text += "{Here|There} <hero> met <host>, the <job>, who was <doing>. "
    text += f"{decks['need'].draw()} So <hero> <task>. {{As thanks|In return}}, <host> gave <hero> <object>. "
    text += f"{decks['talk'].draw().strip()} {decks['weather'].draw()} {decks['leave'].draw()}"
    return say(rng, text, **values)


def narrativeqa(rng: random.Random, number: int, where: str) -> Row:
    """A journey; in each scene the hero meets someone at a place, does some work and is given something."""
    pools = {"need": NEED, "talk": TALK, "weather": WEATHER, "leave": LEAVE}
    decks = {name: Deck(rng, _choices(text)) for name, text in pools.items()}
    hero, *hosts = names(rng, 15)
    hero, lost = hero.split()[0], _choices(LOST)[number]
    given, tasks = (rng.sample(_choices(text), 14) for text in (OBJECTS, TASKS))
    values = [
        {"hero": hero, "host": host, "object": gift, "task": task}
        | dict(zip(("place", "view", "job", "doing"), place, strict=True))
        for host, place, gift, task in zip(hosts, rng.sample(PLACES, 14), given, tasks, strict=True)
    ]
    scenes = [_scene(rng, scene, decks) for scene in values]
    opening = f"{hero} left home {rng.choice(['in spring', 'one autumn', 'at midsummer'])} to look for {lost}."
    ending = f"At last {hero} turned home, without {lost}, but with a full bag and many friends."
    question, answer = ASKED[number]
    story = [opening, *put(scenes[1:], scenes[:1], where), ending]
    return "\n\n".join(story), say(rng, question, **values[0]), [values[0][answer]]


GUIDES = (  # an institution, what its parts are called, and the names of the parts
    ("museum", "room", "Coins|Maps|Dolls|Clocks|Shells|Masks|Lamps|Stamps|Birds|Boats|Bells|Hats|Keys|Looms"),
    ("park", "garden", "Roses|Ferns|Herbs|Lilies|Cactus|Moss|Tulips|Bamboo|Palms|Heather|Grasses|Dahlias|Ivy|Irises"),
    ("zoo", "house", "Otters|Owls|Turtles|Lemurs|Seals|Bats|Cranes|Camels|Wolves|Parrots|Lizards|Beavers|Bears|Moths"),
    ("library", "hall", "Poetry|Travel|Law|Music|Cooking|Science|Letters|Films|Comics|Sports|History|Art|Crafts|Plays"),
)
DETAILS = """Visitors are asked to {leave bags at the entrance|speak quietly|keep to the marked path}, because the
space is narrow.|In {winter|summer} the light is best before noon, so {painters|school classes|photographers} tend
to come early.|A short film near the exit shows how the work is done when no guests are here.|The floor was laid
again after a flood, and one can still see a line on the wall that shows how high the water stood.|Children get a
sheet with <n> questions, and whoever answers all of them may choose a postcard.|A bench in the corner was given by
a {club|family|school} that has come every year.|Large groups should call ahead, since no more than <n> people fit
in at the same time.|On Sundays a volunteer explains the {rarest|oldest|smallest} things and answers questions.|The
labels are printed in {two|three|four} languages, and there is a version for the blind.|Heating is difficult here,
so a warm coat is useful {from autumn on|until May}.|Many things came as gifts, and the names of the givers are
written on a board at the door.|One can touch some of the things, but not those behind the rope.|A
{clock|bell|whistle} tells when it is time to leave, <n> minutes before the gate is closed.|What can be seen changes
{twice a year|every spring}, so it is worth coming again.|{Drawing|Taking pictures} is allowed, but only without a
lamp or a stand.|The team answers letters {on Mondays|within a week} and is glad about every hint.|Upstairs, <n>
boxes are waiting to be unpacked, sorted and described.|In the first years the place was used as a store for
{hay|wine|coal}, and the smell has never quite gone.|The ceiling was painted by students, who needed <n> weeks for
it.|At busy times there is a queue, but it moves quickly.|A {model|drawing} by the door shows what the building
looked like before.|Cleaning is done at night, by a firm that knows how to handle old things.|Lost gloves and
umbrellas are kept for a year in a basket under the stairs.|In the middle stands a {table|column} of dark wood,
which is older than the rest."""
FACTS = (  # one about every part; which is asked, with its answer
    ("The <part> of <title> was opened in <year>.", "In which year was the {part} of {title} opened?", "year"),
    ("The <part> of <title> was planned by <person>.", "Who planned the {part} of {title}?", "person"),
    (
        "The door of the <part> of <title> is painted <colour>.",
        "What colour is the door of the {part} of {title}?",
        "colour",
    ),
    (
        "A team of <count> people looks after the <part> of <title>.",
        "How many people are in the team of the {part} of {title}?",
        "count",
    ),
)
COLOURS = "red|dark blue|yellow|light green|purple|white|orange|brown|grey|pink|silver|black|gold|violet"


def multifieldqa_en(rng: random.Random, number: int, where: str) -> Row:
    """A guide; of each part it tells the year, the planner, the colour of the door and the size of the team."""
    kind, part, titles = GUIDES[number]
    town, details = rng.choice(TOWNS.split()), Deck(rng, _choices(DETAILS))
    drawn = zip(
        rng.sample(titles.split("|"), 14),
        rng.sample(range(1890, 1990), 14),
        names(rng, 14),
        rng.sample(COLOURS.split("|"), 14),
        rng.sample(range(3, 40), 14),
        strict=True,
    )
    parts = []
    for title, year, person, colour, count in drawn:
        values = {"year": year, "person": person, "colour": colour, "count": count, "n": rng.randrange(6, 30)}
        values |= {"part": part, "title": title}
        facts = " ".join(text for text, _, _ in FACTS)
        text = f"The {part} of {title} is {{easy to find|close to the stairs|reached by a ramp}}. {facts} "
        text += " ".join(details.draw() for _ in range(6))  # of 24 in all: none twice in one part
        parts.append((title, values, f"{title}\n{say(rng, text, **values)}"))
    (title, values, _), (_, question, answer) = parts[0], FACTS[number]
    opening = f"A guide to the {kind} of {town}\n\nThe {kind} has fourteen {part}s. They can be visited in any order."
    context = "\n\n".join([opening, *(text for _, _, text in put(parts[1:], parts[:1], where))])
    return context, question.format(part=part, title=title), [str(values[answer])]
