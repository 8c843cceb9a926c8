"""The benchmarks of ``data/benchmarks.yaml``, and the places where their rows are.

Rows are embedded in this repository, on the hub, or in a folder.
"""

import hashlib
import importlib.util
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import yaml

from harp_lib import config
from harp_lib.config import folder_of
from harp_lib.models.repository import Repository
from harp_lib.text.rows import read_rows

DISCRIMINATIVE = "discriminative"
GENERATION = "generation"
Subtasks = int | list[str] | None  # of a group: the first so many, or those named, or all


class MissingTaskError(ValueError):
    """The data source has no rows of a task."""


@dataclass(frozen=True)
class Benchmark:
    """One task, or one group of tasks, of lm-eval; ``data/benchmarks.yaml`` explains the fields."""

    name: str  # as lm-eval calls it
    title: str  # as the paper prints it
    kind: str  # generation, discriminative, or LongBench's category
    configs: str
    metric: str
    split: str
    fields: list[str]
    shots_split: str = ""
    filter: str = "none"
    choices: int = 0
    reference: str = ""
    chain_of_thought: bool = False
    subtask: str = ""
    beside: str = ""
    scorer: str = ""
    first_line: bool = False
    prompt_ends: tuple[str, str] = ("", "")

    @property
    def splits(self) -> list[str]:
        """The splits whose rows are needed: of questions, and of examples if there are any."""
        if self.shots_split:
            return [self.split, self.shots_split]
        return [self.split]

    def subtasks(self) -> dict[str, Path]:
        """Each official task by name, with its YAML file: one task, unless this is a group."""
        package = importlib.util.find_spec("lm_eval")  # importing it would take seconds
        folder = Path(package.submodule_search_locations[0], "tasks")
        subtasks = {}
        for file in sorted(folder.glob(self.configs)):
            if not file.name.startswith("_"):
                name = self.subtask.format(file.stem) or self.name
                subtasks[name] = file
        return subtasks


def _read_benchmarks() -> dict[str, Benchmark]:
    """Benchmarks by name, in the order of the file."""
    content = (config.DATA / "benchmarks.yaml").read_text(encoding="utf-8")
    benchmarks = {}
    for kind, tasks in yaml.safe_load(content).items():
        for name, settings in tasks.items():
            benchmarks[name] = Benchmark(name=name, kind=kind, **settings)
    return benchmarks


ALL_BENCHMARKS = _read_benchmarks()
BENCHMARKS = {
    name: benchmark
    for name, benchmark in ALL_BENCHMARKS.items()
    if benchmark.kind in (GENERATION, DISCRIMINATIVE)
}
LONGBENCH = {
    name: benchmark for name, benchmark in ALL_BENCHMARKS.items() if name not in BENCHMARKS
}
CATEGORIES: dict[str, list[str]] = {}
for _name, _benchmark in LONGBENCH.items():
    CATEGORIES.setdefault(_benchmark.kind, []).append(_name)


def kind_of(task: str) -> str:
    """``generation``, ``discriminative`` or ``longbench``."""
    return BENCHMARKS[task].kind if task in BENCHMARKS else "longbench"


def task_title(task: str, source: str) -> str:
    """What tables and figures call a benchmark: the paper's name, *mini-* before it if embedded."""
    title = ALL_BENCHMARKS[task].title
    if source == "embedded":
        return f"mini-{title}"
    return title


def available_tasks(
    benchmark: Benchmark, datasets: str, subtasks: Subtasks = None
) -> dict[str, Path]:
    """Tasks of a benchmark that a data source has rows of, and their official YAML files.

    Parameters
    ----------
    benchmark : Benchmark
    datasets : str
        ``embedded``, ``hub``, or a folder with ``<lm-eval task>/<split>.jsonl``.
    subtasks : int or list of str, optional
        Of a group: the first so many tasks, or those named. All by default.

    Raises
    ------
    MissingTaskError
        If there is no task, or a file with rows is missing.
    ValueError
        If a subtask is named that the benchmark does not have.
    """
    folder = folder_of(datasets)
    tasks = benchmark.subtasks()
    if isinstance(subtasks, list):
        for name in subtasks:
            if name not in tasks:
                raise ValueError(
                    f"{benchmark.name} has no subtask {name!r}; choose from {', '.join(tasks)}"
                )
        tasks = {name: tasks[name] for name in subtasks}
    if folder is not None:
        tasks = {name: file for name, file in tasks.items() if (folder / name).is_dir()}
    if isinstance(subtasks, int):
        tasks = dict(islice(tasks.items(), subtasks))
    if folder is not None:
        _check_files(benchmark, folder, list(tasks))
    return tasks


def _check_files(benchmark: Benchmark, folder: Path, tasks: list[str]) -> None:
    """MissingTaskError if there is no task, or a task lacks one of its files."""
    if not tasks:
        missing = benchmark.subtask.format("*") or benchmark.name
        raise MissingTaskError(f"{folder.name} has no folder {missing}")
    for name in tasks:
        for split in benchmark.splits:
            if not (folder / name / f"{split}.jsonl").is_file():
                raise MissingTaskError(f"{folder.name}/{name} has no {split}.jsonl")


def check_rows(datasets: str) -> None:
    """Read every row that the benchmarks would use, if these are not the hub's.

    Raises
    ------
    MissingTaskError
        If there is no row of any benchmark, and no text either.
    ValueError
        At the first bad row, as :func:`~harp_lib.text.rows.read_rows`.
    """
    folder = folder_of(datasets)
    if folder is None:
        return
    files = []
    for benchmark in ALL_BENCHMARKS.values():
        for name in benchmark.subtasks():
            for split in benchmark.splits:
                file = folder / name / f"{split}.jsonl"
                if file.is_file():
                    files.append((benchmark, file))
    if not files and not (folder / "wikitext").is_dir():
        raise MissingTaskError(
            f"{folder} holds no benchmark and no text; expected folders such as piqa, with "
            "validation.jsonl and train.jsonl, named as in data/mini"
        )
    for benchmark, file in files:
        read_rows(file, benchmark.fields, benchmark.title)


def repositories_of(benchmark: Benchmark, subtasks: Subtasks = None) -> list[str]:
    """The data sets of the hub that a benchmark's rows come from, as lm-eval's own files say."""
    from lm_eval.tasks._yaml_loader import load_yaml  # lm-eval takes seconds to import

    files = available_tasks(benchmark, "hub", subtasks).values()
    tasks = [load_yaml(file, resolve_func=False) for file in files]
    return list(dict.fromkeys(task["dataset_path"] for task in tasks))


def rows_digest(benchmark: Benchmark, datasets: str, subtasks: Subtasks = None) -> str:
    """SHA-256 of the files that a benchmark reads; of the hub the data sets and their commits."""
    folder = folder_of(datasets)
    if folder is None:
        names = repositories_of(benchmark, subtasks)
        commits = [f"{name}@{Repository('dataset', name).commit}" for name in names]
        return "hub: " + ", ".join(commits)
    digest = hashlib.sha256()
    for name in available_tasks(benchmark, datasets, subtasks):
        for file in sorted((folder / name).glob("*.jsonl")):
            digest.update(f"{name}/{file.name}".encode() + file.read_bytes())
    return digest.hexdigest()
