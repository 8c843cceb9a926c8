"""From stored cells to figures and tables. A report never loads a model.

A figure is a function ``profile -> Figure`` under ``@figure(stores…)``, a table is ``profile ->
DataFrame`` (or a pair: what people read, and the numbers unrounded) under ``@table(stores…)``. The
function's name is the file's name.
"""

import re
from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from IPython.display import Markdown
from matplotlib import pyplot

from harp_lib import config

FORMATS = {
    "png": None,
    "pdf": {"CreationDate": None},
    "svg": {"Date": None},
}  # and what dates a file
MODULES = (
    "figures_layers",
    "figures_harp",
    "figures_costs",
    "figures_scores",
    "scores",
    "likelihoods",
    "tables",
    "claims",
)
_ENTRIES: dict[str, "Entry"] = {}
BLOCK = re.compile(r"(<!-- begin (\w+)(?: of (\w+))? -->\n).*?(<!-- end \2 -->)", re.DOTALL)


class Entry(NamedTuple):
    """A figure or a table, and the stores that it cannot do without."""

    make: Callable[[dict], Any]
    stores: tuple[str, ...]
    is_table: bool


def figure(*stores: str, is_table: bool = False) -> Callable:
    """Register a function that returns a figure of :mod:`plots` or a table, or None where there is
    nothing to show.
    """

    def register(make: Callable) -> Callable:
        _ENTRIES[make.__name__] = Entry(make, stores, is_table)
        return make

    return register


table = partial(figure, is_table=True)


def entries() -> dict[str, Entry]:
    """Every figure and table by name."""
    for module in MODULES:
        import_module(f"harp_lib.report.{module}")
    return _ENTRIES


def show(name: str, profile: dict) -> Any:
    """Make a figure or table, write its files under ``figures/<profile>/``, and return what a
    notebook displays.
    """
    known = entries()
    if name not in known:
        raise ValueError(
            f"unknown figure or table {name!r}; choose from {', '.join(sorted(known))}"
        )
    made, _ = _make(name, known[name], profile)
    if made is None:
        return Markdown(f"*{name}: the profile {profile['name']} has nothing to show for it.*")
    return (
        Markdown(markdown(made[0] if isinstance(made, tuple) else made))
        if known[name].is_table
        else made
    )


def redraw(profile: dict) -> list[Path]:
    """Make every figure and table that has stored results. Returns the files; raises
    FileNotFoundError if none has.
    """
    written = [file for name, entry in entries().items() for file in _make(name, entry, profile)[1]]
    if not written:
        raise FileNotFoundError(
            f"nothing is stored for the profile {profile['name']}: run its notebooks first"
        )
    return written


def _make(name: str, entry: Entry, profile: dict) -> tuple[Any, list[Path]]:
    """What a function returns, and the files that it was written to: a figure's numbers too."""
    from harp_lib.report import data, plots

    plots.use_style()
    made = (
        entry.make(profile)
        if all(data.cells(profile["name"], store) for store in entry.stores)
        else None
    )
    if made is None:
        return None, []
    folder = config.FIGURES / profile["name"]
    (folder / "tables").mkdir(parents=True, exist_ok=True)
    shown, numbers = (
        made if isinstance(made, tuple) else (made, made if entry.is_table else made.numbers)
    )
    csv = folder / "tables" / f"{name}.csv"
    numbers.to_csv(csv, index=False)
    if not entry.is_table:
        for ending, undated in FORMATS.items():
            made.savefig(folder / f"{name}.{ending}", metadata=undated)
            made.set_layout_engine("none")  # laid out once, the same in every format
        pyplot.close(made)  # what is returned is displayed, once
        return made, [csv, *(folder / f"{name}.{ending}" for ending in FORMATS)]
    latex = (
        shown.style.hide(axis="index")
        .format(escape="latex-math", na_rep="–")
        .format_index(escape="latex", axis=1)
    )
    bold = re.sub(r"\*\*(.+?)\*\*", r"\\textbf{\1}", latex.to_latex(hrules=True))
    csv.with_suffix(".md").write_text(markdown(shown) + "\n", encoding="utf-8")
    csv.with_suffix(".tex").write_text(bold, encoding="utf-8")
    return made, [csv.with_suffix(ending) for ending in (".csv", ".md", ".tex")]


def markdown(shown: Any) -> str:
    """A table as the text that a notebook displays."""
    return shown.to_markdown(index=False, disable_numparse=True)


def write_readme(profile: dict) -> None:
    """Write what stands between ``<!-- begin NAME -->`` and ``<!-- end NAME -->`` in README.md from
    stored results.
    """
    file = config.ROOT / "README.md"
    file.write_text(rendered(file.read_text(encoding="utf-8"), profile), encoding="utf-8")


def rendered(text: str, profile: dict) -> str:
    """A page whose blocks are written again; one that begins with ``NAME of PROFILE`` is of that
    profile.
    """
    from harp_lib.report import claims, figures_costs, figures_harp, scores

    blocks = {
        "results": lambda profile: (
            f"{claims.headline(profile)}\n\n{markdown(scores.at_a_glance(profile)[0])}"
        ),
        "claims": claims.counted,
        "frontier": lambda profile: f"*{figures_harp.told(profile)}.*",
        "refit": lambda profile: markdown(figures_harp.refit_found(profile)),
        "time": lambda profile: markdown(figures_costs.time_found(profile)),
    }
    return BLOCK.sub(
        lambda b: f"{b[1]}{blocks[b[2]](config.load_profile(b[3]) if b[3] else profile)}\n{b[4]}",
        text,
    )
