"""LongBench as its authors run it (github.com/THUDM/LongBench), where lm-eval 0.4.13 does
otherwise.

Their ``pred.py`` cuts long prompts in the middle, has no stop strings and ends samsum's answers at
a newline; their ``eval.py`` and ``metrics.py`` score the answer as it was written. Their prompt of
NarrativeQA has had two spellings, "asconcisely" and "as concisely"; lm-eval's is the first.
"""

import dataclasses
from functools import partial
from typing import Any

from lm_eval.api.instance import Instance
from transformers import PreTrainedTokenizerBase

from harp_lib.evaluation.benchmarks import Benchmark

ENDS_AT_NEWLINE = "longbench_samsum"


def official_task(benchmark: Benchmark, task: dict[str, Any]) -> dict[str, Any]:
    """lm-eval's settings of a task turned into the official ones; ValueError if its prompt is not
    that of 0.4.13.
    """
    prompt, (found, official) = task["doc_to_text"], benchmark.prompt_ends
    if not prompt.endswith(found):
        raise ValueError(
            f"lm-eval's prompt of {benchmark.name} ends with {prompt[-40:]!r}, not with {found!r}"
        )
    return task | {
        "doc_to_text": prompt.removesuffix(found) + official,
        "generation_kwargs": task["generation_kwargs"] | {"until": []},
        "process_results": partial(score, benchmark),
        "metric_list": [{"metric": "score", "aggregation": "mean", "higher_is_better": True}],
    }


def official_request(
    request: Instance, tokenizer: PreTrainedTokenizerBase, length: int
) -> Instance:
    """A generation request with its prompt cut, and with the generation settings of its task."""
    prompt, settings = request.args
    if request.task_name == ENDS_AT_NEWLINE:
        newline = tokenizer.encode("\n", add_special_tokens=False)[-1]
        # One new token at least: neither a newline nor the end of the text may come first.
        settings = settings | {
            "eos_token_id": [tokenizer.eos_token_id, newline],
            "min_new_tokens": 1,
        }
    return dataclasses.replace(request, arguments=(cut_middle(prompt, tokenizer, length), settings))


def cut_middle(prompt: str, tokenizer: PreTrainedTokenizerBase, length: int) -> str:
    """A prompt without its middle, if it has more than ``length`` tokens: its first and its last
    half of these.

    Instructions stand at both ends. The halves are decoded and joined, so that reading the result
    may take a few tokens more or less.
    """
    if length < 2:
        raise ValueError(
            f"a prompt cannot be cut to {length} tokens: the answer takes all that the model reads"
        )
    tokens = tokenizer(prompt).input_ids
    if len(tokens) <= length:
        return prompt
    halves = tokens[: length // 2], tokens[-(length // 2) :]
    return "".join(tokenizer.decode(half, skip_special_tokens=True) for half in halves)


def score(benchmark: Benchmark, doc: dict[str, Any], results: list[str]) -> dict[str, float]:
    """The official metric of a task, against the reference that fits best.

    The answer is not stripped: lm-eval's own wrappers do that. Of code the first line without
    comment or backtick is scored. lm-eval passes over blank lines on the way; officially only
    newlines at the very beginning are.
    """
    from lm_eval.tasks.longbench import metrics  # late, because it brings Chinese word lists

    lines = results[0].lstrip("\n").split("\n")
    if benchmark.scorer == "code_sim_score":
        code = next(
            (line for line in lines if not any(mark in line for mark in ("`", "#", "//"))), ""
        )
        return {
            "score": max(metrics.fuzz.ratio(code, reference) / 100 for reference in doc["answers"])
        }
    measure, answer = (
        getattr(metrics, benchmark.scorer),
        lines[0] if benchmark.first_line else results[0],
    )
    classes = doc.get("all_classes")
    return {
        "score": max(
            float(measure(answer, reference, all_classes=classes)) for reference in doc["answers"]
        )
    }
