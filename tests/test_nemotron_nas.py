"""Folders in the format nemotron-nas: stock MLX-LM has to give the same answers as our models."""

import json
import os

import pytest
import torch
from helpers import small_model
from huggingface_hub import split_torch_state_dict_into_shards
from safetensors.torch import load_file
from transformers import AutoConfig, AutoTokenizer

from harp_lib import (
    PruningPlan,
    apply_plan,
    load_model,
    refit_values,
    save_nemotron_nas,
)
from harp_lib.export import nemotron_nas
from harp_lib.models.registry import tiny_model, tiny_tokenizer
from harp_lib.pruning.plan import LayerPlan

NEW = 12  # tokens
TOP = PruningPlan.value_only(6, [0.8, 0.2, 0.0])
MIXED = PruningPlan(
    6,
    {
        5: LayerPlan(0.8, removed_channels=tuple(range(32))),
        4: LayerPlan(0.3),
        3: LayerPlan(0.0),
        2: LayerPlan(removed_groups=(0, 1)),
        1: LayerPlan(removed_groups=(1,), removed_channels=(3, 4, 90)),
        0: LayerPlan(removed_groups=(0,)),
    },
)
COMPENSATED = PruningPlan(
    6,
    {
        5: LayerPlan(0.8, removed_channels=(0, 3), channel_means=(0.5, -0.25)),
        2: LayerPlan(removed_groups=(0, 1), group_means=(0.125,) * 64),
        1: LayerPlan(removed_groups=(1,), group_means=(0.25,) * 32),
    },
)


def mlx_answers(folder, ids):
    """MLX-LM's logits (N, vocabulary) for ``ids`` (1, N), tokens written, and number of caches."""
    mlx_lm = pytest.importorskip("mlx_lm", reason="MLX-LM (mlx-lm) is not installed")
    import mlx.core as mx
    from mlx_lm.generate import generate_step

    model, _ = mlx_lm.load(str(folder), tokenizer_config={"trust_remote_code": True})
    logits = model(mx.array(ids.tolist()))[0].astype(mx.float32)
    steps = generate_step(mx.array(ids[0].tolist()), model, max_tokens=NEW)
    written = [token for token, _ in steps]
    return torch.tensor(logits.tolist()), written, len(model.make_cache())


def our_answers(model, ids):
    """Our logits (N, vocabulary) for ``ids`` (1, N), and the most likely tokens, one by one."""
    with torch.no_grad():
        logits = model(ids).logits[0]
        sequence = ids
        for _ in range(NEW):
            likeliest = model(sequence).logits[0, -1].argmax()
            sequence = torch.cat([sequence, likeliest[None, None]], dim=1)
    return logits, sequence[0, ids.shape[1] :].tolist()


def assert_mlx_agrees(model, folder, ids, num_caches, tolerance=1e-4):
    expected, expected_tokens = our_answers(model, ids)
    logits, written, caches = mlx_answers(folder, ids)
    torch.testing.assert_close(logits, expected.float(), atol=tolerance, rtol=0)
    assert written == expected_tokens
    assert caches == num_caches


@pytest.mark.parametrize(
    ("name", "plan", "num_caches", "fold"),
    [
        ("tiny-llama", TOP, 3, False),
        ("tiny-llama", MIXED, 2, True),
        ("tiny-mistral", MIXED, 2, False),
        ("tiny-qwen2", MIXED, 2, False),
        ("tiny-qwen2", COMPENSATED, 4, False),
    ],
)
def test_mlx_agrees(name, plan, num_caches, fold, tiny, tokens, tmp_path):
    model = apply_plan(tiny(name), plan, fold_output=fold)
    save_nemotron_nas(model, tiny_tokenizer(), tmp_path / "nas")
    assert_mlx_agrees(model, tmp_path / "nas", tokens[:1], num_caches)


