"""Count how long the notebooks of the profile ``paper`` take, and write ``paper_hours.csv``.

The hours are an order of magnitude for one GPU like the paper's (H100, 80 GB). They follow from
what the profile asks for and from three numbers:

* operations per second: what LLaMA3.1-8B needs to read 65,536 tokens, divided by the seconds that
  the paper prints;
* bytes per second: the bandwidth in that GPU's data sheet, of which decoding is assumed to reach
  ``DECODING_SHARE``;
* the lengths of questions in ``question_tokens.csv``, in tokens. They were counted on lm-eval's own
  prompts of real rows (``rows_measured``) with the paper's examples, and on LongBench's official
  prompts, cut in the middle. The tokenizer was SmolLM2's, which makes somewhat more tokens of a
  text than the tokenizers of the paper's models. ``questions`` is how many the benchmark has.

Every method is counted as the dense model, every written answer as long as it may get, and every
text of the α search as WikiText-2's test pages. Notebooks 01 and 02 are not counted, because their
time goes into eigenvalues in double precision. Notebook 09 and the likelihoods of 05 and 07 (one
pass for each reference answer) are not counted either, because they go beyond the paper.
"""

import json
import math
from collections import Counter
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from transformers import AutoConfig

from harp_lib import config
from harp_lib.accounting import (
    kv_bytes,
    paper_configs,
    parameters,
    prefill_flops,
    stock_model,
)
from harp_lib.evaluation.benchmarks import BENCHMARKS
from harp_lib.experiments.plans import OTHER_READINGS
from harp_lib.methods.alpha_search import ALPHA_GRID, count_passes
from harp_lib.names import BASELINES, CATALOGUE, METHOD_TITLES

HERE = Path(__file__).parent
NOTEBOOKS = ("03", "04", "05", "06", "07", "08")

BANDWIDTH = 3.35e12  # bytes per second: NVIDIA's data sheet of the H100 with 80 GB of HBM3
# Of this bandwidth; between two small kernels the GPU waits for Python.
DECODING_SHARE = 0.2
# How often all keys and values move for each new token: read and written for a longer copy, and
# read by attention.
CACHE_MOVES = 3

CORPORA = 2  # of the α search
ALPHA_PLANS = 5  # of notebook 03: α = 1, α = 0, α searched on each corpus, and the dense model
SPLITS = 2  # of the text of notebook 03
SCORED_PLANS = len(METHOD_TITLES)  # every method, harp+refit too, and the dense model
READ_PLANS = SCORED_PLANS + len(OTHER_READINGS)  # notebook 04 takes their perplexities
# Baselines that are tuned by the number of groups per layer.
EQUAL_PARTS = sum(not CATALOGUE[name].one_threshold for name in BASELINES)
# How often a baseline reads its samples.
CALIBRATION_PASSES = {"wanda-sp": 2, "llm-pruner": 4, "flap": 1, "harp+flap": 1}
STRATEGIES = 4  # that notebook 06 evaluates on choices, besides the dense model and HARP
VARIANTS = 5  # timed in notebook 08

# Its config is not in data/configs; its shape is in Table 3 of "The Llama 3 Herd of Models".
LARGE_MODEL = "meta-llama/Llama-3.1-70B"
LARGE_SHAPE = {
    "hidden_size": 8192,
    "intermediate_size": 28672,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
}
SMALL_MODEL = "meta-llama/Llama-3.1-8B"  # of the same family

QUESTIONS = pd.read_csv(HERE / "question_tokens.csv", index_col="task")
PRINTED_SECONDS = (
    pd.read_csv(config.PAPER / "efficiency.csv")
    .query("method == 'dense' and quantity == 'seconds'")
    .set_index("length")["value"]
)
FLOPS_PER_SECOND = (
    prefill_flops(paper_configs()["LLaMA3.1-8B"], None, 65536, causal=True) / PRINTED_SECONDS[65536]
)


