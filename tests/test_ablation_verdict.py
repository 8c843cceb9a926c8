"""What notebook 06 says follows the numbers: made-up cells, and the words that have to come out."""

import matplotlib.pyplot as plt
import pytest

from harp_lib.ablation_figures import all_figures, published_pairs
from harp_lib.ablation_frames import ORDER, gain_frame, height_correlation, published_picks
from harp_lib.ablation_tables import (
    ablation_tables,
    against_top,
    alpha_ablation,
    gain_by_layer,
    layer_selection,
    selected_layers,
    spans,
)
from harp_lib.ablation_verdict import answer, read_alphas, read_gains, read_missing, read_single_layers, verdict
from harp_lib.experiments.ablation_study import attribution
from harp_lib.measure.benchmarks import BENCHMARKS, DISCRIMINATIVE_TASKS
from harp_lib.score_frames import score_frame
from harp_lib.score_layout import leader

LAYERS, PRUNED, ASKED = 10, 2, 60
PICKS = {"bottom": [0, 1], "hessian": [3, 5], "similarity": [8, 9], "top": [8, 9]}
RIGHT = {"dense": 55, "top": 40, "harp": 50, "bottom": 20, "hessian": 20, "similarity": 40}  # of 60 questions


def cells_with(right=RIGHT, gains=(0.3, 0.2), costs=None, searched=(0.5, 0.2)):
    """Cells of one model.

    ``right``: how many of 60 questions of each task are answered, by method, or by method and task. ``gains``: of the
    searched alpha of layers 9 and 8, in nats a token. ``costs``: of each layer, in nats a token.
    """
    cells = {}
    for method in ORDER:
        tasks = BENCHMARKS if method in ("dense", "top", "harp") else [task.name for task in DISCRIMINATIVE_TASKS]
        for task in tasks:
            count = right.get((method, task), right[method])
            ratios = {"removed_fraction": 0.0, "head_ratio": 0.0}
            scores = [1.0] * (count or 0) + [0.0] * (ASKED - (count or 0))
            result = {"failed": "out of memory"} if count is None else {"scores": scores, **ratios}
            cells["m", method, task] = {"inputs": {"task": task}, "result": result, "seconds": 1.0}
    for strategy, layers in PICKS.items():
        metric = {"calibration": [4, 32]} if strategy in ("hessian", "similarity") else {}
        scores = [0.5 if layer in layers else 1.5 + layer for layer in range(LAYERS)] if metric else None
        result = {"layers": layers, "scores": scores}
        cells["m", strategy, "selection"] = {"inputs": {"total": LAYERS, **metric}, "result": result}
    alphas = dict(zip((9, 8), searched, strict=True))
    for index in range(4):
        nll = {"dense": 100.0 + index}
        for name, plan in attribution(alphas).items():
            saved = sum(
                gain + 0.001 * index * (gain != 0)
                for layer, gain in zip((9, 8), gains, strict=True)
                if plan[layer] == alphas[layer]
            )
            nll[name] = nll["dense"] + 100 * (1 - saved)
        stored = {str(layer): alpha for layer, alpha in alphas.items()}
        result = {"nll": nll, "tokens": 100}
        cells["m", "gain", f"document-{index}"] = {"inputs": {"alphas": stored, "document": index}, "result": result}
        falling = [1 - layer / 10 for layer in range(LAYERS)]
        rises = [100 + 10 * cost * (1 + 0.1 * index) for cost in costs or falling]
        result = {"dense": 100.0, "1": rises, "0": rises[::-1], "tokens": 10}
        inputs = {"document": index, "num_layers": PRUNED}
        cells["m", "single-layer", f"document-{index}"] = {"inputs": inputs, "result": result}
    return cells


def found(cells):
    return verdict(cells).set_index("claim")["verdict"]


def test_as_the_paper_says():
    judged = found(cells_with())
    assert judged.to_dict() == {
        "Top beats Bottom on discriminative tasks, at α = 1": "holds",
        "Top beats Hessian on discriminative tasks, at α = 1": "holds",
        "Top beats Similarity on discriminative tasks, at α = 1": "too small to tell",
        "searching α lowers perplexity on held-out text": "holds",
        "searching α beats leaving it at 1 on generation tasks": "holds",
        "searching α beats leaving it at 1 on discriminative tasks": "holds",
        "searching α beats leaving it at 1 on every task": "holds",
        "the higher a layer, the less it costs to remove its queries and keys": "holds",
        "the higher a layer, the less it costs to remove its attention": "does not hold",
        "most layers that the similarity metric picks are among those that HARP prunes": "holds",
        "every searched layer adds to the gain": "holds",
    }


@pytest.mark.parametrize(
    ("changed", "outcome"),
    [
        ({"top": 10, "bottom": 40}, "does not hold"),
        ({"top": 40, "bottom": 40, ("top", "piqa"): 41}, "too small to tell"),
        ({"dense": 15, "top": 40, "bottom": 20}, "at the floor"),
        ({"bottom": None}, "missing"),
        ({"dense": None}, "missing"),
    ],
)
def test_top_against_bottom(changed, outcome):
    assert found(cells_with(RIGHT | changed))["Top beats Bottom on discriminative tasks, at α = 1"] == outcome


