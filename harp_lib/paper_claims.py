"""The paper's claims, each judged by the verdict tables of the notebooks: what notebook 00 shows."""

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

import pandas as pd
import yaml

from harp_lib import (
    ablation_verdict,
    alpha_verdict,
    baseline_verdict,
    efficiency_verdict,
    longbench_verdict,
    norm_claims,
    paths,
    score_verdict,
    similarity_claims,
    theory_verdict,
)
from harp_lib.experiments import (
    ablation_study,
    alpha_study,
    baseline_study,
    efficiency_study,
    norm_study,
    score_study,
    similarity_study,
    theory_study,
)
from harp_lib.measure.corpora import TITLES
from harp_lib.measure.models import display_name, slug
from harp_lib.paper_print import flap_updates, print_checks
from harp_lib.results import RUN_FILE, Cells, read_results

REPRODUCED, PARTLY, NOT = "reproduced", "reproduced in part", "not reproduced"
SMALL, NOT_RUN = "too small to tell", "not run"
OUTCOMES = (REPRODUCED, PARTLY, NOT, SMALL, NOT_RUN)
PRINT = "print"  # in the place of an experiment: what needs no result
MEASUREMENT = "measurement"  # on a model that is run; all else is the same in every profile

OWN, REFERENCE = "this checkout", "the committed reference run"

VERDICTS: dict[str, Callable[[Cells], pd.DataFrame]] = {
    theory_study.EXPERIMENT: theory_verdict.statement_table,
    similarity_study.EXPERIMENT: similarity_claims.similarity_claims,
    norm_study.EXPERIMENT: norm_claims.norm_claims,
    alpha_study.EXPERIMENT: lambda cells: alpha_verdict.verdict(
        alpha_study.perplexity_frame(cells), alpha_study.alpha_frame(cells), alpha_study.cost_frame(cells)
    ),
    baseline_study.EXPERIMENT: lambda cells: pd.concat([baseline_verdict.verdict(cells), flap_updates(cells)]),
    score_study.EXPERIMENT: score_verdict.verdict,
    ablation_study.EXPERIMENT: ablation_verdict.verdict,
    score_study.LONGBENCH: longbench_verdict.verdict,
    efficiency_study.EXPERIMENT: efficiency_verdict.verdict,
}
"""Experiment → its verdict table."""

_MEANINGS = (  # how a verdict of a notebook begins, and what it means for the paper's claim; the first that fits
    ("holds if", PARTLY),  # of a theorem: not as it is printed, but under a condition that is named
    ("holds for only", NOT),
    ("holds for", PARTLY),
    ("holds in", PARTLY),
    ("holds", REPRODUCED),
    ("in part", PARTLY),
    ("does not", NOT),
    ("not guaranteed", NOT),
    ("possible only if", NOT),  # such a condition does not yet suffice
    *((words, SMALL) for words in ("too small", "too few", "at the floor", "not judged", "not to be judged")),
    ("not shown", SMALL),  # an interval against a rival explanation holds zero
    ("open", SMALL),
    ("missing", NOT_RUN),
)
_PLAIN = {"holds", "does not hold", "too small to tell"}  # these add nothing to the evidence


class Claim(NamedTuple):
    """An entry of ``data/paper/claims.yaml``, whose head says what its fields are."""

    id: str
    topic: str
    label: str
    statement: str
    where: str
    notebook: str
    by: str
    experiment: str
    rows: list[str]
    number: str
    rule: str
    shows: str


class Stored(NamedTuple):
    """The cells of an experiment and where they come from, or why there are none."""

    cells: Cells
    source: str
    missing: str = ""


def load_claims() -> list[Claim]:
    """All claims, in the paper's order."""
    entries = yaml.safe_load((paths.PAPER / "claims.yaml").read_text(encoding="utf-8"))
    return [Claim(**entry) for entry in entries]


def read_stored(profile: str) -> dict[str, Stored]:
    """What is stored of each experiment: this checkout's finished run, or else the committed reference.

    A run of this checkout that cannot be read whole is not replaced by the reference, which may be of other inputs.
    """
    return {experiment: _read(profile, experiment) for experiment in VERDICTS}


def _read(profile: str, experiment: str) -> Stored:
    for root, source in ((paths.RESULTS, OWN), (paths.REFERENCE, REFERENCE)):
        if (root / profile / experiment / RUN_FILE).is_file():
            try:
                return Stored(read_results(profile, experiment, (root,)), source)
            except FileNotFoundError as error:
                return Stored({}, source, str(error))
            except json.JSONDecodeError:
                return Stored({}, source, f"the list of the cells of {experiment}, {RUN_FILE}, cannot be read")
    return Stored({}, "nowhere", f"there are no stored results of {experiment} for the profile {profile}")


