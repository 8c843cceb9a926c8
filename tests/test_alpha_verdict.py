"""The words follow the numbers, also where they go against the paper."""

import pandas as pd

from harp_lib.alpha_verdict import _trend_verdict, read_curves, read_transfer, trend, verdict
from harp_lib.experiments.alpha_study import cost_frame, perplexity_frame

CORPORA = ("python-docs", "scipy-docs")


def cells(factors):
    """Cells of one model: every plan's likelihood a common factor of perplexity above the dense one's."""
    from math import log

    stored = {}
    for plan, factor in factors.items():
        for corpus in CORPORA:
            for split in ("test", "validation"):
                nll = [100 * log(30 * factor) + document for document in range(4)]
                result = {"nll": nll, "tokens": [100] * 4, "words": [50] * 4}
                stored["tiny-llama", plan, f"{corpus}-{split}"] = {"result": result}
    return stored


def judged(factors):
    searched = {
        f"searched-on-{corpus}": factors.get(f"searched-on-{corpus}", factors["searched"]) for corpus in CORPORA
    }
    plans = {"dense": 1.0, "alpha-1": factors["alpha-1"], "alpha-0": factors["alpha-0"], **searched}
    alphas = pd.DataFrame(
        {"model": "tiny-llama", "corpus": "python-docs", "layer": range(8), "alpha": factors["alphas"]}
    )
    table = verdict(perplexity_frame(cells(plans)), alphas, cost_frame({}))
    return {claim: set(part["verdict"]) for claim, part in table.groupby("claim")}


def test_as_the_paper_says():
    found = judged({"alpha-1": 3.0, "alpha-0": 8.0, "searched": 1.5, "alphas": [i / 10 for i in range(8)]})
    assert found == {
        "searching α beats leaving it at 1": {"holds"},
        "searching α beats removing the branch (α = 0)": {"holds"},
        "α carries over to another corpus": {"holds: costs less than α = 1"},
        "the pruned model keeps the dense perplexity": {"does not hold"},
        "α increases with the layer index": {"holds"},
    }


def test_against_the_paper():
    found = judged({"alpha-1": 1.2, "alpha-0": 1.1, "searched": 1.5, "alphas": [1 - i / 10 for i in range(8)]})
    assert found["searching α beats leaving it at 1"] == {"does not hold"}
    assert found["searching α beats removing the branch (α = 0)"] == {"does not hold"}
    assert found["α carries over to another corpus"] == {"does not hold"}
    assert found["α increases with the layer index"] == {"does not hold"}


def test_nothing_to_tell():
    found = judged({"alpha-1": 1.0, "alpha-0": 1.0, "searched": 1.0, "alphas": [0.5] * 8})
    assert found["searching α beats leaving it at 1"] == {"too small to tell"}
    assert found["the pruned model keeps the dense perplexity"] == {"too small to tell"}
    assert found["α increases with the layer index"] == {"does not hold: all α are equal"}


def test_a_gain_is_called_one():
    found = judged({"alpha-1": 1.0, "alpha-0": 1.0, "searched": 0.8, "alphas": [0.5] * 8})
    assert found["the pruned model keeps the dense perplexity"] == {"holds, and gains"}


def test_curves_in_words():
    rows = [(31, alpha, 10 + (alpha - 0.5) ** 2) for alpha in (0.0, 0.5, 1.0)]
    rows += [(30, alpha, value) for alpha, value in ((0.0, 20.0), (0.5, 30.0), (1.0, 25.0))]
    curves = pd.DataFrame(rows, columns=["layer", "alpha", "perplexity"]).assign(
        model="tiny-llama", corpus="python-docs"
    )
    text = read_curves(curves)
    assert "1 of 2 curves fall and then rise" in text
    assert "best perplexity is 10.00, after all 20.00; of the layers below the top, layer 30 adds the most" in text


def test_three_layers_are_too_few_for_a_trend():
    found = judged({"alpha-1": 1.0, "alpha-0": 1.0, "searched": 1.0, "alphas": [0.5] * 5 + [0.6, 0.7, 0.8]})
    assert found["α increases with the layer index"] == {"holds"}
    assert _trend_verdict({0: 0.1, 1: 0.2, 2: 0.3}) == "too small to tell"
    assert _trend_verdict({0: 0.3, 1: 0.2, 2: 0.25, 3: 0.2}) == "too small to tell"
    assert _trend_verdict({layer: 1 - layer / 10 for layer in range(10)}) == "does not hold"


def test_trend():
    assert trend({0: 0.1, 1: 0.2, 2: 0.3}) == "+1.00"
    assert trend({0: 0.3, 1: 0.2, 2: 0.1}) == "-1.00"
    assert trend({0: 0.0, 1: 0.0}) == "undefined (all α equal)"


def test_the_papers_two_by_two():
    assert read_transfer().endswith("by +0.6 % on WikiText and +1.5 % on Pile10K.")
