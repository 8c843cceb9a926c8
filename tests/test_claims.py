"""The tests of claims in three made-up worlds, in which every claim is right, wrong or open."""

import numpy as np
import pandas as pd
import pytest

from harp_lib.evaluation.benchmarks import ALL_BENCHMARKS, BENCHMARKS, LONGBENCH
from harp_lib.experiments.texts import document_rows
from harp_lib.names import BASELINES
from harp_lib.report import claims, data
from harp_lib.report.claims import score_tests
from harp_lib.report.claims.findings import Finding, Outcome
from harp_lib.report.claims.registry import LIKELIHOOD_TESTS, TESTS
from harp_lib.results import columns_of

RIGHT = Outcome.REPRODUCED
WRONG = Outcome.NOT
OPEN = Outcome.INCONCLUSIVE
MODEL = "meta-llama/Llama-3.1-8B"  # so that claims about the paper's models are judged
DOCUMENTS = 8
LAYERS = 10
CORPORA = ("python-docs", "scipy-docs")
CLAIMS = {claim["id"]: claim for claim in claims.load_claims()}
JUDGED = [name for name, claim in CLAIMS.items() if claim["kind"] in ("measured", "ours")]
UP = np.linspace(0.1, 1, LAYERS + 1)
DOWN = np.linspace(1, 0.1, LAYERS + 1)
SIGNS = np.resize([1.0, -1.0], DOCUMENTS)  # documents that disagree
ELSEWHERE = {  # claims that cannot be all three in these worlds
    "alpha-alike",
    "lemma-2-use",
    "pruning-changes-norm",
    "similarity-near-top",
}


def cell(rows=(), fields=None, **coordinates):
    """A stored cell of made-up rows; ``fields`` stand beside the rows."""
    result = {"rows": columns_of(rows), **(fields or {})}
    return {"inputs": {}, "coordinates": coordinates, "result": result}


def by_layer(quantity, documents):
    """Rows of a quantity that is given by document and layer."""
    return [
        {"quantity": quantity, "document": document, "layer": layer, "value": value}
        for document, layers in enumerate(documents)
        for layer, value in enumerate(layers)
    ]


def nll(level, wave=0.01):
    """Documents whose log perplexity is ``level`` higher; on a ``wave`` around it they disagree."""
    values = 300 + np.arange(DOCUMENTS) + 100 * (level + wave * SIGNS)
    return document_rows(values.tolist(), [100] * DOCUMENTS)


def scores(rate, number, measure="margin"):
    """Questions of which a method gets the easier ones right, with the more likely answers."""
    right = [float(i < rate * number) for i in range(number)]
    likelihoods = {
        "margin": [2 * score - 1 for score in right],
        "bits_per_byte": [2 - score for score in right],
    }
    rows = {
        "subtask": ["all"] * number,
        "question": list(range(number)),
        "chance": [0.1] * number,
        "score": right,
        measure: likelihoods[measure],
    }
    return {"inputs": {}, "coordinates": {}, "result": {"rows": rows}}


def documents(right, wrong, world):
    """What a document has: in the open world one half of them is right and one half wrong."""
    rows = []
    for sign in SIGNS:
        is_right = world == RIGHT or (world == OPEN and sign > 0)
        rows.append(list(right if is_right else wrong))
    return rows


def main_tables(world):
    rates = {  # on generation and on discriminative tasks
        RIGHT: {
            "harp": (0.7, 0.9),
            "harp+flap": (0.7, 0.9),
            "top": (0.2, 0.6),
            "other": (0.1, 0.7),
        },
        WRONG: {
            "harp": (0.6, 0.5),
            "harp+flap": (0.3, 0.7),
            "top": (1, 0.9),
            "other": (0.95, 0.8),
        },
        OPEN: {"other": (0.95, 0.95)},
    }[world]
    rates_of_harp = {
        RIGHT: {"gsm8k": 0.5, "triviaqa": 0.9},
        WRONG: {"gsm8k": 0.9, "triviaqa": 0.3},
        OPEN: {},
    }[world]
    number = 30 if world == OPEN else 100
    results = {}
    for method in ("dense", "harp", "harp+flap", "top", *BASELINES):
        for task, benchmark in BENCHMARKS.items():
            generation, discriminative = rates.get(method, rates["other"])
            rate = discriminative if benchmark.kind == "discriminative" else generation
            if method == "dense":
                rate = 0.95
            if method == "harp":
                rate = rates_of_harp.get(task, rate)
            results[method, task] = scores(rate, number)
    return results


