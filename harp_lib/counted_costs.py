"""Seconds that cells of the paper profile take on one GPU like the paper's: operations and bytes, counted.

An order of magnitude, from three numbers and what the profile asks for:

* operations per second: what LLaMA3.1-8B takes to read 65,536 tokens, divided by the seconds that the paper prints;
* bytes per second: the data sheet's bandwidth of its GPU, of which decoding reaches ``DECODING_SHARE``, an assumption;
* the lengths of questions in ``data/costs/question_tokens.csv``, which says how they were measured.

Every method is counted as the dense model, every written answer as long as it may get, every text of the α search as
WikiText-2's test pages, and every benchmark whole. A pass takes no less time than one new token.
"""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import pandas as pd
import torch
from transformers import AutoConfig

from harp_lib import paths
from harp_lib.accounting import kv_bytes_per_token, paper_configs, parameters, stock_model
from harp_lib.expected_cells import expected_cells, model_config
from harp_lib.experiments.ablation_study import GAIN, SHARED, SINGLE, attribution
from harp_lib.experiments.efficiency_study import CACHE_MOVES
from harp_lib.experiments.efficiency_variants import VARIANTS
from harp_lib.accounting import prefill_flops
from harp_lib.measure.benchmarks import ALL_BENCHMARKS
from harp_lib.methods.alpha_search import ALPHA_GRID, count_passes
from harp_lib.profiles import num_pruned_layers
from harp_lib.published import published

