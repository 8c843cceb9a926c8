"""How much faster `harp_lib.evaluation.prefix_lm` scores than stock lm-eval, side by side in one
run.

    python data/costs/fast_evaluation.py [--model smollm2-135m] [--rows 8] [--datasets DIR]

The eleven benchmarks of the profile mini on the embedded rows, as the profile asks them; with a
folder of real rows also six subjects of 5-shot MMLU, and 25-shot ARC-Challenge twice: as lm-eval
asks it, with other examples for each question, and with the same examples for all. Prints seconds,
their ratio, the largest difference between two log-likelihoods, and how many texts differ.
"""

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

from harp_lib import load_model
from harp_lib.config import load_profile
from harp_lib.evaluation.benchmarks import BENCHMARKS, task_title
from harp_lib.evaluation.evaluator import SHOTS_SEED
from harp_lib.evaluation.runner import Runner, evaluate, load_tasks


class Stock(Runner):
    """Stock lm-eval, with the same prompts."""

    def _can_share(self) -> bool:
        return False


def score(
    runner: Runner, loaded: dict[str, Any], rows: int | None
) -> tuple[float, dict[str, list]]:
    """Seconds, and task → the answers of each question: likelihoods or texts."""
    begin = time.perf_counter()
    found = evaluate(runner, loaded, rows, SHOTS_SEED)
    seconds = time.perf_counter() - begin
    return seconds, {
        task: [row["filtered_resps"] for row in rows] for task, rows in found["samples"].items()
    }


def likelihoods(answers: dict[str, list]) -> list[float]:
    """All log-likelihoods, in order."""
    numbers = [part for rows in answers.values() for row in rows for part in row]
    return [float(part[0]) for part in numbers if not isinstance(part, str)]


def compare(runners: list[Runner], loaded: dict[str, Any], rows: int | None) -> tuple:
    """Seconds of stock lm-eval and of ours, the largest difference of likelihoods, and how many
    texts differ.
    """
    (slow, expected), (fast, found) = (score(runner, loaded, rows) for runner in runners)
    differences = (
        abs(a - b) for a, b in zip(likelihoods(expected), likelihoods(found), strict=True)
    )
    texts = (
        [part for rows in run.values() for row in rows for part in row if isinstance(part, str)]
        for run in (expected, found)
    )
    return (
        slow,
        fast,
        max(differences, default=0.0),
        sum(a != b for a, b in zip(*texts, strict=True)),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument(
        "--rows", type=int, help="of each task or subtask; the default is the profile's"
    )
    parser.add_argument("--datasets", help="a folder of real rows")
    arguments = parser.parse_args()
    model, tokenizer = load_model(arguments.model)
    asked = load_profile("mini")["evaluation"]
    common = {key: asked[key] for key in ("same_shots", "subtasks")}
    cases = [
        (task_title(name, "embedded"), name, "embedded", asked["tasks"][name] | common)
        for name in BENCHMARKS
    ]
    if arguments.datasets:
        cases.append(
            ("MMLU, 5-shot", "mmlu", arguments.datasets, {"shots": 5, "rows": 20, "subtasks": 6})
        )
        for title, same in (
            ("ARC-Challenge, 25-shot", False),
            ("ARC-Challenge, the same 25 shots for all", True),
        ):
            cases.append(
                (
                    title,
                    "arc_challenge",
                    arguments.datasets,
                    {"shots": 25, "rows": 25, "same_shots": same},
                )
            )
    print("| task | stock lm-eval, s | here, s | ratio | largest difference | texts that differ |")
    print("|---|---|---|---|---|---|")
    runners = [runner(model, tokenizer, batch_size=8) for runner in (Stock, Runner)]
    whole = [0.0, 0.0]
    with tempfile.TemporaryDirectory() as folder:
        for number, (title, name, source, settings) in enumerate(cases):
            loaded = load_tasks(
                BENCHMARKS[name],
                source,
                settings,
                Path(folder, str(number)),
                settings.get("subtasks"),
            )
            slow, fast, difference, texts = compare(
                runners, loaded, arguments.rows or settings.get("rows")
            )
            print(
                f"| {title} | {slow:.1f} | {fast:.1f} | {slow / fast:.1f} | {difference:.1e} | {texts} |",
                flush=True,
            )
            if source == "embedded":
                whole = [whole[0] + slow, whole[1] + fast]
    print(
        f"| embedded rows together | {whole[0]:.1f} | {whole[1]:.1f} | {whole[0] / max(whole[1], 1e-9):.1f} | | |"
    )


if __name__ == "__main__":
    main()
