"""Long factual texts: a scientific article with questions (qasper), and a report with a summary (gov_report)."""

import random

from generate_longbench_facts import Row
from generate_longbench_words import TOWNS, Deck, names, put, say

STUDIES = (  # subject, what it is grown or kept in, what is changed, what is measured, unit, device, words for a title
    (
        "bean plants",
        "plots",
        "watering in the evening",
        "height",
        "centimetres",
        "a folding ruler",
        "Watering of Beans",
    ),
    ("carp", "ponds", "a floating cover of reed", "weight", "grams", "a spring balance", "Shade for Carp"),
    ("honey bees", "hives", "a second entrance", "honey yield", "kilograms", "a platform scale", "Entrances of Hives"),
    ("young apple trees", "rows", "white paint on the trunk", "trunk width", "millimetres", "a steel caliper", "Paint"),
)
TIMES = ("in the morning", "in the evening")
INTRODUCTION = (
    "{Growers|Keepers} of <subject> have {long asked|often wondered} whether <change> is worth the trouble.",
    "Handbooks praise it, but {few of them|none of them} give numbers that can be checked.",
    "Earlier studies were short, and most of them looked at a single place in a single year.",
    "We therefore compared <units> with and without <change> at ten places that differ in soil and weather.",
    "We report all results, {also those that we did not expect|whether they speak for our idea or against it}.",
)
SETUP = (
    "Half of the <units> at each place were chosen by lot for <change>, the other half were left as they were.",
    "Those who measured did not know which <units> belonged to which half.",
    "Damaged <units> were not replaced, and their values were left out of the means.",
    "Each value was read by two people, and a third one decided where they did not agree.",
    "The work followed the same calendar at all places, beginning in the second week of April.",
)
REMARKS = (
    "Rain kept the {helpers|students} away for {two|three|four} days, so the calendar was shifted.",
    "The soil there is {heavy|sandy|stony}, which makes the work slower than elsewhere.",
    "A {fence|gate} had to be repaired in {May|June} before the work could go on.",
    "The local {school|club} took part and kept a diary with drawings and small notes.",
    "Two values could not be read and were left out.",
    "It was the {warmest|coldest|driest} place of all, and the season ended there {early|late}.",
    "The owner asked for a copy of the results and compared them with old records.",
    "Visitors came by often, but they were kept behind a rope.",
    "Birds were seen there every day, though they did no harm.",
    "Everything was written down twice, on paper and in a table.",
)
OUTLOOK = (
    "Our study has limits: it covers one season only, and all places lie in the same county.",
    "A longer study would show whether the difference grows, stays the same, or goes away with time.",
    "It would also be useful to learn what the work costs, since helpers were not paid.",
    "For now we can say that <change> made a {small|clear} difference to the <outcome> of <subject>.",
)


def qasper(rng: random.Random, number: int, where: str) -> Row:
    """An article on a trial at ten places. Asked: a number, yes or no, a device, and something it does not tell."""
    subject, units, change, outcome, unit, device, title = STUDIES[number]
    total, time, asked_time = rng.randrange(120, 400, 20), rng.choice(TIMES), rng.choice(TIMES)
    words = {"subject": subject, "units": units, "change": change, "outcome": outcome}
    told = [
        f"In all, {total} {units} were part of the study.",
        f"All measurements were made {time}.",
        f"The {outcome} was measured with {device}.",
    ]
    questions = (
        (f"How many {units} were part of the study?", str(total)),
        (f"Were all measurements made {asked_time}?", "yes" if time == asked_time else "no"),
        (f"What was the {outcome} measured with?", device),
        ("Which organization paid for the study?", "unanswerable"),
    )
    keys = told[number : number + 1]
    setup = [*(sentence for sentence in told if sentence not in keys), *SETUP]
    remarks, places = Deck(rng, REMARKS), []
    for place in rng.sample(TOWNS.split(), 10):
        low, more = rng.randrange(110, 400), rng.randrange(5, 60)
        text = f"{place}\nAt {place}, the {units} were observed for {rng.randrange(9, 16)} weeks. "
        text += f"The mean {outcome} was {(low + more) / 10} {unit} with {change} and {low / 10} {unit} without it. "
        text += "The values of single <units> lay {close together|far apart}. "
        places.append(say(rng, text + " ".join(remarks.draw() for _ in range(5)), **words))
    sections = [
        ("Introduction", keys * (where == "start") + list(INTRODUCTION)),
        ("Setup", setup),
        ("Remarks on the method", keys * (where == "middle") + list(rng.sample(REMARKS, 3))),
        ("Outlook", list(OUTLOOK)),
        ("Conclusion", ["We thank all helpers.", *keys] if where == "end" else ["We thank all helpers."]),
    ]
    texts = [f"{heading}\n{say(rng, ' '.join(sentences), **words)}" for heading, sentences in sections]
    order = [f"{title}: A Trial at Ten Places", *texts[:2], *places[:5], texts[2], *places[5:], *texts[3:]]
    question, answer = questions[number]
    return "\n\n".join(order), question, [answer]


