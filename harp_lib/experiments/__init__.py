"""What is computed: a *unit* is what one job computes for one model; a notebook shows units.

Each module of this folder says which cells its units have, and computes them. A unit knows of
others only what it reads from the result store.
"""

from collections import Counter
from importlib import import_module
from typing import Any

from harp_lib import config
from harp_lib.units import UNITS


def models_of(profile: dict[str, Any], unit: str) -> list[str]:
    """The models that a unit is computed for.

    Raises
    ------
    ValueError
        If there is no such unit; the message lists the units.
    """
    if unit not in UNITS:
        raise ValueError(f"unknown unit {unit!r}; choose from {', '.join(UNITS)}")
    if unit == "search":
        return [*profile["models"], *profile["alpha_search"]["extra_models"]]
    section = "ablations" if unit == "layers" else unit
    settings = profile.get(section, {})
    models = list(profile["models"])
    if settings.get("models") is not None:
        models = [model for model in models if model in settings["models"]]
    return [*models, *settings.get("shapes", ())]


def run(*units: str, profile: dict[str, Any], seed: int = 0, force: bool = False) -> None:
    """Compute the missing cells of some units and of the units that they need, for all models.

    Cells that are stored are read. Afterwards the report reads exactly the cells of this run.

    Parameters
    ----------
    *units : str
        Keys of ``UNITS``.
    profile : dict
        As ``config.load_profile`` returns it.
    seed : int
        Seed of everything that is drawn.
    force : bool
        Compute every cell of ``units`` again, whatever is stored. The cells that they need are
        read all the same.
    """
    from harp_lib.experiments.job import release  # here, because it imports torch

    needed = _with_needs(units, profile)
    stores: dict[str, dict[str, Any]] = {unit: {} for unit in UNITS}
    models = dict.fromkeys(model for unit in UNITS for model in models_of(profile, unit))
    for model in models:
        for unit in UNITS:
            if (unit, model) in needed:
                again = force and unit in units
                compute(unit, profile, model, seed, again, stores=stores[unit])
        release()
    counts: Counter[str] = Counter()
    for unit, stores_of_unit in stores.items():
        for store in stores_of_unit.values():
            store.finish(unit, models_of(profile, unit))
            counts.update(store.counts)
    failed = f", {counts['failed']} failed" if counts["failed"] else ""
    print(f"{counts['computed']} cells computed, {counts['read']} read{failed}")


def _with_needs(units: tuple[str, ...], profile: dict[str, Any]) -> set[tuple[str, str]]:
    """Pairs (unit, model): ``units`` for all of their models, and the units that these need."""
    needed = {(unit, model) for unit in units for model in models_of(profile, unit)}
    for unit in reversed(UNITS):  # a unit comes after the units that it needs
        for need in UNITS[unit].needs:
            for model in models_of(profile, need):
                if (unit, model) in needed:
                    needed.add((need, model))
    return needed


def compute(
    unit: str,
    profile: dict[str, Any],
    model: str,
    seed: int = 0,
    force: bool = False,
    part: tuple[int, int] = (0, 1),
    stores: dict[str, Any] | None = None,
) -> dict[str, int]:
    """Compute one unit for one model; the units that it needs must be stored.

    Parameters
    ----------
    unit : str
        A key of ``UNITS``.
    profile : dict
        As ``config.load_profile`` returns it.
    model : str
        One of ``models_of(profile, unit)``.
    seed : int
        Seed of everything that is drawn.
    force : bool
        Compute every cell again, whatever is stored.
    part : tuple of int
        ``(i, n)`` computes the i-th, from 0, of n groups of tasks, for a unit of ``IN_PARTS``.
    stores : dict, optional
        Result stores that are open; stores that this unit opens are added.

    Returns
    -------
    dict
        How many cells of ``stores`` were ``computed``, ``read`` and ``failed``.
    """
    from harp_lib.experiments.job import Job  # here, because it imports torch

    if stores is None:
        stores = {}
    settings = config.profile_for(model, profile)
    job = Job(UNITS[unit].store, settings, model, seed, force, part, stores)
    module = import_module(f"{__name__}.{UNITS[unit].module}")
    compute_cells = getattr(module, unit)
    compute_cells(job)
    counts: Counter[str] = Counter()
    for store in stores.values():
        counts.update(store.counts)
    return {outcome: counts[outcome] for outcome in ("computed", "read", "failed")}
