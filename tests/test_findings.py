"""Findings that an author wrote, in README and notebooks: their numbers are compared with the
stored cells of small.

A finding is a sentence with ``{}`` in the place of its numbers, and a function that reads these
numbers from ``data/reference/small``. The page has to hold the sentence with exactly these numbers.
To add one, write the sentence on the page, then add it here under ``@finding``. The function also
asserts what the sentence says in words.
"""

import json
import re
from functools import cache

import nbformat
import numpy as np
import pytest
from helpers import CHECKOUT

from harp_lib import config
from harp_lib.evaluation.benchmarks import BENCHMARKS
from harp_lib.names import BASELINES
from harp_lib.report import comparisons, data

SMOLLM, GEMMA, CODER = "smollm2-135m", "gemma3-270m", "qwen2.5-coder-0.5b"
MODELS = (SMOLLM, GEMMA, CODER)
FINDINGS = []
AUTHORED = "**What we found** (profile `small`)."  # how a finding begins in a notebook


def finding(page: str, sentence: str):
    """Register a sentence of a page; the function gives the numbers in it, in their order and as
    they are written.
    """

    def register(numbers):
        FINDINGS.append(pytest.param(page, sentence, numbers, id=numbers.__name__))
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


def stored_numbers(model: str, quantity: str) -> np.ndarray:
    """Of the trained model: (documents, layers, …), the documents of all texts together."""
    cells = data.cells("small", "similarity")
    found = []
    for (name, method, task), cell in cells.items():
        if (
            (name, method) == (model, "trained")
            and task != "repeated-tokens"
            and quantity in cell["result"]
        ):
            found.append(np.array(cell["result"][quantity], dtype=float))
    return np.concatenate(found)


def rank_of_the_top_layer(model: str) -> tuple[int, int]:
    """Of a model's layers by block influence, where the top one stands (1: most), and how many
    there are.
    """
    means = stored_numbers(model, "block influence").mean(axis=0)  # (layers,)
    return int((means > means[-1]).sum()) + 1, len(means)


@finding(
    "01_similarity.ipynb",
    "The top layer ranks {} of {} on SmolLM2 135M, where it turns its tokens nearly most, but {} of {} on Gemma-3 270M "
    "and {} of {} on Qwen-Coder 0.5B.",
)
def top_layers():
    return [number for model in MODELS for number in rank_of_the_top_layer(model)]


def factors(model: str) -> np.ndarray:
    """The factor v of Lemma 2 in every layer, (layers,)."""
    return np.array(
        data.cells("small", "similarity")[model, "trained", "block-bound"]["result"]["v"]
    )


@finding(
    "01_similarity.ipynb",
    "On Gemma-3 270M v is below 1 in {} of {} layers, and on the text that v was computed on d(H) shrinks in none of "
    "them, because Lemma 2 is about post-norm blocks, which these models do not have.",
)
def small_factors():
    v = factors(GEMMA)
    read = data.cells("small", "similarity")[GEMMA, "trained", "wikitext"]["result"]
    distances = np.array(
        read["distance"][0]
    )  # of the document that v is computed on: (layers + 1,)
    assert not (np.diff(distances)[v < 1] < 0).any()
    return (v < 1).sum(), len(v)


@finding(
    "01_similarity.ipynb",
    "On SmolLM2 135M and Qwen-Coder 0.5B v is above {} in every layer, so the lemma says nothing there.",
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
    "α differs by up to {:.1f} on SmolLM2, {:.1f} on Gemma and {:.1f} on the coder, and held-out perplexity changes by "
    "{} to {} %. An α of the other corpus changes it by {} to {} %, with one exception: on SmolLM2 the α of WikiText-2 "
    "costs {:.1f} % on the Python documentation. So on Gemma and on the coder α carries over to another kind of text "
    "as well as it does to another sample of the same text, as the paper says. On SmolLM2 it does so in one direction "
    "only.",
)
def noise_of_the_search():
    stored = data.cells("small", "alpha_search")
    corpora = ("wikitext", "python-docs")
    moved, resampled, carried = [], [], {}
    for model in (SMOLLM, GEMMA, CODER):
        differences = []
        for corpus, other in (corpora, corpora[::-1]):
            searches = [
                stored[model, name, f"search-{corpus}"]["result"]["alphas"]
                for name in ("harp", "harp-resampled")
            ]
            differences.append(np.abs(np.subtract(*searches)).max())
            text = f"{corpus}-validation"
            own = stored[model, f"searched-on-{corpus}", text]["result"]
            for plan in (f"resampled-on-{corpus}", f"searched-on-{other}"):
                changed = stored[model, plan, text]["result"]
                change = 100 * comparisons.change(own["nll"], changed["nll"], own["tokens"]).value
                if plan.startswith("resampled"):
                    resampled.append(change)
                else:
                    carried[model, corpus] = change
        moved.append(max(differences))
    exception = carried.pop((SMOLLM, "python-docs"))
    assert max(carried.values()) < max(resampled) < exception
    ends = min(resampled), max(resampled), min(carried.values()), max(carried.values())
    return [*moved, *(f"{end:+.1f}".replace("-", "−") for end in ends), exception]


