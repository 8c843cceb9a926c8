"""The tiny models are deterministic, of the stated shape, and lively enough that a mistake in surgery would show."""

import hashlib
import subprocess
import sys

import pytest
import torch

from harp_lib.measure.tiny import FAMILIES, tiny_model, tiny_tokenizer
from harp_lib.paths import ROOT

TEXT = "The with statement wraps a block: naïve café, 日本語, 🙂 12345\n\n    def f(x): return x"


def test_tokenizer_is_lossless_and_adds_nothing():
    tokenizer = tiny_tokenizer()
    ids = tokenizer(TEXT).input_ids
    assert tokenizer.decode(ids) == TEXT
    assert len(tokenizer) == 512
    assert tokenizer.model_max_length == 512
    special = {tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id}
    assert len(special) == 3
    assert not special & set(ids)
    assert len(ids) < len(TEXT.encode())  # it did learn merges


def test_everything_is_the_same_in_another_process():
    code = (
        "import hashlib; from harp_lib.tiny import _tokenizer_json, tiny_model\n"
        "weights = b''.join(p.detach().numpy().tobytes() for p in tiny_model('tiny-gemma2').parameters())\n"
        "print(hashlib.sha256(_tokenizer_json().encode() + weights).hexdigest())"
    )
    other = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    from harp_lib.measure.tiny import _tokenizer_json

    weights = b"".join(p.detach().numpy().tobytes() for p in tiny_model("tiny-gemma2").parameters())
    assert other.stdout.strip() == hashlib.sha256(_tokenizer_json().encode() + weights).hexdigest()


@pytest.mark.parametrize("name", FAMILIES)
def test_model_shape_and_reproducibility(name):
    before = torch.get_rng_state()
    model, twin = tiny_model(name), tiny_model(name)
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), twin.parameters(), strict=True))

    config = model.config
    assert not model.training
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert (config.num_hidden_layers, config.hidden_size, config.intermediate_size) == (6, 64, 128)
    assert (config.num_attention_heads, config.num_key_value_heads) == (4, 2)
    assert config.max_position_embeddings == 512
    attention = model.model.layers[0].self_attn
    assert attention.q_proj.weight.shape == (64, 64)
    assert attention.k_proj.weight.shape == (32, 64)
    tokenizer = tiny_tokenizer()
    assert config.vocab_size == len(tokenizer) == model.get_input_embeddings().num_embeddings
    assert (config.bos_token_id, config.eos_token_id, config.pad_token_id) == (
        tokenizer.bos_token_id,
        tokenizer.eos_token_id,
        tokenizer.pad_token_id,
    )


@pytest.mark.parametrize("name", FAMILIES)
def test_model_is_lively(name):
    model = tiny_model(name)
    norms = [p for key, p in model.named_parameters() if "norm" in key]
    assert norms
    assert all(p.std() > 0.01 for p in norms)
    ids = tiny_tokenizer()(TEXT, return_tensors="pt").input_ids[:, :24]
    changed = ids.clone()
    changed[0, 0] = ids[0, 0] + 1
    with torch.no_grad():
        logits, other = model(ids).logits[0], model(changed).logits[0]  # (N, V)
    assert logits.std(dim=-1).min() > 0.3
    assert (logits[-1] - other[-1]).abs().max() > 0.1  # the first token reaches the last
    assert len(set(logits.argmax(dim=-1).tolist())) > 5


def test_families_differ_where_they_should():
    assert all(p.std() > 0.05 for key, p in tiny_model("tiny-qwen2").named_parameters() if key.endswith(".bias"))
    assert sum(key.endswith(".bias") for key, _ in tiny_model("tiny-qwen2").named_parameters()) == 18
    gemma = tiny_model("tiny-gemma2")
    assert gemma.config.sliding_window == 32
    assert set(gemma.config.layer_types) == {"sliding_attention", "full_attention"}
    assert gemma.config.attn_logit_softcapping
    assert gemma.config.final_logit_softcapping
    llama, mistral = (tiny_model(name).model.layers[0].mlp.up_proj.weight for name in ("tiny-llama", "tiny-mistral"))
    assert not torch.equal(llama, mistral)
