import csv
import re
from decimal import Decimal
from fractions import Fraction
from math import ceil, floor

import pytest

from harp_lib import paths
from harp_lib.published import (
    published,
    published_alphas,
    published_layers,
    published_ranges,
    published_ratios,
    published_scores,
)

MODELS = ("LLaMA3.1-8B", "Mistral-7B-v0.3", "Qwen2-7B", "Gemma2-9B")
WITH_AVERAGES = ("generation", "discriminative", "layer_selection", "alpha_ablation")
LABELS = {  # file → label of the paper's table
    "generation": "tab:gen",
    "discriminative": "tab:dis",
    "longbench": "tab:longcontext",
    "layer_selection": "tab:layer_selection",
    "alpha_ablation": "tab:ablation",
    "layer_ranges": "tab:baseline_tuning",
}


def typed(table):
    """The rows of a file as they were typed: floats would lose trailing zeros."""
    with open(paths.PAPER / f"{table}.csv", newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def printed_averages(table):
    """(table, model, method), the scores that one average is over, and the average: as typed."""
    scores = []
    for row in typed(table):
        if row["metric"] != "score":
            continue
        if row["task"].startswith("Average"):
            yield (table, row["model"], row["method"]), scores, row
            scores = []
        else:
            scores.append(row)
    assert not scores


def values(table, **where):
    rows = published(table)
    for column, value in where.items():
        rows = rows[rows[column] == value]
    return list(rows["value"])


def only(table, **where):
    (value,) = values(table, **where)
    return value


def test_every_file_is_tidy():
    files = sorted(paths.PAPER.glob("*.csv"))
    assert files
    for file in files:
        rows = published(file.stem)
        assert list(rows.columns) == ["table", "model", "method", "task", "metric", "value"]
        assert (rows["table"] == file.stem).all()
        assert rows.notna().all().all()
        assert not rows.duplicated(["model", "method", "task", "metric"]).any()


def test_averages_are_the_rounded_means_of_the_printed_scores_but_three():
    averages, off = 0, {}
    for table in WITH_AVERAGES:
        for key, scores, average in printed_averages(table):
            averages += 1
            mean = sum(Decimal(row["value"]) for row in scores) / len(scores)
            if abs(Decimal(average["value"]) - mean) > Decimal("0.005"):  # a tie may go either way
                off[key] = (round(mean, 3), average["value"])
    assert averages == 25 + 25 + 4 + 4
    assert off == {
        ("generation", "LLaMA3.1-8B", "wanda-sp"): (Decimal("12.616"), "12.61"),  # cut
        ("discriminative", "Mistral-7B-v0.3", "harp"): (Decimal("64.647"), "64.64"),  # cut
        ("generation", "Mistral-7B-v0.3", "harp+flap"): (Decimal("30.874"), "30.88"),  # neither cut nor rounded
    }


def test_every_average_can_be_a_rounded_mean_of_unrounded_scores():
    """A score is a number of right answers over the number of documents, so that only few values print like it."""
    half = Fraction(1, 200)
    documents = {row["task"]: int(row["value"]) for row in typed("dataset_statistics") if row["metric"] == "documents"}
    assert documents["MMLU"] == 11973
    documents["MMLU"] = 14042  # what MMLU has: with 11973 the 64.64 above could not come about
    impossible = []
    for table in WITH_AVERAGES:
        for key, scores, average in printed_averages(table):
            low = high = 0
            for row in scores:
                score, number = Fraction(row["value"]), documents[row["task"]]
                fewest = ceil((score - half) * number / 100)
                most = floor((score + half) * number / 100)
                if fewest > most:
                    impossible.append((*key, row["task"], row["value"]))
                low += Fraction(100 * fewest, number) / len(scores)
                high += Fraction(100 * most, number) / len(scores)
            assert min(low, high) - half <= Fraction(average["value"]) <= max(low, high) + half, key
    # 1452 of 1838 are 78.9989: here a score was cut, which leaves its average as it is
    assert impossible == [("discriminative", "Mistral-7B-v0.3", "flap", "PIQA", "78.99")]


def test_tables_agree_where_they_repeat_each_other():
    ablation = published_scores("alpha_ablation", "LLaMA3.1-8B")
    assert ablation.shape == (2, 13)
    for table, average in (("generation", "Average (generation)"), ("discriminative", "Average (discriminative)")):
        harp = published_scores(table, "LLaMA3.1-8B").loc["harp"].rename({"Average": average})
        assert ablation.loc["harp, alpha searched", harp.index].equals(harp)
    top = published_scores("layer_selection", "LLaMA3.1-8B").loc["top"].rename({"Average": "Average (discriminative)"})
    assert ablation.loc["harp, alpha 1.0", top.index].equals(top)


def test_scores_come_in_the_papers_order():
    scores = published_scores("generation", "Qwen2-7B")
    assert list(scores.index) == ["dense", "mag-sp", "wanda-sp", "flap", "harp+flap", "harp"]
    assert list(scores.columns) == ["TriviaQA", "NaturalQuestions", "GSM8K", "MATH-hard", "BBH", "Average"]
    assert scores.loc["flap", "BBH"] == 37.69
    assert published_scores("longbench", "LLaMA3.1-8B").shape == (7, 16)
    with pytest.raises(ValueError, match=r"longbench has no scores of 'Qwen2-7B'; choose from LLaMA3\.1-8B, Mistral"):
        published_scores("longbench", "Qwen2-7B")


def test_ratios():
    ratios = published_ratios()
    assert tuple(ratios) == MODELS
    assert {model: methods["harp"] for model, methods in ratios.items()} == {
        "LLaMA3.1-8B": 3.3,
        "Mistral-7B-v0.3": 3.6,
        "Qwen2-7B": 0.9,
        "Gemma2-9B": 1.6,
    }
    for methods in ratios.values():
        assert methods.pop("dense") == 0
        assert len({percent for method, percent in methods.items() if method != "harp"}) == 1
    # printed is 100 %, against 0 for every other dense model
    assert values("generation", metric="head_ratio", method="dense") == [0, 1, 0, 0]
    assert values("discriminative", metric="head_ratio", method="dense") == [0, 0, 0, 0]
    assert values("generation", metric="head_ratio", model="Gemma2-9B") == pytest.approx([0, *[1 / 7] * 5])


def test_ranges_have_a_width_that_the_paper_tried():
    ranges = published_ranges()
    assert ranges["LLaMA3.1-8B"]["llm-pruner"] == (14, 30)
    tried = {  # layers of the model, widths for the uniform baselines, widths for FLAP
        "LLaMA3.1-8B": (32, {16, 32}, {12, 16, 20, 24, 28, 32}),
        "Mistral-7B-v0.3": (32, {16, 32}, {12, 16, 20, 24, 28, 32}),
        "Qwen2-7B": (28, {8, 16}, {8, 12, 16, 20, 24, 28}),
        "Gemma2-9B": (42, {8, 12, 16, 24}, {9, 12, 18, 24, 30, 36, 42}),
    }
    assert set(ranges) == set(tried)
    for model, (layers, uniform, adaptive) in tried.items():
        for method, (start, end) in ranges[model].items():
            assert 0 <= start < end <= layers
            assert end - start in (adaptive if method == "flap" else uniform)


def test_selected_layers():
    assert published_layers() == {
        "hessian": [12, 13, 14, 15, 19, 22, 24, 26],
        "similarity": [23, 24, 25, 26, 27, 28, 29, 30],
    }


def test_costs_follow_from_their_parts():
    seconds = {
        method: only("efficiency", method=method, task="65536 tokens", metric="seconds") for method in ("dense", "harp")
    }
    saved = only("efficiency", metric="time_saved")
    assert saved == round(100 * (1 - seconds["harp"] / seconds["dense"]), 1)
    assert only("efficiency", metric="removed_fraction") == published_ratios()["LLaMA3.1-8B"]["harp"]

    wikitext, general = ({"task": task, "method": "harp"} for task in ("WikiText", "all"))
    documents, layers, evaluations = (
        only("search_cost", **wikitext, metric=metric) for metric in ("documents", "layers", "evaluations")
    )
    assert evaluations == documents * layers * 11  # 0, 0.1, …, 1
    layers, candidates, passes = (
        only("search_cost", **general, metric=metric) for metric in ("layers", "candidates", "forward_passes")
    )
    assert passes == layers * candidates
    assert candidates == 10  # as printed, one fewer than the grid above has


@pytest.fixture
def source(shared):
    return (shared / "paper" / "high-layer-attention-pruning.tex").read_text(encoding="utf-8")


def cells_of(row):
    """The cells of a LaTeX row without markup."""
    row = re.sub(r"\\(?:midrule|cmidrule\(lr\)\{[\d-]+\})", "", row)
    for _ in range(2):  # markup is in markup
        row = re.sub(r"\\(?:textbf|rotatebox\[.*?\]\{\d+\}|multicolumn\{\d\}\{.*?\})\{([^{}]*)\}", r"\1", row)
    return [cell.strip() for cell in row.split("&")]


def printed_table(source, label, columns):
    """(model, method, column, cell) of a table in the paper, from left to right and from top to bottom."""
    body = source[source.index(rf"\label{{{label}}}") :]
    caption = source[: source.index(rf"\label{{{label}}}")].rpartition(r"\caption")[2]
    (model, *_) = re.findall("|".join(map(re.escape, MODELS)), caption)
    header = []
    for row in body[: body.index(r"\end{tabular}")].split(r"\\"):
        if names := re.findall("|".join(map(re.escape, MODELS)), row):
            (model,) = names
        cells = cells_of(row)
        if not re.fullmatch(r"\d+\.?\d*", cells[-1]):
            header = cells
            continue
        method, *rest = (cell for cell in cells if "multirow" not in cell and cell)
        method = re.sub(" |-8$", "", method).lower()
        if label == "tab:ablation":
            method += f", alpha {rest.pop(0)}"
        for name, cell in zip(header[-len(rest) :], rest, strict=True):
            yield model, method, columns.get(name, name), cell


def as_printed(row):
    """A row of a file as ``printed_table`` has it."""
    if row["metric"] == "score":
        return row["model"], row["method"], row["task"].partition(" ")[0], row["value"]
    cell = row["value"]
    if row["metric"] == "head_ratio":
        fraction = Fraction(cell).limit_denominator(10)
        cell = str(fraction) if fraction != 1 else r"100\%"
    elif row["metric"] == "removed_fraction" and cell != "0":
        cell += r"\%"
    return row["model"], row["method"], row["metric"], cell


@pytest.mark.parametrize("table", LABELS)
def test_tables_are_those_of_the_paper(table, source):
    columns = {
        "Parameter Pruning Ratio": "removed_fraction",
        "Attention Head Pruning Ratio": "head_ratio",
        "Starting Layer Index": "start",
        "End Layer Index": "end",
    }
    assert [as_printed(row) for row in typed(table)] == list(printed_table(source, LABELS[table], columns))


def test_dataset_statistics_are_those_of_the_paper(source):
    rows = typed("dataset_statistics")
    documents, choices, generation = rows[:6], rows[6:12], rows[12:]
    for name, part in ((r"\# Tasks", documents), (r"\# Choices", choices)):
        assert " & ".join([name, *(row["value"] for row in part)]) + r" \\" in source
    for part in (documents, choices):
        assert " & ".join(row["task"] for row in part) + r" \\" in source
    tasks, numbers = ([row[column] for row in generation] for column in ("task", "value"))
    listed = [", ".join(items[:-1]) + f", and {items[-1]}" for items in (tasks, numbers)]
    assert f"The number of tasks for {listed[0]} are {listed[1]}, respectively" in source


def test_numbers_in_the_text_are_those_of_the_paper(source):
    for value in published("alpha_robustness")["value"]:
        assert f"{value:.2f}" in source
    for model in ("LLaMA3.1-8B", "LLaMA3.1-70B"):
        assert ",".join(f"{alpha:.1f}" for alpha in published_alphas()[model].values()) in source
    for method, layers in published_layers().items():
        assert f"{layers} based on the {'Hessian' if method == 'hessian' else method}-based metric" in source

    numbers = [row["value"] for row in typed("efficiency")]
    times = "times ranged from {} ± {}s for 1024 tokens to {} ± {}s for 65536 tokens"
    assert "for the original model, inference " + times.format(*numbers[:4]) in source
    assert "for the pruned model, " + times.format(*numbers[4:8]) in source
    assert "a {1}\\% parameter reduction, we achieve a {0}\\% improvement".format(*numbers[8:]) in source

    numbers = [int(row["value"]) for row in typed("search_cost")]
    assert "includes only {} sub-tasks. For LLaMA3.1-8B, our search involves {} separate".format(*numbers) in source
    assert f"amounts to {numbers[2]:,} sub-tasks" in source
    assert numbers[3] == 2
    assert "the total runtime remains under two hours" in source
    assert "For the {}-layer setting used in our experiments with $K{{=}}{}$".format(*numbers[4:]) in source
    assert r"${} \times {} = {}$ forward passes".format(*numbers[4:7]) in source
    assert set(numbers[7:]) == {1}
    assert "Mag-sp, Wanda-sp, and FLAP generally require only a single calibration/inference pass" in source


def test_alphas_as_the_paper_prints_them():
    alphas = published_alphas()
    assert list(alphas["LLaMA3.1-8B"].items())[:2] == [(31, 0.8), (30, 0.2)]
    assert {model: len(layers) for model, layers in alphas.items()} == {
        "LLaMA3.1-8B": 8,
        "Mistral-7B-v0.3": 8,
        "Qwen2-7B": 4,
        "Gemma2-9B": 6,
        "LLaMA3.1-70B": 8,
    }


def test_an_unknown_table_is_refused():
    with pytest.raises(ValueError, match="unknown table 'table9'; choose from alpha_ablation, alpha_robustness"):
        published("table9")
