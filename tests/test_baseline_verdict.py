"""What notebook 04 says follows the numbers: made-up cells, and the words that have to come out."""

import pandas as pd
import pytest

from harp_lib.baseline_frames import WITHOUT_BIAS
from harp_lib.baseline_verdict import answer, read_ranges, verdict
from harp_lib.measure.corpora import TITLES
from harp_lib.methods import BASELINES, METHODS

PYTHON, SCIPY = TITLES["python-docs"], TITLES["scipy-docs"]


def cells_with(nll_of_baseline, other=None):
    """Cells in which every baseline has these likelihoods, and HARP has 10 for each of four documents."""

    def cell(nll):
        return {"result": {"nll": nll, "tokens": [10] * 4}, "inputs": {}}

    cells = {}
    for corpus, nll in (("python-docs", nll_of_baseline), ("scipy-docs", other or nll_of_baseline)):
        for split in ("test", "validation"):
            for method in ("dense", *METHODS):
                harp = method.startswith("harp")
                cells["m", method, f"{corpus}-{split}"] = cell([10, 11, 12, 13] if harp else nll)
            cells["m", WITHOUT_BIAS, f"{corpus}-{split}"] = cell([value + 1 for value in nll])
    for method in METHODS:
        repeated = [[1, 2, 3, 4] * 2, [1, 2, 3, 4] * 3] if method == "flap" else [list(range(8)), list(range(12))]
        inputs = {"corpus": "python-docs"}
        cells["m", method, "writing"] = {"result": {"ids": repeated, "texts": ["a", "b"]}, "inputs": inputs}
    for method in BASELINES:
        for start in (0, 3):
            cells["m", method, f"range-{start}"] = {
                "result": {"nll": [10.0 + start], "tokens": [10]},
                "inputs": {"layers": [start, start + 3]},
            }
    return cells


@pytest.mark.parametrize(
    ("baseline", "other", "expected"),
    [
        ([12.0, 13.1, 14, 15.1], None, "holds"),
        ([8.0, 9.1, 10, 11.1], None, "does not hold"),
        ([12.0, 9, 14, 11], None, "too small to tell"),
        ([12.0, 13.1, 14, 15.1], [8.0, 9.1, 10, 11.1], f"{PYTHON}: holds; {SCIPY}: does not hold"),
        ([12.0, 13.1, 14, 15.1], [12.0, 9, 14, 11], f"{PYTHON}: holds; {SCIPY}: too small to tell"),
    ],
)
def test_verdicts_follow_the_intervals(baseline, other, expected):
    table = verdict(cells_with(baseline, other)).set_index("claim")["verdict"]
    assert table["HARP beats FLAP, as many heads removed"] == expected
    assert table["HARP+FLAP beats Mag-sp, as many parameters removed"] == expected
    assert table["the printed pruning ratios follow from the configs"] == "holds"
    assert table["HARP+FLAP removes as many parameters as the baselines"] == "holds for 3 of 4"
    assert table["FLAP's bias lowers perplexity"] == "holds", "without it every likelihood is worse by one"


ALL = "Mag-sp, Wanda-sp, LLM-Pruner and FLAP"


@pytest.mark.parametrize(
    ("baseline", "other", "short", "relation"),
    [
        ([12.0, 13.1, 14, 15.1], None, "yes", f"lower than that of {ALL}"),
        ([8.0, 9.1, 10, 11.1], None, "no", f"higher than that of {ALL}"),
        ([12.0, 9, 14, 11], None, "too small to tell", f"not told apart from that of {ALL}"),
        (
            [12.0, 13.1, 14, 15.1],
            [8.0, 9.1, 10, 11.1],
            "no",
            f"compared with that of Mag-sp, lower on {PYTHON} and higher on {SCIPY}; compared",
        ),
        (
            [8.0, 9.1, 10, 11.1],
            [12.0, 9, 14, 11],
            "no",
            f"compared with that of Mag-sp, higher on {PYTHON} and not told apart on {SCIPY};",
        ),
    ],
)
def test_the_answer_in_words(baseline, other, short, relation):
    text = answer(cells_with(baseline, other))
    assert text.startswith(f"- **m: {short}.** With as many parameters removed, the perplexity of HARP+FLAP")
    assert text.count(relation) == 2, "against HARP+FLAP and against HARP"


@pytest.mark.parametrize(("repeating", "expected"), [("flap", "does not hold"), ("harp", "holds")])
def test_writing_is_compared_with_the_baseline_that_reads_best(repeating, expected):
    cells = cells_with([8.0, 9.1, 10, 11.1])
    cells["m", "flap", "python-docs-validation"]["result"]["nll"] = [7.0, 8, 9, 10]
    for method in METHODS:
        ids = [[1, 2, 3, 4] * times for times in (3, 4, 3)] if method == repeating else [list(range(8))] * 3
        cells["m", method, "writing"]["result"]["ids"] = ids
    claim = "the baseline that reads best also writes with less repetition than HARP"
    row = verdict(cells).set_index("claim").loc[claim]
    assert row["verdict"] == expected
    assert row["evidence"].startswith("FLAP reads best")


def test_ranges_in_words():
    columns = ["model", "method", "layers", "start", "end", "perplexity"]
    rows = [("m", "flap", 3, 0, 3, 20.0), ("m", "flap", 3, 3, 6, 40.0), ("m", "mag-sp", 3, 0, 3, 99.0)]
    text = read_ranges(pd.DataFrame(rows, columns=columns), {"m": {"dense": 10.0, "harp": 30.0}})
    assert text.splitlines()[0] == (
        "- **m, FLAP.** The best range is layers 0–2 (perplexity 20.00), the next layers 3–5 (perplexity 40.00), the "
        "worst layers 3–5 (perplexity 40.00). 1 of 2 ranges come out below HARP (30.00). In its best range the other "
        "methods come to: Mag-sp 99.00."
    )
