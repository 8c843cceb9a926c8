"""The paper's benchmarks: which of lm-eval's tasks they are, where their rows are, whether these are sound."""

import hashlib
import importlib.util
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harp_lib import paths

EMBEDDED_FOLDER = "mini"  # in ``data``
DISCRIMINATIVE, GENERATION = "discriminative", "generation"


class MissingTaskError(ValueError):
    """The data source has no rows of a task."""


class RowError(ValueError):
    """A row of a benchmark cannot be used; the message names file and line."""


@dataclass(frozen=True)
class Benchmark:
    """One task, or one group of tasks, of lm-eval.

    Attributes
    ----------
    name, title : str
        As lm-eval calls it, and as the paper prints it.
    kind : str
        ``discriminative`` (answers are chosen) or ``generation`` (answers are written); of LongBench's tasks, which are
        all written, the category.
    configs : str
        The official YAML file, in lm-eval's folder of tasks; a pattern where it is a group.
    metric, filter : str
        What the paper reports (its Appendix "Benchmark Details").
    split, shots_split : str
        Whose rows are asked, and whose rows are shown as examples (empty where the official YAML brings its own).
    fields : tuple of str
        What each row needs; a dot leads into a nested field.
    choices : int
        Answers to choose from; 0 where they are written.
    subtask : str
        Turns the stem of a group's YAML file into the name of its task.
    beside : str
        Another metric that is kept beside the paper's.
    """

    name: str
    title: str
    kind: str
    configs: str
    metric: str
    split: str
    shots_split: str
    fields: tuple[str, ...]
    filter: str = "none"
    choices: int = 0
    subtask: str = ""
    beside: str = ""

    @property
    def is_group(self) -> bool:
        return bool(self.subtask)

    def subtasks(self) -> dict[str, Path]:
        """Every official task of it, and its YAML file: one, unless it is a group."""
        files = sorted(file for file in official_tasks().glob(self.configs) if not file.name.startswith("_"))
        return {self.subtask.format(file.stem) if self.is_group else self.name: file for file in files}


_CHOICES = ("choices.text", "choices.label", "answerKey")
GENERATION_TASKS = (
    Benchmark(
        *("triviaqa", "TriviaQA", GENERATION, "triviaqa/default.yaml", "exact_match", "validation", "train"),
        fields=("question", "answer.aliases", "answer.value"),
        filter="remove_whitespace",
    ),
    Benchmark(
        *("nq_open", "NaturalQuestions", GENERATION, "nq_open/nq_open.yaml", "exact_match", "validation", "train"),
        fields=("question", "answer"),
        filter="remove_whitespace",
    ),
    Benchmark(
        *("gsm8k", "GSM8K", GENERATION, "gsm8k/gsm8k.yaml", "exact_match", "test", "train"),
        fields=("question", "answer"),
        filter="strict-match",
    ),
    Benchmark(
        *("leaderboard_math_hard", "MATH-hard", GENERATION, "leaderboard/math/math_*.yaml"),
        *("exact_match_original", "test", ""),
        fields=("problem", "level", "solution", "type"),
        subtask="leaderboard_{}_hard",
        beside="exact_match",
    ),
    Benchmark(
        *("bbh_cot_fewshot", "BBH", GENERATION, "bbh/cot_fewshot/*.yaml", "exact_match", "test", ""),
        fields=("input", "target"),
        filter="get-answer",
        subtask="bbh_cot_fewshot_{}",
    ),
)
DISCRIMINATIVE_TASKS = (
    Benchmark(
        *("winogrande", "WinoGrande", DISCRIMINATIVE, "winogrande/default.yaml", "acc", "validation", "train"),
        fields=("sentence", "option1", "option2", "answer"),
        choices=2,
    ),
    Benchmark(
        *("arc_challenge", "ARC-Challenge", DISCRIMINATIVE, "arc/arc_challenge.yaml", "acc", "test", "train"),
        fields=("question", *_CHOICES),
        choices=4,
        beside="acc_norm",
    ),
    Benchmark(
        *("boolq", "BoolQ", DISCRIMINATIVE, "super_glue/boolq/default.yaml", "acc", "validation", "train"),
        fields=("question", "passage", "label"),
        choices=2,
    ),
    Benchmark(
        *("openbookqa", "OpenBookQA", DISCRIMINATIVE, "openbookqa/openbookqa.yaml", "acc", "test", "train"),
        fields=("question_stem", *_CHOICES),
        choices=4,
        beside="acc_norm",
    ),
    Benchmark(
        *("piqa", "PIQA", DISCRIMINATIVE, "piqa/piqa.yaml", "acc", "validation", "train"),
        fields=("goal", "sol1", "sol2", "label"),
        choices=2,
        beside="acc_norm",
    ),
    Benchmark(
        *("mmlu", "MMLU", DISCRIMINATIVE, "mmlu/default/mmlu_*.yaml", "acc", "test", "dev"),
        fields=("question", "subject", "choices", "answer"),
        choices=4,
        subtask="{}",
    ),
)
BENCHMARKS = {task.name: task for task in (*GENERATION_TASKS, *DISCRIMINATIVE_TASKS)}

