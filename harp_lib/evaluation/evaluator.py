"""Scores of a model on the benchmarks of ``data/benchmarks.yaml``, by lm-eval, over embedded, hub
or local rows.
"""

import importlib.metadata
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from harp_lib.evaluation.benchmarks import LONGBENCH, Benchmark, Subtasks, rows_digest
from harp_lib.evaluation.likelihood import (
    bits_per_byte,
    guess_rate,
    log_odds_margin,
    reasoning_before_conclusion,
    right_choice,
)

SHOTS_SEED = 1234  # lm-eval's default, for seed 0 of ours
NO_ANSWER = ("[invalid]", "")  # what lm-eval's filters make of a reply without an answer


class Evaluator:
    """Runs benchmarks as a profile's section asks (``evaluation``, or ``longbench`` for its tasks);
    loads each once.

    ``seed`` chooses the few-shot examples.
    """

    def __init__(self, profile: dict[str, Any], seed: int = 0, section: str = "evaluation") -> None:
        self.seed, self.datasets, self.settings = seed, profile["datasets"], profile[section]
        self._folder = tempfile.TemporaryDirectory(prefix="harp-tasks-")
        self._loaded: dict[str, dict[str, Any]] = {}

    def inputs(self, benchmark: Benchmark) -> dict[str, Any]:
        """Everything but the model that a score depends on; MissingTaskError if there are no rows
        of the benchmark.
        """
        of_longbench = benchmark.name in LONGBENCH
        inputs = {
            "task": benchmark.name,
            **self.settings["tasks"][benchmark.name],
            **({"context": self.settings["context"]} if of_longbench else {}),
            "subtasks": self._subtasks(benchmark),
            "source": self.datasets
            if self.datasets in ("embedded", "hub")
            else Path(self.datasets).name,
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
        from harp_lib.evaluation.runner import load_tasks  # lm-eval takes seconds to import

        name = benchmark.name
        if name not in self._loaded:
            settings = self.settings["tasks"][name] | {
                "same_shots": self.settings.get("same_shots")
            }
            subtasks = self._subtasks(benchmark)
            self._loaded[name] = load_tasks(
                benchmark, self.datasets, settings, self._folder.name, subtasks
            )
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
            - ``score``, from 0 to 1, of the metric that the paper reports, and ``beside``, of the
              one kept beside it;
            - ``chance``, how often a guess in the right format is right;
            - of multiple choice ``margin`` (nats,
              :func:`~harp_lib.evaluation.likelihood.log_odds_margin`) and ``choice`` (index of the
              most likely one);
            - where answers are written ``answer_tokens``, and ``answered``: 1 where lm-eval's
              filter finds an answer;
            - on LongBench ``prompt_tokens``, before prompts are cut.

            ``versions`` of lm-eval's tasks and ``revisions`` of hub datasets; where answers are
            written ``answers``, the replies by subtask; on LongBench ``context``, what prompts are
            cut to.
        """
        from harp_lib.evaluation.runner import Runner, evaluate

        inputs, loaded = self.inputs(benchmark), self._load(benchmark)
        runner = Runner(model, tokenizer, inputs["batch_size"], inputs.get("context"))
        found = evaluate(runner, loaded, inputs["rows"], SHOTS_SEED + self.seed)
        samples = {
            subtask: sorted(
                (row for row in rows if row["filter"] == benchmark.filter),
                key=lambda row: row["doc_id"],
            )
            for subtask, rows in found["samples"].items()
        }
        rows = []
        for subtask, answered in samples.items():
            for sample in answered:
                row = {
                    "subtask": subtask,
                    "question": sample["doc_id"],
                    "score": float(sample[benchmark.metric]),
                }
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
                subtask: [sample["resps"][0][0] for sample in answered]
                for subtask, answered in samples.items()
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
        """Likelihood of the reference answers of a benchmark whose answers are written; nothing is
        written.

        The reference (``Benchmark.reference``) stands where the answer would: after the same
        prompt, or, with ``replies`` (by subtask, one for each question), after the prompt and the
        chain of thought of that reply.

        Returns
        -------
        dict
            ``rows``: ``subtask``, ``question`` and ``bits_per_byte`` of each question. ``dropped``:
            how many replies had no conclusion for the reference to stand in; these questions have
            no row.
        """
        from harp_lib.evaluation.runner import Runner, reference_answers

        inputs, loaded = self.inputs(benchmark), self._load(benchmark)
        runner = Runner(model, tokenizer, inputs["batch_size"], inputs.get("context"))
        asked = reference_answers(runner, loaded, benchmark, inputs["rows"], SHOTS_SEED + self.seed)
        dropped = 0
        if replies is not None:
            asked, dropped = _after_reasoning(asked, replies)
        rows = []
        for question, log_likelihood in zip(
            asked, runner.answer_log_likelihoods(asked), strict=True
        ):
            value = round(bits_per_byte(log_likelihood, question.answer), 6)
            rows.append(
                {"subtask": question.subtask, "question": question.number, "bits_per_byte": value}
            )
        return {"rows": rows, "dropped": dropped}


def _after_reasoning(
    asked: Sequence[Any], replies: Mapping[str, Sequence[str]]
) -> tuple[list[Any], int]:
    """Questions with the reasoning of a reply at the end of their prompts, and how many replies had
    no conclusion.
    """
    continued = []
    for question in asked:
        reasoning = reasoning_before_conclusion(replies[question.subtask][question.number])
        if reasoning is not None:
            continued.append(question.after(reasoning))
    return continued, len(asked) - len(continued)


def _choice(task: Any, sample: Mapping[str, Any]) -> dict[str, float]:
    """What a multiple-choice question adds to its row, from lm-eval's log-likelihoods of the
    choices.
    """
    log_likelihoods = [log_likelihood for log_likelihood, _ in sample["filtered_resps"]]
    return {
        "chance": 1 / len(log_likelihoods),
        "margin": round(log_odds_margin(log_likelihoods, right_choice(task, sample["doc"])), 5),
        "choice": int(np.argmax(log_likelihoods)),
    }


def _reply(
    benchmark: Benchmark, tokenizer: PreTrainedTokenizerBase, sample: Mapping[str, Any]
) -> dict[str, float]:
    """What a question with a written answer adds to its row."""
    reply = sample["resps"][0][0]
    return {
        "chance": guess_rate(sample["doc"]) if benchmark.chain_of_thought else 0.0,
        "answered": float(sample["filtered_resps"][0] not in NO_ANSWER),
        "answer_tokens": len(tokenizer(reply, add_special_tokens=False).input_ids),
    }


def _revisions(tasks: Iterator[Any]) -> dict[str, str]:
    """Repository → commit of the hub datasets that tasks were read from, as the datasets remember
    it.
    """
    urls = (
        url
        for task in tasks
        for split in task.dataset.values()
        for url in split.info.download_checksums or ()
    )
    found = (re.match(r"hf://datasets/([^@]+)@([0-9a-f]{40})/", url) for url in urls)
    return {match[1]: match[2] for match in found if match}
