"""Python files that stop before a line which follows from what stands above (lcc) or in another file (repobench-p).

The line continues a walk through the parts of a class, in the order of its signature. The class stands first, last or
in the middle of the context, among functions that have nothing to do with it.
"""

import random

from generate_longbench_facts import Row
from generate_longbench_words import fill, put

THINGS = (  # thing, and the parts that its class takes
    ("boat", "hull mast sail keel anchor"),
    ("house", "roof wall floor window chimney"),
    ("meal", "soup salad bread cheese fruit"),
    ("engine", "piston valve pump filter belt"),
)
OTHERS = ("crate", "ticket", "parcel", "bottle", "carpet", "letter", "orchard", "lantern")
FIELDS = ("price", "weight", "length", "volume", "age", "speed")

CLASS = '''class <Thing>:
    """A <thing> and its parts."""

    def __init__(self, <signature>):
        self.parts = (<signature>)
        for name, value in zip("<names>".split(), self.parts):
            setattr(self, name, value)
'''
LAST = (  # what the file ends with: up to the loop, and the line for each part
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
    ('def show_<thing>(<thing>):\n    """Print the parts of a <thing>."""', '    print("<part>:", <thing>.<part>)'),
)
FUNCTIONS = (
    '''def total_<field>(<thing>s):
    """The sum of the <field> of all <thing>s."""
    total = 0
    for <thing> in <thing>s:
        total += <thing>["<field>"]
    return total
''',
    '''def mean_<field>(<thing>s):
    """The mean <field> of the <thing>s, or None without any."""
    if not <thing>s:
        return None
    values = [<thing>["<field>"] for <thing> in <thing>s]
    return sum(values) / len(values)
''',
    '''def <thing>s_above(<thing>s, limit):
    """Those <thing>s whose <field> is above a limit."""
    chosen = []
    for <thing> in <thing>s:
        if <thing>["<field>"] > limit:
            chosen.append(<thing>)
    return chosen
''',
    '''def sort_<thing>s(<thing>s, reverse=False):
    """The <thing>s in the order of their <field>."""
    return sorted(<thing>s, key=lambda <thing>: <thing>["<field>"], reverse=reverse)
''',
    '''def group_<thing>s(<thing>s):
    """Owner and list of <thing>s."""
    groups = {}
    for <thing> in <thing>s:
        owner = <thing>["owner"]
        groups.setdefault(owner, []).append(<thing>)
    return groups
''',
    '''def read_<thing>s(path):
    """The <thing>s of a text file with one on each line."""
    <thing>s = []
    with open(path) as file:
        for line in file:
            name, owner, <field> = line.strip().split(";")
            <thing>s.append({"name": name, "owner": owner, "<field>": float(<field>)})
    return <thing>s
''',
    '''def write_<thing>s(<thing>s, path):
    """Write one line for each <thing>."""
    with open(path, "w") as file:
        for <thing> in <thing>s:
            file.write(";".join([<thing>["name"], <thing>["owner"], str(<thing>["<field>"])]) + "\\n")
''',
    '''def find_<thing>(<thing>s, name):
    """The <thing> of a name; KeyError if there is none."""
    for <thing> in <thing>s:
        if <thing>["name"] == name:
            return <thing>
    raise KeyError(name)
''',
    '''def rename_<thing>(<thing>s, old, new):
    """Give a <thing> another name, unless that is taken."""
    if any(<thing>["name"] == new for <thing> in <thing>s):
        raise ValueError(new)
    find_<thing>(<thing>s, old)["name"] = new
''',
    '''def merge_<thing>s(left, right):
    """All <thing>s of two lists, those of the same name once."""
    known = {<thing>["name"] for <thing> in left}
    return left + [<thing> for <thing> in right if <thing>["name"] not in known]
''',
    '''def <thing>_table(<thing>s):
    """Lines of text with name and <field>, in columns."""
    width = max(len(<thing>["name"]) for <thing> in <thing>s)
    lines = []
    for <thing> in <thing>s:
        lines.append(<thing>["name"].ljust(width) + "  " + str(<thing>["<field>"]))
    return lines
''',
    '''def largest_<thing>(<thing>s):
    """The <thing> with the largest <field>."""
    best = <thing>s[0]
    for <thing> in <thing>s[1:]:
        if <thing>["<field>"] > best["<field>"]:
            best = <thing>
    return best
''',
)


def _functions(rng: random.Random, thing: str) -> list[str]:
    """Every function for a thing and one of its fields, in random order."""
    values = {"thing": thing, "field": rng.choice(FIELDS)}
    return [fill(text, values) for text in rng.sample(FUNCTIONS, len(FUNCTIONS))]


def _class(thing: str, parts: list[str]) -> str:
    values = {"thing": thing, "Thing": thing.title(), "signature": ", ".join(parts), "names": " ".join(parts)}
    return fill(CLASS, values)


def lcc(rng: random.Random, number: int, where: str) -> Row:
    """One file; it ends in a function that goes through the parts of a class, before the last of them."""
    thing, words = THINGS[number]
    parts = rng.sample(words.split(), 5)
    others = [text for other in rng.sample(OTHERS, 3) for text in _functions(rng, other)]
    texts = put(others, [_class(thing, parts)], where)
    head, line = LAST[number]
    *done, last = [fill(line, {"thing": thing, "part": part}) for part in parts]
    end = "\n".join([fill(head, {"thing": thing, "Thing": thing.title()}), *done])
    return "\n\n".join([*texts, end]) + "\n", "", [last]


def repobench_p(rng: random.Random, number: int, where: str) -> Row:
    """Several files, then one that imports a class from another file and makes a thing of it.

    The parts are read in an order of their own, so that only the signature in the other file tells how they are passed.
    """
    thing, words = THINGS[number]
    parts, folder = rng.sample(words.split(), 4), f"{thing}_shop"
    others = rng.sample(OTHERS, 4)
    files = [f"{folder}/{other}s.py\n" + "\n\n".join(_functions(rng, other)[:9]) for other in others]
    context = "\n".join(put(files, [f"{folder}/{thing}.py\n{_class(thing, parts)}"], where)) + "\n"
    shuffled = rng.sample(parts, 4)
    reads = "\n".join(f'    {part} = row["{part}"]' for part in shuffled)
    values = {"thing": thing, "Thing": thing.title(), "folder": folder, "reads": reads}
    current = "<folder>/tables.py\nfrom <folder>.<thing> import <Thing>\n\n\n"
    current += 'def read_<thing>(row):\n    """The <thing> of a row."""\n<reads>\n'
    return context, fill(current, values), [f"    return {thing.title()}({', '.join(parts)})"]
