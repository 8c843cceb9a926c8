"""Judged claims in words: the tables and sentences that people read."""

from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
from IPython.display import Markdown

from harp_lib import config
from harp_lib.names import display_name
from harp_lib.report import markdown
from harp_lib.report.claims.findings import Outcome
from harp_lib.report.claims.judging import counts, judge, load_claims, over_all
from harp_lib.report.provenance import from_page

MARKS = {  # of an outcome, in front of what decides it on a model
    Outcome.REPRODUCED: "✓",
    Outcome.PARTLY: "~",
    Outcome.NOT: "✗",
    Outcome.INCONCLUSIVE: "?",
    Outcome.NOT_RUN: "–",
}
COLOURS = {  # of the marks: all of them can be read on white and on black
    "✓": "#2a9d5c",
    "~": "#c77f00",
    "✗": "#d64545",
    "?": "#8a8a8a",
    "–": "#8a8a8a",
}
DECIDED = (Outcome.REPRODUCED, Outcome.PARTLY, Outcome.NOT)  # neither open nor not run
ORDER = ("measured", "ours", "counted", "theorem")  # of the kinds, in a notebook's verdict
MOST_CLAIMS = 6  # of a notebook's verdict
REASONS = {  # how the reason why a claim was not run begins, and what a reader is told
    "needs scores of": "this profile asks the model none of these tasks",
    "needs likelihoods of": "no likelihoods are stored",
}


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
    """The verdict of a notebook: at most six claims, each with the mark of every model."""
    judged = judge(profile, notebook)
    judged = judged.sort_values("kind", key=lambda kinds: kinds.map(ORDER.index), kind="stable")
    first_claims = judged["id"].unique()[:MOST_CLAIMS]
    return Markdown(marked(judged[judged["id"].isin(first_claims)]))


def listed(judged: pd.DataFrame, kind: str) -> Markdown:
    """All claims of a kind, with links to the notebooks that look at them."""
    of_kind = judged[judged["kind"] == kind].sort_values("notebook", kind="stable")
    return Markdown(marked(of_kind, with_notebook=True))


def marked(judged: pd.DataFrame, with_notebook: bool = False) -> str:
    """A Markdown table with a row for each claim and a coloured mark for each model.

    The mark of the outcome by likelihood stands behind it in brackets. Numbers, thresholds and the
    paper's numbers unfold under the claim.
    """
    rows = []
    models = _in_order(judged["model"])
    for claim in over_all(judged).to_dict("records"):
        of_claim = judged[judged["id"] == claim["id"]].to_dict("records")
        by_model = {row["model"]: _coloured_marks(row) for row in of_claim}
        row = {}
        if with_notebook:
            row[""] = _link_to_notebook(claim["notebook"])
        is_ours = " *(ours)*" if claim["kind"] == "ours" else ""
        row["claim"] = f"{claim['statement']}{is_ours} {_details(claim, of_claim)}"
        for model in models:
            row[display_name(model)] = by_model.get(model, "")
        row["all models"] = f"**{claim['outcome']}**"
        if not models:
            row["outcome"] = row.pop("all models")
        rows.append(row)
    return markdown(pd.DataFrame(rows))


def _in_order(models: pd.Series) -> list[str]:
    """The models of judged claims in the order of ``data/models.toml``, others last."""
    known = list(config.NAMED_MODELS)

    def place(model: str) -> int:
        return known.index(model) if model in known else len(known)

    # What is counted has no model, or is about the models of the paper together.
    return sorted(set(models) - {"", "paper"}, key=place)


def _marks(row: dict) -> list[str]:
    """The mark of a claim on a model, and that of its outcome by likelihood if it has one."""
    marks = [MARKS.get(row["outcome"], "")]
    by_likelihood = row.get("by likelihood")
    if isinstance(by_likelihood, str) and by_likelihood != Outcome.NOT_RUN:
        marks.append(MARKS[by_likelihood])
    return marks


def _in_brackets(marks: list[str]) -> str:
    """A mark, and the second one in brackets."""
    first, *second = marks
    return " ".join([first, *(f"({mark})" for mark in second)])


def _coloured_marks(row: dict) -> str:
    """The marks of a claim on a model, in their colours."""
    return _in_brackets([coloured(mark) for mark in _marks(row)])


def coloured(mark: str) -> str:
    """A mark of an outcome in its colour; a page that drops styles shows the mark alone."""
    if not mark:
        return ""
    return f'<span style="color:{COLOURS[mark]};font-weight:bold">{mark}</span>'


def _details(claim: dict, rows: list[dict]) -> str:
    """What unfolds under a claim: a line for each model, and what they are compared with."""
    words = _line(claim, rows)
    lines = [claim["where"], words["here"]]
    titles = {
        "n": "Sample size (documents, questions, layers or runs)",
        "needed": "Needed",
        "the paper": "In the paper",
        "by likelihood": "By the likelihood of right answers",
    }
    for column, title in titles.items():
        if words[column]:
            in_one_line = words[column].replace("<br>", "; ")
            lines.append(f"{title}: {in_one_line}")
    text = "<br>".join(line for line in lines if line)
    return f"<details><summary>numbers</summary>{text}</details>"


def _link_to_notebook(number: str) -> str:
    """A Markdown link to a notebook that is executed beside this one."""
    return f"[{number}]({notebook_file(number).name})"


def notebook_file(number: str) -> Path:
    """The source of the notebook with a number.

    Raises
    ------
    FileNotFoundError
        If there is no such notebook.
    """
    for file in config.NOTEBOOKS.glob(f"{number}_*.ipynb"):
        return file
    raise FileNotFoundError(f"no notebook {number} in {config.NOTEBOOKS}")


