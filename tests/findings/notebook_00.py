"""Numbers of the findings in notebook 00."""

from findings import notebook_05
from findings.stored import (
    ALL_MODELS,
    CODER,
    GEMMA,
    LARGER,
    SMOLLM,
    finding,
    judgements,
    verdict_on,
)
from harp_lib.report.claims.findings import Outcome

PAGE = "00_start_here.ipynb"


def outcomes(name: str) -> list[Outcome]:
    """The outcomes of a claim on the models, in their order."""
    return verdict_on(name)["outcome"].loc[list(ALL_MODELS)].tolist()


@finding(
    PAGE,
    "Searching α lowers perplexity against α = 1 on SmolLM2 135M, Gemma-3 270M, Qwen-Coder 0.5B "
    "(*the coder*) and Qwen-Coder 1.5B (*the 1.5B*), and attention changes the norm of the values "
    "on all four. Attention in the upper fifth of the layers is not nearly uniform on any of them, "
    "and on Gemma, on the coder and on the 1.5B the searched α takes the norm of the hidden states "
    "further from the dense model's; on SmolLM2 that is open.",
)
def method_and_reason():
    assert outcomes("alpha-beats-one") == 4 * [Outcome.REPRODUCED]
    assert outcomes("norm-changes") == 4 * [Outcome.REPRODUCED]
    assert outcomes("uniform-attention") == 4 * [Outcome.NOT]
    restored = verdict_on("norm-restored")
    assert (restored["high"][[GEMMA, CODER, LARGER]] < 0).all()
    assert restored["outcome"][SMOLLM] == Outcome.INCONCLUSIVE
    return []


@finding(
    PAGE,
    "On Gemma it is {:.1f} points behind the best baseline [{:.1f}, {:.1f}] on {} questions. It "
    "is behind by {:.1f} points [{}, {}] on the coder on {} questions and by {:.1f} [{}, {}] on "
    "the 1.5B on {}, both within noise. SmolLM2 was not asked to write answers. By the likelihood "
    "of reference answers HARP+FLAP is behind on SmolLM2, on Gemma and on the 1.5B, and on the "
    "coder no difference is shown. Where answers are chosen it leads every baseline on the 1.5B, "
    "the best by {:.1f} points [{:.1f}, {:.1f}] on {} questions, and on no other model.",
)
def generation():
    leads = verdict_on("generation-parameters")
    assert leads["outcome"][SMOLLM] == Outcome.NOT_RUN
    assert leads["outcome"][GEMMA] == Outcome.NOT
    assert leads["outcome"][CODER] == leads["outcome"][LARGER] == Outcome.INCONCLUSIVE
    by_likelihood = leads["by likelihood"]
    assert (by_likelihood[[SMOLLM, GEMMA, LARGER]] == Outcome.NOT).all()
    assert by_likelihood[CODER] == Outcome.INCONCLUSIVE
    gemma = leads.loc[GEMMA]
    within_noise = []
    for model in (CODER, LARGER):
        row = leads.loc[model]
        ends = [f"{-row[end]:+.1f}".replace("-", "−") for end in ("high", "low")]
        within_noise += [-row["value"], *ends, row["n"]]
    return [
        *(-gemma["value"], -gemma["high"], -gemma["low"], gemma["n"]),
        *within_noise,
        *notebook_05.closest(notebook_05.CHOOSING, LARGER, "FLAP")[:3],
        sum(len(notebook_05.dense_and_chance(LARGER, task)[0]) for task in notebook_05.CHOOSING),
    ]


@finding(
    PAGE,
    "On SmolLM2, the only model that we asked, it agrees with the paper that the top layers are "
    "the ones to take at α = 1, and that the search for α helps on benchmarks.",
)
def likelihood_tells_more():
    rows = judgements().set_index("id")
    for claim in ("top-layers", "alpha-generation", "alpha-discriminative"):
        assert rows.loc[claim, "model"] == SMOLLM
        assert rows.loc[claim, "by likelihood"] == Outcome.REPRODUCED
    return []


@finding(
    PAGE,
    "Theorem 1 and Proposition 1 do not hold as printed, and the three lemmas need a condition that"
    " the paper does not state.",
)
def theorems():
    rows = judgements()
    truths = rows[rows["kind"] == "theorem"].set_index("id")["outcome"].to_dict()
    assert truths == {
        "theorem-1": "false",
        "lemma-1": "true if",
        "lemma-2": "true if",
        "lemma-3": "true if",
        "proposition-1": "false",
    }
    return []
