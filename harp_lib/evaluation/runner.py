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

from harp_lib.config import folder_of
from harp_lib.evaluation import longbench
from harp_lib.evaluation.benchmarks import LONGBENCH, Benchmark, Subtasks, available_tasks
from harp_lib.evaluation.likelihood import FULL_STOP, reference_answer
from harp_lib.models.registry import quiet
from harp_lib.prefix_lm import PrefixLM


@contextmanager
def quiet_lm_eval() -> Iterator[None]:
    """Context in which lm-eval and its packages print nothing: one bar counts our cells."""
    logger = logging.getLogger("lm_eval")
    level = logger.level
    progress_bar = lm_eval.api.task.tqdm
    datasets_show_bars = datasets.is_progress_bar_enabled()
    logger.setLevel(logging.ERROR)
    datasets.disable_progress_bars()
    lm_eval.api.task.tqdm = lambda items, **options: items  # no bar
    try:
        with quiet(), warnings.catch_warnings():
            # LongBench wants the slow matcher that this module warns of.
            warnings.filterwarnings("ignore", module="fuzzywuzzy")
            yield
    finally:
        logger.setLevel(level)
        lm_eval.api.task.tqdm = progress_bar
        if datasets_show_bars:
            datasets.enable_progress_bars()


class Runner(PrefixLM):
    """lm-eval's model without a progress bar for each task, and with LongBench's own prompts.

    On LongBench a prompt begins with a BOS token if the tokenizer puts one there. On all other
    tasks only Gemma's does, as in lm-eval 0.4.7, which the paper used.

    LongBench's prompts are cut in their middle to ``context`` tokens, which is None on all other
    tasks. ``cut_to`` is what they were cut to: less than ``context`` if the model reads less.
    """

    @quiet_lm_eval()
    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        batch_size: int = 1,
        context: int | None = None,
    ) -> None:
        add_bos_token = None  # as the tokenizer does
        if context is None:
            add_bos_token = "gemma" in model.config.model_type
        super().__init__(
            pretrained=model,
            tokenizer=tokenizer,
            batch_size=batch_size,
            add_bos_token=add_bos_token,
            softmax_dtype="float32",  # by default the model's: bfloat16 has 8 bits
        )
        self.context = context
        self.cut_to: int | None = None

    def loglikelihood(self, requests: list, disable_tqdm: bool = True) -> list:
        return super().loglikelihood(requests, disable_tqdm=True)

    def generate_until(self, requests: list, disable_tqdm: bool = True) -> list[str]:
        """As in lm-eval, but that an answer has the task's limit of tokens, and no other.

        A model's own ``max_new_tokens`` (2,048 of Qwen2-7B) would take its place in transformers.
        """
        settings = self.model.generation_config
        own_limit = settings.max_new_tokens
        settings.max_new_tokens = None
        try:
            return super().generate_until(self.official_requests(requests), disable_tqdm=True)
        finally:
            settings.max_new_tokens = own_limit

    def answer_log_likelihoods(self, questions: list["ReferenceAnswer"]) -> list[float]:
        """Log-likelihood of each reference answer after its prompt, in nats.

        A prompt's tokens are those after which an answer would be written. lm-eval's
        ``loglikelihood`` would count white space at its end to the answer, or lose it where a
        tokenizer joins it to what stands before.
        """
        if not questions:
            return []
        requests = []
        for question in questions:
            prompt = self.tok_encode(question.prompt)
            whole = self.tok_encode(question.prompt + question.answer)
            if whole[: len(prompt)] == prompt and len(whole) > len(prompt):
                answer = whole[len(prompt) :]
            else:
                answer = self.tok_encode(question.answer, add_special_tokens=False)
            requests.append(((question.prompt, question.answer), prompt, answer))
        answers = self._loglikelihood_tokens(requests, disable_tqdm=True)
        return [log_likelihood for log_likelihood, _ in answers]

    def official_requests(self, requests: list) -> list:
        """LongBench's generation requests as its authors make them; those of other tasks as is."""
        if self.context is None:
            return requests
        # A model with a short context reads what leaves room for the answer.
        new_tokens = requests[0].args[1]["max_gen_toks"]
        self.cut_to = min(self.context, self.max_length - new_tokens)
        return [
            longbench.official_request(request, self.tokenizer, self.cut_to) for request in requests
        ]


