"""Each definition, lemma, theorem and proposition, with its evidence and its verdict."""

import math
from typing import NamedTuple

import pandas as pd

from harp_lib.claims import COLUMNS
from harp_lib.experiments.theory_study import theory_frame
from harp_lib.results import Cells

DISAGREE = "open: the checks disagree with each other"


class Statement(NamedTuple):
    """A statement of the paper, the checks that speak for it or against it, and what follows if they come out so.

    Attributes
    ----------
    name : str
        As the paper calls it.
    says : str
        What it says, in a line.
    kept : tuple of str
        Checks of ``inequalities`` that must not be violated, be it the statement or what is left of it.
    broken : tuple of str
        Checks that must be violated: the statement as it is printed, or as it is used.
    examples : tuple of str
        Functions of ``counterexamples`` that must refute it.
    verdict : str
        What follows.
    """

    name: str
    says: str
    kept: tuple[str, ...]
    broken: tuple[str, ...]
    examples: tuple[str, ...]
    verdict: str


STATEMENTS = (
    Statement(
        "Definition 1, Sim(H)",
        "average cosine of all pairs; near 1: nearly parallel",
        ("Sim(H) = mean cosine of all pairs",),
        (),
        (),
        "holds for two rows or more, none of them zero; 1 means one direction, and opposite rows count −1",
    ),
    Statement(
        "Definitions of M and d_M",
        "distance to the nearest matrix of identical rows",
        ("d(H) = residual of the best common row",),
        (),
        (),
        "holds; the nearest common row is the mean, and d_M grows with the scale of H, as Sim does not",
    ),
    Statement("Lemma 1, HW", "d(HW) ≤ s d(H)", ("d(HW) ≤ s d(H)",), (), (), "holds"),
    Statement(
        "Lemma 1, σ(H)",
        "d(σ(H)) ≤ d(H), σ not named",
        ("d(ReLU(H)) ≤ d(H)", "d(SiLU(H)) ≤ 1.1 d(H)", "d(GELU(H)) ≤ 1.13 d(H)"),
        ("d(SiLU(H)) ≤ d(H)",),
        ("silu_spreads_rows",),
        "holds if σ has no slope above 1, as ReLU; with SiLU or GELU, which today's models use, only with their "
        "largest slope, 1.10 or 1.13, as a factor",
    ),
    Statement(
        "Lemma 1, sum",
        "d(a₁H + a₂B) ≤ a₁d(H) + a₂d(B)",
        ("d(a₁H + a₂B) ≤ a₁d(H) + a₂d(B)",),
        (),
        (),
        "holds",
    ),
    Statement(
        "Lemma 1, ÂH",
        "d(ÂH) ≤ √λ d(H), e = [1, …, 1]",
        ("d(ÂH) ≤ √λ d(H), e = 1/√N",),
        ("d(ÂH) ≤ √λ d(H), e = 1",),
        ("vector_of_ones",),
        "holds if e is the unit vector e/√N, and cannot be improved then",
    ),
    Statement(
        "Lemma 1, its use",
        "λ below 1, so that attention brings any tokens together",
        ("λ ≤ N/2",),
        ("d(ÂH) ≤ d(H)",),
        ("averaging_under_a_causal_mask",),
        "not guaranteed: λ may be as large as N/2, and exceeds 1 even for uniform causal attention",
    ),
    Statement(
        "Lemma 2",
        "d(block(H)) ≤ v d(H)",
        ("d(block(H)) ≤ v d(H)",),
        (),
        ("pre_norm_block", "separate_value_and_output", "gated_ffn"),
        "holds if the block is post-norm, its norms have no gain, its FFN is two matrices with ReLU, and s counts "
        "W_V W_O as one matrix; for the pre-norm, gated blocks of the paper's models it does not",
    ),
    Statement(
        "Lemma 2, its use",
        "v < 1, so that d_M shrinks from layer to layer",
        ("(1 + √λ h s) / (1 + h s) ≤ v",),
        (),
        (),
        "possible only if λ < 1 in every head, also where the lemma holds: on normalised tokens v is at least "
        "(1 + √λ h s) / (1 + h s)",
    ),
    Statement(
        "Lemma 3",
        "d(H) → 0 implies Sim(H) → 1",
        ("1 − Sim(H) ≤ d(H)² / ((N−1) min‖h‖²)",),
        (),
        ("shrinking_rows",),
        "holds if the rows stay away from zero: it suffices that d(H) vanishes relative to the shortest row",
    ),
    Statement(
        "Lemma 3, backwards",
        "Sim(H) → 1 implies d(H) → 0 (proof of Theorem 1)",
        ("1 − Sim(H) = d(H)² / ((N−1) r²), rows of length r",),
        (),
        ("parallel_rows_are_no_consensus",),
        "holds if all rows have the same length r, and r is bounded, as after an RMS norm without gain; both are then "
        "the same quantity",
    ),
    Statement(
        "Theorem 1",
        "Sim(H) → 1 makes attention uniform",
        ("log n − entropy ≤ (range of logits)² / 8",),
        (),
        ("parallel_rows_of_different_length", "equal_rows_with_rotary_positions", "one_token_apart"),
        "holds if each query's logits come together: rows of equal and bounded length (an RMS norm makes parallel rows "
        "equal), fixed W_Q and W_K, no rotary positions, no token apart; it does not follow for the paper's models, "
        "which have rotary positions",
    ),
    Statement(
        "Theorem 1, its proof",
        "linear maps keep rows almost parallel",
        (),
        (),
        ("projection_loses_what_is_common",),
        "does not hold: exactly parallel rows stay so, nearly parallel ones need not; how near is near depends on W",
    ),
    Statement(
        "Theorem 1, converse",
        "Sim(H) away from 1 keeps attention away from uniform",
        (),
        (),
        ("diverse_rows_with_uniform_attention",),
        "does not hold: keys may not see what tells tokens apart",
    ),
    Statement(
        "Theorem 1, its use",
        "where attention is uniform, queries and keys can go",
        (),
        (),
        ("uniform_attention_is_not_value_only",),
        "does not follow: uniform attention would license the average of all values, HARP keeps each token's own",
    ),
    Statement(
        "Theorem 1, in its place",
        "(ours) values near identical rows make attention superfluous, uniform or not",
        ("‖ÂH − H‖ ≤ ‖Â − I‖ d(H)",),
        (),
        (),
        "holds: value-only attention errs by at most ‖Â − I‖ d(V), which suffices for pruning where it is small",
    ),
    Statement(
        "Proposition 1, if",
        "one-hot rows preserve the norm",
        (),
        (),
        ("one_hot_rows",),
        "does not hold: of one-hot rows only permutations preserve every norm, under a causal mask only the identity",
    ),
    Statement(
        "Proposition 1, only if",
        "an unchanged norm needs one-hot rows",
        ("‖Â‖² ≤ N, equal for one-hot rows", "‖ÂH‖ ≤ √(largest column sum) ‖H‖"),
        (),
        ("equal_rows_keep_their_norm",),
        "holds if the norm of every H is meant (ÂᵀÂ = I has trace N, so that ‖Â‖² = N), not for a single H; the norm "
        "may fall to 0 and grow up to √N-fold",
    ),
)


