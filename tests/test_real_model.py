"""One pass over a real language model: SmolLM2-135M-Instruct, from the package index."""

import pytest
import torch

from harp_lib import apply_plan, load_pruned, perplexity, save_pruned, search_alphas, word_perplexity
from harp_lib.measure.text import excerpt, load_corpus, rolling_windows

pytestmark = pytest.mark.real_model


@pytest.fixture
def windows(smollm2):
    corpus = excerpt(load_corpus("python-docs", "test"), smollm2[1], documents=2, tokens=96)
    return rolling_windows(smollm2[1], corpus.texts, 96)


def test_search_prune_save_load_and_write(smollm2, windows, tmp_path):
    model, tokenizer = smollm2
    dense = perplexity(model, windows)
    assert dense < 60, "a trained model"
    fast = search_alphas(model, windows, 3, grid=(0.0, 0.5, 1.0), progress=False)
    literal = search_alphas(model, windows, 3, grid=(0.0, 0.5, 1.0), reuse_prefix=False, progress=False)
    assert fast.alphas == literal.alphas
    for layer in (29, 28, 27):
        assert fast.perplexities[layer] == pytest.approx(literal.perplexities[layer], rel=1e-5)
    assert perplexity(model, windows) == dense

    parameters = model.num_parameters()
    apply_plan(model, fast.plan)
    assert model.num_parameters() < parameters
    pruned = perplexity(model, windows)
    assert pruned == pytest.approx(min(fast.perplexities[27].values()), rel=1e-5)
    assert dense < pruned < 2 * dense, "three of thirty layers, rescaled"

    save_pruned(model, tokenizer, tmp_path / "pruned")
    again, tokenizer = load_pruned(tmp_path / "pruned")
    ids = tokenizer("Water boils at a temperature of", return_tensors="pt").input_ids
    with torch.no_grad():
        assert torch.equal(again(ids).logits, model(ids).logits)
    options = {"max_new_tokens": 12, "do_sample": False, "pad_token_id": tokenizer.pad_token_id}
    cached, uncached = (again.generate(ids, use_cache=use_cache, **options) for use_cache in (True, False))
    assert torch.equal(cached, uncached)


def test_word_perplexity_of_real_pages(smollm2, shared):
    pages = load_corpus("wikitext", "test", str(shared / "benchmarks")).documents
    short = sorted(pages, key=len)[:2]
    assert 10 < word_perplexity(*smollm2, short) < 200
