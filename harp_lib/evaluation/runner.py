"""lm-eval over our rows: its own tasks and the model that answers.

Prompts, few-shot format, filters and metrics stay lm-eval's own; LongBench's become its authors'.
"""

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import datasets
import lm_eval
import lm_eval.api.task
from lm_eval.tasks import TaskManager
from lm_eval.tasks._yaml_loader import load_yaml
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from harp_lib.evaluation import longbench
from harp_lib.evaluation.benchmarks import LONGBENCH, Benchmark, Subtasks, available_tasks, folder_of
from harp_lib.evaluation.likelihood import reference_answer
from harp_lib.evaluation.prefix_lm import PrefixLM
from harp_lib.models.registry import quiet


@contextmanager
def quiet_lm_eval() -> Iterator[None]:
    """One progress bar counts the cells: those of lm-eval and datasets, and their remarks, stay out
    of sight.
    """
    logger, bar = logging.getLogger("lm_eval"), lm_eval.api.task.tqdm
    before, shown = logger.level, datasets.is_progress_bar_enabled()
    logger.setLevel(logging.ERROR)
    datasets.disable_progress_bars()
    lm_eval.api.task.tqdm = lambda items, **_: items
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings(
                "ignore", module="fuzzywuzzy"
            )  # its slow matcher is LongBench's
            yield
    finally:
        logger.setLevel(before)
        lm_eval.api.task.tqdm = bar
        if shown:
            datasets.enable_progress_bars()


class Runner(PrefixLM):
    """lm-eval's model, without a progress bar for each task, and with LongBench's prompts and
    settings.

    ``context`` is what LongBench's prompts are cut to, in their middle; None for all other tasks.
    On LongBench the tokenizer puts a BOS token before a prompt if it likes; else only Gemma's does,
    as in lm-eval 0.4.7, which the paper used.
    """

    @quiet_lm_eval()
    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        batch_size: int = 1,
        context: int | None = None,
    ) -> None:
        bos = "gemma" in model.config.model_type if context is None else None
        super().__init__(
            pretrained=model, tokenizer=tokenizer, batch_size=batch_size, add_bos_token=bos
        )
        self.context = context
        self.cut_to: int | None = (
            None  # what prompts were cut to, where the model reads less than ``context``
        )

    def loglikelihood(self, requests: list, disable_tqdm: bool = True) -> list:
        return super().loglikelihood(requests, disable_tqdm=True)

    def generate_until(self, requests: list, disable_tqdm: bool = True) -> list[str]:
        return super().generate_until(self.officially(requests), disable_tqdm=True)

    def answer_log_likelihoods(self, asked: list["ReferenceAnswer"]) -> list[float]:
        """Log-likelihood of each answer after its prompt, in nats.

        A prompt's tokens are those after which an answer would be written. lm-eval's
        ``loglikelihood`` would count white space at its end to the answer, or lose it where a
        tokenizer joins it to what stands before.
        """
        requests = []
        for question in asked:
            prompt = self.tok_encode(question.prompt)
            whole = self.tok_encode(question.prompt + question.answer)
            if whole[: len(prompt)] == prompt and len(whole) > len(prompt):
                answer = whole[len(prompt) :]
            else:
                answer = self.tok_encode(question.answer, add_special_tokens=False)
            requests.append(((question.prompt, question.answer), prompt, answer))
        answers = self._loglikelihood_tokens(requests, disable_tqdm=True) if requests else []
        return [log_likelihood for log_likelihood, _ in answers]

    def officially(self, requests: list) -> list:
        """LongBench's generation requests as its authors make them; those of other tasks as they
        are.
        """
        if self.context is None:
            return requests
        # A model with a short context reads what leaves room for the answer.
        self.cut_to = min(self.context, self.max_length - requests[0].args[1]["max_gen_toks"])
        return [
            longbench.official_request(request, self.tokenizer, self.cut_to) for request in requests
        ]


@quiet_lm_eval()
@quiet()
def evaluate(
    runner: Runner, loaded: dict[str, Any], rows: int | None, shots_seed: int
) -> dict[str, Any]:
    """What ``lm_eval.evaluate`` returns for loaded tasks; nothing is printed."""
    for task in loaded["tasks"].values():
        task.set_fewshot_seed(shots_seed)
    return lm_eval.evaluate(runner, loaded, limit=rows, bootstrap_iters=0)


class ReferenceAnswer(NamedTuple):
    """A prompt, and the reference answer in the place where a model would write its own."""

    subtask: str
    number: int  # of the question, in its subtask
    prompt: str
    reference: str

    @property
    def answer(self) -> str:
        """The reference as it follows the prompt: after a blank, unless the prompt ends in white
        space.
        """
        return self.reference if self.prompt[-1:].isspace() else f" {self.reference}"

    def after(self, reasoning: str) -> "ReferenceAnswer":
        """The same with a chain of thought at the end of the prompt."""
        return self._replace(prompt=self.prompt + reasoning)


@quiet_lm_eval()
@quiet()
def reference_answers(
    runner: Runner, loaded: dict[str, Any], benchmark: Benchmark, rows: int | None, shots_seed: int
) -> list[ReferenceAnswer]:
    """The reference answer of each question, after the very prompt that a model would answer."""
    found = []
    for subtask, task in loaded["tasks"].items():
        task.set_fewshot_seed(shots_seed)
        task.build_all_requests(limit=rows, rank=0, world_size=1)
        for request in runner.officially(task.instances):
            reference = reference_answer(request.doc, benchmark.reference)
            found.append(ReferenceAnswer(subtask, request.doc_id, request.args[0], reference))
    return found


@quiet_lm_eval()
def load_tasks(
    benchmark: Benchmark,
    source: str,
    settings: dict[str, Any],
    cache: str | Path,
    subtasks: Subtasks = None,
) -> dict[str, Any]:
    """A benchmark's tasks, as lm-eval loads them from its own files, with other settings.

    Replaced are where the rows come from (``source``: ``embedded``, ``hub`` or a folder), how many
    of them are examples (``shots``), whether these are the same for all questions (``same_shots``;
    else lm-eval draws them for each, as it pleases), and how long answers get (``new_tokens``; None
    is lm-eval's own limit).
    """
    rows, tasks = folder_of(source), []
    for name, official in available_tasks(benchmark, source, subtasks).items():
        task = load_yaml(official) | {"task": name, "num_fewshot": settings.get("shots", 0)}
        if name in LONGBENCH:
            task = longbench.official_task(benchmark, task)
        if settings.get("same_shots"):
            task.setdefault("fewshot_config", {"sampler": "first_n"})
        if settings.get("new_tokens"):
            task["generation_kwargs"] = task.get("generation_kwargs", {}) | {
                "max_gen_toks": settings["new_tokens"]
            }
        if rows is not None:
            files = {
                file.stem: str(file.resolve()) for file in sorted((rows / name).glob("*.jsonl"))
            }
            task |= {"dataset_path": "json", "dataset_name": None}
            task["dataset_kwargs"] = {"data_files": files, "cache_dir": str(cache)}
        tasks.append(task)
    return TaskManager(include_defaults=False).load(tasks)