def test_refitted_values(tiny, tokens, tmp_path):
    model = tiny("tiny-qwen2")
    fit = refit_values(model, tokens, num_layers=3)
    apply_plan(model, fit.plan, weights=fit.weights)
    save_nemotron_nas(model, tiny_tokenizer(), tmp_path / "nas")
    assert_mlx_agrees(model, tmp_path / "nas", tokens[:1], num_caches=3)


@pytest.mark.parametrize(
    "particulars",
    [
        {"num_key_value_heads": 4},
        {"num_key_value_heads": 1},
        {"attention_bias": True, "mlp_bias": True},
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 5000.0, "factor": 2.0}},
        {
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 500.0,
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 16,
            }
        },
        {"tie_word_embeddings": True},
    ],
    ids=["own heads", "one group", "biases", "linear positions", "llama 3.1", "tied"],
)
def test_other_llamas(particulars, tokens, tmp_path):
    model = small_model("llama", **particulars)
    plan = PruningPlan.value_only(4, {3: 0.5, 1: 1.5})
    ids = tokens[:1] % model.config.vocab_size
    save_nemotron_nas(apply_plan(model, plan), tiny_tokenizer(), tmp_path / "nas")
    assert_mlx_agrees(model, tmp_path / "nas", ids, num_caches=2)


def test_the_dtype_is_kept(tiny, tokens, tmp_path):
    model = apply_plan(tiny().bfloat16(), TOP)
    save_nemotron_nas(model, tiny_tokenizer(), tmp_path / "nas")
    weights = load_file(tmp_path / "nas" / "model.safetensors")
    assert {weight.dtype for weight in weights.values()} == {torch.bfloat16}
    # The scaled values are exact, and of W_O only the sum over query heads is rounded.
    values = model.model.layers[5].self_attn.v_proj.weight
    block = 3 + 2 * 2  # three layers that attend, skipped attention, and two blocks for each layer
    up = weights[f"model.layers.{block - 1}.mlp.up_proj.weight"][: len(values)]
    assert torch.equal(up * 16, values)
    expected, _ = our_answers(model, tokens[:1])
    logits, _, _ = mlx_answers(tmp_path / "nas", tokens[:1])
    assert (logits - expected.float()).abs().mean() < 0.05


def test_groups_need_a_cache_for_the_next_divisor(tmp_path):
    """Of four heads, 3, 2 or 1 that are kept need 4, 2 or 1 in this format."""
    model = small_model("llama", num_key_value_heads=4)
    layers = {
        1: LayerPlan(removed_groups=(2,)),
        2: LayerPlan(removed_groups=(0, 2)),
        3: LayerPlan(removed_groups=(0, 1, 2)),
    }
    save_nemotron_nas(apply_plan(model, PruningPlan(4, layers)), tiny_tokenizer(), tmp_path / "nas")
    config = AutoConfig.from_pretrained(tmp_path / "nas", trust_remote_code=True)
    heads_in_group = [block.attention.n_heads_in_group for block in config.block_configs]
    assert heads_in_group == [1, 1, 2, 4]


def test_the_folder_and_its_configuration(tiny, tmp_path):
    (tmp_path / "nas").mkdir()  # an empty folder is not in the way
    save_nemotron_nas(apply_plan(tiny(), TOP), tiny_tokenizer(), tmp_path / "nas")
    assert os.listdir(tmp_path) == ["nas"]
    assert {file.name for file in (tmp_path / "nas").iterdir()} == {
        "README.md",
        "config.json",
        "configuration_nemotron_nas.py",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    }
    config = AutoConfig.from_pretrained(tmp_path / "nas", trust_remote_code=True)
    assert config.model_type == "nemotron-nas"
    assert config.num_hidden_layers == len(config.block_configs) == 8
    assert [block.attention.no_op for block in config.block_configs] == [False] * 3 + [True] * 5
    assert not hasattr(config.block_configs[0].ffn, "hidden_act")
    assert json.loads(config.to_json_string())["block_configs"] == config.block_configs
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "nas", trust_remote_code=True)
    assert tokenizer.decode(tokenizer("def f(x):").input_ids) == "def f(x):"
    with pytest.raises(ValueError, match="for vLLM and MLX-LM"):
        load_model(tmp_path / "nas")


