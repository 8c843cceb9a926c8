"""What a run consists of: jobs, what each needs, how many cells it computes, and how long that should take.

A job is what the batch engine schedules. The cells that the expensive notebooks read are computed by jobs before them,
grouped; all others are computed by the notebooks, which also do what a job left undone.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from harp_lib.costs import cell_seconds
from harp_lib.expected_cells import NOTEBOOK_OF, expected_cells, experiment_models
from harp_lib.measure.models import slug
from harp_lib.measure.tiny import FAMILIES as TINY
from harp_lib.notebooks import LAST
from harp_lib.results import is_stored

GROUP_SECONDS = 600.0  # that a group of cells should take on a cluster
MIN_GROUP_SECONDS = 60.0  # below which starting another process is not worth it
KINDS_BEFORE = {  # a notebook: the kinds of jobs whose cells it reads
    "02": ("search",),
    "03": ("search",),
    "04": ("search", "plans"),
    "05": ("search", "plans", "scores-main_tables"),
    "06": ("search", "layers", "scores-main_tables", "scores-ablations"),
    "07": ("search", "plans", "scores-longbench"),
    "08": ("search",),
}
NOTEBOOK_BEFORE = {"02": "01"}  # notebook 02 ends with a table that also holds what 01 found
SHARED_METHODS = ("dense", "harp")  # whose scores notebook 06 shares with 05
UNITS: dict[str, tuple[str, Callable[[str, str], bool]]] = {  # jobs of one model: the cells of an experiment
    "search": ("alpha_search", lambda method, task: task.startswith("search-")),
    "plans": ("baselines", lambda method, task: task == "plan" or task.startswith("range-")),
    "layers": ("ablations", lambda method, task: task == "selection" or method in ("gain", "single-layer")),
}

Cell = tuple[str, str, str, str]  # experiment, model, method, task


@dataclass
class Job:
    """One job: what is to be done, after which others, and what it will take.

    Attributes
    ----------
    name : str
        ``<kind>/<what>``: ``search/smollm2-135m``, ``scores-longbench/smollm2-135m-1``, ``notebook/05_main_tables``, …
    arguments : dict
        For :mod:`harp_lib.job`.
    needs : list of str
        Jobs that come before.
    cells, missing : list of Cell
        Those that it is there for, and those of them that it has to compute.
    seconds : float or None
        That the missing ones should take, by :mod:`harp_lib.costs`; None if that is unknown.
    why : str
        Why it runs.
    """

    name: str
    arguments: dict[str, Any]
    needs: list[str] = field(default_factory=list)
    cells: list[Cell] = field(default_factory=list)
    missing: list[Cell] = field(default_factory=list)
    seconds: float | None = 0.0
    why: str = ""


def build(
    profile: dict[str, Any],
    notebooks: dict[str, dict[str, Any]],
    *,
    at_once: int | None = 1,
    figures: bool = False,
    outdated: Mapping[str, str] | None = None,
) -> dict[str, Job]:
    """The jobs of a run by name, each after those that it needs.

    Parameters
    ----------
    profile : dict
        From :func:`harp_lib.profiles.load_profile`.
    notebooks : dict
        Parameters to run each notebook with, by its file's name.
    at_once : int or None
        How many jobs run at once: the scores of a model are divided among as many groups. None, on a cluster: among
        groups of some minutes.
    figures : bool
        Whether every figure and table is drawn again when the notebooks are done.
    outdated : mapping, optional
        Of experiments whose stored cells do not count: why.
    """
    graph = _Graph(profile, outdated or {})
    graph.add_computing({file[:2] for file in notebooks}, at_once)
    for file, parameters in sorted(notebooks.items()):
        if file[:2] != LAST:
            graph.add_notebook(file, parameters)
    done = [name for name in graph.jobs if name.startswith("notebook/")]
    if figures:
        graph.add(Job("figures/all", {"profile": profile["name"]}, done, why="draws stored results"))
        done = ["figures/all"]
    for file, parameters in notebooks.items():
        if file[:2] == LAST:
            arguments = {"notebook": file, "parameters": parameters}
            graph.add(Job(f"last/{file[:-6]}", arguments, done, why="judges stored results"))
    return graph.jobs


class _Graph:
    def __init__(self, profile: dict[str, Any], outdated: Mapping[str, str]) -> None:
        self.profile, self.outdated = profile, outdated
        self.jobs: dict[str, Job] = {}
        self.estimates: dict[tuple[str, str], dict] = {}

    def add(self, job: Job) -> None:
        job.needs = [name for name in job.needs if name in self.jobs]  # what is not here has nothing to do
        self.jobs[job.name] = job

    def add_computing(self, numbers: set[str], at_once: int | None) -> None:
        """Jobs that compute cells for some notebooks, and have any to compute."""
        kinds = {kind for number in numbers for kind in KINDS_BEFORE.get(number, ())}
        searched = {model for number in numbers for model in self.searched(number)}
        for kind, (experiment, belongs) in UNITS.items():
            for model in experiment_models(self.profile, experiment) if kind in kinds else ():
                if kind != "search" or model in searched:
                    cells = [cell for cell in self.cells(experiment, model) if belongs(*cell[2:])]
                    needs = [] if kind == "search" else [f"search/{slug(model)}"]
                    self._add_if_missing(f"{kind}/{slug(model)}", {"model": model}, needs, cells)
        for kind in sorted(kind for kind in kinds if kind.startswith("scores-")):
            experiment = kind.removeprefix("scores-")
            both = experiment == "main_tables" and "05" not in numbers  # of its scores, 06 alone wants two methods'
            source = "layers" if both or experiment == "ablations" else "plans"
            for model in self.profile["models"]:
                for index, cells in enumerate(self._groups(experiment, model, both, at_once), start=1):
                    arguments = {"model": model, "experiment": experiment, "source": source}
                    arguments["cells"] = [cell[2:] for cell in cells]
                    needs = [f"search/{slug(model)}", f"{source}/{slug(model)}"]
                    self._add_if_missing(f"{kind}/{slug(model)}-{index}", arguments, needs, cells)

    def searched(self, number: str) -> list[str]:
        """The models whose search a notebook reads: 03 has some of its own, and 08 may time shapes that need none."""
        if "search" not in KINDS_BEFORE.get(number, ()):
            return []
        models = experiment_models(self.profile, {"03": "alpha_search", "08": "efficiency"}.get(number, "baselines"))
        return [model for model in models if number == "03" or model in self.profile["models"]]

    def _add_if_missing(self, name: str, arguments: dict[str, Any], needs: list[str], cells: list[Cell]) -> None:
        if missing := self.missing(cells):
            seconds, why = self.seconds(missing), self.why(cells, missing)
            self.add(Job(name, arguments, needs, cells, missing, seconds, why))

    def _groups(self, experiment: str, model: str, both: bool, at_once: int | None) -> list[list[Cell]]:
        """Scores of one model that are missing, in groups that take as long as each other; a task after the other."""
        cells = [cell for cell in self.cells(experiment, model) if not both or cell[2] in SHARED_METHODS]
        if experiment == "ablations":
            cells = [cell for cell in cells if not UNITS["layers"][1](*cell[2:]) and cell[2] not in SHARED_METHODS]
        cells = sorted(self.missing(cells), key=lambda cell: cell[3])  # one task's questions are prepared once
        total = self.seconds(cells)
        if total is None:  # a group for each task, but of a tiny model
            weights, number = [1.0] * len(cells), at_once or (1 if model in TINY else len({cell[3] for cell in cells}))
        else:
            weights = [self.seconds([cell]) for cell in cells]
            number = math.ceil(total / (max(total / at_once, MIN_GROUP_SECONDS) if at_once else GROUP_SECONDS))
        groups: list[list[Cell]] = [[] for _ in range(number or 1)]
        before, whole = 0.0, sum(weights) or 1.0
        for cell, weight in zip(cells, weights, strict=True):
            groups[min(len(groups) - 1, int((before + weight / 2) / whole * len(groups)))].append(cell)
            before += weight
        return [group for group in groups if group]

    def add_notebook(self, file: str, parameters: dict[str, Any]) -> None:
        """A notebook, which computes what no job before it does."""
        number = file[:2]
        kinds, searched = KINDS_BEFORE.get(number, ()), [f"search/{slug(model)}" for model in self.searched(number)]
        before = [name for name in self.jobs if name.partition("/")[0] in kinds]
        before = [name for name in before if not name.startswith("search/") or name in searched]
        before += [name for name in self.jobs if name.startswith(f"notebook/{NOTEBOOK_BEFORE.get(number)}")]
        cells = [
            cell
            for experiment, home in NOTEBOOK_OF.items()
            if home == number
            for model in experiment_models(self.profile, experiment)
            for cell in self.cells(experiment, model)
        ]
        elsewhere = {cell for job in self.jobs.values() for cell in job.missing}
        left = self.missing(cells)
        missing = [cell for cell in left if cell not in elsewhere]
        arguments = {"notebook": file, "parameters": parameters}
        why = "reads what is computed before it" if left and not missing else self.why(cells, left)
        self.add(Job(f"notebook/{file[:-6]}", arguments, before, cells, missing, self.seconds(missing), why))

    def cells(self, experiment: str, model: str) -> list[Cell]:
        return [(experiment, model, *cell) for cell in expected_cells(self.profile, experiment, model)]

    def missing(self, cells: Sequence[Cell]) -> list[Cell]:
        """Cells that are not stored, or outdated."""
        return [cell for cell in cells if cell[0] in self.outdated or not is_stored(self.profile["name"], *cell)]

    def seconds(self, cells: Sequence[Cell]) -> float | None:
        """What some cells should take in all; None if that is not known of one of them."""
        found = [self._estimate(*cell) for cell in cells]
        return None if None in found else sum(found)

    def _estimate(self, experiment: str, model: str, method: str, task: str) -> float | None:
        if (experiment, model) not in self.estimates:
            self.estimates[experiment, model] = cell_seconds(self.profile, experiment, model)
        estimate = self.estimates[experiment, model].get((method, task))
        return estimate and estimate.seconds

    def why(self, cells: Sequence[Cell], missing: Sequence[Cell]) -> str:
        if missing and missing[0][0] in self.outdated:
            return self.outdated[missing[0][0]]
        if not missing:
            return "reads stored results"
        return "no result stored" if len(missing) == len(cells) else f"{len(missing)} of {len(cells)} results missing"
