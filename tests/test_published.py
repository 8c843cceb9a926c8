import pytest

from harp_lib import paths
from harp_lib.published import published, published_alphas


def test_every_file_is_tidy():
    files = sorted(paths.PAPER.glob("*.csv"))
    assert files
    for file in files:
        rows = published(file.stem)
        assert list(rows.columns) == ["table", "model", "method", "task", "metric", "value"]
        assert (rows["table"] == file.stem).all()
        assert rows.notna().all().all()
        assert not rows.duplicated(["model", "method", "task", "metric"]).any()


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


def test_numbers_stand_in_the_paper(shared):
    source = (shared / "paper" / "high-layer-attention-pruning.tex").read_text()
    for value in published("alpha_robustness")["value"]:
        assert f"{value:.2f}" in source
    for model in ("LLaMA3.1-8B", "LLaMA3.1-70B"):
        assert ",".join(f"{alpha:.1f}" for alpha in published_alphas()[model].values()) in source


def test_an_unknown_table_is_refused():
    with pytest.raises(ValueError, match="unknown table 'table9'; choose from alpha_robustness"):
        published("table9")
