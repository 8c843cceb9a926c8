"""The model's own forward pass against its decoder and head, which are cheaper."""

import pytest
import torch
import torch.nn.functional as F
from transformers import AutoConfig, AutoModelForCausalLM, T5Config, T5ForConditionalGeneration

from harp_lib import perplexity
from harp_lib.text import perplexity as perplexity_module
from harp_lib.text.head import is_decoder_and_head
from harp_lib.text.perplexity import Window

IDS = (torch.arange(2 * 24).reshape(2, 24) * 37 % 500) + 5
SHAPE = {
    "vocab_size": 512,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "max_position_embeddings": 64,
    "initializer_range": 0.3,
    "pad_token_id": 0,
}
FAMILIES = {
    "llama": ({}, True),
    "gemma2": ({"final_logit_softcapping": 3.0, "query_pre_attn_scalar": 16}, True),
    "granite": ({"logits_scaling": 4.0}, True),
    "cohere": ({"logit_scale": 0.3}, True),
    "gpt2": ({"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 64}, True),
    "bert": ({"is_decoder": True}, False),  # a transform before the head
    "big_bird": ({"is_decoder": True, "attention_type": "original_full"}, False),
    "llama4_text": ({"num_local_experts": 2, "intermediate_size_mlp": 48}, None),
    "recurrent_gemma": ({"logits_soft_cap": 3.0, "lru_width": 32, "num_hidden_layers": 3}, False),
}
"""Settings of a tiny model, and whether its decoder and its head are all of it (None: either)."""


def tiny_family(name):
    settings, _ = FAMILIES[name]
    config = AutoConfig.for_model(name, **SHAPE | settings)
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(config).eval()


def obvious_perplexity(model, ids):
    with torch.no_grad():
        logits = model(ids).logits[:, :-1].double()
    return F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten()).exp().item()


@pytest.mark.parametrize("name", FAMILIES)
def test_perplexity_is_that_of_the_own_forward_pass(name, monkeypatch):
    model = tiny_family(name)
    _, expected = FAMILIES[name]
    if expected is not None:
        assert is_decoder_and_head(model) == expected
    assert perplexity(model, IDS) == pytest.approx(obvious_perplexity(model, IDS), rel=1e-4)
    with torch.no_grad():
        loss = model(IDS, labels=IDS).loss.item()
    assert perplexity(model, IDS) == pytest.approx(torch.tensor(loss).exp().item(), rel=1e-4)
    # Few logits are held at a time, and only the scored tokens count.
    monkeypatch.setattr(perplexity_module, "LOGITS_PER_BLOCK", 24 * 512)
    logits = model(IDS).logits[:, -6:-1].flatten(0, 1)
    nll = F.cross_entropy(logits, IDS[:, -5:].flatten()).item()
    windows = [Window(ids, 5) for ids in IDS]
    assert perplexity(model, windows) == pytest.approx(torch.tensor(nll).exp().item(), rel=1e-4)


def test_a_hook_that_changes_the_logits_is_seen(tiny):
    model = tiny()
    dense = perplexity(model, IDS)

    def sharpen(module, args, output):
        output.logits = 2 * output.logits
        return output

    with model.register_forward_hook(sharpen):
        assert not is_decoder_and_head(model)
        assert perplexity(model, IDS) == pytest.approx(obvious_perplexity(model, IDS), rel=1e-5)
    assert perplexity(model, IDS) == dense


def test_few_logits_are_held_at_a_time_and_the_mode_is_as_before(tiny, monkeypatch):
    """All logits of a long text together would fill the memory."""
    monkeypatch.setattr(perplexity_module, "LOGITS_PER_BLOCK", 10 * 512)
    model = tiny()
    expected = obvious_perplexity(model, IDS)
    sizes = []

    def record_size(module, args, logits):
        sizes.append(logits.numel())

    with model.lm_head.register_forward_hook(record_size):
        assert perplexity(model.train(), IDS) == pytest.approx(expected, rel=1e-5)
    assert max(sizes) == 10 * 512
    assert model.training


def test_an_encoder_decoder_is_refused():
    config = T5Config(vocab_size=512, d_model=32, d_kv=16, d_ff=48, num_layers=1, num_heads=2)
    model = T5ForConditionalGeneration(config)
    message = "T5ForConditionalGeneration is not supported: its forward pass cannot be called"
    with pytest.raises(ValueError, match=message):
        perplexity(model, IDS)


class Halved(torch.Tensor):
    """Weights that are stored as halves of what they stand for, as quantized ones are stored."""

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        if function is F.linear:
            x, weight, *bias = args
            return F.linear(x, 2 * weight.as_subclass(torch.Tensor), *bias)
        if function in (torch.ops.mkldnn._linear_pointwise, torch.Tensor.contiguous):
            raise NotImplementedError("a kernel that does not know these weights")
        return super().__torch_function__(function, types, args, kwargs or {})


def test_weights_of_another_kind_compute_their_products_themselves(tiny):
    model = tiny()
    dense = perplexity(model, IDS)
    for layer in model.model.layers:
        for linear in (layer.self_attn.q_proj, layer.mlp.up_proj):
            halves = (linear.weight.detach() / 2).as_subclass(Halved)
            linear.weight = torch.nn.Parameter(halves, requires_grad=False)
    assert isinstance(model.model.layers[0].mlp.up_proj.weight, Halved)
    assert perplexity(model, IDS) == pytest.approx(dense, rel=1e-5)
