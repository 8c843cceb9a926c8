"""A path that begins with ``~`` is in the user's home, and nothing asks on the terminal."""

import builtins
import json
import sys
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest
import torch
from helpers import change_json

from harp_lib import (
    PruningPlan,
    apply_plan,
    config,
    load_model,
    load_pruned,
    save_gguf,
    save_nemotron_nas,
    save_pruned,
    search_alphas,
)
from harp_lib.cli import parse
from harp_lib.evaluation.llama_cpp import LlamaCpp
from harp_lib.models.registry import tiny_tokenizer
from harp_lib.text.corpora import load_corpus

PLAN = PruningPlan.value_only(6, [0.5])


@pytest.fixture
def home(tmp_path, monkeypatch):
    """The user's home, which is not the working directory; that one has to stay empty."""
    home = tmp_path / "home"
    here = tmp_path / "here"
    home.mkdir()
    here.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(here)
    yield home
    assert not [*here.iterdir()]


@pytest.fixture
def silent_terminal(monkeypatch):
    """A terminal on which nothing is asked."""
    questions = []
    monkeypatch.setattr(builtins, "input", lambda question="": questions.append(question) or "n")
    yield
    assert not questions


def test_what_is_written_is_in_the_users_home(home, tiny, tokens):
    search_alphas(tiny(), tokens, 1, grid=[1.0], resume="~/new/journal", progress=False)
    PLAN.to_json("~/plan.json")
    assert PruningPlan.from_json("~/plan.json") == PLAN
    model = apply_plan(tiny(), PLAN)
    save_pruned(model, None, "~/pruned")
    save_gguf(model, tiny_tokenizer(), "~/model.gguf")
    save_nemotron_nas(model, None, "~/nas")
    written = {file.name for file in home.iterdir()}
    assert written == {"new", "plan.json", "pruned", "model.gguf", "nas"}
    loaded, _ = load_pruned("~/pruned")
    assert torch.equal(loaded(tokens).logits, model(tokens).logits)


def test_llama_cpp_reads_a_file_of_the_users_home(home, monkeypatch):
    params = SimpleNamespace(
        model=SimpleNamespace(), cpuparams=SimpleNamespace(), cpuparams_batch=SimpleNamespace()
    )
    bindings = MagicMock(CommonParams=lambda: params)
    monkeypatch.setitem(sys.modules, "xllamacpp", bindings)
    LlamaCpp("~/model.gguf", 64)
    assert params.model.path == str(home / "model.gguf")


def test_models_and_datasets_of_the_users_home(home, tiny, silent_terminal):
    folder = home / "dense"
    tiny().save_pretrained(folder)
    assert load_model("~/dense")[0].config.num_hidden_layers == 6
    rows = home / "rows" / "wikitext"
    rows.mkdir(parents=True)
    (rows / "test.jsonl").write_text(json.dumps({"page": "A page."}), encoding="utf-8")
    assert load_corpus("wikitext", "test", "~/rows").documents == ("A page.",)
    profile = config.load_profile("smoke", ["~/dense"], "~/rows")
    assert profile["models"] == [str(folder)]
    assert profile["datasets"] == str(home / "rows")
    options = parse(["run", "--models=~/dense", "--datasets=~/rows"])
    assert (options.models, options.datasets) == ([str(folder)], str(home / "rows"))


@pytest.mark.parametrize("argument", ["--models=~nobody/dense", "--datasets=~nobody/rows"])
def test_the_home_of_nobody_is_refused(argument, home, capsys):
    with pytest.raises(SystemExit, match="2"):
        parse(["run", argument])
    assert "~nobody" in capsys.readouterr().err


def test_a_pruned_folder_of_the_users_home_is_refused_without_a_question(
    home, tiny, silent_terminal
):
    save_pruned(apply_plan(tiny(), PLAN), None, home / "pruned")
    with pytest.raises(ValueError, match=r"is a pruned checkpoint: load it with .*load_pruned"):
        load_model("~/pruned")


def test_a_folder_with_code_of_its_own_is_refused_without_a_question(home, tiny, silent_terminal):
    folder = home / "own-code"
    tiny().save_pretrained(folder)
    auto_map = {"AutoConfig": "mine.MyConfig", "AutoModelForCausalLM": "mine.MyForCausalLM"}
    change_json(folder / "config.json", model_type="mine", auto_map=auto_map)
    (folder / "mine.py").write_text("raise AssertionError('it was run')", encoding="utf-8")
    with pytest.raises(ValueError, match=r"own-code has code of its own.*trust_remote_code=True"):
        load_model("~/own-code")
