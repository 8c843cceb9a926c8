"""Write the procedural tasks of the miniature benchmark: GSM8K, MATH, BBH and LongBench.

    python data/mini/generate.py [--out FOLDER]

Half of the rows, or three of five, are easy by design; the others are medium and hard, and each
module says what that means. LongBench's rows have no such levels: what counts there is where in a
text the answer stands. Standard library only. The files are the same from Python 3.11 on.
"""

import argparse
import json
import random
from pathlib import Path

import generate_bbh
import generate_gsm8k
import generate_longbench
import generate_math

Splits = dict[str, list[dict]]  # split → rows


def generate() -> dict[str, Splits]:
    """Task → split → rows.

    Each task has random numbers of its own, so that a change of one leaves the others alone.
    """
    tasks = {"gsm8k": generate_gsm8k.rows(random.Random("gsm8k"))}
    for subject in generate_math.SUBJECTS:
        task = f"leaderboard_math_{subject}_hard"
        tasks[task] = generate_math.rows(random.Random(task), subject)
    for subtask in generate_bbh.SUBTASKS:
        task = f"bbh_cot_fewshot_{subtask}"
        tasks[task] = generate_bbh.rows(random.Random(task), subtask)
    for name in generate_longbench.MAKERS:
        task = f"longbench_{name}"
        tasks[task] = generate_longbench.rows(random.Random(task), name)
    return tasks


def write(out: Path) -> None:
    """Write ``<task>/<split>.jsonl`` for every task and split."""
    for task, splits in generate().items():
        (out / task).mkdir(parents=True, exist_ok=True)
        for split, rows in splits.items():
            text = "".join(json.dumps(row) + "\n" for row in rows)
            (out / task / f"{split}.jsonl").write_text(text, encoding="utf-8", newline="\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description="Write the procedural tasks of the miniature benchmark."
    )
    parser.add_argument("--out", type=Path, default=Path(__file__).parent, metavar="FOLDER")
    write(parser.parse_args().out.expanduser())
