"""What the makers of LongBench rows share: names, sentences with choices in them, and where a part is put."""

import random
import re
from collections.abc import Sequence
from typing import Any

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
    chosen = re.sub(r"\{([^{}]*)\}", lambda match: rng.choice(match[1].split("|")), text)
    return fill(chosen, values)


def put(parts: list[Any], keys: list[Any], where: str) -> list[Any]:
    """``parts`` with ``keys`` before them ("start"), after them ("end") or in their middle ("middle")."""
    index = {"start": 0, "middle": len(parts) // 2, "end": len(parts)}[where]
    return [*parts[:index], *keys, *parts[index:]]
