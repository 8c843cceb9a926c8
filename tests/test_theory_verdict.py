"""The verdicts follow the evidence, also where it goes another way than ours."""

import copy

import numpy as np
import pytest

from harp_lib import counterexamples
from harp_lib.inequalities import IDENTITIES, INEQUALITIES
from harp_lib.results import ResultStore
from harp_lib.similarity_study import RANDOM, TRAINED
from harp_lib.theory_claims import conclude_similarity, norm_claims, read, read_post_norm, similarity_claims
from harp_lib.theory_study import check_theory
from harp_lib.theory_verdict import DISAGREE, STATEMENTS, statement_table

LAYERS, HEADS, DOCUMENTS = 10, 4, 3


@pytest.fixture(scope="module")
def theory(tmp_path_factory):
    store = ResultStore("smoke", "theory", root=tmp_path_factory.mktemp("results"))
    return check_theory(store, {"draws": 300, "sweep_draws": 2}, seed=0)


class TestStatements:
    def test_every_statement_is_supported(self, theory):
        table = statement_table(theory)
        assert len(table) == len(STATEMENTS)
        assert not (table["verdict"] == DISAGREE).any(), table[table["verdict"] == DISAGREE].to_dict("records")
        assert not table[["what was checked", "on what", "evidence", "verdict"]].eq("").any(axis=None)

    def test_all_checks_and_counterexamples_are_used(self):
        used = {name for statement in STATEMENTS for name in (*statement.kept, *statement.broken)}
        assert used == set(INEQUALITIES) | set(IDENTITIES)
        named = {name for statement in STATEMENTS for name in statement.examples}
        assert named == {example.__name__ for example in counterexamples.ALL}

    def test_a_violated_bound_changes_the_verdict(self, theory):
        other = copy.deepcopy(theory)
        draws = other["synthetic", "theory", "draws"]["result"]
        draws["violations"][draws["check"].index("d(HW) ≤ s d(H)")] = 1
        table = statement_table(other).set_index("statement")["verdict"]
        assert table["Lemma 1, HW"] == DISAGREE
        assert (table == DISAGREE).sum() == 1

    def test_a_statement_that_is_not_refuted_is_not_called_so(self, theory):
        other = copy.deepcopy(theory)
        examples = other["synthetic", "theory", "counterexamples"]["result"]
        examples["refuted"] = [False] * len(examples["refuted"])
        table = statement_table(other).set_index("statement")["verdict"]
        assert table["Proposition 1, if"] == table["Theorem 1"] == DISAGREE
        assert table["Lemma 1, HW"] == "holds"

    def test_one_hot_counts_matter(self, theory):
        other = copy.deepcopy(theory)
        other["synthetic", "theory", "one-hot"]["result"]["preserve"][0] += 1
        table = statement_table(other, "Proposition").set_index("statement")["verdict"]
        assert table["Proposition 1, if"] == DISAGREE


def observed(similarity, influence, entropy):
    """Cells of notebook 01 with these curves over layers; documents differ a little."""
    jitter = [0.001 * document for document in range(DOCUMENTS)]
    flat = {
        "similarity": [[*(similarity + x), similarity[-1]] for x in jitter],
        "projected similarity": [list(similarity + x) for x in jitter],
        "block influence": [list(influence + x) for x in jitter],
        "value gap": [list(influence + x) for x in jitter],
        "entropy": [[[value + x] * HEADS for value in entropy] for x in jitter],
    }
    bound = {"v": [3.0] * LAYERS, "growth": [1.2] * LAYERS}
    return {
        ("tiny-llama", TRAINED, "python-docs"): {"result": flat},
        ("tiny-llama", RANDOM, "python-docs"): {"result": flat},
        ("tiny-llama", TRAINED, "contraction-python-docs"): {"result": {"contraction": [[[1.5] * HEADS] * LAYERS]}},
        ("tiny-llama", TRAINED, "block-bound"): {"result": bound},
        ("tiny-llama", TRAINED, "repeated-tokens"): {
            "result": {
                "similarity": [[1.0] * LAYERS],
                "entropy": [[[0.99] * HEADS] * LAYERS],
                "logit difference": [1e-6],
            }
        },
    }


RISING, FALLING = np.linspace(0.2, 0.98, LAYERS), np.linspace(0.9, 0.1, LAYERS)


