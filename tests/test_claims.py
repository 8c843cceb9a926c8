"""The judge: three made-up worlds, in which every claim is right, wrong or open; the one rule; the
words.
"""

import inspect

import numpy as np
import pytest

from harp_lib import config
from harp_lib.evaluation.benchmarks import ALL_BENCHMARKS, BENCHMARKS, LONGBENCH
from harp_lib.names import BASELINES
from harp_lib.report import claims, data
from harp_lib.report.claims import TESTS, likelihood_tests
from harp_lib.report.claims.score_tests import Finding, Outcome, weakest
from harp_lib.report.comparisons import Interval

R, N, O = Outcome.REPRODUCED, Outcome.NOT, Outcome.INCONCLUSIVE  # noqa: E741
MODEL = "meta-llama/Llama-3.1-8B"  # so that claims about the paper's models are judged
MINI, NONE = ({"name": name, "datasets": "embedded"} for name in ("mini", "none"))
DOCUMENTS, LAYERS = 8, 10
CLAIMS = {claim["id"]: claim for claim in claims.load_claims()}
JUDGED = [name for name, claim in CLAIMS.items() if claim["kind"] in ("measured", "ours")]
UP, DOWN = np.linspace(0.1, 1, LAYERS + 1), np.linspace(1, 0.1, LAYERS + 1)
SIGNS = np.resize([1.0, -1.0], DOCUMENTS)  # documents that disagree
ELSEWHERE = {  # cannot be all three in these worlds
    "alpha-alike",
    "lemma-2-use",
    "pruning-changes-norm",
    "similarity-near-top",
}


def nll(level, wave=0.01):
    """Documents whose log perplexity is ``level`` higher, by and large."""
    return {
        "nll": list(300 + np.arange(DOCUMENTS) + 100 * (level + wave * SIGNS)),
        "tokens": [100] * DOCUMENTS,
    }


def scores(rate, number, measure="margin"):
    """Questions of which a method gets the easier ones right, and finds their right answers the
    more likely.
    """
    right = [float(i < rate * number) for i in range(number)]
    likely = {
        "margin": [2 * score - 1 for score in right],
        "bits_per_byte": [2 - score for score in right],
    }
    questions = {
        "subtask": ["all"] * number,
        "question": list(range(number)),
        "chance": [0.1] * number,
    }
    return {"rows": questions | {"score": right, measure: likely[measure]}}


def documents(right, wrong, world):
    return [list(right if world == R or (world == O and sign > 0) else wrong) for sign in SIGNS]


def main_tables(world):
    rates = {
        R: {"harp": (0.7, 0.9), "harp+flap": (0.7, 0.9), "top": (0.2, 0.6), "other": (0.1, 0.7)}
    }
    rates |= {
        N: {"harp": (0.6, 0.5), "harp+flap": (0.3, 0.7), "top": (1, 0.9), "other": (0.95, 0.8)},
        O: {},
    }
    special = {R: {"gsm8k": 0.5, "triviaqa": 0.9}, N: {"gsm8k": 0.9, "triviaqa": 0.3}, O: {}}[world]
    found = {}
    for method in ("dense", "harp", "harp+flap", "top", *BASELINES):
        for task, benchmark in BENCHMARKS.items():
            sides = rates[world].get(method, rates[world].get("other", (0.95, 0.95)))
            rate = 0.95 if method == "dense" else sides[benchmark.kind == "discriminative"]
            rate = special.get(task, rate) if method == "harp" else rate
            found[method, task] = scores(rate, 30 if world == O else 100)
    return found


def likelihoods(world):
    """The same questions where answers are written: bits per byte of the reference answer."""
    found = {}
    for cells in (main_tables(world), ablations(world), longbench(world)):
        for (method, task), result in cells.items():
            if task in ALL_BENCHMARKS and not ALL_BENCHMARKS[task].choices:
                right = result["rows"]["score"]
                found[method, task] = scores(sum(right) / len(right), len(right), "bits_per_byte")
    return found


def ablations(world):
    found = {
        ("top", task): result
        for (method, task), result in main_tables(world).items()
        if method == "top"
    }
    for method in ("bottom", "hessian", "similarity"):
        for task in BENCHMARKS:
            found[method, task] = scores(
                {R: 0.3, N: 1.0, O: 0.95}[world], 30 if world == O else 100
            )
    found["similarity", "selection"] = {"layers": {R: [8, 9], N: [0, 1], O: [0, 9]}[world]}
    found["top", "selection"] = {"layers": [8, 9]}
    for i, costs in enumerate(documents(DOWN, UP, world)):
        found["single-layer", f"document-{i:02}"] = {
            "dense": 0,
            "tokens": 100,
            "1": costs,
            "0": costs,
        }
    return found


