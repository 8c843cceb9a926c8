"""Numbers of the findings in notebook 03."""

import numpy as np
import pandas as pd

from findings.stored import (
    ALL_MODELS,
    CODER,
    GEMMA,
    LARGER,
    MODELS,
    SMOLLM,
    against_the_searched_alpha,
    documents,
    finding,
    judgements,
)
from harp_lib import config
from harp_lib.methods.alpha_search import ALPHA_GRID, count_passes
from harp_lib.report import comparisons, data

PAGE = "03_alpha_search.ipynb"
CORPORA = ("wikitext", "python-docs")


def curves() -> list[pd.Series]:
    """The perplexity of every α, a curve for each model, text and layer."""
    rows = data.tidy("small", "alpha_search", "perplexity")
    rows = rows[rows["method"] == "harp"]
    found = []
    for (model, _, _), part in rows.groupby(["model", "corpus", "layer"], sort=False):
        curve = part.set_index("alpha")["value"].astype(float).sort_index().rename(model)
        assert np.allclose(curve.index, ALPHA_GRID)
        found.append(curve)
    return found


@finding(
    PAGE,
    "Every curve has a single valley. In {} of {} curves (four models, two texts; the figure has "
    "the {} of WikiText-2) the best α lies strictly between 0 and 1. In the other four it is at "
    "an end: α = 0 is best in {} curve of SmolLM2 135M and in {} of Qwen-Coder 0.5B (*the "
    "coder*), and α = 1 in {} of Gemma-3 270M; Qwen-Coder 1.5B (*the 1.5B*) has none. A single "
    "layer's worst α costs between {:.0f} and {:.0f} % more perplexity than its best, so it "
    "matters in some layers and hardly in others. The curves are those of the text that α is "
    "searched on ({} documents)",
)
def valleys():
    ends = []
    costs = []
    inner = 0
    for curve in curves():
        best = int(np.argmin(curve))
        slopes = np.diff(curve)
        assert (slopes[:best] < 0).all()
        assert (slopes[best:] > 0).all()
        if curve.index[best] in (0, 1):
            ends.append((curve.name, curve.index[best]))
        else:
            inner += 1
        costs.append(100 * (curve.max() / curve.min() - 1))
    at_an_end = [ends.count(end) for end in ((SMOLLM, 0), (CODER, 0), (GEMMA, 1))]
    assert sum(at_an_end) == len(ends) == 4
    read = data.documents("small", "alpha_search")
    num_documents = read[read["split"] == "test"]["document"].nunique()
    of_first_text = data.tidy("small", "alpha_search", "alpha")
    of_first_text = of_first_text[of_first_text["method"] == "harp"]
    num_shown = (of_first_text["corpus"] == "wikitext").sum()
    return [inner, len(costs), num_shown, *at_an_end, min(costs), max(costs), num_documents]


@finding(
    PAGE,
    "On the pages of WikiText-2 that α is searched on, the coder's perplexity even falls: it is "
    "{:.0f} in the dense model and {:.0f}, {:.0f} and {:.0f} with one, two and three value-only "
    "layers. On held-out pages HARP's perplexity is above the dense model's (see below). The best "
    "α of the second layer from the top is {:.0f}: with its values in full (α = 1) perplexity "
    "would be {:.0f}, so what the value-only layer adds harms the prediction of this text. On the "
    "Python documentation perplexity rises with every layer.",
)
def perplexity_that_falls():
    rows = data.tidy("small", "alpha_search", "perplexity").astype({"value": float})
    rows = rows[(rows["method"] == "harp") & (rows["model"] == CODER)]
    read = data.documents("small", "alpha_search")
    read = read[(read["split"] == "test") & (read["method"] == "dense") & (read["model"] == CODER)]
    steps = {}  # perplexity of the dense model, and as layers are pruned from the top down
    for corpus in CORPORA:
        dense = read[read["corpus"] == corpus]
        best = rows[rows["corpus"] == corpus].groupby("layer")["value"].min()
        perplexity = np.exp(dense["nll"].sum() / dense["tokens"].sum())
        steps[corpus] = [perplexity, *best.sort_index(ascending=False)]
    assert (np.diff(steps["python-docs"]) > 0).all()
    assert steps["wikitext"][3] < steps["wikitext"][2] < steps["wikitext"][0]
    second = rows[(rows["corpus"] == "wikitext") & (rows["layer"] == rows["layer"].max() - 1)]
    second = second.set_index("alpha")["value"]
    return [*steps["wikitext"][:4], second.idxmin(), second[1.0]]


