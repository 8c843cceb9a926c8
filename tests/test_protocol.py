"""Numbers of docs/protocol.md that no table shows."""

import re

import pytest
from helpers import CHECKOUT

from harp_lib.report.frames import Results

pytestmark = pytest.mark.usefixtures("only_committed")

TEXT = re.sub(r"\s+", " ", (CHECKOUT / "docs" / "protocol.md").read_text(encoding="utf-8"))


def test_replies_of_the_larger_model_to_bbh():
    asked = Results("small").questions("scores")
    asked = asked.query("model == 'Qwen 1.5B' and method == 'dense' and task == 'bbh_cot_fewshot'")
    sums = asked[["score", "answered", "chance"]].sum().round().astype(int)
    assert (
        f"finds {sums['answered']} answers in the dense 1.5B's {len(asked)} replies, and "
        f"{sums['score']} are right; guesses at all {len(asked)} questions would have "
        f"{sums['chance']} right." in TEXT
    )


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
