"""Figures, and the notebooks that show them: what is drawn, said, and checked by hand."""

import ast
import itertools
import re

import matplotlib.pyplot as plt
import nbformat
import numpy as np
import pandas as pd
import pytest
from matplotlib.collections import LineCollection, PathCollection
from matplotlib.colors import to_hex

from harp_lib import report
from harp_lib.config import NOTEBOOKS, load_profile
from harp_lib.names import CATALOGUE
from harp_lib.report import data, plots
from harp_lib.report.figures_costs import LOOK
from harp_lib.report.plots import LOOKS
from harp_lib.report.score_tables import at_a_glance
from harp_lib.results import values_of

FIGURES = {
    "08": ("time_saved", "decode_time"),
}


@pytest.fixture(autouse=True)
def style():
    plots.use_style()
    yield
    plt.close("all")


def book(number: str):
    """The source of a notebook."""
    return nbformat.read(next(NOTEBOOKS.glob(f"{number}_*.ipynb")), 4)


def frame() -> pd.DataFrame:
    """Two models, three tasks and two methods, each with a value and its interval."""
    rows = itertools.product(["A", "B"], ["first", "second", "third"], ["dense", "harp"])
    made = pd.DataFrame(list(rows), columns=["model", "task", "method"])
    made["value"] = np.arange(len(made)) * 7.0 + 5
    return made.assign(low=made["value"] - 3, high=made["value"] + 4, layer=made["task"].str.len())


# ---- plots


def drawn_intervals(axis: plt.Axes, along: int) -> set[tuple[float, float]]:
    """The ends of every interval on an axis; ``along`` is 0 for x and 1 for y.

    The strokes across an interval's direction, such as the tops of bars, are none.
    """
    intervals = set()
    for collection in axis.collections:
        if not isinstance(collection, LineCollection):
            continue
        for segment in collection.get_segments():
            if not len(segment):
                continue
            ends = segment[:, along]
            across = segment[:, 1 - along]
            if np.ptp(across) == 0:
                intervals.add((round(min(ends), 6), round(max(ends), 6)))
    return intervals


def drawn_points(axis: plt.Axes) -> set[tuple[float, float]]:
    """Where the marks on an axis stand."""
    points = set()
    for collection in axis.collections:
        if isinstance(collection, PathCollection):
            points.update(tuple(point) for point in np.ma.getdata(collection.get_offsets()))
    return points


@pytest.mark.parametrize("scale", ["linear", "log"])
def test_intervals_of_dots_are_where_the_numbers_are(scale):
    figure = plots.dots(frame(), "task", "method", x="score (%)")
    for axis, part in figure.panels:
        axis.set_xscale(scale)
        assert drawn_intervals(axis, along=0) == set(zip(part["low"], part["high"], strict=True))
        assert {x for x, _ in drawn_points(axis)} == set(part["value"])


def test_dots_have_names_down_the_side_and_one_legend():
    figure = plots.dots(frame(), "task", "method", x="score (%)")
    names = [name.get_text() for name in figure.axes[0].get_yticklabels()]
    assert names == ["first", "second", "third"]
    plots.finish(figure, "A title")
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["dense", "HARP"]


def test_a_missing_interval_is_not_drawn():
    part = frame().assign(low=np.nan, high=np.nan)
    for axis, rows in plots.dots(part, "task", "method").panels:
        assert not drawn_intervals(axis, along=0)
        assert len(drawn_points(axis)) == len(rows), "the dots are drawn"


def test_an_unknown_look_is_named():
    with pytest.raises(ValueError, match="no look for unheard-of"):
        plots.dots(frame().assign(method="unheard-of"), "task", "method")


def test_lines_and_their_bands_are_where_the_numbers_are():
    part = frame().assign(layer=[0, 0, 1, 1, 2, 2] * 2)
    for axis, rows in plots.lines(part, "layer", "method").panels:
        points = {tuple(point) for line in axis.lines for point in line.get_xydata()}
        assert points == set(zip(rows["layer"], rows["value"], strict=True))
        assert points == drawn_points(axis)
        corners = set()
        for band in axis.patches:
            corners.update(tuple(point) for point in band.get_xy())
        lows = set(zip(rows["layer"], rows["low"], strict=True))
        highs = set(zip(rows["layer"], rows["high"], strict=True))
        assert corners == lows | highs