@pytest.mark.parametrize(
    ("changed", "outcome", "said"),
    [
        ({("harp", "boolq"): 20}, "does not hold", "lower on BoolQ"),
        ({("harp", "boolq"): 40}, "too small to tell", "too small to tell on BoolQ"),
        ({("dense", "gsm8k"): 0}, "too small to tell", "at the floor on GSM8K"),
        ({("harp", "piqa"): None}, "missing", "missing: PIQA"),
        ({"dense": 0}, "at the floor", "at the floor on TriviaQA, NaturalQuestions"),
    ],
)
def test_every_task(changed, outcome, said):
    rows = verdict(cells_with(RIGHT | changed)).set_index("claim")
    row = rows.loc["searching α beats leaving it at 1 on every task"]
    assert row["verdict"] == outcome
    assert said in row["evidence"]
    assert row["in the paper"] == "higher on 10 of 11 tasks; -7.12 on BoolQ"


def test_generation_at_the_floor_is_said_so():
    nothing = {(method, task): 0 for method in ("dense", "top", "harp") for task in list(BENCHMARKS)[:5]}
    cells = cells_with(RIGHT | nothing)
    judged = found(cells)
    assert judged["searching α beats leaving it at 1 on generation tasks"] == "at the floor"
    assert judged["searching α beats leaving it at 1 on discriminative tasks"] == "holds"
    assert "At the floor (the dense model is not above chance by two standard errors): TriviaQA" in read_alphas(
        cells, "generation"
    )
    assert "No task is at the floor." in read_alphas(cells, "discriminative")


@pytest.mark.parametrize(
    ("gains", "searched", "outcome", "evidence"),
    [
        ((0.3, -0.2), (0.5, 0.2), "does not hold", "1 of 2 layers lower perplexity, 1 raise it"),
        ((0.0, 0.3), (1.0, 0.2), "holds", "1 of 2 layers lower perplexity, 0 raise it, 1 keep α = 1"),
        ((0.0, 0.3), (0.9, 0.2), "too small to tell", "1 of 2 layers lower perplexity, 0 raise it"),
        ((0.0, 0.0), (1.0, 1.0), "too small to tell", "0 of 2 layers lower perplexity, 0 raise it, 2 keep α = 1"),
    ],
)
def test_every_layer(gains, searched, outcome, evidence):
    row = (
        verdict(cells_with(gains=gains, searched=searched))
        .set_index("claim")
        .loc["every searched layer adds to the gain"]
    )
    assert (row["verdict"], row["evidence"]) == (outcome, evidence)


def test_gains_in_words():
    text = read_gains(gain_frame(cells_with()))
    assert text.startswith("- **m**: all searched α together gain +0.503 [")
    assert (
        "the largest parts come with layer 9 60 % and layer 8 40 %. Gains of the layers alone add up to +0.503" in text
    )
    table = gain_by_layer(gain_frame(cells_with(gains=(0.1, -0.1))))
    assert set(table["share of all"]) == {""}, "a share of nothing says nothing"


def test_costs_of_single_layers():
    cells = cells_with(costs=[1, 0.5, 0.9, 0.8, 0.7, 0.6, 0.4, 0.3, 0.2, -0.1])
    assert height_correlation(cells, "m", 1.0).value == pytest.approx(-1 + 6 * (4**2 + 4 * 1) / 990)
    row = verdict(cells).set_index("claim").loc["the higher a layer, the less it costs to remove its queries and keys"]
    assert "+0.058 nats a token for one of the 2 layers that HARP prunes" in row["evidence"]
    assert row["evidence"].endswith("2 of the 2 cheapest layers are among those that HARP prunes")
    assert row["verdict"] == "holds"
    text = read_single_layers(cells)
    assert "In 5 of 10 layers it costs less to remove the whole attention than" in text
    assert "queries and keys removed (α = 1).** The costliest layer is layer 0 (+1.150), the cheapest layer 9" in text


def test_an_order_that_chance_would_give_is_too_small_to_tell():
    """The documents agree to the last digit, but layers in a random order are often correlated as much."""
    row = verdict(cells_with(costs=[0.5, 0.9, 0.1, 0.8, 0.3, 0.7, 0.2, 0.6, 0.4, 0.05])).set_index("claim")
    row = row.loc["the higher a layer, the less it costs to remove its queries and keys"]
    assert (
        "cost and index -0.42 over 10 layers (p = 0.24 against a random order), -0.42 [-0.42, -0.42] within"
        in row["evidence"]
    )
    assert row["verdict"] == "too small to tell"


