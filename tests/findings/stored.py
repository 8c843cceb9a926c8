"""What findings read: the committed cells of the profile small."""

from functools import cache

import numpy as np
import pandas as pd

from harp_lib import config
from harp_lib.evaluation.benchmarks import ALL_BENCHMARKS
from harp_lib.report import claims, comparisons, data, right_answers

SMOLLM = "smollm2-135m"
GEMMA = "gemma3-270m"
CODER = "qwen2.5-coder-0.5b"
LARGER = "qwen2.5-coder-1.5b"
MODELS = (SMOLLM, GEMMA, CODER)  # the smaller ones
ALL_MODELS = (*MODELS, LARGER)
FINDINGS = []  # page, sentence, and the function that gives its numbers


def finding(page: str, sentence: str):
    """Register a sentence of a page; the function gives its numbers in order, as written."""

    def register(numbers):
        FINDINGS.append((page, sentence, numbers))
        return numbers

    return register


@cache
def judgements() -> pd.DataFrame:
    """All claims, as the committed results judge them."""
    return claims.judge(config.load_profile("small"))


def verdict_on(claim: str) -> pd.DataFrame:
    """How a claim is judged, a row for each model."""
    judged = judgements()
    return judged[judged["id"] == claim].set_index("model")


@cache
def all_right_answers() -> pd.DataFrame:
    """How likely the right answer to each question is, of all methods on all benchmarks."""
    return right_answers.right_answers("small", ALL_BENCHMARKS)


@cache
def documents_of(store: str) -> pd.DataFrame:
    """The held-out documents of a store, which are read once for all findings."""
    return data.documents("small", store).query("split == 'validation'")


def documents(model: str, store: str, method: str, corpus: str) -> pd.DataFrame:
    """Likelihood and tokens of each held-out document under a method's plan."""
    of_store = documents_of(store)
    rows = of_store.query("model == @model and method == @method and corpus == @corpus")
    assert len(rows) > 1
    assert rows["document"].tolist() == list(range(len(rows)))
    return rows


def perplexity_of(model: str, method: str, corpus: str = "wikitext") -> float:
    """Perplexity on held-out text."""
    rows = documents(model, "baselines", method, corpus)
    return np.exp(rows["nll"].sum() / rows["tokens"].sum())


def prefill(
    model: str, variant: str, against: str = "dense", length: int = 4096
) -> comparisons.Interval:
    """Time of reading so many tokens, as a multiple of another variant's."""
    rows = data.tidy("small", "efficiency", "seconds")
    rows = rows.query("model == @model and kind == 'prefill' and length == @length")
    seconds = rows.pivot_table("value", "repetition", "variant")
    return comparisons.time_ratio(seconds[against], seconds[variant])


def against_the_searched_alpha(model: str, rule: str) -> comparisons.Interval:
    """Change of held-out perplexity if alpha is chosen by another rule than by the search."""
    rows = data.documents("small", "norm_change").query("model == @model")
    nll = rows.pivot_table("nll", "document", "method")
    tokens = rows.query("method == 'searched'").set_index("document")["tokens"]
    return comparisons.change(nll["searched"], nll[rule], tokens)