@quiet_lm_eval()
def evaluate(
    runner: Runner, loaded: dict[str, Any], limit: int | None, shots_seed: int
) -> dict[str, Any]:
    """What ``lm_eval.evaluate`` returns for loaded tasks; nothing is printed."""
    for task in loaded["tasks"].values():
        task.set_fewshot_seed(shots_seed)
    return lm_eval.evaluate(runner, loaded, limit=limit, bootstrap_iters=0)


class ReferenceAnswer(NamedTuple):
    """A question's prompt, and the reference answer where a model would write its own."""

    subtask: str
    number: int  # of the question, in its subtask
    prompt: str
    reference: str

    @property
    def answer(self) -> str:
        """The reference after a blank, or without one where the prompt ends in white space."""
        if self.prompt[-1:].isspace():
            return self.reference
        return f" {self.reference}"

    def after(self, reasoning: str) -> "ReferenceAnswer":
        """The same as the end of a worked example, whose chain of thought ends the prompt."""
        return self._replace(prompt=self.prompt + reasoning, reference=self.reference + FULL_STOP)


@quiet_lm_eval()
def reference_answers(
    runner: Runner, loaded: dict[str, Any], benchmark: Benchmark, limit: int | None, shots_seed: int
) -> list[ReferenceAnswer]:
    """The reference answer of each question, after the very prompt that a model would answer."""
    questions = []
    for subtask, task in loaded["tasks"].items():
        task.set_fewshot_seed(shots_seed)
        task.build_all_requests(limit=limit, rank=0, world_size=1)
        for request in runner.official_requests(task.instances):
            prompt = request.args[0]
            reference = reference_answer(request.doc, benchmark.reference)
            questions.append(ReferenceAnswer(subtask, request.doc_id, prompt, reference))
    return questions


@quiet_lm_eval()
def load_tasks(
    benchmark: Benchmark,
    source: str,
    settings: dict[str, Any],
    cache: str | Path,
    subtasks: Subtasks = None,
) -> dict[str, Any]:
    """A benchmark's tasks, as lm-eval loads them from its own files, with some settings replaced.

    Parameters
    ----------
    benchmark : Benchmark
    source : str
        Where the rows come from: ``embedded``, ``hub`` or a folder.
    settings : dict
        ``shots``: how many examples stand before a question, by default none. ``same_shots``:
        whether these are the first ones for all questions; lm-eval draws them for each question
        otherwise, unless the task's file says how. ``new_tokens``: how long answers get; None is
        lm-eval's own limit.
    cache : str or Path
        Folder for the datasets' copies of local rows.
    subtasks : int or list of str, optional
        As in :func:`~harp_lib.evaluation.benchmarks.available_tasks`.

    Returns
    -------
    dict
        What ``lm_eval.evaluate`` takes; ``tasks`` holds the tasks by name.
    """
    folder = folder_of(source)
    tasks = []
    for name, official_file in available_tasks(benchmark, source, subtasks).items():
        task = load_yaml(official_file)
        task["task"] = name
        task["num_fewshot"] = settings.get("shots", 0)
        if name in LONGBENCH:
            task = longbench.official_task(benchmark, task)
        if settings.get("same_shots"):
            task.setdefault("fewshot_config", {"sampler": "first_n"})
        if settings.get("new_tokens"):
            generation = task.get("generation_kwargs", {})
            task["generation_kwargs"] = {**generation, "max_gen_toks": settings["new_tokens"]}
        if folder is not None:
            files = sorted((folder / name).glob("*.jsonl"))
            task["dataset_path"] = "json"
            task["dataset_name"] = None
            task["dataset_kwargs"] = {
                "data_files": {file.stem: str(file.resolve()) for file in files},
                "cache_dir": str(cache),
            }
        tasks.append(task)
    return TaskManager(include_defaults=False).load(tasks)
