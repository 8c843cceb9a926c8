"""Scores of a model on the benchmarks of ``data/benchmarks.yaml``, by lm-eval, over embedded, hub or local rows."""

import hashlib
import importlib.metadata
import importlib.util
import json
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, product
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from harp_lib import config
from harp_lib.measure.likelihood import (
    bits_per_byte,
    guess_rate,
    log_odds_margin,
    reasoning_before_conclusion,
    right_choice,
)

DISCRIMINATIVE, GENERATION = "discriminative", "generation"
SHOTS_SEED = 1234  # lm-eval's default, for seed 0 of ours
Subtasks = int | list[str] | None  # of a group: the first so many, or those named, or all
NO_ANSWER = ("[invalid]", "")  # what lm-eval's filters make of a reply without an answer


class MissingTaskError(ValueError):
    """The data source has no rows of a task."""


@dataclass(frozen=True)
class Benchmark:
    """One task, or one group of tasks, of lm-eval; ``data/benchmarks.yaml`` says what the fields mean."""

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
        folder = importlib.util.find_spec("lm_eval").submodule_search_locations[0]  # not imported, which takes seconds
        files = sorted(file for file in Path(folder, "tasks").glob(self.configs) if not file.name.startswith("_"))
        return {self.subtask.format(file.stem) or self.name: file for file in files}


ALL_BENCHMARKS = {
    name: Benchmark(name=name, kind=kind, **settings)
    for kind, tasks in yaml.safe_load((config.DATA / "benchmarks.yaml").read_text(encoding="utf-8")).items()
    for name, settings in tasks.items()
}
BENCHMARKS = {name: one for name, one in ALL_BENCHMARKS.items() if one.kind in (GENERATION, DISCRIMINATIVE)}
LONGBENCH = {name: one for name, one in ALL_BENCHMARKS.items() if name not in BENCHMARKS}
CATEGORIES = {one.kind: [n for n, task in LONGBENCH.items() if task.kind == one.kind] for one in LONGBENCH.values()}


def task_title(task: str, source: str) -> str:
    """What tables and figures call a benchmark: the paper's name, or *mini-* and that where rows are ``embedded``."""
    return f"mini-{ALL_BENCHMARKS[task].title}" if source == "embedded" else ALL_BENCHMARKS[task].title


def folder_of(datasets: str) -> Path | None:
    """The folder that a data source reads from; None is the hub."""
    return None if datasets == "hub" else config.DATA / "mini" if datasets == "embedded" else Path(datasets)


def at_hand(benchmark: Benchmark, datasets: str, subtasks: Subtasks = None) -> dict[str, Path]:
    """Tasks of a benchmark that a data source has rows of, and their official YAML files.

    ``datasets`` is ``embedded``, ``hub`` or a folder with ``<lm-eval task>/<split>.jsonl``. Of a group ``subtasks``
    takes those that it names, or the first so many. MissingTaskError if there is no task, or a file with rows is
    missing; ValueError if a subtask is named that the benchmark does not have.
    """
    folder = folder_of(datasets)
    found = benchmark.subtasks()
    if isinstance(subtasks, list):
        if unknown := [name for name in subtasks if name not in found]:
            raise ValueError(f"{benchmark.name} has no subtask {unknown[0]!r}; choose from {', '.join(found)}")
        found = {name: found[name] for name in subtasks}
    if folder is not None:
        found = {name: file for name, file in found.items() if (folder / name).is_dir()}
    if isinstance(subtasks, int):
        found = dict(islice(found.items(), subtasks))
    if folder is None:
        return found
    if not found:
        raise MissingTaskError(f"{folder.name} has no folder {benchmark.subtask.format('*') or benchmark.name}")
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
    tasks = [(benchmark, folder / name) for benchmark in ALL_BENCHMARKS.values() for name in benchmark.subtasks()]
    files = [(benchmark, task / f"{split}.jsonl") for benchmark, task in tasks for split in benchmark.splits]
    found = [(benchmark, file) for benchmark, file in files if file.is_file()]
    if not found and not (folder / "wikitext").is_dir():
        expected = "folders such as piqa, with validation.jsonl and train.jsonl, named as in data/mini"
        raise MissingTaskError(f"{folder} holds no benchmark and no text; expected {expected}")
    for benchmark, file in found:
        read_rows(file, benchmark.fields, benchmark.title)


