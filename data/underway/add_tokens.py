"""Say in stored cells how their texts became tokens, where that has not changed.

    python data/underway/add_tokens.py DATASETS smollm2-135m gemma3-270m

Since 2026-11-28 the inputs of a cell name the tokenizer, the token that a text begins with and how
a model writes. Cells of ``data/results/small`` that were stored before get these fields. It is
right for models whose tokenizer is the one they were computed with, and nothing is computed again.
"""

import json
import sys

from harp_lib import config
from harp_lib.experiments.job import Job
from harp_lib.results import digest, write_json

profile = config.load_profile("small", datasets=sys.argv[1])
for model in sys.argv[2:]:
    job = Job("", config.profile_for(model, profile), model)
    fields = ("tokenizer", "first_token", "generation")
    added = {name: job.inputs[name] for name in fields}
    digests = {}  # of the inputs of each cell: before, and with the fields
    num_cells = 0
    for file in (config.RESULTS / "small").glob(f"*/{config.slug(model)}/*/[!.]*.json"):
        stored = json.loads(file.read_bytes())
        inputs = stored["inputs"]
        if "tokenizer" in inputs:
            continue
        if (inputs["model"], inputs["digest"]) != (model, job.inputs["digest"]):
            raise SystemExit(f"{file} was computed with other weights")
        before = digest(inputs)
        inputs.update(added)
        if "weights" in inputs:  # of a refit, whose file is named by its inputs
            inputs["weights"] = job._refit_file.stem
        digests[before] = digest(inputs)
        write_json(file, stored)
        num_cells += 1
    for run in (config.RESULTS / "small").glob("*/run-*.json"):
        listed = json.loads(run.read_bytes())["cells"]
        for entry in listed:
            if entry[0] == model:
                entry[3] = digests.get(entry[3], entry[3])
        write_json(run, {"cells": listed})
    print(f"{model}: {num_cells} cells")