REPORTS = (  # agency, what it looks after, what is wrong with some, what that leads to, what it should do
    (
        "Office of Water Levels",
        "flood gauges",
        "broken",
        "flood warnings came too late",
        "replace the oldest gauges first",
    ),
    (
        "Council of Libraries",
        "village libraries",
        "closed",
        "many children had no books",
        "send a book bus twice a month",
    ),
    (
        "Board of Bridges",
        "wooden bridges",
        "unsafe",
        "lorries had to take long detours",
        "inspect every bridge each spring",
    ),
    (
        "Service for Lighthouses",
        "harbour lights",
        "dark",
        "boats had to wait outside at night",
        "keep spare lamps in each port",
    ),
)
VISITS = (
    "Staff there said that {spare parts|skilled workers|money} had been hard to find since the spring.",
    "The district keeps its records {on paper|in two different tables}, and some pages were missing.",
    "We spoke with {the manager|two neighbours|a former clerk}, who showed us letters from the last {four|five} years.",
    "A new {road|fence|cable} has made access easier, but the snow still blocks the way in some winters.",
    "Travel costs were {high, because the sites are far apart|low, because the sites are close together}.",
    "The district has one inspector, who is also in charge of the {town hall|fire brigade|market}.",
    "Photographs that were taken during our visit are kept with this report.",
    "Local newspapers have written about the matter {twice|several times}, without naming causes.",
    "We found no sign that rules had been broken on purpose.",
    "The manager agreed with our numbers and had no comments.",
    "A list of all sites, with the date of the last check, was sent to us on request.",
    "A {retired teacher|farmer} next door keeps a spare key and looks after the sites when nobody else is there.",
    "The forms were filled in with care, but {some|many} of them had not been signed by anybody.",
    "Repairs are {planned|under way}, though no date for their end has been given.",
)


def gov_report(rng: random.Random, number: int, where: str) -> Row:
    """A report on twelve districts, with totals that are their sums; the four statements are the summary."""
    agency, things, state, harm, remedy = REPORTS[number]
    counts = [(rng.randrange(14, 40), rng.randrange(2, 13)) for _ in range(12)]
    total, bad = map(sum, zip(*counts, strict=True))
    inspector = names(rng, 1)[0]
    summary = [
        f"The {agency} looks after {total} {things} in twelve districts.",
        f"Of these, {bad} were {state} when they were checked.",
        f"As a result, {harm}.",
        f"The report recommends that the {agency} {remedy}.",
    ]
    visits, parts = Deck(rng, VISITS), []
    for district, (checked, wrong) in zip(rng.sample(TOWNS.split(), 12), counts, strict=True):
        text = f"District of {district}: We checked {checked} {things}, and {wrong} of them were {state}. "
        parts.append(say(rng, text + " ".join(visits.draw() for _ in range(7))))  # of 14 in all: none twice in one part
    method = (
        f"We visited every district once, between March and October, together with {inspector}, an engineer. Each site "
    )
    method += "was looked at by two people who did not belong to the district. They filled in the same form everywhere."
    note = "A draft of this report was sent to all districts, and their answers are printed in a separate volume."
    return "\n\n".join([*put([method, *parts, note], [" ".join(summary)], where)]), "", [" ".join(summary)]
