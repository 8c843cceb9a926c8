"""LongBench as its authors run it, where lm-eval 0.4.13 differs.

The official code is github.com/THUDM/LongBench.
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
    """lm-eval's settings of a task, turned into the official ones.

    Raises
    ------
    ValueError
        If the prompt does not end as that of lm-eval 0.4.13 does.
    """
    prompt = task["doc_to_text"]
    lm_eval_end, official_end = benchmark.prompt_ends
    if not prompt.endswith(lm_eval_end):
        raise ValueError(
            f"lm-eval's prompt of {benchmark.name} ends with {prompt[-40:]!r}, "
            f"not with {lm_eval_end!r}"
        )
    official = dict(task)
    official["doc_to_text"] = prompt.removesuffix(lm_eval_end) + official_end
    official["generation_kwargs"] = {**task["generation_kwargs"], "until": []}
    official["process_results"] = partial(score, benchmark)
    official["metric_list"] = [{"metric": "score", "aggregation": "mean", "higher_is_better": True}]
    return official


def official_request(
    request: Instance, tokenizer: PreTrainedTokenizerBase, length: int
) -> Instance:
    """A generation request with its prompt cut to ``length`` tokens, and its task's settings."""
    prompt, settings = request.args
    if request.task_name == ENDS_AT_NEWLINE:
        newline = tokenizer.encode("\n", add_special_tokens=False)[-1]
        settings = dict(settings)
        settings["eos_token_id"] = [tokenizer.eos_token_id, newline]
        settings["min_new_tokens"] = 1  # neither of these tokens may come first
    cut_prompt = cut_middle(prompt, tokenizer, length)
    return dataclasses.replace(request, arguments=(cut_prompt, settings))


def cut_middle(prompt: str, tokenizer: PreTrainedTokenizerBase, length: int) -> str:
    """A prompt without its middle, if it has more than ``length`` tokens.

    Instructions stand at both ends, so the first and the last ``length // 2`` tokens are kept. The
    halves are decoded and joined; the result may have a few tokens more or less.

    Raises
    ------
    ValueError
        If ``length`` is below 2, because the answer takes all that the model reads.
    """
    if length < 2:
        raise ValueError(
            f"a prompt cannot be cut to {length} tokens: the answer takes all that the model reads"
        )
    tokens = tokenizer(prompt).input_ids
    if len(tokens) <= length:
        return prompt
    half = length // 2
    beginning = tokenizer.decode(tokens[:half], skip_special_tokens=True)
    end = tokenizer.decode(tokens[-half:], skip_special_tokens=True)
    return beginning + end


def score(benchmark: Benchmark, doc: dict[str, Any], results: list[str]) -> dict[str, float]:
    """The official metric of a task, against the reference that fits best.

    The answer is not stripped: lm-eval's own wrappers do that.
    """
    from lm_eval.tasks.longbench import metrics  # late, because it brings Chinese word lists

    answer = results[0]
    lines = answer.lstrip("\n").split("\n")
    if benchmark.scorer == "code_sim_score":
        code = _first_line_of_code(lines)
        scores = [metrics.fuzz.ratio(code, reference) / 100 for reference in doc["answers"]]
    else:
        measure = partial(getattr(metrics, benchmark.scorer), all_classes=doc.get("all_classes"))
        if benchmark.first_line:
            answer = lines[0]
        scores = [float(measure(answer, reference)) for reference in doc["answers"]]
    return {"score": max(scores)}


def _first_line_of_code(lines: list[str]) -> str:
    """The first line without comment or backtick, or nothing.

    lm-eval passes over blank lines on the way; officially only newlines at the very beginning of an
    answer are passed over.
    """
    for line in lines:
        if not any(mark in line for mark in ("`", "#", "//")):
            return line
    return ""
