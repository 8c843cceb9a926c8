"""What notebook 08 says follows the numbers: made-up cells, and the words, tables and figures that have to come out."""

import re

import matplotlib.pyplot as plt
import numpy as np
import pytest
from scipy import stats

from harp_lib import figures
from harp_lib.efficiency_figures import all_figures, memory, prefill_time, saved_vs_counted
from harp_lib.efficiency_frames import published_frame, published_saved
from harp_lib.efficiency_tables import efficiency_tables, equal_heads, memory_use, prefill_times
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
    read_missing,
    verdict,
)

VARIANTS = ("dense", "harp", "harp-folded", "thinned")
TIMES = (FASTER, GROWS, AS_MUCH, ALLOWED, FOLDING, WHOLE, MEASURED, DECODING, BYTES, FOLDED_DECODING)
WOBBLE = np.array([1.0, 1.01, 0.99])
FLOPS = dict(zip(VARIANTS, (100, 90, 88, 80), strict=True))
SHARES = {"short": (0.05, 0.06, 0.08), "long": (0.20, 0.22, 0.17)}  # of time that each pruned variant saves


def counted(**changes):
    sizes = {"removed_groups": 4, "groups": 12, "removed_fraction": 0.05, "parameters": 1000}
    layers = dict(zip(VARIANTS, (0, 2, 2, 0), strict=True))
    kv = dict(zip(VARIANTS, (60, 40, 40, 40), strict=True))
    variants = {
        name: sizes | {"layers_without_attention": layers[name], "kv_bytes_per_token": kv[name]} for name in VARIANTS
    }
    lengths, parts = [16, 64, 512], {"projections": 30, "attention": 20, "ffn": 50}
    return {
        "layers": 6,
        "whole_layers": 6,
        "random_shape": False,
        "intermediate_size": 128,
        "windows": False,
        "variants": variants,
        "lengths": lengths,
        "flops": {pairs: [parts] * len(lengths) for pairs in ("full", "causal")},
        "overtaking": {
            "full": {"attention": 192, "with_projections": 96},
            "causal": {"attention": None, "with_projections": None},
        },
        "left_out": [],
    } | changes


def times(dense, shares, noise=0.001):
    """Seconds of every variant: the machine wobbles, and each has noise of its own."""
    own = noise * np.array([[0, 0, 0], [1, -1, 0.5], [-1, 0.5, 1], [0.5, 1, -1]])
    factors = np.array([1, *(1 - share for share in shares)])[:, None]
    return dict(zip(VARIANTS, (dense * WOBBLE * factors * (1 + own)).tolist(), strict=True))


def cells_with(noise=0.001, shares=SHARES, attention=(0.4, 0.7), **changes):
    """Cells of one model: two lengths that are repeated, one that is timed once."""
    results = {"counted": counted(**changes)}
    for tokens, dense, length in ((64, 1.0, "short"), (256, 5.0, "long"), (512, 20.0, "long")):
        seconds = times(dense, shares[length], noise)
        held = {name: counted()["variants"][name]["kv_bytes_per_token"] * tokens for name in VARIANTS}
        weighed = {"cache_bytes": held, "peak_bytes": dict.fromkeys(VARIANTS, tokens * 1000)}
        if tokens == 512:
            seconds = {name: found[:1] for name, found in seconds.items()}
            weighed = {"cache_bytes": {}, "peak_bytes": {}}
        flops = {"full": FLOPS, "causal": FLOPS | {"harp": 95}}
        results[f"prefill-{tokens}"] = {"seconds": seconds, "flops": flops, **weighed}
    read = dict(zip(VARIANTS, (1000, 900, 880, 860), strict=True))
    for tokens, length in ((64, "short"), (256, "long")):
        results[f"decode-{tokens}"] = {"seconds": times(0.1, shares[length], noise), "bytes": read}
    for tokens, share in zip((64, 256), attention, strict=True):
        runs = [
            {"attention": share + by, "projections": 0.5, "ffn": 1 - share - by, "rest": 0.1}
            for by in (-noise, 0, noise)
        ]
        results[f"split-{tokens}"] = {"seconds": {"dense": runs, "harp": runs}}
    return {("tiny-llama", "all", task): {"inputs": inputs(task), "result": result} for task, result in results.items()}


def inputs(task):
    made = {"dtype": "torch.float32"}
    if task != "counted":
        tokens = int(task.split("-")[1])
        made |= {"tokens": tokens, "repetitions": 1 if tokens == 512 else 3, "steps": 4}
        made |= {"device": "CPU (x86_64)", "threads": 2}
    return made


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


