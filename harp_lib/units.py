"""Units: what one job computes for one model, and which notebooks show it."""

from dataclasses import dataclass

import yaml

from harp_lib import config


@dataclass(frozen=True)
class Unit:
    """What one job computes for one model; ``data/experiments.yaml`` explains the fields."""

    module: str
    needs: tuple[str, ...] = ()
    notebooks: tuple[str, ...] = ()
    section: str = ""


_ENTRIES = yaml.safe_load((config.DATA / "experiments.yaml").read_text(encoding="utf-8"))
UNITS = {name: Unit(**entry) for name, entry in _ENTRIES.items()}
"""Units in the order in which they may be computed."""


def units_of(notebook: str) -> tuple[str, ...]:
    """The units that a notebook shows, which is given by its name, or by its number alone."""
    return tuple(name for name, unit in UNITS.items() if notebook[:2] in unit.notebooks)
