"""The one judge: a claim is data, its test gives numbers, a rule says what follows, and words come last.

Claims are in ``data/paper/claims.yaml``, what is true of the theorems in ``data/paper/statements.yaml``.
"""

import math
from collections.abc import Iterable, Mapping
from typing import Any

import matplotlib.pyplot as plt
import pandas as pd
import yaml
from IPython.display import Markdown
from matplotlib.figure import Figure

from harp_lib import config
from harp_lib.measure.models import display_name
from harp_lib.report import data, figure, plots, table
from harp_lib.report.claims import layer_tests
from harp_lib.report.claims.score_tests import NOTHING, TESTS, Finding, Outcome, paper_model, weakest

ORDER = MEASURED, OURS, COUNTED, THEOREM, ERRATUM = "measured", "ours", "counted", "theorem", "erratum"
TRUTHS = ("not run", "unclear", "false", "true if", "true")  # the first that applies to a part decides
MOST = 6  # rows of a notebook's verdict
COLOURS = {"reproduced": plots.FIRST, "partly": plots.SECOND, "not reproduced": "#a4133c", "inconclusive": "#c8c8c8"}
COLOURS |= {"not run": "#efefef"}
Profile = str | Mapping[str, Any] | pd.DataFrame
assert layer_tests  # they register themselves


def load_claims() -> list[dict[str, Any]]:
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
    """The same over the models that were judged: reproduced on some of them is partly, whatever the others say."""
    found = set(outcomes) - {Outcome.NOT_RUN} or {Outcome.NOT_RUN}
    return Outcome.PARTLY if Outcome.REPRODUCED in found and len(found) > 1 else together(found)


def judge(profile: Profile, notebook: str | None = None) -> pd.DataFrame:
    """Every claim but the errata, on every model.

    Parameters
    ----------
    profile : str or dict
        A profile or its name: its stored results are judged, this checkout's or else the committed reference. A frame
        that this function made is returned: all that is said of claims can be asked of a profile or of a frame.
    notebook : str, optional
        Judge the claims of this one only.

    Returns
    -------
    DataFrame
        One row for each claim and model: id, kind, notebook, statement, where, model ("" where none has to run) and
        ``outcome`` (an :class:`Outcome`; of a theorem true, false, true if). Of the finding that decides: value, low,
        high, n, unit, about, reason and paper (the same number there, of each of its models); ``held`` of ``parts``
        findings are reproduced.
    """
    if isinstance(profile, pd.DataFrame):
        return profile
    source, truths = data.Source(_name(profile)), theorems(profile).set_index("statement")
    rows = []
    for claim in load_claims():
        if claim["kind"] == ERRATUM or notebook not in (None, claim["notebook"]):
            continue
        about = {name: claim[name] for name in ("id", "kind", "notebook", "statement", "where")}
        ((test, arguments),) = claim["test"].items()
        if claim["kind"] == THEOREM:
            parts = truths.loc[arguments["statements"]]
            truth = min(parts["truth"], key=TRUTHS.index)
            remarks = "; ".join(parts.loc[parts["truth"] == truth, "remark"].replace("", pd.NA).dropna())
            rows.append(about | {"model": "", "outcome": truth, "about": remarks, "n": parts["draws"].max()})
            continue
        function, store = TESTS[test]
        for model in source.models(arguments.get("store", store)) or [""] if store else [""]:
            if paper_model(model) not in claim.get("not_of", ()):
                rows.append(about | {"model": model} | _judged(function, source, model, arguments))
    judged = pd.DataFrame(rows)
    judged.attrs["profile"] = _name(profile)
    return judged