def longbench(world):
    found = {}
    for i, task in enumerate(LONGBENCH):
        hop, strong = "hotpot" in task or "2wiki" in task, "multifield" in task
        rates = {R: (0.95, 0.1) if hop else (0.6, 0.3), N: (0.2, 0.99) if hop else (0.5, 0.9)}
        ours, mag = rates.get(world, (0.9, 0.7) if i % 2 else (0.7, 0.9))
        if strong:
            ours, mag = {R: (0.6, 0.95), N: (0.9, 0.2), O: (0.8, 0.8)}[world]
        for method in ("dense", "harp+flap", *BASELINES):
            rate = {"dense": 0.95, "harp+flap": ours, "mag-sp": mag}.get(method, 0.05)
            found[method, task] = scores(rate, 20 if world == O else 60)
    return found


def alpha_search(world):
    level, other = {R: (0.3, 0), N: (-0.3, 0.3), O: (0, 0.05)}[world]
    wave, found = 0.3 if world == O else 0.01, {}
    for own, far in (("python-docs", "scipy-docs"), ("scipy-docs", "python-docs")):
        for split in ("test", "validation"):
            plans = {"dense": nll(-1), "alpha-1": nll(level, -wave), f"searched-on-{own}": nll(0)}
            plans[f"searched-on-{far}"] = plans[f"resampled-on-{own}"] = nll(other, wave)
            found |= {(plan, f"{own}-{split}"): result for plan, result in plans.items()}
        alphas = {
            R: DOWN[:8],
            N: UP[:8],
            O: [0.1, 0.8, 0.3, 0.6, 0.5, 0.4, 0.7, 0.2][:: 1 if far > own else -1],
        }[world]
        found["harp", f"search-{own}"] = {"alphas": list(alphas), "num_model_layers": LAYERS}
    return found


def baselines(world):
    level, wave = {R: (0.3, 0.01), N: (-0.3, 0.01), O: (0, 0.3)}[world]
    found = {}
    for method in ("dense", "harp", "harp+flap", *BASELINES):
        result = nll(level, wave) if method in BASELINES else nll(0)
        found |= {
            (method, f"{corpus}-validation"): result for corpus in ("python-docs", "scipy-docs")
        }
    printed, other = {R: (nll(0), nll(0.2)), N: (nll(0.3), nll(0)), O: (nll(0.05, 0.2), nll(0))}[
        world
    ]
    for row in data.paper("layer_ranges").query("model == 'LLaMA3.1-8B'").itertuples():
        found[row.method, f"range-{row.start:02}-{row.end:02}"] = printed
        found[row.method, "range-01-17"] = other
    return found


def similarity(world):
    alike = documents(UP, DOWN if world == N else 0.9 + DOWN / 20, world)
    entropy = np.array(
        documents(
            [0.99 if world == R else 1.0] * LAYERS, [0.3 if world == N else 0.9] * LAYERS, world
        )
    )
    shrinking = {R: DOWN, N: UP, O: UP}[world]
    cell = {
        "similarity": alike,
        "projected similarity": [row[1:] for row in alike],
        "distance": [list(shrinking)],
    }
    cell |= {
        "entropy": entropy[..., None].tolist(),
        "block influence": documents(DOWN[:-1], UP[:-1], world),
    }
    found = {("trained", corpus): cell for corpus in ("python-docs", "scipy-docs")}
    return found | {("trained", "block-bound"): {"v": [2.0 if world == O else 0.5] * LAYERS}}


def norm_change(world):
    ratios = documents([0.5] * LAYERS, [1.0] * LAYERS, world)
    streams = {
        "dense": [[1.0] * (LAYERS + 1)] * DOCUMENTS,
        "alpha-1": [[1.3**sign] * 11 for sign in SIGNS],
    }
    streams["alpha-1"] = streams["alpha-1"] if world == O else [[1.3] * 11] * DOCUMENTS
    streams["searched"] = documents([1.0] * 11, [1.6] * 11, world)
    levels = {"alpha-1": 0.3, "searched": 0, "reconstructing": 0.2, "constant": 0.2}
    waves = {plan: (level, 0.01 * i) for i, (plan, level) in enumerate(levels.items())}
    waves["norm-matching"] = {R: (-0.1, 0), N: (0.15, 0), O: (0, 0.1)}[world]
    found = {("dense", corpus): {"ratios": ratios} for corpus in ("python-docs", "scipy-docs")}
    for plan in {*streams, *waves}:
        found[plan, "reading"] = nll(*waves.get(plan, (0, 0))) | {
            "without first": streams.get(plan)
        }
    return found


