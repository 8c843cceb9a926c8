"""What transformers and PEFT look up by ``model_type`` is found for pruned models as well."""

import copy
import json
from functools import partial

import pytest
import torch
import transformers
from helpers import small_model
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM
from transformers.conversion_mapping import get_model_conversion_mapping

from harp_lib import PruningPlan, apply_plan, load_pruned, save_pruned
from harp_lib.models.registry import tiny_tokenizer
from harp_lib.pruning import remote
from harp_lib.pruning.plan import LayerPlan

PLAN = PruningPlan(4, {3: LayerPlan(0.5), 2: LayerPlan(0.25), 1: LayerPlan(removed_groups=(1,))})
EXPERTS = {"num_local_experts": 3, "num_experts": 3, "num_experts_per_tok": 2}
MIXTURES = {  # each has another conversion of the names in its files
    "mixtral": {},
    "qwen3_moe": {"moe_intermediate_size": 16, "decoder_sparse_step": 1},
}
HEADS = ("ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering", "Model")


def mixture(model_type, folder):
    """A small mixture-of-experts model that was saved and loaded, as users have it."""
    particulars = EXPERTS | MIXTURES[model_type]
    small_model(model_type, **particulars).save_pretrained(folder)
    return AutoModelForCausalLM.from_pretrained(folder).eval()


def with_head(head, **settings):
    """A tiny Llama with another head than that of language."""
    config = small_model("llama").config
    config.update(settings)
    torch.manual_seed(1)
    return getattr(transformers, f"Llama{head}")(config).eval()


def outputs(model):
    with torch.no_grad():
        return model(torch.arange(5, 45)[None])[0]


@pytest.mark.parametrize("model_type", MIXTURES)
def test_experts_from_a_folder_are_saved_and_loaded(model_type, tmp_path):
    model = apply_plan(mixture(model_type, tmp_path / "dense"), PLAN)
    expected = outputs(model)
    save_pruned(model, tiny_tokenizer(), tmp_path / "pruned")
    model.save_pretrained(tmp_path / "by transformers")  # as Trainer does
    loaded, _ = load_pruned(tmp_path / "pruned")
    loaded.save_pretrained(tmp_path / "again")
    assert torch.equal(outputs(loaded), expected)
    for folder in ("pruned", "by transformers", "again"):
        remote_model = AutoModelForCausalLM.from_pretrained(
            tmp_path / folder, trust_remote_code=True
        )
        assert torch.equal(outputs(remote_model.eval()), expected), folder
    # The names are those of the dense model's files, which other programs know.
    dense_names = load_file(tmp_path / "dense" / "model.safetensors").keys()
    assert load_file(tmp_path / "pruned" / "model.safetensors").keys() < dense_names


@pytest.mark.parametrize("head", HEADS)
def test_models_with_other_heads_are_loaded_again(head, tmp_path):
    model = apply_plan(with_head(head, num_labels=3), PLAN)
    expected = outputs(model)
    save_pruned(model, tiny_tokenizer(), tmp_path / "pruned")
    loaded, _ = load_pruned(tmp_path / "pruned")
    assert torch.equal(outputs(loaded), expected)
    auto_class = getattr(transformers, f"Auto{'' if head == 'Model' else 'Model'}{head}")
    remote_model = auto_class.from_pretrained(tmp_path / "pruned", trust_remote_code=True).eval()
    assert torch.equal(outputs(remote_model), expected)
    card = (tmp_path / "pruned" / "README.md").read_text()
    assert f"{auto_class.__name__}.from_pretrained" in card
    if head == "ForQuestionAnswering":  # its decoder has another name, also in the dense class
        with pytest.raises(ValueError, match="pruned lacks 34 weights"):
            AutoModel.from_pretrained(tmp_path / "pruned", trust_remote_code=True)
    else:
        decoder = AutoModel.from_pretrained(tmp_path / "pruned", trust_remote_code=True).eval()
        assert torch.equal(outputs(decoder), outputs(model.base_model))


def test_a_new_head_may_be_trained_and_nothing_else_is_random(tmp_path):
    load_decoder = partial(AutoModel.from_pretrained, trust_remote_code=True)
    classifiers = transformers.AutoModelForSequenceClassification
    load_classifier = partial(classifiers.from_pretrained, trust_remote_code=True)
    model = apply_plan(small_model("llama"), PLAN)
    save_pruned(model, tiny_tokenizer(), tmp_path / "pruned")
    classifier = load_classifier(tmp_path / "pruned")
    assert torch.equal(outputs(classifier.eval().model), outputs(model.model))
    save_pruned(apply_plan(with_head("Model"), PLAN), tiny_tokenizer(), tmp_path / "headless")
    with pytest.raises(ValueError, match=r"headless lacks 1 weights, lm_head.weight for one"):
        AutoModelForCausalLM.from_pretrained(tmp_path / "headless", trust_remote_code=True)
    file = tmp_path / "pruned" / "model.safetensors"
    weights = load_file(file)
    for name in ("mlp.up_proj", "self_attn.q_proj"):
        rest = {key: weight for key, weight in weights.items() if f"layers.0.{name}" not in key}
        save_file(rest, file, {"format": "pt"})
        for load in (load_pruned, load_decoder, load_classifier):
            with pytest.raises(ValueError, match=rf"pruned lacks 1 weights, .*{name}.* for one"):
                load(tmp_path / "pruned")


def test_the_type_is_the_dense_models_in_memory_and_another_in_the_file(tmp_path):
    model = small_model("llama")
    dense_values = model.config.to_dict()
    apply_plan(model, PLAN)
    assert dense_values.items() <= model.config.to_dict().items()
    save_pruned(model, tiny_tokenizer(), tmp_path / "pruned")
    values = json.loads((tmp_path / "pruned" / "config.json").read_text())
    assert values["model_type"] == "harp_llama"
    assert values["auto_map"]["AutoModelForCausalLM"] == "remote.HarpLlamaForCausalLM"
    assert remote.REFUSAL in values["hidden_act"]
    harp_class = remote.HarpLlamaConfig
    assert harp_class.get_config_dict(tmp_path / "pruned")[0]["model_type"] == "llama"
    for config in (
        load_pruned(tmp_path / "pruned")[0].config,
        AutoConfig.from_pretrained(tmp_path / "pruned", trust_remote_code=True),
        harp_class.from_json_file(tmp_path / "pruned" / "config.json"),
    ):
        assert config.model_type == "llama"
        assert config.hidden_act == "silu"


def test_conversions_have_the_scope_that_they_have_in_the_dense_model(tmp_path):
    scopes = []
    dense = mixture("mixtral", tmp_path / "dense")
    for model in (dense, apply_plan(copy.deepcopy(dense), PLAN)):
        conversions = get_model_conversion_mapping(model)
        scopes.append([(repr(transform), transform.scope_prefix) for transform in conversions])
    assert scopes[0] == scopes[1]


@pytest.mark.parametrize("model_type", ["llama", "qwen2"])
def test_default_targets_of_adapters(model_type):
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(task_type="CAUSAL_LM", r=2)
    targets = []
    for model in (small_model(model_type), apply_plan(small_model(model_type), PLAN)):
        adapted = peft.get_peft_model(model, config)
        targets.append(adapted.peft_config["default"].target_modules)
    assert targets[0] == targets[1] == {"q_proj", "v_proj"}
