"""Output projections that read each value head once: the same numbers, fewer weights, and kept in checkpoints."""

import copy
import json

import pytest
import torch
from conftest import FAMILIES
from safetensors.torch import load_file
from test_cache import PRUNED, assert_same, generate
from test_surgery import OTHER_FAMILIES, logits, small_model
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM

from harp_lib import PruningPlan, apply_plan, load_pruned, save_pruned
from harp_lib.measure.registry import tiny_model, tiny_tokenizer
from harp_lib.pruning.architecture import decoder_layers
from harp_lib.pruning.layers import ValueOnlyAttention
from harp_lib.pruning.plan import LayerPlan
from harp_lib.pruning.layers import folded_output, value_only
from harp_lib.pruning.surgery import temporarily_pruned

SHAPES = {
    "one group": ("llama", {"num_key_value_heads": 1}),
    "narrow heads": ("llama", {"head_dim": 4}),
    "biases": ("llama", {"attention_bias": True}),
    **{family: (family, particulars) for family, particulars in OTHER_FAMILIES.items()},
}
ALPHAS = {0: 0.3, 1: 0.0, 3: 1.0}

pytestmark = pytest.mark.filterwarnings("ignore:.*generation flags.*")


def make(tiny, name):
    return tiny(name) if name in FAMILIES else small_model(SHAPES[name][0], **SHAPES[name][1])