class TestSimilarityClaims:
    def test_as_the_paper_says(self):
        claims = similarity_claims(observed(RISING, FALLING, RISING))
        said = claims.set_index("what was checked")["verdict"]
        for claim in (
            "tokens are more alike in higher layers",
            "Sim(H) comes near 1 in high layers",
            "BI decreases with the layer index",
            "heads attend more uniformly where their input is more alike",
            "equal rows make attention uniform",
            "equal rows make attention superfluous",
        ):
            assert said[claim] == "holds", claim
        assert said["attention brings tokens together"] == "does not hold"
        assert "met in 1 of 1 cases" in conclude_similarity(claims)

    def test_against_the_paper(self):
        cells = observed(FALLING, RISING, FALLING[::-1] / 2)
        cells["tiny-llama", TRAINED, "block-bound"]["result"]["v"][0] = 0.5
        cells["tiny-llama", TRAINED, "repeated-tokens"]["result"]["entropy"][0][0] = [0.5] * HEADS
        claims = similarity_claims(cells)
        said = claims.set_index("what was checked")["verdict"]
        assert said["tokens are more alike in higher layers"] == "does not hold"
        assert said["Sim(H) comes near 1 in high layers"] == "does not hold"
        assert said["BI decreases with the layer index"] == "does not hold"
        assert said["heads attend more uniformly where their input is more alike"] == "does not hold"
        assert said["attention is nearly uniform in high layers"] == "does not hold"
        assert said["equal rows make attention uniform"] == "holds for 90% of the heads"
        assert said["v < 1, so that d_M shrinks from layer to layer"] == "v < 1 in 1 of 10 layers"
        assert "met in 0 of 1 cases" in conclude_similarity(claims)

    def test_documents_that_disagree_are_too_few(self):
        cells = observed(RISING, FALLING, RISING)
        documents = cells["tiny-llama", TRAINED, "python-docs"]["result"]["similarity"]
        documents[0] = documents[0][::-1]
        cells["tiny-llama", RANDOM, "python-docs"] = copy.deepcopy(cells["tiny-llama", TRAINED, "python-docs"])
        said = similarity_claims(cells).set_index("what was checked")["verdict"]
        assert said["tokens are more alike in higher layers"] == "too small to tell"

    def test_read(self):
        text = read(similarity_claims(observed(RISING, FALLING, RISING)), "BI decreases with the layer index")
        assert text.startswith("- *BI decreases with the layer index* (tiny random Llama, Python documentation, 3 doc")
        assert "correlation with the layer index -1.00" in text
        assert text.endswith("**Holds.**")


def readings(norms, factors):
    """Cells of notebook 02: the norm at the top and the perplexity of each plan, relative to the dense model."""
    cells = {
        ("tiny-llama", "dense", "python-docs"): {
            "result": {"ratios": [[[0.5, 1.01]] * 2] * DOCUMENTS, "products": [[[1.0] * 6] * 2] * DOCUMENTS}
        }
    }
    for plan, norm in norms.items():
        nll = [100 * np.log(20 * factors[plan]) + document for document in range(DOCUMENTS)]
        streams = [[10.0, 10.0 * (norm + 0.001 * document)] for document in range(DOCUMENTS)]
        result = {"corpus": "python-docs", "nll": nll, "tokens": [100] * DOCUMENTS}
        cells["tiny-llama", plan, "reading"] = {"result": result | {"all tokens": streams, "without first": streams}}
    return cells


PLANS = ("dense", "alpha-1", "searched", "norm-matching", "reconstructing")


class TestNormClaims:
    def judged(self, norms, factors):
        cells = readings(dict(zip(PLANS, norms, strict=True)), dict(zip(PLANS, factors, strict=True)))
        return norm_claims(cells).set_index("what was checked")["verdict"]

    def test_as_the_paper_says(self):
        said = self.judged((1, 1.3, 1.01, 1.0, 0.9), (1, 3, 1.5, 1.5, 1.6))
        assert said["the searched α brings the norm back"] == "holds"
        assert said["pruning changes the norm of the residual stream"] == "holds"
        assert said["keeping the norm is what α does: the norm-matching α needs no search"] == "holds"
        assert said["aggregation changes the norm of the values"] == "holds for 50% of the heads"

    def test_against_the_paper(self):
        said = self.judged((1, 1.05, 0.7, 1.0, 0.9), (1, 1.4, 1.2, 1.6, 1.6))
        assert said["the searched α brings the norm back"] == "does not hold"
        assert said["keeping the norm is what α does: the norm-matching α needs no search"] == "does not hold"

    def test_a_search_that_wins_nothing(self):
        said = self.judged((1, 1.3, 1.3, 1.0, 0.9), (1, 2, 2, 2.5, 3))
        claim = "keeping the norm is what α does: the norm-matching α needs no search"
        assert said[claim] == "not to be judged: the search wins nothing over α = 1"

    def test_in_part(self):
        said = self.judged((1, 1.3, 1.01, 1.0, 0.9), (1, 4, 2, 2**1.5, 3))
        claim = "keeping the norm is what α does: the norm-matching α needs no search"
        assert said[claim] == "in part: it wins 50% of what the search wins, in log perplexity"

    def test_crossings(self):
        said = self.judged((1, 1.3, 1.01, 1.0, 0.9), (1, 3, 1.5, 1.5, 1.6))
        crossings = said["attention overtakes the FFN at N = d_ff"]
        assert len(crossings) == 4
        assert crossings.str.startswith("does not hold").all()
        assert crossings.str.contains("window").sum() == 1


def test_the_papers_alphas_of_gemma():
    assert "0.5 0.4 0.3 0.4 0.5 0.4, from the top layer down" in read_post_norm()
