"""What every saver refuses, because the weights by their names are not all that the model is."""

import pytest
import torch
from helpers import FAMILIES, small_model
from torch import nn
from torch.nn.utils import prune

from harp_lib import PruningPlan, apply_plan, save_gguf, save_nemotron_nas, save_pruned
from harp_lib.models.registry import tiny_tokenizer
from harp_lib.models.savable import check_savable
from harp_lib.pruning.plan import LayerPlan

PLAN = PruningPlan(
    6,
    {
        5: LayerPlan(0.8),
        4: LayerPlan(0.0, removed_channels=(0, 3), channel_means=(0.5, -0.25)),
        1: LayerPlan(removed_groups=(0, 1), group_means=(0.125,) * 64),
    },
)


@pytest.fixture
def pruned(tiny):
    return apply_plan(tiny("tiny-llama"), PruningPlan.value_only(6, [0.8, 0.0]))


@pytest.mark.parametrize("name", [*FAMILIES, "tiny-mistral"])
def test_models_as_they_are(name, tiny):
    check_savable(tiny(name))
    model = tiny(name)
    if name != "tiny-gemma2":
        check_savable(apply_plan(model, PLAN, fold_output=True))
    model(torch.arange(5)[None], output_hidden_states=True)  # transformers leaves hooks
    check_savable(model.to(torch.bfloat16))


def test_what_transformers_changes_itself_is_fine():
    model = small_model("llama", tie_word_embeddings=True)
    check_savable(model)
    model.resize_token_embeddings(140)
    check_savable(model)
    model.gradient_checkpointing_enable()
    check_savable(model.train())


class ToyAdapter(nn.Module):
    """A projection and an adapter beside it, of no library that anybody knows."""

    def __init__(self, base_layer):
        super().__init__()
        self.base_layer = base_layer
        self.adapter = nn.Linear(base_layer.in_features, base_layer.out_features)

    def forward(self, x):
        return self.base_layer(x) + self.adapter(x)


def toy_adapter(model):
    model.model.layers[2].mlp.up_proj = ToyAdapter(model.model.layers[2].mlp.up_proj)


def masked_weights(model):
    prune.l1_unstructured(model.model.layers[0].mlp.up_proj, "weight", 0.5)


def extra_weight(model):
    model.model.layers[0].mlp.scale = nn.Parameter(torch.ones(1))


def other_embeddings(model):
    model.model.embed_tokens = nn.Embedding(530, 64)


def float8(model):
    linear = model.model.layers[0].mlp.up_proj
    linear.weight = nn.Parameter(linear.weight.to(torch.float8_e4m3fn), requires_grad=False)


class PackedTensor(torch.Tensor):
    """As torchao's tensors: a subclass that stands in for a weight."""


def tensor_subclass(model):
    linear = model.model.layers[0].mlp.up_proj
    linear.weight = nn.Parameter(linear.weight.detach().as_subclass(PackedTensor))


def quantization_config(model):
    model.config.quantization_config = {"quant_method": "gptq"}


def meta(model):
    model.model.layers[2].mlp.to("meta")


def offload(model):
    from accelerate import cpu_offload

    cpu_offload(model, torch.device("cpu"))


def tied_by_config_only(model):
    model.config.tie_word_embeddings = True


def same_memory(model):
    model.lm_head.weight = nn.Parameter(model.model.embed_tokens.weight.data)


CHANGES = [
    (toy_adapter, "layers.2.mlp.up_proj is ToyAdapter, where loading makes Linear"),
    (
        masked_weights,
        r"up_proj.weight is missing, where loading makes a weight of shape \(128, 64\): .*a mask",
    ),
    (extra_weight, r"mlp.scale is a weight of shape \(1,\), where loading makes nothing"),
    (other_embeddings, r"shape \(530, 64\), where loading makes a weight of shape \(512, 64\)"),
    (float8, "dtype torch.float8_e4m3fn, as in a quantized model: load the model in float32"),
    (
        tensor_subclass,
        "up_proj.weight is a tensor of class PackedTensor .* load the model in float32",
    ),
    (quantization_config, "a quantized model cannot be saved: load the model in float32"),
    (meta, "layers.2.mlp.gate_proj.weight is offloaded .* without offloading"),
    (offload, "is offloaded by accelerate: .* without offloading"),
    (tied_by_config_only, "lm_head.weight differs from model.embed_tokens.weight"),
    (same_memory, "lm_head.weight is the same weight as model.embed_tokens.weight"),
]


@pytest.mark.parametrize(("change", "message"), CHANGES)
def test_what_the_weights_do_not_tell_is_refused(change, message, pruned):
    change(pruned)
    with pytest.raises(ValueError, match=message):
        check_savable(pruned)


@pytest.mark.parametrize("wrapper", [torch.compile, nn.DataParallel])
@pytest.mark.parametrize("save", [save_pruned, save_gguf, save_nemotron_nas])
def test_every_saver_refuses_wrapped_models_before_it_writes(save, wrapper, pruned, tmp_path):
    with pytest.raises(ValueError, match=r"is not a model of transformers: .* the wrapped"):
        save(wrapper(pruned), tiny_tokenizer(), tmp_path / "saved")
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("kind", ["LoRA", "DoRA", "IA3", "prompt"])
def test_adapters_of_peft(kind, pruned):
    peft = pytest.importorskip("peft", reason="PEFT is not installed")
    targets = ["v_proj", "down_proj"]
    configs = {
        "LoRA": peft.LoraConfig(r=4, target_modules=targets),
        "DoRA": peft.LoraConfig(r=4, target_modules=targets, use_dora=True),
        "IA3": peft.IA3Config(target_modules=targets, feedforward_modules=["down_proj"]),
        "prompt": peft.PromptTuningConfig(num_virtual_tokens=3, task_type="CAUSAL_LM"),
    }
    adapted = peft.get_peft_model(pruned, configs[kind])
    with pytest.raises(ValueError, match=r"adapter that is not merged: .* merge_and_unload\(\)"):
        check_savable(adapted)
    if kind == "prompt":
        check_savable(adapted.get_base_model())
        return
    with pytest.raises(ValueError, match="adapter that is not merged"):
        check_savable(adapted.get_base_model())
    adapted.merge_adapter()  # the weights are merged, but have other names
    with pytest.raises(ValueError, match="adapter that is not merged"):
        check_savable(adapted)
    check_savable(adapted.merge_and_unload())


def test_adapters_that_transformers_adds(pruned):
    peft = pytest.importorskip("peft", reason="PEFT is not installed")
    pruned.add_adapter(peft.LoraConfig(r=4, target_modules=["v_proj"]))
    with pytest.raises(
        ValueError, match=r"adapter that is not merged: .* PeftModel.from_pretrained"
    ):
        check_savable(pruned)
