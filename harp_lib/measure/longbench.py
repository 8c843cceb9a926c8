"""LongBench as its authors run it (github.com/THUDM/LongBench), where lm-eval 0.4.13 does otherwise.

Their ``pred.py`` cuts long prompts in the middle, has no stop strings and ends samsum's answers at a newline; their
``eval.py`` and ``metrics.py`` score the answer as it was written. Their prompt of NarrativeQA has had two spellings,
"asconcisely" and "as concisely"; lm-eval's is the first. Its rows are those of a copy on
the hub, ``Xnhyacinth/LongBench``.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

from lm_eval.api.instance import Instance
from transformers import PreTrainedTokenizerBase

# What separates lm-eval's prompts from the official ones: the end of the former, the end of the latter.
PROMPT_ENDS = {
    "longbench_triviaqa": ("{{context}}\n{{question}}", "{{context}}\n\n{{question}}"),
    "longbench_samsum": ("{{context}}\n{{question}}", "{{context}}\n\n{{question}}"),
    "longbench_passage_count": ("The final answer is:", "The final answer is: "),
    "longbench_passage_retrieval_en": ("The answer is:", "The answer is: "),
    "longbench_lcc": ("Next line of code:", "Next line of code:\n"),
    "longbench_repobench-p": ("Next line of code:", "Next line of code:\n"),
}
ENDS_AT_NEWLINE = "longbench_samsum"

Metric = Callable[[dict[str, Any], list[str]], dict[str, float]]  # of a row and the answer to it


def official_prompt(task: str, prompt: str) -> str:
    """lm-eval's ``doc_to_text`` of a task, turned into the official prompt; ValueError if it is not that of 0.4.13."""
    if task not in PROMPT_ENDS:
        return prompt
    found, official = PROMPT_ENDS[task]
    if not prompt.endswith(found):
        raise ValueError(f"lm-eval's prompt of {task} ends with {prompt[-40:]!r}, not with {found!r}")
    return prompt.removesuffix(found) + official


def cut_middle(prompt: str, tokenizer: PreTrainedTokenizerBase, length: int) -> str:
    """A prompt without its middle, if it has more than ``length`` tokens: its first and its last half of these.

    Instructions stand at both ends. The halves are decoded and joined, so that reading the result may take a few tokens
    more or less.
    """
    if length < 2:
        raise ValueError(f"a prompt cannot be cut to {length} tokens: the answer takes all that the model reads")
    tokens = tokenizer(prompt).input_ids
    if len(tokens) <= length:
        return prompt
    halves = tokens[: length // 2], tokens[-(length // 2) :]
    return "".join(tokenizer.decode(half, skip_special_tokens=True) for half in halves)


def official_request(request: Instance, tokenizer: PreTrainedTokenizerBase, length: int) -> Instance:
    """A generation request with its prompt cut, and with the generation settings of its task."""
    prompt, settings = request.args
    if request.task_name == ENDS_AT_NEWLINE:
        newline = tokenizer.encode("\n", add_special_tokens=False)[-1]
        # One new token at least: neither a newline nor the end of the text may come first.
        settings = settings | {"eos_token_id": [tokenizer.eos_token_id, newline], "min_new_tokens": 1}
    return dataclasses.replace(request, arguments=(cut_middle(prompt, tokenizer, length), settings))


def _metric(name: str, only_first_line: bool = False) -> Metric:
    """One of the official metrics, against the reference that fits best.

    The answer is not stripped: lm-eval's own wrappers do that. Its copy of the metrics is imported late, because it
    brings Chinese word lists.
    """

    def score(doc: dict[str, Any], results: list[str]) -> dict[str, float]:
        from lm_eval.tasks.longbench import metrics

        measure = code_line_similarity if name == "code_sim_score" else getattr(metrics, name)
        answer = first_line(results[0]) if only_first_line else results[0]
        classes = doc.get("all_classes")
        return {"score": max(float(measure(answer, reference, all_classes=classes)) for reference in doc["answers"])}

    return score


def first_line(answer: str) -> str:
    """The first line of an answer that may begin with empty ones."""
    return answer.lstrip("\n").split("\n")[0]


def code_line_similarity(answer: str, reference: str, **_: Any) -> float:
    """Edit similarity of the reference and the first line without a comment or backtick.

    lm-eval passes over blank lines on the way; officially only newlines at the very beginning are.
    """
    from lm_eval.tasks.longbench.metrics import fuzz

    lines = (line for line in answer.lstrip("\n").split("\n") if not any(mark in line for mark in ("`", "#", "//")))
    return fuzz.ratio(next(lines, ""), reference) / 100


# By the names in data/benchmarks.yaml; lm-eval imports them.
qa_f1 = _metric("qa_f1_score")  # of the words, without case, punctuation and articles
rouge = _metric("rouge_score")  # F-measure of ROUGE-L; 0 where there is no answer
count = _metric("count_score")  # the share of the numbers in the answer that are the right one
retrieval = _metric("retrieval_score")  # the same of paragraphs
first_line_qa_f1 = _metric("qa_f1_score", only_first_line=True)
first_line_rouge = _metric("rouge_score", only_first_line=True)
first_line_classification = _metric("classification_score", only_first_line=True)  # 1 / (classes named), if right
code_similarity = _metric("code_sim_score")