# ---- notebook 04


@finding(
    "04_baselines.ipynb",
    "takes {:,} of {:,} channels from three layers. Taken evenly, the same number of channels gives a perplexity "
    "of {:.1f} on WikiText-2 instead of {:.1f}, which is below the best baseline's {:.1f}; on the Python documentation "
    "it is {:.1f} instead of {:.1f}, and the best baseline has {:.1f}.",
)
def channels_of_gemma():
    plan = data.cells("small", "baselines")[GEMMA, "harp+flap", "plan"]["result"]["plan"]
    lost = sorted(len(layer.get("removed_channels", ())) for layer in plan["layers"])
    numbers = [sum(lost[-3:]), sum(lost)]
    for corpus in ("wikitext", "python-docs"):
        numbers += [
            perplexity_of(GEMMA, method, corpus) for method in ("harp+flap-even", "harp+flap")
        ]
        numbers.append(min(perplexity_of(GEMMA, method, corpus) for method in BASELINES))
    return numbers


@finding(
    "04_baselines.ipynb",
    "on the coder perplexity rises by {:.0f} %, and on SmolLM2 it stays the same on WikiText-2 and rises by {:.0f} % "
    "on the Python documentation.",
)
def channels_of_the_others():
    changes = {}
    for model in (CODER, SMOLLM):
        for corpus in ("wikitext", "python-docs"):
            stored = data.cells("small", "baselines")
            ours, even = (
                stored[model, m, f"{corpus}-validation"]["result"]
                for m in ("harp+flap", "harp+flap-even")
            )
            changes[model, corpus] = (
                comparisons.change(ours["nll"], even["nll"], ours["tokens"]) * 100
            )
    assert all(changes[CODER, corpus].low > 0 for corpus in ("wikitext", "python-docs"))
    same = changes[SMOLLM, "wikitext"]
    assert same.low < 0 < same.high
    assert changes[SMOLLM, "python-docs"].low > 0
    return changes[CODER, "wikitext"].value, changes[SMOLLM, "python-docs"].value


# ---- README


def perplexity_of(model: str, method: str, corpus: str = "wikitext") -> float:
    """Perplexity on held-out text."""
    result = data.cells("small", "baselines")[model, method, f"{corpus}-validation"]["result"]
    return np.exp(sum(result["nll"]) / sum(result["tokens"]))


@finding(
    "README.md",
    "At equal heads HARP has the lowest perplexity on Gemma: {:.1f}, where the baselines have {:.1f} to {:.1f}.",
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
    "README.md",
    "At equal parameters HARP+FLAP has a lower perplexity than the best baseline on no model: {:.1f} against {:.1f} on "
    "Gemma, {:.1f} against {:.1f} on the coder and {:.1f} against {:.1f} on SmolLM2.",
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
    "README.md",
    "On the coder HARP has a higher perplexity on WikiText-2 than the baselines, and yet keeps most of what the dense "
    "model",
)
def coder_against_the_baselines():
    assert perplexity_of(CODER, "harp") > max(perplexity_of(CODER, method) for method in BASELINES)
    stored = data.cells("small", "main_tables")
    methods = ("dense", "harp", *BASELINES)
    answers = [data.answered(stored[CODER, name, "bbh_cot_fewshot"]["result"]) for name in methods]
    dense, harp, *baselines = (np.mean(scores) for scores in answers)
    assert harp > 0.75 * dense
    assert max(baselines) < 0.05
    return []