class Gpu:
    """Seconds of a dense model in bfloat16 on one GPU whose memory any model fits."""

    def __init__(self, model: str) -> None:
        self.config = _config_of(model)
        self.layers = self.config.num_hidden_layers
        self.head_flops = 2 * stock_model(self.config).get_output_embeddings().weight.numel()
        self.weight_bytes = 2 * parameters(self.config)
        self.cache_bytes = kv_bytes(self.config, dtype=torch.bfloat16)

    def body(self, tokens: int) -> float:
        """All decoder layers over one text."""
        flops = prefill_flops(self.config, None, tokens, causal=True) - self.head_flops
        return flops / FLOPS_PER_SECOND

    def read(self, tokens: int, texts: int = 1, predicted: int = 1) -> float:
        """One pass over ``texts`` texts, with the logits of ``predicted`` tokens of each."""
        computing = texts * (self.body(tokens) + predicted * self.head_flops / FLOPS_PER_SECOND)
        moving_weights = self.write(1, 0)
        return max(computing, moving_weights)

    def write(self, tokens: int, context: int, texts: int = 1) -> float:
        """``tokens`` new tokens after ``context`` others; for each, the weights move once."""
        cached_tokens = context + tokens / 2  # on average
        moved_bytes = self.weight_bytes + CACHE_MOVES * self.cache_bytes * cached_tokens * texts
        return tokens * moved_bytes / (DECODING_SHARE * BANDWIDTH)

    def answer(self, task: str, batch_size: int) -> float:
        """All questions of one task, for one method."""
        row = QUESTIONS.loc[task]
        num_questions = int(row["questions"])
        tokens = round(row["tokens_per_text"])
        answer_tokens = int(row["answer_tokens"])
        if answer_tokens == 0:
            batches = math.ceil(num_questions * row["texts_per_question"] / batch_size)
            return batches * self.read(tokens, batch_size, tokens)
        batches = math.ceil(num_questions / batch_size)
        one_batch = self.read(tokens, batch_size) + self.write(answer_tokens, tokens, batch_size)
        return batches * one_batch


def _config_of(model: str) -> Any:
    """The transformers config of a model of the profile ``paper``."""
    name = model.split("/")[-1]
    if model == LARGE_MODEL:
        name = SMALL_MODEL.split("/")[-1]
    values = json.loads((config.CONFIGS / f"{name}.json").read_text(encoding="utf-8"))
    if model == LARGE_MODEL:
        values.update(LARGE_SHAPE)
    return AutoConfig.for_model(**values)


class ModelSeconds:
    """Seconds of one model in the profile ``paper``, by notebook."""

    def __init__(self, profile: dict, model: str) -> None:
        self.profile = profile
        self.model = model
        self.gpu = Gpu(model)
        self.num_pruned = profile["pruned_layers"][model]
        self.pages = profile["alpha_search"]["documents"]
        self.page_tokens = round(QUESTIONS.loc["wikitext", "tokens_per_text"])
        self.page_logits = self.gpu.head_flops * self.page_tokens / FLOPS_PER_SECOND
        self.text = self.pages * (self.gpu.body(self.page_tokens) + self.page_logits)

    def search(self) -> float:
        """Algorithm 1 on one corpus."""
        layers_run = count_passes(self.gpu.layers, self.num_pruned, len(ALPHA_GRID))[1]
        passes = layers_run / self.gpu.layers
        candidates = self.num_pruned * len(ALPHA_GRID)
        body = self.gpu.body(self.page_tokens)
        return self.pages * (passes * body + candidates * self.page_logits)

    def baselines(self) -> Counter:
        """Notebook 04: layer ranges tried, calibration, and the perplexity of every plan."""
        settings = self.profile["baselines"]
        groups = self.gpu.config.num_key_value_heads * self.num_pruned
        layers_of_equal_parts = [
            groups // groups_per_layer
            for groups_per_layer in settings["groups_per_layer"][self.model]
        ]
        lengths = layers_of_equal_parts * EQUAL_PARTS + settings["flap_layers"][self.model]
        num_ranges = sum(self.gpu.layers - length + 1 for length in lengths)

        calibration = 0
        for method, passes in CALIBRATION_PASSES.items():
            samples, tokens = settings["calibration"][method]
            calibration += passes * samples * self.gpu.body(tokens)
        return Counter(
            {
                "layer ranges": num_ranges * self.text,
                "calibration": calibration,
                "perplexities": READ_PLANS * (1 + CORPORA) * self.text,
            }
        )

    def main_tables(self) -> Counter:
        """Notebook 05: every method on every benchmark."""
        settings = self.profile["evaluation"]
        seconds = Counter()
        for task in settings["tasks"]:
            one_plan = self.gpu.answer(task, settings["batch_size"])
            seconds[_kind(task)] += one_plan * SCORED_PLANS
        return seconds

    def ablations(self) -> Counter:
        """Notebook 06; the scores of the dense model and of HARP are those of notebook 05."""
        settings = self.profile["evaluation"]
        seconds = Counter()
        for task in settings["tasks"]:
            num_plans = STRATEGIES if _kind(task) == "choices" else 1
            seconds[_kind(task)] += self.gpu.answer(task, settings["batch_size"]) * num_plans

        documents, tokens = self.profile["ablations"]["single_layer"]
        layers = self.gpu.layers
        one_layer = self.gpu.read(tokens, predicted=2 * layers)
        seconds["layers one by one"] = documents * (layers + 3) * one_layer
        passes_of_added_layers = (2 * self.num_pruned + 2) * self.num_pruned / layers
        seconds["layers added up"] = (2 + passes_of_added_layers) * self.text
        return seconds

    def longbench(self) -> Counter:
        """Notebook 07: every method on every task of LongBench."""
        settings = self.profile["longbench"]
        seconds = Counter()
        for task in settings["tasks"]:
            seconds["answers"] += SCORED_PLANS * self.gpu.answer(task, settings["batch_size"])
        return seconds


