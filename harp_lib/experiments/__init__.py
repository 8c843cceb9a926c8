"""What is computed: a *unit* is what one job computes for one model, and a notebook asks for units.

Each module of this folder says what the cells of its units are, and computes one. Experiments know of each other only
what they read from the result store.
"""

from collections import Counter
from importlib import import_module
from typing import Any, NamedTuple


class Unit(NamedTuple):
    """What one job computes for one model."""

    store: str  # the folder of its cells
    module: str  # of this folder; its function has the unit's name
    needs: tuple[str, ...]  # units that the same model has to have first
    notebook: str  # that shows it


UNITS = {
    "theory": Unit("theory", "similarity", (), "01"),
    "similarity": Unit("similarity", "similarity", (), "01"),
    "search": Unit("alpha_search", "alpha", (), "03"),
    "alpha": Unit("alpha_search", "alpha", ("search",), "03"),
    "norms": Unit("norm_change", "norms", ("search",), "02"),
    "plans": Unit("baselines", "baselines", ("search",), "04"),
    "baselines": Unit("baselines", "baselines", ("plans", "alpha"), "04"),
    "scores": Unit("main_tables", "scores", ("plans",), "05"),
    "longbench": Unit("longbench", "scores", ("plans",), "07"),
    "layers": Unit("ablations", "scores", ("search",), "06"),
    "ablations": Unit("ablations", "scores", ("layers",), "06"),
    "efficiency": Unit("efficiency", "efficiency", ("search",), "08"),
}
"""Units in the order in which they may be computed."""
NOTEBOOKS = {
    "00": (),
    "01": ("theory", "similarity"),
    "02": ("theory", "norms"),
    "03": ("search", "alpha"),
    "04": ("plans", "baselines"),
    "05": ("scores",),
    "06": ("layers", "ablations"),
    "07": ("longbench",),
    "08": ("efficiency",),
}
"""The units that each notebook asks for; what these need comes first by itself."""
IN_PARTS = ("scores", "longbench", "ablations")
"""Units whose tasks several jobs may share."""
SYNTHETIC = "synthetic"  # in the place of a model's name, where there is none


def models_of(profile: dict[str, Any], unit: str) -> list[str]:
    """The models that a unit is computed for; ``theory`` has a name that is no model's."""
    _check(unit)
    if unit == "theory":
        return [SYNTHETIC]
    if unit == "search":
        return [*profile["models"], *profile["alpha_search"]["extra_models"]]
    if unit == "efficiency":
        return profile["efficiency"]["shapes"] or profile["models"]
    return profile["models"]


def run(*units: str, profile: dict[str, Any], seed: int = 0, force: bool = False) -> None:
    """Compute what is missing of some units, for all of their models, and what they need first; read the rest.

    Afterwards the report reads exactly the cells of this run.

    Parameters
    ----------
    *units : str
        Keys of ``UNITS``.
    profile : dict
        From :func:`harp_lib.config.load_profile`.
    seed : int
        Of everything that is drawn.
    force : bool
        Compute every cell of ``units`` again, whatever is stored; what they need is read all the same.
    """
    for unit in units:
        _check(unit)
    wanted, waiting = set(), [(unit, model) for unit in units for model in models_of(profile, unit)]
    while waiting:
        wanted.add(pair := waiting.pop())
        waiting += [(unit, pair[1]) for unit in UNITS[pair[0]].needs if pair[1] in models_of(profile, unit)]
    job = import_module("harp_lib.experiments.job")  # here, because it imports torch
    stores = {
        unit: job.Stores(profile["name"], UNITS[unit].store, force and unit in units)
        for unit in UNITS
        if any(unit == needed for needed, _ in wanted)
    }
    for model in dict.fromkeys(model for unit in stores for model in models_of(profile, unit)):
        for unit in stores:
            if (unit, model) in wanted:
                _do(job.Job(UNITS[unit].store, profile, model, seed, stores=stores[unit]), unit)
        job.release()
    counts: Counter[str] = Counter()
    for unit, opened in stores.items():
        for store in opened.values():
            store.finish(unit)
            counts += store.counts
    failed = f", {counts['failed']} failed" if counts["failed"] else ""
    print(f"{counts['computed']} cells computed, {counts['read']} read{failed}")


def compute(
    unit: str, profile: dict[str, Any], model: str, seed: int = 0, part: tuple[int, int] | None = None
) -> dict[str, int]:
    """One job of a batch run: compute what is missing of one unit for one model, whose needs are stored.

    Parameters
    ----------
    unit, profile, model, seed
        As in :func:`run`; a model of :func:`models_of`.
    part : (int, int), optional
        ``(i, n)``: only the i-th of n groups of tasks, i from 0 to n - 1, of a unit of ``IN_PARTS``.

    Returns
    -------
    dict
        How many cells were ``computed``, ``read`` and ``failed``.
    """
    _check(unit)
    if part is not None and unit not in IN_PARTS:
        raise ValueError(f"{unit} has no parts; only {', '.join(IN_PARTS)} have")
    job = import_module("harp_lib.experiments.job").Job(UNITS[unit].store, profile, model, seed, part)
    _do(job, unit)
    counts = sum((store.counts for store in job.stores.values()), Counter())
    return {what: counts[what] for what in ("computed", "read", "failed")}


def _check(unit: str) -> None:
    if unit not in UNITS:
        raise ValueError(f"unknown unit {unit!r}; choose from {', '.join(UNITS)}")


def _do(job: Any, unit: str) -> None:
    getattr(import_module(f"{__name__}.{UNITS[unit].module}"), unit)(job)