def test_large_models_are_split_into_shards(tiny, tokens, tmp_path, monkeypatch):
    model = apply_plan(tiny(), TOP)
    save = nemotron_nas.save_torch_state_dict

    def save_small_shards(weights, folder, **options):
        assert split_torch_state_dict_into_shards(weights).is_sharded is False
        save(weights, folder, max_shard_size="300KB", **options)

    monkeypatch.setattr(nemotron_nas, "save_torch_state_dict", save_small_shards)
    save_nemotron_nas(model, tiny_tokenizer(), tmp_path / "nas")
    assert (tmp_path / "nas" / "model.safetensors.index.json").exists()
    assert len(list((tmp_path / "nas").glob("model-*.safetensors"))) > 1
    assert_mlx_agrees(model, tmp_path / "nas", tokens[:1], num_caches=3)


@pytest.mark.real_model
def test_smollm2_writes_the_same(smollm2, tmp_path):
    model, tokenizer = smollm2
    apply_plan(model, PruningPlan.value_only(30, [0.3, 0.5, 0.7, 0.1, 0.3, 0.6]))
    save_nemotron_nas(model, tokenizer, tmp_path / "nas")
    ids = tokenizer("The capital of France is", return_tensors="pt").input_ids
    # In float32, rounding alone changes logits of up to 28 by 7e-5, here as in MLX-LM, whose sums
    # run in another order on another processor.
    assert_mlx_agrees(model.double(), tmp_path / "nas", ids, num_caches=24, tolerance=1e-3)


@pytest.mark.parametrize(
    ("name", "particulars", "message"),
    [
        ("granite", {}, "granite models .* nemotron-nas; llama, mistral, qwen2 can"),
        ("llama", {"hidden_act": "gelu"}, "activation 'gelu' has no place"),
        ("llama", {"dtype": torch.float64}, "dtype torch.float64: load the model in float32"),
    ],
)
def test_other_models_are_refused_with_the_reason(name, particulars, message, tmp_path):
    model = apply_plan(small_model(name, **particulars), PruningPlan.value_only(4, [0.5]))
    with pytest.raises(ValueError, match=message):
        save_nemotron_nas(model, tiny_tokenizer(), tmp_path / "nas")
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("layer_plan", [LayerPlan(0.5), LayerPlan(removed_groups=(0, 1))])
def test_layer_0_has_to_attend(layer_plan, tiny, tmp_path):
    model = apply_plan(tiny(), PruningPlan(6, {0: layer_plan}))
    with pytest.raises(ValueError, match="layer 0 has no attention"):
        save_nemotron_nas(model, tiny_tokenizer(), tmp_path / "nas")
    assert not [*tmp_path.iterdir()]


def test_dense_models_and_narrow_heads_are_refused(tmp_path):
    with pytest.raises(ValueError, match="call apply_plan first"):
        save_nemotron_nas(tiny_model("tiny-llama"), tiny_tokenizer(), tmp_path / "nas")
    narrow = apply_plan(small_model("llama", head_dim=4), PruningPlan.value_only(4, [0.5]))
    with pytest.raises(ValueError, match="4 heads of width 4 do not make up the hidden size 32"):
        save_nemotron_nas(narrow, tiny_tokenizer(), tmp_path / "nas")
    assert not [*tmp_path.iterdir()]


def test_nothing_is_overwritten(tiny, tmp_path):
    model = apply_plan(tiny(), TOP)
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.tex").write_text("precious")
    for path in (tmp_path / "thesis", tmp_path / "thesis" / "chapter.tex"):
        with pytest.raises(FileExistsError, match="is not an empty folder"):
            save_nemotron_nas(model, tiny_tokenizer(), path)
    assert (tmp_path / "thesis" / "chapter.tex").read_text() == "precious"
    assert os.listdir(tmp_path) == ["thesis"]
