"""How likely a model finds the right answer.

A small model answers few questions right, so accuracy moves with few of them. The same forward
passes also give the likelihood of the right answer, which moves with every question (Heineman et
al., "Signal and Noise", 2025, arXiv 2508.13144). Where one of several choices is right it is
measured as a margin, where answers are written in bits per byte of the reference answer.
"""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

ONE_OF_TWO = {"yes", "no", "true", "false", "valid", "invalid"}
# How every worked example of BBH ends: the conclusion, the answer and a full stop. The full stop is
# part of the reference, because tokenizers join it to the bracket of "(A)". A model that is about
# to write "(A)." finds "(A)" alone unlikely.
CONCLUSION = "So the answer is"
FULL_STOP = "."


def log_odds_margin(log_likelihoods: Sequence[float], right: int) -> float:
    """Log-odds of the right choice against all others together; a coin toss between two has 0.

    Parameters
    ----------
    log_likelihoods : sequence of float
        Log-likelihood of each choice after the same question, in nats: lm-eval's, summed over
        tokens.
    right : int
        Index of the right choice.

    Returns
    -------
    float
        ``log p(right) - log Σ p(others)``, in nats: above 0 where the right choice is more likely
        than all others together.
    """
    others = [value for choice, value in enumerate(log_likelihoods) if choice != right]
    return float(log_likelihoods[right] - np.logaddexp.reduce(others))


def bits_per_byte(log_likelihood: float, answer: str) -> float:
    """Bits that a model needs for each byte of an answer; less is better.

    Parameters
    ----------
    log_likelihood : float
        In nats, summed over the answer's tokens.
    answer : str
        What follows the prompt, with the blank between them. Its bytes are counted in UTF-8, so
        that models with different vocabularies are comparable.
    """
    return -log_likelihood / (math.log(2) * len(answer.encode("utf-8")))


def right_choice(task: Any, row: Mapping[str, Any]) -> int:
    """Index of the right choice of a question, as lm-eval's ``process_results`` finds it."""
    target = task.doc_to_text(row) if task.multiple_input else task.doc_to_target(row)
    if isinstance(target, int):
        return target
    return task.doc_to_choice(row).index(target)


def reference_answer(row: Mapping[str, Any], path: str) -> str:
    """The reference answer of a row.

    A dot in ``path`` leads into a nested field, or to an item of a list: ``answer.aliases.0``.
    """
    value: Any = row
    for key in path.split("."):
        place: str | int = key
        if isinstance(value, list):
            place = int(key)
        value = value[place]
    return str(value).strip()


def guess_rate(row: Mapping[str, Any]) -> float:
    """How often a guess in the right format is right, for a row of BBH.

    Where the question lists options "(A) …" and the target is one of these letters, a guess is one
    of the options. Yes or no, true or false, valid or invalid are one of two. All other targets
    (numbers, words, brackets) cannot be guessed.
    """
    options = re.findall(r"^\([A-Z]\) ", row["input"], re.MULTILINE)
    if options and re.fullmatch(r"\([A-Z]\)", row["target"]):
        return 1 / len(options)
    if row["target"].lower() in ONE_OF_TWO:
        return 0.5
    return 0.0


def reasoning_before_conclusion(reply: str) -> str | None:
    """A chain of thought up to and with "So the answer is"; None if the reply does not say so."""
    reasoning, conclusion, _ = reply.partition(CONCLUSION)
    if not conclusion:
        return None
    return reasoning + conclusion