def deepest_search(model: str) -> pd.DataFrame:
    """Layer and α of the deepest search on WikiText-2, which notebook 09 makes."""
    rows = data.tidy("small", "frontier", "alpha")
    rows = rows[(rows["model"] == model) & (rows["method"] == "harp")]
    assert rows["corpus"].unique().tolist() == ["wikitext"]
    return rows.sort_values("layer")[["layer", "value"]].astype(float)


@finding(
    PAGE,
    "The paper prints an α of {} to {} for the top layer of the three models in which it sees α "
    "rise, and of {} or less for every layer below.",
)
def printed_alphas():
    printed = data.paper("alpha_search")
    printed = printed[printed["model"].isin(("LLaMA3.1-8B", "Mistral-7B-v0.3", "Qwen2-7B"))]
    is_top = printed["layer"] == printed.groupby("model")["layer"].transform("max")
    top = printed[is_top]["value"]
    return top.min(), top.max(), printed[~is_top]["value"].max()


@finding(
    PAGE,
    "SmolLM2, Gemma and the coder look different: on WikiText-2 their top layers have α = {}, {} "
    "and {}, and the largest α is in another layer.",
)
def alphas_of_top_layers():
    alphas = []
    for model in MODELS:
        values = deepest_search(model)["value"].to_numpy()
        assert values.max() > values[-1]
        alphas.append(values[-1])
    return alphas


@finding(
    PAGE,
    "The 1.5B comes closer. In its top six layers, which HARP prunes, α rises in each of its four "
    "searches, on two samples of two texts (ρ from {} to {}), and on WikiText-2 the top layer has "
    "the largest, {}. But six layers are too few to show a trend, and in the layer just below "
    "them α is {}.",
)
def alphas_of_the_larger_model():
    rows = data.tidy("small", "alpha_search", "alpha")
    rows = rows[rows["model"] == LARGER]
    trends = [trend_of(part) for _, part in rows.groupby(["corpus", "method"])]
    assert len(trends) == 4
    assert all(trend.n == 6 for trend in trends)
    assert all(trend.low < 0 < trend.high for trend in trends)
    searched = rows[(rows["corpus"] == "wikitext") & (rows["method"] == "harp")]
    searched = searched.sort_values("layer")["value"].to_numpy()
    assert searched[:-1].max() < searched[-1]
    deeper = deepest_search(LARGER)["value"].to_numpy()
    return [*spanned(trends), searched[-1], deeper[-7]]


@finding(
    PAGE,
    "The rank correlation of α with the layer, over all layers that were searched on WikiText-2 "
    "for [09](09_refit.ipynb), is {} [{}, {}] on SmolLM2 ({} layers), {} [{}, {}] on Gemma ({}), "
    "{} [{}, {}] on the coder ({}) and {} [{}, {}] on the 1.5B ({}), where the claim needs more "
    "than +0.5. An α of 0, which drops the attention branch altogether, comes out in {} of the {}, "
    "{} of the {}, {} of the {} and {} of the {} layers. The paper has it in {} of its {} printed "
    "α.",
)
def trends():
    numbers = []
    zeros = []
    for model in ALL_MODELS:
        search = deepest_search(model)
        trend = comparisons.rank_correlation(search["layer"], search["value"])
        assert trend.low < 0.5
        numbers += [signed(end, 2) for end in trend[:3]] + [len(search)]
        zeros += [(search["value"] == 0).sum(), len(search)]
    printed = data.paper("alpha_search")["value"]
    return [*numbers, *zeros, (printed == 0).sum(), len(printed)]


