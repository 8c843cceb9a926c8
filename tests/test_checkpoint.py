"""Pruned checkpoints: complete, loadable without this library, refused by code unaware of them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from helpers import change_json
from safetensors.torch import load_file, save_file
from transformers import AutoModel, AutoModelForCausalLM, Gemma2ForCausalLM, LlamaForCausalLM
from transformers.core_model_loading import WeightRenaming

from harp_lib import (
    PruningPlan,
    apply_plan,
    load_model,
    load_pruned,
    make_plan,
    save_pruned,
)
from harp_lib.models.registry import tiny_tokenizer
from harp_lib.models.savable import check_savable
from harp_lib.pruning.plan import LayerPlan

PLAN = PruningPlan(
    6,
    {
        5: LayerPlan(0.8, removed_channels=(0, 3), channel_means=(0.5, -0.25)),
        4: LayerPlan(0.3),
        3: LayerPlan(0.0),
        2: LayerPlan(removed_groups=(0, 1), group_means=(0.125,) * 64),
        1: LayerPlan(removed_groups=(1,), removed_channels=tuple(range(5, 20))),
        0: LayerPlan(0.5),
    },
)


@pytest.fixture(params=["tiny-llama", "tiny-gemma2 folded"])
def checkpoint(request, tiny, tokens, tmp_path):
    """A folder with a pruned checkpoint, and the logits of the model in it."""
    family, *folded = request.param.split()
    model = apply_plan(tiny(family), PLAN, fold_output=bool(folded))
    save_pruned(model, tiny_tokenizer(), tmp_path / "pruned")
    with torch.no_grad():
        return tmp_path / "pruned", model(tokens).logits


def test_a_checkpoint_is_whole_and_saved_again_the_same(checkpoint, tokens, tmp_path):
    folder, expected = checkpoint
    names = {file.name for file in folder.iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json", "pruning_plan.json"} <= names
    assert {"plan.py", "layers.py", "architecture.py", "swap.py", "remote.py"} <= names
    assert PruningPlan.from_json(folder / "pruning_plan.json") == PLAN
    assert os.listdir(folder.parent) == ["pruned"], "temporary folders are gone"
    model, tokenizer = load_pruned(folder)
    assert not model.training
    assert tokenizer.decode(tokenizer("def f(x):").input_ids) == "def f(x):"
    with pytest.raises(ValueError, match="pruned already"):
        apply_plan(model, PLAN)
    model.save_pretrained(tmp_path / "again")
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "again", trust_remote_code=True).eval()
    with torch.no_grad():
        assert torch.equal(model(tokens).logits, expected)
        assert torch.equal(again(tokens).logits, expected)


SCRIPT = """
import sys
import torch
sys.modules['harp_lib'] = None  # any import of it fails
from pathlib import Path
from transformers import AutoModelForCausalLM, AutoTokenizer, pipeline
for folder in sorted(Path(sys.argv[1]).iterdir()):
    expected = torch.load(folder.parent.parent / f'{folder.name}.pt')
    model = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=True)
    options = {'max_new_tokens': 8, 'min_new_tokens': 8, 'do_sample': False, 'pad_token_id': 0}
    with torch.no_grad():
        assert torch.equal(model(expected['ids']).logits, expected['logits']), folder.name
        prompt = expected['ids'][:1, :20]
        cached = model.generate(prompt, **options)
        model.tail_only_prefill = False
        uncached = model.generate(prompt, use_cache=False, **options)
    assert torch.equal(cached, uncached), folder.name
    assert cached.shape[1] == 28, folder.name
    print(folder.name, len(tokenizer.decode(cached[0])))
