"""What other programs are given is the model in memory, or it is refused with the reason."""

import pytest
import torch
from helpers import small_model

from harp_lib import PruningPlan, apply_plan, save_gguf, save_nemotron_nas
from harp_lib.export import llamas, nemotron_nas
from harp_lib.models.registry import tiny_tokenizer
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


def low_frequencies(model):
    model.model.rotary_emb.inv_freq[-1] /= 8  # which hardly shows in a short text


def hook(model):
    model.model.layers[5].mlp.register_forward_hook(lambda module, args, output: 1.01 * output)


FREQUENCIES = "the frequencies .* set config.rope_parameters before the model is built"
OUTPUTS = r"other outputs than the model in memory: they differ by \d+\.\d\d% \(0.01% is allowed\)"


@pytest.mark.parametrize("save", [save_gguf, save_nemotron_nas])
@pytest.mark.parametrize(
    ("change", "message"), [(epsilon, OUTPUTS), (low_frequencies, FREQUENCIES), (hook, OUTPUTS)]
)
def test_what_neither_config_nor_weights_say_is_refused(save, change, message, pruned, tmp_path):
    change(pruned)
    with pytest.raises(ValueError, match=message):
        save(pruned, tiny_tokenizer(), tmp_path / "saved")
    assert not [*tmp_path.iterdir()]


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
    ],
)
def test_rounding_is_not_taken_for_another_model(dtype, save, options, tiny, tmp_path):
    """Not even where `to` has rounded the rotary frequencies of the model."""
    model = apply_plan(tiny("tiny-mistral"), PLAN, fold_output=True).to(dtype).train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    save(model, tiny_tokenizer(), tmp_path / "saved", *options)
    assert all(module.training for module in model.modules())
    assert model.model.rotary_emb.inv_freq.dtype == dtype
    for name, tensor in model.state_dict(keep_vars=True).items():
        assert torch.equal(tensor, before[name]), name
        assert tensor.requires_grad


def test_weights_too_large_for_a_type(pruned, tmp_path):
    path = tmp_path / "model.gguf"
    path.write_bytes(b"an earlier file")
    pruned.model.layers[1].mlp.up_proj.weight.data *= 1e7
    pruned.model.layers[1].mlp.down_proj.weight.data *= 1e-7
    with pytest.raises(ValueError, match=r'ffn_.* as F16 differs .* write them as "f32"'):
        save_gguf(pruned, tiny_tokenizer(), path, "f16")
    assert path.read_bytes() == b"an earlier file"
    assert [file.name for file in tmp_path.iterdir()] == ["model.gguf"]
    save_gguf(pruned, tiny_tokenizer(), path, "f32")


def test_the_tensors_in_a_folder_are_counted(pruned, tmp_path, monkeypatch):
    save = nemotron_nas.save_torch_state_dict

    def leave_one_out(weights, folder, **options):
        others = {name: weight for name, weight in weights.items() if name != "model.norm.weight"}
        save(others, folder, **options)

    monkeypatch.setattr(nemotron_nas, "save_torch_state_dict", leave_one_out)
    message = r"model.norm.weight is missing in the files, where the model has \(64,\)"
    with pytest.raises(ValueError, match=message):
        save_nemotron_nas(pruned, tiny_tokenizer(), tmp_path / "nas")
    assert not [*tmp_path.iterdir()]


def test_a_few_positions_are_enough_for_a_short_context(tmp_path):
    model = small_model("llama", max_position_embeddings=16)
    apply_plan(model, PruningPlan.value_only(4, [0.5]))
    save_nemotron_nas(model, tiny_tokenizer(), tmp_path / "nas")
    assert (tmp_path / "nas" / "model.safetensors").is_file()


def test_the_copy_of_a_model_on_several_devices_is_dispatched_as_the_model(
    pruned, tmp_path, monkeypatch
):
    dispatched = []

    def dispatch(copy, device_map):
        dispatched.append(device_map)
        return copy

    monkeypatch.setattr(llamas, "dispatch_model", dispatch)
    pruned.hf_device_map = {"model": 0, "lm_head": 1}
    save_nemotron_nas(pruned, None, tmp_path / "nas")
    assert dispatched == [pruned.hf_device_map]
