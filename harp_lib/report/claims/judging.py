"""The one judge: every claim on every model, by what is stored.

Claims are in ``data/paper/claims.yaml``, what is true of the theorems in
``data/paper/statements.yaml``.
"""

from collections.abc import Callable, Iterable, Iterator
from functools import cache
from typing import Any

import pandas as pd
import yaml

from harp_lib import config
from harp_lib.report import data
from harp_lib.report.claims.findings import NOTHING, Finding, Outcome, weakest
from harp_lib.report.claims.registry import LIKELIHOOD_TESTS, TESTS
from harp_lib.report.claims.score_tests import paper_model

TRUTHS = (  # of the parts of a theorem; the first in this order that applies to a part decides
    "not run",
    "unclear",
    "false",
    "true if",
    "true",
)


def load_claims() -> list[dict]:
    """All claims with a test here, in the paper's order; the file's head explains the fields."""
    claims = yaml.safe_load((config.PAPER / "claims.yaml").read_text(encoding="utf-8"))
    return [claim for claim in claims if "test" in claim or claim["kind"] == "erratum"]


def together(outcomes: Iterable[Outcome]) -> Outcome:
    """What follows from the parts of a claim: some reproduced and some not is partly."""
    different = set(outcomes)
    if len(different) == 1:
        return different.pop()
    if different & {Outcome.NOT, Outcome.PARTLY}:
        holds_in_part = different & {Outcome.REPRODUCED, Outcome.PARTLY}
        return Outcome.PARTLY if holds_in_part else Outcome.NOT
    return Outcome.INCONCLUSIVE


def over_models(outcomes: Iterable[Outcome]) -> Outcome:
    """What follows from the models that were judged.

    A claim that is reproduced on some models only is partly reproduced, whatever follows on the
    others.
    """
    different = set(outcomes) - {Outcome.NOT_RUN}
    if not different:
        return Outcome.NOT_RUN
    if Outcome.REPRODUCED in different and len(different) > 1:
        return Outcome.PARTLY
    return together(different)


def judge(profile: dict, notebook: str | None = None) -> pd.DataFrame:
    """Judge every claim but the errata on every model, by what is stored of a profile.

    Parameters
    ----------
    profile : dict
        The profile whose results are read.
    notebook : str, optional
        Judge the claims of this notebook only.

    Returns
    -------
    DataFrame
        Columns: id, kind, notebook, statement, where, model ("" where none has to run), outcome (an
        :class:`Outcome`; of a theorem true, false, true if). Of the finding that decides: value,
        low, high, n, unit, about, reason, rival, goal and threshold (what the number has to be).
        ``paper`` has the same numbers in the paper, of each of its models. ``held`` of ``parts``
        findings are reproduced. ``by likelihood`` is the outcome of the same comparison by the
        likelihood of the right answer, None where a claim has no such comparison, with its numbers
        in the columns that begin so.
    """
    truths = theorems(profile).set_index("statement")
    read = cache(data.cells)
    rows = []
    for claim in load_claims():
        if claim["kind"] == "erratum":
            continue
        if notebook is not None and claim["notebook"] != notebook:
            continue
        if claim["kind"] == "theorem":
            rows.append(_theorem_row(claim, truths))
        else:
            rows.extend(_model_rows(claim, profile["name"], read))
    return pd.DataFrame(rows)


def _about_claim(claim: dict) -> dict[str, str]:
    """The columns that say what a claim is."""
    return {name: claim[name] for name in ("id", "kind", "notebook", "statement", "where")}


def _theorem_row(claim: dict, truths: pd.DataFrame) -> dict[str, Any]:
    """What is true of a theorem: the truth of its weakest part."""
    parts = truths.loc[claim["test"]["theory"]["statements"]]
    truth = min(parts["truth"], key=TRUTHS.index)
    remarks = parts.loc[parts["truth"] == truth, "remark"]
    return {
        **_about_claim(claim),
        "model": "",
        "outcome": truth,
        "about": "; ".join(remark for remark in remarks if remark),
        "n": parts["draws"].max(),
    }


def _model_rows(claim: dict, profile: str, read: Callable) -> Iterator[dict[str, Any]]:
    """A claim on every model that its store has; on none if it needs no store."""
    store = claim.get("store", "")
    models = [""]
    if store:
        models = list(dict.fromkeys(model for model, *_ in read(profile, store))) or [""]
    ((test, arguments),) = claim["test"].items()
    for model in models:
        if paper_model(model) in claim.get("not_of", ()):
            continue
        source = data.Source(profile, store, model, read)
        yield {
            **_about_claim(claim),
            "model": model,
            **_judged(test, source, arguments),
            **_judged_by_likelihood(test, source, arguments),
        }