def spanned(correlations: list[comparisons.Interval]) -> list[str]:
    """The lowest and the highest of some rank correlations."""
    values = [correlation.value for correlation in correlations]
    return [signed(min(values), 2), signed(max(values), 2)]


def trend_of(rows: pd.DataFrame) -> comparisons.Interval:
    """The rank correlation of α with the layer."""
    return comparisons.rank_correlation(rows["layer"], rows["value"].astype(float))


@finding(
    PAGE,
    "The title of the figure spans all its lines: {} to {} for the paper's five models, of which "
    "the claim is about the three with {} to {}, and {} to {} for ours. Both of these ends are of "
    "lines of {} to {} layers, too few to tell a trend: all their intervals hold 0. The "
    "verdict shows the text that is worse for the claim, for the coder the Python documentation "
    "({} over {} layers).",
)
def trends_in_the_title():
    printed = data.paper("alpha_search")
    printed = printed[printed["task"] == "wikitext"]
    in_paper = {model: trend_of(part) for model, part in printed.groupby("model")}
    assert len(in_paper) == 5
    rising = [in_paper[model] for model in ("LLaMA3.1-8B", "Mistral-7B-v0.3", "Qwen2-7B")]
    rows = data.tidy("small", "alpha_search", "alpha")
    rows = rows[(rows["method"] != "harp") | (rows["corpus"] != "wikitext")]
    short = {key: trend_of(part) for key, part in rows.groupby(["model", "corpus", "method"])}
    assert all(trend.low < 0 < trend.high for trend in short.values())
    ours = spanned(list(short.values()))
    deep = [trend_of(deepest_search(model)) for model in ALL_MODELS]
    assert ours == spanned([*short.values(), *deep])
    counts = [trend.n for trend in short.values()]
    of_verdict = judgements().set_index(["id", "model"])
    shown = of_verdict.loc["alpha-rises", CODER]
    assert shown["value"] == short[CODER, "python-docs", "harp"].value
    lengths = [min(counts), max(counts)]
    of_paper = spanned(list(in_paper.values())) + spanned(rising)
    return [*of_paper, *ours, *lengths, signed(shown["value"], 2), int(shown["n"])]


def signed(number: float, digits: int) -> str:
    """A number with its sign."""
    return f"{number:+.{digits}f}".replace("-", "−")


def without_search(method: str, corpus: str) -> list[comparisons.Interval]:
    """Change of held-out perplexity in per cent by a rule for α, on each model."""
    changes = []
    for model in ALL_MODELS:
        searched = documents(model, "alpha_search", f"searched-on-{corpus}", corpus)
        other = documents(model, "alpha_search", method, corpus)
        change = comparisons.change(searched["nll"], other["nll"], searched["tokens"])
        changes.append(change * 100)
    return changes


@finding(
    PAGE,
    "The search pays on every model and on both texts. On WikiText-2 ({} held-out documents) α = 1 "
    "has a higher perplexity than the searched α by {:.0f} % [{:.0f}, {:.0f}] on SmolLM2 135M, by "
    "{:.0f} % [{:.0f}, {:.0f}] on Gemma-3 270M, by {:.0f} % [{:.0f}, {:.0f}] on Qwen-Coder 0.5B "
    "and by {:.0f} % [{:.0f}, {:.0f}] on Qwen-Coder 1.5B. On the Python documentation ({} "
    "documents) it is {:.0f} % [{:.0f}, {:.0f}], {:.0f} % [{:.0f}, {:.0f}], {:.0f} % [{:.0f}, "
    "{:.0f}] and {:.0f} % [{:.0f}, {:.0f}]. α = 0 is worse than the searched α everywhere, too.",
)
def search_pays():
    numbers = []
    for corpus in CORPORA:
        changes = without_search("alpha-1", corpus)
        for change in changes + without_search("alpha-0", corpus):
            assert change.low > 0
        numbers.append(changes[0].n)
        for change in changes:
            numbers += change[:3]
    return numbers


