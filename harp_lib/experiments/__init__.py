"""What is computed: a *unit* is what one job computes for one model; a notebook shows units.

Each unit is a generator of cells in a module of this folder. It computes nothing itself and knows
no stored file: whoever needs what another unit finds asks the store for that cell.
"""

from importlib import import_module
from typing import Any

from harp_lib import config
from harp_lib.results import Store, drop_others, fill
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
    """Compute the missing cells of some units, for all models of each.

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
        Compute every cell of ``units`` again, whatever is stored. Cells of other units that they
        need are read all the same.
    """
    from harp_lib.experiments.context import release  # here, because it imports torch

    of_units = {unit: models_of(profile, unit) for unit in units}
    store = Store()
    for model in dict.fromkeys(model for models in of_units.values() for model in models):
        for unit, models in of_units.items():
            if model in models:
                compute(unit, profile, model, seed, force, store=store)
        release()
    counts = store.counts
    failed = f", {counts['failed']} failed" if counts["failed"] else ""
    print(f"{counts['computed']} cells computed, {counts['read']} read{failed}")


def compute(
    unit: str,
    profile: dict[str, Any],
    model: str,
    seed: int = 0,
    force: bool = False,
    part: tuple[int, int] = (0, 1),
    store: Store | None = None,
) -> dict[str, int]:
    """Compute one unit for one model, and what it needs of others, and list its cells.

    The arguments are those of :func:`run`. ``part`` ``(i, n)`` is the i-th, from 0, of n groups of
    tasks, for a unit with a ``section``. Lists of models that the profile does not have, of earlier
    runs, are removed. Returned is how many cells of the store were ``computed``, ``read`` and
    ``failed``.
    """
    from harp_lib.experiments.context import Context  # here, because it imports torch

    store = store or Store()
    settings = config.profile_for(model, profile)
    context = Context(settings, model, store, seed, force, part)
    module = import_module(f"{__name__}.{UNITS[unit].module}")
    cells = getattr(module, unit)(context)
    fill(store, config.RESULTS / profile["name"] / unit, model, cells, force, part)
    drop_others(profile["name"], unit, models_of(profile, unit))
    return {outcome: store.counts[outcome] for outcome in ("computed", "read", "failed")}
