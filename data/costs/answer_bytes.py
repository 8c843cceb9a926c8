"""Bytes of the reference answers whose likelihood is measured: ``answer_bytes.csv``.

The cells of ``likelihoods`` have bits per byte of each answer, but not how long it is::

    python data/costs/answer_bytes.py DIR

DIR is a folder of benchmarks, as ``--datasets`` takes it.
"""

import json
import sys
from itertools import islice
from pathlib import Path

import pandas as pd

from harp_lib.evaluation.benchmarks import ALL_BENCHMARKS
from harp_lib.evaluation.likelihood import reference_answer

SPLITS = {"gsm8k": "test", "triviaqa": "validation"}  # that lm-eval asks
ROWS = 150  # the first ones, as many as the profile `small` asks of any model


def answer_bytes(folder: Path) -> pd.DataFrame:
    """Columns: task, question (counted from 0), bytes of its reference answer in UTF-8.

    The blank between prompt and answer is counted, as ``bits_per_byte`` counts it.
    """
    rows = []
    for task, split in SPLITS.items():
        with (folder / task / f"{split}.jsonl").open(encoding="utf-8") as lines:
            for question, line in enumerate(islice(lines, ROWS)):
                answer = reference_answer(json.loads(line), ALL_BENCHMARKS[task].reference)
                length = len(f" {answer}".encode())
                rows.append({"task": task, "question": question, "bytes": length})
    return pd.DataFrame(rows)


if __name__ == "__main__":
    answer_bytes(Path(sys.argv[1])).to_csv(Path(__file__).with_suffix(".csv"), index=False)
