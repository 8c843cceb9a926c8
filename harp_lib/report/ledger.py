"""What the notebooks of a profile have judged, read back for the pages that show it."""

import pandas as pd

from harp_lib import config
from harp_lib.names import short_names
from harp_lib.report import judge


def verdicts(profile: str) -> pd.DataFrame:
    """What all notebooks of a profile have judged, an effect in each row.

    Returns
    -------
    DataFrame
        Columns: those of :data:`.judge.COLUMNS`, with short names of models, and the claim's kind
        and front_page ("" without one), from ``claims.yaml``, in whose order the claims stand.

    Raises
    ------
    FileNotFoundError
        If nothing was judged; the message says what to run.
    """
    files = sorted((config.FIGURES / profile / "verdicts").glob("*.csv"))
    if not files:
        raise FileNotFoundError(
            f"no verdicts of the profile {profile!r}: ./run_all.sh --profile {profile} first"
        )
    rows = pd.concat([pd.read_csv(file, converters={"model": str}) for file in files])
    rows["model"] = rows["model"].map(short_names(rows["model"].unique()))
    texts = ["effect", "within", "mark", "reason"]
    rows[texts] = rows[texts].astype(object).fillna("")
    entries = judge.claims()
    rows["kind"] = [entries[claim]["kind"] for claim in rows["claim"]]
    rows["front_page"] = [entries[claim].get("front_page", "") for claim in rows["claim"]]
    place = {claim: number for number, claim in enumerate(entries)}
    rows = rows.sort_values("claim", key=lambda claims: claims.map(place), kind="stable")
    return rows.reset_index(drop=True)


def counted(judged: pd.DataFrame) -> str:
    """How many of the paper's claims on models have each mark, in a sentence."""
    measured = judged[judged["kind"] == "measured"].drop_duplicates(["claim", "model"])
    numbers = measured["mark"].value_counts()
    tested = numbers.drop(judge.NOT_RUN, errors="ignore").sum()
    marks = (judge.REPRODUCED, judge.REFUTED, judge.INCONCLUSIVE)
    first, second, third = (f"{numbers.get(mark, 0)} {mark}" for mark in marks)
    sentence = f"All claims together have {tested} marks: {first}, {second} and {third}"
    not_run = numbers.get(judge.NOT_RUN, 0)
    if not_run:
        sentence += f"; {not_run} more could not be tested"
    return f"{sentence}."