@finding(
    PAGE,
    "On SmolLM2 α = 0 is worse than α = 1 on both texts, and on Gemma on WikiText-2. α = 0 is "
    "better than α = 1 on the coder ({} % [{}, {}] on WikiText-2 and {} % [{}, {}] on the Python "
    "documentation) and on Gemma on the Python documentation ({} % [{}, {}]). On the 1.5B no "
    "difference between the two is shown.",
)
def without_a_branch_against_unscaled():
    changes = {}
    for model in ALL_MODELS:
        for corpus in CORPORA:
            unscaled = documents(model, "alpha_search", "alpha-1", corpus)
            without = documents(model, "alpha_search", "alpha-0", corpus)
            change = comparisons.change(unscaled["nll"], without["nll"], unscaled["tokens"])
            assert (change.low * change.high > 0) == (model != LARGER)
            if change.high < 0:
                changes[model, corpus] = [signed(100 * end, 0) for end in change[:3]]
    expected = [(CODER, "wikitext"), (CODER, "python-docs"), (GEMMA, "python-docs")]
    assert sorted(changes) == sorted(expected)
    numbers = []
    for key in expected:
        numbers += changes[key]
    return numbers


@finding(
    PAGE,
    "HARP is not free: with the searched α perplexity on WikiText-2 is still {:.0f} %, {:.0f} %, "
    "{:.0f} % and {:.0f} % above the dense model's.",
)
def cost_in_perplexity():
    numbers = []
    for model in ALL_MODELS:
        dense = documents(model, "alpha_search", "dense", "wikitext")
        harp = documents(model, "alpha_search", "searched-on-wikitext", "wikitext")
        change = comparisons.change(dense["nll"], harp["nll"], dense["tokens"])
        assert change.low > 0
        numbers.append(100 * change.value)
    return numbers


@finding(
    PAGE,
    "An α that is fitted by least squares needs no search and comes close on two of the four "
    "models; on the other two the interval is too wide to tell ([02](02_norm_change.ipynb)). "
    "[09](09_refit.ipynb) asks more documents.",
)
def closed_form():
    for model in (GEMMA, CODER):
        change = against_the_searched_alpha(model, "reconstructing")
        assert -0.05 < change.low < 0 < change.high < 0.05
    for model in (SMOLLM, LARGER):
        change = against_the_searched_alpha(model, "reconstructing")
        assert change.low < 0 < 0.05 < change.high
    return []


@finding(
    PAGE,
    "α differs by up to {:.1f} on SmolLM2, {:.1f} on Gemma, {:.1f} on the coder and {:.1f} on the "
    "1.5B, and held-out perplexity changes by {} to {} %. An α of the other corpus changes it by "
    "{} to {} %, with one exception: on SmolLM2 the α of WikiText-2 costs {:.1f} % on the Python "
    "documentation. The lowest two are of SmolLM2 on WikiText-2, where both other α beat the "
    "searched one ({} % [{}, {}] and {} % [{}, {}]): a search on {} documents of {} tokens does "
    "not find the best α for held-out text. So on Gemma and on the coder, and from the Python "
    "documentation to WikiText-2 on the 1.5B, α carries over to another kind of text as well as "
    "it does to another sample of the same text, as the paper says. On SmolLM2 it does so in one "
    "direction only. On the Python documentation an α of WikiText-2 costs the 1.5B {:.1f} % "
    "[{:.1f}, {:.1f}], while one of another sample lowers perplexity ({} % [{}, {}]).",
)
def noise_of_the_search():
    differences = [largest_difference_of_alphas(model) for model in ALL_MODELS]
    resampled = {}
    carried = {}
    for model in ALL_MODELS:
        for corpus, other in (("wikitext", "python-docs"), ("python-docs", "wikitext")):
            of_second_sample = f"resampled-on-{corpus}"
            of_other_corpus = f"searched-on-{other}"
            resampled[model, corpus] = change_by_alpha(model, corpus, of_second_sample).value
            carried[model, corpus] = change_by_alpha(model, corpus, of_other_corpus).value
    exception = carried.pop((SMOLLM, "python-docs"))
    assert max(carried.values()) < max(resampled.values()) < exception
    ends = []
    for changes in (resampled.values(), carried.values()):
        for end in (min(changes), max(changes)):
            ends.append(signed(end, 1))
    lowest = []
    for method in ("resampled-on-wikitext", "searched-on-python-docs"):
        change = change_by_alpha(SMOLLM, "wikitext", method)
        assert change.high < 0
        lowest += [signed(end, 1) for end in change[:3]]
    assert lowest[::3] == ends[::2]
    settings = config.load_profile("small")["alpha_search"]
    size = [settings["documents"], settings["tokens"]]
    of_larger = change_by_alpha(LARGER, "python-docs", "searched-on-wikitext")
    assert of_larger.low > 0
    resample_of_larger = change_by_alpha(LARGER, "python-docs", "resampled-on-python-docs")
    assert resample_of_larger.high < 0
    for method in ("searched-on-python-docs", "resampled-on-wikitext"):
        assert abs(change_by_alpha(LARGER, "wikitext", method).value) < 1.5
    better = [signed(end, 1) for end in resample_of_larger[:3]]
    return [*differences, *ends, exception, *lowest, *size, *of_larger[:3], *better]


