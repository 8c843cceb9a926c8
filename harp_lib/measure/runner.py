"""lm-eval over our rows: task files that include the official ones, and the model that answers.

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
import yaml
from lm_eval.tasks import TaskManager
from lm_eval.tasks._yaml_loader import load_yaml
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from harp_lib.measure import longbench
from harp_lib.measure.evaluation import LONGBENCH, Benchmark, at_hand, folder_of
from harp_lib.measure.fast import PrefixLM
from harp_lib.measure.registry import quiet


class Runner(PrefixLM):
    """lm-eval's model, without a progress bar for each task, and with LongBench's prompts and settings.

    ``context`` is what LongBench's prompts are cut to, in their middle; None for all other tasks. On LongBench the
    tokenizer puts a BOS token before a prompt if it likes; else only Gemma's does, as in lm-eval 0.4.7, which the paper
    used.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        batch_size: int = 1,
        context: int | None = None,
    ) -> None:
        bos = "gemma" in model.config.model_type if context is None else None
        with quiet_lm_eval():
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


def evaluate(runner: Runner, loaded: dict[str, Any], rows: int | None, shots_seed: int) -> dict[str, Any]:
    """What ``lm_eval.evaluate`` returns for loaded tasks; nothing is printed."""
    with quiet_lm_eval(), quiet():
        for task in loaded["tasks"].values():
            task.set_fewshot_seed(shots_seed)
        return lm_eval.evaluate(runner, loaded, limit=rows, bootstrap_iters=0)


def load_tasks(
    benchmark: Benchmark, source: str, settings: dict[str, Any], folder: Path, most: int | None = None
) -> dict[str, Any]:
    """A benchmark's tasks as lm-eval loads them, with the rows of ``source``; see :func:`write_overlays`."""
    with quiet_lm_eval():
        write_overlays(benchmark, source, settings, folder, most)
        manager = TaskManager(include_path=folder, include_defaults=False)  # all of lm-eval's take nine seconds
        return manager.load(benchmark.name)


def write_overlays(
    benchmark: Benchmark, source: str, settings: dict[str, Any], folder: Path, most: int | None = None
) -> list[str]:
    """Write a YAML file for each task of a benchmark at hand, and one for the group that holds them; return the names.

    The files are for ``lm_eval.tasks.TaskManager(include_path=folder)`` or ``lm_eval --include_path``. Each includes
    the official file and replaces where the rows come from (``source``: ``embedded``, ``hub`` or a folder), how many of
    them are examples (``shots``), whether these are the same for all questions (``same_shots``; else lm-eval draws them
    for each, as it pleases), and how long answers get (``new_tokens``; None is lm-eval's own limit).
    """
    folder.mkdir(parents=True, exist_ok=True)
    rows, tasks = folder_of(source), at_hand(benchmark, source, most)
    for name, official in tasks.items():
        overlay: dict[str, Any] = {"include": str(official), "task": name, "num_fewshot": settings.get("shots", 0)}
        inherited = load_yaml(official, resolve_func=False)  # an overlay replaces mappings whole
        if name in LONGBENCH:
            overlay |= _as_its_authors_do(benchmark, inherited)
        if settings.get("same_shots") and "fewshot_config" not in inherited:
            overlay["fewshot_config"] = {"sampler": "first_n"}
        if settings.get("new_tokens"):
            generation = overlay.get("generation_kwargs") or inherited.get("generation_kwargs", {})
            overlay["generation_kwargs"] = generation | {"max_gen_toks": settings["new_tokens"]}
        if rows is not None:
            files = {file.stem: str(file.resolve()) for file in sorted((rows / name).glob("*.jsonl"))}
            overlay |= {"dataset_path": "json", "dataset_name": None}
            overlay["dataset_kwargs"] = {"data_files": files, "cache_dir": str(folder / "cache")}
        _write(folder / f"{name}.yaml", overlay)
    if benchmark.is_group:
        metrics = [metric for metric in (benchmark.metric, benchmark.beside) if metric]
        group = {"group": benchmark.name, "task": list(tasks), "metadata": {"version": 1.0}}
        group["aggregate_metric_list"] = [
            {"metric": metric, "filter_list": [benchmark.filter], "weight_by_size": True} for metric in metrics
        ]
        _write(folder / f"_{benchmark.name}.yaml", group)
    return list(tasks)


def _as_its_authors_do(benchmark: Benchmark, official: dict[str, Any]) -> dict[str, Any]:
    """What an overlay of LongBench replaces: the prompt, the stop strings, of which there are none, and the metric."""
    return {
        "doc_to_text": longbench.official_prompt(benchmark.name, official["doc_to_text"]),
        "generation_kwargs": official["generation_kwargs"] | {"until": []},
        "process_results": _Function(f"{longbench.__name__}.{benchmark.scorer}"),
        "metric_list": [{"metric": "score", "aggregation": "mean", "higher_is_better": True}],
    }


class _Function(str):
    """The name of a function, which lm-eval imports."""


class _Dumper(yaml.SafeDumper):
    """Writes functions as lm-eval reads them."""


_Dumper.add_representer(_Function, lambda dumper, name: dumper.represent_scalar("!function", name))


def _write(file: Path, content: dict[str, Any]) -> None:
    file.write_text(yaml.dump(content, Dumper=_Dumper, sort_keys=False), encoding="utf-8")


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
