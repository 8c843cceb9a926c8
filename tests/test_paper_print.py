"""What the paper prints: each check comes out the other way if the print, or what it is held against, were right."""

import json

import pytest

from harp_lib import paper_print
from harp_lib.baseline_verdict import FAILS, HOLDS


def changed(name, where, value):
    table = paper_print.published(name)
    table.loc[table.query(where).index, "value"] = value
    published = paper_print.published
    return lambda wanted: table if wanted == name else published(wanted)


@pytest.fixture
def found():
    return lambda: paper_print.print_checks().groupby("claim")["verdict"].agg(list)


def test_as_printed(found):
    for claim, verdicts in found().items():
        assert set(verdicts) == {HOLDS if claim.startswith("the printed α") else FAILS}, claim


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