def judge(profile: str, stored: Mapping[str, Stored]) -> pd.DataFrame:
    """Every claim with its verdict.

    Parameters
    ----------
    profile : str
        Under whose figures the file that shows a claim is looked for.
    stored : mapping
        As :func:`read_stored` returns it.

    Returns
    -------
    DataFrame
        One row for each claim. The text fields of :class:`Claim`; ``outcome``, one of ``OUTCOMES``; ``verdict``, the
        same in words; ``evidence``; ``figure``, files relative to the repository, separated by commas.
    """
    tables = {name: verdict_rows(name, found.cells) for name, found in stored.items() if found.cells}
    tables[PRINT] = verdict_rows(PRINT, {})
    everywhere, rows = models_of(*stored.values()), []
    for claim in load_claims():
        table = tables.get(claim.experiment)
        if table is None:
            found = NOT_RUN, NOT_RUN, stored[claim.experiment].missing
        else:
            found = _judged(table[table["claim"].isin(claim.rows)], claim.rows)
        models = everywhere if claim.experiment == PRINT else models_of(stored[claim.experiment])
        fields = {name: value for name, value in claim._asdict().items() if name not in ("rows", "shows")}
        judged = dict(zip(("outcome", "verdict", "evidence"), found, strict=True))
        rows.append(fields | judged | {"figure": ", ".join(_files(profile, claim.shows, models))})
    return pd.DataFrame(rows)


def models_of(*stored: Stored) -> list[str]:
    """The models that cells are about, each once."""
    names = dict.fromkeys(model for each in stored for model, *_ in each.cells)
    return [name for name in names if name != theory_study.SYNTHETIC]


def verdict_rows(experiment: str, cells: Cells) -> pd.DataFrame:
    """The verdict table of an experiment in one form: claim, model, text, evidence, verdict,
    counterexample."""
    table = print_checks() if experiment == PRINT else VERDICTS[experiment](cells)
    table = table.rename(columns={"what was checked": "claim", "on what": "model"})
    if experiment == theory_study.EXPERIMENT:
        table["model"] = ""  # it has been the number of draws
    titles = sorted(map(display_name, models_of(Stored(cells, OWN))), key=len, reverse=True)
    models = [next((title for title in titles if said.startswith(title)), said) for said in table["model"]]
    texts = [said.removeprefix(model).lstrip(", ") for said, model in zip(table["model"], models, strict=True)]
    table = table.assign(model=models, text=texts)
    return table.reindex(columns=["claim", "model", "text", "evidence", "verdict", "counterexample"], fill_value="")


def meaning(verdict: str) -> str:
    """What a verdict of a notebook means for the paper's claim: one of ``OUTCOMES``.

    A verdict by text ("Python documentation: holds; …") counts for all texts together.

    Raises
    ------
    ValueError
        For words that no notebook uses.
    """
    if any(verdict.startswith(f"{title}: ") for title in TITLES.values()):
        return together(meaning(part.split(": ", 1)[1]) for part in verdict.split("; "))
    for words, outcome in _MEANINGS:
        if verdict.startswith(words):
            return outcome
    raise ValueError(f"unknown verdict {verdict!r}")


def together(outcomes: Iterable[str]) -> str:
    """The outcome of a claim that needs all of several findings on one model: that of its weakest part."""
    found = set(outcomes)
    return next(outcome for outcome in (NOT, NOT_RUN, SMALL, PARTLY, REPRODUCED) if outcome in found)


def over_models(outcomes: Mapping[str, str]) -> tuple[str, str]:
    """The outcome of a claim over several models, and the verdict in words."""
    found = list(outcomes.values())
    if len(set(found)) == 1:
        return found[0], found[0]
    if number := found.count(REPRODUCED):
        return PARTLY, f"{REPRODUCED} for {number} of {len(found)} models"
    outcome = next(outcome for outcome in (PARTLY, NOT, SMALL, NOT_RUN) if outcome in found)
    return outcome, f"{outcome} ({found.count(outcome)} of {len(found)} models)"


def _judged(deciding: pd.DataFrame, claims: list[str]) -> tuple[str, str, str]:
    """Outcome, verdict and evidence of a claim from the rows that decide it, the weakest for each model."""
    outcomes, evidence = {}, []
    for model, rows in deciding.groupby("model", sort=False):
        absent = [claim for claim in claims if claim not in set(rows["claim"])]
        found = [meaning(verdict) for verdict in rows["verdict"]]
        outcomes[model] = together([*found, *(NOT_RUN for _ in absent)])
        held = found.count(REPRODUCED)
        said = [f"{held} of {len(found)} findings hold"] if 0 < held < len(found) else []
        for row, outcome in zip(rows.to_dict("records"), found, strict=True):
            if outcome == outcomes[model]:
                said.append(_said(row, several=len(claims) > 1))
        evidence.append((model, " · ".join([*said, *map(_nothing_on, absent)])))
    if not outcomes:
        return NOT_RUN, NOT_RUN, " · ".join(map(_nothing_on, claims))
    named = [f"{model}: {said}" if len(outcomes) > 1 else said for model, said in evidence]
    return (*over_models(outcomes), " · ".join(named))


def _nothing_on(claim: str) -> str:
    return f"nothing is stored on “{claim}”"


def _said(row: Mapping[str, str], several: bool) -> str:
    """A row in words: what was judged, if several things were, on which text, the evidence and what it leaves."""
    about = [row["claim"]] if several else []
    about += [row["text"]] if row["text"] else []
    more = [] if row["verdict"] in _PLAIN else [row["verdict"]]
    more += [f"counterexample: {row['counterexample']}"] if row["counterexample"] else []
    return ": ".join([*about, row["evidence"]]) + (f" ({'; '.join(more)})" if more else "")


def _files(profile: str, shows: str, models: list[str]) -> list[str]:
    """The files that show a claim, of those that are there."""
    names = dict.fromkeys(shows.format(model=slug(model)) for model in models) if "{model}" in shows else [shows]
    files = [Path("figures", profile, name) for name in names]
    return [file.as_posix() for file in files if (paths.ROOT / file).is_file()]
