"""lm-eval over our rows: its own tasks and the model that answers.

Prompts, few-shot format, filters and metrics stay lm-eval's own; LongBench's become its authors'.
"""

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import datasets
import lm_eval
import lm_eval.api.task
from lm_eval.tasks import TaskManager
from lm_eval.tasks._yaml_loader import load_yaml
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from harp_lib.measure import longbench
from harp_lib.measure.evaluation import LONGBENCH, Benchmark, at_hand, folder_of
from harp_lib.measure.fast import PrefixLM
from harp_lib.measure.registry import quiet


@contextmanager
def quiet_lm_eval() -> Iterator[None]:
    """One progress bar counts the cells: those of lm-eval and datasets, and their remarks, stay out of sight."""
    logger, bar = logging.getLogger("lm_eval"), lm_eval.api.task.tqdm
    before, shown = logger.level, datasets.is_progress_bar_enabled()
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


class Runner(PrefixLM):
    """lm-eval's model, without a progress bar for each task, and with LongBench's prompts and settings.

    ``context`` is what LongBench's prompts are cut to, in their middle; None for all other tasks. On LongBench the
    tokenizer puts a BOS token before a prompt if it likes; else only Gemma's does, as in lm-eval 0.4.7, which the paper
    used.
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
        super().__init__(pretrained=model, tokenizer=tokenizer, batch_size=batch_size, add_bos_token=bos)
        self.context = context
        self.cut_to: int | None = None  # what prompts were cut to, where the model reads less than ``context``

    def loglikelihood(self, requests: list, disable_tqdm: bool = True) -> list:
        return super().loglikelihood(requests, disable_tqdm=True)

    def generate_until(self, requests: list, disable_tqdm: bool = True) -> list[str]:
        if self.context is not None:  # a model with a short context reads what leaves room for the answer
            self.cut_to = min(self.context, self.max_length - requests[0].args[1]["max_gen_toks"])
            requests = [longbench.official_request(request, self.tokenizer, self.cut_to) for request in requests]
        return super().generate_until(requests, disable_tqdm=True)


@quiet_lm_eval()
@quiet()
def evaluate(runner: Runner, loaded: dict[str, Any], rows: int | None, shots_seed: int) -> dict[str, Any]:
    """What ``lm_eval.evaluate`` returns for loaded tasks; nothing is printed."""
    for task in loaded["tasks"].values():
        task.set_fewshot_seed(shots_seed)
    return lm_eval.evaluate(runner, loaded, limit=rows, bootstrap_iters=0)


@quiet_lm_eval()
def load_tasks(
    benchmark: Benchmark, source: str, settings: dict[str, Any], cache: str | Path, most: int | None = None
) -> dict[str, Any]:
    """A benchmark's tasks, at most so many of a group, as lm-eval loads them from its own files, with other settings.

    Replaced are where the rows come from (``source``: ``embedded``, ``hub`` or a folder), how many of them are examples
    (``shots``), whether these are the same for all questions (``same_shots``; else lm-eval draws them for each, as it
    pleases), and how long answers get (``new_tokens``; None is lm-eval's own limit).
    """
    rows, tasks = folder_of(source), []
    for name, official in at_hand(benchmark, source, most).items():
        task = load_yaml(official) | {"task": name, "num_fewshot": settings.get("shots", 0)}
        if name in LONGBENCH:
            task = longbench.official_task(benchmark, task)
        if settings.get("same_shots"):
            task.setdefault("fewshot_config", {"sampler": "first_n"})
        if settings.get("new_tokens"):
            task["generation_kwargs"] = task.get("generation_kwargs", {}) | {"max_gen_toks": settings["new_tokens"]}
        if rows is not None:
            files = {file.stem: str(file.resolve()) for file in sorted((rows / name).glob("*.jsonl"))}
            task |= {"dataset_path": "json", "dataset_name": None}
            task["dataset_kwargs"] = {"data_files": files, "cache_dir": str(cache)}
        tasks.append(task)
    return TaskManager(include_defaults=False).load(tasks)