def read_rows(file: Path, fields: list[str], title: str) -> list[dict[str, Any]]:
    """The rows of a JSONL file; ValueError, with file and line, at the first that is not JSON or lacks a field."""
    rows = []
    for number, line in enumerate(file.read_text(encoding="utf-8").split("\n"), start=1):
        if not line.strip():
            continue
        try:
            rows.append(json.loads(line))
        except ValueError as error:
            raise ValueError(f"{file}, line {number}: not JSON ({error})") from error
        for field in fields:
            value = rows[-1]
            for part in field.split("."):
                value = value.get(part) if isinstance(value, dict) else None
            if value is None:
                raise ValueError(f"{file}, line {number}: no field {field!r}; {title} needs {', '.join(fields)}")
    return rows


def rows_digest(benchmark: Benchmark, datasets: str, subtasks: Subtasks = None) -> str:
    """SHA-256 of the files that a benchmark reads; ``hub`` for the hub."""
    folder, digest = folder_of(datasets), hashlib.sha256()
    if folder is None:
        return "hub"
    for name in at_hand(benchmark, datasets, subtasks):
        for file in sorted((folder / name).glob("*.jsonl")):
            digest.update(f"{name}/{file.name}".encode() + file.read_bytes())
    return digest.hexdigest()


class Evaluator:
    """Runs benchmarks as a profile's section asks (``evaluation``, or ``longbench`` for its tasks); loads each once.

    ``seed`` chooses the few-shot examples.
    """

    def __init__(self, profile: dict[str, Any], seed: int = 0, section: str = "evaluation") -> None:
        self.seed, self.datasets, self.settings = seed, profile["datasets"], profile[section]
        self._folder = tempfile.TemporaryDirectory(prefix="harp-tasks-")
        self._loaded: dict[str, dict[str, Any]] = {}

    def inputs(self, benchmark: Benchmark) -> dict[str, Any]:
        """Everything but the model that a score depends on; MissingTaskError if there are no rows of the benchmark."""
        of_longbench = benchmark.name in LONGBENCH
        inputs = {
            "task": benchmark.name,
            **self.settings["tasks"][benchmark.name],
            **({"context": self.settings["context"]} if of_longbench else {}),
            "subtasks": self._subtasks(benchmark),
            "source": self.datasets if self.datasets in ("embedded", "hub") else Path(self.datasets).name,
            "sha256": rows_digest(benchmark, self.datasets, self._subtasks(benchmark)),
            "batch_size": self.settings["batch_size"],
            "bos": "tokenizer" if of_longbench else "gemma",  # who puts a token before each prompt
            "shots_seed": None if self.settings.get("same_shots") else SHOTS_SEED + self.seed,
            "lm_eval": importlib.metadata.version("lm_eval"),
        }
        if benchmark.choices and self.settings.get("margins", True):
            inputs["measures"] = ["score", "margin"]
        return inputs

    def _subtasks(self, benchmark: Benchmark) -> Subtasks:
        """Which tasks of a group are asked: the task's own setting, or the section's; None is all."""
        own = self.settings["tasks"][benchmark.name].get("subtasks")
        return (own or self.settings["subtasks"]) if benchmark.subtask else None

    def _load(self, benchmark: Benchmark) -> dict[str, Any]:
        """lm-eval's tasks of a benchmark, loaded once."""
        from harp_lib.measure.runner import load_tasks  # lm-eval takes seconds to import

        name = benchmark.name
        if name not in self._loaded:
            settings = self.settings["tasks"][name] | {"same_shots": self.settings.get("same_shots")}
            subtasks = self._subtasks(benchmark)
            self._loaded[name] = load_tasks(benchmark, self.datasets, settings, self._folder.name, subtasks)
        return self._loaded[name]

    def evaluate(
        self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, benchmark: Benchmark
    ) -> dict[str, Any]:
        """Score a model on one benchmark.

        Returns
        -------
        dict
            ``rows``, a record for each question:

            - ``subtask``, and ``question``, counted from 0 in each subtask;
            - ``score``, from 0 to 1, of the metric that the paper reports, and ``beside``, of the one kept beside it;
            - ``chance``, how often a guess in the right format is right;
            - of multiple choice ``margin`` (nats, :func:`~harp_lib.measure.likelihood.log_odds_margin`) and ``choice``
              (index of the most likely one);
            - where answers are written ``answer_tokens``, and ``answered``: 1 where lm-eval's filter finds an answer;
            - on LongBench ``prompt_tokens``, before prompts are cut.

            ``versions`` of lm-eval's tasks and ``revisions`` of hub datasets; where answers are written ``answers``,
            the replies by subtask; on LongBench ``context``, what prompts are cut to.
        """
        from harp_lib.measure.runner import Runner, evaluate

        inputs, loaded = self.inputs(benchmark), self._load(benchmark)
        runner = Runner(model, tokenizer, inputs["batch_size"], inputs.get("context"))
        found = evaluate(runner, loaded, inputs["rows"], SHOTS_SEED + self.seed)
        samples = {
            subtask: sorted((row for row in rows if row["filter"] == benchmark.filter), key=lambda row: row["doc_id"])
            for subtask, rows in found["samples"].items()
        }
        rows = []
        for subtask, answered in samples.items():
            for sample in answered:
                row = {"subtask": subtask, "question": sample["doc_id"], "score": float(sample[benchmark.metric])}
                if benchmark.beside:
                    row["beside"] = float(sample[benchmark.beside])
                if benchmark.choices:
                    row |= _choice(loaded["tasks"][subtask], sample)
                else:
                    row |= _reply(benchmark, tokenizer, sample)
                if "context" in inputs:
                    row["prompt_tokens"] = len(tokenizer(sample["arguments"][0][0]).input_ids)
                rows.append(row)
        result = {
            "rows": rows,
            "versions": {subtask: found["versions"][subtask] for subtask in samples},
            "revisions": _revisions(loaded["tasks"].values()),
        }
        if not benchmark.choices:
            result["answers"] = {
                subtask: [sample["resps"][0][0] for sample in answered] for subtask, answered in samples.items()
            }
        if "context" in inputs:
            result["context"] = runner.cut_to
        return result

    def likelihoods(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        benchmark: Benchmark,
        replies: Mapping[str, Sequence[str]] | None = None,
    ) -> dict[str, Any]:
        """Likelihood of the reference answers of a benchmark whose answers are written; nothing is written.

        The reference (``Benchmark.reference``) stands where the answer would: after the same prompt, or, with
        ``replies`` (by subtask, one for each question), after the prompt and the chain of thought of that reply.

        Returns
        -------
        dict
            ``rows``: ``subtask``, ``question`` and ``bits_per_byte`` of each question. ``dropped``: how many replies
            had no conclusion for the reference to stand in; these questions have no row.
        """
        from harp_lib.measure.runner import Runner, reference_answers

        inputs, loaded = self.inputs(benchmark), self._load(benchmark)
        runner = Runner(model, tokenizer, inputs["batch_size"], inputs.get("context"))
        asked = reference_answers(runner, loaded, benchmark, inputs["rows"], SHOTS_SEED + self.seed)
        dropped = 0
        if replies is not None:
            asked, dropped = _after_reasoning(asked, replies)
        rows = []
        for question, log_likelihood in zip(asked, runner.answer_log_likelihoods(asked), strict=True):
            value = round(bits_per_byte(log_likelihood, question.answer), 6)
            rows.append({"subtask": question.subtask, "question": question.number, "bits_per_byte": value})
        return {"rows": rows, "dropped": dropped}


