"""Savers compare what the files compute with what the model computes, whatever its config says."""

import pytest
import torch
from gguf import GGUFWriter
from helpers import small_model
from safetensors.torch import load_file, save_file

from harp_lib import PruningPlan, apply_plan, save_gguf, save_nemotron_nas
from harp_lib.models import nemotron_nas
from harp_lib.models.registry import tiny_tokenizer
from harp_lib.models.same_logits import _in_float32
from harp_lib.pruning.plan import LayerPlan

PLAN = PruningPlan(
    6,
    {
        5: LayerPlan(0.8),
        4: LayerPlan(0.0),
        2: LayerPlan(removed_groups=(1,), removed_channels=(3, 4, 90)),
    },
)


@pytest.fixture
def pruned(tiny):
    return apply_plan(tiny("tiny-llama"), PLAN)


def epsilon(model):
    model.config.rms_norm_eps = 1e-5


def rope_theta(model):
    model.config.rope_parameters["rope_theta"] = 10100.0


def low_frequencies(model):
    model.model.rotary_emb.inv_freq[-1] /= 8  # which hardly shows in a short text


def attention_scale(model):
    model.model.layers[2].self_attn.scaling *= 1.01


def rotary_scale(model):
    model.model.rotary_emb.attention_scaling = 1.01


def not_causal(model):
    model.model.layers[1].self_attn.is_causal = False
    model.config._attn_implementation = "eager"
    model.model.layers[1].self_attn.register_forward_pre_hook(
        lambda module, args, kwargs: (args, kwargs | {"attention_mask": None}), with_kwargs=True
    )


def hook(model):
    model.model.layers[5].mlp.register_forward_hook(lambda module, args, output: 1.01 * output)


def weight_hook(model):
    def halve(module, args):
        module.weight.data = 0.5 * original

    original = model.model.norm.weight.data
    model.model.norm.weight.data = original.clone()
    model.model.norm.register_forward_pre_hook(halve)


def scaled_embeddings(model):
    embeddings = model.model.embed_tokens
    stock = embeddings.forward
    embeddings.forward = lambda ids: 8.0 * stock(ids)


def scaled_logits(model):
    stock = model.lm_head.forward
    model.lm_head.forward = lambda hidden: 0.25 * stock(hidden)


FREQUENCIES = "the frequencies .* set config.rope_parameters before the model is built"
LOGITS = r"other logits than the model: they differ by \d+\.\d\d% \(0.01% is allowed\)"
CHANGES = [
    (epsilon, LOGITS),
    (rope_theta, FREQUENCIES),
    (low_frequencies, FREQUENCIES),
    (attention_scale, LOGITS),
    (rotary_scale, LOGITS),
    (not_causal, LOGITS),
    (hook, LOGITS),
    (weight_hook, LOGITS),
    (scaled_embeddings, LOGITS),
    (scaled_logits, LOGITS),
]


@pytest.mark.parametrize(
    ("save", "change", "message"),
    [
        *((save_nemotron_nas, change, message) for change, message in CHANGES),
        (save_gguf, epsilon, LOGITS),
        (save_gguf, rope_theta, FREQUENCIES),
    ],
)
def test_a_model_that_computes_something_else_is_refused(save, change, message, pruned, tmp_path):
    change(pruned)
    with pytest.raises(ValueError, match=message):
        save(pruned, tiny_tokenizer(), tmp_path / "saved")
    assert not [*tmp_path.iterdir()]


def test_a_model_that_is_not_finite_is_refused(pruned, tmp_path):
    pruned.model.layers[1].mlp.up_proj.weight.data[0, 0] = float("inf")
    with pytest.raises(ValueError, match="not finite"):
        save_nemotron_nas(pruned, tiny_tokenizer(), tmp_path / "nas")


def test_windows_of_the_modules_count(tiny, tmp_path):
    model = apply_plan(tiny("tiny-qwen2"), PLAN)
    model.model.layers[3].self_attn.sliding_window = 4096  # more than a few tokens show
    with pytest.raises(ValueError, match="sliding window of 4096"):
        save_nemotron_nas(model, tiny_tokenizer(), tmp_path / "nas")


