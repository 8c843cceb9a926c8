"""Tables as csv, Markdown and LaTeX."""

from collections.abc import Iterator
from math import isnan
from pathlib import Path

import pandas as pd
from IPython.display import Markdown

from harp_lib import paths
from harp_lib.alpha_figures import USE, plan_label
from harp_lib.experiments.alpha_study import SEARCHED, alpha_frame, cost_frame, perplexity_frame
from harp_lib.measure.corpora import EMBEDDED, TITLES
from harp_lib.measure.models import display_name
from harp_lib.methods.alpha_search import ALPHA_GRID, count_passes
from harp_lib.published import published, published_alphas
from harp_lib.results import Cells

# Tables of what a clock or the memory said. All others are equal, byte for byte, when a machine does the same again.
TIMED = (
    "alpha_cost",
    "baseline_costs",
    "efficiency_prefill",
    "efficiency_equal_heads",
    "efficiency_split",
    "efficiency_decode",
    "efficiency_memory",
    "efficiency_verdict",
    "claims",
)


def save(table: pd.DataFrame, name: str, profile: str, numbers: pd.DataFrame | None = None) -> list[Path]:
    """Write a table to ``figures/<profile>/tables/``: md and tex (booktabs) for people, csv for programs.

    Parameters
    ----------
    table : DataFrame
        As people read it.
    name, profile : str
        Name the files and their folder.
    numbers : DataFrame, optional
        The same unrounded, for the csv.

    Returns
    -------
    list of Path
        The files.
    """
    folder = paths.FIGURES / profile / "tables"
    folder.mkdir(parents=True, exist_ok=True)
    contents = {
        "csv": (table if numbers is None else numbers).to_csv(index=False),
        "md": table.to_markdown(index=False, disable_numparse=True) + "\n",
        "tex": _latex(table),
    }
    for ending, content in contents.items():
        (folder / f"{name}.{ending}").write_text(content, encoding="utf-8")
    return [folder / f"{name}.{ending}" for ending in contents]


def _latex(table: pd.DataFrame) -> str:
    """The table with booktabs rules; what stands between dollar signs is a formula and is left alone."""
    shown = (
        table.style.hide(axis="index").format(escape="latex-math", na_rep="NaN").format_index(escape="latex", axis=1)
    )
    return shown.to_latex(hrules=True)


def show(table: pd.DataFrame) -> Markdown:
    """A table as a notebook displays it."""
    return Markdown(table.to_markdown(index=False, disable_numparse=True))


def alpha_tables(cells: Cells) -> Iterator[tuple[pd.DataFrame, str, pd.DataFrame]]:
    """Every table of the alpha search, its file name, and its unrounded numbers."""
    alphas, perplexities, costs = alpha_frame(cells), perplexity_frame(cells), cost_frame(cells)
    yield alpha_values(alphas), "alpha_values", alphas
    yield alpha_perplexity(perplexities), "alpha_perplexity", perplexities
    yield (
        alpha_transfer(perplexities),
        "alpha_transfer",
        perplexities[perplexities["plan"].str.startswith("searched-on-")],
    )
    yield alpha_cost(costs), "alpha_cost", costs
    passes = alpha_passes()
    yield passes, "alpha_passes", passes


def alpha_values(alphas: pd.DataFrame) -> pd.DataFrame:
    """The alphas as the paper prints them, from the top layer down: the paper's, then ours."""
    rows = [(model, "WikiText-2", "paper", list(layers.values())) for model, layers in published_alphas().items()]
    for (model, corpus), part in alphas.groupby(["model", "corpus"], sort=False):
        rows.append((display_name(model), TITLES[corpus], "ours", list(part.sort_values("layer")["alpha"][::-1])))
    rows = [(*row, " ".join(f"{alpha:g}" for alpha in alphas)) for *row, alphas in rows]
    return pd.DataFrame(rows, columns=["model", "searched on", "source", "α from the top layer down"])


def alpha_perplexity(perplexities: pd.DataFrame) -> pd.DataFrame:
    """Perplexity ± standard error of each plan, and its paired change against the alpha searched on that corpus."""
    return pd.DataFrame(
        {
            "model": display_name(row.model),
            "text": TITLES[row.corpus],
            "use": USE[row.split],
            "plan": plan_label(row.plan),
            "perplexity": with_error(row.perplexity, row.error),
            "against searched α": ""
            if row.plan == f"searched-on-{row.corpus}"
            else interval(row.change, row.low, row.high),
            "documents": row.documents,
            "tokens": row.tokens,
        }
        for row in perplexities.itertuples()
    )


def with_error(value: float, error: float) -> str:
    """A perplexity and its standard error, which a single document has not."""
    return f"{value:.2f}" if isnan(error) else f"{value:.2f} ± {error:.2f}"


def interval(change: float, low: float, high: float) -> str:
    """A paired change with its 95 % interval, in per cent."""
    return f"{100 * change:+.1f} % [{100 * low:+.1f}, {100 * high:+.1f}]"


def alpha_transfer(perplexities: pd.DataFrame) -> pd.DataFrame:
    """Alpha searched on one corpus and read on the other, two by two: ours, then the paper's (which is per word)."""
    rows = [
        {
            "model": display_name(row["model"]),
            "α searched on": TITLES[row["plan"].removeprefix("searched-on-")],
            "read on": TITLES[row["corpus"]],
            "use": USE[row["split"]],
            "perplexity per token": with_error(row["perplexity"], row["error"]),
            "per word": "" if row["corpus"] in EMBEDDED else f"{row['word perplexity']:.2f}",
            "documents": str(row["documents"]),
        }
        for row in perplexities[perplexities["plan"].str.startswith("searched-on-")].to_dict("records")
    ]
    rows += [
        {
            "model": f"{row.model} (paper)",
            "α searched on": row.method.removeprefix("HARP, alpha from "),
            "read on": row.task,
            "use": USE[SEARCHED],
            "per word": f"{row.value:.2f}",
        }
        for row in published("alpha_robustness").itertuples()
    ]
    return pd.DataFrame(rows).fillna("")


def alpha_cost(costs: pd.DataFrame) -> pd.DataFrame:
    """What the searches cost, literally and with reused hidden states; empty where the literal one was not run."""
    decimals = {"seconds, reused": 1, "seconds, literal": 1, "times faster": 2, "times fewer passes": 2}
    table = costs.astype(object)
    for column in table:
        digits = decimals.get(column, 0)
        table[column] = [f"{v:.{digits}f}" if isinstance(v, float) and v == v else v for v in table[column]]
    table["same alphas"] = table["same alphas"].map({True: "yes", False: "no"})
    return table.fillna("")


def alpha_passes(candidates: int = len(ALPHA_GRID)) -> pd.DataFrame:
    """Layer passes of the search at the shapes of the paper's models, counted."""
    rows = []
    for model, layers in published_alphas().items():
        total, pruned = max(layers) + 1, len(layers)
        literal, reused = count_passes(total, pruned, candidates)
        rows.append((model, total, pruned, literal, reused, f"{literal / reused:.2f}"))
    columns = ["model", "layers", "searched", "passes, literal", "passes, reused", "times fewer passes"]
    return pd.DataFrame(rows, columns=columns)
