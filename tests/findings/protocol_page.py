"""Numbers of the protocol that no table shows."""

import json

import pandas as pd

from findings.stored import LARGER, finding
from harp_lib import config
from harp_lib.report import data
from harp_lib.results import rows_of


@finding(
    "docs/protocol.md",
    "lm-eval's filter takes all of that line for the answer, so none of the {} answers that it "
    "finds in {} replies is right (the cell is in `data/left_out`).",
)
def bbh_of_the_larger_model():
    folder = config.DATA / "left_out" / "small" / "main_tables" / LARGER / "dense"
    cell = json.loads((folder / "bbh_cot_fewshot.json").read_bytes())
    scores = data.answered(cell["result"])
    assert sum(scores) == 0
    return int(sum(data.answered(cell["result"], "answered"))), len(scores)


def searched(store: str) -> pd.DataFrame:
    """The alphas and the candidates' perplexities of a search on WikiText-2 of the 1.5B."""
    cell = data.cells("small", store)[LARGER, "harp", "search-wikitext"]
    return rows_of(cell["result"])


@finding(
    "docs/protocol.md",
    "two searches of the same candidate on the same text gave a perplexity of {:.3f} and of {:.3f}",
)
def a_candidate_in_bfloat16():
    perplexities = []
    for store in ("alpha_search", "frontier"):
        rows = searched(store)
        candidate = (rows["quantity"] == "perplexity") & (rows["alpha"] == 0)
        perplexities.append(rows[candidate].set_index("layer")["value"][27])
    return perplexities


@finding(
    "docs/protocol.md",
    "The two searches chose α that differ by {:.1f} in two of the six layers",
)
def alphas_in_bfloat16():
    alphas = []
    for store in ("alpha_search", "frontier"):
        rows = searched(store)
        alphas.append(rows[rows["quantity"] == "alpha"].set_index("layer")["value"])
    distances = (alphas[0] - alphas[1]).dropna().abs().round(6)
    differing = distances[distances > 0]
    assert (len(differing), len(distances)) == (2, 6)
    assert (differing == differing.iloc[0]).all()
    return [differing.iloc[0]]
