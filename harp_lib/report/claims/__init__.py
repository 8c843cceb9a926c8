"""The one judge: a claim is data, its test gives numbers, a rule says what follows, and words come
last.

Claims are in ``data/paper/claims.yaml``, what is true of the theorems in
``data/paper/statements.yaml``.
"""

from collections.abc import Iterable
from functools import cache

import pandas as pd
import yaml
from IPython.display import Markdown

from harp_lib import config
from harp_lib.names import display_name
from harp_lib.report import data, markdown, table
from harp_lib.report.claims import layer_tests, likelihood_tests, score_tests
from harp_lib.report.claims.score_tests import NOTHING, Finding, Outcome, paper_model, weakest

TESTS = vars(score_tests) | vars(layer_tests)  # by name
MARKS = {  # of an outcome, in front of what decides it on a model
    Outcome.REPRODUCED: "✓",
    Outcome.PARTLY: "~",
    Outcome.NOT: "✗",
    Outcome.INCONCLUSIVE: "?",
    Outcome.NOT_RUN: "–",
}
ORDER = ("measured", "ours", "counted", "theorem")  # of the kinds, in a notebook's verdict
TRUTHS = (
    "not run",
    "unclear",
    "false",
    "true if",
    "true",
)  # the first that applies to a part decides
UNITS = {  # the format of a number, what it is multiplied by before, and the unit around it
    "": ("#.2g", 1, "{}"),
    "points": ("+.1f", 1, "{} points"),
    "%": ("+.1f", 100, "{} %"),
    "share": (".0f", 100, "{} %"),
    "ρ": ("+.2f", 1, "ρ {}"),
    "nats": ("+.2f", 1, "{} nats"),
    "bits per byte": ("+.3f", 1, "{} bits per byte"),
}


def load_claims() -> list[dict]:
    """All claims, in the paper's order; the file's head says what their fields are."""
    return yaml.safe_load((config.PAPER / "claims.yaml").read_text(encoding="utf-8"))


def together(outcomes: Iterable[Outcome]) -> Outcome:
    """What follows from the parts of a claim: some reproduced and some not is partly."""
    found = set(outcomes)
    if len(found) == 1:
        return found.pop()
    if found & {Outcome.NOT, Outcome.PARTLY}:
        return Outcome.PARTLY if found & {Outcome.REPRODUCED, Outcome.PARTLY} else Outcome.NOT
    return Outcome.INCONCLUSIVE


def over_models(outcomes: Iterable[Outcome]) -> Outcome:
    """The same over the models that were judged: reproduced on some of them is partly, whatever the
    others say.
    """
    found = set(outcomes) - {Outcome.NOT_RUN} or {Outcome.NOT_RUN}
    return Outcome.PARTLY if Outcome.REPRODUCED in found and len(found) > 1 else together(found)


def judge(profile: dict, notebook: str | None = None) -> pd.DataFrame:
    """Every claim but the errata, or those of one notebook, on every model, by what is stored of a
    profile.

    Columns: id, kind, notebook, statement, where, model ("" where none has to run), outcome (an
    :class:`Outcome`; of a theorem true, false, true if). Of the finding that decides: value, low,
    high, n, unit, about, reason and paper (the same number there, of each of its models), goal and
    threshold (what the number has to be); ``held`` of ``parts`` findings are reproduced. ``by
    likelihood`` is the outcome of the same comparison by the likelihood of the right answer, None
    where a claim has no such comparison, with its numbers in the columns that begin so.
    """
    truths, read, rows = theorems(profile).set_index("statement"), cache(data.cells), []
    for claim in load_claims():
        if claim["kind"] == "erratum" or notebook not in (None, claim["notebook"]):
            continue
        about = {name: claim[name] for name in ("id", "kind", "notebook", "statement", "where")}
        ((test, arguments),) = claim["test"].items()
        if claim["kind"] == "theorem":
            parts = truths.loc[arguments["statements"]]
            truth = min(parts["truth"], key=TRUTHS.index)
            remarks = "; ".join(filter(None, parts.loc[parts["truth"] == truth, "remark"]))
            rows.append(
                about | {"model": "", "outcome": truth, "about": remarks, "n": parts["draws"].max()}
            )
            continue
        store = claim.get("store", "")
        stored = read(profile["name"], store) if store else ()
        for model in dict.fromkeys(model for model, *_ in stored) or [""]:
            if paper_model(model) in claim.get("not_of", ()):
                continue
            source = data.Source(profile["name"], store, model, read)
            try:
                findings = list(TESTS[test](source, **arguments))
                decides = weakest(findings, f"texts of {store}")
            except data.Missing as missing:
                findings = [decides := Finding(NOTHING, goal=float("nan"), reason=str(missing))]
            outcomes = [found.outcome for found in findings]
            row = about | {"model": model} | decides.interval._asdict()
            row |= {
                "unit": decides.unit,
                "about": decides.about,
                "reason": decides.reason,
                "rival": decides.rival,
            }
            row |= {"goal": decides.goal, "threshold": decides.threshold}
            row["paper"] = tuple(value for found in findings for value in found.paper)
            row |= {
                "outcome": together(outcomes),
                "held": outcomes.count("reproduced"),
                "parts": len(outcomes),
            }
            rows.append(row | _by_likelihood(test, source, arguments))
    return pd.DataFrame(rows)


