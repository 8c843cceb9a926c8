"""What notebook 08 shows follows the numbers, and says what is missing: made-up cells, and what has to come out."""

import matplotlib.pyplot as plt
import pytest
from efficiency_cells import VARIANTS, cells_with
from test_efficiency_verdict import judged

from harp_lib import figures
from harp_lib.efficiency_figures import all_figures, memory, prefill_time, saved_vs_counted
from harp_lib.efficiency_frames import published_frame
from harp_lib.efficiency_tables import efficiency_tables, memory_use
from harp_lib.efficiency_verdict import COUNTED, GROWS, SPEED, answer, read_distance, read_missing


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
