"""Models: names, folders, hub ids; tiny ones; and the real SmolLM2."""

import re
import weakref

import pytest
import torch
from helpers import ODD_NAME, ROUNDING, change_json
from torch.utils._python_dispatch import TorchDispatchMode
from transformers.utils import logging

from harp_lib import load_model
from harp_lib.config import NAMED_MODELS, model_name, read_profile, slug
from harp_lib.models import registry
from harp_lib.models.load import release_memory
from harp_lib.models.registry import (
    FAMILIES,
    FROM_WHEELS,
    ModelDownloadError,
    tiny_model,
    tiny_tokenizer,
)
from harp_lib.names import short_names
from harp_lib.text.evaluating import evaluating

TEXT = "The with statement wraps a block: naïve café, 日本語, 🙂 12345\n\n    def f(x): return x"


def test_short_names_of_models_are_no_other_model_s():
    assert set(NAMED_MODELS) == FROM_WHEELS.keys() | FAMILIES.keys()
    assert len(set(short_names(NAMED_MODELS).values())) == len(NAMED_MODELS)
    alone = {
        "smollm2-135m": "SmolLM2",
        "tiny-gemma2": "tiny random Gemma-2",
        "meta-llama/Llama-3.2-1B": "Llama-3.2-1B",
        "Qwen/Qwen2-7B": "Qwen2-7B",
        "/home/me/pruned": "pruned",
        "LLaMA3.1-8B (random weights), A / B": "LLaMA3.1-8B (random weights), A / B",
    }
    assert short_names(alone) == alone
    alike = {
        "meta-llama/Llama-3.2-1B": "meta-llama/Llama-3.2-1B",
        "unsloth/Llama-3.2-1B": "unsloth/Llama-3.2-1B",
        "/home/me/Llama-3.2-1B": "me/Llama-3.2-1B",
        "/first/run/model": "first/run/model",
        "/second/run/model": "second/run/model",
        "/model": "/model",
        "/home/me/SmolLM2": "me/SmolLM2",  # the registry's
        "/home/me/smollm2-135m": "me/smollm2-135m",
        "/home/me/LLaMA3.1-8B": "me/LLaMA3.1-8B",  # the paper's
        "unsloth/Llama-3.1-8B": "unsloth/Llama-3.1-8B",
    }
    assert short_names(alike) == alike
    assert len(set(short_names([*alone, *alike]).values())) == len({*alone, *alike})


def test_models_in_file_names():
    assert slug("meta-llama/Llama-3.1-8B") == "meta-llama--Llama-3.1-8B"
    assert slug("LLaMA3.1-8B (random weights), H100") == "LLaMA3.1-8B-random-weights-H100"
    assert slug("/first/it's {a} model").startswith("it-s-a-model-")
    assert slug("/first/model") != slug("/second/model")


def test_a_model_has_one_full_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "owner" / "model").mkdir(parents=True)
    assert model_name("owner/model") == "owner/model", "no model is in this folder"
    assert slug("owner/model") == "owner--model", "wherever a job runs"
    (tmp_path / "owner" / "model" / "config.json").touch()
    ways = ["owner/model", "./owner/../owner/model/", str(tmp_path / "owner" / "model")]
    assert {model_name(way) for way in ways} == {ways[-1]}
    assert read_profile("smoke", models=ways)["models"] == [ways[-1]]
    for refused in ("a--b/c", "a/b..c", "a/b-", "a/b/c"):  # as the hub does
        with pytest.raises(ValueError, match="unknown model"):
            model_name(refused)


def test_the_name_of_any_folder_as_part_of_a_file_name(tmp_path):
    (tmp_path / ODD_NAME).mkdir()
    assert re.fullmatch(r"a-b-c-d-e-f-1-41-g-é-h-[0-9a-f]{6}", slug(str(tmp_path / ODD_NAME)))


def test_memory_is_given_back():
    model = tiny_model("tiny-llama")
    model.itself = model.forward  # a reference cycle, as the hooks of accelerate make
    reference = weakref.ref(model)
    del model
    release_memory()
    assert reference() is None


