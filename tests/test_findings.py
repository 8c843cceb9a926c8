"""Numbers of the findings in README and notebooks are compared with the stored cells of small.

A finding is a sentence with ``{}`` in the place of its numbers, and a function that reads these
numbers from ``data/reference/small``. The page has to hold the sentence with exactly these numbers.
To add one, write the sentence on the page, then add it here under ``@finding``. The function also
asserts what the sentence says in words.
"""

import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import nbformat
import numpy as np
import pandas as pd
import pytest
from helpers import CHECKOUT

from harp_lib import config
from harp_lib.evaluation.benchmarks import BENCHMARKS
from harp_lib.names import BASELINES
from harp_lib.report import claims, comparisons, data, figures_harp
from harp_lib.report.claims.findings import Outcome

SMOLLM = "smollm2-135m"
GEMMA = "gemma3-270m"
CODER = "qwen2.5-coder-0.5b"
MODELS = (SMOLLM, GEMMA, CODER)
FINDINGS = []  # page, sentence, and the function that gives its numbers
AUTHORED = "**What we found** (profile `small`)."  # how a finding begins in a notebook


def finding(page: str, sentence: str):
    """Register a sentence of a page; the function gives its numbers in order, as written."""

    def register(numbers):
        FINDINGS.append((page, sentence, numbers))
        return numbers

    return register


@pytest.fixture(autouse=True)
def only_the_reference(tmp_path, monkeypatch):
    """What is committed decides, not what this checkout has computed."""
    monkeypatch.setattr(config, "RESULTS", tmp_path)


@cache
def text_of(page: str) -> str:
    """A page on one line, without its links' targets."""
    if page.endswith(".md"):
        text = (CHECKOUT / page).read_text(encoding="utf-8")
    else:
        cells = nbformat.read(CHECKOUT / "notebooks" / page, as_version=4).cells
        text = "\n\n".join(cell.source for cell in cells if cell.cell_type == "markdown")
    return re.sub(r"\s+", " ", text)


# ---- notebook 01


def observed(model: str, quantity: str) -> pd.DataFrame:
    """What was observed in the trained model as it read texts, but for the repeated tokens."""
    rows = data.tidy("small", "similarity", quantity)
    return rows.query("model == @model and method == 'trained' and task != 'repeated-tokens'")


def by_layer(rows: pd.DataFrame) -> np.ndarray:
    """The values of rows with one number a layer, from the bottom up, ``(layers,)``."""
    rows = rows.sort_values("layer")
    assert rows["layer"].tolist() == list(range(len(rows)))
    return rows["value"].to_numpy(float)


def rank_of_the_top_layer(model: str) -> tuple[int, int]:
    """Rank of the top layer by block influence (1: the highest), and the number of layers."""
    rows = observed(model, "block influence")
    assert len(set(rows.groupby("layer").size())) == 1  # all documents of both texts
    means = rows.groupby("layer")["value"].mean().to_numpy()  # (layers,)
    return int((means > means[-1]).sum()) + 1, len(means)


@finding(
    "01_similarity.ipynb",
    "The top layer ranks {} of {} on SmolLM2 135M, where it turns its tokens nearly most, but {}"
    " of {} on Gemma-3 270M and {} of {} on Qwen-Coder 0.5B.",
)
def top_layers():
    numbers = []
    for model in MODELS:
        numbers += rank_of_the_top_layer(model)
    return numbers


def factors(model: str) -> np.ndarray:
    """The factor v of Lemma 2 in every layer, ``(layers,)``."""
    return by_layer(observed(model, "v"))


@finding(
    "01_similarity.ipynb",
    "On Gemma-3 270M v is below 1 in {} of {} layers, and on the text that v was computed on "
    "d(H) shrinks in none of them, because Lemma 2 is about post-norm blocks, which these models"
    " do not have.",
)
def small_factors():
    v = factors(GEMMA)
    distances = observed(GEMMA, "distance")
    read = distances.query("corpus == 'wikitext' and document == 0")  # what v is computed on
    change = np.diff(by_layer(read))  # (layers,)
    assert not (change[v < 1] < 0).any()
    return (v < 1).sum(), len(v)


