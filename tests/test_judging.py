"""The judge of claims: the rule of one finding, what follows from several, and the words."""

import inspect
import re
from importlib import import_module

import numpy as np
import pytest

from harp_lib import config
from harp_lib.report import claims
from harp_lib.report.claims.findings import Finding, Outcome, weakest
from harp_lib.report.claims.registry import LIKELIHOOD_TESTS, TESTS
from harp_lib.report.claims.words import DECIDED, MARKS
from harp_lib.report.comparisons import Interval

RIGHT = Outcome.REPRODUCED
WRONG = Outcome.NOT
OPEN = Outcome.INCONCLUSIVE
MINI = {"name": "mini", "datasets": "embedded"}
SMALL = {"name": "small", "datasets": "hub"}
NONE = {"name": "none", "datasets": "embedded"}
CLAIMS = {claim["id"]: claim for claim in claims.load_claims()}


@pytest.mark.parametrize(
    ("interval", "fields", "outcome"),
    [
        ((2, 1, 3), {}, RIGHT),
        ((-2, -3, -1), {}, WRONG),
        ((1, -1, 3), {}, OPEN),
        ((0, 0, 0), {}, OPEN),
        ((2, 1, 3), {"goal": 2}, OPEN),
        ((2, 1, 3), {"goal": 4}, WRONG),
        ((2, 2, 2), {"goal": 2}, OPEN),
        ((2, 2, 2), {"goal": 2, "inclusive": True}, RIGHT),
        ((2, 2, 2), {"goal": 2, "less": True, "inclusive": True}, RIGHT),
        ((2, 2, 2), {"goal": 2.1, "inclusive": True}, WRONG),
        ((2, 1, 3), {"less": True}, WRONG),
        ((2, 1, 3), {"less": True, "goal": 5}, RIGHT),
        ((2, np.nan, np.nan), {}, OPEN),
        ((2, 1, 3), {"reason": "too few questions"}, OPEN),
        ((2, 1, 3), {"reason": "needs harp/boolq of main_tables"}, Outcome.NOT_RUN),
    ],
)
def test_a_finding_needs_its_interval_on_one_side_of_the_goal(interval, fields, outcome):
    assert Finding(Interval(*interval), **fields).outcome == outcome


@pytest.mark.parametrize(
    ("parts", "outcome"),
    [
        ([RIGHT, RIGHT], RIGHT),
        ([RIGHT, WRONG], Outcome.PARTLY),
        ([RIGHT, OPEN], OPEN),
        ([WRONG, OPEN], WRONG),
    ],
)
def test_what_follows_from_parts(parts, outcome):
    assert claims.together(parts) == outcome


def test_what_follows_from_models():
    assert claims.over_models([RIGHT, OPEN]) == Outcome.PARTLY
    assert claims.over_models([RIGHT, Outcome.NOT_RUN]) == RIGHT


def test_the_weakest_finding_is_the_one_that_speaks_least_for_a_claim():
    findings = [Finding(Interval(value, value - 1, value + 1)) for value in (3, 0.5, -5, 9)]
    assert weakest(findings).interval.value == -5
    assert weakest([finding._replace(less=True) for finding in findings]).interval.value == 9


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    """The claims as the committed results of mini judge them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(config, "RESULTS", tmp_path_factory.mktemp("results"))
        yield claims.judge(MINI)


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """The claims as the committed results of small judge them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(config, "RESULTS", tmp_path_factory.mktemp("results"))
        yield claims.judge(SMALL)


@pytest.mark.parametrize("name", ["reference", "small"])
def test_partly_needs_a_part_that_holds(name, request):
    """On one model some parts hold and some do not; over all models a part holds on one of them."""
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
    gemma = "Gemma-3 270M: below 50 %"
    assert gemma in needed["overtaking-timed"], "models differ in the side that decides"
    judged = small[(small["kind"] != "theorem") & small["value"].notna()]
    for claim in set(judged.query("kind != 'ours'")["id"]):
        assert needed[claim], f"{claim} has a number and shows no threshold"


def test_similarity_is_judged_against_the_paper(small):
    (row,) = small[small["id"] == "similarity-near-top"].to_dict("records")
    assert (row["value"], row["n"], row["paper"]) == (4 / 6, 6, (7 / 8,))
    assert row["goal"] == row["paper"][0]
    assert row["outcome"] == WRONG


def test_claims_are_well_formed():
    assert len(CLAIMS) == len(claims.load_claims()), "ids are unique"
    statements = set(claims.theorems(NONE)["statement"])
    for claim in claims.load_claims():
        assert {"id", "kind", "notebook", "statement", "where"} <= set(claim)
        if claim["kind"] == "theorem":
            assert set(claim["test"]["theory"]["statements"]) <= statements


@pytest.mark.parametrize("name", [name for name, claim in CLAIMS.items() if "test" in claim])
def test_a_claim_leads_to_a_notebook_and_a_function(name):
    assert claims.notebook_file(CLAIMS[name]["notebook"]).is_file()
    module, _, function = CLAIMS[name]["function"].rpartition(".")
    assert callable(getattr(import_module(module), function))
    assert claims.source_file(module).is_file()


