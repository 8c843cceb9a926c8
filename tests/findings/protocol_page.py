"""Numbers of the protocol that no table shows."""

import json

from findings.stored import LARGER, finding
from harp_lib import config
from harp_lib.report import data


@finding(
    "docs/protocol.md",
    "lm-eval's filter takes all of that line for the answer, so none of the {} answers that it "
    "finds in {} replies is right (the cell is in `data/left_out`).",
)
def bbh_of_the_larger_model():
    folder = config.DATA / "left_out" / "small" / "main_tables" / LARGER / "dense"
    cell = json.loads((folder / "bbh_cot_fewshot.json").read_bytes())
    scores = data.answered(cell["result"])
    assert sum(scores) == 0
    return int(sum(data.answered(cell["result"], "answered"))), len(scores)
