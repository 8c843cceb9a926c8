"""Numbers of the findings in notebook 03."""

from findings.stored import CODER, GEMMA, SMOLLM, documents, finding
from harp_lib.report import comparisons, data


@finding(
    "03_alpha_search.ipynb",
    "α differs by up to {:.1f} on SmolLM2, {:.1f} on Gemma and {:.1f} on the coder, and held-out"
    " perplexity changes by {} to {} %. An α of the other corpus changes it by {} to {} %, with "
    "one exception: on SmolLM2 the α of WikiText-2 costs {:.1f} % on the Python documentation. "
    "So on Gemma and on the coder α carries over to another kind of text as well as it does to "
    "another sample of the same text, as the paper says. On SmolLM2 it does so in one direction "
    "only.",
)
def noise_of_the_search():
    differences = [largest_difference_of_alphas(model) for model in (SMOLLM, GEMMA, CODER)]
    resampled = {}
    carried = {}
    for model in (SMOLLM, GEMMA, CODER):
        for corpus, other in (("wikitext", "python-docs"), ("python-docs", "wikitext")):
            of_second_sample = f"resampled-on-{corpus}"
            of_other_corpus = f"searched-on-{other}"
            resampled[model, corpus] = change_by_alpha(model, corpus, of_second_sample)
            carried[model, corpus] = change_by_alpha(model, corpus, of_other_corpus)
    exception = carried.pop((SMOLLM, "python-docs"))
    assert max(carried.values()) < max(resampled.values()) < exception
    ends = []
    for changes in (resampled.values(), carried.values()):
        for end in (min(changes), max(changes)):
            ends.append(f"{end:+.1f}".replace("-", "−"))
    return [*differences, *ends, exception]


def largest_difference_of_alphas(model: str) -> float:
    """How far alpha of two samples of one corpus differs in a layer at most, on both corpora."""
    rows = data.tidy("small", "alpha_search", "alpha").query("model == @model")
    alphas = rows.pivot_table("value", ["corpus", "layer"], "method")
    assert not alphas.isna().any(axis=None)
    assert len(alphas.index.get_level_values("corpus").unique()) == 2
    return (alphas["harp"] - alphas["harp-resampled"]).abs().max()


def change_by_alpha(model: str, corpus: str, method: str) -> float:
    """Change of held-out perplexity in per cent, from alpha searched on this text to another's."""
    before = documents(model, "alpha_search", f"searched-on-{corpus}", corpus)
    after = documents(model, "alpha_search", method, corpus)
    return 100 * comparisons.change(before["nll"], after["nll"], before["tokens"]).value
