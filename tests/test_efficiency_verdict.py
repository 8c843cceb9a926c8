"""What notebook 08 says follows the numbers: made-up cells, and the words and tables that have to come out."""

import re

import numpy as np
import pytest
from efficiency_cells import SHARES, cells_with
from scipy import stats

from harp_lib.efficiency_frames import published_saved
from harp_lib.efficiency_tables import efficiency_tables, equal_heads, prefill_times
from harp_lib.efficiency_verdict import (
    ALLOWED,
    AS_MUCH,
    BYTES,
    CACHE,
    COUNTED,
    DECODING,
    FASTER,
    FOLDED_DECODING,
    FOLDING,
    GROWS,
    MEASURED,
    SPEED,
    WHOLE,
    answer,
    read_distance,
    verdict,
)

TIMES = (FASTER, GROWS, AS_MUCH, ALLOWED, FOLDING, WHOLE, MEASURED, DECODING, BYTES, FOLDED_DECODING)


def judged(cells):
    return verdict(cells).set_index("claim")["verdict"]


def test_what_is_clear():
    said = judged(cells_with())
    expected = dict.fromkeys(
        (FASTER, GROWS, AS_MUCH, ALLOWED, FOLDING, CACHE, DECODING, BYTES, FOLDED_DECODING), "holds"
    )
    expected |= {WHOLE: "holds", MEASURED: "holds", COUNTED: "does not hold", SPEED: "does not hold"}
    assert said.to_dict() == expected


def test_what_is_clearly_otherwise():
    shares = {"short": (0.05, 0.04, 0.08), "long": (-0.02, -0.04, 0.10)}
    said = judged(cells_with(shares=shares, attention=(0.6, 0.7)))
    for claim in TIMES:
        assert said[claim] == "does not hold", claim


def test_what_is_between():
    """More than nothing and than the visible pairs' 5 %; less than all pairs', the bytes' and the paper's share."""
    said = judged(cells_with(shares=SHARES | {"long": (0.07, 0.08, 0.06)}))
    assert [said[claim] for claim in (FASTER, DECODING)] == ["holds"] * 2
    assert [said[claim] for claim in (AS_MUCH, BYTES)] == ["does not hold"] * 2
    assert said[ALLOWED] == "too small to tell"


@pytest.mark.parametrize(
    ("saved", "said", "visible", "full"),
    [
        (0.20, "holds", "holds", "holds"),
        (0.10, "too small to tell", "holds", "too small to tell"),
        (0.07, "too small to tell", "holds", "does not hold"),
        (0.05, "too small to tell", "too small to tell", "does not hold"),
        (0.02, "does not hold", "does not hold", "does not hold"),
    ],
)
def test_both_counts_of_operations_are_edges(saved, said, visible, full):
    row = verdict(cells_with(shares=SHARES | {"long": (saved, 0.3, 0.3)})).set_index("claim").loc[ALLOWED]
    assert row["verdict"] == said
    assert f"5.0 % with visible query-key pairs counted ({visible}) and 10.0 % with all ({full})" in row["evidence"]


def test_what_noise_hides():
    said = judged(cells_with(noise=0.3))
    for claim in TIMES:
        assert said[claim] == "too small to tell", claim
    assert "which is too small to tell" in answer(cells_with(noise=0.3))


def test_evidence():
    evidence = verdict(cells_with()).set_index("claim")["evidence"]
    assert evidence[FASTER] == "the interval of the time saved is above zero at 2 of 2 lengths that were repeated"
    assert re.fullmatch(r"20\.0 % \[19\.\d, 20\.\d\] at 256 tokens; timed once, \d+\.\d % at 512", evidence[AS_MUCH])
    assert "at 192 tokens with all query-key pairs counted and nowhere with the visible ones" in evidence[COUNTED]
    cache = "HARP's cache holds 4/6 of the dense bytes at 2 of 2 lengths that were repeated; all bytes are as counted"
    assert evidence[CACHE] == cache
    assert "attention without its projections takes 40.0 % at 64, 70.0 % at 256 tokens" in evidence[MEASURED]
    assert evidence[SPEED] == "5.4466 s become 4.5394 s: 16.7 % less time, and 20.0 % more speed (1.20×)"
    assert published_saved().round(3).to_dict() == {1024: 0.043, 65536: 0.167}


def test_growth_is_welchs_t():
    cells = cells_with()
    cells["tiny-llama", "all", "prefill-64"]["result"]["seconds"]["harp"] = [0.9, 0.99, 0.95]  # it varies more
    evidence = verdict(cells).set_index("claim").loc[GROWS, "evidence"]
    logs = []
    for tokens in (64, 256):
        seconds = cells["tiny-llama", "all", f"prefill-{tokens}"]["result"]["seconds"]
        logs.append(np.log(np.array(seconds["harp"]) / seconds["dense"]))
    reach = stats.ttest_ind(*logs, equal_var=False).confidence_interval()
    value, low, high = (100 * (1 - np.exp(-x)) for x in (logs[0].mean() - logs[1].mean(), reach.low, reach.high))
    assert evidence.endswith(f"pruned over dense time falls by {value:.1f} % [{low:.1f}, {high:.1f}]")