write = pipeline('text-generation', model=str(folder), trust_remote_code=True)
written = write('import sys', max_new_tokens=4, do_sample=False)[0]['generated_text']
assert len(written) > len('import sys')
"""


def test_saved_and_loaded_without_this_library(tiny, tokens, tmp_path):
    """Everything that a plan may remove, and the plans of two methods."""
    saved = {
        "qwen2": apply_plan(tiny("tiny-qwen2"), PLAN),
        "gemma2": apply_plan(tiny("tiny-gemma2"), PLAN, fold_output=True),
    }
    for method, options in {"flap": {}, "harp+flap": {"alphas": [0.5, 0.0]}}.items():
        plan = make_plan(method, tiny("tiny-gemma2"), tokens, kv_groups=4, **options)
        saved[method] = apply_plan(tiny("tiny-gemma2"), plan)
    for name, model in saved.items():
        save_pruned(model, tiny_tokenizer(), tmp_path / "saved" / name)
        loaded, _ = load_pruned(tmp_path / "saved" / name)
        with torch.no_grad():
            logits = model(tokens).logits
            assert torch.equal(loaded(tokens).logits, logits), name
        torch.save({"ids": tokens, "logits": logits}, tmp_path / f"{name}.pt")
    environment = os.environ | {"HF_MODULES_CACHE": str(tmp_path / "modules")}
    command = [sys.executable, "-c", SCRIPT, str(tmp_path / "saved")]
    process = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment)
    assert process.returncode == 0, process.stderr
    loaded_names = [line.split()[0] for line in process.stdout.splitlines()]
    assert sorted(loaded_names) == sorted(saved)


def test_code_that_does_not_know_it_refuses_with_the_reason(checkpoint):
    folder, _ = checkpoint
    for stock in (LlamaForCausalLM, Gemma2ForCausalLM):
        with pytest.raises(KeyError, match="attention was pruned by HARP: load with"):
            stock.from_pretrained(folder)
    for auto in (AutoModel, AutoModelForCausalLM):
        with pytest.raises(ValueError, match="trust_remote_code=True"):
            auto.from_pretrained(folder, trust_remote_code=False)


def test_what_cannot_be_saved_or_loaded_is_named(tiny, tmp_path):
    with pytest.raises(ValueError, match="call apply_plan first"):
        save_pruned(tiny(), tiny_tokenizer(), tmp_path / "dense")
    assert not list(tmp_path.iterdir())
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.tex").write_text("precious")
    with pytest.raises(FileExistsError, match="is not a pruned checkpoint"):
        save_pruned(apply_plan(tiny(), PLAN), tiny_tokenizer(), tmp_path / "thesis")
    assert os.listdir(tmp_path / "thesis") == ["chapter.tex"]
    with pytest.raises(ValueError, match="nowhere holds no pruned checkpoint"):
        load_pruned(tmp_path / "nowhere")
    tiny().save_pretrained(tmp_path / "dense")
    with pytest.raises(ValueError, match="dense holds no pruned checkpoint"):
        load_pruned(tmp_path / "dense")


def test_another_number_of_layers_is_named(tiny, tmp_path):
    folder = tmp_path / "pruned"
    model = apply_plan(tiny(), PLAN)
    save_pruned(model, None, folder)
    message = "plan is for 6 layers, HarpLlamaForCausalLM has 3; num_hidden_layers"
    with pytest.raises(ValueError, match=message):
        load_pruned(folder, num_hidden_layers=3)
    with pytest.raises(ValueError, match=r"plan is for 6 layers, .* has 3"):
        AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True, num_hidden_layers=3)
    model.config.num_hidden_layers = 3
    with pytest.raises(ValueError, match=message):
        save_pruned(model, None, folder)


def test_weights_of_another_size_are_named(tiny, tmp_path):
    save_pruned(apply_plan(tiny(), PruningPlan.value_only(6, [0.5])), None, tmp_path / "pruned")
    message = r"k_proj\.weight is of size \(32, 64\), and has to be of size \(16, 64\)"
    with pytest.raises(ValueError, match=message):
        load_pruned(tmp_path / "pruned", num_key_value_heads=1)
    tiny().save_pretrained(tmp_path / "dense")
    change_json(tmp_path / "dense" / "config.json", num_key_value_heads=1)
    with pytest.raises(ValueError, match=f"dense does not fit its config.json: .*{message}"):
        load_model(str(tmp_path / "dense"))


def test_layers_that_were_dropped_are_named_until_the_config_says_so(tiny, tokens, tmp_path):
    model = tiny()
    del model.model.layers[2]
    with pytest.raises(ValueError, match=r"layers\.5 is missing, .*num_hidden_layers"):
        check_savable(model)
    apply_plan(model, PruningPlan.value_only(5, [0.5]))
    with pytest.raises(ValueError, match=r"plan is for 5 layers, .* has 6; num_hidden_layers"):
        save_pruned(model, None, tmp_path / "pruned")
    model.config.num_hidden_layers = 5
    save_pruned(model, None, tmp_path / "pruned")
    loaded, _ = load_pruned(tmp_path / "pruned")
    torch.testing.assert_close(loaded(tokens).logits, model(tokens).logits)


def test_the_older_name_of_dtype(tiny, tmp_path):
    save_pruned(apply_plan(tiny(), PLAN), None, tmp_path / "pruned")
    assert load_pruned(tmp_path / "pruned", torch_dtype="fp16")[0].dtype == torch.float16


def test_an_earlier_checkpoint_survives_a_failed_save(tiny, tokens, tmp_path, monkeypatch):
    model = apply_plan(tiny(), PLAN)
    save_pruned(model, tiny_tokenizer(), tmp_path / "pruned")

    class TokenizerOnAFullDisk:
        def save_pretrained(self, folder):
            raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        save_pruned(model, TokenizerOnAFullDisk(), tmp_path / "pruned")
    assert os.listdir(tmp_path) == ["pruned"]
    again, _ = load_pruned(tmp_path / "pruned")
    assert torch.equal(again(tokens).logits, model(tokens).logits)
    save_pruned(model, tiny_tokenizer(), tmp_path / "pruned")
    assert os.listdir(tmp_path) == ["pruned"]


def double(module, inputs, output):
    """A forward hook that doubles what a module computes."""
    return 2 * output


def ignore_a_weight(model):
    model._keys_to_ignore_on_save = ["model.layers.1.self_attn.q_proj.weight"]


def rename_a_weight(model):
    model._weight_conversions = [WeightRenaming("lm_head.kernel", "lm_head.weight")]


def damage_the_file(model):
    """One row of the embedding, of a token that no short text has."""
    save = model.save_pretrained

    def save_and_damage(folder):
        save(folder)
        weights = load_file(folder / "model.safetensors")
        weights["model.embed_tokens.weight"][1] += 1
        save_file(weights, folder / "model.safetensors", {"format": "pt"})

    model.save_pretrained = save_and_damage


def hook_a_module(model):
    model.model.norm.register_forward_hook(double)


def warm_without_sampling(model):  # transformers refuses to save it
    model.generation_config.temperature = 0.9


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (ignore_a_weight, "cannot be loaded again: .*lacks 1 weights, model.layers.1.self_attn.q"),
        (rename_a_weight, "cannot be loaded again: .*lacks 1 weights, lm_head.weight for one"),
        (damage_the_file, "embed_tokens.weight is another weight when it is loaded again"),
        (hook_a_module, "computes other outputs than the model in memory: they differ by"),
        (warm_without_sampling, r"`temperature`.* set `do_sample=True`"),
    ],
)
def test_what_would_be_another_model_is_not_saved(change, message, tiny, tokens, tmp_path):
    model = apply_plan(tiny(), PLAN)
    expected = model(tokens).logits
    save_pruned(model, tiny_tokenizer(), tmp_path / "pruned")
    change(model)
    with pytest.raises(ValueError, match=message):
        save_pruned(model, tiny_tokenizer(), tmp_path / "pruned")
    assert os.listdir(tmp_path) == ["pruned"]
    again, _ = load_pruned(tmp_path / "pruned")
    assert torch.equal(again(tokens).logits, expected)


def test_names_are_checked_where_a_copy_does_not_fit(tiny, tmp_path, monkeypatch):
    monkeypatch.setattr("harp_lib.models.checkpoint._copy_fits", lambda model: False)
    model = apply_plan(tiny(), PLAN)
    save_pruned(model, tiny_tokenizer(), tmp_path / "pruned")
    ignore_a_weight(model)
    with pytest.raises(ValueError, match="cannot be loaded again"):
        save_pruned(model, tiny_tokenizer(), tmp_path / "pruned")


def test_half_precision_is_read_back(tiny, tmp_path):
    model = apply_plan(tiny("tiny-gemma2").to(torch.bfloat16), PLAN)
    save_pruned(model, tiny_tokenizer(), tmp_path / "pruned")
    hook_a_module(model)
    with pytest.raises(ValueError, match="computes other outputs"):
        save_pruned(model, tiny_tokenizer(), tmp_path / "pruned")


def test_an_adapter_does_not_replace_its_base(tiny, tmp_path):
    peft = pytest.importorskip("peft")
    save_pruned(apply_plan(tiny(), PLAN), tiny_tokenizer(), tmp_path / "pruned")
    before = {file.name: file.read_bytes() for file in (tmp_path / "pruned").iterdir()}
    base, tokenizer = load_pruned(tmp_path / "pruned")
    adapted = peft.get_peft_model(base, peft.LoraConfig(target_modules=["v_proj"], r=2))
    for model in (adapted, adapted.get_base_model()):
        with pytest.raises(ValueError, match="an adapter that is not merged"):
            save_pruned(model, tokenizer, tmp_path / "pruned")
    after = {file.name: file.read_bytes() for file in (tmp_path / "pruned").iterdir()}
    assert before == after
    save_pruned(adapted.merge_and_unload(), tokenizer, tmp_path / "pruned")


def test_other_files_in_a_checkpoint_are_not_removed(tiny, tmp_path):
    model = apply_plan(tiny(), PLAN)
    save_pruned(model, tiny_tokenizer(), tmp_path / "pruned")
    other = tmp_path / "pruned" / "adapter_model.safetensors"
    other.write_text("precious")
    with pytest.raises(FileExistsError, match=f"also holds {other.name}"):
        save_pruned(model, tiny_tokenizer(), tmp_path / "pruned")
    assert other.read_text() == "precious"


def test_an_earlier_checkpoint_comes_back_if_the_new_one_cannot_take_its_place(
    tiny, tmp_path, monkeypatch
):
    model = apply_plan(tiny(), PLAN)
    save_pruned(model, tiny_tokenizer(), tmp_path / "pruned")
    rename = Path.rename

    def refuse_the_new_one(path, target):
        if path.name == "checkpoint":
            raise PermissionError("a virus scanner reads it")
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", refuse_the_new_one)
    with pytest.raises(PermissionError):
        save_pruned(model, tiny_tokenizer(), tmp_path / "pruned")
    assert os.listdir(tmp_path) == ["pruned"]
    load_pruned(tmp_path / "pruned")
