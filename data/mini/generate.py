"""Write the procedural tasks of the miniature benchmark: GSM8K, four MATH subjects, six BBH
subtasks, LongBench.

    python data/mini/generate.py [--out FOLDER]

Half of the rows, or three of five, are easy by design; the others are medium and hard (each module
says what that is). LongBench's rows have no such levels: there it counts where in a text the answer
stands. Standard library only. The files are the same from Python 3.11 on.
"""

import argparse
import json
import random
from pathlib import Path

import generate_bbh
import generate_gsm8k
import generate_longbench
import generate_math

Splits = dict[str, list[dict]]


def generate() -> dict[str, Splits]:
    """Task → split → rows. Each task has random numbers of its own, so that changing one leaves the
    others alone.
    """
    makers = {"gsm8k": (generate_gsm8k.rows,)}
    makers |= {
        f"leaderboard_math_{name}_hard": (generate_math.rows, name)
        for name in generate_math.SUBJECTS
    }
    makers |= {
        f"bbh_cot_fewshot_{name}": (generate_bbh.rows, name) for name in generate_bbh.SUBTASKS
    }
    makers |= {
        f"longbench_{name}": (generate_longbench.rows, name) for name in generate_longbench.MAKERS
    }
    return {task: make(random.Random(task), *which) for task, (make, *which) in makers.items()}


def write(out: Path) -> None:
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
    write(parser.parse_args().out)
