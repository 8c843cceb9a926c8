"""What a run reads under an unchanged name decides by its content: in the engine and in cells."""

import os
import shutil

import pytest
from checkouts import Checkout
from helpers import change_json
from huggingface_hub import constants
from tokenizers import pre_tokenizers
from transformers import AutoTokenizer

from harp_lib import config
from harp_lib.config import load_profile
from harp_lib.contents import contents_of_models, contents_of_rows
from harp_lib.experiments.context import Context, release
from harp_lib.results import Store


def change_tokenizer(folder):
    tokenizer = AutoTokenizer.from_pretrained(folder)
    digits = pre_tokenizers.Digits(individual_digits=True)
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [digits, pre_tokenizers.ByteLevel(add_prefix_space=True)]
    )
    tokenizer.save_pretrained(folder)


def change_bos(folder):
    change_json(folder / "tokenizer_config.json", bos_token="<eos>")


def change_generation(folder):
    change_json(folder / "generation_config.json", suppress_tokens=[40, 41])


def change_norm(folder):
    change_json(folder / "config.json", rms_norm_eps=1e-3)


CHANGES = [change_tokenizer, change_bos, change_generation, change_norm]


@pytest.mark.parametrize("change", CHANGES)
def test_a_run_and_its_cells_know_a_model_by_its_content(saved, tmp_path, monkeypatch, change):
    monkeypatch.setattr(config, "RESULTS", tmp_path / "results")
    profile = load_profile("smoke", [str(saved)])

    def known():
        release()
        return contents_of_models(profile), Context(profile, str(saved), Store()).inputs

    before = known()
    os.utime(saved / "config.json")
    assert known() == before, "only the time has changed"
    (saved / "checkpoint-500").mkdir()
    (saved / "checkpoint-500" / "optimizer.pt").write_bytes(b"large")
    assert known() == before, "nobody reads a training's checkpoints"
    change(saved)
    for earlier, now in zip(before, known(), strict=True):
        assert earlier != now


def test_a_repository_is_known_by_its_commit(tmp_path, monkeypatch):
    """``./run_all.sh fetch`` may bring another one."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    profile = {"models": ["owner/name"], "alpha_search": {"extra_models": []}}
    ref = tmp_path / "models--owner--name" / "refs" / "main"
    ref.parent.mkdir(parents=True)
    found = []
    for commit in ("a" * 40, "b" * 40):
        ref.write_text(commit)
        found.append(contents_of_models(profile))
    assert found == [{"owner/name": "a" * 40}, {"owner/name": "b" * 40}]


def test_rows_are_known_by_their_content_even_at_equal_size_and_time(tmp_path, monkeypatch):
    monkeypatch.setattr(config, "RESULTS", tmp_path / "results")
    file = tmp_path / "rows" / "boolq" / "validation.jsonl"
    file.parent.mkdir(parents=True)
    file.write_text('{"a": 1}\n')
    profile = {"datasets": str(tmp_path / "rows")}
    before = contents_of_rows(profile)
    status = file.stat()
    file.write_text('{"a": 2}\n')
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert contents_of_rows(profile) != before
    file.write_text('{"a": 1}\n')
    assert contents_of_rows(profile) == before


def test_the_same_command_looks_again_after_a_change(saved, tmp_path):
    rows = tmp_path / "rows" / "boolq" / "validation.jsonl"
    rows.parent.mkdir(parents=True)
    rows.write_text((config.DATA / "mini" / "boolq" / "validation.jsonl").read_text())
    work = Checkout(tmp_path / "work", {"10_toy": "print(1)"})
    options = ["--only", "10", "--models", str(saved), "--datasets", str(tmp_path / "rows")]

    def outcome():
        code, shown = work.run(*options)
        assert code == 0, shown
        return shown.split("10_toy")[-1].split(",")[0].split("\n")[0].strip()

    assert outcome() == "done"
    change_bos(saved)
    assert outcome() == "done"
    lines = rows.read_text().splitlines()
    rows.write_text("\n".join(reversed(lines)) + "\n")
    assert outcome() == "done"
    assert outcome() == "up to date"
    shapes = work.root / "data" / "configs"
    shapes.unlink()
    shutil.copytree(config.DATA / "configs", shapes)
    change_json(shapes / "smollm2-135m.json", num_hidden_layers=31)
    assert outcome() == "done"