def efficiency(world):
    found = {("all", "counted"): {"intermediate_size": 1000}}
    for length, share in ((1024, 0.9), (65536, 0.8)):
        harp = {R: [share] * 4, N: [2 - share] * 4, O: [1.2, 1 / 1.2] * 2}[world] * np.linspace(
            1, 1.01, 4
        )
        seconds = {"dense": [1.0] * 4, "harp": list(harp), "thinned": [1.0] * 4}
        found["all", f"prefill-{length}"] = {"seconds": seconds}
    for length, right in ((512, 0.1), (4096, 10.0)):
        attention = {R: [right] * 4, N: [1 / right] * 4, O: [0.1, 10.0] * 2}[world]
        found["all", f"split-{length}"] = {
            "seconds": {"dense": [{"attention": a, "ffn": 1.0} for a in attention]}
        }
    return found


def judged(claim, monkeypatch, stores, tests=TESTS):
    """The outcome of a claim in a made-up world; ``tests`` are those by accuracy, or those by
    likelihood.
    """
    inputs = {"alphas": {"9": 0.5, "8": 0.5}}
    stores = {
        name: {(MODEL, *key): {"inputs": inputs, "result": result} for key, result in cells.items()}
        for name, cells in stores.items()
    }
    monkeypatch.setattr(data, "cells", lambda profile, store: stores.get(store, {}))
    ((name, arguments),) = CLAIMS[claim]["test"].items()
    source = data.Source("none", CLAIMS[claim]["store"], MODEL, data.cells)
    return claims.together(found.outcome for found in tests[name](source, **arguments))


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
WORLDS = {world: {build.__name__: build(world) for build in STORES} for world in (R, N, O)}


@pytest.mark.parametrize("claim", sorted(set(JUDGED) - ELSEWHERE))
def test_every_claim_is_right_wrong_or_open(claim, monkeypatch):
    assert [judged(claim, monkeypatch, WORLDS[world]) for world in (R, N, O)] == [R, N, O]


@pytest.mark.parametrize(
    "claim", [name for name in JUDGED if set(CLAIMS[name]["test"]) & set(likelihood_tests.TESTS)]
)
def test_likelihood_decides_what_it_can(claim, monkeypatch):
    outcomes = [
        judged(claim, monkeypatch, WORLDS[world], likelihood_tests.TESTS) for world in (R, N, O)
    ]
    assert outcomes == [R, N, O]


def test_claims_that_cannot_be_all_three(monkeypatch):
    found = []
    for other in (DOWN, UP, DOWN[[0, 8, 2, 6, 4, 5, 3, 7, 1]]):
        alphas = {
            ("harp", f"search-{i}"): {"alphas": a}
            for i, a in enumerate((DOWN[: len(other)], other))
        }
        found.append(judged("alpha-alike", monkeypatch, {"alpha_search": alphas}))
    assert found == [R, N, O]
    assert [judged("pruning-changes-norm", monkeypatch, WORLDS[world]) for world in (R, O)] == [
        R,
        O,
    ]
    assert [judged("similarity-near-top", monkeypatch, WORLDS[world]) for world in (R, N)] == [
        R,
        N,
    ]  # counted
    lemma = {judged("lemma-2-use", monkeypatch, WORLDS[world]) for world in (R, N, O)}
    assert lemma == {Outcome.NOT_RUN}  # no architecture of the library is post-norm


@pytest.mark.parametrize(
    ("interval", "told", "outcome"),
    [
        ((2, 1, 3), {}, R),
        ((-2, -3, -1), {}, N),
        ((1, -1, 3), {}, O),
        ((0, 0, 0), {}, O),
        ((2, 1, 3), {"goal": 2}, O),
        ((2, 1, 3), {"goal": 4}, N),
        ((2, 2, 2), {"goal": 2}, O),
        ((2, 2, 2), {"goal": 2, "inclusive": True}, R),
        ((2, 2, 2), {"goal": 2, "less": True, "inclusive": True}, R),
        ((2, 2, 2), {"goal": 2.1, "inclusive": True}, N),
        ((2, 1, 3), {"less": True}, N),
        ((2, 1, 3), {"less": True, "goal": 5}, R),
        ((2, np.nan, np.nan), {}, O),
        ((2, 1, 3), {"reason": "too few questions"}, O),
        ((2, 1, 3), {"reason": "needs harp/boolq of main_tables"}, Outcome.NOT_RUN),
    ],
)
def test_one_rule(interval, told, outcome):
    assert Finding(Interval(*interval), **told).outcome == outcome