def largest_difference_of_alphas(model: str) -> float:
    """How far alpha of two samples of one corpus differs in a layer at most, on both corpora."""
    rows = data.tidy("small", "alpha_search", "alpha")
    rows = rows[rows["model"] == model]
    alphas = rows.pivot_table("value", ["corpus", "layer"], "method")
    assert not alphas.isna().any(axis=None)
    assert len(alphas.index.get_level_values("corpus").unique()) == 2
    return (alphas["harp"] - alphas["harp-resampled"]).abs().max()


def change_by_alpha(model: str, corpus: str, method: str) -> comparisons.Interval:
    """Change of held-out perplexity in per cent, from alpha searched on this text to another's."""
    before = documents(model, "alpha_search", f"searched-on-{corpus}", corpus)
    after = documents(model, "alpha_search", method, corpus)
    return comparisons.change(before["nll"], after["nll"], before["tokens"]) * 100


@finding(PAGE, "The paper prints {} % on WikiText-2 and {} % on the Pile for LLaMA3.1-8B.")
def printed_changes():
    printed = data.paper("alpha_robustness").pivot_table("value", "method", "task")
    numbers = []
    for corpus, other in (("wikitext", "pile_10k"), ("pile_10k", "wikitext")):
        own = printed.loc[f"searched-on-{corpus}", corpus]
        numbers.append(signed(100 * (printed.loc[f"searched-on-{other}", corpus] / own - 1), 1))
    return numbers


@finding(
    PAGE,
    "A search takes minutes on a processor: {:.0f} to {:.0f} seconds on SmolLM2 135M, {:.0f} to "
    "{:.0f} on Gemma-3 270M, {:.0f} to {:.0f} on Qwen-Coder 0.5B and {:.0f} to {:.0f} on "
    "Qwen-Coder 1.5B, with {} documents of {} tokens (one run each). These times are not "
    "comparable between models: the 1.5B computes in bfloat16, for which this processor has "
    "instructions, and nothing else ran meanwhile. For {} of the {} layers of LLaMA3.1-8B stored "
    "states need {:.1f} times fewer passes than the printed algorithm. The paper's search takes "
    "under {:.0f} hours on an H100, for {:,.0f} evaluations.",
)
def cost_of_a_search():
    seconds = data.tidy("small", "alpha_search", "seconds").groupby("model")["value"]
    numbers = []
    for model in ALL_MODELS:
        numbers += [seconds.min()[model], seconds.max()[model]]
    read = data.documents("small", "alpha_search")
    read = read[read["split"] == "test"]
    numbers += [read["document"].nunique(), int(read["tokens"].max())]
    layers = (8, 32)  # of LLaMA3.1-8B
    literal, reused = count_passes(*reversed(layers), len(ALPHA_GRID))
    printed = data.paper("search_cost")
    printed = printed[printed["task"] == "wikitext"].set_index("quantity")["value"]
    return [*numbers, *layers, literal / reused, printed["hours_below"], printed["evaluations"]]
