"""Where a figure or a table comes from: its numbers, the function that makes it, the cells read."""

import json
import os
from collections.abc import Callable, Iterable
from os.path import relpath
from pathlib import Path
from typing import Any

from IPython.display import Markdown, display
from matplotlib.figure import Figure

from harp_lib import config
from harp_lib.results import UNKNOWN, Cells, digest

CIRCUMSTANCES = ("commit", "device", "hardware", "versions")
"""What a cell keeps of the run that computed it."""


def write_sources(
    file: Path, profile: str, make: Callable, made: Iterable[Path], read: dict[str, Cells]
) -> None:
    """Write the source of a figure or a table as JSON.

    Parameters
    ----------
    file : Path
        The file that is written.
    profile : str
        The name of the profile.
    make : callable
        The function that made the figure or the table.
    made : iterable of Path
        The other files that show it.
    read : dict
        The cells of every store that ``make`` read, by store (:func:`.data.recording`).
    """
    source, function = source_of(make)
    sources = {
        "profile": profile,
        "made by": f"{source}: {function}",
        "files": sorted(relpath(other, file.parent) for other in made),
        "runs": _runs(read),
    }
    file.write_text(json.dumps(sources, indent=1) + "\n", encoding="utf-8")


def source_of(make: Callable) -> tuple[str, str]:
    """The file of a function from the top of the repository, and the function's name."""
    return f"{make.__module__.replace('.', '/')}.py", make.__name__


def _runs(read: dict[str, Cells]) -> list[dict[str, Any]]:
    """Cells computed in equal circumstances together, with the digests of their inputs."""
    runs: dict[str, dict[str, Any]] = {}
    for store, cells in sorted(read.items()):
        for key, cell in sorted(cells.items()):
            circumstances = {name: cell.get(name, UNKNOWN) for name in CIRCUMSTANCES}
            run = runs.setdefault(json.dumps(circumstances), circumstances | {"cells": {}})
            run["cells"]["/".join((store, *key))] = digest(cell["inputs"])
    return list(runs.values())


def caption(name: str, make: Callable, files: Iterable[Path]) -> str:
    """One small line with links to the numbers of a figure or table, and to what makes it.

    The links are relative to the notebook that is executed (:func:`from_page`).
    """
    (csv,) = (file for file in files if file.suffix == ".csv")
    source, function = source_of(make)
    numbers = f"[numbers (csv)]({from_page(csv)})"
    maker = f"[`{function}`]({from_page(config.ROOT / source)})"
    return f"<small>{name}: {numbers} · {maker}</small>"


def from_page(file: Path) -> str:
    """The path of a file from the notebook that is executed (:data:`.config.PAGE`)."""
    folder = Path(os.environ.get(config.PAGE) or Path.cwd())
    return relpath(file, folder)


class Captioned:
    """A figure with its caption beneath, as a notebook displays it.

    Attributes
    ----------
    figure : Figure
        The figure.
    caption : str
        Markdown.
    """

    def __init__(self, figure: Figure, caption: str) -> None:
        self.figure = figure
        self.caption = caption

    def _ipython_display_(self) -> None:
        display(self.figure, Markdown(self.caption))
