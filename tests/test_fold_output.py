"""Output projections that read each value head once: the same numbers, fewer weights, and kept in checkpoints."""

import copy

import pytest
import torch
from conftest import FAMILIES
from test_cache import PRUNED, assert_same, generate, layer_plans
from test_surgery import OTHER_FAMILIES, SHAPES, logits, make, small_model

from harp_lib import PruningPlan, apply_plan, load_pruned, save_pruned
from harp_lib.measure.registry import tiny_tokenizer
from harp_lib.pruning.architecture import decoder_layers
from harp_lib.pruning.layers import folded_output
from harp_lib.pruning.surgery import temporarily_pruned

ALPHAS = {0: 0.3, 1: 0.0, 3: 1.0}


@pytest.mark.parametrize("name", [*FAMILIES, *SHAPES])
def test_columns_of_a_group_are_summed(tiny, name):
    attention = decoder_layers(make(tiny, name))[2].self_attn
    folded, output = folded_output(attention), attention.o_proj
    # Slow twin: the columns of every query head, added to those of the value head that it reads.
    width, per_group = attention.head_dim, output.in_features // attention.v_proj.out_features
    expected = torch.zeros(output.out_features, attention.v_proj.out_features, dtype=torch.float64)
    for column in range(output.in_features):
        head = column // width
        expected[:, head // per_group * width + column % width] += output.weight[:, column].double()
    torch.testing.assert_close(folded.weight.double(), expected, atol=1e-7, rtol=1e-6)
    assert folded.bias is output.bias
    assert (folded is output) == (per_group == 1)


@pytest.mark.parametrize("name", [*FAMILIES, *(name for name in SHAPES if name != "one group")])
def test_logits_are_the_same(tiny, name):
    """With and without folding, applied and within the context."""
    model = make(tiny, name)
    folded, before = copy.deepcopy(model), {key: weight.clone() for key, weight in model.state_dict().items()}
    ids = torch.randint(3, 120, (2, 24), generator=torch.Generator().manual_seed(1))
    dense, plan = logits(model, ids), PruningPlan.value_only(model.config.num_hidden_layers, ALPHAS)
    with temporarily_pruned(model, plan, fold_output=True):
        attention = decoder_layers(model)[3].self_attn
        assert attention.o_proj.in_features == attention.v_proj.out_features
        folded_for_now = logits(model, ids)
    assert torch.equal(logits(model, ids), dense), "the context has to leave the model unchanged"
    assert model.state_dict().keys() == before.keys()
    assert all(torch.equal(weight, before[key]) for key, weight in model.state_dict().items())
    expected = logits(apply_plan(model, plan), ids)
    for found in (folded_for_now, logits(apply_plan(folded, plan, fold_output=True), ids)):
        torch.testing.assert_close(found, expected, atol=2e-5, rtol=1e-4)
    assert (expected - dense).abs().max() > 1e-2


@pytest.mark.parametrize("which", ["first and another", "groups and value-only"])
@pytest.mark.parametrize("options", [{"num_beams": 3}, {"cache_implementation": "static"}], ids=str)
def test_writing_with_a_cache_and_padding(tiny, tokens, which, options):
    plain, folded = (apply_plan(tiny("tiny-gemma2"), layer_plans(PRUNED[which]), fold) for fold in (False, True))
    ids, mask = tokens[:2, :40].clone(), torch.ones(2, 40, dtype=torch.long)
    ids[0, :23], mask[0, :23] = 0, 0
    assert_same(generate(folded, ids, mask, **options), generate(plain, ids, mask, **options))


@pytest.mark.parametrize("fold", [False, True])
@pytest.mark.parametrize("model_type", ["llama", "gemma3_text"])
def test_a_checkpoint_says_whether_it_is_folded(tmp_path, model_type, fold):
    model, plan = small_model(model_type, **OTHER_FAMILIES.get(model_type, {})), PruningPlan.value_only(4, ALPHAS)
    save_pruned(apply_plan(model, plan, fold), tiny_tokenizer(), tmp_path)
    ids = torch.arange(3, 43).view(2, 20)
    again, _ = load_pruned(tmp_path)
    assert again.model.layers[0].self_attn.o_proj.in_features == (16 if fold else 32)
    assert torch.equal(logits(again, ids), logits(model, ids))