@finding(
    "01_similarity.ipynb",
    "On SmolLM2 135M and Qwen-Coder 0.5B v is above {} in every layer, so the lemma says nothing"
    " there.",
)
def large_factors():
    least = min(factors(SMOLLM).min(), factors(CODER).min())
    return [int(least // 100 * 100)]


@finding(
    "01_similarity.ipynb",
    "No trained head is nearly uniform (an entropy of {} or more) on any of the three models.",
)
def uniform_heads():
    bound = 0.95
    shares = {}
    for model in MODELS:
        for method in ("trained", "random"):
            heads = data.tidy("small", "similarity", "entropy")
            heads = heads.query(
                "model == @model and method == @method and task != 'repeated-tokens'"
            )
            means = heads.groupby(["layer", "head"])["value"].mean()
            shares[model, method] = (means >= bound).mean()
    assert [shares[model, "trained"] for model in MODELS] == [0, 0, 0]
    assert [shares[model, "random"] for model in MODELS] == [1, 0, 1]  # all, none on Gemma, all
    return [bound]


# ---- notebook 03


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


# ---- notebook 04


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


# ---- README


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


@finding(
    "docs/results.md",
    "At equal heads HARP has the lowest perplexity on Gemma: {:.1f}, where the baselines have "
    "{:.1f} to {:.1f}.",
)
def equal_heads():
    baselines = [perplexity_of(GEMMA, method) for method in BASELINES]
    assert perplexity_of(GEMMA, "harp") < min(baselines)
    for model in (SMOLLM, CODER):
        assert perplexity_of(model, "harp") > min(
            perplexity_of(model, method) for method in BASELINES
        )
    return perplexity_of(GEMMA, "harp"), min(baselines), max(baselines)


@finding(
    "docs/results.md",
    "At equal parameters HARP+FLAP has a lower perplexity than the best baseline on no model: "
    "{:.1f} against {:.1f} on Gemma, {:.1f} against {:.1f} on the coder and {:.1f} against "
    "{:.1f} on SmolLM2.",
)
def equal_parameters():
    numbers = []
    for model in (GEMMA, CODER, SMOLLM):
        for corpus in ("python-docs", "wikitext"):  # on either text
            ours = perplexity_of(model, "harp+flap", corpus)
            best = min(perplexity_of(model, method, corpus) for method in BASELINES)
            assert ours > best
        numbers += [ours, best]
    return numbers


@finding(
    "docs/results.md",
    "On the coder HARP has a higher perplexity on WikiText-2 than the baselines, and yet keeps "
    "most of what the dense model",
)
def coder_against_the_baselines():
    assert perplexity_of(CODER, "harp") > max(perplexity_of(CODER, method) for method in BASELINES)
    stored = data.cells("small", "main_tables")
    scores = {}
    for method in ("dense", "harp", *BASELINES):
        answers = data.answered(stored[CODER, method, "bbh_cot_fewshot"]["result"])
        scores[method] = np.mean(answers)
    assert scores["harp"] > 0.75 * scores["dense"]
    assert max(scores[method] for method in BASELINES) < 0.05
    return []


@finding(
    "docs/results.md",
    "But the dense model itself is not shown to be above chance there: it scores {:.1f} % on {} "
    "questions, and a guess in the right form scores {:.1f} %.",
)
def guessing_on_bbh():
    result = data.cells("small", "main_tables")[CODER, "dense", "bbh_cot_fewshot"]["result"]
    answers = data.answered(result)
    chances = data.answered(result, "chance")
    assert comparisons.floor(answers, chances) is not None
    return 100 * np.mean(answers), len(answers), 100 * np.mean(chances)


def lead_on_piqa(model: str, baseline: str) -> comparisons.Interval:
    """By how many points HARP+FLAP scores higher than a baseline."""
    stored = data.cells("small", "main_tables")
    ours = data.answered(stored[model, "harp+flap", "piqa"]["result"])
    theirs = data.answered(stored[model, baseline, "piqa"]["result"])
    return comparisons.paired_difference([(ours, theirs)]) * 100


@finding(
    "docs/results.md",
    "Where answers are chosen, the dense models are above chance on one of six tasks only, PIQA."
    " There HARP+FLAP is {:.0f} points behind Mag-sp on Gemma, and no difference to a baseline "
    "is significant on the other two models.",
)
def multiple_choice():
    stored = data.cells("small", "main_tables")
    choosing = [task for task, benchmark in BENCHMARKS.items() if benchmark.choices]
    assert len(choosing) == 6
    for model in MODELS:
        above_chance = []
        for task in choosing:
            result = stored[model, "dense", task]["result"]
            chances = data.answered(result, "chance")
            if comparisons.floor(data.answered(result), chances) is None:
                above_chance.append(task)
        assert above_chance == ["piqa"]
    for model in (SMOLLM, CODER):
        for baseline in BASELINES:
            lead = lead_on_piqa(model, baseline)
            assert lead.low < 0 < lead.high
    behind = lead_on_piqa(GEMMA, "mag-sp")
    assert behind.high < 0
    return [-behind.value]


@finding(
    "docs/results.md",
    "counting baselines that make the same plan once, HARP+FLAP leads a baseline in {} of {} "
    "comparisons and is led in {}. The {} are all on BBH, with the coder.",
)
def comparisons_task_by_task():
    number = 0
    leads = []
    led = []
    for model, task, difference in differences_to_baselines():
        number += 1
        if difference.low > 0:
            leads.append((model, task))
        if difference.high < 0:
            led.append((model, task))
    assert set(leads) == {(CODER, "bbh_cot_fewshot")}
    return len(leads), number, len(led), len(leads)


def differences_to_baselines() -> Iterator[tuple[str, str, comparisons.Interval]]:
    """How much higher HARP+FLAP scores than each distinct baseline, by model and task."""
    stored = data.cells("small", "main_tables")
    plans = data.cells("small", "baselines")
    for model in MODELS:
        distinct = {}  # the last one of the baselines that make a plan
        for baseline in BASELINES:
            plan = plans[model, baseline, "plan"]["result"]["plan"]
            distinct[json.dumps(plan["layers"])] = baseline
        for task in BENCHMARKS:
            for baseline in distinct.values():
                ours = stored.get((model, "harp+flap", task))
                theirs = stored.get((model, baseline, task))
                if ours is None or theirs is None:  # not asked
                    continue
                scores = (data.answered(ours["result"]), data.answered(theirs["result"]))
                if None in scores or not any(scores[0] + scores[1]):  # failed, or all zero
                    continue
                yield model, task, comparisons.paired_difference([scores])


def prefill(
    model: str, variant: str, against: str = "dense", length: int = 4096
) -> comparisons.Interval:
    """Time of reading so many tokens, as a multiple of another variant's."""
    rows = data.tidy("small", "efficiency", "seconds")
    rows = rows.query("model == @model and kind == 'prefill' and length == @length")
    seconds = rows.pivot_table("value", "repetition", "variant")
    return comparisons.time_ratio(seconds[against], seconds[variant])


@finding(
    "docs/results.md",
    "HARP+FLAP has {:.1f} on WikiText-2 and {:.1f} on the Python documentation, where the best "
    "baselines have {:.1f} and {:.1f}.",
)
def channels_taken_evenly():
    corpora = ("wikitext", "python-docs")
    numbers = [perplexity_of(GEMMA, "harp+flap-even", corpus) for corpus in corpora]
    for corpus in corpora:
        numbers.append(min(perplexity_of(GEMMA, method, corpus) for method in BASELINES))
    return numbers


@finding(
    "docs/results.md",
    "Plain HARP takes {:.2f} times the dense model's time on Gemma. On the coder and on SmolLM2 "
    "the interval includes 1, so no saving is shown. Against the model that is thinned out "
    "evenly, no difference is shown on any of the three.",
)
def time_of_plain_harp():
    for model in (CODER, SMOLLM):
        assert prefill(model, "harp").low < 1 < prefill(model, "harp").high
    for model in MODELS:
        assert prefill(model, "harp", "thinned").low < 1 < prefill(model, "harp", "thinned").high
    assert prefill(GEMMA, "harp").high < 1
    return [prefill(GEMMA, "harp").value]


@finding(
    "docs/results.md",
    "With it the time is {:.2f} times the dense model's on Gemma and {:.2f} times on the coder; "
    "on SmolLM2 the interval still includes 1.",
)
def time_of_tail_only_prefill():
    assert prefill(GEMMA, "harp-tail").high < 1
    assert prefill(CODER, "harp-tail").high < 1
    assert prefill(SMOLLM, "harp-tail").low < 1 < prefill(SMOLLM, "harp-tail").high
    return prefill(GEMMA, "harp-tail").value, prefill(CODER, "harp-tail").value


# ---- the front page


def against_the_searched_alpha(model: str, rule: str) -> comparisons.Interval:
    """Change of held-out perplexity if alpha is chosen by another rule than by the search."""
    rows = data.documents("small", "norm_change").query("model == @model")
    nll = rows.pivot_table("nll", "document", "method")
    tokens = rows.query("method == 'searched'").set_index("document")["tokens"]
    return comparisons.change(nll["searched"], nll[rule], tokens)


@finding(
    "README.md",
    "With α = 1 held-out perplexity is {:.0f} %, {:.0f} % and {:.0f} % higher than with the "
    "searched α. An α fitted by least squares to the attention branch cannot be told apart from "
    "the searched one on any of the three models, on {} documents",
)
def no_search_is_needed():
    numbers = []
    for model in MODELS:
        low, high = against_the_searched_alpha(model, "reconstructing")[1:3]
        assert low < 0 < high
        value, low, _ = against_the_searched_alpha(model, "alpha-1")[:3]
        assert low > 0
        numbers.append(100 * value)
    documents = data.documents("small", "norm_change")["document"].nunique()
    return [*numbers, documents]


@finding(
    "README.md",
    "No trained head is close to uniform, and on two of three models the searched α takes the "
    "norm further from the dense model's",
)
def the_reason():
    judged = claims.judge(config.load_profile("small"))
    restored = judged[judged["id"] == "norm-restored"].set_index("model")["high"]
    assert sorted(restored.index[restored < 0]) == sorted([GEMMA, CODER])
    uniform_heads()  # asserts that none is, in any layer
    return []


@finding(
    "README.md",
    "It has a higher perplexity than the best baseline on Gemma and on the coder; on SmolLM2 the "
    "difference is within noise. On Gemma the cause is FLAP's choice of FFN channels: with "
    "channels taken evenly from all layers HARP+FLAP has a lower perplexity on WikiText-2 than "
    "the best baseline",
)
def best_baselines():
    judged = claims.judge(config.load_profile("small"), "04")
    judged = judged[judged["id"] == "perplexity-parameters"].set_index("model")["outcome"]
    assert judged[GEMMA] == judged[CODER] == Outcome.NOT
    assert judged[SMOLLM] == Outcome.INCONCLUSIVE
    even = perplexity_of(GEMMA, "harp+flap-even")
    assert even < min(perplexity_of(GEMMA, method) for method in BASELINES)
    return []


@finding(
    "README.md",
    "reading 1,024 tokens takes less time than in the thinned model on Gemma and on the coder; at "
    "4,096 tokens the intervals are too wide to tell",
)
def tail_only_prefill_against_thinned():
    for model in MODELS:
        assert prefill(model, "harp", "thinned", 1024).high > 1
        longer = prefill(model, "harp-tail", "thinned")
        assert longer.low < 1 < longer.high
    assert prefill(GEMMA, "harp-tail", "thinned", 1024).high < 1
    assert prefill(CODER, "harp-tail", "thinned", 1024).high < 1
    return []


@finding(
    "README.md",
    "Fitted on WikiText-2, it has a lower perplexity than HARP on other pages of WikiText-2 on all "
    "three models; on the Python documentation it does so on SmolLM2 alone",
)
def refit_against_harp():
    frame = figures_harp.changes({"name": "small"}, "harp").query("kind == 'harp+refit'")
    fewest = frame["layers"] == frame.groupby("model")["layers"].transform("min")
    high = frame[fewest].pivot_table("high", "model", "corpus")
    assert (high["wikitext"] < 1).all()
    assert high.index[high["python-docs"] < 1].tolist() == [SMOLLM]
    return []


# ---- the tests


@pytest.mark.parametrize(
    ("page", "sentence", "numbers"),
    FINDINGS,
    ids=[numbers.__name__ for _, _, numbers in FINDINGS],
)
def test_a_finding_has_the_stored_numbers(page, sentence, numbers):
    expected = sentence.format(*numbers())
    assert expected in text_of(page), f"by the stored cells {page} should say: {expected}"


def authored_paragraphs(file: Path) -> Iterator[str]:
    """What an author wrote in a notebook as a finding, each on one line."""
    for cell in nbformat.read(file, as_version=4).cells:
        if cell.cell_type == "markdown" and AUTHORED in cell.source:
            beginning = cell.source.index(AUTHORED)
            paragraph, _, _ = cell.source[beginning:].partition("\n#")
            yield re.sub(r"\s+", " ", paragraph)


def test_every_number_of_an_authored_paragraph_is_compared():
    """A paragraph that begins as a finding holds no number outside of the sentences above."""
    for file in sorted((CHECKOUT / "notebooks").glob("*.ipynb")):
        compared = []
        for page, sentence, numbers in FINDINGS:
            if page == file.name:
                compared.append(sentence.format(*numbers()))
        for paragraph in authored_paragraphs(file):
            rest = paragraph
            for sentence in compared:
                rest = rest.replace(sentence, "")
            rest = re.sub(r"SmolLM2 135M|Gemma-3 270M|Qwen-Coder [\d.]+B|Lemma \d", "", rest)
            message = f"{file.name}: no test compares the numbers of: {rest}"
            assert not re.search(r"\d", rest), message
