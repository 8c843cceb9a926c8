"""Notebook 03: alpha searched on two corpora, and every alpha evaluated on every text."""

import itertools
from pathlib import Path
from typing import Any

from harp_lib.experiments.job import HELD_OUT, SEARCHED, Job
from harp_lib.experiments.texts import Text, scalar_rows
from harp_lib.methods.alpha_search import AlphaSearch, search_alphas
from harp_lib.names import DENSE, HARP
from harp_lib.pruning.plan import PruningPlan
from harp_lib.results import Cell, Result

RESAMPLED = "harp-resampled"  # HARP, with alpha searched on a second sample of the same corpus


def search(job: Job) -> None:
    """Algorithm 1 on each corpus: alphas, perplexity of every candidate, seconds, layer passes.

    Where documents are left, the search is run again on a second sample of the same corpus. What
    that changes is the noise against which an alpha of another corpus has to be seen.
    """
    for corpus in job.corpora:
        text = job.text(corpus, SEARCHED)
        job.result(search_cell(job, HARP, text, job.num_pruned))
        second = job.second_sample(corpus)
        if second is not None:
            job.result(search_cell(job, RESAMPLED, second, job.num_pruned))


def search_cell(job: Job, method: str, text: Text, num_layers: int) -> Cell:
    """One search, which goes on where it was interrupted."""
    corpus = text.corpus.name
    cache_device = job.profile["alpha_search"]["cache_device"]

    def compute(kept: Path) -> Result:
        search = search_alphas(
            job.model, text.windows, num_layers, resume=kept, cache_device=cache_device
        )
        return {"rows": search_rows(search, sum(text.tokens))}

    inputs = text.inputs | {"num_layers": num_layers}
    return Cell(method, f"search-{corpus}", inputs, compute, {"corpus": corpus}, resumes=True)


def alpha(job: Job) -> None:
    """Dense, alpha = 1, alpha = 0 and each searched alpha on every text, document by document.

    The alpha of a second sample is evaluated on held-out text of its own corpus.
    """
    searched = {f"searched-on-{corpus}": job.alphas(corpus) for corpus in job.corpora}
    layers = job.alphas(job.corpora[0])
    for corpus, split in itertools.product(job.corpora, (SEARCHED, HELD_OUT)):
        text = job.text(corpus, split)  # one text at a time in memory
        plans = {
            "alpha-1": dict.fromkeys(layers, 1.0),
            "alpha-0": dict.fromkeys(layers, 0.0),
            **searched,
        }
        if split == HELD_OUT and job.second_sample(corpus) is not None:
            plans[f"resampled-on-{corpus}"] = job.alphas(corpus, RESAMPLED)
        plans[DENSE] = {}
        cells = []
        for method, alphas in plans.items():
            plan = PruningPlan.value_only(job.num_layers, alphas)
            inputs = text.inputs | {"alphas": alphas}
            cells.append(text.nll_cell(method, inputs, plan))
        job.results(f"perplexities, {corpus}", cells)


def search_rows(search: AlphaSearch, tokens: int) -> list[dict[str, Any]]:
    """The best alpha of each layer, the perplexity of every candidate, and what a search took.

    ``tokens`` are predicted for each candidate.
    """
    rows = []
    for depth, alpha in enumerate(search.alphas):
        layer = search.num_model_layers - 1 - depth
        rows.append({"quantity": "alpha", "layer": layer, "value": alpha})
    for layer, perplexities in search.perplexities.items():
        for alpha, value in perplexities.items():
            rows.append({"quantity": "perplexity", "layer": layer, "alpha": alpha, "value": value})
    rows += scalar_rows(seconds=search.seconds, layer_passes=search.layer_passes, tokens=tokens)
    return rows
