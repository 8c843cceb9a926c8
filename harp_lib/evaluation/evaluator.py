"""Scores of a model on the benchmarks of ``data/benchmarks.yaml``, by lm-eval."""

import importlib.metadata
import tempfile
from collections.abc import Mapping, Sequence
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
    """Runs benchmarks as a section of a profile asks, and loads the tasks of each once.

    ``seed`` chooses the few-shot examples.
    """

    def __init__(self, profile: dict[str, Any], seed: int = 0, section: str = "evaluation") -> None:
        self.shots_seed = SHOTS_SEED + seed
        self.datasets = profile["datasets"]
        self.settings = profile[section]
        self._folder = tempfile.TemporaryDirectory(prefix="harp-tasks-")
        self._loaded: dict[str, dict[str, Any]] = {}

    def inputs(self, benchmark: Benchmark) -> dict[str, Any]:
        """Everything but the model that a score depends on.

        Raises
        ------
        MissingTaskError
            If there are no rows of the benchmark.
        """
        subtasks = self._subtasks(benchmark)
        source = self.datasets
        if source not in ("embedded", "hub"):
            source = Path(source).name
        shots_seed = self.shots_seed
        if self.settings.get("same_shots"):
            shots_seed = None

        inputs = {"task": benchmark.name, **self.settings["tasks"][benchmark.name]}
        # A BOS token begins the prompts of Gemma alone, or of any tokenizer that puts it there.
        bos = "gemma"
        if benchmark.name in LONGBENCH:
            bos = "tokenizer"
            inputs["context"] = self.settings["context"]
        inputs.update(
            subtasks=subtasks,
            source=source,
            sha256=rows_digest(benchmark, self.datasets, subtasks),
            batch_size=self.settings["batch_size"],
            bos=bos,
            shots_seed=shots_seed,
            lm_eval=importlib.metadata.version("lm_eval"),
        )
        if benchmark.choices:
            inputs["measures"] = ["score", "margin"]
        return inputs

    def _subtasks(self, benchmark: Benchmark) -> Subtasks:
        """Which tasks of a group are run, by its own setting or the section's; None is all."""
        if not benchmark.subtask:
            return None
        settings = self.settings["tasks"][benchmark.name]
        return settings.get("subtasks") or self.settings["subtasks"]

    def _load(self, benchmark: Benchmark) -> dict[str, Any]:
        """lm-eval's tasks of a benchmark, loaded once."""
        from harp_lib.evaluation.runner import load_tasks  # lm-eval takes seconds to import

        name = benchmark.name
        if name not in self._loaded:
            settings = dict(self.settings["tasks"][name])
            settings["same_shots"] = self.settings.get("same_shots")
            subtasks = self._subtasks(benchmark)
            self._loaded[name] = load_tasks(
                benchmark, self.datasets, settings, self._folder.name, subtasks
            )
        return self._loaded[name]

    def _runner(
        self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, benchmark: Benchmark
    ) -> Any:
        """The model as lm-eval asks it."""
        from harp_lib.evaluation.runner import Runner

        context = self.settings["context"] if benchmark.name in LONGBENCH else None
        return Runner(model, tokenizer, self.settings["batch_size"], context)

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

            ``versions`` of lm-eval's tasks; where answers are written ``answers``, the replies by
            subtask; on LongBench ``context``, what prompts are cut to.
        """
        from harp_lib.evaluation.runner import evaluate

        loaded = self._load(benchmark)
        runner = self._runner(model, tokenizer, benchmark)
        limit = self.settings["tasks"][benchmark.name]["rows"]  # of each task
        results = evaluate(runner, loaded, limit, self.shots_seed)
        samples = {}
        for subtask, unordered in results["samples"].items():
            filtered = [sample for sample in unordered if sample["filter"] == benchmark.filter]
            samples[subtask] = sorted(filtered, key=lambda sample: sample["doc_id"])

        rows = []
        for subtask, subtask_samples in samples.items():
            task = loaded["tasks"][subtask]
            for sample in subtask_samples:
                row = _score(benchmark, subtask, sample)
                if benchmark.choices:
                    row.update(_choice(task, sample))
                else:
                    row.update(_reply(benchmark, tokenizer, sample))
                if benchmark.name in LONGBENCH:
                    prompt = sample["arguments"][0][0]
                    row["prompt_tokens"] = len(tokenizer(prompt).input_ids)
                rows.append(row)

        result = {
            "rows": rows,
            "versions": {subtask: results["versions"][subtask] for subtask in samples},
        }
        if not benchmark.choices:
            result["answers"] = {
                subtask: [_written(sample) for sample in subtask_samples]
                for subtask, subtask_samples in samples.items()
            }
        if benchmark.name in LONGBENCH:
            result["context"] = runner.cut_to
        return result

    def likelihoods(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        benchmark: Benchmark,
        replies: Mapping[str, Sequence[str]] | None = None,
    ) -> dict[str, Any]:
        """Likelihood of the reference answers, for a benchmark whose answers are written.

        The model writes nothing. The reference (``Benchmark.reference``) stands where the answer
        would be. With ``replies`` by subtask, one for each question, the chain of thought of the
        reply stands between the prompt and the reference.

        Returns
        -------
        dict
            ``rows``: ``subtask``, ``question`` and ``bits_per_byte`` of each question. ``dropped``:
            how many replies had no conclusion for the reference to stand in; these questions have
            no row.
        """
        from harp_lib.evaluation.runner import reference_answers

        loaded = self._load(benchmark)
        runner = self._runner(model, tokenizer, benchmark)
        limit = self.settings["tasks"][benchmark.name]["rows"]  # of each task
        questions = reference_answers(runner, loaded, benchmark, limit, self.shots_seed)
        num_questions = len(questions)
        if replies is not None:
            questions = _after_reasoning(questions, replies)
        log_likelihoods = runner.answer_log_likelihoods(questions)

        rows = []
        for question, log_likelihood in zip(questions, log_likelihoods, strict=True):
            row = {
                "subtask": question.subtask,
                "question": question.number,
                "bits_per_byte": round(bits_per_byte(log_likelihood, question.answer), 6),
            }
            rows.append(row)
        return {"rows": rows, "dropped": num_questions - len(questions)}


def _after_reasoning(questions: Sequence[Any], replies: Mapping[str, Sequence[str]]) -> list[Any]:
    """Questions with the reasoning of a reply after their prompts; none without a conclusion."""
    continued = []
    for question in questions:
        reply = replies[question.subtask][question.number]
        reasoning = reasoning_before_conclusion(reply)
        if reasoning is not None:
            continued.append(question.after(reasoning))
    return continued


def _score(benchmark: Benchmark, subtask: str, sample: Mapping[str, Any]) -> dict[str, Any]:
    """The row of a question, with what lm-eval's metrics say of the answer."""
    row = {
        "subtask": subtask,
        "question": sample["doc_id"],
        "score": float(sample[benchmark.metric]),
    }
    if benchmark.beside:
        row["beside"] = float(sample[benchmark.beside])
    return row


def _choice(task: Any, sample: Mapping[str, Any]) -> dict[str, float]:
    """What a multiple-choice question adds to its row, from the likelihoods of its choices."""
    log_likelihoods = [log_likelihood for log_likelihood, _ in sample["filtered_resps"]]
    right = right_choice(task, sample["doc"])
    return {
        "chance": 1 / len(log_likelihoods),
        "margin": round(log_odds_margin(log_likelihoods, right), 5),
        "choice": int(np.argmax(log_likelihoods)),
    }


def _reply(
    benchmark: Benchmark, tokenizer: PreTrainedTokenizerBase, sample: Mapping[str, Any]
) -> dict[str, float]:
    """What a question with a written answer adds to its row."""
    chance = 0.0
    if benchmark.chain_of_thought:
        chance = guess_rate(sample["doc"])
    tokens = tokenizer(_written(sample), add_special_tokens=False).input_ids
    return {
        "chance": chance,
        "answered": float(sample["filtered_resps"][0] not in NO_ANSWER),
        "answer_tokens": len(tokens),
    }


def _written(sample: Mapping[str, Any]) -> str:
    """The reply that a model wrote, before filters."""
    return sample["resps"][0][0]
