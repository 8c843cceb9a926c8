"""Numbers of the findings in notebook 02."""

import numpy as np
import pandas as pd
import torch

from findings.stored import (
    ALL_MODELS,
    CODER,
    GEMMA,
    LARGER,
    SMOLLM,
    against_the_searched_alpha,
    documents,
    finding,
    verdict_on,
)
from harp_lib import config
from harp_lib.report import comparisons, data, figures_layers

PAGE = "02_norm_change.ipynb"


def signed(interval: comparisons.Interval, form: str) -> list[str]:
    """Value, low and high end in per cent, with the minus of the notebook."""
    return [f"{100 * end:{form}}".replace("-", "−") for end in interval[:3]]


@finding(
    PAGE,
    "Averaging shortens the values of all heads but two: on SmolLM2 135M the median head keeps "
    "{:.0f} % of their norm, on Gemma-3 270M {:.0f} %, on Qwen-Coder 0.5B (*the coder*) {:.0f} % "
    "and on Qwen-Coder 1.5B (*the 1.5B*) {:.0f} % (means of {} documents). The norm is kept within "
    "5 % by {} of {}, {} of {}, {} of {} and {} of {} heads.",
)
def norms_of_values():
    rows = data.tidy("small", "norm_change", "ratio")
    documents = len(rows[["corpus", "document"]].drop_duplicates())
    medians = []
    counts = []
    for model in ALL_MODELS:
        means = rows[rows["model"] == model].groupby(["layer", "head"])["value"].mean()
        medians.append(100 * means.median())
        counts += [((means - 1).abs() <= 0.05).sum(), len(means)]
    return [*medians, documents, *counts]


@finding(
    PAGE,
    "The two exceptions keep it almost exactly. One head of the coder shortens the values by only "
    "{:.3f} %, and lengthens them in {} of the {} documents. One head of the 1.5B shortens them by "
    "only {:.2f} %, which is less than bfloat16 can resolve.",
)
def least_shortened_values():
    rows = data.tidy("small", "norm_change", "ratio")
    longer = rows[rows["value"] >= 1]
    lengthening = longer[["model", "layer", "head"]].drop_duplicates()
    assert lengthening["model"].tolist() == [CODER]  # one head of all models
    of_coder = rows.merge(lengthening)["value"]

    means = rows[rows["model"] == LARGER].groupby(["layer", "head"])["value"].mean()
    shortened = 1 - means
    resolution = torch.finfo(torch.bfloat16).eps / 2  # of numbers just below 1
    assert (shortened < resolution).sum() == 1
    return 100 * (1 - of_coder.mean()), len(longer), len(of_coder), 100 * shortened.min()


@finding(
    PAGE,
    "The verdict counts heads in each document of one text, the one with fewer changed heads, and "
    "averages the shares, so it has {:.0f} % of the coder's heads changed and not {:.0f} %. On the "
    "1.5B both ways of counting give {:.0f} %, and on SmolLM2 and Gemma {:.0f} %.",
)
def changed_heads_of_the_verdict():
    changed = verdict_on("norm-changes")
    assert (changed["parts"] == 2).all()  # a text each; the verdict has the weaker one
    assert changed.loc[CODER, "about"] == "of the heads on WikiText-2"
    counts = np.reshape(norms_of_values()[-2 * len(ALL_MODELS) :], (-1, 2))  # kept, all heads
    by_means = pd.Series(1 - counts[:, 0] / counts[:, 1], index=ALL_MODELS)
    for model in (SMOLLM, GEMMA, LARGER):
        assert np.isclose(changed.loc[model, "value"], by_means[model])
    assert by_means[SMOLLM] == by_means[GEMMA]
    shares = [changed.loc[CODER, "value"], by_means[CODER], by_means[LARGER], by_means[GEMMA]]
    return [100 * share for share in shares]


def norm_at_the_top(model: str, rule: str) -> comparisons.Interval:
    """How far the norm is from the dense model's at the top, as a fraction."""
    norms = figures_layers.relative_norms({"name": "small"})
    norms = norms[(norms["model"] == model) & (norms["method"] == rule)]
    row = norms.loc[norms["layer"].idxmax()]
    return comparisons.Interval(row["value"] - 1, row["low"] - 1, row["high"] - 1, row["documents"])


@finding(
    PAGE,
    "Without rescaling (α = 1) the norm at the top is too large: {} % [{}, {}] on SmolLM2, {} % "
    "[{}, {}] on Gemma, {} % [{}, {}] on the coder and {} % [{}, {}] on the 1.5B. The searched α "
    "does not bring it back to the dense model's. It makes the norm too small: {} % [{}, {}], {} % "
    "[{}, {}], {} % [{}, {}] and {} % [{}, {}] (95 % intervals, {} documents of WikiText-2).",
)
def norms_at_the_top():
    numbers = []
    for rule in ("alpha-1", "searched"):
        for model in ALL_MODELS:
            norm = norm_at_the_top(model, rule)
            assert norm.low > 0 if rule == "alpha-1" else norm.high < 0
            numbers += signed(norm, "+.0f")
    return [*numbers, int(norm.n)]