def test_the_map_has_every_claim_of_the_paper():
    lines = claims.paper_map().splitlines()[2:]
    of_paper = [claim for claim in CLAIMS.values() if claim["kind"] not in ("ours", "erratum")]
    assert len(lines) == len(of_paper)
    for line, claim in zip(lines, of_paper, strict=True):
        assert claim["statement"] in line
        assert claim["where"] in line


def test_a_claim_is_one_row_with_a_mark_for_each_model(small):
    table = claims.marked(small[small["kind"] == "measured"]).splitlines()
    models = ["SmolLM2 135M", "Gemma-3 270M", "Qwen-Coder 0.5B", "Qwen-Coder 1.5B"]
    assert [name.strip() for name in table[0].split("|")[2:-2]] == models
    assert len(table) == 2 + 34
    (carries,) = [line for line in table if CLAIMS["alpha-carries-over"]["statement"] in line]
    marks = re.findall(r"<span[^>]*>(.)</span>", carries)
    assert marks == ["~", "✓", "✓", "✓"]
    assert carries.split("|")[-2].strip() == "**partly**"
    assert "<details>" in carries
    assert "Needed: below 5 %" in carries


def test_the_outcome_by_likelihood_is_a_second_mark_in_brackets(small):
    (leads,) = [line for line in claims.matrix(SMALL).splitlines() if "on generation" in line]
    by_model = small[small["id"] == "generation-parameters"]
    outcomes = zip(by_model["outcome"], by_model["by likelihood"], strict=True)
    marks = [f"{MARKS[first]} ({MARKS[second]})" for first, second in outcomes]
    assert [mark.strip() for mark in leads.split("|")[2:-1]] == marks
    carries = claims.marked(small[small["id"] == "alpha-carries-over"])
    assert "(<span" not in carries, "its texts have no likelihoods"


def test_a_model_that_wrote_no_answers_is_not_compared_on_two_kinds_of_tasks(small):
    """SmolLM2 was asked discriminative tasks only: nothing is open about it, it was not run."""
    for claim in ("generation-more", "discriminative-loses-less"):
        outcomes = small[small["id"] == claim].set_index("model")["outcome"]
        assert outcomes.pop("smollm2-135m") == Outcome.NOT_RUN
        assert Outcome.NOT_RUN not in set(outcomes)


def test_claims_that_likelihood_decides_are_counted(small):
    by_likelihood = claims.counted(SMALL).partition("By the likelihood")[2]
    measured = claims.over_all(small).query("kind == 'measured'")
    decided = measured[measured["likelihood"].isin(DECIDED)]["outcome"]
    num_open = (decided == Outcome.INCONCLUSIVE).sum()
    num_not_run = (decided == Outcome.NOT_RUN).sum()
    assert f"{num_open} of the inconclusive ones and {num_not_run} of those" in by_likelihood
    assert "By the likelihood" not in claims.counted(NONE)


def test_every_test_takes_a_source_and_belongs_to_a_claim():
    used = set()
    for claim in claims.load_claims():
        if claim["kind"] not in ("theorem", "erratum"):
            (name,) = claim["test"]
            used.add(name)
    assert used == set(TESTS)
    assert set(LIKELIHOOD_TESTS) <= set(TESTS)
    for test in (*TESTS.values(), *LIKELIHOOD_TESTS.values()):
        assert next(iter(inspect.signature(test).parameters)) == "source"


def test_every_claim_is_judged_on_the_reference(reference):
    not_run = set(reference[reference["outcome"] == Outcome.NOT_RUN]["id"])
    of_other_models = {"tuned-ranges", "sixteen-percent", "lemma-2-use"}
    assert of_other_models <= not_run
    assert not_run <= of_other_models | {"longbench-mag-sp"}, "mini lacks its benchmark"
    assert set(claims.theorems(MINI)["truth"]) == {"true", "false", "true if"}


def test_measured_claims_are_counted(reference):
    measured = claims.over_all(reference).query("kind == 'measured'")
    assert claims.counts(reference).sum() == len(measured) == 34
    without_results = {**dict.fromkeys(Outcome, 0), Outcome.NOT_RUN: 34}
    assert claims.counts(claims.judge(NONE)).to_dict() == without_results
    assert claims.counted(NONE).startswith("We tested 0 empirical claims")
    assert "34 more were **not run**" in claims.counted(NONE)


def test_every_claim_has_words(reference):
    words = claims.worded(reference)
    assert len(words) == reference["id"].nunique()
    assert not words.map(lambda text: "nan" in text).any(axis=None)
    for notebook in sorted({claim["notebook"] for claim in CLAIMS.values()} - {"00"}):
        num_lines = claims.show(notebook, MINI).data.count("\n") - 1
        assert 3 <= num_lines <= 6
    assert "home-made questions" in claims.headline(MINI)
    assert "not been measured" in claims.headline(NONE)