def likelihoods(world):
    """The same questions where answers are written: bits per byte of the reference answer."""
    results = {}
    for store in (main_tables(world), ablations(world), longbench(world)):
        for (method, task), stored in store.items():
            if task in ALL_BENCHMARKS and not ALL_BENCHMARKS[task].choices:
                right = stored["result"]["rows"]["score"]
                rate = sum(right) / len(right)
                results[method, task] = scores(rate, len(right), "bits_per_byte")
    return results


def ablations(world):
    results = {}
    for (method, task), result in main_tables(world).items():
        if method == "top":
            results[method, task] = result
    rate = {RIGHT: 0.3, WRONG: 1.0, OPEN: 0.95}[world]
    for method in ("bottom", "hessian", "similarity"):
        for task in BENCHMARKS:
            results[method, task] = scores(rate, 30 if world == OPEN else 100)
    picked = {RIGHT: [8, 9], WRONG: [0, 1], OPEN: [0, 9]}[world]
    results["similarity", "selection"] = cell(fields={"layers": picked})
    results["top", "selection"] = cell(fields={"layers": [8, 9]})
    for document, costs in enumerate(documents(DOWN, UP, world)):
        rows = [
            {"quantity": "nll", "layer": layer, "alpha": alpha, "value": value}
            for layer, value in enumerate(costs)
            for alpha in (1.0, 0.0)
        ]
        results["single-layer", f"document-{document:02}"] = cell(rows, document=document)
    return results


def rates_on_longbench(world, task, place):
    """The rates at which HARP+FLAP and Mag-sp are right on a task."""
    if "multifield" in task:
        return {RIGHT: (0.6, 0.95), WRONG: (0.9, 0.2), OPEN: (0.8, 0.8)}[world]
    if world == OPEN:
        return (0.7, 0.9) if place % 2 == 0 else (0.9, 0.7)
    if "hotpot" in task or "2wiki" in task:  # questions of several hops
        return {RIGHT: (0.95, 0.1), WRONG: (0.2, 0.99)}[world]
    return {RIGHT: (0.6, 0.3), WRONG: (0.5, 0.9)}[world]


def longbench(world):
    number = 20 if world == OPEN else 60
    results = {}
    for place, task in enumerate(LONGBENCH):
        ours, mag = rates_on_longbench(world, task, place)
        rates = {"dense": 0.95, "harp+flap": ours, "mag-sp": mag}
        for method in ("dense", "harp+flap", *BASELINES):
            results[method, task] = scores(rates.get(method, 0.05), number)
    return results


def search(corpus, alphas):
    """A search that found these alphas, the top layer's first."""
    rows = [
        {"quantity": "alpha", "layer": LAYERS - 1 - depth, "value": float(alpha)}
        for depth, alpha in enumerate(alphas)
    ]
    return cell(rows, corpus=corpus)


def alpha_search(world):
    level, level_of_other = {RIGHT: (0.3, 0), WRONG: (-0.3, 0.3), OPEN: (0, 0.05)}[world]
    wave = 0.3 if world == OPEN else 0.01
    alphas = {RIGHT: DOWN[:8], WRONG: UP[:8], OPEN: [0.1, 0.8, 0.3, 0.6, 0.5, 0.4, 0.7, 0.2]}[world]
    results = {}
    for corpus, other in (CORPORA, CORPORA[::-1]):
        plans = {
            "dense": nll(-1),
            "alpha-1": nll(level, -wave),
            f"searched-on-{corpus}": nll(0),
            f"resampled-on-{corpus}": nll(level_of_other, wave),
            f"searched-on-{other}": nll(level_of_other, wave),
        }
        for split in ("test", "validation"):
            for plan, rows in plans.items():
                results[plan, f"{corpus}-{split}"] = cell(rows, corpus=corpus, split=split)
        searched = list(alphas)
        if world == OPEN and corpus == "scipy-docs":
            searched.reverse()
        results["harp", f"search-{corpus}"] = search(corpus, searched)
    return results


