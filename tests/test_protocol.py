"""Numbers of docs/protocol.md that no table shows."""

import json
import re

import pytest
from helpers import CHECKOUT

from harp_lib import config
from harp_lib.report.frames import Results

pytestmark = pytest.mark.usefixtures("only_committed")

TEXT = re.sub(r"\s+", " ", (CHECKOUT / "docs" / "protocol.md").read_text(encoding="utf-8"))


def test_replies_of_the_larger_model_to_bbh():
    folder = config.DATA / "left_out" / "small" / "main_tables" / "qwen2.5-coder-1.5b" / "dense"
    rows = json.loads((folder / "bbh_cot_fewshot.json").read_bytes())["result"]["rows"]
    assert sum(rows["score"]) == 0
    found, asked = int(sum(rows["answered"])), len(rows["score"])
    assert f"none of the {found} answers that it finds in {asked} replies is right" in TEXT


def test_searches_in_bfloat16_and_float32_that_measured_the_same_candidate():
    found = []
    for unit, method in [
        ("search", "harp"),
        ("frontier", "harp"),
        ("frontier", "alpha-in-pairs"),
        ("frontier", "alpha-float32"),
    ]:
        rows = Results("small").rows(unit, "perplexity")
        rows = rows.query("model == 'Qwen 1.5B' and layer == 27 and alpha == 0")
        rows = rows[(rows["method"] == method) & (rows["corpus"] != "python-docs")]
        found += [f"{value:.3f}" for value in rows["value"]]
    first, second, in_pairs, in_float32 = found
    assert f"found a perplexity of {first} and of {second}." in TEXT
    assert (
        f"it is {in_pairs} with each document twice in a batch, and {in_float32} in float32."
        in TEXT
    )
