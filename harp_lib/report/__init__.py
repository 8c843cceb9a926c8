"""From stored cells to figures and tables. A report never loads a model.

A figure is a function ``profile -> Figure`` under ``@figure(stores…)``, a table is ``profile -> DataFrame`` (or a pair:
what people read, and the numbers unrounded) under ``@table(stores…)``. The function's name is the file's name.
"""

import re
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from harp_lib import config

FORMATS = ("png", "pdf", "svg")
MODULES = ("figures_layers", "figures_alpha", "figures_costs", "figures_scores", "scores", "tables", "claims")
BLOCK = re.compile(r"(<!-- begin (\w+) -->\n).*?(<!-- end \2 -->)", re.DOTALL)


class Entry(NamedTuple):
    """A figure or a table, and the stores that it cannot do without."""

    make: Callable[[dict], Any]
    stores: tuple[str, ...]
    is_table: bool


_ENTRIES: dict[str, Entry] = {}


def figure(*stores: str) -> Callable:
    """Register a function that returns a figure, figures by suffix, or None where there is nothing to draw."""
    return lambda make: _register(Entry(make, stores, False))


def table(*stores: str) -> Callable:
    """Register a function that returns a table, a pair (as shown, numbers for the csv), or None."""
    return lambda make: _register(Entry(make, stores, True))


def _register(entry: Entry) -> Callable:
    name = entry.make.__name__
    if _ENTRIES.setdefault(name, entry).make.__module__ != entry.make.__module__:
        raise ValueError(f"two figures or tables are called {name!r}")
    _ENTRIES[name] = entry
    return entry.make


def entries() -> dict[str, Entry]:
    """Every figure and table by name."""
    for module in MODULES:
        import_module(f"harp_lib.report.{module}")
    return _ENTRIES


def show(name: str, profile: dict) -> Any:
    """Make a figure or table, write its files under ``figures/<profile>/``, and return it for a notebook to display.

    Parameters
    ----------
    name : str
        Of the function that is registered.
    profile : dict
        As ``load_profile`` returns it.

    Returns
    -------
    Figure, dict of Figure, or Markdown
        Markdown also where there is nothing to show, with the reason.
    """
    from IPython.display import Markdown

    known = entries()
    if name not in known:
        raise ValueError(f"unknown figure or table {name!r}; choose from {', '.join(sorted(known))}")
    made = _make(name, known[name], profile)[0]
    if made is None:
        return Markdown(f"*{name}: the profile {profile['name']} has nothing to show for it.*")
    return Markdown(_markdown(made[0] if isinstance(made, tuple) else made)) if known[name].is_table else made


def redraw(profile: dict) -> list[Path]:
    """Make every figure and table that has stored results. Returns the files; raises FileNotFoundError if none has."""
    written = [file for name, entry in entries().items() for file in _make(name, entry, profile)[1]]
    if not written:
        raise FileNotFoundError(f"nothing is stored for the profile {profile['name']}: run its notebooks first")
    return written


def _make(name: str, entry: Entry, profile: dict) -> tuple[Any, list[Path]]:
    """What a function returns, and the files that it was written to."""
    import matplotlib.pyplot as plt

    from harp_lib.report import data, plots

    if not all(data.cells(profile["name"], store) for store in entry.stores):
        return None, []
    plots.use_style()
    made = entry.make(profile)
    if made is None:
        return None, []
    if entry.is_table:
        return made, _save_table(made, name, profile["name"])
    files = []
    for suffix, drawn in made.items() if isinstance(made, dict) else [("", made)]:
        files += _save_figure(drawn, f"{name}_{suffix}" if suffix else name, profile["name"])
        plt.close(drawn)  # what is returned is displayed, once
    return made, files


def _save_figure(drawn: Any, name: str, profile: str) -> list[Path]:
    written = [config.FIGURES / profile / f"{name}.{ending}" for ending in FORMATS]
    written[0].parent.mkdir(parents=True, exist_ok=True)
    for file in written:
        undated = {".pdf": {"CreationDate": None}, ".svg": {"Date": None}}.get(file.suffix)
        drawn.savefig(file, metadata=undated)
        drawn.set_layout_engine("none")  # laid out once, the same in every format
    return written


def _save_table(made: Any, name: str, profile: str) -> list[Path]:
    shown, numbers = made if isinstance(made, tuple) else (made, made)
    latex = shown.style.hide(axis="index").format(escape="latex-math", na_rep="–").format_index(escape="latex", axis=1)
    contents = {"csv": numbers.to_csv(index=False), "md": _markdown(shown) + "\n", "tex": latex.to_latex(hrules=True)}
    folder = config.FIGURES / profile / "tables"
    folder.mkdir(parents=True, exist_ok=True)
    for ending, content in contents.items():
        (folder / f"{name}.{ending}").write_text(content, encoding="utf-8")
    return [folder / f"{name}.{ending}" for ending in contents]


def _markdown(shown: Any) -> str:
    return shown.to_markdown(index=False, disable_numparse=True)


def write_readme(profile: dict) -> None:
    """Write what stands between ``<!-- begin NAME -->`` and ``<!-- end NAME -->`` in README.md from stored results."""
    file = config.ROOT / "README.md"
    file.write_text(rendered(file.read_text(encoding="utf-8"), profile), encoding="utf-8")


def rendered(text: str, profile: dict) -> str:
    """A page whose blocks (results, claims, time) are written again."""
    from harp_lib.report import claims, figures_costs, scores

    def counted() -> str:
        counts = claims.counts(profile)
        said = [f"**{number} {outcome}**" for outcome, number in counts.items() if number]
        return f"{counts.sum()} claims of the paper were measured: {', '.join(said)}."

    blocks = {
        "results": lambda: (
            f"{claims.headline(profile)}\n\n{_markdown(scores.at_a_glance(profile)[0])}\n\n"
            "*± standard error. Perplexity per token on held-out documents, less is better; averages in per cent.*"
        ),
        "claims": counted,
        "time": lambda: "\n".join(f"- {line}" for line in figures_costs.time_found(profile)),
    }
    return BLOCK.sub(lambda block: f"{block[1]}{blocks[block[2]]()}\n{block[3]}", text)
