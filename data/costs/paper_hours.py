"""What the notebooks of the profile ``paper`` take, counted: this script writes ``paper_hours.csv``
beside it.

An order of magnitude, for one GPU like the paper's (H100, 80 GB), from three numbers and what the
profile asks for:

* operations per second: what LLaMA3.1-8B takes to read 65,536 tokens, divided by the seconds that
  the paper prints;
* bytes per second: the data sheet's bandwidth of that GPU, of which decoding reaches
  ``DECODING_SHARE``, an assumption;
* the lengths of questions in ``question_tokens.csv``, in tokens: lm-eval's own prompts of real rows
  (``rows_measured``) with the paper's examples, LongBench's in its official form cut in the middle,
  counted by SmolLM2's tokenizer, which makes somewhat more tokens of a text than those of the
  paper's models; ``questions`` is how many the benchmark has.

Every method is counted as the dense model, every written answer as long as it may get, every text
of the α search as WikiText-2's test pages. Notebooks 01 and 02 are not counted, their time goes
into eigenvalues in double precision; nor are 09 and the likelihoods of 05 and 07, one pass for each
reference answer, which go beyond the paper.
"""

import json
import math
from collections import Counter
from pathlib import Path

import pandas as pd
import torch
from transformers import AutoConfig

from harp_lib import config
from harp_lib.accounting import (
    kv_bytes_per_token,
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
BANDWIDTH = 3.35e12  # bytes per second: NVIDIA's data sheet of the H100 with 80 GB of HBM3
DECODING_SHARE = (
    0.2  # of it that decoding is taken to reach: between two small kernels the GPU waits for Python
)
CACHE_MOVES = 3  # of all keys and values for each new token, see harp_lib/experiments/efficiency.py
SCORED_PLANS = len(METHOD_TITLES)  # every method's, harp+refit's too, and the dense model
READ_PLANS = SCORED_PLANS + len(OTHER_READINGS)  # of which notebook 04 takes perplexities
EQUAL_PARTS = sum(
    not CATALOGUE[name].one_threshold for name in BASELINES
)  # baselines tuned by groups per layer
VARIANTS = 5  # timed in 08
CORPORA = 2  # of the α search
CALIBRATED = {
    "wanda-sp": 2,
    "llm-pruner": 4,
    "flap": 1,
    "harp+flap": 1,
}  # times that each reads its samples
# whose config is not in data/configs; from Table 3 of "The Llama 3 Herd of Models"
LARGE = "meta-llama/Llama-3.1-70B"
OF_LARGE = {
    "hidden_size": 8192,
    "intermediate_size": 28672,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
}
QUESTIONS = pd.read_csv(HERE / "question_tokens.csv", index_col="task")
PRINTED = pd.read_csv(config.PAPER / "efficiency.csv").query(
    "method == 'dense' and quantity == 'seconds'"
)
SPEED = (
    prefill_flops(paper_configs()["LLaMA3.1-8B"], None, 65536, causal=True)
    / PRINTED.set_index("length")["value"][65536]
)


class Gpu:
    """Seconds of a dense model in bfloat16 on one GPU, as large as it may be."""

    def __init__(self, model: str) -> None:
        name, own = ("meta-llama/Llama-3.1-8B", OF_LARGE) if model == LARGE else (model, {})
        values = json.loads(
            (config.CONFIGS / f"{name.split('/')[-1]}.json").read_text(encoding="utf-8")
        )
        self.config = AutoConfig.for_model(**values | own)
        self.layers = self.config.num_hidden_layers
        self.head_flops = 2 * stock_model(self.config).get_output_embeddings().weight.numel()
        self.weights, self.cache = (
            2 * parameters(self.config),
            kv_bytes_per_token(self.config, dtype=torch.bfloat16),
        )

    def body(self, tokens: int) -> float:
        """All decoder layers over one text."""
        return (prefill_flops(self.config, None, tokens, causal=True) - self.head_flops) / SPEED

    def read(self, tokens: int, texts: int = 1, predicted: int = 1) -> float:
        """One pass over ``texts`` texts, with the logits of ``predicted`` tokens of each."""
        return max(
            texts * (self.body(tokens) + predicted * self.head_flops / SPEED), self.write(1, 0)
        )

    def write(self, tokens: int, context: int, texts: int = 1) -> float:
        """``tokens`` new ones after ``context`` others; for each, the weights move once."""
        moved = self.weights + CACHE_MOVES * self.cache * (context + tokens / 2) * texts
        return tokens * moved / (DECODING_SHARE * BANDWIDTH)


def hours(profile: dict, model: str) -> dict[str, Counter]:
    """Seconds of one model by notebook and what they go into; an extra model is only searched."""
    gpu, pruned, found = (
        Gpu(model),
        profile["pruned_layers"][model],
        {f"0{number}": Counter() for number in range(3, 9)},
    )
    pages, tokens = (
        profile["alpha_search"]["documents"],
        round(QUESTIONS.loc["wikitext", "tokens_per_text"]),
    )
    passes = count_passes(gpu.layers, pruned, len(ALPHA_GRID))[1] / gpu.layers
    head = gpu.head_flops * tokens / SPEED
    search = pages * (passes * gpu.body(tokens) + pruned * len(ALPHA_GRID) * head)
    text = pages * (gpu.body(tokens) + head)
    found["03"]["search for α"] = CORPORA * search
    if model not in profile["models"]:
        return found
    found["03"]["perplexities"] = 5 * 2 * CORPORA * text

    settings = profile["baselines"]
    groups = gpu.config.num_key_value_heads * pruned
    counts = [groups // each for each in settings["groups_per_layer"][model]] * EQUAL_PARTS
    counts += settings["flap_layers"][model]
    found["04"]["layer ranges"] = sum(gpu.layers - count + 1 for count in counts) * text
    samples = {name: settings["calibration"][name] for name in CALIBRATED}
    reads = sum(
        CALIBRATED[name] * number * gpu.body(length) for name, (number, length) in samples.items()
    )
    found["04"] += {"calibration": reads, "perplexities": READ_PLANS * (1 + CORPORA) * text}

    settings = profile["evaluation"]
    for task in settings["tasks"]:
        seconds = questions(gpu, task, settings["batch_size"])
        kind = (
            "choices"
            if QUESTIONS.loc[task, "answer_tokens"] == 0
            else f"answers to {BENCHMARKS[task].title}"
        )
        found["05"][kind] += seconds * SCORED_PLANS
        found["06"][kind] += seconds * (
            4 if kind == "choices" else 1
        )  # strategies; dense and HARP are of 05
    number, length = profile["ablations"]["single_layer"]
    found["06"]["layers one by one"] = (
        number * (gpu.layers + 3) * gpu.read(length, predicted=2 * gpu.layers)
    )
    found["06"]["layers added up"] = (2 + (2 * pruned + 2) * pruned / gpu.layers) * text
    for task in profile["longbench"]["tasks"]:
        found["07"]["answers"] += SCORED_PLANS * questions(
            gpu, task, profile["longbench"]["batch_size"]
        )
    return found


def questions(gpu: Gpu, task: str, batch: int) -> float:
    """One method's questions of one task."""
    row = QUESTIONS.loc[task]
    count, tokens, answer = (
        int(row["questions"]),
        round(row["tokens_per_text"]),
        int(row["answer_tokens"]),
    )
    if answer:
        return math.ceil(count / batch) * (
            gpu.read(tokens, batch) + gpu.write(answer, tokens, batch)
        )
    return math.ceil(count * row["texts_per_question"] / batch) * gpu.read(tokens, batch, tokens)


def timing(profile: dict) -> Counter:
    """Seconds of notebook 08, with LLaMA3.1-8B's shape."""
    gpu, settings = Gpu("meta-llama/Llama-3.1-8B"), profile["efficiency"]
    decode, often = settings["decode"], settings["prefill"]
    found = Counter(
        reading=sum(VARIANTS * (often[tokens] + 1) * gpu.read(tokens) for tokens in often)
    )
    found["reading"] += sum(
        2 * (often[tokens] + 1) * gpu.read(tokens) for tokens in settings["split"]
    )
    runs = VARIANTS * (decode["repetitions"] + 1)
    found["decoding"] = sum(
        runs * gpu.write(decode["steps"], tokens) for tokens in decode["contexts"]
    )
    return found


def table() -> pd.DataFrame:
    """Notebook, models, hours, and what most of them go into."""
    profile = config.load_profile("paper")
    models = [*profile["models"], *profile["alpha_search"]["extra_models"]]
    found = [hours(profile, model) for model in models] + [{"08": timing(profile)}]
    rows = []
    for notebook in (f"0{number}" for number in range(3, 9)):
        parts = sum((each.get(notebook, Counter()) for each in found), Counter())
        name, most = parts.most_common(1)[0]
        number = {"03": len(models), "08": 1}.get(notebook, len(profile["models"]))
        share = f"{name}: {most / parts.total():.0%}"
        rows.append([notebook, number, float(f"{parts.total() / 3600:.2g}"), share])
    return pd.DataFrame(rows, columns=["notebook", "models", "GPU hours at most", "what dominates"])


if __name__ == "__main__":
    table().to_csv(HERE / "paper_hours.csv", index=False)
    print(table().to_markdown(index=False))
