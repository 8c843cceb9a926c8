"""How long the stored cells took to compute."""

import pandas as pd

from harp_lib import config
from harp_lib.names import display_name
from harp_lib.report import data, table


@table()
def computing_hours(profile: dict) -> tuple[pd.DataFrame, pd.DataFrame] | None:
    """Hours of one core by experiment and model, and the number of cells; None without cells."""
    records = []
    for store in _stores(profile["name"]):
        for (model, *_), cell in data.cells(profile["name"], store).items():
            name = display_name(model)
            records.append({"store": store, "model": name, "hours": cell["seconds"] / 3600})
    if not records:
        return None
    frame = pd.DataFrame(records)
    numbers = frame.groupby(["store", "model"], sort=False)["hours"].agg(["sum", "size"])
    numbers = numbers.rename(columns={"sum": "hours", "size": "cells"}).reset_index()
    shown = numbers.pivot_table(
        index="store", columns="model", values="hours", aggfunc="sum", sort=False, margins=True
    )
    shown = shown.map("{:.2f}".format).replace("nan", "–").rename(index={"All": "all"})
    shown = shown.rename(columns={"All": "all"}).reset_index(names="experiment")
    return shown, numbers


def _stores(profile: str) -> list[str]:
    """The experiments that a profile has cells of."""
    names = set()
    for root in (config.RESULTS, config.REFERENCE):
        for run in (root / profile).glob("*/run-*.json"):
            names.add(run.parent.name)
    return sorted(names)