def _by_likelihood(test: str, source: data.Source, arguments: dict) -> dict:
    """The second outcome of a claim about scores, and the numbers of the finding that decides it."""
    compare = likelihood_tests.TESTS.get(test)
    if compare is None:
        return {"by likelihood": None}
    try:
        findings = list(compare(source, **arguments))
    except data.Missing as missing:
        return {"by likelihood": Outcome.NOT_RUN, "by likelihood reason": str(missing)}
    decides = weakest(findings)
    numbers = decides.interval._asdict() | {"unit": decides.unit, "about": decides.about}
    found = {f"by likelihood {name}": value for name, value in numbers.items()}
    return {"by likelihood": together(finding.outcome for finding in findings)} | found


def theorems(profile: dict) -> pd.DataFrame:
    """The paper's definitions, lemmas, theorem and proposition, each with what is true of it.

    Columns: those of the file (truth is ``unclear`` where the stored checks say otherwise, ``not
    run`` without them), draws (random ones that checked it), and counterexample (the calls that
    refute it).
    """
    checks, examples = (
        data.table(profile["name"], "theory", task) for task in ("draws", "counterexamples")
    )
    rows = []
    for statement in yaml.safe_load((config.PAPER / "statements.yaml").read_text(encoding="utf-8")):
        kept, broken, calls = (statement.get(part, []) for part in ("kept", "broken", "examples"))
        found = {"truth": "not run", "draws": 0, "counterexample": ", ".join(calls)}
        if len(checks) and len(examples):
            violations, refuted = (
                checks.set_index("check")["violations"],
                examples.set_index("call")["refuted"],
            )
            as_said = (
                (violations[kept] == 0).all()
                and (violations[broken] > 0).all()
                and refuted[calls].all()
            )
            found["truth"] = statement["truth"] if as_said else "unclear"
            found["draws"] = int(checks["draws"].max()) if kept + broken else 0
        rows.append({"remark": ""} | statement | found)
    return pd.DataFrame(rows)


def over_all(judged: pd.DataFrame) -> pd.DataFrame:
    """One row for each claim: what it is about, and its outcome over all models."""
    claims = judged.groupby("id", sort=False)
    about = claims[["kind", "notebook", "statement", "where"]].first()
    likelihood = claims["by likelihood"].agg(
        lambda found: over_models(found) if found.notna().all() else None
    )
    return about.assign(
        outcome=claims["outcome"].agg(over_models), likelihood=likelihood
    ).reset_index()


def counts(judged: pd.DataFrame) -> pd.Series:
    """How many of the claims that were measured have each outcome."""
    found = over_all(judged).query("kind == 'measured'")["outcome"]
    return found.value_counts().reindex([str(outcome) for outcome in Outcome], fill_value=0)


def show(notebook: str, profile: dict) -> Markdown:
    """The verdict of a notebook: at most six claims, each with its number, the paper's, and what
    follows.
    """
    mine = judge(profile, notebook).sort_values(
        "kind", key=lambda kinds: kinds.map(ORDER.index), kind="stable"
    )
    return Markdown(markdown(worded(mine[mine["id"].isin(mine["id"].unique()[:6])])))


def listed(judged: pd.DataFrame, kind: str) -> Markdown:
    """All claims of a kind, with the notebooks that look at them."""
    chosen = worded(judged[judged["kind"] == kind].sort_values("notebook", kind="stable"))
    return Markdown(markdown(chosen.reset_index()))