def summed_head_by_head(attention):
    """Slow twin: the columns of every query head, added to those of the value head that it reads."""
    weight, width = attention.o_proj.weight, attention.head_dim
    per_group = attention.o_proj.in_features // attention.v_proj.out_features
    folded = torch.zeros(weight.shape[0], attention.v_proj.out_features, dtype=torch.float64)
    for head in range(attention.o_proj.in_features // width):
        for column in range(width):
            folded[:, head // per_group * width + column] += weight[:, head * width + column].double()
    return folded


@pytest.mark.parametrize("name", [*FAMILIES, *SHAPES])
def test_columns_of_a_group_are_summed(tiny, name):
    attention = decoder_layers(make(tiny, name))[2].self_attn
    folded, output = folded_output(attention), attention.o_proj
    torch.testing.assert_close(folded.weight.double(), summed_head_by_head(attention), atol=1e-7, rtol=1e-6)
    assert (folded.in_features, folded.out_features) == (attention.v_proj.out_features, output.out_features)
    assert folded.weight.dtype == output.weight.dtype
    assert folded.bias is output.bias


@pytest.mark.parametrize("name", [*FAMILIES, *SHAPES])
def test_the_branch_is_the_same_in_float64(tiny, name):
    model = make(tiny, name).double()
    hidden = torch.randn(2, 9, model.config.hidden_size, dtype=torch.float64)
    for index in (0, 3):
        attention = decoder_layers(model)[index].self_attn
        with torch.no_grad():
            plain, folded = (value_only(attention, index, fold)(hidden)[0] for fold in (False, True))
        torch.testing.assert_close(folded, plain, atol=1e-13, rtol=1e-11)


@pytest.mark.parametrize("name", [*FAMILIES, *(name for name in SHAPES if name != "one group")])
def test_logits_are_the_same(tiny, name):
    """With and without folding, applied and within the context."""
    model = make(tiny, name)
    folded, before = copy.deepcopy(model), {key: weight.clone() for key, weight in model.state_dict().items()}
    ids = torch.randint(3, 120, (2, 24), generator=torch.Generator().manual_seed(1))
    dense, plan = logits(model, ids), PruningPlan.value_only(model.config.num_hidden_layers, ALPHAS)
    with temporarily_pruned(model, plan):
        unfolded_for_now = logits(model, ids)
    with temporarily_pruned(model, plan, fold_output=True):
        attention = decoder_layers(model)[3].self_attn
        assert attention.o_proj.in_features == attention.v_proj.out_features
        folded_for_now = logits(model, ids)
    assert torch.equal(logits(model, ids), dense), "the context has to leave the model unchanged"
    after = model.state_dict()
    assert after.keys() == before.keys()
    assert all(torch.equal(weight, before[key]) for key, weight in after.items())
    expected = logits(apply_plan(model, plan), ids)
    for found in (unfolded_for_now, folded_for_now, logits(apply_plan(folded, plan, fold_output=True), ids)):
        torch.testing.assert_close(found, expected, atol=2e-5, rtol=1e-4)
    assert (expected - dense).abs().max() > 1e-2


@pytest.mark.parametrize("family", ["llama", "gemma2"])
def test_folded_logits_are_those_of_the_official_code(shared, family):
    golden = json.loads((shared / "golden" / f"{family}.json").read_text())
    tensors = load_file(shared / "golden" / f"{family}.safetensors")
    config = AutoConfig.for_model(family, **golden["config"])
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()  # Gemma-2 caps its scores
    weights = {name[2:]: tensor for name, tensor in tensors.items() if name.startswith("w.")}
    model.load_state_dict(weights, strict=False)
    apply_plan(model, PruningPlan.value_only(6, golden["alpha_top_down"]), fold_output=True)
    torch.testing.assert_close(logits(model, tensors["ids"]), tensors["logits"], atol=1e-4, rtol=0)
    folds = [layer.self_attn for layer in decoder_layers(model) if isinstance(layer.self_attn, ValueOnlyAttention)]
    assert folds
    assert all(attention.o_proj.in_features == attention.v_proj.out_features for attention in folds)


def test_weights_of_the_copies_are_gone(tiny):
    model = tiny("tiny-gemma2")  # width 64, 4 query heads of 16, 2 groups
    plan = PruningPlan(6, {0: LayerPlan(0.3), 1: LayerPlan(0.0), 2: LayerPlan(removed_groups=(1,)), 5: LayerPlan(1.0)})
    before = sum(weight.numel() for weight in apply_plan(copy.deepcopy(model), plan).parameters())
    apply_plan(model, plan, fold_output=True)
    outputs = {layer: getattr(model.model.layers[layer].self_attn, "o_proj", None) for layer in range(6)}
    assert outputs.pop(1) is None
    inputs = {layer: output.in_features for layer, output in outputs.items()}
    assert inputs == {0: 32, 2: 32, 3: 64, 4: 64, 5: 32}, "layer 2 for its group that is gone"
    assert before - sum(weight.numel() for weight in model.parameters()) == 2 * 64 * 32
    for name, weight in model.named_parameters():
        assert weight.untyped_storage().nbytes() == weight.nbytes, name
        assert weight.is_contiguous(), name


@pytest.mark.parametrize(
    ("particulars", "layers"),
    [
        ({}, {1: LayerPlan(removed_groups=(0,), removed_channels=(2,)), 3: LayerPlan(0.0)}),
        ({"num_key_value_heads": 4}, {1: LayerPlan(0.3), 3: LayerPlan(1.0)}),
    ],
    ids=["nothing is value-only", "heads of their own"],
)
def test_nothing_to_fold_is_no_change(particulars, layers):
    model, plan = small_model("llama", **particulars), PruningPlan(4, layers)
    folded = apply_plan(copy.deepcopy(model), plan, fold_output=True).state_dict()
    expected = apply_plan(model, plan).state_dict()
    assert folded.keys() == expected.keys()
    assert all(torch.equal(weight, expected[name]) for name, weight in folded.items())


def test_a_projection_without_copies_is_kept():
    attention = small_model("llama", num_key_value_heads=4).model.layers[0].self_attn
    assert folded_output(attention) is attention.o_proj


def test_what_is_frozen_stays_frozen():
    model = small_model("llama", attention_bias=True).requires_grad_(False)
    model.model.layers[2].self_attn.o_proj.weight.requires_grad = True
    model.model.layers[3].self_attn.o_proj.bias.requires_grad = True
    apply_plan(model, PruningPlan.value_only(4, [0.3, 0.3, 0.3]), fold_output=True)
    trained = {name for name, weight in model.named_parameters() if weight.requires_grad}
    assert trained == {"model.layers.2.self_attn.o_proj.weight", "model.layers.3.self_attn.o_proj.bias"}


@pytest.mark.parametrize("family", ["tiny-llama", "tiny-gemma2"])
def test_bfloat16_costs_what_bfloat16_costs(tiny, tokens, family):
    reference, model, plan = tiny(family), tiny(family).bfloat16(), PruningPlan.value_only(6, [0.8, 1.0, 0.3, 0.0])
    before, dense = logits(reference, tokens), logits(model, tokens).float()
    dense_error = (dense - before).norm() / before.norm()
    expected = logits(apply_plan(reference, plan), tokens)
    found = logits(apply_plan(model, plan, fold_output=True), tokens).float()
    assert (found - expected).norm() / expected.norm() < 2 * dense_error
    assert {weight.dtype for weight in model.parameters()} == {torch.bfloat16}


@pytest.mark.parametrize("family", ["tiny-qwen2", "tiny-gemma2"])
@pytest.mark.parametrize("which", ["top", "first and another", "all", "groups and value-only"])
@pytest.mark.parametrize("options", [{}, {"num_beams": 3}, {"cache_implementation": "static"}], ids=str)
def test_writing_with_a_cache_and_padding(tiny, tokens, family, which, options):
    layers = {
        layer: LayerPlan(removed_groups=lost) if isinstance(lost, tuple) else LayerPlan(lost)
        for layer, lost in PRUNED[which].items()
    }
    plain, folded = (apply_plan(tiny(family), PruningPlan(6, layers), fold) for fold in (False, True))
    ids, mask = tokens[:2, :40].clone(), torch.ones(2, 40, dtype=torch.long)
    ids[0, :23], mask[0, :23] = 0, 0
    expected = generate(plain, ids, mask, **options)
    assert_same(generate(folded, ids, mask, **options), expected)
    uncached = {key: value for key, value in options.items() if key == "num_beams"}
    assert_same(generate(folded, ids, mask, use_cache=False, **uncached), expected)


@pytest.mark.parametrize("fold", [False, True])
@pytest.mark.parametrize("model_type", ["llama", "gemma3_text"])
def test_a_checkpoint_says_whether_it_is_folded(tmp_path, model_type, fold):
    model, plan = small_model(model_type, **OTHER_FAMILIES.get(model_type, {})), PruningPlan.value_only(4, ALPHAS)
    save_pruned(apply_plan(model, plan, fold), tiny_tokenizer(), tmp_path / "pruned")
    config = json.loads((tmp_path / "pruned" / "config.json").read_text())
    assert config["fold_output"] is fold
    assert PruningPlan.from_dict(config["pruning_plan"]).digest == plan.digest
    again, _ = load_pruned(tmp_path / "pruned")
    inputs = again.model.layers[0].self_attn.o_proj.in_features
    assert inputs == (16 if fold else 32)
    ids = torch.arange(3, 43).view(2, 20)
    assert torch.equal(logits(again, ids), logits(model, ids))
    with pytest.raises(ValueError, match="pruned already"):
        apply_plan(again, plan, fold_output=not fold)


def without_the_field(folder):
    config = json.loads((folder / "config.json").read_text())
    del config["fold_output"]
    (folder / "config.json").write_text(json.dumps(config))


def test_a_checkpoint_that_does_not_say_is_not_folded(tiny, tokens, tmp_path):
    """As those that earlier versions wrote. One that lost the field does not load half."""
    plan = PruningPlan.value_only(6, [0.8, 0.3])
    for name, fold in (("earlier", False), ("lost", True)):
        save_pruned(apply_plan(tiny(), plan, fold), tiny_tokenizer(), tmp_path / name)
        without_the_field(tmp_path / name)
    again, _ = load_pruned(tmp_path / "earlier")
    assert torch.equal(logits(again, tokens), logits(apply_plan(tiny(), plan), tokens))
    with pytest.raises(RuntimeError, match="ignore_mismatched_sizes"):
        load_pruned(tmp_path / "lost")


def test_twice_is_an_error(tiny):
    model, plan = apply_plan(tiny(), PruningPlan.value_only(6, [0.5]), fold_output=True), PruningPlan(6, {})
    with pytest.raises(ValueError, match="pruned already"):
        apply_plan(model, plan, fold_output=True)


def test_an_error_within_leaves_the_model_whole(tiny, tokens):
    model, plan = tiny("tiny-gemma2"), PruningPlan.value_only(6, [0.5, 0.3])
    before = logits(model, tokens)
    with pytest.raises(RuntimeError, match="stop"), temporarily_pruned(model, plan, fold_output=True):
        raise RuntimeError("stop")
    assert torch.equal(logits(model, tokens), before)


class Scaled(nn.Linear):
    """As quantized projections are: what is stored is not the map."""

    def forward(self, hidden):
        return 0.5 * super().forward(hidden)


def test_projections_that_are_no_plain_maps_are_refused(tiny, tokens):
    model, plan = tiny("tiny-gemma2"), PruningPlan.value_only(6, [0.5, 0.0])
    for layer in (4, 5):
        model.model.layers[layer].self_attn.o_proj.__class__ = Scaled
    before = logits(model, tokens)
    for refused in (apply_plan, lambda *arguments, **options: temporarily_pruned(*arguments, **options).__enter__()):
        with pytest.raises(ValueError, match="layer 5: an output projection that is offloaded, or no plain linear map"):
            refused(model, plan, fold_output=True)
        assert torch.equal(logits(model, tokens), before)
    with temporarily_pruned(model, plan):
        expected = logits(model, tokens)
    torch.testing.assert_close(logits(apply_plan(model, plan), tokens), expected, atol=1e-5, rtol=1e-4)


def test_offloaded_projections_are_refused(tmp_path):
    tiny_model("tiny-gemma2").save_pretrained(tmp_path / "model")
    device_map = {f"model.layers.{layer}": "cpu" for layer in range(5)}
    device_map |= dict.fromkeys(("model.embed_tokens", "lm_head", "model.norm", "model.rotary_emb"), "cpu")
    norms = ("input", "post_attention", "pre_feedforward", "post_feedforward")
    device_map |= {f"model.layers.5.{name}_layernorm": "cpu" for name in norms}
    device_map |= {"model.layers.5.mlp": "cpu", "model.layers.5.self_attn": "disk"}
    model = AutoModelForCausalLM.from_pretrained(
        tmp_path / "model", device_map=device_map, offload_folder=tmp_path / "offload"
    )
    with pytest.raises(ValueError, match="layer 5: an output projection that is offloaded"):
        apply_plan(model, PruningPlan.value_only(6, [0.5]), fold_output=True)