def figures_of(cells, tmp_path):
    figures.use_style()
    drawn = {}
    for name, figure in all_figures(cells):
        figure.savefig(tmp_path / f"{name}.svg", metadata={"Date": None})
        plt.close(figure)
        drawn[name] = (tmp_path / f"{name}.svg").read_bytes()
    return drawn


@pytest.mark.filterwarnings("error")
def test_figures_are_drawn_the_same_twice(tmp_path):
    drawn = figures_of(cells_with(), tmp_path)
    kinds = ("prefill_time", "saved_vs_counted", "attention_share", "decode_speed", "memory")
    assert list(drawn) == [f"{kind}_tiny-llama" for kind in kinds]
    assert figures_of(cells_with(), tmp_path) == drawn


@pytest.mark.parametrize("scale", [1e-4, 1e4])
def test_the_papers_seconds_stay_in_the_picture(scale):
    cells = cells_with(random_shape=True)
    for task in ("prefill-64", "prefill-256", "prefill-512"):
        seconds = cells["tiny-llama", "all", task]["result"]["seconds"]
        seconds |= {name: [scale * each for each in found] for name, found in seconds.items()}
    cells = {("LLaMA3.1-8B", method, task): cell for (_, method, task), cell in cells.items()}
    figure = prefill_time(cells, "LLaMA3.1-8B")
    low, high = figure.axes[0].get_ylim()
    plt.close(figure)
    assert published_frame()["seconds"].between(low, high).all()
    assert low < scale < high


def test_points_stand_at_their_lengths_and_a_lone_band_is_seen():
    cells = cells_with()
    figure = saved_vs_counted(cells, "tiny-llama")
    for axis in figure.axes:
        places = {x for container in axis.containers for x in container[0].get_xdata()}
        assert places == {64, 256, 512}
        assert all(line.get_marker() == "" for line in axis.lines if line.get_linestyle() in (":", "--"))
    plt.close(figure)
    del cells["tiny-llama", "all", "prefill-256"], cells["tiny-llama", "all", "prefill-512"]
    figure = saved_vs_counted(cells, "tiny-llama")
    marks = [line.get_marker() for axis in figure.axes for line in axis.lines if line.get_linestyle() in (":", "--")]
    plt.close(figure)
    assert marks.count("x") == marks.count("+") == 3


def test_a_peak_that_no_system_tells_has_no_axis():
    cells = cells_with()
    for task in ("prefill-64", "prefill-256"):
        cells["tiny-llama", "all", task]["result"]["peak_bytes"] = dict.fromkeys(VARIANTS)
    assert read_missing(cells).count("peak of memory") == 2
    figure = memory(cells, "tiny-llama")
    left, right = figure.axes
    plt.close(figure)
    assert left.axison
    assert not right.axison
    assert [text.get_text() for text in right.texts] == ["not measured"]


@pytest.mark.filterwarnings("error")
def test_what_is_missing_is_said_and_the_rest_is_shown(tmp_path):
    cells = cells_with(left_out=[1024])
    assert read_missing(cells_with()) == "Everything was measured."
    for task in ("prefill-256", "split-256", "decode-64"):
        cells["tiny-llama", "all", task]["result"] = {"failed": "OutOfMemoryError: CUDA out of memory"}
    cells["tiny-llama", "all", "prefill-64"]["result"]["peak_bytes"] = dict.fromkeys(VARIANTS)
    lines = read_missing(cells).splitlines()
    assert lines[0] == "- Not measured for tiny random Llama: all at 1024 tokens (more than the model reads)."
    assert lines[1].endswith("prefill at 256 tokens (OutOfMemoryError: CUDA out of memory).")
    assert lines[4].endswith("peak of memory at 64 tokens (this system does not tell it).")
    assert len(lines) == 5
    assert judged(cells)[GROWS] == "too small to tell", "one length is left"
    assert set(memory_use(cells)["peak beyond the weights"]) == {"not measured"}
    tables = {name: table for table, name, _ in efficiency_tables(cells)}
    assert len(tables["efficiency_missing"]) == 5
    assert not any("nan" in table.to_markdown(index=False) for table in tables.values())
    figures_of(cells, tmp_path)


@pytest.mark.filterwarnings("error")
def test_where_nothing_was_measured(tmp_path):
    cells = cells_with()
    for task in [task for _, _, task in cells if task != "counted"]:
        cells["tiny-llama", "all", task]["result"] = {"failed": "OutOfMemoryError: CUDA out of memory"}
    assert judged(cells).to_dict() == {COUNTED: "does not hold", SPEED: "does not hold"}
    assert "nothing was timed" in read_distance(cells)
    assert answer(cells).endswith("Of the 1 claims on this model: does not hold 1.")
    assert len(list(efficiency_tables(cells))) == 10
    figures_of(cells, tmp_path)