def test_missing_scores_are_named_and_drawn():
    cells = cells_with(RIGHT | {("hessian", "piqa"): None, ("top", "gsm8k"): None})
    assert "- m, hessian on PIQA: out of memory" in read_missing(cells)
    assert "- m, top on GSM8K: out of memory" in read_missing(cells)
    assert read_missing(cells_with()) == "No score is missing."
    scores = score_frame(cells, ORDER)
    ours = layer_selection(cells, scores).set_index(["model", "method"])
    assert ours.loc[("m", "Hessian-2"), "PIQA"] == "–"
    assert ours.loc[("m", "questions"), "Average"] == f"{5 * ASKED} in 5 tasks", "that all have"
    for name, figure in all_figures(cells):
        texts = [text.get_text() for axis in figure.axes for text in axis.texts]
        expected = 1 if name in ("ablation_scores_m", "teaser_right_m") else 0
        assert texts.count("missing") == expected, name
        plt.close(figure)


def test_nothing_at_all_can_still_be_shown():
    cells = cells_with(dict.fromkeys(RIGHT))
    assert set(found(cells)) >= {"missing"}
    assert "a score is missing" in read_alphas(cells, "generation")
    for _, figure in all_figures(cells):
        plt.close(figure)
    for table, *_ in ablation_tables(cells):
        assert not table.map(lambda value: str(value) in ("nan", "None")).any(axis=None)


def test_the_papers_rows():
    picked, total = published_picks()
    assert (picked["top"], picked["bottom"], total) == ([*range(24, 32)], [*range(8)], 32)
    table = selected_layers(cells_with()).set_index(["model", "strategy"])
    assert table.loc[("LLaMA3.1-8B (paper)", "Hessian-8"), "layers"] == "12–15, 19, 22, 24, 26"
    assert table.loc[("LLaMA3.1-8B (paper)", "Similarity-8"), "also in Top"] == "7 of 8"
    assert table.loc[("m", "Hessian-2"), "layers"] == "3, 5"
    assert table.loc[("m", "Hessian-2"), "tokens"] == "128"
    pairs = published_pairs()
    assert pairs["top", "generation", "TriviaQA"][0] == 12.43
    assert pairs["harp", "discriminative", "Average"][0] == 63.96
    assert pairs["dense", "generation", "GSM8K"][0] == 49.66


def test_tables_of_scores():
    cells = cells_with()
    scores = score_frame(cells, ORDER)
    table = alpha_ablation(cells, scores, "generation").set_index(["model", "α"])
    assert table.loc[("m", "searched"), "GSM8K"] == r"$\mathbf{83.33 \pm 4.85}$"
    assert table.loc[("m", "1"), "GSM8K"] == "66.67 ± 6.14"
    assert table.loc[("m", "searched − 1 [95 %]"), "GSM8K"].startswith("+16.7 [")
    assert table.loc[("LLaMA3.1-8B (paper)", "searched"), "Average"] == r"$\mathbf{31.10}$"
    assert list(table.columns) == ["TriviaQA", "NaturalQuestions", "GSM8K", "MATH-hard", "BBH", "Average"]
    ours = layer_selection(cells, scores).set_index(["model", "method"])
    assert ours.loc[("m", "Top-2"), "PIQA"] == "66.67 ± 6.14", "Similarity is as good: none is bold"
    assert ours.loc[("m", "at the floor"), "Average"] == "no"
    assert set(against_top(cells, scores)["method"]) == {"bottom", "hessian", "similarity"}


def test_a_lead_has_to_exceed_its_error():
    tasks = [benchmark.title for benchmark in DISCRIMINATIVE_TASKS]
    assert leader(cells_with(), "m", ["top", "bottom"], tasks) == "top"
    assert leader(cells_with(RIGHT | {"bottom": 40}), "m", ["top", "bottom"], tasks) is None
    assert leader(cells_with(RIGHT | {"bottom": None}), "m", ["top", "bottom"], tasks) is None
    barely = RIGHT | {"bottom": 40, ("bottom", "piqa"): 39}
    assert leader(cells_with(barely), "m", ["top", "bottom"], ["PIQA"]) is None, "one question, and its error is one"


@pytest.mark.parametrize("asked", [20, 40, 60])
def test_a_lead_of_one_question_is_as_large_as_its_error(asked, monkeypatch):
    """By rounding it may come out larger."""
    monkeypatch.setattr("test_ablation_verdict.ASKED", asked)
    barely = {"dense": 15, "harp": 15, "top": 10, "bottom": 9, "hessian": 1, "similarity": 1}
    assert leader(cells_with(barely), "m", ["top", "bottom"], ["PIQA"]) is None


def test_layers_as_ranges():
    assert spans([0, 2, 3, 4, 9]) == "0, 2–4, 9"
    assert spans([7]) == "7"


def test_the_answer_in_words():
    assert answer(cells_with()) == (
        "- **m.** That the top layers cost less than those that another strategy picks: Bottom, holds; Hessian, holds; "
        "Similarity, too small to tell. That searching α beats leaving it at 1: in perplexity, holds; on generation "
        "tasks, holds; on discriminative tasks, holds; on every task, holds. That the cost of a single layer falls "
        "with its height: queries and keys removed, holds; attention removed, does not hold."
    )