def _after_reasoning(asked: Sequence[Any], replies: Mapping[str, Sequence[str]]) -> tuple[list[Any], int]:
    """Questions with the reasoning of a reply at the end of their prompts, and how many replies had no conclusion."""
    continued = []
    for question in asked:
        reasoning = reasoning_before_conclusion(replies[question.subtask][question.number])
        if reasoning is not None:
            continued.append(question.after(reasoning))
    return continued, len(asked) - len(continued)


def _choice(task: Any, sample: Mapping[str, Any]) -> dict[str, float]:
    """What a multiple-choice question adds to its row, from lm-eval's log-likelihoods of the choices."""
    log_likelihoods = [log_likelihood for log_likelihood, _ in sample["filtered_resps"]]
    return {
        "chance": 1 / len(log_likelihoods),
        "margin": round(log_odds_margin(log_likelihoods, right_choice(task, sample["doc"])), 5),
        "choice": int(np.argmax(log_likelihoods)),
    }


def _reply(benchmark: Benchmark, tokenizer: PreTrainedTokenizerBase, sample: Mapping[str, Any]) -> dict[str, float]:
    """What a question with a written answer adds to its row."""
    reply = sample["resps"][0][0]
    return {
        "chance": guess_rate(sample["doc"]) if benchmark.chain_of_thought else 0.0,
        "answered": float(sample["filtered_resps"][0] not in NO_ANSWER),
        "answer_tokens": len(tokenizer(reply, add_special_tokens=False).input_ids),
    }


def _revisions(tasks: Iterator[Any]) -> dict[str, str]:
    """Repository → commit of the hub datasets that tasks were read from, as the datasets remember it."""
    urls = (url for task in tasks for split in task.dataset.values() for url in split.info.download_checksums or ())
    found = (re.match(r"hf://datasets/([^@]+)@([0-9a-f]{40})/", url) for url in urls)
    return {match[1]: match[2] for match in found if match}
