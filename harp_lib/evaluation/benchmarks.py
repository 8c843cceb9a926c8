"""The benchmarks of ``data/benchmarks.yaml``, and where their rows are: embedded, on the hub, or in
a folder.
"""

import hashlib
import importlib.util
from dataclasses import dataclass
from itertools import islice, product
from pathlib import Path

import yaml

from harp_lib import config
from harp_lib.text.rows import read_rows

DISCRIMINATIVE, GENERATION = "discriminative", "generation"
Subtasks = int | list[str] | None  # of a group: the first so many, or those named, or all


class MissingTaskError(ValueError):
    """The data source has no rows of a task."""


@dataclass(frozen=True)
class Benchmark:
    """One task, or one group of tasks, of lm-eval; ``data/benchmarks.yaml`` says what the fields
    mean.
    """

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
        return [self.split, self.shots_split] if self.shots_split else [self.split]

    def subtasks(self) -> dict[str, Path]:
        """Every official task of it, and its YAML file: one, unless it is a group."""
        folder = importlib.util.find_spec("lm_eval").submodule_search_locations[
            0
        ]  # not imported, which takes seconds
        files = sorted(
            file
            for file in Path(folder, "tasks").glob(self.configs)
            if not file.name.startswith("_")
        )
        return {self.subtask.format(file.stem) or self.name: file for file in files}


ALL_BENCHMARKS = {
    name: Benchmark(name=name, kind=kind, **settings)
    for kind, tasks in yaml.safe_load(
        (config.DATA / "benchmarks.yaml").read_text(encoding="utf-8")
    ).items()
    for name, settings in tasks.items()
}
BENCHMARKS = {
    name: one for name, one in ALL_BENCHMARKS.items() if one.kind in (GENERATION, DISCRIMINATIVE)
}
LONGBENCH = {name: one for name, one in ALL_BENCHMARKS.items() if name not in BENCHMARKS}
CATEGORIES = {
    one.kind: [n for n, task in LONGBENCH.items() if task.kind == one.kind]
    for one in LONGBENCH.values()
}


def task_title(task: str, source: str) -> str:
    """What tables and figures call a benchmark: the paper's name, or *mini-* and that where rows
    are ``embedded``.
    """
    return (
        f"mini-{ALL_BENCHMARKS[task].title}" if source == "embedded" else ALL_BENCHMARKS[task].title
    )


def folder_of(datasets: str) -> Path | None:
    """The folder that a data source reads from; None is the hub."""
    return (
        None
        if datasets == "hub"
        else config.DATA / "mini"
        if datasets == "embedded"
        else Path(datasets)
    )


def at_hand(benchmark: Benchmark, datasets: str, subtasks: Subtasks = None) -> dict[str, Path]:
    """Tasks of a benchmark that a data source has rows of, and their official YAML files.

    ``datasets`` is ``embedded``, ``hub`` or a folder with ``<lm-eval task>/<split>.jsonl``. Of a
    group ``subtasks`` takes those that it names, or the first so many. MissingTaskError if there is
    no task, or a file with rows is missing; ValueError if a subtask is named that the benchmark
    does not have.
    """
    folder = folder_of(datasets)
    found = benchmark.subtasks()
    if isinstance(subtasks, list):
        if unknown := [name for name in subtasks if name not in found]:
            raise ValueError(
                f"{benchmark.name} has no subtask {unknown[0]!r}; choose from {', '.join(found)}"
            )
        found = {name: found[name] for name in subtasks}
    if folder is not None:
        found = {name: file for name, file in found.items() if (folder / name).is_dir()}
    if isinstance(subtasks, int):
        found = dict(islice(found.items(), subtasks))
    if folder is None:
        return found
    if not found:
        raise MissingTaskError(
            f"{folder.name} has no folder {benchmark.subtask.format('*') or benchmark.name}"
        )
    for name, split in product(found, benchmark.splits):
        if not (folder / name / f"{split}.jsonl").is_file():
            raise MissingTaskError(f"{folder.name}/{name} has no {split}.jsonl")
    return found


def check_rows(datasets: str) -> None:
    """Read every row that the benchmarks would use; as :func:`read_rows`.

    MissingTaskError if there is no row of any benchmark, and no text either.
    """
    if (folder := folder_of(datasets)) is None:
        return
    tasks = [
        (benchmark, folder / name)
        for benchmark in ALL_BENCHMARKS.values()
        for name in benchmark.subtasks()
    ]
    files = [
        (benchmark, task / f"{split}.jsonl")
        for benchmark, task in tasks
        for split in benchmark.splits
    ]
    found = [(benchmark, file) for benchmark, file in files if file.is_file()]
    if not found and not (folder / "wikitext").is_dir():
        expected = (
            "folders such as piqa, with validation.jsonl and train.jsonl, named as in data/mini"
        )
        raise MissingTaskError(f"{folder} holds no benchmark and no text; expected {expected}")
    for benchmark, file in found:
        read_rows(file, benchmark.fields, benchmark.title)


def rows_digest(benchmark: Benchmark, datasets: str, subtasks: Subtasks = None) -> str:
    """SHA-256 of the files that a benchmark reads; ``hub`` for the hub."""
    folder, digest = folder_of(datasets), hashlib.sha256()
    if folder is None:
        return "hub"
    for name in at_hand(benchmark, datasets, subtasks):
        for file in sorted((folder / name).glob("*.jsonl")):
            digest.update(f"{name}/{file.name}".encode() + file.read_bytes())
    return digest.hexdigest()
