"""Pruned models against the official logits and hand-made twins; plans that are refused."""

import json
import textwrap

import pytest
import torch
from helpers import FAMILIES, SHAPES, VISION, logits, make, small_model, with_twins
from safetensors.torch import load_file
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    Gemma3Config,
    Gemma3ForConditionalGeneration,
    LlamaForCausalLM,
)

from harp_lib import PruningPlan, apply_plan
from harp_lib.pruning import surgery
from harp_lib.pruning.architecture import decoder_layers, scaled_by_alpha
from harp_lib.pruning.surgery import temporarily_pruned


@pytest.mark.parametrize("fold", [False, True], ids=["as it is", "folded"])
@pytest.mark.parametrize("family", ["llama", "gemma2"])
def test_logits_of_the_official_code(shared, family, fold):
    golden = json.loads((shared / "golden" / f"{family}.json").read_text())
    tensors = load_file(shared / "golden" / f"{family}.safetensors")
    config = AutoConfig.for_model(family, **golden["config"])
    # Only eager attention caps scores, as Gemma-2 needs.
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    weights = {name[2:]: tensor for name, tensor in tensors.items() if name.startswith("w.")}
    missing, unexpected = model.load_state_dict(weights, strict=False)
    assert set(missing) <= {"lm_head.weight"}  # tied in Gemma-2
    assert not unexpected
    torch.testing.assert_close(
        logits(model, tensors["ids"]), tensors["dense_logits"], atol=1e-4, rtol=0
    )
    apply_plan(model, PruningPlan.value_only(6, golden["alpha_top_down"]), fold)
    torch.testing.assert_close(logits(model, tensors["ids"]), tensors["logits"], atol=1e-4, rtol=0)


@pytest.mark.parametrize("fold", [False, True], ids=["as it is", "folded"])
@pytest.mark.parametrize("name", [*FAMILIES, "tiny-mistral", *SHAPES, "glm4"])
def test_value_only_is_stock_attention_on_lone_tokens(tiny, name, fold):
    """This holds in the context, which leaves the model as it was, and after ``apply_plan``."""
    alphas = {0: 0.7, 2: 0.0, 3: 1.0}
    model = make(tiny, name)
    twin = with_twins(make(tiny, name), alphas)
    ids = torch.randint(3, 120, (2, 24), generator=torch.Generator().manual_seed(1))
    state_before = model.state_dict()
    dense = logits(model, ids)
    expected = logits(twin, ids)
    plan = PruningPlan.value_only(model.config.num_hidden_layers, alphas)
    with temporarily_pruned(model, plan, fold_output=fold):
        torch.testing.assert_close(logits(model, ids), expected, atol=2e-5, rtol=1e-4)
    assert torch.equal(logits(model, ids), dense)
    assert model.state_dict().keys() == state_before.keys()
    apply_plan(model, plan, fold_output=fold)
    torch.testing.assert_close(logits(model, ids), expected, atol=2e-5, rtol=1e-4)
    assert (expected - dense).abs().max() > 1e-2
    if fold:
        attention = decoder_layers(model)[3].self_attn
        assert attention.o_proj.in_features == attention.v_proj.out_features, (
            "W_O reads each value head once"
        )


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpu_gives_the_same(tiny, tokens):
    plan = PruningPlan.value_only(6, [0.8, 0.3, 0.0])
    expected = logits(apply_plan(tiny(), plan), tokens)
    on_gpu = logits(apply_plan(tiny().cuda(), plan), tokens.cuda()).cpu()
    torch.testing.assert_close(on_gpu, expected, atol=1e-4, rtol=0)


def test_offloaded_weights_are_refused(tiny, tmp_path):
    tiny().save_pretrained(tmp_path / "model")
    device_map = {
        "model.embed_tokens": "cpu",
        "lm_head": "cpu",
        "model.norm": "cpu",
        "model.rotary_emb": "cpu",
    }
    for layer in range(5):
        device_map[f"model.layers.{layer}"] = "cpu"
    device_map["model.layers.5"] = "disk"
    model = AutoModelForCausalLM.from_pretrained(
        tmp_path / "model", device_map=device_map, offload_folder=tmp_path / "offload"
    )
    with pytest.raises(ValueError, match="layer 5: weights that are offloaded"):
        apply_plan(model, PruningPlan.value_only(6, [0.5]))


def test_a_model_that_shares_its_config_is_left_alone(tiny, tokens):
    model = tiny()
    other = type(model)(model.config).eval()
    expected = logits(other, tokens)
    apply_plan(model, PruningPlan.value_only(6, [0.5]))
    assert getattr(other.config, "pruning_plan", None) is None
    assert torch.equal(logits(other, tokens), expected)


def check_unchanged_after(model, tokens, plan, message):
    """``plan`` is refused with ``message``, and the model is as it was."""
    logits_before = logits(model, tokens)
    names_before = set(model.state_dict())
    with pytest.raises(ValueError, match=message):
        apply_plan(model, plan)
    assert torch.equal(logits(model, tokens), logits_before)
    assert set(model.state_dict()) == names_before


def test_plans_for_something_else_are_refused(tiny, tokens):
    model = tiny()
    check_unchanged_after(
        model, tokens, PruningPlan.value_only(7, [0.5]), "for 7 layers, LlamaForCausalLM has 6"
    )
    model.__class__ = type("MyForCausalLM", (LlamaForCausalLM,), {})
    check_unchanged_after(
        model, tokens, PruningPlan.value_only(6, [0.5]), "MyForCausalLM is not a class of"
    )
    model = apply_plan(tiny(), PruningPlan.value_only(6, [0.5]))
    check_unchanged_after(model, tokens, PruningPlan.value_only(6, {0: 0.5}), "pruned already")


