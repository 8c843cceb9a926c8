"""Notebook 03: alpha searched on two corpora, evaluated on both, and what the search costs."""

from typing import Any

from tqdm import tqdm

from harp_lib.experiments.job import HELD_OUT, SEARCHED, Job, Text
from harp_lib.measure.text import count_words
from harp_lib.methods.alpha_search import search_alphas
from harp_lib.pruning.plan import PruningPlan
from harp_lib.results import device_name


def search(job: Job) -> None:
    """Algorithm 1 on each corpus: alphas, perplexity of every candidate, seconds and layer passes."""
    for corpus in job.corpora:
        text, cache = job.text(corpus, SEARCHED), job.profile["alpha_search"]["cache_device"]

        def compute(partial, text=text, cache=cache) -> dict[str, Any]:
            found = search_alphas(job.model, text.windows, job.num_pruned, resume=partial, cache_device=cache)
            return vars(found) | {"tokens": sum(text.tokens)}

        inputs = text.inputs | {"num_layers": job.num_pruned}
        job.stores[job.store].cell(job.name, "harp", f"search-{corpus}", inputs, compute)


def alpha(job: Job) -> None:
    """Dense, alpha = 1, alpha = 0 and each searched alpha on every text, document by document; the search's cost."""
    searched = {f"searched-on-{corpus}": job.alphas(corpus) for corpus in job.corpora}
    top = list(searched[f"searched-on-{job.corpora[0]}"])
    plans = {"alpha-1": dict.fromkeys(top, 1.0), "alpha-0": dict.fromkeys(top, 0.0), **searched, "dense": {}}
    texts = [(corpus, split) for corpus in job.corpora for split in (SEARCHED, HELD_OUT)]
    with tqdm(total=len(plans) * len(texts), desc="perplexities", unit="cell") as bar:
        for text in (job.text(*name) for name in texts):  # one at a time in memory
            for method, alphas in plans.items():

                def compute(alphas=alphas, text=text) -> dict[str, Any]:
                    words = [count_words(document) for document in text.corpus.documents]
                    return text.nll(PruningPlan.value_only(job.num_layers, alphas)) | {"words": words}

                inputs = text.inputs | {"alphas": {str(layer): alpha for layer, alpha in alphas.items()}}
                job.cell(method, f"{text.corpus.name}-{text.corpus.split}", inputs, compute)
                bar.update()
    _cost(job, job.text(job.corpora[0], SEARCHED).first(job.profile["alpha_search"]["literal_documents"]))


def _cost(job: Job, part: Text) -> None:
    """The same search with and without reused hidden states, one after the other, on a part of a text."""

    def compute() -> dict[str, Any]:
        ways = {"reused": True, "literal": False}
        found = {way: search_alphas(job.model, part.windows, job.num_pruned, reuse_prefix=ways[way]) for way in ways}
        return {way: vars(search) for way, search in found.items()} | {"tokens": sum(part.tokens)}

    inputs = part.inputs | {"documents": len(part.documents), "num_layers": job.num_pruned, "device": device_name()}
    job.cell("harp", "cost", inputs, compute)