def paper_map() -> str:
    """A Markdown table of all claims but the errata, in the paper's order.

    Each row has the place in the paper, the claim, the notebook, and the function that computes
    what the claim is about.
    """
    rows = []
    for claim in load_claims():
        if claim["kind"] in ("erratum", "ours"):
            continue
        module, _, function = claim["function"].rpartition(".")
        source = from_page(source_file(module))
        rows.append(
            {
                "in the paper": claim["where"],
                "claim": claim["statement"],
                "notebook": _link_to_notebook(claim["notebook"]),
                "function": f"[`{function}`]({source})",
            }
        )
    return markdown(pd.DataFrame(rows))


def source_file(module: str) -> Path:
    """The file of a module of the library."""
    path = config.CHECKOUT / module.replace(".", "/")
    if path.is_dir():
        return path / "__init__.py"
    return path.with_suffix(".py")


def folded(summary: str, table: str) -> Markdown:
    """A table that a reader unfolds."""
    text = f"<details><summary>{summary}</summary>\n\n{table}\n\n</details>"
    return Markdown(text)


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
    here = [_on_model(row, row["outcome"], _number_here(row)) for row in rows]
    numbers = []
    if claim["kind"] != "counted":  # what is counted is no sample
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


def _on_model(row: dict, outcome: str, number: str) -> str:
    """The mark of an outcome, the model if one was run, and the number that decides."""
    words = [MARKS.get(outcome, "")]
    if row["model"] not in ("", "paper"):
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
        parts.append(_parts(row))
    if row["reason"]:
        parts.append(_reason(row["reason"]))
    elif pd.isna(row["low"]):
        parts.append("too few for an interval")
    return "; ".join(parts)


def _parts(row: dict) -> str:
    """Of how many comparisons the one that decides is the weakest, and how many of them hold."""
    noun = "of the paper's models" if row["kind"] == "counted" else "comparisons"
    number = f"{row['parts']:.0f} {noun}"
    if row["held"] == row["parts"]:
        return f"the weakest of {number}, all of which hold"
    if row["held"] == 0:
        return f"the weakest of {number}, none of which holds"
    verb = "holds" if row["held"] == 1 else "hold"
    return f"the weakest of {number}, {row['held']:.0f} of which {verb}"


def _reason(reason: str) -> str:
    """Why a claim cannot be decided, without the names of stores."""
    for beginning, words in REASONS.items():
        if reason.startswith(beginning):
            return words
    return reason


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
    """The outcomes by likelihood on each model and then over all, if one of them was run."""
    if claim["likelihood"] in (None, Outcome.NOT_RUN):
        return []
    texts = []
    for row in rows:
        outcome = row.get("by likelihood")
        if isinstance(outcome, str):
            texts.append(_on_model(row, outcome, _likelihood_here(row)))
    if texts:
        texts.append(f"all models: **{claim['likelihood']}**")
    return texts


def _likelihood_here(row: dict) -> str:
    """The number that decides by likelihood, with its interval."""
    if row["by likelihood"] == Outcome.NOT_RUN:
        return _reason(row["by likelihood reason"])
    values = [row[f"by likelihood {name}"] for name in ("value", "low", "high")]
    number = in_unit(row["by likelihood unit"], "{} [{}, {}]", *values)
    return f"{number} {row['by likelihood about']}"


def in_unit(name: str, text: str, *values: float) -> str:
    """Numbers in a unit, put into a text that has a ``{}`` for each of them."""
    unit = UNITS[name]
    numbers = [format(value * unit.factor, unit.form) for value in values]
    return unit.text.format(text.format(*numbers)).replace("-", "−")


def counted(profile: dict) -> str:
    """How many claims were tested, with which outcomes, and how many were not, in words."""
    judged = judge(profile)
    numbers = counts(judged)
    num_not_run = numbers[Outcome.NOT_RUN]
    num_tested = numbers.sum() - num_not_run
    tested = numbers.drop(Outcome.NOT_RUN)
    outcomes = [f"**{count} {outcome}**" for outcome, count in tested.items() if count]
    sentence = f"We tested {num_tested} empirical claims of the paper"
    if outcomes:
        sentence += f": {', '.join(outcomes)}"
    sentence += "."
    if num_not_run:
        sentence += f" {num_not_run} more were **not run**."
    return sentence + _counted_by_likelihood(judged)


def _counted_by_likelihood(judged: pd.DataFrame) -> str:
    """How many claims that accuracy leaves open are decided by likelihood, in words."""
    measured = over_all(judged).query("kind == 'measured'")
    decided = measured[measured["likelihood"].isin(DECIDED)]
    num_open = (decided["outcome"] == Outcome.INCONCLUSIVE).sum()
    num_not_run = (decided["outcome"] == Outcome.NOT_RUN).sum()
    parts = []
    if num_open:
        parts.append(f"{num_open} of the inconclusive ones")
    if num_not_run:
        parts.append(f"{num_not_run} of those not run")
    if not parts:
        return ""
    verb = "is" if num_open + num_not_run == 1 else "are"
    return f" By the likelihood of right answers {' and '.join(parts)} {verb} decided."


def matrix(profile: dict) -> str:
    """A table of the claims that have a ``front_page``, with the marks of each model."""
    judged = judge(profile)
    rows = []
    for claim in load_claims():
        if "front_page" not in claim:
            continue
        row = {"the paper's claim": claim["front_page"]}
        for judgement in judged[judged["id"] == claim["id"]].to_dict("records"):
            row[display_name(judgement["model"])] = _in_brackets(_marks(judgement))
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
    number = _number_here(row).replace(rival, f"{rival}, the best baseline", 1)
    return f"{verb} on {display_name(row['model'])}: {number}, {row['n']:.0f} {questions}"