def statement_table(cells: Cells) -> pd.DataFrame:
    """Every statement, judged by stored checks and counterexamples."""
    checks = theory_frame(cells, "draws").set_index("check")
    examples = theory_frame(cells, "counterexamples").set_index("call")
    one_hot = theory_frame(cells, "one-hot")
    rows = []
    for statement in STATEMENTS:
        evidence = [_reading(name, checks.loc[name]) for name in (*statement.kept, *statement.broken)]
        calls = [f"{name}()" for name in statement.examples]
        evidence += [examples.loc[call, "found"] for call in calls]
        on = [f"{checks['draws'].iloc[0]:,} random draws"] if statement.kept or statement.broken else []
        on += [f"{len(calls)} construction{'s' if len(calls) > 1 else ''}"] if calls else []
        as_said = (
            all(checks.loc[name, "violations"] == 0 for name in statement.kept)
            and all(checks.loc[name, "violations"] > 0 for name in statement.broken)
            and all(examples.loc[call, "refuted"] for call in calls)
        )
        if statement.name == "Proposition 1, if":
            on.append("every matrix of one-hot rows over 2 to 5 tokens")
            evidence.append(_one_hot_reading(one_hot))
            permutations = one_hot["tokens"].map(math.factorial).where(~one_hot["causal"], 1)
            as_said = as_said and bool((one_hot["preserve"] == permutations).all())
        verdict = statement.verdict if as_said else DISAGREE
        listed = ", ".join(f"`{call}`" for call in calls)
        rows.append((statement.name, statement.says, "; ".join(on), "; ".join(evidence), verdict, listed))
    return pd.DataFrame(rows, columns=COLUMNS)


def _reading(name: str, check: pd.Series) -> str:
    if check["kind"] == "identity":
        return f"{name}: largest difference {check['largest']:.0e}"
    if check["violations"] == 0:
        return f"{name}: no violation, up to {check['largest']:.2f} of the bound"
    return f"{name}: {int(check['violations']):,} violations, up to {check['largest']:.2f} times the bound"


def _one_hot_reading(counts: pd.DataFrame) -> str:
    largest = counts[counts["tokens"] == counts["tokens"].max()].set_index("causal")
    full, causal = largest.loc[False], largest.loc[True]
    return (
        f"of {full['one-hot']:,} such matrices over {full['tokens']} tokens {full['preserve']} preserve every norm, "
        f"of the {causal['one-hot']} causal ones {causal['preserve']}"
    )