@finding(
    PAGE,
    "The α that keeps the norm is computed on other pages and for each layer as if all other "
    "layers were dense, so it keeps the norm only roughly: {} % [{}, {}] at the top of Gemma and "
    "{} % [{}, {}] at the top of the 1.5B.",
)
def norm_by_the_norm_keeping_alpha():
    on_gemma = norm_at_the_top(GEMMA, "norm-matching")
    on_the_larger = norm_at_the_top(LARGER, "norm-matching")
    assert on_the_larger.high < 0 < on_gemma.low
    return [*signed(on_gemma, "+.0f"), *signed(on_the_larger, "+.0f")]


@finding(
    PAGE,
    "Over all pruned layers the searched α takes the norm further from the dense model's than α "
    "= 1 does on Gemma, on the coder and on the 1.5B, and closer to it on SmolLM2.",
)
def norms_over_all_pruned_layers():
    restored = verdict_on("norm-restored")
    assert restored.loc[GEMMA, "high"] < 0
    assert restored.loc[CODER, "high"] < 0
    assert restored.loc[LARGER, "high"] < 0
    assert restored.loc[SMOLLM, "low"] > 0
    return []


def change_by_rule(rule: str) -> list[str]:
    """Change of perplexity against the searched α and its interval, model by model."""
    numbers = []
    for model in ALL_MODELS:
        numbers += signed(against_the_searched_alpha(model, rule), "+.1f")
    return numbers


def read_documents() -> pd.DataFrame:
    """The documents that every way to choose α is evaluated on."""
    read = data.documents("small", "norm_change")
    assert read["corpus"].unique().tolist() == ["wikitext"]
    return read


@finding(
    PAGE,
    "Against the searched α it changes held-out perplexity by {} % [{}, {}] on SmolLM2, {} % "
    "[{}, {}] on Gemma, {} % [{}, {}] on the coder and {} % [{}, {}] on the 1.5B (95 % intervals, "
    "{} documents of WikiText-2). On Gemma and on the coder the two are equal within about two per "
    "cent; on SmolLM2 and on the 1.5B the interval is too wide to tell.",
)
def least_squares():
    for model in ALL_MODELS:
        interval = against_the_searched_alpha(model, "reconstructing")
        assert interval.low < 0 < interval.high
        narrow = max(-interval.low, interval.high) < 0.025
        assert narrow == (model in (GEMMA, CODER))
    return [*change_by_rule("reconstructing"), read_documents()["document"].nunique()]


def norm_keeping_against(model: str, rule: str) -> comparisons.Interval:
    """Change of held-out perplexity by the norm-keeping alpha, against another rule."""
    rows = read_documents()
    rows = rows[rows["model"] == model]
    nll = rows.pivot_table("nll", "document", "method")
    tokens = rows[rows["method"] == "searched"].set_index("document")["tokens"]
    return comparisons.change(nll[rule], nll["norm-matching"], tokens)


@finding(
    PAGE,
    "If the norm were the reason, the α that keeps the norm would do at least as well. Against the "
    "searched α it changes perplexity by {} % [{}, {}] on SmolLM2, where no difference is shown, "
    "and by {} % [{}, {}] on Gemma, {} % [{}, {}] on the coder and {} % [{}, {}] on the 1.5B. "
    "Against α = 0.5, which knows nothing about the model, it is worse on Gemma and on the coder, "
    "on the 1.5B no difference is shown ({} % [{}, {}]), and on SmolLM2 it is better ({} % "
    "[{}, {}]).",
)
def norm_keeping():
    for model in (GEMMA, CODER, LARGER):
        assert against_the_searched_alpha(model, "norm-matching").low > 0
    for model in (GEMMA, CODER):
        assert norm_keeping_against(model, "constant").low > 0
    on_the_larger = norm_keeping_against(LARGER, "constant")
    assert on_the_larger.low < 0 < on_the_larger.high
    on_smollm = against_the_searched_alpha(SMOLLM, "norm-matching")
    assert on_smollm.low < 0 < on_smollm.high
    of_smollm = norm_keeping_against(SMOLLM, "constant")
    assert of_smollm.high < 0
    against_a_half = [*signed(on_the_larger, "+.1f"), *signed(of_smollm, "+.1f")]
    return [*change_by_rule("norm-matching"), *against_a_half]


@finding(
    PAGE,
    "Against α = 1 the norm-keeping α lowers perplexity on SmolLM2, on the coder and on the 1.5B, "
    "but on Gemma no difference is shown ({} % [{}, {}]).",
)
def norm_keeping_against_unscaled():
    for model in (SMOLLM, CODER, LARGER):
        assert norm_keeping_against(model, "alpha-1").high < 0
    on_gemma = norm_keeping_against(GEMMA, "alpha-1")
    assert on_gemma.low < 0 < on_gemma.high
    return signed(on_gemma, "+.1f")


@finding(
    PAGE,
    "Leaving α at 1 costs {} % [{}, {}] on SmolLM2, {} % [{}, {}] on Gemma, {} % [{}, {}] on the "
    "coder and {} % [{}, {}] on the 1.5B against the searched α.",
)
def unscaled():
    numbers = []
    for model in ALL_MODELS:
        interval = against_the_searched_alpha(model, "alpha-1")
        assert interval.low > 0
        numbers += signed(interval, "+.0f")
    return numbers