def baselines(world):
    level, wave = {RIGHT: (0.3, 0.01), WRONG: (-0.3, 0.01), OPEN: (0, 0.3)}[world]
    results = {}
    for method in ("dense", "harp", "harp+flap", *BASELINES):
        for corpus in CORPORA:
            rows = nll(level, wave) if method in BASELINES else nll(0)
            of_text = cell(rows, corpus=corpus, split="validation")
            results[method, f"{corpus}-validation"] = of_text
    in_printed_range, in_another = {
        RIGHT: (nll(0), nll(0.2)),
        WRONG: (nll(0.3), nll(0)),
        OPEN: (nll(0.05, 0.2), nll(0)),
    }[world]
    for row in data.paper("layer_ranges").query("model == 'LLaMA3.1-8B'").itertuples():
        for (start, end), rows in (
            ((row.start, row.end), in_printed_range),
            ((1, 17), in_another),
        ):
            tried = cell(rows, corpus=CORPORA[0], split="test", start=start, end=end)
            results[row.method, f"range-{start:02}-{end:02}"] = tried
    return results


def similarity(world):
    alike = documents(UP, DOWN if world == WRONG else 0.9 + DOWN / 20, world)
    entropy = documents(
        [0.99 if world == RIGHT else 1.0] * LAYERS,
        [0.3 if world == WRONG else 0.9] * LAYERS,
        world,
    )
    trained = {
        "similarity": alike,
        "projected similarity": [row[1:] for row in alike],
        "distance": [list(DOWN if world == RIGHT else UP)],
        "entropy": entropy,
        "block influence": documents(DOWN[:-1], UP[:-1], world),
    }
    rows = []
    for quantity, values in trained.items():
        rows += by_layer(quantity, values)
    results = {("trained", corpus): cell(rows, corpus=corpus) for corpus in CORPORA}
    bound = 2.0 if world == OPEN else 0.5
    rows = by_layer("v", [[bound] * LAYERS])
    results["trained", "block-bound"] = cell(rows, corpus=CORPORA[0])
    return results


def norm_change(world):
    depths = LAYERS + 1
    streams = {
        "dense": [[1.0] * depths] * DOCUMENTS,
        "alpha-1": [[1.3] * depths] * DOCUMENTS,
        "searched": documents([1.0] * depths, [1.6] * depths, world),
    }
    if world == OPEN:
        streams["alpha-1"] = [[1.3**sign] * depths for sign in SIGNS]
    likelihoods_of_plans = {
        "dense": nll(0, 0),
        "alpha-1": nll(0.3, 0.0),
        "searched": nll(0, 0.01),
        "reconstructing": nll(0.2, 0.02),
        "constant": nll(0.2, 0.03),
        "norm-matching": {RIGHT: nll(-0.1, 0), WRONG: nll(0.15, 0), OPEN: nll(0, 0.1)}[world],
    }
    ratios = documents([0.5] * LAYERS, [1.0] * LAYERS, world)
    rows = by_layer("ratio", ratios)
    results = {("dense", corpus): cell(rows, corpus=corpus) for corpus in CORPORA}
    for plan, rows in likelihoods_of_plans.items():
        rows = rows + by_layer("stream norm", streams.get(plan, []))
        rows += [{"quantity": "alpha", "layer": layer, "value": 0.5} for layer in (9, 8)]
        results[plan, "reading"] = cell(rows, corpus=CORPORA[0], split="validation")
    return results


def timed(variant, seconds, **part):
    """Rows of repeated times."""
    return [
        {"quantity": "seconds", "variant": variant, "repetition": number, "value": value, **part}
        for number, value in enumerate(seconds)
    ]


def efficiency(world):
    rows = [{"quantity": "intermediate_size", "value": 1000}]
    results = {("all", "counted"): cell(rows, kind="counted")}
    for length, share in ((1024, 0.9), (65536, 0.8)):
        shares = {RIGHT: [share] * 4, WRONG: [2 - share] * 4, OPEN: [1.2, 1 / 1.2] * 2}[world]
        harp = list(shares * np.linspace(1, 1.01, 4))
        rows = []
        for variant, seconds in (("dense", [1.0] * 4), ("harp", harp), ("thinned", [1.0] * 4)):
            rows += timed(variant, seconds)
        results["all", f"prefill-{length}"] = cell(rows, kind="prefill", length=length)
    for length, right in ((512, 0.1), (4096, 10.0)):
        attention = {RIGHT: [right] * 4, WRONG: [1 / right] * 4, OPEN: [0.1, 10.0] * 2}[world]
        rows = timed("dense", attention, part="attention") + timed("dense", [1.0] * 4, part="ffn")
        results["all", f"split-{length}"] = cell(rows, kind="split", length=length)
    return results