def test_bars_have_their_numbers_and_hollow_ones_are_empty():
    part = frame().replace({"method": {"dense": "alpha-1"}})
    for axis, rows in plots.bars(part, "task", "method").panels:
        assert sorted(bar.get_height() for bar in axis.patches) == sorted(rows["value"])
        are_filled = [bar.get_facecolor()[3] > 0 for bar in axis.patches]
        assert are_filled.count(False) == 3, "HARP at α = 1 is hollow"
        hollow = [bar for bar in axis.patches if bar.get_facecolor()[3] == 0]
        assert {to_hex(bar.get_edgecolor()) for bar in hollow} == {LOOKS["alpha-1"].colour}
        assert drawn_intervals(axis, along=1) == set(zip(rows["low"], rows["high"], strict=True))


def test_a_bar_of_height_zero_is_a_stroke_and_a_missing_one_is_not():
    part = frame().query("model == 'A'")
    part.loc[part["task"] == "first", "value"] = [0, np.nan]
    ((axis, _),) = plots.bars(part.drop(columns=["low", "high"]), "task", "method").panels
    tops = set()
    for collection in axis.collections:
        tops.update(segment[0, 1] for segment in collection.get_segments() if len(segment))
    assert tops == set(part["value"].dropna())


def test_marks_keep_their_numbers_whatever_the_index_of_the_frame():
    shuffled = frame().iloc[::-1].set_axis([0] * 12)
    for axis, rows in plots.dots(shuffled, "task", "method").panels:
        assert {x for x, _ in drawn_points(axis)} == set(rows["value"])


def test_one_colour_has_one_meaning():
    meanings = [method.colour for method in CATALOGUE.values()]
    meanings.extend(colour for colour, _ in LOOK.values())
    meanings.extend([plots.DENSE, plots.PAPER, plots.RANDOM, plots.FIRST, plots.SECOND])
    assert len({colour.lower() for colour in meanings}) == len(meanings)


def test_every_look_differs_from_the_others():
    marks = {(look.marker, look.hollow, look.colour) for look in LOOKS.values()}
    assert len(marks) == len(LOOKS)


def test_one_panel_has_no_title_and_several_have_their_models():
    drawn = plots.lines(frame(), "layer", "method")
    assert [axis.get_title(loc="left") for axis in drawn.axes] == ["A", "B"]
    single = frame().query("model == 'A'")
    assert plots.lines(single, "layer", "method").axes[0].get_title(loc="left") == ""
    assert plots.about(single, "{model}of three") == "A; of three"


# ---- figures


@pytest.mark.parametrize("profile", ["mini", "small"])  # one model; three of different depth
@pytest.mark.parametrize("name", [name for names in FIGURES.values() for name in names])
def test_figures_say_what_is_seen_and_in_which_units(name, profile):
    entry = report.entries()[name]
    if not all(data.cells(profile, store) for store in entry.stores):
        pytest.skip("no reference")
    drawn = entry.make(load_profile(profile))
    if drawn is None:
        assert profile == "small"
        pytest.skip("nobody was compared")
    title = drawn.texts[0].get_text()
    assert title
    assert "nan" not in title, f"a title that needs a number that is not there: {title!r}"
    axes = []
    for axis in drawn.axes:
        if axis.get_subplotspec() is not None and axis.get_label() != "<colorbar>":
            axes.append(axis)
    has_x_label = any(axis.get_xlabel() for axis in axes)
    assert has_x_label or all(axis.get_xticklabels() for axis in axes)
    assert any(axis.get_ylabel() or len(axis.get_yticklabels()) for axis in axes)
    for axis in axes:
        assert share_inside(axis) > 0.9, "marks are cut off"


def share_inside(axis: plt.Axes) -> float:
    """The share of the marks and points of lines that are inside the panel, 1 without any."""
    low, high = sorted(axis.get_ylim())
    points = [y for _, y in drawn_points(axis) if np.isfinite(y)]
    for line in axis.lines:
        is_across = list(line.get_ydata()) == [0, 1]  # a line across the panel is no mark
        if not is_across:
            points.extend(y for y in np.atleast_1d(line.get_ydata()) if np.isfinite(y))
    if not points:
        return 1.0
    return sum(low <= y <= high for y in points) / len(points)


