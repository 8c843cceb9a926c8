"""Perplexity against the obvious computation, in bounded memory, and against lm-eval."""

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
import yaml
from conftest import FAMILIES

from harp_lib import perplexity, word_perplexity
from harp_lib.measure import likelihood
from harp_lib.measure.corpora import Window


def naive_nll(model, ids, scored):
    """Logits of the whole sequence at once."""
    with torch.no_grad():
        logits = model(ids[None]).logits[0, :-1].double()
    return F.cross_entropy(logits, ids[1:], reduction="none")[-scored:].sum().item()


@pytest.mark.parametrize("family", FAMILIES)
def test_equals_the_obvious_computation(tiny, tokens, family, monkeypatch):
    monkeypatch.setattr(likelihood, "TOKENS_PER_BLOCK", 50)
    monkeypatch.setattr(likelihood, "VOCABULARY_PER_BLOCK", 100)
    model = tiny(family)
    expected = math.exp(sum(naive_nll(model, row, 47) for row in tokens) / (4 * 47))
    assert perplexity(model, tokens) == pytest.approx(expected, rel=1e-5)


def test_documents_of_unequal_length(tiny, tokens, monkeypatch):
    monkeypatch.setattr(likelihood, "TOKENS_PER_BATCH", 64)
    model = tiny()
    documents = [tokens[0], tokens[1], tokens[2, :13], tokens[3, :2], tokens[3, :1]]
    nll = sum(naive_nll(model, ids, len(ids) - 1) for ids in documents[:-1])
    assert perplexity(model, documents) == pytest.approx(math.exp(nll / (47 + 47 + 12 + 1)), rel=1e-5)


def test_windows_score_their_last_tokens(tiny, tokens):
    model = tiny()
    windows = [Window(tokens[0], 9), Window(tokens[1], 9), Window(tokens[2], 47)]
    nll = sum(naive_nll(model, window.ids, window.scored) for window in windows)
    assert perplexity(model, windows) == pytest.approx(math.exp(nll / 65), rel=1e-5)


@pytest.mark.parametrize(
    "scaling", [{"model_type": "cohere", "logit_scale": 0.3}, {"model_type": "granite", "logits_scaling": 4.0}]
)
def test_families_that_scale_their_logits(tokens, scaling):
    from test_surgery import small_model

    model = small_model(scaling.pop("model_type"), vocab_size=512, **scaling)
    expected = math.exp(sum(naive_nll(model, row, 47) for row in tokens) / (4 * 47))
    assert perplexity(model, tokens) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("empty", [[], [torch.tensor([5])], torch.empty(0, 4, dtype=torch.long)])
def test_nothing_to_predict(tiny, empty):
    with pytest.raises(ValueError, match="the corpus is empty"):
        perplexity(tiny(), empty)


def test_tokens_have_to_be_integers(tiny):
    with pytest.raises(ValueError, match="integers"):
        perplexity(tiny(), torch.rand(2, 8))


def test_one_sequence_alone_is_named(tiny, tokens):
    with pytest.raises(ValueError, match=r"one sequence is torch.int64 of shape \(\)"):
        perplexity(tiny(), tokens[0])


def test_narrow_integers_and_one_document(tiny, tokens):
    from harp_lib.measure.tiny import tiny_tokenizer

    assert perplexity(tiny(), tokens.to(torch.int16)) == perplexity(tiny(), tokens)
    assert word_perplexity(tiny(), tiny_tokenizer(), "import this") == word_perplexity(
        tiny(), tiny_tokenizer(), (text for text in ["import this"])
    )


def test_training_mode_is_restored(tiny, tokens):
    model = tiny().train()
    perplexity(model, tokens)
    assert model.training


LONG_TEXT = """
import resource, torch
from transformers import LlamaConfig, LlamaForCausalLM
from harp_lib import perplexity

config = LlamaConfig(vocab_size=128_000, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
                     num_attention_heads=2, max_position_embeddings=32_768)
model = LlamaForCausalLM(config).eval()
ids = torch.randint(0, 128_000, (1, 32_768))
perplexity(model, ids[:, :64])
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
perplexity(model, ids)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 2**20)
"""


def test_a_long_text_and_a_large_vocabulary_fit_in_memory():
    done = subprocess.run([sys.executable, "-c", LONG_TEXT], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < 1, "GiB on top of the model; the logits alone would be 15.6"


def lm_eval_word_perplexity(model, tokenizer, folder, max_length):
    """What lm-eval's own ``wikitext`` task says, its dataset replaced by ``folder/test.jsonl``."""
    import lm_eval.tasks
    from lm_eval.models.huggingface import HFLM

    official = Path(lm_eval.tasks.__file__).parent / "wikitext" / "wikitext.yaml"
    overlay = {
        "include": str(official),
        "task": "wikitext",
        "dataset_path": "json",
        "dataset_name": None,
        "dataset_kwargs": {"data_files": {"test": str(folder / "test.jsonl")}},
        "training_split": None,
        "validation_split": None,
    }
    (folder / "overlay").mkdir()
    (folder / "overlay" / "wikitext.yaml").write_text(yaml.safe_dump(overlay))
    lm = HFLM(pretrained=model, tokenizer=tokenizer, max_length=max_length, batch_size=1)
    manager = lm_eval.tasks.TaskManager(include_path=str(folder / "overlay"), include_defaults=False)
    results = lm_eval.simple_evaluate(lm, tasks=["wikitext"], task_manager=manager, bootstrap_iters=0)
    return results["results"]["wikitext"]["word_perplexity,none"]


@pytest.mark.parametrize("max_length", [512, 100])
def test_word_perplexity_is_that_of_lm_eval(shared, tiny, tmp_path, max_length):
    from harp_lib.measure.tiny import tiny_tokenizer

    rows = (shared / "benchmarks" / "wikitext" / "test.jsonl").read_text().split("\n")[:3]
    (tmp_path / "test.jsonl").write_text(
        "\n".join(json.dumps({"page": json.loads(row)["page"][:3000]}) for row in rows)
    )
    pages = [json.loads(row)["page"] for row in (tmp_path / "test.jsonl").read_text().split("\n")]
    model = tiny()
    model.config.max_position_embeddings = max_length
    found = word_perplexity(model, tiny_tokenizer(), pages)
    assert found == pytest.approx(lm_eval_word_perplexity(model, tiny_tokenizer(), tmp_path, max_length), rel=1e-3)


def test_word_perplexity_needs_documents(tiny):
    from harp_lib.measure.tiny import tiny_tokenizer

    with pytest.raises(ValueError, match="no documents"):
        word_perplexity(tiny(), tiny_tokenizer(), [])