BANDWIDTH = 3.35e12  # bytes per second: NVIDIA's data sheet of the H100 with 80 GB of HBM3
DECODING_SHARE = 0.2  # of it that decoding is taken to reach: between two small kernels the GPU waits for Python
PASSES = {"wanda-sp": 2, "flap": 1, "harp+flap": 1, "llm-pruner": 4, "hessian": 4, "similarity": 1}
"""Times that a method reads its calibration samples: 4 are forward, forward again and backward, which counts twice."""
LARGE = "meta-llama/Llama-3.1-70B"  # whose config is not in ``data/configs``
OF_LARGE = {"hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80, "num_attention_heads": 64}
"""In what it differs from Llama-3.1-8B: "The Llama 3 Herd of Models" (2024), Table 3."""


@functools.cache
def question_tokens() -> pd.DataFrame:
    """``data/costs/question_tokens.csv``, by task."""
    return pd.read_csv(paths.DATA / "costs" / "question_tokens.csv", index_col="task")


@functools.cache
def flops_per_second() -> float:
    """Of LLaMA3.1-8B reading 65,536 tokens, counted under the causal mask, in the seconds that the paper prints."""
    printed = published("efficiency").query("method == 'dense' and metric == 'seconds'").set_index("task")["value"]
    return prefill_flops(paper_configs()["LLaMA3.1-8B"], None, 65536, causal=True) / printed["65536 tokens"]


@functools.cache
def gpu_model(model: str) -> "GpuModel | None":
    """A model to count with; None where its config is not at hand."""
    config = model_config(model)
    if model == LARGE:
        config = model_config("meta-llama/Llama-3.1-8B") | OF_LARGE
    try:
        return config and GpuModel(config)
    except ValueError:  # an architecture that is not counted
        return None


class GpuModel:
    """A dense model in bfloat16 on one GPU, as large as it may be.

    Parameters
    ----------
    config : dict
        What ``config.json`` says.
    """

    def __init__(self, config: dict[str, Any]) -> None:
        self.config = AutoConfig.for_model(**config)
        self.num_layers = self.config.num_hidden_layers
        self.weight_bytes = 2 * parameters(self.config)
        self.cache_bytes = kv_bytes_per_token(self.config, dtype=torch.bfloat16)  # per token
        self.head_flops = 2 * stock_model(self.config).get_output_embeddings().weight.numel()  # per token
        self._flops = functools.cache(lambda tokens: prefill_flops(self.config, None, tokens, causal=True))
        self._flops(1)  # or a ValueError

    def layers(self, tokens: int) -> float:
        """Seconds of all decoder layers over one text."""
        return (self._flops(tokens) - self.head_flops) / flops_per_second()

    def head(self, tokens: int) -> float:
        """Seconds of the logits of so many tokens."""
        return tokens * self.head_flops / flops_per_second()

    def token(self, context: float, texts: int = 1) -> float:
        """Seconds of one new token of each of ``texts`` texts: its weights and cache move once and three times."""
        moved = self.weight_bytes + CACHE_MOVES * self.cache_bytes * context * texts
        return moved / (DECODING_SHARE * BANDWIDTH)

    def reading(self, tokens: int, texts: int = 1, predicted: int = 1) -> float:
        """Seconds of one pass over ``texts`` texts together, with the logits of ``predicted`` tokens of each."""
        return max(texts * (self.layers(tokens) + self.head(predicted)), self.token(0))

    def writing(self, tokens: int, context: int, texts: int = 1) -> float:
        """Seconds of ``tokens`` new tokens after ``context`` others."""
        return tokens * self.token(context + tokens / 2, texts)


class Study(NamedTuple):
    """What one model is to do.

    Attributes
    ----------
    profile : dict
        From :func:`harp_lib.profiles.load_profile`.
    gpu : GpuModel
    pruned : int
        Layers.
    """

    profile: dict[str, Any]
    gpu: GpuModel
    pruned: int


def counted_seconds(profile: dict[str, Any], experiment: str, model: str) -> dict[tuple[str, str], float]:
    """Seconds by method and task, of the cells that can be counted.

    What notebooks 01 and 02 observe inside the layers is not: its time goes into eigenvalues in double precision.
    """
    gpu = gpu_model(model)
    if gpu is None or experiment not in _COUNTED:
        return {}
    study = Study(profile, gpu, num_pruned_layers(profile, model, gpu.num_layers))
    found = {cell: _COUNTED[experiment](study, *cell) for cell in expected_cells(profile, experiment, model)}
    return {cell: float(seconds) for cell, seconds in found.items() if seconds is not None}


def searched_text(profile: dict[str, Any]) -> tuple[int, int]:
    """Documents of a text of the α search, and tokens of each."""
    settings, pages = profile["alpha_search"], question_tokens().loc["wikitext"]
    return settings["documents"] or int(pages["questions"]), settings["tokens"] or round(pages["tokens_per_text"])


def literal_search_seconds(profile: dict[str, Any], model: str) -> float:
    """Seconds of the α search as Algorithm 1 says: the whole model over the whole text for each candidate."""
    gpu = gpu_model(model)
    return _literal_search(Study(profile, gpu, num_pruned_layers(profile, model, gpu.num_layers)))


def _literal_search(study: Study) -> float:
    return study.pruned * len(ALPHA_GRID) * _text(study)


def _text(study: Study) -> float:
    """Seconds of one pass over a text, every token predicted."""
    documents, tokens = searched_text(study.profile)
    return documents * (study.gpu.layers(tokens) + study.gpu.head(tokens))


def _search(study: Study) -> float:
    documents, tokens = searched_text(study.profile)
    _, passes = count_passes(study.gpu.num_layers, study.pruned, len(ALPHA_GRID))
    heads = study.pruned * len(ALPHA_GRID) * study.gpu.head(tokens)
    return documents * (passes / study.gpu.num_layers * study.gpu.layers(tokens) + heads)


def _norm_change(study: Study, method: str, task: str) -> float | None:
    return _text(study) if task == "reading" else None


def _alpha_search(study: Study, method: str, task: str) -> float:
    if task.startswith("search-"):
        return _search(study)
    if task == "cost":
        share = study.profile["alpha_search"]["literal_documents"] / searched_text(study.profile)[0]
        return share * (_search(study) + _literal_search(study))
    return _text(study)


def _baselines(study: Study, method: str, task: str) -> float:
    settings = study.profile["baselines"]
    documents = searched_text(study.profile)[0]
    if task.startswith("range-"):
        share = (settings["tuning_documents"] or documents) / documents
        return share * _text(study) + (_calibration(study, method) if method == "wanda-sp" else 0.0)
    if task == "plan":
        return _calibration(study, method)
    if task == "writing":
        length = settings["written_tokens"]
        return study.gpu.reading(length, documents) + study.gpu.writing(length, length, documents)
    return _text(study)


def _calibration(study: Study, method: str, size: tuple[int, int] | None = None) -> float:
    samples, tokens = size or study.profile["baselines"]["calibration"].get(method, (0, 1))
    return PASSES.get(method, 0) * samples * study.gpu.layers(tokens)


def _scores(section: str) -> Callable[[Study, str, str], float]:
    def seconds(study: Study, method: str, task: str) -> float:
        settings = study.profile[section]["tasks"][task]
        row, batch = question_tokens().loc[task], study.profile[section]["batch_size"]
        questions, tokens = int(row["questions"]), round(row["tokens_per_text"])
        if settings["rows"]:
            questions = min(questions, settings["rows"] * len(ALL_BENCHMARKS[task].subtasks()))
        if ALL_BENCHMARKS[task].choices:
            return math.ceil(questions * row["texts_per_question"] / batch) * study.gpu.reading(tokens, batch, tokens)
        answer = settings["new_tokens"] or int(row["answer_tokens"])
        each = study.gpu.reading(tokens, batch) + study.gpu.writing(answer, tokens, batch)
        return math.ceil(questions / batch) * each

    return seconds


def _ablations(study: Study, method: str, task: str) -> float:
    settings, total = study.profile["ablations"], study.gpu.num_layers
    if task == "selection":
        return _calibration(study, method, settings["calibration"])
    if method == GAIN:
        tokens = settings["gain"][1] or searched_text(study.profile)[1]
        plans = len(attribution(dict.fromkeys(range(study.pruned), 1.0)))
        passes = 2 + plans * study.pruned / total  # dense, up to the pruned layers, these under each plan
        return passes * study.gpu.layers(tokens) + (plans + 1) * study.gpu.head(tokens)
    if method == SINGLE:
        tokens = settings["single_layer"][1] or searched_text(study.profile)[1]
        passes = 2 + (total + 1)  # dense, going up, and on average half of the layers for each layer and alpha
        return passes * study.gpu.layers(tokens) + (2 * total + 1) * study.gpu.head(tokens)
    if method in SHARED:
        return 0.0  # copies of notebook 05's
    return _scores("evaluation")(study, method, task)


def _efficiency(study: Study, method: str, task: str) -> float:
    settings, gpu = study.profile["efficiency"], study.gpu
    if task == "counted":
        return 0.0
    kind, tokens = task.split("-")[0], int(task.split("-")[1])
    if kind == "decode":
        runs = len(VARIANTS) * (settings["decode"]["repetitions"] + 1)
        return runs * gpu.writing(settings["decode"]["steps"], tokens)
    variants = len(VARIANTS) if kind == "prefill" else 2
    return variants * (settings["prefill"][tokens] + 1) * gpu.reading(tokens)


_COUNTED = {
    "norm_change": _norm_change,
    "alpha_search": _alpha_search,
    "baselines": _baselines,
    "main_tables": _scores("evaluation"),
    "ablations": _ablations,
    "longbench": _scores("longbench"),
    "efficiency": _efficiency,
}