def _kind(task: str) -> str:
    """What the time for a task is counted as."""
    if QUESTIONS.loc[task, "answer_tokens"] == 0:
        return "choices"
    return f"answers to {BENCHMARKS[task].title}"


def hours(profile: dict, model: str) -> dict[str, Counter]:
    """Seconds of one model by notebook and what they go into; an extra model is only searched."""
    counted = ModelSeconds(profile, model)
    search = Counter({"search for α": CORPORA * counted.search()})
    if model not in profile["models"]:
        return {"03": search}
    search["perplexities"] = ALPHA_PLANS * SPLITS * CORPORA * counted.text
    return {
        "03": search,
        "04": counted.baselines(),
        "05": counted.main_tables(),
        "06": counted.ablations(),
        "07": counted.longbench(),
    }


def timing(profile: dict) -> Counter:
    """Seconds of notebook 08, with LLaMA3.1-8B's shape."""
    gpu = Gpu(SMALL_MODEL)
    settings = profile["efficiency"]
    repetitions = settings["prefill"]  # prompt length → how often it is read
    decode = settings["decode"]
    reading = sum(VARIANTS * (repetitions[tokens] + 1) * gpu.read(tokens) for tokens in repetitions)
    reading += sum(2 * (repetitions[tokens] + 1) * gpu.read(tokens) for tokens in settings["split"])
    runs = VARIANTS * (decode["repetitions"] + 1)
    decoding = sum(runs * gpu.write(decode["steps"], tokens) for tokens in decode["contexts"])
    return Counter(reading=reading, decoding=decoding)


def table() -> pd.DataFrame:
    """Notebook, models, hours, and what most of them go into."""
    profile = config.load_profile("paper")
    models = [*profile["models"], *profile["alpha_search"]["extra_models"]]
    seconds_by_notebook = [hours(profile, model) for model in models]
    seconds_by_notebook.append({"08": timing(profile)})
    num_models = {"03": len(models), "08": 1}
    rows = []
    for notebook in NOTEBOOKS:
        parts = Counter()
        for seconds in seconds_by_notebook:
            parts += seconds.get(notebook, Counter())
        largest_part, largest = parts.most_common(1)[0]
        rows.append(
            {
                "notebook": notebook,
                "models": num_models.get(notebook, len(profile["models"])),
                "GPU hours at most": float(f"{parts.total() / 3600:.2g}"),
                "what dominates": f"{largest_part}: {largest / parts.total():.0%}",
            }
        )
    return pd.DataFrame(rows)


if __name__ == "__main__":
    table().to_csv(HERE / "paper_hours.csv", index=False)
    print(table().to_markdown(index=False))
