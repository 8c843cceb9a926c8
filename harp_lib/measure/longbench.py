"""LongBench as its authors run it (github.com/THUDM/LongBench), where lm-eval 0.4.13 does otherwise.

Their ``pred.py`` cuts long prompts in the middle, has no stop strings and ends samsum's answers at a newline; their
``eval.py`` and ``metrics.py`` score the answer as it was written. Their prompt of NarrativeQA has had two spellings,
"asconcisely" and "as concisely"; lm-eval's is the first.
"""

import dataclasses
from collections.abc import Callable
from types import ModuleType
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
METRICS = {  # functions of this file
    "longbench_trec": "first_line_classification",
    "longbench_triviaqa": "first_line_qa_f1",
    "longbench_samsum": "first_line_rouge",
    "longbench_lcc": "code_similarity",
    "longbench_repobench-p": "code_similarity",
    "longbench_passage_count": "count",
    "longbench_passage_retrieval_en": "retrieval",
    "longbench_gov_report": "rouge",
    "longbench_qmsum": "rouge",
    "longbench_multi_news": "rouge",
    "longbench_narrativeqa": "qa_f1",
    "longbench_qasper": "qa_f1",
    "longbench_multifieldqa_en": "qa_f1",
    "longbench_hotpotqa": "qa_f1",
    "longbench_2wikimqa": "qa_f1",
    "longbench_musique": "qa_f1",
}
ENDS_AT_NEWLINE = "longbench_samsum"

Scores = dict[str, float]


def official_prompt(task: str, prompt: str) -> str:
    """lm-eval's ``doc_to_text`` of a task, turned into the official prompt.

    Raises
    ------
    ValueError
        If lm-eval's prompt does not end as it did in 0.4.13, so that nobody knows what it is.
    """
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

    Raises
    ------
    ValueError
        If ``length`` has no two halves.
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


def qa_f1(doc: dict[str, Any], results: list[str]) -> Scores:
    """F1 of the words of answer and reference, without case, punctuation and articles."""
    return _best(_metrics().qa_f1_score, doc, results[0])


def rouge(doc: dict[str, Any], results: list[str]) -> Scores:
    """F-measure of ROUGE-L; 0 where there is no answer."""
    return _best(_metrics().rouge_score, doc, results[0])


def count(doc: dict[str, Any], results: list[str]) -> Scores:
    """The share of the numbers in the answer that are the right one."""
    return _best(_metrics().count_score, doc, results[0])


def retrieval(doc: dict[str, Any], results: list[str]) -> Scores:
    """The share of the numbers in the answer that are the paragraph's."""
    return _best(_metrics().retrieval_score, doc, results[0])


def first_line_qa_f1(doc: dict[str, Any], results: list[str]) -> Scores:
    """:func:`qa_f1` of the answer's first line."""
    return _best(_metrics().qa_f1_score, doc, first_line(results[0]))


def first_line_rouge(doc: dict[str, Any], results: list[str]) -> Scores:
    """:func:`rouge` of the answer's first line."""
    return _best(_metrics().rouge_score, doc, first_line(results[0]))


def first_line_classification(doc: dict[str, Any], results: list[str]) -> Scores:
    """1 / (classes named in the answer's first line) if the right one is among them."""
    return _best(_metrics().classification_score, doc, first_line(results[0]))


def code_similarity(doc: dict[str, Any], results: list[str]) -> Scores:
    """Edit similarity of the reference and the first line without a comment or backtick.

    lm-eval passes over blank lines on the way; officially only newlines at the very beginning are.
    """

    def similarity(answer: str, reference: str, **_: Any) -> float:
        lines = (line for line in answer.lstrip("\n").split("\n") if not any(mark in line for mark in ("`", "#", "//")))
        return _metrics().fuzz.ratio(next(lines, ""), reference) / 100

    return _best(similarity, doc, results[0])


def first_line(answer: str) -> str:
    """The first line of an answer that may begin with empty ones."""
    return answer.lstrip("\n").split("\n")[0]


def _best(metric: Callable[..., float], doc: dict[str, Any], answer: str) -> Scores:
    """The score against the reference that fits best. The answer is not stripped: lm-eval's own wrappers do that."""
    classes = doc.get("all_classes")
    return {"score": max(float(metric(answer, reference, all_classes=classes)) for reference in doc["answers"])}


def _metrics() -> ModuleType:
    """lm-eval's copy of the official metrics; imported late, because it brings Chinese word lists."""
    from lm_eval.tasks.longbench import metrics

    return metrics
