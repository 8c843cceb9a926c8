"""Task files for lm-eval: the official ones, but for where the rows come from and how many of them are examples.

LongBench's also differ in what lm-eval does not do as its authors do.
"""

from pathlib import Path
from typing import Any

import yaml

from harp_lib.measure import longbench
from harp_lib.measure.benchmarks import LONGBENCH, Benchmark, at_hand, folder_of


def write_overlays(
    benchmark: Benchmark, datasets: str, settings: dict[str, Any], folder: Path, most: int | None = None
) -> list[str]:
    """Write one YAML file for each task of a benchmark at hand, and one for the group that holds them.

    The files are for ``lm_eval.tasks.TaskManager(include_path=folder)`` or ``lm_eval --include_path``. Each includes
    the official file, so that prompts, few-shot format, filters and metrics stay lm-eval's own; those of LongBench
    become its authors', with metrics of :mod:`harp_lib.measure.longbench`.

    Parameters
    ----------
    benchmark : Benchmark
    datasets : str
        ``embedded``, ``hub`` or a folder with ``<lm-eval task>/<split>.jsonl``.
    settings : dict
        ``shots``, none if there are none; ``new_tokens``, or None for lm-eval's own limit.
    folder : Path
        Takes the files, and the cache of rows that were read.
    most : int, optional
        Take only the first few tasks of a group.

    Returns
    -------
    list of str
        Names of the tasks.
    """
    folder.mkdir(parents=True, exist_ok=True)
    source = folder_of(datasets)
    tasks = at_hand(benchmark, datasets, most)
    for name, official in tasks.items():
        overlay: dict[str, Any] = {"include": str(official), "task": name, "num_fewshot": settings.get("shots", 0)}
        if name in LONGBENCH:
            overlay |= _as_its_authors_do(name, official)
        if settings.get("new_tokens"):
            inherited = overlay.get("generation_kwargs") or _inherited(official, "generation_kwargs")
            overlay["generation_kwargs"] = inherited | {"max_gen_toks": settings["new_tokens"]}
        if source is not None:
            files = {file.stem: str(file.resolve()) for file in sorted((source / name).glob("*.jsonl"))}
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


class _Function(str):
    """The name of a function, which lm-eval imports."""


class _Dumper(yaml.SafeDumper):
    """Writes functions as lm-eval reads them."""


_Dumper.add_representer(_Function, lambda dumper, name: dumper.represent_scalar("!function", name))


def _as_its_authors_do(name: str, official: Path) -> dict[str, Any]:
    """What an overlay of LongBench replaces: the prompt, the stop strings, of which there are none, and the metric."""
    return {
        "doc_to_text": longbench.official_prompt(name, _inherited(official, "doc_to_text")),
        "generation_kwargs": _inherited(official, "generation_kwargs") | {"until": []},
        "process_results": _Function(f"{longbench.__name__}.{longbench.METRICS[name]}"),
        "metric_list": [{"metric": "score", "aggregation": "mean", "higher_is_better": True}],
    }


def _write(file: Path, content: dict[str, Any]) -> None:
    file.write_text(yaml.dump(content, Dumper=_Dumper, sort_keys=False), encoding="utf-8")


def _inherited(official: Path, key: str) -> Any:
    """A value of an official file or of what it includes: an overlay replaces mappings whole."""
    from lm_eval.tasks._yaml_loader import load_yaml

    return load_yaml(official, resolve_func=False).get(key, {})
