"""The printed numbers in ``data/paper`` are the paper's, and known where they do not add up."""

import csv
import re
from decimal import Decimal
from fractions import Fraction

import pandas as pd
import pytest

from harp_lib import config
from harp_lib.evaluation.benchmarks import ALL_BENCHMARKS
from harp_lib.names import METHOD_TITLES
from harp_lib.report.frames import paper

LABELS = {
    "generation": "tab:gen",
    "discriminative": "tab:dis",
    "longbench": "tab:longcontext",
    "layer_selection": "tab:layer_selection",
    "alpha_ablation": "tab:ablation",
}


def typed_rows(table):
    """The rows of a file as they were typed: floats would lose trailing zeros."""
    with open(config.PAPER / f"{table}.csv", newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("file", sorted(config.PAPER.glob("*.csv")), ids=lambda file: file.stem)
def test_every_file_is_tidy(file):
    frame = paper(file.stem)
    coordinates = [name for name in frame if name != "value"]
    assert not frame.duplicated(coordinates).any()
    tasks = set(frame.get("task", pd.Series(dtype=str)))
    for task in tasks - set(ALL_BENCHMARKS) - {"all", "wikitext", "pile_10k"}:
        assert task.startswith("average"), task


def test_averages_are_the_rounded_means_of_the_printed_scores_but_three():
    num_averages = 0
    wrong = {}  # table, model, method → the mean, and what is printed
    for table in ("generation", "discriminative", "layer_selection", "alpha_ablation"):
        scores = []  # above an average
        for row in typed_rows(table):
            if row["quantity"] != "score":
                continue
            value = Decimal(row["value"])
            if not row["task"].startswith("average"):
                scores.append(value)
                continue
            mean = sum(scores) / len(scores)
            num_averages += 1
            if abs(value - mean) > Decimal("0.005"):  # a tie may be rounded either way
                wrong[table, row["model"], row["method"]] = (round(mean, 3), row["value"])
            scores = []
    assert num_averages == 25 + 25 + 4 + 4
    assert wrong == {
        # Two are cut off instead of rounded; the third is neither.
        ("generation", "LLaMA3.1-8B", "wanda-sp"): (Decimal("12.616"), "12.61"),
        ("discriminative", "Mistral-7B-v0.3", "harp"): (Decimal("64.647"), "64.64"),
        ("generation", "Mistral-7B-v0.3", "harp+flap"): (Decimal("30.874"), "30.88"),
    }


def test_time_saved_follows_from_the_printed_seconds():
    efficiency = paper("efficiency")
    seconds = efficiency.query("quantity == 'seconds' and length == 65536")
    seconds = seconds.set_index("method")["value"]
    saved = efficiency.query("quantity == 'time_saved'")["value"].item()
    assert saved == round(100 * (1 - seconds["harp"] / seconds["dense"]), 1) == 16.7


def test_cost_of_the_search_follows_from_its_parts():
    cost = paper("search_cost").query("method == 'harp'").set_index(["task", "quantity"])["value"]
    candidates_per_layer = 11
    on_wikitext = cost["wikitext", "documents"] * cost["wikitext", "layers"]
    assert cost["wikitext", "evaluations"] == on_wikitext * candidates_per_layer
    assert cost["all", "forward_passes"] == cost["all", "layers"] * cost["all", "candidates"] == 80


@pytest.fixture
def source(shared):
    """The paper in LaTeX."""
    return (shared / "paper" / "high-layer-attention-pruning.tex").read_text(encoding="utf-8")


def without_markup(line):
    """A line of LaTeX without bold and rotated text and without cells that span columns."""
    markup = r"\\(?:textbf|rotatebox\[.*?\]\{\d+\}|multicolumn\{\d\}\{.*?\})\{([^{}]*)\}"
    for _ in range(2):  # markup is in markup
        line = re.sub(markup, r"\1", line)
    return line


def printed_numbers(source, label):
    """The numbers of a table in the paper, from left to right and from top to bottom."""
    start = source.index(rf"\label{{{label}}}")
    end = source.index(r"\end{tabular}", start)
    numbers = []
    for line in source[start:end].split(r"\\"):
        cells = [cell.strip() for cell in without_markup(line).split("&")]
        is_row_of_numbers = re.fullmatch(r"\d+\.?\d*", cells[-1])
        if not is_row_of_numbers:
            continue
        for cell in cells:
            is_alpha = cell == "1.0"
            if re.fullmatch(r"[\d./]+(\\%)?", cell) and not is_alpha:
                numbers.append(cell)
    return numbers


def as_printed(row):
    """The value of a typed row in the paper's notation."""
    value = row["value"]
    if row["quantity"] == "head_ratio":
        if value == "1":
            return r"100\%"
        return str(Fraction(value).limit_denominator(10))
    if row["quantity"] == "removed_fraction" and value != "0":
        return rf"{value}\%"
    return value


@pytest.mark.parametrize("table", LABELS)
def test_tables_are_those_of_the_paper(table, source):
    typed = [as_printed(row) for row in typed_rows(table)]
    assert typed == printed_numbers(source, LABELS[table])


def test_alphas_are_as_in_the_text(source):
    for value in paper("alpha_robustness")["value"]:
        assert f"{value:.2f}" in source
    alphas = paper("alpha_search").query("model in ('LLaMA3.1-8B', 'LLaMA3.1-70B')")
    for _, rows in alphas.groupby(["model", "task"]):
        from_the_top_down = ",".join(f"{alpha:.1f}" for alpha in rows["value"])
        assert from_the_top_down in source


def test_layers_are_as_in_the_text(source):
    selected = paper("selected_layers").query("method not in ('top', 'bottom')")
    for method, rows in selected.groupby("method"):
        metric = "Hessian" if method == "hessian" else method
        assert f"{list(rows['layer'])} based on the {metric}-based metric" in source
    for row in paper("layer_ranges").itertuples():
        assert f"{METHOD_TITLES[row.method]} & {row.start} & {row.end} " in source


def test_inference_times_are_as_in_the_text(source):
    numbers = [row["value"] for row in typed_rows("efficiency")]
    times = "times ranged from {} ± {}s for 1024 tokens to {} ± {}s for 65536 tokens"
    assert "for the original model, inference " + times.format(*numbers[:4]) in source
    assert "for the pruned model, " + times.format(*numbers[4:8]) in source


def test_numbers_of_documents_are_as_in_the_text(source):
    rows = typed_rows("dataset_statistics")
    documents = [row["value"] for row in rows if row["quantity"] == "documents"]
    assert " & ".join([r"\# Tasks", *documents[:6]]) in source
    assert ", ".join(documents[6:10]) + f", and {documents[10]}, respectively" in source
