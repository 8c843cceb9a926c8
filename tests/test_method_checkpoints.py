"""A pruned checkpoint of every method: saved, loaded where harp_lib is not installed, and writing text there."""

import os
import subprocess
import sys

import pytest
import torch

from harp_lib import METHODS, apply_plan, load_pruned, make_plan, save_pruned
from harp_lib.measure.registry import tiny_tokenizer

SCRIPT = """
import sys, torch
sys.modules['harp_lib'] = None  # any import of it fails
from pathlib import Path
from transformers import AutoModelForCausalLM, AutoTokenizer
for folder in sorted(Path(sys.argv[1]).iterdir()):
    expected = torch.load(folder.parent.parent / f'{folder.name}.pt')
    model = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=True)
    options = {'max_new_tokens': 8, 'min_new_tokens': 8, 'do_sample': False, 'pad_token_id': 0}
    with torch.no_grad():
        assert torch.equal(model(expected['ids']).logits, expected['logits']), folder.name
        prompt = expected['ids'][:1, :20]
        cached, model.tail_only_prefill = model.generate(prompt, **options), False
        uncached = model.generate(prompt, use_cache=False, **options)
    assert torch.equal(cached, uncached) and cached.shape[1] == 28, folder.name
    print(folder.name, len(tokenizer.decode(cached[0])))
"""


@pytest.mark.parametrize("family", ["tiny-qwen2", "tiny-gemma2"])
def test_every_method_saved_and_loaded_without_this_library(tiny, tokens, tmp_path, family):
    for method in METHODS:
        model = tiny(family)
        options = {"alphas": [0.5, 0.0]} if method.startswith("harp") else {"layers": range(1, 5)}
        plan = make_plan(method, model, tokens, kv_groups=4, **options)
        apply_plan(model, plan)
        save_pruned(model, tiny_tokenizer(), tmp_path / "saved" / method)
        with torch.no_grad():
            logits = model(tokens).logits
            again, _ = load_pruned(tmp_path / "saved" / method)
            assert torch.equal(again(tokens).logits, logits), method
        torch.save({"ids": tokens, "logits": logits}, tmp_path / f"{method}.pt")
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path / "saved")],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=os.environ | {"HF_MODULES_CACHE": str(tmp_path / "modules")},
    )
    assert done.returncode == 0, done.stderr
    assert sorted(line.split()[0] for line in done.stdout.splitlines()) == sorted(METHODS)
