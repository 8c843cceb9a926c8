"""Model cards of saved folders: the head is what the hub reads, and the facts are right."""

import ast
import re
import shlex

from helpers import ODD_NAME
from huggingface_hub import ModelCard

from harp_lib import PruningPlan, apply_plan, load_pruned, save_nemotron_nas, save_pruned
from harp_lib.config import MODELS, NAMED_MODELS
from harp_lib.models.registry import tiny_tokenizer
from harp_lib.pruning.plan import LayerPlan

HARP = PruningPlan.value_only(6, [0.8, 0.25, 0.0])
FLAP = PruningPlan(6, {1: LayerPlan(removed_groups=(1,), removed_channels=(3, 4))}, "flap")


def card_of(folder):
    """The card of a folder; the hub's own checks raise for a head that it would refuse."""
    return ModelCard.load(folder / "README.md")


def test_the_card_of_a_pruned_checkpoint(tiny, tmp_path):
    model = tiny()
    model.config.name_or_path = "owner/some-model"
    save_pruned(apply_plan(model, HARP), tiny_tokenizer(), tmp_path / "my-model-harp")
    card = card_of(tmp_path / "my-model-harp")
    assert card.data.base_model == "owner/some-model"
    assert card.data.license is None
    assert card.data.library_name == "transformers"
    assert card.data.pipeline_tag == "text-generation"
    assert card.data.tags == ["harp", "pruned"]
    text = card.text
    assert "[owner/some-model](https://huggingface.co/owner/some-model), pruned by HARP." in text
    assert f"{model.num_parameters():,} parameters;\n3 of 6 layers have a KV cache." in text
    assert "3 of 6 layers are value-only" in text
    assert "|---|---|\n| 5 | 0.8 |\n| 4 | 0.25 |\n| 3 | 0 |\n\n" in text
    assert 'AutoModelForCausalLM.from_pretrained("my-model-harp", trust_remote_code=True)' in text


def test_the_card_of_a_nemotron_nas_folder(tiny, tmp_path):
    model = apply_plan(tiny(), HARP)
    save_nemotron_nas(model, tiny_tokenizer(), tmp_path / "my-model-nas")
    card = card_of(tmp_path / "my-model-nas")
    assert card.data.library_name == "vllm"
    assert card.data.base_model is None
    assert f"A model, pruned by HARP. It has {model.num_parameters():,} parameters" in card.text
    assert "3 of 6 layers have a KV cache" in card.text
    assert "vllm serve ./my-model-nas --trust-remote-code\n" in card.text
    assert "mlx_lm.generate --model ./my-model-nas" in card.text
    assert "from_pretrained" not in card.text


def test_the_commands_of_a_card_quote_the_name_of_the_folder(tiny, tmp_path):
    model = apply_plan(tiny(), HARP)
    save_pruned(model, tiny_tokenizer(), tmp_path / "transformers" / ODD_NAME)
    text = card_of(tmp_path / "transformers" / ODD_NAME).text
    (code,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    constants = [node.value for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Constant)]
    assert constants.count(ODD_NAME) == 2
    save_nemotron_nas(model, tiny_tokenizer(), tmp_path / "nas" / ODD_NAME)
    text = card_of(tmp_path / "nas" / ODD_NAME).text
    (code,) = re.findall(r"```bash\n(.*?)```", text, re.DOTALL)
    assert shlex.split(code).count(f"./{ODD_NAME}") == 2


def test_a_baseline(tiny, tmp_path):
    save_pruned(apply_plan(tiny(), FLAP), tiny_tokenizer(), tmp_path / "pruned")
    text = card_of(tmp_path / "pruned").text
    assert "A model, pruned by FLAP." in text
    assert "6 of 6 layers have a KV cache." in text
    assert "Key/value groups removed from layers that attend: 1.\nFFN channels removed: 2." in text
    assert "α" not in text


def test_groups_of_a_layer_that_has_lost_all_are_not_counted(tiny, tmp_path):
    plan = PruningPlan(6, {0: LayerPlan(removed_groups=(0, 1)), 1: LayerPlan(removed_groups=(0,))})
    save_pruned(apply_plan(tiny(), plan), tiny_tokenizer(), tmp_path / "pruned")
    text = card_of(tmp_path / "pruned").text
    assert "5 of 6 layers have a KV cache." in text
    assert "Key/value groups removed from layers that attend: 1." in text


def test_the_origin_is_known_by_the_registry_and_handed_on(tiny, tmp_path):
    name = "smollm2-135m"
    model = tiny()
    model.config.name_or_path = str(MODELS / name)
    save_pruned(apply_plan(model, HARP), tiny_tokenizer(), tmp_path / "pruned")
    save_nemotron_nas(*load_pruned(tmp_path / "pruned"), tmp_path / "nas")
    for folder in ("pruned", "nas"):
        card = card_of(tmp_path / folder)
        assert card.data.base_model == NAMED_MODELS[name]["base_model"]
        assert card.data.license == NAMED_MODELS[name]["license"]
        assert str(tmp_path) not in str(card)


def test_the_card_of_a_dense_folder_is_not_handed_on(tiny, tmp_path):
    model = tiny()
    model.config.name_or_path = str(tmp_path)
    head = "---\nbase_model: owner/older\nlicense: mit\ntags: [other]\n---\n"
    (tmp_path / "README.md").write_text(head)
    save_pruned(apply_plan(model, HARP), tiny_tokenizer(), tmp_path / "pruned")
    assert card_of(tmp_path / "pruned").data.base_model is None