@finding(
    "README.md",
    "But the dense model itself is not shown to be above chance there: it scores {:.1f} % on {} questions, and a guess "
    "in the right form scores {:.1f} %.",
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
    ours, theirs = (
        data.answered(stored[model, name, "piqa"]["result"]) for name in ("harp+flap", baseline)
    )
    return comparisons.paired_difference([(ours, theirs)]) * 100


@finding(
    "README.md",
    "Where answers are chosen, the dense models are above chance on one of six tasks only, PIQA. There HARP+FLAP is "
    "{:.0f} points behind Mag-sp on Gemma, and no difference to a baseline is significant on the other two models.",
)
def multiple_choice():
    stored = data.cells("small", "main_tables")
    choosing = [task for task, benchmark in BENCHMARKS.items() if benchmark.choices]
    assert len(choosing) == 6
    for model in MODELS:
        results = {task: stored[model, "dense", task]["result"] for task in choosing}
        above = [
            task
            for task, result in results.items()
            if comparisons.floor(data.answered(result), data.answered(result, "chance")) is None
        ]
        assert above == ["piqa"]
    for model in (SMOLLM, CODER):
        for baseline in BASELINES:
            lead = lead_on_piqa(model, baseline)
            assert lead.low < 0 < lead.high
    behind = lead_on_piqa(GEMMA, "mag-sp")
    assert behind.high < 0
    return [-behind.value]


@finding(
    "README.md",
    "counting baselines that make the same plan once, HARP+FLAP leads a baseline in {} of {} comparisons and is led in "
    "{}. The {} are all on BBH, with the coder.",
)
def comparisons_task_by_task():
    scores = {
        key: data.answered(cell["result"])
        for key, cell in data.cells("small", "main_tables").items()
    }
    plans = data.cells("small", "baselines")
    leads, number, led = [], 0, 0
    for model in MODELS:
        distinct = {
            json.dumps(plans[model, name, "plan"]["result"]["plan"]["layers"]): name
            for name in BASELINES
        }
        for task in BENCHMARKS:
            for method in distinct.values():
                ours, theirs = (
                    scores.get((model, "harp+flap", task)),
                    scores.get((model, method, task)),
                )
                if ours is None or theirs is None or not any(ours + theirs):
                    continue  # not asked, or both scored zero on all questions
                difference = comparisons.paired_difference([(ours, theirs)])
                number += 1
                led += difference.high < 0
                if difference.low > 0:
                    leads.append((model, task))
    assert set(leads) == {(CODER, "bbh_cot_fewshot")}
    return len(leads), number, led, len(leads)


def prefill(model: str, variant: str, against: str = "dense") -> comparisons.Interval:
    """Time of reading 4,096 tokens, as a multiple of another variant's."""
    seconds = data.cells("small", "efficiency")[model, "all", "prefill-4096"]["result"]["seconds"]
    return comparisons.time_ratio(seconds[against], seconds[variant])


@finding(
    "README.md",
    "HARP+FLAP has {:.1f} on WikiText-2 and {:.1f} on the Python documentation, where the best baselines have {:.1f} "
    "and {:.1f}.",
)
def channels_taken_evenly():
    corpora = ("wikitext", "python-docs")
    ours = [perplexity_of(GEMMA, "harp+flap-even", corpus) for corpus in corpora]
    return ours + [
        min(perplexity_of(GEMMA, method, corpus) for method in BASELINES) for corpus in corpora
    ]


@finding(
    "README.md",
    "Plain HARP takes {:.2f} times the dense model's time on Gemma. On the coder and on SmolLM2 the interval includes "
    "1, so no saving is shown. Against the model that is thinned out evenly, no difference is shown on any of the "
    "three.",
)
def time_of_plain_harp():
    for model in (CODER, SMOLLM):
        assert prefill(model, "harp").low < 1 < prefill(model, "harp").high
    for model in MODELS:
        assert prefill(model, "harp", "thinned").low < 1 < prefill(model, "harp", "thinned").high
    assert prefill(GEMMA, "harp").high < 1
    return [prefill(GEMMA, "harp").value]


@finding(
    "README.md",
    "With it the time is {:.2f} times the dense model's on Gemma and {:.2f} times on the coder; on SmolLM2 the "
    "interval still includes 1.",
)
def time_of_tail_only_prefill():
    assert prefill(GEMMA, "harp-tail").high < 1
    assert prefill(CODER, "harp-tail").high < 1
    assert prefill(SMOLLM, "harp-tail").low < 1 < prefill(SMOLLM, "harp-tail").high
    return prefill(GEMMA, "harp-tail").value, prefill(CODER, "harp-tail").value


# ---- the tests


@pytest.mark.parametrize(("page", "sentence", "numbers"), FINDINGS)
def test_a_finding_has_the_stored_numbers(page, sentence, numbers):
    expected = sentence.format(*numbers())
    assert expected in text_of(page), f"by the stored cells {page} should say: {expected}"


def test_every_number_of_an_authored_paragraph_is_compared():
    """A paragraph that begins as a finding holds no number outside of the sentences above."""
    for file in sorted((CHECKOUT / "notebooks").glob("*.ipynb")):
        checked = [
            param.values[1].format(*param.values[2]())
            for param in FINDINGS
            if param.values[0] == file.name
        ]
        for cell in nbformat.read(file, as_version=4).cells:
            if cell.cell_type != "markdown" or AUTHORED not in cell.source:
                continue
            rest = re.sub(
                r"\s+", " ", cell.source[cell.source.index(AUTHORED) :].partition("\n#")[0]
            )
            for sentence in checked:
                rest = rest.replace(sentence, "")
            rest = re.sub(r"SmolLM2 135M|Gemma-3 270M|Qwen-Coder [\d.]+B|Lemma \d", "", rest)
            assert not re.search(r"\d", rest), (
                f"{file.name}: no test compares the numbers of: {rest}"
            )