def _judged(test: str, source: data.Source, arguments: dict) -> dict[str, Any]:
    """The outcome of a test, and the finding that decides it."""
    try:
        findings = list(TESTS[test](source, **arguments))
        decides = weakest(findings, f"texts of {source.store}")
    except data.Missing as missing:
        decides = Finding(NOTHING, goal=float("nan"), reason=str(missing))
        findings = [decides]
    outcomes = [finding.outcome for finding in findings]
    return {
        **decides.interval._asdict(),
        "unit": decides.unit,
        "about": decides.about,
        "reason": decides.reason,
        "rival": decides.rival,
        "goal": decides.goal,
        "threshold": decides.threshold,
        "paper": tuple(value for finding in findings for value in finding.paper),
        "outcome": together(outcomes),
        "held": outcomes.count(Outcome.REPRODUCED),
        "parts": len(outcomes),
    }


def _judged_by_likelihood(test: str, source: data.Source, arguments: dict) -> dict[str, Any]:
    """The second outcome of a claim about scores, and the finding that decides it."""
    if test not in LIKELIHOOD_TESTS:
        return {"by likelihood": None}
    try:
        findings = list(LIKELIHOOD_TESTS[test](source, **arguments))
    except data.Missing as missing:
        return {"by likelihood": Outcome.NOT_RUN, "by likelihood reason": str(missing)}
    decides = weakest(findings)
    row = {"by likelihood": together(finding.outcome for finding in findings)}
    for name, value in decides.interval._asdict().items():
        row[f"by likelihood {name}"] = value
    row["by likelihood unit"] = decides.unit
    row["by likelihood about"] = decides.about
    return row


def theorems(profile: dict) -> pd.DataFrame:
    """The paper's definitions, lemmas, theorem and proposition, each with what is true of it.

    Columns: those of the file (truth is ``unclear`` where the stored checks contradict it, ``not
    run`` without them), draws (random ones that checked it), and counterexample (the calls that
    refute it).
    """
    checks = data.table(profile["name"], "theory", "draws")
    examples = data.table(profile["name"], "theory", "counterexamples")
    statements = (config.PAPER / "statements.yaml").read_text(encoding="utf-8")
    rows = []
    for statement in yaml.safe_load(statements):
        truth = "not run"
        draws = 0
        if len(checks) and len(examples):
            is_confirmed = _is_confirmed(statement, checks, examples)
            truth = statement["truth"] if is_confirmed else "unclear"
            if statement.get("kept") or statement.get("broken"):
                draws = int(checks["draws"].max())
        rows.append(
            {
                "remark": "",
                **statement,
                "truth": truth,
                "draws": draws,
                "counterexample": ", ".join(statement.get("examples", [])),
            }
        )
    return pd.DataFrame(rows)


def _is_confirmed(statement: dict, checks: pd.DataFrame, examples: pd.DataFrame) -> bool:
    """Whether the stored checks and counterexamples say what the file says of a statement."""
    violations = checks.set_index("check")["violations"]
    refuted = examples.set_index("call")["refuted"]
    return bool(
        (violations[statement.get("kept", [])] == 0).all()
        and (violations[statement.get("broken", [])] > 0).all()
        and refuted[statement.get("examples", [])].all()
    )


def over_all(judged: pd.DataFrame) -> pd.DataFrame:
    """One row for each claim: what it is about, and its outcomes over all models."""
    claims = judged.groupby("id", sort=False)
    rows = claims[["kind", "notebook", "statement", "where"]].first()
    rows["outcome"] = claims["outcome"].agg(over_models)
    rows["likelihood"] = claims["by likelihood"].agg(_likelihood_over_models)
    return rows.reset_index()


def _likelihood_over_models(outcomes: pd.Series) -> Outcome | None:
    """The outcome by likelihood over all models, None where it is not compared on all of them."""
    return over_models(outcomes) if outcomes.notna().all() else None


def counts(judged: pd.DataFrame) -> pd.Series:
    """How many of the claims that were measured have each outcome."""
    outcomes = over_all(judged).query("kind == 'measured'")["outcome"]
    names = [str(outcome) for outcome in Outcome]
    return outcomes.value_counts().reindex(names, fill_value=0)