def change_in_notebook_03(model: str, before: str, after: str) -> comparisons.Interval:
    """Change of held-out perplexity from one method to another, as notebook 03 has it."""
    from_method = documents(model, "alpha_search", before, "wikitext")
    to_method = documents(model, "alpha_search", after, "wikitext")
    return comparisons.change(from_method["nll"], to_method["nll"], from_method["tokens"])


@finding(
    PAGE,
    "[03](03_alpha_search.ipynb) has other numbers for both, because it reads up to {:,} tokens of "
    "{} pages, and here we read the first {} tokens of {} of them. There α = 1 costs {:.0f} %, "
    "{:.0f} %, {:.0f} % and {:.0f} %.",
)
def unscaled_in_notebook_03():
    profile = config.load_profile("small")
    alphas = data.tidy("small", "norm_change", "alpha")
    of_notebook_03 = data.tidy("small", "alpha_search", "alpha")
    of_notebook_03 = of_notebook_03[of_notebook_03["method"] == "harp"]
    changes = []
    for model in ALL_MODELS:
        here = alphas[(alphas["model"] == model) & (alphas["method"] == "searched")]
        there = of_notebook_03[of_notebook_03["model"] == model]
        there = there[there["corpus"] == "wikitext"]
        assert here.set_index("layer")["value"].equals(there.set_index("layer")["value"])
        change = change_in_notebook_03(model, "searched-on-wikitext", "alpha-1")
        changes.append(100 * change.value)
    tokens = profile["alpha_search"]["held_out"][1]
    pages = read_documents()["document"].nunique()
    return [tokens, change.n, profile["theory"]["tokens"], pages, *changes]


@finding(
    PAGE,
    "The searched α is {:.0f} %, {:.0f} %, {:.0f} % and {:.0f} % above the dense model, which puts "
    "the dense model {:.0f} %, {:.0f} %, {:.0f} % and {:.0f} % below the searched α.",
)
def cost_of_harp_in_notebook_03():
    above = []
    below = []
    for model in ALL_MODELS:
        above.append(100 * change_in_notebook_03(model, "dense", "searched-on-wikitext").value)
        below.append(-100 * change_in_notebook_03(model, "searched-on-wikitext", "dense").value)
    return above + below


@finding(
    PAGE,
    "HARP is not free: the dense model's perplexity is {:.0f} % [{:.0f}, {:.0f}], {:.0f} % "
    "[{:.0f}, {:.0f}], {:.0f} % [{:.0f}, {:.0f}] and {:.0f} % [{:.0f}, {:.0f}] lower than with the "
    "searched α.",
)
def cost_of_harp():
    numbers = []
    for model in ALL_MODELS:
        value, low, high = against_the_searched_alpha(model, "dense")[:3]
        assert high < 0
        numbers += [-100 * value, -100 * high, -100 * low]
    return numbers


@finding(
    PAGE,
    "Even α = 0.5 everywhere costs only {} % [{}, {}] on Gemma, and on SmolLM2 no cost is shown "
    "({} % [{}, {}]), but it costs {} % [{}, {}] on the coder and {} % [{}, {}] on the 1.5B.",
)
def constant_alpha():
    for model in (GEMMA, CODER, LARGER):
        assert against_the_searched_alpha(model, "constant").low > 0
    assert against_the_searched_alpha(SMOLLM, "constant").low < 0
    numbers = change_by_rule("constant")
    return [*numbers[3:6], *numbers[:3], *numbers[6:]]


@finding(
    PAGE,
    "In the pruned layers the cosine of A and B is {:.2f} to {:.2f} on SmolLM2, {:.2f} to {:.2f} "
    "on Gemma, {:.2f} to {:.2f} on the coder and {:.2f} to {:.2f} on the 1.5B, and B is {:.1f} to "
    "{:.1f} times as long as A (the {} pages of WikiText-2 that this α is computed on).",
)
def directions_of_branches():
    products = data.tidy("small", "norm_change", "product AA", "product AB", "product BB")
    products = products[products["corpus"] == "wikitext"]
    alphas = data.tidy("small", "norm_change", "alpha")
    first_pruned = alphas.groupby("model")["layer"].min()
    products = products[products["layer"] >= products["model"].map(first_pruned)]
    sums = products.pivot_table("value", ["model", "layer"], "quantity", aggfunc="sum")
    cosines = sums["product AB"] / np.sqrt(sums["product AA"] * sums["product BB"])
    lengths = np.sqrt(sums["product BB"] / sums["product AA"])
    numbers = []
    for model in ALL_MODELS:
        numbers += [cosines[model].min(), cosines[model].max()]
    return [*numbers, lengths.min(), lengths.max(), products["document"].nunique()]


@finding(
    PAGE,
    "The α of least squares makes the residual stream shorter than the dense model's on all four "
    "models, as the search does.",
)
def norm_by_least_squares():
    for model in ALL_MODELS:
        assert norm_at_the_top(model, "reconstructing").high < 0
    return []
