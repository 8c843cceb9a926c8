"""Write what pages show of results: claims and their marks, and the hours of computing.

``./run_all.sh figures --profile small`` runs this; so does ``python docs/write_pages.py``.
"""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from harp_lib import config
from harp_lib.report import judge
from harp_lib.report.frames import Results
from harp_lib.report.ledger import counted, verdicts
from harp_lib.results import digest, listed_cells
from harp_lib.theory import counterexamples
from harp_lib.units import UNITS

BLOCK = re.compile(r"(<!-- begin (\w+) of (\w+) -->\n).*?(<!-- end \2 -->)", re.DOTALL)
"""A part of a page that is written from what a profile's notebooks left."""


def shown_claims() -> dict[str, dict[str, Any]]:
    """The claims that are judged or counted, in the paper's order."""
    shown = {}
    for claim, entry in judge.claims().items():
        if entry["kind"] == "counted" or "effect" in entry:
            shown[claim] = entry
    return shown


def index(profile: str) -> str:
    """A table with a row for each claim: where it stands, who computes it, and its marks."""
    judged = verdicts(profile)
    marks = judged.drop_duplicates(["claim", "model"]).set_index(["claim", "model"])["mark"]
    models = judged["model"].unique()
    rows = []
    for claim, entry in shown_claims().items():
        row = {
            "in the paper": entry["where"],
            "claim": f"[{claim}](#{claim})",
            "kind": entry["kind"],
            "notebook": _notebook(entry["notebook"]),
            "function": _function(entry.get("function", "")),
        }
        rows.append(row | {model: marks.get((claim, model), "") for model in models})
    return _markdown(pd.DataFrame(rows))


def effects(profile: str) -> str:
    """All claims in words, with their effects on each model."""
    judged = verdicts(profile)
    parts = []
    for claim, entry in shown_claims().items():
        parts.append(_claim(claim, entry, judged[judged["claim"] == claim]))
    return "\n".join(parts)


def _claim(claim: str, entry: dict[str, Any], judged: pd.DataFrame) -> str:
    """A claim's heading, its words and a table of its effects on each model."""
    text = f"### {claim}\n\n{entry['statement'].strip()} *({entry['where']}"
    if entry["kind"] == "ours":
        text += "; ours"
    text += ")*\n\n"
    if entry["kind"] == "counted":
        return f"{text}Counted in {_notebook(entry['notebook'])}.\n"
    text += f"Effect: {entry['effect'].strip()}\n\n"
    rows = []
    for model, part in judged.groupby("model", sort=False):
        words = judge.in_words(part.to_dict("records"))
        row = {"model": model, "mark": part["mark"].iloc[0], "effect": words}
        rows.append(row)
    if not rows:
        return f"{text}Not yet judged.\n"
    return f"{text}{_markdown(pd.DataFrame(rows))}\n"


def theorems(profile: str) -> str:
    """A table of the paper's statements: what is true of each, and what refutes it."""
    statements = (config.PAPER / "statements.yaml").read_text(encoding="utf-8")
    rows = []
    for statement in yaml.safe_load(statements):
        examples = []
        for call in statement.get("examples", []):
            example = getattr(counterexamples, call.removesuffix("()"))()
            examples.append(f"`{call}`: {example.construction}; {example.found}")
        row = {
            "statement": statement["statement"],
            "it says": statement["says"],
            "truth": statement["truth"],
            "condition or remark": statement.get("remark", "").strip(),
            "counterexamples": "<br>".join(examples),
        }
        rows.append(row)
    return _markdown(pd.DataFrame(rows))


def _markdown(frame: pd.DataFrame) -> str:
    """A table whose cells may hold ``|``, which ends a cell in Markdown."""
    escaped = frame.map(lambda text: str(text).replace("|", "\\|"))
    return escaped.to_markdown(index=False, disable_numparse=True)


def _notebook(number: str) -> str:
    """A link to an executed notebook from a page in ``docs``."""
    (file,) = config.NOTEBOOKS.glob(f"{number}_*.ipynb")
    return f"[{number}](../notebooks/executed/small/{file.name})"


def _function(dotted: str) -> str:
    """A link to the file of a function of the library."""
    if not dotted:
        return ""
    module, _, function = dotted.rpartition(".")
    path = Path(module.replace(".", "/"))
    is_folder = (config.CHECKOUT / path).is_dir()
    file = path / "__init__.py" if is_folder else path.with_suffix(".py")
    return f"[{function}](../{file.as_posix()})"


def errata(profile: str) -> str:
    """The slips of the paper as a list; they are the same for every profile."""
    lines = []
    for entry in judge.claims().values():
        if entry["kind"] == "erratum":
            lines.append(f"- *{entry['where']}*: {entry['statement'].strip()}")
    return "\n".join(lines)


def matrix(profile: str) -> str:
    """The marks that notebook 00 has put into a table, and how many there are of each."""
    table = config.FIGURES / profile / "tables" / "matrix.md"
    compact = re.sub(" {2,}", " ", table.read_text(encoding="utf-8"))
    return f"{compact}\n{counts(profile)}"


def counts(profile: str) -> str:
    """How many of the paper's claims on models have each mark, in a sentence."""
    return counted(verdicts(profile))


def hours(profile: str) -> str:
    """A table of the hours that cells took, by unit; one that several units share counts once."""
    results = Results(profile)
    records = []
    for unit in UNITS:
        if not listed_cells(profile, unit):
            continue
        for cell in results.cells(unit):
            model = results.short_name(cell["about"]["model"])
            about = {"unit": unit, "model": model, "cell": digest(cell["inputs"])}
            records.append(about | {"hours": cell["seconds"] / 3600})
    once = pd.DataFrame(records).drop_duplicates("cell")
    table = once.pivot_table("hours", "unit", "model", aggfunc="sum", sort=False)
    return _markdown(table.map("{:.2f}".format).replace("nan", "").reset_index())


BLOCKS: dict[str, Callable[[str], str]] = {
    "matrix": matrix,
    "counts": counts,
    "index": index,
    "effects": effects,
    "theorems": theorems,
    "errata": errata,
    "hours": hours,
}


def pages() -> list[Path]:
    """The pages that have such blocks."""
    docs = config.ROOT / "docs"
    return [config.ROOT / "README.md", docs / "claims.md", docs / "protocol.md"]


def rendered(page: str) -> str:
    """A page whose blocks are written again.

    A block stands between ``<!-- begin NAME of PROFILE -->`` and ``<!-- end NAME -->``, with a name
    of :data:`BLOCKS`.
    """

    def replacement(block: re.Match) -> str:
        begin, name, profile, end = block.groups()
        return f"{begin}{BLOCKS[name](profile).rstrip()}\n{end}"

    return BLOCK.sub(replacement, page)


def write_pages() -> None:
    """Write the blocks of all pages again."""
    for file in pages():
        file.write_text(rendered(file.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    write_pages()
