"""Judged claims in words: the tables and sentences that people read."""

from typing import Any, NamedTuple

import pandas as pd
from IPython.display import Markdown

from harp_lib.names import display_name
from harp_lib.report import markdown
from harp_lib.report.claims.findings import Outcome
from harp_lib.report.claims.judging import counts, judge, load_claims, over_all

MARKS = {  # of an outcome, in front of what decides it on a model
    Outcome.REPRODUCED: "✓",
    Outcome.PARTLY: "~",
    Outcome.NOT: "✗",
    Outcome.INCONCLUSIVE: "?",
    Outcome.NOT_RUN: "–",
}
ORDER = ("measured", "ours", "counted", "theorem")  # of the kinds, in a notebook's verdict
MOST_CLAIMS = 6  # of a notebook's verdict


class Unit(NamedTuple):
    """How numbers of a unit are written."""

    form: str  # the format of one number
    factor: float  # what a number is multiplied by before
    text: str  # the unit around the numbers


UNITS = {
    "": Unit("#.2g", 1, "{}"),
    "points": Unit("+.1f", 1, "{} points"),
    "%": Unit("+.1f", 100, "{} %"),
    "share": Unit(".0f", 100, "{} %"),
    "ρ": Unit("+.2f", 1, "ρ {}"),
    "nats": Unit("+.2f", 1, "{} nats"),
    "bits per byte": Unit("+.3f", 1, "{} bits per byte"),
}


def show(notebook: str, profile: dict) -> Markdown:
    """The verdict of a notebook: at most six claims, each with its number and the paper's."""
    judged = judge(profile, notebook)
    judged = judged.sort_values("kind", key=lambda kinds: kinds.map(ORDER.index), kind="stable")
    first_claims = judged["id"].unique()[:MOST_CLAIMS]
    return Markdown(markdown(worded(judged[judged["id"].isin(first_claims)])))


def listed(judged: pd.DataFrame, kind: str) -> Markdown:
    """All claims of a kind, with the notebooks that look at them."""
    of_kind = judged[judged["kind"] == kind].sort_values("notebook", kind="stable")
    return Markdown(markdown(worded(of_kind).reset_index()))


def worded(judged: pd.DataFrame) -> pd.DataFrame:
    """Claims in words, one a row, indexed by notebook.

    Columns: claim, here (our number), n, the paper (its number), needed (what the number has to
    be), outcome, and "by likelihood" if a claim has such an outcome.
    """
    all_models = over_all(judged)
    rows = []
    for claim in all_models.to_dict("records"):
        rows.append(_line(claim, judged[judged["id"] == claim["id"]].to_dict("records")))
    shown = pd.DataFrame(rows, all_models["notebook"])
    if not shown["by likelihood"].any():
        return shown.drop(columns="by likelihood")
    return shown


def _line(claim: dict, rows: list[dict]) -> dict[str, str]:
    """A claim in words; ``rows`` are what was judged on each model."""
    is_ours = claim["kind"] == "ours"
    several = len(rows) > 1
    here = [_on_model(row, several, row["outcome"], _number_here(row)) for row in rows]
    numbers = [f"{row['n']:,.0f}" for row in rows if row["n"] > 0]
    return {
        "claim": claim["statement"] + (" *(ours)*" if is_ours else ""),
        "here": "<br>".join(here),
        "n": ", ".join(dict.fromkeys(numbers)),
        "the paper": "<br>".join(_numbers_of_paper(rows)),
        "needed": "<br>".join(_thresholds(rows)),
        "outcome": f"**{claim['outcome']}**",
        "by likelihood": "<br>".join(_by_likelihood(claim, rows)),
    }


def _on_model(row: dict, several: bool, outcome: str, number: str) -> str:
    """The mark of an outcome, the model if there are ``several``, and the number that decides."""
    words = [MARKS.get(outcome, "")]
    if several:
        words.append(f"{display_name(row['model'])}:")
    words.append(number)
    return " ".join(word for word in words if word)


def _number_here(row: dict) -> str:
    """The number that decides with its interval, what it is of, and why it cannot decide."""
    if row["kind"] == "theorem":
        return row["about"]
    parts = []
    if not pd.isna(row["value"]):
        if row["low"] < row["high"]:
            number = in_unit(row["unit"], "{} [{}, {}]", row["value"], row["low"], row["high"])
        else:
            number = in_unit(row["unit"], "{}", row["value"])
        parts.append(f"{number} {row['about']}".strip())
    if row["parts"] > 1:
        parts.append(f"{row['held']:.0f} of {row['parts']:.0f} parts hold")
    if row["reason"]:
        parts.append(row["reason"])
    elif pd.isna(row["low"]):
        parts.append("too few for an interval")
    return "; ".join(parts)


