"""Numbers of docs/protocol.md that no table shows."""

import json
import re

import pytest
from helpers import CHECKOUT

from harp_lib import config
from harp_lib.names import BASELINES
from harp_lib.report.frames import Results
from harp_lib.report.intervals import paired_means

pytestmark = pytest.mark.usefixtures("only_committed")

TEXT = re.sub(r"\s+", " ", (CHECKOUT / "docs" / "protocol.md").read_text(encoding="utf-8"))
SURE = 0.5  # bits per byte: the dense model's reasoning has led to the answer


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


@pytest.fixture
def bits_of_bbh(only_committed):
    """Bits per byte of answers to BBH, question × method, for each model."""
    answers = Results("small").questions("likelihoods")
    answers = answers[answers["task"] == "bbh_cot_fewshot"]
    wide = {}
    for model, part in answers.groupby("model", sort=False):
        bits = part.pivot_table("bits_per_byte", ["subtask", "question"], "method", sort=False)
        wide[model] = bits[["dense", "harp+flap", *BASELINES]].dropna()
    return wide


def leads(bits):
    """Bits fewer than each baseline's, with intervals."""
    return [paired_means([(bits[other], bits["harp+flap"])]) for other in BASELINES]


def test_bbh_is_divided(bits_of_bbh):
    bits = bits_of_bbh["Qwen 0.5B"]
    sure = bits["dense"] < SURE
    assert f"{sure.sum()} of {len(sure)} on Qwen 0.5B" in TEXT
    assert min(lead.low for lead in leads(bits[sure])) > 0
    assert min(lead.high for lead in leads(bits[~sure])) < 0


def test_bbh_is_divided_without_a_clear_difference(bits_of_bbh):
    bits = bits_of_bbh["Gemma"]
    sure = bits["dense"] < SURE
    for part in (bits[sure], bits[~sure]):
        first = leads(part)[0]
        assert first.low < 0 < first.high
