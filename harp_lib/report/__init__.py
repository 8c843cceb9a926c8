"""From stored cells to figures and tables. A report never loads a model.

A figure is a function ``profile -> Figure`` under ``@figure(stores…)``. A table is a function
``profile -> DataFrame`` under ``@table(stores…)``; it may also return a pair, which is what people
read and the numbers unrounded. The function's name is the file's name.
"""

import re
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Any, NamedTuple

import pandas as pd
from IPython.display import Markdown
from matplotlib import pyplot
from matplotlib.figure import Figure

from harp_lib import config
from harp_lib.report import provenance

FORMATS = {  # of a figure's files, and the metadata without which a file has no date
    "png": None,
    "pdf": {"CreationDate": None},
    "svg": {"Date": None},
}


class Entry(NamedTuple):
    """A figure or a table, and the stores that it cannot do without."""

    make: Callable[[dict], Any]
    stores: tuple[str, ...]
    is_table: bool


_ENTRIES: dict[str, Entry] = {}


def figure(*stores: str) -> Callable:
    """Register a function that returns a figure of :mod:`plots`, or None if there is none."""
    return _register(stores, is_table=False)


def table(*stores: str) -> Callable:
    """Register a function that returns a table, or None if there is none."""
    return _register(stores, is_table=True)


def _register(stores: tuple[str, ...], is_table: bool) -> Callable:
    def register(make: Callable) -> Callable:
        _ENTRIES[make.__name__] = Entry(make, stores, is_table)
        return make

    return register


def entries() -> dict[str, Entry]:
    """Every figure and table by name, of all modules of this folder."""
    for module in iter_modules(__path__):
        import_module(f"{__name__}.{module.name}")
    return _ENTRIES


def show(name: str, profile: dict) -> Any:
    """Make a figure or table and write its files under ``figures/<profile>/``.

    Parameters
    ----------
    name : str
        A figure or a table.
    profile : dict
        What :func:`harp_lib.config.load_profile` returns.

    Returns
    -------
    Captioned or Markdown
        What a notebook displays: a figure, or a table, and beneath it a line that says where its
        files and its source are.

    Raises
    ------
    ValueError
        If there is no such figure or table.
    """
    known = entries()
    if name not in known:
        choices = ", ".join(sorted(known))
        raise ValueError(f"unknown figure or table {name!r}; choose from {choices}")
    made, files = _make_and_write(name, known[name], profile)
    if made is None:
        return Markdown(f"*{name}: the profile {profile['name']} has nothing to show for it.*")
    caption = provenance.caption(name, known[name].make, files)
    if known[name].is_table:
        shown, _ = _shown_and_numbers(made)
        return Markdown(f"{markdown(shown)}\n\n{caption}")
    return provenance.Captioned(made, caption)


def link(name: str, profile: dict) -> Markdown:
    """Write the files of a table that is too wide for a notebook, and say where they are.

    Parameters
    ----------
    name : str
        A figure or a table.
    profile : dict
        What :func:`harp_lib.config.load_profile` returns.
    """
    entry = entries()[name]
    made, files = _make_and_write(name, entry, profile)
    if made is None:
        return Markdown("")
    return Markdown(f"In full: {provenance.caption(name, entry.make, files)}")


def redraw(profile: dict) -> list[Path]:
    """Make every figure and table that has stored results, and return their files.

    Raises
    ------
    FileNotFoundError
        If none has stored results.
    """
    written = []
    for name, entry in entries().items():
        _, files = _make_and_write(name, entry, profile)
        written.extend(files)
    if not written:
        raise FileNotFoundError(
            f"nothing is stored for the profile {profile['name']}: run its notebooks first"
        )
    return written


def drawable(profile: dict) -> dict[str, Entry]:
    """The figures and tables whose stores all have results; :func:`redraw` makes no others."""
    return {name: entry for name, entry in entries().items() if _has_results(entry, profile)}


def _has_results(entry: Entry, profile: dict) -> bool:
    """Whether all stores that an entry cannot do without have cells."""
    from harp_lib.report import data  # here, because it imports from this module

    return all(data.cells(profile["name"], store) for store in entry.stores)


def _make_and_write(name: str, entry: Entry, profile: dict) -> tuple[Any, list[Path]]:
    """What the function of an entry returns, and the files that it was written to."""
    from harp_lib.report import data, plots  # here, because they import from this module

    if not _has_results(entry, profile):
        return None, []
    plots.use_style()
    with data.recording() as read:
        made = entry.make(profile)
    if made is None:
        return None, []
    folder = config.FIGURES / profile["name"]
    (folder / "tables").mkdir(parents=True, exist_ok=True)
    csv = folder / "tables" / f"{name}.csv"
    if entry.is_table:
        files = _write_table(made, csv)
        sources = csv.with_suffix(".json")
    else:
        files = _write_figure(made, csv, folder / name)
        sources = folder / f"{name}.json"
    provenance.write_sources(sources, profile["name"], entry.make, files, read)
    return made, [*files, sources]


def _write_figure(drawn: Figure, csv: Path, stem: Path) -> list[Path]:
    """Write a figure in every format, and its numbers to ``csv``; the figure is closed."""
    drawn.numbers.to_csv(csv, index=False)
    files = [csv]
    for ending, metadata in FORMATS.items():
        file = stem.with_name(f"{stem.name}.{ending}")
        drawn.savefig(file, metadata=metadata)
        drawn.set_layout_engine("none")  # the first format sets the layout of all
        files.append(file)
    pyplot.close(drawn)  # a notebook displays what is returned, and nothing a second time
    return files


def _write_table(made: Any, csv: Path) -> list[Path]:
    """Write the numbers of a table to ``csv``, and what people read to Markdown and LaTeX."""
    shown, numbers = _shown_and_numbers(made)
    numbers.to_csv(csv, index=False)
    page = csv.with_suffix(".md")
    page.write_text(markdown(shown) + "\n", encoding="utf-8")
    source = csv.with_suffix(".tex")
    source.write_text(latex(shown), encoding="utf-8")
    return [csv, page, source]


def _shown_and_numbers(made: Any) -> tuple[pd.DataFrame, pd.DataFrame]:
    """What people read of a table, and its numbers, which may be the same frame."""
    return made if isinstance(made, tuple) else (made, made)


def markdown(shown: pd.DataFrame) -> str:
    """A table as Markdown, which is what a notebook displays."""
    return shown.to_markdown(index=False, disable_numparse=True)


def latex(shown: pd.DataFrame) -> str:
    """A table as LaTeX; ``**bold**`` becomes bold."""
    style = shown.style.hide(axis="index")
    style = style.format(escape="latex-math", na_rep="–").format_index(escape="latex", axis=1)
    return re.sub(r"\*\*(.+?)\*\*", r"\\textbf{\1}", style.to_latex(hrules=True))