def outcome_of(claim, monkeypatch, results, tests=TESTS):
    """The outcome of a claim from made-up ``results`` of stores, by accuracy or by likelihood."""
    stores = {}
    for store, cells in results.items():
        stores[store] = {(MODEL, *key): stored for key, stored in cells.items()}
    monkeypatch.setattr(data, "cells", lambda profile, store: stores.get(store, {}))
    ((name, arguments),) = CLAIMS[claim]["test"].items()
    source = data.Source("none", CLAIMS[claim]["store"], MODEL, data.cells)
    return claims.together(finding.outcome for finding in tests[name](source, **arguments))


STORES = (
    main_tables,
    ablations,
    longbench,
    likelihoods,
    alpha_search,
    baselines,
    similarity,
    norm_change,
    efficiency,
)
WORLDS = {
    world: {build.__name__: build(world) for build in STORES} for world in (RIGHT, WRONG, OPEN)
}


@pytest.mark.parametrize("claim", sorted(set(JUDGED) - ELSEWHERE))
def test_every_claim_is_right_wrong_or_open(claim, monkeypatch):
    outcomes = [outcome_of(claim, monkeypatch, WORLDS[world]) for world in WORLDS]
    assert outcomes == [RIGHT, WRONG, OPEN]


@pytest.mark.parametrize(
    "claim", [name for name in JUDGED if set(CLAIMS[name]["test"]) & set(LIKELIHOOD_TESTS)]
)
def test_claims_about_scores_are_right_wrong_or_open_by_likelihood(claim, monkeypatch):
    outcomes = []
    for world in WORLDS:
        outcomes.append(outcome_of(claim, monkeypatch, WORLDS[world], LIKELIHOOD_TESTS))
    assert outcomes == [RIGHT, WRONG, OPEN]


def test_alphas_of_two_corpora_are_alike_opposite_or_unclear(monkeypatch):
    outcomes = []
    for other in (DOWN, UP, DOWN[[0, 8, 2, 6, 4, 5, 3, 7, 1]]):
        results = {
            ("harp", "search-0"): search("0", DOWN[: len(other)]),
            ("harp", "search-1"): search("1", other),
        }
        outcomes.append(outcome_of("alpha-alike", monkeypatch, {"alpha_search": results}))
    assert outcomes == [RIGHT, WRONG, OPEN]


def test_claims_that_cannot_be_all_three(monkeypatch):
    norm = [outcome_of("pruning-changes-norm", monkeypatch, WORLDS[w]) for w in (RIGHT, OPEN)]
    assert norm == [RIGHT, OPEN]
    top = [outcome_of("similarity-near-top", monkeypatch, WORLDS[w]) for w in (RIGHT, WRONG)]
    assert top == [RIGHT, WRONG], "layers are counted without error"
    lemma = {outcome_of("lemma-2-use", monkeypatch, WORLDS[world]) for world in WORLDS}
    assert lemma == {Outcome.NOT_RUN}, "no architecture of the library is post-norm"


def test_a_claim_about_both_sides_needs_both(monkeypatch):
    """Attention against the FFN: lengths below N = d_ff decide nothing about those above it."""
    both = WORLDS[RIGHT]["efficiency"]
    below = {key: result for key, result in both.items() if key[1] != "split-4096"}
    assert outcome_of("overtaking-timed", monkeypatch, {"efficiency": both}) == RIGHT
    assert outcome_of("overtaking-timed", monkeypatch, {"efficiency": below}) == OPEN


def test_of_two_tasks_that_carry_a_lead_the_larger_one_is_named():
    """Without either of them no lead is shown, and less is left without the second."""
    answers = {
        "boolq": answers_of(gained=9, lost=3),
        "mmlu": answers_of(gained=12, lost=3),
        "piqa": answers_of(gained=5, lost=5),
    }
    rivals = {"flap": "FLAP"}

    def lead(*tasks):
        return score_tests._lead(answers, tasks, "harp+flap", "flap")

    assert lead("mmlu", "piqa").low < 0
    assert lead("boolq", "piqa").low < 0
    whole = Finding(lead(*answers), goal=0.0, rival="FLAP")
    assert score_tests._carried_by(answers, whole, "harp+flap", rivals) == "mmlu"
    alone = Finding(lead("mmlu"), goal=0.0, rival="FLAP")
    of_one = {"mmlu": answers["mmlu"]}
    assert score_tests._carried_by(of_one, alone, "harp+flap", rivals) is None


def answers_of(gained, lost, number=40):
    """Questions on which HARP+FLAP alone, the rival alone, and neither is right."""
    neither = [0] * (number - gained - lost)
    ours = [1] * gained + [0] * lost + neither
    theirs = [0] * gained + [1] * lost + neither
    return pd.DataFrame({"harp+flap": ours, "flap": theirs})