CATEGORIES = {  # LongBench, as the paper's Table "longcontext" parts and calls it
    "Single-Document QA": {"narrativeqa": "NrtvQA", "qasper": "Qasper", "multifieldqa_en": "MF-en"},
    "Multi-Document QA": {"hotpotqa": "HotpotQA", "2wikimqa": "2WikiMQA", "musique": "Musique"},
    "Summarization": {"gov_report": "GovReport", "qmsum": "QMSum", "multi_news": "MultiNews"},
    "Few-shot Learning": {"trec": "TREC", "triviaqa": "TriviaQA", "samsum": "SAMSum"},
    "Synthetic": {"passage_count": "PCount", "passage_retrieval_en": "PRe"},
    "Code": {"lcc": "Lcc", "repobench-p": "RB-P"},
}
LONGBENCH = {
    f"longbench_{name}": Benchmark(
        *(f"longbench_{name}", title, category, f"longbench/{name}.yaml", "score", "test", ""),
        fields=("context", "question", "answers", *(["all_classes"] if name == "trec" else [])),
    )
    for category, tasks in CATEGORIES.items()
    for name, title in tasks.items()
}
ALL_BENCHMARKS = BENCHMARKS | LONGBENCH


def official_tasks() -> Path:
    """lm-eval's folder of task files, found without importing lm-eval."""
    return Path(importlib.util.find_spec("lm_eval").submodule_search_locations[0]) / "tasks"


def folder_of(datasets: str) -> Path | None:
    """The folder that a data source reads from; None is the hub."""
    return None if datasets == "hub" else paths.DATA / EMBEDDED_FOLDER if datasets == "embedded" else Path(datasets)


def at_hand(benchmark: Benchmark, datasets: str, most: int | None = None) -> dict[str, Path]:
    """Tasks of a benchmark that a data source has rows of, and their official YAML files.

    Parameters
    ----------
    benchmark : Benchmark
    datasets : str
        ``embedded``, ``hub`` or a folder with ``<lm-eval task>/<split>.jsonl``.
    most : int, optional
        Take only the first few tasks of a group.

    Raises
    ------
    MissingTaskError
        If there is none, or a file with rows is missing.
    """
    folder, found = folder_of(datasets), benchmark.subtasks()
    if folder is not None:
        found = {name: file for name, file in found.items() if (folder / name).is_dir()}
        if not found:
            raise MissingTaskError(f"{folder.name} has no folder {benchmark.subtask.format('*') or benchmark.name}")
    found = dict(list(found.items())[:most])
    for name in found if folder is not None else ():
        for split in filter(None, (benchmark.split, benchmark.shots_split)):
            if not (folder / name / f"{split}.jsonl").is_file():
                raise MissingTaskError(f"{folder.name}/{name} has no {split}.jsonl")
    return found


def check_rows(datasets: str) -> None:
    """Read every row that the benchmarks would use.

    Raises
    ------
    RowError
        At the first row that is no JSON object or lacks a field; file, line and field are named.
    MissingTaskError
        If there is no row of any benchmark, and no text either.
    """
    folder, found = folder_of(datasets), False
    for benchmark in ALL_BENCHMARKS.values() if folder is not None else ():
        for name in benchmark.subtasks():
            for split in filter(None, (benchmark.split, benchmark.shots_split)):
                if (file := folder / name / f"{split}.jsonl").is_file():
                    found = True
                    for number, row in _rows(file):
                        _check_row(benchmark, row, f"{file}, line {number}")
    if folder is not None and not found and not (folder / "wikitext").is_dir():
        raise MissingTaskError(
            f"{folder} holds no benchmark and no text; expected folders such as piqa, with validation.jsonl and "
            f"train.jsonl, named as in data/{EMBEDDED_FOLDER}"
        )


def rows_digest(benchmark: Benchmark, datasets: str, most: int | None = None) -> str:
    """SHA-256 of the files that a benchmark reads; ``hub`` for the hub."""
    folder, digest = folder_of(datasets), hashlib.sha256()
    if folder is None:
        return "hub"
    for name in at_hand(benchmark, datasets, most):
        for file in sorted((folder / name).glob("*.jsonl")):
            digest.update(f"{name}/{file.name}".encode() + file.read_bytes())
    return digest.hexdigest()


def _rows(file: Path) -> Iterator[tuple[int, Any]]:
    with file.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            if line.strip():
                try:
                    yield number, json.loads(line)
                except ValueError as error:
                    raise RowError(f"{file}, line {number}: not JSON ({error})") from error


def _check_row(benchmark: Benchmark, row: Any, place: str) -> None:
    for field in benchmark.fields:
        value = row
        for part in field.split("."):
            if not isinstance(value, dict) or value.get(part) is None:
                raise RowError(f"{place}: no field {field!r}; {benchmark.title} needs {', '.join(benchmark.fields)}")
            value = value[part]
