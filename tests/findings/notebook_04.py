"""Numbers of the findings in notebook 04."""

from findings.stored import CODER, GEMMA, SMOLLM, documents, finding, perplexity_of
from harp_lib.names import BASELINES
from harp_lib.report import comparisons, data


@finding(
    "04_baselines.ipynb",
    "takes {:,} of {:,} channels from three layers. Taken evenly, the same number of channels "
    "gives a perplexity of {:.1f} on WikiText-2 instead of {:.1f}, which is below the best "
    "baseline's {:.1f}; on the Python documentation it is {:.1f} instead of {:.1f}, and the best"
    " baseline has {:.1f}.",
)
def channels_of_gemma():
    plan = data.cells("small", "baselines")[GEMMA, "harp+flap", "plan"]["result"]["plan"]
    channels = sorted(len(layer.get("removed_channels", ())) for layer in plan["layers"])
    numbers = [sum(channels[-3:]), sum(channels)]
    for corpus in ("wikitext", "python-docs"):
        numbers.append(perplexity_of(GEMMA, "harp+flap-even", corpus))
        numbers.append(perplexity_of(GEMMA, "harp+flap", corpus))
        numbers.append(min(perplexity_of(GEMMA, method, corpus) for method in BASELINES))
    return numbers


@finding(
    "04_baselines.ipynb",
    "on the coder perplexity rises by {:.0f} %, and on SmolLM2 it stays the same on WikiText-2 "
    "and rises by {:.0f} % on the Python documentation.",
)
def channels_of_the_others():
    changes = {}
    for model in (CODER, SMOLLM):
        for corpus in ("wikitext", "python-docs"):
            ours = documents(model, "baselines", "harp+flap", corpus)
            even = documents(model, "baselines", "harp+flap-even", corpus)
            change = comparisons.change(ours["nll"], even["nll"], ours["tokens"])
            changes[model, corpus] = change * 100
    assert all(changes[CODER, corpus].low > 0 for corpus in ("wikitext", "python-docs"))
    same = changes[SMOLLM, "wikitext"]
    assert same.low < 0 < same.high
    assert changes[SMOLLM, "python-docs"].low > 0
    return changes[CODER, "wikitext"].value, changes[SMOLLM, "python-docs"].value
