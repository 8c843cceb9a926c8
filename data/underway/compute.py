"""Compute what is left of the profile ``small``, unit by unit.

    python data/underway/compute.py DATASETS [MODEL …]

A unit that fails is named, and the queue goes on; whatever is stored is read.
"""

import sys
import time
import traceback

import faster

from harp_lib import config, experiments
from harp_lib.experiments.context import release
from harp_lib.prefix_lm import lm

# Six times as many answers are written side by side as the library would (5.5 GB of keys and
# values): a step of 50 took 1.3 times as long as one of 25 (Qwen 1.5B, bfloat16, two cores).
lm.CACHED_TOKENS = 196_608

faster.install()

QUEUE = [("qwen2.5-coder-0.5b", ["scores"]), ("qwen2.5-coder-1.5b", ["scores"])]


def main(datasets: str, models: list[str]) -> None:
    profile = config.load_profile("small", datasets=datasets)
    for model, units in QUEUE:
        if models and model not in models:
            continue
        for unit in units:
            began = time.monotonic()
            try:
                counts = experiments.compute(unit, profile, model)
            except Exception:
                traceback.print_exc()
                print(f"{model}, {unit}: FAILED", flush=True)
                continue
            hours = (time.monotonic() - began) / 3600
            print(f"{model}, {unit}: {counts}, {hours:.2f} hours", flush=True)
        release()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
