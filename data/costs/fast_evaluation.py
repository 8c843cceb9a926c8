"""Compare the speed of `harp_lib.prefix_lm` with stock lm-eval's, in one run.

    python data/costs/fast_evaluation.py [--model smollm2-135m] [--rows 8] [--datasets DIR]

The cases are the eleven benchmarks of the profile mini on the embedded rows, with the settings of
the profile. With a folder of real rows there are three more: six subjects of 5-shot MMLU, and
25-shot ARC-Challenge twice, once with other examples for each question, which is what lm-eval does,
and once with the same examples for all. Prints seconds, their ratio, the largest difference between
two log-likelihoods, and how many texts differ.
"""

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

from harp_lib import load_model
from harp_lib.config import load_profile
from harp_lib.evaluation.benchmarks import BENCHMARKS, task_title
from harp_lib.evaluation.evaluator import SHOTS_SEED
from harp_lib.evaluation.runner import Runner, evaluate, load_tasks

Answers = dict[str, list]  # task → the answers to each question, likelihoods or texts


class Stock(Runner):
    """Stock lm-eval, with the same prompts."""

    def _can_share(self, texts: Any = (), is_writing: bool = False) -> bool:
        return False


class Case(NamedTuple):
    """A benchmark and how it is asked."""

    title: str
    benchmark: str
    datasets: str
    settings: dict[str, Any]


class Comparison(NamedTuple):
    """What stock lm-eval and our runner took for one case, and how their answers differ."""

    stock_seconds: float
    our_seconds: float
    largest_difference: float  # of two log-likelihoods
    differing_texts: int


def score(runner: Runner, loaded: dict[str, Any], rows: int | None) -> tuple[float, Answers]:
    """Seconds, and the answers by task."""
    begin = time.perf_counter()
    results = evaluate(runner, loaded, rows, SHOTS_SEED)
    seconds = time.perf_counter() - begin
    answers = {
        task: [sample["filtered_resps"] for sample in samples]
        for task, samples in results["samples"].items()
    }
    return seconds, answers


def split_answers(answers: Answers) -> tuple[list[float], list[str]]:
    """All log-likelihoods and all texts, in order."""
    likelihoods = []
    texts = []
    for questions in answers.values():
        for responses in questions:
            for response in responses:
                if isinstance(response, str):
                    texts.append(response)
                else:
                    likelihoods.append(float(response[0]))
    return likelihoods, texts


def compare(stock: Runner, ours: Runner, loaded: dict[str, Any], rows: int | None) -> Comparison:
    """Score one case with both runners."""
    stock_seconds, stock_answers = score(stock, loaded, rows)
    our_seconds, our_answers = score(ours, loaded, rows)
    stock_likelihoods, stock_texts = split_answers(stock_answers)
    our_likelihoods, our_texts = split_answers(our_answers)
    differences = [abs(a - b) for a, b in zip(stock_likelihoods, our_likelihoods, strict=True)]
    differing_texts = sum(a != b for a, b in zip(stock_texts, our_texts, strict=True))
    return Comparison(stock_seconds, our_seconds, max(differences, default=0.0), differing_texts)


def cases_of(datasets: str | None) -> list[Case]:
    """The benchmarks of the profile mini, and three more with a folder of real rows."""
    settings = load_profile("mini")["evaluation"]
    common = {"same_shots": settings["same_shots"], "subtasks": settings["subtasks"]}
    cases = []
    for name in BENCHMARKS:
        title = task_title(name, "embedded")
        cases.append(Case(title, name, "embedded", settings["tasks"][name] | common))
    if datasets:
        mmlu = {"shots": 5, "rows": 20, "subtasks": 6}
        cases.append(Case("MMLU, 5-shot", "mmlu", datasets, mmlu))
        other_shots = {"shots": 25, "rows": 25, "same_shots": False}
        cases.append(Case("ARC-Challenge, 25-shot", "arc_challenge", datasets, other_shots))
        same_shots = {"shots": 25, "rows": 25, "same_shots": True}
        title = "ARC-Challenge, the same 25 shots for all"
        cases.append(Case(title, "arc_challenge", datasets, same_shots))
    return cases


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument(
        "--rows", type=int, help="of each task or subtask; the default is the profile's"
    )
    parser.add_argument("--datasets", help="a folder of real rows")
    arguments = parser.parse_args()

    model, tokenizer = load_model(arguments.model)
    stock = Stock(model, tokenizer, batch_size=8)
    ours = Runner(model, tokenizer, batch_size=8)
    stock_total = 0.0
    our_total = 0.0
    print("| task | stock lm-eval, s | here, s | ratio | largest difference | texts that differ |")
    print("|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for number, (title, name, datasets, settings) in enumerate(cases_of(arguments.datasets)):
            task_folder = Path(folder, str(number))
            subtasks = settings.get("subtasks")
            loaded = load_tasks(BENCHMARKS[name], datasets, settings, task_folder, subtasks)
            rows = arguments.rows or settings.get("rows")
            result = compare(stock, ours, loaded, rows)
            ratio = result.stock_seconds / result.our_seconds
            print(
                f"| {title} | {result.stock_seconds:.1f} | {result.our_seconds:.1f} | {ratio:.1f} "
                f"| {result.largest_difference:.1e} | {result.differing_texts} |",
                flush=True,
            )
            if datasets == "embedded":
                stock_total += result.stock_seconds
                our_total += result.our_seconds
    ratio = stock_total / max(our_total, 1e-9)
    print(f"| embedded rows together | {stock_total:.1f} | {our_total:.1f} | {ratio:.1f} | | |")


if __name__ == "__main__":
    main()