def test_parts_and_models():
    assert [claims.together(parts) for parts in ([R, R], [R, N], [R, O], [N, O])] == [
        R,
        Outcome.PARTLY,
        O,
        N,
    ]
    assert [claims.over_models(models) for models in ([R, O], [R, Outcome.NOT_RUN])] == [
        Outcome.PARTLY,
        R,
    ]
    pieces = [Finding(Interval(value, value - 1, value + 1)) for value in (3, 0.5, -5, 9)]
    assert weakest(pieces).interval.value == -5
    assert weakest([piece._replace(less=True) for piece in pieces]).interval.value == 9


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(config, "RESULTS", tmp_path_factory.mktemp("results"))
        yield claims.judge(MINI)


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(config, "RESULTS", tmp_path_factory.mktemp("results"))
        yield claims.judge({"name": "small", "datasets": "hub"})


@pytest.mark.parametrize("name", ["reference", "small"])
def test_partly_needs_a_part_that_holds(name, request):
    """On one model "partly" says that some parts are reproduced; over all models, that a part is on
    one of them.
    """
    judged = request.getfixturevalue(name).query("kind != 'theorem'")
    on_one = judged[judged["outcome"] == Outcome.PARTLY]
    assert on_one["held"].between(1, on_one["parts"] - 1).all()
    over_all = claims.over_all(judged).set_index("id")["outcome"]
    held = judged.groupby("id")["held"].sum()
    partly = over_all[over_all == Outcome.PARTLY].index
    assert len(partly) > 0
    assert (held[partly] > 0).all()


def test_the_threshold_stands_beside_the_outcome(small):
    shown = claims.worded(small).set_index("claim")["needed"].to_dict()
    needed = {claim: shown.get(CLAIMS[claim]["statement"]) for claim in set(small["id"])}
    assert needed["norm-restored"] == "above 90 %"
    assert needed["similarity-near-top"] == "at least 87.5 %"
    assert needed["alpha-carries-over"] == "below 5 %"
    assert needed["block-influence"] == "ρ below −0.5"
    assert needed["generation-parameters"] == "above 0 points"
    assert (
        "Gemma-3-270M (Q4_K_M, dequantized): below 50 %" in needed["overtaking-timed"]
    )  # sides differ
    judged = small[(small["kind"] != "theorem") & small["value"].notna()]
    for claim in set(judged.query("kind != 'ours'")["id"]):
        assert needed[claim], f"{claim} has a number and shows no threshold"


def test_similarity_is_judged_against_the_paper(small):
    (row,) = small[small["id"] == "similarity-near-top"].to_dict("records")
    assert (row["value"], row["n"], row["paper"]) == (4 / 6, 6, (7 / 8,))
    assert row["goal"] == row["paper"][0]
    assert row["outcome"] == N


def test_a_claim_about_both_sides_needs_both(monkeypatch):
    """Attention against the FFN below and above N = d_ff: lengths on one side decide nothing about
    the other.
    """
    world = WORLDS[R]["efficiency"]
    below = {key: cell for key, cell in world.items() if key[1] != "split-4096"}
    assert judged("overtaking-timed", monkeypatch, {"efficiency": world}) == R
    assert judged("overtaking-timed", monkeypatch, {"efficiency": below}) == O


def test_claims_are_well_formed():
    assert len(CLAIMS) == len(claims.load_claims())
    names = set(claims.theorems(NONE)["statement"])
    for claim in claims.load_claims():
        assert {"id", "kind", "notebook", "statement", "where"} <= set(claim)
        if claim["kind"] == "theorem":
            assert set(claim["test"]["theory"]["statements"]) <= names
        elif claim["kind"] != "erratum":
            (test,) = claim["test"]
            assert next(iter(inspect.signature(TESTS[test]).parameters)) == "source"


def test_every_claim_is_judged_on_the_reference(reference):
    missing = reference[reference["outcome"] == Outcome.NOT_RUN]["id"]
    other = {"tuned-ranges", "sixteen-percent"}  # of other models than this one
    other.add("lemma-2-use")  # of post-norm models
    assert other <= set(missing) <= other | {"longbench-mag-sp"}  # not in this profile
    assert set(claims.theorems(MINI)["truth"]) == {"true", "false", "true if"}
    measured = claims.over_all(reference).query("kind == 'measured'")
    assert claims.counts(reference).sum() == len(measured) == 34
    assert claims.counts(claims.judge(NONE)).to_dict() == dict.fromkeys(Outcome, 0) | {
        "not run": 34
    }


def test_words(reference):
    words = claims.worded(reference)
    assert len(words) == reference["id"].nunique()
    assert not words.map(lambda text: "nan" in text).any(axis=None)
    for notebook in sorted({claim["notebook"] for claim in CLAIMS.values()} - {"00"}):
        assert 3 <= claims.show(notebook, MINI).data.count("\n") - 1 <= 6
    assert "home-made questions" in claims.headline(MINI)
    assert "not been measured" in claims.headline(NONE)