@pytest.mark.parametrize(
    ("dtype", "save", "options"),
    [
        (torch.float64, save_gguf, ["f32"]),
        (torch.bfloat16, save_gguf, ["f16"]),
        (torch.float16, save_gguf, ["q8_0"]),
        (torch.bfloat16, save_nemotron_nas, []),
        (torch.float16, save_nemotron_nas, []),
    ],
)
def test_rounding_is_not_taken_for_another_model(dtype, save, options, tiny, tmp_path):
    """Not even where `to` has rounded the rotary frequencies of the model."""
    model = apply_plan(tiny("tiny-mistral"), PLAN, fold_output=True).to(dtype).train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    save(model, tiny_tokenizer(), tmp_path / "saved", *options)
    assert all(module.training for module in model.modules())
    assert all(not module._forward_hooks for module in model.modules())
    assert model.model.rotary_emb.inv_freq.dtype == dtype
    for name, tensor in model.state_dict(keep_vars=True).items():
        assert torch.equal(tensor, before[name]), name
        assert tensor.requires_grad


def test_weights_come_back_after_an_error(tiny):
    model = tiny("tiny-llama").to(torch.bfloat16)
    model.model.layers[2].mlp.register_forward_hook(lambda *_: 1 / 0)
    frequencies = torch.ones(8)
    with pytest.raises(ZeroDivisionError), _in_float32(model, frequencies):
        model(torch.arange(5)[None])
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}
    assert model.model.rotary_emb.inv_freq.dtype == torch.bfloat16


def test_each_tensor_of_a_gguf_file_is_compared(pruned, tmp_path, monkeypatch):
    path = tmp_path / "model.gguf"
    path.write_bytes(b"an earlier file")
    add_tensor = GGUFWriter.add_tensor
    first = "blk.0.attn_q.weight"
    second = "blk.1.attn_q.weight"
    swapped = {first: second, second: first}

    def add_to_another_layer(writer, name, *args, **options):
        add_tensor(writer, swapped.get(name, name), *args, **options)

    monkeypatch.setattr(GGUFWriter, "add_tensor", add_to_another_layer)
    with pytest.raises(ValueError, match=r"blk.0.attn_q.weight as Q8_0 differs by 1..\.\d% from"):
        save_gguf(pruned, tiny_tokenizer(), path, "q8_0")
    assert path.read_bytes() == b"an earlier file"
    assert [file.name for file in tmp_path.iterdir()] == ["model.gguf"]


def test_weights_too_large_for_a_type(pruned, tmp_path):
    pruned.model.layers[1].mlp.up_proj.weight.data *= 1e7
    pruned.model.layers[1].mlp.down_proj.weight.data *= 1e-7
    with pytest.raises(ValueError, match=r'ffn_.* as F16 differs .* write them as "f32"'):
        save_gguf(pruned, tiny_tokenizer(), tmp_path / "model.gguf", "f16")
    save_gguf(pruned, tiny_tokenizer(), tmp_path / "model.gguf", "f32")


def test_the_tensors_of_a_folder_are_read_back(pruned, tmp_path, monkeypatch):
    save = nemotron_nas.save_torch_state_dict

    def damage(weights, folder, **options):
        save(weights, folder, **options)
        tensors = load_file(folder / "model.safetensors")
        tensors["model.layers.3.mlp.up_proj.weight"] *= -1
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})

    monkeypatch.setattr(nemotron_nas, "save_torch_state_dict", damage)
    with pytest.raises(ValueError, match=LOGITS):
        save_nemotron_nas(pruned, tiny_tokenizer(), tmp_path / "nas")
    assert not [*tmp_path.iterdir()]


def test_a_few_positions_are_enough_for_a_short_context(tmp_path):
    model = small_model("llama", max_position_embeddings=16)
    apply_plan(model, PruningPlan.value_only(4, [0.5]))
    save_nemotron_nas(model, tiny_tokenizer(), tmp_path / "nas")
    assert (tmp_path / "nas" / "model.safetensors").is_file()
