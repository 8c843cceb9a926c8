"""What is computed: a *unit* is what one job computes for one model, and a notebook asks for units.

Each module of this folder says what the cells of its units are, and computes one. Experiments know
of each other only what they read from the result store.
"""

from collections import Counter
from importlib import import_module
from typing import Any, NamedTuple

from harp_lib import config


class Unit(NamedTuple):
    """What one job computes for one model."""

    store: str  # the folder of its cells
    module: str  # of this folder; its function has the unit's name
    needs: tuple[str, ...]  # units that the same model has to have first
    notebooks: tuple[str, ...]  # that ask for it
    section: str = (
        ""  # of the profile, where it says which tasks are asked: several jobs may share these
    )


UNITS = {
    "theory": Unit("theory", "theory", (), ("01", "02")),
    "similarity": Unit("similarity", "theory", (), ("01",)),
    "search": Unit("alpha_search", "plans", (), ("03",)),
    "alpha": Unit("alpha_search", "plans", ("search",), ("03",)),
    "norms": Unit("norm_change", "theory", ("search",), ("02",)),
    "plans": Unit("baselines", "plans", ("search",), ("04",)),
    "baselines": Unit("baselines", "plans", ("plans", "alpha"), ("04",)),
    "ratios": Unit("paper_ratios", "paper_ratios", (), ("04",)),
    "scores": Unit("main_tables", "scores", ("plans",), ("05",), "evaluation"),
    "likelihoods": Unit("likelihoods", "scores", ("plans",), ("05",), "likelihoods"),
    "longbench": Unit("longbench", "scores", ("plans",), ("07",), "longbench"),
    "longbench_likelihoods": Unit("likelihoods", "scores", ("plans",), ("07",), "likelihoods"),
    "layers": Unit("ablations", "ablations", ("search",), ("06",)),
    "ablations": Unit("ablations", "ablations", ("layers",), ("06",), "evaluation"),
    "efficiency": Unit("efficiency", "efficiency", ("search",), ("08",)),
    "frontier": Unit("frontier", "frontier", ("search",), ("09",)),
}
"""Units in the order in which they may be computed."""
NOTEBOOKS = {
    f"{number:02d}": tuple(
        name for name, unit in UNITS.items() if f"{number:02d}" in unit.notebooks
    )
    for number in range(10)
}
"""The units that each notebook asks for; what these need comes first by itself."""
IN_PARTS = tuple(name for name, unit in UNITS.items() if unit.section)
"""Units whose tasks several jobs may share."""


def models_of(profile: dict[str, Any], unit: str) -> list[str]:
    """The models that a unit is computed for; ``theory`` and ``ratios`` have names of no model."""
    if unit not in UNITS:
        raise ValueError(f"unknown unit {unit!r}; choose from {', '.join(UNITS)}")
    if unit == "theory":
        return ["synthetic"]
    if unit == "ratios":
        return ["paper"]
    if unit == "search":
        return [*profile["models"], *profile["alpha_search"]["extra_models"]]
    if unit == "efficiency":
        return profile["efficiency"]["shapes"] or profile["models"]
    of_section = profile.get("ablations" if unit == "layers" else unit, {}).get("models")
    return [model for model in profile["models"] if of_section is None or model in of_section]


def run(*units: str, profile: dict[str, Any], seed: int = 0, force: bool = False) -> None:
    """Compute what is missing of some units, for all of their models, and what they need first;
    read the rest.

    ``units`` are keys of ``UNITS``, and ``seed`` is that of everything that is drawn. ``force``
    computes every cell of ``units`` again, whatever is stored; what they need is read all the same.
    Afterwards the report reads exactly the cells of this run.
    """
    wanted = {(unit, model) for unit in units for model in models_of(profile, unit)}
    for unit in reversed(UNITS):
        models = [model for model in models_of(profile, unit) if (unit, model) in wanted]
        wanted |= {
            (need, model)
            for need in UNITS[unit].needs
            for model in models
            if model in models_of(profile, need)
        }
    stores: dict[str, dict[str, Any]] = {unit: {} for unit in UNITS}
    for model in dict.fromkeys(model for unit in UNITS for model in models_of(profile, unit)):
        for unit in UNITS:
            if (unit, model) in wanted:
                compute(unit, profile, model, seed, force and unit in units, stores=stores[unit])
        import_module(f"{__name__}.job").release()
    counts: Counter[str] = Counter()
    for unit, opened in stores.items():
        for store in opened.values():
            store.finish(unit, models_of(profile, unit))
            counts += store.counts
    failed = f", {counts['failed']} failed" if counts["failed"] else ""
    print(f"{counts['computed']} cells computed, {counts['read']} read{failed}")


def compute(
    unit: str,
    profile: dict,
    model: str,
    seed: int = 0,
    force: bool = False,
    part=(0, 1),
    stores: dict | None = None,
) -> dict[str, int]:
    """One unit for one model, what it needs being stored; how many cells were ``computed``,
    ``read`` and ``failed``.

    ``part`` ``(i, n)`` is the i-th, from 0, of n groups of tasks, for a unit of ``IN_PARTS``.
    ``stores`` are those that are open; new ones are added.
    """
    stores = {} if stores is None else stores
    job = import_module(f"{__name__}.job")  # here, because it imports torch
    work = job.Job(
        UNITS[unit].store, config.asked_of(model, profile), model, seed, force, part, stores
    )
    getattr(import_module(f"{__name__}.{UNITS[unit].module}"), unit)(work)
    counts = sum((store.counts for store in stores.values()), Counter())
    return {what: counts[what] for what in ("computed", "read", "failed")}