@pytest.mark.parametrize(
    ("windows", "change", "said"),
    [(False, -1, "does not hold"), (True, 0, "holds"), (False, 0, "holds")],
)
def test_the_cache_is_exact_or_it_is_not(windows, change, said):
    cells = cells_with(windows=windows)
    cells["tiny-llama", "all", "prefill-64"]["result"]["cache_bytes"]["harp"] += change
    assert judged(cells)[CACHE] == said


@pytest.mark.parametrize(
    ("windows", "said", "why"),
    [
        (True, "holds", "sliding windows hold less than is counted"),
        (False, "does not hold", "bytes are not as counted"),
    ],
)
def test_only_windows_hold_less(windows, said, why):
    cells = cells_with(windows=windows)
    for task in ("prefill-64", "prefill-256"):
        held = cells["tiny-llama", "all", task]["result"]["cache_bytes"]
        held |= {name: size // 2 for name, size in held.items()}
    row = verdict(cells).set_index("claim").loc[CACHE]
    assert (row["verdict"], row["evidence"].split("; ")[1]) == (said, why)


@pytest.mark.parametrize(
    ("width", "attention", "said", "why"),
    [
        (128, (0.4, 0.7), "holds", None),
        (256, (0.4, 0.7), "too small to tell", "no length above it was repeated"),  # at d_ff nothing is claimed
        (64, (0.4, 0.7), "too small to tell", "no length below it was repeated"),
        (512, (0.4, 0.3), "too small to tell", "no length above it was repeated"),
        (512, (0.4, 0.7), "does not hold", "no length above it was repeated"),
    ],
)
def test_both_sides_of_d_ff_are_needed(width, attention, said, why):
    row = verdict(cells_with(attention=attention, intermediate_size=width)).set_index("claim").loc[MEASURED]
    assert row["verdict"] == said
    assert re.findall("no length .* repeated", row["evidence"]) == ([why] if why else [])


def test_no_length_beside_d_ff_holds_nothing():
    cells = cells_with(intermediate_size=256)
    del cells["tiny-llama", "all", "split-64"]
    assert judged(cells)[MEASURED] == "too small to tell"


def test_the_answer():
    text = answer(cells_with())
    assert re.search(
        r"Reading 256 tokens, HARP saves 20\.0 % \[.*\] of the dense model's time: a speed-up of 1\.25×", text
    )
    assert text.endswith("Of the 12 claims on this model: holds 11, does not hold 1.")
    distance = read_distance(cells_with())
    points = [float(number) for pair in re.findall(r"([+-]\d+\.\d) and ([+-]\d+\.\d) at", distance) for number in pair]
    assert points[:6] == pytest.approx([0, -5, 15, 10, 15, 10], abs=0.2), "time saved, less 5 % and 10 % of operations"
    assert points[6] > 0 > points[7], "the paper's is between what its plan saves of visible pairs and of all"


def test_the_tables():
    cells = cells_with()
    tables = {name: table for table, name, _ in efficiency_tables(cells)}
    assert "efficiency_missing" not in tables
    assert not any("nan" in table.to_markdown(index=False) for table in tables.values())
    numbers = {name: numbers for _, name, numbers in efficiency_tables(cells)}["efficiency_share"]
    assert numbers.groupby(["pairs", "tokens"])["share"].sum().tolist() == pytest.approx([1.0] * 6)
    assert tables["efficiency_share"].loc[4].tolist()[1:] == ["visible", "64", "30.0 %", "20.0 %", "50.0 %"]
    rows = prefill_times(cells).set_index(["tokens", "variant"])
    assert rows.loc[("512", "HARP"), "time saved"].count("[") == 0, "timed once"
    assert rows.loc[("65,536", "HARP"), "time saved"] == "16.7 %"
    assert rows.loc[("65,536", "HARP"), "speed-up"] == "1.20×"
    heads = equal_heads(cells).set_index(["tokens", "variant"])["than thinned out"]
    assert heads.to_dict() == {
        ("64", "HARP"): "more time",
        ("64", "HARP, folded"): "more time",
        ("64", "thinned out"): "",
        ("256", "HARP"): "less time",
        ("256", "HARP, folded"): "less time",
        ("256", "thinned out"): "",
    }
    noisy = equal_heads(cells_with(noise=0.3))
    assert set(noisy["than thinned out"]) == {"too small to tell", ""}