@pytest.mark.parametrize(
    ("model_type", "particulars", "message"),
    [
        ("gpt2", {"n_layer": 2, "n_embd": 32, "n_head": 4}, "GPT2LMHeadModel is not supported"),
        (
            "phi3",
            {"pad_token_id": 0},
            r"layer 1 has no self_attn with separate v_proj, .*\(it has o_proj, qkv_proj\)",
        ),
        ("mamba", {}, r"MambaForCausalLM .*\(the layer has norm, mixer\)"),
        ("bert", {"is_decoder": True}, r"no list of layers \(it has embeddings, encoder"),
        (
            "bitnet",
            {},
            "in layer 1, attention on a single token is not W_V W_O.*attn_sub_norm",
        ),
    ],
)
def test_other_attention_is_refused_by_name(model_type, particulars, message):
    settings = {"vocab_size": 128, **particulars}
    if model_type != "gpt2":  # which has other names for these
        settings.update(
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            initializer_range=0.2,
        )
    config = AutoConfig.for_model(model_type, **settings)
    model = AutoModelForCausalLM.from_config(config).eval()
    if model_type == "bitnet":
        torch.nn.init.normal_(model.model.layers[1].self_attn.attn_sub_norm.weight)
    with pytest.raises(ValueError, match=message):
        apply_plan(model, PruningPlan.value_only(2, [0.5]))


def test_models_that_only_look_like_others_are_refused():
    text = {
        "vocab_size": 64,
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 2,
        "head_dim": 8,
    }
    model = Gemma3ForConditionalGeneration(Gemma3Config(text_config=text, vision_config=VISION))
    message = "Gemma3ForConditionalGeneration is not supported: it has other inputs"
    with pytest.raises(ValueError, match=message) as refusal:
        apply_plan(model, PruningPlan.value_only(2, [0.5]))
    # What the message advises keeps every weight.
    names = {"model": model.eval(), "AutoModelForCausalLM": AutoModelForCausalLM}
    exec(textwrap.dedent(str(refusal.value).partition("\n")[2]), names)
    ids = torch.arange(5, 25)[None]
    torch.testing.assert_close(logits(names["text"], ids), logits(model, ids))
    pruned = apply_plan(names["text"], PruningPlan.value_only(2, [0.5]))
    assert type(pruned).__name__ == "HarpGemma3ForCausalLM"
    model = small_model("hyperclovax", use_post_norm=True)
    with pytest.raises(ValueError, match="is not supported: layer 3 has parts of no known kind"):
        apply_plan(model, PruningPlan.value_only(4, [0.5]))
    model = small_model("olmo", clip_qkv=4.0)
    with pytest.raises(ValueError, match="is not supported: it clips values"):
        apply_plan(model, PruningPlan.value_only(4, [0.5]))


def test_training_mode_with_dropout_is_no_reason_to_refuse(tiny):
    model = tiny().train()
    for layer in model.model.layers:
        layer.self_attn.attention_dropout = 0.5
    assert apply_plan(model, PruningPlan.value_only(6, [0.5])).training


class Halves(torch.Tensor):
    """Weights of another kind than plain tensors, as quantized ones are."""


@pytest.mark.parametrize("family", ["tiny-llama", "tiny-gemma2"])
def test_weights_of_another_kind_are_refused_where_they_would_be_scaled(tiny, tokens, family):
    model = tiny(family)
    scaled = scaled_by_alpha(model.model.layers[5])
    scaled.weight = torch.nn.Parameter(
        scaled.weight.detach().as_subclass(Halves), requires_grad=False
    )
    plan = PruningPlan.value_only(6, [0.5])
    check_unchanged_after(model, tokens, plan, "layer 5: weights that are offloaded or quantized")


@pytest.mark.parametrize(
    ("family", "failing", "error"),
    [
        ("tiny-llama", "_mark_as_pruned", torch.OutOfMemoryError),
        ("tiny-gemma2", "fold_alpha", torch.OutOfMemoryError),
        ("tiny-gemma2", "swap_modules", KeyboardInterrupt),
    ],
)
def test_whatever_fails_leaves_the_model_as_it_was(
    tiny, tokens, monkeypatch, family, failing, error
):
    model = tiny(family)
    config = model.config
    dense = logits(model, tokens)
    parts_before = [(name, type(module)) for name, module in model.named_modules()]
    plan = PruningPlan.value_only(6, [0.5, 0.3, 0.0])
    works = getattr(surgery, failing)
    calls = []

    def works_and_fails(*arguments):
        works(*arguments)
        calls.append(arguments)
        if failing != "fold_alpha" or len(calls) == 2:
            raise error("out of memory")

    monkeypatch.setattr(surgery, failing, works_and_fails)
    with pytest.raises(error, match="out of memory"):
        apply_plan(model, plan, fold_output=True)
    assert [(name, type(module)) for name, module in model.named_modules()] == parts_before
    assert all(getattr(module, "config", config) is config for module in model.modules())
    assert torch.equal(logits(model, tokens), dense)
    monkeypatch.setattr(surgery, failing, works)
    pruned = apply_plan(model, plan, fold_output=True)
    again = apply_plan(tiny(family), plan, fold_output=True)
    assert torch.equal(logits(pruned, tokens), logits(again, tokens))