def worded(judged: pd.DataFrame) -> pd.DataFrame:
    """Claims in words, one a row: what is said, our number and the paper's, what the number has to
    be, the outcome.
    """
    rows = []
    all_models = over_all(judged)
    for claim in all_models.to_dict("records"):
        mine = judged[judged["id"] == claim["id"]].to_dict("records")
        here = [_of_model(row, len(mine) > 1, row["outcome"], _here(row)) for row in mine]
        by_likelihood = [
            _of_model(row, len(mine) > 1, row["by likelihood"], _likelihood_here(row))
            for row in mine
            if isinstance(row.get("by likelihood"), str)
        ]
        number = ", ".join(dict.fromkeys(f"{row['n']:,.0f}" for row in mine if row["n"] > 0))
        told = [
            (row["unit"], sorted(row["paper"]))
            for row in mine
            if isinstance(row.get("paper"), tuple)
        ]
        ends = dict.fromkeys(
            _number(unit, *dict.fromkeys((own[0], own[-1]))) for unit, own in told if own
        )
        needed = {display_name(row["model"]): _needed(row) for row in mine if _needed(row)}
        if len(set(needed.values())) > 1:
            needed = {model: f"{model}: {threshold}" for model, threshold in needed.items()}
        rows.append(
            {
                "claim": claim["statement"] + (" *(ours)*" if claim["kind"] == "ours" else ""),
                "here": "<br>".join(here),
                "n": number,
                "the paper": "<br>".join(ends),
                "needed": "<br>".join(dict.fromkeys(needed.values())),
                "outcome": f"**{claim['outcome']}**",
                "by likelihood": "<br>".join(
                    [*by_likelihood, f"**{claim['likelihood']}**"] if by_likelihood else ()
                ),
            }
        )
    shown = pd.DataFrame(rows, all_models["notebook"])
    return shown if shown["by likelihood"].any() else shown.drop(columns="by likelihood")


def _of_model(row: dict, several: bool, outcome: str, number: str) -> str:
    """What decides on a model, behind the mark of its outcome; the model is named where there are
    several.
    """
    mark = MARKS.get(outcome, "")
    name = f"{display_name(row['model'])}:" if several else ""
    return " ".join(filter(None, (mark, name, number)))


def _likelihood_here(row: dict) -> str:
    """The number that decides by likelihood, with its interval."""
    if row["by likelihood"] == Outcome.NOT_RUN:
        return row["by likelihood reason"]
    value, low, high, unit = (
        row[f"by likelihood {name}"] for name in ("value", "low", "high", "unit")
    )
    return f"{_number(unit, value, low, high)} {row['by likelihood about']}"


def _needed(row: dict) -> str:
    """What the number that decides has to be: the claim's threshold, in words."""
    if row["kind"] == "theorem" or pd.isna(row["goal"]):
        return ""
    _, factor, whole = UNITS[row["unit"]]
    goal = format(row["goal"] * factor, "g").replace("-", "−")
    return whole.format(row["threshold"].format(goal))


def _number(unit: str, *values: float) -> str:
    """One number, two ends, or a number and its interval, in a unit."""
    form, factor, whole = UNITS[unit]
    text = ("{}", "{} to {}", "{} [{}, {}]")[len(values) - 1]
    return whole.format(text.format(*(format(value * factor, form) for value in values))).replace(
        "-", "−"
    )


def _here(row: dict) -> str:
    """What decides: the number with its interval, what it is of, and why it cannot decide."""
    if row["kind"] == "theorem":
        return row["about"]
    ends, lacking = (
        (row["low"], row["high"]),
        "too few for an interval" if pd.isna(row["low"]) else "",
    )
    number = (
        _number(row["unit"], row["value"], *(ends if ends[0] < ends[1] else ()))
        + f" {row['about']}"
    )
    held = f"{row['held']:.0f} of {row['parts']:.0f} parts hold" if row["parts"] > 1 else ""
    return "; ".join(
        filter(
            None, ("" if pd.isna(row["value"]) else number.strip(), held, row["reason"] or lacking)
        )
    )


def counted(profile: dict) -> str:
    """How many claims were measured, and with which outcomes, in a sentence."""
    number = counts(judge(profile))
    said = [f"**{count} {outcome}**" for outcome, count in number.items() if count]
    return f"We tested {number.sum()} empirical claims of the paper: {', '.join(said)}."


def headline(profile: dict) -> str:
    """Does HARP lead the baselines here, by how much, on how many questions? One sentence."""
    known = judge(profile, "05").query("id == 'generation-parameters'").dropna(subset="value")
    if known.empty:
        return "Whether HARP leads the baselines has not been measured here."
    leads = {Outcome.REPRODUCED: "HARP+FLAP leads", Outcome.NOT: "HARP+FLAP does not lead"}
    asked, parts = "home-made questions" if profile["datasets"] == "embedded" else "questions", []
    for row in known.to_dict("records"):
        lead = f"{leads.get(row['outcome'], 'no lead of HARP+FLAP can be told')} on {display_name(row['model'])}"
        rival = f"against {row['rival']}"
        number = _here(row).replace(rival, f"{rival}, the closest baseline", 1)
        parts.append(f"{lead}: {number}, {row['n']:.0f} {asked}")
    return f"At equal parameters, on average of the generation tasks, {'; '.join(parts)}."


@table()
def claims(profile: dict) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Every claim in words, and its numbers on each model."""
    judged = judge(profile)
    return worded(judged), judged
