"""What the paper prints: each check comes out the other way if the print, or what it is held against, were right."""

import json

import pytest

from harp_lib import paper_print
from harp_lib.baseline_verdict import FAILS, HOLDS
from harp_lib.measure.benchmarks import ALL_BENCHMARKS
from harp_lib.published import published, published_scores


def changed(name, where, value):
    table = paper_print.published(name)
    table.loc[table.query(where).index, "value"] = value
    published = paper_print.published
    return lambda wanted: table if wanted == name else published(wanted)


@pytest.fixture
def found():
    return lambda: paper_print.print_checks().groupby("claim")["verdict"].agg(list)


GENERATION = "the printed HARP+FLAP is ahead of every printed baseline on each generation task"
LONGBENCH = "the printed HARP+FLAP is ahead of every printed baseline in most of LongBench"
QUESTIONS = "MMLU has as many questions as are printed"


def test_as_printed(found):
    by_model = {GENERATION: [HOLDS, HOLDS, FAILS, HOLDS], LONGBENCH: [FAILS, HOLDS]}
    for claim, verdicts in found().items():
        if claim in by_model:
            assert verdicts == by_model[claim]
        else:
            assert set(verdicts) == {HOLDS if claim.startswith("the printed α") else FAILS}, claim


def with_score(model, method, task, score):
    def scores(table, wanted):
        block = published_scores(table, wanted)
        if wanted == model and task in block:
            block.loc[method, task] = score
        return block

    return scores


@pytest.mark.parametrize(
    ("claim", "changed", "expected"),
    [
        (GENERATION, ("Qwen2-7B", "harp+flap", "BBH", 37.7), [HOLDS] * 4),
        (GENERATION, ("Qwen2-7B", "harp", "BBH", 50), [HOLDS, HOLDS, FAILS, HOLDS]),
        (GENERATION, ("LLaMA3.1-8B", "wanda-sp", "GSM8K", 31.77), [FAILS, HOLDS, FAILS, HOLDS]),
        (LONGBENCH, ("LLaMA3.1-8B", "harp+flap", "PCount", 4.71), [HOLDS, HOLDS]),
        (LONGBENCH, ("Mistral-7B-v0.3", "flap", "QMSum", 19.7), [FAILS, FAILS]),
    ],
)
def test_the_printed_leads_follow_the_tables(found, monkeypatch, claim, changed, expected):
    monkeypatch.setattr(paper_print, "published_scores", with_score(*changed))
    assert found()[claim] == expected


def test_the_evidence_on_the_printed_leads():
    evidence = paper_print.print_checks().query("claim == @GENERATION").set_index("model")["evidence"]
    assert "37.69 for FLAP on BBH, 36.20 for HARP+FLAP" in evidence["Qwen2-7B (paper)"]
    printed = {model: evidence[f"{model} (paper)"].split()[3] for model in published("generation")["model"].unique()}
    assert printed == {"LLaMA3.1-8B": "4", "Mistral-7B-v0.3": "3", "Qwen2-7B": "3", "Gemma2-9B": "3"}


def test_questions_of_mmlu(found, monkeypatch):
    asked = paper_print.question_tokens().loc["mmlu", "questions"]
    assert len(ALL_BENCHMARKS["mmlu"].subtasks()) == 57, "of which they are the questions"
    monkeypatch.setattr(
        paper_print, "published", changed("dataset_statistics", "task == 'MMLU' and metric == 'documents'", asked)
    )
    assert found()[QUESTIONS] == [HOLDS]


def test_the_search(found, monkeypatch):
    claim, grid = "K = 10 candidates, 80 forward passes", tuple(range(10))
    with monkeypatch.context() as patch:
        patch.setattr(paper_print, "ALPHA_GRID", grid)
        assert found()[claim] == [FAILS], "5,456 evaluations are still 11 values"
    right = changed("search_cost", "metric == 'evaluations'", 62 * 80)
    monkeypatch.setattr(paper_print, "published", right)
    assert found()[claim] == [FAILS], "Algorithm 1 still tries 11"
    monkeypatch.setattr(paper_print, "ALPHA_GRID", grid)
    assert found()[claim] == [HOLDS]


def test_heads_of_the_dense_models(found, monkeypatch):
    monkeypatch.setattr(paper_print, "published", changed("generation", "method == 'dense'", 0))
    assert found()["the dense models have lost no heads"] == [HOLDS]


def test_alphas(found, monkeypatch):
    falling = {model: dict(enumerate([0.9, 0.5, 0.3, 0.1])) for model in paper_print.RISING}
    monkeypatch.setattr(paper_print, "published_alphas", lambda: falling)
    assert found()["the printed α increase with the layer index"] == [FAILS] * 3


def test_files_of_lm_eval(found, monkeypatch, tmp_path):
    def write(name, content):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(json.dumps(content))

    for name in ("gsm8k/gsm8k.yaml", "triviaqa/default.yaml"):
        write(name, {"filter_list": [{"name": "strict-match"}]})
    for task in paper_print.LONGBENCH:
        write(f"longbench/{task.removeprefix('longbench_')}.yaml", {})
    for number, title in enumerate(paper_print.DESCRIBED):
        write(f"longbench/_longbench_{number}.yaml", {"group_alias": title})
    monkeypatch.setattr(paper_print, "official_tasks", lambda: tmp_path)
    table = found()
    assert table["lm-eval scores GSM8K and TriviaQA by strict-match"] == [HOLDS]
    assert table["the tasks of the table are in the groups that the appendix describes"] == [HOLDS]


def test_the_norm_of_gemma(found, monkeypatch):
    monkeypatch.setattr(paper_print, "Gemma2RMSNorm", lambda size, eps: lambda rows: rows)  # if there were none
    assert found()["α in front of W_V W_O reaches the residual stream of Gemma2-9B"] == [HOLDS]


@pytest.mark.parametrize(("means", "expected"), [([0.1] * 8, FAILS), (None, HOLDS)])
def test_flap(means, expected):
    layer = {"layer": 0, "removed_groups": [1]} | ({"group_means": means} if means else {})
    plan = {"format": "harp-plan/1", "method": "flap", "num_layers": 2, "layers": [layer]}
    (row,) = paper_print.flap_updates({("m", "flap", "plan"): {"result": {"plan": plan}}}).to_dict("records")
    assert row["verdict"] == expected