def test_panels_that_differ_in_documents_have_counts_of_their_own():
    rows = frame().assign(documents=[5] * 6 + [8] * 6)
    drawn = plots.lines(rows, "layer", "method")
    titles = [axis.get_title(loc="left") for axis, _ in drawn.panels]
    assert titles == ["A (5 documents)", "B (8 documents)"]
    assert plots.about(rows, "over {documents} documents") == "over 5 to 8 documents"
    equal = plots.lines(rows.assign(documents=5), "layer", "method")
    assert [axis.get_title(loc="left") for axis, _ in equal.panels] == ["A", "B"]


def test_a_span_has_no_negative_zero():
    assert plots.span([-0.001, 0.03], ".0f") == "0"
    assert plots.span([-0.4, 3], "+.0f") == "+0 to +3"
    assert plots.span([-5.2, 1.5], "+.1f") == "−5.2 to +1.5"


def test_the_glance_says_its_number_of_documents():
    stored = data.cells("small", "baselines")
    nll = values_of(stored["smollm2-135m", "harp", "wikitext-validation"]["result"], "nll")
    shown, _ = at_a_glance(load_profile("small"))
    assert f"perplexity, WikiText-2 ({len(nll)} documents)" in shown


# ---- notebooks


def code_of(notebook) -> list:
    """The cells of code of a notebook."""
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


@pytest.mark.parametrize("number", FIGURES)
def test_a_notebook_has_its_parts(number):
    """The claim at the top, an assertion, figures, and at the end a verdict and the provenance."""
    notebook = book(number)
    code = code_of(notebook)
    everything = "\n".join(cell.source for cell in code)
    assert notebook.metadata.kernelspec.name == "python3"
    assert not any(cell.outputs or cell.execution_count for cell in code)
    assert "**The claim.**" in notebook.cells[0].source
    assert "assert " in everything or "assert_close" in everything

    shown = re.findall(r'report\.show\("(\w+)"', everything)
    figures = {name for name in shown if not report.entries()[name].is_table}
    assert figures == set(FIGURES[number])
    assert "provenance_table" in code[-1].source
    lines = [line for cell in notebook.cells for line in cell.source.splitlines()]
    heads = [line for line in lines if line.startswith("## ")]
    assert heads[-3:] == ["## Verdict", "## Exercises", "## Where these numbers come from"]


@pytest.mark.parametrize("number", FIGURES)
def test_the_parameters_are_plain_literals(number):
    cells = book(number).cells
    (cell,) = [cell for cell in cells if "parameters" in cell.metadata.get("tags", [])]
    parameters = {}
    for node in ast.parse(cell.source).body:
        parameters[node.targets[0].id] = ast.literal_eval(node.value)
    expected = {"profile": "mini", "models": None, "datasets": None, "force": False, "seed": 0}
    if number in ("06", "07"):
        expected["limit"] = None
    assert parameters == expected


def by_hand(number: str, models: list[str], replace: str = "", by: str = "") -> int:
    """Run what a notebook computes by hand, up to the first stored result that comes after it.

    In its code ``replace`` is replaced ``by`` something else. Returns how many assertions held.
    """
    names = {
        "profile": "smoke",
        "models": models,
        "datasets": None,
        "limit": None,
        "force": False,
        "seed": 0,
    }
    num_assertions = 0
    for cell in code_of(book(number))[1:]:
        if "report.show(" in cell.source and num_assertions:
            break
        source = re.sub(r"^(experiments\.run|report\.show)\(.*$", "", cell.source, flags=re.M)
        exec(compile(source.replace(replace, by), number, "exec"), names)
        num_assertions += cell.source.count("assert")
    return num_assertions


@pytest.mark.parametrize("models", [["tiny-llama"], ["tiny-gemma2"]])
@pytest.mark.parametrize("number", FIGURES)
def test_what_a_reader_writes_by_hand_is_what_the_library_does(number, models):
    assert by_hand(number, models) > 0


@pytest.mark.parametrize(
    ("number", "right", "wrong"),
    [
        ("04", "w.abs().mean(dim=0) * norms", "w.abs().mean(dim=0)"),
        ("08", "3 * 2 * n * d * d_ff", "2 * 2 * n * d * d_ff"),
    ],
)
def test_a_mistake_by_hand_is_found(number, right, wrong):
    with pytest.raises(AssertionError):
        by_hand(number, ["tiny-llama"], right, wrong)
