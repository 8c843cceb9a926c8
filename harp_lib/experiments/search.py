"""Notebook 03: alpha searched on two corpora, and every alpha evaluated on every text."""

import itertools
from collections.abc import Iterator
from pathlib import Path

from harp_lib.experiments.context import HELD_OUT, SEARCHED, Context
from harp_lib.experiments.texts import Text, scalar_rows
from harp_lib.methods.alpha_search import AlphaSearch, search_alphas
from harp_lib.names import DENSE, HARP
from harp_lib.pruning.plan import PruningPlan
from harp_lib.results import Cell, Result, Row, rows_of

RESAMPLED = "harp-resampled"  # HARP, with alpha searched on a second sample of the same corpus


def search(context: Context) -> Iterator[Cell]:
    """Algorithm 1 on each corpus: alphas, perplexity of every candidate, seconds, layer passes.

    Where documents are left, the search is run again on a second sample of the same corpus. What
    that changes is the noise against which an alpha of another corpus has to be seen.
    """
    for corpus in context.corpora:
        yield search_cell(context, corpus, context.num_pruned)
        second = context.second_sample(corpus)
        if second is not None:
            yield _search_cell(context, RESAMPLED, second, context.num_pruned)


def search_cell(context: Context, corpus: str, num_layers: int) -> Cell:
    """HARP's search on a corpus: whoever needs its alphas asks for this cell."""
    return _search_cell(context, HARP, context.text(corpus, SEARCHED), num_layers)


def _search_cell(context: Context, method: str, text: Text, num_layers: int) -> Cell:
    """One search, which goes on where it was interrupted."""
    cache_device = context.profile["alpha_search"]["cache_device"]

    def compute(kept: Path) -> Result:
        found = search_alphas(
            context.model, text.windows, num_layers, resume=kept, cache_device=cache_device
        )
        return {"rows": search_rows(found, sum(text.tokens))}

    inputs = {"what": "search", **text.inputs, "num_layers": num_layers}
    about = {"method": method, "corpus": text.corpus.name}
    return Cell(inputs, compute, about, resumes=True)


def searched_alphas(context: Context, corpus: str) -> dict[int, float]:
    """The alphas of HARP's search on a corpus, by layer, the top layer first.

    At another depth than the profile's they are the first ones of the search to the greatest depth.
    """
    if context.num_pruned == context.profile_depth:
        return alphas_of(context.store.get(search_cell(context, corpus, context.num_pruned)))
    deepest = max(context.profile["depths"]["layers"][context.name])
    found = alphas_of(context.store.get(search_cell(context, corpus, deepest)))
    return dict(list(found.items())[: context.num_pruned])


def alphas_of(search: Result) -> dict[int, float]:
    """The alphas that a search has found, by layer, the top layer first."""
    rows = rows_of(search)
    alphas = rows[rows["quantity"] == "alpha"].sort_values("layer", ascending=False)
    layers = alphas["layer"].astype(int).tolist()
    return dict(zip(layers, alphas["value"].tolist(), strict=True))


def alpha(context: Context) -> Iterator[Cell]:
    """Dense, alpha = 1, alpha = 0 and each searched alpha on every text, document by document.

    The alpha of a second sample is evaluated on held-out text of its own corpus.
    """
    searched = {
        f"searched-on-{corpus}": searched_alphas(context, corpus) for corpus in context.corpora
    }
    layers = searched[f"searched-on-{context.corpora[0]}"]
    for corpus, split in itertools.product(context.corpora, (SEARCHED, HELD_OUT)):
        text = context.text(corpus, split)  # one text at a time in memory
        alphas_by_method = {
            "alpha-1": dict.fromkeys(layers, 1.0),
            "alpha-0": dict.fromkeys(layers, 0.0),
            **searched,
        }
        second = context.second_sample(corpus)
        if split == HELD_OUT and second is not None:
            cell = _search_cell(context, RESAMPLED, second, context.num_pruned)
            alphas_by_method[f"resampled-on-{corpus}"] = alphas_of(context.store.get(cell))
        alphas_by_method[DENSE] = {}
        plans = {}
        for method, alphas in alphas_by_method.items():
            plans[method] = PruningPlan.value_only(context.num_layers, alphas)
        yield from context.nll_cells(text, plans)


def search_rows(search: AlphaSearch, tokens: int) -> list[Row]:
    """The best alpha of each layer, the perplexity of every candidate, and what a search took.

    ``tokens`` are predicted for each candidate.
    """
    rows = []
    for place, alpha in enumerate(search.alphas):
        layer = search.num_model_layers - 1 - place
        rows.append({"quantity": "alpha", "layer": layer, "value": alpha})
    for layer, perplexities in search.perplexities.items():
        for alpha, value in perplexities.items():
            rows.append({"quantity": "perplexity", "layer": layer, "alpha": alpha, "value": value})
    rows += scalar_rows(seconds=search.seconds, layer_passes=search.layer_passes, tokens=tokens)
    return rows