def _judged(test: Any, source: data.Source, model: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    try:
        findings = test(source, model, **arguments)
    except data.Missing as missing:
        findings = [Finding(NOTHING, reason=str(missing))]
    outcomes, decides = [found.outcome for found in findings], weakest(findings)
    row = decides.interval._asdict() | {name: getattr(decides, name) for name in ("unit", "about", "reason")}
    row["paper"] = tuple(value for found in findings for value in found.paper)
    return row | {"outcome": together(outcomes), "held": outcomes.count("reproduced"), "parts": len(outcomes)}


def theorems(profile: str | Mapping[str, Any]) -> pd.DataFrame:
    """The paper's definitions, lemmas, theorem and proposition, each with what is true of it.

    Returns
    -------
    DataFrame
        statement, notebook, says, truth (true, false, true if; ``unclear`` where the stored checks say otherwise, ``not
        run`` without them), remark (the condition, or why not), draws (random ones that checked it), counterexample
        (the calls that refute it).
    """
    name = _name(profile)
    checks, examples = (data.table(name, "theory", task) for task in ("draws", "counterexamples"))
    rows = []
    for statement in yaml.safe_load((config.PAPER / "statements.yaml").read_text(encoding="utf-8")):
        kept, broken, refuting = (statement.get(part, []) for part in ("kept", "broken", "examples"))
        calls, truth = [f"{example}()" for example in refuting], "not run"
        if len(checks) and len(examples):
            violations, refuted = checks.set_index("check")["violations"], examples.set_index("call")["refuted"]
            as_said = (violations[kept] == 0).all() and (violations[broken] > 0).all() and refuted[calls].all()
            truth = statement["truth"] if as_said else "unclear"
        draws = int(checks["draws"].max()) if len(checks) and kept + broken else 0
        row = {"statement": statement["name"], "truth": truth, "remark": statement.get("remark", ""), "draws": draws}
        rows.append(row | {key: statement[key] for key in ("notebook", "says")} | {"counterexample": ", ".join(calls)})
    return pd.DataFrame(rows)


def errata() -> pd.DataFrame:
    """Slips of the pen, and where the paper's own tables say otherwise: where, what."""
    rows = [(claim["where"], claim["statement"]) for claim in load_claims() if claim["kind"] == ERRATUM]
    return pd.DataFrame(rows, columns=["where", "what"])


def over_all(judged: pd.DataFrame) -> pd.DataFrame:
    """One row for each claim: what it is about, and its outcome over all models."""
    fixed = judged.groupby("id", sort=False)[["kind", "notebook", "statement", "where"]].first()
    said = judged[judged["kind"] != THEOREM].groupby("id")["outcome"].agg(over_models)
    return fixed.assign(outcome=said.reindex(fixed.index).fillna(judged.groupby("id")["outcome"].first())).reset_index()


def counts(profile: Profile) -> pd.Series:
    """How many of the claims that were measured have each outcome."""
    found = over_all(judge(profile)).query("kind == 'measured'")["outcome"]
    return found.value_counts().reindex([str(outcome) for outcome in Outcome], fill_value=0)


def show(notebook: str, profile: Profile) -> Markdown:
    """The verdict of a notebook: at most six claims, each with its number, the paper's, and what follows."""
    mine = judge(profile, notebook)
    mine = mine.assign(order=mine["kind"].map(ORDER.index)).sort_values("order", kind="stable")
    chosen = mine[mine["id"].isin(mine["id"].unique()[:MOST])]
    return Markdown(worded(chosen).to_markdown(index=False, disable_numparse=True))


def listed(profile: Profile, *kinds: str) -> Markdown:
    """All claims of some kinds, with the notebooks that look at them."""
    judged = judge(profile)
    chosen = judged[judged["kind"].isin(kinds)].sort_values("notebook", kind="stable")
    frame = worded(chosen)
    frame.insert(0, "notebook", list(over_all(chosen)["notebook"]))
    return Markdown(frame.to_markdown(index=False, disable_numparse=True))


def worded(judged: pd.DataFrame) -> pd.DataFrame:
    """Claims in words, one a row: what is said, what is found here, on how much, in the paper, and the outcome."""
    rows = []
    for claim in over_all(judged).to_dict("records"):
        mine = judged[judged["id"] == claim["id"]].to_dict("records")
        several = len(mine) > 1
        here = "<br>".join((f"{display_name(row['model'])}: " if several else "") + _here(row) for row in mine)
        number = ", ".join(dict.fromkeys(f"{row['n']:,.0f}" for row in mine if row["n"] > 0))
        ours = " *(ours)*" if claim["kind"] == OURS else ""
        printed = "<br>".join(dict.fromkeys(filter(None, map(_printed, mine))))
        rows.append((claim["statement"] + ours, here, number, printed, f"**{claim['outcome']}**"))
    return pd.DataFrame(rows, columns=["claim", "here", "n", "the paper", "outcome"])


def number(value: float, unit: str) -> str:
    """A number in its unit, without the unit's name."""
    form = {"points": "+.1f", "places": "+.0f", "%": "+.1f", "share": ".0f", "ρ": "+.2f", "v": ".1e"}.get(unit, ".2f")
    return format(value * (100 if unit in ("%", "share") else 1), form).replace("-", "−")


def _with_unit(text: str, unit: str) -> str:
    return {"ρ": f"ρ {text}", "v": f"v {text}", "": text, "share": f"{text} %"}.get(unit, f"{text} {unit}")


def _here(row: Mapping[str, Any]) -> str:
    """What decides: the number with its interval, what it is of, and why it cannot decide."""
    if row["kind"] == THEOREM:
        return row["about"]
    said = []
    if not math.isnan(row["value"]):
        text = number(row["value"], row["unit"])
        if row["low"] < row["high"]:
            text += f" [{number(row['low'], row['unit'])}, {number(row['high'], row['unit'])}]"
        said.append(_with_unit(text, row["unit"]) + (f" {row['about']}" if row["about"] else ""))
    said += [f"{row['held']:.0f} of {row['parts']:.0f} parts hold"] if row["parts"] > 1 else []
    lacking = "too few for an interval" if math.isnan(row["low"]) else ""
    return "; ".join(filter(None, [*said, row["reason"] or lacking]))


def _printed(row: Mapping[str, Any]) -> str:
    """The paper's number, or the range over its models."""
    if not isinstance(row.get("paper"), tuple) or not row["paper"]:
        return ""
    ends = dict.fromkeys(number(end, row["unit"]) for end in (min(row["paper"]), max(row["paper"])))
    return _with_unit(" to ".join(ends), row["unit"])


def headline(profile: Profile) -> str:
    """Does HARP lead the baselines here, by how much, on how many questions? One sentence."""
    judged = judge(profile, "05")
    known = judged.query("id == 'generation-parameters'").dropna(subset="value")
    if known.empty:
        return "Whether HARP leads the baselines has not been measured here."
    led, lost = ((known["outcome"] == outcome).sum() for outcome in (Outcome.REPRODUCED, Outcome.NOT))
    head = f"HARP leads on {led} of {len(known)} models" if len(known) > 1 else "No lead of HARP can be told here"
    if len(known) == 1 and led + lost:
        head = "HARP leads here" if led else "HARP does not lead here"
    cells = data.cells(judged.attrs["profile"], "main_tables").values()
    asked = "home-made questions" if any(c["inputs"].get("source") == "embedded" for c in cells) else "questions"
    said = "{}, the closest baseline, on {:.0f} {} ({})"
    rows = known.to_dict("records")
    parts = [said.format(_here(row), row["n"], asked, display_name(row["model"])) for row in rows]
    return f"{head}: on average of the generation tasks, at equal parameters, HARP+FLAP stands at {'; '.join(parts)}."


@figure()
def outcomes(profile: Mapping[str, Any]) -> Figure:
    """How the measured claims of each notebook came out."""
    found = over_all(judge(profile)).query("kind == 'measured'")
    number = pd.crosstab(found["notebook"], found["outcome"])
    drawn, axis = plt.subplots(figsize=(7, 3))
    stacked = 0
    for outcome, colour in COLOURS.items():
        if outcome in number:
            marks = {"color": colour, "edgecolor": "white", "hatch": "///" if outcome == Outcome.NOT else None}
            axis.bar(number.index, number[outcome], bottom=stacked, label=outcome, **marks)
            stacked = stacked + number[outcome]
    reproduced = (found["outcome"] == Outcome.REPRODUCED).sum()
    axis.set(title=f"{reproduced} of {len(found)} measured claims are reproduced", xlabel="notebook", ylabel="claims")
    drawn.legend(loc="outside right center")
    return drawn


@table()
def claims(profile: Mapping[str, Any]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Every claim in words, and its numbers on each model."""
    judged = judge(profile)
    return worded(judged), judged


def _name(profile: str | Mapping[str, Any]) -> str:
    return profile if isinstance(profile, str) else profile["name"]
