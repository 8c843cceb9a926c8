"""Notebook 03: alpha searched on two corpora, and evaluated on both."""

from functools import partial
from typing import Any

from tqdm import tqdm

from harp_lib.experiments.job import HELD_OUT, SEARCHED, Job
from harp_lib.methods.alpha_search import search_alphas
from harp_lib.pruning.plan import PruningPlan


def search(job: Job) -> None:
    """Algorithm 1 on each corpus: alphas, perplexity of every candidate, seconds and layer passes."""
    for corpus in job.corpora:
        text, cache = job.text(corpus, SEARCHED), job.profile["alpha_search"]["cache_device"]

        def compute(kept, text=text, cache=cache) -> dict[str, Any]:
            found = search_alphas(job.model, text.windows, job.num_pruned, resume=kept, cache_device=cache)
            return vars(found) | {"tokens": sum(text.tokens)}

        inputs = text.inputs | {"num_layers": job.num_pruned}
        job.store_of(job.store).cell(job.name, "harp", f"search-{corpus}", inputs, compute)


def alpha(job: Job) -> None:
    """Dense, alpha = 1, alpha = 0 and each searched alpha on every text, document by document."""
    searched = {f"searched-on-{corpus}": job.alphas(corpus) for corpus in job.corpora}
    top = list(searched[f"searched-on-{job.corpora[0]}"])
    plans = {"alpha-1": dict.fromkeys(top, 1.0), "alpha-0": dict.fromkeys(top, 0.0), **searched, "dense": {}}
    texts = [(corpus, split) for corpus in job.corpora for split in (SEARCHED, HELD_OUT)]
    with tqdm(total=len(plans) * len(texts), desc="perplexities", unit="cell") as bar:
        for text in (job.text(*name) for name in texts):  # one at a time in memory
            for method, alphas in plans.items():
                plan = PruningPlan.value_only(job.num_layers, alphas)
                inputs = text.inputs | {"alphas": {str(layer): alpha for layer, alpha in alphas.items()}}
                job.cell(method, f"{text.corpus.name}-{text.corpus.split}", inputs, partial(text.nll, plan))
                bar.update()
