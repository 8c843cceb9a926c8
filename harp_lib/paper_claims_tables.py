"""Tables and words of notebook 00, from its judged claims."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from harp_lib import paths
from harp_lib.measure.models import display_name
from harp_lib.paper_claims import MEASUREMENT, NOT, NOT_RUN, OUTCOMES, PARTLY, SMALL, Stored, load_claims, models_of
from harp_lib.results import Cells, provenance_table

HEADLINES = ("alpha-beats-one", "top-layers", "generation-heads", "generation-parameters", "faster")
"""The claims that notebook 00 shows in pictures."""
RANDOM = "tiny random"  # how the names of models begin whose numbers mean nothing


def claim_table(judged: pd.DataFrame) -> pd.DataFrame:
    """What the paper claims, where, in which notebook, what was found, the verdict, and what shows it."""
    columns = {"topic": "about", "statement": "the paper", "where": "where", "notebook": "notebook"}
    columns |= {"evidence": "found", "verdict": "verdict", "figure": "shown in"}
    return judged[list(columns)].rename(columns=columns)


def rule_table() -> pd.DataFrame:
    """What decides each claim, and when it counts as reproduced."""
    rows = [(claim.label, claim.notebook, claim.by, claim.number, claim.rule) for claim in load_claims()]
    return pd.DataFrame(rows, columns=["claim", "notebook", "by", "what decides", "reproduced if"])


def source_table(stored: Mapping[str, Stored]) -> pd.DataFrame:
    """Whose results are judged: of this checkout or of the committed reference run, on what machine, and when."""
    rows, claims = [], load_claims()
    for experiment, found in stored.items():
        notebooks = sorted({claim.notebook for claim in claims if claim.experiment == experiment})
        cells = list(found.cells.values())
        times = sorted(cell["time"] for cell in cells)
        rows.append(
            {
                "notebook": ", ".join(notebooks),
                "experiment": experiment,
                "results of": found.source,
                "cells": len(cells),
                "models": ", ".join(map(display_name, models_of(found))) or ("none" if cells else ""),
                "device": ", ".join(dict.fromkeys(cell["device"] for cell in cells)),
                "torch": ", ".join(dict.fromkeys(cell["versions"]["torch"] for cell in cells)),
                "computed (UTC)": " to ".join(dict.fromkeys((times[0], times[-1]))) if times else found.missing,
            }
        )
    return pd.DataFrame(rows)


def all_cells(stored: Mapping[str, Stored]) -> Cells:
    """The cells of all experiments, for the table of their provenance."""
    return {
        (model, method, f"{experiment}/{task}"): cell
        for experiment, found in stored.items()
        for (model, method, task), cell in found.cells.items()
    }


def provenance(cells: Cells, profile: dict[str, Any], seed: int, seconds: float) -> pd.DataFrame:
    """What a notebook records last, but with the data and seeds of the cells: who reads them chose neither."""
    table = provenance_table(cells, profile, seed, seconds)
    recorded = {"datasets": _recorded(cells, "source"), "seed": _recorded(cells, "seed")}
    return table.assign(value=table["what"].map(recorded).fillna(table["value"]))


def _recorded(cells: Cells, name: str) -> str:
    values = (str(cell["inputs"][name]) for cell in cells.values() if name in cell["inputs"])
    return ", ".join(dict.fromkeys(values)) or "not recorded"


def titles(stored: Mapping[str, Stored]) -> str:
    """The models of the stored results, in words."""
    return " and ".join(map(display_name, models_of(*stored.values()))) or "no model"


def read_models(stored: Mapping[str, Stored]) -> str:
    """Whose results these are, and whether they can mean anything."""
    names = [display_name(model) for model in models_of(*stored.values())]
    if not names:
        return "No notebook has been run in this profile, so that only what needs no model is judged."
    text = f"All that was measured here was measured on {titles(stored)}."
    if any(name.startswith(RANDOM) for name in names):
        text += " Random models have learned nothing: **what follows only shows that the code runs.**"
    return text


def read_counts(judged: pd.DataFrame) -> str:
    """How many claims came to which verdict, and how many of them a model decides."""
    text = f"Of {len(judged)} claims, {_counted(judged)}."
    by_model = judged["by"] == MEASUREMENT
    for which, what in (
        (by_model, "by models that were run"),
        (~by_model, "without a model, by proof, counting or the print"),
    ):
        part = judged[which & (judged["outcome"] != NOT_RUN)]
        if len(part):
            text += f" {len(part)} are decided {what}: {_counted(part)}."
    return text


def answer(judged: pd.DataFrame) -> str:
    """The verdicts on the main claims, and how many there are of each."""
    main = judged.set_index("id").loc[list(HEADLINES)]
    lines = [f"- {_first(row.label)}: **{row.verdict}**." for row in main.itertuples()]
    return "\n".join([*lines, "", read_counts(judged)])


def _counted(judged: pd.DataFrame) -> str:
    numbers = judged["outcome"].value_counts()
    return ", ".join(f"{numbers[outcome]} {outcome}" for outcome in OUTCOMES if outcome in numbers)


def read_disagreements(judged: pd.DataFrame) -> str:
    """Where the models that were run disagree with the paper."""
    return _listed(judged[judged["by"] == MEASUREMENT], NOT, PARTLY) or "There are none."


def read_print(judged: pd.DataFrame) -> str:
    """What does not hold as it is printed, whatever the model."""
    return _listed(judged[judged["by"] != MEASUREMENT], NOT, PARTLY) or "There are none."


def _listed(judged: pd.DataFrame, *outcomes: str) -> str:
    """The claims of these outcomes as a list: what the paper says, the verdict, and what was found."""
    rows = judged[judged["outcome"].isin(outcomes)].to_dict("records")
    lines = [
        f"- *{row['statement']}* ({row['where']}) **{_first(row['verdict'])}:** {row['evidence']}." for row in rows
    ]
    return "\n".join(lines)


def read_untold(judged: pd.DataFrame) -> str:
    """What the results at hand cannot tell, and what has not been run."""
    missing = judged[judged["outcome"] == NOT_RUN].groupby("evidence", sort=False)["label"].agg(list)
    lines = [f"- **Not run** ({reason}): {'; '.join(labels)}." for reason, labels in missing.items()]
    return "\n".join(filter(None, [_listed(judged, SMALL), *lines])) or "There is nothing of the kind."


def headlines(judged: pd.DataFrame) -> Iterator[tuple[Path, str]]:
    """The pictures of the main claims, as they are on disk, each with a caption."""
    for row in judged.set_index("id").loc[list(HEADLINES)].to_dict("records"):
        picture = row["figure"].split(", ")[0]
        if picture:
            caption = (
                f"**{_first(row['label'])}: {row['verdict']}** (notebook {row['notebook']}). {_first(row['number'])}"
            )
            yield paths.ROOT / picture, f"{caption}: {row['evidence']}."


def _first(text: str) -> str:
    return text[0].upper() + text[1:]
