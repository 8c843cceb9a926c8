"""The printed numbers in ``data/paper`` are those of the paper, and what does not add up in them is
known.
"""

import csv
import re
from decimal import Decimal
from fractions import Fraction

import pandas as pd
import pytest

from harp_lib import config
from harp_lib.evaluation.benchmarks import ALL_BENCHMARKS
from harp_lib.report.data import paper

LABELS = {
    "generation": "tab:gen",
    "discriminative": "tab:dis",
    "longbench": "tab:longcontext",
    "layer_selection": "tab:layer_selection",
    "alpha_ablation": "tab:ablation",
}


def typed(table):
    """The rows of a file as they were typed: floats would lose trailing zeros."""
    with open(config.PAPER / f"{table}.csv", newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_every_file_is_tidy():
    for file in config.PAPER.glob("*.csv"):
        frame = paper(file.stem)
        assert not frame.duplicated([name for name in frame if name != "value"]).any(), file.name
        tasks = set(frame.get("task", pd.Series(dtype=str))) - set(ALL_BENCHMARKS)
        assert all(
            task in ("all", "wikitext", "pile_10k") or task.startswith("average") for task in tasks
        ), tasks


def test_averages_are_the_rounded_means_of_the_printed_scores_but_three():
    off, averages = {}, 0
    for table in ("generation", "discriminative", "layer_selection", "alpha_ablation"):
        scores = []
        for row in typed(table):
            if row["quantity"] == "score" and not row["task"].startswith("average"):
                scores.append(Decimal(row["value"]))
            elif row["quantity"] == "score":
                mean, averages = sum(scores) / len(scores), averages + 1
                if abs(Decimal(row["value"]) - mean) > Decimal("0.005"):  # a tie may go either way
                    off[table, row["model"], row["method"]] = (round(mean, 3), row["value"])
                scores = []
    assert averages == 25 + 25 + 4 + 4
    assert off == {
        ("generation", "LLaMA3.1-8B", "wanda-sp"): (Decimal("12.616"), "12.61"),  # cut
        ("discriminative", "Mistral-7B-v0.3", "harp"): (Decimal("64.647"), "64.64"),  # cut
        ("generation", "Mistral-7B-v0.3", "harp+flap"): (
            Decimal("30.874"),
            "30.88",
        ),  # neither cut nor rounded
    }


def test_costs_follow_from_their_parts():
    seconds = (
        paper("efficiency")
        .query("quantity == 'seconds'")
        .pivot_table("value", "length", "method")
        .loc[65536]
    )
    saved = paper("efficiency").query("quantity == 'time_saved'")["value"].item()
    assert saved == round(100 * (1 - seconds["harp"] / seconds["dense"]), 1) == 16.7
    cost = paper("search_cost").query("method == 'harp'").set_index(["task", "quantity"])["value"]
    assert (
        cost["wikitext", "evaluations"]
        == cost["wikitext", "documents"] * cost["wikitext", "layers"] * 11
    )
    assert cost["all", "forward_passes"] == cost["all", "layers"] * cost["all", "candidates"] == 80


@pytest.fixture
def source(shared):
    return (shared / "paper" / "high-layer-attention-pruning.tex").read_text(encoding="utf-8")


def printed_numbers(source, label):
    """The numbers of a table in the paper, from left to right and from top to bottom."""
    body = source[source.index(rf"\label{{{label}}}") :]
    for line in body[: body.index(r"\end{tabular}")].split(r"\\"):
        for _ in range(2):  # markup is in markup
            line = re.sub(
                r"\\(?:textbf|rotatebox\[.*?\]\{\d+\}|multicolumn\{\d\}\{.*?\})\{([^{}]*)\}",
                r"\1",
                line,
            )
        cells = [cell.strip() for cell in line.split("&")]
        if re.fullmatch(r"\d+\.?\d*", cells[-1]):
            yield from (
                cell for cell in cells if re.fullmatch(r"[\d./]+(\\%)?", cell) and cell != "1.0"
            )  # an alpha


@pytest.mark.parametrize("table", LABELS)
def test_tables_are_those_of_the_paper(table, source):
    expected = []
    for row in typed(table):
        cell = row["value"]
        if row["quantity"] == "head_ratio":
            cell = r"100\%" if cell == "1" else str(Fraction(cell).limit_denominator(10))
        elif row["quantity"] == "removed_fraction" and cell != "0":
            cell += r"\%"
        expected.append(cell)
    assert expected == list(printed_numbers(source, LABELS[table]))


def test_numbers_in_the_text_are_those_of_the_paper(source):
    for value in paper("alpha_robustness")["value"]:
        assert f"{value:.2f}" in source
    alphas = paper("alpha_search").query("model in ('LLaMA3.1-8B', 'LLaMA3.1-70B')")
    for _, part in alphas.groupby(["model", "task"]):
        assert ",".join(f"{alpha:.1f}" for alpha in part["value"]) in source  # from the top down
    for method, part in (
        paper("selected_layers").query("method not in ('top', 'bottom')").groupby("method")
    ):
        metric = "Hessian" if method == "hessian" else method
        assert f"{list(part['layer'])} based on the {metric}-based metric" in source
    rows = paper("layer_ranges").itertuples()
    titles = {
        "mag-sp": "Mag-sp",
        "wanda-sp": "Wanda-sp",
        "llm-pruner": "LLM-Pruner",
        "flap": "FLAP",
    }
    assert all(f"{titles[row.method]} & {row.start} & {row.end} " in source for row in rows)
    numbers = [row["value"] for row in typed("efficiency")]
    times = "times ranged from {} ± {}s for 1024 tokens to {} ± {}s for 65536 tokens"
    assert "for the original model, inference " + times.format(*numbers[:4]) in source
    assert "for the pruned model, " + times.format(*numbers[4:8]) in source
    documents = [
        row["value"] for row in typed("dataset_statistics") if row["quantity"] == "documents"
    ]
    assert " & ".join([r"\# Tasks", *documents[:6]]) in source
    assert ", ".join(documents[6:10]) + f", and {documents[10]}, respectively" in source
