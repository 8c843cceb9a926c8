"""What a notebook leaves in ``figures/<profile>``: figures, tables, verdicts, and their sources."""

import json
import os
import re
from collections.abc import Callable
from os.path import relpath
from pathlib import Path
from typing import Any

import pandas as pd
from IPython.display import Markdown, display
from matplotlib import pyplot as plt

from harp_lib import config
from harp_lib.circumstances import UNKNOWN
from harp_lib.report import judge
from harp_lib.results import StoredCell, digest

FORMATS = {  # of a figure's files, and the metadata without which a file has no date
    "png": None,
    "pdf": {"CreationDate": None},
    "svg": {"Date": None},
}
CIRCUMSTANCES = ("commit", "device", "hardware", "versions")
"""What a cell keeps of the run that computed it."""


def write_figure(
    figure: Any, folder: Path, name: str, numbers: pd.DataFrame, read: dict[str, list[StoredCell]]
) -> None:
    """Write a figure as png, pdf and svg, and its numbers as csv; display it with a link to them.

    The figure may be a Figure, Axes or a grid of seaborn. ``folder`` is ``figures/<profile>``, and
    ``read`` holds the cells that were read, by unit.
    """
    drawn = getattr(figure, "figure", figure)
    csv = _write_numbers(numbers, folder, name)
    for ending, metadata in FORMATS.items():
        file = folder / f"{name}.{ending}"
        drawn.savefig(file, metadata=metadata, dpi=130, bbox_inches="tight")
    _write_sources(folder / f"{name}.json", folder.name, read)
    plt.close(drawn)  # a notebook would display it a second time
    display(drawn, Markdown(caption(name, csv)))


def write_table(
    frame: pd.DataFrame,
    folder: Path,
    name: str,
    shown: pd.DataFrame | None,
    read: dict[str, list[StoredCell]],
) -> Markdown:
    """Write a table as csv with all digits, and as Markdown and LaTeX as people read it.

    ``shown`` is what people read, if it is not the numbers themselves; for the other arguments see
    :func:`write_figure`. A notebook displays what is returned: the table, and a link to its
    numbers.
    """
    if shown is None:
        shown = frame
    csv = _write_numbers(frame, folder, name)
    text = shown.to_markdown(index=False, disable_numparse=True)
    csv.with_suffix(".md").write_text(f"{text}\n", encoding="utf-8")
    csv.with_suffix(".tex").write_text(_latex(shown), encoding="utf-8")
    _write_sources(csv.with_suffix(".json"), folder.name, read)
    return Markdown(f"{text}\n\n{caption(name, csv)}")


def write_verdict(
    judgements: list[dict[str, Any]], folder: Path, short_name: Callable[[str], str]
) -> Markdown:
    """Write a notebook's judgements, and return its marks as a table; see ``Results.verdict``.

    The file has full names of models, since other notebooks may know other models.
    """
    frame = pd.DataFrame(judgements, columns=judge.COLUMNS)
    claims = judge.claims()
    notebooks = {claims[claim]["notebook"] for claim in frame["claim"]}
    if len(notebooks) != 1:
        raise ValueError(f"the judged claims belong to the notebooks {sorted(notebooks)}, not one")
    (notebook,) = notebooks
    due = judge.claims_of(notebook)
    missing = set(due) - set(frame["claim"])
    if missing:
        raise ValueError(f"claims of notebook {notebook} that are not judged: {sorted(missing)}")
    file = folder / "verdicts" / f"{notebook}.csv"
    file.parent.mkdir(parents=True, exist_ok=True)
    frame.to_csv(file, index=False)
    frame["model"] = frame["model"].map(short_name)
    marks = frame.drop_duplicates(["claim", "model"])
    marks = marks[marks["mark"] != judge.UNMARKED]
    marks = marks.pivot_table("mark", "claim", "model", aggfunc="first").fillna("")
    marks = marks.reindex(index=[name for name in due if name in marks.index])
    marks = marks[list(dict.fromkeys(frame["model"]))]
    marks.insert(0, "the paper's claim", [claims[name]["statement"] for name in marks.index])
    return Markdown(marks.to_markdown(index=False))


def provenance_line(profile: str, read: dict[str, list[StoredCell]]) -> Markdown:
    """What a notebook says of its cells at its end; see ``Results.provenance``."""
    shown = [cell for cells in read.values() for cell in cells]
    cells = {digest(cell["inputs"]): cell for cell in shown}  # units may share some
    cells = list(cells.values())
    if not cells:
        return Markdown(f"<small>Profile `{profile}`: no cells.</small>")
    hours = sum(cell["seconds"] for cell in cells) / 3600
    days = sorted(cell["time"][:10] for cell in cells)
    machines = sorted({cell.get("hardware", UNKNOWN) for cell in cells} - {UNKNOWN})
    packages = []
    for package in cells[0]["versions"]:
        versions = sorted({cell["versions"].get(package, UNKNOWN) for cell in cells})
        packages.append(f"{package} {' and '.join(versions)}")
    return Markdown(
        f"<small>Profile `{profile}`: {len(cells)} cells of {', '.join(read)}, {hours:.1f} hours "
        f"of computing between {days[0]} and {days[-1]}, with {', '.join(packages)}, on "
        f"{'; '.join(machines)}. The commit of each cell is in the file beside each figure.</small>"
    )


def caption(name: str, csv: Path) -> str:
    """One small line beneath a figure or a table, with a link to its numbers.

    The link is relative to the notebook that is executed (:data:`.config.PAGE`).
    """
    page = Path(os.environ.get(config.PAGE) or Path.cwd())
    return f"<small>{name}: [numbers (csv)]({relpath(csv, page)})</small>"


def _write_numbers(numbers: pd.DataFrame, folder: Path, name: str) -> Path:
    csv = folder / "tables" / f"{name}.csv"
    csv.parent.mkdir(parents=True, exist_ok=True)
    numbers.to_csv(csv, index=False)
    return csv


def _write_sources(file: Path, profile: str, read: dict[str, list[StoredCell]]) -> None:
    """Write which cells were read, those that were computed in equal circumstances together."""
    runs: dict[str, dict[str, Any]] = {}
    for cell in [cell for unit in sorted(read) for cell in read[unit]]:
        circumstances = {name: cell.get(name, UNKNOWN) for name in CIRCUMSTANCES}
        run = runs.setdefault(json.dumps(circumstances), circumstances | {"cells": []})
        run["cells"].append(digest(cell["inputs"]))
    for run in runs.values():
        run["cells"] = sorted(set(run["cells"]))
    sources = {"profile": profile, "runs": list(runs.values())}
    file.write_text(json.dumps(sources, indent=1) + "\n", encoding="utf-8")


def _latex(shown: pd.DataFrame) -> str:
    """A table as LaTeX; ``**bold**`` becomes bold."""
    style = shown.style.hide(axis="index")
    style = style.format(escape="latex-math", na_rep="–").format_index(escape="latex", axis=1)
    return re.sub(r"\*\*(.+?)\*\*", r"\\textbf{\1}", style.to_latex(hrules=True))
