"""Scores of a model on the benchmarks, by lm-eval, over embedded, hub or local rows."""

import logging
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import datasets
import lm_eval
import lm_eval.api.task
from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from harp_lib.measure import longbench
from harp_lib.measure.benchmarks import LONGBENCH, Benchmark, rows_digest
from harp_lib.measure.likelihood import evaluating
from harp_lib.measure.overlays import write_overlays
from harp_lib.measure.wheels import quiet

SHOTS_SEED = 1234  # lm-eval's default, for seed 0 of ours


class Evaluator:
    """Runs benchmarks. Tasks are loaded once.

    Parameters
    ----------
    profile : dict
        From :func:`harp_lib.profiles.load_profile`.
    seed : int
        Chooses the few-shot examples.
    section : str
        Of the profile: ``evaluation``, or ``longbench`` for its tasks.
    """

    def __init__(self, profile: dict[str, Any], seed: int = 0, section: str = "evaluation") -> None:
        self.seed = seed
        self.datasets, self.settings = profile["datasets"], profile[section]
        self._folder = tempfile.TemporaryDirectory(prefix="harp-tasks-")
        self._loaded: dict[str, dict[str, Any]] = {}

    def inputs(self, benchmark: Benchmark) -> dict[str, Any]:
        """Everything but the model that a score depends on.

        Raises
        ------
        MissingTaskError
            If the data source has no rows of the benchmark.
        """
        source = self.datasets if self.datasets in ("embedded", "hub") else Path(self.datasets).name
        settings = self.settings["tasks"][benchmark.name]
        digest = rows_digest(benchmark, self.datasets, self.settings["subtasks"])
        context = {"context": self.settings["context"]} if benchmark.name in LONGBENCH else {}
        return {
            "task": benchmark.name,
            **settings,
            **context,
            "subtasks": self.settings["subtasks"] if benchmark.is_group else None,
            "source": source,
            "sha256": digest,
            "batch_size": self.settings["batch_size"],
            "shots_seed": SHOTS_SEED + self.seed,
            "lm_eval": lm_eval.__version__,
        }

    def evaluate(
        self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, benchmark: Benchmark
    ) -> dict[str, Any]:
        """Score a model on one benchmark.

        Returns
        -------
        dict
            ``scores`` (one for each question, of the metric that the paper reports), ``beside`` (the same of the
            metric kept beside it), ``subtasks`` (name → number of questions, in order), ``versions`` of lm-eval's
            tasks and, where answers are written, ``answers`` and ``answer_tokens``; on LongBench also
            ``prompt_tokens``, before prompts are cut, and ``context``, that they are cut to.
        """
        inputs = self.inputs(benchmark)
        with _quiet_lm_eval(), quiet(), evaluating(model):
            loaded = self._load(benchmark)
            for task in loaded["tasks"].values():
                task.set_fewshot_seed(inputs["shots_seed"])
            runner = _Runner(pretrained=model, tokenizer=tokenizer, batch_size=inputs["batch_size"])
            runner.context = inputs.get("context")
            found = lm_eval.evaluate(runner, loaded, limit=inputs["rows"], bootstrap_iters=0)
        samples = {name: _wanted(rows, benchmark.filter) for name, rows in found["samples"].items()}
        result = {
            "scores": [float(row[benchmark.metric]) for rows in samples.values() for row in rows],
            "subtasks": {name: len(rows) for name, rows in samples.items()},
            "versions": {name: found["versions"][name] for name in samples},
        }
        if benchmark.beside:
            result["beside"] = [float(row[benchmark.beside]) for rows in samples.values() for row in rows]
        if not benchmark.choices:
            answers = [row["resps"][0][0] for rows in samples.values() for row in rows]
            result["answers"] = answers
            result["answer_tokens"] = [len(tokenizer(text, add_special_tokens=False).input_ids) for text in answers]
        if "context" in inputs:
            prompts = (row["arguments"][0][0] for rows in samples.values() for row in rows)
            result["prompt_tokens"] = [len(tokenizer(prompt).input_ids) for prompt in prompts]
            result["context"] = runner.cut_to
        return result

    def _load(self, benchmark: Benchmark) -> dict[str, Any]:
        if benchmark.name not in self._loaded:
            folder = Path(self._folder.name) / benchmark.name
            settings = self.settings["tasks"][benchmark.name]
            write_overlays(benchmark, self.datasets, settings, folder, self.settings["subtasks"])
            manager = TaskManager(include_path=folder, include_defaults=False)  # all of lm-eval's take nine seconds
            self._loaded[benchmark.name] = manager.load(benchmark.name)
        return self._loaded[benchmark.name]


class _Runner(HFLM):
    """lm-eval's model, without a progress bar for each task, and with LongBench's prompts and settings."""

    context: int | None = None  # tokens that LongBench's prompts are to be cut to
    cut_to: int | None = None  # that they were cut to

    def loglikelihood(self, requests: list, disable_tqdm: bool = True) -> list:
        return super().loglikelihood(requests, disable_tqdm=True)

    def _loglikelihood_tokens(self, requests: list, disable_tqdm: bool = True, override_bs: int | None = None) -> list:
        return super()._loglikelihood_tokens(requests, disable_tqdm=True, override_bs=override_bs)

    def generate_until(self, requests: list, disable_tqdm: bool = True) -> list[str]:
        if self.context is not None:
            requests = [self._of_longbench(request) for request in requests]
        return super().generate_until(requests, disable_tqdm=True)

    def _of_longbench(self, request: Instance) -> Instance:
        """A request by the official protocol; a model with a short context reads what leaves room for the answer."""
        self.cut_to = min(self.context, self.max_length - request.args[1]["max_gen_toks"])
        return longbench.official_request(request, self.tokenizer, self.cut_to)


def _wanted(rows: list[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    """The rows of one of a task's filters, in the order of the questions."""
    return sorted((row for row in rows if row["filter"] == name), key=lambda row: row["doc_id"])


@contextmanager
def _quiet_lm_eval() -> Iterator[None]:
    """One progress bar counts the cells: those of lm-eval and datasets, and their remarks, stay out of sight."""
    logger, before, bar = logging.getLogger("lm_eval"), logging.getLogger("lm_eval").level, lm_eval.api.task.tqdm
    shown = datasets.is_progress_bar_enabled()
    logger.setLevel(logging.ERROR)
    datasets.disable_progress_bars()
    lm_eval.api.task.tqdm = lambda items, **_: items
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", module="fuzzywuzzy")  # its slow matcher is LongBench's
            yield
    finally:
        logger.setLevel(before)
        lm_eval.api.task.tqdm = bar
        if shown:
            datasets.enable_progress_bars()