class CalledOperations(TorchDispatchMode):
    """Records the names of the operations that are computed."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.names.append(str(function))
        return function(*args, **(kwargs or {}))


def test_linear_layers_by_onednn_give_the_same_and_leave_gradients_alone():
    model = tiny_model("tiny-qwen2")  # which has biases
    ids = torch.arange(5, 45).reshape(2, 20)
    expected = model(ids).logits
    with evaluating(model), torch.no_grad(), CalledOperations() as called:
        torch.testing.assert_close(model(ids).logits, expected.detach(), **ROUNDING)
    if torch.backends.mkldnn.is_available():
        assert any("mkldnn._linear_pointwise.default" in name for name in called.names)
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
    random_state = torch.get_rng_state()
    model = tiny_model(name)
    twin = tiny_model(name)
    assert torch.equal(torch.get_rng_state(), random_state)
    for weight, same_weight in zip(model.parameters(), twin.parameters(), strict=True):
        assert torch.equal(weight, same_weight)
    assert not model.training
    assert {weight.dtype for weight in model.parameters()} == {torch.float32}
    biases = [key for key, _ in model.named_parameters() if key.endswith(".bias")]
    assert len(biases) == {"tiny-qwen2": 18}.get(name, 0)
    for key, weight in model.named_parameters():
        if "norm" in key or key in biases:
            assert weight.std() > 0.01, key


@pytest.mark.parametrize("name", ["smollm2-135", "./nowhere/model", "a/b/c", ""])
def test_an_unknown_name_is_refused_with_the_known_ones(name):
    message = r"unknown model .*smollm2-135m.*folder.*owner/name"
    with pytest.raises(ValueError, match=message) as caught:
        load_model(name)
    assert ("did you mean 'smollm2-135m'" in str(caught.value)) == (name == "smollm2-135")


def test_a_folder_is_loaded_without_messages(saved, capfd):
    bars = logging.is_progress_bar_enabled()
    verbosity = logging.get_verbosity()
    model, tokenizer = load_model(saved, device_map="cpu")
    assert capfd.readouterr() == ("", "")
    assert not model.training
    assert logging.is_progress_bar_enabled() == bars
    assert logging.get_verbosity() == verbosity
    expected = tiny_model("tiny-llama").state_dict()
    for key, weight in model.state_dict().items():
        assert torch.equal(weight, expected[key]), key
    assert tokenizer("a plain text").input_ids == tiny_tokenizer()("a plain text").input_ids


def test_a_folder_without_a_whole_dense_model_is_refused(saved):
    config_file = saved / "config.json"
    change_json(config_file, num_hidden_layers=7)
    with pytest.raises(ValueError, match="lacks 9 weights"):
        load_model(str(saved))
    auto_map = {"AutoConfig": "remote.HarpLlamaConfig"}
    change_json(config_file, num_hidden_layers=6, auto_map=auto_map)
    with pytest.raises(ValueError, match=r"pruned checkpoint.*load_pruned"):
        load_model(str(saved))
    config_file.unlink()
    with pytest.raises(ValueError, match=r"holds no config\.json"):
        load_model(str(saved))


def test_without_the_hub_the_error_names_models_that_need_none(monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    message = r"(?s)owner/name cannot be loaded.*no hub: smollm2"
    with pytest.raises(ModelDownloadError, match=message) as caught:
        load_model("owner/name")
    assert caught.value.__cause__ is not None


@pytest.mark.real_model
def test_smollm2_is_converted_as_published(smollm2, monkeypatch):
    monkeypatch.setattr(registry, "_download", lambda *_: pytest.fail("downloaded again"))
    model, tokenizer = load_model("smollm2-135m", device_map="cpu")
    assert {weight.dtype for weight in model.parameters()} == {torch.float32}
    assert not hasattr(model.config, "quantization_config")
    special = [tokenizer.bos_token, tokenizer.eos_token, tokenizer.pad_token]
    assert special == ["<|im_start|>", "<|im_end|>", "<|im_end|>"]
    assert "<|im_start|>" in tokenizer.chat_template
    pieces = tokenizer.tokenize("A:\n\n1. In  2018")
    assert "|".join(pieces) == "A|:|ĊĊ|1|.|ĠIn|ĠĠ|2|0|1|8"
    prompt = tokenizer("The capital of France is", return_tensors="pt")
    assert prompt.input_ids[0].tolist() == [504, 3575, 282, 4649, 314]  # no BOS
    answer = model.generate(**prompt, do_sample=False, max_new_tokens=3)
    assert tokenizer.decode(answer[0]).startswith("The capital of France is Paris.")
