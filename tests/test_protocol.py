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


def test_the_second_of_two_searches_in_bfloat16():
    rows = Results("small").rows("frontier", "perplexity")
    rows = rows.query("model == 'Qwen 1.5B' and method == 'harp' and corpus == 'wikitext'")
    [second] = rows.query("layer == 27 and alpha == 0")["value"]
    assert f"and of {second:.3f}" in TEXT
