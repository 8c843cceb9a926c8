"""Models: names, folders, hub ids; tiny ones; and the real SmolLM2."""

import json
from pathlib import Path

import gguf
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers.utils import logging

from harp_lib import load_model
from harp_lib.config import NAMED_MODELS, slug
from harp_lib.models import registry
from harp_lib.models.load import evaluating, release_memory
from harp_lib.models.registry import (
    FAMILIES,
    FROM_WHEELS,
    ModelDownloadError,
    tiny_model,
    tiny_tokenizer,
)
from harp_lib.names import display_name

Q4_1 = gguf.GGMLQuantizationType.Q4_1
TEXT = "The with statement wraps a block: naïve café, 日本語, 🙂 12345\n\n    def f(x): return x"


def test_names():
    assert set(NAMED_MODELS) == FROM_WHEELS.keys() | FAMILIES.keys()
    shown = {
        "smollm2-135m": "SmolLM2-135M-Instruct (Q4_1, dequantized)",
        "tiny-gemma2": "tiny random Gemma-2",
    }
    shown |= {
        "meta-llama/Llama-3.1-8B": "Llama-3.1-8B",
        "checkpoints/pruned/": "pruned",
        ".": Path.cwd().name,
    }
    assert {name: display_name(name) for name in shown} == shown
    assert slug("meta-llama/Llama-3.1-8B") == "meta-llama--Llama-3.1-8B"
    assert slug(".").startswith(f"{Path.cwd().name}-")


def test_memory_is_given_back():
    import weakref

    model = tiny_model("tiny-llama")
    model.itself, gone = (
        model.forward,
        weakref.ref(model),
    )  # a cycle, as the hooks of accelerate make
    del model
    release_memory()
    assert gone() is None


class Called(TorchDispatchMode):
    names = ""  # of the operations that are computed

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.names += f" {function}"
        return function(*args, **(kwargs or {}))


def test_linear_layers_by_onednn_give_the_same_and_leave_gradients_alone():
    model, ids = tiny_model("tiny-qwen2"), torch.arange(5, 45).reshape(2, 20)  # which has biases
    expected = model(ids).logits
    with evaluating(model), torch.no_grad(), Called() as called:
        torch.testing.assert_close(model(ids).logits, expected.detach(), atol=1e-5, rtol=1e-5)
    assert (
        "mkldnn._linear_pointwise.default" in called.names
        or not torch.backends.mkldnn.is_available()
    )
    with evaluating(model):
        torch.testing.assert_close(model(ids).logits, expected, atol=0, rtol=0)
        model(ids).logits.sum().backward()
    assert all(weight.grad is not None for weight in model.parameters())


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
    assert all(
        torch.equal(a, b) for a, b in zip(model.parameters(), twin.parameters(), strict=True)
    )
    assert not model.training
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert all(
        p.std() > 0.01
        for key, p in model.named_parameters()
        if "norm" in key or key.endswith(".bias")
    )
    assert sum(key.endswith(".bias") for key, _ in model.named_parameters()) == (
        18 if name == "tiny-qwen2" else 0
    )


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", torch.bfloat16, torch.float64])
def test_dtype(dtype):
    model, tokenizer = load_model("tiny-llama", dtype=dtype, device_map="cpu")
    assert model.dtype == (getattr(torch, dtype) if isinstance(dtype, str) else dtype)
    assert not model.training
    assert len(tokenizer) == model.config.vocab_size


@pytest.mark.parametrize(
    "name", ["smollm2-135", "gpt2", "./nowhere/model", "/nowhere", "a/b/c", ""]
)
def test_unknown_name(name):
    with pytest.raises(
        ValueError, match=r"unknown model .*smollm2-135m.*folder.*owner/name"
    ) as caught:
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
    (saved / "config.json").write_text(
        json.dumps(written | {"auto_map": {"AutoConfig": "remote.HarpLlamaConfig"}})
    )
    with pytest.raises(ValueError, match=r"pruned checkpoint.*load_pruned"):
        load_model(str(saved))
    (saved / "config.json").unlink()
    with pytest.raises(ValueError, match=r"holds no config\.json"):
        load_model(str(saved))


def test_hub_is_not_reached(monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(
        ModelDownloadError, match=r"(?s)owner/name cannot be loaded.*no hub: smollm2"
    ) as caught:
        load_model("owner/name")
    assert caught.value.__cause__ is not None


@pytest.mark.real_model
def test_smollm2(smollm2, monkeypatch):
    monkeypatch.setattr(registry, "_download", lambda *_: pytest.fail("downloaded again"))
    model, tokenizer = load_model("smollm2-135m", device_map="cpu")
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert not hasattr(model.config, "quantization_config")
    special = [tokenizer.bos_token, tokenizer.eos_token, tokenizer.pad_token]
    assert special == ["<|im_start|>", "<|im_end|>", "<|im_end|>"]
    assert "<|im_start|>" in tokenizer.chat_template
    assert tokenizer.tokenize("A:\n\n1. In  2018") == [
        "A",
        ":",
        "ĊĊ",
        "1",
        ".",
        "ĠIn",
        "ĠĠ",
        "2",
        "0",
        "1",
        "8",
    ]
    prompt = tokenizer("The capital of France is", return_tensors="pt")
    assert prompt.input_ids[0].tolist() == [504, 3575, 282, 4649, 314]  # no BOS
    answer = model.generate(**prompt, do_sample=False, max_new_tokens=3)
    assert tokenizer.decode(answer[0]).startswith("The capital of France is Paris.")