def _numbers_of_paper(rows: list[dict]) -> list[str]:
    """The same numbers in the paper: one, or the lowest to the highest of its models."""
    texts = []
    for row in rows:
        if not isinstance(row.get("paper"), tuple) or not row["paper"]:
            continue
        values = sorted(set(row["paper"]))
        if len(values) == 1:
            texts.append(in_unit(row["unit"], "{}", values[0]))
        else:
            texts.append(in_unit(row["unit"], "{} to {}", values[0], values[-1]))
    return list(dict.fromkeys(texts))


def _thresholds(rows: list[dict]) -> list[str]:
    """What the number that decides has to be, by model where models differ."""
    needed = {}
    for row in rows:
        threshold = _threshold(row)
        if threshold:
            needed[display_name(row["model"])] = threshold
    if len(set(needed.values())) > 1:
        return [f"{model}: {threshold}" for model, threshold in needed.items()]
    return list(dict.fromkeys(needed.values()))


def _threshold(row: dict) -> str:
    """What the number that decides on a model has to be, or ""."""
    if row["kind"] == "theorem" or pd.isna(row["goal"]):
        return ""
    unit = UNITS[row["unit"]]
    goal = format(row["goal"] * unit.factor, "g").replace("-", "−")
    return unit.text.format(row["threshold"].format(goal))


def _by_likelihood(claim: dict, rows: list[dict]) -> list[str]:
    """The outcomes by likelihood on each model and then over all, if a claim has any."""
    texts = []
    for row in rows:
        outcome = row.get("by likelihood")
        if isinstance(outcome, str):
            texts.append(_on_model(row, len(rows) > 1, outcome, _likelihood_here(row)))
    if texts:
        texts.append(f"**{claim['likelihood']}**")
    return texts


def _likelihood_here(row: dict) -> str:
    """The number that decides by likelihood, with its interval."""
    if row["by likelihood"] == Outcome.NOT_RUN:
        return row["by likelihood reason"]
    values = [row[f"by likelihood {name}"] for name in ("value", "low", "high")]
    number = in_unit(row["by likelihood unit"], "{} [{}, {}]", *values)
    return f"{number} {row['by likelihood about']}"


def in_unit(name: str, text: str, *values: float) -> str:
    """Numbers in a unit, put into a text that has a ``{}`` for each of them."""
    unit = UNITS[name]
    numbers = [format(value * unit.factor, unit.form) for value in values]
    return unit.text.format(text.format(*numbers)).replace("-", "−")


def counted(profile: dict) -> str:
    """How many claims were measured, and with which outcomes, in a sentence."""
    numbers = counts(judge(profile))
    outcomes = [f"**{count} {outcome}**" for outcome, count in numbers.items() if count]
    return f"We tested {numbers.sum()} empirical claims of the paper: {', '.join(outcomes)}."


def matrix(profile: dict) -> str:
    """A table of the claims that have a ``front_page``, with the mark of each model."""
    judged = judge(profile)
    rows = []
    for claim in load_claims():
        if "front_page" not in claim:
            continue
        row = {"the paper's claim": claim["front_page"]}
        for judgement in judged[judged["id"] == claim["id"]].to_dict("records"):
            row[display_name(judgement["model"])] = MARKS[judgement["outcome"]]
        rows.append(row)
    return markdown(pd.DataFrame(rows))


def headline(profile: dict) -> str:
    """Say whether HARP leads the baselines, by how much, on how many questions, in one sentence."""
    judged = judge(profile, "05").query("id == 'generation-parameters'").dropna(subset="value")
    if judged.empty:
        return "Whether HARP leads the baselines has not been measured here."
    questions = "home-made questions" if profile["datasets"] == "embedded" else "questions"
    leads = [_lead(row, questions) for row in judged.to_dict("records")]
    return f"At equal parameters, on average of the generation tasks, {'; '.join(leads)}."


def _lead(row: dict[str, Any], questions: str) -> str:
    """Whether HARP+FLAP leads on a model, against which baseline, and by how much."""
    verbs = {Outcome.REPRODUCED: "HARP+FLAP leads", Outcome.NOT: "HARP+FLAP does not lead"}
    verb = verbs.get(row["outcome"], "no lead of HARP+FLAP can be told")
    rival = f"against {row['rival']}"
    number = _number_here(row).replace(rival, f"{rival}, the closest baseline", 1)
    return f"{verb} on {display_name(row['model'])}: {number}, {row['n']:.0f} {questions}"
